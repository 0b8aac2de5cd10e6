//! The plain mode's four transmit slots: an address and a length in registers, sent in order.

use nicety_adapter::{Batch, Budget, Context, ErrorPlace, Progress, Reason};

use super::Rtl8139;
use super::registers::{self as r, cause, tsd};
use super::transmit::is_error;

const SLOTS: u32 = 4;
/// Maximum bytes of a frame (RTL8139C 1.4, TSD).
const LONGEST: u32 = 1792;

/// State of the transmitter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slots {
    /// The next slot to fetch.
    pub next: u32,
    /// Number of slots fetched and not completed.
    fetched: u32,
    /// Slots among them that could not be sent, a bit for each.
    failed: u32,
}

impl Slots {
    /// The position at a slot, with none fetched.
    pub fn at(next: u32) -> Self {
        Self { next, ..Self::default() }
    }
}

impl Rtl8139 {
    /// A write to TSD: without OWN, which only the chip sets, the slot is to be sent.
    pub(super) fn write_slot(&mut self, slot: usize, value: u32, cx: &mut Context<'_>) {
        if let Some(stored) = self.registers.of_mut(r::TSD).get_mut(slot) {
            *stored = value & !tsd::RESULTS;
        }
        cx.out.work.insert(0);
    }

    pub(super) fn walk_slots(
        &mut self,
        budget: Budget,
        batch: &mut Batch,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Progress {
        while self.slots.fetched < SLOTS {
            let slot = self.slots.next;
            let command = self.registers.of(r::TSD)[slot as usize];
            if command & tsd::OWN != 0 {
                break;
            }
            if !budget.allows(batch) {
                return Progress { more: true, armed: false };
            }
            let address = self.registers.of(r::TSAD)[slot as usize];
            if let Err(reason) = self.take_slot(address, command & tsd::SIZE, batch, looped, cx) {
                let (value, expected) = match reason {
                    Reason::BadAddress => (address, None),
                    Reason::TooLong => (command, Some("a size of at most 1792 bytes (TSD, bits 12 to 0)")),
                    _ => (command, None),
                };
                cx.drop_transmit(reason, ErrorPlace::transmit(0, slot), value.into(), expected);
                self.tally.send_errors += 1;
                self.slots.failed |= u32::from(is_error(reason)) << slot;
            }
            self.slots.next = (slot + 1) % SLOTS;
            self.slots.fetched += 1;
        }
        Progress { more: false, armed: true }
    }

    fn take_slot(
        &mut self,
        address: u32,
        len: u32,
        batch: &mut Batch,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Result<(), Reason> {
        if len > LONGEST {
            return Err(Reason::TooLong);
        }
        // The budget leaves room for a packet.
        let mut draft = batch.draft(0).ok_or(Reason::TooManyPieces)?;
        draft.push(address.into(), len)?;
        self.finish(draft, 0, 0, looped, cx)
    }

    pub(super) fn give_slots_back(&mut self, cx: &mut Context<'_>) {
        let Slots { next, fetched, failed } = self.slots;
        if fetched == 0 {
            return;
        }
        self.slots = Slots::at(next);
        for n in 1..=fetched {
            let slot = (next + SLOTS - n) % SLOTS;
            let result = if failed >> slot & 1 != 0 { tsd::TUN } else { tsd::TOK };
            self.registers.of_mut(r::TSD)[slot as usize] |= tsd::OWN | result;
        }
        if failed != 0 {
            self.cause(cause::TER, cx);
        }
        // One slot stays free for a driver that has no interrupt yet.
        self.transmitted(fetched, SLOTS - 2, cx);
    }
}
