//! The register file as data: Intel's PCI/PCI-X Family of Gigabit Ethernet Controllers Software Developer's Manual
//! (317453), chapter 13. Every register is a line of [`TABLE`]; where reading or writing does more than the masks say,
//! `access.rs` has an arm for it. Storage is one array of 32-bit slots, so that reset and save walk the table.

use nicety_adapter::trace::{Region, RegisterName};

/// The I/O window.
const IO_BAR: u8 = 1;

/// One register, or an array of them at successive dwords.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// The manual's name.
    pub name: &'static str,
    /// Byte offset in the memory window.
    pub offset: u32,
    /// How many dwords.
    pub count: u16,
    /// Value after reset.
    pub reset: u32,
    /// Bits that software may write.
    pub write: u32,
    /// Bits that the device itself may set.
    pub device: u32,
    /// Bits that reading clears.
    pub clear: u32,
    /// Section of the manual.
    pub section: &'static str,
}

impl Register {
    /// Every bit that can ever be stored: what saved state is held against.
    pub const fn storable(&self) -> u32 {
        self.write | self.device | self.reset
    }
}

const fn rw(name: &'static str, offset: u32, write: u32, reset: u32, section: &'static str) -> Register {
    Register { name, offset, count: 1, reset, write, device: 0, clear: 0, section }
}

const fn own(name: &'static str, offset: u32, write: u32, reset: u32, device: u32, section: &'static str) -> Register {
    Register { name, offset, count: 1, reset, write, device, clear: 0, section }
}

const fn array(name: &'static str, offset: u32, count: u16, write: u32, section: &'static str) -> Register {
    Register { name, offset, count, reset: 0, write, device: 0, clear: 0, section }
}

/// A statistics counter: read-only, cleared by reading.
const fn counter(name: &'static str, offset: u32) -> Register {
    Register { name, offset, count: 1, reset: 0, write: 0, device: ALL, clear: ALL, section: "13.7" }
}

/// The low half of a 64-bit counter: reading the high half clears both.
const fn counter_low(name: &'static str, offset: u32) -> Register {
    Register { name, offset, count: 1, reset: 0, write: 0, device: ALL, clear: 0, section: "13.7" }
}

const ALL: u32 = !0;

/// Every register of an 82540EM that software can meet, in order of address.
#[rustfmt::skip]
pub static TABLE: &[Register] = &REGISTERS;

