//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, Delay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::E1000;
use super::registers::{self as r, cause, ctrl};
use crate::intel::flow::Pause;
use crate::intel::lost::Lost;
use crate::intel::phy;
use crate::intel::statistics::OctetsRead;
use crate::intel::transmit::Transmit;
use crate::microwire::Microwire;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    buffer: Option<Vec<u32>>,
    phy: phy::State,
    eeprom: Microwire,
    transmit: Transmit,
    starved: bool,
    link_up: bool,
    interrupts: Interrupts,
    receive_delay: Delay,
    completions: CompletionDelay,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 3;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for E1000 {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt: filter from registers; others are empty between batches, or configuration.
        let Self {
            model: _,
            rom: _,
            function,
            registers,
            buffer,
            phy,
            eeprom,
            filter: _,
            transmit,
            looped: _,
            pause: _,
            lone_read_by: _,
            lost,
            octets: _,
            starved,
            link_up,
            interrupts,
            receive_delay,
            completions,
            stalls: _,
            generation: _,
        } = self;
        let state = State {
            registers: registers.save(),
            buffer: buffer.clone(),
            phy: lost.map_or_else(|| phy.save(), |lost| lost.phy(phy)),
            eeprom: eeprom.clone(),
            transmit: *transmit,
            starved: *starved,
            link_up: *link_up,
            interrupts: interrupts.clone(),
            receive_delay: *receive_delay,
            completions: *completions,
            function: function.save().to_bytes(),
        };
        encode(self.model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        if state.buffer.as_ref().is_some_and(|buffer| buffer.len() != r::PACKET_BUFFER_DWORDS) {
            return impossible("packet buffer");
        }
        let Some(phy) = self.phy.restored(&state.phy) else {
            return impossible("PHY");
        };
        if !state.eeprom.fits(self.model.eeprom.size) {
            return impossible("EEPROM");
        }
        if state.transmit.next > 0xffff {
            return impossible("position in a ring");
        }
        if !state.interrupts.fits(&self.interrupts) || !state.completions.fits() {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State {
            registers: _,
            buffer,
            phy: _,
            eeprom,
            transmit,
            starved,
            link_up,
            interrupts,
            receive_delay,
            completions,
            function: _,
        } = state;
        (self.registers, self.buffer, self.phy, self.eeprom) = (registers, buffer, phy, eeprom);
        (self.transmit, self.starved, self.link_up) = (transmit, starved, link_up);
        self.filter.load(&self.registers);
        (self.interrupts, self.receive_delay, self.completions) = (interrupts, receive_delay, completions);
        self.stalls = [None; 2];
        (self.pause, self.lone_read_by) = (Pause::default(), None);
        self.lost = None;
        self.generation = self.generation.wrapping_add(1);
        self.prepare_loopback();
        Ok(())
    }
}

impl E1000 {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the ring.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        self.starved = false;
        self.octets = OctetsRead::default();
        cx.out.work.insert(0);
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
        self.interrupts.enable(cause::LSC.into());
        self.cause(cause::LSC, cx);
        cx.out.wake_by(self.lost.map_or(cx.now, |lost| lost.due()));
    }
}
