//! The plain mode's receive buffer: a ring of bytes.
//!
//! ```text
//! RBSTART                CAPR + 16             CBR                        8, 16, 32 or 64 KiB
//!    │ the driver has read │ status length frame │ the chip's ...          │ (WRAP: the last frame goes on here)
//! ```
//! CAPR is 16 bytes behind the driver's read position, as the data sheet defines. A frame takes a header of four bytes, its own
//! bytes with the check sequence, and padding to a multiple of four. The chip never writes up to the read position: a full buffer
//! would look like an empty one.

use arrayvec::ArrayVec;
use nicety_adapter::Reason;
use nicety_memory::{Map, Rights, Span};

use super::Rtl8139;
use super::filter::{Match, Miss, PIECES};
use super::registers::{self as r, rcr};

/// Bytes of a frame's header.
const HEADER: u32 = 4;
/// Distance of the driver's read position from CAPR.
const AHEAD: u32 = 16;

const ROK: u32 = 1;
const BAR: u32 = 1 << 13;
const PAM: u32 = 1 << 14;
const MAR: u32 = 1 << 15;

/// The buffer during one delivery.
pub(super) struct Buffer<'m> {
    pub memory: &'m Map,
    start: u32,
    len: u32,
    free: u32,
    wrap: bool,
    /// CBR.
    pub at: u32,
}

impl Buffer<'_> {
    /// RBSTART.
    pub fn base(&self) -> u64 {
        self.start.into()
    }
}

impl Rtl8139 {
    /// RCR.RBLEN.
    pub(super) fn buffer_bytes(&self) -> u32 {
        8192 << ((self.registers[r::RCR] & rcr::RBLEN) >> 11)
    }

    /// The driver's read position.
    fn read_at(&self) -> u32 {
        (self.registers[r::CAPR].wrapping_add(AHEAD) % self.buffer_bytes()) & !3
    }

    pub(super) fn buffer_is_empty(&self) -> bool {
        self.read_at() == self.registers[r::CBR]
    }

    /// Bytes that are free for the chip.
    pub(super) fn free_bytes(&self) -> u32 {
        let len = self.buffer_bytes();
        let free = (self.read_at() + len - self.registers[r::CBR]) % len;
        if free == 0 { len } else { free }
    }

    pub(super) fn buffer<'m>(&self, memory: &'m Map) -> Buffer<'m> {
        let len = self.buffer_bytes();
        Buffer {
            memory,
            start: self.registers[r::RBSTART],
            len,
            free: self.free_bytes(),
            // The longest buffer has no room after its end.
            wrap: self.registers[r::RCR] & rcr::WRAP != 0 && len < 65536,
            at: self.registers[r::CBR],
        }
    }
}

impl Buffer<'_> {
    /// Bytes that a frame of `total` takes.
    fn taken(total: u32) -> u32 {
        (HEADER + total).next_multiple_of(4)
    }

    /// Finds the place for frame `index` of a packet, of `total` bytes with its check sequence.
    pub fn room(&self, index: u32, total: u32, spans: &mut ArrayVec<Span, PIECES>) -> Result<(), Miss> {
        if Self::taken(total) >= self.free {
            return Err(Miss::NoRoom(index));
        }
        let begin = self.at + HEADER;
        let before_end = if self.wrap { total } else { total.min(self.len.saturating_sub(begin)) };
        let mut push = |from: u32, len: u32| {
            let into = |span| spans.try_push(span).is_ok();
            let place = u64::from(self.start) + u64::from(from);
            len == 0 || self.memory.translate(place, len, Rights::WRITE, into).is_ok()
        };
        let found = push(begin, before_end) && push(0, total - before_end);
        // The place includes the header.
        let place = u64::from(self.start) + u64::from(self.at % self.len);
        let header = self.memory.translate(place, HEADER, Rights::WRITE, |_| true);
        if found && header.is_ok() { Ok(()) } else { Err(Miss::Never(Reason::BadAddress)) }
    }

    /// Writes the header, and advances past the frame.
    pub fn give(&mut self, total: u32, how: Match) {
        let status = ROK
            | match how {
                Match::Own => PAM,
                Match::Broadcast => BAR,
                Match::Multicast => MAR,
                Match::Any => 0,
            };
        // The memory existed when room was found.
        let place = u64::from(self.start) + u64::from(self.at);
        let _ = self.memory.write(place, &(status | total << 16).to_le_bytes());
        let taken = Self::taken(total);
        self.free -= taken;
        self.at = (self.at + taken) % self.len;
    }
}