#[rustfmt::skip]
const REGISTERS: [Register; 163] = [
    rw("CTRL", 0x0000, 0x7bff_ffff, 0x0014_0241, "13.4.1"),
    own("STATUS", 0x0008, 0, 0, 0, "13.4.2"),
    own("EECD", 0x0010, 0x0000_0077, 0x0000_0010, 0, "13.4.3"),
    own("EERD", 0x0014, 0, 0, 0xffff_ff11, "13.4.4"),
    rw("CTRL_EXT", 0x0018, 0x03c3_dfff, 0, "13.4.6"),
    rw("FLA", 0x001c, 0x0000_003f, 0, "13.4.5"),
    own("MDIC", 0x0020, 0x2fff_ffff, 0x1000_0000, 0x5000_ffff, "13.4.7"),
    rw("FCAL", 0x0028, ALL, 0, "13.4.9"),
    rw("FCAH", 0x002c, 0xffff, 0, "13.4.10"),
    rw("FCT", 0x0030, 0xffff, 0, "13.4.11"),
    rw("VET", 0x0038, 0xffff, 0x8100, "13.4.12"),
    own("ICR", 0x00c0, 0, 0, ALL, "13.4.17"),
    rw("ITR", 0x00c4, 0xffff, 0, "13.4.18"),
    own("ICS", 0x00c8, 0, 0, 0, "13.4.19"),
    own("IMS", 0x00d0, ALL, 0, 0, "13.4.20"),
    own("IMC", 0x00d8, 0, 0, 0, "13.4.21"),
    rw("RCTL", 0x0100, 0x06df_b3fe, 0, "13.4.22"),
    rw("FCTTV", 0x0170, 0xffff, 0, "13.4.13"),
    rw("TXCW", 0x0178, 0xc000_ffff, 0, "13.4.14"),
    own("RXCW", 0x0180, 0, 0, 0, "13.4.15"),
    rw("TCTL", 0x0400, 0x13ff_fffa, 0x0000_0008, "13.4.33"),
    rw("TIPG", 0x0410, 0x3fff_ffff, 0x0060_2008, "13.4.34"),
    rw("TBT", 0x0448, 0xffff, 0, "13.4.35"),
    rw("AIT", 0x0458, 0xffff, 0, "13.4.35"),
    rw("LEDCTL", 0x0e00, 0xefef_efef, 0x0706_8302, "13.4.16"),
    rw("PBA", 0x1000, 0xffff, 0x0000_0030, "13.4.8"),
    rw("ERT", 0x2008, 0x3fff, 0, "13.4.23"),
    rw("FCRTL", 0x2160, 0x8000_fff8, 0, "13.4.24"),
    rw("FCRTH", 0x2168, 0x0000_fff8, 0, "13.4.25"),
    rw("RDFH", 0x2410, 0x1fff, 0, "13.8.1"),
    rw("RDFT", 0x2418, 0x1fff, 0, "13.8.2"),
    rw("RDFHS", 0x2420, 0x1fff, 0, "13.8.3"),
    rw("RDFTS", 0x2428, 0x1fff, 0, "13.8.4"),
    rw("RDFPC", 0x2430, 0x1fff, 0, "13.8.5"),
    rw("RDBAL", 0x2800, 0xffff_fff0, 0, "13.4.26"),
    rw("RDBAH", 0x2804, ALL, 0, "13.4.27"),
    rw("RDLEN", 0x2808, 0x000f_ff80, 0, "13.4.28"),
    rw("RDH", 0x2810, 0xffff, 0, "13.4.29"),
    rw("RDT", 0x2818, 0xffff, 0, "13.4.30"),
    rw("RDTR", 0x2820, 0xffff, 0, "13.4.31"),
    rw("RXDCTL", 0x2828, 0x013f_3f3f, 0x0101_0000, "13.4.32"),
    rw("RADV", 0x282c, 0xffff, 0, "13.4.32"),
    rw("RSRPD", 0x2c00, 0x0fff, 0, "13.4.32"),
    rw("TXDMAC", 0x3000, 0x0000_0001, 0, "13.4.36"),
    rw("TDFH", 0x3410, 0x07ff, 0, "13.8.6"),
    rw("TDFT", 0x3418, 0x07ff, 0, "13.8.7"),
    rw("TDFHS", 0x3420, 0x1fff, 0, "13.8.8"),
    rw("TDFTS", 0x3428, 0x1fff, 0, "13.8.9"),
    rw("TDFPC", 0x3430, 0x1fff, 0, "13.8.10"),
    rw("TDBAL", 0x3800, 0xffff_fff0, 0, "13.4.37"),
    rw("TDBAH", 0x3804, ALL, 0, "13.4.38"),
    rw("TDLEN", 0x3808, 0x000f_ff80, 0, "13.4.39"),
    rw("TDH", 0x3810, 0xffff, 0, "13.4.40"),
    rw("TDT", 0x3818, 0xffff, 0, "13.4.41"),
    rw("TIDV", 0x3820, 0xffff, 0, "13.4.42"),
    rw("TXDCTL", 0x3828, 0xff3f_3f3f, 0, "13.4.43"),
    rw("TADV", 0x382c, 0xffff, 0, "13.4.44"),
    rw("TSPMT", 0x3830, ALL, 0x0100_0400, "13.4.45"),
    counter("CRCERRS", 0x4000), counter("ALGNERRC", 0x4004), counter("SYMERRS", 0x4008), counter("RXERRC", 0x400c),
    counter("MPC", 0x4010), counter("SCC", 0x4014), counter("ECOL", 0x4018), counter("MCC", 0x401c),
    counter("LATECOL", 0x4020), counter("COLC", 0x4028), counter("DC", 0x4030), counter("TNCRS", 0x4034),
    counter("SEC", 0x4038), counter("CEXTERR", 0x403c), counter("RLEC", 0x4040), counter("XONRXC", 0x4048),
    counter("XONTXC", 0x404c), counter("XOFFRXC", 0x4050), counter("XOFFTXC", 0x4054), counter("FCRUC", 0x4058),
    counter("PRC64", 0x405c), counter("PRC127", 0x4060), counter("PRC255", 0x4064), counter("PRC511", 0x4068),
    counter("PRC1023", 0x406c), counter("PRC1522", 0x4070), counter("GPRC", 0x4074), counter("BPRC", 0x4078),
    counter("MPRC", 0x407c), counter("GPTC", 0x4080),
    counter_low("GORCL", 0x4088), counter("GORCH", 0x408c), counter_low("GOTCL", 0x4090), counter("GOTCH", 0x4094),
    counter("RNBC", 0x40a0), counter("RUC", 0x40a4), counter("RFC", 0x40a8), counter("ROC", 0x40ac),
    counter("RJC", 0x40b0), counter("MGTPRC", 0x40b4), counter("MGTPDC", 0x40b8), counter("MGTPTC", 0x40bc),
    counter_low("TORL", 0x40c0), counter("TORH", 0x40c4), counter_low("TOTL", 0x40c8), counter("TOTH", 0x40cc),
    counter("TPR", 0x40d0), counter("TPT", 0x40d4), counter("PTC64", 0x40d8), counter("PTC127", 0x40dc),
    counter("PTC255", 0x40e0), counter("PTC511", 0x40e4), counter("PTC1023", 0x40e8), counter("PTC1522", 0x40ec),
    counter("MPTC", 0x40f0), counter("BPTC", 0x40f4), counter("TSCTC", 0x40f8), counter("TSCTFC", 0x40fc),
    rw("RXCSUM", 0x5000, 0x0000_07ff, 0, "13.5.3"),
    array("MTA", 0x5200, 128, ALL, "13.5.1"),
    rw("RAL0", 0x5400, ALL, 0, "13.5.2"), rw("RAH0", 0x5404, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL1", 0x5408, ALL, 0, "13.5.2"), rw("RAH1", 0x540c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL2", 0x5410, ALL, 0, "13.5.2"), rw("RAH2", 0x5414, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL3", 0x5418, ALL, 0, "13.5.2"), rw("RAH3", 0x541c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL4", 0x5420, ALL, 0, "13.5.2"), rw("RAH4", 0x5424, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL5", 0x5428, ALL, 0, "13.5.2"), rw("RAH5", 0x542c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL6", 0x5430, ALL, 0, "13.5.2"), rw("RAH6", 0x5434, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL7", 0x5438, ALL, 0, "13.5.2"), rw("RAH7", 0x543c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL8", 0x5440, ALL, 0, "13.5.2"), rw("RAH8", 0x5444, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL9", 0x5448, ALL, 0, "13.5.2"), rw("RAH9", 0x544c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL10", 0x5450, ALL, 0, "13.5.2"), rw("RAH10", 0x5454, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL11", 0x5458, ALL, 0, "13.5.2"), rw("RAH11", 0x545c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL12", 0x5460, ALL, 0, "13.5.2"), rw("RAH12", 0x5464, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL13", 0x5468, ALL, 0, "13.5.2"), rw("RAH13", 0x546c, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL14", 0x5470, ALL, 0, "13.5.2"), rw("RAH14", 0x5474, 0x8003_ffff, 0, "13.5.2"),
    rw("RAL15", 0x5478, ALL, 0, "13.5.2"), rw("RAH15", 0x547c, 0x8003_ffff, 0, "13.5.2"),
    array("VFTA", 0x5600, 128, ALL, "13.5.4"),
    rw("WUC", 0x5800, 0x0000_000b, 0, "13.6.1"),
    rw("WUFC", 0x5808, 0x000f_80ff, 0, "13.6.2"),
    rw("WUS", 0x5810, 0, 0, "13.6.3"),
    rw("MANC", 0x5820, 0xfd7f_ff04, 0, "13.6.13"),
    rw("IPAV", 0x5838, 0x0001_000f, 0, "13.6.4"),
    array("IP4AT", 0x5840, 8, ALL, "13.6.5"),
    array("IP6AT", 0x5880, 4, ALL, "13.6.6"),
    rw("WUPL", 0x5900, 0, 0, "13.6.7"),
    array("WUPM", 0x5a00, 32, 0, "13.6.8"),
    array("FFLT", 0x5f00, 8, 0x0000_007f, "13.6.9"),
    array("FFMT", 0x9000, 256, 0x0000_000f, "13.6.10"),
    array("FFVT", 0x9800, 256, ALL, "13.6.11"),
];

