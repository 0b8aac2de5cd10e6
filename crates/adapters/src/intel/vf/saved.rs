//! Saved state of virtual functions only.

use nicety_adapter::snapshot::RestoreError;

use super::Virtual;
use super::mailbox::Mailbox;
use crate::intel::igb::transmit::Advanced;
use crate::intel::mac::Own;
use crate::intel::mac::saved::Mask;
use crate::intel::phy::{self, Phy};
use crate::intel::registers::Bank;

impl Own for Virtual {
    type Contexts = Advanced;
    type Parts = Mailbox;
    type Starved = Mask;
    type Delays = ();
    type Clock = ();
    const VERSION: u16 = 1;

    fn save(&self, _phy: phy::State) -> (Mailbox, (), ()) {
        // The time of an ask is set with the next one.
        let Self { model: _, policy: _, mailbox, asked_at: _, is_restored: _, checks_tags: _ } = self;
        (*mailbox, (), ())
    }

    fn restored(
        &self,
        (mailbox, (), ()): (Mailbox, (), ()),
        phy: &Phy,
        registers: &Bank,
    ) -> Result<(Self, Phy), RestoreError> {
        if !mailbox.fits(registers) {
            return Err(RestoreError::Impossible("mailbox"));
        }
        let Self { model, policy, asked_at, is_restored, checks_tags, .. } = *self;
        Ok((Self { model, policy, mailbox, asked_at, is_restored, checks_tags }, phy.clone()))
    }
}
