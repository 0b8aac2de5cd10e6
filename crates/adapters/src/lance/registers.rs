//! The registers of the PCnet-PCI II as data: AMD's *Am79C970A PCnet-PCI II* datasheet (19436), "User Accessible Registers".
//! `access.rs` has an arm for each read or write that does more than the masks.
//!
//! ```text
//!  BAR 0 (I/O), BAR 1 (memory), 32 bytes                CSR n ── region CSR, offset 2n
//!        as words (WIO)     as double words (DWIO)        ▲
//!  00    APROM, 16 bytes    the same                      │ RAP = n
//!  10    RDP ───────────    RDP ──────────────────────────┤
//!  12    RAP                14 RAP                        │
//!  14    RESET              18 RESET                      ▼
//!  16    BDP ───────────    1c BDP ───────────────────► BCR n ── region BCR, offset 2n
//! ```

use nicety_adapter::bank::{self, Alias, Block, Region, Widths};

nicety_adapter::register_names! {
    /// A register, by the datasheet's name, or its number where that is in common use.
    pub enum Reg {
        APROM, RDP, RAP, RESET, BDP, CSR0, IADR[2], CSR3, CSR4, CSR5, CSR6, LADR[4], PADR[3], MODE, CRBA[2], CXBA[2],
        NRBA[2], BADR[2], NRDA[2], CRDA[2], BADX[2], NXDA[2], CXDA[2], NNRD[2], NNXD[2], CRBC, CRST, CXBC, CXST, NRBC,
        NRST, POLL, TXPOLLINT, SWS, PXDA[2], PXBC, PXST, NXBA[2], NXBC, NXST, RCVRC, XMTRC, RCVRL, XMTRL, FIFOW,
        DMABAT, DMABA[2], DMABC, CHIPID[2], RCON, XMTTDR, MERRTO, MFC, RCC, RFA, BMUTEST, MSRDA, MSWRA, MC, LED0, LED1, LED2, LED3,
        FDC, IOBASE[2], BSBC, EECAS, SWSTYLE, INTCON, PCILAT,
    }
}

pub use Reg::*;

/// A row of the table.
pub type Row = bank::Row<Reg>;
/// All registers.
pub type Table = bank::Table<Reg>;
/// Values of the registers.
pub type Bank = bank::Bank<Reg>;
/// A register found at an offset.
pub type Place = bank::Place<Reg>;

/// The ports as words: after H_RESET.
pub const WIO: u8 = 0;
/// The ports as double words: after a double word was written to RDP.
pub const DWIO: u8 = 1;
/// Control and status registers, behind RDP.
pub const CSR: u8 = 2;
/// Bus configuration registers, behind BDP.
pub const BCR: u8 = 3;

/// Bytes of either BAR.
pub const WINDOW_BYTES: u32 = 0x20;
/// Registers of a file: RAP has seven bits.
pub const FILE: u32 = 128;

/// CSR0.
pub mod csr0 {
    /// Read the initialization block.
    pub const INIT: u32 = 1;
    /// Start: transmit and receive.
    pub const STRT: u32 = 1 << 1;
    /// Stop.
    pub const STOP: u32 = 1 << 2;
    /// Transmit demand: check the transmit ring now.
    pub const TDMD: u32 = 1 << 3;
    /// The transmitter is on.
    pub const TXON: u32 = 1 << 4;
    /// The receiver is on.
    pub const RXON: u32 = 1 << 5;
    /// Interrupts are enabled.
    pub const IENA: u32 = 1 << 6;
    /// An unmasked interrupt is pending.
    pub const INTR: u32 = 1 << 7;
    /// Initialization done.
    pub const IDON: u32 = 1 << 8;
    /// A frame was transmitted.
    pub const TINT: u32 = 1 << 9;
    /// A frame was received.
    pub const RINT: u32 = 1 << 10;
    /// Memory error: no answer.
    pub const MERR: u32 = 1 << 11;
    /// Missed frame: it found no buffer.
    pub const MISS: u32 = 1 << 12;
    /// A frame was longer than the medium allows.
    pub const BABL: u32 = 1 << 14;
    /// Any of BABL, CERR, MISS, MERR.
    pub const ERR: u32 = 1 << 15;
    /// Bits that are cleared by a written one.
    pub const CAUSES: u32 = 0x7f00;
    /// The causes that CSR3 can mask: all but CERR, which never interrupts.
    pub const MASKABLE: u32 = 0x5f00;
    /// The bits that set ERR.
    pub const ERRORS: u32 = 0x7800;
}

