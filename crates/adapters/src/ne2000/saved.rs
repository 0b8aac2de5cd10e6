//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::buffer::Buffer;
use super::dp8390::{Dp8390, Ring};
use super::registers as r;
use super::{ABOUT, Ne2000};

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    causes: Interrupts,
    memory: Vec<u8>,
    starved: bool,
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

impl Snapshot for Ne2000 {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are configuration, or found again.
        let Self { rom: _, function, chip, starved, waiting: _, link_up, broken: _, generation: _ } = self;
        let Dp8390 { registers, causes, buffer, looked: _, unshown: _, busy_until: _, pace: _ } = chip;
        let state = State {
            registers: registers.save(),
            causes: causes.clone(),
            memory: buffer.save(),
            starved: *starved,
            link_up: *link_up,
            function: function.save().to_bytes(),
        };
        encode(ABOUT.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(ABOUT.name, saved)?;
        let mut registers = self.chip.registers.clone();
        registers.restore(&state.registers)?;
        if !state.causes.fits(&self.chip.causes) {
            return Err(RestoreError::Impossible("interrupts"));
        }
        Buffer::fits(&state.memory)?;
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State { registers: _, causes, memory, starved, link_up, function: _ } = state;
        (self.chip.registers, self.chip.causes) = (registers, causes);
        self.chip.buffer.restore(&memory);
        self.chip.restored();
        (self.starved, self.link_up, self.broken) = (starved, link_up, false);
        self.waiting = false;
        self.generation = self.generation.wrapping_add(1);
        Ok(())
    }
}

impl Ne2000 {
    /// Resumes from restored state: shows the line, sends waiting frames, offers room.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        cx.out.work.insert(0);
        self.offer_room(cx);
        self.chip.causes.show(&mut self.function, cx);
        self.settle_line(cx);
    }

    /// The ring's position is lost, and so are its frames. lib8390.c reads both ends of the ring from the chip (ei_receive), so it goes on
    /// with an empty one. A transmission that it waits for is over.
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        if let Some(Ring { start, stop, current, .. }) = self.chip.ring() {
            self.chip.registers[r::BNRY] = if current == start { stop - 1 } else { current - 1 };
        }
        self.chip.registers[r::CR] &= !r::cr::TXP;
        if self.chip.runs() {
            // The state may have been kept while the driver looked at CURR, in page 1. It is back in page 0 when it lets its lock go
            // (lib8390.c, "Things to know"), and acknowledges causes there. In page 1 that would write CURR.
            self.chip.registers[r::CR] &= !(3 << r::cr::PAGE_SHIFT);
        }
        (self.starved, self.waiting) = (false, false);
        self.chip.causes.clear(u128::MAX);
        self.chip.causes.show(&mut self.function, cx);
        // The driver's mask may be newer: it writes none while it transmits. One interrupt more is harmless.
        self.chip.causes.enable((r::isr::PTX | r::isr::PRX).into());
        self.chip.causes.raise(r::isr::PTX.into());
        self.settle_line(cx);
    }
}
