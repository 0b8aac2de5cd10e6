//! Flows of embedded guests reach collectors: one of this test's own, which knows only RFC 7011; Wireshark's dissector, nfdump and pmacct, all
//! of Debian's packages. An upgrade loses no frame of a flow, and tells the templates again. Of the three only Wireshark reads IPFIX by TCP:
//! nfcapd and nfacctd listen by UDP alone.

#[path = "commands/python.rs"]
#[allow(dead_code, reason = "only its words for what cannot be laid")]
mod python;
mod station;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nicety_guests::Tool;
use pcap_file::pcap::{PcapPacket, PcapWriter};
use python::skipped;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use station::{Process, Station, keep};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(30);
/// Locally administered addresses of the ports.
const MAC: &str = "52:54:00:12:34:0";

// Elements of IANA's registry.
const OCTETS: u16 = 1;
const PACKETS: u16 = 2;
const PROTOCOL: u16 = 4;
const SOURCE_PORT: u16 = 7;
const SOURCE_V4: u16 = 8;
const EGRESS: u16 = 14;
const DIRECTION: u16 = 61;
const INTERFACE_NAME: u16 = 82;
const STATUS: u16 = 89;
const SELECTOR_NAME: u16 = 335;
/// The set of the names of interfaces.
const INTERFACES: u16 = 265;

type Record = BTreeMap<u16, Vec<u8>>;

/// The transport by which messages come.
enum Transport {
    Udp(UdpSocket),
    Tcp {
        listener: TcpListener,
        connection: Option<(TcpStream, SocketAddr)>,
        /// Bytes of a message that is not whole.
        bytes: Vec<u8>,
    },
    /// They are given to it. It has missed the first ones.
    Late,
}

/// A collector.
struct Collector {
    transport: Transport,
    messages: Vec<Vec<u8>>,
    /// Fields of templates, by the exporter's address and the template's number.
    templates: BTreeMap<(SocketAddr, u16), Vec<(u16, u16)>>,
    /// Records by exporters.
    records: Vec<(SocketAddr, Record)>,
    /// The number of the next record, by exporters.
    next: BTreeMap<SocketAddr, u32>,
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn has_templates(message: &[u8]) -> bool {
    word(message, 16) == 2
}

fn number_of(record: &Record, element: u16) -> u64 {
    number(&record[&element])
}

/// The messages that have come whole.
fn read_stream(stream: &mut TcpStream, bytes: &mut Vec<u8>) -> Vec<Vec<u8>> {
    let mut some = vec![0; 65_536];
    while let Ok(len @ 1..) = stream.read(&mut some) {
        bytes.extend(&some[..len]);
    }
    let mut messages = Vec::new();
    while bytes.len() >= 4 && bytes.len() >= word(bytes, 2).into() {
        messages.push(bytes.drain(..usize::from(word(bytes, 2))).collect());
    }
    messages
}

impl Collector {
    fn of(transport: Transport) -> Self {
        let (templates, next) = (BTreeMap::new(), BTreeMap::new());
        Self { transport, messages: Vec::new(), templates, records: Vec::new(), next }
    }

    fn udp() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Self::of(Transport::Udp(socket))
    }

