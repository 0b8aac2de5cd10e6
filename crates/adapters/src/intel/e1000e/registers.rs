//! The registers of the 82574 as data: Intel's *82574 GbE Controller Family Datasheet* (317694), chapter 10. `access.rs` has an arm
//! for each read or write that does more than the masks.

use nicety_adapter::bank::{Block, Region, Widths};

use crate::intel::e1000::registers::ALIASES;
pub use crate::intel::registers::*;
use crate::intel::{filter, statistics};

/// BAR 0: registers.
pub const WINDOW: u8 = 0;
/// BAR 2: IOADDR and IODATA.
pub const IO: u8 = 2;

/// Bytes of the memory window, and of the flash's.
pub const WINDOW_BYTES: u32 = 0x2_0000;
/// Bytes of the I/O window.
pub const IO_BYTES: u32 = 0x20;
/// Bytes of the window with the MSI-X table and its pending bits.
pub const MSIX_BYTES: u64 = 0x4000;
/// Offset of the pending bits in it.
pub const PBA_OFFSET: u32 = 0x2000;
/// MSI-X vectors.
pub const VECTORS: u16 = 5;
/// Queues each way.
pub const QUEUES: usize = 2;

/// Reserved addresses read as zeros, an empty flash as ones; only whole dwords are writable.
const REGIONS: &[Region] = &[
    Region { bars: &[0], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: 0 },
    Region { bars: &[1], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: ALL },
    Region { bars: &[2], len: IO_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: ALL },
];

const GENERAL: &[Row] = &[
    rw(CTRL, 0x0000, 0x7bff_ffff, 0x0014_0241, "10.2.2"),
    rw(STATUS, 0x0008, 0x0000_0400, 0x0000_0400, "10.2.2"),
    rw(EECD, 0x0010, 0x0010_0077, 0x0000_0000, "10.2.2"),
    rw(EERD, 0x0014, 0, 0x0000_0002, "10.2.2").device(0xffff_fffe),
    rw(CTRL_EXT, 0x0018, 0xffff_dfff, 0, "10.2.2"),
    rw(FLA, 0x001c, 0x0000_003f, 0, "10.2.2"),
    rw(MDIC, 0x0020, 0x2fff_ffff, 0x1000_0000, "10.2.2").device(0x5000_ffff),
    rw(FCAL, 0x0028, ALL, 0x00c2_8001, "10.2.2"),
    rw(FCAH, 0x002c, 0xffff, 0x0100, "10.2.2"),
    rw(FCT, 0x0030, 0xffff, 0x8808, "10.2.2"),
    rw(VET, 0x0038, 0xffff, 0x8100, "10.2.2"),
    rw(ICR, 0x00c0, 0, 0, "10.2.4"),
    rw(ITR, 0x00c4, 0xffff, 0, "10.2.4"),
    rw(ICS, 0x00c8, 0, 0, "10.2.4"),
    rw(IMS, 0x00d0, 0, 0, "10.2.4"),
    rw(IMC, 0x00d8, 0, 0, "10.2.4"),
    rw(EIAC, 0x00dc, 0x01f0_0000, 0, "10.2.4"),
    rw(IAM, 0x00e0, ALL, 0, "10.2.4"),
    rw(IVAR, 0x00e4, 0x800f_ffff, 0, "10.2.4"),
    rw(EITR, 0x00e8, 0xffff, 0, "10.2.4").times(VECTORS as u32),
    rw(RCTL, 0x0100, 0x7edf_b7fe, 0, "10.2.5"),
    rw(FCTTV, 0x0170, 0xffff, 0, "10.2.2"),
    rw(TXCW, 0x0178, 0xc000_ffff, 0, "none: e1000_reg_test in Linux's e1000e/ethtool.c"),
    rw(RXCW, 0x0180, 0, 0, "none: as the 8254x's"),
    rw(TCTL, 0x0400, 0x13ff_fffa, 0x0000_0008, "10.2.6"),
    rw(TCTL_EXT, 0x0404, ALL, 0, "none: Linux's e1000e/regs.h"),
    rw(TIPG, 0x0410, 0x3fff_ffff, 0x0060_2008, "10.2.6"),
    rw(AIT, 0x0458, 0xffff, 0, "10.2.6"),
    rw(LEDCTL, 0x0e00, 0xefef_efef, 0x0706_8302, "10.2.2"),
    rw(EXTCNF_CTRL, 0x0f00, 0x0fff_00ff, 0x0000_0008, "10.2.2"),
    rw(EXTCNF_SIZE, 0x0f08, 0x00ff_ffff, 0, "10.2.2"),
    rw(POEMB, 0x0f10, 0xffff, 0x0000_030d, "10.2.2"),
    rw(PBA, 0x1000, 0xffff, 0x0000_0014, "10.2.2"),
    rw(PBS, 0x1008, 0x3f, 0x0000_0028, "10.2.2"),
    // The configuration from the NVM is done: bits 18 and 31 (e1000_get_cfg_done_82571 in Linux's e1000e/82571.c).
    rw(EEMNGCTL, 0x1010, 0, 0x8004_0000, "10.2.2"),
    rw(EEWR, 0x102c, 0, 0x0000_0002, "10.2.2").device(0xffff_fffe),
    rw(FLOP, 0x103c, ALL, 0, "10.2.2"),
];

