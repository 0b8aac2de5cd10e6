//! The registers of virtual functions of an 82576 and of an 82599, as their driver needs them (Intel, *82576EB Gigabit Ethernet
//! Controller Datasheet*, 8.14, 8.25 and 8.26; *82599 10 GbE Controller Datasheet*, 8.3), and their messages (Linux,
//! drivers/net/ethernet/intel: igbvf/mbx.h, igbvf/vf.h, ixgbevf/mbx.h). Rings and descriptors are the igb's.

/// The BAR with the registers.
pub(super) const BAR: u8 = 0;
/// PCI vendor and device of an 82576's function.
pub const IGBVF: [(u16, u16); 1] = [(0x8086, 0x10ca)];
/// PCI vendor and device of an 82599's function.
pub const IXGBEVF: [(u16, u16); 1] = [(0x8086, 0x10ed)];

/// Offsets that differ between the chips.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub devices: &'static [(u16, u16)],
    /// Sixteen words.
    pub mailbox: u64,
    pub v2pmailbox: u64,
    pub eicr: u64,
    pub eics: u64,
    pub eims: u64,
    pub eimc: u64,
    pub eiac: u64,
    pub eiam: u64,
    /// One for each vector.
    pub eitr: u64,
    /// 49 µs: Linux's interval for "low latency".
    pub interval: u32,
    /// Bytes: receive queue 0, transmit queue 0, receive queue 1, transmit queue 1.
    pub ivar: u64,
    pub ivar_misc: u64,
    pub receive_queue: u64,
    pub transmit_queue: u64,
    /// In a receive queue.
    pub srrctl: u64,
    /// The register with the link's state, and its bit for "up".
    pub link: (u64, u32),
    /// Checksum errors, and a damaged frame, in a receive descriptor.
    pub errors: (u32, u32),
    /// Longest frame at an MTU of 1500, as SET_LPE wants it.
    pub longest: u32,
    /// Version of the messages, if there are several.
    pub version: Option<u32>,
}

pub(super) const LAYOUT_82576: Layout = Layout {
    devices: &IGBVF,
    mailbox: 0x0800,
    v2pmailbox: 0x0c40,
    eicr: 0x1580,
    eics: 0x1520,
    eims: 0x1524,
    eimc: 0x1528,
    eiac: 0x152c,
    eiam: 0x1530,
    eitr: 0x1680,
    interval: 196,
    ivar: 0x1700,
    ivar_misc: 0x1740,
    receive_queue: 0x2800,
    transmit_queue: 0x3800,
    srrctl: 0x0c,
    link: (0x0008, 1 << 1),
    errors: (1 << 29 | 1 << 30, 1 << 31),
    // With a tag and the check sequence.
    longest: 1522,
    version: None,
};

pub(super) const LAYOUT_82599: Layout = Layout {
    devices: &IXGBEVF,
    mailbox: 0x0200,
    v2pmailbox: 0x02fc,
    eicr: 0x0100,
    eics: 0x0104,
    eims: 0x0108,
    eimc: 0x010c,
    eiac: 0x0110,
    eiam: 0x0114,
    eitr: 0x0820,
    // Units of 2 µs from bit 3 on.
    interval: 25 << 3,
    ivar: 0x0120,
    ivar_misc: 0x0140,
    receive_queue: 0x1000,
    transmit_queue: 0x2000,
    srrctl: 0x14,
    link: (0x0010, 1 << 30),
    // Linux's IXGBE_RXDADV_ERR_FRAME_ERR_MASK: CRC, length, packet, oversize, undersize.
    errors: (1 << 30 | 1 << 31, 0x3b << 24),
    // With the check sequence.
    longest: 1518,
    // 1.3.
    version: Some(4),
};

pub(super) const CTRL: u64 = 0x0000;
pub(super) const CTRL_RST: u32 = 1 << 26;
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
pub(super) const API_NEGOTIATE: u32 = 8;
