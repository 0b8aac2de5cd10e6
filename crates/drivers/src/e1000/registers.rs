//! The registers and descriptors of the 82540EM, as its driver needs them (Intel, *PCI/PCI-X Family of Gigabit Ethernet Controllers
//! Software Developer's Manual*, 317453: section 13 for registers, 3.2.3 and 3.3 for descriptors).

/// The BAR with the registers.
pub(crate) const BAR: u8 = 0;
/// PCI vendor and device: 82540EM, 82545EM (copper), 82544EI (copper).
pub const DEVICES: [(u16, u16); 3] = [(0x8086, 0x100e), (0x8086, 0x100f), OLDEST];
/// The 82544: it has no interrupt throttle and no absolute delays (footnotes of sections 13.4.18 and 13.4.44).
pub(crate) const OLDEST: (u16, u16) = (0x8086, 0x1008);

pub(crate) const CTRL: u64 = 0x0000;
pub(crate) const STATUS: u64 = 0x0008;
pub(crate) const MDIC: u64 = 0x0020;
pub(crate) const ICR: u64 = 0x00c0;
pub(crate) const ITR: u64 = 0x00c4;
pub(crate) const ICS: u64 = 0x00c8;
pub(crate) const IMS: u64 = 0x00d0;
pub(crate) const IMC: u64 = 0x00d8;
pub(crate) const RCTL: u64 = 0x0100;
pub(crate) const TCTL: u64 = 0x0400;
pub(crate) const TIPG: u64 = 0x0410;
pub(crate) const RDBAL: u64 = 0x2800;
pub(crate) const RDBAH: u64 = 0x2804;
pub(crate) const RDLEN: u64 = 0x2808;
pub(crate) const RDH: u64 = 0x2810;
pub(crate) const RDT: u64 = 0x2818;
pub(crate) const RDTR: u64 = 0x2820;
pub(crate) const RADV: u64 = 0x282c;
pub(crate) const TDBAL: u64 = 0x3800;
pub(crate) const TDBAH: u64 = 0x3804;
pub(crate) const TDLEN: u64 = 0x3808;
pub(crate) const TDH: u64 = 0x3810;
pub(crate) const TDT: u64 = 0x3818;
pub(crate) const TIDV: u64 = 0x3820;
pub(crate) const TADV: u64 = 0x382c;
pub(crate) const RXCSUM: u64 = 0x5000;
/// 128 words of the multicast hash table.
pub(crate) const MTA: u64 = 0x5200;
pub(crate) const MTA_WORDS: u64 = 128;
pub(crate) const RAL0: u64 = 0x5400;
pub(crate) const RAH0: u64 = 0x5404;

pub(crate) const CTRL_ASDE: u32 = 1 << 5;
pub(crate) const CTRL_SLU: u32 = 1 << 6;
pub(crate) const CTRL_ILOS: u32 = 1 << 7;
pub(crate) const CTRL_FRCSPD: u32 = 1 << 11;
pub(crate) const CTRL_FRCDPLX: u32 = 1 << 12;
pub(crate) const CTRL_RST: u32 = 1 << 26;
pub(crate) const CTRL_VME: u32 = 1 << 30;
pub(crate) const STATUS_LU: u32 = 1 << 1;

/// An MDI write, to PHY 1.
pub(crate) const MDIC_WRITE_PHY1: u32 = 1 << 26 | 1 << 21;
pub(crate) const MDIC_REGISTER_SHIFT: u32 = 16;
pub(crate) const MDIC_READY: u32 = 1 << 28;
pub(crate) const MDIC_ERROR: u32 = 1 << 30;
/// IEEE 802.3 clause 22.2.4.1: the control register; enable auto-negotiation and restart it.
pub(crate) const PHY_CONTROL: u32 = 0;
pub(crate) const PHY_CONTROL_NEGOTIATE: u32 = 1 << 12 | 1 << 9;

/// Transmit descriptor written back.
pub(crate) const CAUSE_TXDW: u32 = 1 << 0;
/// Link status change.
pub(crate) const CAUSE_LSC: u32 = 1 << 2;
/// Receive sequence error: on a copper link it also signals a link change.
pub(crate) const CAUSE_RXSEQ: u32 = 1 << 3;
/// Receive descriptor minimum threshold.
pub(crate) const CAUSE_RXDMT0: u32 = 1 << 4;
/// Receiver timer.
pub(crate) const CAUSE_RXT0: u32 = 1 << 7;

pub(crate) const RCTL_EN: u32 = 1 << 1;
pub(crate) const RCTL_BAM: u32 = 1 << 15;
pub(crate) const TCTL_EN: u32 = 1 << 1;
pub(crate) const TCTL_PSP: u32 = 1 << 3;
/// Collision threshold 15, distance 64 (full duplex), retransmit on late collision.
pub(crate) const TCTL_LINUX: u32 = 15 << 4 | 64 << 12 | 1 << 24;
/// 10, 8 and 6 (section 13.4.34, for copper).
pub(crate) const TIPG_COPPER: u32 = 10 | 8 << 10 | 6 << 20;
pub(crate) const RXCSUM_IPOFL: u32 = 1 << 8;
pub(crate) const RXCSUM_TUOFL: u32 = 1 << 9;
pub(crate) const RAH_AV: u32 = 1 << 31;

/// Bytes of every descriptor.
pub(crate) const DESCRIPTOR: usize = 16;

/// Receive: status, the 13th byte; errors, the 14th.
pub(crate) const RX_DD: u32 = 1 << 0;
pub(crate) const RX_EOP: u32 = 1 << 1;
pub(crate) const RX_IXSM: u32 = 1 << 2;
pub(crate) const RX_TCPCS: u32 = 1 << 5;
/// TCP/UDP checksum error and IP checksum error.
pub(crate) const RX_CHECKSUM_ERRORS: u32 = (1 << 5 | 1 << 6) << 8;
/// CRC, symbol, sequence and carrier errors: the frame is damaged.
pub(crate) const RX_FRAME_ERRORS: u32 = (1 << 0 | 1 << 1 | 1 << 2 | 1 << 4 | 1 << 7) << 8;

/// Transmit: third word of context and data descriptors.
pub(crate) const TX_EOP: u32 = 1 << 24;
pub(crate) const TX_IFCS: u32 = 1 << 25;
pub(crate) const TX_TSE: u32 = 1 << 26;
pub(crate) const TX_RS: u32 = 1 << 27;
pub(crate) const TX_DEXT: u32 = 1 << 29;
pub(crate) const TX_IDE: u32 = 1 << 31;
pub(crate) const TX_DATA: u32 = 1 << 20;
/// Context: the packet is TCP, and IPv4.
pub(crate) const TX_CONTEXT_TCP: u32 = 1 << 24;
pub(crate) const TX_CONTEXT_IP: u32 = 1 << 25;
/// Fourth word: descriptor done; insert the IP checksum; insert the TCP/UDP checksum.
pub(crate) const TX_DD: u32 = 1 << 0;
pub(crate) const TX_IXSM: u32 = 1 << 8;
pub(crate) const TX_TXSM: u32 = 1 << 9;
