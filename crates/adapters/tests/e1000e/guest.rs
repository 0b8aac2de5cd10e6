//! A guest of an 82574: the bench, with this chip's differences.

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
    Bench::opened_of("e1000e")
}

/// The same with extended descriptors.
pub fn extended() -> Bench {
    let mut b = opened();
    b.w(RFCTL, 0x8000);
    b.open_receive(RX_RING, RING as u32, RCTL_LINUX | 0x0400_0000, 2048);
    b
}

/// e1000_configure_msix: receive on vector 0, transmit on 1, other causes on 2.
pub fn vectors(b: &mut Bench) {
    b.config_write(0xa2, &[0x04, 0x80]);
    b.w(IVAR, 0x800a_0908);
    b.w(CTRL_EXT, 0x8100_0000);
    b.w(EIAC, RXQ0 | TXQ0);
    b.w(IAM, !0x01f0_0000 | OTHER);
    b.r(ICR);
    b.w(IMS, RXQ0 | TXQ0 | OTHER | LSC);
    b.messages();
}

/// A written-back extended descriptor: information, hash, status, length, tag.
pub fn written(b: &Bench, ring: u64, index: u64) -> (u32, u32, u32, u16, u16) {
    let [information, hash, status, last] = [0, 4, 8, 12].map(|at| b.get32(ring + index * 16 + at));
    (information, hash, status, last as u16, (last >> 16) as u16)
}
