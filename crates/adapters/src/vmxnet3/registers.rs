//! The registers of both BARs as data, and the numbers of commands and events. Names and offsets: Linux
//! drivers/net/vmxnet3/vmxnet3_defs.h (6.12), written by VMware; there is no public data sheet.

use nicety_adapter::bank::{Block, Region, Row, Table, Widths};
use nicety_adapter::register_names;

register_names! {
    /// The registers by the names of vmxnet3_defs.h, without their prefix.
    pub enum Reg { IMR, TXPROD, RXPROD, RXPROD2, VRRS, UVRS, DSAL, DSAH, CMD, MACL, MACH, ICR, ECR, DCR, PTCR }
}
use Reg::{CMD, DCR, DSAH, DSAL, ECR, ICR, IMR, MACH, MACL, PTCR, RXPROD, RXPROD2, TXPROD, UVRS, VRRS};

/// Offered device revisions, 1 to 7: bit n is version n + 1.
pub const VERSIONS: u32 = 0x7f;

/// Offered device capabilities (DCR 0, VMXNET3_CAP_*), which a driver of version 7 enables one by one: UDP and ESP in the receive
/// hash, and the transmit offloads of tunnels. No hash of inner headers, no large BAR, no out-of-order completions.
pub const CAPABILITIES: u32 = 0x2ff;
/// UDP ports may be hashed.
pub const CAP_UDP_RSS: u32 = 1;
/// The index of ESP over IPv4 may be hashed.
pub const CAP_ESP_RSS_IPV4: u32 = 1 << 1;
/// Inner checksums in Geneve; those in VXLAN are two bits higher.
pub const CAP_GENEVE_CHECKSUM: u32 = 1 << 2;
/// Segmentation in Geneve; in VXLAN two bits higher.
pub const CAP_GENEVE_TSO: u32 = 1 << 3;
/// Outer checksums of segments in Geneve; in VXLAN one bit higher.
pub const CAP_GENEVE_OUTER: u32 = 1 << 6;
/// The index of ESP over IPv6 may be hashed.
pub const CAP_ESP_RSS_IPV6: u32 = 1 << 9;

/// BAR 0, the page that can be mapped: a mask for each vector, positions for each queue.
const PASS_THROUGH: &[Row<Reg>] = &[
    Row::port(IMR, 0, 4, "VMXNET3_REG_IMR").every(8, VECTORS as u32),
    Row::port(TXPROD, 0x600, 4, "VMXNET3_REG_TXPROD").every(8, QUEUES as u32),
    Row::port(RXPROD, 0x800, 4, "VMXNET3_REG_RXPROD").every(8, QUEUES as u32),
    Row::port(RXPROD2, 0xa00, 4, "VMXNET3_REG_RXPROD2").every(8, QUEUES as u32),
];

/// BAR 1, the virtual device.
const DEVICE: &[Row<Reg>] = &[
    Row::rw(VRRS, 0x00, 0, VERSIONS, "VMXNET3_REG_VRRS"),
    Row::rw(UVRS, 0x08, 0, 1, "VMXNET3_REG_UVRS"),
    Row::rw(DSAL, 0x10, !0, 0, "VMXNET3_REG_DSAL"),
    Row::rw(DSAH, 0x18, !0, 0, "VMXNET3_REG_DSAH"),
    // Reads as the last command's answer.
    Row::rw(CMD, 0x20, 0, 0, "VMXNET3_REG_CMD").device(!0),
    Row::rw(MACL, 0x28, !0, 0, "VMXNET3_REG_MACL"),
    Row::rw(MACH, 0x30, 0xffff, 0, "VMXNET3_REG_MACH").reads(0xffff),
    Row::rw(ICR, 0x38, 0, 0, "VMXNET3_REG_ICR"),
    Row::rw(ECR, 0x40, 0, 0, "VMXNET3_REG_ECR"),
    Row::rw(DCR, 0x48, 0, CAPABILITIES, "VMXNET3_REG_DCR"),
    // Bit 31: there is no pass-through hardware.
    Row::rw(PTCR, 0x88, 0, 0x8000_0000, "VMXNET3_REG_PTCR"),
];

const fn page(bars: &'static [u8], len: u64) -> Region {
    Region { bars, len: len as u32, reads: Widths::ANY, writes: Widths::DWORD, hole: !0 }
}

/// All registers. Reads have any width and offset. No document defines writes narrower than a register, so they do nothing.
pub static REGISTERS: Table<Reg> = Table {
    regions: &[page(&[0], PT_LEN), page(&[1], VD_LEN)],
    blocks: &[
        Block { region: 0, base: 0, stride: PT_LEN as u32, count: 1, rows: PASS_THROUGH },
        Block { region: 1, base: 0, stride: VD_LEN as u32, count: 1, rows: DEVICE },
    ],
    aliases: &[],
};

