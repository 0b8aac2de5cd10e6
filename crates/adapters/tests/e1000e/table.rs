//! The datasheet's registers (317694, chapter 10): their addresses (names and offsets from Linux's e1000e/regs.h), their values
//! after a reset, and the bits that software may write. The tests use accesses to the chip only, and nothing from the adapter's
//! table.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::e1000e::registers::{M82574, WINDOW};

use crate::bench::Bench;

/// Registers that hold a value: name, offset, value after a reset, writable bits.
#[rustfmt::skip]
const HELD: [(&str, u64, u32, u32); 57] = [
    ("FCAL", 0x00028, 0x00c2_8001, !0), ("FCAH", 0x0002c, 0x0100, 0xffff), ("FCT", 0x00030, 0x8808, 0xffff),
    ("VET", 0x00038, 0x8100, 0xffff), ("ITR", 0x000c4, 0, 0xffff), ("EIAC", 0x000dc, 0, 0x01f0_0000),
    ("IAM", 0x000e0, 0, !0), ("IVAR", 0x000e4, 0, 0x800f_ffff), ("EITR", 0x000e8, 0, 0xffff),
    ("FCTTV", 0x00170, 0, 0xffff), ("TIPG", 0x00410, 0x0060_2008, 0x3fff_ffff), ("AIT", 0x00458, 0, 0xffff),
    ("LEDCTL", 0x00e00, 0x0706_8302, 0x0f0f_0f0f), ("POEMB", 0x00f10, 0x030d, 0xffff), ("PBS", 0x01008, 0x28, 0x3f),
    ("ERT", 0x02008, 0, 0x3fff), ("FCRTL", 0x02160, 0, 0x8000_fff8), ("FCRTH", 0x02168, 0, 0xfff8),
    ("PSRCTL", 0x02170, 0x0004_0402, 0x3f3f_3f7f),
    ("RDFH", 0x02410, 0, 0x1fff), ("RDFT", 0x02418, 0, 0x1fff), ("RDFHS", 0x02420, 0, 0x1fff),
    ("RDFTS", 0x02428, 0, 0x1fff), ("RDFPC", 0x02430, 0, 0x1fff),
    ("RDBAL", 0x02800, 0, 0xffff_fff0), ("RDBAH", 0x02804, 0, !0), ("RDLEN", 0x02808, 0, 0x000f_ff80),
    ("RDH", 0x02810, 0, 0xffff), ("RDT", 0x02818, 0, 0xffff), ("RDTR", 0x02820, 0, 0xffff),
    ("RXDCTL", 0x02828, 0x0101_0000, 0x013f_3f3f), ("RADV", 0x0282c, 0, 0xffff), ("RSRPD", 0x02c00, 0, 0x0fff),
    ("RAID", 0x02c08, 0, 0xffff),
    ("TDFH", 0x03410, 0x0600, 0x1fff), ("TDFT", 0x03418, 0x0600, 0x1fff), ("TDFHS", 0x03420, 0x0600, 0x1fff),
    ("TDFTS", 0x03428, 0x0600, 0x1fff), ("TDFPC", 0x03430, 0, 0x1fff),
    ("TDBAL", 0x03800, 0, 0xffff_fff0), ("TDBAH", 0x03804, 0, !0), ("TDLEN", 0x03808, 0, 0x000f_ff80),
    ("TDH", 0x03810, 0, 0xffff), ("TDT", 0x03818, 0, 0xffff), ("TIDV", 0x03820, 0, 0xffff),
    ("TADV", 0x0382c, 0, 0xffff), ("TARC", 0x03840, 0x0403, 0x0000_07ff),
    ("RXCSUM", 0x05000, 0x0300, 0x33ff), ("MTA", 0x05200, 0, !0), ("VFTA", 0x05600, 0, !0),
    ("MRQC", 0x05818, 0, 0x003f_0003), ("RETA", 0x05c00, 0, !0), ("RSSRK", 0x05c80, 0, !0),
    ("TIMINCA", 0x0b608, 0, !0), ("TIMADJL", 0x0b60c, 0, !0), ("RXMTRL", 0x0b634, 0x88f7, 0xffff),
    ("RXUDP", 0x0b638, 0x3f01, 0xffff),
];

