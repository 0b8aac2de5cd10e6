use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::time::Instant;

use nicety_ipfix::{Outcome, Port, Record, Seen, Table};

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
    let port = |name: &str| Arc::new(Port { name: name.to_owned(), vlan: 0 });
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

const HANGS: Duration = Duration::from_secs(30);

/// Records of the flows of as many stations behind port 1.
fn records(count: u32) -> Vec<Record> {
    let (mut table, mut records) = (Table::new(1, 64 << 20), Vec::new());
    let outcome = Outcome { egress: 2, dropped: 0, directions: 1 };
    for station in 0..count {
        let head = [&[2, 0, 0, 0, 0, 2, 2, 0][..], &station.to_be_bytes(), &[8, 6], &[0; 46]].concat();
        table.add(&Seen::of(&head), outcome, (1, 60), 0, &mut |record| records.push(record));
    }
    table.end_where(|_| true, &mut |record| records.push(record));
    records
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + HANGS;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {HANGS:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn records_wait_for_a_collector_that_is_away_and_those_beyond_the_room_are_lost_and_counted() {
    // An address of its own: no other test takes the port while nobody listens.
    let listener = TcpListener::bind("127.0.77.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    drop(listener);
    let flows = flows();
    let text = export("").replace("udp:127.0.0.1:9", &format!("tcp:{place}"));
    let (_, plan) = flows.set(&host(&text), ports(&NAMES)).unwrap();
    let is_away = || flows.reports()[0].away.as_ref().is_some_and(|why| why.contains("refused"));
    until("the collector is away", is_away);
    plan[0].sink.take(&mut records(40_000));
    let report = flows.reports()[0].clone();
    assert_eq!((report.records, report.lost), (0, 40_000 - 32_768));
    assert_eq!(report.lost_by_port, BTreeMap::from([("vm1".to_owned(), 40_000 - 32_768)]));
    let listener = TcpListener::bind(place).unwrap();
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(HANGS)).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        bytes
    });
    until("all that waited is sent", || {
        let report = &flows.reports()[0];
        report.records == 32_768 && report.away.is_none()
    });
    assert_eq!(flows.reports()[0].lost, 40_000 - 32_768);
    flows.end();
    let bytes = reader.join().unwrap();
    let (mut rest, mut sequences) = (&bytes[..], Vec::new());
    while let [0, 10, high, low, ..] = rest {
        sequences.push(u32::from_be_bytes(rest[8..12].try_into().unwrap()));
        rest = &rest[usize::from(u16::from_be_bytes([*high, *low]))..];
    }
    assert!(rest.is_empty() && sequences[0] == 0 && sequences.is_sorted(), "{sequences:?}");
    // The sampling, and three names, come before the flows.
    let last = *sequences.last().unwrap();
    assert!((32_000..32_768 + 4).contains(&last), "{last}");
}

#[test]
fn the_end_waits_for_no_collector_that_takes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let flows = flows();
    let text = export("").replace("udp:127.0.0.1:9", &format!("tcp:{}", listener.local_addr().unwrap()));
    let (_, plan) = flows.set(&host(&text), ports(&NAMES)).unwrap();
    let (_takes_nothing, _) = listener.accept().unwrap();
    until("the collector is there", || flows.reports()[0].away.is_none());
    (0..4).for_each(|_| plan[0].sink.take(&mut records(30_000)));
    let begin = Instant::now();
    flows.end();
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}
