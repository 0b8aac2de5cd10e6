//! The registers of the 82576 as data: Intel's *82576EB Gigabit Ethernet Controller Datasheet*, chapter 8, and Linux's e1000_regs.h
//! for registers that the datasheet only names. `access.rs` has an arm for each read or write that does more than the masks.

use nicety_adapter::bank::{Alias, Block, Region, Widths, changed};

use crate::intel::statistics;

pub use crate::intel::registers::*;

/// BAR 0: registers.
pub const WINDOW: u8 = 0;
/// BAR 2: IOADDR and IODATA (8.1.1.3).
pub const IO: u8 = 1;

/// Bytes of the memory window.
pub const WINDOW_BYTES: u32 = 0x2_0000;
/// Bytes of the I/O window.
pub const IO_BYTES: u32 = 0x20;
/// Bytes of BAR 3: the MSI-X table, and from [`PENDING`] on its pending bits.
pub const MSIX_BYTES: u32 = 0x4000;
/// Offset of the pending bits.
pub const PENDING: u32 = 0x2000;
/// MSI-X vectors (7.3.2).
pub const VECTORS: u16 = 25;
/// Queues each way.
pub const QUEUES: usize = 16;

/// Reserved addresses read as zeros, and only whole dwords are writable.
const REGIONS: &[Region] = &[
    Region { bars: &[0], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: 0 },
    Region { bars: &[2], len: IO_BYTES, reads: Widths::ANY, writes: Widths::DWORD, hole: ALL },
];

/// Bits of CTRL_EXT (8.2.3).
pub mod ctrl_ext {
    /// VLAN extension: the stripped tag is the inner one of two.
    pub const EXTENDED_VLAN: u32 = 1 << 26;
}

/// Bits of GPIE (8.8.13).
pub mod gpie {
    /// A read of ICR always clears it.
    pub const NSICR: u32 = 1;
    /// A vector for each cause of EICR.
    pub const MULTIPLE_MSIX: u32 = 1 << 4;
    /// EIAM acts when a message is sent.
    pub const EIAME: u32 = 1 << 30;
}

/// Bits of EECD (8.4.1).
pub mod eecd {
    /// The NVM has been read after the reset.
    pub const AUTO_RD: u32 = 1 << 9;
    /// 256 words: two to the power of six plus this field.
    pub const SIZE: u32 = 2 << 11;
}

/// Bits of SWSM (8.7.1).
pub mod swsm {
    /// Software semaphore: a read takes it.
    pub const SMBI: u32 = 1;
}

