//! The registers against the offsets of Linux's e1000_hw.h, and against reset values and masks of the manual and of other
//! implementations.

use nicety_adapters::intel::e1000::registers::M82540;

use crate::bench::Bench;
use crate::held::{self, Documents, Held};

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

/// The manual (Intel 317453) has the fields of these registers with all reserved ones, and VirtualBox's DevE1000.cpp (g_aE1kRegMap,
/// e1kR3HardReset), written from the same manual, agrees. Linux's e1000_reg_test compares whole registers, so that reserved bits
/// must read as zeros: FCAL to VET, FCTTV, TIPG, RDBAL to RDT, FCRTH, TDBAL to TDLEN, TIDV, TXCW, RAH, MTA.
#[rustfmt::skip]
const ALL: &[Held] = &[
    // 13.4.9 to 13.4.15, 13.4.18, 13.4.34, 13.4.35.
    ("FCAL", Some(0), !0), ("FCAH", Some(0), 0xffff), ("FCT", Some(0), 0xffff), ("FCTTV", Some(0), 0xffff),
    ("VET", Some(0x8100), 0xffff), ("ITR", Some(0), 0xffff), ("TXCW", Some(0), 0xc000_ffff), ("RXCW", Some(0), 0),
    ("TIPG", Some(0x0060_2008), 0x3fff_ffff), ("AIT", Some(0), 0xffff),
    // 13.4.23 to 13.4.31: thresholds in units of 8 bytes, rings in units of 128.
    ("FCRTL", Some(0), 0x8000_fff8), ("FCRTH", Some(0), 0xfff8),
    ("RDBAL", Some(0), 0xffff_fff0), ("RDBAH", Some(0), !0), ("RDLEN", Some(0), 0x000f_ff80),
    ("RDH", Some(0), 0xffff), ("RDT", Some(0), 0xffff), ("RADV", Some(0), 0xffff),
    // 13.4.37 to 13.4.45.
    ("TDBAL", Some(0), 0xffff_fff0), ("TDBAH", Some(0), !0), ("TDLEN", Some(0), 0x000f_ff80),
    ("TDH", Some(0), 0xffff), ("TIDV", Some(0), 0xffff), ("TADV", Some(0), 0xffff),
    ("TXDCTL", Some(0), 0xff3f_3f3f), ("TSPMT", Some(0x0100_0400), !0),
    // 13.5: PCSS, IPOFLD, TUOFLD, IPV6OFL; the tables; address, ASEL and AV.
    ("RXCSUM", Some(0), 0x07ff), ("MTA", Some(0), !0), ("VFTA", Some(0), !0), ("RAL", Some(0), !0),
    ("RAH", Some(0), 0x8003_ffff),
    // 13.8.1 to 13.8.5: bits 12:0.
    ("RDFH", Some(0), 0x1fff), ("RDFT", Some(0), 0x1fff), ("RDFHS", Some(0), 0x1fff), ("RDFTS", Some(0), 0x1fff),
    ("RDFPC", Some(0), 0x1fff),
    // 13.4.46: PTHRESH, HTHRESH, WTHRESH, GRAN.
    ("RXDCTL", None, 0x013f_3f3f),
    // 13.6.5, 13.6.6, 13.6.10, 13.6.11: addresses; four bits of mask; values.
    ("IP4AT", Some(0), !0), ("IP6AT", Some(0), !0), ("FFMT", Some(0), 0xf), ("FFVT", Some(0), !0),
    // No packet has woken a system.
    ("WUS", Some(0), 0), ("WUPL", Some(0), 0), ("WUPM", Some(0), 0),
];

/// Fields that drivers write, or that VirtualBox has, of registers with further ones.
#[rustfmt::skip]
const SOME: &[Held] = &[
    // Linux's names, behind E1000_CTRL_EXT_: SPD_BYPS, RO_DIS, LINK_MODE.
    ("CTRL_EXT", Some(0), 1 << 15 | 1 << 17 | 3 << 22),
    // e1000_reg_test's mask.
    ("RCTL", Some(0), 0x06df_b3fe),
    ("TBT", Some(0), 0xffff),
    // Modes, inversion and blinking of four LEDs.
    ("LEDCTL", Some(0x0706_8302), 0xcfcf_cfcf),
    // Linux's e1000e: E1000_ERT_2048, and bit 13 with it.
    ("ERT", Some(0), 0x100 | 1 << 13),
    // 13.8.6 to 13.8.10.
    ("TDFH", Some(0), 0x7ff), ("TDFT", Some(0), 0x7ff), ("TDFHS", Some(0), 0x7ff), ("TDFTS", Some(0), 0x7ff),
    ("TDFPC", Some(0), 0x7ff),
    // Linux's E1000_MANC_: ARP_EN, RCV_TCO_EN, EN_MNG2HOST.
    ("MANC", Some(0), 1 << 13 | 1 << 17 | 1 << 21),
    // 13.6.1 to 13.6.4: APME, PME_EN, APMPME (PME_STATUS is cleared by writing one); LNKC to IPV6, IGNORE_TCO and FLX0 to FLX3
    // (Linux's E1000_WUC_ and E1000_WUFC_); V40 to V43 and V60.
    ("WUC", Some(0), 0xb), ("WUFC", Some(0), 0x000f_80ff), ("IPAV", Some(0), 0x0001_000f),
    ("FFLT", Some(0), 0x7f), ("TXDMAC", Some(0), 1), ("RSRPD", Some(0), 0xfff),
    // U-Boot's e1000.c writes the semaphore bit of SWSM, which this chip does not have, and reads it back.
    ("SWSM", Some(0), 2),
];

const DOCUMENTS: Documents = Documents {
    all: ALL,
    some: SOME,
    active: &["CTRL", "STATUS", "EECD", "EERD", "MDIC", "ICR", "ICS", "IMS", "IMC", "PBA", "TCTL", "TDT", "RDTR"],
    // The flash's wires, of chips with a flash.
    silent: &["FLA"],
    counters: 0x4000..0x4100,
};

#[test]
fn registers_lie_where_the_driver_looks_for_them() {
    held::find(&M82540, &LINUX);
}

#[test]
fn every_plain_register_has_its_reset_value_and_keeps_what_may_be_written() {
    DOCUMENTS.compare(&mut Bench::new(), &M82540);
}
