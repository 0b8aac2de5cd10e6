//! The registers of the RTL8029AS as data. BAR 0 has 32 ports: the command register, fifteen registers selected by the command
//! register's page, the data port and the reset port. A page is a region of its own. Pages 0 and 2 read differently from what was
//! written.
//!
//! Sections are those of National Semiconductor's DP8390D datasheet, or "RTL8029AS" for Realtek's additions (its datasheet LS009,
//! the table of page 3). Side effects of reads and writes are in `dp8390.rs`.

use nicety_adapter::bank::{Block, Region, Widths};
use nicety_adapter::trace::{Region as TraceRegion, RegisterName};

nicety_adapter::register_names! {
    /// A register of the RTL8029AS.
    pub enum Reg {
        CR, PAGED, DATA, RESET, PSTART, PSTOP, BNRY, TPSR, TBCR0, TBCR1, ISR, RSAR0, RSAR1, RBCR0, RBCR1, RCR, TCR, DCR, IMR,
        CLDA, TSR, NCR, FIFO, CRDA0, CRDA1, ID0, ID1, RSR, CNTR[3], PAR[6], CURR, MAR[8], CR9346, CONFIG0, CONFIG2, CONFIG3, HLTCLK,
        ASID0, ASID1,
    }
}

pub use Reg::*;

/// A row of the table.
pub type Row = nicety_adapter::bank::Row<Reg>;
/// The table's type.
pub type Table = nicety_adapter::bank::Table<Reg>;
/// Values of the registers.
pub type Bank = nicety_adapter::bank::Bank<Reg>;
/// A register found at an offset.
pub type Place = nicety_adapter::bank::Place<Reg>;

/// Bytes of BAR 0.
pub const PORT_BYTES: u32 = 0x20;
/// The data port, and the end of its ports.
pub const DATA_PORTS: std::ops::Range<u32> = 0x10..0x18;

/// BAR 0.
pub const PORTS: u8 = 0;
/// Page 0 for reads.
pub const READ0: u8 = 1;
/// Page 0 for writes.
pub const WRITE0: u8 = 2;
/// Page 1.
pub const PAGE1: u8 = 3;
/// Page 2, read-only.
pub const READ2: u8 = 4;
/// Page 3, Realtek's own.
pub const PAGE3: u8 = 5;

/// Registers have eight bits; a wider access reaches several. The data port accepts any width that a processor can access.
const REGIONS: &[Region] = &[
    Region {
        bars: &[0],
        len: PORT_BYTES,
        reads: Widths::BYTE.or(Widths::WORD).or(Widths::DWORD),
        writes: Widths::BYTE.or(Widths::WORD).or(Widths::DWORD),
        hole: !0,
    },
    page(),
    page(),
    page(),
    page(),
    page(),
];

const fn page() -> Region {
    Region { bars: &[], len: 0x10, reads: Widths::BYTE, writes: Widths::BYTE, hole: 0 }
}

/// A register that software writes and reads.
const fn rw(name: Reg, offset: u32, write: u32, reset: u32, section: &'static str) -> Row {
    Row::rw(name, offset, write, reset, section).wide(1)
}

/// A register that only the device changes.
const fn ro(name: Reg, offset: u32, reset: u32, section: &'static str) -> Row {
    rw(name, offset, 0, reset, section).device(0xff)
}

/// A register that stores nothing, or shows another region's value.
const fn port(name: Reg, offset: u32, section: &'static str) -> Row {
    Row::port(name, offset, 1, section)
}

const PORT_ROWS: &[Row] = &[
    ro(CR, 0x00, cr::RESET, "10.3"),
    port(PAGED, 0x01, "10.1").times(15),
    Row::port(DATA, 0x10, 4, "RTL8029AS").times(2),
    port(RESET, 0x18, "RTL8029AS").times(8),
];

const READ0_ROWS: &[Row] = &[
    port(CLDA, 0x01, "10.3").times(2),
    port(BNRY, 0x03, "10.3"),
    ro(TSR, 0x04, 0, "10.3"),
    port(NCR, 0x05, "10.3"),
    port(FIFO, 0x06, "10.3"),
    port(ISR, 0x07, "10.3"),
    port(CRDA0, 0x08, "10.3"),
    port(CRDA1, 0x09, "10.3"),
    rw(ID0, 0x0a, 0, 0x50, "RTL8029AS"),
    rw(ID1, 0x0b, 0, 0x43, "RTL8029AS"),
    ro(RSR, 0x0c, 0, "10.3"),
    rw(CNTR, 0x0d, 0, 0, "10.3").read_clears(0xff).times(3),
];

const WRITE0_ROWS: &[Row] = &[
    rw(PSTART, 0x01, 0xff, 0, "10.3"),
    rw(PSTOP, 0x02, 0xff, 0, "10.3"),
    rw(BNRY, 0x03, 0xff, 0, "10.3"),
    rw(TPSR, 0x04, 0xff, 0, "10.3"),
    rw(TBCR0, 0x05, 0xff, 0, "10.3"),
    rw(TBCR1, 0x06, 0xff, 0, "10.3"),
    port(ISR, 0x07, "10.3"),
    rw(RSAR0, 0x08, 0xff, 0, "10.3").device(0xff),
    rw(RSAR1, 0x09, 0xff, 0, "10.3").device(0xff),
    rw(RBCR0, 0x0a, 0xff, 0, "10.3").device(0xff),
    rw(RBCR1, 0x0b, 0xff, 0, "10.3").device(0xff),
    rw(RCR, 0x0c, 0x3f, 0, "10.3"),
    rw(TCR, 0x0d, 0x1f, 0, "10.3"),
    rw(DCR, 0x0e, 0x7f, 0x04, "10.3"),
    port(IMR, 0x0f, "10.3"),
];

