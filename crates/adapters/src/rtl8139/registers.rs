//! The registers of the 8139 as data. Names are the data sheet's (Realtek RTL8139C(L) 1.4, register descriptions); those of C+ mode
//! are from Linux's 8139cp.c (StatsAddr is DTCCR, TxRingAddr TNPDS). `access.rs` has an arm for each read or write that does more
//! than the masks.

use nicety_adapter::bank::{Block, Region, Widths};

nicety_adapter::register_names! {
    /// The registers of both models. RESERVED ones, which drivers access incidentally, read as zeros.
    pub enum Reg {
        IDR0, IDR4, RESERVED, MAR[2], TSD[4], TSAD[4], RBSTART, ERBCR, ERSR, CR, CAPR, CBR, IMR, ISR, TCR, RCR, TCTR, MPC,
        EECR, CONFIG0, CONFIG1, TIMERINT, MSR, CONFIG3, CONFIG4, HLTCLK, MULINT, RERID, SUMMARY, BMCR, BMSR, ANAR, ANLPAR,
        ANER, DIS, FCSC, NWAYTR, REC, CSCR, PHY1_PARM, TW_PARM, PHY2_PARM, CRC[8], WAKEUP[16], LSBCRC[8], FLASH, CONFIG5,
        TPPOLL, CPCR, RDSAR[2], ETTHR,
    }
}

pub use Reg::*;

/// A row of the 8139's table.
pub type Row = nicety_adapter::bank::Row<Reg>;
/// A model's registers.
pub type Table = nicety_adapter::bank::Table<Reg>;
/// Values of the registers.
pub type Bank = nicety_adapter::bank::Bank<Reg>;
/// A register found at an offset.
pub type Place = nicety_adapter::bank::Place<Reg>;

/// Bytes of the window, in I/O (BAR 0) and in memory (BAR 1).
pub const WINDOW_BYTES: u32 = 256;
const ALL: u32 = !0;

/// Both BARs have the same registers; reserved addresses read as zeros.
const REGIONS: &[Region] =
    &[Region { bars: &[0, 1], len: WINDOW_BYTES, reads: Widths::ANY, writes: Widths::ANY, hole: 0 }];

/// The data sheet's register table.
const C: &str = "RTL8139C, register table";
/// Source of C+ mode's registers.
const CP: &str = "Linux 8139cp.c";

const fn dword(name: Reg, offset: u32, write: u32, reset: u32) -> Row {
    Row::rw(name, offset, write, reset, C)
}

const fn word(name: Reg, offset: u32, write: u32, reset: u32) -> Row {
    Row::rw(name, offset, write, reset, C).wide(2)
}

const fn byte(name: Reg, offset: u32, write: u32, reset: u32) -> Row {
    Row::rw(name, offset, write, reset, C).wide(1)
}

