//! The registers as data, and the numbers of commands, features and capabilities. Names and offsets: vmxnet_def.h, vmnet_def.h and
//! net.h of open-vm-tools, written by VMware; there is no public data sheet.
//!
//! ```text
//!  00 INIT_ADDR  INIT_LENGTH  TX_ADDR  COMMAND_ADDR
//!  10 MAC_ADDR (6 bytes)   18 LOW_VERSION  HIGH_VERSION
//!  20 STATUS_ADDR  TOE_INIT_ADDR   28 APROM_ADDR (6 bytes)
//!  30 INT_ENABLE_ADDR  WAKE_PKT_PATTERNS
//! ```
//! In a `flexible` they follow a lance's ports and the morph port, from 0x24 on.

use nicety_adapter::bank::{self, Block, Region, Widths};

nicety_adapter::register_names! {
    /// The registers by the names of vmxnet_def.h, without their prefix; and the morph port of net.h.
    pub enum Reg {
        MORPH, INIT_ADDR, INIT_LENGTH, TX_ADDR, COMMAND_ADDR, MAC_ADDR[6], LOW_VERSION, HIGH_VERSION, STATUS_ADDR, TOE_INIT_ADDR,
        APROM_ADDR[6], INT_ENABLE_ADDR, WAKE_PKT_PATTERNS,
    }
}
pub use Reg::*;

/// A row of the table.
type Row = bank::Row<Reg>;
/// All registers.
pub type Table = bank::Table<Reg>;
/// Values of the registers.
pub type Bank = bank::Bank<Reg>;
/// A register found at an offset.
pub type Place = bank::Place<Reg>;

/// VMXNET2_MAGIC: the one version of the protocol, in LOW_VERSION, in HIGH_VERSION and in the driver's data.
pub const MAGIC: u32 = 0xbabe_864f;

/// Bytes of BAR 0 (VMXNET_CHIP_IO_RESV_SIZE).
pub const PORTS: u32 = 0x40;
/// Bytes of a flexible's BAR 0: 0x64, as a power of two.
pub const FLEXIBLE_PORTS: u32 = 0x80;
/// Offset of the morph port in it: after the lance's ports (LANCE_CHIP_IO_RESV_SIZE).
pub const MORPH_AT: u32 = 0x20;
/// Offset of the registers in it: after the morph port (MORPH_PORT_SIZE).
const BASE: u32 = MORPH_AT + 4;

/// Value of the morph port for a lance, read and written (LANCE_CHIP).
pub const LANCE_CHIP: u32 = 0x2934;
/// The same for a vmxnet (VMXNET_CHIP).
pub const VMXNET_CHIP: u32 = 0x4392;

/// The registers of a vmxnet, from an offset on.
const fn rows(base: u32) -> [Row; 12] {
    [
        Row::rw(INIT_ADDR, base, !0, 0, "VMXNET_INIT_ADDR"),
        // Reads as the accepted length: 0 if none was accepted (vmxnet.c of open-vm-tools' Solaris driver, Vxn_Start).
        Row::rw(INIT_LENGTH, base + 0x04, 0, 0, "VMXNET_INIT_LENGTH").device(!0),
        Row::port(TX_ADDR, base + 0x08, 4, "VMXNET_TX_ADDR"),
        // Reads as the last command's answer.
        Row::rw(COMMAND_ADDR, base + 0x0c, 0, 0, "VMXNET_COMMAND_ADDR").device(!0),
        Row::rw(MAC_ADDR, base + 0x10, 0xff, 0, "VMXNET_MAC_ADDR").wide(1).times(6),
        Row::rw(LOW_VERSION, base + 0x18, 0, MAGIC, "VMXNET_LOW_VERSION"),
        Row::rw(HIGH_VERSION, base + 0x1c, 0, MAGIC, "VMXNET_HIGH_VERSION"),
        Row::port(STATUS_ADDR, base + 0x20, 4, "VMXNET_STATUS_ADDR"),
        Row::rw(TOE_INIT_ADDR, base + 0x24, 0, 0, "VMXNET_TOE_INIT_ADDR"),
        Row::port(APROM_ADDR, base + 0x28, 1, "VMXNET_APROM_ADDR").times(6),
        Row::rw(INT_ENABLE_ADDR, base + 0x30, 0, 0, "VMXNET_INT_ENABLE_ADDR"),
        Row::rw(WAKE_PKT_PATTERNS, base + 0x34, 0, 0, "VMXNET_WAKE_PKT_PATTERNS"),
    ]
}

