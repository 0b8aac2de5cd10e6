//! The program as a person meets it: output, messages, exit codes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a daemon may take for anything here.
const PATIENCE: Duration = Duration::from_secs(20);

const HOST: &str = "\
[switch]
name = \"lan\"

[[port]]
name = \"vm1\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"

[[port]]
name = \"vm2\"
adapter = \"virtio-net\"
mac = \"52:54:00:12:34:02\"
socket = \"vm2.sock\"
queues = 2
";

/// A folder of one test alone, gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("nicety-cli-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }

    fn with(host: &str) -> Scratch {
        let scratch = Scratch::new();
        std::fs::write(scratch.0.join("host.toml"), host).unwrap();
        scratch
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(args).current_dir(&self.0).env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
        command
    }

    fn run(&self, args: &[&str]) -> Ended {
        Ended::of(&self.command(args).output().unwrap())
    }

    fn sockets(&self) -> Vec<String> {
        let names = std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".sock")).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn of(output: &Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// A daemon that is ready; killed if a test fails before its end.
struct Served {
    child: Child,
    log: Receiver<String>,
}

impl Served {
    fn start(scratch: &Scratch) -> Served {
        let mut child = scratch.command(&["serve"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, log) = mpsc::channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let served = Served { child, log };
        served.line("all sockets are ready");
        served
    }

    /// Waits for a line of the log.
    fn line(&self, words: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("{words:?} did not come ({error}): {seen:#?}"),
            }
        }
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.line("ending");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[test]
fn without_a_command_it_says_what_it_can_do() {
    let ended = Scratch::new().run(&[]);
    assert_eq!(ended.code, Some(2));
    for word in ["serve", "attach", "ports", "adapters", "compare", "try"] {
        assert!(ended.err.contains(word), "{}", ended.err);
    }
    let help = Scratch::new().run(&["--help"]);
    assert_eq!(help.code, Some(0));
    assert!(help.out.contains("Exit codes:"), "{}", help.out);
    assert!(!help.out.contains("guest "), "what only the program itself calls is not shown: {}", help.out);
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    let scratch = Scratch::with(HOST);
    for args in [&["sreve"][..], &["compare", "--guests", "docker"], &["compare", "--seconds", "x"], &["attach"]] {
        assert_eq!(scratch.run(args).code, Some(2), "{args:?}");
    }
}

#[test]
fn trying_what_cannot_be_tried_is_refused_before_anything_is_built() {
    let scratch = Scratch::with(HOST);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["e100", "--", "true"], 2, "there is no adapter \"e100\"; did you mean \"e1000\"?"),
        (&["e1000"], 2, "a shell needs a terminal"),
        (&[], 2, "required arguments were not provided"),
        (&["e1000", "--port", "vm1"], 2, "cannot be used with"),
        (&["e1000", "--memory", "16"], 2, "16 is not in 64..=3838"),
        (&["--port", "vm3", "--", "true"], 2, "has no port \"vm3\"; did you mean \"vm1\"?"),
        (&["--port", "vm1", "--", "true"], 3, "the daemon does not run; start it first: nicety serve host.toml"),
        (&["--port", "vm1", "--host", "other.toml", "--", "true"], 2, "the host file other.toml cannot be read"),
        (
            &["e1000", "--kernel-tree", "tree", "--", "true"],
            2,
            "tree has no kernel `linux`; build it there: make -C tree",
        ),
        (&["e1000", "--kernel", "nowhere", "--", "true"], 2, "nowhere for its version failed: No such file"),
    ];
    for (words, code, said) in cases {
        let ended = scratch.run(&[&["try"], *words].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(*code), ""), "{words:?}: {}", ended.err);
        assert!(ended.err.contains(said), "{words:?}: {}", ended.err);
    }
}

