//! Messages are read by a collector that knows only RFC 7011: what it finds must be what was reported.

use std::collections::BTreeMap;

use super::*;
use crate::key::{Key, NOT_ONE, Outcome, Seen};
use crate::record::{Direction, EndReason, Record};

const TERMS: Terms = Terms { domain: 7, sampling: 100, message_bytes: 1400, again: Some(Duration::from_secs(20)) };
/// 2023-11-14 22:13:20 UTC.
const EPOCH_NS: u64 = 1_700_000_000_000_000_000;

/// A collector's state, and what it has read: (template, element → bytes).
#[derive(Default)]
struct Collector {
    templates: BTreeMap<u16, Vec<(u16, u16)>>,
    records: Vec<(u16, BTreeMap<u16, Vec<u8>>)>,
    sequence: u32,
    /// Times and domains of the messages.
    headers: Vec<(u32, u32)>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Collector {
    fn read(&mut self, message: &[u8]) {
        assert_eq!((u16_at(message, 0), usize::from(u16_at(message, 2))), (10, message.len()));
        assert_eq!(u32_at(message, 8), self.sequence, "records before this message");
        self.headers.push((u32_at(message, 4), u32_at(message, 12)));
        let mut rest = &message[16..];
        while !rest.is_empty() {
            let (id, len) = (u16_at(rest, 0), usize::from(u16_at(rest, 2)));
            let (set, others) = rest.split_at(len);
            match id {
                2 => self.describe(&set[4..], 4),
                3 => self.describe(&set[4..], 6),
                id => self.data(id, &set[4..]),
            }
            rest = others;
        }
    }

    fn describe(&mut self, mut set: &[u8], header: usize) {
        while !set.is_empty() {
            let (id, count) = (u16_at(set, 0), usize::from(u16_at(set, 2)));
            assert!(header == 4 || u16_at(set, 4) == 1, "a scope of one field");
            let fields = (0..count).map(|place| (u16_at(set, header + 4 * place), u16_at(set, header + 4 * place + 2)));
            self.templates.insert(id, fields.collect());
            set = &set[header + 4 * count..];
        }
    }

    fn data(&mut self, id: u16, mut set: &[u8]) {
        let template = self.templates.get(&id).unwrap_or_else(|| panic!("template {id} is not known"));
        while !set.is_empty() {
            let mut record = BTreeMap::new();
            for &(element, len) in template {
                let (begin, len) = if len == 0xffff { (1, set[0].into()) } else { (0, usize::from(len)) };
                record.insert(element, set[begin..begin + len].to_vec());
                set = &set[begin + len..];
            }
            self.records.push((id, record));
            self.sequence = self.sequence.wrapping_add(1);
        }
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A TCP segment of IPv4, or another frame.
fn key(version: u8, outcome: Outcome) -> Key {
    let mut head = vec![0; 74];
    head[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    match version {
        4 => {
            head[12..15].copy_from_slice(&[8, 0, 0x45]);
            head[23] = 6;
            head[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            head[34..38].copy_from_slice(&[0x0f, 0xa0, 0, 80]);
            head[46] = 0x50;
        }
        6 => {
            head[12..21].copy_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6]);
            head[22..54].copy_from_slice(&[[0xfd; 16], [0xfe; 16]].concat());
            head[54..58].copy_from_slice(&[0x0f, 0xa0, 0, 80]);
            head[66] = 0x50;
        }
        _ => head[12..14].copy_from_slice(&[8, 6]),
    }
    Seen::of(&head).key_with(outcome)
}

fn record(version: u8, outcome: Outcome) -> Record {
    Record {
        key: key(version, outcome),
        ingress: 1,
        packets: 3,
        octets: 4000,
        first_ns: 1_500_000_000,
        last_ns: 2_750_000_000,
        flags: 0x1b,
        end: EndReason::Idle,
    }
}

const FORWARDED: Outcome = Outcome { egress: 4, dropped: 0, directions: 3 };

fn report(record: &Record) -> Report<'_> {
    let egress = Some(record.key.outcome().egress).filter(|egress| *egress != NOT_ONE);
    let interfaces = [Some(record.ingress), egress];
    Report { record, direction: Direction::Ingress, interfaces, name: "vm1", untagged: 20, dropped: None }
}

fn names() -> Names {
    let port = |name: &str| Arc::new(Port { name: name.to_owned(), vlan: 0 });
    Names::from([(1, port("vm1")), (4, port("up"))])
}

/// The collector reads what is due.
fn announce(session: &mut Session, collector: &mut Collector, names: &Names) {
    assert!(session.announce(names, 0, EPOCH_NS, |message| {
        assert!(message.len() <= TERMS.message_bytes, "{}", message.len());
        collector.read(message);
        true
    }));
}

#[test]
fn a_collector_reads_what_was_reported() {
    let (mut session, mut collector) = (Session::new(TERMS), Collector::default());
    assert_eq!(session.due(0), Due::All);
    announce(&mut session, &mut collector, &names());
    let [(_, sampling), (_, one), (_, two)] = &collector.records[..] else { panic!("{:?}", collector.records) };
    assert_eq!((number(&sampling[&304]), number(&sampling[&305]), number(&sampling[&306])), (1, 1, 99));
    assert_eq!((number(&one[&10]), &one[&82][..], number(&two[&10]), &two[&82][..]), (2, &b"vm1"[..], 5, &b"up"[..]));
    let v4 = record(4, FORWARDED);
    let (message, count) = session.message([report(&v4)], 3_000_000_000, EPOCH_NS);
    assert_eq!(count, 1);
    collector.read(&message);
    assert_eq!(collector.headers.last(), Some(&(1_700_000_003, 7)));
    let (id, flow) = collector.records.last().unwrap();
    assert_eq!(*id, 256);
    let expected: [(u16, &[u8]); 19] = [
        (152, &1_700_000_001_500u64.to_be_bytes()),
        (153, &1_700_000_002_750u64.to_be_bytes()),
        (1, &4000u64.to_be_bytes()),
        (2, &3u64.to_be_bytes()),
        (56, &[2, 0, 0, 0, 0, 1]),
        (80, &[2, 0, 0, 0, 0, 2]),
        (256, &[8, 0]),
        (58, &[0, 20]),
        (8, &[10, 0, 0, 1]),
        (12, &[10, 0, 0, 2]),
        (4, &[6]),
        (7, &[0x0f, 0xa0]),
        (11, &[0, 80]),
        (6, &[0, 0x1b]),
        (10, &[0, 0, 0, 2]),
        (14, &[0, 0, 0, 5]),
        (61, &[0]),
        (136, &[1]),
        (82, b"vm1"),
    ];
    assert_eq!(flow.len(), expected.len());
    expected.iter().for_each(|(element, value)| assert_eq!(flow[element], *value, "element {element}"));
}

#[test]
fn each_kind_of_flow_has_a_template_of_its_own() {
    let (mut session, mut collector) = (Session::new(TERMS), Collector::default());
    announce(&mut session, &mut collector, &names());
    let dropped = Outcome { egress: NOT_ONE, dropped: 5, directions: 1 };
    let records: Vec<Record> = [4, 6, 0]
        .into_iter()
        .flat_map(|version| [FORWARDED, dropped].map(|outcome| record(version, outcome)))
        .collect();
    let reports = records.iter().map(|record| {
        let dropped = (record.key.outcome().dropped != 0).then_some((129, "arp-guard"));
        Report { direction: Direction::Egress, dropped, ..report(record) }
    });
    collector.read(&session.message(reports, 0, EPOCH_NS).0);
    let flows = &collector.records[3..];
    assert_eq!(flows.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [256, 260, 257, 261, 258, 262]);
    let v6 = &flows[2].1;
    assert_eq!((&v6[&27][..], &v6[&28][..], number(&v6[&7])), (&[0xfd; 16][..], &[0xfe; 16][..], 4000));
    let arp = &flows[5].1;
    assert_eq!((number(&arp[&256]), number(&arp[&89]), &arp[&335][..]), (0x0806, 129, &b"arp-guard"[..]));
    assert_eq!((number(&arp[&14]), number(&arp[&61])), (0, 1), "a frame that the switch drops leaves by no interface");
    assert!(!arp.contains_key(&4) && !arp.contains_key(&8));
}

#[test]
fn a_frame_that_its_receiver_drops_has_that_one_s_interface() {
    let (mut session, mut collector) = (Session::new(TERMS), Collector::default());
    announce(&mut session, &mut collector, &names());
    let record = record(4, Outcome { egress: 4, dropped: 15, directions: 3 });
    let reports =
        Direction::ALL.map(|direction| Report { direction, dropped: Some((128, "buffer-full")), ..report(&record) });
    collector.read(&session.message(reports, 0, EPOCH_NS).0);
    for (direction, (id, flow)) in [0, 1].into_iter().zip(&collector.records[3..]) {
        assert_eq!((*id, number(&flow[&61]), &flow[&335][..]), (260, direction, &b"buffer-full"[..]));
        assert_eq!((number(&flow[&10]), number(&flow[&14])), (2, 5), "port 4 has interface 5");
    }
}

#[test]
fn messages_are_no_longer_than_allowed_and_number_their_records() {
    let (mut session, mut collector) = (Session::new(TERMS), Collector::default());
    let port = |number| Arc::new(Port { name: format!("port-{number:0>58}"), vlan: 0 });
    announce(&mut session, &mut collector, &(0..200).map(|number| (number, port(number))).collect());
    assert_eq!(collector.records.len(), 201);
    let records: Vec<Record> = (0..1000).map(|number| record([4, 6, 0][number % 3], FORWARDED)).collect();
    let (mut messages, mut sent) = (0, 0);
    while sent < records.len() {
        let (message, count) = session.message(records[sent..].iter().map(report), 0, EPOCH_NS);
        assert!(message.len() <= TERMS.message_bytes && count > 0, "{}", message.len());
        collector.read(&message);
        session.sent(count);
        (messages, sent) = (messages + 1, sent + count as usize);
    }
    assert!(messages > 50 && sent == 1000, "{messages} {sent}");
    assert_eq!(collector.records.len(), 1201);
    assert_eq!(session.message([], 0, EPOCH_NS).1, 0, "nothing to say");
}

/// The sets of the messages that are due: 2 has templates, 3 options templates, 264 the sampling, 265 the names of interfaces.
fn announced(session: &mut Session, now_ns: u64) -> Vec<Vec<u16>> {
    let mut all = Vec::new();
    assert!(session.announce(&names(), now_ns, EPOCH_NS, |message| {
        let (mut sets, mut rest) = (Vec::new(), &message[16..]);
        while !rest.is_empty() {
            sets.push(u16_at(rest, 0));
            rest = &rest[usize::from(u16_at(rest, 2))..];
        }
        all.push(sets);
        true
    }));
    all
}

#[test]
fn templates_are_due_again_by_udp_and_once_for_each_connection_by_tcp() {
    let (second, all) = (1_000_000_000, [vec![2, 3, 264], vec![265]]);
    let mut udp = Session::new(TERMS);
    assert_eq!(announced(&mut udp, 0), all);
    assert_eq!((udp.due(19 * second), udp.due(20 * second)), (Due::Nothing, Due::All));
    assert_eq!(announced(&mut udp, 20 * second), all);
    let mut tcp = Session::new(Terms { again: None, ..TERMS });
    assert_eq!(announced(&mut tcp, 0), all);
    assert_eq!(tcp.due(u64::MAX), Due::Nothing);
    tcp.begin();
    let mut collector = Collector::default();
    announce(&mut tcp, &mut collector, &names());
    assert_eq!(collector.sequence, 3, "a connection begins with 0");
}

#[test]
fn names_that_change_are_sent_without_the_templates() {
    for again in [TERMS.again, None] {
        let mut session = Session::new(Terms { again, ..TERMS });
        announced(&mut session, 0);
        session.renew();
        assert_eq!(session.due(1), Due::Names);
        assert_eq!(announced(&mut session, 1), [[265]]);
        assert_eq!(session.due(1), Due::Nothing);
    }
}

#[test]
fn what_is_not_taken_is_due_again_and_leaves_no_gap_in_the_numbers() {
    let (mut session, mut collector) = (Session::new(TERMS), Collector::default());
    // The templates are taken, and the names are not.
    let is_done = session.announce(&names(), 0, EPOCH_NS, |message| {
        let has_templates = u16_at(message, 16) == 2;
        if has_templates {
            collector.read(message);
        }
        has_templates
    });
    assert!(!is_done && session.due(0) == Due::All);
    announce(&mut session, &mut collector, &names());
    let v4 = record(4, FORWARDED);
    let _not_sent = session.message([report(&v4)], 0, EPOCH_NS);
    let (message, count) = session.message([report(&v4)], 0, EPOCH_NS);
    collector.read(&message);
    assert_eq!((count, collector.records.len()), (1, 5), "the sampling twice, two names, a flow");
}

#[test]
fn every_field_of_a_flows_template_is_written_from_the_record() {
    // Fields without a meaning are written as zeros: of these records none may be.
    for (version, dropped) in [(4, 0), (4, 3), (6, 0), (6, 3), (0, 0), (0, 3)] {
        let record = record(version, Outcome { egress: 4, dropped, directions: 2 });
        let told = (dropped != 0).then_some((128, "no-vm"));
        let report = Report { direction: Direction::Egress, dropped: told, ..report(&record) };
        let mut bytes = Vec::new();
        let id = encode(&mut bytes, &report, EPOCH_NS);
        let mut collector = Collector::default();
        let template = Template::Flow { version, dropped: dropped != 0 };
        let fields = template.fields().iter().map(|field| (field.element, field.len)).collect();
        collector.templates.insert(id, fields);
        collector.data(id, &bytes);
        for (element, value) in &collector.records[0].1 {
            assert!(value.iter().any(|byte| *byte != 0), "element {element} of template {id}");
        }
    }
}
