//! The register table against the offsets of Linux's e1000_hw.h and against the registers themselves.

use nicety_adapter::bank::Names;
use nicety_adapters::intel::e1000::registers::{M82540, Row, WINDOW};

use crate::bench::Bench;

/// Names and offsets of Linux 6.1 (drivers/net/ethernet/intel/e1000/e1000_hw.h).
#[rustfmt::skip]
const LINUX: [(&str, u32); 131] = [
    ("CTRL", 0x00000), ("STATUS", 0x00008), ("EECD", 0x00010), ("EERD", 0x00014), ("CTRL_EXT", 0x00018),
    ("FLA", 0x0001c), ("MDIC", 0x00020), ("FCAL", 0x00028), ("FCAH", 0x0002c), ("FCT", 0x00030), ("VET", 0x00038),
    ("ICR", 0x000c0), ("ITR", 0x000c4), ("ICS", 0x000c8), ("IMS", 0x000d0), ("IMC", 0x000d8), ("RCTL", 0x00100),
    ("FCTTV", 0x00170), ("TXCW", 0x00178), ("RXCW", 0x00180), ("TCTL", 0x00400), ("TIPG", 0x00410), ("TBT", 0x00448),
    ("AIT", 0x00458), ("LEDCTL", 0x00e00), ("PBA", 0x01000), ("ERT", 0x02008), ("FCRTL", 0x02160), ("FCRTH", 0x02168),
    ("RDFH", 0x02410), ("RDFT", 0x02418), ("RDFHS", 0x02420), ("RDFTS", 0x02428), ("RDFPC", 0x02430),
    ("RDBAL", 0x02800), ("RDBAH", 0x02804), ("RDLEN", 0x02808), ("RDH", 0x02810), ("RDT", 0x02818), ("RDTR", 0x02820),
    ("RXDCTL", 0x02828), ("RADV", 0x0282c), ("RSRPD", 0x02c00), ("TXDMAC", 0x03000), ("TDFH", 0x03410),
    ("TDFT", 0x03418), ("TDFHS", 0x03420), ("TDFTS", 0x03428), ("TDFPC", 0x03430), ("TDBAL", 0x03800),
    ("TDBAH", 0x03804), ("TDLEN", 0x03808), ("TDH", 0x03810), ("TDT", 0x03818), ("TIDV", 0x03820),
    ("TXDCTL", 0x03828), ("TADV", 0x0382c), ("TSPMT", 0x03830), ("CRCERRS", 0x04000), ("ALGNERRC", 0x04004),
    ("SYMERRS", 0x04008), ("RXERRC", 0x0400c), ("MPC", 0x04010), ("SCC", 0x04014), ("ECOL", 0x04018),
    ("MCC", 0x0401c), ("LATECOL", 0x04020), ("COLC", 0x04028), ("DC", 0x04030), ("TNCRS", 0x04034), ("SEC", 0x04038),
    ("CEXTERR", 0x0403c), ("RLEC", 0x04040), ("XONRXC", 0x04048), ("XONTXC", 0x0404c), ("XOFFRXC", 0x04050),
    ("XOFFTXC", 0x04054), ("FCRUC", 0x04058), ("PRC64", 0x0405c), ("PRC127", 0x04060), ("PRC255", 0x04064),
    ("PRC511", 0x04068), ("PRC1023", 0x0406c), ("PRC1522", 0x04070), ("GPRC", 0x04074), ("BPRC", 0x04078),
    ("MPRC", 0x0407c), ("GPTC", 0x04080), ("GORCL", 0x04088), ("GORCH", 0x0408c), ("GOTCL", 0x04090),
    ("GOTCH", 0x04094), ("RNBC", 0x040a0), ("RUC", 0x040a4), ("RFC", 0x040a8), ("ROC", 0x040ac), ("RJC", 0x040b0),
    ("MGTPRC", 0x040b4), ("MGTPDC", 0x040b8), ("MGTPTC", 0x040bc), ("TORL", 0x040c0), ("TORH", 0x040c4),
    ("TOTL", 0x040c8), ("TOTH", 0x040cc), ("TPR", 0x040d0), ("TPT", 0x040d4), ("PTC64", 0x040d8), ("PTC127", 0x040dc),
    ("PTC255", 0x040e0), ("PTC511", 0x040e4), ("PTC1023", 0x040e8), ("PTC1522", 0x040ec), ("MPTC", 0x040f0),
    ("BPTC", 0x040f4), ("TSCTC", 0x040f8), ("TSCTFC", 0x040fc), ("RXCSUM", 0x05000), ("MTA", 0x05200),
    ("VFTA", 0x05600), ("WUC", 0x05800), ("WUFC", 0x05808), ("WUS", 0x05810), ("MANC", 0x05820), ("IPAV", 0x05838),
    ("IP4AT", 0x05840), ("IP6AT", 0x05880), ("WUPL", 0x05900), ("WUPM", 0x05a00), ("FFLT", 0x05f00),
    ("FFMT", 0x09000), ("FFVT", 0x09800),
];

/// Registers with more effects than their masks show.
const ACTIVE: [&str; 13] =
    ["CTRL", "STATUS", "EECD", "EERD", "MDIC", "ICR", "ICS", "IMS", "IMC", "PBA", "TCTL", "TDT", "RDTR"];

/// Every register of the memory window that has a value: its name, its offset, and its row.
fn registers() -> impl Iterator<Item = (&'static str, u64, &'static Row)> {
    let all = M82540.places().filter(|(region, _, place)| *region == WINDOW && !place.row.port);
    all.map(|(_, offset, place)| (place.name.word(), u64::from(offset), place.row))
}

#[test]
fn registers_lie_where_the_driver_looks_for_them() {
    for (name, offset) in LINUX {
        let found = registers().find(|register| register.0 == name).map(|register| register.1);
        assert_eq!(found, Some(offset.into()), "{name}");
    }
    assert_eq!(M82540.check(), Ok(()));
}

#[test]
fn every_plain_register_has_its_reset_value_and_keeps_what_may_be_written() {
    let mut b = Bench::new();
    for (name, at, row) in registers().filter(|register| !ACTIVE.contains(&register.0)) {
        if !(0x5400..0x5408).contains(&at) {
            assert_eq!(b.r(at), row.reset, "{name} after reset");
        }
        for value in [!0, 0x5a5a_a5a5, 0] {
            let fixed = b.r(at) & !row.write;
            b.w(at, value);
            assert_eq!(b.r(at), value & row.write | fixed, "{name}");
        }
    }
}
