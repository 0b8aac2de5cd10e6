//! PHY and link, CTRL and STATUS, and resets (Intel 317453, 13.4): virtual functions have none of these.

use nicety_adapter::{Context, Registers, Reset};
use nicety_pci::Mode;

use super::{Chip, Interrupting, Link, Mac, Own};
use crate::intel::lost::Lost;
use crate::intel::registers::*;
use crate::intel::statistics::OctetsRead;

/// The region of BAR 0.
const WINDOW: u8 = 0;
/// STATUS: DMA is possible.
const MASTERS: u32 = 1 << 19;

/// Differences between chips with a PHY.
pub trait Wired: Chip {
    /// STATUS: bits that are always set.
    const STATUS: u32;
    /// STATUS: the PHY was reset; software clears it. 0: it has no such bit.
    const PHY_RESET: u32;
    /// Causes that make a driver look for its link, and reset the chip.
    const LOST: u32;

    /// The value that a guest reads from a register with a side effect of this chip's; `None` for other registers. `stored`: its bits in
    /// the bank.
    fn read_own(&mut self, place: &Place, stored: u32, cx: &mut Context<'_>) -> Option<u32>;

    /// Handles a guest's write to such a register, whose value was `old`.
    fn write_own(&mut self, place: &Place, old: u32, value: u32, cx: &mut Context<'_>);

    /// Resets own state that outlives CTRL.RST.
    fn power_off(&mut self) {}

    /// Resets own state and registers. The table's registers have their reset values.
    fn clear_own(&mut self);

    /// The address in the nonvolatile memory, if that is valid.
    fn permanent_address(&self) -> Option<[u8; 6]>;
}

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Wired,
{
    /// Address that IODATA accesses.
    fn io_address(&self) -> u64 {
        u64::from(self.registers[IOADDR] & !3)
    }

    fn write_ctrl(&mut self, old: u32, value: u32, cx: &mut Context<'_>) {
        if value & ctrl::PHY_RST != 0 {
            self.phy.reset();
            self.registers[STATUS] |= Self::PHY_RESET;
        }
        if value & ctrl::RST != 0 {
            self.reset_chip(cx);
            return;
        }
        if old & !value & Self::FACTS.master_disable != 0 {
            self.look_at_all_queues(cx);
            self.offer_room(!0, cx);
        }
        self.settle_link(cx);
    }

    /// MDIC (13.4.7).
    fn write_mdic(&mut self, value: u32, cx: &mut Context<'_>) {
        const INTERRUPT: u32 = 1 << 29;
        let (answer, effect) = self.phy.access(value);
        self.registers[MDIC] = answer;
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

    fn write_tctl(&mut self, old: u32, value: u32, cx: &mut Context<'_>) {
        if old & tctl::EN != 0 && value & tctl::EN == 0 {
            (0..N).for_each(|queue| self.forget_fetched(queue));
        }
        self.look_at_all_queues(cx);
    }

    /// STATUS (13.4.2): full duplex, link, speed, detected speed, whether DMA is possible.
    fn status(&self, stored: u32) -> u32 {
        let control = self.registers[CTRL];
        let (detected, duplex) = self.phy.mode();
        let detected = u32::from(detected);
        let speed = if control & ctrl::FRCSPD != 0 { control >> 8 & 3 } else { detected };
        let full = if control & ctrl::FRCDPX != 0 { control & ctrl::FD != 0 } else { duplex };
        let disable = Self::FACTS.master_disable;
        let masters = if disable != 0 && control & disable == 0 { MASTERS } else { 0 };
        let link = u32::from(full) | u32::from(self.link_up) << 1 | speed << 6 | detected << 8;
        stored | Self::STATUS | link | masters
    }

    /// Updates the link from cable, PHY and CTRL.SLU, and reports a change.
    fn settle_link(&mut self, cx: &mut Context<'_>) {
        let up = self.link_now();
        if std::mem::replace(&mut self.link_up, up) != up {
            self.cause(cause::LSC, cx);
        }
    }

    /// Whether there is a link. The MAC sees the PHY's signal while SLU is set (13.4.1).
    fn link_now(&self) -> bool {
        self.phy.link() && self.registers[CTRL] & ctrl::SLU != 0
    }

    /// CTRL.RST (13.4.1), and the common part of all other resets: power-on state, except PCI, PHY and nonvolatile memory.
    fn reset_chip(&mut self, cx: &mut Context<'_>) {
        if let Some(lost) = self.lost.take() {
            self.phy.plug(lost.cable);
        }
        if Self::FACTS.advanced {
            // Frames that wait for buffers are lost with them.
            self.offer_room(!0, cx);
        }
        self.clear_chip();
        self.octets = OctetsRead::default();
        self.settle(cx);
    }

    /// The reset itself, without an effect outside the chip.
    pub fn clear_chip(&mut self) {
        self.registers.reset(|region| region == WINDOW);
        self.clear_queues();
        self.clear_own();
        self.load_address();
        self.link_up = self.link_now();
    }

    /// Loads the permanent address into the first receive address (5.6.1).
    pub fn load_address(&mut self) {
        if let Some([a, b, c, d, e, f]) = self.permanent_address() {
            self.registers[RAL] = u32::from_le_bytes([a, b, c, d]);
            self.registers[RAH] = u32::from_le_bytes([e, f, 0, 0x80]);
        }
        self.filter.load(&self.registers);
    }

    /// Shows a lost chip's driver its cable plugged in, or not. The driver finds the cause in ICR, whichever message brings it there.
    fn show_cable(&mut self, plugged: bool, cx: &mut Context<'_>) {
        self.phy.plug(plugged);
        self.registers[CTRL] |= ctrl::SLU;
        self.link_up = self.link_now();
        self.interrupts.enable(Self::LOST.into());
        self.cause(Self::LOST, cx);
        if self.function.mode() == Mode::Msix {
            let vectors = self.function.msix().map_or(0, |msix| msix.vectors());
            (0..vectors).for_each(|vector| cx.out.messages.insert(vector));
        }
        cx.out.wake_by(self.lost.map_or(cx.now, |lost| lost.due()));
    }
}

impl<O: Own, const N: usize> Link for Mac<O, N>
where
    Self: Wired,
{
    fn read_other(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        let stored = self.registers.peek(place);
        match place.name {
            IODATA => {
                let mut data = [0; 4];
                self.read_bar(0, self.io_address(), &mut data, cx);
                u32::from_le_bytes(data)
            }
            ICR => self.read_causes(cx),
            ICS => self.peek_causes(),
            IMS => self.interrupts.enabled() as u32,
            STATUS => self.status(stored),
            name => {
                let own = self.read_own(place, stored, cx).or_else(|| self.octets.read(&mut self.registers, name));
                own.unwrap_or_else(|| self.registers.read(place))
            }
        }
    }

    fn write_other(&mut self, place: &Place, old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            IODATA => self.write_bar(0, self.io_address(), &value.to_le_bytes(), cx),
            ICR => self.clear_causes(value, cx),
            ICS => self.cause(value, cx),
            IMS => self.enable_causes(value, cx),
            IMC => {
                self.interrupts.disable(value.into());
                self.settle(cx);
            }
            CTRL => self.write_ctrl(old, value, cx),
            STATUS => self.registers[STATUS] = old & (value | !Self::PHY_RESET),
            MDIC => self.write_mdic(value, cx),
            // The rings of a lost chip are not the driver's.
            RCTL | TCTL if self.lost.is_some() => self.registers[place.name] &= !tctl::EN,
            RCTL => {
                self.prepare_loopback();
                // Of chips without queue enable bits, frames wait while the receiver is off.
                if Self::FACTS.advanced || value & rctl::EN != 0 {
                    self.offer_room(!0, cx);
                }
            }
            TCTL => self.write_tctl(old, value, cx),
            _ => self.write_own(place, old, value, cx),
        }
    }

    fn plug(&mut self, up: bool, cx: &mut Context<'_>) {
        match &mut self.lost {
            Some(lost) => lost.cable = up,
            None => self.phy.plug(up),
        }
        self.settle_link(cx);
    }

    /// Resets everything to the power-on state, except cable and nonvolatile memory.
    fn restart(&mut self, _kind: Reset, cx: &mut Context<'_>) {
        self.phy.reset();
        self.power_off();
        self.registers.reset(|region| region != WINDOW);
        self.reset_chip(cx);
        self.function.reset();
    }

    fn resume(&mut self, cx: &mut Context<'_>) {
        self.starved = 0;
        self.octets = OctetsRead::default();
        self.look_at_all_queues(cx);
        self.interrupts.show(&mut self.function, cx);
        self.time_passed(cx);
    }

    /// Until the driver has reset it, the chip is as after a reset, but for interrupts: the driver's mask and routes are lost.
    fn lose(&mut self, cx: &mut Context<'_>) {
        let cable = self.lost.map_or_else(|| self.phy.is_plugged(), |lost| lost.cable);
        self.reset_chip(cx);
        self.interrupts.show(&mut self.function, cx);
        self.lost = Some(Lost::begin(cable, cx.now));
        self.show_cable(false, cx);
    }

    /// Plugs the cable of a lost chip, or unplugs it, when it is time.
    fn try_again(&mut self, cx: &mut Context<'_>) {
        if let Some(plugged) = self.lost.as_mut().and_then(|lost| lost.look(cx)) {
            self.show_cable(plugged, cx);
        }
    }

    fn is_started(&self) -> bool {
        self.registers[RCTL] & rctl::EN != 0 || self.registers[TCTL] & tctl::EN != 0
    }
}
