//! What takes rights is opened through the keeper: the daemon has no CAP_NET_ADMIN, and gets only taps that the host file or a user's
//! change names, whatever it asks for.

#[path = "station/kept.rs"]
mod kept;
#[path = "../../daemon/tests/namespace/mod.rs"]
mod namespace;
#[allow(dead_code, reason = "no guests here")]
mod station;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kept::Kept;
use namespace::{inside, ip};
use nicety_keeper::{Between, Channel, Opener, Seam, Start, keep_with};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);
/// The bit of CAP_NET_ADMIN (linux/capability.h).
const NET_ADMIN: u64 = 1 << 12;

/// The host file of a daemon with a tap that it makes.
fn host() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let host = "[daemon]\ncontrol = \"control.sock\"\nlisted = false\n\n[[uplink]]\nkind = \"tap\"\nname = \"tap0\"\n\n[[port]]\nname = \"vm1\"\n\
                adapter = \"e1000\"\nmac = \"52:54:00:12:34:01\"\nsocket = \"vm1.sock\"\n";
    std::fs::write(dir.path().join("host.toml"), host).unwrap();
    dir
}

impl Kept {
    fn start() -> Kept {
        Kept::serve(host())
    }

    /// The daemon's process: the last one, while an upgrade is made.
    fn daemon(&self) -> u32 {
        *daemons_of(self.keeper.0.id()).last().unwrap()
    }
}

/// The daemons that a keeper has started. Openers are its children, too.
fn daemons_of(keeper: u32) -> Vec<u32> {
    children_of(keeper, "--kept")
}

fn children_of(keeper: u32, argument: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{keeper}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> =
        lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect();
    let is_one =
        |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(argument));
    children.into_iter().filter(is_one).collect()
}

/// The openers and acceptors that a keeper has started.
fn openers_of(keeper: u32) -> Vec<u32> {
    children_of(keeper, "--opens")
}

/// A process's effective capabilities (proc_pid_status(5)).
fn capabilities(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// Ends the daemons of a keeper in this process, also if the test fails: it waits for the keeper.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        for pid in daemons_of(std::process::id()) {
            Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
        }
    }
}

fn is_there(interface: &str) -> bool {
    Command::new("ip").args(["link", "show", interface]).output().unwrap().status.success()
}

