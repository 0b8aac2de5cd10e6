//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, Delay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::E1000e;
use super::registers::{self as r, cause, ctrl};
use crate::intel::clock::Clock;
use crate::intel::flow::Pause;
use crate::intel::lost::Lost;
use crate::intel::nvm::Nvm;
use crate::intel::phy;
use crate::intel::statistics::OctetsRead;
use crate::intel::transmit::Transmit;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    phy: phy::State,
    nvm: Nvm,
    transmit: [Transmit; r::QUEUES],
    starved: [bool; r::QUEUES],
    link_up: bool,
    interrupts: Interrupts,
    receive_delay: Delay,
    delayed: u32,
    completions: [CompletionDelay; r::QUEUES],
    clock: Clock<40>,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for E1000e {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt: filter and hash from registers; others are empty between batches, or configuration.
        let Self {
            model: _,
            rom: _,
            function,
            registers,
            phy,
            nvm,
            filter: _,
            rss: _,
            transmit,
            looped: _,
            pause: _,
            lost,
            octets: _,
            starved,
            link_up,
            interrupts,
            receive_delay,
            delayed,
            completions,
            clock,
            stalls: _,
            generation: _,
        } = self;
        let state = State {
            registers: registers.save(),
            phy: lost.map_or_else(|| phy.save(), |lost| lost.phy(phy)),
            nvm: nvm.clone(),
            transmit: *transmit,
            starved: *starved,
            link_up: *link_up,
            interrupts: interrupts.clone(),
            receive_delay: *receive_delay,
            delayed: *delayed,
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
        if !state.nvm.fits() {
            return impossible("NVM");
        }
        if state.transmit.iter().any(|transmit| transmit.next > 0xffff) {
            return impossible("position in a ring");
        }
        if !state.interrupts.fits(&self.interrupts) || !state.completions.iter().all(CompletionDelay::fits) {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State {
            registers: _,
            phy: _,
            nvm,
            transmit,
            starved,
            link_up,
            interrupts,
            receive_delay,
            delayed,
            completions,
            clock,
            function: _,
        } = state;
        (self.registers, self.phy, self.nvm) = (registers, phy, nvm);
        (self.transmit, self.starved, self.link_up) = (transmit, starved, link_up);
        self.filter.load(&self.registers);
        self.rss.forget();
        (self.interrupts, self.receive_delay, self.delayed) = (interrupts, receive_delay, delayed);
        (self.completions, self.clock) = (completions, clock);
        self.stalls = [None; 2 * r::QUEUES];
        self.pause = Pause::default();
        self.lost = None;
        self.generation = self.generation.wrapping_add(1);
        self.prepare_loopback();
        Ok(())
    }
}

impl E1000e {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the rings.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        self.starved = [false; r::QUEUES];
        self.octets = OctetsRead::default();
        (0..r::QUEUES as u16).for_each(|queue| cx.out.work.insert(queue));
        self.interrupts.show(&mut self.function, cx);
        self.time_passed(cx);
    }

    /// The rings are lost: has the driver reset the chip. Until then it is as after a reset, but for interrupts: the driver's mask and
    /// routes are lost.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        let cable = self.lost.map_or_else(|| self.phy.is_plugged(), |lost| lost.cable);
        self.reset_chip(cx);
        self.interrupts.show(&mut self.function, cx);
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
        self.interrupts.enable((cause::LSC | cause::OTHER).into());
        self.cause(cause::LSC, cx);
        if self.has_vectors() {
            // The driver finds the cause in ICR, whichever message brings it there.
            (0..r::VECTORS).for_each(|vector| cx.out.messages.insert(vector));
        }
        cx.out.wake_by(self.lost.map_or(cx.now, |lost| lost.due()));
    }
}
