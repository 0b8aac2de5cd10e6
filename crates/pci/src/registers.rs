//! Offsets and bits of configuration space, after PCI Local Bus 3.0 §6, PCI Bus Power Management 1.2 §3 and PCI Express Base 4.0 §7.5.

/// Size of conventional configuration space, in bytes (PCI 3.0 §6.1).
pub const SPACE: usize = 256;
/// Size of a PCI Express function's configuration space, in bytes (PCIe 4.0 §7.2.2).
pub const EXPRESS_SPACE: usize = 4096;

/// Vendor ID, 16 bits.
pub const VENDOR: usize = 0x00;
/// Device ID, 16 bits.
pub const DEVICE: usize = 0x02;
/// Command, 16 bits.
pub const COMMAND: usize = 0x04;
/// Status, 16 bits.
pub const STATUS: usize = 0x06;
/// Revision, 8 bits; the 24-bit class code follows.
pub const REVISION: usize = 0x08;
/// Class code, 24 bits: programming interface, subclass, class.
pub const CLASS: usize = 0x09;
/// Cache line size, in dwords.
pub const CACHE_LINE: usize = 0x0c;
/// Latency timer.
pub const LATENCY: usize = 0x0d;
/// First base address register; six dwords.
pub const BAR: usize = 0x10;
/// Subsystem vendor ID; the subsystem ID follows.
pub const SUBSYSTEM: usize = 0x2c;
/// Expansion ROM base address.
pub const ROM: usize = 0x30;
/// Offset of the first capability.
pub const CAPABILITIES: usize = 0x34;
/// Interrupt line: a note that firmware leaves for the driver.
pub const INTERRUPT_LINE: usize = 0x3c;
/// Interrupt pin: 0 none, 1 to 4 for A to D.
pub const INTERRUPT_PIN: usize = 0x3d;
/// Minimum grant, in quarters of a microsecond.
pub const MIN_GRANT: usize = 0x3e;
/// Maximum latency, in quarters of a microsecond.
pub const MAX_LATENCY: usize = 0x3f;
/// Lowest offset of a capability.
pub const FIRST_CAPABILITY: usize = 0x40;
/// Offset of the first extended capability.
pub const FIRST_EXTENDED: usize = 0x100;

/// Command: answer I/O accesses.
pub const COMMAND_IO: u16 = 0x0001;
/// Command: answer memory accesses.
pub const COMMAND_MEMORY: u16 = 0x0002;
/// Command: may start transactions, messages included.
pub const COMMAND_MASTER: u16 = 0x0004;
/// Command: may use memory write and invalidate (hardwired to zero in PCI Express).
pub const COMMAND_INVALIDATE: u16 = 0x0010;
/// Command: parity error response.
pub const COMMAND_PARITY: u16 = 0x0040;
/// Command: SERR# enable.
pub const COMMAND_SERR: u16 = 0x0100;
/// Command: INTx is not asserted.
pub const COMMAND_INTX_DISABLE: u16 = 0x0400;

/// Status: the function's INTx is pending, whatever Command says.
pub const STATUS_INTERRUPT: u16 = 0x0008;
/// Status: there is a capability list.
pub const STATUS_CAPABILITIES: u16 = 0x0010;
/// Status: the error bits, each cleared by writing one.
pub const STATUS_ERRORS: u16 = 0xf900;
/// Status: fixed by the device: 66 MHz, fast back-to-back, DEVSEL timing.
pub const STATUS_FIXED: u16 = 0x06e0;

/// Capability ID: power management.
pub const ID_POWER: u8 = 0x01;
/// Capability ID: message signalled interrupts.
pub const ID_MSI: u8 = 0x05;
/// Capability ID: vendor-specific.
pub const ID_VENDOR: u8 = 0x09;
/// Capability ID: PCI Express.
pub const ID_EXPRESS: u8 = 0x10;
/// Capability ID: MSI-X.
pub const ID_MSIX: u8 = 0x11;

/// Power management: the control and status register, from the capability's start.
pub const POWER_CONTROL: usize = 4;
/// Power capabilities: D1 is supported.
pub const POWER_D1: u16 = 0x0200;
/// Power capabilities: D2 is supported.
pub const POWER_D2: u16 = 0x0400;
/// Power capabilities: the states from which PME# is possible.
pub const POWER_PME: u16 = 0xf800;
/// Power control: current state, 0 for D0 to 3 for D3hot.
pub const POWER_STATE: u16 = 0x0003;
/// Power control: D3hot to D0 keeps the state.
pub const POWER_NO_SOFT_RESET: u16 = 0x0008;
/// Power control: PME# enable.
pub const POWER_PME_ENABLE: u16 = 0x0100;
/// Power control: data select.
pub const POWER_DATA_SELECT: u16 = 0x1e00;
/// Power control: PME status, cleared by writing one.
pub const POWER_PME_STATUS: u16 = 0x8000;

/// MSI: message control, from the capability's start.
pub const MSI_CONTROL: usize = 2;
/// MSI: 64-bit address.
pub const MSI_ADDRESS: usize = 4;
/// MSI (64-bit form): 16-bit data.
pub const MSI_DATA: usize = 12;
/// MSI (64-bit form): mask bits.
pub const MSI_MASK: usize = 16;
/// MSI (64-bit form): pending bits.
pub const MSI_PENDING: usize = 20;
/// MSI control: enabled.
pub const MSI_ENABLE: u16 = 0x0001;
/// MSI control: log2 of the vectors enabled, from bit 4.
pub const MSI_MULTIPLE: u16 = 0x0070;
/// MSI control: 64-bit address.
pub const MSI_64: u16 = 0x0080;
/// MSI control: per-vector masking.
pub const MSI_MASKABLE: u16 = 0x0100;

/// MSI-X: message control, from the capability's start.
pub const MSIX_CONTROL: usize = 2;
/// MSI-X control: all vectors masked.
pub const MSIX_MASK_ALL: u16 = 0x4000;
/// MSI-X control: enabled.
pub const MSIX_ENABLE: u16 = 0x8000;
/// Size of an MSI-X table entry, in bytes.
pub const MSIX_ENTRY: usize = 16;
/// Most vectors that an MSI-X table can have.
pub const MSIX_VECTORS: u16 = 2048;

/// PCI Express: device control, from the capability's start.
pub const EXPRESS_DEVICE_CONTROL: usize = 8;
/// PCI Express device capabilities: function level reset.
pub const EXPRESS_FLR: u32 = 1 << 28;
/// PCI Express device control: start a function level reset; reads zero.
pub const EXPRESS_START_FLR: u16 = 0x8000;

/// The name of the register at `offset`, for messages to people.
#[must_use]
pub fn name(offset: usize) -> &'static str {
    match offset {
        0x00..=0x01 => "vendor id",
        0x02..=0x03 => "device id",
        0x04..=0x05 => "command",
        0x06..=0x07 => "status",
        0x08 => "revision",
        0x09..=0x0b => "class code",
        0x0c => "cache line size",
        0x0d => "latency timer",
        0x0e => "header type",
        0x0f => "self-test",
        0x10..=0x27 => "base address",
        0x28..=0x2b => "CardBus pointer",
        0x2c..=0x2d => "subsystem vendor id",
        0x2e..=0x2f => "subsystem id",
        0x30..=0x33 => "ROM base address",
        0x34 => "capabilities pointer",
        0x3c => "interrupt line",
        0x3d => "interrupt pin",
        0x3e => "minimum grant",
        0x3f => "maximum latency",
        0x35..=0x3b => "reserved",
        0x40..=0xff => "capability",
        _ => "extended capability",
    }
}
