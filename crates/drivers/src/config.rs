//! Configuration space, as a function's driver uses it: PCI Local Bus Specification 3.0, sections 6.2.2, 6.7 and 6.8; PCI Bus
//! Power Management 1.2, section 3.2.

use nicety_adapter::{Bus, BusError};

/// The command register.
pub const COMMAND: u16 = 0x04;
/// Command: I/O ports answer.
pub const COMMAND_IO: u16 = 1;
/// Command: memory answers.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Command: bus mastering.
pub const COMMAND_MASTER: u16 = 1 << 2;
/// Command: the line stays low.
pub const COMMAND_NO_INTX: u16 = 1 << 10;

/// Where the first capability's place is.
const CAPABILITIES: u16 = 0x34;
/// The first place where one can be.
const CAPABILITIES_FROM: u8 = 0x40;
/// How many there is room for: a list that is longer is a circle.
const CAPABILITIES_MOST: usize = 48;

/// Power management's ID.
pub const POWER: u8 = 0x01;
/// Its control and status register, from the capability on.
pub const POWER_CONTROL: u16 = 4;
/// The state D3hot there: both bits.
pub const POWER_D3HOT: u16 = 3;
/// There too: D3hot leaves the function as it is.
pub const POWER_NO_SOFT_RESET: u16 = 1 << 3;

/// MSI's ID.
pub const MSI: u8 = 0x05;
/// Where its messages are written to, from the capability on.
pub const MSI_ADDRESS: u16 = 4;
/// Its control register's bit that turns it on.
pub const MSI_ENABLE: u16 = 1;

/// MSI-X's ID.
pub const MSIX: u8 = 0x11;
/// Its control register's bit that turns it on.
pub const MSIX_ENABLE: u16 = 1 << 15;

/// The control register of MSI and of MSI-X, from the capability on.
pub const MESSAGE_CONTROL: u16 = 2;

/// Reads 16 bits.
pub fn read16(bus: &mut dyn Bus, offset: u16) -> Result<u16, BusError> {
    let mut data = [0; 2];
    bus.config_read(offset, &mut data)?;
    Ok(u16::from_le_bytes(data))
}

/// Sets or clears bits, and leaves those beside them.
pub fn set(bus: &mut dyn Bus, offset: u16, bits: u16, on: bool) -> Result<(), BusError> {
    let old = read16(bus, offset)?;
    let new = if on { old | bits } else { old & !bits };
    bus.config_write(offset, &new.to_le_bytes())
}

/// Where the capability with this ID begins; `None` if the function does not have it.
pub fn capability(bus: &mut dyn Bus, id: u8) -> Result<Option<u16>, BusError> {
    let [mut at, _] = read16(bus, CAPABILITIES)?.to_le_bytes();
    for _ in 0..CAPABILITIES_MOST {
        // The lowest two bits are reserved.
        at &= 0xfc;
        if at < CAPABILITIES_FROM {
            break;
        }
        let [kind, next] = read16(bus, at.into())?.to_le_bytes();
        if kind == id {
            return Ok(Some(at.into()));
        }
        at = next;
    }
    Ok(None)
}
