//! The registers against the offsets of Linux's e1000_regs.h, and against reset values and masks of Linux's drivers and of QEMU.

use nicety_adapters::intel::igb::registers::M82576;

use crate::guest::Guest;
use crate::held::{self, Documents, Held};

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

/// reg_test_82576 of Linux's igb_ethtool.c, and QEMU's igb_core.c (igb_macreg_writeops, igb_mac_reg_init), written from the 82576's
/// datasheet (chapter 8), have all bits of these.
#[rustfmt::skip]
const ALL: &[Held] = &[
    ("FCAL", Some(0), !0), ("FCAH", Some(0), 0xffff), ("FCT", Some(0), 0xffff), ("FCTTV", Some(0), 0xffff),
    ("FCRTV", Some(0), 0xffff), ("VET", Some(0x8100_8100), !0), ("TIPG", Some(0x0060_1008), 0x3fff_ffff),
    ("RDBAL", Some(0), 0xffff_ff80), ("RDBAH", Some(0), !0), ("RDLEN", Some(0), 0x000f_fff0), ("RDT", Some(0), 0xffff),
    ("TDBAL", Some(0), 0xffff_ff80), ("TDBAH", Some(0), !0), ("TDLEN", Some(0), 0x000f_fff0), ("TDH", Some(0), 0xffff),
    ("RDH", Some(0), 0xffff), ("RAL", Some(0), !0), ("RAL2", Some(0), !0), ("MTA", Some(0), !0), ("VFTA", Some(0), !0),
    ("UTA", Some(0), !0), ("VMBMEM", Some(0), !0), ("IP4AT", Some(0), !0), ("IP6AT", Some(0), !0),
    ("RSSRK", Some(0), !0), ("FFMT", Some(0), 0xf), ("FFVT", Some(0), !0), ("TDWBAH", Some(0), !0),
    ("RDFH", Some(0), 0x1fff), ("RDFT", Some(0), 0x1fff), ("RDFHS", Some(0), 0x1fff), ("RDFTS", Some(0), 0x1fff),
    ("RDFPC", Some(0), 0x1fff),
    // A bit for each of eight functions.
    ("MBVFIMR", Some(0xff), 0xff), ("VFRE", Some(0xff), 0xff), ("VFTE", Some(0xff), 0xff),
    // Linux's E1000_VLVF_: an identifier, eight pools, LVLAN, VLANID_ENABLE; E1000_DTXSWC_: two spoof checks and the loopback of
    // eight pools, VMDQ_LOOPBACK_EN.
    ("VLVF", Some(0), 0x801f_ffff), ("DTXSWC", Some(0), 0x80ff_ffff),
];

