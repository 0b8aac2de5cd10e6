//! Time stamps of frames (82574 datasheet, 7.9 and 10.2.9; 82576, 7.9.3 and 8.16): one at a time in each direction, until its registers
//! have been read.

use nicety_adapter::Context;

use super::{Chip, Mac, Own};
use crate::intel::ptp::Message;
use crate::intel::receive::Offer;
use crate::intel::registers::*;

/// TSYNCTXCTL, TSYNCRXCTL: a stamp is valid.
const VALID: u32 = 1;
/// The same registers: stamps are enabled.
const ENABLED: u32 = 1 << 4;

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Chip,
{
    /// Whether a register of TSYNCTXCTL and TSYNCRXCTL lets a frame be stamped.
    pub fn may_stamp(&self, control: Reg) -> bool {
        self.registers[control] & (ENABLED | VALID) == ENABLED
    }

    /// Stores the departure time of a packet that requests it.
    pub(super) fn note_departure(&mut self, cx: &Context<'_>) {
        if self.may_stamp(TSYNCTXCTL) {
            self.stamp(TSYNCTXCTL, [TXSTMPL, TXSTMPH], cx);
        }
    }

    /// Stores the present time as arrival. RXSATR identifies the message by source and sequence number.
    pub(super) fn note_arrival(&mut self, offer: &Offer<'_, '_>, cx: &Context<'_>) {
        self.stamp(TSYNCRXCTL, [RXSTMPL, RXSTMPH], cx);
        if let Some(packet) = offer.frames.batch.packet(offer.pick.packet) {
            let message = Message::of(offer.frames.batch.head(packet), offer.frames.batch.layout(packet));
            [self.registers[RXSATRL], self.registers[RXSATRH]] = message.source();
        }
    }

    fn stamp(&mut self, control: Reg, [low, high]: [Reg; 2], cx: &Context<'_>) {
        let value = self.clock(cx.now);
        (self.registers[low], self.registers[high]) = (value as u32, (value >> 32) as u32);
        self.registers[control] |= VALID;
    }
}
