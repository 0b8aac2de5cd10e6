//! Saved state. Deadlines are times of this process and do not travel: what waits for one is saved as if it had come.

use nicety_adapter::snapshot::{RestoreError, Snapshot, decode, encode};
use nicety_adapter::{Adapter, Context, Event, Time};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::eeprom::Eeprom;
use super::phy::Phy;
use super::registers::{self as r, cause};
use super::transmit::Transmit;
use super::{E1000, MODEL};
use crate::patience::Patience;

const VERSION: u16 = 1;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    buffer: Option<Vec<u32>>,
    io_address: u32,
    phy: Phy,
    eeprom: Eeprom,
    transmit: Transmit,
    resume: u32,
    starved: bool,
    link_up: bool,
    function: Vec<u8>,
}

impl Snapshot for E1000 {
    fn save(&self) -> Vec<u8> {
        // What is left out is made anew: filter from registers, times, what is between batches, what is configured.
        let Self {
            model: _,
            rom: _,
            function,
            registers,
            buffer,
            io_address,
            phy,
            eeprom,
            filter: _,
            transmit,
            looped: _,
            resume,
            starved,
            link_up,
            asserted: _,
            announce: _,
            quiet_until: _,
            receive_due,
            receive_last: _,
            completions,
            stalls: _,
            generation: _,
        } = self;
        let mut registers = registers.to_vec();
        if receive_due.is_some() {
            registers[r::ICR] |= cause::RXT0;
        }
        if completions.due().is_some() {
            registers[r::ICR] |= cause::TXDW;
        }
        let mut function = function.clone();
        function.set_intx(registers[r::ICR] & registers[r::IMS] != 0);
        let state = State {
            registers,
            buffer: buffer.clone(),
            io_address: *io_address,
            phy: phy.clone(),
            eeprom: eeprom.clone(),
            transmit: *transmit,
            resume: *resume,
            starved: *starved,
            link_up: *link_up,
            function: function.save().to_bytes(),
        };
        encode(self.model.name, VERSION, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(MODEL.name, VERSION, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let legal = |(slot, &value): (usize, &u32)| value & !r::entry(slot).storable() == 0;
        if state.registers.len() != r::SLOTS || !state.registers.iter().enumerate().all(legal) {
            return impossible("registers");
        }
        if state.buffer.as_ref().is_some_and(|buffer| buffer.len() != 0x4000) {
            return impossible("packet buffer");
        }
        if !state.phy.fits(self.model.phy) {
            return impossible("PHY");
        }
        if !state.eeprom.fits() {
            return impossible("EEPROM");
        }
        if state.transmit.next > 0xffff || state.resume > nicety_adapter::PACKET_BYTES {
            return impossible("position in a ring");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State { registers, buffer, io_address, phy, eeprom, transmit, resume, starved, link_up, function: _ } =
            state;
        self.registers = registers.into_boxed_slice();
        (self.buffer, self.io_address, self.phy, self.eeprom) = (buffer, io_address, phy, eeprom);
        (self.transmit, self.resume, self.starved, self.link_up) = (transmit, resume, starved, link_up);
        self.filter.load(&self.registers);
        self.asserted = self.registers[r::ICR] & self.registers[r::IMS] != 0;
        self.announce = true;
        (self.quiet_until, self.receive_due, self.receive_last) = (Time::ZERO, None, None);
        self.completions = Patience::default();
        self.stalls = [None; 2];
        self.generation = self.generation.wrapping_add(1);
        self.prepare_loopback();
        Ok(())
    }
}

impl E1000 {
    /// Goes on from a restored state: shows the line, tells what waited, looks at the ring.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        if self.starved || self.resume != 0 {
            self.starved = false;
            self.notice(Event::BacklogDropped, cx);
        }
        cx.out.work.insert(0);
        self.time_passed(cx);
    }
}