/// Registers below 0xd8, with the chip's version in TCR and in RERID.
const fn low(version: u32, revision: u32) -> [Row; 47] {
    [
        dword(IDR0, 0x00, ALL, 0),
        word(IDR4, 0x04, 0xffff, 0),
        Row::port(RESERVED, 0x06, 2, C),
        dword(MAR, 0x08, ALL, 0).times(2),
        dword(TSD, 0x10, ALL, tsd::OWN).times(4),
        dword(TSAD, 0x20, ALL, 0).times(4),
        dword(RBSTART, 0x30, ALL, 0),
        word(ERBCR, 0x34, 0, 0),
        byte(ERSR, 0x36, 0, 0),
        byte(CR, 0x37, 0x0c, 0),
        word(CAPR, 0x38, 0xffff, 0xfff0),
        word(CBR, 0x3a, 0, 0).device(0xffff),
        word(IMR, 0x3c, 0, 0),
        word(ISR, 0x3e, 0, 0),
        dword(TCR, 0x40, 0x0307_07f0, version),
        dword(RCR, 0x44, 0x0f03_ffbf, 0),
        Row::port(TCTR, 0x48, 4, C),
        dword(MPC, 0x4c, 0, 0).device(0x00ff_ffff),
        byte(EECR, 0x50, 0xce, 0),
        byte(CONFIG0, 0x51, 0, 0),
        byte(CONFIG1, 0x52, 0xf3, 0x0d),
        Row::port(RESERVED, 0x53, 1, C),
        dword(TIMERINT, 0x54, ALL, 0),
        byte(MSR, 0x58, 0xc0, 0x10),
        byte(CONFIG3, 0x59, 0x70, 0x01),
        byte(CONFIG4, 0x5a, 0xf5, 0),
        byte(HLTCLK, 0x5b, 0xff, 0),
        word(MULINT, 0x5c, 0x0fff, 0),
        byte(RERID, 0x5e, 0, revision),
        Row::port(RESERVED, 0x5f, 1, C),
        word(SUMMARY, 0x60, 0, 0),
        word(BMCR, 0x62, 0x3100, bmcr::RESET),
        word(BMSR, 0x64, 0, 0x7809),
        word(ANAR, 0x66, 0x2fff, 0x05e1),
        word(ANLPAR, 0x68, 0, 0),
        word(ANER, 0x6a, 0, 0),
        word(DIS, 0x6c, 0, 0),
        word(FCSC, 0x6e, 0, 0),
        word(NWAYTR, 0x70, 0x00ff, 0),
        word(REC, 0x72, 0, 0),
        word(CSCR, 0x74, 0x83e5, 0x02c0).read_clears(cscr::CHANGED),
        dword(PHY1_PARM, 0x78, ALL, 0),
        dword(TW_PARM, 0x7c, ALL, 0),
        byte(PHY2_PARM, 0x80, 0xff, 0),
        byte(CRC, 0x84, 0xff, 0).times(8),
        dword(WAKEUP, 0x8c, ALL, 0).times(16),
        byte(LSBCRC, 0xcc, 0xff, 0).times(8),
    ]
}

const HIGH: [Row; 2] = [dword(FLASH, 0xd4, 0, 0), byte(CONFIG5, 0xd8, 0x7f, 0)];

const HIGH_CPLUS: [Row; 6] = [
    HIGH[0],
    HIGH[1],
    Row::port(TPPOLL, 0xd9, 1, CP),
    Row::rw(CPCR, 0xe0, 0x007b, 0, CP).wide(2),
    Row::rw(RDSAR, 0xe4, ALL, 0, CP).times(2),
    Row::rw(ETTHR, 0xec, 0x3f, 0, CP).wide(1),
];

const fn blocks(low: &'static [Row], high: &'static [Row]) -> [Block<Reg>; 2] {
    [
        Block { region: 0, base: 0, stride: 0xd4, count: 1, rows: low },
        Block { region: 0, base: 0xd4, stride: 0x2c, count: 1, rows: high },
    ]
}

/// Registers of the 8139C, PCI revision 0x10. Versions are those of rtl_chip_info in Linux's 8139too.c.
pub static PLAIN: Table = Table { regions: REGIONS, blocks: &blocks(&low(0x7400_0000, 0x10), &HIGH), aliases: &[] };

/// Registers of the 8139C+, PCI revision 0x20.
pub static CPLUS: Table =
    Table { regions: REGIONS, blocks: &blocks(&low(0x7480_0000, 0x20), &HIGH_CPLUS), aliases: &[] };

/// Registers that a software reset keeps: addresses, filters, configuration, wake-up, the PHY.
pub const KEPT: &[Reg] = &[
    IDR0, IDR4, MAR, CONFIG0, CONFIG1, CONFIG3, CONFIG4, CONFIG5, BMCR, ANAR, NWAYTR, CSCR, PHY1_PARM, TW_PARM,
    PHY2_PARM, CRC, WAKEUP, LSBCRC, HLTCLK,
];

/// TSD: status and command of a slot.
pub mod tsd {
    /// Bytes to send.
    pub const SIZE: u32 = 0x1fff;
    /// The chip is done with the slot.
    pub const OWN: u32 = 1 << 13;
    /// Transmit underrun; here: the data could not be read.
    pub const TUN: u32 = 1 << 14;
    /// Transmit OK.
    pub const TOK: u32 = 1 << 15;
    /// Transmit abort.
    pub const TABT: u32 = 1 << 30;
    /// Bits that a write does not set: results, and the count of collisions.
    pub const RESULTS: u32 = 0xff00_c000;
}

