//! I/O control under TCP, by the test's own clock: three guests send at once by a full link, and each has a TCP of its own (smoltcp's).

mod ringed;
mod silent;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use nicety_adapter::{Batch, Budget, Context, Counters, Delivery, Frames, PortId, Progress, Rate, Time, Uplink};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use ringed::{Ringed, Traffic};
use silent::Silent;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

const MS: u64 = 1_000_000;
/// A turn of the stations and the plane.
const STEP_NS: u64 = 100_000;
/// Bytes that the link takes in a step: 200 Mbit/s.
const LINK_BYTES: i64 = 2_500;
const BUFFER: u32 = 256 << 10;
const MTU: usize = 1514;
/// A window of TCP in bytes.
const WINDOW: usize = 128 << 10;
const SERVICE: u16 = 9;
const GUESTS: usize = 3;

/// Frames on their way.
type Queue = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// The two ways of a station's cable.
#[derive(Clone, Default)]
struct Cable {
    to_station: Queue,
    from_station: Queue,
}

struct Reading(Vec<u8>);

impl RxToken for Reading {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(&self.0)
    }
}

struct Writing(Queue);

impl TxToken for Writing {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        self.0.lock().unwrap().push_back(frame);
        result
    }
}

impl Device for Cable {
    type RxToken<'a> = Reading;
    type TxToken<'a> = Writing;

    fn receive(&mut self, _: Instant) -> Option<(Reading, Writing)> {
        let frame = self.to_station.lock().unwrap().pop_front()?;
        Some((Reading(frame), Writing(Arc::clone(&self.from_station))))
    }

    fn transmit(&mut self, _: Instant) -> Option<Writing> {
        Some(Writing(Arc::clone(&self.from_station)))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        (capabilities.medium, capabilities.max_transmission_unit) = (Medium::Ethernet, MTU);
        capabilities
    }
}

/// The host behind a cable.
struct Station {
    cable: Cable,
    iface: Interface,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
}

impl Station {
    fn new(id: u8, sockets: usize) -> Self {
        let mut cable = Cable::default();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0, id])));
        config.random_seed = id.into();
        let mut iface = Interface::new(config, &mut cable, Instant::ZERO);
        iface.update_ip_addrs(|list| list.push(IpCidr::new(address(id).into(), 24)).unwrap());
        let mut set = SocketSet::new(Vec::new());
        let socket = |_| {
            let buffer = || SocketBuffer::new(vec![0; WINDOW]);
            set.add(Socket::new(buffer(), buffer()))
        };
        let handles = (0..sockets).map(socket).collect();
        Self { cable, iface, sockets: set, handles }
    }

    fn socket(&mut self, number: usize) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handles[number])
    }

    fn poll(&mut self, now: Time) {
        let now = Instant::from_micros((now.0 / 1000) as i64);
        self.iface.poll(now, &mut self.cable, &mut self.sockets);
    }
}

fn address(id: u8) -> Ipv4Address {
    Ipv4Address::new(10, 0, 0, id)
}

/// A guest's adapter: frames of its station, laid into its memory one behind the other.
struct Guest {
    cable: Cable,
    map: Arc<Map>,
    next: u64,
}

/// Bytes of a guest's memory, and of a place for a frame in it.
const MEMORY: u64 = 1 << 20;
const PLACE: u64 = 2048;

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        let mut waiting = self.cable.from_station.lock().unwrap();
        while budget.allows(batch)
            && let Some(frame) = waiting.pop_front()
        {
            self.next = (self.next + PLACE) % MEMORY;
            self.map.write(self.next, &frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(self.next, frame.len() as u32).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: !waiting.is_empty(), armed: true }
    }

    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        let mut queue = self.cable.to_station.lock().unwrap();
        for (_, _, packet) in frames.iter() {
            let mut frame = vec![0; packet.len() as usize];
            frames.batch.copy(packet, &mut frame);
            queue.push_back(frame);
        }
        Delivery::default()
    }
}

/// The link, with the receivers' station at its end.
struct Wire {
    cable: Cable,
    map: Arc<Map>,
    next: u64,
    until: Time,
    left: i64,
    is_full: bool,
}

impl Uplink for Wire {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, _: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let mut waiting = self.cable.from_station.lock().unwrap();
        while budget.allows(batch)
            && let Some(frame) = waiting.pop_front()
        {
            self.next = (self.next + PLACE) % MEMORY;
            self.map.write(self.next, &frame).unwrap();
            let mut draft = batch.draft(0).unwrap();
            draft.push(self.next, frame.len() as u32).unwrap();
            draft.finish_plain(0);
        }
        Progress { more: !waiting.is_empty(), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        if now >= self.until {
            (self.until, self.left) = (now.after_ns(STEP_NS), (self.left + LINK_BYTES).min(LINK_BYTES));
        }
        self.is_full = false;
        let mut delivery = Delivery::default();
        for (index, pick, packet) in frames.iter() {
            if delivery.refused() != 0 || self.left <= 0 {
                delivery.refuse(index, 0, pick.from.into());
                self.is_full = true;
                continue;
            }
            self.left -= i64::from(packet.len());
            counters.received(0, 1, packet.len().into());
            let mut frame = vec![0; packet.len() as usize];
            frames.batch.copy(packet, &mut frame);
            self.cable.to_station.lock().unwrap().push_back(frame);
        }
        delivery
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn wake(&self) -> Option<Time> {
        self.is_full.then_some(self.until)
    }
}

/// Port 0 is the uplink, ports 1 to 3 are the guests'.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    guests: Vec<Station>,
    outside: Station,
    turn: Turn,
    now: Time,
}

