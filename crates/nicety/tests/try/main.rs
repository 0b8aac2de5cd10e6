//! `nicety try` with real guests: its behaviour for a person at a terminal, a script and CI, and its leftovers.
//!
//! Not among `cargo test`'s targets, because it needs the network once and builds a kernel: `cargo xtask test --only guests` and
//! `cargo test -p nicety --test try -- --test-threads 1` run it. Every wait in here is bounded.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nicety_guests::uml::UmlKernel;
use nicety_guests::{Root, Tool, processes_of_group};
use nicety_trials::scope::in_linux as entries;
use rustix::process::{Pid, Signal, kill_process};

mod terminal;

/// Longest time for any command here.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A folder for sockets, which must be empty at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mut say = |line: &str| eprintln!("{line}");
        Root::lay(&mut say).unwrap();
        UmlKernel::lay(&mut say).unwrap();
        let name = format!("try-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let scratch = Scratch(std::env::temp_dir().join(name));
        fs::create_dir_all(scratch.runtime()).unwrap();
        scratch
    }

    fn runtime(&self) -> PathBuf {
        self.0.join("run")
    }

    /// A command with a time limit; after that it is killed.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--foreground", "-k", "5", &TIMEOUT.as_secs().to_string(), env!("CARGO_BIN_EXE_nicety"), "try"]);
        command.args(words).current_dir(&self.0).env("XDG_RUNTIME_DIR", self.runtime());
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        let output = self.command(words).output().unwrap();
        self.empty();
        output
    }

    /// The command's stdout. It must succeed without any message on stderr.
    #[track_caller]
    fn says(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{words:?}");
        text(&output.stdout)
    }

    #[track_caller]
    fn empty(&self) {
        let left: Vec<_> = fs::read_dir(self.runtime()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// User-mode kernels whose files are in this folder.
    fn kernels(&self) -> Vec<u32> {
        let here = format!("uml_dir={}", self.runtime().display());
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        all.filter(|process: &u32| {
            text(&fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default()).contains(&here)
        })
        .collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_program_of_the_host_that_is_missing_is_named_with_its_package() {
    let scratch = Scratch::new();
    let path = format!("PATH={}", scratch.0.display());
    let program = env!("CARGO_BIN_EXE_nicety");
    let mut command = Command::new("env");
    command.args([&path, program, "try", "e1000", "--peer", "none", "--", "true"]).current_dir(&scratch.0);
    let output = command.stdin(Stdio::null()).env("XDG_RUNTIME_DIR", scratch.runtime()).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("the program `setpriv` is missing: install the package `util-linux`"), "{message}");
    scratch.empty();
}

#[test]
fn every_adapter_is_eth0_of_a_small_linux_that_reaches_its_peer() {
    let scratch = Scratch::new();
    for entry in entries() {
        let name = entry.about.name;
        let begin = Instant::now();
        // The driver bound is the one that the registry names for Linux.
        let driver = scratch.says(&[name, "--", "sh", "-c", "basename $(readlink /sys/class/net/eth0/device/driver)"]);
        println!("{name}: a command after {:.2} s", begin.elapsed().as_secs_f64());
        assert_eq!(driver.trim().replace('_', "-"), entry.about.linux.driver.replace('_', "-"), "{name}");
        let ping = scratch.says(&[name, "--", "ping", "-c", "3", "-i", "0.2", "-W", "5", "peer"]);
        assert!(ping.contains("3 received") || ping.contains("3 packets received"), "{name}: {ping}");
    }
}

#[test]
fn a_commands_words_output_and_code_are_its_own() {
    let scratch = Scratch::new();
    let alone = |words: &[&str]| scratch.run(&[&["e1000", "--peer", "none", "--"], words].concat());
    let output =
        alone(&["sh", "-c", "printf 'out\\r\\n\\001'; echo \"$1\" >&2; exit 7", "sh", "two words, it's $HOME"]);
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(
        (output.stdout.as_slice(), text(&output.stderr).as_str()),
        (&b"out\r\n\x01"[..], "two words, it's $HOME\n")
    );
    // More output than any line buffers, to its last byte.
    let output = alone(&["seq", "200000"]);
    let (all, last) = (text(&output.stdout), Some("200000"));
    assert_eq!((all.lines().count(), all.lines().last(), output.status.code()), (200_000, last, Some(0)));
    let output = alone(&["no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(text(&output.stderr).contains("no-such-program"), "{output:?}");
    assert_eq!(alone(&["cat"]).status.code(), Some(0), "its input is empty");
}

#[test]
fn the_guest_has_the_hosts_files_and_cannot_change_them() {
    let scratch = Scratch::new();
    fs::write(scratch.0.join("file"), "the host's").unwrap();
    fs::create_dir_all(scratch.0.join("folder/inner")).unwrap();
    let script = "cat file; echo new >file; cat file; rm -r file folder && mkdir folder && ls -A . folder | grep -e file -e inner; pwd";
    let message = scratch.says(&["e1000", "--peer", "none", "--", "sh", "-c", script]);
    assert_eq!(message, format!("the host'snew\n{}\n", scratch.0.display()));
    assert_eq!(fs::read_to_string(scratch.0.join("file")).unwrap(), "the host's");
    assert!(scratch.0.join("folder/inner").is_dir());
    // A mount in the guest cannot be made writable either.
    let mount = format!("mkdir /mnt/h && mount -t hostfs none /mnt/h -o {}", scratch.0.display());
    let script = format!(
        "{mount} && cat /mnt/h/file; echo X >/mnt/h/file; mount -o remount,rw /mnt/h && echo writable; \
         echo X >/mnt/h/file; rm /mnt/h/file; touch /mnt/h/new; echo tried"
    );
    let output = scratch.run(&["e1000", "--peer", "none", "--", "sh", "-c", &script]);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "the host'stried\n"), "{output:?}");
    assert_eq!(text(&output.stderr).matches("Read-only file system").count(), 4, "{output:?}");
    assert_eq!(fs::read_to_string(scratch.0.join("file")).unwrap(), "the host's");
    assert!(!scratch.0.join("new").exists());
}

#[test]
fn a_kernel_of_ones_own_is_used_and_what_is_none_is_refused() {
    let scratch = Scratch::new();
    let kernel = UmlKernel::lay(&mut |_| {}).unwrap();
    let file = kernel.program().display().to_string();
    let tree = kernel.program().parent().unwrap().display().to_string();
    for words in [["--kernel", &file], ["--kernel-tree", &tree]] {
        let uname = scratch.says(&[&words[..], &["e1000", "--peer", "none", "--", "uname", "-r"]].concat());
        assert_eq!(uname.trim(), kernel.release());
    }
    let refused = scratch.run(&["e1000", "--kernel", "/bin/true", "--", "true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("no user-mode kernel"), "{refused:?}");
}

#[test]
fn a_kernel_that_a_machine_boots_is_refused_with_the_kind_that_is_needed() {
    let scratch = Scratch::new();
    // Documentation/arch/x86/boot.rst: the setup header's magic number is at 0x202.
    let image = [&[0; 0x202][..], b"HdrS", &[0; 100]].concat();
    fs::write(scratch.0.join("bzImage"), image).unwrap();
    let refused = scratch.run(&["e1000", "--kernel", "bzImage", "--", "true"]);
    let message = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("(bzImage)") && message.contains("make ARCH=um linux"), "{message}");
}

#[test]
fn what_the_guests_driver_does_is_recorded_and_not_what_the_peers_does() {
    let scratch = Scratch::new();
    scratch.says(&["e1000", "--record", "mine.trace", "--", "ping", "-q", "-c", "1", "-W", "5", "peer"]);
    let trace = fs::read_to_string(scratch.0.join("mine.trace")).unwrap();
    assert!(trace.starts_with("nicety-trace 2\nport vm1\nadapter e1000\n"), "{}", &trace[..200]);
    assert!(trace.contains("  # TDT\n") && !trace.contains("guest error"), "Linux's driver keeps to the datasheet");
    let files: Vec<_> = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files.len(), 2, "the trace, and the folder for sockets: {files:?}");
    let shared = scratch.run(&["--port", "vm1", "--record", "mine.trace", "--", "true"]);
    assert_eq!(shared.status.code(), Some(2), "{shared:?}");
}

#[test]
fn without_gdb_the_package_is_named_before_anything_starts() {
    let scratch = Scratch::new();
    let mut command = Command::new("env");
    command.arg(format!("PATH={}", scratch.0.display())).arg(env!("CARGO_BIN_EXE_nicety"));
    command.args(["try", "e1000", "--gdb", "--peer", "none", "--", "true"]).current_dir(&scratch.0);
    let output = command.stdin(Stdio::null()).env("XDG_RUNTIME_DIR", scratch.runtime()).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("the program `gdb` is missing: install the package `gdb`"), "{message}");
    scratch.empty();
}

#[test]
fn a_held_kernel_stops_in_its_drivers_probe_and_goes_on_under_the_printed_command() {
    let tool = match Tool::gdb(&mut |_| {}) {
        Ok(gdb) => gdb,
        Err(error) => {
            // Writes past the harness, which captures the output of tests that pass.
            let test = "a_held_kernel_stops_in_its_drivers_probe_and_goes_on_under_the_printed_command";
            let line = format!("\nSKIPPED {test}: gdb cannot be laid: {error}\n");
            let _stdout_closed = std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes());
            return;
        }
    };
    // `nicety try --gdb` and the line that it prints both find the debugger by PATH.
    let paths = format!("{}:{}", tool.folder().display(), std::env::var("PATH").unwrap_or_default());
    let scratch = Scratch::new();
    let mut command = scratch.command(&["e1000", "--gdb", "--peer", "none", "--", "uname", "-s"]);
    command.env("PATH", &paths);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let gdb = lines.find_map(|line| Some(line.unwrap().strip_prefix("  gdb ")?.to_owned())).unwrap();
    let then = "-ex 'break e1000_probe' -ex continue -ex 'bt 1' -ex delete -ex continue -batch";
    let script = format!("timeout -k 5 {} gdb {gdb} {then}", TIMEOUT.as_secs());
    let debugged = Command::new("sh").args(["-c", &script]).env("PATH", &paths).stdin(Stdio::null()).output().unwrap();
    let said = text(&debugged.stdout);
    assert!(said.contains("hit Breakpoint") && said.contains("in e1000_probe ()"), "{debugged:?}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "Linux\n"), "{said}");
    scratch.empty();
}

/// Starts a guest and a peer, and waits until both run. The guest then runs `then`.
fn started(scratch: &Scratch, then: &str) -> (Child, Vec<u32>) {
    // Without `timeout`, which would take the signal for us.
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(["try", "vmxnet3", "--", "sh", "-c", &format!("sleep 600 & echo up; {then}")]);
    command.current_dir(&scratch.0).env("XDG_RUNTIME_DIR", scratch.runtime());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut up = [0; 3];
    child.stdout.take().unwrap().read_exact(&mut up).unwrap();
    assert_eq!(&up, b"up\n");
    let kernels = scratch.kernels();
    assert!(kernels.len() >= 2, "guest and peer: {kernels:?}");
    (child, kernels)
}

#[track_caller]
fn gone(groups: &[u32]) {
    for &group in groups {
        until("processes go on", || processes_of_group(group).is_empty());
    }
}

#[test]
fn a_signal_ends_all_of_it_with_130_and_nothing_is_left() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let scratch = Scratch::new();
        let (child, kernels) = started(&scratch, "wait");
        let folders = fs::read_dir(scratch.runtime()).unwrap().count();
        assert!(folders >= 3, "switch, guest and peer have folders, or nothing is shown by their absence: {folders}");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            (output.status.code(), text(&output.stderr).as_str()),
            (Some(130), "nicety: stopped\n"),
            "{signal:?}"
        );
        scratch.empty();
        gone(&kernels);
    }
}

