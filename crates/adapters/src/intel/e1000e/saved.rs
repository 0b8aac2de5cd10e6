//! Saved state of this chip only.

use nicety_adapter::interrupts::Delay;
use nicety_adapter::snapshot::RestoreError;

use super::I82574;
use crate::intel::clock::Clock;
use crate::intel::mac::Own;
use crate::intel::nvm::Nvm;
use crate::intel::phy::{self, Phy};
use crate::intel::registers::Bank;
use crate::intel::transmit::Classic;

impl Own for I82574 {
    type Contexts = Classic;
    type Parts = (phy::State, Nvm);
    type Starved = [bool; 2];
    type Delays = (Delay, u32);
    type Clock = Clock<40>;
    const VERSION: u16 = 1;

    fn save(&self, phy: phy::State) -> (Self::Parts, Self::Delays, Self::Clock) {
        let Self { nvm, receive_delay, delayed, clock } = self;
        ((phy, nvm.clone()), (*receive_delay, *delayed), *clock)
    }

    fn restored(
        &self,
        ((phy, nvm), (receive_delay, delayed), clock): (Self::Parts, Self::Delays, Self::Clock),
        model: &Phy,
        _registers: &Bank,
    ) -> Result<(Self, Phy), RestoreError> {
        if !nvm.fits() {
            return Err(RestoreError::Impossible("NVM"));
        }
        Ok((Self { nvm, receive_delay, delayed, clock }, model.with(&phy)?))
    }
}
