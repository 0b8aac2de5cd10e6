//! The registers of both BARs as data, and the numbers of commands and events. Names and offsets: Linux
//! drivers/net/vmxnet3/vmxnet3_defs.h (6.12), which VMware wrote; there is no public data sheet.

use nicety_adapter::trace::{Region, RegisterName};

/// One 32-bit register of BAR 1, at a multiple of 8.
#[derive(Clone, Copy, Debug)]
pub struct Register {
    /// Its name in vmxnet3_defs.h, without the prefix.
    pub name: &'static str,
    /// Offset in BAR 1.
    pub offset: u64,
    /// Value after a reset from outside.
    pub reset: u32,
    /// Bits that read back; the others read as zero.
    pub read: u32,
    /// Bits that a write stores. Side effects are in `write_device_register`.
    pub write: u32,
}

/// Places of the registers in [`DEVICE`], and of their values in [`Values`].
pub const VRRS: usize = 0;
pub const DSAL: usize = 2;
pub const DSAH: usize = 3;
pub const CMD: usize = 4;
pub const MACL: usize = 5;
pub const MACH: usize = 6;
pub const ICR: usize = 7;
pub const ECR: usize = 8;
pub const DCR: usize = 9;

const fn row(name: &'static str, offset: u64, reset: u32, read: u32, write: u32) -> Register {
    Register { name, offset, reset, read, write }
}

/// Device revisions on offer: bit n is version n + 1. 1, 2, 3 and 7.
///
/// From 4 to 6 a driver turns tunnel offloads on without asking (`vmxnet3_declare_features`); from 7 on it asks DCR.
/// Those are not implemented, so that 4, 5 and 6 would be promises not kept.
pub const VERSIONS: u32 = 0x47;

/// Device capabilities on offer (DCR 0): UDP in the receive hash. No tunnel offload, no large BAR.
pub const CAPABILITIES: u32 = CAP_UDP_RSS;
/// UDP may be hashed with its ports.
pub const CAP_UDP_RSS: u32 = 1;

/// The virtual device's registers, BAR 1.
pub const DEVICE: [Register; 11] = [
    row("VRRS", 0x00, VERSIONS, !0, 0),
    row("UVRS", 0x08, 1, !0, 0),
    row("DSAL", 0x10, 0, !0, !0),
    row("DSAH", 0x18, 0, !0, !0),
    row("CMD", 0x20, 0, !0, 0),
    row("MACL", 0x28, 0, !0, !0),
    row("MACH", 0x30, 0, 0xffff, 0xffff),
    row("ICR", 0x38, 0, !0, 0),
    row("ECR", 0x40, 0, !0, 0),
    row("DCR", 0x48, CAPABILITIES, !0, 0),
    // Bit 31: no pass-through hardware behind it.
    row("PTCR", 0x88, 0x8000_0000, !0, 0),
];

/// The values of [`DEVICE`], in its order.
pub type Values = [u32; DEVICE.len()];

/// The values after a reset from outside.
pub fn reset_values() -> Values {
    DEVICE.map(|register| register.reset)
}

/// Which register lies at that offset of BAR 1.
pub fn device_register(offset: u64) -> Option<usize> {
    DEVICE.iter().position(|register| register.offset == offset)
}

/// A register of BAR 0, the page that can be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbell {
    /// IMR: mask of an interrupt vector, bit 0.
    Mask(u16),
    /// TXPROD of a transmit queue.
    Transmit(u16),
    /// RXPROD or RXPROD2 of a receive queue: ring 0 or 1.
    Receive(u16, u8),
}

/// Bytes of BAR 0.
pub const PT_LEN: u64 = 4096;
/// Bytes of BAR 1.
pub const VD_LEN: u64 = 4096;
/// Bytes of BAR 2: the MSI-X table at 0, the pending bits at [`PBA_OFFSET`], and a page at [`SPARE_AT`].
pub const MSIX_LEN: u64 = 0x2000;
/// Where in it the page begins that holds nothing.
pub const SPARE_AT: u64 = 0x1000;
/// Where the pending bits lie.
pub const PBA_OFFSET: u32 = 0x800;
/// Interrupt vectors: one per queue each way and one for events (version 6 on; earlier drivers use 25 of them).
pub const VECTORS: u16 = 65;
/// Queues each way at most.
pub const QUEUES: u16 = 32;

/// Which register lies at that offset of BAR 0.
pub fn doorbell(offset: u64) -> Option<Doorbell> {
    let number = ((offset & 0x1ff) / 8) as u16;
    match offset {
        _ if !offset.is_multiple_of(8) => None,
        0..0x208 => Some(Doorbell::Mask((offset / 8) as u16)),
        0x600..0x700 => Some(Doorbell::Transmit(number)),
        0x800..0x900 => Some(Doorbell::Receive(number, 0)),
        0xa00..0xb00 => Some(Doorbell::Receive(number, 1)),
        _ => None,
    }
}

/// What vmxnet3_defs.h calls the register at an offset.
pub fn name(region: Region, offset: u64) -> Option<RegisterName> {
    let of = |word, index: u16| RegisterName { word, index: Some(index.into()) };
    match region {
        Region::Bar(0) => Some(match doorbell(offset)? {
            Doorbell::Mask(vector) => of("IMR", vector),
            Doorbell::Transmit(queue) => of("TXPROD", queue),
            Doorbell::Receive(queue, 0) => of("RXPROD", queue),
            Doorbell::Receive(queue, _) => of("RXPROD2", queue),
        }),
        Region::Bar(1) => {
            let word = DEVICE.get(device_register(offset)?)?.name;
            Some(RegisterName { word, index: None })
        }
        _ => None,
    }
}

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
    /// What a command that failed, or that is not known, answers.
    pub const FAILED: u32 = u32::MAX;
}

/// Events (VMXNET3_ECR_*).
pub mod event {
    pub const RECEIVE_ERROR: u32 = 1;
    pub const TRANSMIT_ERROR: u32 = 1 << 1;
    pub const LINK: u32 = 1 << 2;
}

/// Why a queue is stopped (VMXNET3_ERR_*), as its status tells the driver.
pub mod stopped {
    pub const NO_EOP: u32 = 0x8000_0000;
    pub const DESCRIPTOR_TYPE: u32 = 0x8000_0003;
    pub const BAD_RING: u32 = 0x8000_0007;

    /// What a queue's error means; nothing for 0, none.
    pub fn why(error: u32) -> Option<&'static str> {
        match error {
            0 => None,
            NO_EOP => Some("a packet fills the whole ring and has no end"),
            DESCRIPTOR_TYPE => Some("a descriptor is of a type that there is not"),
            BAD_RING => Some("a ring lies where no memory is"),
            _ => Some("the device has stopped it"),
        }
    }
}

/// UPT1_F_*: what the driver turned on.
pub mod feature {
    pub const CHECKSUM: u64 = 1;
    pub const RSS: u64 = 1 << 1;
    pub const VLAN: u64 = 1 << 2;
    pub const LRO: u64 = 1 << 3;
}

/// VMXNET3_RXM_*: which frames the driver wants.
pub mod mode {
    pub const UNICAST: u32 = 1;
    pub const MULTICAST: u32 = 1 << 1;
    pub const BROADCAST: u32 = 1 << 2;
    pub const ALL_MULTICAST: u32 = 1 << 3;
    pub const PROMISCUOUS: u32 = 1 << 4;
}
