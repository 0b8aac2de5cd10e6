//! The EEPROM, bit by bit (Linux 8139cp.c, read_eeprom).

use nicety_adapter::Bus;
use nicety_frame::Mac;

use super::registers::*;
use super::{read8, write8};
use crate::DriverError;

fn word(bus: &mut dyn Bus, address: u16) -> Result<u16, DriverError> {
    const ENABLED: u8 = EE_MODE | EE_SELECT;
    write8(bus, CFG9346, EE_MODE)?;
    write8(bus, CFG9346, ENABLED)?;
    let command = EE_READ | address;
    for bit in (0..9).rev() {
        let data = if command >> bit & 1 != 0 { EE_IN } else { 0 };
        write8(bus, CFG9346, ENABLED | data)?;
        write8(bus, CFG9346, ENABLED | data | EE_CLOCK)?;
    }
    write8(bus, CFG9346, ENABLED)?;
    let mut word = 0;
    for _ in 0..16 {
        write8(bus, CFG9346, ENABLED | EE_CLOCK)?;
        word = word << 1 | u16::from(read8(bus, CFG9346)? & EE_OUT);
        write8(bus, CFG9346, ENABLED)?;
    }
    write8(bus, CFG9346, LOCK)?;
    Ok(word)
}

/// The permanent address.
pub(super) fn address(bus: &mut dyn Bus) -> Result<Mac, DriverError> {
    if word(bus, 0)? != EE_SIGNATURE {
        return Err(DriverError::Device("has nothing in its EEPROM"));
    }
    let mut mac = Mac([0; 6]);
    for (pair, at) in mac.0.chunks_exact_mut(2).zip(EE_ADDRESS..) {
        pair.copy_from_slice(&word(bus, at)?.to_le_bytes());
    }
    Ok(mac)
}
