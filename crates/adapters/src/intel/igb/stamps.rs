//! Arrival times of IEEE 1588 messages (82576 datasheet, 7.9.3 and 8.16.1): one at a time, until its driver has read it.

use nicety_adapter::Context;

use super::Igb;
use super::registers::{self as r};
use crate::intel::ptp::Message;
use crate::intel::receive::Offer;

/// TSYNCRXCTL: enabled; a message's time is valid.
const ENABLED: u32 = 1 << 4;
const VALID: u32 = 1;

impl Igb {
    /// Whether a frame that a filter found needs an arrival time stamp.
    pub(super) fn is_timed(&self, offer: &Offer<'_, '_>, found: bool) -> bool {
        let control = self.registers[r::TSYNCRXCTL];
        if !found || control & (ENABLED | VALID) != ENABLED {
            return false;
        }
        let Some(packet) = offer.frames.batch.packet(offer.pick.packet) else { return false };
        let message = Message::of(offer.frames.batch.head(packet), offer.frames.batch.layout(packet));
        let wanted = self.registers[r::TSYNCRXCFG];
        message.is_asked(control, wanted as u8, (wanted >> 8) as u8)
    }

    /// Stores the present time as arrival. RXSATR identifies the message by source and sequence number.
    pub(super) fn note_arrival(&mut self, offer: &Offer<'_, '_>, cx: &mut Context<'_>) {
        let now = self.clock.value(cx.now);
        (self.registers[r::RXSTMPL], self.registers[r::RXSTMPH]) = (now as u32, (now >> 32) as u32);
        if let Some(packet) = offer.frames.batch.packet(offer.pick.packet) {
            let message = Message::of(offer.frames.batch.head(packet), offer.frames.batch.layout(packet));
            [self.registers[r::RXSATRL], self.registers[r::RXSATRH]] = message.source();
        }
        self.registers[r::TSYNCRXCTL] |= VALID;
    }
}
