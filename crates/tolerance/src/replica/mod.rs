//! An embedded guest as one deterministic value: an adapter of the registry, its driver, TCP by smoltcp, an application.
//!
//! ```text
//! Call::Frame ─► wire ─► switch ─► adapter ◄─ DMA, registers, interrupts ─► driver ─► smoltcp ─► application
//! frames out  ◄─ wire ◄─ switch ◄─ adapter
//! ```
//!
//! An image (`image.rs`) is what another host goes on from.
//!
//! Register accesses, DMA and interrupts happen inside the value: they follow from the calls, and nobody logs them.

mod application;
mod bus;
mod device;
mod flow;
mod image;

use std::hash::Hasher;
use std::sync::Arc;

use nicety_adapter::{Offload, PortId};
use nicety_adapters::CreateError;
use nicety_drivers::{Arena, DriverError};
use nicety_frame::{Mac, arp};
use nicety_memory::{Map, MapError};
use nicety_plane::wire::{Far, Wire};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use smoltcp::iface::{Interface, PollResult, SocketSet};
use smoltcp::time::Instant;

use crate::call::{Call, GuestTime, Machine};
use crate::fnv::Fnv;
pub use application::Application;
use application::Server;
use bus::{Memo, PortBus};
use device::Adapter;
pub use device::{Frames, Received, Sending};
use flow::Watch;
use image::{Image, Place, introduce};

/// Bytes of guest memory, and where the driver's part begins.
const MEMORY: usize = 16 << 20;
const ARENA: u64 = 0x1000;
/// Bytes of a port's receive buffer.
const BUFFER: u32 = 1 << 20;
/// Capacity of the switch's address table. The switch has two ports.
const ADDRESSES: usize = 1 << 10;
/// Most rounds of a call. More mean an endless loop.
const ROUNDS: usize = 10_000;

/// The settings of a replica. Two replicas with equal settings are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The adapter's name in the registry.
    pub adapter: String,
    /// The guest's address.
    pub mac: Mac,
    /// Its IPv4 address, and the length of the network's prefix in bits (0 to 32).
    pub address: ([u8; 4], u8),
    /// Its application.
    pub application: Application,
    /// The TCP port on which the application listens.
    pub port: u16,
    /// The seed of smoltcp's random numbers, such as initial sequence numbers.
    pub seed: u64,
}

/// The reason why there is no replica.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The registry has no adapter of this name, or the adapter has no driver.
    #[error("there is no adapter \"{0}\" with a driver")]
    Unknown(String),
    /// No adapter with these settings.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// The driver does not open.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The image is none, or of another version.
    #[error("the image of the guest: {0}")]
    Image(String),
    /// The prefix is longer than an address.
    #[error("a prefix has at most 32 bits, not {0}")]
    Prefix(u8),
}

/// See the module's page.
pub struct Replica {
    settings: Settings,
    hardware: Hardware,
    interface: Interface,
    sockets: SocketSet<'static>,
    server: Server,
    now: GuestTime,
    /// The time of TCP's next timer.
    tcp_wake: Option<GuestTime>,
    /// A digest of all calls and of the frames sent.
    frames: Fnv,
    failure: Option<String>,
}

/// The adapter with its driver, and the switch that joins it to the network.
struct Hardware {
    plane: Plane,
    port: Arc<Port>,
    uplink: Arc<Port>,
    turn: Turn,
    memo: Memo,
    memory: Arc<Map>,
    far: Far,
    adapter: Adapter,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("now", &self.now).finish_non_exhaustive()
    }
}

impl Hardware {
    /// A new adapter with its driver open.
    fn new(settings: &Settings, now: GuestTime, watch: Watch) -> Result<Self, ReplicaError> {
        let unknown = || ReplicaError::Unknown(settings.adapter.clone());
        let entry = nicety_adapters::find(&settings.adapter).ok_or_else(unknown)?;
        let driver = nicety_drivers::find(entry.about.pci).ok_or_else(unknown)?;
        let memory = Arc::new(Map::private(MEMORY)?);
        let plane = Plane::new(Limits { addresses: ADDRESSES, ..Limits::default() });
        let (wire, far) = Wire::new(false)?;
        let memo = Memo::default();
        let end = End::guest((entry.create)(&nicety_adapters::Settings::new(settings.mac))?);
        let port = Arc::new(Port::new(PortId(1), end, Box::new(memo.clone()), BUFFER)?);
        let end = End::link(Box::new(wire));
        let uplink = Arc::new(Port::new(PortId(0), end, Box::new(Memo::default()), BUFFER)?);
        // A new switch has room for two ports.
        let _joined = (plane.join(Arc::clone(&uplink)), plane.join(Arc::clone(&port)));
        port.attach();
        port.set_memory(Arc::clone(&memory), now.time());
        let mut bus = PortBus::new(Arc::clone(&port), memo.clone(), Arc::clone(&memory));
        bus.now = now.time();
        let driver = (driver.make)(Arena::new(ARENA, MEMORY as u64 - ARENA));
        let adapter = Adapter::open(bus, driver, watch)?;
        Ok(Self { plane, port, uplink, turn: Turn::new(), memo, memory, far, adapter })
    }

