//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::{CompletionDelay, Interrupts};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::VirtualFunction;
use super::family::word;
use super::mailbox::Mailbox;
use super::registers::{self as r, QUEUES_MOST, mailbox};
use crate::intel::igb::transmit::Advanced;
use crate::intel::transmit::Transmit;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    mailbox: Mailbox,
    transmit: [Transmit<Advanced>; QUEUES_MOST],
    starved: u32,
    link_up: bool,
    causes: Interrupts,
    completions: [CompletionDelay; QUEUES_MOST],
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for VirtualFunction {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt from registers, or are configuration; the time of an ask is set with the next one.
        let Self {
            model,
            policy: _,
            function,
            registers,
            mailbox,
            asked_at: _,
            is_restored: _,
            checks_tags: _,
            filter: _,
            rss: _,
            transmit,
            starved,
            link_up,
            causes,
            completions,
            stalls: _,
        } = self;
        let state = State {
            registers: registers.save(),
            mailbox: *mailbox,
            transmit: transmit.map(|queue| queue.state),
            starved: *starved,
            link_up: *link_up,
            causes: causes.clone(),
            completions: *completions,
            function: function.save().to_bytes(),
        };
        encode(model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        if !state.mailbox.fits(&registers) {
            return impossible("mailbox");
        }
        if state.transmit.iter().any(|queue| queue.next > 0xffff) {
            return impossible("position in a ring");
        }
        if !state.causes.fits(&self.causes) || !state.completions.iter().all(CompletionDelay::fits) {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State { registers: _, mailbox, transmit, starved, link_up, causes, completions, function: _ } = state;
        (self.registers, self.mailbox) = (registers, mailbox);
        for (queue, state) in self.transmit.iter_mut().zip(transmit) {
            queue.reset();
            queue.state = state;
        }
        (self.starved, self.link_up, self.causes, self.completions) = (starved, link_up, causes, completions);
        self.filter.load(&self.registers);
        self.rss.forget();
        self.stalls = Default::default();
        Ok(())
    }
}

impl VirtualFunction {
    /// Resumes from restored state: sends waiting interrupts, checks the rings, repeats what was asked.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        self.starved = 0;
        self.is_restored = true;
        self.look_at_all_queues(cx);
        self.call_family(cx);
        self.time_passed(cx);
    }

    /// The rings are lost: has the driver reset the function, as after a reset of the physical function. RSTD makes the drivers' watchdogs
    /// read the mailbox (check_for_link in Linux's igbvf/vf.c and ixgbevf/vf.c), and their acknowledgement of a message without CTS
    /// is answered with NACK, after which they reset. The routes and masks of interrupts are lost: one comes from each vector.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        self.offer_room(!0, cx);
        self.clear_but_kept();
        self.registers[r::VMBMEM] = word::CONTROL;
        self.registers[r::V2PMAILBOX] = mailbox::PFSTS | mailbox::RSTD;
        self.mailbox.wait_for_reader();
        if self.function.msix_enabled() {
            (0..r::VECTORS).for_each(|vector| cx.out.messages.insert(vector));
        }
    }
}
