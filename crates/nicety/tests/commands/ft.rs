//! `nicety ft` at a daemon without protected VMs, and at one whose VM's QEMU is not there.

use std::path::Path;
use std::time::Instant;

use nicety_host::Host;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::scratch::{HOST, Scratch, Served, TIMEOUT};

/// The words and states that a person and other programs may rely on.
const BOOK: &str = include_str!("../../../../docs/fault-tolerance.md");

/// A folder whose host file names the VM `web`. Neither its QEMU nor the other host is there.
fn with_vm() -> Scratch {
    let tables = "[ft]\nlisten = \"unix:ft.sock\"\nkey = \"ft.key\"\nlease = \"leases\"\n\n\
                  [[vm]]\nname = \"web\"\nports = \"vm2\"\nqmp = \"web.qmp\"\npeer = \"unix:other.sock\"\n";
    let scratch = Scratch::with(&format!("{HOST}\n{tables}"));
    std::fs::write(scratch.path().join("ft.key"), [7; 32]).unwrap();
    std::fs::create_dir(scratch.path().join("leases")).unwrap();
    scratch
}

#[test]
fn the_host_file_of_the_book_is_one() {
    let text = BOOK.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let host = Host::parse(text, Path::new("/etc/nicety/host.toml")).unwrap();
    let vm = host.vm("web").unwrap();
    assert_eq!((vm.ports.as_slice(), vm.peer.to_string().as_str()), (&["web-eth0".to_owned()][..], "10.0.0.2:7001"));
    // Its sockets are those of the QEMU that follows.
    for path in [&vm.qmp, &host.ports[0].socket] {
        assert!(BOOK.matches(path.to_str().unwrap()).count() >= 2, "{}", path.display());
    }
}

#[test]
fn a_daemon_without_a_vm_says_so_and_where_to_read_on() {
    let scratch = Scratch::with(HOST);
    let none = scratch.run(&["ft", "status"]);
    assert_eq!((none.code, none.out.as_str()), (Some(3), ""), "{none:?}");
    assert!(none.err.contains("start one with `nicety serve`"), "{none:?}");
    let served = Served::start(&scratch);
    let none = scratch.run(&["ft", "status"]);
    let sentence = "the host file has no [[vm]]: docs/fault-tolerance.md says how a VM is protected\n";
    assert_eq!((none.code, none.out.as_str(), none.err.as_str()), (Some(0), sentence, ""));
    let none = scratch.run(&["ft", "status", "--json"]);
    let value: Value = serde_json::from_str(&none.out).unwrap();
    assert_eq!((none.code, value), (Some(0), json!({ "version": 1, "vms": [] })));
    let named = scratch.run(&["ft", "status", "web"]);
    let expected = "nicety: the host file has no [[vm]] \"web\": it has none\n";
    assert_eq!((named.code, named.out.as_str(), named.err.as_str()), (Some(2), "", expected));
    for wish in ["protect", "stop", "failover"] {
        let ended = scratch.run(&["ft", wish, "web"]);
        let expected = "nicety: there is no [[vm]] \"web\" (the host file has none)\n";
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(2), "", expected), "{wish}");
    }
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_vm_whose_qemu_is_not_there_says_which_socket_is_sought_and_what_to_start() {
    let scratch = with_vm();
    let served = Served::start(&scratch);
    let qmp = scratch.path().join("web.qmp").display().to_string();
    let why = format!("QMP socket {qmp}: nobody listens there; start its QEMU with -qmp unix:{qmp},server=on,wait=off");
    let peer = scratch.path().join("other.sock").display().to_string();
    let shown = format!("web: not here; peer unix:{peer}\n    {why}\n");
    let end = Instant::now() + TIMEOUT;
    loop {
        let ended = scratch.run(&["ft", "status"]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
        if ended.out == shown {
            break;
        }
        assert!(Instant::now() < end, "{ended:?}, and not {shown}");
    }
    assert_eq!(scratch.run(&["ft", "status", "web"]).out, shown);
    let json = scratch.run(&["ft", "status", "web", "--json"]);
    let json: Value = serde_json::from_str(&json.out).unwrap();
    let vm = &json["vms"][0];
    assert_eq!((&vm["name"], &vm["role"], &vm["state"]), (&json!("web"), &json!("absent"), &json!("absent")));
    assert_eq!((&vm["protected"], &vm["why_not"]), (&json!(false), &json!(why)));
    for key in vm.as_object().unwrap().keys() {
        assert!(BOOK.contains(&format!("`{key}`")), "docs/fault-tolerance.md does not say what {key} is");
    }
    let other = scratch.run(&["ft", "status", "wbe"]);
    let expected = "nicety: the host file has no [[vm]] \"wbe\": web\n";
    assert_eq!((other.code, other.out.as_str(), other.err.as_str()), (Some(2), "", expected));
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_wish_for_a_vm_that_does_not_run_here_ends_with_1_and_says_where_to_ask() {
    let scratch = with_vm();
    let served = Served::start(&scratch);
    for wish in ["protect", "stop", "failover"] {
        let ended = scratch.run(&["ft", wish, "web"]);
        let expected = "nicety: the VM web does not run here: ask at the other host\n";
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(1), "", expected), "{wish}");
        let ended = scratch.run(&["ft", wish, "db"]);
        let expected = "nicety: there is no [[vm]] \"db\" (there are: web)\n";
        assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (Some(2), "", expected), "{wish}");
        let ended = scratch.run(&["ft", wish]);
        assert!(ended.code == Some(2) && ended.err.starts_with("nicety: "), "{ended:?}");
    }
    let metrics = scratch.get("/metrics").1;
    assert!(metrics.contains("nicety_vm_protected{vm=\"web\"} 0\n"), "{metrics}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}
