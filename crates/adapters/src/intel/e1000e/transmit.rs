//! The two transmit rings, and loopback: see [`Sender`].

use nicety_adapter::{Batch, Budget, Context, Frames, PACKETS, Pick, PortId, Progress};

use super::E1000e;
use super::registers::{self as r, rctl, tctl};
use crate::intel::flow;
use crate::intel::transmit::{Classic, Sender};

impl E1000e {
    fn sender(&mut self, queue: usize, looped: bool) -> Option<Sender<'_, Classic>> {
        let state = self.transmit.get_mut(queue)?;
        let (registers, link_up) = (&mut self.registers, self.link_up);
        let (tags_by_mode, stamped, takes_lone, checks_tags) = (true, false, false, false);
        Some(Sender { queue, state, registers, link_up, looped, tags_by_mode, stamped, takes_lone, checks_tags })
    }

    /// Whether its rings are walked.
    pub(super) fn transmits(&self) -> bool {
        self.registers[r::TCTL] & tctl::EN != 0 && self.masters()
    }

    /// Whether transmitted frames return to this adapter only.
    pub(super) fn loops(&self) -> bool {
        self.phy.loops() || self.registers[r::RCTL] & rctl::LBM != 0
    }

    /// Allocates a private batch before the first frame of a loopback.
    pub(super) fn prepare_loopback(&mut self) {
        if self.loops() && self.looped.is_none() {
            self.looped = Some(Box::default());
        }
    }

    /// Walks a ring into a batch. In loopback the batch is private, and is received at once.
    pub(super) fn fetch_ring(
        &mut self,
        queue: usize,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Progress {
        if !self.transmits() {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(queue, budget, batch, false, cx);
            batch.generation = self.generation;
            if batch.is_empty() {
                self.give_back(queue, cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(queue, budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(queue, cx);
        progress
    }

    fn walk_ring(
        &mut self,
        queue: usize,
        budget: Budget,
        batch: &mut Batch,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Progress {
        let idle = Progress { more: false, armed: true };
        flow::send(&mut self.registers, self.link_up, looped, batch, cx.counters);
        if self.pause.holds(cx.now) {
            return idle;
        }
        let Some(mut sender) = self.sender(queue, looped) else { return idle };
        let (progress, why) = sender.walk(budget, batch, cx);
        if sender.stamped {
            self.stamp_sent(cx);
        }
        self.saw_ring(2 * queue + 1, why, cx);
        progress
    }

    /// Completes fetched descriptors, and interrupts if one of them requests it.
    pub(super) fn give_back(&mut self, queue: usize, cx: &mut Context<'_>) {
        if !self.masters() {
            return;
        }
        let done = self.sender(queue, false).map(|mut sender| sender.give_back(cx)).unwrap_or_default();
        if done.any {
            self.transmitted(queue, done, cx);
        }
    }
}