/// CSR3 and CSR4.
pub mod csr4 {
    /// CSR3: the transmitter stays on after an underflow.
    pub const DXSUFLO: u32 = 1 << 6;
    /// CSR4: no timed polling of the transmit ring.
    pub const DPOLL: u32 = 1 << 12;
    /// CSR4: short frames are padded.
    pub const APAD_XMT: u32 = 1 << 11;
    /// Pad and check sequence are stripped from frames of IEEE 802.3.
    pub const ASTRP_RCV: u32 = 1 << 10;
    /// Software interrupt: the command.
    pub const UINTCMD: u32 = 1 << 7;
    /// Software interrupt: the cause.
    pub const UINT: u32 = 1 << 6;
    /// Transmission has started.
    pub const TXSTRT: u32 = 1 << 3;
    /// Bits that are cleared by a written one.
    pub const CAUSES: u32 = 0x026a;
    /// Masks, each a bit below its cause.
    pub const MASKS: u32 = 0x0115;
}

/// CSR5.
pub mod csr5 {
    /// Successful transmissions do not interrupt.
    pub const TOKINTD: u32 = 1 << 15;
    /// Except those whose descriptor requests it.
    pub const LTINTEN: u32 = 1 << 14;
    /// A bus error.
    pub const SINT: u32 = 1 << 11;
    /// Suspended.
    pub const SPND: u32 = 1;
    /// Bits that are cleared by a written one.
    pub const CAUSES: u32 = 0x0a90;
    /// Enables, each a bit below its cause, for causes that IENA gates too.
    pub const ENABLES: u32 = 0x0048;
    /// Enables of causes that interrupt whatever IENA holds.
    pub const ENABLES_ALONE: u32 = 0x0500;
}

/// CSR15, MODE.
pub mod mode {
    /// The receiver stays off.
    pub const DRX: u32 = 1;
    /// The transmitter stays off.
    pub const DTX: u32 = 1 << 1;
    /// Loopback.
    pub const LOOP: u32 = 1 << 2;
    /// Frames include their check sequence.
    pub const DXMTFCS: u32 = 1 << 3;
    /// The station's own address is not matched.
    pub const DRCVPA: u32 = 1 << 13;
    /// The broadcast address is not matched.
    pub const DRCVBC: u32 = 1 << 14;
    /// All frames are received.
    pub const PROM: u32 = 1 << 15;
}

/// BCR19.
pub mod eecas {
    /// The last read of the EEPROM found valid contents.
    pub const PVALID: u32 = 1 << 15;
    /// Read the EEPROM.
    pub const PREAD: u32 = 1 << 14;
    /// An EEPROM is present.
    pub const EEDET: u32 = 1 << 13;
    /// Software drives its wires.
    pub const EEN: u32 = 1 << 4;
    /// Chip select.
    pub const ECS: u32 = 1 << 2;
    /// Clock.
    pub const ESK: u32 = 1 << 1;
    /// Write: data to the EEPROM; read: data from it.
    pub const EDI: u32 = 1;
}

