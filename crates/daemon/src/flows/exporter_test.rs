//! The records that a collector gets in bad times. The test sets the clock; the sockets are real.

use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;

use nicety_host::Host;
use nicety_ipfix::{Outcome, Seen, Table};

use super::*;

const HANGS: Duration = Duration::from_secs(20);
const SECOND_NS: u64 = 1_000_000_000;
/// 2023-11-14 22:13:20 UTC.
const WALL_S: u64 = 1_700_000_000;

/// The names of ports 1 and 2.
fn names(one: &str, two: &str) -> Names {
    let port = |name: &str| Arc::new(Port { name: name.to_owned(), vlan: 0 });
    Names::from([(1, port(one)), (2, port(two))])
}

/// An export's link, and the clocks.
struct Stage {
    link: Link,
    /// Where workers report.
    sink: Arc<dyn FlowSink>,
    now: Time,
    epoch: Epoch,
}

impl Stage {
    fn new(collector: &str) -> Self {
        let text = format!("[[flow_export]]\nname = \"one\"\ncollector = \"{collector}\"\n");
        let host = Host::parse(&text, Path::new("/etc/host.toml")).unwrap();
        let export = Arc::new(Export::new(1, host.flow_exports[0].clone()));
        let sink = export.learn(1, names("vm1", "vm2"));
        let mut stage = Self { link: Link::new(&export), sink, now: Time(SECOND_NS), epoch: Epoch::default() };
        stage.learn(WALL_S);
        stage
    }

    /// The time of day is this, in seconds.
    fn learn(&mut self, wall_s: u64) {
        self.epoch.learn(wall_s * SECOND_NS, self.now);
    }

    fn turn(&mut self) {
        self.link.turn(self.now, self.epoch);
    }

    fn later(&mut self, ms: u64) {
        self.now = self.now.after_ns(ms * 1_000_000);
    }

