use std::path::Path;
use std::time::Duration;

use super::*;
use crate::Host;

const FT: &str = "[ft]\nlisten = \"10.0.0.1:7001\"\nkey = \"ft.key\"\nlease = \"/mnt/shared\"\n";

fn port(number: u8, more: &str) -> String {
    format!(
        "[[port]]\nname = \"vm{number}\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"vm{number}.sock\"\n{more}"
    )
}

fn vm(more: &str) -> String {
    format!("[[vm]]\nname = \"web\"\nports = \"vm1\"\nqmp = \"web.qmp\"\npeer = \"host2:7001\"\n{more}")
}

fn parse(text: &str) -> Result<Host, Vec<String>> {
    Host::parse(text, Path::new("/etc/host.toml")).map_err(|errors| {
        errors.list.into_iter().map(|error| format!("{}: {}: {}", error.line, error.key, error.what)).collect()
    })
}

/// The only mistake of a file with two ports and these VMs.
fn refused(vms: &str) -> String {
    only(&format!("{FT}{}{}{vms}", port(1, ""), port(2, "")))
}

fn only(text: &str) -> String {
    let all = parse(text).expect_err(text);
    assert_eq!(all.len(), 1, "{all:#?}");
    all.into_iter().next().unwrap()
}

#[test]
fn a_vm_has_its_ports_its_qemu_and_its_peer() {
    let second = "[[vm]]\nname = \"db\"\nports = \"vm3, vm2\"\nqmp = \"/run/db.qmp\"\npeer = \"unix:host2.sock\"\ncheckpoint = \"1s\"\n";
    let text = format!("{FT}{}{}{}{}{second}", port(1, ""), port(2, ""), port(3, "queues = 4\n"), vm(""));
    let host = parse(&text).unwrap();
    let wanted = [
        VmConfig {
            name: "web".to_owned(),
            ports: vec!["vm1".to_owned()],
            qmp: "/etc/web.qmp".into(),
            peer: "host2:7001".parse().unwrap(),
            checkpoint: Duration::from_millis(50),
        },
        VmConfig {
            name: "db".to_owned(),
            ports: vec!["vm3".to_owned(), "vm2".to_owned()],
            qmp: "/run/db.qmp".into(),
            peer: PeerAddress::Unix("/etc/host2.sock".into()),
            checkpoint: Duration::from_secs(1),
        },
    ];
    assert_eq!(host.vms, wanted);
    assert_eq!((host.vm("db"), host.vm("vm1")), (Some(&wanted[1]), None));
    // What runs is kept as a text with absolute paths.
    let again = Host::parse(&host.document.text(), Path::new("/elsewhere/host.toml")).unwrap();
    assert_eq!((again.vms, again.tolerance), (host.vms, host.tolerance));
    assert_eq!(parse(&port(1, "")).unwrap().vms, []);
}

#[test]
fn the_two_hosts_of_a_vm_meet_at_ft_and_at_a_lease() {
    let ports = port(1, "");
    assert_eq!(
        only(&format!("{ports}{}", vm(""))),
        "6: vm: there is no [ft], by which the two hosts meet: write [ft] with listen, key, and lease or etcd"
    );
    let with = |ft: &str| parse(&format!("{ft}{ports}{}", vm(""))).map(|host| host.vms.len());
    let without = |key: &str| {
        let left: Vec<&str> = FT.lines().filter(|line| !line.starts_with(key)).collect();
        with(&(left.join("\n") + "\n"))
    };
    assert_eq!(
        without("listen").unwrap_err(),
        ["1: ft.listen: it is missing from this [ft], and the other host of a [[vm]] connects there"]
    );
    assert_eq!(
        without("lease").unwrap_err(),
        ["1: ft.lease: neither lease nor etcd is in this [ft]: say where both hosts find the lease of a [[vm]]"]
    );
    assert_eq!(without("key").unwrap_err(), ["1: ft.key: it is missing from this [ft]"]);
    assert_eq!(with(&FT.replace("lease = \"/mnt/shared\"", "etcd = \"http://etcd1:2379\"")), Ok(1));
}

