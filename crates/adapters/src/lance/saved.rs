//! Saved state.

use nicety_adapter::Context;
use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::{Nothing, RestoreError, Snapshot, Version, decode, encode};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::Lance;
use super::eeprom::Eeprom;
use super::interrupts::Tidings;
use super::polling::Polling;
use super::receive::Receive;
use super::registers::{self as r, csr0};
use super::ring::UFLO;
use super::transmit::Transmit;

/// Time between two looks for descriptors of a driver that does not know yet that its rings are lost, in nanoseconds.
const LOOK_NS: u64 = 20_000_000;
/// Most descriptors of a ring in an initialization block.
const RING_MAX: u32 = 512;

#[derive(Serialize, Deserialize)]
struct State {
    registers: Vec<u32>,
    rap: u8,
    prom: [u8; 16],
    /// The first transmit descriptor that is not completed.
    transmit: u32,
    receive: Receive,
    interrupts: Interrupts,
    tidings: Tidings,
    link_up: bool,
    function: Vec<u8>,
    eeprom: Eeprom,
    polling: Polling,
}

impl Version for State {
    const NUMBER: u16 = 2;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Snapshot for Lance {
    fn save(&self) -> Vec<u8> {
        // The omitted fields are rebuilt, empty between batches, or configuration.
        let Self {
            model: _,
            rom: _,
            function,
            registers,
            rap,
            eeprom,
            prom,
            transmit,
            polling,
            receive,
            looped: _,
            link_up,
            interrupts,
            tidings,
            stalls: _,
            // The next process loses the rings anew.
            lost: _,
            generation: _,
        } = self;
        let state = State {
            registers: registers.save(),
            rap: *rap,
            prom: *prom,
            transmit: transmit.position(),
            receive: *receive,
            interrupts: interrupts.clone(),
            tidings: *tidings,
            link_up: *link_up,
            function: function.save().to_bytes(),
            eeprom: eeprom.clone(),
            polling: *polling,
        };
        encode(self.model.about.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let state: State = decode(self.model.about.name, saved)?;
        let impossible = |what| Err(RestoreError::Impossible(what));
        let mut registers = self.registers.clone();
        registers.restore(&state.registers)?;
        if u32::from(state.rap) >= r::FILE {
            return impossible("register address");
        }
        if state.transmit > u32::from(u16::MAX) || state.receive.next > u32::from(u16::MAX) {
            return impossible("position in a ring");
        }
        if !state.receive.fits() || !state.interrupts.fits(&self.interrupts) || !state.tidings.fits() {
            return impossible("interrupts");
        }
        if !state.eeprom.fits() || !state.polling.fits() {
            return impossible("EEPROM or polling");
        }
        let function = SavedFunction::from_bytes(&state.function).map_err(|_| RestoreError::Damaged)?;
        self.function.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        let State {
            registers: _,
            rap,
            prom,
            transmit,
            receive,
            interrupts,
            tidings,
            link_up,
            function: _,
            eeprom,
            polling,
        } = state;
        (self.registers, self.rap, self.prom) = (registers, rap, prom);
        (self.eeprom, self.polling) = (eeprom, polling);
        (self.transmit, self.receive) = (Transmit::at(transmit), receive);
        (self.interrupts, self.tidings, self.link_up) = (interrupts, tidings, link_up);
        self.stalls = [None; 2];
        self.lost = false;
        self.generation = self.generation.wrapping_add(1);
        self.prepare_loopback();
        Ok(())
    }
}

impl Lance {
    /// Resumes from restored state: shows the line, sends waiting interrupts, checks the ring.
    pub(super) fn resume_restored(&mut self, cx: &mut Context<'_>) {
        cx.out.work.insert(0);
        self.offer_room(cx);
        self.interrupts.show(&mut self.function, cx);
        self.settle(cx);
    }

    /// The rings' positions are lost. pcnet32.c initializes the chip anew when a transmit descriptor ends with an underflow
    /// (pcnet32_tx: "Ackk! On FIFO errors the Tx unit is turned off!"; pcnet32_poll).
    pub(super) fn lose(&mut self, cx: &mut Context<'_>) {
        self.lost = self.has(r::CSR0, csr0::STRT);
        self.registers[r::CSR0] &= !(csr0::TXON | csr0::RXON);
        self.forget_fetched();
        self.interrupts.show(&mut self.function, cx);
        self.fail_transmits(cx);
        self.settle(cx);
    }

    /// Ends all transmit descriptors that the chip owns with an underflow, until the driver initializes the chip anew. The first one is
    /// not known.
    pub(super) fn fail_transmits(&mut self, cx: &mut Context<'_>) {
        if !self.lost {
            return;
        }
        cx.out.wake_by(cx.now.after_ns(LOOK_NS));
        let memory = std::sync::Arc::clone(cx.memory);
        let Ok(ring) = self.transmit_ring(&memory) else { return };
        let owned = (0..ring.len.min(RING_MAX)).filter_map(|index| Some((index, ring.owned(index)?)));
        let ended = owned.map(|(index, descriptor)| ring.sent(index, descriptor.status, UFLO)).count();
        if ended > 0 {
            self.interrupts.raise(csr0::TINT.into());
        }
    }
}
