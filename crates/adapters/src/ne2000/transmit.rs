//! Transmit: the frame named by TPSR and TBCR, directly from packet memory (DP8390D, 6.0). The chip sends one at a time.

use nicety_adapter::{Batch, Context, DraftError, HEAD_BYTES, Progress, Reason};

use super::Ne2000;
use super::buffer::PAGE;
use super::registers::{self as r, TABLE, tsr};

/// The longest frame sent: 1500 bytes, the header, two VLAN tags. The chip itself counts to 65535.
const LONGEST: u32 = 1522;

impl Ne2000 {
    /// Adds the waiting frame to the batch.
    pub(super) fn fetch_frame(&mut self, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if self.chip.is_sending() {
            let (origin, queue) = (batch.origin, batch.queue);
            batch.start(self.chip.buffer.map(), origin, queue);
            batch.generation = self.generation;
            if self.chip.loops() {
                self.conclude_frame(tsr::PTX, cx);
            } else if let Err(reason) = self.draft_frame(batch, cx) {
                let (at, len) = self.chip.to_send();
                let (name, value, expected) = match reason {
                    Reason::BadAddress => (r::TPSR, at / PAGE, "a frame within packet memory (TPSR, TBCR0, TBCR1)"),
                    _ => (r::TBCR0, len, "a length of 14 to 1522 bytes (TBCR0, TBCR1)"),
                };
                cx.drop_transmit(reason, TABLE.error_place(name, 0), value.into(), Some(expected));
                // Without a link a frame is still sent, and reaches nobody.
                let status = if reason == Reason::LinkDown { tsr::PTX | tsr::CRS } else { tsr::FU };
                self.conclude_frame(status, cx);
            }
        }
        Progress { more: false, armed: true }
    }

    fn draft_frame(&self, batch: &mut Batch, cx: &mut Context<'_>) -> Result<(), Reason> {
        if !self.link_up {
            return Err(Reason::LinkDown);
        }
        let (at, len) = self.chip.to_send();
        match len {
            0..14 => return Err(Reason::TooShort),
            14..=LONGEST => {}
            _ => return Err(Reason::TooLong),
        }
        let span = self.chip.buffer.span(at, len).ok_or(Reason::BadAddress)?;
        let mut draft = batch.draft(HEAD_BYTES).ok_or(DraftError::BatchFull)?;
        draft.push_span(span)?;
        // The chip leaves padding to its driver; small drivers omit it.
        draft.pad_to(60);
        cx.counters.sent(0, 1, draft.len().into());
        draft.finish_plain(0);
        Ok(())
    }

    /// Sets TSR and raises the interrupt.
    pub(super) fn conclude_frame(&mut self, status: u32, cx: &mut Context<'_>) {
        self.chip.sent(status);
        self.settle_line(cx);
    }
}
