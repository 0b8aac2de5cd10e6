//! The register table against the offsets of Linux's e1000_regs.h and against the registers themselves.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::igb::registers::{M82576, Row, WINDOW};

use crate::guest::Guest;

/// Names and offsets of Linux 6.1.
#[rustfmt::skip]
const LINUX: [(&str, u32); 95] = [
    ("CTRL", 0x0), ("STATUS", 0x8), ("EECD", 0x10), ("EERD", 0x14), ("CTRL_EXT", 0x18), ("MDIC", 0x20), ("SCTL", 0x24),
    ("FCAL", 0x28), ("FCAH", 0x2c), ("FCT", 0x30), ("CONNSW", 0x34), ("VET", 0x38), ("ICR", 0xc0), ("ICS", 0xc8),
    ("IMS", 0xd0), ("IMC", 0xd8), ("IAM", 0xe0), ("RCTL", 0x100), ("FCTTV", 0x170), ("TCTL", 0x400),
    ("TCTL_EXT", 0x404), ("TIPG", 0x410), ("VMBMEM", 0x800), ("P2VMAILBOX", 0xc00), ("MBVFICR", 0xc80),
    ("MBVFIMR", 0xc84), ("VFLRE", 0xc88), ("VFRE", 0xc8c), ("VFTE", 0xc90), ("LEDCTL", 0xe00), ("EEMNGCTL", 0x1010),
    ("TCPTIMER", 0x104c), ("GPIE", 0x1514), ("EICS", 0x1520), ("EIMS", 0x1524), ("EIMC", 0x1528), ("EIAC", 0x152c),
    ("EIAM", 0x1530), ("EICR", 0x1580), ("EITR", 0x1680), ("IVAR", 0x1700), ("IVAR_MISC", 0x1740), ("FCRTL", 0x2160),
    ("FCRTH", 0x2168), ("RXPBS", 0x2404), ("QDE", 0x2408), ("TXPBS", 0x3404), ("DTXSWC", 0x3500), ("DTXCTL", 0x3590),
    ("VMVIR", 0x3700), ("CBTMPC", 0x402c), ("HTDPMC", 0x403c), ("CBRMPC", 0x40fc), ("IAC", 0x4100), ("RPTHC", 0x4104),
    ("HGPTC", 0x4118), ("HGORCL", 0x4128), ("LENERRS", 0x4138), ("SCVPC", 0x4228), ("RXCSUM", 0x5000),
    ("RLPML", 0x5004), ("RFCTL", 0x5008), ("MTA", 0x5200), ("RAL", 0x5400), ("RAH", 0x5404), ("PSRTYPE", 0x5480),
    ("RAL2", 0x54e0), ("RAH2", 0x54e4), ("VFTA", 0x5600), ("MRQC", 0x5818), ("VT_CTL", 0x581c), ("MANC", 0x5820),
    ("SAQF", 0x5980), ("DAQF", 0x59a0), ("SPQF", 0x59c0), ("FTQF", 0x59e0), ("IMIR", 0x5a80), ("IMIREXT", 0x5aa0),
    ("VMOLR", 0x5ad0), ("RPLOLR", 0x5af0), ("GCR", 0x5b00), ("SWSM", 0x5b50), ("FWSM", 0x5b54),
    ("SW_FW_SYNC", 0x5b5c), ("RETA", 0x5c00), ("RSSRK", 0x5c80), ("ETQF", 0x5cb0), ("VLVF", 0x5d00),
    ("TSYNCRXCFG", 0x5f50), ("UTA", 0xa000), ("TIMINCA", 0xb608), ("TSYNCTXCTL", 0xb614),
    ("TSYNCRXCTL", 0xb620), ("SRRCTL", 0xc00c), ("TDWBAL", 0xe038),
];

/// Registers with more effects than their masks show.
const ACTIVE: [&str; 23] = [
    "CTRL", "STATUS", "EECD", "EERD", "CTRL_EXT", "MDIC", "ICR", "ICS", "IMS", "IMC", "FRTIMER", "EICS", "EIMS",
    "EIMC", "EICR", "EITR", "SWSM", "TIMADJH", "TCTL", "TDT", "TXDCTL", "RXDCTL", "IAC",
];

/// Every register of the memory window that has a value: its name, its offset, and its row.
fn registers() -> impl Iterator<Item = (&'static str, u64, &'static Row)> {
    let all = M82576.places().filter(|(region, _, place)| *region == WINDOW && !place.row.port);
    all.map(|(_, offset, place)| (place.name.word(), u64::from(offset), place.row))
}

#[test]
fn registers_lie_where_the_driver_looks_for_them() {
    for (name, offset) in LINUX {
        let found = registers().find(|register| register.0 == name).map(|register| register.1);
        assert_eq!(found, Some(offset.into()), "{name}");
    }
    assert_eq!(M82576.check(), Ok(()));
}

#[test]
fn every_plain_register_has_its_reset_value_and_keeps_what_may_be_written() {
    let mut g = Guest::new();
    for (name, at, row) in registers().filter(|register| !ACTIVE.contains(&register.0)) {
        if !(0x5400..0x5408).contains(&at) {
            assert_eq!(g.r(at), row.reset, "{name} after reset");
        }
        for value in [!0, 0x5a5a_a5a5, 0] {
            let fixed = g.r(at) & !row.write;
            g.w(at, value);
            assert_eq!(g.r(at), value & row.write | fixed, "{name}");
        }
    }
}

#[test]
fn the_first_four_queues_answer_at_their_old_places_too() {
    let mut g = Guest::new();
    for queue in 0..4 {
        g.w(0x2800 + queue * 0x100, 0x1000 * queue as u32);
        g.w(0xe008 + queue * 0x40, 0x80 * queue as u32);
        assert_eq!(g.r(0xc000 + queue * 0x40), 0x1000 * queue as u32);
        assert_eq!(g.r(0x3808 + queue * 0x100), 0x80 * queue as u32);
    }
}