/// Dwords of storage.
pub const SLOTS: usize = slots();
/// Dwords of address space that the lookup covers; beyond are reserved addresses and packet buffer memory.
const SPACE: usize = 0xa000 / 4;
/// No register there.
const NONE: u16 = u16::MAX;

const fn slots() -> usize {
    let (mut i, mut sum) = (0, 0);
    while i < REGISTERS.len() {
        sum += REGISTERS[i].count as usize;
        i += 1;
    }
    sum
}

/// Offsets that the 82542 had and its successors still answer at: (old, new, dwords). Manual, table 13-2.
#[rustfmt::skip]
const ALIASES: [(u32, u32, u32); 22] = [
    (0x0004, 0x0000, 1),
    (0x0040, 0x5400, 32), (0x0108, 0x2820, 1), (0x0110, 0x2800, 1), (0x0114, 0x2804, 1), (0x0118, 0x2808, 1),
    (0x0120, 0x2810, 1), (0x0128, 0x2818, 1), (0x0160, 0x2168, 1), (0x0168, 0x2160, 1), (0x0200, 0x5200, 128),
    (0x0420, 0x3800, 1), (0x0424, 0x3804, 1), (0x0428, 0x3808, 1), (0x0430, 0x3810, 1), (0x0438, 0x3818, 1),
    (0x0440, 0x3820, 1), (0x0600, 0x5600, 128),
    (0x8000, 0x2410, 1), (0x8008, 0x2418, 1), (0x8010, 0x3410, 1), (0x8018, 0x3418, 1),
];

