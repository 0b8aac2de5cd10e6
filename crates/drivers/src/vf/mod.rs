//! A virtual function of an 82576 or an 82599, driven as Linux's igbvf does: three vectors (sent, received, other causes), one pair of queues,
//! and messages to the physical function's driver for all that concerns the card: the address, the longest frame.
//!
//! Rings and descriptors are the 82576's (`igb/transmit.rs`, `igb/receive.rs`). Not driven: queue 1, multicast lists, jumbo frames.

mod registers;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::Map;

use self::registers::*;
pub use self::registers::{IGBVF, IXGBEVF};
use crate::igb::receive::{Part, Receive};
use crate::igb::registers::{EITR_KEEP, SRRCTL_ONE_BUFFER, TAIL};
use crate::igb::transmit::Transmit;
use crate::igb::{REFILL, RING, SEGMENT_BYTES, start_ring, wait};
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Vectors of sent packets, received packets, and other causes.
const SENT: u16 = 0;
const RECEIVED: u16 = 1;
const OTHER: u16 = 2;
const VECTORS: u16 = 3;
const ALL_VECTORS: u32 = 0b111;

/// The driver.
#[derive(Debug)]
pub struct VirtualFunction {
    layout: &'static Layout,
    arena: Arena,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    queues: Option<(Transmit, Receive)>,
    /// Vectors that have interrupted and masked themselves, one bit each.
    masked: u32,
}

/// A read of V2PMAILBOX clears what it shows: bits that were seen and not yet used.
struct Mailbox {
    layout: &'static Layout,
    seen: u32,
}

impl Mailbox {
    fn wait(&mut self, bus: &mut dyn Bus, bit: u32, otherwise: &'static str) -> Result<(), DriverError> {
        wait(bus, otherwise, |bus| {
            self.seen |= bus.read32(BAR, self.layout.v2pmailbox)?;
            Ok(self.seen & bit != 0)
        })?;
        self.seen &= !bit;
        Ok(())
    }

    /// Takes the mailbox (8.14.2: VFU is set unless the other side has it).
    fn take(&self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, self.layout.v2pmailbox, VFU)?;
        if bus.read32(BAR, self.layout.v2pmailbox)? & VFU == 0 {
            return Err(DriverError::Device("does not give its mailbox"));
        }
        Ok(())
    }

    /// Reads the words of a message, and acknowledges it.
    fn read<const N: usize>(&self, bus: &mut dyn Bus) -> Result<[u32; N], DriverError> {
        self.take(bus)?;
        let mut words = [0; N];
        for (at, word) in (self.layout.mailbox..).step_by(4).zip(&mut words) {
            *word = bus.read32(BAR, at)?;
        }
        bus.write32(BAR, self.layout.v2pmailbox, ACK)?;
        Ok(words)
    }

    /// Sends a message, and reads as many words of the reply.
    fn exchange<const N: usize>(&mut self, bus: &mut dyn Bus, message: [u32; N]) -> Result<[u32; N], DriverError> {
        self.take(bus)?;
        for (at, word) in (self.layout.mailbox..).step_by(4).zip(message) {
            bus.write32(BAR, at, word)?;
        }
        bus.write32(BAR, self.layout.v2pmailbox, REQ)?;
        self.wait(bus, PFACK, "has a physical function that reads no message")?;
        self.wait(bus, PFSTS, "has a physical function that does not reply")?;
        self.read(bus)
    }
}

fn words(mac: Mac) -> [u32; 2] {
    let [a, b, c, d, e, f] = mac.0;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
}

impl VirtualFunction {
    /// A driver of an 82576's function, which uses this memory.
    pub fn igbvf(arena: Arena) -> VirtualFunction {
        VirtualFunction::of(&LAYOUT_82576, arena)
    }

    /// A driver of an 82599's function, which uses this memory.
    pub fn ixgbevf(arena: Arena) -> VirtualFunction {
        VirtualFunction::of(&LAYOUT_82599, arena)
    }

    fn of(layout: &'static Layout, arena: Arena) -> VirtualFunction {
        let (memory, mac) = (Map::empty(), Mac([0; 6]));
        VirtualFunction { layout, arena, memory, mac, link: false, queues: None, masked: 0 }
    }

    fn mailbox(&self) -> Mailbox {
        Mailbox { layout: self.layout, seen: 0 }
    }

    /// Resets the function, and gets its address.
    fn reset(&self, bus: &mut dyn Bus) -> Result<Mac, DriverError> {
        bus.write32(BAR, self.layout.eimc, u32::MAX)?;
        bus.write32(BAR, self.layout.eiac, 0)?;
        bus.write32(BAR, CTRL, CTRL_RST)?;
        let mailbox = self.layout.v2pmailbox;
        wait(bus, "does not come out of reset", |bus| Ok(bus.read32(BAR, mailbox)? & RSTI == 0))?;
        let [word, low, high] = self.mailbox().exchange(bus, [RESET, 0, 0])?;
        if word != RESET | GRANTED {
            return Err(DriverError::Device("got no address from its physical function"));
        }
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        Ok(Mac([a, b, c, d, e, f]))
    }

    /// Sends a message of one argument or two. The physical function may refuse it.
    fn ask(&self, bus: &mut dyn Bus, message: [u32; 3]) -> Result<bool, DriverError> {
        let [word, ..] = self.mailbox().exchange(bus, message)?;
        match word & !CLEAR_TO_SEND & !message[0] {
            GRANTED => Ok(true),
            REFUSED => Ok(false),
            _ => Err(DriverError::Device("has a physical function that answers another message")),
        }
    }