    fn tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self::of(Transport::Tcp { listener, connection: None, bytes: Vec::new() })
    }

    /// A collector by UDP that gets these messages, and does not know what came before.
    fn late(messages: &[Vec<u8>]) -> Self {
        let mut collector = Self::of(Transport::Late);
        let from = SocketAddr::from(([127, 0, 0, 1], 4739));
        messages.iter().for_each(|message| collector.take(from, message.clone()));
        collector
    }

    /// Its place, as a host file has it.
    fn place(&self) -> String {
        match &self.transport {
            Transport::Udp(socket) => format!("udp:{}", socket.local_addr().unwrap()),
            Transport::Tcp { listener, .. } => format!("tcp:{}", listener.local_addr().unwrap()),
            Transport::Late => unreachable!("nobody sends to it"),
        }
    }

    fn is_tcp(&self) -> bool {
        matches!(self.transport, Transport::Tcp { .. })
    }

    /// Reads what has come.
    fn read(&mut self) {
        let mut came = Vec::new();
        match &mut self.transport {
            Transport::Udp(socket) => {
                let mut datagram = vec![0; 65_536];
                while let Ok((len, from)) = socket.recv_from(&mut datagram) {
                    assert_eq!(usize::from(word(&datagram, 2)), len);
                    came.push((from, datagram[..len].to_vec()));
                }
            }
            Transport::Tcp { listener, connection, bytes } => {
                if connection.is_none()
                    && let Ok((stream, from)) = listener.accept()
                {
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                    *connection = Some((stream, from));
                }
                if let Some((stream, from)) = connection {
                    came.extend(read_stream(stream, bytes).into_iter().map(|message| (*from, message)));
                }
            }
            Transport::Late => {}
        }
        came.into_iter().for_each(|(from, message)| self.take(from, message));
    }

    fn take(&mut self, from: SocketAddr, message: Vec<u8>) {
        assert_eq!((word(&message, 0), usize::from(word(&message, 2))), (10, message.len()));
        let sequence = number(&message[8..12]);
        let next = self.next.entry(from).or_default();
        match self.transport {
            Transport::Late => *next = sequence as u32,
            _ => assert_eq!(sequence, u64::from(*next), "no message is lost on this host"),
        }
        let mut rest = &message[16..];
        while !rest.is_empty() {
            let (set, others) = rest.split_at(word(rest, 2).into());
            match word(set, 0) {
                2 => self.describe(from, &set[4..], 4),
                3 => self.describe(from, &set[4..], 6),
                id => self.data(from, id, &set[4..]),
            }
            rest = others;
        }
        self.messages.push(message);
    }

    /// The number of times that the templates have come.
    fn templates_came(&self) -> usize {
        self.messages.iter().filter(|message| has_templates(message)).count()
    }

    /// Packets of all flows.
    fn all_packets(&self) -> u64 {
        self.records.iter().filter_map(|(_, record)| record.get(&PACKETS)).map(|packets| number(packets)).sum()
    }

    fn describe(&mut self, from: SocketAddr, mut set: &[u8], header: usize) {
        while !set.is_empty() {
            let (id, count) = (word(set, 0), usize::from(word(set, 2)));
            let field = |place: usize| (word(set, header + 4 * place), word(set, header + 4 * place + 2));
            self.templates.insert((from, id), (0..count).map(field).collect());
            set = &set[header + 4 * count..];
        }
    }

    fn data(&mut self, from: SocketAddr, id: u16, mut set: &[u8]) {
        let template = match self.templates.get(&(from, id)) {
            Some(template) => template,
            None if matches!(self.transport, Transport::Late) => return,
            None => panic!("templates come first"),
        };
        while !set.is_empty() {
            let mut record = Record::new();
            for &(element, len) in template {
                let (begin, len) = if len == 0xffff { (1, set[0].into()) } else { (0, usize::from(len)) };
                record.insert(element, set[begin..begin + len].to_vec());
                set = &set[begin + len..];
            }
            self.records.push((from, record));
            *self.next.get_mut(&from).unwrap() += 1;
        }
    }

    /// Packets of all flows of a port in this direction: 0 is into the switch.
    fn packets(&mut self, port: &str, direction: u8) -> u64 {
        self.read();
        self.packets_so_far(port, direction)
    }

    fn packets_so_far(&self, port: &str, direction: u8) -> u64 {
        let its = self.records.iter().filter(|(_, record)| {
            record.get(&INTERFACE_NAME).is_some_and(|name| name == port.as_bytes())
                && record.get(&DIRECTION).is_some_and(|of| *of == [direction])
        });
        its.map(|(_, record)| number(&record[&PACKETS])).sum()
    }
}

struct Host {
    dir: TempDir,
    text: String,
    _keeper: Process,
}