const RECEIVE: &[Row] = &[
    rw(ERT, 0x2008, 0x3fff, 0, "10.2.5"),
    rw(FCRTL, 0x2160, 0x8000_fff8, 0, "10.2.5"),
    rw(FCRTH, 0x2168, 0x0000_fff8, 0, "10.2.5"),
    // 256 bytes of headers, then 4 KiB twice.
    rw(PSRCTL, 0x2170, 0x3f3f_3f7f, 0x0004_0402, "10.2.5"),
    rw(RDFH, 0x2410, 0x1fff, 0, "10.2.10"),
    rw(RDFT, 0x2418, 0x1fff, 0, "10.2.10"),
    rw(RDFHS, 0x2420, 0x1fff, 0, "10.2.10"),
    rw(RDFTS, 0x2428, 0x1fff, 0, "10.2.10"),
    rw(RDFPC, 0x2430, 0x1fff, 0, "10.2.10"),
];

const RECEIVE_QUEUE: &[Row] = &[
    rw(RDBAL, 0x2800, 0xffff_fff0, 0, "10.2.5"),
    rw(RDBAH, 0x2804, ALL, 0, "10.2.5"),
    rw(RDLEN, 0x2808, 0x000f_ff80, 0, "10.2.5"),
    rw(RDH, 0x2810, 0xffff, 0, "10.2.5"),
    rw(RDT, 0x2818, 0xffff, 0, "10.2.5"),
    rw(RDTR, 0x2820, 0xffff, 0, "10.2.5"),
    rw(RXDCTL, 0x2828, 0x013f_3f3f, 0x0101_0000, "10.2.5"),
    rw(RADV, 0x282c, 0xffff, 0, "10.2.5"),
];

const SMALL: &[Row] = &[rw(RSRPD, 0x2c00, 0x0fff, 0, "10.2.5"), rw(RAID, 0x2c08, 0xffff, 0, "10.2.5")];

const TRANSMIT: &[Row] = &[
    rw(TDFH, 0x3410, 0x1fff, 0x0600, "10.2.10"),
    rw(TDFT, 0x3418, 0x1fff, 0x0600, "10.2.10"),
    rw(TDFHS, 0x3420, 0x1fff, 0x0600, "10.2.10"),
    rw(TDFTS, 0x3428, 0x1fff, 0x0600, "10.2.10"),
    rw(TDFPC, 0x3430, 0x1fff, 0, "10.2.10"),
];

const TRANSMIT_QUEUE: &[Row] = &[
    rw(TDBAL, 0x3800, 0xffff_fff0, 0, "10.2.6"),
    rw(TDBAH, 0x3804, ALL, 0, "10.2.6"),
    rw(TDLEN, 0x3808, 0x000f_ff80, 0, "10.2.6"),
    rw(TDH, 0x3810, 0xffff, 0, "10.2.6"),
    rw(TDT, 0x3818, 0xffff, 0, "10.2.6"),
    rw(TIDV, 0x3820, 0xffff, 0, "10.2.6"),
    rw(TXDCTL, 0x3828, 0xff7f_3f3f, 0, "10.2.6"),
    rw(TADV, 0x382c, 0xffff, 0, "10.2.6"),
    rw(TARC, 0x3840, 0x7fff_ffff, 0x0000_0403, "10.2.6"),
];

/// Counters of the 82574 that the 8254x lacks.
const COUNTERS: &[Row] = &[
    rw(IAC, 0x4100, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICRXPTC, 0x4104, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICRXATC, 0x4108, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICTXPTC, 0x410c, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICTXATC, 0x4110, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICTXQEC, 0x4118, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICTXQMTC, 0x411c, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICRXDMTC, 0x4120, 0, 0, "10.2.7").read_clears(ALL),
    rw(ICRXOC, 0x4124, 0, 0, "10.2.7").read_clears(ALL),
];

const FILTERS: &[Row] = &[
    rw(RXCSUM, 0x5000, 0x0000_37ff, 0x0000_0300, "10.2.5"),
    rw(RFCTL, 0x5008, 0x0003_fdff, 0, "10.2.5"),
    rw(MTA, 0x5200, ALL, 0, "10.2.5").times(128),
];

