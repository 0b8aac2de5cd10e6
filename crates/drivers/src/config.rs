//! Configuration space, for drivers of functions: PCI Local Bus Specification 3.0, sections 6.2.2, 6.7 and 6.8; PCI Bus Power
//! Management 1.2, section 3.2.

use nicety_adapter::{Bus, BusError, InterruptKind};

/// The command register.
pub const COMMAND: u16 = 0x04;
/// Command: I/O ports answer.
pub const COMMAND_IO: u16 = 1;
/// Command: memory answers.
pub const COMMAND_MEMORY: u16 = 1 << 1;
/// Command: bus mastering.
pub const COMMAND_MASTER: u16 = 1 << 2;
/// Command: the INTx line stays low.
pub const COMMAND_NO_INTX: u16 = 1 << 10;

/// Offset of the pointer to the first capability.
const CAPABILITIES: u16 = 0x34;
/// Lowest offset of a capability.
const CAPABILITIES_FROM: u8 = 0x40;
/// Capabilities that fit. A longer list is a loop.
const CAPABILITIES_MAX: usize = 48;

/// Power management's ID.
pub const POWER: u8 = 0x01;
/// Its control and status register, relative to the capability.
pub const POWER_CONTROL: u16 = 4;
/// Power state D3hot in that register: both bits.
pub const POWER_D3HOT: u16 = 3;
/// D3hot keeps the function's state. In the same register.
pub const POWER_NO_SOFT_RESET: u16 = 1 << 3;

/// MSI's ID.
pub const MSI: u8 = 0x05;
/// Its message address, relative to the capability.
pub const MSI_ADDRESS: u16 = 4;
/// Enable bit of its control register.
pub const MSI_ENABLE: u16 = 1;

/// MSI-X's ID.
pub const MSIX: u8 = 0x11;
/// Enable bit of its control register.
pub const MSIX_ENABLE: u16 = 1 << 15;

/// The control register of MSI and of MSI-X, relative to the capability.
pub const MESSAGE_CONTROL: u16 = 2;

/// Reads 16 bits.
pub fn read16(bus: &mut dyn Bus, offset: u16) -> Result<u16, BusError> {
    let mut data = [0; 2];
    bus.config_read(offset, &mut data)?;
    Ok(u16::from_le_bytes(data))
}

/// Has the function interrupt by INTx or MSI-X: the enable bits of both, not MSI-X's table.
///
/// # Errors
/// A refused access, or the function lacks MSI-X, or another kind is asked for.
pub fn choose_interrupts(bus: &mut dyn Bus, kind: InterruptKind) -> Result<(), BusError> {
    let msix = capability(bus, MSIX)?;
    set(bus, COMMAND, COMMAND_NO_INTX, kind != InterruptKind::Intx)?;
    if let Some(at) = msix {
        let on = matches!(kind, InterruptKind::Msix(_));
        set(bus, at + MESSAGE_CONTROL, MSIX_ENABLE, on)?;
    }
    match kind {
        InterruptKind::Intx => Ok(()),
        InterruptKind::Msix(_) if msix.is_some() => Ok(()),
        _ => Err(BusError("it does not interrupt in that way".to_owned())),
    }
}

/// Sets or clears bits, and keeps the others.
pub fn set(bus: &mut dyn Bus, offset: u16, bits: u16, on: bool) -> Result<(), BusError> {
    let old = read16(bus, offset)?;
    let new = if on { old | bits } else { old & !bits };
    bus.config_write(offset, &new.to_le_bytes())
}

/// Offset of the capability with this ID; `None` if the function has none.
pub fn capability(bus: &mut dyn Bus, id: u8) -> Result<Option<u16>, BusError> {
    let [mut at, _] = read16(bus, CAPABILITIES)?.to_le_bytes();
    for _ in 0..CAPABILITIES_MAX {
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