const GENERAL: &[Row] = &[
    rw(CTRL, 0x0000, 0x7bff_ffff, 0x0010_0241, "8.2.1"),
    rw(STATUS, 0x0008, 0, 0x0000_0400, "8.2.2").device(0x0000_0400),
    rw(EECD, 0x0010, 0x0000_0047, 0, "8.4.1"),
    rw(EERD, 0x0014, 0, 0, "8.4.2").device(0xffff_fffe),
    rw(CTRL_EXT, 0x0018, 0xfdff_cfff, 0, "8.2.3"),
    rw(FLA, 0x001c, 0x0000_003f, 0, "8.4.3"),
    rw(MDIC, 0x0020, 0xafff_ffff, 0x1000_0000, "8.2.4").device(0x5000_ffff),
    rw(SCTL, 0x0024, ALL, 0, "8.2.5"),
    rw(FCAL, 0x0028, ALL, 0, "8.5.1"),
    rw(FCAH, 0x002c, 0xffff, 0, "8.5.2"),
    rw(FCT, 0x0030, 0xffff, 0, "8.5.3"),
    rw(CONNSW, 0x0034, 0x0000_0007, 0, "8.2.6"),
    rw(VET, 0x0038, ALL, 0x8100_8100, "8.2.7"),
    rw(ICR, 0x00c0, 0, 0, "8.8.7"),
    rw(ICS, 0x00c8, 0, 0, "8.8.8"),
    rw(IMS, 0x00d0, 0, 0, "8.8.9"),
    rw(IMC, 0x00d8, 0, 0, "8.8.10"),
    rw(IAM, 0x00e0, 0x7fff_ffff, 0, "8.8.11"),
    rw(RCTL, 0x0100, 0x04ff_b0fe, 0, "8.10.1"),
    rw(FCTTV, 0x0170, 0xffff, 0, "8.5.4"),
    rw(TXCW, 0x0178, ALL, 0, "e1000_regs.h"),
    rw(TCTL, 0x0400, 0x13ff_fffa, 0x0000_0008, "8.12.1"),
    rw(TCTL_EXT, 0x0404, 0x000f_ffff, 0x0001_0840, "8.12.2"),
    rw(TIPG, 0x0410, 0x3fff_ffff, 0x0060_1008, "8.12.3"),
    rw(AIT, 0x0458, 0xffff, 0, "e1000_regs.h"),
    rw(VMBMEM, 0x0800, ALL, 0, "8.14.3").times(128),
    rw(P2VMAILBOX, 0x0c00, 0x0000_001f, 0, "8.14.1").times(8),
    rw(MBVFICR, 0x0c80, 0, 0, "8.14.4").write_clears(0x00ff_00ff),
    rw(MBVFIMR, 0x0c84, 0xff, 0xff, "8.14.5"),
    rw(VFLRE, 0x0c88, 0, 0, "8.14.6").write_clears(0xff),
    rw(VFRE, 0x0c8c, 0xff, 0xff, "8.14.7"),
    rw(VFTE, 0x0c90, 0xff, 0xff, "8.14.8"),
    rw(LEDCTL, 0x0e00, 0xefef_efef, 0x0706_8302, "8.2.9"),
    rw(PBA, 0x1000, 0xffff, 0, "e1000_regs.h"),
    rw(PBS, 0x1008, 0xffff, 0, "e1000_regs.h"),
    // The NVM's configuration is done, of port 0 too: igb_get_cfg_done_82575 in Linux's e1000_82575.c.
    rw(EEMNGCTL, 0x1010, 0, 0x8004_0000, "8.4.5"),
    rw(FRTIMER, 0x1048, 0, 0, "8.15.1"),
    rw(TCPTIMER, 0x104c, 0x0000_00ff, 0, "8.15.2"),
    rw(GPIE, 0x1514, 0xc000_0f91, 0, "8.8.13"),
    rw(EICS, 0x1520, 0, 0, "8.8.2"),
    rw(EIMS, 0x1524, 0, 0, "8.8.3"),
    rw(EIMC, 0x1528, 0, 0, "8.8.4"),
    rw(EIAC, 0x152c, 0x01ff_ffff, 0, "8.8.5"),
    rw(EIAM, 0x1530, 0xc1ff_ffff, 0, "8.8.6"),
    rw(EICR, 0x1580, 0, 0, "8.8.1"),
    rw(EITR, 0x1680, 0x7fff_fffd, 0, "8.8.12").times(VECTORS as u32),
    rw(IVAR, 0x1700, 0x9f9f_9f9f, 0, "8.8.14").times(8),
    rw(IVAR_MISC, 0x1740, 0x0000_9f9f, 0, "8.8.15"),
];

const RECEIVE: &[Row] = &[
    rw(FCRTL, 0x2160, 0x8000_fff8, 0, "8.5.5"),
    rw(FCRTH, 0x2168, 0x0000_fff8, 0, "8.5.6"),
    rw(RXPBS, 0x2404, 0x0000_007f, 0x0000_0040, "8.3.1"),
    rw(QDE, 0x2408, 0xffff, 0, "8.10.12"),
    rw(RDFH, 0x2410, 0x1fff, 0, "8.23"),
    rw(RDFT, 0x2418, 0x1fff, 0, "8.23"),
    rw(RDFHS, 0x2420, 0x1fff, 0, "8.23"),
    rw(RDFTS, 0x2428, 0x1fff, 0, "8.23"),
    rw(RDFPC, 0x2430, 0x1fff, 0, "8.23"),
    rw(FCRTV, 0x2460, 0xffff, 0, "8.5.7"),
];

const TRANSMIT: &[Row] = &[
    rw(TXPBS, 0x3404, 0x0000_003f, 0x0000_0028, "8.3.2"),
    rw(TDFH, 0x3410, 0x07ff, 0, "8.23"),
    rw(TDFT, 0x3418, 0x07ff, 0, "8.23"),
    rw(TDFHS, 0x3420, 0x1fff, 0, "8.23"),
    rw(TDFTS, 0x3428, 0x1fff, 0, "8.23"),
    rw(TDFPC, 0x3430, 0x1fff, 0, "8.23"),
    rw(DTXSWC, 0x3500, 0x80ff_ffff, 0, "8.14.12"),
    rw(LVMMC, 0x3548, 0, 0, "8.14.14"),
    rw(WVBR, 0x3554, 0, 0, "8.14.13"),
    rw(DTXCTL, 0x3590, 0x0000_007e, 0x0000_0044, "8.12.4"),
    // TCP flags of the first and middle segments, and of the last one. Segmentation here sets them by the standard.
    rw(DTXTCPFLGL, 0x359c, 0x0fff_0fff, 0x0ff6_0ff6, "8.12.5"),
    rw(DTXTCPFLGH, 0x35a0, 0x0fff, 0x0f7f, "8.12.6"),
    rw(VMVIR, 0x3700, 0xc000_ffff, 0, "8.14.16").times(8),
];

