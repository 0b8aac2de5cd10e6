//! The chips' own counters (Intel 317453, 13.7). They stop at their maximum; lengths count the frame check sequence.

use super::registers::*;

/// Offset of the counters.
pub const AT: u32 = 0x4000;
/// Bytes of a frame check sequence.
const CHECK: u32 = 4;
/// Frames received, by size class.
const RECEIVED: [Reg; 6] = [PRC64, PRC127, PRC255, PRC511, PRC1023, PRC1522];
/// Frames sent, by size class.
const SENT: [Reg; 6] = [PTC64, PTC127, PTC255, PTC511, PTC1023, PTC1522];

/// Read-only, cleared by reading.
const fn counter(name: Reg, offset: u32) -> Row {
    rw(name, offset, 0, 0, "13.7").read_clears(ALL)
}

/// The low half of a 64-bit counter: see [`OctetsRead`].
const fn counter_low(name: Reg, offset: u32) -> Row {
    rw(name, offset, 0, 0, "13.7").device(ALL)
}

/// All of them.
#[rustfmt::skip]
pub const ROWS: [Row; 58] = [
    counter(CRCERRS, 0x4000), counter(ALGNERRC, 0x4004), counter(SYMERRS, 0x4008), counter(RXERRC, 0x400c),
    counter(MPC, 0x4010), counter(SCC, 0x4014), counter(ECOL, 0x4018), counter(MCC, 0x401c), counter(LATECOL, 0x4020),
    counter(COLC, 0x4028), counter(DC, 0x4030), counter(TNCRS, 0x4034), counter(SEC, 0x4038),
    counter(CEXTERR, 0x403c), counter(RLEC, 0x4040), counter(XONRXC, 0x4048), counter(XONTXC, 0x404c),
    counter(XOFFRXC, 0x4050), counter(XOFFTXC, 0x4054), counter(FCRUC, 0x4058), counter(PRC64, 0x405c),
    counter(PRC127, 0x4060), counter(PRC255, 0x4064), counter(PRC511, 0x4068), counter(PRC1023, 0x406c),
    counter(PRC1522, 0x4070), counter(GPRC, 0x4074), counter(BPRC, 0x4078), counter(MPRC, 0x407c),
    counter(GPTC, 0x4080), counter_low(GORCL, 0x4088), counter(GORCH, 0x408c), counter_low(GOTCL, 0x4090),
    counter(GOTCH, 0x4094), counter(RNBC, 0x40a0), counter(RUC, 0x40a4), counter(RFC, 0x40a8), counter(ROC, 0x40ac),
    counter(RJC, 0x40b0), counter(MGTPRC, 0x40b4), counter(MGTPDC, 0x40b8), counter(MGTPTC, 0x40bc),
    counter_low(TORL, 0x40c0), counter(TORH, 0x40c4), counter_low(TOTL, 0x40c8), counter(TOTH, 0x40cc),
    counter(TPR, 0x40d0), counter(TPT, 0x40d4), counter(PTC64, 0x40d8), counter(PTC127, 0x40dc),
    counter(PTC255, 0x40e0), counter(PTC511, 0x40e4), counter(PTC1023, 0x40e8), counter(PTC1522, 0x40ec),
    counter(MPTC, 0x40f0), counter(BPTC, 0x40f4), counter(TSCTC, 0x40f8), counter(TSCTFC, 0x40fc),
];

/// The halves of the 64-bit counters, low and high.
const OCTETS: [[Reg; 2]; 6] =
    [[GORCL, GORCH], [GOTCL, GOTCH], [TORL, TORH], [TOTL, TOTH], [HGORCL, HGORCH], [HGOTCL, HGOTCH]];

/// Values of the 64-bit counters at the last reads of their low halves. A read of the high half clears both (13.7.28), but frames
/// that came between the two reads stay counted: Linux reads them while frames arrive (e1000e_update_stats), and would lose those.
#[derive(Clone, Copy, Debug, Default)]
pub struct OctetsRead([Option<u64>; OCTETS.len()]);

impl OctetsRead {
    /// Reads a half of a 64-bit counter; `None` for any other register.
    pub fn read(&mut self, bank: &mut Bank, name: Reg) -> Option<u32> {
        let (read, &[low, high]) = self.0.iter_mut().zip(&OCTETS).find(|(_, halves)| halves.contains(&name))?;
        let value = u64::from(bank[high]) << 32 | u64::from(bank[low]);
        if name == low {
            *read = Some(value);
            return Some(value as u32);
        }
        let taken = read.take().map_or(value, |read| read.min(value));
        let rest = value - taken;
        (bank[low], bank[high]) = (rest as u32, (rest >> 32) as u32);
        Some((taken >> 32) as u32)
    }
}

/// The size class of a frame with its check sequence.
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

/// Counting on a chip's registers.
pub trait Statistics {
    /// Adds `n` to a counter.
    fn count(&mut self, counter: Reg, n: u32);

    /// A good frame of `len` bytes was received.
    fn count_received(&mut self, destination: &[u8], len: u32);

    /// Counts a MAC control frame of `len` bytes, sent or received, which is only in these totals.
    fn count_control(&mut self, frames: Reg, low: Reg, high: Reg, len: u32);

    /// Counts `frames` good frames sent, all of `full` bytes except the last.
    fn count_sent(&mut self, destination: &[u8], frames: u32, full: u32, last: u32);
}

fn count_octets(bank: &mut Bank, low: Reg, high: Reg, n: u64) {
    let sum = (u64::from(bank[high]) << 32 | u64::from(bank[low])).saturating_add(n);
    (bank[low], bank[high]) = (sum as u32, (sum >> 32) as u32);
}

impl Statistics for Bank {
    fn count(&mut self, counter: Reg, n: u32) {
        self[counter] = self[counter].saturating_add(n);
    }

    fn count_received(&mut self, destination: &[u8], len: u32) {
        let len = len + CHECK;
        self.count(GPRC, 1);
        self.count(TPR, 1);
        self.count(RECEIVED[class(len)], 1);
        count_octets(self, GORCL, GORCH, u64::from(len));
        count_octets(self, TORL, TORH, u64::from(len));
        match destination {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => self.count(BPRC, 1),
            [first, ..] if first & 1 != 0 => self.count(MPRC, 1),
            _ => {}
        }
    }

    fn count_control(&mut self, frames: Reg, low: Reg, high: Reg, len: u32) {
        self.count(frames, 1);
        count_octets(self, low, high, u64::from(len + CHECK));
    }

    fn count_sent(&mut self, destination: &[u8], frames: u32, full: u32, last: u32) {
        let (full, last) = (full + CHECK, last + CHECK);
        self.count(GPTC, frames);
        self.count(TPT, frames);
        self.count(SENT[class(full)], frames - 1);
        self.count(SENT[class(last)], 1);
        let octets = u64::from(full) * u64::from(frames - 1) + u64::from(last);
        count_octets(self, GOTCL, GOTCH, octets);
        count_octets(self, TOTL, TOTH, octets);
        match destination {
            [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, ..] => self.count(BPTC, frames),
            [first, ..] if first & 1 != 0 => self.count(MPTC, frames),
            _ => {}
        }
    }
}
