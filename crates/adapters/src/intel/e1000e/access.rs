//! Side effects of register accesses that only this chip has (datasheet, chapter 10).

use nicety_adapter::Context;
use nicety_adapter::interrupts::Delay;

use super::E1000e;
use super::registers::{self as r, Place, cause, ctrl_ext};
use crate::intel::eeprom;
use crate::intel::mac::{Interrupting, Wired};
use crate::intel::nvm;

impl Wired for E1000e {
    const STATUS: u32 = 0;
    /// PHYRA.
    const PHY_RESET: u32 = 1 << 10;
    const LOST: u32 = cause::LSC | cause::OTHER;

    fn read_own(&mut self, place: &Place, stored: u32, cx: &mut Context<'_>) -> Option<u32> {
        match place.name {
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                return Some(stored | granted | eeprom::PRES | nvm::AUTO_RD | nvm::FLASH);
            }
            r::PBA => return Some(stored | 40_u32.saturating_sub(stored & 0xff) << 16),
            // A read of a clear SMBI takes the semaphore: it reads as set from then on (10.2.3).
            r::SWSM => self.registers[r::SWSM] |= 1,
            r::SYSTIML => return Some(self.own.clock.read_low(cx.now)),
            r::SYSTIMH => return Some(self.own.clock.high()),
            // The stamp was read, so the next may be taken (10.2.9).
            r::TXSTMPH => self.registers[r::TSYNCTXCTL] &= !1,
            r::RXSTMPH => self.registers[r::TSYNCRXCTL] &= !1,
            _ => return None,
        }
        Some(stored)
    }

    fn write_own(&mut self, place: &Place, _old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::EIAC | r::IAM | r::IVAR => {
                self.route();
                self.settle(cx);
            }
            r::ITR | r::EITR => self.set_throttles(cx),
            r::CTRL_EXT => {
                if value & ctrl_ext::EE_RST != 0 {
                    self.own.nvm.reload();
                    self.load_address();
                }
                self.route();
                self.settle(cx);
            }
            r::EECD if value & nvm::FLUPD != 0 => self.own.nvm.commit(),
            r::EERD => self.registers[r::EERD] = nvm::eerd(value, |address| self.own.nvm.word(address)),
            r::EEWR => self.registers[r::EEWR] = self.own.nvm.write(value),
            r::RDTR if value >> 31 != 0 => self.flush_delay(cx),
            r::TIMINCA => self.own.clock.set_increment(value, cx.now),
            r::TIMADJH => {
                self.own.clock.adjust(u64::from(value) << 32 | u64::from(self.registers[r::TIMADJL]), cx.now);
            }
            _ => {}
        }
    }

    fn clear_own(&mut self) {
        self.own.nvm.reload();
        self.own.receive_delay = Delay::default();
        self.own.delayed = 0;
        self.own.clock = Default::default();
        self.interrupts.reset();
        self.route();
    }

    /// The chip loads no address from a memory whose checksum is wrong.
    fn permanent_address(&self) -> Option<[u8; 6]> {
        self.own.nvm.is_valid().then(|| self.own.nvm.mac())
    }
}