#[test]
fn a_vm_s_ports_are_those_whose_state_qemu_copies_and_no_other_vm_has() {
    let with = |ports: &str| refused(&vm("").replace("\"vm1\"", &format!("\"{ports}\"")));
    assert_eq!(with("vm11"), "17: vm.ports: there is no port \"vm11\"; did you mean \"vm1\"?");
    assert_eq!(with(""), "17: vm.ports: it has no port: name one or more");
    assert_eq!(with("vm1,vm2,vm1"), "17: vm.ports: port vm1 is named twice");
    assert_eq!(with(&vec!["vm1"; 65].join(",")), "17: vm.ports: these are 65, more than 64");
    assert_eq!(refused(&vm("").replace("ports = \"vm1\"\n", "")), "15: vm.ports: it is missing from this [[vm]]");
    let second = vm("").replace("\"web\"", "\"db\"").replace("web.qmp", "db.qmp");
    assert_eq!(
        refused(&format!("{}{second}", vm(""))),
        "22: vm.ports: port vm1 is in another vm already (line 17), and can be in one"
    );
    let of_port = |port: &str| only(&format!("{FT}{port}{}", vm("")));
    for adapter in ["e1000", "virtio-net-pci"] {
        assert_eq!(
            of_port(&port(1, "").replace("virtio-net", adapter)),
            format!(
                "12: vm.ports: port vm1 has adapter \"{adapter}\", whose state QEMU cannot copy: a protected VM has virtio-net"
            )
        );
    }
    assert_eq!(
        of_port(&port(1, "device_state = false\n")),
        "13: vm.ports: port vm1 has device_state = false, and a protected VM needs its state: leave that key out there"
    );
}

#[test]
fn a_vm_s_name_its_sockets_and_its_lease_are_its_own() {
    let second = |name: &str, qmp: &str| {
        format!("[[vm]]\nname = \"{name}\"\nports = \"vm2\"\nqmp = \"{qmp}\"\npeer = \"host2:7001\"\n")
    };
    assert_eq!(
        refused(&format!("{}{}", vm(""), second("web", "db.qmp"))),
        "21: vm.name: \"web\" is the vm of line 16 already: choose another name"
    );
    assert_eq!(
        refused(&format!("{}{}", vm(""), second("db", "web.qmp"))),
        "23: vm.qmp: /etc/web.qmp is the socket of line 18 already: choose another path"
    );
    assert_eq!(
        refused(&vm("").replace("web.qmp", "vm1.sock")),
        "18: vm.qmp: /etc/vm1.sock is the socket of line 9 already: choose another path"
    );
    assert_eq!(
        refused(&format!("{}[daemon]\nstate = \"/mnt/shared/web.lease\"\n", vm(""))),
        "16: vm.name: /mnt/shared/web.lease would be this vm's lease, and is the state file of line 21 already: choose another name"
    );
    assert_eq!(refused(&vm("").replace("\"web\"", "\"w eb\"")), "16: vm.name: \"w eb\" has a ' '");
    let deep = format!("/{}", "x".repeat(107));
    let message = refused(&vm("").replace("web.qmp", &deep));
    assert!(
        message.starts_with(&format!("18: vm.qmp: {deep} has 108 bytes, and the system's limit is 107")),
        "{message}"
    );
}

#[test]
fn a_vm_s_peer_is_another_host_and_its_copies_are_neither_too_close_nor_too_far_apart() {
    let peer = |peer: &str| refused(&vm("").replace("host2:7001", peer));
    assert_eq!(
        peer("10.0.0.1:7001"),
        "19: vm.peer: 10.0.0.1:7001 is this host's own [ft] listen: name the other host's"
    );
    assert!(peer("host2").starts_with("19: vm.peer: \"host2\": this is neither an IP address nor a host's name"));
    let own = FT.replace("10.0.0.1:7001", "unix:ft.sock");
    let text = format!("{own}{}{}", port(1, ""), vm("").replace("host2:7001", "unix:/etc/ft.sock"));
    assert_eq!(only(&text), "14: vm.peer: unix:/etc/ft.sock is this host's own [ft] listen: name the other host's");
    let checkpoint = |value: &str| refused(&vm(&format!("checkpoint = {value}\n")));
    assert_eq!(checkpoint("\"4ms\""), "20: vm.checkpoint: 4ms is too small");
    assert_eq!(checkpoint("\"10001ms\""), "20: vm.checkpoint: 10001ms is too large");
    assert_eq!(checkpoint("\"50\""), "20: vm.checkpoint: \"50\": its unit must be ms or s");
    assert_eq!(checkpoint("50"), "20: vm.checkpoint: it is a number, not a text in quotes");
    for (value, milliseconds) in [("5ms", 5), ("10s", 10_000), ("10000 ms", 10_000)] {
        let host = parse(&format!("{FT}{}{}", port(1, ""), vm(&format!("checkpoint = \"{value}\"\n")))).unwrap();
        assert_eq!(host.vms[0].checkpoint, Duration::from_millis(milliseconds));
    }
}

#[test]
fn a_change_that_breaks_a_vm_names_it() {
    let text = format!("{FT}{}{}", port(1, ""), vm("")).replace("ports = \"vm1\"", "ports = \"vm2\"");
    let errors = Host::parse_change(&text, Path::new("/etc/host.toml")).unwrap_err();
    let [error] = &errors.list[..] else { panic!("{errors}") };
    assert_eq!((error.of.as_str(), error.key.as_str()), ("vm web", "vm.ports"));
}
