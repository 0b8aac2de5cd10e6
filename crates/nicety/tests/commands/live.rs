//! A daemon that is changed while it serves: apply, port, export, SIGHUP.

use std::net::UdpSocket;
use std::path::Path;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::scratch::{Ended, HOST, Scratch, Served, TIMEOUT};

const MORE: &str = "
[[port]]
name = \"vm3\"
adapter = \"vmxnet3\"
mac = \"52:54:00:12:34:03\"
socket = \"vm3.sock\"
";

fn write(scratch: &Scratch, text: &str) {
    std::fs::write(scratch.path().join("host.toml"), text).unwrap();
}

#[test]
fn a_changed_host_file_is_applied_exported_and_then_there_is_nothing_to_change() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    write(&scratch, &format!("{}{MORE}", HOST.replace("queues = 2", "buffer = \"2MiB\"")));
    let plan = "+ port vm3\n~ port vm2: buffer (not set) → 2MiB, queues 2 → (not set)\n";
    let dry = scratch.run(&["apply", "--dry-run"]);
    assert_eq!((dry.code, dry.out.as_str(), scratch.sockets().len()), (Some(0), plan, 3), "{dry:?}");
    let done = scratch.run(&["apply"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), plan), "{done:?}");
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock", "vm3.sock"]);
    assert_eq!(scratch.run(&["apply"]).out, "nothing to change\n");
    let exported = scratch.run(&["export"]);
    assert_eq!(exported.code, Some(0), "{exported:?}");
    std::fs::write(scratch.path().join("exported.toml"), &exported.out).unwrap();
    let check = scratch.run(&["serve", "--check", "exported.toml"]);
    assert!(check.code == Some(0) && check.out.contains("port vm3  vmxnet3"), "{check:?}");
    let same = scratch.run(&["apply", "exported.toml", "--control", "nicety-lan.sock"]);
    assert_eq!((same.code, same.out.as_str()), (Some(0), "nothing to change\n"), "{same:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(!scratch.path().join("host.toml.state").exists(), "the host file says what ran");
}

