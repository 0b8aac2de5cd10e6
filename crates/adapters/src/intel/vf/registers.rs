//! The registers of virtual functions as data: Intel's *82576EB Gigabit Ethernet Controller Datasheet*, 8.25 and 8.26, and *82599 10
//! GbE Controller Datasheet*, by the names of its registers; and the part of the card's registers that acts on this
//! function alone, which has no BAR: only the function's family changes it.
//!
//! Both chips' registers do the same under the same name. Where the 82599's datasheet has another name, it is the 82576's here
//! (VTEICR is EICR).

use nicety_adapter::bank::{Alias, Block, Region, Widths};

pub use crate::intel::registers::*;

/// BAR 0: registers.
pub const WINDOW: u8 = 0;
/// The card's registers for this function.
const CARD: u8 = 1;

/// Bytes of the memory window.
pub const WINDOW_BYTES: u32 = 0x4000;
/// Bytes of BAR 3: the MSI-X table, and from [`PENDING`] on its pending bits.
pub const MSIX_BYTES: u32 = 0x4000;
/// Offset of the pending bits.
pub const PENDING: u32 = 0x2000;
/// MSI-X vectors (82576, 7.3.2).
pub const VECTORS: u16 = 3;
/// Pairs of queues with registers: of the 82576, and of the 82599.
const QUEUES_82576: usize = 2;
const QUEUES_82599: usize = 8;
/// Most of any model.
pub const QUEUES_MAX: usize = 8;

const REGIONS: &[Region] = &[
    Region { bars: &[0], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: 0 },
    Region { bars: &[], len: 0x6000, reads: Widths::DWORD, writes: Widths::DWORD, hole: ALL },
];

/// Bits of V2PMAILBOX (8.14.2).
pub mod mailbox {
    /// A message for the family is in the mailbox.
    pub const REQ: u32 = 1;
    /// The family's message was read.
    pub const ACK: u32 = 1 << 1;
    /// The function's driver uses the mailbox.
    pub const VFU: u32 = 1 << 2;
    /// The family has written a message.
    pub const PFSTS: u32 = 1 << 4;
    /// The family has read the driver's message.
    pub const PFACK: u32 = 1 << 5;
    /// The reset is done.
    pub const RSTD: u32 = 1 << 7;
}

/// Bits of STATUS (8.2.2).
pub mod status {
    /// Full duplex.
    pub const FD: u32 = 1;
    /// Link up.
    pub const LU: u32 = 1 << 1;
    /// 1000 Mbit/s.
    pub const SPEED_1000: u32 = 2 << 6;
}

/// Bits of VFLINKS (82599).
pub mod links {
    /// Link up.
    pub const UP: u32 = 1 << 30;
    /// 10 Gbit/s.
    pub const SPEED_10G: u32 = 3 << 28;
}

/// Bits of VFPSRTYPE (82599).
pub mod psrtype {
    /// Frames are spread over two queues.
    pub const TWO_QUEUES: u32 = 1 << 29;
}

/// RXDCTL of the 82599: the queue's tags are stripped.
pub const RXDCTL_VME: u32 = 1 << 30;

/// Bits of VMOLR (8.14.9).
pub mod vmolr {
    /// Longest frame, tags and check sequence included.
    pub const RLPML: u32 = 0x3fff;
    /// All multicast frames.
    pub const MPE: u32 = 1 << 28;
    /// Tags are stripped.
    pub const STRVLAN: u32 = 1 << 30;
}

/// Counts on, and is never cleared but by power.
const fn counter(name: Reg, offset: u32) -> Row {
    rw(name, offset, 0, 0, "8.18").device(ALL)
}

