//! Register accesses: the masks of the table, and their side effects.

use nicety_adapter::bank::{Bank, Part};
use nicety_adapter::{Context, Outbox, Registers};

use super::Rtl8139;
use super::eeprom;
use super::registers::{self as r, Place, Reg, bmcr, cause, cr, cscr, eecr, rcr, tppoll, tsd};

impl Registers for Rtl8139 {
    type Name = Reg;

    fn bank(&self) -> &Bank<Reg> {
        &self.registers
    }

    /// A narrow write leaves the register's other bytes.
    fn written(&self, part: &Part<Reg>, place: &Place, data: &[u8]) -> Option<u32> {
        Some(match place.name {
            r::IMR => part.take(data, self.interrupts.enabled() as u32),
            _ => self.registers.merge(part, data),
        })
    }

    fn read_register(&mut self, place: &Place, cx: &mut Context<'_>) -> u32 {
        let stored = self.registers.read(place);
        match place.name {
            r::ISR => self.read_causes(cx),
            r::IMR => self.interrupts.enabled() as u32,
            r::CR if self.buffer_is_empty() => stored | cr::BUFE,
            r::TCTR => self.timer.count(cx.now),
            r::EECR => {
                let out = stored & eecr::MODE == eecr::PROGRAM && self.eeprom.data_out();
                stored | if out { eecr::DO } else { 0 }
            }
            // Bit 2: the link is down.
            r::MSR => stored | u32::from(!self.link()) << 2,
            r::SUMMARY => self.summary(),
            r::BMSR => {
                let link = self.link() && !std::mem::take(&mut self.lost);
                let negotiated = self.link() && self.registers[r::BMCR] & bmcr::NEGOTIATE != 0;
                stored | u32::from(link) << 2 | u32::from(negotiated) << 5
            }
            // The link partner supports everything, and has negotiated.
            r::ANLPAR if self.link() => 0x45e1,
            r::ANER if self.link() => 1,
            r::CSCR if self.link() => stored | cscr::LINK | cscr::CONNECTED,
            _ => stored,
        }
    }

    fn write_register(&mut self, place: &Place, value: u32, cx: &mut Context<'_>) {
        if self.is_locked(place.name) {
            return;
        }
        let old = match place.name {
            r::TSD if !self.dumps() => return self.write_slot(place.index, value, cx),
            _ => self.registers.write(place, value),
        };
        match place.name {
            r::TPPOLL => self.poll(value, cx),
            r::ISR => self.acknowledge(value, cx),
            r::IMR => self.set_mask(value, cx),
            r::CAPR => self.look_for_room(cx),
            // After a kill the driver is found by these.
            r::CR | r::CPCR | r::TSAD | r::RDSAR | r::RBSTART | r::RCR | r::TCR | r::MAR => {
                cx.out.stalled.insert(Outbox::KEEP);
                self.changed_rarely(place, old, value, cx);
            }
            r::TSD if place.index == 0 && value & r::DUMP != 0 => self.dump_tally(cx),
            r::MPC => self.registers[r::MPC] = 0,
            r::TCTR => {
                self.timer.restart(self.registers[r::TIMERINT], cx.now);
                self.rearm(cx);
            }
            r::TIMERINT => {
                self.timer.aim(value, cx.now);
                self.rearm(cx);
            }
            r::EECR => self.drive_eeprom(value),
            r::BMCR => self.control_phy(value, cx),
            _ => {}
        }
    }
}

impl Rtl8139 {
    fn changed_rarely(&mut self, place: &Place, old: u32, value: u32, cx: &mut Context<'_>) {
        match place.name {
            r::CR => self.command(old, value, cx),
            r::CPCR => self.changed_mode(old, value, cx),
            // TNPDS: in plain mode these are slots 0 and 1.
            r::TSAD if place.index < 2 && self.ring_mode().0 => self.forget_fetched(),
            r::RDSAR => self.begin_receive(),
            r::RCR if (old ^ value) & rcr::RBLEN != 0 => self.begin_receive(),
            r::TCR => self.prepare_loopback(),
            _ => {}
        }
    }

    /// Configuration and BMCR are writable only while the 9346CR allows it. CONFIG5 is always writable (Linux 8139too.c,
    /// rtl8139_set_wol).
    fn is_locked(&self, name: Reg) -> bool {
        let kept = matches!(name, r::CONFIG0 | r::CONFIG1 | r::CONFIG3 | r::CONFIG4 | r::BMCR);
        kept && self.registers[r::EECR] & eecr::MODE != eecr::UNLOCKED
    }