impl Host {
    /// A kept daemon with two ports and this export of their flows.
    fn start(export: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n".to_owned();
        for (adapter, number) in ["e1000", "virtio-net"].iter().zip(1..) {
            text += &format!("[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"{MAC}{number}\"\n");
            text += &format!("socket = \"vm{number}.sock\"\nbuffer = \"64MiB\"\n");
        }
        fs::write(dir.path().join("host.toml"), format!("{text}{export}")).unwrap();
        let host = Self { _keeper: keep(dir.path()), text, dir };
        let end = Instant::now() + SOON;
        while host.asked(&["ports"]).status.code() != Some(0) {
            assert!(Instant::now() < end, "{}", host.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        host
    }

    fn guest(&self, number: u8) -> Station {
        let socket = self.dir.path().join(format!("vm{number}.sock"));
        let attach = match number {
            1 => json!({ "vfio-user": { "driver": "e1000", "socket": socket } }),
            _ => json!({ "vhost-user": { "socket": socket } }),
        };
        Station::start(&attach, number)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    fn asked(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).arg("--control").arg(self.dir.path().join("control.sock")).output().unwrap()
    }

    fn told(&self, words: &[&str]) -> String {
        let output = self.asked(words);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        String::from_utf8(output.stdout).unwrap()
    }

    fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.dir.path().join("control.sock")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: nicety\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// Applies the host file with this export.
    fn apply(&self, export: &str) -> String {
        let path = self.dir.path().join("host.toml");
        fs::write(&path, format!("{}{export}", self.text)).unwrap();
        self.told(&["apply", path.to_str().unwrap()])
    }

    /// Frames of a port in this direction, dropped ones included.
    fn frames(&self, name: &str, way: &str) -> u64 {
        let ports: Value = serde_json::from_str(&self.told(&["ports", "--json"])).unwrap();
        let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).unwrap().clone();
        port[way].as_array().unwrap().iter().filter_map(|queue| queue["frames"].as_u64()).sum()
    }

    /// Waits until each frame that the first guest has sent, and each that it got, is in a record.
    fn until_all_is_told(&self, collector: &mut Collector) {
        let end = Instant::now() + SOON;
        loop {
            let told = [0, 1].map(|direction| collector.packets("vm1", direction));
            let frames = ["transmit", "receive"].map(|way| self.frames("vm1", way));
            if told == frames {
                return;
            }
            assert!(Instant::now() < end, "told {told:?} of {frames:?}\n{:?}\n{}", collector.records, self.log());
        }
    }
}

fn exchange(from: &mut Station, to: &Station) {
    let done = from.asked(&json!({ "transact": { "to": to.address, "seconds": 0.2 } }));
    assert!(done.get("failed").is_none(), "{done}");
}

fn export(to: &str) -> String {
    format!("[[flow_export]]\nname = \"watch\"\ncollector = \"{to}\"\nidle_timeout = \"1s\"\n")
}

/// A host whose flows this collector gets, and two guests that have exchanged frames. The collector was told of all of them.
fn told_of_an_exchange(collector: &mut Collector) -> (Host, Station, Station) {
    let host = Host::start(&export(&collector.place()));
    let (mut one, two) = (host.guest(1), host.guest(2));
    exchange(&mut one, &two);
    host.until_all_is_told(collector);
    (host, one, two)
}

#[test]
fn each_frame_of_a_guest_is_in_a_flow_that_a_collector_is_told_of_also_after_an_upgrade() {
    let mut collector = Collector::udp();
    let (host, mut one, two) = told_of_an_exchange(&mut collector);
    let is_tcp = |(_, record): &&(SocketAddr, Record)| record.get(&PROTOCOL).is_some_and(|protocol| *protocol == [6]);
    let tcp = collector.records.iter().find(is_tcp).unwrap().1.clone();
    assert_eq!(tcp[&SOURCE_V4][..3], [10, 0, 0]);
    assert!(number(&tcp[&SOURCE_PORT]) > 0);

    // The next daemon goes on. The first one has told all that it knew.
    host.told(&["upgrade"]);
    exchange(&mut one, &two);
    host.until_all_is_told(&mut collector);
    let exporters: Vec<SocketAddr> = collector.next.keys().copied().collect();
    assert_eq!(exporters.len(), 2, "each daemon has a session of its own, with templates of its own");

    let metrics = host.metrics();
    assert!(metrics.contains("nicety_flow_collector_up{export=\"watch\"} 1"), "{metrics}");
    assert!(metrics.contains("nicety_flow_records_lost_total{export=\"watch\"} 0"), "{metrics}");
    wireshark_agrees(&collector, host.dir.path());
    nfdump_agrees(&collector, host.dir.path());
    pmacct_agrees(&collector, host.dir.path());

    // A change while it runs: one in ten, then nothing more.
    let planned = host.apply(&(export(&collector.place()) + "sampling = 10\n"));
    assert_eq!(planned, "~ flow_export.watch: sampling (not set) → 10\n");
    let before = (collector.packets("vm1", 0), host.frames("vm1", "transmit"));
    exchange(&mut one, &two);
    let sent = host.frames("vm1", "transmit") - before.1;
    let end = Instant::now() + SOON;
    while collector.packets("vm1", 0) - before.0 < sent / 11 {
        assert!(Instant::now() < end, "{} of {sent}", collector.packets("vm1", 0) - before.0);
    }
    assert!(collector.packets("vm1", 0) - before.0 <= sent / 9 + 10);
    assert_eq!(host.apply(""), "- flow_export.watch\n");
    std::thread::sleep(Duration::from_secs(1));
    collector.read();
    let told = collector.messages.len();
    exchange(&mut one, &two);
    std::thread::sleep(Duration::from_secs(2));
    collector.read();
    assert_eq!(collector.messages.len(), told, "nothing is exported any more");
}

#[test]
fn what_the_switch_drops_is_told_with_its_reason() {
    let mut collector = Collector::udp();
    let to = collector.place();
    let host = Host::start(&export(&to));
    let (mut one, two) = (host.guest(1), host.guest(2));
    exchange(&mut one, &two);
    // A network without anybody else.
    host.told(&["port", "set", "vm1", "vlan=99", "--yes"]);
    let _fails = one.asked(&json!({ "transact": { "to": two.address, "seconds": 0.2 } }));
    let end = Instant::now() + SOON;
    let dropped = loop {
        collector.read();
        let is_drop_of_ip = |record: &Record| [STATUS, PROTOCOL].iter().all(|element| record.contains_key(element));
        let found = collector.records.iter().find(|(_, record)| is_drop_of_ip(record));
        if let Some((_, record)) = found {
            break record.clone();
        }
        assert!(Instant::now() < end, "{:?}\n{}", collector.records, host.log());
    };
    assert_eq!((&dropped[&INTERFACE_NAME][..], number(&dropped[&DIRECTION])), (&b"vm1"[..], 0));
    assert_eq!(number(&dropped[&STATUS]), 128, "dropped, and for none of the usual reasons (RFC 7270, section 4.12)");
    let reason = String::from_utf8(dropped[&SELECTOR_NAME].clone()).unwrap();
    assert_eq!(reason, "no-receiver");
    let ports: Value = serde_json::from_str(&host.told(&["ports", "--json"])).unwrap();
    let port = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == "vm1").unwrap();
    assert!(port["transmit_drops"][&reason].as_u64().unwrap() > 0, "{reason}: {port}");
    pmacct_knows_the_drop(&collector, host.dir.path(), &reason, 99);
}