#[test]
fn adapters_are_listed_and_each_fact_has_its_source() {
    let scratch = Scratch::new();
    let all = scratch.run(&["adapters"]);
    assert_eq!(all.code, Some(0), "{all:?}");
    let names: Vec<&str> = all.out.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(["e1000", "vmxnet3", "virtio-net"].iter().all(|name| names.contains(name)), "{}", all.out);
    let one = scratch.run(&["adapters", "e1000"]);
    // Intel's 82540EM is 8086:100e: pci.ids.
    for fact in ["82540EM", "8086:100e", "1 Gbit/s shown to the guest; never a limit", "Linux", "Windows", "[Intel"] {
        assert!(one.out.contains(fact), "{fact}: {}", one.out);
    }
    // What a person may doubt has its source on the next line.
    let lines: Vec<&str> = one.out.lines().map(str::trim).collect();
    for fact in ["chip ", "PCI ", "link ", "offloads ", "queue pairs ", "network boot ", "Linux ", "Windows "] {
        let at = lines.iter().position(|line| line.starts_with(fact)).expect(fact);
        assert!(lines[at + 1].starts_with('[') && lines[at + 1].ends_with(']'), "{fact}: {}", one.out);
    }
    let page = scratch.run(&["adapters", "vmxnet3"]).out;
    assert!(page.contains("vmxnet3, since 2.6.32") && page.contains("vmxnet3, with VMware Tools"), "{page}");
    let json = scratch.run(&["adapters", "virtio-net", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["adapters"][0]["pci"]["vendor"], 0x1af4);
    let unknown = scratch.run(&["adapters", "e100"]);
    assert_eq!(unknown.code, Some(2));
    let said = "there is no adapter \"e100\"; did you mean \"e1000\"? (there are: e1000, ";
    assert!(unknown.err.starts_with(said), "{}", unknown.err);
}

#[test]
fn a_bad_host_file_shows_every_mistake_with_its_line_and_ends_with_2() {
    let bad = "[switch]\nageing = \"5\"\n[[port]]\nname = \"vm 1\"\nadaptor = \"e1000\"\nmac = \"01:00:5e:00:00:01\"\nsocket = \"a\"\n";
    let scratch = Scratch::with(bad);
    for args in [&["serve"][..], &["serve", "--check"], &["attach", "vm1"], &["ports"]] {
        let ended = scratch.run(args);
        assert_eq!((ended.code, ended.out.as_str()), (Some(2), ""), "{args:?}: {ended:?}");
        let starts = [
            "host.toml:2: switch.ageing: \"5\": its unit must be s (allowed: \"10s\" to \"1000000s\")",
            "host.toml:3: port.adapter: it is missing from this [[port]]",
            "host.toml:4: port.name: \"vm 1\" has a ' '",
            "host.toml:5: port.adaptor: there is no such key in [[port]]; did you mean \"adapter\"?",
            "host.toml:6: port.mac: 01:00:5e:00:00:01 is not the address of one station",
            "5 mistakes in the host file",
        ];
        let lines: Vec<&str> = ended.err.lines().collect();
        assert_eq!(lines.len(), starts.len(), "{}", ended.err);
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line}");
        }
    }
}

#[test]
fn a_host_file_that_is_not_there_or_no_toml_ends_with_2() {
    let scratch = Scratch::new();
    let absent = scratch.run(&["serve", "other.toml"]);
    assert_eq!(absent.code, Some(2));
    assert!(absent.err.starts_with("the host file other.toml cannot be read: No such file"), "{}", absent.err);
    let no_toml = Scratch::with("[[port]\nname = \n").run(&["serve"]);
    assert_eq!(no_toml.code, Some(2));
    assert!(no_toml.err.starts_with("host.toml:1: "), "{}", no_toml.err);
    let binary = Scratch::with("");
    std::fs::write(binary.0.join("host.toml"), b"\n\n\xff\xfe").unwrap();
    assert!(binary.run(&["serve"]).err.starts_with("host.toml:3: it is not UTF-8 text"));
}

