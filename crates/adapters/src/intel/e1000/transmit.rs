//! The transmit ring, and loopback: see [`Sender`].

use nicety_adapter::{Batch, Budget, Context, Frames, PACKETS, Pick, PortId, Progress};

use super::registers::{self as r, cause, rctl, tctl};
use super::{E1000, TRANSMIT_RING};
use crate::intel::flow;
use crate::intel::transmit::{Classic, Sender};

impl E1000 {
    fn sender(&mut self, looped: bool) -> Sender<'_, Classic> {
        Sender {
            queue: 0,
            state: &mut self.transmit,
            registers: &mut self.registers,
            link_up: self.link_up,
            looped,
            tags_by_mode: true,
            stamped: false,
            takes_lone: true,
            checks_tags: false,
        }
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

    /// Walks the ring into a batch. In loopback the batch is private, and is received at once.
    pub(super) fn fetch_ring(&mut self, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if self.registers[r::TCTL] & tctl::EN == 0 || !self.function.bus_master() {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(budget, batch, false, cx);
            batch.generation = self.generation;
            if batch.is_empty() {
                self.give_back(cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(cx);
        progress
    }

    fn walk_ring(&mut self, budget: Budget, batch: &mut Batch, looped: bool, cx: &mut Context<'_>) -> Progress {
        flow::send(&mut self.registers, self.link_up, looped, batch, cx.counters);
        if self.pause.holds(cx.now) {
            return Progress { more: false, armed: true };
        }
        let (progress, why) = self.sender(looped).walk(budget, batch, cx);
        self.saw_ring(TRANSMIT_RING, why, cx);
        progress
    }

    /// Completes fetched descriptors, and interrupts if one of them requests it.
    pub(super) fn give_back(&mut self, cx: &mut Context<'_>) {
        if !self.function.bus_master() {
            return;
        }
        let done = self.sender(false).give_back(cx);
        if done.reported > 0 {
            self.transmitted(done.reported, done.delayed, done.empty, cx);
        } else if done.any && done.empty {
            self.cause(cause::TXQE, cx);
        }
    }
}
