//! A daemon that serves, one that cannot, and none.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_control::Soon;
use nicety_control::{self as control, Control};
use nicety_host::Host;
use rustix::process::{Pid, Signal, kill_process};

use crate::scratch::{Ended, HOST, Scratch, Served};

/// Interfaces that other programs may rely on.
const OPERATING: &str = include_str!("../../../../docs/operating.md");

#[test]
fn ports_without_a_daemon_says_how_to_start_one_and_ends_with_3() {
    let scratch = Scratch::with(HOST);
    let ended = scratch.run(&["ports"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.err.contains("start one with `nicety serve`, or name the socket"), "{}", ended.err);
    let no_socket = scratch.run(&["ports", "--control", "host.toml"]);
    assert_eq!(no_socket.code, Some(2));
    assert!(no_socket.err.starts_with("nicety: host.toml is no socket"), "{}", no_socket.err);
}

#[test]
fn a_daemon_that_is_still_starting_shows_no_ports_and_ends_with_3() {
    let scratch = Scratch::with(HOST);
    let (socket, path) = (scratch.path().join("nicety-lan.sock"), scratch.path().join("host.toml"));
    let prepared = control::prepare(&Host::read(&path).unwrap(), &socket).unwrap();
    let _control = Control::start(prepared, &path, Arc::new(Soon::default())).unwrap();
    let expected = "the daemon is still starting: ask again in a moment\n";
    for args in [&["ports"][..], &["ports", "vm1"], &["ports", "--json"], &["try", "--port", "vm1", "--", "true"]] {
        let ended = scratch.run(args);
        assert_eq!(
            (ended.code, ended.out.as_str(), ended.err.as_str()),
            (Some(3), "", format!("nicety: {expected}").as_str()),
            "{args:?}"
        );
    }
    let attach = scratch.run(&["attach", "vm1"]);
    assert!(attach.code == Some(0) && attach.err.ends_with(&format!("note: {expected}")), "{attach:?}");
}

#[test]
fn a_daemon_serves_shows_its_ports_and_ends_cleanly_by_a_signal() {
    for signal in [Signal::TERM, Signal::INT] {
        let scratch = Scratch::with(HOST);
        let served = Served::start(&scratch);
        assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
        assert!(
            served.ready.contains(&format!("file={}/host.toml version=", scratch.path().display())),
            "{}",
            served.ready
        );
        let table = scratch.run(&["ports", "--addresses"]);
        let lines = "\
PORT  ADAPTER     STATE    TX  RX  DROPPED  ERRORS
vm1   e1000       waiting   0   0        0       0
vm2   virtio-net  waiting   0   0        0       0

ADDRESS  PORT  LAST HEARD
";
        assert_eq!((table.code, table.out.as_str()), (Some(0), lines), "{table:?}");
        for words in [&["ports", "vm1"][..], &["ports", "--long"]] {
            let long = scratch.run(words).out;
            assert!(long.contains("vm1: waits for a VM: `nicety attach vm1` says how to start one"), "{long}");
        }
        let shown = |words: &[&str]| {
            let ended = scratch.run(&[&["ports"], words].concat());
            assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}: {ended:?}");
            ended.out.lines().filter(|line| line.starts_with("vm")).count()
        };
        assert_eq!([&["--state", "down"][..], &["--state", "waiting,failed"]].map(shown), [2, 2]);
        assert_eq!([&["--state", "up"][..], &["--group", "web"], &["--vlan", "7"]].map(shown), [0, 0, 0]);
        for wrong in [&["vm1", "--vlan", "7"][..], &["--vlan", "4095"], &["--state", "bad"], &["--long", "--json"]] {
            assert_eq!(scratch.run(&[&["ports"], wrong].concat()).code, Some(2), "{wrong:?}");
        }
        let none = scratch.run(&["ports", "--state", "up", "--json"]).out;
        let none: serde_json::Value = serde_json::from_str(&none).unwrap();
        assert_eq!(none, serde_json::json!({ "version": 1, "ports": [] }));
        let json = scratch.run(&["ports", "vm2", "--control", "nicety-lan.sock", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(json["ports"][0]["name"], "vm2");
        assert_eq!(json["ports"][0]["condition"], "waiting");
        for key in json["ports"][0].as_object().unwrap().keys().chain(json.as_object().unwrap().keys()) {
            assert!(OPERATING.contains(&format!("`{key}`")) || OPERATING.contains(&format!("\"{key}\"")), "{key}");
        }
        assert_eq!(scratch.run(&["ports", "vm3"]).code, Some(2));
        let attach = scratch.run(&["attach", "vm1"]).err;
        assert!(
            attach.ends_with("note: the daemon runs, and vm1 is free\n") && !attach.contains("nicety attach"),
            "{attach}"
        );
        assert_eq!(served.end(signal), Some(0));
        assert_eq!(scratch.sockets(), [""; 0], "no socket is left behind");
    }
}

#[test]
fn a_port_that_connects_says_so_everywhere_and_leaves_the_socket_to_its_vmm() {
    let scratch = Scratch::with(&format!("{HOST}role = \"connect\"\n"));
    let dir = scratch.path().display();
    let check = scratch.run(&["serve", "--check"]);
    assert!(check.out.contains(&format!("{dir}/vm2.sock  connects there\n")), "{check:?}");
    let served = Served::start(&scratch);
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock"]);
    let nobody = format!("vm2: connecting to {dir}/vm2.sock: nobody listens there");
    let sentence = format!("{nobody}; `nicety attach vm2` says how to start a VM that listens there\n");
    let end = Instant::now() + Duration::from_secs(20);
    while !scratch.run(&["ports", "vm2"]).out.contains(&sentence) {
        assert!(Instant::now() < end, "{:?}", scratch.run(&["ports", "vm2"]));
    }
    let attach = scratch.run(&["attach", "vm2"]);
    assert!(attach.out.contains(&format!("path={dir}/vm2.sock,server=on,wait=off")), "{attach:?}");
    assert!(attach.err.ends_with("note: the daemon runs, and vm2 is free\n"), "{attach:?}");
    let tried = scratch.run(&["try", "--port", "vm2", "--", "true"]);
    let expected = "nicety: the port vm2 connects to a VMM that listens (role = \"connect\"), and this guest's machine connects too";
    assert!(tried.code == Some(2) && tried.err.starts_with(expected), "{tried:?}");
    let vmm = std::os::unix::net::UnixListener::bind(scratch.path().join("vm2.sock")).unwrap();
    vmm.accept().unwrap();
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert_eq!(scratch.sockets(), ["vm2.sock"]);
}

#[test]
fn a_daemon_whose_log_nobody_reads_any_more_goes_on_and_ends_cleanly() {
    let scratch = Scratch::with(HOST);
    let mut served = scratch.command(&["serve"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let log = BufReader::new(served.stderr.take().unwrap());
    assert!(log.lines().map_while(Result::ok).any(|line| line.contains("all sockets are ready")));
    // The pipe is closed now, as with a terminal's closed window.
    let ports = scratch.run(&["ports"]).code;
    kill_process(Pid::from_child(&served), Signal::TERM).unwrap();
    assert_eq!((ports, served.wait().unwrap().code()), (Some(0), Some(0)));
    assert_eq!(scratch.sockets(), [""; 0]);
}

#[test]
fn a_second_daemon_of_the_same_file_is_refused_and_the_first_goes_on() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let second = scratch.run(&["serve"]);
    assert_eq!(second.code, Some(1));
    let (dir, pid) = (scratch.path().display(), served.pid());
    let expected = format!(
        "nicety: a daemon serves {dir}/host.toml already: process {pid}, which answers at {dir}/nicety-lan.sock; end it first (kill {pid})\n"
    );
    assert_eq!(second.err, expected);
    // Another file, whose switch has the same name.
    std::fs::write(scratch.path().join("other.toml"), HOST.replace("vm1", "vm3").replace("vm2", "vm4")).unwrap();
    let other = scratch.run(&["serve", "other.toml"]);
    let expected = format!(
        "nicety: the control socket {dir}/nicety-lan.sock is that of process {pid}, a daemon that serves {dir}/host.toml: if both are to be \
         served, give their switches different names, or name another control socket with [daemon] control\n"
    );
    assert_eq!((other.code, other.err), (Some(1), expected));
    assert_eq!(scratch.run(&["ports"]).code, Some(0));
    // Half a request and garbage affect no other client.
    let mut half = UnixStream::connect(scratch.path().join("nicety-lan.sock")).unwrap();
    half.write_all(b"GET /v1/po").unwrap();
    drop(half);
    let mut garbage = UnixStream::connect(scratch.path().join("nicety-lan.sock")).unwrap();
    garbage.write_all(b"{\"version\":1,\"request\":\"ports\"}\n").unwrap();
    let mut reply = String::new();
    let _ = garbage.read_to_string(&mut reply);
    assert!(reply.starts_with("HTTP/1.1 400 Bad Request"), "{reply}");
    assert_eq!(scratch.run(&["ports"]).code, Some(0));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_folder_for_traces_that_cannot_be_made_ends_with_1_and_is_named() {
    let scratch = Scratch::with(HOST);
    std::fs::write(scratch.path().join("file"), "").unwrap();
    for folder in ["file", "file/traces"] {
        let ended = scratch.run(&["serve", "--record", folder]);
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let expected = format!("recording to {folder}: file is not a folder; name a folder with --record DIR");
        assert!(ended.err.contains(&expected), "{}", ended.err);
        assert_eq!(scratch.sockets(), [""; 0]);
    }
    // No folder can be made there.
    let ended = scratch.run(&["serve", "--record", "/proc/x"]);
    let expected =
        "recording to /proc/x: No such file or directory (os error 2); name a folder with --record DIR in which";
    assert!(ended.code == Some(1) && ended.err.contains(expected), "{ended:?}");
}

#[test]
fn a_socket_that_cannot_be_made_ends_with_1_and_leaves_nothing() {
    let scratch = Scratch::with(HOST);
    std::fs::write(scratch.path().join("vm2.sock"), "a file of the person's").unwrap();
    let ended = scratch.run(&["serve"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("vm2.sock exists and is not a socket"), "{}", ended.err);
    assert_eq!(scratch.sockets(), ["vm2.sock"], "and the file is left alone");
    let nowhere = Scratch::with(&HOST.replace("vm1.sock", "absent/vm1.sock"));
    let ended = nowhere.run(&["serve"]);
    assert_eq!(ended.code, Some(1));
    let expected = format!("vm1.sock has no folder: make {} or choose", nowhere.path().join("absent").display());
    assert!(ended.err.contains(&expected), "{}", ended.err);
    let control = scratch.command(&["serve"]).env("XDG_RUNTIME_DIR", "/nowhere/at/all").output().unwrap();
    let control = Ended::of(&control);
    assert_eq!(control.code, Some(1));
    let expected = "nicety: the folder /nowhere/at/all/nicety for the control socket cannot be made: No such file";
    assert!(
        control.err.starts_with(expected) && control.err.contains("is XDG_RUNTIME_DIR this user's?"),
        "{}",
        control.err
    );
}

/// Like `HOST`, with a capture as uplink.
fn capturing() -> Scratch {
    Scratch::with(&format!("{HOST}\n[uplink]\nkind = \"capture\"\nfile = \"all.pcapng\"\n"))
}

#[test]
fn a_daemon_that_cannot_start_leaves_an_older_capture_as_it_is() {
    let scratch = capturing();
    let older = b"\x0a\x0d\x0d\x0a and what somebody needs";
    std::fs::write(scratch.path().join("all.pcapng"), older).unwrap();
    std::fs::write(scratch.path().join("vm2.sock"), "a file of the person's").unwrap();
    assert_eq!(scratch.run(&["serve"]).code, Some(1));
    assert_eq!(std::fs::read(scratch.path().join("all.pcapng")).unwrap(), older);
}

#[test]
fn a_daemon_that_cannot_start_leaves_older_traces_as_they_are_and_no_new_ones() {
    for in_the_way in ["vm2.sock", "all.pcapng"] {
        let scratch = capturing();
        let traces = scratch.path().join("traces");
        std::fs::create_dir(&traces).unwrap();
        std::fs::write(traces.join("vm1.trace"), "what somebody needs").unwrap();
        std::fs::write(scratch.path().join(in_the_way), "a file of the person's").unwrap();
        assert_eq!(scratch.run(&["serve", "--record", "traces"]).code, Some(1));
        assert_eq!(std::fs::read_to_string(traces.join("vm1.trace")).unwrap(), "what somebody needs", "{in_the_way}");
        assert_eq!(std::fs::read_dir(traces).unwrap().count(), 1, "{in_the_way}");
    }
}

/// CTRL and STATUS of the 82540EM (8254x manual, 13.4.1 and 13.4.2).
#[test]
fn a_trace_with_calls_is_played_and_a_changed_one_is_noticed_at_its_line() {
    let scratch = Scratch::with(HOST);
    let served = Served::by(&scratch, "exec \"$0\" serve --record traces --calls");
    let mut vm = nicety_vfio_user::Client::connect(scratch.path().join("vm1.sock")).unwrap();
    let mut status = [0; 4];
    vm.region_write(7, 4, &[7, 0]).unwrap();
    vm.region_write(0, 0, &0x40u32.to_le_bytes()).unwrap();
    vm.region_read(0, 8, &mut status).unwrap();
    drop(vm);
    assert_eq!(served.end(Signal::TERM), Some(0));
    let ended = scratch.run(&["replay", "traces/vm1.trace"]);
    assert!(ended.code == Some(0) && ended.out.contains("calls, all answered as in the trace"), "{ended:?}");
    let file = scratch.path().join("traces/vm1.trace");
    let text = std::fs::read_to_string(&file).unwrap();
    // The driver sets the link up, and reads so. Without the write it reads something else.
    let changed = text.replace("write 0 0x0 40000000", "write 0 0x0 00000000");
    assert_ne!(changed, text);
    let line = 1 + changed.lines().position(|line| line.contains("write 0 0x0 00000000")).unwrap();
    std::fs::write(&file, changed).unwrap();
    let ended = scratch.run(&["replay", "traces/vm1.trace", "--json"]);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let json: serde_json::Value = serde_json::from_str(&ended.out).unwrap();
    assert!(json["differs"]["line"].as_u64() >= Some(line as u64), "{json}");
    // Accesses alone cannot be played.
    std::fs::write(&file, "nicety-trace 2\nadapter e1000\nR bar0 0x0008 4 0x00000a83\n").unwrap();
    let ended = scratch.run(&["replay", "traces/vm1.trace"]);
    assert!(ended.code == Some(2) && ended.err.contains("serve --record DIR --calls"), "{ended:?}");
}

#[test]
fn a_limit_of_files_sizes_is_said_and_is_not_the_end_by_a_signal() {
    let scratch = capturing();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$0\" serve", env!("CARGO_BIN_EXE_nicety")]);
    limited.current_dir(scratch.path()).env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
    let ended = Ended::of(&limited.output().unwrap());
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("all.pcapng: File too large"), "{}", ended.err);
}

#[test]
fn a_log_filter_that_is_none_is_said() {
    let scratch = Scratch::with(HOST);
    for (filter, why) in [
        ("a=b=c", "nothing is logged as \"a\"; there are: nicety, nicety_control, nicety_daemon"),
        ("verbose", "\"verbose\" is no level; there are: off, error, warn, info, debug, trace"),
        ("info,debgu", "\"debgu\" is no level; did you mean \"debug\"?"),
        ("info,", "\"\" is no level"),
        (" ", "\"\" is no level"),
        ("info nicety=debug", "nothing is logged as \"info nicety\""),
        ("warn info", "\"warn info\" is no level"),
        ("[x]=debug", "nothing is logged as \"[x]\""),
        ("nicety_daemon::nonsense=debug", "nothing is logged as \"nicety_daemon::nonsense\""),
        ("nicety_daemon=", "\"\" is no level"),
        (
            "nicety_daemonn=debug",
            "nothing is logged as \"nicety_daemonn\"; did you mean \"nicety_daemon\"?; there are: ",
        ),
        ("warn,nicety_daemon", "\"nicety_daemon\" is no level; did you mean \"nicety_daemon=debug\"?"),
        ("debug,hyper=off", "nothing is logged as \"hyper\"; there are: nicety, nicety_control, nicety_daemon"),
        ("info,debug", "a level is there twice"),
        ("nicety=warn,nicety = debug", "\"nicety\" is there twice"),
    ] {
        for args in [&["serve"][..], &["serve", "--check"]] {
            let mut command = scratch.command(args);
            command.env("NICETY_LOG", filter);
            let ended = Ended::soon(command);
            assert_eq!(ended.code, Some(2), "{ended:?}");
            assert!(ended.err.starts_with(&format!("nicety: NICETY_LOG={filter}: {why}")), "{}", ended.err);
        }
    }
    let mut command = scratch.command(&["serve"]);
    command.env("NICETY_LOG", OsStr::from_bytes(b"inf\xff"));
    let ended = Ended::soon(command);
    assert_eq!(
        (ended.code, ended.err.lines().next()),
        (Some(2), Some("nicety: NICETY_LOG=inf\u{fffd}: it is not UTF-8 (such as: info)"))
    );
}

const EMPTY: &str = "[switch]\nname = \"lan\"\n";

/// Hooks of a VM manager add ports as VMs start.
#[test]
fn a_switch_without_ports_is_served_says_so_and_gets_its_ports_live() {
    let scratch = Scratch::with(EMPTY);
    let check = scratch.run(&["serve", "--check"]);
    assert_eq!(check.code, Some(0), "{check:?}");
    assert!(check.out.ends_with("\nno ports yet: `nicety port add` adds them while it serves\n"), "{check:?}");
    let served = Served::start(&scratch);
    assert!(served.ready.contains("ports=0"), "{}", served.ready);
    let sentence = "this switch has no ports yet: `nicety port add NAME adapter=… mac=… socket=…` adds one\n";
    let ports = scratch.run(&["ports"]);
    assert_eq!((ports.code, ports.out.as_str(), ports.err.as_str()), (Some(0), sentence, ""));
    let json: serde_json::Value = serde_json::from_str(&scratch.run(&["ports", "--json"]).out).unwrap();
    assert_eq!(json["ports"], serde_json::json!([]));
    let top = scratch.run(&["top", "--once"]);
    assert!(top.code == Some(0) && top.out.contains("this switch has no ports yet"), "{top:?}");
    let attach = scratch.run(&["attach", "vm1"]);
    assert!(attach.code == Some(2) && attach.err.contains("has no port \"vm1\" (there are none yet)"), "{attach:?}");
    let added = scratch.run(&["port", "add", "vm1", "adapter=e1000", "mac=52:54:00:00:00:01", "socket=vm1.sock"]);
    assert_eq!((added.code, added.out.as_str()), (Some(0), "+ port vm1\n"), "{added:?}");
    assert!(scratch.run(&["ports"]).out.contains("vm1   e1000    waiting"));
    assert_eq!(scratch.run(&["apply"]).out, "- port vm1\n");
    assert_eq!(scratch.run(&["ports"]).out, sentence);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn what_a_domain_has_is_imported_and_its_end_says_whether_all_of_it() {
    let port = "<interface type='bridge'><mac address='52:54:00:12:34:01'/><model type='e1000'/></interface>";
    let other = "<interface type='hostdev'><mac address='52:54:00:12:34:02'/></interface>";
    for (interfaces, code, ports) in
        [(port.to_owned(), 0, 1), (format!("{port}{other}"), 1, 1), (other.to_owned(), 2, 0)]
    {
        let scratch = Scratch::new();
        std::fs::write(scratch.path().join("vm.xml"), format!("<domain><name>vm</name>{interfaces}</domain>")).unwrap();
        let ended = scratch.run(&["import", "vm.xml"]);
        assert_eq!((ended.code, ended.out.matches("[[port]]").count()), (Some(code), ports), "{ended:?}");
        let told =
            ended.err.lines().filter(|line| line.starts_with("nicety: ") && line.contains("is not imported: ")).count();
        assert_eq!(told, usize::from(code != 0), "{ended:?}");
    }
}