const fn counter(name: Reg, offset: u32) -> Row {
    rw(name, offset, 0, 0, "8.18").read_clears(ALL)
}

/// These rows with one more inserted.
const fn inserted<const MORE: usize>(rows: &[Row], row: Row) -> [Row; MORE] {
    assert!(rows.len() + 1 == MORE);
    let mut all = [row; MORE];
    let (mut from, mut to) = (0, 0);
    while from < rows.len() {
        if rows[from].offset > row.offset && from == to {
            to += 1;
        }
        all[to] = rows[from];
        (from, to) = (from + 1, to + 1);
    }
    all
}

/// The family's counters, two of them different, and one more.
const COUNTERS: [Row; statistics::ROWS.len() + 1] =
    inserted(&changed(statistics::ROWS, &[counter(HTDPMC, 0x403c), counter(CBRMPC, 0x40fc)]), counter(CBTMPC, 0x402c));

const HOST_COUNTERS: &[Row] = &[
    counter(IAC, 0x4100),
    counter(RPTHC, 0x4104),
    counter(ICRXATC, 0x4108),
    counter(ICTXPTC, 0x410c),
    counter(ICTXATC, 0x4110),
    counter(HGPTC, 0x4118),
    counter(ICTXQMTC, 0x411c),
    counter(ICRXDMTC, 0x4120),
    counter(HTCBDPC, 0x4124),
    rw(HGORCL, 0x4128, 0, 0, "8.18").device(ALL),
    counter(HGORCH, 0x412c),
    rw(HGOTCL, 0x4130, 0, 0, "8.18").device(ALL),
    counter(HGOTCH, 0x4134),
    counter(LENERRS, 0x4138),
    rw(PCS_CFG0, 0x4200, 0x0000_0008, 0x0000_0008, "8.17.1"),
    rw(PCS_LCTL, 0x4208, 0x1f1f_ffff, 0x0001_0000, "8.17.2"),
    rw(PCS_LSTAT, 0x420c, 0, 0, "8.17.3"),
    rw(PCS_ANADV, 0x4218, 0xffff, 0, "8.17.4"),
    rw(PCS_LPAB, 0x421c, 0, 0, "8.17.5"),
    rw(PCS_NPTX, 0x4220, 0xffff, 0, "8.17.6"),
    rw(PCS_LPABNP, 0x4224, 0, 0, "8.17.7"),
    counter(SCVPC, 0x4228),
];

const FILTERS: &[Row] = &[
    rw(RXCSUM, 0x5000, 0x0000_2fff, 0x0000_0300, "8.10.10"),
    rw(RLPML, 0x5004, 0x3fff, 0x2600, "8.10.11"),
    rw(RFCTL, 0x5008, 0x0007_ffff, 0, "8.10.13"),
    rw(MTA, 0x5200, ALL, 0, "8.11.1").times(128),
];

/// Bits of RAH that software may write: the address, its kind, its pools, its queue, and the valid bit.
const HIGH: u32 = 0x93ff_ffff;

const TYPES: &[Row] = &[rw(PSRTYPE, 0x5480, 0x0007_ffff, 0, "8.10.14").times(8)];

const TAGS: &[Row] = &[
    rw(VLAPQF, 0x55b0, ALL, 0, "8.11.14"),
    rw(SYNQF, 0x55fc, 0x8000_000f, 0, "8.11.13"),
    rw(VFTA, 0x5600, ALL, 0, "8.11.4").times(128),
];

