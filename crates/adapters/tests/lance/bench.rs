//! A guest of a PCnet: its ports, its rings in the styles of BCR20, and pcnet32's steps.

use nicety_adapter::{Delivery, Outbox};

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::{MAC, PEER, frame, to};
pub use shared::{Dice, MEMORY, cut, plain_batch};

/// Addresses in the guest's memory.
pub const BLOCK: u32 = 0x8000;
pub const TX_RING: u32 = 0x1_0000;
pub const RX_RING: u32 = 0x2_0000;
pub const TX_DATA: u32 = 0x10_0000;
pub const RX_DATA: u32 = 0x40_0000;

/// CSR0: INIT, STRT, STOP, TDMD, TXON, INEA, INTR, IDON, TINT, RINT, MERR, MISS, ERR.
pub const INIT: u16 = 0x0001;
pub const STRT: u16 = 0x0002;
pub const STOP: u16 = 0x0004;
pub const TDMD: u16 = 0x0008;
pub const TXON: u16 = 0x0010;
pub const INEA: u16 = 0x0040;
pub const INTR: u16 = 0x0080;
pub const IDON: u16 = 0x0100;
pub const TINT: u16 = 0x0200;
pub const RINT: u16 = 0x0400;
pub const MERR: u16 = 0x0800;
pub const MISS: u16 = 0x1000;
pub const BABL: u16 = 0x4000;

/// The upper half of a descriptor's second dword.
pub const OWN: u16 = 0x8000;
pub const ERR: u16 = 0x4000;
pub const STP: u16 = 0x0200;
pub const ENP: u16 = 0x0100;
/// A frame in one buffer, as pcnet32_start_xmit posts it.
pub const WHOLE: u16 = OWN | STP | ENP;

pub struct Pcnet {
    /// The ports are double words.
    pub double: bool,
    /// BCR20's style.
    pub style: u16,
    /// Descriptors, as powers of two.
    pub logs: [u32; 2],
    /// MODE.
    pub mode: u16,
}

pub type Bench = shared::Bench<Pcnet>;

impl Bench {
    pub fn new() -> Self {
        Self::of("pcnet")
    }

    pub fn of(model: &str) -> Self {
        Self::around(shared::adapter(model), Pcnet { double: false, style: 2, logs: [4, 5], mode: 0x0080 })
    }

    /// Opened as by pcnet32_open: 16 transmit and 32 receive descriptors.
    pub fn opened() -> Self {
        let mut this = Self::new();
        this.open();
        this
    }

    pub fn open(&mut self) {
        self.command(0x0007);
        self.reset();
        let style = self.style;
        self.wbcr(20, style);
        self.rings();
        self.wcsr(1, BLOCK as u16);
        self.wcsr(2, (BLOCK >> 16) as u16);
        self.wcsr(4, 0x0915);
        self.wcsr(0, INIT);
        assert_eq!(self.csr(0) & IDON, IDON);
        self.wcsr(0, STRT | INEA | IDON);
        self.out = Outbox::default();
    }

    /// Fills rings and the initialization block.
    pub fn rings(&mut self) {
        let [transmit, receive] = self.logs;
        self.put(TX_RING, &vec![0; 16 << transmit]);
        for index in 0..1 << receive {
            self.post(index, RX_DATA + index * 2048, 1544);
        }
        let mut block = self.mode.to_le_bytes().to_vec();
        if self.style == 0 {
            block.extend(MAC);
            block.extend([0; 8]);
            block.extend((RX_RING | receive << 29).to_le_bytes());
            block.extend((TX_RING | transmit << 29).to_le_bytes());
        } else {
            block.extend([(receive << 4) as u8, (transmit << 4) as u8]);
            block.extend(MAC);
            block.extend([0; 10]);
            block.extend(RX_RING.to_le_bytes());
            block.extend(TX_RING.to_le_bytes());
        }
        self.put(BLOCK, &block);
    }

    fn port_in(&mut self, port: u64) -> u16 {
        if self.double { self.r(0x10 + 4 * port) as u16 } else { self.r16(0x10 + 2 * port) }
    }

    fn port_out(&mut self, port: u64, value: u16) {
        if self.double { self.w(0x10 + 4 * port, value.into()) } else { self.w16(0x10 + 2 * port, value) }
    }

    pub fn csr(&mut self, number: u16) -> u16 {
        self.port_out(1, number);
        self.port_in(0)
    }

    pub fn wcsr(&mut self, number: u16, value: u16) {
        self.port_out(1, number);
        self.port_out(0, value);
    }

    pub fn bcr(&mut self, number: u16) -> u16 {
        self.port_out(1, number);
        self.port_in(3)
    }

    pub fn wbcr(&mut self, number: u16, value: u16) {
        self.port_out(1, number);
        self.port_out(3, value);
    }

    pub fn reset(&mut self) {
        self.port_in(2);
    }

    pub fn command(&mut self, value: u16) {
        self.config_write(4, &value.to_le_bytes());
    }

    /// Writes a descriptor of either ring.
    fn descriptor(&self, ring: u32, index: u32, address: u32, len: u32, status: u16) {
        let count = 0xf000 | (len as u16).wrapping_neg() & 0x0fff;
        match self.style {
            0 => {
                let at = ring + index * 8;
                self.put(at + 4, &count.to_le_bytes());
                self.put(at + 6, &[0; 2]);
                self.put32(at, address & 0xff_ffff | u32::from(status >> 8) << 24);
            }
            style => {
                let at = ring + index * 16;
                let (address_at, second_at) = if style == 3 { (8, 0) } else { (0, 8) };
                self.put32(at + address_at, address);
                self.put32(at + second_at, 0);
                self.put(at + 4, &count.to_le_bytes());
                self.put(at + 6, &status.to_le_bytes());
            }
        }
    }

    /// Status and second status (or length) of a descriptor.
    fn state(&self, ring: u32, index: u32) -> (u16, u32) {
        match self.style {
            0 => (self.get16(ring + index * 8 + 2) & 0xff00, self.get16(ring + index * 8 + 6).into()),
            style => {
                let at = ring + index * 16;
                (self.get16(at + 6), self.get32(at + if style == 3 { 0 } else { 8 }))
            }
        }
    }

    /// Gives a receive descriptor to the chip.
    pub fn post(&self, index: u32, address: u32, len: u32) {
        self.descriptor(RX_RING, index, address, len, OWN);
    }

    pub fn received(&self, index: u32) -> (u16, u32) {
        self.state(RX_RING, index)
    }

    pub fn tx(&self, index: u32, address: u32, len: u32, status: u16) {
        self.descriptor(TX_RING, index, address, len, status);
    }

    pub fn sent(&self, index: u32) -> (u16, u32) {
        self.state(TX_RING, index)
    }

    /// Writes a frame to the descriptor's own buffer, and gives it to the chip.
    pub fn queue(&self, index: u32, frame: &[u8]) {
        self.put(TX_DATA + index * 4096, frame);
        self.tx(index, TX_DATA + index * 4096, frame.len() as u32, WHOLE);
    }

    pub fn kick(&mut self) {
        self.wcsr(0, INEA | TDMD);
    }

    /// Transmits until no frame is left. Returns the frames.
    pub fn transmit(&mut self) -> Vec<Vec<u8>> {
        self.fetch_all(0, cut)
    }

    /// Delivers frames from another port.
    pub fn bring(&mut self, frames: &[&[u8]]) -> Delivery {
        self.deliver(&plain_batch(frames))
    }
}
