//! A receive ring (7.1.5: advanced descriptors with one buffer).

use nicety_memory::{Map, Rights};

use super::registers::*;
use super::{RECEIVE_BUFFER, RING, RING_BYTES};
use crate::{Arena, DriverError};

/// Offset of a VLAN tag in a frame.
const TAG_AT: usize = 12;

#[derive(Debug)]
pub(crate) struct Receive {
    pub ring: u64,
    buffers: u64,
    /// The next descriptor that the device fills.
    next: u16,
    /// Descriptors that were read and not yet given back.
    taken: u16,
    /// Packet under assembly, from several descriptors.
    pub packet: Vec<u8>,
    damaged: bool,
    /// Status of checksum errors, and of a damaged frame.
    pub errors: (u32, u32),
}

/// Content of the next descriptor.
pub(crate) enum Part {
    More,
    Damaged,
    Whole { good: bool },
}

impl Receive {
    pub(crate) fn new(memory: &Map, arena: &mut Arena) -> Result<Receive, DriverError> {
        let ring = arena.take(RING_BYTES.into(), 4096)?;
        let buffers = arena.take(u64::from(RING) * u64::from(RECEIVE_BUFFER), 4096)?;
        let errors = (RX_CHECKSUM_ERRORS, RX_FRAME_ERROR);
        let this = Receive { ring, buffers, next: 0, taken: 0, packet: Vec::new(), damaged: false, errors };
        for index in 0..RING {
            this.post(memory, index)?;
        }
        Ok(this)
    }

    fn buffer(&self, index: u16) -> u64 {
        self.buffers + u64::from(index) * u64::from(RECEIVE_BUFFER)
    }

    /// Writes the buffer's address into the descriptor again: the device has overwritten it.
    fn post(&self, memory: &Map, index: u16) -> Result<(), DriverError> {
        let mut descriptor = [0; DESCRIPTOR];
        descriptor[..8].copy_from_slice(&self.buffer(index).to_le_bytes());
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        window.write(usize::from(index) * DESCRIPTOR, &descriptor);
        Ok(())
    }

    /// Reads the next descriptor's packet, or part of one, into `self.packet`. `None`: no descriptor is complete.
    pub(crate) fn next(&mut self, memory: &Map) -> Result<Option<Part>, DriverError> {
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        let at = usize::from(self.next) * DESCRIPTOR;
        let status = window.load_u32(at + 8);
        if status & RX_DD == 0 {
            return Ok(None);
        }
        let length = usize::from(window.load_u16(at + 12)).min(RECEIVE_BUFFER as usize);
        let begin = self.packet.len();
        self.packet.resize(begin + length, 0);
        memory.read(self.buffer(self.next), self.packet.get_mut(begin..).unwrap_or_default())?;
        let tag = window.load_u16(at + 14);
        self.post(memory, self.next)?;
        self.next = (self.next + 1) % RING;
        self.taken += 1;
        self.damaged |= status & self.errors.1 != 0;
        if status & RX_EOP == 0 {
            return Ok(Some(Part::More));
        }
        if status & RX_VP != 0 && self.packet.len() >= TAG_AT {
            let [high, low] = tag.to_be_bytes();
            self.packet.splice(TAG_AT..TAG_AT, [0x81, 0, high, low]);
        }
        let good = status & RX_L4CS != 0 && status & self.errors.0 == 0;
        Ok(Some(if std::mem::take(&mut self.damaged) { Part::Damaged } else { Part::Whole { good } }))
    }

    /// The new tail, if at least `least` descriptors wait to be given back.
    pub(crate) fn refill(&mut self, least: u16) -> Option<u16> {
        let due = self.taken >= least && self.taken > 0;
        if due {
            self.taken = 0;
        }
        due.then_some((self.next + RING - 1) % RING)
    }
}