static LOOKUP: [u16; SPACE] = lookup();

const fn lookup() -> [u16; SPACE] {
    let mut map = [NONE; SPACE];
    let (mut i, mut slot) = (0, 0);
    while i < REGISTERS.len() {
        let mut n = 0;
        while n < REGISTERS[i].count as usize {
            map[REGISTERS[i].offset as usize / 4 + n] = slot as u16;
            slot += 1;
            n += 1;
        }
        i += 1;
    }
    i = 0;
    while i < ALIASES.len() {
        let (old, new, count) = ALIASES[i];
        let mut n = 0;
        while n < count as usize {
            if map[old as usize / 4 + n] == NONE {
                map[old as usize / 4 + n] = map[new as usize / 4 + n];
            }
            n += 1;
        }
        i += 1;
    }
    map
}

static ENTRY: [u8; SLOTS] = entries();

const fn entries() -> [u8; SLOTS] {
    let mut map = [0; SLOTS];
    let (mut i, mut slot) = (0, 0);
    while i < REGISTERS.len() {
        let mut n = 0;
        while n < REGISTERS[i].count {
            map[slot] = i as u8;
            slot += 1;
            n += 1;
        }
        i += 1;
    }
    map
}

/// The slot of the register at a byte offset.
pub fn find(offset: u64) -> Option<usize> {
    let slot = *LOOKUP.get(usize::try_from(offset / 4).ok()?)?;
    (slot != NONE).then_some(usize::from(slot))
}

/// What the manual calls the register at an offset: of the memory window, or of the two in I/O space (13.1).
pub fn name(region: Region, offset: u64) -> Option<RegisterName> {
    let named = |word, index| Some(RegisterName { word, index });
    match (region, offset) {
        (Region::Bar(0), _) => {
            let slot = find(offset)?;
            let first = find(entry(slot).offset.into()).unwrap_or_default();
            let index = (entry(slot).count > 1).then_some((slot - first) as u32);
            named(entry(slot).name, index)
        }
        (Region::Bar(IO_BAR), 0..4) => named("IOADDR", None),
        (Region::Bar(IO_BAR), 4..8) => named("IODATA", None),
        _ => None,
    }
}