/// Bus configuration.
pub mod bcr {
    /// BCR2: the shadow of the address PROM is writable.
    pub const APROMWE: u32 = 1 << 8;
    /// BCR4 to 7: the LED is lit.
    pub const LEDOUT: u32 = 1 << 15;
    /// The LED shows the link.
    pub const LNKSTE: u32 = 1 << 6;
    /// The LED shows the link in full duplex.
    pub const FDLSE: u32 = 1 << 8;
    /// BCR9: full duplex.
    pub const FDEN: u32 = 1;
    /// BCR18: registers are double words.
    pub const DWIO: u32 = 1 << 7;
    /// BCR20: structures of 32 bits.
    pub const SSIZE32: u32 = 1 << 8;
    /// BCR20: CSR bits in the PCnet's layout.
    pub const CSRPCNET: u32 = 1 << 9;
}

const REGIONS: &[Region] = &[
    Region { bars: &[0, 1], len: WINDOW_BYTES, reads: Widths::ANY, writes: PORTS_WRITE, hole: !0 },
    Region { bars: &[], len: WINDOW_BYTES, reads: Widths::ANY, writes: DWIO_WRITE, hole: !0 },
    Region { bars: &[], len: 2 * FILE, reads: Widths::WORD, writes: Widths::WORD, hole: 0 },
    Region { bars: &[], len: 2 * FILE, reads: Widths::WORD, writes: Widths::WORD, hole: 0 },
];
/// Words, and bytes of the address PROM ("I/O Registers", word mode).
const PORTS_WRITE: Widths = Widths::WORD.or(Widths::BYTE);
/// Double words, and bytes of the address PROM.
const DWIO_WRITE: Widths = Widths::DWORD.or(Widths::BYTE);

const PORTS_WORD: &[Row] = &[
    Row::port(APROM, 0x00, 1, "Address PROM").times(16),
    Row::port(RDP, 0x10, 2, "RDP"),
    Row::port(RAP, 0x12, 2, "RAP"),
    Row::port(RESET, 0x14, 2, "Reset Register"),
    Row::port(BDP, 0x16, 2, "BDP"),
];

const PORTS_DOUBLE: &[Row] = &[
    Row::port(APROM, 0x00, 1, "Address PROM").times(16),
    Row::port(RDP, 0x10, 4, "RDP"),
    Row::port(RAP, 0x14, 4, "RAP"),
    Row::port(RESET, 0x18, 4, "Reset Register"),
    Row::port(BDP, 0x1c, 4, "BDP"),
];

/// A word of a register file.
const fn word(name: Reg, number: u32, write: u32, reset: u32, section: &'static str) -> Row {
    Row::rw(name, 2 * number, write, reset, section).wide(2)
}

/// Several words that only store values: addresses and lengths that the chip would update while it runs.
const fn words(name: Reg, number: u32, count: u32, section: &'static str) -> Row {
    word(name, number, 0xffff, 0, section).times(count)
}

/// Words computed when read.
const fn made(name: Reg, number: u32, count: u32, section: &'static str) -> Row {
    Row::port(name, 2 * number, 2, section).times(count)
}

