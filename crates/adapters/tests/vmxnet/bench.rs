//! A guest of a vmxnet: its ports, the driver data, and vmxnet.c's steps. Offsets and bits are written here again, so that a wrong
//! one in the adapter cannot agree with itself.

use nicety_adapter::{Delivery, Offload, Outbox};

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::{MAC, frame, partial, payload, tcp4, to};
pub use shared::{MEMORY, batch_of, plain_batch};

/// Addresses in the guest's memory.
pub const DATA: u32 = 0x1_0000;
pub const RX_DATA: u32 = 0x10_0000;
pub const PAGES: u32 = 0x20_0000;
pub const TX_DATA: u32 = 0x80_0000;
/// Commands.
pub const ACK: u32 = 1;
pub const UPDATE_LADRF: u32 = 2;
pub const UPDATE_IFF: u32 = 4;
pub const DISABLE: u32 = 0x20;
pub const ENABLE: u32 = 0x40;

/// Fields of the driver data.
pub const RX_LENGTH: u32 = 0x04;
pub const RX_LENGTH_2: u32 = 0x0c;
pub const IFFLAGS: u32 = 0x18;
pub const LADRF: u32 = 0x1c;
pub const TX_LENGTH: u32 = 0x28;
pub const TX_CUR: u32 = 0x2c;
pub const TX_STOPPED: u32 = 0x34;
pub const TX_CLUSTER: u32 = 0x38;
pub const MAX_FRAGS: u32 = 0x58;
pub const FEATURE_CTL: u32 = 0x5a;
pub const SAVED: u32 = 0x5c;
pub const RX_OFFSET: u32 = 0x6c;
pub const RX_OFFSET_2: u32 = 0x70;
pub const TX_OFFSET: u32 = 0x74;

/// Owners.
pub const DRIVER: u16 = 0;
pub const NIC: u16 = 2;
pub const NIC_FRAG: u16 = 4;
pub const DRIVER_FRAG: u16 = 5;

/// Flags of transmit entries.
pub const KEEP: u16 = 1;
pub const XSUM: u16 = 4;
pub const TSO: u16 = 8;
pub const MORE: u16 = 0x20;

/// Flags of receive entries.
pub const XSUM_OK: u16 = 1;
pub const WITH_FRAG: u16 = 2;
pub const FRAG_EOP: u16 = 4;

pub struct Vmxnet {
    /// Entries of each ring: receive, its pages, transmit.
    pub lens: [u32; 3],
    /// `maxFrags`, and whether to enable LPD.
    pub frags: u16,
    pub lpd: bool,
}

/// `base` is the offset of the ports in BAR 0.
pub type Bench = shared::Bench<Vmxnet>;

impl Bench {
    pub fn of(model: &str) -> Self {
        let mut this = Self::around(shared::adapter(model), Vmxnet { lens: [8, 32, 16], frags: 17, lpd: false });
        this.config_write(4, &[7, 0]);
        this
    }

    /// Opened as by vmxnet_open.
    pub fn opened(model: &str) -> Self {
        let mut this = Self::of(model);
        this.lay();
        this.open();
        this
    }

    /// Offset of a ring in the driver data.
    fn ring(&self, ring: usize) -> u32 {
        let [receive, pages, _] = self.lens;
        DATA + 176 + [0, receive * 24, (receive + pages) * 24][ring]
    }

    pub fn length(&self) -> u32 {
        self.ring(2) - DATA + self.lens[2] * 64
    }

    /// vmxnet_init_ring.
    pub fn lay(&self) {
        self.put(DATA, &vec![0; self.length() as usize]);
        self.put32(DATA, 0xbabe_864f);
        self.put32(DATA + 0x68, self.length());
        let [receive, pages, transmit] = self.lens;
        for (at, value) in [
            (RX_LENGTH, receive),
            (RX_LENGTH_2, pages),
            (TX_LENGTH, transmit),
            (RX_OFFSET, self.ring(0) - DATA),
            (RX_OFFSET_2, self.ring(1) - DATA),
            (TX_OFFSET, self.ring(2) - DATA),
        ] {
            self.put32(DATA + at, value);
        }
        self.put(DATA + MAX_FRAGS, &self.frags.to_le_bytes());
        self.put(DATA + FEATURE_CTL, &[if self.lpd { 8 } else { 0 }, 0]);
        (0..receive).for_each(|index| self.post(index));
        (0..pages).for_each(|index| self.post_page(index));
    }

