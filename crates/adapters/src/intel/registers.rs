//! The names of all registers of the family, and the bits of those that several chips share (Intel 317453, chapter 13). A chip's
//! own table lists its registers and their offsets.

nicety_adapter::register_names! {
    /// A register of one of Intel's network controllers, by its manual's name.
    pub enum Reg {
        CTRL, STATUS, EECD, EERD, CTRL_EXT, FLA, MDIC, FCAL, FCAH, FCT, VET, ICR, ITR, ICS, IMS, IMC, RCTL, FCTTV, TXCW,
        RXCW, TCTL, TIPG, TBT, AIT, LEDCTL, PBA, ERT, FCRTL, FCRTH, RDFH, RDFT, RDFHS, RDFTS, RDFPC, RDBAL[16], RDBAH[16],
        RDLEN[16], RDH[16], RDT[16], RDTR[2], RXDCTL[16], RADV[2], RSRPD, TXDMAC, TDFH, TDFT, TDFHS, TDFTS, TDFPC, TDBAL[16],
        TDBAH[16], TDLEN[16], TDH[16], TDT[16], TIDV[2], TXDCTL[16], TADV[2], TSPMT, CRCERRS, ALGNERRC, SYMERRS, RXERRC, MPC,
        SCC, ECOL, MCC, LATECOL, COLC, DC, TNCRS, SEC, CEXTERR, RLEC, XONRXC, XONTXC, XOFFRXC, XOFFTXC, FCRUC, PRC64, PRC127,
        PRC255, PRC511, PRC1023, PRC1522, GPRC, BPRC, MPRC, GPTC, GORCL, GORCH, GOTCL, GOTCH, RNBC, RUC, RFC, ROC, RJC,
        MGTPRC, MGTPDC, MGTPTC, TORL, TORH, TOTL, TOTH, TPR, TPT, PTC64, PTC127, PTC255, PTC511, PTC1023, PTC1522, MPTC,
        BPTC, TSCTC, TSCTFC, RXCSUM, MTA[128], RAL[16], RAH[16], VFTA[128], WUC, WUFC, WUS, MANC, IPAV, IP4AT[8], IP6AT[4],
        WUPL, WUPM[32], SWSM, FFLT[8], FFMT[256], FFVT[256], PBM, IOADDR, IODATA, EIAC, IAM, IVAR[8], EITR[25], TCTL_EXT,
        EXTCNF_CTRL, EXTCNF_SIZE, POEMB, PBS, EEMNGCTL, EEWR, FLOP, PSRCTL, RAID, TARC[2], RFCTL, MRQC, MANC2H, MDEF[8], GCR,
        GCR2, FACTPS, FWSM, SWSM2, SW_FW_SYNC, PBACLR, RETA[32], RSSRK[10], FCRTV, HICR, IAC, ICRXPTC, ICRXATC, ICTXPTC,
        ICTXATC, ICTXQEC, ICTXQMTC, ICRXDMTC, ICRXOC, SYSTIML, SYSTIMH, TIMINCA, TIMADJL, TIMADJH, TSYNCTXCTL, TXSTMPL,
        TXSTMPH, TSYNCRXCTL, RXSTMPL, RXSTMPH, RXSATRL, RXSATRH, RXMTRL, RXUDP,
        // Registers of the 82576.
        SCTL, CONNSW, VMBMEM[128], P2VMAILBOX[8], MBVFICR, MBVFIMR, VFLRE, VFRE, VFTE, FRTIMER, TCPTIMER, GPIE,
        EICS, EIMS, EIMC, EIAM, EICR, IVAR_MISC, RXPBS, QDE, TXPBS, DTXSWC, LVMMC, WVBR, DTXCTL, DTXTCPFLGL,
        DTXTCPFLGH, VMVIR[8], CBTMPC, HTDPMC, CBRMPC, RPTHC, HGPTC, HTCBDPC, HGORCL, HGORCH, HGOTCL, HGOTCH,
        LENERRS, PCS_CFG0, PCS_LCTL, PCS_LSTAT, PCS_ANADV, PCS_LPAB, PCS_NPTX, PCS_LPABNP, SCVPC, RLPML, PSRTYPE[8],
        RAL2[8], RAH2[8], VLAPQF, SYNQF, VT_CTL, SAQF[8], DAQF[8], SPQF[8], FTQF[8], IMIR[8], IMIREXT[8], IMIRVP,
        TXSWC, VMOLR[8], RPLOLR, DCA_CTRL, IOVTCL, ETQF[8], VLVF[32], TSYNCRXCFG, UTA[128], TSICR, TSIM, SRRCTL[16],
        RXCTL[16], RQDPC[16], DVMOLR[16], TXCTL[16], TDWBAL[16], TDWBAH[16],
        // Registers of its virtual functions.
        V2PMAILBOX, VFGPRC, VFGPTC, VFGORC, VFGOTC, VFMPRC, VFGPRLBC, VFGPTLBC, VFGORLBC, VFGOTLBC,
        // Further ones of an 82599's.
        VFLINKS, VTRSCINT[8], RSCCTL[16], VFGORCH, VFGOTCH,
    }
}

pub use Reg::*;

