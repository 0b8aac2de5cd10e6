//! A daemon that was started with another host file, or with this one before it was changed.

use rustix::process::Signal;

use crate::scratch::{HOST, Scratch, Served};

const WHY: &str = "`nicety apply --dry-run` shows all that differs from the host file, `nicety apply` makes the daemon serve the file, \
                   `nicety save` writes what runs to it\n";

/// A daemon of `HOST`, and a file `other.toml` in the same folder. In that file vm1 is another adapter with another socket, and vm3
/// is new. Both have one control socket.
fn other() -> (Scratch, Served) {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let changed = HOST.replace("e1000", "vmxnet3").replace("34:01", "34:11").replace("vm1.sock", "new.sock");
    let third = "\n[[port]]\nname = \"vm3\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:03\"\nsocket = \"vm3.sock\"\n";
    std::fs::write(scratch.path().join("other.toml"), changed + third).unwrap();
    (scratch, served)
}

/// The differences of vm1.
fn otherwise(scratch: &Scratch) -> String {
    let dir = scratch.path().display();
    format!(
        "note: the daemon serves vm1 as e1000 (not vmxnet3), with the address 52:54:00:12:34:01 (not 52:54:00:12:34:11), \
         at {dir}/vm1.sock (not {dir}/new.sock): {WHY}"
    )
}

fn another(scratch: &Scratch) -> String {
    let dir = scratch.path().display();
    format!("note: this daemon serves {dir}/host.toml, not {dir}/other.toml: restart it with that")
}

#[test]
fn attach_says_what_the_daemon_serves_otherwise_and_what_to_do() {
    let (scratch, served) = other();
    let (otherwise, absent) = (otherwise(&scratch), format!("note: the daemon runs without vm3: {WHY}"));
    for (port, message) in
        [("vm1", otherwise.as_str()), ("vm3", &absent), ("vm2", "note: the daemon runs, and vm2 is free\n")]
    {
        let ended = scratch.run(&["attach", port, "--host", "other.toml"]);
        assert!(ended.code == Some(0) && ended.err.ends_with(message), "{port}: {}", ended.err);
        assert_eq!(ended.err.contains("is free"), port == "vm2", "{port}: {}", ended.err);
    }
    // The same path; its content has changed.
    std::fs::write(scratch.path().join("host.toml"), HOST.replace("34:01", "34:11")).unwrap();
    let message =
        format!("note: the daemon serves vm1 with the address 52:54:00:12:34:01 (not 52:54:00:12:34:11): {WHY}");
    let ended = scratch.run(&["attach", "vm1"]);
    assert!(ended.err.ends_with(&message), "{}", ended.err);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn attach_compares_every_key_of_a_port() {
    let first = HOST
        .replace("\"e1000\"\n", "\"vmxnet3\"\nqueues = 4\nbuffer = \"2MiB\"\ndoorbells = \"mapped\"\n")
        .replace("queues = 2", "mtu = 9000");
    let scratch = Scratch::with(&first);
    let served = Served::start(&scratch);
    for (port, from, to, otherwise) in [
        ("vm1", "queues = 4", "queues = 2", "queues 4 (not 2)"),
        ("vm1", "queues = 4\n", "", "queues 4 (not unset)"),
        ("vm1", "2MiB", "64KiB", "buffer 2MiB (not 64KiB)"),
        ("vm1", "mapped", "trapped", "doorbells mapped (not trapped)"),
        ("vm2", "9000", "1500", "mtu 9000 (not 1500)"),
    ] {
        std::fs::write(scratch.path().join("other.toml"), first.replace(from, to)).unwrap();
        let ended = scratch.run(&["attach", port, "--host", "other.toml"]);
        let message = format!("note: the daemon serves {port} with {otherwise}: {WHY}");
        assert!(ended.err.ends_with(&message), "{to}: {}", ended.err);
    }
    let without_doorbells = first.replace("doorbells = \"mapped\"\n", "");
    std::fs::write(scratch.path().join("other.toml"), without_doorbells).unwrap();
    let ended = scratch.run(&["attach", "vm1", "--host", "other.toml"]);
    assert!(ended.err.ends_with("note: the daemon runs, and vm1 is free\n"), "{}", ended.err);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn what_is_the_daemons_uplink_is_no_port_to_attach_to() {
    let scratch = Scratch::with(&format!("{HOST}\n[uplink]\nkind = \"null\"\n"));
    let served = Served::start(&scratch);
    std::fs::write(scratch.path().join("other.toml"), HOST.replace("\"vm1\"", "\"null\"")).unwrap();
    let ended = scratch.run(&["attach", "null", "--host", "other.toml"]);
    assert!(ended.err.ends_with(&format!("note: null is the uplink of the daemon: {WHY}")), "{}", ended.err);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_folder_with_two_names_is_one_place() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    std::os::unix::fs::symlink(".", scratch.path().join("alias")).unwrap();
    let ended = scratch.run(&["attach", "vm1", "--host", "alias/host.toml"]);
    assert!(ended.err.ends_with("note: the daemon runs, and vm1 is free\n"), "{}", ended.err);
    assert_eq!(scratch.run(&["ports", "vm1", "--host", "alias/host.toml"]).err, "");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn ports_says_of_one_port_and_of_all_that_the_daemon_serves_another_file() {
    let (scratch, served) = other();
    let (another, otherwise) = (another(&scratch), otherwise(&scratch));
    for words in [&["ports"][..], &["ports", "vm1"], &["ports", "vm2"], &["ports", "vm3"]] {
        let ended = scratch.run(&[words, &["--host", "other.toml"]].concat());
        assert!(ended.err.starts_with(&another), "{words:?}: {}", ended.err);
        assert_eq!(ended.err.contains(&otherwise), words.contains(&"vm1"), "{words:?}: {}", ended.err);
        let absent = words.contains(&"vm3");
        assert_eq!((ended.code, ended.out.is_empty()), (Some(if absent { 2 } else { 0 }), absent), "{ended:?}");
        assert_eq!(ended.err.ends_with(&format!("the daemon runs without vm3: {WHY}")), absent, "{}", ended.err);
    }
    // A person who names the socket asks for no file.
    let ended = scratch.run(&["ports", "vm1", "--control", "nicety-lan.sock"]);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
    assert_eq!(scratch.run(&["ports", "vm1"]).err, "");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn trying_a_port_that_the_daemon_serves_otherwise_is_refused() {
    let (scratch, served) = other();
    let otherwise = otherwise(&scratch);
    for (port, message) in
        [("vm1", otherwise.trim_start_matches("note: ")), ("vm3", &format!("the daemon runs without vm3: {WHY}"))]
    {
        let ended = scratch.run(&["try", "--port", port, "--host", "other.toml", "--", "true"]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(1), format!("nicety: {message}").as_str()));
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}