#[test]
fn what_a_receiving_port_drops_is_told_by_both_ports() {
    let mut collector = Collector::udp();
    let to = collector.place();
    let host = Host::start(&export(&to));
    let mut one = host.guest(1);
    // Nobody is at the other port, which is the only one.
    let _fails = one.asked(&json!({ "transact": { "to": [10, 0, 0, 2], "seconds": 0.2 } }));
    let end = Instant::now() + SOON;
    let dropped = loop {
        collector.read();
        let is_drop = |record: &&Record| record.get(&SELECTOR_NAME).is_some_and(|reason| reason == b"no-vm");
        let found: Vec<Record> = collector.records.iter().map(|(_, record)| record).filter(is_drop).cloned().collect();
        if found.len() >= 2 {
            break found;
        }
        assert!(Instant::now() < end, "{:?}\n{}", collector.records, host.log());
    };
    let told = |number: usize| (number_of(&dropped[number], DIRECTION), &dropped[number][&INTERFACE_NAME][..]);
    assert_eq!([told(0), told(1)], [(0, &b"vm1"[..]), (1, &b"vm2"[..])]);
    assert_eq!(number_of(&dropped[0], EGRESS), number_of(&dropped[1], EGRESS));
    assert!(number_of(&dropped[0], EGRESS) > 0 && number_of(&dropped[0], STATUS) == 128, "{dropped:?}");
    let frames = collector.packets_so_far("vm1", 0);
    assert_eq!(frames, collector.packets_so_far("vm2", 1), "no frame is told as forwarded besides");
}

