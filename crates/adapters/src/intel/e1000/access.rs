//! Side effects of register accesses that only these chips have (manual, chapter 13).

use nicety_adapter::Context;
use nicety_adapter::interrupts::Delay;

use super::E1000;
use super::registers::{self as r, Place, cause, ctrl_ext};
use crate::intel::eeprom;
use crate::intel::mac::Wired;

impl Wired for E1000 {
    /// A 66 MHz slot (13.4.2).
    const STATUS: u32 = 1 << 11;
    const PHY_RESET: u32 = 0;
    const LOST: u32 = cause::LSC;

    fn read_own(&mut self, place: &Place, stored: u32, _cx: &mut Context<'_>) -> Option<u32> {
        Some(match place.name {
            r::PBM => self.own.buffer.as_ref().and_then(|buffer| buffer.get(place.index)).copied().unwrap_or(0),
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                let out = if self.own.eeprom.data_out() { eeprom::DO } else { 0 };
                stored | eeprom::PRES | granted | out
            }
            r::PBA => stored | 64_u32.saturating_sub(stored & 0xff) << 16,
            _ => return None,
        })
    }

    fn write_own(&mut self, place: &Place, _old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::PBM => self.write_buffer(place.index, value),
            r::CTRL_EXT if value & ctrl_ext::EE_RST != 0 => self.load_address(),
            r::EECD => self.own.eeprom.drive(eeprom::wires(value)),
            r::EERD => self.read_eeprom(value),
            r::ITR => self.set_throttle(cx),
            r::RDTR if value >> 31 != 0 => self.flush_delay(cx),
            _ => {}
        }
    }

    fn power_off(&mut self) {
        self.own.buffer = None;
    }

    fn clear_own(&mut self) {
        self.own.eeprom.drive(0);
        self.own.lone_read_by = None;
        self.own.receive_delay = Delay::default();
        self.interrupts.reset();
    }

    fn permanent_address(&self) -> Option<[u8; 6]> {
        Some(eeprom::mac(&self.own.eeprom))
    }
}

impl E1000 {
    /// Packet buffer memory (13.8.11), allocated at its first write.
    fn write_buffer(&mut self, index: usize, value: u32) {
        let buffer = self.own.buffer.get_or_insert_with(|| vec![0; r::PACKET_BUFFER_DWORDS]);
        buffer[index % r::PACKET_BUFFER_DWORDS] = value;
    }

    /// EERD (13.4.4): completes at once, bit 4; the address is in bits 15:8.
    fn read_eeprom(&mut self, value: u32) {
        self.registers[r::EERD] = value & 0xff00;
        if value & 1 != 0 {
            let word = self.own.eeprom.word(value >> 8 & 0xff);
            self.registers[r::EERD] |= u32::from(word) << 16 | 0x10;
        }
    }
}