const GENERAL: &[Row] = &[
    rw(CTRL, 0x0000, 0, 0, "8.2.1"),
    rw(STATUS, 0x0008, 0, 0, "8.2.2"),
    rw(VMBMEM, 0x0800, ALL, 0, "8.14.3").times(16),
    rw(V2PMAILBOX, 0x0c40, mailbox::VFU, 0, "8.14.2").read_clears(mailbox::PFSTS | mailbox::PFACK | mailbox::RSTD),
    counter(VFGPRC, 0x0f10),
    counter(VFGPTC, 0x0f14),
    counter(VFGORC, 0x0f18),
    counter(VFGOTC, 0x0f34),
    counter(VFMPRC, 0x0f3c),
    counter(VFGPRLBC, 0x0f40),
    counter(VFGPTLBC, 0x0f44),
    counter(VFGORLBC, 0x0f48),
    counter(VFGOTLBC, 0x0f50),
    rw(FRTIMER, 0x1048, 0, 0, "8.15.1"),
    rw(EICS, 0x1520, 0, 0, "8.8.2"),
    rw(EIMS, 0x1524, 0, 0, "8.8.3"),
    rw(EIMC, 0x1528, 0, 0, "8.8.4"),
    rw(EIAC, 0x152c, 0x7, 0, "8.8.5"),
    rw(EIAM, 0x1530, 0x7, 0, "8.8.6"),
    rw(EICR, 0x1580, 0, 0, "8.8.1"),
    rw(EITR, 0x1680, 0x7fff_fffd, 0, "8.8.12").times(VECTORS as u32),
    rw(IVAR, 0x1700, 0x8383_8383, 0, "8.8.14"),
    rw(IVAR_MISC, 0x1740, 0x0000_0083, 0, "8.8.15"),
];

const RECEIVE_QUEUE: &[Row] = &[
    rw(RDBAL, 0x2800, 0xffff_ff80, 0, "8.10.5"),
    rw(RDBAH, 0x2804, ALL, 0, "8.10.6"),
    rw(RDLEN, 0x2808, 0x000f_fff0, 0, "8.10.7"),
    rw(SRRCTL, 0x280c, 0x8fff_0f7f, 0x0000_0400, "8.10.2"),
    rw(RDH, 0x2810, 0xffff, 0, "8.10.8"),
    rw(RXCTL, 0x2814, 0xff00_a2e0, 0x0000_a200, "8.13.1"),
    rw(RDT, 0x2818, 0xffff, 0, "8.10.8"),
    rw(RXDCTL, 0x2828, 0x061f_1f1f, 0x0001_0000, "8.10.9"),
];

const TRANSMIT_QUEUE: &[Row] = &[
    rw(TDBAL, 0x3800, 0xffff_ff80, 0, "8.12.9"),
    rw(TDBAH, 0x3804, ALL, 0, "8.12.10"),
    rw(TDLEN, 0x3808, 0x000f_fff0, 0, "8.12.11"),
    rw(TDH, 0x3810, 0xffff, 0, "8.12.12"),
    rw(TXCTL, 0x3814, 0xff00_2a20, 0x0000_2a00, "8.13.2"),
    rw(TDT, 0x3818, 0xffff, 0, "8.12.13"),
    rw(TXDCTL, 0x3828, 0x0e1f_1f1f, 0, "8.12.15"),
    rw(TDWBAL, 0x3838, 0xffff_fffd, 0, "8.12.16"),
    rw(TDWBAH, 0x383c, ALL, 0, "8.12.17"),
];

/// Offsets are those of the physical function.
const CARD_GENERAL: &[Row] = &[
    rw(VET, 0x0038, ALL, 0x8100, "8.2.7"),
    rw(RCTL, 0x0100, 0x04ff_b0fe, 0, "8.10.1"),
    rw(TCTL, 0x0400, 0x13ff_fffa, tctl::PSP, "8.12.1"),
];
const CARD_FILTERS: &[Row] = &[
    rw(RXCSUM, 0x5000, 0x0000_2fff, rxcsum::IPOFL | rxcsum::TUOFL | rxcsum::PCSD, "8.10.10"),
    rw(MTA, 0x5200, ALL, 0, "8.11.1").times(128),
];
const CARD_ADDRESSES: &[Row] = &[rw(RAL, 0x5400, ALL, 0, "8.11.2"), rw(RAH, 0x5404, 0x93ff_ffff, 0, "8.11.2")];
const CARD_TAGS: &[Row] = &[rw(VFTA, 0x5600, ALL, 0, "8.11.4").times(128)];
/// The hash's fields, table and key are the physical function's.
const CARD_HASH: &[Row] = &[rw(MRQC, 0x5818, ALL, HASHED, "8.10.17")];
const CARD_POOL: &[Row] = &[rw(VMOLR, 0x5ad0, ALL, 0, "8.14.9")];
const CARD_TABLE: &[Row] =
    &[rw(RETA, 0x5c00, ALL, ALTERNATING, "8.10.15").times(32), rw(RSSRK, 0x5c80, ALL, 0, "8.10.16").times(10)];

