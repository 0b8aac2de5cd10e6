//! Saved state of this chip only.

use nicety_adapter::interrupts::Interrupts;
use nicety_adapter::snapshot::RestoreError;
use nicety_pci::Function;

use super::transmit::Advanced;
use super::{I82576, virtual_functions};
use crate::intel::clock::Clock;
use crate::intel::mac::Own;
use crate::intel::mac::saved::Mask;
use crate::intel::phy::{self, Phy};
use crate::intel::registers::Bank;
use crate::microwire::Microwire;

impl Own for I82576 {
    type Contexts = Advanced;
    type Parts = (phy::State, Microwire);
    type Starved = Mask;
    type Delays = (Interrupts, u32);
    type Clock = Clock<16>;
    const VERSION: u16 = 2;

    fn save(&self, phy: phy::State) -> (Self::Parts, Self::Delays, Self::Clock) {
        let Self { vectors: _, words: _, eeprom, extended, other, clock } = self;
        ((phy, eeprom.clone()), (extended.clone(), *other), *clock)
    }

    fn restored(
        &self,
        ((phy, eeprom), (extended, other), clock): (Self::Parts, Self::Delays, Self::Clock),
        model: &Phy,
        _registers: &Bank,
    ) -> Result<(Self, Phy), RestoreError> {
        if !eeprom.fits(self.words) {
            return Err(RestoreError::Impossible("NVM"));
        }
        if !extended.fits(&self.extended) {
            return Err(RestoreError::Impossible("interrupts"));
        }
        let Self { vectors, words, .. } = *self;
        Ok((Self { vectors, words, eeprom, extended, other, clock }, model.with(&phy)?))
    }

    fn bound(function: &mut Function) {
        virtual_functions::bound(function);
    }
}
