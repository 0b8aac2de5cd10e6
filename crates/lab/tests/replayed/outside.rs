//! What lies beyond the guest's network.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex},
};

use smoltcp::{
    iface::{Config, Interface, PollResult, SocketHandle, SocketSet},
    phy::{self, DeviceCapabilities, Medium},
    socket::tcp,
    time::Instant,
    wire::{EthernetAddress, IpCidr, Ipv4Address},
};

/// The network outside, in the guest's virtual time, in nanoseconds.
pub trait Outside {
    /// The guest has sent a frame.
    fn sent(&mut self, now: u64, frame: &[u8]);

    /// The time of its next frame, or of anything that it does by itself.
    fn next(&mut self) -> Option<u64>;

    /// That time has come: its frames for the guest.
    fn take(&mut self, now: u64) -> Vec<Vec<u8>>;
}

/// Frames with their times.
pub type Frames = Vec<(u64, Vec<u8>)>;
/// The same, for the guest.
pub type Queue = VecDeque<(u64, Vec<u8>)>;

/// The frames that another boot has recorded, at their times. Nobody answers.
#[derive(Debug, Default)]
pub struct Recorded(pub Queue);

impl Outside for Recorded {
    fn sent(&mut self, _now: u64, _frame: &[u8]) {}

    fn next(&mut self) -> Option<u64> {
        self.0.front().map(|(time, _)| *time)
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while self.0.front().is_some_and(|(time, _)| *time <= now) {
            frames.extend(self.0.pop_front().map(|(_, frame)| frame));
        }
        frames
    }
}

/// Answers ARP requests for 10.0.N.1 and ICMP echo requests to it.
#[derive(Debug)]
pub struct Responder {
    pub delay_ns: u64,
    pub waiting: BTreeMap<u64, Vec<Vec<u8>>>,
}

pub const MAC: [u8; 6] = [0x52, 0x54, 0, 0xee, 0, 1];

impl Responder {
    pub fn new(delay_ns: u64) -> Responder {
        Responder { delay_ns, waiting: BTreeMap::new() }
    }

    fn answer(frame: &[u8]) -> Option<Vec<u8>> {
        let mut answer = frame.to_vec();
        answer.get_mut(..6)?.copy_from_slice(frame.get(6..12)?);
        answer[6..12].copy_from_slice(&MAC);
        match frame.get(12..14)? {
            // RFC 826: a request for an address that ends in 1.
            [8, 6] if frame.get(20..22)? == [0, 1] && frame.get(41)? == &1 => {
                answer[21] = 2;
                answer[32..42].copy_from_slice(&frame[22..32]);
                answer[22..28].copy_from_slice(&MAC);
                answer[28..32].copy_from_slice(&frame[38..42]);
                Some(answer)
            }
            // RFC 792: an echo request. Its checksum changes with its type, 8 to 0.
            [8, 0] if frame.get(23)? == &1 && frame.get(34)? == &8 => {
                answer[26..30].copy_from_slice(&frame[30..34]);
                answer[30..34].copy_from_slice(&frame[26..30]);
                let (sum, carry) = u16::from_be_bytes([frame[36], frame[37]]).overflowing_add(0x0800);
                answer[34] = 0;
                answer[36..38].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
                Some(answer)
            }
            _ => None,
        }
    }
}

impl Outside for Responder {
    fn sent(&mut self, now: u64, frame: &[u8]) {
        if let Some(answer) = Responder::answer(frame) {
            self.waiting.entry(now + self.delay_ns).or_default().push(answer);
        }
    }

    fn next(&mut self) -> Option<u64> {
        self.waiting.keys().next().copied()
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let later = self.waiting.split_off(&(now + 1));
        std::mem::replace(&mut self.waiting, later).into_values().flatten().collect()
    }
}

/// TCP over IPv4 at 10.0.0.1: it sends back what comes to port 7, and asks the guest's web server for a file now and then. Frames take some
/// time, which nobody can know beforehand. It answers echo requests too.
pub struct Peer {
    interface: Interface,
    sockets: SocketSet<'static>,
    echo: SocketHandle,
    client: SocketHandle,
    link: Link,
    pings: Responder,
    chance: Chance,
    on_the_way: Queue,
    /// Times of the requests that are still to be made.
    requests: VecDeque<u64>,
    /// The answers, as a test sees them.
    pub answers: Arc<Mutex<Vec<Vec<u8>>>>,
    answer: Option<Vec<u8>>,
    asked: bool,
    now: u64,
}

/// Numbers that differ in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[derive(Default)]
struct Link {
    received: VecDeque<Vec<u8>>,
    sent: VecDeque<Vec<u8>>,
}

struct Received(Vec<u8>);

impl phy::RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct Sending<'a>(&'a mut VecDeque<Vec<u8>>);

impl phy::TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}