#[test]
fn ports_are_added_changed_and_removed_one_by_one_and_come_back_after_a_restart() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let add = scratch.run(&["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03", "socket=vm3.sock"]);
    assert_eq!((add.code, add.out.as_str()), (Some(0), "+ port vm3\n"), "{add:?}");
    served.line("changed: + port vm3; kept");
    let set = scratch.run(&["port", "set", "vm3", "buffer=4MiB"]);
    let logged = served.line(&format!("user {} (process ", rustix::process::getuid().as_raw()));
    assert!(logged.ends_with(") changed: ~ port vm3: buffer (not set) → 4MiB; kept"), "{logged}");
    assert_eq!((set.code, set.out.as_str()), (Some(0), "~ port vm3: buffer (not set) → 4MiB\n"), "{set:?}");
    let remove = scratch.run(&["port", "remove", "vm1"]);
    assert_eq!((remove.code, remove.out.as_str()), (Some(0), "- port vm1\n"), "{remove:?}");
    for (args, code, message) in [
        (&["port", "set", "vm9", "buffer=4MiB"][..], 2, "there is no port \"vm9\""),
        (&["port", "set", "vm2", "bufer=4MiB"], 2, "there is no such key in [[port]]; did you mean \"buffer\"?"),
        (&["port", "set", "vm2", "buffer=4MB"], 2, "its unit must be B, KiB, MiB or GiB"),
        (&["port", "set", "vm2", "buffer"], 2, "write a key and its value"),
        (&["port", "add", "vm2", "adapter=e1000"], 2, "there is port \"vm2\" already"),
        (&["port", "add", "vm4", "adapter=e1000"], 2, "port vm4: mac: it is missing"),
        (&["port", "restart", "vm2"], 2, "has not failed"),
    ] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(code) && ended.err.contains(message), "{args:?}: {ended:?}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
    let check = scratch.run(&["serve", "--check"]);
    let message = "what was changed live is in force again, from ";
    assert!(check.err.contains(message) && check.err.contains("host.toml.state: + port vm3; - port vm1"), "{check:?}");
    let served = Served::start(&scratch);
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm2.sock", "vm3.sock"]);
    let back = scratch.run(&["apply", "--yes"]);
    assert_eq!((back.code, back.out.as_str()), (Some(0), "+ port vm1\n- port vm3\n"), "{back:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn classes_and_what_a_port_gets_in_one_are_changed_one_by_one_saved_and_refused_with_the_arithmetic() {
    const UPLINK: &str = "[[uplink]]\nkind = \"null\"\nname = \"up\"\nrate = \"10Gbit/s\"\n\n";
    let host = format!("{UPLINK}{HOST}");
    let scratch = Scratch::with(&host);
    let served = Served::start(&scratch);
    for (args, out) in [
        (&["class", "add", "up/iscsi", "reservation=2Gbit/s"][..], "+ io_class.up.iscsi\n"),
        (&["class", "add", "up/vm", "reservation=3Gbit/s"], "+ io_class.up.vm\n"),
        (&["class", "set", "up/iscsi", "limit=5Gbit/s"], "~ io_class.up.iscsi: limit (not set) → 5Gbit/s\n"),
        (
            &["class", "port", "up/vm", "vm1", "shares=80", "reservation=1Gbit/s"],
            "~ io_class.up.vm: reservation_of (not set) → vm1=1Gbit/s, shares_of (not set) → vm1=80\n",
        ),
        (&["class", "port", "up/vm", "vm2", "shares=10"], "~ io_class.up.vm: shares_of vm1=80 → vm1=80,vm2=10\n"),
        (
            &["class", "port", "up/vm", "vm1", "shares=60", "limit=4Gbit/s"],
            "~ io_class.up.vm: limit_of (not set) → vm1=4Gbit/s, shares_of vm1=80,vm2=10 → vm1=60,vm2=10\n",
        ),
        (&["class", "port", "up/vm", "vm2", "shares="], "~ io_class.up.vm: shares_of vm1=60,vm2=10 → vm1=60\n"),
    ] {
        let done = scratch.run(args);
        assert_eq!((done.code, done.out.as_str()), (Some(0), out), "{args:?}: {done:?}");
    }
    for (args, message) in [
        (
            &["class", "set", "up/vm", "reservation=6Gbit/s"][..],
            "class up/vm: reservation: 2Gbit/s + 6Gbit/s = 8Gbit/s are reserved on up, and 75 % of its slowest link may be: \
             7.5Gbit/s of the 10Gbit/s of up",
        ),
        (
            &["class", "port", "up/vm", "vm2", "reservation=2500Mbit/s"],
            "class up/vm: reservation_of: 1Gbit/s + 2.5Gbit/s = 3.5Gbit/s are reserved for its ports, and for the class: 3Gbit/s",
        ),
        (&["class", "port", "up/vm", "vm2", "shares=0"], "class up/vm: shares_of: 0 is not from 1 to 100"),
        (&["class", "set", "up/iscsi", "shares=0"], "class up/iscsi: shares: 0 is not from 1 to 100"),
        (&["class", "port", "up/vm", "vm2", "limit=10kbit/s"], "class up/vm: limit_of: 10kbit/s is too small"),
        (&["class", "port", "up/vm", "vm3", "shares=5"], "there is no port \"vm3\""),
        (&["class", "port", "up/vm", "vm2", "share=5"], "class up/vm: share_of: there is no such key"),
        (&["class", "set", "up/nfs", "shares=5"], "there is no class \"up/nfs\""),
        (&["class", "add", "up/vm"], "there is class \"up/vm\" already"),
        (&["class", "set", "up/vm", "uplink=down"], "a class keeps its name, up/vm: remove it, and add another"),
        (&["class", "set", "vm", "shares=5"], "a class has its uplink or team before its name, such as tap0/vm"),
    ] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(2) && ended.err.contains(message), "{args:?}: {ended:?}");
    }
    // One class, then all.
    let saved = scratch.run(&["class", "set", "up/iscsi", "shares=70", "--save"]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    let file = || std::fs::read_to_string(scratch.path().join("host.toml")).unwrap();
    let iscsi = "\n[[io_class]]\nname = \"iscsi\"\nuplink = \"up\"\nlimit = \"5Gbit/s\"\nreservation = \"2Gbit/s\"\nshares = 70\n";
    assert_eq!(file(), format!("{host}{iscsi}"));
    assert_eq!(scratch.run(&["save"]).code, Some(0));
    let vm = "\n[[io_class]]\nname = \"vm\"\nuplink = \"up\"\nlimit_of = \"vm1=4Gbit/s\"\nreservation = \"3Gbit/s\"\n\
              reservation_of = \"vm1=1Gbit/s\"\nshares_of = \"vm1=60\"\n";
    assert_eq!(file(), format!("{host}{iscsi}{vm}"));
    let removed = scratch.run(&["class", "remove", "up/vm", "--save"]);
    assert_eq!((removed.code, removed.out.as_str()), (Some(0), "- io_class.up.vm\n"), "{removed:?}");
    assert_eq!(file(), format!("{host}{iscsi}"));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn attach_and_try_ask_the_daemon_that_runs_and_the_file_where_none_does() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let add = ["port", "add", "vm3", "adapter=virtio-net", "mac=52:54:00:12:34:03", "socket=vm3.sock"];
    assert_eq!(scratch.run(&add).code, Some(0));
    assert_eq!(scratch.run(&["port", "set", "vm2", "mac=52:54:00:12:34:77"]).code, Some(0));
    let by = format!("note: by the daemon that runs, process {}\n", served.pid());
    for (port, mac) in [("vm3", "52:54:00:12:34:03"), ("vm2", "52:54:00:12:34:77")] {
        let ended = scratch.run(&["attach", port]);
        assert!(ended.code == Some(0) && ended.out.contains(&format!("mac={mac},")), "{ended:?}");
        assert!(ended.err.contains(&by), "{ended:?}");
    }
    let otherwise = "note: the daemon serves vm2 with the address 52:54:00:12:34:77 (not 52:54:00:12:34:02): ";
    assert!(scratch.run(&["attach", "vm2"]).err.contains(otherwise));
    let json: serde_json::Value = serde_json::from_str(&scratch.run(&["attach", "vm3", "--json"]).out).unwrap();
    assert_eq!((&json["by"], &json["port"]), (&"daemon".into(), &"vm3".into()));
    assert!(json["words"].as_str().unwrap().contains("mac=52:54:00:12:34:03,"), "{json}");
    let other = scratch.run(&["attach", "vm3", "--libvirt", "--control", "nicety-lan.sock"]);
    assert!(other.code == Some(0) && other.out.contains("<mac address='52:54:00:12:34:03'/>"), "{other:?}");
    // The port is found; then the missing kernel is the error.
    let tried = scratch.run(&["try", "--port", "vm3", "--kernel", "nowhere", "--", "true"]);
    assert!(tried.code == Some(2) && tried.err.contains("nowhere for its version failed"), "{tried:?}");
    let none = scratch.run(&["attach", "vm9"]);
    let message = format!("nicety: the daemon that serves {}/host.toml has no port \"vm9\"", scratch.path().display());
    assert!(none.code == Some(2) && none.err.starts_with(&message), "{none:?}");
    // A mistake in the file does not affect the daemon.
    write(&scratch, "port = 1\n");
    let ended = scratch.run(&["attach", "vm3"]);
    assert!(ended.code == Some(0) && ended.err.starts_with("note: the file has mistakes"), "{ended:?}");
    write(&scratch, HOST);
    assert_eq!(served.end(Signal::TERM), Some(0));
    let ended = scratch.run(&["attach", "vm3"]);
    let kept = "note: by host.toml\nnote: what was changed live is in force again, from ";
    assert!(ended.code == Some(0) && ended.err.contains(kept), "{ended:?}");
    assert!(
        ended.err.ends_with("note: the daemon does not run yet: nicety serve host.toml\n")
            || ended.err.contains("looked in"),
        "{ended:?}"
    );
    let json: serde_json::Value = serde_json::from_str(&scratch.run(&["attach", "vm1", "--json"]).out).unwrap();
    assert_eq!(json["by"], "file");
}