/// TCP over IPv4, IPv4, IPv6, TCP over IPv6: ixgbe_setup_mrqc in Linux's ixgbe_main.c.
const HASHED: u32 = 1 << 16 | 1 << 17 | 1 << 20 | 1 << 21;
/// Entries 0, 1, 0, 1.
const ALTERNATING: u32 = 0x0100_0100;

const fn block(region: u8, base: u32, stride: u32, count: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region, base, stride, count, rows }
}

const CARD_BLOCKS: [Block<Reg>; 7] = [
    block(CARD, 0x0000, 0x1000, 1, CARD_GENERAL),
    block(CARD, 0x5000, 0x0400, 1, CARD_FILTERS),
    block(CARD, 0x5400, 8, 16, CARD_ADDRESSES),
    block(CARD, 0x5600, 0x0200, 1, CARD_TAGS),
    block(CARD, 0x5818, 4, 1, CARD_HASH),
    block(CARD, 0x5ad0, 4, 1, CARD_POOL),
    block(CARD, 0x5c00, 0x0100, 1, CARD_TABLE),
];

/// The registers of an 82576's function.
pub static VF82576: Table = Table {
    regions: REGIONS,
    blocks: &[
        block(WINDOW, 0x0000, 0x2000, 1, GENERAL),
        block(WINDOW, 0x2800, 0x0100, QUEUES_82576 as u32, RECEIVE_QUEUE),
        block(WINDOW, 0x3800, 0x0100, QUEUES_82576 as u32, TRANSMIT_QUEUE),
        CARD_BLOCKS[0],
        CARD_BLOCKS[1],
        CARD_BLOCKS[2],
        CARD_BLOCKS[3],
        CARD_BLOCKS[5],
    ],
    aliases: &[],
};

const GENERAL_82599: &[Row] = &[
    rw(CTRL, 0x0000, 0, 0, "VFCTRL"),
    rw(STATUS, 0x0008, 0, 0, "VFSTATUS"),
    rw(VFLINKS, 0x0010, 0, 0, "VFLINKS"),
    rw(FRTIMER, 0x0048, 0, 0, "VFFRTIMER"),
    rw(EICR, 0x0100, 0, 0, "VTEICR"),
    rw(EICS, 0x0104, 0, 0, "VTEICS"),
    rw(EIMS, 0x0108, 0, 0, "VTEIMS"),
    rw(EIMC, 0x010c, 0, 0, "VTEIMC"),
    rw(EIAC, 0x0110, 0x7, 0, "VTEIAC"),
    rw(EIAM, 0x0114, 0x7, 0, "VTEIAM"),
    rw(IVAR, 0x0120, 0x8383_8383, 0, "VTIVAR").times(4),
    rw(IVAR_MISC, 0x0140, 0x0000_0083, 0, "VTIVAR_MISC"),
    rw(VTRSCINT, 0x0180, ALL, 0, "VTRSCINT").times(8),
    rw(VMBMEM, 0x0200, ALL, 0, "VFMBMEM").times(16),
    rw(V2PMAILBOX, 0x02fc, mailbox::VFU, 0, "VFMAILBOX").read_clears(mailbox::PFSTS | mailbox::PFACK | mailbox::RSTD),
    rw(PSRTYPE, 0x0300, ALL, 0, "VFPSRTYPE"),
    rw(EITR, 0x0820, 0x7fff_fff8, 0, "VTEITR").times(VECTORS as u32),
    // Aliases lead here: on the chip the counters lie between the registers of queue 0.
    counter(VFGPRC, 0x0f10),
    counter(VFGPTC, 0x0f14),
    counter(VFGORC, 0x0f18),
    rw(VFGORCH, 0x0f1c, 0, 0, "VFGORC_MSB").device(0xf),
    counter(VFGOTC, 0x0f20),
    rw(VFGOTCH, 0x0f24, 0, 0, "VFGOTC_MSB").device(0xf),
    counter(VFMPRC, 0x0f28),
];

