use std::collections::BTreeMap;

use super::super::tests::port;
use super::*;

fn uplink() -> PortReport {
    PortReport {
        name: "tap0".into(),
        adapter: None,
        mac: None,
        socket: None,
        made_of: None,
        port_group: None,
        function: None,
        origin: None,
        policy: BTreeMap::from([("trunk".into(), "10,20-30".into()), ("native".into(), "10".into())]),
        transmit: Vec::new(),
        receive: Vec::new(),
        transmit_drops: BTreeMap::new(),
        receive_drops: BTreeMap::new(),
        ..port()
    }
}

fn plain(name: &str, condition: Condition) -> PortReport {
    let adapter = Some("rtl8139-plain".into());
    let sentence = format!("{name} is {}", word(condition));
    PortReport { adapter, port_group: None, policy: BTreeMap::new(), sentence, condition, name: name.into(), ..port() }
}

#[test]
fn a_port_is_a_line() {
    let busy = QueueReport { queue: 0, packets: 1, frames: 123_456_789_012, bytes: 1 };
    let busy = PortReport { transmit: vec![busy, busy], guest_errors: 7, ..port() };
    assert_eq!(
        page(&[uplink(), port(), PortReport { name: "vm2".into(), ..busy }], 3, None),
        "\
PORT  ADAPTER   GROUP  VLAN            STATE    TX  RX  DROPPED  ERRORS
tap0  (uplink)  -      trunk 10,20-30  up        0   0        0       0
vm1   e1000     web    10              up       45   1       43       0
vm2   e1000     web    10              up     247G   1       43       7
"
    );
    let two = [plain("vm1", Condition::Waiting), plain("vm2", Condition::Up)];
    assert_eq!(
        page(&two, 2, None),
        "\
PORT  ADAPTER        STATE    TX  RX  DROPPED  ERRORS
vm1   rtl8139-plain  waiting  45   1       43       0
vm2   rtl8139-plain  up       45   1       43       0
",
        "no columns of groups and VLANs, which nobody has"
    );
}

#[test]
fn a_port_that_would_not_survive_a_kill_is_named_with_the_reason() {
    let unkept = |name: &str| PortReport { not_kept: Some("no room".into()), ..plain(name, Condition::Up) };
    let told = |ports: &[PortReport]| page(ports, ports.len(), None).lines().last().unwrap().to_owned();
    let line = "if the daemon were killed now, the VM of vm2 would lose its adapter";
    assert_eq!(told(&[plain("vm1", Condition::Up), unkept("vm2")]), format!("{line}: no room"));
    assert_eq!(told(&[unkept("vm2"), unkept("vm3"), unkept("vm4")]), format!("{line} (and 2 more ports): no room"));
}

#[test]
fn a_thousand_ports_with_long_names_fit_any_terminal() {
    let queue = QueueReport { queue: 0, packets: 1, frames: 999_999, bytes: 1 };
    let ports: Vec<PortReport> = (0..1000)
        .map(|number| PortReport {
            name: format!("a-machine-with-a-name-of-forty-letters-{number:04}"),
            adapter: Some("virtio-net-pci".into()),
            port_group: Some(format!("customers-of-the-{number}-th-kind")),
            policy: BTreeMap::from([("trunk".into(), "100-200,300-400,500-600".into())]),
            condition: Condition::Attached,
            transmit: vec![queue],
            receive: vec![queue],
            guest_errors: 999_999,
            ..port()
        })
        .collect();
    for (terminal, most) in [(Some(80), 80), (Some(100), 100), (Some(300), 120), (Some(40), 80)] {
        let text = page(&ports, 1000, terminal);
        assert_eq!(text.lines().count(), 1001, "a line for each");
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert_eq!(widest, most, "{terminal:?}:\n{}", text.lines().nth(1).unwrap());
        assert!(text.lines().all(|line| line.starts_with("PORT") || line.contains("attached")), "the state is whole");
    }
    assert!(page(&ports, 1000, Some(80)).contains("\na-ma…0999  "), "names differ at their end");
    // A program that reads a pipe gets whole names.
    assert!(page(&ports, 1000, None).contains("a-machine-with-a-name-of-forty-letters-0999  "));
}

#[test]
fn ports_are_chosen_by_group_vlan_and_state() {
    let failed = plain("vm3", Condition::Failed);
    let ports = [uplink(), port(), plain("vm2", Condition::Waiting), failed];
    let chosen = |group: Option<&str>, vlan, state: &[PortState]| {
        let chosen = Chosen { group: group.map(str::to_owned), vlan, state: state.to_vec() };
        ports.iter().filter(|port| chosen.has(port)).map(|port| port.name.as_str()).collect::<Vec<_>>().join(" ")
    };
    for (group, vlan, state, names) in [
        (None, None, &[][..], "tap0 vm1 vm2 vm3"),
        (Some("web"), None, &[], "vm1"),
        (Some("db"), None, &[], ""),
        (None, Some(10), &[], "tap0 vm1"),
        (None, Some(25), &[], "tap0"),
        (None, Some(31), &[], ""),
        (None, None, &[PortState::Up], "tap0 vm1"),
        (None, None, &[PortState::Down], "vm2 vm3"),
        (None, None, &[PortState::Waiting, PortState::Failed], "vm2 vm3"),
        (Some("web"), Some(10), &[PortState::Down], ""),
    ] {
        assert_eq!(chosen(group, vlan, state), names, "{group:?} {vlan:?} {state:?}");
    }
    let of = |key: &str, value: &str| PortReport { policy: BTreeMap::from([(key.into(), value.into())]), ..port() };
    assert!(carries(&of("trunk", "all"), 4094) && carries(&of("qinq", "7"), 7) && !carries(&of("vlan", "7"), 77));
    assert_eq!([of("qinq", "7"), of("community", "7")].map(|port| vlan(&port)), ["qinq 7", "-"]);
}

#[test]
fn what_does_not_work_is_told_below_the_table() {
    let ports: Vec<PortReport> = (1..=10).map(|number| plain(&format!("vm{number}"), Condition::Failed)).collect();
    let text = page(&ports, 10, Some(80));
    let end =
        "\nvm7: vm7 is failed\nvm8: vm8 is failed\nand 2 more: nicety ports --state broken,failed,blocked --long\n";
    assert!(text.ends_with(end), "{text}");
    assert!(page(&ports[..1], 1, None).ends_with("\n\nvm1: vm1 is failed\n"));
}

#[test]
fn a_switch_without_ports_is_told_how_to_get_one() {
    assert_eq!(page(&[], 0, None), NO_PORTS);
    assert!(page(&[uplink()], 1, None).ends_with(&format!("\n\n{NO_PORTS}")));
    assert_eq!(page(&[], 1000, None), "none of the 1000 ports matches\n");
    assert!(!page(&[port()], 1, None).contains(NO_PORTS));
}

#[test]
fn long_numbers_have_three_digits_and_a_letter() {
    for (count, text) in [
        (0, "0"),
        (99_999, "99999"),
        (100_000, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (12_345_678, "12.3M"),
        (999_500_000, "1.00G"),
        (u64::MAX, "18.4E"),
    ] {
        assert_eq!(short(count), text);
    }
}
