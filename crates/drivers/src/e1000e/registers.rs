//! Registers and descriptors that the 82574 adds to the 82540EM (Intel, *82574 GbE Controller Family Datasheet*, 317694: section
//! 10.2 for registers, 7.1.5 for extended receive descriptors). The rest is in [`crate::e1000::registers`].

/// PCI vendor and device: 82574L.
pub const DEVICES: [(u16, u16); 1] = [(0x8086, 0x10d3)];

pub(super) const CTRL_EXT: u64 = 0x0018;
pub(super) const EERD: u64 = 0x0014;
pub(super) const EIAC: u64 = 0x00dc;
pub(super) const IAM: u64 = 0x00e0;
pub(super) const IVAR: u64 = 0x00e4;
pub(super) const EITR0: u64 = 0x00e8;
pub(super) const EXTCNF_CTRL: u64 = 0x0f00;
pub(super) const RFCTL: u64 = 0x5008;
pub(super) const MRQC: u64 = 0x5818;
pub(super) const RETA: u64 = 0x5c00;
pub(super) const RETA_WORDS: u64 = 32;
pub(super) const RSSRK: u64 = 0x5c80;
pub(super) const RSSRK_WORDS: u64 = 10;

/// The driver is loaded.
pub(super) const CTRL_EXT_DRV_LOAD: u32 = 1 << 28;
/// A message masks the causes in IAM.
pub(super) const CTRL_EXT_EIAME: u32 = 1 << 24;
pub(super) const MDIO_SW_OWNERSHIP: u32 = 1 << 5;
pub(super) const EERD_START: u32 = 1;
pub(super) const EERD_DONE: u32 = 1 << 1;
/// Words whose sum is `NVM_SUM`.
pub(super) const NVM_WORDS: u32 = 64;
pub(super) const NVM_SUM: u16 = 0xbaba;

/// Causes that have vectors.
pub(super) const CAUSE_RXQ0: u32 = 1 << 20;
pub(super) const CAUSE_TXQ0: u32 = 1 << 22;
pub(super) const CAUSE_OTHER: u32 = 1 << 24;
/// Receive queue 0 on vector 0, transmit queue 0 on 1, the rest on 2; the fourth bit makes an entry valid. Bit 31: an interrupt on
/// every write-back.
pub(super) const IVAR_VECTORS: u32 = 0x8 | 0x9 << 8 | 0xa << 16 | 1 << 31;

pub(super) const RCTL_SECRC: u32 = 1 << 26;
pub(super) const RXCSUM_PCSD: u32 = 1 << 13;
/// Extended descriptors.
pub(super) const RFCTL_EXTEN: u32 = 1 << 15;
/// RSS on, over TCP ports and addresses of IPv4 and IPv6.
pub(super) const MRQC_LINUX: u32 = 1 | 0x37 << 16;

/// Third word of an extended receive descriptor.
pub(super) const RX_DD: u32 = 1 << 0;
pub(super) const RX_EOP: u32 = 1 << 1;
pub(super) const RX_IXSM: u32 = 1 << 2;
pub(super) const RX_L4CS: u32 = 1 << 4 | 1 << 5;
/// TCP or UDP checksum error, and IP checksum error.
pub(super) const RX_CHECKSUM_ERRORS: u32 = 1 << 29 | 1 << 30;
/// CRC, symbol, sequence, carrier extension and data errors.
pub(super) const RX_FRAME_ERRORS: u32 = 1 << 24 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 31;