const WAKE: &[Row] = &[
    rw(WUC, 0x5800, 0x0000_001f, 0, "8.19.1"),
    rw(WUFC, 0x5808, 0x001f_80ff, 0, "8.19.2"),
    rw(WUS, 0x5810, 0, 0, "8.19.3"),
    rw(MRQC, 0x5818, 0x01ff_003f, 0, "8.10.17"),
    rw(VT_CTL, 0x581c, 0xe000_0380, 0, "8.14.11"),
    rw(MANC, 0x5820, 0xfd7f_ff04, 0, "8.20.1"),
    rw(IPAV, 0x5838, 0x0001_000f, 0, "8.19.4"),
    rw(IP4AT, 0x5840, ALL, 0, "8.19.5").times(8),
    rw(IP6AT, 0x5880, ALL, 0, "8.19.6").times(4),
    rw(WUPL, 0x5900, 0, 0, "8.19.7"),
    rw(SAQF, 0x5980, ALL, 0, "8.11.9").times(8),
    rw(DAQF, 0x59a0, ALL, 0, "8.11.10").times(8),
    rw(SPQF, 0x59c0, 0xffff, 0, "8.11.11").times(8),
    rw(FTQF, 0x59e0, 0xfbff_ffff, 0xf000_0000, "8.11.12").times(8),
    rw(WUPM, 0x5a00, 0, 0, "8.19.8").times(32),
    rw(IMIR, 0x5a80, 0xe003_ffff, 0, "8.11.6").times(8),
    rw(IMIREXT, 0x5aa0, 0x000f_ffff, 0, "8.11.7").times(8),
    rw(IMIRVP, 0x5ac0, 0x0000_000f, 0, "8.11.8"),
    rw(TXSWC, 0x5acc, ALL, 0, "e1000_regs.h"),
    rw(VMOLR, 0x5ad0, ALL, 0x8000_2600, "8.14.9").times(8),
    rw(RPLOLR, 0x5af0, 0xc000_0000, 0x8000_0000, "8.14.10"),
    rw(GCR, 0x5b00, 0x0000_f000, 0x0805_0000, "8.6.1"),
    rw(FACTPS, 0x5b30, 0, 0, "8.6.9"),
    rw(SWSM, 0x5b50, 0x0000_0003, 0, "8.7.1"),
    rw(FWSM, 0x5b54, 0, 0, "8.7.2"),
    rw(SW_FW_SYNC, 0x5b5c, 0xffff, 0, "8.7.3"),
    // The transport withdraws the pending messages.
    Row::port(PBACLR, 0x5b68, 4, "8.9.4"),
    rw(DCA_CTRL, 0x5b74, 0x0000_001f, 0x0000_0001, "8.13.4"),
    rw(IOVTCL, 0x5bbc, 0x0000_0001, 0, "8.14.15"),
    rw(RETA, 0x5c00, 0xcfcf_cfcf, 0, "8.10.15").times(32),
    rw(RSSRK, 0x5c80, ALL, 0, "8.10.16").times(10),
    rw(ETQF, 0x5cb0, 0xe407_ffff, 0, "8.11.15").times(8),
    rw(VLVF, 0x5d00, 0x801f_ffff, 0, "8.11.5").times(32),
    rw(FFLT, 0x5f00, 0x0000_00ff, 0, "8.19.9").every(8, 8),
    rw(TSYNCRXCFG, 0x5f50, 0xffff, 0, "8.16.26"),
];

/// Masks and values of the flexible filters.
const FLEXIBLE: &[Row] =
    &[rw(FFMT, 0x9000, 0x0000_000f, 0, "8.19.10").times(256), rw(FFVT, 0x9800, ALL, 0, "8.19.11").times(256)];

const UNICAST: &[Row] = &[rw(UTA, 0xa000, ALL, 0, "8.11.3").times(128)];

const CLOCK: &[Row] = &[
    // The clock runs by itself.
    Row::port(SYSTIML, 0xb600, 4, "8.16.4"),
    Row::port(SYSTIMH, 0xb604, 4, "8.16.5"),
    rw(TIMINCA, 0xb608, ALL, 0, "8.16.6"),
    rw(TIMADJL, 0xb60c, ALL, 0, "8.16.7"),
    rw(TIMADJH, 0xb610, 0x8fff_ffff, 0, "8.16.8"),
    rw(TSYNCTXCTL, 0xb614, 0x0000_0010, 0, "8.16.9").device(1),
    rw(TXSTMPL, 0xb618, 0, 0, "8.16.10").device(ALL),
    rw(TXSTMPH, 0xb61c, 0, 0, "8.16.11").device(ALL),
    rw(TSYNCRXCTL, 0xb620, 0x0000_001e, 0, "8.16.1").device(1),
    rw(RXSTMPL, 0xb624, 0, 0, "8.16.2").device(ALL),
    rw(RXSTMPH, 0xb628, 0, 0, "8.16.2").device(ALL),
    rw(RXSATRL, 0xb62c, 0, 0, "8.16.3").device(ALL),
    rw(RXSATRH, 0xb630, 0, 0, "8.16.3").device(ALL),
    rw(TSICR, 0xb66c, 0, 0, "e1000_regs.h"),
    rw(TSIM, 0xb674, 0, 0, "e1000_regs.h"),
];

