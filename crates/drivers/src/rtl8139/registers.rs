//! Registers, descriptors and their bits, from the enumerations of Linux's 8139cp.c and 8139too.c.

/// The chip, of every revision.
pub const DEVICES: [(u16, u16); 1] = [(0x10ec, 0x8139)];
/// Configuration space: the revision. Chips from this revision on have C+ mode.
pub(super) const REVISION: u16 = 8;
pub(super) const REVISION_CPLUS: u8 = 0x20;

/// The BAR that both of Linux's drivers use: memory.
pub(super) const BAR: u8 = 1;

pub(super) const IDR0: u64 = 0x00;
pub(super) const IDR4: u64 = 0x04;
pub(super) const MAR0: u64 = 0x08;
pub(super) const TX_STATUS0: u64 = 0x10;
pub(super) const TX_ADDR0: u64 = 0x20;
pub(super) const TX_RING: u64 = 0x20;
pub(super) const HIGH_TX_RING: u64 = 0x28;
pub(super) const RX_BUF: u64 = 0x30;
pub(super) const CMD: u64 = 0x37;
pub(super) const RX_BUF_PTR: u64 = 0x38;
pub(super) const INTR_MASK: u64 = 0x3c;
pub(super) const INTR_STATUS: u64 = 0x3e;
pub(super) const TX_CONFIG: u64 = 0x40;
pub(super) const RX_CONFIG: u64 = 0x44;
pub(super) const RX_MISSED: u64 = 0x4c;
pub(super) const CFG9346: u64 = 0x50;
pub(super) const MULTI_INTR: u64 = 0x5c;
pub(super) const BMSR: u64 = 0x64;
pub(super) const CSCR: u64 = 0x74;
pub(super) const TX_POLL: u64 = 0xd9;
pub(super) const CP_CMD: u64 = 0xe0;
pub(super) const RX_RING: u64 = 0xe4;
pub(super) const TX_THRESH: u64 = 0xec;

pub(super) const CMD_RESET: u8 = 0x10;
pub(super) const CMD_RX: u8 = 0x08;
pub(super) const CMD_TX: u8 = 0x04;
pub(super) const CMD_EMPTY: u8 = 0x01;

pub(super) const INTR_SYSTEM: u16 = 1 << 15;
pub(super) const INTR_RX_FIFO: u16 = 1 << 6;
pub(super) const INTR_LINK: u16 = 1 << 5;
pub(super) const INTR_RX_EMPTY: u16 = 1 << 4;
pub(super) const INTR_TX_ERR: u16 = 1 << 3;
pub(super) const INTR_TX_OK: u16 = 1 << 2;
pub(super) const INTR_RX_ERR: u16 = 1 << 1;
pub(super) const INTR_RX_OK: u16 = 1 << 0;
/// Causes for which the driver polls, and causes that it handles at once.
pub(super) const INTR_RX: u16 = INTR_RX_OK | INTR_RX_ERR | INTR_RX_EMPTY | INTR_RX_FIFO;
pub(super) const INTR_NOT_RX: u16 = INTR_SYSTEM | INTR_LINK | INTR_TX_OK | INTR_TX_ERR;

/// Normal interframe gap, bursts of 1024 bytes.
pub(super) const TX_CONFIG_USUAL: u32 = 3 << 24 | 6 << 8;
/// Thresholds; accept broadcasts and the station's own address.
pub(super) const RX_CONFIG_USUAL: u32 = 5 << 13 | 4 << 8 | 0x0a;
/// 32 KiB of receive buffer. The last frame may continue past the end.
pub(super) const RX_CONFIG_32K_NO_WRAP: u32 = 2 << 11 | 1 << 7;

pub(super) const LOCK: u8 = 0;
pub(super) const UNLOCK: u8 = 0xc0;
/// The wires of the EEPROM, and the mode that gives the driver control of them.
pub(super) const EE_MODE: u8 = 0x80;
pub(super) const EE_SELECT: u8 = 8;
pub(super) const EE_CLOCK: u8 = 4;
pub(super) const EE_IN: u8 = 2;
pub(super) const EE_OUT: u8 = 1;
/// A read: start bit and opcode, before six bits of address.
pub(super) const EE_READ: u16 = 0b110 << 6;
pub(super) const EE_SIGNATURE: u16 = 0x8129;
pub(super) const EE_ADDRESS: u16 = 7;

pub(super) const BMSR_LINK: u16 = 1 << 2;

/// C+ mode: both rings, checksums verified, 64-bit addresses, read multiple.
pub(super) const CP_CMD_USUAL: u16 = 1 << 5 | 1 << 4 | 1 << 3 | 1 << 1 | 1;
pub(super) const POLL_NORMAL: u8 = 1 << 6;

pub(super) const DESCRIPTOR: usize = 16;
pub(super) const OWN: u32 = 1 << 31;
pub(super) const RING_END: u32 = 1 << 30;
pub(super) const FIRST: u32 = 1 << 29;
pub(super) const LAST: u32 = 1 << 28;
pub(super) const LARGE_SEND: u32 = 1 << 27;
pub(super) const MSS_SHIFT: u32 = 16;
pub(super) const MSS_MAX: u16 = 0x7ff;
pub(super) const IP_SUM: u32 = 1 << 18;
pub(super) const UDP_SUM: u32 = 1 << 17;
pub(super) const TCP_SUM: u32 = 1 << 16;
pub(super) const RX_ERROR: u32 = 1 << 20 | 1 << 22;
pub(super) const RX_LENGTH: u32 = 0x1fff;
pub(super) const RX_UDP_FAIL: u32 = 1 << 14;
pub(super) const RX_TCP_FAIL: u32 = 1 << 13;

/// Plain mode: the frame was sent; it was not (underrun, aborted).
pub(super) const TX_OK: u32 = 1 << 15;
pub(super) const TX_UNDERRUN: u32 = 1 << 14;
pub(super) const TX_ABORTED: u32 = 1 << 30;
/// FIFO threshold before a frame goes out: 256 bytes.
pub(super) const TX_THRESHOLD: u32 = 8 << 16;
pub(super) const RX_STATUS_OK: u32 = 1;

/// The check sequence after a received frame.
pub(super) const FCS: usize = 4;