const CONTROL: &[Row] = &[
    word(CSR0, 0, csr0::IENA, csr0::STOP, "CSR0").device(0x0077),
    words(IADR, 1, 2, "CSR1, CSR2"),
    word(CSR3, 3, 0x5f7c, 0, "CSR3"),
    word(CSR4, 4, 0xfd15, 0x0115, "CSR4"),
    word(CSR5, 5, 0xc56f, 0, "CSR5"),
    word(CSR6, 6, 0, 0, "CSR6").device(0xff00),
    words(LADR, 8, 4, "CSR8 to CSR11"),
    words(PADR, 12, 3, "CSR12 to CSR14"),
    words(MODE, 15, 1, "CSR15"),
    words(CRBA, 18, 2, "CSR18, CSR19"),
    words(CXBA, 20, 2, "CSR20, CSR21"),
    words(NRBA, 22, 2, "CSR22, CSR23"),
    words(BADR, 24, 2, "CSR24, CSR25"),
    made(NRDA, 26, 2, "CSR26, CSR27"),
    made(CRDA, 28, 2, "CSR28, CSR29"),
    words(BADX, 30, 2, "CSR30, CSR31"),
    made(NXDA, 32, 2, "CSR32, CSR33"),
    made(CXDA, 34, 2, "CSR34, CSR35"),
    made(NNRD, 36, 2, "CSR36, CSR37"),
    made(NNXD, 38, 2, "CSR38, CSR39"),
    words(CRBC, 40, 1, "CSR40"),
    words(CRST, 41, 1, "CSR41"),
    words(CXBC, 42, 1, "CSR42"),
    words(CXST, 43, 1, "CSR43"),
    words(NRBC, 44, 1, "CSR44"),
    words(NRST, 45, 1, "CSR45"),
    words(POLL, 46, 1, "CSR46"),
    words(TXPOLLINT, 47, 1, "CSR47"),
    made(SWS, 58, 1, "CSR58"),
    made(PXDA, 60, 2, "CSR60, CSR61"),
    words(PXBC, 62, 1, "CSR62"),
    words(PXST, 63, 1, "CSR63"),
    words(NXBA, 64, 2, "CSR64, CSR65"),
    words(NXBC, 66, 1, "CSR66"),
    words(NXST, 67, 1, "CSR67"),
    made(RCVRC, 72, 1, "CSR72"),
    made(XMTRC, 74, 1, "CSR74"),
    words(RCVRL, 76, 1, "CSR76"),
    words(XMTRL, 78, 1, "CSR78"),
    word(FIFOW, 80, 0xffff, 0x1410, "CSR80"),
    words(DMABAT, 82, 1, "CSR82"),
    words(DMABA, 84, 2, "CSR84, CSR85"),
    words(DMABC, 86, 1, "CSR86"),
    made(CHIPID, 88, 2, "CSR88, CSR89"),
    words(RCON, 92, 1, "CSR92"),
    words(XMTTDR, 94, 1, "CSR94"),
    word(MERRTO, 100, 0xffff, 0x0200, "CSR100"),
    words(MFC, 112, 1, "CSR112"),
    words(RCC, 114, 1, "CSR114"),
    word(RFA, 122, 1, 0, "CSR122"),
    word(BMUTEST, 124, 0x001e, 0, "CSR124"),
];

const BUS: &[Row] = &[
    word(MSRDA, 0, 0, 0x0005, "BCR0"),
    word(MSWRA, 1, 0, 0x0005, "BCR1"),
    word(MC, 2, 0x519f, 0x0002, "BCR2"),
    word(LED0, 4, 0x7fff, 0x00c0, "BCR4"),
    word(LED1, 5, 0x7fff, 0x0084, "BCR5"),
    word(LED2, 6, 0x7fff, 0x0088, "BCR6"),
    word(LED3, 7, 0x7fff, 0x0090, "BCR7"),
    word(FDC, 9, 0x0007, 0, "BCR9"),
    words(IOBASE, 16, 2, "BCR16, BCR17"),
    word(BSBC, 18, 0xf37f, 0x9001, "BCR18").device(bcr::DWIO),
    word(EECAS, 19, 0x0017, 0x0002, "BCR19"),
    word(SWSTYLE, 20, 0x04ff, bcr::CSRPCNET, "BCR20").device(bcr::SSIZE32 | bcr::CSRPCNET),
    words(INTCON, 21, 1, "BCR21"),
    word(PCILAT, 22, 0xffff, 0xff06, "BCR22"),
];

const fn file(region: u8, len: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region, base: 0, stride: len, count: 1, rows }
}

/// The registers of the Am79C970A.
pub static AM79C970A: Table = Table {
    regions: REGIONS,
    blocks: &[
        file(WIO, WINDOW_BYTES, PORTS_WORD),
        file(DWIO, WINDOW_BYTES, PORTS_DOUBLE),
        file(CSR, 2 * FILE, CONTROL),
        file(BCR, 2 * FILE, BUS),
    ],
    // The initialization block's address appears at two offsets.
    aliases: &[Alias { region: CSR, from: 2 * 16, to: 2, len: 4 }],
};
