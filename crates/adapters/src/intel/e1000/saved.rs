//! Saved state of these chips only.

use nicety_adapter::interrupts::Delay;
use nicety_adapter::snapshot::RestoreError;

use super::I8254x;
use super::registers as r;
use crate::intel::mac::Own;
use crate::intel::mac::saved::Mask;
use crate::intel::phy::{self, Phy};
use crate::intel::registers::Bank;
use crate::intel::transmit::Classic;
use crate::microwire::Microwire;

impl Own for I8254x {
    type Contexts = Classic;
    type Parts = (Option<Vec<u32>>, phy::State, Microwire);
    type Starved = Mask;
    type Delays = Delay;
    type Clock = ();
    const VERSION: u16 = 3;

    fn save(&self, phy: phy::State) -> (Self::Parts, Delay, ()) {
        let Self { words: _, eeprom, buffer, lone_read_by: _, receive_delay } = self;
        ((buffer.clone(), phy, eeprom.clone()), *receive_delay, ())
    }

    fn restored(
        &self,
        ((buffer, phy, eeprom), receive_delay, ()): (Self::Parts, Delay, ()),
        model: &Phy,
        _registers: &Bank,
    ) -> Result<(Self, Phy), RestoreError> {
        if buffer.as_ref().is_some_and(|buffer| buffer.len() != r::PACKET_BUFFER_DWORDS) {
            return Err(RestoreError::Impossible("packet buffer"));
        }
        if !eeprom.fits(self.words) {
            return Err(RestoreError::Impossible("EEPROM"));
        }
        Ok((Self { words: self.words, eeprom, buffer, lone_read_by: None, receive_delay }, model.with(&phy)?))
    }
}