#[test]
fn a_mistake_in_a_change_names_the_port_and_what_the_machine_lacks_is_no_mistake() {
    let scratch = Scratch::with(&format!("{HOST}{MORE}"));
    let served = Served::start(&scratch);
    std::fs::write(scratch.path().join("short.rom"), "no ROM").unwrap();
    let dir = scratch.path().display();
    let taken =
        format!("nicety: port vm3: socket: {dir}/vm1.sock is the socket of port vm1 already: choose another path");
    for (args, code, message) in [
        (
            &["port", "set", "vm3", "mac=52:54:00:12:34:01"][..],
            2,
            "nicety: port vm3: mac: 52:54:00:12:34:01 is the address of port vm1 already",
        ),
        (&["port", "set", "vm3", "socket=vm1.sock"], 2, taken.as_str()),
        (&["port", "set", "vm3", "queues=99"], 2, "nicety: port vm3: queues: vmxnet3 has at most "),
        (&["port", "add", "vm9", "adapter=e100"], 2, "nicety: port vm9: "),
        (&["group", "add", "web", "vlan=0"], 2, "nicety: port group web: vlan: "),
        (&["port", "set", "vm3", "rom=absent.rom"], 1, "nicety: nothing was done: port vm3: the option ROM "),
        (&["port", "set", "vm3", "rom=short.rom"], 1, "nicety: nothing was done: port vm3: the option ROM "),
        (&["port", "set", "vm3", "socket=absent/vm3.sock"], 1, "nicety: nothing was done: port vm3: the socket "),
        (&["port", "set", "vm3", "group=no-such-group"], 1, "nicety: nothing was done: port vm3: there is no group "),
        (
            &["uplink", "add", "far", "kind=capture", "file=absent/a.pcapng"],
            1,
            "nicety: nothing was done: the uplink: ",
        ),
    ] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(code) && ended.err.starts_with(message), "{args:?}: {ended:?}");
        assert!(!ended.err.contains("line "), "{args:?}: {ended:?}");
    }
    write(&scratch, &format!("{HOST}{MORE}rom = \"absent.rom\"\n"));
    let apply = scratch.run(&["apply"]);
    assert!(apply.code == Some(1) && apply.err.contains("nothing was done: port vm3: the option ROM"), "{apply:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn what_runs_is_written_back_with_the_files_comments_and_order() {
    let text = format!("# Mine.\n{}", HOST.replace("\"vm1.sock\"", "\"vm1.sock\"   # by hand"));
    let scratch = Scratch::with(&text);
    let served = Served::start(&scratch);
    let file = || std::fs::read_to_string(scratch.path().join("host.toml")).unwrap();
    let state = scratch.path().join("host.toml.state");
    let set = scratch.run(&["port", "set", "vm1", "buffer=4MiB", "--save"]);
    assert_eq!((set.code, set.out.as_str()), (Some(0), "~ port vm1: buffer (not set) → 4MiB\n"), "{set:?}");
    let with_buffer = text.replace("# by hand\n", "# by hand\nbuffer = \"4MiB\"\n");
    assert_eq!(file(), with_buffer);
    assert!(!state.exists(), "the file says it all");
    // One change that is not written, and one that is.
    assert_eq!(scratch.run(&["port", "set", "vm2", "buffer=2MiB"]).code, Some(0));
    let add = ["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03", "socket=vm3.sock", "--save"];
    let added = scratch.run(&add);
    let other = "note: other live changes are not in it (`nicety save` writes all); it would change: ~ port vm2: buffer 2MiB → (not set)";
    assert!(added.code == Some(0) && added.err.contains(other), "{added:?}");
    let vm3 = "\n[[port]]\nname = \"vm3\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:03\"\nsocket = \"vm3.sock\"\n";
    assert_eq!(file(), format!("{with_buffer}{vm3}"));
    // The unwritten change is kept in spite of the change of the file.
    assert_eq!(served.end(Signal::TERM), Some(0));
    let served = Served::start(&scratch);
    assert!(scratch.run(&["export"]).out.contains("buffer = \"2MiB\""));
    let saved = scratch.run(&["save"]);
    assert_eq!((saved.code, saved.out.as_str()), (Some(0), ""), "{saved:?}");
    assert_eq!(file(), format!("{}{vm3}", with_buffer.replace("queues = 2\n", "queues = 2\nbuffer = \"2MiB\"\n")));
    assert_eq!((state.exists(), scratch.run(&["apply", "--dry-run"]).out.as_str()), (false, "nothing to change\n"));
    let before = file();
    assert_eq!(scratch.run(&["port", "remove", "vm3", "--save"]).code, Some(0));
    assert_eq!(file(), before.replace(vm3, ""));
    // If the file cannot be written, the change stays in force.
    std::fs::create_dir(scratch.path().join("host.toml.new")).unwrap();
    let set = scratch.run(&["port", "set", "vm1", "buffer=8MiB", "--save"]);
    assert!(set.code == Some(1) && set.err.contains("host.toml: Is a directory"), "{set:?}");
    assert_eq!(file(), before.replace(vm3, ""));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_change_that_is_saved_is_written_with_what_it_did_to_other_uplinks_and_with_no_more() {
    let pair = |name: &str| format!("\n[[uplink]]\nkind = \"pair\"\nname = \"{name}\"\nsocket = \"{name}.sock\"\n");
    let (l0, l1) = (pair("l0"), pair("l1"));
    let looped = "blocked = true\nloop_with = \"far\"\n";
    let team = "\n[[team]]\nname = \"wan\"\nmode = \"active-standby\"\nmembers = \"l0,l1\"\n";
    let text = format!("{HOST}{l0}{l1}{}{}{looped}{team}", pair("far"), pair("near"));
    let scratch = Scratch::with(&text);
    let served = Served::start(&scratch);
    let file = || std::fs::read_to_string(scratch.path().join("host.toml")).unwrap();
    let state = scratch.path().join("host.toml.state");
    let saved = |args: &[&str]| {
        let done = scratch.run(&[args, &["--save", "--yes"]].concat());
        assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
        done.err
    };
    // What leaves a team is blocked, until a team takes it.
    let note = saved(&["team", "set", "wan", "members=l0"]);
    assert!(!note.contains("other live changes"), "{note}");
    let parted = text.replace("l0,l1", "l0").replace(&l1, &format!("{l1}blocked = true\n"));
    assert_eq!((file(), state.exists()), (parted, false));
    saved(&["team", "set", "wan", "members=l0,l1"]);
    assert_eq!((file(), state.exists()), (text.clone(), false));
    // Another change of that uplink, which was not to be saved.
    assert_eq!(scratch.run(&["uplink", "set", "l1", "rate=1Gbit/s"]).code, Some(0));
    let note = saved(&["team", "set", "wan", "members=l0"]);
    assert!(note.contains("it would change: ~ uplink l1: rate 1Gbit/s → (not set)"), "{note}");
    assert!(file().contains(&format!("{l1}blocked = true\n")) && !file().contains("rate"), "{}", file());
    // A loop is over, and a team leaves with its uplinks.
    saved(&["uplink", "remove", "far"]);
    saved(&["team", "remove", "wan"]);
    let left = format!("{HOST}{l1}blocked = true\n{}", pair("near"));
    assert_eq!(file(), left);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn an_export_into_a_file_is_whole_and_finds_the_daemon_of_a_file_that_the_shell_has_emptied() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let host = scratch.path().join("host.toml");
    let exported = scratch.run(&["export"]).out;
    // A shell empties the file before `nicety export >host.toml` runs.
    write(&scratch, "");
    let again = scratch.run(&["export"]);
    assert_eq!((again.code, again.out.as_str()), (Some(0), exported.as_str()), "{again:?}");
    let into = scratch.run(&["export", "--into", "host.toml"]);
    assert_eq!((into.code, into.out.as_str()), (Some(0), ""), "{into:?}");
    assert_eq!(std::fs::read_to_string(&host).unwrap(), exported);
    assert_eq!(scratch.run(&["apply", "--dry-run"]).out, "nothing to change\n");
    std::fs::create_dir(scratch.path().join("host.toml.new")).unwrap();
    assert_eq!(scratch.run(&["export", "--into", "host.toml"]).code, Some(1));
    assert_eq!(std::fs::read_to_string(&host).unwrap(), exported, "as it was");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_disk_that_takes_no_more_is_said_and_the_change_is_in_force() {
    let scratch = Scratch::with(HOST);
    let served = Served::by(&scratch, "ulimit -f 0; exec \"$0\" serve");
    let set = scratch.run(&["port", "set", "vm1", "buffer=4MiB"]);
    let message = "note: it is in force, and was not kept: after a restart of the daemon it is gone (";
    assert!(set.code == Some(0) && set.err.contains(message) && set.err.contains("File too large"), "{set:?}");
    let files = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(files.filter(|name| name.to_string_lossy().contains("state")).count(), 0);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_host_file_with_a_mistake_changes_nothing_and_is_told_as_serve_tells_it() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    write(&scratch, &HOST.replace("e1000", "e100"));
    let ended = scratch.run(&["apply"]);
    assert!(ended.code == Some(2) && ended.err.starts_with("nicety: host.toml:6: port.adapter:"), "{ended:?}");
    served.signal(Signal::HUP);
    let file = scratch.path().join("host.toml");
    served.line(&format!("the host file was not applied, and nothing was changed: {}:6", file.display()));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn sighup_applies_the_host_file_and_refuses_what_would_cut_a_vm_off() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    write(&scratch, &format!("{HOST}{MORE}"));
    served.signal(Signal::HUP);
    served.line("was applied: + port vm3");
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock", "vm3.sock"]);
    let vm = nicety_vfio_user::Client::connect(scratch.path().join("vm3.sock")).unwrap();
    let cut_off = scratch.run(&["ports", "--attached"]);
    let line = format!("vm3 (vmxnet3), of {}\n", scratch.path().join("host.toml").display());
    assert_eq!((cut_off.code, cut_off.out), (Some(0), line));
    write(&scratch, HOST);
    served.signal(Signal::HUP);
    served.line("this would cut VMs off, and nothing was done: - port vm3 (a VM is attached)");
    // There is no terminal on which to ask.
    let ended = scratch.run(&["apply"]);
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), "- port vm3 (a VM is attached)\n"));
    assert!(ended.err.contains("there is no terminal to ask: nothing was done"), "{}", ended.err);
    assert_eq!(scratch.run(&["port", "remove", "vm3"]).code, Some(1));
    assert_eq!(scratch.sockets().len(), 4);
    let done = scratch.run(&["port", "remove", "vm3", "--yes"]);
    assert_eq!((done.code, done.out.as_str()), (Some(0), "- port vm3 (a VM is attached)\n"), "{done:?}");
    drop(vm);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_port_is_saved_and_restored_by_a_file_and_what_cannot_be_is_said() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let refused = |args: &[&str], code: i32, message: &str| {
        let ended = scratch.run(args);
        assert!(ended.code == Some(code) && ended.err.contains(message), "{args:?}: {ended:?}");
    };
    refused(&["port", "save", "vm1", "vm1.state"], 2, "no VM is attached to the port");
    refused(&["port", "save", "vm2", "vm2.state"], 2, "a vhost-user front end keeps its rings");
    refused(&["port", "save", "vm9", "vm9.state"], 2, "there is no port \"vm9\"");
    refused(&["port", "save", "vm1", "none/vm1.state"], 1, "none/vm1.state: No such file");
    let files = std::fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(files.filter(|name| name.to_string_lossy().contains("state")).count(), 0);
    let mut vm = nicety_vfio_user::Client::connect(scratch.path().join("vm1.sock")).unwrap();
    vm.region_write(7, 4, &[7, 0]).unwrap();
    let saved = scratch.run(&["port", "save", "vm1", "vm1.state"]);
    assert!(saved.code == Some(0) && saved.out.starts_with("vm1: e1000, state version "), "{saved:?}");
    let ports = scratch.run(&["ports", "vm1"]);
    assert!(ports.out.contains("its state was saved, and it stands still"), "{ports:?}");
    let state = std::fs::read(scratch.path().join("vm1.state")).unwrap();
    std::fs::write(scratch.path().join("cut.state"), &state[..state.len() - 1]).unwrap();
    refused(&["port", "restore", "vm1", "cut.state"], 2, "the saved state is damaged or cut short");
    refused(&["port", "restore", "vm1", "host.toml"], 2, "the saved state is damaged or cut short");
    refused(&["port", "restore", "vm1", "/dev/zero"], 2, "it is longer than any saved port");
    refused(&["port", "restore", "vm1", "none.state"], 1, "none.state: No such file");
    refused(&["port", "restore", "vm2", "vm1.state"], 2, "a vhost-user front end keeps its rings");
    let restored = scratch.run(&["port", "restore", "vm1", "vm1.state"]);
    assert_eq!((restored.code, restored.out.as_str()), (Some(0), "vm1 goes on\n"), "{restored:?}");
    let mut command = [0; 2];
    vm.region_read(7, 4, &mut command).unwrap();
    assert_eq!(command, [7, 0]);
    drop(vm);
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn completions_and_man_pages_are_made_from_the_command_line() {
    let scratch = Scratch::new();
    for (shell, has) in [("bash", "_clap_complete_nicety"), ("zsh", "#compdef nicety"), ("fish", "--command nicety")] {
        let ended = scratch.run(&["completions", shell]);
        assert!(ended.code == Some(0) && ended.out.contains(has), "{shell}: {}", ended.err);
    }
    let page = scratch.run(&["man"]);
    assert!(page.code == Some(0) && page.out.contains(".TH nicety 1"), "{}", page.err);
    assert_eq!(scratch.run(&["man", "pages"]).code, Some(0));
    let page = std::fs::read_to_string(scratch.path().join("pages/nicety-apply.1")).unwrap();
    assert!(page.contains("Make a running daemon serve a host file"), "{page}");
    pages_are_of_the_package(&scratch.path().join("pages"));
    // mandoc and groff read a line that begins with a point as a command: the library has escaped those of the text.
    let page = std::fs::read_to_string(scratch.path().join("pages/nicety-host-file.5")).unwrap();
    for words in [".SS [[port]]", "\\fBadapter\\fR (required)", ".SS [[io_class]]"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let mut names: Vec<_> =
        std::fs::read_dir(scratch.path().join("pages")).unwrap().map(|page| page.unwrap().file_name()).collect();
    names.sort();
    assert!(names.contains(&"nicety-port-add.1".into()) && !names.contains(&"nicety-guest.1".into()), "{names:?}");
}

/// A table of the help is a section, and its lines stay lines. What a page names is in the package.
fn pages_are_of_the_package(pages: &Path) {
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    let own = page("nicety.1");
    for words in [
        "\n.SH \"EXIT STATUS\"\n.EX\n0    done\n",
        "before the work was done\n.EE\n.PP\n`try` ends",
        "\n.SH ENVIRONMENT\n.EX\nNICETY_LOG ",
        ".SH \"SEE ALSO\"\n\\fBnicety\\-host\\-file\\fR(5)",
    ] {
        assert!(own.contains(words), "{words}: {own}");
    }
    assert!(!own.contains("nicety\\-help"), "{own}");
    let hook = page("nicety-hook-libvirt.1");
    assert!(hook.contains("\n.EE\n.PP\nOnce the hook is installed") && hook.contains(" on stdin\n(https:"), "{hook}");
    let add = page("nicety-port-add.1");
    assert!(add.contains("\n\\fBnicety\\-port\\fR(1), \\fBnicety\\fR(1), \\fBnicety\\-host\\-file\\fR(5), "), "{add}");
    assert!(add.contains("(/usr/share/doc/nicety/book/host\\-file.md)"), "{add}");
    for entry in std::fs::read_dir(pages).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!page(&name).contains("docs/"), "{name} names a page of the book as the repository has it");
    }
}