const MORPH_ROWS: &[Row] = &[Row::port(MORPH, MORPH_AT, 4, "net.h, MORPH_PORT_SIZE")];

const fn ports(len: u32) -> Region {
    Region { bars: &[0], len, reads: Widths::ANY, writes: Widths::DWORD.or(Widths::WORD).or(Widths::BYTE), hole: !0 }
}

/// The registers of 15ad:0720.
pub static VMXNET: Table = Table {
    regions: &[ports(PORTS)],
    blocks: &[Block { region: 0, base: 0, stride: PORTS, count: 1, rows: &rows(0) }],
    aliases: &[],
};

/// Registers of a lance that can be morphed, without the lance's own.
pub static FLEXIBLE: Table = Table {
    regions: &[ports(FLEXIBLE_PORTS)],
    blocks: &[
        Block { region: 0, base: MORPH_AT, stride: 4, count: 1, rows: MORPH_ROWS },
        Block { region: 0, base: BASE, stride: PORTS, count: 1, rows: &rows(BASE) },
    ],
    aliases: &[],
};

/// Commands (VMXNET_CMD_*).
pub(crate) mod command {
    pub const INTR_ACK: u32 = 0x1;
    pub const UPDATE_LADRF: u32 = 0x2;
    pub const UPDATE_IFF: u32 = 0x4;
    pub const UNUSED_1: u32 = 0x8;
    pub const UNUSED_2: u32 = 0x10;
    pub const INTR_DISABLE: u32 = 0x20;
    pub const INTR_ENABLE: u32 = 0x40;
    pub const UNUSED_3: u32 = 0x80;
    pub const CHECK_TX_DONE: u32 = 0x100;
    pub const GET_NUM_RX_BUFFERS: u32 = 0x200;
    pub const GET_NUM_TX_BUFFERS: u32 = 0x400;
    pub const PIN_TX_BUFFERS: u32 = 0x800;
    pub const GET_CAPABILITIES: u32 = 0x1000;
    pub const GET_FEATURES: u32 = 0x2000;
    pub const SET_POWER_FULL: u32 = 0x4000;
    pub const SET_POWER_LOW: u32 = 0x8000;
}

/// STATUS_ADDR (VMXNET_STATUS_*).
pub(crate) mod status {
    pub const CONNECTED: u32 = 1;
    pub const ENABLED: u32 = 1 << 1;
    pub const TX_PINNED: u32 = 1 << 2;
}

/// Features that drivers may use (VMXNET_FEATURE_*).
pub(crate) mod feature {
    pub const ZERO_COPY_TX: u32 = 1;
    pub const TSO: u32 = 1 << 1;
    pub const JUMBO_FRAME: u32 = 1 << 2;
    pub const LPD: u32 = 1 << 3;
}

/// Capabilities of the device (VMNET_CAP_*).
pub(crate) mod capability {
    pub const SG: u32 = 1;
    pub const IP4_CSUM: u32 = 1 << 1;
    pub const HW_CSUM: u32 = 1 << 2;
    pub const HIGH_DMA: u32 = 1 << 3;
    pub const TSO: u32 = 1 << 5;
    pub const VMXNET_APROM: u32 = 1 << 7;
    pub const ENABLE_HEADER_COPY: u32 = 1 << 13;
    pub const TX_CHAIN: u32 = 1 << 14;
    pub const RX_CHAIN: u32 = 1 << 15;
    pub const LPD: u32 = 1 << 16;
}