const RECEIVE_82599: &[Row] = &[
    rw(RDBAL, 0x1000, 0xffff_ff80, 0, "VFRDBAL"),
    rw(RDBAH, 0x1004, ALL, 0, "VFRDBAH"),
    rw(RDLEN, 0x1008, 0x000f_ff80, 0, "VFRDLEN"),
    rw(RXCTL, 0x100c, 0xff00_f2e0, 0x0000_a200, "VFDCA_RXCTRL"),
    rw(RDH, 0x1010, 0xffff, 0, "VFRDH"),
    rw(SRRCTL, 0x1014, 0x1fc0_3f1f, 0x0000_0402, "VFSRRCTL"),
    rw(RDT, 0x1018, 0xffff, 0, "VFRDT"),
    rw(RXDCTL, 0x1028, 0x42ff_ffff, 0, "VFRXDCTL"),
    rw(RSCCTL, 0x102c, 0x0000_000d, 0, "VFRSCCTL"),
];

const TRANSMIT_82599: &[Row] = &[
    rw(TDBAL, 0x2000, 0xffff_ff80, 0, "VFTDBAL"),
    rw(TDBAH, 0x2004, ALL, 0, "VFTDBAH"),
    rw(TDLEN, 0x2008, 0x000f_ff80, 0, "VFTDLEN"),
    rw(TXCTL, 0x200c, 0xff00_2a20, 0x0000_2a00, "VFDCA_TXCTRL"),
    rw(TDH, 0x2010, 0xffff, 0, "VFTDH"),
    rw(TDT, 0x2018, 0xffff, 0, "VFTDT"),
    rw(TXDCTL, 0x2028, 0x027f_7f7f, 0, "VFTXDCTL"),
    rw(TDWBAL, 0x2038, 0xffff_fffd, 0, "VFTDWBAL"),
    rw(TDWBAH, 0x203c, ALL, 0, "VFTDWBAH"),
];

const fn alias(from: u32, to: u32, len: u32) -> Alias {
    Alias { region: WINDOW, from, to, len }
}

/// The registers of an 82599's function.
pub static VF82599: Table = Table {
    regions: REGIONS,
    blocks: &[
        block(WINDOW, 0x0000, 0x1000, 1, GENERAL_82599),
        block(WINDOW, 0x1000, 0x0040, QUEUES_82599 as u32, RECEIVE_82599),
        block(WINDOW, 0x2000, 0x0040, QUEUES_82599 as u32, TRANSMIT_82599),
        CARD_BLOCKS[0],
        CARD_BLOCKS[1],
        CARD_BLOCKS[2],
        CARD_BLOCKS[3],
        CARD_BLOCKS[4],
        CARD_BLOCKS[5],
        CARD_BLOCKS[6],
    ],
    aliases: &[
        alias(0x101c, 0x0f10, 4),
        alias(0x1020, 0x0f18, 8),
        alias(0x1034, 0x0f28, 4),
        alias(0x201c, 0x0f14, 4),
        alias(0x2020, 0x0f20, 8),
    ],
};

/// Registers that CTRL.RST does not change.
pub const KEPT: [Reg; 7] = [VFGPRC, VFGPTC, VFGORC, VFGORCH, VFGOTC, VFGOTCH, VFMPRC];
