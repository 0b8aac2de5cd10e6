//! The chip's own counters (manual, 13.7). They stay at their maximum; lengths count the frame check sequence.

use super::E1000;
use super::registers as r;

/// Bytes of a frame check sequence.
const CHECK: u32 = 4;

impl E1000 {
    /// Counts at a slot.
    pub(super) fn count(&mut self, slot: usize, n: u32) {
        let counter = &mut self.registers[slot];
        *counter = counter.saturating_add(n);
    }

    fn count_octets(&mut self, low: usize, n: u64) {
        let sum = (u64::from(self.registers[low + 1]) << 32 | u64::from(self.registers[low])).saturating_add(n);
        (self.registers[low], self.registers[low + 1]) = (sum as u32, (sum >> 32) as u32);
    }

    /// The six size classes lie at successive slots.
    fn class(len: u32) -> usize {
        match len {
            0..=64 => 0,
            65..=127 => 1,
            128..=255 => 2,
            256..=511 => 3,
            512..=1023 => 4,
            _ => 5,
        }
    }

    /// A good frame of `len` bytes was received.
    pub(super) fn count_received(&mut self, destination: &[u8], len: u32) {
        let len = len + CHECK;
        self.count(r::GPRC, 1);
        self.count(r::TPR, 1);
        self.count(r::PRC64 + Self::class(len), 1);
        self.count_octets(r::GORCL, u64::from(len));
        self.count_octets(r::TORL, u64::from(len));
        match destination {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => self.count(r::BPRC, 1),
            [first, ..] if first & 1 != 0 => self.count(r::MPRC, 1),
            _ => {}
        }
    }

    /// `frames` good frames went out, all of `full` bytes but the last.
    pub(super) fn count_sent(&mut self, destination: &[u8], frames: u32, full: u32, last: u32) {
        let (full, last) = (full + CHECK, last + CHECK);
        self.count(r::GPTC, frames);
        self.count(r::TPT, frames);
        self.count(r::PTC64 + Self::class(full), frames - 1);
        self.count(r::PTC64 + Self::class(last), 1);
        let octets = u64::from(full) * u64::from(frames - 1) + u64::from(last);
        self.count_octets(r::GOTCL, octets);
        self.count_octets(r::TOTL, octets);
        match destination {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => self.count(r::BPTC, frames),
            [first, ..] if first & 1 != 0 => self.count(r::MPTC, frames),
            _ => {}
        }
    }
}