/// Registers with further effects. Their values after a reset are given where they do not depend on earlier events.
#[rustfmt::skip]
const ACTIVE: [(&str, u64, Option<u32>); 30] = [
    ("CTRL", 0x00000, None), ("STATUS", 0x00008, None), ("EECD", 0x00010, None), ("EERD", 0x00014, Some(2)),
    ("CTRL_EXT", 0x00018, None), ("FLA", 0x0001c, None), ("MDIC", 0x00020, Some(1 << 28)), ("ICR", 0x000c0, None),
    ("ICS", 0x000c8, None), ("IMS", 0x000d0, Some(0)), ("IMC", 0x000d8, None), ("RCTL", 0x00100, Some(0)),
    ("TCTL", 0x00400, Some(8)), ("EXTCNF_CTRL", 0x00f00, None), ("EXTCNF_SIZE", 0x00f08, None),
    // 20 KiB for receive, the rest of 40 KiB for transmit.
    ("PBA", 0x01000, Some(0x0014_0014)), ("EEMNGCTL", 0x01010, None), ("EEWR", 0x0102c, Some(2)),
    ("TXDCTL", 0x03828, Some(0)), ("RFCTL", 0x05008, Some(0)), ("RAL", 0x05400, None), ("RAH", 0x05404, None),
    ("WUC", 0x05800, None), ("MANC", 0x05820, None), ("GCR", 0x05b00, None), ("FACTPS", 0x05b30, None),
    ("SWSM", 0x05b50, None), ("FWSM", 0x05b54, None), ("TSYNCTXCTL", 0x0b614, Some(0)), ("TSYNCRXCTL", 0x0b620, Some(0)),
];

/// Counters, in their order from 0x4000. A read clears them, and a write has no effect.
#[rustfmt::skip]
const COUNTERS: [(&str, u64); 67] = [
    ("CRCERRS", 0x00), ("ALGNERRC", 0x04), ("SYMERRS", 0x08), ("RXERRC", 0x0c), ("MPC", 0x10), ("SCC", 0x14),
    ("ECOL", 0x18), ("MCC", 0x1c), ("LATECOL", 0x20), ("COLC", 0x28), ("DC", 0x30), ("TNCRS", 0x34), ("SEC", 0x38),
    ("CEXTERR", 0x3c), ("RLEC", 0x40), ("XONRXC", 0x48), ("XONTXC", 0x4c), ("XOFFRXC", 0x50), ("XOFFTXC", 0x54),
    ("FCRUC", 0x58), ("PRC64", 0x5c), ("PRC127", 0x60), ("PRC255", 0x64), ("PRC511", 0x68), ("PRC1023", 0x6c),
    ("PRC1522", 0x70), ("GPRC", 0x74), ("BPRC", 0x78), ("MPRC", 0x7c), ("GPTC", 0x80), ("GORCL", 0x88),
    ("GORCH", 0x8c), ("GOTCL", 0x90), ("GOTCH", 0x94), ("RNBC", 0xa0), ("RUC", 0xa4), ("RFC", 0xa8), ("ROC", 0xac),
    ("RJC", 0xb0), ("MGTPRC", 0xb4), ("MGTPDC", 0xb8), ("MGTPTC", 0xbc), ("TORL", 0xc0), ("TORH", 0xc4),
    ("TOTL", 0xc8), ("TOTH", 0xcc), ("TPR", 0xd0), ("TPT", 0xd4), ("PTC64", 0xd8), ("PTC127", 0xdc),
    ("PTC255", 0xe0), ("PTC511", 0xe4), ("PTC1023", 0xe8), ("PTC1522", 0xec), ("MPTC", 0xf0), ("BPTC", 0xf4),
    ("TSCTC", 0xf8), ("TSCTFC", 0xfc), ("IAC", 0x100), ("ICRXPTC", 0x104), ("ICRXATC", 0x108), ("ICTXPTC", 0x10c),
    ("ICTXATC", 0x110), ("ICTXQEC", 0x118), ("ICTXQMTC", 0x11c), ("ICRXDMTC", 0x120), ("ICRXOC", 0x124),
];

