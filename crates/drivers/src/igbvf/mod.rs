//! A virtual function of an 82576, driven as Linux's igbvf does: three vectors (sent, received, other causes), one pair of queues,
//! and messages to the physical function's driver for all that concerns the card: the address, the longest frame.
//!
//! Rings and descriptors are the 82576's (`igb/transmit.rs`, `igb/receive.rs`). Not driven: queue 1, multicast lists, jumbo frames.

mod registers;

use std::sync::Arc;

use nicety_adapter::{Bus, InterruptKind, Offload};
use nicety_frame::Mac;
use nicety_memory::Map;

pub use self::registers::DEVICES;
use self::registers::*;
use crate::igb::receive::{Part, Receive};
use crate::igb::registers::{EITR_KEEP, EITR_LOW, SRRCTL, SRRCTL_ONE_BUFFER, TAIL};
use crate::igb::transmit::Transmit;
use crate::igb::{REFILL, RING, SEGMENT_BYTES, start_ring, wait};
use crate::{Arena, Driver, DriverError, Features, Received, Sink};

/// Vectors of sent packets, received packets, and other causes.
const SENT: u16 = 0;
const RECEIVED: u16 = 1;
const OTHER: u16 = 2;
const VECTORS: u16 = 3;
const ALL_VECTORS: u32 = 0b111;
/// Longest frame, with a tag and its check sequence.
const FRAME_MAX: u32 = 1522;

/// The driver.
#[derive(Debug)]
pub struct IgbVf {
    arena: Arena,
    memory: Arc<Map>,
    mac: Mac,
    link: bool,
    queues: Option<(Transmit, Receive)>,
    /// Vectors that have interrupted and masked themselves, one bit each.
    masked: u32,
}

/// A read of V2PMAILBOX clears what it shows: bits that were seen and not yet used.
#[derive(Default)]
struct Mailbox {
    seen: u32,
}

impl Mailbox {
    fn wait(&mut self, bus: &mut dyn Bus, bit: u32, otherwise: &'static str) -> Result<(), DriverError> {
        wait(bus, otherwise, |bus| {
            self.seen |= bus.read32(BAR, V2PMAILBOX)?;
            Ok(self.seen & bit != 0)
        })?;
        self.seen &= !bit;
        Ok(())
    }

    /// Takes the mailbox (8.14.2: VFU is set unless the other side has it).
    fn take(bus: &mut dyn Bus) -> Result<(), DriverError> {
        bus.write32(BAR, V2PMAILBOX, VFU)?;
        if bus.read32(BAR, V2PMAILBOX)? & VFU == 0 {
            return Err(DriverError::Device("does not give its mailbox"));
        }
        Ok(())
    }

    /// Sends a message, and reads as many words of the reply.
    fn exchange<const N: usize>(&mut self, bus: &mut dyn Bus, message: [u32; N]) -> Result<[u32; N], DriverError> {
        Mailbox::take(bus)?;
        for (at, word) in (MAILBOX..).step_by(4).zip(message) {
            bus.write32(BAR, at, word)?;
        }
        bus.write32(BAR, V2PMAILBOX, REQ)?;
        self.wait(bus, PFACK, "has a physical function that reads no message")?;
        self.wait(bus, PFSTS, "has a physical function that does not reply")?;
        let mut reply = [0; N];
        Mailbox::take(bus)?;
        for (at, word) in (MAILBOX..).step_by(4).zip(&mut reply) {
            *word = bus.read32(BAR, at)?;
        }
        bus.write32(BAR, V2PMAILBOX, ACK)?;
        Ok(reply)
    }
}

fn words(mac: Mac) -> [u32; 2] {
    let [a, b, c, d, e, f] = mac.0;
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, 0, 0])]
}

impl IgbVf {
    /// A driver that uses this memory.
    pub fn new(arena: Arena) -> IgbVf {
        IgbVf { arena, memory: Map::empty(), mac: Mac([0; 6]), link: false, queues: None, masked: 0 }
    }

    /// Resets the function, and gets its address.
    fn reset(bus: &mut dyn Bus) -> Result<Mac, DriverError> {
        bus.write32(BAR, EIMC, u32::MAX)?;
        bus.write32(BAR, EIAC, 0)?;
        bus.write32(BAR, CTRL, CTRL_RST)?;
        wait(bus, "does not come out of reset", |bus| Ok(bus.read32(BAR, V2PMAILBOX)? & RSTI == 0))?;
        let [word, low, high] = Mailbox::default().exchange(bus, [RESET, 0, 0])?;
        if word != RESET | GRANTED {
            return Err(DriverError::Device("got no address from its physical function"));
        }
        let ([a, b, c, d], [e, f, ..]) = (low.to_le_bytes(), high.to_le_bytes());
        Ok(Mac([a, b, c, d, e, f]))
    }