/// The register that a slot belongs to.
pub fn entry(slot: usize) -> &'static Register {
    let index = ENTRY.get(slot).copied().unwrap_or(0);
    &TABLE[usize::from(index)]
}

/// The slot of the register at an offset that is known to exist: a compile-time question.
const fn slot(offset: u32) -> usize {
    let (mut i, mut slot) = (0, 0);
    while i < REGISTERS.len() {
        if REGISTERS[i].offset == offset {
            return slot;
        }
        slot += REGISTERS[i].count as usize;
        i += 1;
    }
    panic!("no register at this offset")
}

macro_rules! slots {
    ($($name:ident = $offset:literal,)+) => {
        $(#[doc = concat!("Slot of ", stringify!($name), ".")] pub const $name: usize = slot($offset);)+
    };
}

slots! {
    CTRL = 0x0000, STATUS = 0x0008, EECD = 0x0010, EERD = 0x0014, CTRL_EXT = 0x0018, MDIC = 0x0020,
    VET = 0x0038, ICR = 0x00c0, ITR = 0x00c4, ICS = 0x00c8, IMS = 0x00d0, IMC = 0x00d8,
    RCTL = 0x0100, TCTL = 0x0400, PBA = 0x1000,
    RDBAL = 0x2800, RDBAH = 0x2804, RDLEN = 0x2808, RDH = 0x2810, RDT = 0x2818, RDTR = 0x2820, RADV = 0x282c,
    RSRPD = 0x2c00,
    TDBAL = 0x3800, TDBAH = 0x3804, TDLEN = 0x3808, TDH = 0x3810, TDT = 0x3818, TADV = 0x382c,
    RXERRC = 0x400c, MPC = 0x4010, PRC64 = 0x405c, GPRC = 0x4074, BPRC = 0x4078, MPRC = 0x407c, GPTC = 0x4080,
    GORCL = 0x4088, GORCH = 0x408c, GOTCL = 0x4090, GOTCH = 0x4094, RNBC = 0x40a0, ROC = 0x40ac,
    TORL = 0x40c0, TORH = 0x40c4, TOTL = 0x40c8, TOTH = 0x40cc, TPR = 0x40d0, TPT = 0x40d4, PTC64 = 0x40d8,
    MPTC = 0x40f0, BPTC = 0x40f4, TSCTC = 0x40f8, TSCTFC = 0x40fc,
    RXCSUM = 0x5000, MTA = 0x5200, RAL0 = 0x5400, VFTA = 0x5600, WUS = 0x5810,
}

/// Dwords of receive addresses: RAL and RAH of sixteen.
pub const RA_DWORDS: usize = 32;

/// Bits of CTRL (13.4.1).
pub mod ctrl {
    /// Full duplex.
    pub const FD: u32 = 1;
    /// Set link up.
    pub const SLU: u32 = 1 << 6;
    /// Force speed: bits 9:8 rule.
    pub const FRCSPD: u32 = 1 << 11;
    /// Force duplex: bit 0 rules.
    pub const FRCDPX: u32 = 1 << 12;
    /// Global reset, clears itself.
    pub const RST: u32 = 1 << 26;
    /// VLAN mode.
    pub const VME: u32 = 1 << 30;
    /// Resets the PHY.
    pub const PHY_RST: u32 = 1 << 31;
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
    /// Loopback mode: bit 6 is set in both modes (MAC 01, PHY 11).
    pub const LBM: u32 = 1 << 6;
    /// Broadcasts.
    pub const BAM: u32 = 1 << 15;
    /// VLAN filter.
    pub const VFE: u32 = 1 << 18;
    /// Canonical form indicator filter.
    pub const CFIEN: u32 = 1 << 19;
    /// What that filter lets through.
    pub const CFI: u32 = 1 << 20;
    /// Buffer size extension.
    pub const BSEX: u32 = 1 << 25;
    /// Strip the CRC.
    pub const SECRC: u32 = 1 << 26;
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
}

/// Bits of RXCSUM (13.5.3).
pub mod rxcsum {
    /// IPv4 header checksums.
    pub const IPOFL: u32 = 1 << 8;
    /// TCP and UDP checksums.
    pub const TUOFL: u32 = 1 << 9;
}
