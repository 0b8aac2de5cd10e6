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

impl Version for State {
    const NUMBER: u16 = 3;
    type Before = Nothing;

    fn from_before(before: Nothing) -> Result<Self, RestoreError> {
        match before {}
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
