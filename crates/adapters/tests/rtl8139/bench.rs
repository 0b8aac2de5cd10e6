//! A guest of an RTL8139C+ or RTL8139: registers, descriptors, and the steps of Linux's drivers.

use nicety_adapter::{Offload, Wants};

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::{MAC, PEER, rfc1071, tcp4, udp4, verified};

/// Addresses in the guest's memory.
pub const TX_RING: u64 = 0x1_0000;
pub const RX_RING: u64 = 0x2_0000;
pub const TX_DATA: u64 = 0x10_0000;
pub const RX_DATA: u64 = 0x40_0000;
pub const RING: u64 = 64;
/// Linux's PKT_BUF_SZ.
pub const BUFFER: u64 = 1536;

pub type Bench = shared::Bench;

impl Bench {
    /// A new adapter with bus mastering enabled.
    pub fn of(model: &str) -> Self {
        let mut this = Self::around(shared::adapter(model), ());
        this.bar = 1;
        this.command(0x0107);
        this
    }

    /// Opened as 8139cp.c does: cp_init_hw, cp_enable_irq.
    pub fn opened() -> Self {
        let mut this = Self::of("rtl8139");
        for i in 0..RING {
            let end = if i + 1 == RING { 1 << 30 } else { 0 };
            this.post(i, 0x8000_0000 | end | BUFFER as u32, RX_DATA + i * 0x1000);
            this.put(TX_RING + 16 * i, &[0, 0, 0, (end >> 24) as u8]);
        }
        this.w8(0x37, 0x10);
        assert_eq!(this.r8(0x37) & 0x10, 0);
        this.w8(0x50, 0xc0);
        this.w16(0xe0, 0x003b);
        for (register, value) in [(0x28, 0), (0x2c, 0), (0xe4, RX_RING), (0xe8, 0), (0x20, TX_RING), (0x24, 0)] {
            this.w(register, value as u32);
        }
        this.w8(0x37, 0x0c);
        this.w8(0xec, 6);
        this.w(0x44, 0x0000_a40a);
        this.w(0x40, 0x0300_0600);
        this.w8(0x50, 0);
        this.w16(0x3c, 0x80ff);
        this
    }

    /// Opened as 8139too.c does, with a receive buffer of 32 KiB whose last frame may continue past the end.
    pub fn opened_plain(model: &str) -> Self {
        let mut this = Self::of(model);
        this.w8(0x37, 0x10);
        this.w(0x30, RX_DATA as u32);
        this.w8(0x37, 0x0c);
        this.w(0x44, 0x0000_e78a | 2 << 11);
        this.w(0x40, 0x0300_0680);
        for slot in 0..4 {
            this.w(0x20 + 4 * slot, TX_DATA as u32 + 0x800 * slot as u32);
        }
        this.w16(0x3c, 0xe07f);
        this
    }

    pub fn command(&mut self, value: u16) {
        self.config_write(4, &value.to_le_bytes());
    }

    /// Writes a receive descriptor.
    pub fn post(&self, index: u64, first: u32, address: u64) {
        self.put(RX_RING + 16 * index, &first.to_le_bytes());
        self.put(RX_RING + 16 * index + 4, &[0; 4]);
        self.put(RX_RING + 16 * index + 8, &address.to_le_bytes());
    }

    /// Writes a transmit descriptor, with its own piece of memory, and keeps EOR.
    pub fn describe(&self, index: u64, first: u32, second: u32, address: u64) {
        let end = if index + 1 == RING { 1 << 30 } else { 0 };
        self.put(TX_RING + 16 * index, &(first | end).to_le_bytes());
        self.put(TX_RING + 16 * index + 4, &second.to_le_bytes());
        self.put(TX_RING + 16 * index + 8, &address.to_le_bytes());
    }

    /// A frame in one descriptor that the chip owns.
    pub fn queue(&self, index: u64, frame: &[u8], flags: u32, second: u32) {
        let at = TX_DATA + index * 0x1_0000 % 0x30_0000;
        self.put(at, frame);
        self.describe(index, 0xb000_0000 | flags | frame.len() as u32, second, at);
    }

    /// Calls fetch once and completes. Returns the packets, and whether there may be more.
    pub fn turn(&mut self) -> (Vec<(Vec<u8>, Offload)>, bool) {
        self.turn_with(|_| ())
    }

    /// The same, with an action of the guest before the completion.
    pub fn turn_with(&mut self, does: impl FnOnce(&mut Self)) -> (Vec<(Vec<u8>, Offload)>, bool) {
        let progress = self.fetch();
        let packets = whole(&self.batch);
        does(self);
        self.complete();
        (packets, progress.more)
    }

    /// Takes turns until no packet is left: at most this many.
    pub fn ends_within(&mut self, turns: usize) {
        assert!((0..turns).any(|_| !self.turn().1), "it never ends");
    }

    /// Writes the doorbell, and takes packets until none is left.
    pub fn transmit(&mut self) -> Vec<(Vec<u8>, Offload)> {
        self.w8(0xd9, 0x40);
        self.drain()
    }

    pub fn drain(&mut self) -> Vec<(Vec<u8>, Offload)> {
        self.fetch_all(0, whole)
    }

    /// Delivers a frame. True if it was taken, or dropped.
    pub fn takes(&mut self, frame: &[u8]) -> bool {
        self.bring_one(frame).refused() == 0
    }

    /// The line's level, if it was reported since the last call.
    pub fn reported(&mut self) -> Option<bool> {
        self.out.line.take()
    }
}

/// The packets of a batch, whole, for a receiver that accepts every offload but partial checksums.
fn whole(batch: &nicety_adapter::Batch) -> Vec<(Vec<u8>, Offload)> {
    shared::received_by(batch, Wants { frame_max: 70_000, tcp4: true, tcp6: true, udp: true, ..Wants::default() })
}

/// An Ethernet frame of an experimental protocol.
pub fn frame(to: [u8; 6], len: usize, seed: u8) -> Vec<u8> {
    shared::packets::experimental(to, PEER, len, seed)
}

/// TCP or UDP over IPv4 with this payload. Header checksum and transport checksum are zero.
pub fn ip(to: [u8; 6], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let (mut packet, field) = if protocol == 6 { (tcp4(to, payload), 50) } else { (udp4(to, 0x1000, payload), 40) };
    packet[24..26].fill(0);
    packet[field..field + 2].fill(0);
    packet
}
