//! Saved state: the function, the driver's register settings, and the device behind them.

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::{Nothing, Version, decode, encode};
use nicety_adapter::{RestoreError, RingFace, Snapshot};
use nicety_pci::Saved as SavedFunction;
use serde::{Deserialize, Serialize};

use super::common::Common;
use super::{ABOUT, VirtioPci};

#[derive(Serialize, Deserialize)]
struct State {
    function: Vec<u8>,
    common: Common,
    interrupts: Interrupts,
    device: Vec<u8>,
}

/// Version 2: the same for a function that did not offer ACCESS_PLATFORM.
#[derive(Serialize, Deserialize)]
struct State2(State);

/// Version 1: the same for a function with No_Soft_Reset (state kept over D3hot).
#[derive(Serialize, Deserialize)]
struct State1(State);

impl Version for State1 {
    const NUMBER: u16 = 1;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
    }
}

impl Version for State2 {
    const NUMBER: u16 = 2;
    type Before = State1;

    fn from_before(State1(before): State1) -> Result<Self, RestoreError> {
        let mut function = SavedFunction::from_bytes(&before.function).map_err(|_| RestoreError::Damaged)?;
        function.promise_nothing_over_d3hot();
        Ok(Self(State { function: function.to_bytes(), ..before }))
    }
}

impl Version for State {
    const NUMBER: u16 = 3;
    type Before = State2;

    fn from_before(State2(before): State2) -> Result<Self, RestoreError> {
        Ok(before)
    }
}

impl Snapshot for VirtioPci {
    fn save(&self) -> Vec<u8> {
        let Self { function, rom: _, device, common, interrupts } = self;
        let state = State {
            function: function.save().to_bytes(),
            common: common.clone(),
            interrupts: interrupts.clone(),
            device: device.save(),
        };
        encode(ABOUT.name, State::NUMBER, &state)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        let State { function, common, interrupts, device } = decode(ABOUT.name, saved)?;
        if !common.possible(self.device.rings()) {
            return Err(RestoreError::Impossible("queues"));
        }
        if !interrupts.fits(&self.interrupts) {
            return Err(RestoreError::Impossible("interrupts"));
        }
        let function = SavedFunction::from_bytes(&function).map_err(|_| RestoreError::Damaged)?;
        let mut placed = self.function.clone();
        placed.restore(&function).map_err(|_| RestoreError::Impossible("configuration space"))?;
        self.device.restore(&device)?;
        (self.function, self.common, self.interrupts) = (placed, common, interrupts);
        Ok(())
    }
}
