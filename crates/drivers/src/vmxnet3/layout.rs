//! vmxnet3's registers and structures: offsets from Linux drivers/net/vmxnet3/vmxnet3_defs.h and upt1_defs.h (interface facts). The
//! compiler adds no padding to the structures, so that an offset is the sum of the sizes before it.

/// PCI vendor and device.
pub const DEVICES: [(u16, u16); 1] = [(0x15ad, 0x07b0)];

/// BAR 0: registers for the data path.
pub(super) const PASS_THROUGH: u8 = 0;
pub(super) const IMR: u64 = 0x000;
pub(super) const TXPROD: u64 = 0x600;
/// Rings 0 and 1.
pub(super) const RXPROD: [u64; 2] = [0x800, 0xa00];
/// Distance between registers of one kind, for vectors or queues.
pub(super) const STRIDE: u64 = 8;

/// BAR 1: everything else.
pub(super) const CONTROL: u8 = 1;
pub(super) const VRRS: u64 = 0x00;
pub(super) const UVRS: u64 = 0x08;
pub(super) const DSAL: u64 = 0x10;
pub(super) const DSAH: u64 = 0x18;
pub(super) const CMD: u64 = 0x20;
pub(super) const MACL: u64 = 0x28;
pub(super) const MACH: u64 = 0x30;
pub(super) const ECR: u64 = 0x40;

/// Commands without an answer: counted from 0xcafe0000.
pub(super) const ACTIVATE_DEV: u32 = 0xcafe_0000;
pub(super) const QUIESCE_DEV: u32 = 0xcafe_0001;
pub(super) const RESET_DEV: u32 = 0xcafe_0002;
pub(super) const UPDATE_RX_MODE: u32 = 0xcafe_0003;
pub(super) const UPDATE_MAC_FILTERS: u32 = 0xcafe_0004;
pub(super) const UPDATE_VLAN_FILTERS: u32 = 0xcafe_0005;
/// Commands with an answer: counted from 0xf00d0000.
pub(super) const GET_LINK: u32 = 0xf00d_0002;
pub(super) const GET_CONF_INTR: u32 = 0xf00d_0008;
pub(super) const GET_TXDATA_DESC_SIZE: u32 = 0xf00d_000a;

/// `Vmxnet3_DriverShared`.
pub(super) mod shared {
    pub(in super::super) const BYTES: u32 = 720;
    pub(in super::super) const MAGIC: (usize, u32) = (0, 3_133_079_265);
    pub(in super::super) const DRIVER_VERSION: usize = 8;
    pub(in super::super) const GUEST_SYSTEM: usize = 12;
    pub(in super::super) const REVISION: usize = 16;
    pub(in super::super) const UPT_VERSION: usize = 20;
    pub(in super::super) const FEATURES: usize = 24;
    pub(in super::super) const QUEUES_ADDRESS: usize = 40;
    pub(in super::super) const QUEUES_BYTES: usize = 52;
    pub(in super::super) const MTU: usize = 56;
    pub(in super::super) const RX_PIECES: usize = 60;
    pub(in super::super) const TX_QUEUES: usize = 62;
    pub(in super::super) const RX_QUEUES: usize = 63;
    pub(in super::super) const AUTO_MASK: usize = 80;
    pub(in super::super) const VECTORS: usize = 81;
    pub(in super::super) const EVENT_VECTOR: usize = 82;
    pub(in super::super) const MODERATION: usize = 83;
    pub(in super::super) const INTERRUPT_CONTROL: usize = 108;
    pub(in super::super) const RX_MODE: usize = 120;
    pub(in super::super) const VLAN_TABLE: usize = 136;
    pub(in super::super) const RSS: usize = 648;
    pub(in super::super) const EVENTS: usize = 696;
}

/// A 64-bit system (2), and its type (Linux).
pub(super) const GUEST_LINUX_64: u32 = 2 | 1 << 2;
pub(super) const FEATURE_RX_CHECKSUM: u64 = 1;
pub(super) const FEATURE_RSS: u64 = 2;
pub(super) const FEATURE_RX_VLAN: u64 = 4;
pub(super) const FEATURE_LRO: u64 = 8;
pub(super) const DISABLE_ALL: u32 = 1;
pub(super) const MODERATION_ADAPTIVE: u8 = 8;
/// Unicast, broadcast, all multicast.
pub(super) const RX_MODES: u32 = 0x01 | 0x04 | 0x08;
pub(super) const EVENT_LINK: u32 = 1 << 2;
/// The mask mode in the answer of GET_CONF_INTR: bits 2 and 3; 0 is automatic.
pub(super) const MASK_MODE_SHIFT: u32 = 2;
pub(super) const MASK_MODE_AUTO: u32 = 0;

