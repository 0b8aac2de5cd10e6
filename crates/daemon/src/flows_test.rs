use std::path::Path;

use nicety_ipfix::Port;

use super::*;

/// Two ports, an uplink, and these exports.
fn host(exports: &str) -> Host {
    let port = |number: u8| {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:0{number}\"\nsocket = \"vm{number}.sock\"\n"
        )
    };
    let text = format!("[[uplink]]\nname = \"up\"\nkind = \"null\"\n{}{}{exports}", port(1), port(2));
    Host::parse(&text, Path::new("/etc/host.toml")).unwrap()
}

fn export(more: &str) -> String {
    format!("[[flow_export]]\nname = \"one\"\ncollector = \"udp:127.0.0.1:9\"\n{more}\n")
}

/// The uplink is number 0.
fn ports(names: &[(u16, &str)]) -> Ports {
    let port = |name: &str| Port { name: name.to_owned(), vlan: 0 };
    Ports { names: names.iter().map(|(number, name)| (*number, port(name))).collect(), uplinks: vec![0] }
}

fn flows() -> Flows {
    Flows::new(Clock::start(), Vec::new())
}

const NAMES: [(u16, &str); 3] = [(0, "up"), (1, "vm1"), (2, "vm2")];

#[test]
fn an_export_counts_the_ports_that_its_host_file_names() {
    let covered = |more: &str| {
        let flows = flows();
        let (_, plan) = flows.set(&host(&export(more)), ports(&NAMES)).unwrap();
        flows.end();
        plan[0].ports.iter().map(|port| port.directions == Covered::BOTH).collect::<Vec<_>>()
    };
    assert_eq!(covered(""), [false, true, true]);
    assert_eq!(covered("ports = \"vm2\""), [false, false, true]);
    assert_eq!(covered("uplinks = \"up\""), [true, false, false]);
    assert_eq!(covered("ports = \"vm1\"\nuplinks = \"up\""), [true, true, false]);
}

#[test]
fn a_change_that_changes_nothing_disturbs_no_worker() {
    let flows = flows();
    assert!(flows.set(&host(""), ports(&NAMES)).is_none(), "no export, no thread");
    assert!(lock(&flows.thread).is_none());
    let (first, _) = flows.set(&host(&export("")), ports(&NAMES)).unwrap();
    assert!(flows.set(&host(&export("")), ports(&NAMES)).is_none());
    let (second, _) = flows.set(&host(&export("")), ports(&[(0, "up"), (1, "vm1"), (2, "vm3")])).unwrap();
    assert_ne!(first, second);
    let (_, none) = flows.set(&host(""), ports(&NAMES)).unwrap();
    assert!(none.is_empty() && flows.reports().is_empty());
    flows.end();
}

#[test]
fn an_export_goes_on_when_its_ports_change_and_begins_anew_when_its_collector_does() {
    let flows = flows();
    let id = |more: &str| {
        let text = export(more).replace(":9\"", if more.contains("domain") { ":10\"" } else { ":9\"" });
        flows.set(&host(&text), ports(&NAMES)).unwrap().1[0].id
    };
    let first = id("");
    assert_eq!(id("ports = \"vm1\""), first);
    assert_ne!(id("sampling = 2"), first);
    assert_ne!(id("domain = 2"), first);
    flows.end();
}

#[test]
fn a_name_that_moves_to_another_number_is_another_port_there() {
    let flows = flows();
    let identities = |names: &[(u16, &str)]| {
        let (_, plan) = flows.set(&host(&export("")), ports(names)).unwrap();
        plan[0].ports.iter().map(|port| port.identity).collect::<Vec<_>>()
    };
    let before = identities(&NAMES);
    let after = identities(&[(0, "up"), (1, "vm2"), (2, "vm1")]);
    assert_eq!((before[0], before[1], before[2]), (after[0], after[2], after[1]));
    assert!(before.iter().all(|identity| *identity != 0));
    flows.end();
}