const PAGE1_ROWS: &[Row] = &[
    rw(PAR, 0x01, 0xff, 0, "10.3").times(6),
    rw(CURR, 0x07, 0xff, 0, "10.3"),
    rw(MAR, 0x08, 0xff, 0, "10.3").times(8),
];

const READ2_ROWS: &[Row] = &[
    port(PSTART, 0x01, "10.1"),
    port(PSTOP, 0x02, "10.1"),
    port(TPSR, 0x04, "10.1"),
    port(RCR, 0x0c, "10.1"),
    port(TCR, 0x0d, "10.1"),
    port(DCR, 0x0e, "10.1"),
    port(IMR, 0x0f, "10.1"),
];

const PAGE3_ROWS: &[Row] = &[
    rw(CR9346, 0x01, 0xce, 0, "RTL8029AS"),
    rw(CONFIG0, 0x03, 0, 0, "RTL8029AS"),
    // The medium is detected automatically, as twisted pair.
    rw(CONFIG2, 0x05, 0xe0, 0x40, "RTL8029AS"),
    rw(CONFIG3, 0x06, 0x66, 0, "RTL8029AS"),
    port(HLTCLK, 0x09, "RTL8029AS"),
    rw(ASID0, 0x0e, 0, 0x29, "RTL8029AS"),
    rw(ASID1, 0x0f, 0, 0x80, "RTL8029AS"),
];

const fn flat(region: u8, len: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region, base: 0, stride: len, count: 1, rows }
}

/// The registers.
pub static TABLE: Table = Table {
    regions: REGIONS,
    blocks: &[
        flat(PORTS, PORT_BYTES, PORT_ROWS),
        flat(READ0, 0x10, READ0_ROWS),
        flat(WRITE0, 0x10, WRITE0_ROWS),
        flat(PAGE1, 0x10, PAGE1_ROWS),
        flat(READ2, 0x10, READ2_ROWS),
        flat(PAGE3, 0x10, PAGE3_ROWS),
    ],
    aliases: &[],
};

/// Name of a port. The register at 1 to 15 depends on the page, so these have their number as name.
pub fn name(region: TraceRegion, offset: u64) -> Option<RegisterName> {
    let mut name = TABLE.name(region, offset)?;
    match name.word {
        "PAGED" => name.index = u32::try_from(offset).ok(),
        _ => name.index = None,
    }
    Some(name)
}

/// Bits of CR.
pub mod cr {
    /// Stop.
    pub const STP: u32 = 1;
    /// Start.
    pub const STA: u32 = 1 << 1;
    /// Transmit.
    pub const TXP: u32 = 1 << 2;
    /// Remote DMA: 1 reads, 2 writes, 4 and above aborts.
    pub const RD_SHIFT: u32 = 3;
    /// Shift of the page's two bits.
    pub const PAGE_SHIFT: u32 = 6;
    /// Stopped, no remote DMA, page 0.
    pub const RESET: u32 = 0x21;
}

/// Bits of ISR and IMR.
pub mod isr {
    /// A packet was received.
    pub const PRX: u32 = 1;
    /// A packet was sent.
    pub const PTX: u32 = 1 << 1;
    /// A packet was not sent.
    pub const TXE: u32 = 1 << 3;
    /// A tally counter is half full.
    pub const CNT: u32 = 1 << 5;
    /// Remote DMA is complete.
    pub const RDC: u32 = 1 << 6;
    /// The chip is stopped. This bit does not interrupt, and cannot be acknowledged.
    pub const RST: u32 = 1 << 7;
}

/// Bits of TSR.
pub mod tsr {
    /// Sent. The next bit is always set (RTL8029AS).
    pub const PTX: u32 = 3;
    /// Carrier was lost.
    pub const CRS: u32 = 1 << 4;
    /// FIFO underrun: the memory did not deliver.
    pub const FU: u32 = 1 << 5;
}

/// Bits of RCR.
pub mod rcr {
    /// Broadcasts.
    pub const AB: u32 = 1 << 2;
    /// Multicasts, by the hash.
    pub const AM: u32 = 1 << 3;
    /// Any physical address.
    pub const PRO: u32 = 1 << 4;
    /// Monitor: frames are counted and not stored.
    pub const MON: u32 = 1 << 5;
}

/// Bits of RSR.
pub mod rsr {
    /// Received intact.
    pub const PRX: u32 = 1;
    /// Group address.
    pub const PHY: u32 = 1 << 5;
    /// The receiver is in monitor mode.
    pub const DIS: u32 = 1 << 6;
}

/// Loopback bits in TCR.
pub const TCR_LB: u32 = 3 << 1;
/// Word mode, in DCR.
pub const DCR_WTS: u32 = 1;
/// Both bits of 9346CR that make CONFIG2 and CONFIG3 writable.
pub const CR9346_CONFIG: u32 = 0xc0;
/// Full duplex, in CONFIG3.
pub const CONFIG3_FUDUP: u32 = 1 << 6;