#[test]
fn a_collector_by_tcp_is_told_of_each_frame_and_of_the_templates_once() {
    let mut collector = Collector::tcp();
    let (host, mut one, two) = told_of_an_exchange(&mut collector);
    // There is another port: only the names are sent again.
    let names =
        |collector: &Collector| collector.messages.iter().filter(|message| word(message, 16) == INTERFACES).count();
    let before = names(&collector);
    let port = format!("adapter=e1000 mac={MAC}3 socket={}", host.dir.path().join("vm3.sock").display());
    let words: Vec<&str> = ["port", "add", "vm3"].into_iter().chain(port.split(' ')).collect();
    host.told(&words);
    exchange(&mut one, &two);
    host.until_all_is_told(&mut collector);
    assert_eq!((names(&collector), collector.templates_came()), (before + 1, 1));
    let metrics = host.metrics();
    assert!(metrics.contains("nicety_flow_records_lost_total{export=\"watch\"} 0"), "{metrics}");
    wireshark_agrees(&collector, host.dir.path());
}

#[test]
fn a_collector_that_has_lost_the_templates_knows_the_flows_when_they_come_again() {
    let mut collector = Collector::udp();
    let (host, mut one, two) = told_of_an_exchange(&mut collector);
    assert_eq!(collector.templates_came(), 1);
    let end = Instant::now() + SOON;
    while collector.templates_came() < 2 {
        assert!(Instant::now() < end, "they come each 20 s");
        collector.read();
    }
    exchange(&mut one, &two);
    host.until_all_is_told(&mut collector);
    let lost = collector.messages.iter().position(|message| has_templates(message)).unwrap();
    let late = Collector::late(&[&collector.messages[..lost], &collector.messages[lost + 1..]].concat());
    let known = late.all_packets();
    assert!(known > 0 && known < collector.all_packets(), "{known} of {}", collector.all_packets());
    let dir = host.dir.path();
    nfdump_agrees(&late, dir);
    pmacct_agrees(&late, dir);
    let Some(wireshark) = Wireshark::of(&late, dir) else { return };
    let all = wireshark.asked(&["-V"]);
    assert!(all.contains("no template found"), "it has lost them\n{all}");
    assert_eq!(wireshark.packets(), known, "{all}");
}