    /// Sends a message of one argument or two. The physical function may refuse it.
    fn ask(bus: &mut dyn Bus, message: [u32; 3]) -> Result<bool, DriverError> {
        let [word, ..] = Mailbox::default().exchange(bus, message)?;
        match word & !CLEAR_TO_SEND & !message[0] {
            GRANTED => Ok(true),
            REFUSED => Ok(false),
            _ => Err(DriverError::Device("has a physical function that answers another message")),
        }
    }

    fn start_interrupts(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        let entry = |vector: u16| IVAR_VALID | u32::from(vector);
        bus.write32(BAR, IVAR, entry(RECEIVED) | entry(SENT) << 8)?;
        bus.write32(BAR, IVAR_MISC, entry(OTHER))?;
        for vector in [SENT, RECEIVED] {
            bus.write32(BAR, EITR + 4 * u64::from(vector), EITR_LOW | EITR_KEEP)?;
        }
        bus.read32(BAR, EICR)?;
        self.masked = 0;
        for register in [EIAC, EIAM, EIMS] {
            bus.write32(BAR, register, ALL_VECTORS)?;
        }
        // Raises the vector of other causes, so that the driver reads the link even if it came up earlier.
        Ok(bus.write32(BAR, EICS, 1 << OTHER)?)
    }

    /// The link is up if the physical function says so, and would take messages: it keeps its last message in the mailbox.
    fn read_link(bus: &mut dyn Bus) -> Result<bool, DriverError> {
        if bus.read32(BAR, STATUS)? & STATUS_LU == 0 {
            return Ok(false);
        }
        Mailbox::take(bus)?;
        let word = bus.read32(BAR, MAILBOX)?;
        bus.write32(BAR, V2PMAILBOX, ACK)?;
        Ok(word & CLEAR_TO_SEND != 0)
    }
}

impl Driver for IgbVf {
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
        crate::enable(bus, &DEVICES)?;
        self.mac = IgbVf::reset(bus)?;
        let [low, high] = words(self.mac);
        // The physical function may insist on its own address: then it is this one anyway.
        IgbVf::ask(bus, [SET_MAC, low, high])?;
        // Each open allocates the driver's memory from the beginning.
        let mut arena = self.arena;
        let receive = Receive::new(&self.memory, &mut arena)?;
        let transmit = Transmit::new(&self.memory, &mut arena)?;
        start_ring(bus, TRANSMIT_QUEUE, transmit.ring)?;
        bus.write32(BAR, RECEIVE_QUEUE + SRRCTL, SRRCTL_ONE_BUFFER)?;
        if !IgbVf::ask(bus, [SET_LPE, FRAME_MAX, 0])? {
            return Err(DriverError::Device("has a physical function that refuses frames of the usual length"));
        }
        start_ring(bus, RECEIVE_QUEUE, receive.ring)?;
        // The driver keeps one descriptor, since a full ring would look like an empty one.
        bus.write32(BAR, RECEIVE_QUEUE + TAIL, u32::from(RING - 1))?;
        self.queues = Some((transmit, receive));
        bus.interrupts(InterruptKind::Msix(VECTORS))?;
        self.start_interrupts(bus)
    }

    fn interrupt(&mut self, bus: &mut dyn Bus, vector: u16) -> Result<bool, DriverError> {
        if vector == OTHER {
            self.link = IgbVf::read_link(bus)?;
            bus.write32(BAR, EIMS, 1 << OTHER)?;
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
                bus.write32(BAR, RECEIVE_QUEUE + TAIL, place.into())?;
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
            Some(tail) => Ok(bus.write32(BAR, TRANSMIT_QUEUE + TAIL, tail.into())?),
            None => Ok(()),
        }
    }

    fn join_vlan(&mut self, bus: &mut dyn Bus, id: u16) -> Result<(), DriverError> {
        match IgbVf::ask(bus, [ADD_VLAN, id.into(), 0])? {
            true => Ok(()),
            false => Err(DriverError::Device("has a physical function that refuses a VLAN")),
        }
    }

    fn rest(&mut self, bus: &mut dyn Bus) -> Result<bool, DriverError> {
        let masked = std::mem::take(&mut self.masked);
        if masked != 0 {
            bus.write32(BAR, EIMS, masked)?;
        }
        // Events of the meantime have left their causes, and interrupt at once.
        Ok(false)
    }

    fn close(&mut self, bus: &mut dyn Bus) -> Result<(), DriverError> {
        IgbVf::reset(bus)?;
        (self.link, self.queues) = (false, None);
        crate::disable(bus)
    }
}
