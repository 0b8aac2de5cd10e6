//! Unmodified drivers in user-mode kernels. Not among `cargo test`'s targets, because they need the network once and build a kernel:
//! `cargo xtask test` and `cargo test -p nicety-guests --test uml_guests -- --test-threads 1` run them.
//! The guests' own limits bound every wait here.

use std::{
    env,
    ffi::OsString,
    fmt::Display,
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nicety_guests::{
    Error, Folder, Guest, Machine, Root, processes_of_group,
    uml::{Model, Tools, UmlConfig, UmlKernel},
};

mod back_ends;
mod virtio_pci;

const SOON: Duration = Duration::from_secs(20);

/// The value. An error fails the test.
#[track_caller]
fn well<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

/// The root and the configuration of guests.
fn guests() -> (Root, UmlConfig) {
    let mut say = |line: &str| eprintln!("{line}");
    let root = well(Root::lay(&mut say));
    let kernel = well(UmlKernel::lay(&mut say));
    (root, UmlConfig::new(&kernel))
}

/// Waits until no process of a guest runs. The kernel ends a guest's programs after it, one by one.
#[track_caller]
fn wait_gone(leader: u32) {
    let end = Instant::now() + SOON;
    while !processes_of_group(leader).is_empty() {
        assert!(Instant::now() < end, "{:?} outlive their guest", processes_of_group(leader));
        std::thread::yield_now();
    }
}

/// Checks that the kernel has reported no problem, and that the guest powers off by itself.
#[track_caller]
fn powers_off_well(mut guest: Guest) {
    let complaints = "dmesg | grep -E 'Call Trace|WARNING|BUG' || true";
    assert_eq!(well(guest.succeed(complaints, SOON)), "");
    let leader = guest.process();
    let _no_answer = guest.run("poweroff -f", SOON);
    wait_gone(leader);
}

#[test]
fn a_guest_boots_and_runs_commands_with_code_output_and_limit() {
    let (root, config) = guests();
    let release = config.kernel.release().to_owned();
    let mut guest = well(Guest::boot(&root, config));
    println!("kernel {release} answered after {:.2} s", guest.boot_time().as_secs_f64());
    assert_eq!(well(guest.succeed("uname -r", SOON)).trim(), release);
    let output = well(guest.run("echo one; echo \"two\\nlines\" >&2; printf three; exit 7", SOON));
    assert_eq!((output.text.as_str(), output.code), ("one\ntwo\\nlines\nthree", 7));
    let late = guest.run("sleep 60", Duration::from_secs(1));
    assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
    assert_eq!(well(guest.succeed("echo still here", SOON)), "still here\n");
    let long = well(guest.succeed("seq 20000", SOON));
    assert_eq!((long.lines().count(), long.lines().last()), (20_000, Some("20000")));
    assert!(guest.cpu_time() > Duration::ZERO);
}

#[test]
fn a_guest_without_its_adapter_says_so_instead_of_hanging() {
    let (root, mut config) = guests();
    config.append.push("nicety.patience=50".into());
    match Guest::boot(&root, config.address("eth0", "10.0.0.2/24")) {
        Err(Error::Boot { why, .. }) => assert!(why.contains("eth0"), "{why}"),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it came up without an adapter"),
    }
}

#[test]
fn a_dropped_guest_leaves_no_process_and_no_file() {
    let (root, config) = guests();
    let before = files();
    let mut guest = well(Guest::boot(&root, config));
    // The guest has programs of its own, one of them busy.
    well(guest.succeed("(while :; do :; done) & sleep 600 &", SOON));
    let leader = guest.process();
    assert!(processes_of_group(leader).len() > 2, "its programs are in its group: {:?}", processes_of_group(leader));
    drop(guest);
    wait_gone(leader);
    let end = Instant::now() + SOON;
    let left = || files().into_iter().filter(|path| !before.contains(path)).collect::<Vec<_>>();
    // For a moment the memory file of another test's guest has a name.
    while !left().is_empty() {
        assert!(Instant::now() < end, "{:?} are left", left());
        std::thread::yield_now();
    }
}

/// Files that guests might leave in the folders of their memory and their notes.
fn files() -> Vec<PathBuf> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let home = env::var_os("HOME").map(|home| PathBuf::from(home).join(".uml"));
    let folders = [Some("/dev/shm".into()), runtime, Some(env::temp_dir()), home];
    let entries =
        folders.into_iter().flatten().filter_map(|folder: PathBuf| fs::read_dir(folder).ok()).flatten().flatten();
    let own = format!("nicety-{}-", std::process::id());
    let ours = |path: &PathBuf| {
        let text = path.display().to_string();
        text.contains(&own) || text.contains("vm_file-") || text.contains("/.uml/")
    };
    entries.map(|entry| entry.path()).filter(ours).collect()
}

#[test]
fn a_kernel_that_somebody_else_built_boots_and_anything_else_is_refused() {
    let (root, config) = guests();
    let own = well(UmlKernel::at(config.kernel.program()));
    assert_eq!(own.release(), config.kernel.release());
    well(Guest::boot(&root, UmlConfig::new(&own)));
    for other in ["/bin/true", "/nowhere/linux"] {
        let refused = UmlKernel::at(other.as_ref()).map(drop).map_err(|error| error.to_string());
        assert!(refused.as_ref().is_err_and(|error| error.contains(other)), "{refused:?}");
    }
}