/// `Vmxnet3_TxQueueDesc` and `Vmxnet3_RxQueueDesc`.
pub(super) mod queue {
    pub(in super::super) const BYTES: u32 = 256;
    pub(in super::super) const ALIGN: u64 = 128;
    pub(in super::super) const TX_DEFERRED: usize = 0;
    pub(in super::super) const TX_THRESHOLD: usize = 4;
    pub(in super::super) const UPDATE_RX_PROD: usize = 0;
    pub(in super::super) const TX_RING: usize = 16;
    pub(in super::super) const TX_DATA: usize = 24;
    pub(in super::super) const RX_RINGS: [usize; 2] = [16, 24];
    pub(in super::super) const COMPLETIONS: usize = 32;
    pub(in super::super) const RX_DATA: usize = 48;
    /// Ring, data ring (receive: second ring), completions.
    pub(in super::super) const SIZES: [usize; 3] = [56, 60, 64];
    pub(in super::super) const VECTOR: usize = 72;
    pub(in super::super) const DATA_BYTES: usize = 74;
}

/// `UPT1_RSSConf`: kinds, function, key bytes, table entries, key, table.
pub(super) mod rss {
    pub(in super::super) const BYTES: u32 = 176;
    pub(in super::super) const KEY: usize = 8;
    pub(in super::super) const KEY_BYTES: u16 = 40;
    pub(in super::super) const TABLE: usize = 48;
    pub(in super::super) const TABLE_ENTRIES: u16 = 32;
    /// IPv4, TCP over it, IPv6, TCP over it.
    pub(in super::super) const KINDS: u16 = 0xf;
    pub(in super::super) const TOEPLITZ: u16 = 1;
}

pub(super) const RING_ALIGN: u64 = 512;
pub(super) const DESCRIPTOR: usize = 16;

/// Transmit descriptor, third word: 14 bits of length (0 means 16384), generation, MSS or checksum offset.
pub(super) const TX_GENERATION: u32 = 1 << 14;
pub(super) const TX_OFFSET_SHIFT: u32 = 18;
/// Fourth word: 10 bits of header length, mode, end of packet, completion wanted, tag to insert.
pub(super) const TX_MODE_CHECKSUM: u32 = 2 << 10;
pub(super) const TX_MODE_TSO: u32 = 3 << 10;
pub(super) const TX_EOP: u32 = 1 << 12;
pub(super) const TX_CQ: u32 = 1 << 13;
pub(super) const TX_TAG: u32 = 1 << 15;
pub(super) const TX_TAG_SHIFT: u32 = 16;

/// Receive descriptor, third word: 14 bits of length, type (0 head, 1 body), generation.
pub(super) const RX_BODY: u32 = 1 << 14;
/// The generation, in the control word of receive descriptors and the last word of completions.
pub(super) const GENERATION_SHIFT: u32 = 31;

/// Completions: 12 bits of descriptor index in the first word.
pub(super) const INDEX_MASK: u32 = 0xfff;
pub(super) const DONE_EOP: u32 = 1 << 14;
pub(super) const DONE_SOP: u32 = 1 << 15;
pub(super) const DONE_QUEUE_SHIFT: u32 = 16;
pub(super) const DONE_QUEUE_MASK: u32 = 0x3ff;
pub(super) const DONE_NOT_CALCULATED: u32 = 1 << 30;
/// Third word.
pub(super) const DONE_LENGTH_MASK: u32 = 0x3fff;
pub(super) const DONE_ERROR: u32 = 1 << 14;
pub(super) const DONE_TAG: u32 = 1 << 15;
/// Fourth word.
pub(super) const DONE_TRANSPORT_GOOD: u32 = 1 << 16;
pub(super) const DONE_IP_GOOD: u32 = 1 << 19;
pub(super) const DONE_V6: u32 = 1 << 20;
pub(super) const DONE_V4: u32 = 1 << 21;
pub(super) const DONE_KIND_SHIFT: u32 = 24;
pub(super) const DONE_KIND_MASK: u32 = 0x7f;
pub(super) const DONE_KIND_LRO: u32 = 4;
