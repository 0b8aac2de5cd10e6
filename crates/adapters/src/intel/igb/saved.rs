//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::{Mode, Saved as SavedFunction};
use serde::{Deserialize, Serialize};

use super::registers::QUEUES;
use super::registers::{self as r, cause, ctrl};
use super::transmit::Advanced;
use super::{Igb, virtual_functions};
use crate::intel::clock::Clock;
use crate::intel::flow::Pause;
use crate::intel::lost::Lost;
use crate::intel::phy;
use crate::intel::statistics::OctetsRead;
use crate::intel::transmit::Transmit;
use crate::microwire::Microwire;

/// ICR.DRSTA: the device was reset (8.8.7).
const RESET_ASSERTED: u32 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    phy: phy::State,
    nvm: Microwire,
    transmit: [Transmit<Advanced>; QUEUES],
    starved: u32,
    link_up: bool,
    causes: Interrupts,
    extended: Interrupts,
    other: u32,
    completions: [CompletionDelay; QUEUES],
    clock: Clock<16>,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 2;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for Igb {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt: filter and hash from registers; others are empty between batches, or configuration.
        let Self {
            model: _,
            rom: _,
            vectors: _,
            function,
            registers,
            phy,
            eeprom,
            filter: _,
            rss: _,
            transmit,
            looped: _,
            pause: _,
            lost,
            octets: _,
            starved,
            link_up,
            causes,
            extended,
            other,
            completions,
            clock,
            stalls: _,
        } = self;
        let state = State {
            registers: registers.save(),
            phy: lost.map_or_else(|| phy.save(), |lost| lost.phy(phy)),
            nvm: eeprom.clone(),
            transmit: transmit.map(|queue| queue.state),
            starved: *starved,
            link_up: *link_up,
            causes: causes.clone(),
            extended: extended.clone(),
            other: *other,
            completions: *completions,
            clock: *clock,
            function: function.save().to_bytes(),
        };
        encode(self.model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        let Some(phy) = self.phy.restored(&state.phy) else {
            return impossible("PHY");
        };
        if !state.nvm.fits(self.model.nvm.size) {
            return impossible("NVM");
        }
        if state.transmit.iter().any(|queue| queue.next > 0xffff) {
            return impossible("position in a ring");
        }
        let interrupts = state.causes.fits(&self.causes) && state.extended.fits(&self.extended);
        if !interrupts || !state.completions.iter().all(CompletionDelay::fits) {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        virtual_functions::bound(&mut self.function);
        let State {
            registers: _,
            phy: _,
            nvm,
            transmit,
            starved,
            link_up,
            causes,
            extended,
            other,
            completions,
            clock,
            function: _,
        } = state;
        (self.registers, self.phy, self.eeprom) = (registers, phy, nvm);
        for (queue, state) in self.transmit.iter_mut().zip(transmit) {
            queue.reset();
            queue.state = state;
        }
        (self.starved, self.link_up, self.clock) = (starved, link_up, clock);
        self.filter.load(&self.registers);
        self.rss.forget();
        (self.causes, self.extended, self.other, self.completions) = (causes, extended, other, completions);
        self.stalls = Default::default();
        self.pause = Pause::default();
        self.lost = None;
        self.prepare_loopback();
        Ok(())
    }
}

impl Igb {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the rings.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        self.starved = 0;
        self.octets = OctetsRead::default();
        self.look_at_all_queues(cx);
        self.causes.show(&mut self.function, cx);
        self.time_passed(cx);
    }

    /// The rings are lost: has the driver reset the chip. Until then it is as after a reset, but for interrupts: the driver's mask and
    /// routes are lost.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        let cable = self.lost.map_or_else(|| self.phy.is_plugged(), |lost| lost.cable);
        self.reset_chip(cx);
        self.causes.show(&mut self.function, cx);
        self.lost = Some(Lost::begin(cable, cx.now));
        self.show_cable(false, cx);
    }

    /// Plugs the cable of a lost chip, or unplugs it, when it is time.
    pub(super) fn try_again(&mut self, cx: &mut Context<'_>) {
        if let Some(plugged) = self.lost.as_mut().and_then(|lost| lost.look(cx)) {
            self.show_cable(plugged, cx);
        }
    }

    fn show_cable(&mut self, plugged: bool, cx: &mut Context<'_>) {
        self.phy.plug(plugged);
        self.registers[r::CTRL] |= ctrl::SLU;
        self.link_up = self.link_now();
        // igb_main.c resets the chip when it finds DRSTA, whichever message brings it there.
        self.causes.enable((cause::LSC | RESET_ASSERTED).into());
        self.cause(cause::LSC | RESET_ASSERTED, cx);
        if self.function.mode() == Mode::Msix {
            (0..self.vectors).for_each(|vector| cx.out.messages.insert(vector));
        }
        cx.out.wake_by(self.lost.map_or(cx.now, |lost| lost.due()));
    }
}