/// A request by another HTTP client than `nicety`. Returns the answer.
fn request(control: PathBuf, line: &str, fields: &str, body: &str) -> String {
    let mut socket = UnixStream::connect(control).unwrap();
    write!(socket, "{line} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{fields}\r\n{body}")
        .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// A change by such a client.
fn post(control: PathBuf, list: &str, entry: &str) -> String {
    request(control, &format!("POST /v1/{list}"), &format!("content-length: {}\r\n", entry.len()), entry)
}

#[test]
fn a_kept_daemon_has_taps_without_the_right_to_make_them() {
    if !inside("a_kept_daemon_has_taps_without_the_right_to_make_them") {
        return;
    }
    let kept = Kept::start();
    let without = |kept: &Kept| assert_eq!(capabilities(kept.daemon()) & NET_ADMIN, 0, "{}", kept.log());
    assert_ne!(capabilities(kept.keeper.0.id()) & NET_ADMIN, 0);
    without(&kept);
    assert!(is_there("tap0"), "{}", kept.log());

    kept.done(&["uplink", "add", "tap7", "kind=tap", "--yes"]);
    kept.done(&["uplink", "add", "tap8", "kind=tap", "queues=2", "--yes"]);
    assert!(is_there("tap7") && is_there("tap8"));

    // The same of listening sockets: the threads that make changes may make none.
    kept.done(&["port", "add", "vm2", "adapter=vmxnet3", "mac=52:54:00:12:34:02", "socket=vm2.sock", "mode=0660"]);
    kept.done(&["uplink", "add", "near", "kind=pair", "socket=near.sock", "role=listen"]);
    // And of a capture, in a folder that the daemon's threads do not reach.
    let elsewhere = tempfile::tempdir().unwrap();
    let capture = elsewhere.path().join("all.pcapng");
    kept.done(&["uplink", "add", "all", "kind=capture", &format!("file={}", capture.display())]);
    // Section header block: section 4.1 of the format.
    assert_eq!(std::fs::read(&capture).unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    let mode = std::fs::metadata(kept.path("vm2.sock")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    assert!(UnixStream::connect(kept.path("vm2.sock")).is_ok() && kept.path("near.sock").exists());
    // The way of earlier versions: what is opened is named at the keeper's socket first.
    let vm3 = r#"{"name":"vm3","adapter":"e1000","mac":"52:54:00:12:34:03","socket":"vm3.sock"}"#;
    let address = SocketAddrUnix::new(kept.path("control.sock.keeper")).unwrap();
    let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&client, &address).unwrap();
    rustix::io::write(&client, b"\x01\x0fsocket vm3.sock").unwrap();
    let mut said = [0; 64];
    assert_eq!(rustix::io::read(&client, &mut said), Ok(2));
    assert_eq!(said[..2], *b"\x01\x0f");
    let answer = post(kept.path("control.sock"), "ports", vm3);
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    kept.done(&["port", "remove", "vm2", "--yes"]);
    assert!(!kept.path("vm2.sock").exists() && kept.path("vm3.sock").exists());

    // One that was deleted, and is there again.
    ip("link del tap0");
    kept.until("it is gone", || kept.log().contains("tap0 was deleted"));
    ip("tuntap add dev tap0 mode tap\nlink set tap0 up");
    kept.until("it is attached again", || kept.log().contains("tap0 is up"));

    // The next daemon has all of them, by descriptors if it is an upgrade, and by openers if the last one was killed.
    kept.done(&["upgrade"]);
    without(&kept);
    let killed = kept.daemon();
    Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap();
    kept.until("the next one serves", || {
        kept.asked(&["ports"]).status.success() && daemons_of(kept.keeper.0.id()) != [killed]
    });
    without(&kept);
    for tap in ["tap0", "tap7", "tap8"] {
        assert!(is_there(tap), "{tap}\n{}", kept.log());
    }
    let Kept { dir, mut keeper } = kept;
    Command::new("kill").args(["-TERM", &keeper.0.id().to_string()]).status().unwrap();
    assert_eq!(keeper.0.wait().unwrap().code(), Some(0));
    assert!(!dir.path().join("control.sock.keeper").exists());
}

#[test]
fn an_http_client_that_knows_one_socket_adds_taps_sockets_and_captures_before_and_after_each_daemon() {
    if !inside("an_http_client_that_knows_one_socket_adds_taps_sockets_and_captures_before_and_after_each_daemon") {
        return;
    }
    let kept = Kept::start();
    // No client can use it.
    std::fs::remove_file(kept.path("control.sock.keeper")).unwrap();
    let control = || kept.path("control.sock");
    let elsewhere = tempfile::tempdir().unwrap();
    let adds = |round: u32| {
        let created = |answer: String| assert!(answer.starts_with("HTTP/1.1 201"), "{answer}\n{}", kept.log());
        created(post(control(), "uplinks", &format!(r#"{{"kind":"tap","name":"tap9{round}"}}"#)));
        assert!(is_there(&format!("tap9{round}")));
        let file = elsewhere.path().join(format!("{round}.pcapng"));
        let capture = format!(r#"{{"kind":"capture","name":"all{round}","file":"{}"}}"#, file.display());
        // In chunks, as a client does that does not know the length beforehand, which waits until it is told to go on.
        let chunks =
            format!("{:x}\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n", 9, &capture[..9], capture.len() - 9, &capture[9..]);
        let answer =
            request(control(), "POST /v1/uplinks", "transfer-encoding: chunked\r\nexpect: 100-continue\r\n", &chunks);
        let answer = answer.trim_start_matches("HTTP/1.1 100 Continue\r\n\r\n").to_owned();
        created(answer);
        assert!(file.exists());
        let port = format!(
            r#"{{"name":"new{round}","adapter":"e1000","mac":"52:54:00:12:36:0{round}","socket":"new{round}.sock"}}"#
        );
        created(post(control(), "ports", &port));
        assert!(UnixStream::connect(kept.path(&format!("new{round}.sock"))).is_ok());
        // A changed entry, and a whole host file.
        let (patch, moved) = (format!("PATCH /v1/ports/new{round}?cut_off=true"), format!("moved{round}.sock"));
        let values = format!(r#"{{"socket":"{moved}"}}"#);
        let answer = request(control(), &patch, &format!("content-length: {}\r\n", values.len()), &values);
        assert!(answer.starts_with("HTTP/1.1 200") && kept.path(&moved).exists(), "{answer}\n{}", kept.log());
    };
    adds(1);
    // Each connection has one request: the next one must be read before the daemon has it.
    let answer = request(control(), "GET /v1/daemon", "", "");
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    kept.done(&["upgrade"]);
    kept.until("the other one has ended", || daemons_of(kept.keeper.0.id()).len() == 1);
    adds(2);
    let killed = kept.daemon();
    Command::new("kill").args(["-9", &killed.to_string()]).status().unwrap();
    let serves = || daemons_of(kept.keeper.0.id()) != [killed] && kept.asked(&["ports"]).status.success();
    kept.until("the next one serves", serves);
    adds(3);
    // An acceptor that is killed is started again.
    let acceptor = openers_of(kept.keeper.0.id());
    assert_eq!(acceptor.len(), 1);
    Command::new("kill").args(["-9", &acceptor[0].to_string()]).status().unwrap();
    kept.until("another one accepts", || kept.asked(&["ports"]).status.success());
    adds(4);
    assert!(!kept.log().contains("which no user has named"), "{}", kept.log());
    let text = std::fs::read_to_string(kept.path("host.toml")).unwrap()
        + "\n[[uplink]]\nkind = \"pair\"\nsocket = \"pair.sock\"\n";
    let (text, filler) = (text.replace("[[uplink]]", "[[uplink]]\n"), format!("# {}\n", "x".repeat(1000)).repeat(1000));
    let body = format!("{{\"text\":{:?},\"cut_off\":true}}", text + &filler);
    let answer = request(control(), "PUT /v1/host", &format!("content-length: {}\r\n", body.len()), &body);
    assert!(answer.starts_with("HTTP/1.1 200") && kept.path("pair.sock").exists(), "{answer}\n{}", kept.log());
}

#[test]
fn a_compromised_daemon_gets_no_tap_that_nobody_has_named() {
    if !inside("a_compromised_daemon_gets_no_tap_that_nobody_has_named") {
        return;
    }
    let dir = host();
    let path = |name: &str| dir.path().join(name);
    let (program, log) = (path("nicety"), path("log"));
    let nicety = env!("CARGO_BIN_EXE_nicety");
    std::fs::write(&program, format!("#!/bin/sh\nexec '{nicety}' \"$@\" 2>>'{}'\n", log.display())).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    // The test has the daemon's end of its channel, too.
    let daemon_end = Mutex::new(None);
    let connect = |between| {
        let (ours, theirs) = Channel::pair()?;
        if between == Between::KeeperAndDaemon {
            *daemon_end.lock().unwrap() = Some(Channel::from(theirs.as_fd().try_clone_to_owned().unwrap()));
        }
        Ok((ours, theirs))
    };
    let start = Start { program, arguments: vec!["serve".into(), path("host.toml").into()] };
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let end = Instant::now() + SOON;
        while !is_so() {
            assert!(Instant::now() < end, "{what}\n{}", said());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let uplink = |action: &[&str]| {
        let mut command = Command::new(nicety);
        command.args(["uplink"]).args(action).arg("--control").arg(path("control.sock")).output().unwrap()
    };
    std::thread::scope(|scope| {
        let ends = Ends;
        let keeper = scope.spawn(|| keep_with(&start, Seam { connect: &connect, ..Seam::default() }));
        until("it serves", &|| said().contains("all sockets are ready"));
        let daemon = Opener::new(daemon_end.lock().unwrap().take().unwrap(), true);
        let answer =
            |line: &str| daemon.ask(line, SOON).unwrap().answer(SOON).expect("an answer").map(|opened| opened.0);
        // The host file names this one, and the daemon has it: the opener tries, and the kernel refuses.
        let busy = answer("tap tap0").unwrap_err();
        assert!(busy.contains("in use"), "{busy}");
        let evil = format!("socket stream 666 - - {}", path("evil.sock").display());
        let file = format!("capture {}", path("log").display());
        let beside = format!("socket stream 666 - - {}/../evil.sock", dir.path().display());
        let lines = [
            &evil,
            &beside,
            &file,
            "tap evil0",
            "tap evil0 queue",
            "tap tap00",
            "file /etc/shadow",
            "",
            "tap evil0\ntap tap0",
        ];
        for line in lines {
            let refused = answer(line).unwrap_err();
            assert!(refused.contains("neither ") || refused.contains("does not know"), "{line:?}: {refused}");
        }
        assert!(said().contains("the daemon asked for \"tap evil0\", which no user has named: refused"), "{}", said());
        // It connects to the keeper's socket as a user would. The process is the keeper's child, as a daemon is.
        let named = uplink(&["add", "evil0", "kind=tap", "--yes"]);
        let words = String::from_utf8_lossy(&named.stderr).into_owned();
        assert!(words.contains("a daemon may not name what is opened for it"), "{words}");
        assert!(answer("tap evil0").is_err() && !is_there("evil0"));
        // The same words by a process of somebody else's.
        let add = format!("'{nicety}' uplink add good0 kind=tap --yes --control '{}'", path("control.sock").display());
        let by_shell = Command::new("sh").args(["-c", &format!("{add}; exit $?")]).output().unwrap();
        assert!(by_shell.status.success(), "{}\n{}", String::from_utf8_lossy(&by_shell.stderr), said());
        assert!(is_there("good0"));
        // The same two at the control socket, by HTTP alone.
        std::fs::rename(path("control.sock.keeper"), path("aside")).unwrap();
        let named = uplink(&["add", "evil0", "kind=tap", "--yes"]);
        let words = String::from_utf8_lossy(&named.stderr).into_owned();
        assert!(words.contains("nor a change by a user who may"), "{words}");
        assert!(answer("tap evil0").is_err() && !is_there("evil0"));
        let good1 = format!("{}; exit $?", add.replace("good0", "good1"));
        let by_shell = Command::new("sh").args(["-c", &good1]).output().unwrap();
        assert!(by_shell.status.success(), "{}\n{}", String::from_utf8_lossy(&by_shell.stderr), said());
        assert!(is_there("good1"));
        std::fs::rename(path("aside"), path("control.sock.keeper")).unwrap();
        drop(ends);
        assert_eq!(keeper.join().unwrap().unwrap().code(), Some(0), "{}", said());
    });
}

#[test]
fn a_daemon_that_knows_no_opener_opens_by_itself_and_so_does_one_whose_keeper_has_none() {
    if !inside("a_daemon_that_knows_no_opener_opens_by_itself_and_so_does_one_whose_keeper_has_none") {
        return;
    }
    let kept = Kept::start();
    // To this one it is a keeper without openers; to the keeper it is a daemon that asks for none.
    let (earlier, nicety) = (kept.path("earlier"), env!("CARGO_BIN_EXE_nicety"));
    std::fs::write(&earlier, format!("#!/bin/sh\nunset NICETY_KEEPER_OPENS\nexec '{nicety}' \"$@\"\n")).unwrap();
    std::fs::set_permissions(&earlier, PermissionsExt::from_mode(0o755)).unwrap();
    for (number, (program, has_right)) in [(earlier.to_str().unwrap(), true), (nicety, false)].into_iter().enumerate() {
        kept.done(&["upgrade", program]);
        kept.until("the other one has ended", || daemons_of(kept.keeper.0.id()).len() == 1);
        assert_eq!(capabilities(kept.daemon()) & NET_ADMIN != 0, has_right, "{program}");
        let (tap, name) = (format!("new{number}"), format!("port{number}"));
        kept.done(&["uplink", "add", &tap, "kind=tap"]);
        let (mac, socket) = (format!("mac=52:54:00:12:35:0{number}"), format!("socket={name}.sock"));
        kept.done(&["port", "add", &name, "adapter=e1000", &mac, &socket]);
        assert!(is_there(&tap) && UnixStream::connect(kept.path(&format!("{name}.sock"))).is_ok());
    }
}
