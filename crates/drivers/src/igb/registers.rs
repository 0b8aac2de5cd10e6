//! The registers and descriptors of the 82576, as its driver needs them (Intel, *82576EB Gigabit Ethernet Controller Datasheet*:
//! chapter 8 for registers, 7.1.5 and 7.2.2 for descriptors).

/// The BAR with the registers.
pub(crate) const BAR: u8 = 0;
/// PCI vendor and device.
pub const DEVICES: [(u16, u16); 1] = [(0x8086, 0x10c9)];

pub(crate) const CTRL: u64 = 0x0000;
pub(crate) const STATUS: u64 = 0x0008;
pub(crate) const EECD: u64 = 0x0010;
pub(crate) const MDIC: u64 = 0x0020;
pub(crate) const ICR: u64 = 0x00c0;
pub(crate) const ICS: u64 = 0x00c8;
pub(crate) const IMS: u64 = 0x00d0;
pub(crate) const IMC: u64 = 0x00d8;
pub(crate) const RCTL: u64 = 0x0100;
pub(crate) const TCTL: u64 = 0x0400;
pub(crate) const GPIE: u64 = 0x1514;
pub(crate) const EIMS: u64 = 0x1524;
pub(crate) const EIMC: u64 = 0x1528;
pub(crate) const EIAC: u64 = 0x152c;
pub(crate) const EIAM: u64 = 0x1530;
/// One for each vector.
pub(crate) const EITR: u64 = 0x1680;
/// A row for each of queues 0 to 7.
pub(crate) const IVAR: u64 = 0x1700;
pub(crate) const IVAR_MISC: u64 = 0x1740;
pub(crate) const RXCSUM: u64 = 0x5000;
/// 128 words of the multicast hash table.
pub(crate) const MTA: u64 = 0x5200;
pub(crate) const MTA_WORDS: u64 = 128;
pub(crate) const RAL0: u64 = 0x5400;
pub(crate) const RAH0: u64 = 0x5404;
pub(crate) const MRQC: u64 = 0x5818;
/// 32 words of four entries.
pub(crate) const RETA: u64 = 0x5c00;
/// Ten words.
pub(crate) const RSSRK: u64 = 0x5c80;

/// First register of a receive queue. Queues 0 to 3 also answer at the addresses of older chips, which Linux uses for them.
pub(crate) const fn receive_queue(number: u64) -> u64 {
    if number < 4 { 0x2800 + 0x100 * number } else { 0xc000 + 0x40 * number }
}
/// First register of a transmit queue.
pub(crate) const fn transmit_queue(number: u64) -> u64 {
    if number < 4 { 0x3800 + 0x100 * number } else { 0xe000 + 0x40 * number }
}
/// Offsets in both kinds of queue.
pub(crate) const BASE_LOW: u64 = 0x00;
pub(crate) const BASE_HIGH: u64 = 0x04;
pub(crate) const LENGTH: u64 = 0x08;
pub(crate) const HEAD: u64 = 0x10;
pub(crate) const TAIL: u64 = 0x18;
pub(crate) const CONTROL: u64 = 0x28;
/// In a receive queue.
pub(crate) const SRRCTL: u64 = 0x0c;

pub(crate) const CTRL_MASTER_DISABLE: u32 = 1 << 2;
pub(crate) const CTRL_SLU: u32 = 1 << 6;
pub(crate) const CTRL_FRCSPD: u32 = 1 << 11;
pub(crate) const CTRL_FRCDPLX: u32 = 1 << 12;
pub(crate) const CTRL_RST: u32 = 1 << 26;
pub(crate) const STATUS_LU: u32 = 1 << 1;
pub(crate) const STATUS_MASTER: u32 = 1 << 19;
pub(crate) const EECD_AUTO_READ: u32 = 1 << 9;
pub(crate) const RAH_AV: u32 = 1 << 31;