    /// Turns until this is so; the kernel may take a moment.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + HANGS;
        loop {
            self.turn();
            if is_so(self) {
                return;
            }
            assert!(Instant::now() < end, "{what}: {:?}", self.link);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The collector is known to be away for so many turns.
    fn is_away_for(&mut self, turns: u32) {
        for _ in 0..turns {
            self.turn();
            assert!(self.link.export.away().is_some());
            self.later(100);
            // This host's own ICMP needs a moment.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A worker reports the flow of one frame.
    fn report(&self) {
        let (mut table, mut records) = (Table::new(1, 1 << 16), Vec::new());
        let head = [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6][..], &[0; 46]].concat();
        let outcome = Outcome { egress: 2, dropped: 0, directions: 1 };
        table.add(&Seen::of(&head), outcome, (1, 60), self.now.0, &mut |record| panic!("{record:?}"));
        table.end_where(|_| true, &mut |record| records.push(record));
        self.sink.take(&mut records);
    }

    fn sent(&self) -> [u64; 3] {
        let counts = self.link.export.queue.counts();
        [&counts.records, &counts.templates, &counts.lost].map(|count| count.load(Ordering::Relaxed))
    }
}

/// A message: its time in seconds, its number, and the numbers of its sets (2: templates, 3: options templates, others: records).
#[derive(Debug, PartialEq, Eq)]
struct Message {
    at_s: u32,
    sequence: u32,
    sets: Vec<u16>,
}

/// The first message, and what is behind it.
fn message(bytes: &[u8]) -> (Message, &[u8]) {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    assert_eq!(half(bytes, 0), 10, "the version of IPFIX");
    let (whole, rest) = bytes.split_at(half(bytes, 2).into());
    let (mut sets, mut left) = (Vec::new(), &whole[16..]);
    while !left.is_empty() {
        sets.push(half(left, 0));
        left = &left[usize::from(half(left, 2))..];
    }
    (Message { at_s: word(4), sequence: word(8), sets }, rest)
}

/// The messages that have come by UDP.
fn came(collector: &UdpSocket) -> Vec<Message> {
    let (mut datagram, mut messages) = ([0; 2000], Vec::new());
    while let Ok(len) = collector.recv(&mut datagram) {
        messages.push(message(&datagram[..len]).0);
    }
    messages
}

fn bound(place: &str) -> UdpSocket {
    let collector = UdpSocket::bind(place).unwrap();
    collector.set_nonblocking(true).unwrap();
    collector
}

fn collector() -> (UdpSocket, Stage) {
    let collector = bound("127.0.0.1:0");
    let stage = Stage::new(&format!("udp:{}", collector.local_addr().unwrap()));
    (collector, stage)
}

/// The set of the flows of ARP.
const FLOWS: u16 = 258;

#[test]
fn a_collector_by_udp_that_has_missed_the_templates_gets_them_within_20_seconds() {
    let (collector, mut stage) = collector();
    stage.turn();
    stage.turn();
    let first = came(&collector);
    assert_eq!(first[0], Message { at_s: WALL_S as u32, sequence: 0, sets: vec![2, 3, 264] });
    // It has lost these. The flows that come meanwhile mean nothing to it.
    for _ in 0..19 {
        stage.later(1000);
        stage.report();
        stage.turn();
    }
    let meanwhile = came(&collector);
    assert_eq!(meanwhile.len(), 19);
    assert!(meanwhile.iter().all(|message| message.sets == [FLOWS]), "{meanwhile:?}");
    stage.later(1000);
    stage.report();
    stage.turn();
    let again: Vec<Vec<u16>> = came(&collector).into_iter().map(|message| message.sets).collect();
    assert_eq!(again, [vec![2, 3, 264], vec![265], vec![FLOWS]], "templates, names, flows");
    assert_eq!(stage.sent(), [20, 2, 0]);
}

#[test]
fn the_times_of_messages_go_on_when_the_clock_is_set_back_and_follow_it_a_minute_later() {
    let (collector, mut stage) = collector();
    stage.turn();
    came(&collector);
    let told = |stage: &mut Stage, wall_s: u64| {
        stage.later(1000);
        stage.learn(wall_s);
        stage.report();
        stage.turn();
        came(&collector).pop().unwrap().at_s
    };
    assert_eq!(told(&mut stage, WALL_S + 1), WALL_S as u32 + 1);
    assert_eq!(told(&mut stage, WALL_S - 86_400), WALL_S as u32 + 2, "set back by a day");
    assert_eq!(told(&mut stage, WALL_S - 86_399), WALL_S as u32 + 3);
    assert_eq!(told(&mut stage, WALL_S + 3600), WALL_S as u32 + 3600, "set forwards by an hour");
    // That was wrong, and is mended.
    for second in 5..65 {
        assert_eq!(told(&mut stage, WALL_S + second), WALL_S as u32 + 3600 + second as u32 - 4);
    }
    assert_eq!(told(&mut stage, WALL_S + 65), WALL_S as u32 + 65, "a minute later it is believed");
}

#[test]
fn records_wait_for_a_collector_by_udp_that_is_away_and_it_is_not_taken_for_there_meanwhile() {
    // An address of its own: no other test takes the port while nobody listens.
    let collector = bound("127.0.77.2:0");
    let place = collector.local_addr().unwrap().to_string();
    drop(collector);
    let mut stage = Stage::new(&format!("udp:{place}"));
    stage.until("it is away", |stage| stage.link.export.away().is_some());
    for _ in 0..5 {
        stage.is_away_for(10);
        stage.report();
    }
    assert_eq!((stage.sent()[0], stage.sent()[2]), (0, 0), "all wait");
    let collector = bound(&place);
    stage.later(1000);
    stage.turn();
    assert_eq!(stage.sent()[0], 0, "templates first: nobody knows whether they are refused");
    stage.turn();
    assert_eq!((stage.sent()[0], stage.sent()[2], stage.link.export.away()), (5, 0, None));
    let sets: Vec<Vec<u16>> = came(&collector).into_iter().map(|message| message.sets).collect();
    assert_eq!(sets, [vec![2, 3, 264], vec![265], vec![FLOWS]]);

    // Its collector ends. The message that is then on its way is refused; the others wait.
    drop(collector);
    let mut reported = 5;
    stage.until("it is away", |stage| {
        (0..100).for_each(|_| stage.report());
        reported += 100;
        stage.link.export.away().is_some()
    });
    stage.is_away_for(20);
    let waiting = reported - stage.sent()[0];
    let collector = bound(&place);
    stage.later(1000);
    stage.turn();
    stage.turn();
    assert_eq!((stage.sent()[0], stage.sent()[2]), (reported, 0));
    let messages = came(&collector);
    assert_eq!((messages[0].sequence, &messages[0].sets[..]), (0, &[2, 3, 264][..]), "a session of its own");
    // The sampling, and two names, come before.
    let before = u64::from(messages.last().unwrap().sequence - 3);
    assert!(messages.len() > 2 && before < waiting, "{waiting}: {messages:?}");
}

/// The `interfaceName`s of the flows of ARP in a message with one set, and their numbers of interfaces.
fn interfaces(datagram: &[u8]) -> Vec<(u32, u32, String)> {
    let mut rest = &datagram[20..usize::from(u16::from_be_bytes([datagram[2], datagram[3]]))];
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let mut found = Vec::new();
    while !rest.is_empty() {
        // Four numbers of eight bytes, two addresses, type, VLAN, the interfaces, direction, end, the name's length.
        let at = 4 * 8 + 2 * 6 + 2 + 2;
        let len = usize::from(rest[at + 10]);
        let name = String::from_utf8(rest[at + 11..at + 11 + len].to_vec()).unwrap();
        found.push((word(rest, at), word(rest, at + 4), name));
        rest = &rest[at + 11 + len..];
    }
    found
}

#[test]
fn a_record_that_has_waited_has_the_names_that_its_ports_had_and_no_number_of_another_port() {
    let (collector, mut stage) = collector();
    stage.turn();
    stage.report();
    // The numbers are others' by turns, nine times.
    let export = Arc::clone(&stage.link.export);
    for plan in 2..=9 {
        stage.sink = export.learn(plan, names(&format!("one{plan}"), "vm2"));
    }
    stage.report();
    stage.sink = export.learn(10, names("vm2", "vm1"));
    came(&collector);
    stage.turn();
    let mut datagram = [0; 2000];
    let len = collector.recv(&mut datagram).unwrap();
    assert_eq!(message(&datagram[..len]).0.sets, [265], "the new names");
    let len = collector.recv(&mut datagram).unwrap();
    assert_eq!(message(&datagram[..len]).0.sets, [FLOWS]);
    let mut found = interfaces(&datagram[..len]);
    found.sort();
    assert_eq!(found, [(0, 0, "one9".to_owned()), (0, 0, "vm1".to_owned())]);
    // A record of the present ports has their numbers.
    stage.report();
    stage.turn();
    let len = collector.recv(&mut datagram).unwrap();
    assert_eq!(interfaces(&datagram[..len]), [(2, 3, "vm2".to_owned())]);
    assert_eq!(stage.sent()[1], 1, "the templates were sent once");
}

#[test]
fn the_link_of_an_export_that_is_gone_stays_until_the_workers_have_reported_all() {
    let (collector, mut stage) = collector();
    stage.turn();
    stage.link.gone = Some(stage.now);
    stage.later(10_000);
    stage.turn();
    assert!(!stage.link.is_over(stage.now), "a worker may report");
    stage.report();
    stage.sink = Arc::new(Inlet::new(&Arc::default(), &Arc::default()));
    assert!(!stage.link.is_over(stage.now), "a record waits");
    stage.turn();
    assert!(stage.link.is_over(stage.now));
    assert_eq!(came(&collector).pop().unwrap().sets, [FLOWS]);
}

/// Reads what has come by TCP: at least one message.
fn read(stream: &mut TcpStream) -> Vec<Message> {
    stream.set_read_timeout(Some(HANGS)).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let len = stream.read(&mut bytes).unwrap();
    let (mut rest, mut messages) = (&bytes[..len], Vec::new());
    while !rest.is_empty() {
        let (first, others) = message(rest);
        messages.push(first);
        rest = others;
    }
    messages
}

#[test]
fn a_collector_by_tcp_that_resets_its_connection_gets_the_templates_first_on_the_next_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stage = Stage::new(&format!("tcp:{}", listener.local_addr().unwrap()));
    let first_sets = [vec![2, 3, 264], vec![265]];
    stage.until("a connection", |stage| stage.sent()[1] == 1);
    stage.turn();
    let (mut stream, _) = listener.accept().unwrap();
    let sets: Vec<Vec<u16>> = read(&mut stream).into_iter().map(|message| message.sets).collect();
    assert_eq!(sets, first_sets);
    stage.report();
    stage.until("a flow that the collector's host has", |stage| stage.sent()[0] == 1);
    // A connection that is closed with unread bytes is reset.
    let end = Instant::now() + HANGS;
    while stream.peek(&mut [0; 1]).unwrap() == 0 {
        assert!(Instant::now() < end);
    }
    drop(stream);
    stage.until("the end of the connection", |stage| stage.link.connection.why().is_some());
    // Frames that come now wait: none is lost.
    stage.report();
    stage.turn();
    assert_eq!(stage.sent()[2], 0);
    stage.later(1000);
    stage.until("another connection", |stage| stage.sent()[1] == 2);
    stage.until("the flow that waited", |stage| stage.sent()[0] == 2);
    let (mut stream, _) = listener.accept().unwrap();
    let mut messages = read(&mut stream);
    while messages.len() < 3 {
        messages.extend(read(&mut stream));
    }
    assert_eq!(messages[0].sequence, 0, "numbers begin anew");
    let sets: Vec<Vec<u16>> = messages.into_iter().map(|message| message.sets).collect();
    assert_eq!(sets, [first_sets[0].clone(), first_sets[1].clone(), vec![FLOWS]]);
}