#[test]
fn check_says_what_the_host_file_asks_for() {
    let scratch = Scratch::with(&format!("{HOST}[uplink]\nkind = \"tap\"\nname = \"tap0\"\nrate = \"100Mbit/s\"\n"));
    let dir = scratch.0.display();
    let ended = scratch.run(&["serve", "--check"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(
        ended.out,
        format!(
            "switch lan, 32768 addresses, ageing 300s; uplink tap tap0, 100Mbit/s both ways; 1 worker; control {dir}/nicety-lan.sock\n\
             port vm1  e1000       52:54:00:12:34:01  1MiB  {dir}/vm1.sock\n\
             port vm2  virtio-net  52:54:00:12:34:02  1MiB  {dir}/vm2.sock\n"
        )
    );
}

#[test]
fn attach_prints_words_to_paste_and_keeps_notes_apart() {
    let scratch = Scratch::with(HOST);
    let dir = scratch.0.display();
    let e1000 = scratch.run(&["attach", "vm1"]);
    assert_eq!(e1000.code, Some(0), "{e1000:?}");
    assert_eq!(
        e1000.out,
        format!(
            "-object memory-backend-memfd,id=mem,size=512M,share=on \\\n\
             -machine q35,memory-backend=mem \\\n\
             -device '{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{dir}/vm1.sock\"}}}}'\n"
        )
    );
    assert!(e1000.err.contains("note: the daemon does not run yet: nicety serve host.toml\n"), "{}", e1000.err);
    let virtio = scratch.run(&["attach", "vm2", "--host", "host.toml"]);
    assert!(virtio.out.contains("-netdev vhost-user,id=nicety-vm2-net,chardev=nicety-vm2,queues=2"), "{}", virtio.out);
    assert!(virtio.out.ends_with(",mac=52:54:00:12:34:02,speed=10000,duplex=full,mq=on,vectors=6\n"), "{}", virtio.out);
    let xml = scratch.run(&["attach", "vm2", "--libvirt"]);
    assert!(
        xml.out.contains("<interface type='vhostuser'>") && xml.out.contains("<access mode='shared'/>"),
        "{}",
        xml.out
    );
    let unknown = scratch.run(&["attach", "vm3"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (Some(2), ""));
    assert!(
        unknown.err.contains("has no port \"vm3\"; did you mean \"vm1\"? (there are: vm1, vm2)"),
        "{}",
        unknown.err
    );
}

#[test]
fn ports_without_a_daemon_says_how_to_start_one_and_ends_with_3() {
    let scratch = Scratch::with(HOST);
    let ended = scratch.run(&["ports"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("start one with `nicety serve`"), "{}", ended.err);
}

#[test]
fn a_daemon_serves_shows_its_ports_and_ends_cleanly_by_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let scratch = Scratch::with(HOST);
        let served = Served::start(&scratch);
        assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
        let table = scratch.run(&["ports", "--addresses"]);
        assert_eq!(table.code, Some(0), "{table:?}");
        assert!(table.out.contains("vm1   e1000       waiting  0 frames"), "{}", table.out);
        assert!(table.out.contains("vm1: waits for a VM: `nicety attach vm1` says how to start one"), "{}", table.out);
        let json = scratch.run(&["ports", "vm2", "--control", "nicety-lan.sock", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["ports"][0]["name"], "vm2");
        assert_eq!(json["ports"][0]["condition"], "waiting");
        assert_eq!(scratch.run(&["ports", "vm3"]).code, Some(2));
        assert!(scratch.run(&["attach", "vm1"]).err.contains("note: the daemon runs; vm1 waits for a VM"));
        assert_eq!(served.end(signal), Some(0));
        assert_eq!(scratch.sockets(), [""; 0], "no socket is left behind");
    }
}

#[test]
fn a_second_daemon_of_the_same_file_is_refused_and_the_first_goes_on() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let second = scratch.run(&["serve"]);
    assert_eq!(second.code, Some(1));
    assert!(second.err.contains("nicety-lan.sock is served by another process"), "{}", second.err);
    assert_eq!(scratch.run(&["ports"]).code, Some(0));
    // Half a request, and garbage, harm nobody.
    let mut half = UnixStream::connect(scratch.0.join("nicety-lan.sock")).unwrap();
    half.write_all(b"{\"vers").unwrap();
    drop(half);
    let mut garbage = UnixStream::connect(scratch.0.join("nicety-lan.sock")).unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    let _ = garbage.read_to_string(&mut reply);
    assert!(reply.contains("this is no request"), "{reply}");
    assert_eq!(scratch.run(&["ports"]).code, Some(0));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_folder_for_traces_that_cannot_be_made_ends_with_1_and_is_named() {
    let scratch = Scratch::with(HOST);
    std::fs::write(scratch.0.join("file"), "").unwrap();
    let ended = scratch.run(&["serve", "--record", "file/traces"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("recording to file/traces: Not a directory"), "{}", ended.err);
    assert_eq!(scratch.sockets(), [""; 0]);
}

#[test]
fn a_socket_that_cannot_be_made_ends_with_1_and_leaves_nothing() {
    let scratch = Scratch::with(HOST);
    std::fs::write(scratch.0.join("vm2.sock"), "a file of the person's").unwrap();
    let ended = scratch.run(&["serve"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("vm2.sock exists and is not a socket"), "{}", ended.err);
    assert_eq!(scratch.sockets(), ["vm2.sock"], "and the file is left alone");
    let nowhere = Scratch::with(&HOST.replace("vm1.sock", "absent/vm1.sock"));
    let ended = nowhere.run(&["serve"]);
    assert_eq!(ended.code, Some(1));
    assert!(ended.err.contains("absent/vm1.sock") && ended.err.contains("No such file"), "{}", ended.err);
}

#[test]
fn an_option_rom_that_is_none_names_its_file() {
    let scratch = Scratch::with(&HOST.replace("socket = \"vm1.sock\"", "socket = \"vm1.sock\"\nrom = \"pxe.rom\""));
    let absent = scratch.run(&["serve"]);
    assert_eq!(absent.code, Some(1));
    assert!(absent.err.contains("pxe.rom cannot be used: No such file"), "{}", absent.err);
    std::fs::write(scratch.0.join("pxe.rom"), [0; 512]).unwrap();
    assert!(scratch.run(&["serve"]).err.contains("pxe.rom cannot be used: no option ROM"));
}

#[test]
fn a_log_filter_that_is_none_is_said() {
    let scratch = Scratch::with(HOST);
    let ended = Ended::of(&scratch.command(&["serve"]).env("NICETY_LOG", "a=b=c").output().unwrap());
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.starts_with("NICETY_LOG=a=b=c: "), "{}", ended.err);
}

#[test]
fn the_reference_knows_every_key() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/host-file.md");
    let page = std::fs::read_to_string(page).unwrap();
    for kind in nicety_daemon::host::KINDS {
        let (_, rest) = page.split_once(&format!("## `{}`", kind.heading)).expect(kind.heading);
        let section = rest.split("\n## ").next().unwrap();
        for key in kind.keys {
            assert!(section.contains(&format!("| `{}` |", key.name)), "{}.{}", kind.name, key.name);
        }
    }
}

/// Processes of this program that are embedded guests.
fn guests() -> Vec<String> {
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_nicety")).unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let ours = processes.filter(|process| std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == program));
    let words = ours.filter_map(|process| std::fs::read_to_string(process.join("cmdline")).ok());
    words.filter(|words| words.split('\0').nth(1) == Some("guest")).collect()
}

#[test]
fn compare_writes_its_report_and_ctrl_c_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let compare = |args: &[&str]| {
        let mut command = scratch.command(&[&["compare"][..], args].concat());
        command.env("TMPDIR", &scratch.0).env_remove("RUST_BACKTRACE");
        command
    };
    let args = ["--adapters", "e1000", "--seconds", "0.1", "--repeat", "1", "--report", "done"];
    let done = Ended::of(&compare(&args).output().unwrap());
    assert_eq!(done.code, Some(0), "{done:?}");
    let index = scratch.0.join("done/index.html");
    assert!(
        done.out.contains("e1000") && done.out.ends_with(&format!("Report: {}\n", index.display())),
        "{}",
        done.out
    );
    assert!(done.err.contains("note: 1 round: fewer than 7 runs give no 95 % interval"), "{}", done.err);
    assert!(index.exists() && scratch.0.join("done/results.json").exists());

    let mut long = compare(&["--adapters", "e1000", "--seconds", "60", "--report", "stopped"]);
    let mut child = long.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    // The first line that a run or its guests are worth: the signals are caught by then.
    assert!(lines.any(|line| line.contains("e1000")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(rest.last().map(String::as_str), Some("stopped; nothing was written"), "{rest:?}");
    assert_eq!(guests(), [""; 0]);
    let names: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["done"], "no folder, no socket");
}

#[test]
fn compare_says_what_it_cannot_compare() {
    let scratch = Scratch::new();
    let ended = scratch.run(&["compare", "--adapters", "e1001"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.contains("there is no adapter \"e1001\" here; did you mean \"e1000\"?"), "{}", ended.err);
    assert_eq!(scratch.run(&["compare", "--seconds", "0"]).code, Some(2));
    assert_eq!(scratch.run(&["compare", "--repeat", "0"]).code, Some(2));
    let hidden = scratch.run(&["guest"]);
    assert_eq!(hidden.code, Some(2));
    assert!(hidden.err.contains("this command is for `nicety compare` itself"), "{}", hidden.err);
}
