//! The outside of a replica in tests: a TCP client by smoltcp, of another seed, on a network in virtual time.

use nicety_frame::Mac;
use nicety_lab::replay::replica::Frames;
use nicety_lab::replay::{Application, GuestTime, Settings};
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr, Ipv4Address};

pub const GUEST: [u8; 4] = [10, 0, 0, 2];
pub const CLIENT: [u8; 4] = [10, 0, 0, 1];
pub const PORT: u16 = 7;
pub const GUEST_MAC: Mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A replica's settings.
pub fn settings(adapter: &str) -> Settings {
    Settings {
        adapter: adapter.to_owned(),
        mac: GUEST_MAC,
        address: (GUEST, 24),
        application: Application::Echo,
        port: PORT,
        seed: 0x5eed,
    }
}

/// The adapters that have a driver.
pub fn adapters() -> Vec<&'static str> {
    let driven = nicety_adapters::REGISTRY.iter().filter(|entry| nicety_drivers::find(entry.about.pci).is_some());
    driven.map(|entry| entry.about.name).collect()
}

/// Seeded randomness (SplitMix64; Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end.max(1)
    }
}

/// A client's work: so many bytes to an echo server, at most `ahead` of them unanswered. It compares what comes back.
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub bytes: usize,
    pub ahead: usize,
}

/// The client.
pub struct Client {
    link: Frames,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    task: Task,
    sent: usize,
    answered: usize,
    closed: bool,
    wake: Option<GuestTime>,
    /// The reason why the connection did not keep its promise.
    pub broken: Option<String>,
}

/// The byte at this place of an echo.
fn pattern(at: usize) -> u8 {
    (at.wrapping_mul(0x9e37_79b9) >> 16) as u8
}

impl Client {
    pub fn new(task: Task, seed: u64) -> Self {
        let mut link = Frames::default();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(CLIENT_MAC)));
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut link, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(Ipv4Address::from(CLIENT).into(), 24)).unwrap();
        });
        let mut sockets = SocketSet::new(Vec::new());
        let buffer = || SocketBuffer::new(vec![0; 64 << 10]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let local = 49_152 + (seed % 1000) as u16;
        socket.connect(interface.context(), (IpAddress::from(Ipv4Address::from(GUEST)), PORT), local).unwrap();
        let handle = sockets.add(socket);
        Self {
            link,
            interface,
            sockets,
            handle,
            task,
            sent: 0,
            answered: 0,
            closed: false,
            wake: Some(GuestTime(0)),
            broken: None,
        }
    }

    /// Whether all was answered and the connection closed in order.
    pub fn done(&self) -> bool {
        self.closed && self.broken.is_none()
    }

    /// Bytes that came back.
    pub fn answered(&self) -> usize {
        self.answered
    }

    pub fn wake(&self) -> Option<GuestTime> {
        self.wake
    }

    pub fn frame(&mut self, frame: Vec<u8>) {
        self.link.received.push_back(frame);
    }

    /// Runs the client at this time, and takes the frames that it sends.
    pub fn run(&mut self, now: GuestTime) -> Vec<Vec<u8>> {
        let instant = Instant::from_micros(now.0 as i64);
        loop {
            let before = self.link.received.len();
            self.interface.poll(instant, &mut self.link, &mut self.sockets);
            let moved = self.step();
            if !moved && before == 0 {
                break;
            }
        }
        let next = self.interface.poll_at(instant, &self.sockets);
        self.wake = next.map(|next| GuestTime((next.total_micros() as u64).max(now.0 + 1)));
        std::mem::take(&mut self.link.sent).into()
    }

    fn step(&mut self) -> bool {
        let Task { bytes: total, ahead } = self.task;
        let socket = self.sockets.get_mut::<Socket<'_>>(self.handle);
        if socket.state() == State::Closed && self.answered < total {
            self.broken.get_or_insert(format!("the connection ended after {} answers", self.answered));
            return false;
        }
        let mut moved = false;
        let mut got = Vec::new();
        while socket.can_recv() {
            socket.recv(|bytes| (bytes.len(), got.extend_from_slice(bytes))).unwrap();
            moved = true;
        }
        for byte in got {
            if byte != pattern(self.answered) {
                self.broken.get_or_insert(format!("byte {} came back as {byte}", self.answered));
            }
            self.answered += 1;
        }
        while socket.can_send() && self.sent < total.min(self.answered + ahead) {
            let end = total.min(self.answered + ahead).min(self.sent + 4096);
            let piece: Vec<u8> = (self.sent..end).map(pattern).collect();
            self.sent += socket.send_slice(&piece).unwrap();
            moved = true;
        }
        if self.answered >= total && socket.may_send() {
            socket.close();
            moved = true;
        }
        if self.answered >= total && matches!(socket.state(), State::TimeWait | State::Closed) {
            self.closed = true;
        }
        moved
    }
}
