//! Descriptors in the styles that BCR20 selects ("Receive Descriptors", "Transmit Descriptors").
//!
//! ```text
//!  style 0 (LANCE), 8 bytes          style 2 (PCnet-PCI), 16 bytes      style 3 (PCnet-PCI II)
//!  0  status 8 | buffer 24           0  buffer 32                       0  second status or length
//!  4  second status or length | BCNT 4  status 16 | BCNT                4  status 16 | BCNT
//!                                    8  second status or length         8  buffer 32
//! ```
//! BCNT is the buffer's length as two's complement, of twelve bits. Style 1 (ILACC) has style 2's layout.

use nicety_adapter::ErrorPlace;
use nicety_memory::{Map, Rights, Window};

/// The chip owns the descriptor.
pub const OWN: u32 = 1 << 31;
/// Any error of the second status word, or a bus error.
pub const ERR: u32 = 1 << 30;
/// Transmit: append a check sequence in spite of MODE.DXMTFCS.
pub const ADD_FCS: u32 = 1 << 29;
/// Transmit: interrupt for this descriptor (LTINT).
pub const LTINT: u32 = 1 << 28;
/// Receive: the frame did not fit, or memory was too slow.
pub const OFLO: u32 = 1 << 28;
/// First descriptor of a frame.
pub const STP: u32 = 1 << 25;
/// Last descriptor of a frame.
pub const ENP: u32 = 1 << 24;
/// Receive: matched the station's own address; the hash; broadcast.
pub const PAM: u32 = 1 << 22;
pub const LAFM: u32 = 1 << 21;
pub const BAM: u32 = 1 << 20;

/// Second status of a transmit descriptor: a chain without an end.
pub const BUFF: u32 = 1 << 31;
/// Underflow: data came too late.
pub const UFLO: u32 = 1 << 30;
/// Loss of carrier.
pub const LCAR: u32 = 1 << 27;

/// A ring outside guest memory.
/// Most descriptors that are searched for the one that lost a frame.
const LOST_MAX: u32 = 128;
const NOWHERE: &str = "the ring lies where no memory is";
/// A ring without descriptors (CVE-2016-7909).
const EMPTY: &str = "the ring has no descriptors";

/// Layout of structures.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// 32-bit structures (BCR20.SSIZE32).
    pub wide: bool,
    /// Style 3.
    pub swapped: bool,
    /// Upper byte of 24-bit addresses: CSR2, bits 15:8.
    pub upper: u32,
}

impl Style {
    /// Bytes of a descriptor.
    pub fn bytes(self) -> u32 {
        if self.wide { 16 } else { 8 }
    }

    /// A full address.
    pub fn address(self, address: u32) -> u64 {
        u64::from(if self.wide { address } else { address & 0xff_ffff | self.upper })
    }
}

/// A descriptor owned by the chip, read once.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// OWN to ENP.
    pub status: u32,
    /// The buffer.
    pub address: u64,
    /// Its bytes, 1 to 4096.
    pub len: u32,
}

/// A ring, for one call.
pub struct Ring<'m> {
    window: Window<'m>,
    style: Style,
    /// Descriptors, 1 to 65535.
    pub len: u32,
}