#[test]
fn a_tab_completes_the_names_that_there_are_and_the_words_of_a_key() {
    let scratch = Scratch::with(&format!("[[port_group]]\nname = \"web\"\n{HOST}"));
    // The command would change this folder's host, not this one, whose group comes first.
    let other = Scratch::with(&format!("[[port_group]]\nname = \"other\"\n{HOST}"));
    let _other = Served::start(&other);
    let tab = |shell: &str, index: &str, words: &[&str]| {
        let mut command = scratch.command(&[]);
        command.env("NICETY_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", index).args(["--", "nicety"]).args(words);
        let ended = Ended::soon(command);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{words:?}");
        ended.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(tab("fish", "3", &["port", "set", ""]).contains(&"vm1".to_owned()));
    assert_eq!(tab("zsh", "3", &["group", "set", ""]).first().map(String::as_str), Some("web"));
    assert_eq!(tab("fish", "2", &["adapters", "vmxnet3"]), ["vmxnet3"]);
    assert_eq!(tab("fish", "4", &["port", "add", "vm9", "port_group="]), ["port_group=web"]);
    // bash parts words at `=`, and puts the answer behind it.
    assert_eq!(tab("bash", "6", &["port", "add", "vm9", "adapter", "=", "e1000e"]), ["e1000e"]);
    assert_eq!(tab("bash", "4", &["card", "add", "nic0", "chi"]), ["chip="]);
    assert_eq!(tab("bash", "6", &["card", "add", "nic0", "chip", "=", ""]), ["82576", "82599"]);
    let has = |words: &[&str], wanted: &str| {
        let found = tab("fish", &words.len().to_string(), words);
        assert!(found.contains(&wanted.to_owned()), "{words:?}: {found:?}");
    };
    has(&["upgrade", "--without", ""], "vm1");
    has(&["mirror", "add", "m", "groups="], "groups=web");
    has(&["flow-export", "add", "m", "collector=udp:127.0.0.1:9", "ports="], "ports=vm2");
    assert_eq!(tab("fish", "4", &["mirror", "add", "m", "ports=vm1,"]), ["ports=vm1,vm2"]);
    assert!(tab("fish", "4", &["card", "add", "n", "uplink="]).iter().all(|name| !name.contains("vm")));
}

#[test]
fn a_change_takes_bare_words_and_says_what_a_wrong_name_may_have_meant() {
    let scratch = Scratch::with(&format!("[[uplink]]\nkind = \"null\"\nname = \"out\"\n{HOST}"));
    let served = Served::start(&scratch);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["card", "add", "nic0", "chip=82576"], 0, "+ card.nic0\n"),
        (&["card", "add", "nic1", "chip=\"82599\""], 0, "+ card.nic1\n"),
        (&["port", "set", "vm99", "buffer=4MiB"], 2, "there is no port \"vm99\" (there are: vm1, vm2)"),
        (&["port", "set", "out", "buffer=4MiB"], 2, "there is no port \"out\"; out is an uplink"),
        (&["group", "set", "web", "vlan=4"], 2, "there is no port group \"web\"; there is none yet"),
        (&["card", "set", "tap0", "functions=2"], 2, "there is no card \"tap0\" (there are: nic0, nic1)"),
        (&["team", "add", "lan", "members=out", "mode=lacp"], 2, "\"lacp\" is not known; did you mean \"802.3ad\"?"),
        (
            &["port", "add", "vm4", "name=vm5", "adapter=e1000"],
            2,
            "it is called vm4 here, and name=\"vm5\" says otherwise",
        ),
        (&["apply", "--host", "host.toml", "--dry-run"], 0, "- card.nic0\n- card.nic1\n"),
    ];
    for (words, code, message) in cases {
        let ended = scratch.run(words);
        let said = format!("{}{}", ended.out, ended.err);
        assert!(ended.code == Some(*code) && said.contains(message), "{words:?}: {} {said}", ended.code.unwrap_or(-1));
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn exports_of_flows_are_added_shown_changed_undone_saved_and_removed_while_it_serves() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    collector.set_read_timeout(Some(TIMEOUT)).unwrap();
    let collector_key = format!("collector=udp:{}", collector.local_addr().unwrap());
    let none = scratch.run(&["flow-export", "list"]);
    assert!(
        none.code == Some(0) && none.out.starts_with("no flows are exported: `nicety flow-export add "),
        "{none:?}"
    );
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["flow-export", "add", "noc", "collector=10.0.0.9:4739"],
            2,
            "a collector is udp: or tcp: with an IP address",
        ),
        (&["flow-export", "add", "noc"], 2, "flow export noc: collector: it is missing"),
        (&["flow-export", "add", "noc", &collector_key, "ports=vm9"], 2, "vm9"),
        (&["flow-export", "add", "noc", &collector_key, "samplin=9"], 2, "did you mean \"sampling\"?"),
        (&["flow-export", "remove", "noc"], 2, "there is no flow export \"noc\"; there is none yet"),
        (&["flow-export", "add", "noc", &collector_key], 0, "+ flow_export.noc\n"),
        (&["flow-export", "add", "noc", &collector_key], 2, "there is flow export \"noc\" already"),
        (&["flow-export", "add", "two", &collector_key], 2, "export noc has domain 1 at udp:127.0.0.1:"),
        (&["flow-export", "set", "nok", "sampling=9"], 2, "there is no flow export \"nok\"; did you mean \"noc\"?"),
        // The key's own word does as well.
        (&["flow_export", "set", "noc", "ports=vm1"], 0, "~ flow_export.noc: ports (not set) → vm1\n"),
    ];
    for (words, code, message) in cases {
        let ended = scratch.run(words);
        let said = format!("{}{}", ended.out, ended.err);
        assert!(ended.code == Some(*code) && said.contains(message), "{words:?}: {ended:?}");
    }
    // The templates reach it at once: nobody has sent a frame.
    assert!(collector.recv(&mut [0; 2000]).unwrap() > 100);
    let list = || -> Value { serde_json::from_str(&scratch.run(&["flow-export", "list", "--json"]).out).unwrap() };
    let end = Instant::now() + TIMEOUT;
    while list()["flow_exports"][0]["away"] != Value::Null {
        assert!(Instant::now() < end, "{}", list());
    }
    let shown = list()["flow_exports"][0].clone();
    assert_eq!((&shown["name"], &shown["of"], &shown["sampling"]), (&json!("noc"), &json!(["vm1"]), &json!(1)));
    assert!(shown["templates"].as_u64() >= Some(1) && shown["lost"] == 0, "{shown}");
    let table = scratch.run(&["flow-export", "list"]).out;
    assert!(
        table.starts_with("NAME  COLLECTOR ") && table.contains("  vm1  ") && table.ends_with("sending\n"),
        "{table}"
    );

    // A change takes itself back as any other does.
    let waits = scratch.run(&["flow-export", "set", "noc", "sampling=10", "--confirm", "600s"]);
    assert_eq!(
        (waits.code, waits.out.as_str()),
        (Some(0), "~ flow_export.noc: sampling (not set) → 10\n"),
        "{waits:?}"
    );
    assert_eq!(list()["flow_exports"][0]["sampling"], 10);
    let undone = scratch.run(&["confirm", "--undo"]);
    assert_eq!(undone.code, Some(0), "{undone:?}");
    assert_eq!(list()["flow_exports"][0]["sampling"], 1);

    let saved = scratch.run(&["flow-export", "set", "noc", "idle_timeout=5s", "--save"]);
    assert_eq!(saved.code, Some(0), "{saved:?}");
    let text = std::fs::read_to_string(scratch.path().join("host.toml")).unwrap();
    assert!(text.contains("[[flow_export]]\nname = \"noc\"\n") && text.contains("idle_timeout = \"5s\"\n"), "{text}");
    let removed = scratch.run(&["flow-export", "remove", "noc", "--save"]);
    assert_eq!((removed.code, removed.out.as_str()), (Some(0), "- flow_export.noc\n"), "{removed:?}");
    assert_eq!(list()["flow_exports"], json!([]));
    assert!(!std::fs::read_to_string(scratch.path().join("host.toml")).unwrap().contains("flow_export"));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