/// Fields that Linux's e1000_defines.h, e1000_82575.h and e1000_regs.h, igb_main.c, igb_ptp.c or QEMU have, of registers with
/// further ones. Reset values are QEMU's igb_mac_reg_init.
#[rustfmt::skip]
const SOME: &[Held] = &[
    // reg_test_82576's masks.
    ("RCTL", Some(0), 0x04cf_b0fe), ("FCRTH", Some(0), 0xfff0), ("FCRTL", Some(0), 0x8000_fff0),
    ("RAH", Some(0), 0x83ff_ffff), ("RAH2", Some(0), 0x83ff_ffff),
    ("LEDCTL", Some(0x0706_8302), 0xcfcf_cfcf), ("TCTL_EXT", Some(0x0001_0840), 0x000f_fc00),
    ("RXPBS", Some(0x40), 0x7f), ("TXPBS", Some(0x28), 0x3f), ("RLPML", Some(0x2600), 0x3fff),
    // 8023LL and SPOOF_INT.
    ("DTXCTL", Some(0x44), 0x44),
    // IPOFLD, TUOFLD; CRCOFL; PCSD.
    ("RXCSUM", Some(0x300), 0x2b00),
    // Of each pool: RLPML, LPE, RSSE, AUPE, ROMPE, ROPE, BAM, MPME, STRVLAN, STRCRC.
    ("VMOLR", Some(0x8000_2600), 0xdf03_3fff), ("RPLOLR", Some(0x8000_0000), 0xc000_0000),
    // NSICR, MSIX_MODE, EIAME, PBA.
    ("GPIE", Some(0), 0xc000_0011),
    // 25 vectors; a vector and VALID for each cause.
    ("EIAC", Some(0), 0x01ff_ffff), ("EIAM", Some(0), 0x01ff_ffff),
    ("IVAR", Some(0), 0x9f9f_9f9f), ("IVAR_MISC", Some(0), 0x9f9f), ("IAM", Some(0), 0x77d4_fbfd),
    // BSIZEPKT, BSIZEHDR, DESCTYPE, DROP_EN.
    ("SRRCTL", None, 0x8e00_0f7f),
    // DESC_DCA_EN; relaxed ordering of descriptors, of their write-back and of data.
    ("TXCTL", Some(0x2a00), 0x2a20), ("RXCTL", None, 0xe0), ("TDWBAL", Some(0), 0xffff_fffd),
    // Queues of the table; ENABLE and the fields of six protocols.
    ("RETA", Some(0), 0x0f0f_0f0f), ("MRQC", Some(0), 0x01ff_003f),
    // VM_REPL_EN, DISABLE_DEF_POOL, DEFAULT_POOL; VLANA_DEFAULT.
    ("VT_CTL", Some(0), 0x6000_0380), ("VMVIR", Some(0), 0x4000_ffff),
    // FILTER_ENABLE, 1588, QUEUE_ENABLE, QUEUE, EtherType.
    ("ETQF", Some(0), 0xe407_ffff),
    // Address and port filters: VF_BP, 1588, QUEUE_ENABLE, protocol, MASK; a port; SIZE_BP and CTRL_BP.
    ("FTQF", None, 0xf800_81ff), ("SAQF", Some(0), !0), ("DAQF", Some(0), !0), ("SPQF", Some(0), 0xffff),
    ("IMIR", Some(0), 0xffff), ("IMIREXT", Some(0), 0x0008_1000), ("SYNQF", Some(0), 0xf), ("VLAPQF", Some(0), !0),
    // LEF, IPV6_EX_DIS.
    ("RFCTL", Some(0), 1 << 18 | 1 << 16),
    // igb_ptp.c.
    ("TIMINCA", Some(0), 0x01ff_ffff), ("TIMADJL", Some(0), !0), ("TSYNCTXCTL", Some(0), 0x10),
    ("TSYNCRXCTL", Some(0), 0x1e), ("TSYNCRXCFG", Some(0), 0xffff),
    // STS, REQ and so on of a mailbox's physical side are in igb_mbox.c; nobody is at the other end.
    ("P2VMAILBOX", None, 0), ("MBVFICR", Some(0), 0), ("VFLRE", Some(0), 0),
    ("QDE", Some(0), 0xffff), ("WUFC", Some(0), 0x1f), ("WUC", Some(0), 0x3),
    ("WUS", Some(0), 0), ("WUPL", Some(0), 0), ("WUPM", Some(0), 0),
    ("MANC", Some(0), 1 << 17 | 1 << 21),
];

/// No driver at hand uses these, or none says more than their offsets.
#[rustfmt::skip]
const SILENT: &[&str] = &[
    "FLA", "SCTL", "CONNSW", "TXCW", "AIT", "PBA", "PBS", "EEMNGCTL", "TCPTIMER", "TDFH", "TDFT", "TDFHS", "TDFTS",
    "TDFPC", "LVMMC", "WVBR", "DTXTCPFLGL", "DTXTCPFLGH", "PSRTYPE", "IMIRVP", "TXSWC", "GCR", "FACTPS", "FWSM",
    "SW_FW_SYNC", "DCA_CTRL", "IOVTCL", "FFLT", "TXSTMPL", "TXSTMPH", "RXSTMPL", "RXSTMPH", "RXSATRL", "RXSATRH",
    "TSICR", "TSIM", "RQDPC", "DVMOLR", "PCS_CFG0", "PCS_LCTL", "PCS_LSTAT", "PCS_ANADV", "PCS_LPAB", "PCS_NPTX",
    "PCS_LPABNP", "SCVPC", "IPAV",
];

const DOCUMENTS: Documents = Documents {
    all: ALL,
    some: SOME,
    active: &[
        "CTRL", "STATUS", "EECD", "EERD", "CTRL_EXT", "MDIC", "ICR", "ICS", "IMS", "IMC", "FRTIMER", "EICS", "EIMS",
        "EIMC", "EICR", "EITR", "SWSM", "TIMADJH", "TCTL", "TDT", "TXDCTL", "RXDCTL", "IAC",
    ],
    silent: SILENT,
    counters: 0x4000..0x413c,
};

#[test]
fn registers_lie_where_the_driver_looks_for_them() {
    held::find(&M82576, &LINUX);
}

#[test]
fn every_plain_register_has_its_reset_value_and_keeps_what_may_be_written() {
    DOCUMENTS.compare(&mut Guest::new(), &M82576);
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
