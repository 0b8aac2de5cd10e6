//! Saved state.

use nicety_adapter::interrupts::{CompletionDelay, Interrupts, ReceiveModeration};
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_adapter::{Context, Time};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::Rtl8139;
use super::eeprom;
use super::receive::RETRY_MIN_NS;
use super::registers as r;
use super::ring;
use super::slots::Slots;
use super::tally::Tally;
use super::timer::Timer;
use super::transmit::Transmit;
use crate::microwire::Microwire;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    eeprom: Microwire,
    tally: Tally,
    timer: Timer,
    /// The next descriptor to fetch, and whether it belongs to an abandoned packet.
    transmit: (u32, bool),
    slot: u32,
    /// The next descriptor to fill, and the ring's size.
    receive: (u32, u32),
    starved: Option<Time>,
    cable: bool,
    lost: bool,
    interrupts: Interrupts,
    completions: CompletionDelay,
    moderation: ReceiveModeration,
    carried: u64,
    function: Vec<u8>,
}

impl Version for State {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

/// The registers of the driver: while the transmitter seeks its position, CR.TE is off and should be on.
fn saved_registers(registers: &r::Bank, seeks: bool) -> Vec<u32> {
    let mut registers = registers.clone();
    if seeks {
        registers[r::CR] |= r::cr::TE;
    }
    registers.save()
}

impl Snapshot for Rtl8139 {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt: empty between batches, configuration, or learned again.
        let Self {
            model: _,
            rom: _,
            function,
            registers,
            eeprom,
            tally,
            timer,
            transmit,
            transmit_size: _,
            slots,
            next,
            size,
            looped: _,
            starved,
            retry_ns: _,
            cable,
            lost,
            interrupts,
            completions,
            moderation,
            carried,
            unread: _,
            unshown: _,
            tell_unshown: _,
            stalls: _,
            seeks,
            meets: _,
            next_look: _,
            generation: _,
        } = self;
        let state = State {
            registers: saved_registers(registers, *seeks),
            eeprom: eeprom.clone(),
            tally: *tally,
            timer: *timer,
            transmit: (transmit.next, transmit.skipping),
            slot: slots.next,
            receive: (*next, *size),
            starved: *starved,
            cable: *cable,
            lost: *lost,
            interrupts: interrupts.clone(),
            completions: *completions,
            moderation: *moderation,
            carried: *carried,
            function: function.save().to_bytes(),
        };
        encode(self.model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        if !state.eeprom.fits(eeprom::WORDS) {
            return impossible("EEPROM");
        }
        let (next, size) = state.receive;
        let places =
            state.transmit.0 < ring::MAX && state.slot < 4 && next < ring::MAX && (1..=ring::MAX).contains(&size);
        if !places || !registers[r::CBR].is_multiple_of(4) {
            return impossible("position in a ring");
        }
        if !state.interrupts.fits(&self.interrupts) || !state.completions.fits() {
            return impossible("interrupts");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State {
            registers: _,
            eeprom,
            tally,
            timer,
            transmit: (fetch, skipping),
            slot,
            receive: _,
            starved,
            cable,
            lost,
            interrupts,
            completions,
            moderation,
            carried,
            function: _,
        } = state;
        (self.registers, self.eeprom, self.tally, self.timer) = (registers, eeprom, tally, timer);
        (self.transmit, self.slots) = (Transmit::at(fetch, skipping), Slots::at(slot));
        (self.next, self.size, self.transmit_size) = (next, size, ring::MAX);
        (self.starved, self.retry_ns) = (starved, RETRY_MIN_NS);
        (self.cable, self.lost, self.carried) = (cable, lost, carried);
        (self.interrupts, self.completions, self.moderation) = (interrupts, completions, moderation);
        // The driver's reads of ISR are not saved: it may have seen none of the frames that it has not taken.
        (self.unread, self.unshown, self.tell_unshown) = (1, true, None);
        self.stalls = [None; 2];
        (self.seeks, self.meets, self.next_look) = (false, None, None);
        self.generation = self.generation.wrapping_add(1);
        self.prepare_loopback();
        Ok(())
    }
}

impl Rtl8139 {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks rings and slots.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        self.starved = None;
        cx.out.work.insert(0);
        self.interrupts.show(&mut self.function, cx);
        self.tell_unshown_later(cx);
        self.time_passed(cx);
    }
}
