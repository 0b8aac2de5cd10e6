//! Notification of a driver about completions on its rings.

use nicety_adapter::Context;

use super::VirtioNet;
use super::coalescing::Limits;
use super::registers::feature;

impl VirtioNet {
    /// The driver's own limits for a ring's notifications, if any.
    pub(super) fn limits(&self, number: u16) -> Option<Limits> {
        if self.taken & (feature::NOTF_COAL | feature::VQ_NOTF_COAL) == 0 {
            return None;
        }
        self.control.coalescing.get(usize::from(number)).copied().flatten()
    }

    /// Notifies the driver about a receive ring's completions, if it wants that.
    pub(super) fn notify_arrivals(&mut self, number: u16, cx: &mut Context<'_>) {
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        let live = ring.started && ring.broken.is_none();
        let notifies = live && ring.mark_notified_in(cx.memory, self.taken);
        self.mark_arrivals_notified(number, notifies, cx);
    }

    /// Marks all of a receive ring's completions as notified; by a real notification if the driver wants one.
    pub(super) fn mark_arrivals_notified(&mut self, number: u16, by_notification: bool, cx: &mut Context<'_>) {
        let carried = self.carried(number);
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        if !by_notification {
            // A driver that polls finds the frames without a notification.
            ring.moderation.seen();
            return;
        }
        ring.call(number, cx);
        ring.moderation.note_interrupt(carried, cx.now);
        // Linux also checks transmit completions when it checks received frames (`virtnet_poll_cleantx`); other drivers may not.
        if let Some(transmit) = self.rings.get_mut(usize::from(number) + 1) {
            transmit.delay.answered(cx.now);
            transmit.delay.accompanied();
        }
    }

    /// Bytes carried by a receive ring and the transmit ring of its pair.
    pub(super) fn carried(&self, number: u16) -> u64 {
        let pair = self.rings.iter().skip(usize::from(number)).take(2);
        pair.fold(0, |sum, ring| sum.wrapping_add(ring.carried))
    }

    /// Sends notifications whose delay is over, and requests a tick for the others.
    pub(super) fn notify_late(&mut self, cx: &mut Context<'_>) {
        for number in 0..self.rings.len() {
            let Some(ring) = self.rings.get_mut(number) else { continue };
            if ring.late.is_some_and(|late| late <= cx.now) {
                self.notify(number as u16, cx);
            } else if ring.moderation.over(cx.now) {
                self.notify_arrivals(number as u16, cx);
            } else if ring.delay.over(cx.now) {
                self.notify_completions(number as u16, cx);
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
