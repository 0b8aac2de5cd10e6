//! Register accesses: the masks of the table, and their side effects (manual, chapter 13).

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, Delay};

use super::E1000;
use super::registers::{self as r, Place, cause, ctrl, ctrl_ext, rctl, tctl};
use crate::intel::eeprom;
use crate::intel::fault;
use crate::intel::flow::Pause;
use crate::intel::statistics::OctetsRead;
use crate::intel::transmit::Transmit;

impl E1000 {
    /// The region of a BAR.
    pub(super) fn region(&self, bar: u8) -> u8 {
        self.registers.table().region(bar)
    }

    /// Reads a part of a region.
    pub(super) fn read_region(&mut self, region: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let table = self.registers.table();
        let holes = table.read(region, offset, data, |place| self.read_register(place, cx));
        cx.holes(holes, false, table.bar(region), offset, data);
    }

    /// Writes a part of a region. Only whole dwords are writable.
    pub(super) fn write_region(&mut self, region: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let table = self.registers.table();
        let holes = table.write(region, offset, data, |place, value| self.write_register(place, value, cx));
        cx.holes(holes, true, table.bar(region), offset, data);
    }

    /// Address that IODATA accesses.
    fn io_address(&self) -> u64 {
        u64::from(self.registers[r::IOADDR] & !3)
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        let stored = self.registers.peek(place);
        match place.name {
            r::IODATA => {
                let mut data = [0; 4];
                self.read_region(r::WINDOW, self.io_address(), &mut data, cx);
                return u32::from_le_bytes(data);
            }
            r::PBM => return self.buffer.as_ref().and_then(|buffer| buffer.get(place.index)).copied().unwrap_or(0),
            r::ICR => return self.read_causes(cx),
            r::ICS => return self.interrupts.pending() as u32,
            r::IMS => return self.interrupts.enabled() as u32,
            r::STATUS => return self.status(),
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                let out = if self.eeprom.data_out() { eeprom::DO } else { 0 };
                return stored | eeprom::PRES | granted | out;
            }
            r::PBA => return stored | 64_u32.saturating_sub(stored & 0xff) << 16,
            name => {
                if let Some(octets) = self.octets.read(&mut self.registers, name) {
                    return octets;
                }
            }
        }
        self.registers.read(place)
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        let old = self.registers.write(place, value);
        match place.name {
            r::IODATA => self.write_region(r::WINDOW, self.io_address(), &value.to_le_bytes(), cx),
            r::PBM => self.write_buffer(place.index, value),
            r::IMS => self.enable_causes(value, cx),
            r::IMC => {
                self.interrupts.disable(value.into());
                self.settle_line(cx);
            }
            r::ICR => self.clear_causes(value, cx),
            r::ICS => self.cause(value, cx),
            r::TDT => cx.out.work.insert(0),
            r::RDT => self.offer_room(cx),
            r::RDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.offer_room(cx);
            }
            r::CTRL => self.write_ctrl(value, cx),
            r::CTRL_EXT if value & ctrl_ext::EE_RST != 0 => self.load_address(),
            r::EECD => self.eeprom.drive(eeprom::wires(value)),
            r::EERD => self.read_eeprom(value),
            r::MDIC => self.write_mdic(value, cx),
            r::ITR => self.set_throttle(cx),
            r::RDTR if value >> 31 != 0 => self.flush_delay(cx),
            // The rings of a lost chip are not the driver's.
            r::RCTL | r::TCTL if self.lost.is_some() => self.registers[place.name] &= !rctl::EN,
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
            r::TDH | r::TDBAL | r::TDBAH | r::TDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.forget_fetched();
            }
            r::RAL | r::RAH => self.filter.load(&self.registers),
            _ => {}
        }
    }

    /// Packet buffer memory (13.8.11), allocated at its first write.
    fn write_buffer(&mut self, index: usize, value: u32) {
        let buffer = self.buffer.get_or_insert_with(|| vec![0; r::PACKET_BUFFER_DWORDS]);
        buffer[index % r::PACKET_BUFFER_DWORDS] = value;
    }

    /// Discards descriptors that were fetched and not completed: the ring restarts at TDH.
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

    /// EERD (13.4.4): completes at once, bit 4; the address is in bits 15:8.
    fn read_eeprom(&mut self, value: u32) {
        self.registers[r::EERD] = value & 0xff00;
        if value & 1 != 0 {
            let word = self.eeprom.word(value >> 8 & 0xff);
            self.registers[r::EERD] |= u32::from(word) << 16 | 0x10;
        }
    }

    /// MDIC (13.4.7).
    fn write_mdic(&mut self, value: u32, cx: &mut Context<'_>) {
        const INTERRUPT: u32 = 1 << 29;
        let (answer, effect) = self.phy.access(value);
        self.registers[r::MDIC] = answer;
        if let Some(effect) = effect {
            self.prepare_loopback();
            self.settle_link(cx);
            if effect.negotiated && self.link_up {
                self.cause(cause::LSC, cx);
            }
        }
        if value & INTERRUPT != 0 {
            self.cause(cause::MDAC, cx);
        }
    }

    /// STATUS (13.4.2): full duplex, link, speed, detected speed, a 66 MHz slot.
    fn status(&self) -> u32 {
        let control = self.registers[r::CTRL];
        let (detected, duplex) = self.phy.mode();
        let detected = u32::from(detected);
        let speed = if control & ctrl::FRCSPD != 0 { control >> 8 & 3 } else { detected };
        let full = if control & ctrl::FRCDPX != 0 { control & ctrl::FD != 0 } else { duplex };
        u32::from(full) | u32::from(self.link_up) << 1 | speed << 6 | detected << 8 | 1 << 11
    }

    /// Updates the link from cable, PHY and CTRL.SLU, and reports a change.
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

    /// CTRL.RST (13.4.1), and the common part of all other resets: power-on state, except PCI, PHY and EEPROM.
    pub(super) fn reset_chip(&mut self, cx: &mut Context<'_>) {
        if let Some(lost) = self.lost.take() {
            self.phy.plug(lost.cable);
        }
        self.clear_chip();
        self.octets = OctetsRead::default();
        self.settle_line(cx);
    }

    /// The reset itself, without an effect outside the chip.
    pub(super) fn clear_chip(&mut self) {
        self.registers.reset(|region| region == r::WINDOW);
        self.load_address();
        self.eeprom.drive(0);
        self.transmit = Transmit::default();
        (self.pause, self.lone_read_by) = (Pause::default(), None);
        self.stalls = [None; 2];
        self.interrupts.reset();
        self.receive_delay = Delay::default();
        self.completions = CompletionDelay::default();
        self.generation = self.generation.wrapping_add(1);
        self.link_up = self.link_now();
    }

    /// Loads the permanent address from the EEPROM into the first receive address (5.6.1).
    fn load_address(&mut self) {
        let [a, b, c, d, e, f] = eeprom::mac(&self.eeprom);
        self.registers[r::RAL] = u32::from_le_bytes([a, b, c, d]);
        self.registers[r::RAH] = u32::from_le_bytes([e, f, 0, 0x80]);
        self.filter.load(&self.registers);
    }
}
