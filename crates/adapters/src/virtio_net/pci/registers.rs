//! The registers of virtio over PCI as data (virtio 1.2, section 4.1): the legacy interface in ports (4.1.4.10), and the modern
//! interface's common structure, interrupt status and doorbells in memory. All have side effects; none only stores.

use nicety_adapter::bank::{Block, Region, Widths};

nicety_adapter::register_names! {
    /// A register, by the specification's name.
    pub enum Reg {
        device_feature_select, device_feature, driver_feature_select, driver_feature, config_msix_vector, num_queues, device_status,
        config_generation, queue_select, queue_size, queue_msix_vector, queue_enable, queue_notify_off, queue_desc_lo,
        queue_desc_hi, queue_driver_lo, queue_driver_hi, queue_device_lo, queue_device_hi, queue_notif_config_data, queue_reset,
        isr_status, queue_notify[64], legacy_device_feature, legacy_driver_feature, legacy_queue_address, legacy_queue_size,
        legacy_queue_select, legacy_queue_notify, legacy_device_status, legacy_isr_status,
    }
}

impl Reg {
    /// Whether a narrow write keeps the register's other bytes. True for values; the other registers act on each write.
    pub fn is_value(self) -> bool {
        !matches!(
            self,
            Reg::isr_status | Reg::legacy_isr_status | Reg::queue_notify | Reg::legacy_queue_notify | Reg::queue_reset
        )
    }
}

/// A row of the table.
type Row = nicety_adapter::bank::Row<Reg>;

/// The legacy interface's ports, and their size: configuration space follows the registers.
pub const LEGACY_BAR: u8 = 0;
pub const LEGACY_LEN: u64 = 0x80;
/// Offset of configuration space without MSI-X; with it, the two vector registers come before it (4.1.4.10).
pub const LEGACY_CONFIG: u64 = 20;
/// MSI-X's table and pending bits.
pub const MSIX_BAR: u8 = 1;
pub const MSIX_LEN: u64 = 0x1000;
pub const PBA_AT: u32 = 0x800;
/// The modern interface: a page for each structure.
pub const BAR: u8 = 4;
pub const BAR_LEN: u64 = 0x4000;
pub const ISR_AT: u32 = 0x1000;
pub const CONFIG_AT: u32 = 0x2000;
pub const NOTIFY_AT: u32 = 0x3000;
/// Bytes of each structure.
pub const PAGE: u32 = 0x1000;
/// Bytes from one queue's doorbell to the next (`notify_off_multiplier`).
pub const NOTIFY_EVERY: u32 = 4;

const fn port(name: Reg, offset: u32, width: u8) -> Row {
    Row::port(name, offset, width, "4.1.4.3")
}

const COMMON: &[Row] = &[
    port(Reg::device_feature_select, 0x00, 4),
    port(Reg::device_feature, 0x04, 4),
    port(Reg::driver_feature_select, 0x08, 4),
    port(Reg::driver_feature, 0x0c, 4),
    port(Reg::config_msix_vector, 0x10, 2),
    port(Reg::num_queues, 0x12, 2),
    port(Reg::device_status, 0x14, 1),
    port(Reg::config_generation, 0x15, 1),
    port(Reg::queue_select, 0x16, 2),
    port(Reg::queue_size, 0x18, 2),
    port(Reg::queue_msix_vector, 0x1a, 2),
    port(Reg::queue_enable, 0x1c, 2),
    port(Reg::queue_notify_off, 0x1e, 2),
    port(Reg::queue_desc_lo, 0x20, 4),
    port(Reg::queue_desc_hi, 0x24, 4),
    port(Reg::queue_driver_lo, 0x28, 4),
    port(Reg::queue_driver_hi, 0x2c, 4),
    port(Reg::queue_device_lo, 0x30, 4),
    port(Reg::queue_device_hi, 0x34, 4),
    port(Reg::queue_notif_config_data, 0x38, 2),
    port(Reg::queue_reset, 0x3a, 2),
];

const ISR: &[Row] = &[Row::port(Reg::isr_status, ISR_AT, 1, "4.1.4.5")];

const NOTIFY: &[Row] = &[Row::port(Reg::queue_notify, NOTIFY_AT, 2, "4.1.4.4").every(NOTIFY_EVERY, 64)];

const LEGACY: &[Row] = &[
    Row::port(Reg::legacy_device_feature, 0, 4, "4.1.4.10"),
    Row::port(Reg::legacy_driver_feature, 4, 4, "4.1.4.10"),
    Row::port(Reg::legacy_queue_address, 8, 4, "4.1.4.10"),
    Row::port(Reg::legacy_queue_size, 12, 2, "4.1.4.10"),
    Row::port(Reg::legacy_queue_select, 14, 2, "4.1.4.10"),
    Row::port(Reg::legacy_queue_notify, 16, 2, "4.1.4.10"),
    Row::port(Reg::legacy_device_status, 18, 1, "4.1.4.10"),
    Row::port(Reg::legacy_isr_status, 19, 1, "4.1.4.10"),
];

const fn flat(region: u8, base: u32, stride: u32, rows: &'static [Row]) -> Block<Reg> {
    Block { region, base, stride, count: 1, rows }
}

/// The registers.
pub static TABLE: nicety_adapter::bank::Table<Reg> = nicety_adapter::bank::Table {
    regions: &[
        Region { bars: &[LEGACY_BAR], len: LEGACY_LEN as u32, reads: Widths::ANY, writes: Widths::ANY, hole: 0 },
        Region { bars: &[BAR], len: BAR_LEN as u32, reads: Widths::ANY, writes: Widths::ANY, hole: 0 },
    ],
    blocks: &[
        flat(0, 0, LEGACY_CONFIG as u32, LEGACY),
        flat(1, 0, PAGE, COMMON),
        flat(1, ISR_AT, PAGE, ISR),
        flat(1, NOTIFY_AT, PAGE, NOTIFY),
    ],
    aliases: &[],
};

/// Bits of the device status (2.1).
pub mod status {
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const NEEDS_RESET: u8 = 64;
}