/// A row of a table.
pub type Row = nicety_adapter::bank::Row<Reg>;
/// A table.
pub type Table = nicety_adapter::bank::Table<Reg>;
/// The values of a chip's registers.
pub type Bank = nicety_adapter::bank::Bank<Reg>;
/// A register found at an offset.
pub type Place = nicety_adapter::bank::Place<Reg>;

/// All bits.
pub const ALL: u32 = !0;

/// A register of 32 bits that software reads and writes.
pub const fn rw(name: Reg, offset: u32, write: u32, reset: u32, section: &'static str) -> Row {
    Row::rw(name, offset, write, reset, section)
}

/// Bits of CTRL (13.4.1).
pub mod ctrl {
    /// Full duplex.
    pub const FD: u32 = 1;
    /// Disable DMA (82574).
    pub const MASTER_DISABLE: u32 = 1 << 2;
    /// Set link up.
    pub const SLU: u32 = 1 << 6;
    /// Force speed to bits 9:8.
    pub const FRCSPD: u32 = 1 << 11;
    /// Force duplex to bit 0.
    pub const FRCDPX: u32 = 1 << 12;
    /// Global reset, clears itself.
    pub const RST: u32 = 1 << 26;
    /// VLAN mode.
    pub const VME: u32 = 1 << 30;
    /// Reset the PHY.
    pub const PHY_RST: u32 = 1 << 31;
}

/// Bits of CTRL_EXT (13.4.6; 82574, 10.2.2).
pub mod ctrl_ext {
    /// Read the EEPROM again, clears itself.
    pub const EE_RST: u32 = 1 << 13;
    /// A message masks the causes in IAM (82574).
    pub const EIAME: u32 = 1 << 24;
    /// A read or write of ICR masks the causes in IAM (82574).
    pub const IAME: u32 = 1 << 27;
}

/// Bits of RCTL (13.4.22).
pub mod rctl {
    /// Receiver on.
    pub const EN: u32 = 1 << 1;
    /// Unicast promiscuous.
    pub const UPE: u32 = 1 << 3;
    /// Multicast promiscuous.
    pub const MPE: u32 = 1 << 4;
    /// Long packets.
    pub const LPE: u32 = 1 << 5;
    /// Descriptor type: bit 10 is packet split (82574).
    pub const SPLIT: u32 = 1 << 10;
    /// Loopback mode: bit 6 is set in both modes (MAC 01, PHY 11).
    pub const LBM: u32 = 1 << 6;
    /// Broadcasts.
    pub const BAM: u32 = 1 << 15;
    /// VLAN filter.
    pub const VFE: u32 = 1 << 18;
    /// Canonical form indicator filter.
    pub const CFIEN: u32 = 1 << 19;
    /// Value of that indicator that passes.
    pub const CFI: u32 = 1 << 20;
    /// Buffer size extension.
    pub const BSEX: u32 = 1 << 25;
    /// Strip the CRC.
    pub const SECRC: u32 = 1 << 26;
    /// Buffer size in KiB, if not 0 (82574): its lowest bit.
    pub const FLXBUF: u32 = 27;
}

/// Bits of TCTL (13.4.33).
pub mod tctl {
    /// Transmitter on.
    pub const EN: u32 = 1 << 1;
    /// Pad short packets.
    pub const PSP: u32 = 1 << 3;
}

/// Interrupt causes (13.4.17).
pub mod cause {
    /// A transmit descriptor was written back.
    pub const TXDW: u32 = 1;
    /// The transmit queue is empty.
    pub const TXQE: u32 = 1 << 1;
    /// The link changed.
    pub const LSC: u32 = 1 << 2;
    /// Few receive descriptors are left.
    pub const RXDMT0: u32 = 1 << 4;
    /// Frames were lost.
    pub const RXO: u32 = 1 << 6;
    /// Frames have arrived.
    pub const RXT0: u32 = 1 << 7;
    /// An access to the PHY is complete.
    pub const MDAC: u32 = 1 << 9;
    /// A small packet has arrived.
    pub const SRPD: u32 = 1 << 16;
    /// Receive queue 0 (82574; queue 1 has the next bit).
    pub const RXQ0: u32 = 1 << 20;
    /// Transmit queue 0 (82574; queue 1 has the next bit).
    pub const TXQ0: u32 = 1 << 22;
    /// A cause that has no vector of its own (82574).
    pub const OTHER: u32 = 1 << 24;
    /// The chip interrupts (82574).
    pub const ASSERTED: u32 = 1 << 31;
}

/// Bits of RXDCTL and TXDCTL (82576, 8.10.9, 8.12.15).
pub mod dctl {
    /// The queue is on.
    pub const ENABLE: u32 = 1 << 25;
}

/// Bits of RFCTL (82574, 10.2.5).
pub mod rfctl {
    /// Extended descriptors.
    pub const EXTEN: u32 = 1 << 15;
}

/// Bits of RXCSUM (13.5.3).
pub mod rxcsum {
    /// IPv4 header checksums.
    pub const IPOFL: u32 = 1 << 8;
    /// TCP and UDP checksums.
    pub const TUOFL: u32 = 1 << 9;
    /// Descriptors have a hash instead of a packet checksum (82574).
    pub const PCSD: u32 = 1 << 13;
}