/// The start of a frame with so many bytes behind IPv4's header, of this protocol.
fn header(protocol: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((len as u16 + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    frame
}

fn datagram(message: &[u8]) -> Vec<u8> {
    let (mut frame, udp) = (header(17, message.len() + 8), 4739u16.to_be_bytes());
    frame.extend([udp, udp, (message.len() as u16 + 8).to_be_bytes(), [0, 0]].concat());
    frame.extend(message);
    frame
}

/// A connection's begin, and segments that end anywhere in a message.
fn segments(messages: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let segment = |ports: [u16; 2], numbers: [u32; 2], flags: u8, payload: &[u8]| {
        let mut frame = header(6, payload.len() + 20);
        frame.extend(ports.map(u16::to_be_bytes).concat());
        frame.extend(numbers.map(u32::to_be_bytes).concat());
        frame.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        frame.extend(payload);
        frame
    };
    let (there, back, mut at) = ([40_000, 4739], [4739, 40_000], 1);
    let mut frames =
        vec![segment(there, [0, 0], 0x02, &[]), segment(back, [0, 1], 0x12, &[]), segment(there, [1, 1], 0x10, &[])];
    for some in messages.concat().chunks(1000) {
        frames.push(segment(there, [at, 1], 0x18, some));
        at += some.len() as u32;
    }
    frames
}

/// Wireshark's dissector, and the messages as a capture.
struct Wireshark {
    tshark: Tool,
    dir: PathBuf,
    decode: &'static str,
}

impl Wireshark {
    /// `None`: it cannot be laid.
    fn of(collector: &Collector, dir: &Path) -> Option<Self> {
        let tshark = match Tool::tshark(&mut |_| {}) {
            Ok(tshark) => tshark,
            Err(error) => {
                skipped("flows::tshark", &error.to_string());
                return None;
            }
        };
        let (frames, decode) = match collector.is_tcp() {
            true => (segments(&collector.messages), "tcp.port==4739,cflow"),
            false => (collector.messages.iter().map(|message| datagram(message)).collect(), "udp.port==4739,cflow"),
        };
        let mut capture = PcapWriter::new(File::create(dir.join("flows.pcap")).unwrap()).unwrap();
        for frame in frames {
            capture.write_packet(&PcapPacket::new(Duration::ZERO, frame.len() as u32, &frame)).unwrap();
        }
        Some(Self { tshark, dir: dir.to_owned(), decode })
    }

    fn asked(&self, args: &[&str]) -> String {
        let mut command = self.tshark.command();
        command.args(["-n", "-d", self.decode, "-r"]).arg(self.dir.join("flows.pcap")).args(args);
        let output = command.env("HOME", &self.dir).env_remove("XDG_CONFIG_HOME").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Packets of all flows that it knows.
    fn packets(&self) -> u64 {
        let listed = self.asked(&["-T", "fields", "-e", "cflow.packets"]);
        let numbers = listed.split([',', '\n']).map(str::trim).filter(|text| !text.is_empty());
        numbers.map(|text| text.parse::<u64>().unwrap()).sum()
    }
}

fn wireshark_agrees(collector: &Collector, dir: &Path) {
    let Some(wireshark) = Wireshark::of(collector, dir) else { return };
    let all = wireshark.asked(&["-V"]);
    let wrong = "_ws.malformed || _ws.short || cflow.template_frame == 0";
    assert_eq!(wireshark.asked(&["-Y", wrong]), "", "{all}");
    for words in ["IfName: vm1", "IfName: vm2", "SrcAddr: 10.0.0.1", "Direction: Ingress", "Direction: Egress"] {
        assert!(all.contains(words), "{words}\n{all}");
    }
    assert!(!all.contains("no template found") && !all.contains("Unknown"), "{all}");
    assert_eq!(wireshark.packets(), collector.all_packets(), "{all}");
}

/// Sends the datagrams to a collector, as soon as it is ready. Its log is shown if it never is.
fn replay(collector: &Collector, place: SocketAddr, log: &Path, is_ready: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_ready() {
        assert!(Instant::now() < end, "{}", fs::read_to_string(log).unwrap());
        std::thread::sleep(Duration::from_millis(10));
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for datagram in &collector.messages {
        socket.send_to(datagram, place).unwrap();
        // Its buffer is small.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Replays the datagrams to nfcapd, and has nfdump print what it has collected.
fn nfdump_agrees(collector: &Collector, dir: &Path) {
    let nfdump = match Tool::nfdump(&mut |_| {}) {
        Ok(nfdump) => nfdump,
        Err(error) => return skipped("flows::nfdump", &error.to_string()),
    };
    let (folder, log) = (dir.join("nfcapd"), dir.join("nfcapd.log"));
    fs::create_dir(&folder).unwrap();
    let place = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut nfcapd = Command::new(nfdump.folder().join("nfcapd"));
    nfcapd.args(["-b", "127.0.0.1", "-p", &place.port().to_string(), "-t", "3600", "-w"]).arg(&folder);
    nfcapd.stdout(File::create(&log).unwrap()).stderr(File::options().append(true).open(&log).unwrap());
    let mut nfcapd = Process(nfcapd.stdin(Stdio::null()).spawn().unwrap());
    let bound = format!("0100007F:{:04X}", place.port());
    replay(collector, place, &log, || fs::read_to_string("/proc/net/udp").unwrap().contains(&bound));
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_child(&nfcapd.0), Signal::TERM).unwrap();
    assert!(nfcapd.0.wait().unwrap().success(), "{}", fs::read_to_string(&log).unwrap());
    let files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let printed: Vec<String> = files
        .iter()
        .map(|file| {
            let output =
                nfdump.command().arg("-r").arg(file).args(["-q", "-N", "-o", "fmt:%sa %da %pr %pkt %dir"]).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        })
        .collect();
    let printed = printed.concat();
    let packets = |from: &str| -> u64 {
        let lines = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let its = lines.filter(|words| words.len() >= 4 && words[0] == from && words[2] == "6");
        its.map(|words| words[3].parse::<u64>().unwrap()).sum()
    };
    // Both ports tell of it: where it came in, and where it left.
    let tcp = collector.records.iter().filter(|(_, record)| record.get(&PROTOCOL).is_some_and(|one| *one == [6]));
    let from_one = tcp.filter(|(_, record)| record[&SOURCE_V4] == [10, 0, 0, 1]);
    let told: u64 = from_one.map(|(_, record)| number(&record[&PACKETS])).sum();
    assert!(told > 0 && packets("10.0.0.1") == told, "{told}\n{printed}\n{}", fs::read_to_string(&log).unwrap());
}

/// Replays the datagrams to pmacct's nfacctd, and returns the flows that it prints, once there are enough. `None`: it cannot be laid.
fn pmacct_flows(collector: &Collector, dir: &Path, are_enough: impl Fn(&[Value]) -> bool) -> Option<Vec<Value>> {
    let nfacctd = match Tool::nfacctd(&mut |_| {}) {
        Ok(nfacctd) => nfacctd,
        Err(error) => {
            skipped("flows::nfacctd", &error.to_string());
            return None;
        }
    };
    let [settings, fields, printed, log] =
        ["conf", "fields", "json", "log"].map(|kind| dir.join(format!("nfacctd.{kind}")));
    let place = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // It has no names of its own for these elements.
    let elements = [("port_name", 82, "vlen semantics=str"), ("way", 61, "1 semantics=u_int")];
    let elements = [elements, [("reason", 335, "vlen semantics=str"), ("end", 136, "1 semantics=u_int")]].concat();
    let line = |(name, element, form): &(&str, u16, &str)| format!("name={name} field_type={element} len={form}\n");
    fs::write(&fields, elements.iter().map(line).collect::<String>()).unwrap();
    let text = format!(
        "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: {}\naggregate_primitives: {}\nplugins: print\n\
         aggregate: src_mac, dst_mac, vlan, etype, src_host, dst_host, src_port, dst_port, proto, tcpflags, in_iface, \
         out_iface, fwd_status, port_name, way, reason, end\n\
         print_refresh_time: 1\nprint_output: json\nprint_output_file: {}\nprint_output_file_append: true\n",
        place.port(),
        fields.display(),
        printed.display()
    );
    fs::write(&settings, text).unwrap();
    let mut command = nfacctd.command();
    command.arg("-f").arg(&settings).stdin(Stdio::null()).stdout(File::create(&log).unwrap());
    let mut running = Process(command.stderr(File::options().append(true).open(&log).unwrap()).spawn().unwrap());
    // Records that come before its two processes have begun are lost, although the socket is there.
    let is_ready = || {
        let said = fs::read_to_string(&log).unwrap();
        ["waiting for NetFlow/IPFIX data", "JSON: setting object handlers"].iter().all(|line| said.contains(line))
    };
    replay(collector, place, &log, is_ready);
    let end = Instant::now() + SOON;
    let flows = loop {
        let text = fs::read_to_string(&printed).unwrap_or_default();
        // The last line may not be whole yet.
        let flows: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if are_enough(&flows) {
            break flows;
        }
        assert!(Instant::now() < end, "{flows:?}\n{}", fs::read_to_string(&log).unwrap());
        std::thread::sleep(Duration::from_millis(100));
    };
    // So it ends its plugin, too.
    kill_process(Pid::from_child(&running.0), Signal::INT).unwrap();
    running.0.wait().unwrap();
    Some(flows)
}

/// Packets and bytes of TCP by port and direction.
type Sums = BTreeMap<(String, u64), [u64; 2]>;

fn pmacct_agrees(collector: &Collector, dir: &Path) {
    let mut told = Sums::new();
    let is_tcp = |(_, record): &&(SocketAddr, Record)| record.get(&PROTOCOL).is_some_and(|one| *one == [6]);
    for (_, record) in collector.records.iter().filter(is_tcp) {
        let name = String::from_utf8(record[&INTERFACE_NAME].clone()).unwrap();
        let [packets, bytes] = told.entry((name, number_of(record, DIRECTION))).or_default();
        *packets += number_of(record, PACKETS);
        *bytes += number_of(record, OCTETS);
    }
    assert!(told.len() == 4 && told.values().all(|[packets, _]| *packets > 0), "both ports, both ways: {told:?}");
    let sums = |flows: &[Value]| {
        let mut sums = Sums::new();
        for flow in flows.iter().filter(|flow| flow["ip_proto"] == "tcp") {
            let way = flow["way"].as_str().unwrap().parse().unwrap();
            let [packets, bytes] = sums.entry((flow["port_name"].as_str().unwrap().to_owned(), way)).or_default();
            *packets += flow["packets"].as_u64().unwrap();
            *bytes += flow["bytes"].as_u64().unwrap();
        }
        sums
    };
    let Some(flows) = pmacct_flows(collector, dir, |flows| sums(flows) == told) else { return };
    let is_from_one = |flow: &&Value| flow["ip_proto"] == "tcp" && flow["ip_src"] == "10.0.0.1";
    let flow = flows.iter().find(is_from_one).unwrap();
    for key in ["port_src", "port_dst", "iface_in", "iface_out"] {
        assert!(flow[key].as_u64() > Some(0), "{key}: {flow}");
    }
    assert_eq!((&flow["mac_src"], &flow["etype"]), (&json!(format!("{MAC}1")), &json!("800")), "{flow}");
}

/// It knows drops by their status and the reason's name, and the VLAN of frames without a tag. Flows without IP it leaves out.
fn pmacct_knows_the_drop(collector: &Collector, dir: &Path, reason: &str, vlan: u16) {
    let is_drop = |flow: &&Value| flow["reason"] == reason;
    let has_drop = |flows: &[Value]| flows.iter().any(|flow| is_drop(&flow));
    let Some(flows) = pmacct_flows(collector, dir, has_drop) else { return };
    let flow = flows.iter().find(is_drop).unwrap();
    let found = (&flow["port_name"], &flow["way"], &flow["fwd_status"], &flow["vlan_in"]);
    assert_eq!(found, (&json!("vm1"), &json!("0"), &json!("128"), &json!(vlan)), "{flow}");
}
