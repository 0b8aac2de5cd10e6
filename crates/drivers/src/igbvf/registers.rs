//! The registers of an 82576's virtual function, as its driver needs them (Intel, *82576EB Gigabit Ethernet Controller Datasheet*,
//! 8.14, 8.25 and 8.26), and its messages (Linux, drivers/net/ethernet/intel/igbvf: mbx.h, vf.h). Rings and descriptors are the igb's.

/// The BAR with the registers.
pub(super) const BAR: u8 = 0;
/// PCI vendor and device.
pub const DEVICES: [(u16, u16); 1] = [(0x8086, 0x10ca)];

pub(super) const CTRL: u64 = 0x0000;
pub(super) const STATUS: u64 = 0x0008;
/// Sixteen words.
pub(super) const MAILBOX: u64 = 0x0800;
pub(super) const V2PMAILBOX: u64 = 0x0c40;
pub(super) const EICS: u64 = 0x1520;
pub(super) const EIMS: u64 = 0x1524;
pub(super) const EIMC: u64 = 0x1528;
pub(super) const EIAC: u64 = 0x152c;
pub(super) const EIAM: u64 = 0x1530;
pub(super) const EICR: u64 = 0x1580;
/// One for each vector.
pub(super) const EITR: u64 = 0x1680;
/// Bytes: receive queue 0, transmit queue 0, receive queue 1, transmit queue 1.
pub(super) const IVAR: u64 = 0x1700;
pub(super) const IVAR_MISC: u64 = 0x1740;
pub(super) const RECEIVE_QUEUE: u64 = 0x2800;
pub(super) const TRANSMIT_QUEUE: u64 = 0x3800;

pub(super) const CTRL_RST: u32 = 1 << 26;
pub(super) const STATUS_LU: u32 = 1 << 1;
pub(super) const IVAR_VALID: u32 = 1 << 7;

/// V2PMAILBOX.
pub(super) const REQ: u32 = 1 << 0;
pub(super) const ACK: u32 = 1 << 1;
pub(super) const VFU: u32 = 1 << 2;
pub(super) const PFSTS: u32 = 1 << 4;
pub(super) const PFACK: u32 = 1 << 5;
pub(super) const RSTI: u32 = 1 << 6;

/// The first word of a message.
pub(super) const GRANTED: u32 = 1 << 31;
pub(super) const REFUSED: u32 = 1 << 30;
pub(super) const CLEAR_TO_SEND: u32 = 1 << 29;
pub(super) const RESET: u32 = 1;
pub(super) const SET_MAC: u32 = 2;
/// The lowest bit of its information: add, not remove.
pub(super) const ADD_VLAN: u32 = 1 << 16 | 4;
pub(super) const SET_LPE: u32 = 5;
