//! Guest-side drivers with the methods of an operating system's: interrupts with masked polling, batched doorbells, offloads.
//!
//! The drivers know a device by its datasheet only. They define register offsets and descriptor layouts a second time, so that a
//! wrong offset in an adapter cannot agree with itself. A driver allocates its rings and buffers from its own guest memory
//! ([`Arena`]), and reaches the device through [`Bus`]: in this process, or over a socket.
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
pub mod vf;
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
pub use vf::VirtualFunction;
pub use virtio_net::{RingBus, VirtioNet};
pub use vmxnet::Vmxnet;
pub use vmxnet3::Vmxnet3;

/// Packets that a call of [`Driver::receive`] should ask for: Linux's NAPI weight.
pub const BUDGET: usize = 64;

/// The reason why a driver cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The device, or its server, is gone.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The driver's own memory is not at the given address.
    #[error("the driver's memory: {0}")]
    Memory(#[from] Fault),
    /// Too little guest memory for rings and buffers.
    #[error("the driver needs {wanted} bytes more of guest memory")]
    NoRoom {
        /// Missing bytes.
        wanted: u64,
    },
    /// The device does not behave as its datasheet says.
    #[error("the device {0}")]
    Device(&'static str),
}

/// Capabilities of a driver with its device, once open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// The device completes transport checksums of sent packets.
    pub checksum: bool,
    /// Bytes of the largest TCP packet over IPv4 that the device segments, headers included; 0 if it does not.
    pub segment_bytes: u32,
    /// The interrupts that the driver uses.
    pub interrupts: InterruptKind,
}

/// The device's report on a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The device, or the sender, vouches for the transport checksum.
    pub checksum_good: bool,
    /// Frames on the wire that LRO joined to this packet; 1 for an ordinary one.
    pub frames: u32,
}

/// Takes received packets. It may keep the vector if it leaves another one in its place.
pub type Sink<'a> = dyn FnMut(&mut Vec<u8>, Received) + 'a;

/// A network driver.
pub trait Driver {
    /// The device's permanent address. Known once open.
    fn mac(&self) -> Mac;

    /// Its capabilities. Known once open.
    fn features(&self) -> Features;

    /// Whether the link is up, according to the last interrupt.
    fn link(&self) -> bool;

    /// Finds the device, resets it, programs its rings and starts it.
    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;

    /// Handles an interrupt. True if it was this device's and polling should begin: its interrupts are masked then.
    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError>;

    /// Takes up to `budget` received packets, and reclaims sent ones. A result below the budget means that no more packets wait.
    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError>;

    /// Queues a packet. False if there is no room now: an interrupt follows when there is.
    fn transmit(&mut self, bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError>;

    /// Notifies the device of queued packets.
    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;

    /// Receives frames of this VLAN, too. Only a device that always filters VLANs needs to be asked.
    fn join_vlan(&mut self, _bus: &mut dyn Bus, _id: u16) -> Result<(), DriverError> {
        Ok(())
    }

    /// Ends polling: unmasks interrupts. True if work already waits for which no interrupt will come: poll again.
    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError>;

    /// Stops the device. It sends no interrupt and does no DMA afterwards.
    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError>;
}

/// Checks the device's identity, and enables its address decoding and DMA.
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

/// Disables the device's DMA.
fn disable(bus: &mut dyn Bus) -> Result<(), DriverError> {
    Ok(config::set(bus, config::COMMAND, config::COMMAND_MASTER, false)?)
}