    fn place(&self, settings: &Settings) -> Place {
        let (address, prefix) = settings.address;
        Place { mac: self.adapter.mac().0, address, prefix }
    }

    /// Runs turns until no port has work at this time. False if that never comes.
    fn settle(&mut self, now: GuestTime) -> bool {
        self.uplink.ready();
        for _ in 0..ROUNDS {
            self.memo.requests().scheduled = false;
            let mut more = false;
            for port in [&self.port, &self.uplink] {
                loop {
                    let outcome = self.plane.turn(port, &mut self.turn, now.time());
                    if !outcome.unfinished {
                        more |= outcome.more;
                        break;
                    }
                }
            }
            if !more && !self.memo.requests().scheduled {
                return true;
            }
        }
        false
    }
}

impl Replica {
    /// A guest at time 0, with its driver open and its application listening.
    ///
    /// # Errors
    /// [`ReplicaError`]: the settings are wrong, or there is no memory.
    pub fn new(settings: &Settings) -> Result<Self, ReplicaError> {
        let (address, prefix) = settings.address;
        if prefix > 32 {
            return Err(ReplicaError::Prefix(prefix));
        }
        let now = GuestTime::default();
        let mut hardware = Hardware::new(settings, now, Watch::new(address, [], &[]))?;
        let place = hardware.place(settings);
        let interface = place.interface(&mut hardware.adapter, settings.seed, Instant::ZERO);
        let mut sockets = SocketSet::new(Vec::new());
        let mut server = Server::new(settings.application, settings.port, &mut sockets);
        server.step(&mut sockets);
        let (frames, failure, settings) = (Fnv::default(), None, settings.clone());
        Ok(Self { settings, hardware, interface, sockets, server, now, tcp_wake: None, frames, failure })
    }

    /// An image of this guest. Nothing may wait in its adapter.
    fn image(&mut self) -> Image {
        let watch = &self.hardware.adapter.watch;
        let (values, changes) = self.server.values();
        let values = values.clone();
        Image {
            history: self.frames.finish(),
            neighbors: watch.neighbors().collect(),
            sending: self.hardware.adapter.unsent(),
            connections: self.server.images(&mut self.sockets, watch),
            values,
            changes,
        }
    }

    /// The guest of an image at this time.
    fn of(settings: &Settings, image: Image, now: GuestTime) -> Result<Self, ReplicaError> {
        let Image { history, neighbors, mut sending, connections, values, changes } = image;
        let instant = Instant::from_micros(now.0.cast_signed());
        let flows = connections.iter().filter_map(|connection| Some(connection.open.as_ref()?.flow.clone()));
        let watch = Watch::new(settings.address.0, flows, &neighbors);
        let mut hardware = Hardware::new(settings, now, watch)?;
        let place = hardware.place(settings);
        let mut sockets = SocketSet::new(Vec::new());
        let mut all = Vec::new();
        for connection in connections {
            let socket = connection.open.as_ref().map(|open| open.socket(&place, instant)).transpose();
            let (socket, frames) = socket.map_err(ReplicaError::Image)?.unzip();
            sending.extend(frames.unwrap_or_default());
            all.push((connection, socket));
        }
        let mut server = Server::restored(settings.application, settings.port, all, (values, changes), &mut sockets);
        server.step(&mut sockets);
        // What is random from here on follows from all that was before.
        let mut interface = place.interface(&mut hardware.adapter, history, instant);
        introduce(&mut interface, &neighbors, settings.address.0, instant);
        hardware.adapter.queue(sending);
        let mut frames = Fnv::default();
        frames.write_u64(history);
        let (settings, failure) = (settings.clone(), None);
        Ok(Self { settings, hardware, interface, sockets, server, now, tcp_wake: None, frames, failure })
    }

    /// Goes on from an image, in place of what it was.
    fn become_of(&mut self, image: Image, now: GuestTime, out: &mut Vec<Vec<u8>>) -> Result<(), ReplicaError> {
        *self = Self::of(&self.settings, image, now)?;
        if let Err(error) = self.run() {
            self.failure = Some(error.to_string());
        }
        self.take_frames(out);
        Ok(())
    }

