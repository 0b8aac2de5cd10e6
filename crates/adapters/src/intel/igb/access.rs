//! Side effects of register accesses that only this chip has (82576 datasheet, chapter 8).

use nicety_adapter::Context;

use super::registers::{self as r, Place, cause, dctl, eecd, swsm};
use super::{Igb, interrupts};
use crate::intel::eeprom;
use crate::intel::mac::{Interrupting, Wired};
use crate::intel::nvm;

/// CTRL_EXT: read the NVM again, clears itself.
const NVM_RESET: u32 = 1 << 13;
/// ICR.DRSTA: the device was reset (8.8.7).
const RESET_ASSERTED: u32 = 1 << 30;

impl Wired for Igb {
    /// This is the chip's first port (8.2.2).
    const STATUS: u32 = 1 << 31;
    const PHY_RESET: u32 = 1 << 10;
    /// igb_main.c resets the chip when it finds DRSTA.
    const LOST: u32 = cause::LSC | RESET_ASSERTED;

    fn read_own(&mut self, place: &Place, stored: u32, cx: &mut Context<'_>) -> Option<u32> {
        match place.name {
            r::IMC => return Some(self.interrupts.enabled() as u32),
            r::EICR => return Some(self.read_extended(cx)),
            r::EICS => return Some(self.own.extended.pending() as u32),
            r::EIMS | r::EIMC => return Some(self.own.extended.enabled() as u32),
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                // No device answers on the wires: they are pulled up, so a status read returns "busy".
                return Some(stored | eeprom::PRES | eecd::AUTO_RD | eecd::SIZE | eeprom::DO | granted);
            }
            // The value before the read took the semaphore.
            r::SWSM => self.registers[r::SWSM] |= swsm::SMBI,
            r::FRTIMER => return Some((cx.now.0 / 1000) as u32),
            r::SYSTIML => return Some(self.own.clock.read_low(cx.now)),
            r::SYSTIMH => return Some(self.own.clock.high()),
            r::TXSTMPH => self.registers[r::TSYNCTXCTL] &= !1,
            // Linux never reads the second one: igb_ptp_rx_rgtstamp in its igb_ptp.c.
            r::RXSTMPH | r::RXSATRH => self.registers[r::TSYNCRXCTL] &= !1,
            _ => return None,
        }
        Some(stored)
    }

    fn write_own(&mut self, place: &Place, old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::EICR => self.clear_extended(value, cx),
            r::EICS => self.raise_extended(value, cx),
            r::EIMS => self.enable_extended(value, cx),
            r::EIMC => {
                self.own.extended.disable(value.into());
                self.settle(cx);
            }
            r::EIAC | r::EIAM | r::GPIE => self.mode_written(cx),
            r::EITR => self.set_throttle(place.index, value, cx),
            r::IVAR => self.route(place.index, old, cx),
            r::IVAR_MISC => self.settle(cx),
            r::CTRL_EXT if value & NVM_RESET != 0 => {
                self.registers[r::CTRL_EXT] &= !NVM_RESET;
                self.load_address();
            }
            r::EERD => {
                let word = |address| (address < 256).then(|| self.own.eeprom.word(address));
                self.registers[r::EERD] = nvm::eerd(value, word);
            }
            r::TIMINCA => self.own.clock.set_increment(self.registers[r::TIMINCA], cx.now),
            r::SYSTIML => {
                let high = self.own.clock.value(cx.now) >> 32 << 32;
                self.own.clock.set(high | u64::from(value), cx.now);
            }
            r::SYSTIMH => {
                let low = self.own.clock.value(cx.now) & 0xffff_ffff;
                self.own.clock.set(u64::from(value) << 32 | low, cx.now);
            }
            r::TIMADJH => {
                let sign = u64::from(value >> 31) << 63;
                let by = u64::from(value & 0x0fff_ffff) << 32 | u64::from(self.registers[r::TIMADJL]);
                self.own.clock.adjust(sign | by, cx.now);
            }
            _ => {}
        }
    }

    fn clear_own(&mut self) {
        // Queue 0 is enabled after a reset (8.10.9, 8.12.15).
        self.registers[r::RXDCTL] |= dctl::ENABLE;
        self.registers[r::TXDCTL] |= dctl::ENABLE;
        // The chip keeps EITR over CTRL.RST; drivers set it anew.
        (self.interrupts, self.own.extended, self.own.other) = (interrupts::causes(), interrupts::extended(), 0);
        self.own.clock = Default::default();
    }

    fn permanent_address(&self) -> Option<[u8; 6]> {
        Some(eeprom::mac(&self.own.eeprom))
    }
}
