//! A guest of an 82574: the bench, with this chip's differences.

use nicety_adapter::{Batch, Budget, Face, PortId};

use crate::bench::*;

pub const CTRL_EXT: u64 = 0x18;
pub const EIAC: u64 = 0xdc;
pub const IAM: u64 = 0xe0;
pub const IVAR: u64 = 0xe4;
pub const EITR: u64 = 0xe8;
pub const RFCTL: u64 = 0x5008;
pub const MRQC: u64 = 0x5818;

/// E1000_IMS_RXQ0, TXQ0, OTHER, LSC.
pub const RXQ0: u32 = 0x0010_0000;
pub const TXQ0: u32 = 0x0040_0000;
pub const OTHER: u32 = 0x0100_0000;
pub const LSC: u32 = 0x4;

/// Opened as Linux opens it, but with legacy receive descriptors.
pub fn opened() -> Bench {
    let mut b = Bench::of("e1000e");
    b.command(0x0107);
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl | 0x0400_0000);
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl | 0x40);
    b.open_transmit(TX_RING, RING as u32);
    b.open_receive(RX_RING, RING as u32, RCTL_LINUX, 2048);
    b
}

/// The same with extended descriptors.
pub fn extended() -> Bench {
    let mut b = opened();
    b.w(RFCTL, 0x8000);
    b.open_receive(RX_RING, RING as u32, RCTL_LINUX | 0x0400_0000, 2048);
    b
}

pub fn config(b: &mut Bench, offset: u16, data: &[u8]) {
    b.call(|nic, cx| match nic.face() {
        Face::Pci(face) => face.config_write(offset, data, cx),
        Face::Rings(_) => unreachable!("a PCI function"),
    });
}

/// e1000_configure_msix: receive on vector 0, transmit on 1, other causes on 2.
pub fn vectors(b: &mut Bench) {
    config(b, 0xa2, &[0x04, 0x80]);
    b.w(IVAR, 0x800a_0908);
    b.w(CTRL_EXT, 0x8100_0000);
    b.w(EIAC, RXQ0 | TXQ0);
    b.w(IAM, !0x01f0_0000 | OTHER);
    b.r(ICR);
    b.w(IMS, RXQ0 | TXQ0 | OTHER | LSC);
    b.out.messages = Default::default();
}

/// The vectors of messages sent since the last call.
pub fn messages(b: &mut Bench) -> Vec<u16> {
    let mut set = std::mem::take(&mut b.out.messages);
    std::iter::from_fn(|| set.pop()).collect()
}

/// The packets of queue `queue`, as frames on a wire.
pub fn transmit_of(b: &mut Bench, queue: u16) -> Vec<Wire> {
    let mut out = Vec::new();
    for _ in 0..1000 {
        let mut batch = std::mem::take(&mut b.batch);
        batch.start(&b.map, PortId(1), queue);
        let progress = b.call(|nic, cx| nic.fetch(queue, Budget::TURN, &mut batch, cx));
        out.extend(cut(&batch));
        b.call(|nic, cx| nic.complete(&batch, cx));
        b.batch = Batch::new();
        if !progress.more {
            return out;
        }
    }
    panic!("a transmit queue that never empties");
}

/// A written-back extended descriptor: information, hash, status, length, tag.
pub fn written(b: &Bench, ring: u64, index: u64) -> (u32, u32, u32, u16, u16) {
    let d = b.get(ring + index * 16, 16);
    let word = |at: usize| u32::from_le_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]]);
    (word(0), word(4), word(8), word(12) as u16, (word(12) >> 16) as u16)
}