    fn take_frames(&mut self, out: &mut Vec<Vec<u8>>) {
        let first = out.len();
        out.extend(self.hardware.far.ends().incoming.drain(..).map(|(frame, _)| frame));
        for frame in out.iter().skip(first) {
            self.frames.write(frame);
        }
    }

    /// Begins a call.
    fn begin(&mut self, at: GuestTime) {
        self.now = self.now.max(at);
        self.frames.write_u64(self.now.0);
        self.hardware.adapter.bus.now = self.now.time();
        let mut requests = self.hardware.memo.requests();
        requests.wake = requests.wake.filter(|wake| *wake > self.now.time());
    }

    fn run(&mut self) -> Result<(), DriverError> {
        let instant = Instant::from_micros(self.now.0.cast_signed());
        for _ in 0..ROUNDS {
            if !self.hardware.settle(self.now) {
                return Err(DriverError::Device("never rests"));
            }
            let adapter = &mut self.hardware.adapter;
            let mut moved = adapter.attend()?;
            moved |= adapter.has_received();
            moved |= self.interface.poll(instant, adapter, &mut self.sockets) == PollResult::SocketStateChanged;
            moved |= self.server.step(&mut self.sockets);
            moved |= adapter.send()?;
            if !moved {
                let (server, sockets) = (&self.server, &self.sockets);
                adapter.watch.forget(|end| server.has(sockets, end));
                let next = self.interface.poll_at(instant, &self.sockets);
                self.tcp_wake = next.map(|next| GuestTime(next.total_micros().max(0).cast_unsigned()));
                return Ok(());
            }
        }
        Err(DriverError::Device("never lets its guest rest"))
    }

    /// A digest of its memory, 16 MiB: dear.
    pub fn memory_digest(&self) -> u64 {
        let mut digest = Fnv::default();
        let mut page = vec![0; 1 << 16];
        for at in (0..MEMORY as u64).step_by(page.len()) {
            if self.hardware.memory.read(at, &mut page).is_ok() {
                digest.write(&page);
            }
        }
        digest.finish()
    }
}

impl Machine for Replica {
    fn call(&mut self, at: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>) {
        if self.failure.is_some() {
            return;
        }
        self.begin(at);
        if let Call::Frame(frame) = call {
            self.frames.write(frame);
            self.hardware.far.ends().outgoing.push_back((frame.clone(), Offload::default()));
        }
        if let Err(error) = self.run() {
            self.failure = Some(error.to_string());
        }
        self.take_frames(out);
    }

    fn renew(&mut self, at: GuestTime, out: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        if self.failure.is_some() {
            return None;
        }
        self.begin(at);
        self.hardware.adapter.poll_soon();
        if let Err(error) = self.run() {
            self.failure = Some(error.to_string());
            return None;
        }
        self.take_frames(out);
        let image = self.image();
        let bytes = image.bytes()?;
        // Without an image the guest goes on as it is, on every host.
        self.become_of(image, self.now, out).ok()?;
        Some(bytes)
    }

    fn restore(&mut self, at: GuestTime, image: &[u8], out: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let image = Image::parse(image).map_err(|why| ReplicaError::Image(why).to_string())?;
        self.become_of(image, at, out).map_err(|error| error.to_string())
    }

    fn wake(&self) -> Option<GuestTime> {
        if self.failure.is_some() {
            return None;
        }
        let adapter = self.hardware.memo.requests().wake.map(GuestTime::not_before);
        let wake = [adapter, self.tcp_wake].into_iter().flatten().min();
        // A call at the time of the last one would find nothing new.
        wake.map(|wake| wake.max(GuestTime(self.now.0 + 1)))
    }

    fn history(&self) -> u64 {
        let mut digest = self.frames;
        digest.write_u64(self.hardware.adapter.bus.digest.finish());
        digest.finish()
    }

    fn state(&self) -> u64 {
        let mut digest = Fnv::default();
        digest.write_u64(self.history());
        if let Some(saved) = self.hardware.port.save(self.now.time()) {
            digest.write(&saved.state);
        }
        self.server.digest(&self.sockets, &mut digest);
        digest.finish()
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        vec![gratuitous_arp(self.hardware.adapter.mac(), self.settings.address.0)]
    }

    fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}

/// A gratuitous ARP request (RFC 5227, section 3): hosts and switches learn where the address is.
fn gratuitous_arp(mac: Mac, address: [u8; 4]) -> Vec<u8> {
    let packet = arp::Packet {
        operation: arp::operation::REQUEST,
        sender_mac: mac,
        sender: address.into(),
        target_mac: Mac::default(),
        target: address.into(),
    };
    let mut bytes = [0; arp::PACKET_LEN];
    // The buffer has the packet's length.
    let _written = packet.write(&mut bytes);
    [&[0xff; 6], mac.0.as_slice(), &[0x08, 0x06], &bytes].concat()
}
