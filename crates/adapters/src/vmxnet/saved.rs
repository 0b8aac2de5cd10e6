//! Saved state.

use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_adapter::{Context, Time};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::Vmxnet;
use super::filter::Filter;
use super::interrupts::Tidings;
use super::receive::Receive;
use super::shared::Setup;
use super::transmit::Transmit;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    setup: Option<Setup>,
    pinned: bool,
    receive: Receive,
    /// The first transmit entry that is not completed.
    transmit: u32,
    quiet: bool,
    recheck: Option<Time>,
    completions: CompletionDelay,
    filter: Filter,
    interrupts: Interrupts,
    tidings: Tidings,
    link_up: bool,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl State {
    fn check(&self, own: &Vmxnet) -> Result<(), RestoreError> {
        let impossible = |what| Err(RestoreError::Impossible(what));
        let stands = match &self.setup {
            Some(setup) => {
                let [receive, pages] = self.receive.next;
                setup.valid() && setup.has([receive, pages, self.transmit])
            }
            None => !self.pinned && self.receive.next == [0; 2] && self.transmit == 0,
        };
        if !stands || !self.receive.fits() {
            return impossible("rings");
        }
        let enhanced = own.model.is_enhanced() || self.setup.is_none_or(|setup| setup.frags == 0);
        if !enhanced || !self.filter.valid() {
            return impossible("filter, or what is on");
        }
        let tidings = Vmxnet::tidings_fit(&self.tidings, &self.interrupts);
        if !tidings || !self.completions.fits() {
            return impossible("interrupts");
        }
        Ok(())
    }
}

impl Snapshot for Vmxnet {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt, empty between batches, or configuration.
        let Self {
            model: _,
            rom: _,
            mac: _,
            function,
            registers,
            setup,
            pinned,
            transmit,
            receive,
            filter,
            interrupts,
            tidings,
            link_up,
            stalls: _,
            generation: _,
        } = self;
        let state = State {
            registers: registers.save(),
            setup: *setup,
            pinned: *pinned,
            receive: *receive,
            transmit: transmit.position(),
            quiet: transmit.quiet,
            recheck: transmit.recheck,
            completions: transmit.completions,
            filter: *filter,
            interrupts: interrupts.clone(),
            tidings: *tidings,
            link_up: *link_up,
            function: function.save().to_bytes(),
        };
        encode(self.model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        state.check(self)?;
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State {
            registers: _,
            setup,
            pinned,
            receive,
            transmit,
            quiet,
            recheck,
            completions,
            filter,
            interrupts,
            tidings,
            link_up,
            function: _,
        } = state;
        let len = setup.map_or(0, |setup| setup.transmit.len);
        self.transmit = Transmit::at(transmit, len);
        (self.transmit.quiet, self.transmit.recheck, self.transmit.completions) = (quiet, recheck, completions);
        (self.registers, self.setup, self.pinned, self.receive) = (registers, setup, pinned, receive);
        (self.filter, self.interrupts, self.tidings, self.link_up) = (filter, interrupts, tidings, link_up);
        self.stalls = [None; 2];
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }
}

impl Vmxnet {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the rings.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        cx.out.work.insert(0);
        self.offer_room(cx);
        self.interrupts.show(&mut self.function, cx);
        self.time_passed(cx);
    }
}
