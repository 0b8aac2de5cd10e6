//! The registers of the 8254x as data: Intel's PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual
//! (317453), chapter 13. `access.rs` has an arm for each read or write that does more than the masks.

use nicety_adapter::bank::{Alias, Block, Region, Widths, changed, without};

pub use crate::intel::registers::*;
use crate::intel::{filter, statistics};

/// BAR 0: registers, and from 0x10000 on the packet buffer's memory.
pub const WINDOW: u8 = 0;
/// BAR 1: IOADDR and IODATA (13.1).
pub const IO: u8 = 1;

/// Bytes of the memory window.
pub const WINDOW_BYTES: u32 = 0x2_0000;
/// Bytes of the I/O window.
pub const IO_BYTES: u32 = 0x40;
/// Offset of the packet buffer's memory (13.8.11).
const PACKET_BUFFER: u32 = 0x1_0000;
/// Its size in dwords.
pub const PACKET_BUFFER_DWORDS: usize = 0x4000;

/// Reserved addresses read as zeros, and only whole dwords are writable.
const REGIONS: &[Region] = &[
    Region { bars: &[0], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: 0 },
    Region { bars: &[1], len: IO_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: ALL },
];

const GENERAL: [Row; 26] = [
    rw(CTRL, 0x0000, 0x7bff_ffff, 0x0014_0241, "13.4.1"),
    rw(STATUS, 0x0008, 0, 0, "13.4.2"),
    rw(EECD, 0x0010, 0x0000_0077, 0x0000_0010, "13.4.3"),
    rw(EERD, 0x0014, 0, 0, "13.4.4").device(0xffff_ff11),
    rw(CTRL_EXT, 0x0018, 0x03c3_dfff, 0, "13.4.6"),
    rw(FLA, 0x001c, 0x0000_003f, 0, "13.4.5"),
    rw(MDIC, 0x0020, 0x2fff_ffff, 0x1000_0000, "13.4.7").device(0x5000_ffff),
    rw(FCAL, 0x0028, ALL, 0, "13.4.9"),
    rw(FCAH, 0x002c, 0xffff, 0, "13.4.10"),
    rw(FCT, 0x0030, 0xffff, 0, "13.4.11"),
    rw(VET, 0x0038, 0xffff, 0x8100, "13.4.12"),
    rw(ICR, 0x00c0, 0, 0, "13.4.17"),
    rw(ITR, 0x00c4, 0xffff, 0, "13.4.18"),
    rw(ICS, 0x00c8, 0, 0, "13.4.19"),
    rw(IMS, 0x00d0, 0, 0, "13.4.20"),
    rw(IMC, 0x00d8, 0, 0, "13.4.21"),
    rw(RCTL, 0x0100, 0x06df_b3fe, 0, "13.4.22"),
    rw(FCTTV, 0x0170, 0xffff, 0, "13.4.13"),
    rw(TXCW, 0x0178, 0xc000_ffff, 0, "13.4.14"),
    rw(RXCW, 0x0180, 0, 0, "13.4.15"),
    rw(TCTL, 0x0400, 0x13ff_fffa, 0x0000_0008, "13.4.33"),
    rw(TIPG, 0x0410, 0x3fff_ffff, 0x0060_2008, "13.4.34"),
    rw(TBT, 0x0448, 0xffff, 0, "13.4.35"),
    rw(AIT, 0x0458, 0xffff, 0, "13.4.35"),
    rw(LEDCTL, 0x0e00, 0xefef_efef, 0x0706_8302, "13.4.16"),
    rw(PBA, 0x1000, 0xffff, 0x0000_0030, "13.4.8"),
];