/// CR: command.
pub mod cr {
    /// Receive buffer empty.
    pub const BUFE: u32 = 1;
    /// Transmitter on.
    pub const TE: u32 = 1 << 2;
    /// Receiver on.
    pub const RE: u32 = 1 << 3;
    /// Reset.
    pub const RST: u32 = 1 << 4;
}

/// IMR and ISR.
pub mod cause {
    /// A frame was received.
    pub const ROK: u32 = 1;
    /// Frames were sent.
    pub const TOK: u32 = 1 << 2;
    /// A frame could not be sent.
    pub const TER: u32 = 1 << 3;
    /// No room for a frame.
    pub const RXOVW: u32 = 1 << 4;
    /// The link changed (it is the packet underrun's bit as well).
    pub const LINK: u32 = 1 << 5;
    /// The bus refused an access.
    pub const SERR: u32 = 1 << 15;
    /// Software interrupt.
    pub const SWINT: u32 = 1 << 8;
    /// The timer.
    pub const TIMEOUT: u32 = 1 << 14;
    /// All causes.
    pub const ALL: u32 = 0xe1ff;
}

/// TCR: transmit configuration.
pub mod tcr {
    /// Both bits: loopback.
    pub const LOOPBACK: u32 = 3 << 17;
}

/// RCR: receive configuration.
pub mod rcr {
    /// All physical addresses.
    pub const AAP: u32 = 1;
    /// The own address.
    pub const APM: u32 = 1 << 1;
    /// Multicast, by the hash table.
    pub const AM: u32 = 1 << 2;
    /// Broadcast.
    pub const AB: u32 = 1 << 3;
    /// A frame continues after the buffer's end.
    pub const WRAP: u32 = 1 << 7;
    /// Code of the buffer's length.
    pub const RBLEN: u32 = 3 << 11;
}

/// EECR, the 9346CR.
pub mod eecr {
    /// The mode's bits.
    pub const MODE: u32 = 0xc0;
    /// Load again from the EEPROM.
    pub const AUTOLOAD: u32 = 0x40;
    /// The register drives the EEPROM's wires.
    pub const PROGRAM: u32 = 0x80;
    /// Configuration can be written.
    pub const UNLOCKED: u32 = 0xc0;
    /// Chip select.
    pub const CS: u32 = 1 << 3;
    /// Clock.
    pub const SK: u32 = 1 << 2;
    /// Data in.
    pub const DI: u32 = 1 << 1;
    /// Data out.
    pub const DO: u32 = 1;
}

/// BMCR: the PHY's control register.
pub mod bmcr {
    /// Reset.
    pub const RST: u32 = 1 << 15;
    /// 100 Mbit/s.
    pub const SPEED: u32 = 1 << 13;
    /// Negotiation on.
    pub const NEGOTIATE: u32 = 1 << 12;
    /// Restart negotiation.
    pub const RESTART: u32 = 1 << 9;
    /// Value after a reset: 100 Mbit/s, full duplex, negotiation.
    pub const RESET: u32 = 0x3100;
}

/// CSCR: the PHY's state.
pub mod cscr {
    /// The link is good.
    pub const LINK: u32 = 1 << 10;
    /// The link changed since the last read.
    pub const CHANGED: u32 = 1 << 11;
    /// Connected.
    pub const CONNECTED: u32 = 1 << 3;
}

/// CPCR: command of C+ mode.
pub mod cpcr {
    /// The transmit ring is on.
    pub const TX: u32 = 1;
    /// The receive ring is on.
    pub const RX: u32 = 1 << 1;
    /// Checksums are verified.
    pub const CHECKSUM: u32 = 1 << 5;
    /// Tags are stripped.
    pub const VLAN: u32 = 1 << 6;
}

/// TPPOLL.
pub mod tppoll {
    /// Software interrupt.
    pub const SWINT: u32 = 1;
    /// The ring has work.
    pub const NORMAL: u32 = 1 << 6;
}

/// DTCCR: write the counters.
pub const DUMP: u32 = 1 << 3;