/// Read-only: wake-up status, clock, time stamps.
const FIXED: [(&str, u64); 9] = [
    ("RXCW", 0x0180),
    ("WUS", 0x5810),
    ("FWSM", 0x5b54),
    ("SYSTIML", 0xb600),
    ("SYSTIMH", 0xb604),
    ("TXSTMPL", 0xb618),
    ("TXSTMPH", 0xb61c),
    ("RXSTMPL", 0xb624),
    ("RXSTMPH", 0xb628),
];

fn place(name: &str) -> Option<u64> {
    let mut all = M82574.places().filter(|(region, _, place)| *region == WINDOW && place.name.word() == name);
    all.next().map(|(_, offset, _)| offset.into())
}

#[test]
fn registers_lie_where_the_datasheet_and_the_driver_have_them() {
    let counters = COUNTERS.map(|(name, offset)| (name, 0x4000 + offset));
    let held = HELD.map(|(name, offset, ..)| (name, offset));
    let active = ACTIVE.map(|(name, offset, _)| (name, offset));
    for (name, offset) in counters.into_iter().chain(held).chain(active).chain(FIXED) {
        assert_eq!(place(name), Some(offset), "{name}");
    }
}

#[test]
fn a_register_that_holds_a_value_has_its_first_one_and_keeps_what_may_be_written() {
    let mut g = Bench::of("e1000e");
    for (name, at, reset, _) in HELD {
        assert_eq!(g.r(at), reset, "{name} after a reset");
    }
    for (name, at, reset) in ACTIVE {
        assert!(reset.is_none_or(|reset| g.r(at) == reset), "{name} after a reset: {:#x}", g.r(at));
    }
    for (name, at, reset, keeps) in HELD {
        for value in [!0, 0x5a5a_a5a5, 0xa5a5_5a5a, 0] {
            g.w(at, value);
            assert_eq!(g.r(at) & keeps, value & keeps, "{name} of {value:#x}");
        }
        g.w(at, reset);
    }
}

#[test]
fn a_counter_and_what_the_chip_alone_knows_cannot_be_written() {
    let mut g = Bench::of("e1000e");
    for (name, at) in COUNTERS.map(|(name, offset)| (name, 0x4000 + offset)).into_iter().chain(FIXED) {
        let before = g.r(at);
        g.w(at, !before);
        assert_eq!(g.r(at), before, "{name}");
    }
}

/// The second queue's rows, and the arrays up to their ends (10.2.4, 10.2.5, 10.2.6).
#[test]
fn each_of_a_row_has_its_own_place() {
    let mut g = Bench::of("e1000e");
    let row = |first: u64, step: u64, count: u64| (0..count).map(move |n| first + n * step);
    let rows = [
        row(0x2804, 0x100, 2),
        row(0x3804, 0x100, 2),
        row(0xe8, 4, 5),
        row(0x5200, 4, 128),
        row(0x5600, 4, 128),
        row(0x5400, 8, 16),
        row(0x5c00, 4, 32),
        row(0x5c80, 4, 10),
    ];
    for places in rows {
        let all: Vec<u64> = places.collect();
        all.iter().for_each(|&at| g.w(at, at as u32));
        all.iter().for_each(|&at| assert_eq!(g.r(at), at as u32));
    }
}

/// Addresses of the 8254x's predecessor (table 63, "alias address").
#[test]
fn a_register_answers_at_the_address_of_its_predecessor_s_too() {
    let mut g = Bench::of("e1000e");
    let pairs = [(0x0040, 0x5400), (0x0108, 0x2820), (0x0110, 0x2800), (0x0118, 0x2808), (0x0168, 0x2160)];
    let more =
        [(0x0160, 0x2168), (0x0200, 0x5200), (0x0420, 0x3800), (0x0428, 0x3808), (0x0440, 0x3820), (0x0600, 0x5600)];
    for (alias, at) in pairs.into_iter().chain(more) {
        g.w(at, 0x0000_1980);
        assert_eq!((g.r(at), g.r(alias)), (0x1980, 0x1980), "{alias:#x}");
        g.w(alias, 0x0000_2a80);
        assert_eq!(g.r(at), 0x2a80, "{at:#x}");
    }
}