impl phy::Device for Link {
    type RxToken<'a> = Received;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Received, Sending<'_>)> {
        Some((Received(self.received.pop_front()?), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = 1514;
        capabilities
    }
}

const ECHO: u16 = 7;
const WEB: u16 = 80;
/// The time that a frame takes, and how much longer it may take.
const WAY_NS: u64 = 30_000;
const WAY_MORE_NS: u64 = 200_000;

impl Peer {
    /// It asks for the file at these times.
    pub fn new(requests: &[u64]) -> Peer {
        let chance = Chance(RandomState::new().build_hasher().finish());
        let mut link = Link::default();
        let mut config = Config::new(EthernetAddress(MAC).into());
        config.random_seed = chance.0;
        let mut interface = Interface::new(config, &mut link, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(Ipv4Address::new(10, 0, 0, 1).into(), 24)).unwrap();
        });
        let socket =
            || tcp::Socket::new(tcp::SocketBuffer::new(vec![0; 1 << 16]), tcp::SocketBuffer::new(vec![0; 1 << 16]));
        let mut sockets = SocketSet::new(Vec::new());
        let (echo, client) = (sockets.add(socket()), sockets.add(socket()));
        Peer {
            interface,
            sockets,
            echo,
            client,
            link,
            pings: Responder::new(WAY_NS),
            chance,
            on_the_way: VecDeque::new(),
            requests: requests.to_vec().into(),
            answers: Arc::default(),
            answer: None,
            asked: false,
            now: 0,
        }
    }

    fn instant(&self) -> Instant {
        Instant::from_micros((self.now / 1000).cast_signed())
    }

    fn step(&mut self, now: u64) {
        self.now = self.now.max(now);
        loop {
            let polled = self.interface.poll(self.instant(), &mut self.link, &mut self.sockets);
            let moved = self.serve() | self.ask();
            if polled == PollResult::None && !moved {
                break;
            }
        }
        for frame in std::mem::take(&mut self.link.sent) {
            let last = self.on_the_way.back().map_or(0, |(time, _)| *time);
            let at = self.now + WAY_NS + self.chance.below(WAY_MORE_NS);
            self.on_the_way.push_back((at.max(last), frame));
        }
    }

    /// Sends back what has come. True if there was anything to do.
    fn serve(&mut self) -> bool {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.echo);
        if !socket.is_open() {
            return socket.listen(ECHO).is_ok();
        }
        let mut moved = false;
        while socket.can_recv() && socket.can_send() {
            let room = socket.send_capacity() - socket.send_queue();
            let taken = socket.recv(|bytes| {
                let count = bytes.len().min(room);
                (count, bytes[..count].to_vec())
            });
            let Ok(bytes) = taken else { break };
            if bytes.is_empty() {
                break;
            }
            moved = true;
            let sent = socket.send_slice(&bytes);
            assert_eq!(sent, Ok(bytes.len()));
        }
        if socket.state() == tcp::State::CloseWait && !socket.can_recv() {
            socket.close();
            moved = true;
        }
        moved
    }

    /// Asks the guest's web server. True if there was anything to do.
    fn ask(&mut self) -> bool {
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(self.client);
        let Some(answer) = &mut self.answer else {
            if socket.is_open() || self.requests.front().is_none_or(|at| *at > self.now) {
                return false;
            }
            let port = 50_000 + self.requests.len() as u16;
            let begun = socket.connect(self.interface.context(), (Ipv4Address::new(10, 0, 0, 2), WEB), port);
            begun.unwrap();
            self.requests.pop_front();
            self.answer = Some(Vec::new());
            return true;
        };
        let mut moved = false;
        if socket.can_send() && !self.asked {
            moved = socket.send_slice(b"GET /file HTTP/1.0\r\n\r\n").is_ok();
            self.asked = moved;
        }
        while socket.can_recv() {
            let taken = socket.recv(|bytes| (bytes.len(), bytes.to_vec()));
            let Ok(bytes) = taken else { break };
            answer.extend(bytes);
            moved = true;
        }
        if !socket.may_recv() && socket.state() != tcp::State::SynSent && !socket.can_recv() {
            self.answers.lock().unwrap().push(std::mem::take(answer));
            (self.answer, self.asked) = (None, false);
            socket.close();
            moved = true;
        }
        moved
    }
}

impl Outside for Peer {
    fn sent(&mut self, now: u64, frame: &[u8]) {
        self.pings.sent(now, frame);
        // ARP is smoltcp's.
        if frame.get(12..14) == Some(&[8, 6]) {
            self.pings.waiting.clear();
        }
        self.link.received.push_back(frame.to_vec());
        self.step(now);
    }

    fn next(&mut self) -> Option<u64> {
        let timer = self.interface.poll_at(self.instant(), &self.sockets);
        let timer = timer.map(|at| (at.total_micros().max(0).cast_unsigned() * 1000).max(self.now + 1000));
        let request = self.requests.front().filter(|_| self.answer.is_none()).map(|at| (*at).max(self.now + 1000));
        let frame = self.on_the_way.front().map(|(at, _)| *at);
        [timer, frame, request, self.pings.next()].into_iter().flatten().min()
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        self.step(now);
        let mut frames = self.pings.take(now);
        while self.on_the_way.front().is_some_and(|(at, _)| *at <= now) {
            frames.extend(self.on_the_way.pop_front().map(|(_, frame)| frame));
        }
        frames
    }
}