const GUARDED: &str = "~ port vm1: arp_guard (not set) → true, log_refusals (not set) → true, mtu_limit (not set) → 1500\n\
                       ~ port_group.web: arp_guard (not set) → true, log_refusals (not set) → true, mtu_limit (not set) → 1500\n";

#[test]
fn groups_and_uplinks_are_added_changed_and_removed_one_by_one_and_ports_can_be_in_them() {
    let scratch = Scratch::with(&format!("[uplink]\nkind = \"null\"\n{HOST}"));
    let served = Served::start(&scratch);
    for (args, message) in [
        (&["group", "add", "web", "vlan=10"][..], "+ port_group.web\n"),
        (&["port", "set", "vm1", "port_group=web"], "~ port vm1: port_group (not set) → web, vlan (not set) → 10\n"),
        (&["group", "set", "web", "vlan=20"], "~ port vm1: vlan 10 → 20\n~ port_group.web: vlan 10 → 20\n"),
        (&["port", "set", "vm2", "trunk=20", "mode=0600"], "~ port vm2: mode (not set) → 0600, trunk (not set) → 20\n"),
        (&["group", "set", "web", "arp_guard=true", "mtu_limit=1500", "log_refusals=true"], GUARDED),
        (&["port", "set", "vm1", "bound_ips=192.0.2.7"], "~ port vm1: bound_ips (not set) → 192.0.2.7\n"),
        (&["uplink", "add", "far", "kind=pair", "socket=far.sock", "vlan=20"], "+ uplink far\n"),
        (&["uplink", "set", "far", "private=isolated"], "~ uplink far: private (not set) → isolated\n"),
        (&["uplink", "set", "null", "rate=1Gbit/s"], "~ uplink null: rate (not set) → 1Gbit/s\n"),
    ] {
        let done = scratch.run(args);
        assert_eq!((done.code, done.out.as_str()), (Some(0), message), "{args:?}: {done:?}");
    }
    let table = scratch.run(&["ports"]).out;
    let order: Vec<usize> = ["null ", "far ", "vm1 "].map(|name| table.find(name).unwrap()).into();
    assert!(order.is_sorted(), "uplinks first: {table}");
    for (args, code, message) in [
        (&["group", "remove", "web"][..], 2, "port group web is in use, by vm1: give them another first"),
        (&["group", "add", "web"], 2, "there is port group \"web\" already"),
        (&["group", "set", "db", "vlan=1"], 2, "there is no port group \"db\""),
        (&["group", "set", "web", "vlan=4095"], 2, "4095 is not from 1 to 4094"),
        (&["group", "set", "web", "mtu_limit=67"], 2, "67 is not from 68 to 65535"),
        (&["group", "set", "web", "arp_guard=false"], 2, "there is no arp_guard = true"),
        (&["port", "set", "vm1", "bound_ips=192.0.2"], 2, "invalid IP address"),
        (&["port", "set", "vm1", "bound_macs=02:00:00:00:00:07"], 2, "the port accepts mac_changes"),
        (&["group", "set", "web", "name=db"], 2, "a port group keeps its name, web"),
        (&["uplink", "remove", "near"], 2, "there is no uplink \"near\""),
        (&["uplink", "add", "far", "kind=null"], 2, "there is uplink \"far\" already"),
        (&["uplink", "add", "vm1", "kind=null"], 2, "port vm1: name: \"vm1\" is the name of uplink vm1 already"),
        (&["uplink", "add", "a b", "kind=tap"], 2, "cannot be an interface's name"),
    ] {
        let ended = scratch.run(args);
        assert!(ended.code == Some(code) && ended.err.contains(message), "{args:?}: {ended:?}");
    }
    // While a VM is attached, a person has to agree.
    let vm = nicety_vfio_user::Client::connect(scratch.path().join("vm1.sock")).unwrap();
    let refused = scratch.run(&["uplink", "remove", "far"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), "- uplink far (VMs lose their way out)\n"));
    assert_eq!(scratch.run(&["uplink", "remove", "far", "--yes"]).code, Some(0));
    assert_eq!(scratch.sockets(), ["nicety-lan.sock", "vm1.sock", "vm2.sock"]);
    drop(vm);
    let exported = scratch.run(&["export"]).out;
    for kept in ["bound_ips = \"192.0.2.7\"", "mtu_limit = 1500", "log_refusals = true"] {
        assert!(exported.contains(kept), "{exported}");
    }
    assert_eq!(scratch.run(&["port", "set", "vm1", "port_group=", "bound_ips="]).code, Some(0));
    assert_eq!(scratch.run(&["group", "remove", "web"]).out, "- port_group.web\n");
    assert_eq!(served.end(Signal::TERM), Some(0));
    // The kept live changes are in force again.
    let check = scratch.run(&["serve", "--check"]);
    assert!(check.out.contains("; uplink null, 1Gbit/s both ways; "), "{check:?}");
}
