//! Guest-side drivers, as an operating system's would be: interrupts with masked polling, batched doorbells, offloads.
//!
//! They know a device by its datasheet only. Register offsets and descriptor layouts are written here a second time, so
//! that a wrong offset in an adapter cannot agree with itself. A driver owns a piece of guest memory ([`Arena`]) for
//! its rings and buffers, and reaches the device through [`Bus`]: in this process, or over a socket.
//!
//! ```text
//! interrupt ──► Driver::interrupt (masks) ──► Driver::receive, budget by budget ──► Driver::rest (unmasks)
//! packets   ──► Driver::transmit, as many as there are ──► Driver::flush (one doorbell)
//! ```
#![forbid(unsafe_code)]

mod arena;
pub mod catalog;
pub mod config;
pub mod e1000;
pub mod e1000e;
pub mod igb;
pub mod ne2000;
pub mod pcnet;
pub mod rtl8139;
pub mod virtio_net;
pub mod vmxnet;
pub mod vmxnet3;

use nicety_adapter::{Bus, BusError, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::Fault;

pub use arena::Arena;
pub use catalog::{DRIVERS, Made, find};
pub use e1000::E1000;
pub use e1000e::E1000e;
pub use igb::Igb;
pub use pcnet::Pcnet;
pub use rtl8139::Rtl8139;
pub use virtio_net::{RingBus, VirtioNet};
pub use vmxnet::Vmxnet;
pub use vmxnet3::Vmxnet3;

/// Packets that one call of [`Driver::receive`] should ask for: Linux's NAPI weight.
pub const BUDGET: usize = 64;

/// Why a driver cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The device, or its server, is gone.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The driver's own memory is not where it was told.
    #[error("the driver's memory: {0}")]
    Memory(#[from] Fault),
    /// Too little guest memory for rings and buffers.
    #[error("the driver needs {wanted} bytes more of guest memory")]
    NoRoom {
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// The device does not behave as its datasheet says.
    #[error("the device {0}")]
    Device(&'static str),
}

/// What a driver and its device can do, once open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The device completes transport checksums of packets that are sent.
    pub checksum: bool,
    /// Bytes of the largest TCP packet over IPv4 that the device segments, headers included; 0 if it does not.
    pub segment_bytes: u32,
    /// How the device interrupts.
    pub interrupts: InterruptKind,
}

/// What the device says of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its transport checksum is right, as far as the device or the sender vouches for it.
    pub checksum_good: bool,
    /// Frames on the wire that it was joined from (LRO); 1 for an ordinary one.
    pub frames: u32,
}

/// Takes received packets. It may keep the vector by leaving another one in its place.
pub type Sink<'a> = dyn FnMut(&mut Vec<u8>, Received) + 'a;

/// A network driver.
pub trait Driver {
    /// The address that the device was born with. Known once open.
    fn mac(&self) -> Mac;

    /// What it can do. Known once open.
    fn features(&self) -> Features;

    /// Whether the link is up, as far as interrupts have told.
    fn link(&self) -> bool;

    /// Finds the device, resets it, gives it rings and starts it.
    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;

    /// An interrupt came. True if it was this device's and polling should begin: its interrupts are masked then.
    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError>;

    /// Takes up to `budget` received packets, and takes back what was sent. Fewer than the budget: nothing more is there.
    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError>;

    /// Queues a packet. False if there is no room now: an interrupt will come when there is.
    fn transmit(&mut self, bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError>;

    /// Tells the device of what was queued.
    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;

    /// Polling is over: unmasks interrupts. True if there is work already for which no interrupt will come: poll again.
    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError>;

    /// Stops the device: no interrupt and no DMA after it.
    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;
}

/// Checks which device it is, and lets it decode addresses and do DMA.
fn enable(bus: &mut dyn Bus, devices: &[(u16, u16)]) -> Result<(u16, u16), DriverError> {
    let mut identity = [0; 4];
    bus.config_read(0, &mut identity)?;
    let [v0, v1, d0, d1] = identity;
    let device = (u16::from_le_bytes([v0, v1]), u16::from_le_bytes([d0, d1]));
    if !devices.contains(&device) {
        return Err(DriverError::Device("is another one than this driver's"));
    }
    let all = config::COMMAND_IO | config::COMMAND_MEMORY | config::COMMAND_MASTER;
    config::set(bus, config::COMMAND, all, true)?;
    Ok(device)
}

/// Takes DMA away from the device.
fn disable(bus: &mut dyn Bus) -> Result<(), DriverError> {
    Ok(config::set(bus, config::COMMAND, config::COMMAND_MASTER, false)?)
}
