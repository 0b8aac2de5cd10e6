//! When a driver is notified of what its rings have shown it.

use nicety_adapter::Context;

use super::VirtioNet;
use super::coalescing::Limits;
use super::registers::feature;

impl VirtioNet {
    /// What the driver has set for a ring's notifications, if it has.
    pub(super) fn limits(&self, number: u16) -> Option<Limits> {
        if self.taken & (feature::NOTF_COAL | feature::VQ_NOTF_COAL) == 0 {
            return None;
        }
        self.control.coalescing.get(usize::from(number)).copied().flatten()
    }

    /// Notifies the driver of what a receive ring has shown it, if it wants that.
    pub(super) fn tell_arrivals(&mut self, number: u16, cx: &mut Context<'_>) {
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        let live = ring.started && ring.broken.is_none();
        let tells = live && ring.tell_in(cx.memory, self.taken);
        self.told_arrivals(number, tells, cx);
    }

    /// The driver of a receive ring has been told of all that is in it, by a notification if it wants one.
    pub(super) fn told_arrivals(&mut self, number: u16, by_notification: bool, cx: &mut Context<'_>) {
        let carried = self.carried(number);
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        if !by_notification {
            // A driver that polls finds it without.
            ring.moderation.seen();
            return;
        }
        ring.call(number, cx);
        ring.moderation.told(carried, cx.now);
        // Linux looks at what has gone whenever it looks at what has come (`virtnet_poll_cleantx`); others may not.
        if let Some(transmit) = self.rings.get_mut(usize::from(number) + 1) {
            transmit.delay.answered(cx.now);
            transmit.delay.accompanied();
        }
    }

    /// Bytes that a receive ring and the transmit ring beside it have carried.
    pub(super) fn carried(&self, number: u16) -> u64 {
        let pair = self.rings.iter().skip(usize::from(number)).take(2);
        pair.fold(0, |sum, ring| sum.wrapping_add(ring.carried))
    }

    /// Tells what has waited long enough, and asks for a tick for what has not.
    pub(super) fn tell_late(&mut self, cx: &mut Context<'_>) {
        for number in 0..self.rings.len() {
            let Some(ring) = self.rings.get_mut(number) else { continue };
            if ring.late.is_some_and(|late| late <= cx.now) {
                self.tell(number as u16, cx);
            } else if ring.moderation.over(cx.now) {
                self.tell_arrivals(number as u16, cx);
            } else if ring.delay.over(cx.now) {
                self.tell_completions(number as u16, cx);
            }
        }
        self.schedule(cx);
    }

    pub(super) fn schedule(&self, cx: &mut Context<'_>) {
        for ring in &self.rings {
            ring.moderation.due().into_iter().for_each(|due| cx.out.wake_by(due));
            ring.delay.due().into_iter().for_each(|due| cx.out.wake_by(due));
            ring.late.into_iter().for_each(|due| cx.out.wake_by(due));
        }
    }
}