const RECEIVE: [Row; 17] = [
    rw(ERT, 0x2008, 0x3fff, 0, "13.4.23"),
    rw(FCRTL, 0x2160, 0x8000_fff8, 0, "13.4.24"),
    rw(FCRTH, 0x2168, 0x0000_fff8, 0, "13.4.25"),
    rw(RDFH, 0x2410, 0x1fff, 0, "13.8.1"),
    rw(RDFT, 0x2418, 0x1fff, 0, "13.8.2"),
    rw(RDFHS, 0x2420, 0x1fff, 0, "13.8.3"),
    rw(RDFTS, 0x2428, 0x1fff, 0, "13.8.4"),
    rw(RDFPC, 0x2430, 0x1fff, 0, "13.8.5"),
    rw(RDBAL, 0x2800, 0xffff_fff0, 0, "13.4.26"),
    rw(RDBAH, 0x2804, ALL, 0, "13.4.27"),
    rw(RDLEN, 0x2808, 0x000f_ff80, 0, "13.4.28"),
    rw(RDH, 0x2810, 0xffff, 0, "13.4.29"),
    rw(RDT, 0x2818, 0xffff, 0, "13.4.30"),
    rw(RDTR, 0x2820, 0xffff, 0, "13.4.31"),
    rw(RXDCTL, 0x2828, 0x013f_3f3f, 0x0101_0000, "13.4.32"),
    rw(RADV, 0x282c, 0xffff, 0, "13.4.32"),
    rw(RSRPD, 0x2c00, 0x0fff, 0, "13.4.32"),
];

const TRANSMIT: [Row; 15] = [
    rw(TXDMAC, 0x3000, 0x0000_0001, 0, "13.4.36"),
    rw(TDFH, 0x3410, 0x07ff, 0, "13.8.6"),
    rw(TDFT, 0x3418, 0x07ff, 0, "13.8.7"),
    rw(TDFHS, 0x3420, 0x1fff, 0, "13.8.8"),
    rw(TDFTS, 0x3428, 0x1fff, 0, "13.8.9"),
    rw(TDFPC, 0x3430, 0x1fff, 0, "13.8.10"),
    rw(TDBAL, 0x3800, 0xffff_fff0, 0, "13.4.37"),
    rw(TDBAH, 0x3804, ALL, 0, "13.4.38"),
    rw(TDLEN, 0x3808, 0x000f_ff80, 0, "13.4.39"),
    rw(TDH, 0x3810, 0xffff, 0, "13.4.40"),
    rw(TDT, 0x3818, 0xffff, 0, "13.4.41"),
    rw(TIDV, 0x3820, 0xffff, 0, "13.4.42"),
    rw(TXDCTL, 0x3828, 0xff3f_3f3f, 0, "13.4.43"),
    rw(TADV, 0x382c, 0xffff, 0, "13.4.44"),
    rw(TSPMT, 0x3830, ALL, 0x0100_0400, "13.4.45"),
];

/// Wake-up and management.
const WAKE: [Row; 11] = [
    rw(WUC, 0x5800, 0x0000_000b, 0, "13.6.1"),
    rw(WUFC, 0x5808, 0x000f_80ff, 0, "13.6.2"),
    rw(WUS, 0x5810, 0, 0, "13.6.3"),
    rw(MANC, 0x5820, 0xfd7f_ff04, 0, "13.6.13"),
    rw(IPAV, 0x5838, 0x0001_000f, 0, "13.6.4"),
    rw(IP4AT, 0x5840, ALL, 0, "13.6.5").times(8),
    rw(IP6AT, 0x5880, ALL, 0, "13.6.6").times(4),
    rw(WUPL, 0x5900, 0, 0, "13.6.7"),
    rw(WUPM, 0x5a00, 0, 0, "13.6.8").times(32),
    rw(SWSM, 0x5b50, 0x0000_0002, 0, "none"),
    rw(FFLT, 0x5f00, 0x0000_007f, 0, "13.6.9").times(8),
];

/// Masks and values of the flexible filters.
const FLEXIBLE: &[Row] =
    &[rw(FFMT, 0x9000, 0x0000_000f, 0, "13.6.10").times(256), rw(FFVT, 0x9800, ALL, 0, "13.6.11").times(256)];

const PORTS: &[Row] = &[rw(IOADDR, 0, ALL, 0, "13.1"), Row::port(IODATA, 4, 4, "13.1")];

const MEMORY: &[Row] = &[Row::port(PBM, PACKET_BUFFER, 4, "13.8.11").times(PACKET_BUFFER_DWORDS as u32)];

const fn alias(from: u32, to: u32, dwords: u32) -> Alias {
    Alias { region: WINDOW, from, to, len: 4 * dwords }
}

