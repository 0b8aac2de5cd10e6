//! Register accesses: the masks of the table, and their side effects (datasheet, chapter 10); the MSI-X table.

use std::sync::LazyLock;

use nicety_adapter::interrupts::{CompletionDelay, Delay};
use nicety_adapter::{Context, Mappable, PciFace};
use nicety_pci::{Changes, Function, Rom};

use super::E1000e;
use super::registers::{self as r, Place, cause, ctrl, ctrl_ext, rctl, tctl};
use crate::intel::fault;
use crate::intel::flow::Pause;
use crate::intel::nvm;
use crate::intel::pages::{GIGABIT, Pages};
use crate::intel::statistics::OctetsRead;
use crate::intel::transmit::Transmit;
use crate::msix;

/// The BAR of the MSI-X table.
pub(super) const MSIX_BAR: u8 = 3;

static PAGES: LazyLock<Pages> = LazyLock::new(|| Pages::of(&r::M82574, GIGABIT));

impl E1000e {
    /// Reads a part of a region.
    fn read_region(&mut self, region: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let table = self.registers.table();
        let holes = table.read(region, offset, data, |place| self.read_register(place, cx));
        cx.holes(holes, false, table.bar(region), offset, data);
    }

    /// Writes a part of a region. Only whole dwords are writable.
    fn write_region(&mut self, region: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
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
            r::ICS => return self.peek_causes(),
            r::IMS => return self.interrupts.enabled() as u32,
            r::STATUS => return self.status(stored),
            r::EECD => {
                let granted = if stored & nvm::REQ != 0 { nvm::GNT } else { 0 };
                return stored | granted | nvm::PRES | nvm::AUTO_RD | nvm::FLASH;
            }
            r::PBA => return stored | 40_u32.saturating_sub(stored & 0xff) << 16,
            // A read of a clear SMBI takes the semaphore: it reads as set from then on (10.2.3).
            r::SWSM => self.registers[r::SWSM] |= 1,
            r::SYSTIML => return self.clock.read_low(cx.now),
            r::SYSTIMH => return self.clock.high(),
            // The stamp was read, so the next may be taken (10.2.9).
            r::TXSTMPH => self.registers[r::TSYNCTXCTL] &= !1,
            r::RXSTMPH => self.registers[r::TSYNCRXCTL] &= !1,
            name => {
                let octets = self.octets.read(&mut self.registers, name);
                return octets.unwrap_or_else(|| self.registers.read(place));
            }
        }
        stored
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        let old = self.registers.write(place, value);
        match place.name {
            r::IODATA => self.write_region(r::WINDOW, self.io_address(), &value.to_le_bytes(), cx),
            // PHYRA: a written zero clears it; only the PHY's reset sets it.
            r::STATUS => self.registers[r::STATUS] &= old,
            r::IMS => self.enable_causes(value, cx),
            r::IMC => {
                self.interrupts.disable(value.into());
                self.settle(cx);
            }
            r::ICR => self.write_causes(value, cx),
            r::ICS => self.cause(value, cx),
            r::EIAC | r::IAM | r::IVAR => {
                self.route();
                self.settle(cx);
            }
            r::ITR | r::EITR => self.set_throttles(cx),
            r::TDT => cx.out.work.insert(place.index as u16),
            r::RDT => self.offer_room(place.index, cx),
            r::RDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.offer_room(place.index, cx);
            }
            r::CTRL => self.write_ctrl(value, cx),
            r::CTRL_EXT => {
                if value & ctrl_ext::EE_RST != 0 {
                    self.nvm.reload();
                    self.load_address();
                }
                self.route();
                self.settle(cx);
            }
            r::EECD if value & nvm::FLUPD != 0 => self.nvm.commit(),
            r::EERD => self.registers[r::EERD] = self.nvm.read(value),
            r::EEWR => self.registers[r::EEWR] = self.nvm.write(value),
            r::MDIC => self.write_mdic(value, cx),
            r::RDTR if value >> 31 != 0 => self.flush_delay(cx),
            // The rings of a lost chip are not the driver's.
            r::RCTL | r::TCTL if self.lost.is_some() => self.registers[place.name] &= !rctl::EN,
            r::RCTL => {
                self.prepare_loopback();
                if value & rctl::EN != 0 {
                    (0..r::QUEUES).for_each(|queue| self.offer_room(queue, cx));
                }
            }
            r::TCTL => {
                for queue in 0..r::QUEUES {
                    if old & tctl::EN != 0 && value & tctl::EN == 0 {
                        self.forget_fetched(queue);
                    }
                    cx.out.work.insert(queue as u16);
                }
            }
            r::TDH | r::TDBAL | r::TDBAH | r::TDLEN => {
                fault::check_length(&self.registers, place, value, cx);
                self.forget_fetched(place.index);
            }
            r::RAL | r::RAH => self.filter.load(&self.registers),
            r::MRQC | r::RSSRK => self.rss.forget(),
            r::TIMINCA => self.clock.set_increment(value, cx.now),
            r::TIMADJH => {
                self.clock.adjust(u64::from(value) << 32 | u64::from(self.registers[r::TIMADJL]), cx.now);
            }
            _ => {}
        }
    }

    /// Discards descriptors that were fetched and not completed: the ring restarts at TDH.
    fn forget_fetched(&mut self, queue: usize) {
        self.generation = self.generation.wrapping_add(1);
        let head = self.registers.of(r::TDH).get(queue).copied().unwrap_or(0);
        if let Some(transmit) = self.transmit.get_mut(queue) {
            (transmit.next, transmit.skipping) = (head, false);
        }
    }

    fn write_ctrl(&mut self, value: u32, cx: &mut Context<'_>) {
        if value & ctrl::PHY_RST != 0 {
            const PHYRA: u32 = 1 << 10;
            self.phy.reset();
            self.registers[r::STATUS] |= PHYRA;
        }
        if value & ctrl::RST != 0 {
            self.reset_chip(cx);
            return;
        }
        self.settle_link(cx);
    }

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

    /// STATUS: full duplex, link, speed, detected speed, PHYRA, whether DMA is allowed.
    fn status(&self, stored: u32) -> u32 {
        let control = self.registers[r::CTRL];
        let (detected, duplex) = self.phy.mode();
        let detected = u32::from(detected);
        let speed = if control & ctrl::FRCSPD != 0 { control >> 8 & 3 } else { detected };
        let full = if control & ctrl::FRCDPX != 0 { control & ctrl::FD != 0 } else { duplex };
        let masters = control & ctrl::MASTER_DISABLE == 0;
        stored | u32::from(full) | u32::from(self.link_up) << 1 | speed << 6 | detected << 8 | u32::from(masters) << 19
    }

    /// Updates the link from cable, PHY and CTRL.SLU, and reports a change.
    pub(super) fn settle_link(&mut self, cx: &mut Context<'_>) {
        let up = self.link_now();
        if std::mem::replace(&mut self.link_up, up) != up {
            self.cause(cause::LSC, cx);
        }
    }

    /// Whether there is a link. The MAC sees the PHY's signal while SLU is set.
    pub(super) fn link_now(&self) -> bool {
        self.phy.link() && self.registers[r::CTRL] & ctrl::SLU != 0
    }

    /// CTRL.RST, and the common part of all other resets: power-on state, except PCI, PHY and flash.
    pub(super) fn reset_chip(&mut self, cx: &mut Context<'_>) {
        if let Some(lost) = self.lost.take() {
            self.phy.plug(lost.cable);
        }
        self.clear_chip();
        self.octets = OctetsRead::default();
        self.set_throttles(cx);
    }

    /// The reset itself, without an effect outside the chip.
    pub(super) fn clear_chip(&mut self) {
        self.registers.reset(|region| region == r::WINDOW);
        self.nvm.reload();
        self.load_address();
        self.transmit = [Transmit::default(); r::QUEUES];
        self.pause = Pause::default();
        self.stalls = [None; 2 * r::QUEUES];
        self.interrupts.reset();
        self.receive_delay = Delay::default();
        self.delayed = 0;
        self.completions = [CompletionDelay::default(); r::QUEUES];
        self.clock = Default::default();
        self.rss.forget();
        self.generation = self.generation.wrapping_add(1);
        self.link_up = self.link_now();
        self.route();
    }

    /// Loads the permanent address from the NVM into the first receive address, if the checksum is right.
    fn load_address(&mut self) {
        if self.nvm.is_valid() {
            let [a, b, c, d, e, f] = self.nvm.mac();
            self.registers[r::RAL] = u32::from_le_bytes([a, b, c, d]);
            self.registers[r::RAH] = u32::from_le_bytes([e, f, 0, 0x80]);
        }
        self.filter.load(&self.registers);
    }
}

