//! Register accesses: the masks of the table, and their side effects (82576 datasheet, chapter 8).

use nicety_adapter::Context;

use super::Igb;
use super::registers::{self as r, Place, cause, ctrl, dctl, eecd, swsm, tctl};
use super::transmit::forget_fetched;
use crate::intel::eeprom;
use crate::intel::fault;
use crate::intel::flow::Pause;
use crate::intel::statistics::OctetsRead;

/// CTRL: the driver disables DMA (8.2.1: GIO Master Disable).
const MASTER_DISABLE: u32 = 1 << 2;
/// STATUS: DMA is possible (8.2.2: GIO Master Enable Status).
const MASTER_ENABLED: u32 = 1 << 19;
/// STATUS: the PHY was reset; software clears it.
const PHY_RESET: u32 = 1 << 10;
/// CTRL_EXT: read the NVM again, clears itself.
const NVM_RESET: u32 = 1 << 13;

impl Igb {
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
            r::ICR => return self.read_causes(cx),
            r::ICS => return self.shown_causes(),
            r::IMS | r::IMC => return self.causes.enabled() as u32,
            r::EICR => return self.read_extended(cx),
            r::EICS => return self.extended.pending() as u32,
            r::EIMS | r::EIMC => return self.extended.enabled() as u32,
            r::STATUS => return self.status(),
            r::EECD => {
                let granted = if stored & eeprom::REQ != 0 { eeprom::GNT } else { 0 };
                // No device answers on the wires: they are pulled up, so a status read returns "busy".
                return stored | eeprom::PRES | eecd::AUTO_RD | eecd::SIZE | eeprom::DO | granted;
            }
            r::SWSM => self.registers[r::SWSM] |= swsm::SMBI,
            r::FRTIMER => return (cx.now.0 / 1000) as u32,
            r::SYSTIML => return self.clock.read_low(cx.now),
            r::SYSTIMH => return self.clock.high(),
            r::TXSTMPH => self.registers[r::TSYNCTXCTL] &= !1,
            // Linux never reads the second one: igb_ptp_rx_rgtstamp in its igb_ptp.c.
            r::RXSTMPH | r::RXSATRH => self.registers[r::TSYNCRXCTL] &= !1,
            name => {
                if let Some(octets) = self.octets.read(&mut self.registers, name) {
                    return octets;
                }
            }
        }
        // SWSM: the value before the read took the semaphore.
        if place.name == r::SWSM { stored } else { self.registers.read(place) }
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        let old = self.registers.write(place, value);
        match place.name {
            r::IODATA => self.write_region(r::WINDOW, self.io_address(), &value.to_le_bytes(), cx),
            r::TDT => cx.out.work.insert(place.index as u16),
            r::RDT => self.offer_room(1 << place.index, cx),
            r::RDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.offer_room(1 << place.index, cx);
            }
            r::ICR => self.clear_causes(value, cx),
            r::ICS => self.cause(value, cx),
            r::IMS => self.enable_causes(value, cx),
            r::IMC => {
                self.causes.disable(value.into());
                self.settle(cx);
            }
            r::EICR => self.clear_extended(value, cx),
            r::EICS => self.raise_extended(value, cx),
            r::EIMS => self.enable_extended(value, cx),
            r::EIMC => {
                self.extended.disable(value.into());
                self.settle(cx);
            }
            r::EIAC | r::EIAM | r::GPIE => self.mode_written(cx),
            r::EITR => self.set_throttle(place.index, value, cx),
            r::IVAR => self.route(place.index, old, cx),
            r::IVAR_MISC => self.settle(cx),
            r::CTRL => self.write_ctrl(old, value, cx),
            r::STATUS => self.registers[r::STATUS] = old & (value | !PHY_RESET),
            r::CTRL_EXT if value & NVM_RESET != 0 => {
                self.registers[r::CTRL_EXT] &= !NVM_RESET;
                self.load_address();
            }
            r::EERD => self.read_nvm(value),
            r::MDIC => self.write_mdic(value, cx),
            // The rings of a lost chip are not the driver's.
            r::RCTL | r::TCTL if self.lost.is_some() => self.registers[place.name] &= !tctl::EN,
            r::RCTL => {
                self.prepare_loopback();
                self.offer_room(!0, cx);
            }
            r::RXDCTL => self.offer_room(1 << place.index, cx),
            r::TCTL if old & tctl::EN != 0 && value & tctl::EN == 0 => {
                (0..r::QUEUES).for_each(|queue| forget_fetched(&mut self.transmit, &self.registers, queue));
            }
            r::TCTL => self.look_at_all_queues(cx),
            r::TXDCTL if value & dctl::ENABLE != 0 => cx.out.work.insert(place.index as u16),
            r::TXDCTL | r::TDH | r::TDBAL | r::TDBAH | r::TDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                forget_fetched(&mut self.transmit, &self.registers, place.index)
            }
            r::RAL | r::RAH | r::RAL2 | r::RAH2 => self.filter.load(&self.registers),
            r::RSSRK | r::MRQC => self.rss.forget(),
            r::TIMINCA => self.clock.set_increment(self.registers[r::TIMINCA], cx.now),
            r::SYSTIML => {
                let high = self.clock.value(cx.now) >> 32 << 32;
                self.clock.set(high | u64::from(value), cx.now);
            }
            r::SYSTIMH => {
                let low = self.clock.value(cx.now) & 0xffff_ffff;
                self.clock.set(u64::from(value) << 32 | low, cx.now);
            }
            r::TIMADJH => {
                let sign = u64::from(value >> 31) << 63;
                let by = u64::from(value & 0x0fff_ffff) << 32 | u64::from(self.registers[r::TIMADJL]);
                self.clock.adjust(sign | by, cx.now);
            }
            _ => {}
        }
    }

    /// Marks all transmit queues as possibly having work.
    pub(super) fn look_at_all_queues(&self, cx: &mut Context<'_>) {
        (0..r::QUEUES as u16).for_each(|queue| cx.out.work.insert(queue));
    }

    fn write_ctrl(&mut self, old: u32, value: u32, cx: &mut Context<'_>) {
        if value & ctrl::PHY_RST != 0 {
            self.phy.reset();
            self.registers[r::STATUS] |= PHY_RESET;
        }
        if value & ctrl::RST != 0 {
            self.reset_chip(cx);
            return;
        }
        if old & !value & MASTER_DISABLE != 0 {
            self.look_at_all_queues(cx);
            self.offer_room(!0, cx);
        }
        self.settle_link(cx);
    }

    /// EERD (8.4.2): completes at once, bit 1; the address is in bits 15:2.
    fn read_nvm(&mut self, value: u32) {
        let address = value >> 2 & 0x3fff;
        self.registers[r::EERD] = value & 0xfffc;
        if value & 1 != 0 {
            let word = if address < 256 { self.eeprom.word(address) } else { 0xffff };
            self.registers[r::EERD] |= u32::from(word) << 16 | 2;
        }
    }

    /// MDIC (8.2.4): one PHY, at address 1.
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

    /// STATUS (8.2.2): full duplex, link, speed, detected speed, whether DMA is possible. This is the chip's first port.
    fn status(&self) -> u32 {
        let control = self.registers[r::CTRL];
        let (detected, duplex) = self.phy.mode();
        let detected = u32::from(detected);
        let speed = if control & ctrl::FRCSPD != 0 { control >> 8 & 3 } else { detected };
        let full = if control & ctrl::FRCDPX != 0 { control & ctrl::FD != 0 } else { duplex };
        let master = if control & MASTER_DISABLE == 0 { MASTER_ENABLED } else { 0 };
        let kept = self.registers[r::STATUS] & PHY_RESET;
        kept | u32::from(full) | u32::from(self.link_up) << 1 | speed << 6 | detected << 8 | master | 1 << 31
    }

    /// Updates the link from cable, PHY and CTRL.SLU, and reports a change.
    pub(super) fn settle_link(&mut self, cx: &mut Context<'_>) {
        let up = self.link_now();
        if std::mem::replace(&mut self.link_up, up) != up {
            self.cause(cause::LSC, cx);
        }
    }

    /// Whether there is a link. The MAC sees the PHY's signal while SLU is set (8.2.1).
    pub(super) fn link_now(&self) -> bool {
        self.phy.link() && self.registers[r::CTRL] & ctrl::SLU != 0
    }

    /// Whether the driver lets the device reach memory: both PCI's bit and the chip's own.
    pub(super) fn may_dma(&self) -> bool {
        self.function.bus_master() && self.registers[r::CTRL] & MASTER_DISABLE == 0
    }

    /// CTRL.RST (8.2.1), and the common part of all other resets: power-on state, except PCI, PHY and NVM.
    pub(super) fn reset_chip(&mut self, cx: &mut Context<'_>) {
        if let Some(lost) = self.lost.take() {
            self.phy.plug(lost.cable);
        }
        // Frames that wait for buffers are lost with them.
        self.offer_room(!0, cx);
        self.clear_chip();
        self.octets = OctetsRead::default();
        self.settle(cx);
    }

    /// The reset itself, without an effect outside the chip.
    pub(super) fn clear_chip(&mut self) {
        self.registers.reset(|region| region == r::WINDOW);
        // Queue 0 is enabled after a reset (8.10.9, 8.12.15).
        self.registers[r::RXDCTL] |= dctl::ENABLE;
        self.registers[r::TXDCTL] |= dctl::ENABLE;
        self.load_address();
        self.clear_interrupts();
        for queue in &mut self.transmit {
            queue.reset();
        }
        self.stalls = Default::default();
        self.pause = Pause::default();
        self.starved = 0;
        self.rss.forget();
        self.clock = Default::default();
        self.link_up = self.link_now();
    }

    /// Loads the permanent address from the NVM into the first receive address (6.2.1).
    fn load_address(&mut self) {
        let [a, b, c, d, e, f] = eeprom::mac(&self.eeprom);
        self.registers[r::RAL] = u32::from_le_bytes([a, b, c, d]);
        self.registers[r::RAH] = u32::from_le_bytes([e, f, 0, 0x80]);
        self.filter.load(&self.registers);
    }
}