#[test]
fn many_guests_boot_one_after_another() {
    let (root, config) = guests();
    let times: Vec<f64> = (0..10).map(|_| well(Guest::boot(&root, config.clone())).boot_time().as_secs_f64()).collect();
    println!("answered after {times:.2?} s");
}

#[test]
fn a_guest_whose_kernel_panics_ends_at_once_and_says_why() {
    let (root, mut config) = guests();
    // The end of the first process is a panic.
    config.append.push("rdinit=/bin/false".into());
    match Guest::boot(&root, config) {
        Err(Error::Boot { why, console, .. }) => {
            assert_eq!(why, "its process ended", "{console}");
            assert!(console.contains("Kernel panic"), "{console}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it came up without a first process"),
    }
}

/// QEMU's machine x-remote, reached by the kernel's second PCI back end. The peer is QEMU's own user network, which answers pings.
/// QEMU's RTL8139 is a C+ chip, which 8139too leaves to 8139cp (`rtl8139_init_one`).
#[test]
fn qemus_own_models_work_with_their_drivers_over_x_remote() {
    let (root, config) = guests();
    let models = [
        ("pcnet", "pcnet32"),
        ("ne2k_pci", "ne2k-pci"),
        ("rtl8139", "8139cp"),
        ("e1000", "e1000"),
        ("e1000e", "e1000e"),
        ("vmxnet3", "vmxnet3"),
    ];
    for (number, (model, driver)) in (1..).zip(models) {
        let mac = format!("52:54:00:00:02:{number:02x}");
        let device = format!("{model},mac={mac}");
        let model = Model { device, netdev: "user".into(), entrance: Vec::new() };
        let mut guest = well(Guest::boot(&root, UmlConfig { model: Some(model), ..config.clone() }));
        let found = "cd /sys/class/net/eth0; echo $(basename $(readlink device/driver)) $(cat address)";
        assert_eq!(well(guest.succeed(found, SOON)), format!("{driver} {mac}\n"));
        well(guest.succeed("ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up", SOON));
        // QEMU's model of an e1000 takes no frame in its first seconds.
        well(guest.succeed("until /usr/bin/ping -n -q -c 1 -W 1 10.0.2.2; do rest; done", SOON));
        let four =
            "(for n in 1 2 3 4; do /usr/bin/ping -n -q -c 1 -W 5 10.0.2.2 || exit 1; done) | grep -c ' 1 received'";
        let answered = well(guest.succeed(four, SOON));
        println!("{driver}: {} of 4 answered", answered.trim_end());
        assert_eq!(answered, "4\n");
        let complaints = "dmesg | grep -E 'Call Trace|WARNING|BUG' || true";
        assert_eq!(well(guest.succeed(complaints, SOON)), "");
    }
}

#[test]
fn a_guest_whose_adapters_server_does_not_start_says_why() {
    let (root, config) = guests();
    let model = Model { device: "e1000,mac=zz".into(), netdev: "user".into(), entrance: Vec::new() };
    // This interface never appears. The guest waits for it until its boot limit.
    let (addresses, boot_limit) = (vec!["eth0:10.0.2.15/24".into()], Duration::from_secs(4));
    let error =
        Guest::boot(&root, UmlConfig { model: Some(model), addresses, boot_limit, ..config }).unwrap_err().to_string();
    // QEMU's own words, then ours.
    assert!(error.contains("mac") && error.contains("zz"), "{error}");
    assert!(error.contains("what served its adapter had ended by itself: exit status: 1"), "{error}");
}

/// A vfio-user server that never answers and is never silent. It sends these pieces in turn, over and over, until its client closes the
/// connection.
fn chatter(path: &Path, pieces: &'static [&'static [u8]]) -> JoinHandle<()> {
    let listener = well(UnixListener::bind(path));
    thread::spawn(move || {
        let (mut client, _) = well(listener.accept());
        for piece in pieces.iter().cycle() {
            if client.write_all(piece).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    })
}

#[test]
fn a_server_that_talks_without_answering_is_given_up_in_time() {
    let (root, config) = guests();
    let folder = well(Folder::new());
    // The first is a request that wants no reply (VFIO_USER_DMA_READ). The third wants one, but the server reads no reply, and it repeats
    // endlessly. The second is a reply to the first message, byte by byte.
    let request: &[&[u8]] = &[&[1, 0, 11, 0, 16, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]];
    let question: &[&[u8]] = &[&[1, 0, 11, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
    let reply: &[&[u8]] = &[&[1], &[0], &[1], &[0], &[0], &[16], &[0], &[0], &[1], &[0], &[0]];
    let talks = [("one", request), ("two", reply), ("three", question)];
    let servers = talks.map(|(name, pieces)| chatter(&folder.path().join(name), pieces));
    let devices = talks.map(|(name, _)| format!("vfio_user.device={}", folder.join(name))).to_vec();
    let append = vec!["vfio_user.timeout_ms=500".into()];
    // Each server takes at most three times the answer's time limit: of the usual one, 5 s, all three would exceed the limit of a boot, 30 s.
    let mut guest = well(Guest::boot(&root, UmlConfig { devices, append, ..config }));
    let count = well(guest.succeed("dmesg | grep -c 'the server does not answer'", SOON));
    assert_eq!(count.trim(), "3", "{}", well(guest.succeed("dmesg", SOON)));
    for server in servers {
        server.join().unwrap();
    }
}

/// `seccomp=on`: without it the kernel traces its programs. That is much slower, and nobody would notice.
#[test]
fn a_guests_programs_run_without_being_traced() {
    let (root, config) = guests();
    let mut guest = well(Guest::boot(&root, config));
    well(guest.succeed("sleep 600 &", SOON));
    let leader = guest.process();
    let status = |process: &u32| fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    // The kernel's own process and its helpers have no filter.
    let programs: Vec<String> =
        processes_of_group(leader).iter().map(status).filter(|text| text.contains("Seccomp:\t2")).collect();
    assert!(!programs.is_empty(), "no process of this guest has a filter for its system calls");
    assert!(programs.iter().all(|text| text.contains("TracerPid:\t0")), "{programs:?}");
}

/// What a Ctrl-C does: the process that owns a guest is killed without a chance to clean up. This program is that process too.
#[test]
fn a_guest_ends_when_its_owner_is_killed() {
    let name = "a_guest_ends_when_its_owner_is_killed";
    if env::var_os("NICETY_OWN_A_GUEST").is_some() {
        let (root, config) = guests();
        let mut guest = well(Guest::boot(&root, config));
        println!("\nguest {}", guest.process());
        let _ = guest.run("while :; do :; done", Duration::from_secs(60));
        return;
    }
    guests();
    let mut owner = Command::new(well(env::current_exe()));
    owner.args([name, "--exact", "--nocapture"]).env("NICETY_OWN_A_GUEST", "1").stdout(Stdio::piped());
    // Files that the killed process cannot remove go with this folder.
    let folder = well(Folder::new());
    let mut owner = well(owner.env("XDG_RUNTIME_DIR", folder.path()).spawn());
    let output = owner.stdout.take().unwrap_or_else(|| panic!("it has no output"));
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let guest = lines.find_map(|line| line.strip_prefix("guest ").map(str::to_owned));
    let leader: u32 = well(guest.unwrap_or_else(|| panic!("the owner has no guest")).parse());
    assert!(!processes_of_group(leader).is_empty());
    well(owner.kill().and_then(|()| owner.wait()));
    wait_gone(leader);
}

/// On a machine with only a compiler, a build uses the private root's programs. The PATH has all of this machine's except those.
#[test]
fn a_build_finds_flex_bison_and_the_like_in_the_private_root() {
    let folder = well(Folder::new());
    let bare = folder.path().join("bare");
    well(fs::create_dir(&bare));
    let laid = ["flex", "lex", "bison", "yacc", "bc", "cpio", "m4", "xz", "unxz", "xzcat"];
    for place in ["/usr/sbin", "/usr/bin", "/sbin", "/bin"] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if !laid.iter().any(|program| name == *program) {
                // The first folder that has the program counts.
                let _ = std::os::unix::fs::symlink(entry.path(), bare.join(name));
            }
        }
    }
    let path = OsString::from(&bare);
    let tools = well(Tools::lay(&path, &folder.path().join("wrappers"), &mut |line| eprintln!("{line}")));
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        well(fs::write(&path, text));
        path
    };
    let run = |program: &str, arguments: &[&str], input: &str| {
        let mut command = tools.command(program);
        command.args(arguments).current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = well(command.spawn());
        well(child.stdin.take().map_or(Ok(()), |mut end| end.write_all(input.as_bytes())));
        let output = well(child.wait_with_output());
        assert!(output.status.success(), "{program}: {output:?}");
        output.stdout
    };
    file("words.l", "%%\n[a-z]+ { return 1; }\n%%\nint yywrap(void) { return 1; }\n");
    file("words.y", "%{\nint yylex(void); void yyerror(const char *s);\n%}\n%token A\n%%\nall: A;\n%%\n");
    run("flex", &["-o", "words.lex.c", "words.l"], "");
    run("bison", &["-o", "words.tab.c", "--defines=words.tab.h", "-t", "-l", "words.y"], "");
    for made in ["words.lex.c", "words.tab.c", "words.tab.h"] {
        assert!(well(fs::metadata(folder.path().join(made))).len() > 100, "{made}");
    }
    assert_eq!(run("bc", &["-q"], "6 * 7\n"), b"42\n");
    assert_eq!(run("m4", &[], "define(`a', `b')a\n"), b"b\n");
    let packed = run("xz", &["-c"], "nicety");
    assert!(packed.starts_with(b"\xfd7zXZ"), "{packed:?}");
    assert!(run("cpio", &["-o", "-H", "newc", "--quiet"], "words.l\n").starts_with(b"070701"));
}
