//! A guest of an 8254x and its successors: registers, rings of legacy descriptors, and a driver's steps.

use nicety_adapter::{Batch, Delivery, Edit, Pick};

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::*;
pub use shared::*;

pub const CTRL: u64 = 0x0;
pub const STATUS: u64 = 0x8;
pub const MDIC: u64 = 0x20;
pub const ICR: u64 = 0xc0;
pub const ITR: u64 = 0xc4;
pub const ICS: u64 = 0xc8;
pub const IMS: u64 = 0xd0;
pub const IMC: u64 = 0xd8;
pub const RCTL: u64 = 0x100;
pub const TCTL: u64 = 0x400;
pub const RDH: u64 = 0x2810;
pub const RDT: u64 = 0x2818;
pub const TDH: u64 = 0x3810;
pub const TDT: u64 = 0x3818;
pub const RXCSUM: u64 = 0x5000;

/// RCTL as Linux sets it: EN, BAM, 2048-byte buffers, RDMTS half.
pub const RCTL_LINUX: u32 = 0x8002;
/// EOP, IFCS, RS.
pub const CMD: u32 = 0x0b00_0000;
pub const RING: u64 = 256;

/// Addresses in the guest's memory.
pub const TX_RING: u64 = 0x1_0000;
pub const RX_RING: u64 = 0x2_0000;
pub const TX_DATA: u64 = 0x10_0000;
pub const RX_DATA: u64 = 0x40_0000;

/// A frame on the wire.
pub type Wire = Vec<u8>;

impl Bench {
    pub fn new() -> Self {
        Self::of("e1000")
    }

    /// A bench with this model.
    pub fn of(model: &str) -> Self {
        Self::around(adapter(model), ())
    }

    /// Probed and opened as Linux does, with rings of 256.
    pub fn opened() -> Self {
        Self::opened_of("e1000")
    }

    /// The same with this model.
    pub fn opened_of(model: &str) -> Self {
        let mut this = Self::of(model);
        this.start(model);
        this.open_transmit(TX_RING, RING as u32);
        this.open_receive(RX_RING, RING as u32, RCTL_LINUX, 2048);
        this
    }
}

impl<T> Bench<T> {
    pub fn command(&mut self, value: u16) {
        self.config_write(4, &value.to_le_bytes());
    }

    /// Resets through I/O ports, as e1000_reset_hw does for this chip.
    pub fn reset(&mut self) {
        self.bar_write(1, 0, &[0; 4]);
        let value = self.r(CTRL) | 1 << 26;
        self.bar_write(1, 4, &value.to_le_bytes());
    }

    /// Resets this model as its driver does, and asks for a link (CTRL.SLU).
    pub fn start(&mut self, model: &str) {
        self.command(0x0107);
        if ["e1000e", "igb"].contains(&model) {
            let control = self.r(CTRL);
            self.w(CTRL, control | 1 << 26);
        } else {
            self.reset();
        }
        let control = self.r(CTRL);
        self.w(CTRL, control | 1 << 6);
    }

    pub fn open_transmit(&mut self, ring: u64, count: u32) {
        for (offset, value) in [(0x3808, count * 16), (0x3804, 0), (0x3800, ring as u32), (TDT, 0), (TDH, 0)] {
            self.w(offset, value);
        }
        self.w(TCTL, 0x0004_010a);
    }

    pub fn open_receive(&mut self, ring: u64, count: u32, rctl: u32, buffer: u64) {
        for i in 0..u64::from(count) {
            self.put64(ring + i * 16, RX_DATA + i * buffer);
            self.put64(ring + i * 16 + 8, 0);
        }
        for (offset, value) in [(0x2808, count * 16), (0x2804, 0), (0x2800, ring as u32), (RDT, 0), (RDH, 0)] {
            self.w(offset, value);
        }
        self.w(RCTL, rctl);
        self.w(RDT, count - 1);
    }

    /// Writes a transmit descriptor.
    pub fn descriptor(&self, index: u64, address: u64, lower: u32, upper: u32) {
        self.put64(TX_RING + index * 16, address);
        self.put32(TX_RING + index * 16 + 8, lower);
        self.put32(TX_RING + index * 16 + 12, upper);
    }

    pub fn status_of(&self, index: u64) -> u8 {
        self.get(TX_RING + index * 16 + 12, 1)[0]
    }

    /// A receive descriptor: length, status, errors, special.
    pub fn received(&self, index: u64) -> (u16, u8, u8, u16) {
        let d = self.get(RX_RING + index * 16 + 8, 8);
        (u16::from_le_bytes([d[0], d[1]]), d[4], d[5], u16::from_le_bytes([d[6], d[7]]))
    }

    /// Transmits until no packet is left. Returns the frames for a wire without offloads.
    pub fn transmit(&mut self) -> Vec<Wire> {
        self.fetch_all(0, cut)
    }

    /// Delivers frames from another port.
    pub fn bring(&mut self, sender: &Batch, edit: Edit) -> Delivery {
        let picks: Vec<Pick> = (0..sender.len()).map(|i| Pick { edit, ..Pick::whole(i as u16) }).collect();
        self.deliver_some(sender, &picks)
    }

    /// e1000_read_phy_reg.
    pub fn phy(&mut self, register: u32) -> u16 {
        self.w(MDIC, register << 16 | 1 << 21 | 0x0800_0000);
        let answer = self.r(MDIC);
        assert_eq!(answer & 0x5000_0000, 0x1000_0000, "ready, no error");
        answer as u16
    }

    /// e1000_write_phy_reg.
    pub fn set_phy(&mut self, register: u32, value: u16) {
        self.w(MDIC, u32::from(value) | register << 16 | 1 << 21 | 0x0400_0000);
        assert_eq!(self.r(MDIC) & 0x5000_0000, 0x1000_0000, "ready, no error");
    }
}