#[test]
fn no_process_outlives_one_that_is_killed() {
    // The guest starts programs all the time. A program whose kernel is killed before the program has asked to die with it must
    // detect that (crates/guests/uml/apply): without that check one kill in five left a process.
    for round in 0..12 {
        let scratch = Scratch::new();
        let (mut child, kernels) = started(&scratch, "while :; do /bin/true & /bin/true; done");
        thread::sleep(Duration::from_millis(7 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        gone(&kernels);
    }
}

#[test]
fn a_guest_joins_a_port_of_a_running_switch() {
    let scratch = Scratch::new();
    let host = "[switch]\nname = \"lan\"\n\n[[port]]\nname = \"vm1\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\n\
                socket = \"a blank/vm1.sock\"\n";
    // A path with a blank cannot be part of a kernel's command line.
    fs::create_dir(scratch.0.join("a blank")).unwrap();
    fs::write(scratch.0.join("host.toml"), host).unwrap();
    let mut serve = Command::new(env!("CARGO_BIN_EXE_nicety"));
    serve.arg("serve").current_dir(&scratch.0).env("XDG_RUNTIME_DIR", &scratch.0).stderr(Stdio::null());
    let serve = Killed(serve.spawn().unwrap());
    until("the daemon serves", || {
        scratch.0.join("a blank/vm1.sock").exists() && scratch.0.join("nicety/lan.sock").exists()
    });
    let at_port = |words: &[&str]| {
        let mut command = scratch.command(&[&["--port", "vm1", "--host", "host.toml", "--"], words].concat());
        command.env("XDG_RUNTIME_DIR", &scratch.0).output().unwrap()
    };
    for _ in 0..2 {
        let output = at_port(&["cat", "/sys/class/net/eth0/address"]);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(0), "52:54:00:12:34:01\n"),
            "{output:?}"
        );
    }
    drop(serve);
    let output = at_port(&["true"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(text(&output.stderr).contains("nicety serve host.toml"), "{output:?}");
}

#[test]
fn a_runtime_folder_that_a_kernel_cannot_be_told_of_is_named_before_anything_starts() {
    let scratch = Scratch::new();
    let runtime = scratch.0.join("a blank");
    fs::create_dir(&runtime).unwrap();
    let output = scratch.command(&["e1000", "--", "true"]).env("XDG_RUNTIME_DIR", &runtime).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(
        message.starts_with(&format!("nicety: {}", runtime.display())) && message.contains("set XDG_RUNTIME_DIR"),
        "{message}"
    );
    assert_eq!(fs::read_dir(&runtime).unwrap().count(), 0);
}

#[test]
fn a_word_for_the_kernel_is_one_of_its_command_line() {
    let scratch = Scratch::new();
    let words =
        ["--append", "nicety.word=1", "--append", "vfio_user.msix=0", "--", "grep", "-o", "nicety.word=1 vfio.*=0"];
    let message = scratch.says(&[&["vmxnet3"], &words[..], &["/proc/cmdline"]].concat());
    assert_eq!(message, "nicety.word=1 vfio_user.msix=0\n");
}

#[test]
fn what_passes_the_guests_port_is_in_the_file_that_is_named() {
    let scratch = Scratch::new();
    scratch.says(&["e1000", "--capture", "e1000.pcapng", "--", "ping", "-c", "2", "-i", "0.2", "-W", "5", "peer"]);
    let file = fs::read(scratch.0.join("e1000.pcapng")).unwrap();
    // An echo request from the guest, and its answer: ICMP, types 8 and 0.
    let echo = |kind: u8, from: u8, to: u8| {
        let addresses = [10, 0, 0, from, 10, 0, 0, to, kind, 0];
        file.windows(addresses.len()).filter(|bytes| *bytes == addresses).count()
    };
    assert_eq!((echo(8, 1, 2), echo(0, 2, 1)), (2, 2), "each passes the port once");
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