fn memory() -> Arc<Map> {
    Arc::new(Map::private(MEMORY as usize).unwrap())
}

impl World {
    fn new() -> Self {
        let mut outside = Station::new(100, GUESTS);
        for number in 0..GUESTS {
            outside.socket(number).listen(SERVICE).unwrap();
        }
        let plane = Plane::new(Limits::default());
        let (cable, map) = (outside.cable.clone(), memory());
        let wire = Wire { cable, map, next: 0, until: Time::ZERO, left: 0, is_full: false };
        let (mut ports, mut guests) = (Vec::new(), Vec::new());
        let mut join = |end: End| {
            let id = PortId(ports.len() as u16);
            let port = Arc::new(Port::new(id, end, Box::new(Silent), BUFFER).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            ports.push(Arc::clone(&port));
            port
        };
        join(End::link(Box::new(wire)));
        for id in 1..=GUESTS as u8 {
            let mut station = Station::new(id, 1);
            let map = memory();
            let guest = Guest { cable: station.cable.clone(), map: Arc::clone(&map), next: 0 };
            let port = join(End::guest(Box::new(Ringed(guest))));
            port.attach();
            port.set_memory(map, Time::ZERO);
            let Station { iface, sockets, handles, .. } = &mut station;
            let socket = sockets.get_mut::<Socket<'_>>(handles[0]);
            socket.connect(iface.context(), (address(100), SERVICE), 50_000 + u16::from(id)).unwrap();
            guests.push(station);
        }
        Self { plane, ports, guests, outside, turn: Turn::new(), now: Time(1) }
    }

    /// Runs for so many milliseconds. Returns the bytes that came from each guest.
    fn run(&mut self, ms: u64) -> [u64; GUESTS] {
        let mut received = [0; GUESTS];
        for _ in 0..ms * MS / STEP_NS {
            self.now = self.now.after_ns(STEP_NS);
            for guest in &mut self.guests {
                while guest.socket(0).can_send() && guest.socket(0).send_slice(&[0x5a; 4096]).unwrap() > 0 {}
                guest.poll(self.now);
            }
            for (port, guest) in self.ports[1..].iter().zip(&self.guests) {
                if !guest.cable.from_station.lock().unwrap().is_empty() {
                    port.with_rings(self.now, |rings, cx| rings.kick(0, cx)).unwrap();
                }
            }
            if !self.outside.cable.from_station.lock().unwrap().is_empty() {
                self.ports[0].ready();
            }
            let mut is_busy = true;
            while std::mem::take(&mut is_busy) {
                for port in self.ports.iter().filter(|port| port.busy(self.now)) {
                    while self.plane.turn(port, &mut self.turn, self.now).unfinished {}
                    is_busy = true;
                }
            }
            self.outside.poll(self.now);
            for number in 0..GUESTS {
                let socket = self.outside.socket(number);
                let Some(from) = socket.remote_endpoint() else { continue };
                while socket.can_recv() {
                    let len = socket.recv(|bytes| (bytes.len(), bytes.len())).unwrap();
                    received[usize::from(from.port - 50_001)] += len as u64;
                }
            }
        }
        received
    }
}

fn class(name: &str, port: u16, shares: u16, reservation: u64) -> Class {
    let terms = Terms { shares, reservation: Rate::new(reservation), ..Terms::default() };
    let matches = vec![Match { ports: Some(vec![port]), ..Match::default() }];
    Class {
        name: name.to_owned(),
        terms: ClassTerms { class: terms, ..ClassTerms::default() },
        matches,
        mark_pcp: None,
        mark_dscp: None,
    }
}

/// TCP itself gives each guest a third. Two have a reservation and few shares, the third has many.
#[test]
fn guests_beside_each_other_keep_their_reservations_under_tcp() {
    const RESERVED: u64 = 70_000_000;
    let mut world = World::new();
    let rest = Terms { shares: 100, ..Terms::default() };
    let rest = ClassTerms { class: rest, ..ClassTerms::default() };
    let rest = Class { name: "vm".to_owned(), terms: rest, ..Class::default() };
    let classes = [rest, class("management", 1, 1, RESERVED), class("storage", 2, 1, RESERVED)];
    // Without classes first.
    world.run(1_000);
    let thirds = world.run(1_000);
    world.ports[0].set_io_control(&classes, world.now);
    world.run(500);
    let windows: Vec<[u64; GUESTS]> = (0..30).map(|_| world.run(100)).collect();
    // TCP's headers are 54 of 1514 bytes.
    let payload = |mbit: f64, ms: f64| mbit * 1e6 / 8.0 * ms / 1e3 * 1460.0 / 1514.0;
    println!("a third each: {thirds:?}; with reservations, 100 ms each: {windows:?}");
    for third in thirds {
        assert!((third as f64 / payload(200.0 / 3.0, 1_000.0) - 1.0).abs() < 0.05, "{thirds:?}");
    }
    for window in &windows {
        let [management, storage, vm] = window.map(|bytes| bytes as f64);
        // A window may end before a frame of the reservation.
        let least = 0.98 * payload(70.0, 100.0) - 1460.0;
        assert!(management >= least && storage >= least, "{window:?}");
        assert!(management + storage + vm >= 0.98 * payload(200.0, 100.0), "the link is full: {window:?}");
        assert!(vm >= 0.9 * payload(60.0, 100.0), "reservations are kept, and no more: {window:?}");
    }
    let counters = world.ports[0].state().counters;
    assert_eq!(counters.receive_drops.iter().sum::<u64>(), 0, "its senders are held");
}
