//! Register accesses: the masks of the table, and what reading or writing does beyond them (manual, chapter 13).

use nicety_adapter::Context;

use super::E1000;
use super::eeprom;
use super::registers::{self as r, cause, ctrl, rctl, tctl};

/// Packet buffer memory (13.8.11): 64 KiB at this offset.
const BUFFER_AT: u64 = 0x1_0000;
/// Its dwords.
const BUFFER_DWORDS: usize = 0x4000;
/// Bytes of the memory window.
const WINDOW: u64 = 0x2_0000;

impl E1000 {
    /// Reads a dword of the memory window.
    pub(super) fn read_dword(&mut self, offset: u64, cx: &mut Context<'_>) -> u32 {
        let Some(slot) = r::find(offset) else {
            if (BUFFER_AT..WINDOW).contains(&offset) {
                let at = ((offset - BUFFER_AT) / 4) as usize;
                return self.buffer.as_ref().and_then(|buffer| buffer.get(at)).copied().unwrap_or(0);
            }
            cx.counters.bad_accesses += 1;
            return if offset < WINDOW { 0 } else { !0 };
        };
        let stored = self.registers[slot];
        match slot {
            r::ICR => {
                self.join_completions();
                if self.asserted {
                    self.pause(cx.now);
                }
                let causes = std::mem::take(&mut self.registers[r::ICR]);
                self.settle_line(cx);
                return causes;
            }
            r::ICS => return self.registers[r::ICR],
            r::STATUS => return self.status(),
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                let out = if self.eeprom.data_out() { eeprom::DO } else { 0 };
                return stored | eeprom::PRES | granted | out;
            }
            r::PBA => return stored | 64_u32.saturating_sub(stored & 0xff) << 16,
            // The high half of a counter of octets takes the low half with it (13.7.28).
            r::GORCH | r::GOTCH | r::TORH | r::TOTH => self.registers[slot - 1] = 0,
            _ => {}
        }
        self.registers[slot] = stored & !r::entry(slot).clear;
        stored
    }

    /// Writes a dword of the memory window.
    pub(super) fn write_dword(&mut self, offset: u64, value: u32, cx: &mut Context<'_>) {
        let Some(slot) = r::find(offset) else {
            if (BUFFER_AT..WINDOW).contains(&offset) {
                let buffer = self.buffer.get_or_insert_with(|| vec![0; BUFFER_DWORDS]);
                buffer[((offset - BUFFER_AT) / 4) as usize % BUFFER_DWORDS] = value;
            } else {
                cx.counters.bad_accesses += 1;
            }
            return;
        };
        let write = r::entry(slot).write;
        let old = self.registers[slot];
        match slot {
            r::ICR => self.registers[r::ICR] &= !value,
            r::ICS => self.registers[r::ICR] |= value,
            r::IMS => self.registers[r::IMS] |= value,
            r::IMC => self.registers[r::IMS] &= !value,
            _ => self.registers[slot] = old & !write | value & write,
        }
        match slot {
            r::IMS => {
                if old == 0 {
                    self.pause(cx.now);
                }
                self.settle_line(cx);
            }
            r::ICR | r::ICS | r::IMC => self.settle_line(cx),
            r::TDT => cx.out.work.insert(0),
            r::RDT => self.offer_room(cx),
            r::CTRL => self.write_ctrl(value, cx),
            r::EECD => self.eeprom.drive(value),
            r::EERD => self.read_eeprom(value),
            r::MDIC => self.write_mdic(value, cx),
            r::ITR if value & 0xffff == 0 => {
                self.quiet_until = cx.now;
                self.settle_line(cx);
            }
            r::RDTR if value >> 31 != 0 => self.flush_delay(cx),
            r::RCTL => {
                self.prepare_loopback();
                if value & rctl::EN != 0 {
                    self.offer_room(cx);
                }
            }
            r::TCTL => {
                if old & tctl::EN != 0 && value & tctl::EN == 0 {
                    self.forget_fetched();
                }
                cx.out.work.insert(0);
            }
            r::TDH | r::TDBAL | r::TDBAH | r::TDLEN => self.forget_fetched(),
            _ if (r::RAL0..r::RAL0 + r::RA_DWORDS).contains(&slot) => self.filter.load(&self.registers[..]),
            _ => {}
        }
    }

    /// What was fetched and not completed is nobody's any more: the ring begins at TDH again.
    fn forget_fetched(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.transmit.next = self.registers[r::TDH];
        self.transmit.skipping = false;
    }

    fn write_ctrl(&mut self, value: u32, cx: &mut Context<'_>) {
        if value & ctrl::PHY_RST != 0 {
            self.phy.reset();
        }
        if value & ctrl::RST != 0 {
            self.reset_chip(cx);
            return;
        }
        self.settle_link(cx);
    }

    /// EERD (13.4.4): done at once, bit 4; the address lies in bits 15:8.
    fn read_eeprom(&mut self, value: u32) {
        self.registers[r::EERD] = value & 0xff00;
        if value & 1 != 0 {
            let word = self.eeprom.word(value >> 8 & 0xff);
            self.registers[r::EERD] |= u32::from(word) << 16 | 0x10;
        }
    }

    /// MDIC (13.4.7): one PHY, at address 1.
    fn write_mdic(&mut self, value: u32, cx: &mut Context<'_>) {
        const READY: u32 = 1 << 28;
        const INTERRUPT: u32 = 1 << 29;
        const ERROR: u32 = 1 << 30;
        let (register, address) = ((value >> 16 & 0x1f) as usize, value >> 21 & 0x1f);
        let mut answer = value & 0x2fff_ffff | READY;
        match (address, value >> 26 & 3) {
            (1, 0b10) => answer = answer & !0xffff | u32::from(self.phy.read(register)),
            (1, 0b01) => {
                let effect = self.phy.write(register, value as u16);
                self.prepare_loopback();
                self.settle_link(cx);
                if effect.negotiated && self.link_up {
                    self.cause(cause::LSC, cx);
                }
            }
            _ => answer |= ERROR,
        }
        self.registers[r::MDIC] = answer;
        if value & INTERRUPT != 0 {
            self.cause(cause::MDAC, cx);
        }
    }

    /// STATUS (13.4.2): full duplex, link, speed, what was detected, a 66 MHz slot.
    fn status(&self) -> u32 {
        let control = self.registers[r::CTRL];
        let (detected, duplex) = self.phy.mode();
        let detected = u32::from(detected);
        let speed = if control & ctrl::FRCSPD != 0 { control >> 8 & 3 } else { detected };
        let full = if control & ctrl::FRCDPX != 0 { control & ctrl::FD != 0 } else { duplex };
        u32::from(full) | u32::from(self.link_up) << 1 | speed << 6 | detected << 8 | 1 << 11
    }

    /// Brings the link in step with cable, PHY and CTRL.SLU, and tells of a change.
    pub(super) fn settle_link(&mut self, cx: &mut Context<'_>) {
        let up = self.link_now();
        if std::mem::replace(&mut self.link_up, up) != up {
            self.cause(cause::LSC, cx);
        }
    }

    /// Whether there is a link. The MAC sees the PHY's signal while SLU is set (13.4.1).
    pub(super) fn link_now(&self) -> bool {
        self.phy.link() && self.registers[r::CTRL] & ctrl::SLU != 0
    }

    /// CTRL.RST (13.4.1), and what every other reset does: all but PCI, PHY and EEPROM is as after power-on.
    pub(super) fn reset_chip(&mut self, cx: &mut Context<'_>) {
        self.clear_chip();
        self.settle_line(cx);
    }

    /// The reset itself, which nobody outside needs to hear of.
    pub(super) fn clear_chip(&mut self) {
        for (slot, register) in self.registers.iter_mut().enumerate() {
            *register = r::entry(slot).reset;
        }
        let [a, b, c, d, e, f] = self.eeprom.mac();
        self.registers[r::RAL0] = u32::from_le_bytes([a, b, c, d]);
        self.registers[r::RAL0 + 1] = u32::from_le_bytes([e, f, 0, 0x80]);
        self.eeprom.drive(0);
        self.filter.load(&self.registers[..]);
        self.transmit = super::transmit::Transmit::default();
        self.stalls = [None; 2];
        self.resume = 0;
        self.receive_due = None;
        self.receive_last = None;
        self.completions = crate::patience::Patience::default();
        self.quiet_until = nicety_adapter::Time::ZERO;
        self.generation = self.generation.wrapping_add(1);
        self.link_up = self.link_now();
    }
}