const RECEIVE_QUEUE: &[Row] = &[
    rw(RDBAL, 0xc000, 0xffff_ff80, 0, "8.10.5"),
    rw(RDBAH, 0xc004, ALL, 0, "8.10.6"),
    rw(RDLEN, 0xc008, 0x000f_fff0, 0, "8.10.7"),
    rw(SRRCTL, 0xc00c, 0x8fff_0f7f, 0x0000_0400, "8.10.2"),
    rw(RDH, 0xc010, 0xffff, 0, "8.10.8"),
    rw(RXCTL, 0xc014, 0xff00_a2e0, 0x0000_a200, "8.13.1"),
    rw(RDT, 0xc018, 0xffff, 0, "8.10.8"),
    rw(RXDCTL, 0xc028, 0x061f_1f1f, 0x0001_0000, "8.10.9"),
    rw(RQDPC, 0xc030, 0, 0, "8.10.18").read_clears(0xfff),
    rw(DVMOLR, 0xc038, 0xe000_0000, 0, "8.14.17"),
];

const TRANSMIT_QUEUE: &[Row] = &[
    rw(TDBAL, 0xe000, 0xffff_ff80, 0, "8.12.9"),
    rw(TDBAH, 0xe004, ALL, 0, "8.12.10"),
    rw(TDLEN, 0xe008, 0x000f_fff0, 0, "8.12.11"),
    rw(TDH, 0xe010, 0xffff, 0, "8.12.12"),
    rw(TXCTL, 0xe014, 0xff00_2a20, 0x0000_2a00, "8.13.2"),
    rw(TDT, 0xe018, 0xffff, 0, "8.12.13"),
    rw(TXDCTL, 0xe028, 0x0e1f_1f1f, 0, "8.12.15"),
    rw(TDWBAL, 0xe038, 0xffff_fffd, 0, "8.12.16"),
    rw(TDWBAH, 0xe03c, ALL, 0, "8.12.17"),
];

const PORTS: &[Row] = &[rw(IOADDR, 0, ALL, 0, "8.1.1.3"), Row::port(IODATA, 4, 4, "8.1.1.3")];

const fn alias(from: u32, to: u32) -> Alias {
    Alias { region: WINDOW, from, to, len: 0x40 }
}

/// The first four queues also answer at the 82575's offsets (8.10.5, 8.12.9).
const ALIASES: &[Alias] = &[
    alias(0x2800, 0xc000),
    alias(0x2900, 0xc040),
    alias(0x2a00, 0xc080),
    alias(0x2b00, 0xc0c0),
    alias(0x3800, 0xe000),
    alias(0x3900, 0xe040),
    alias(0x3a00, 0xe080),
    alias(0x3b00, 0xe0c0),
];

const fn flat(base: u32, len: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region: WINDOW, base, stride: len, count: 1, rows }
}

const fn repeated(base: u32, stride: u32, count: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region: WINDOW, base, stride, count, rows }
}

const ADDRESSES: &[Row] = &[rw(RAL, 0x5400, ALL, 0, "8.11.2"), rw(RAH, 0x5404, HIGH, 0, "8.11.2")];
const MORE_ADDRESSES: &[Row] = &[rw(RAL2, 0x54e0, ALL, 0, "8.11.2"), rw(RAH2, 0x54e4, HIGH, 0, "8.11.2")];

/// The registers of the 82576.
pub static M82576: Table = Table {
    regions: REGIONS,
    blocks: &[
        flat(0x0000, 0x2000, GENERAL),
        flat(0x2000, 0x0800, RECEIVE),
        flat(0x3000, 0x0800, TRANSMIT),
        flat(statistics::AT, 0x0100, &COUNTERS),
        flat(0x4100, 0x0f00, HOST_COUNTERS),
        flat(0x5000, 0x0400, FILTERS),
        repeated(0x5400, 8, 16, ADDRESSES),
        flat(0x5480, 0x0060, TYPES),
        repeated(0x54e0, 8, 8, MORE_ADDRESSES),
        flat(0x5520, 0x02e0, TAGS),
        flat(0x5800, 0x0800, WAKE),
        flat(0x9000, 0x1000, FLEXIBLE),
        flat(0xa000, 0x1000, UNICAST),
        flat(0xb600, 0x0a00, CLOCK),
        repeated(0xc000, 0x40, QUEUES as u32, RECEIVE_QUEUE),
        repeated(0xe000, 0x40, QUEUES as u32, TRANSMIT_QUEUE),
        Block { region: IO, base: 0, stride: IO_BYTES, count: 1, rows: PORTS },
    ],
    aliases: ALIASES,
};