    /// Sends a message that the physical function must grant.
    fn require(&self, bus: &mut dyn Bus, message: [u32; 3], otherwise: &'static str) -> Result<(), DriverError> {
        if self.ask(bus, message)? { Ok(()) } else { Err(DriverError::Device(otherwise)) }
    }

    fn start_interrupts(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let entry = |vector: u16| IVAR_VALID | u32::from(vector);
        bus.write32(BAR, self.layout.ivar, entry(RECEIVED) | entry(SENT) << 8)?;
        bus.write32(BAR, self.layout.ivar_misc, entry(OTHER))?;
        for vector in [SENT, RECEIVED] {
            bus.write32(BAR, self.layout.eitr + 4 * u64::from(vector), self.layout.interval | EITR_KEEP)?;
        }
        bus.read32(BAR, self.layout.eicr)?;
        self.masked = 0;
        for register in [self.layout.eiac, self.layout.eiam, self.layout.eims] {
            bus.write32(BAR, register, ALL_VECTORS)?;
        }
        // Raises the vector of other causes, so that the driver reads the link even if it came up earlier.
        Ok(bus.write32(BAR, self.layout.eics, 1 << OTHER)?)
    }

    /// The link is up if the physical function says so, and would take messages: it keeps its last message in the mailbox.
    fn read_link(&self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let (register, up) = self.layout.link;
        if bus.read32(BAR, register)? & up == 0 {
            return Ok(false);
        }
        let [word] = self.mailbox().read(bus)?;
        Ok(word & CLEAR_TO_SEND != 0)
    }
}

impl Driver for VirtualFunction {
    fn mac(&self) -> Mac {
        self.mac
    }

    fn features(&self) -> Features {
        Features { checksum: true, segment_bytes: SEGMENT_BYTES, interrupts: InterruptKind::Msix(VECTORS) }
    }

    fn link(&self) -> bool {
        self.link
    }

    fn open(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.memory = Arc::clone(bus.memory());
        crate::enable(bus, self.layout.devices)?;
        self.mac = self.reset(bus)?;
        if let Some(version) = self.layout.version {
            self.require(bus, [API_NEGOTIATE, version, 0], "has a physical function of another version")?;
        }
        let [low, high] = words(self.mac);
        // The physical function may insist on its own address: then it is this one anyway.
        self.ask(bus, [SET_MAC, low, high])?;
        // Each open allocates the driver's memory from the beginning.
        let mut arena = self.arena;
        let mut receive = Receive::new(&self.memory, &mut arena)?;
        receive.errors = self.layout.errors;
        let transmit = Transmit::new(&self.memory, &mut arena)?;
        start_ring(bus, self.layout.transmit_queue, transmit.ring)?;
        bus.write32(BAR, self.layout.receive_queue + self.layout.srrctl, SRRCTL_ONE_BUFFER)?;
        let refuses = "has a physical function that refuses frames of the usual length";
        self.require(bus, [SET_LPE, self.layout.longest, 0], refuses)?;
        start_ring(bus, self.layout.receive_queue, receive.ring)?;
        // The driver keeps one descriptor, since a full ring would look like an empty one.
        bus.write32(BAR, self.layout.receive_queue + TAIL, u32::from(RING - 1))?;
        self.queues = Some((transmit, receive));
        bus.interrupts(InterruptKind::Msix(VECTORS))?;
        self.start_interrupts(bus)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        if vector == OTHER {
            self.link = self.read_link(bus)?;
            bus.write32(BAR, self.layout.eims, 1 << OTHER)?;
        }
        if vector >= OTHER {
            return Ok(false);
        }
        self.masked |= 1 << vector;
        Ok(true)
    }

    fn receive(&mut self, bus: &mut dyn Bus, budget: usize, sink: &mut Sink<'_>) -> Result<usize, DriverError> {
        let Some((transmit, receive)) = &mut self.queues else { return Ok(0) };
        transmit.reclaim(&self.memory)?;
        let mut packets = 0;
        while packets < budget {
            match receive.next(&self.memory)? {
                None => break,
                Some(Part::More) => {}
                Some(Part::Damaged) => {
                    packets += 1;
                    receive.packet.clear();
                }
                Some(Part::Whole { good }) => {
                    packets += 1;
                    sink(&mut receive.packet, Received { checksum_good: good, frames: 1 });
                    receive.packet.clear();
                }
            }
            if let Some(place) = receive.refill(REFILL) {
                bus.write32(BAR, self.layout.receive_queue + TAIL, place.into())?;
            }
        }
        Ok(packets)
    }

    fn transmit(&mut self, _bus: &mut dyn Bus, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        match &mut self.queues {
            Some((transmit, _)) => transmit.queue(&self.memory, packet, offload),
            None => Ok(false),
        }
    }

    fn flush(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let Some((transmit, _)) = &mut self.queues else { return Ok(()) };
        match transmit.doorbell() {
            Some(tail) => Ok(bus.write32(BAR, self.layout.transmit_queue + TAIL, tail.into())?),
            None => Ok(()),
        }
    }

    fn join_vlan(&mut self, bus: &mut dyn Bus, id: u16) -> Result<(), DriverError> {
        self.require(bus, [ADD_VLAN, id.into(), 0], "has a physical function that refuses a VLAN")
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let masked = std::mem::take(&mut self.masked);
        if masked != 0 {
            bus.write32(BAR, self.layout.eims, masked)?;
        }
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        self.reset(bus)?;
        (self.link, self.queues) = (false, None);
        crate::disable(bus)
    }
}