/// Bytes of BAR 0.
pub const PT_LEN: u64 = 4096;
/// Bytes of BAR 1.
pub const VD_LEN: u64 = 4096;
/// Bytes of BAR 2: the MSI-X table at 0, the pending bits at [`PBA_OFFSET`], and an empty page at [`EMPTY_PAGE_AT`].
pub const MSIX_LEN: u64 = 0x2000;
/// Offset of the empty page.
pub const EMPTY_PAGE_AT: u64 = 0x1000;
/// Offset of the pending bits.
pub const PBA_OFFSET: u32 = 0x800;
/// Interrupt vectors: one per queue each way and one for events (version 6 on; earlier drivers use 25 of them).
pub const VECTORS: u16 = 65;
/// Maximum queues each way.
pub const QUEUES: u16 = 32;

/// Commands (VMXNET3_CMD_*).
pub mod command {
    pub const ACTIVATE: u32 = 0xcafe_0000;
    pub const QUIESCE: u32 = 0xcafe_0001;
    pub const RESET: u32 = 0xcafe_0002;
    pub const UPDATE_RX_MODE: u32 = 0xcafe_0003;
    pub const UPDATE_MAC_FILTERS: u32 = 0xcafe_0004;
    pub const UPDATE_VLAN_FILTERS: u32 = 0xcafe_0005;
    pub const UPDATE_RSSIDT: u32 = 0xcafe_0006;
    pub const UPDATE_IML: u32 = 0xcafe_0007;
    pub const UPDATE_PMCFG: u32 = 0xcafe_0008;
    pub const UPDATE_FEATURE: u32 = 0xcafe_0009;
    pub const LOAD_PLUGIN: u32 = 0xcafe_000b;
    pub const SET_COALESCE: u32 = 0xcafe_000e;
    pub const REGISTER_MEMREGS: u32 = 0xcafe_000f;
    pub const SET_RSS_FIELDS: u32 = 0xcafe_0010;
    pub const SET_RING_BUFFER_SIZE: u32 = 0xcafe_0013;
    pub const GET_QUEUE_STATUS: u32 = 0xf00d_0000;
    pub const GET_STATS: u32 = 0xf00d_0001;
    pub const GET_LINK: u32 = 0xf00d_0002;
    pub const GET_PERM_MAC_LO: u32 = 0xf00d_0003;
    pub const GET_PERM_MAC_HI: u32 = 0xf00d_0004;
    pub const GET_DID_LO: u32 = 0xf00d_0005;
    pub const GET_DID_HI: u32 = 0xf00d_0006;
    pub const GET_DEV_EXTRA_INFO: u32 = 0xf00d_0007;
    pub const GET_CONF_INTR: u32 = 0xf00d_0008;
    pub const GET_TXDATA_DESC_SIZE: u32 = 0xf00d_000a;
    pub const GET_COALESCE: u32 = 0xf00d_000b;
    pub const GET_RSS_FIELDS: u32 = 0xf00d_000c;
    pub const GET_MAX_QUEUES_CONF: u32 = 0xf00d_000f;
    pub const GET_MAX_CAPABILITIES: u32 = 0xf00d_0011;
    pub const GET_DCR0: u32 = 0xf00d_0012;
    /// Answer of a command that failed or is unknown.
    pub const FAILED: u32 = u32::MAX;
}

/// Events (VMXNET3_ECR_*).
pub mod event {
    pub const RECEIVE_ERROR: u32 = 1;
    pub const TRANSMIT_ERROR: u32 = 1 << 1;
    pub const LINK: u32 = 1 << 2;
}

/// Reasons why a queue is stopped (VMXNET3_ERR_*), in its status for the driver.
pub mod stopped {
    pub const NO_EOP: u32 = 0x8000_0000;
    pub const DESCRIPTOR_TYPE: u32 = 0x8000_0003;
    /// VMXNET3_ERR_SWITCH: the device has lost its place in the rings.
    pub const LOST: u32 = 0x8000_0006;
    pub const BAD_RING: u32 = 0x8000_0007;

    /// Meaning of a queue's error; `None` for 0.
    pub fn why(error: u32) -> Option<&'static str> {
        match error {
            0 => None,
            NO_EOP => Some("a packet fills the whole ring and has no end"),
            DESCRIPTOR_TYPE => Some("a descriptor is of a type that there is not"),
            BAD_RING => Some("a ring lies where no memory is"),
            LOST => Some("its position was lost when the daemon was killed"),
            _ => Some("the device has stopped it"),
        }
    }
}

/// UPT1_F_*: features that the driver enabled.
pub mod feature {
    pub const CHECKSUM: u64 = 1;
    pub const RSS: u64 = 1 << 1;
    pub const VLAN: u64 = 1 << 2;
    pub const LRO: u64 = 1 << 3;
}

/// VMXNET3_RXM_*: receive modes.
pub mod mode {
    pub const UNICAST: u32 = 1;
    pub const MULTICAST: u32 = 1 << 1;
    pub const BROADCAST: u32 = 1 << 2;
    pub const ALL_MULTICAST: u32 = 1 << 3;
    pub const PROMISCUOUS: u32 = 1 << 4;
}