    /// INIT_ADDR, INIT_LENGTH, and vmxnet_set_multicast_list for a driver that receives broadcasts.
    pub fn open(&mut self) {
        self.w(0, DATA);
        self.w(4, self.length());
        assert_eq!(self.r(4), self.length(), "taken");
        self.flags(!7 | 2);
        self.out = Outbox::default();
    }

    pub fn flags(&mut self, flags: u32) {
        self.put32(DATA + IFFLAGS, flags);
        self.command(UPDATE_LADRF);
        self.command(UPDATE_IFF);
    }

    pub fn command(&mut self, command: u32) {
        self.w(0x0c, command);
    }

    pub fn ask(&mut self, command: u32) -> u32 {
        self.command(command);
        self.r(0x0c)
    }

    /// Gives a receive entry with 1536 bytes to the device.
    pub fn post(&self, index: u32) {
        self.receive_entry(0, index, RX_DATA + index * 2048, 1536, NIC);
    }

    pub fn post_page(&self, index: u32) {
        self.receive_entry(1, index, PAGES + index * 4096, 4096, NIC_FRAG);
    }

    pub fn receive_entry(&self, ring: usize, index: u32, address: u32, len: u32, owner: u16) {
        let at = self.ring(ring) + index * 24;
        self.put(at, &u64::from(address).to_le_bytes());
        self.put32(at + 8, len);
        self.put32(at + 12, 0);
        self.put(at + 18, &[0; 2]);
        self.put(at + 16, &owner.to_le_bytes());
    }

    /// Owner, flags and length of a receive entry.
    pub fn received(&self, ring: usize, index: u32) -> (u16, u16, u32) {
        let at = self.ring(ring) + index * 24;
        (self.get16(at + 16), self.get16(at + 18), self.get32(at + 12))
    }

    /// The bytes of a frame that begins at this entry, with its pages taken from `page` on.
    pub fn frame_at(&self, index: u32, mut page: u32) -> Vec<u8> {
        let (_, flags, len) = self.received(0, index);
        let mut frame = self.get(RX_DATA + index * 2048, len as usize);
        let mut more = flags & WITH_FRAG != 0;
        while more {
            let (owner, flags, len) = self.received(1, page);
            assert_eq!(owner, DRIVER_FRAG);
            frame.extend(self.get(PAGES + page * 4096, len as usize));
            more = flags & FRAG_EOP == 0;
            page = (page + 1) % self.lens[1];
        }
        frame
    }

    /// Address of a transmit entry.
    pub fn entry(&self, index: u32) -> u32 {
        self.ring(2) + index * 64
    }

    /// Fills a transmit entry and writes its owner last.
    pub fn tx(&self, index: u32, flags: u16, mss: u32, pieces: &[(u32, u16)]) {
        let at = self.entry(index);
        self.put(at, &flags.to_le_bytes());
        self.put32(at + 8, mss);
        self.put(at + 12, &1u16.to_le_bytes());
        self.put(at + 14, &(pieces.len() as u16).to_le_bytes());
        for (place, (address, len)) in (at + 16..).step_by(8).zip(pieces) {
            self.put32(place, *address);
            self.put(place + 4, &[0; 2]);
            self.put(place + 6, &len.to_le_bytes());
        }
        self.put(at + 2, &NIC.to_le_bytes());
    }

    /// Writes a frame to the entry's own buffer, and gives it to the device.
    pub fn queue(&self, index: u32, frame: &[u8]) {
        self.put(TX_DATA + index * 4096, frame);
        self.tx(index, KEEP, 0, &[(TX_DATA + index * 4096, frame.len() as u16)]);
    }

    pub fn owner(&self, index: u32) -> u16 {
        self.get16(self.entry(index) + 2)
    }

    /// The doorbell.
    pub fn ring_bell(&mut self) {
        assert_eq!(self.r(8), 0);
        assert!(self.out.work.contains(0));
    }

    /// Transmits until no packet is left. Returns the packets, and their offload requests.
    pub fn transmit(&mut self) -> Vec<(Vec<u8>, Offload)> {
        self.fetch_all(0, shared::packets_of)
    }

    /// The same for frames without offload requests.
    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        self.transmit().into_iter().map(|(bytes, _)| bytes).collect()
    }

    /// Delivers packets from another port.
    pub fn bring_with(&mut self, frames: &[(&[u8], Offload)]) -> Delivery {
        self.deliver(&batch_of(frames))
    }

    pub fn bring(&mut self, frames: &[&[u8]]) -> Delivery {
        self.deliver(&plain_batch(frames))
    }
}