    /// Whether the TSD offset is DTCCR: see the quirks.
    fn dumps(&self) -> bool {
        self.model.rings && (self.ring_mode().0 || !self.transmits())
    }

    /// CR.
    fn command(&mut self, old: u32, value: u32, cx: &mut Context<'_>) {
        if value & cr::RST != 0 {
            return self.reset_chip(cx);
        }
        let on = value & !old;
        if (old ^ value) & cr::TE != 0 {
            self.forget_fetched();
            self.prepare_loopback();
            cx.out.work.insert(0);
        }
        if on & cr::RE != 0 {
            self.begin_receive();
        }
        if (old ^ value) & cr::RE != 0 {
            self.look_for_room(cx);
        }
    }

    /// CPCR.
    fn changed_mode(&mut self, old: u32, value: u32, cx: &mut Context<'_>) {
        if (old ^ value) & r::cpcr::TX != 0 {
            self.forget_fetched();
        }
        if (old ^ value) & r::cpcr::RX != 0 {
            self.begin_receive();
        }
        self.look_for_room(cx);
    }

    /// TPPOLL.
    fn poll(&mut self, value: u32, cx: &mut Context<'_>) {
        if value & tppoll::NORMAL != 0 {
            cx.out.work.insert(0);
        }
        if value & tppoll::SWINT != 0 {
            self.cause(cause::SWINT, cx);
        }
    }

    /// Discards descriptors that were fetched and not completed: rings and slots start anew.
    pub(super) fn forget_fetched(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        (self.transmit, self.slots) = Default::default();
        self.transmit_size = super::ring::MAX;
    }

    /// Restarts the receiver: at the first descriptor, or at the buffer's start.
    fn begin_receive(&mut self) {
        (self.next, self.size) = (0, super::ring::MAX);
        self.registers[r::CBR] = 0;
        self.registers[r::CAPR] = 0xfff0;
    }

    /// DTCCR: writes the counters to memory at once.
    fn dump_tally(&mut self, cx: &mut Context<'_>) {
        if !self.function.bus_master() {
            return;
        }
        let address = self.registers.of(r::TSD);
        let address = u64::from(address[1]) << 32 | u64::from(address[0] & !0x3f);
        if cx.memory.write(address, &self.tally.dump()).is_err() {
            let place = self.registers.table().error_place(r::TSD, 0);
            cx.guest_error(place, address, "an address in guest memory for the tally counters (DTCCR)");
        }
        self.registers[r::TSD] &= !r::DUMP;
    }

    /// TSAD at 0x60: some status bits of each slot.
    fn summary(&self) -> u32 {
        let bit =
            |slot: usize, mask: u32, at: usize| u32::from(self.registers.of(r::TSD)[slot] & mask != 0) << (at + slot);
        let slot = |n| bit(n, tsd::OWN, 0) | bit(n, tsd::TABT, 4) | bit(n, tsd::TUN, 8) | bit(n, tsd::TOK, 12);
        (0..4).map(slot).sum()
    }

    /// The 9346CR.
    fn drive_eeprom(&mut self, value: u32) {
        self.eeprom.drive(eeprom::wires(value));
        if value & eecr::MODE == eecr::AUTOLOAD {
            self.load_eeprom();
            self.registers[r::EECR] = 0;
        }
    }

    /// Loads the permanent address from the EEPROM.
    pub(super) fn load_eeprom(&mut self) {
        (self.registers[r::IDR0], self.registers[r::IDR4]) = eeprom::address(&self.eeprom);
    }

    /// Whether there is a link.
    pub(super) fn link(&self) -> bool {
        self.cable
    }

    /// Changes the cable's state.
    pub(super) fn plug(&mut self, cable: bool, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.cable, cable) != cable {
            self.lost |= !cable;
            self.tell_link(cx);
        }
    }

    fn tell_link(&mut self, cx: &mut Context<'_>) {
        self.registers[r::CSCR] |= cscr::CHANGED;
        self.cause(cause::LINK, cx);
    }

    /// BMCR: a reset, or a new negotiation, completes at once.
    fn control_phy(&mut self, value: u32, cx: &mut Context<'_>) {
        if value & bmcr::RST != 0 {
            self.registers[r::BMCR] = bmcr::RESET;
        }
        let begins = value & (bmcr::RST | bmcr::RESTART) != 0 && self.registers[r::BMCR] & bmcr::NEGOTIATE != 0;
        if begins && self.link() {
            self.tell_link(cx);
        }
    }
}