/// Wake-up, management, PCI Express, semaphores.
const WAKE: &[Row] = &[
    rw(WUC, 0x5800, 0x0000_000b, 0, "10.2.8"),
    rw(WUFC, 0x5808, 0x000f_80ff, 0, "10.2.8"),
    rw(WUS, 0x5810, 0, 0, "10.2.8"),
    rw(MRQC, 0x5818, 0x003f_0003, 0, "10.2.5"),
    rw(MANC, 0x5820, 0xfd7f_ff04, 0, "10.2.8"),
    rw(IPAV, 0x5838, 0x0001_000f, 0, "10.2.8"),
    rw(IP4AT, 0x5840, ALL, 0, "10.2.8").times(8),
    rw(MANC2H, 0x5860, ALL, 0, "10.2.8"),
    rw(IP6AT, 0x5880, ALL, 0, "10.2.8").times(4),
    rw(MDEF, 0x5890, ALL, 0, "10.2.8").times(8),
    rw(WUPL, 0x5900, 0, 0, "10.2.8"),
    rw(WUPM, 0x5a00, 0, 0, "10.2.8").times(32),
    rw(GCR, 0x5b00, 0x7fff_ffff, 0x0c00_0000, "10.2.3"),
    rw(FACTPS, 0x5b30, 0x0000_0000, 0x2000_0001, "10.2.3"),
    rw(SWSM, 0x5b50, 0x0000_000f, 0, "10.2.3").device(1),
    rw(FWSM, 0x5b54, 0, 0, "10.2.3"),
    rw(SWSM2, 0x5b58, 0x0000_0002, 0, "10.2.3"),
    rw(SW_FW_SYNC, 0x5b5c, 0xffff, 0, "none: Linux's e1000e/regs.h"),
    rw(GCR2, 0x5b64, ALL, 0, "10.2.3"),
    rw(PBACLR, 0x5b68, 0, 0, "10.2.3"),
    rw(RETA, 0x5c00, ALL, 0, "10.2.5").times(32),
    rw(RSSRK, 0x5c80, ALL, 0, "10.2.5").times(10),
    rw(FFLT, 0x5f00, 0x0000_07ff, 0, "10.2.8").every(8, 8),
    rw(FCRTV, 0x5f40, 0xffff, 0, "10.2.2"),
];

/// Masks and values of the flexible filters.
const FLEXIBLE: &[Row] =
    &[rw(FFMT, 0x9000, 0x0000_000f, 0, "10.2.8").times(256), rw(FFVT, 0x9800, ALL, 0, "10.2.8").times(256)];

const CLOCK: &[Row] = &[
    rw(SYSTIML, 0xb600, 0, 0, "10.2.9"),
    rw(SYSTIMH, 0xb604, 0, 0, "10.2.9"),
    rw(TIMINCA, 0xb608, ALL, 0, "10.2.9"),
    rw(TIMADJL, 0xb60c, ALL, 0, "10.2.9"),
    rw(TIMADJH, 0xb610, ALL, 0, "10.2.9"),
    rw(TSYNCTXCTL, 0xb614, 0x0000_0010, 0, "10.2.9").device(1),
    rw(TXSTMPL, 0xb618, 0, 0, "10.2.9").device(ALL),
    rw(TXSTMPH, 0xb61c, 0, 0, "10.2.9").device(ALL),
    rw(TSYNCRXCTL, 0xb620, 0x0000_003e, 0, "10.2.9").device(1),
    rw(RXSTMPL, 0xb624, 0, 0, "10.2.9").device(ALL),
    rw(RXSTMPH, 0xb628, 0, 0, "10.2.9").device(ALL),
    rw(RXSATRL, 0xb62c, 0, 0, "10.2.9").device(ALL),
    rw(RXSATRH, 0xb630, 0, 0, "10.2.9").device(ALL),
    rw(RXMTRL, 0xb634, ALL, 0x0000_88f7, "10.2.9"),
    rw(RXUDP, 0xb638, 0xffff, 0x0000_3f01, "10.2.9"),
];

const PORTS: &[Row] = &[rw(IOADDR, 0, ALL, 0, "10.2.1"), Row::port(IODATA, 4, 4, "10.2.1")];

const fn flat(base: u32, len: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region: WINDOW, base, stride: len, count: 1, rows }
}

const fn queues(base: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region: WINDOW, base, stride: 0x100, count: QUEUES as u32, rows }
}

/// The registers of the 82574.
pub static M82574: Table = Table {
    regions: REGIONS,
    blocks: &[
        flat(0x0000, 0x2000, GENERAL),
        flat(0x2000, 0x0800, RECEIVE),
        queues(0x2800, RECEIVE_QUEUE),
        flat(0x2c00, 0x0400, SMALL),
        flat(0x3000, 0x0800, TRANSMIT),
        queues(0x3800, TRANSMIT_QUEUE),
        flat(statistics::AT, 0x0100, &statistics::ROWS),
        flat(0x4100, 0x0f00, COUNTERS),
        flat(filter::AT, 0x0400, FILTERS),
        filter::ADDRESSES,
        flat(filter::VLANS_AT, 0x0200, filter::VLANS),
        flat(0x5800, 0x0800, WAKE),
        flat(0x9000, 0x1000, FLEXIBLE),
        flat(0xb600, 0x0100, CLOCK),
        Block { region: IO, base: 0, stride: IO_BYTES, count: 1, rows: PORTS },
    ],
    aliases: ALIASES,
};

#[cfg(test)]
mod tests {
    #[test]
    fn the_table_is_in_order_and_whole() {
        assert_eq!(super::M82574.check(), Ok(()));
    }
}