impl<'m> Ring<'m> {
    /// The ring at `base` with `length` in the form of CSR76 and CSR78: two's complement.
    pub fn new(memory: &'m Map, style: Style, base: u32, length: u32) -> Result<Self, &'static str> {
        let len = length.wrapping_neg() & 0xffff;
        if len == 0 {
            return Err(EMPTY);
        }
        let base = u64::from(base & !(style.bytes() - 1));
        let window = memory.window(base, len * style.bytes(), Rights::BOTH).map_err(|_| NOWHERE)?;
        Ok(Self { window, style, len })
    }

    /// Offset of a descriptor. An index of a longer ring, from before a write to CSR76 or CSR78, is the first's.
    fn place(&self, index: u32) -> usize {
        (if index < self.len { index } else { 0 } * self.style.bytes()) as usize
    }

    /// The next descriptor's index.
    pub fn after(&self, index: u32) -> u32 {
        if index.saturating_add(1) >= self.len { 0 } else { index + 1 }
    }

    /// The index before.
    pub fn before(&self, index: u32) -> u32 {
        if index == 0 || index >= self.len { self.len - 1 } else { index - 1 }
    }

    /// The first descriptor from `first` on whose buffer is at this address; `first` if there is none near.
    #[cold]
    pub fn find(&self, first: u32, address: u64) -> u32 {
        let mut at = first;
        for _ in 0..self.len.min(LOST_MAX) {
            if self.style.address(self.buffer(at)) == address {
                return at;
            }
            at = self.after(at);
        }
        first
    }

    /// The receive descriptor that lost the frame before this position, and its address.
    #[cold]
    pub fn blame(&self, next: u32, memory: &Map) -> (ErrorPlace, u64) {
        let first = self.before(next);
        let address = |at| self.style.address(self.buffer(at));
        let mut at = first;
        for _ in 0..self.len.min(LOST_MAX) {
            if memory.translate(address(at), 1, Rights::WRITE, |_| true).is_err() {
                return (ErrorPlace::receive(0, at), address(at));
            }
            at = self.after(at);
        }
        (ErrorPlace::receive(0, first), address(first))
    }

    /// Status of a descriptor, whoever owns it.
    pub fn status(&self, index: u32) -> u32 {
        let at = self.place(index);
        self.window.load_u32(if self.style.wide { at + 4 } else { at })
    }

    /// The buffer's address field.
    pub fn buffer(&self, index: u32) -> u32 {
        let at = self.place(index);
        match (self.style.wide, self.style.swapped) {
            (true, true) => self.window.load_u32(at + 8),
            (true, false) => self.window.load_u32(at),
            (false, _) => self.window.load_u32(at) & 0xff_ffff,
        }
    }

    /// A descriptor, if the chip owns it. OWN is read first, because the driver writes it last.
    pub fn owned(&self, index: u32) -> Option<Descriptor> {
        let status = self.status(index);
        if status & OWN == 0 {
            return None;
        }
        let count = if self.style.wide { status } else { self.window.load_u32(self.place(index) + 4) };
        let address = if self.style.wide { self.buffer(index) } else { status };
        Some(Descriptor { status, address: self.style.address(address), len: 4096 - (count & 0xfff) })
    }

    /// Writes the second status, or a length.
    fn second(&self, index: u32, value: u32) {
        let at = self.place(index);
        match (self.style.wide, self.style.swapped) {
            (true, true) => self.window.store_u32(at, value),
            (true, false) => self.window.store_u32(at + 8, value),
            (false, _) => self.window.store_u16(at + 6, value as u16),
        }
    }

    /// Writes the status' upper byte, OWN to ENP, which hands the descriptor to the driver.
    fn release(&self, index: u32, status: u32) {
        let at = self.place(index);
        self.window.store_u8(if self.style.wide { at + 7 } else { at + 3 }, (status >> 24) as u8);
    }

    /// Completes a transmit descriptor.
    pub fn sent(&self, index: u32, status: u32, errors: u32) {
        let kept = status & (ADD_FCS | STP | ENP);
        if errors != 0 {
            self.second(index, if self.style.wide { errors } else { errors >> 16 });
        }
        self.release(index, kept | if errors != 0 { ERR } else { 0 });
    }

    /// Completes a receive descriptor: `status` in style 2's form, and with ENP the frame's length.
    pub fn filled(&self, index: u32, count: u32, status: u32, len: u32) {
        if status & ENP != 0 {
            self.second(index, len & 0xfff);
        }
        if self.style.wide {
            self.window.store_u32(self.place(index) + 4, status | count & 0xffff);
        } else {
            self.release(index, status);
        }
    }
}
