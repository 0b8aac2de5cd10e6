//! Frames that come in by an uplink with inward I/O control on their way to their receivers.

use nicety_adapter::{Batch, Budget, Frames, Pick, Reason, Time};

use super::turn::PACKET_COST;
use super::{Plane, Slot};
use crate::inward::{Charged, Lost};
use crate::losses::Losses;
use crate::port::Port;

impl Plane {
    /// Passes on frames that came in by an uplink and waited. Returns the cost in bytes.
    #[inline(never)]
    pub(crate) fn pass_on(&self, port: &Port, now: Time) -> u64 {
        let slots = self.switch().slots();
        let mut lost = 0;
        let passed = port.inward().with(|inward| {
            let passed = inward.drain(Budget::TURN, now, |batch, picks| {
                let is_there = |slot: &&Slot| slot.port().is_some_and(|receiver| !receiver.has_left());
                match slots.get(batch.origin).filter(is_there) {
                    // Frames that have waited were counted as forwarded when they came.
                    Some(receiver) => self.pass_to(receiver, batch, picks, &mut Losses::off(), now),
                    None => lost += picks.len() as u64,
                }
            });
            (passed, inward.due_at())
        });
        port.lose(lost, Reason::Removed);
        let Some(((packets, bytes), due)) = passed else { return 0 };
        if let Some(at) = due {
            port.wake_at(at);
        }
        bytes + packets as u64 * PACKET_COST
    }

    /// Keeps frames that came in by an uplink until their class and receiver may have them, or passes them on at once.
    #[inline(never)]
    pub(crate) fn keep_inward(
        &self,
        uplink: &Port,
        slot: &Slot,
        frames: &Frames<'_>,
        (charged, losses): (&mut Charged, &mut Losses),
        now: Time,
    ) {
        let Frames { batch, picks, .. } = *frames;
        let Some(receiver) = slot.port() else { return };
        let id = receiver.id();
        let kept = uplink.inward().with(|inward| {
            // A port that leaves says so before the uplinks forget it: nothing comes behind that.
            if receiver.has_left() {
                picks.iter().for_each(|pick| losses.note(pick.packet, Reason::Removed));
                return Some((Lost { removed: picks.len() as u64, ..Lost::default() }, None));
            }
            if inward.passes(id, batch, picks, charged, now) {
                return None;
            }
            let was_empty = inward.len() == 0;
            let lost = inward.keep(id, batch, picks, (charged, losses), now);
            Some((lost, inward.due_at().filter(|_| was_empty)))
        });
        match kept.flatten() {
            None => self.pass_to(slot, batch, picks, losses, now),
            Some((Lost { full, congestion, removed }, due)) => {
                uplink.lose(full, Reason::BufferFull);
                uplink.lose(congestion, Reason::Congestion);
                uplink.lose(removed, Reason::Removed);
                if let Some(at) = due {
                    uplink.wake_at(at);
                }
            }
        }
    }

    /// Offers frames to a guest's port, which holds nobody.
    fn pass_to(&self, receiver: &Slot, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) {
        match receiver {
            Slot::Port(port) => _ = self.offer_shown(port, batch, picks, losses, now),
            Slot::Group(group) => group.divide(batch, picks, losses, |part, picks, losses| {
                self.offer_shown(part, batch, picks, losses, now);
            }),
            Slot::Sink(port) => port.offer_copies(batch, picks, now),
        }
    }
}