impl PciFace for E1000e {
    fn function(&self) -> &Function {
        &self.function
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let changes = self.function.config_write(u64::from(offset), data);
        if changes.intersects(Changes::SOFT_RESET | Changes::FUNCTION_RESET) {
            self.power_on(cx);
        }
        let routes = Changes::INTX | Changes::MSI | Changes::MSIX | Changes::POWER | Changes::BUS_MASTER;
        if changes.intersects(routes) {
            self.mode_changed(cx);
        }
        if changes.intersects(Changes::BUS_MASTER | Changes::POWER) && self.masters() {
            for queue in 0..r::QUEUES {
                cx.out.work.insert(queue as u16);
                self.offer_room(queue, cx);
            }
        }
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::read(&self.function, bar, offset, data);
        }
        self.read_region(self.registers.table().region(bar), offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        if bar == MSIX_BAR {
            return msix::write(&mut self.function, bar, offset, data);
        }
        self.write_region(self.registers.table().region(bar), offset, data, cx);
    }

    fn mappable(&self) -> Option<Mappable> {
        Some(PAGES.part())
    }

    fn doorbells(&self) -> Vec<u32> {
        PAGES.offsets()
    }

    fn shown(&self, words: &mut [u32]) -> bool {
        PAGES.show(&self.registers, words);
        true
    }

    fn rom(&self) -> Option<&Rom> {
        self.rom.as_ref()
    }
}
