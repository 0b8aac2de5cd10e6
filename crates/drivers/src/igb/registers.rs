//! The registers and descriptors of the 82576, as its driver needs them (Intel, *82576EB Gigabit Ethernet Controller Datasheet*:
//! chapter 8 for registers, 7.1.5 and 7.2.2 for descriptors).

/// The BAR with the registers.
pub(super) const BAR: u8 = 0;
/// PCI vendor and device.
pub const DEVICES: [(u16, u16); 1] = [(0x8086, 0x10c9)];

pub(super) const CTRL: u64 = 0x0000;
pub(super) const STATUS: u64 = 0x0008;
pub(super) const EECD: u64 = 0x0010;
pub(super) const MDIC: u64 = 0x0020;
pub(super) const ICR: u64 = 0x00c0;
pub(super) const ICS: u64 = 0x00c8;
pub(super) const IMS: u64 = 0x00d0;
pub(super) const IMC: u64 = 0x00d8;
pub(super) const RCTL: u64 = 0x0100;
pub(super) const TCTL: u64 = 0x0400;
pub(super) const GPIE: u64 = 0x1514;
pub(super) const EIMS: u64 = 0x1524;
pub(super) const EIMC: u64 = 0x1528;
pub(super) const EIAC: u64 = 0x152c;
pub(super) const EIAM: u64 = 0x1530;
/// One for each vector.
pub(super) const EITR: u64 = 0x1680;
/// A row for each of queues 0 to 7.
pub(super) const IVAR: u64 = 0x1700;
pub(super) const IVAR_MISC: u64 = 0x1740;
pub(super) const RXCSUM: u64 = 0x5000;
/// 128 words of the multicast hash table.
pub(super) const MTA: u64 = 0x5200;
pub(super) const MTA_WORDS: u64 = 128;
pub(super) const RAL0: u64 = 0x5400;
pub(super) const RAH0: u64 = 0x5404;
pub(super) const MRQC: u64 = 0x5818;
/// 32 words of four entries.
pub(super) const RETA: u64 = 0x5c00;
/// Ten words.
pub(super) const RSSRK: u64 = 0x5c80;

/// First register of a receive queue. Queues 0 to 3 also answer at the addresses of older chips, which Linux uses for them.
pub(super) const fn receive_queue(number: u64) -> u64 {
    if number < 4 { 0x2800 + 0x100 * number } else { 0xc000 + 0x40 * number }
}
/// First register of a transmit queue.
pub(super) const fn transmit_queue(number: u64) -> u64 {
    if number < 4 { 0x3800 + 0x100 * number } else { 0xe000 + 0x40 * number }
}
/// Offsets in both kinds of queue.
pub(super) const BASE_LOW: u64 = 0x00;
pub(super) const BASE_HIGH: u64 = 0x04;
pub(super) const LENGTH: u64 = 0x08;
pub(super) const HEAD: u64 = 0x10;
pub(super) const TAIL: u64 = 0x18;
pub(super) const CONTROL: u64 = 0x28;
/// Of receive queues only.
pub(super) const SRRCTL: u64 = 0x0c;

pub(super) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
pub(super) const CTRL_SLU: u32 = 1 << 6;
pub(super) const CTRL_FRCSPD: u32 = 1 << 11;
pub(super) const CTRL_FRCDPLX: u32 = 1 << 12;
pub(super) const CTRL_RST: u32 = 1 << 26;
pub(super) const STATUS_LU: u32 = 1 << 1;
pub(super) const STATUS_MASTER: u32 = 1 << 19;
pub(super) const EECD_AUTO_READ: u32 = 1 << 9;
pub(super) const RAH_AV: u32 = 1 << 31;

/// An MDI write, to PHY 1.
pub(super) const MDIC_WRITE_PHY1: u32 = 1 << 26 | 1 << 21;
pub(super) const MDIC_REGISTER_SHIFT: u32 = 16;
pub(super) const MDIC_READY: u32 = 1 << 28;
pub(super) const MDIC_ERROR: u32 = 1 << 30;
/// IEEE 802.3 clause 22.2.4.1: the control register; enable auto-negotiation and restart it.
pub(super) const PHY_CONTROL: u32 = 0;
pub(super) const PHY_CONTROL_NEGOTIATE: u32 = 1 << 12 | 1 << 9;

/// Link status change.
pub(super) const CAUSE_LSC: u32 = 1 << 2;

/// Each cause has a vector; a message clears its pending bit; EIAM takes effect with a message; a read of ICR always clears it.
pub(super) const GPIE_MSIX: u32 = 1 << 4 | 1 << 31 | 1 << 30 | 1;
/// An IVAR entry is valid.
pub(super) const IVAR_VALID: u32 = 1 << 7;
/// EITR: keep the running counter.
pub(super) const EITR_KEEP: u32 = 1 << 31;
/// 49 µs: Linux's interval for "low latency".
pub(super) const EITR_LOW: u32 = 196;

pub(super) const RCTL_EN: u32 = 1 << 1;
pub(super) const RCTL_BAM: u32 = 1 << 15;
pub(super) const RCTL_SECRC: u32 = 1 << 26;
pub(super) const TCTL_EN: u32 = 1 << 1;
pub(super) const TCTL_PSP: u32 = 1 << 3;
/// Collision threshold 15.
pub(super) const TCTL_LINUX: u32 = 15 << 4;
pub(super) const RXCSUM_IPOFL: u32 = 1 << 8;
pub(super) const RXCSUM_TUOFL: u32 = 1 << 9;
pub(super) const RXCSUM_PCSD: u32 = 1 << 13;
/// RSS over addresses and TCP ports, IPv4 and IPv6.
pub(super) const MRQC_RSS: u32 = 2 | 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21;
/// Buffers of 2 KiB, advanced descriptors with one buffer.
pub(super) const SRRCTL_ONE_BUFFER: u32 = 2 | 1 << 25;
pub(super) const QUEUE_ENABLE: u32 = 1 << 25;

/// Bytes of every descriptor.
pub(super) const DESCRIPTOR: usize = 16;

/// Receive: status and errors, the third word.
pub(super) const RX_DD: u32 = 1 << 0;
pub(super) const RX_EOP: u32 = 1 << 1;
pub(super) const RX_L4CS: u32 = 1 << 5;
/// Transport and IP checksum errors.
pub(super) const RX_CHECKSUM_ERRORS: u32 = 1 << 29 | 1 << 30;
/// The frame is damaged.
pub(super) const RX_FRAME_ERROR: u32 = 1 << 31;

/// Transmit: the third word of advanced descriptors.
pub(super) const TX_CONTEXT: u32 = 2 << 20;
pub(super) const TX_DATA: u32 = 3 << 20;
pub(super) const TX_EOP: u32 = 1 << 24;
pub(super) const TX_IFCS: u32 = 1 << 25;
pub(super) const TX_RS: u32 = 1 << 27;
pub(super) const TX_DEXT: u32 = 1 << 29;
pub(super) const TX_TSE: u32 = 1 << 31;
/// Context: IPv4; TCP.
pub(super) const TX_IPV4: u32 = 1 << 10;
pub(super) const TX_TCP: u32 = 1 << 11;
/// Fourth word: descriptor done; insert the IP checksum; insert the transport checksum.
pub(super) const TX_DD: u32 = 1 << 0;
pub(super) const TX_IXSM: u32 = 1 << 8;
pub(super) const TX_TXSM: u32 = 1 << 9;
pub(super) const TX_PAYLEN_SHIFT: u32 = 14;