/// An MDI write, to PHY 1.
pub(crate) const MDIC_WRITE_PHY1: u32 = 1 << 26 | 1 << 21;
pub(crate) const MDIC_REGISTER_SHIFT: u32 = 16;
pub(crate) const MDIC_READY: u32 = 1 << 28;
pub(crate) const MDIC_ERROR: u32 = 1 << 30;
/// IEEE 802.3 clause 22.2.4.1: the control register; enable auto-negotiation and restart it.
pub(crate) const PHY_CONTROL: u32 = 0;
pub(crate) const PHY_CONTROL_NEGOTIATE: u32 = 1 << 12 | 1 << 9;

/// Link status change.
pub(crate) const CAUSE_LSC: u32 = 1 << 2;

/// Each cause has a vector; a message clears its pending bit; EIAM takes effect with a message; a read of ICR always clears it.
pub(crate) const GPIE_MSIX: u32 = 1 << 4 | 1 << 31 | 1 << 30 | 1;
/// An IVAR entry is valid.
pub(crate) const IVAR_VALID: u32 = 1 << 7;
/// EITR: keep the running counter.
pub(crate) const EITR_KEEP: u32 = 1 << 31;
/// 49 µs: Linux's interval for "low latency".
pub(crate) const EITR_LOW: u32 = 196;

pub(crate) const RCTL_EN: u32 = 1 << 1;
pub(crate) const RCTL_BAM: u32 = 1 << 15;
pub(crate) const RCTL_SECRC: u32 = 1 << 26;
pub(crate) const TCTL_EN: u32 = 1 << 1;
pub(crate) const TCTL_PSP: u32 = 1 << 3;
/// Collision threshold 15.
pub(crate) const TCTL_LINUX: u32 = 15 << 4;
pub(crate) const RXCSUM_IPOFL: u32 = 1 << 8;
pub(crate) const RXCSUM_TUOFL: u32 = 1 << 9;
pub(crate) const RXCSUM_PCSD: u32 = 1 << 13;
/// RSS over addresses and TCP ports, IPv4 and IPv6.
pub(crate) const MRQC_RSS: u32 = 2 | 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21;
/// Buffers of 2 KiB, advanced descriptors with one buffer.
pub(crate) const SRRCTL_ONE_BUFFER: u32 = 2 | 1 << 25;
pub(crate) const QUEUE_ENABLE: u32 = 1 << 25;

/// Bytes of every descriptor.
pub(crate) const DESCRIPTOR: usize = 16;

/// Receive: status and errors, the third word.
pub(crate) const RX_DD: u32 = 1 << 0;
pub(crate) const RX_EOP: u32 = 1 << 1;
/// A tag was stripped.
pub(crate) const RX_VP: u32 = 1 << 3;
pub(crate) const RX_L4CS: u32 = 1 << 5;
/// Transport and IP checksum errors.
pub(crate) const RX_CHECKSUM_ERRORS: u32 = 1 << 29 | 1 << 30;
/// The frame is damaged.
pub(crate) const RX_FRAME_ERROR: u32 = 1 << 31;

/// Transmit: the third word of advanced descriptors.
pub(crate) const TX_CONTEXT: u32 = 2 << 20;
pub(crate) const TX_DATA: u32 = 3 << 20;
pub(crate) const TX_EOP: u32 = 1 << 24;
pub(crate) const TX_IFCS: u32 = 1 << 25;
pub(crate) const TX_RS: u32 = 1 << 27;
pub(crate) const TX_DEXT: u32 = 1 << 29;
pub(crate) const TX_TSE: u32 = 1 << 31;
/// Context: IPv4; TCP.
pub(crate) const TX_IPV4: u32 = 1 << 10;
pub(crate) const TX_TCP: u32 = 1 << 11;
/// Fourth word: descriptor done; insert the IP checksum; insert the transport checksum.
pub(crate) const TX_DD: u32 = 1 << 0;
pub(crate) const TX_IXSM: u32 = 1 << 8;
pub(crate) const TX_TXSM: u32 = 1 << 9;
pub(crate) const TX_PAYLEN_SHIFT: u32 = 14;
