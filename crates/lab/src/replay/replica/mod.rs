//! An embedded guest as one deterministic value: an adapter of the registry, its driver, TCP by smoltcp, an application.
//!
//! ```text
//! Input::Frame ─► wire ─► switch ─► adapter ◄─ DMA, registers, interrupts ─► driver ─► smoltcp ─► application
//! frames out   ◄─ wire ◄─ switch ◄─ adapter
//! ```
//!
//! Register accesses, DMA and interrupts happen inside the value: they follow from the inputs, and nobody logs them.

mod application;
mod bus;
mod device;

use std::sync::Arc;

use nicety_adapter::tape::Sum;
use nicety_adapter::{Offload, PortId, Time};
use nicety_adapters::CreateError;
use nicety_drivers::{Arena, DriverError};
use nicety_frame::{Mac, arp};
use nicety_memory::{Map, MapError};
use nicety_plane::doubles::Memo;
use nicety_plane::wire::{Far, Wire};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use smoltcp::iface::{Config, Interface, PollResult, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr, Ipv4Address};

use super::input::{GuestTime, Input, Machine};
pub use application::Application;
use application::Server;
use bus::PortBus;
use device::Adapter;
pub use device::{Frames, Received, Sending};

/// Bytes of guest memory, and where the driver's part begins.
const MEMORY: usize = 16 << 20;
const ARENA: u64 = 0x1000;
/// Bytes of a port's receive buffer.
const BUFFER: u32 = 1 << 20;
/// Capacity of the switch's address table. The switch has two ports.
const ADDRESSES: usize = 1 << 10;
/// Most rounds of an input. More mean an endless loop.
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
    /// The prefix is longer than an address.
    #[error("a prefix has at most 32 bits, not {0}")]
    Prefix(u8),
}

/// See the module's page.
pub struct Replica {
    address: [u8; 4],
    hardware: Hardware,
    interface: Interface,
    sockets: SocketSet<'static>,
    server: Server,
    now: GuestTime,
    /// The time of TCP's next timer.
    tcp_wake: Option<GuestTime>,
    /// A digest of all inputs and of the frames sent.
    frames: Sum,
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
    fn new(settings: &Settings) -> Result<Self, ReplicaError> {
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
        port.set_memory(Arc::clone(&memory), Time::ZERO);
        let bus = PortBus::new(Arc::clone(&port), memo.clone(), Arc::clone(&memory));
        let driver = (driver.make)(Arena::new(ARENA, MEMORY as u64 - ARENA));
        let adapter = Adapter::open(bus, driver)?;
        Ok(Self { plane, port, uplink, turn: Turn::new(), memo, memory, far, adapter })
    }

    /// The guest's interface on its network.
    fn interface(&mut self, settings: &Settings) -> Interface {
        let (address, prefix) = settings.address;
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(self.adapter.mac().0)));
        config.random_seed = settings.seed;
        let mut interface = Interface::new(config, &mut self.adapter, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            // A new interface has room for one address.
            let _added = addresses.push(IpCidr::new(Ipv4Address::from(address).into(), prefix));
        });
        interface
    }

    /// Runs turns until no port has work at this time. False if that never comes.
    fn settle(&mut self, now: GuestTime) -> bool {
        self.uplink.ready();
        for _ in 0..ROUNDS {
            self.memo.asked().scheduled = false;
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
            if !more && !self.memo.asked().scheduled {
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
        let mut hardware = Hardware::new(settings)?;
        let interface = hardware.interface(settings);
        let mut sockets = SocketSet::new(Vec::new());
        let server = Server::new(settings.application, settings.port, &mut sockets);
        server.step(&mut sockets);
        let (now, frames) = (GuestTime::default(), Sum::default());
        Ok(Self { address, hardware, interface, sockets, server, now, tcp_wake: None, frames, failure: None })
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
                let next = self.interface.poll_at(instant, &self.sockets);
                self.tcp_wake = next.map(|next| GuestTime(next.total_micros().max(0).cast_unsigned()));
                return Ok(());
            }
        }
        Err(DriverError::Device("never lets its guest rest"))
    }

    /// A digest of its memory, 16 MiB: dear.
    pub fn memory_digest(&self) -> u64 {
        let mut digest = Sum::default();
        let mut page = vec![0; 1 << 16];
        for at in (0..MEMORY as u64).step_by(page.len()) {
            if self.hardware.memory.read(at, &mut page).is_ok() {
                digest.bytes(&page);
            }
        }
        digest.value()
    }
}

impl Machine for Replica {
    fn take(&mut self, at: GuestTime, input: &Input, out: &mut Vec<Vec<u8>>) {
        if self.failure.is_some() {
            return;
        }
        self.now = self.now.max(at);
        self.frames.number(self.now.0);
        self.hardware.adapter.bus.now = self.now.time();
        {
            let mut asked = self.hardware.memo.asked();
            asked.wake = asked.wake.filter(|wake| *wake > self.now.time());
        }
        if let Input::Frame(frame) = input {
            self.frames.bytes(frame);
            self.hardware.far.ends().outgoing.push_back((frame.clone(), Offload::default()));
        }
        if let Err(error) = self.run() {
            self.failure = Some(error.to_string());
        }
        for (frame, _) in self.hardware.far.ends().incoming.drain(..) {
            self.frames.bytes(&frame);
            out.push(frame);
        }
    }

    fn wake(&self) -> Option<GuestTime> {
        if self.failure.is_some() {
            return None;
        }
        let adapter = self.hardware.memo.asked().wake.map(GuestTime::not_before);
        let wake = [adapter, self.tcp_wake].into_iter().flatten().min();
        // An input at the time of the last one would find nothing new.
        wake.map(|wake| wake.max(GuestTime(self.now.0 + 1)))
    }

    fn history(&self) -> u64 {
        let mut digest = self.frames;
        digest.number(self.hardware.adapter.bus.digest.value());
        digest.value()
    }

    fn state(&self) -> u64 {
        let mut digest = Sum::default();
        digest.number(self.history());
        if let Some(saved) = self.hardware.port.save(self.now.time()) {
            digest.bytes(&saved.state);
        }
        self.server.digest(&self.sockets, &mut digest);
        digest.value()
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        vec![gratuitous_arp(self.hardware.adapter.mac(), self.address)]
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