/// Offsets of the 82542 at which its successors still answer (table 13-2).
#[rustfmt::skip]
pub const ALIASES: &[Alias] = &[
    alias(0x0004, 0x0000, 1),
    alias(0x0040, 0x5400, 32),
    alias(0x0108, 0x2820, 1),
    alias(0x0110, 0x2800, 1),
    alias(0x0114, 0x2804, 1),
    alias(0x0118, 0x2808, 1),
    alias(0x0120, 0x2810, 1),
    alias(0x0128, 0x2818, 1),
    alias(0x0160, 0x2168, 1),
    alias(0x0168, 0x2160, 1),
    alias(0x0200, 0x5200, 128),
    alias(0x0420, 0x3800, 1),
    alias(0x0424, 0x3804, 1),
    alias(0x0428, 0x3808, 1),
    alias(0x0430, 0x3810, 1),
    alias(0x0438, 0x3818, 1),
    alias(0x0440, 0x3820, 1),
    alias(0x0600, 0x5600, 128),
    alias(0x8000, 0x2410, 1),
    alias(0x8008, 0x2418, 1),
    alias(0x8010, 0x3410, 1),
    alias(0x8018, 0x3418, 1),
];

const fn flat(base: u32, len: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region: WINDOW, base, stride: len, count: 1, rows }
}

/// All blocks of a chip, some of them its own.
const fn blocks(
    general: &'static [Row],
    receive: &'static [Row],
    transmit: &'static [Row],
    counters: &'static [Row],
    wake: &'static [Row],
) -> [Block<Reg>; 11] {
    [
        flat(0x0000, 0x2000, general),
        flat(0x2000, 0x1000, receive),
        flat(0x3000, 0x1000, transmit),
        flat(statistics::AT, 0x1000, counters),
        flat(filter::AT, 0x400, filter::ROWS),
        filter::ADDRESSES,
        flat(filter::VLANS_AT, 0x200, filter::VLANS),
        flat(0x5800, 0x0800, wake),
        flat(0x9000, 0x1000, FLEXIBLE),
        flat(PACKET_BUFFER, 0x1_0000, MEMORY),
        Block { region: IO, base: 0, stride: IO_BYTES, count: 1, rows: PORTS },
    ]
}

/// The registers of the 82540EM and the 82545EM.
pub static M82540: Table = Table {
    regions: REGIONS,
    blocks: &blocks(&GENERAL, &RECEIVE, &TRANSMIT, &statistics::ROWS, &WAKE),
    aliases: ALIASES,
};

/// The 82544 has its successors' registers without those marked "not applicable to the 82544GC/EI": the throttle (13.4.18), the
/// absolute delays (13.4.31, 13.4.44), detection of small packets (13.4.32), LED control (13.4.16: its LEDs are on CTRL's pins,
/// e1000_setup_led in Linux's e1000_hw.c). Its EEPROM is not shared, so there is nothing to request (e1000_acquire_eeprom).
const GENERAL_82544: [Row; GENERAL.len() - 2] =
    changed(without(&GENERAL, &[0x00c4, 0x0e00]), &[rw(EECD, 0x0010, 0x0000_0037, 0x0000_0010, "13.4.3")]);
const RECEIVE_82544: [Row; RECEIVE.len() - 2] = without(&RECEIVE, &[0x282c, 0x2c00]);
/// Without LWTHRESH (13.4.43) and TADV.
const TRANSMIT_82544: [Row; TRANSMIT.len() - 1] =
    changed(without(&TRANSMIT, &[0x382c]), &[rw(TXDCTL, 0x3828, 0x013f_3f3f, 0, "13.4.43")]);
/// Without the counts of management packets (13.7.38 to 13.7.40).
const COUNTERS_82544: [Row; statistics::ROWS.len() - 3] = without(&statistics::ROWS, &[0x40b4, 0x40b8, 0x40bc]);
/// Without management (e1000_reset_hw: MANC from the 82540 on).
const WAKE_82544: [Row; WAKE.len() - 1] = without(&WAKE, &[0x5820]);

/// The registers of the 82544GC/EI.
pub static M82544: Table = Table {
    regions: REGIONS,
    blocks: &blocks(&GENERAL_82544, &RECEIVE_82544, &TRANSMIT_82544, &COUNTERS_82544, &WAKE_82544),
    aliases: ALIASES,
};
