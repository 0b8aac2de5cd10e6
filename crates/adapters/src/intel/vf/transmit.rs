//! The transmit queues: the 82576's descriptors, see [`Sender`].

use nicety_adapter::{Batch, Budget, Context, Progress};

use super::registers::{self as r, Reg};
use super::{VirtualFunction, stall_of};
use crate::intel::igb::transmit::{Advanced, transmits, write_head_back};
use crate::intel::transmit::{self, Sender};

impl VirtualFunction {
    /// Size in descriptors and first address of a queue's ring.
    pub(super) fn transmit_ring(&self, queue: usize) -> (u32, u64) {
        transmit::ring(&self.registers, queue)
    }

    fn sender(&mut self, queue: usize) -> Option<Sender<'_, Advanced>> {
        let state = &mut self.transmit.get_mut(queue)?.state;
        let (registers, link_up, checks_tags) = (&mut self.registers, self.link_up, self.checks_tags);
        let (looped, tags_by_mode, stamped, takes_lone) = (false, false, false, false);
        Some(Sender { queue, state, registers, link_up, looped, tags_by_mode, stamped, takes_lone, checks_tags })
    }

    /// Walks a ring into a batch.
    pub(super) fn fetch_ring(
        &mut self,
        queue: usize,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Progress {
        let idle = Progress { more: false, armed: true };
        batch.generation = self.transmit.get(queue).map_or(0, |queue| queue.generation);
        if !transmits(&self.registers, queue) || !self.function.bus_master() {
            return idle;
        }
        let Some(mut sender) = self.sender(queue) else { return idle };
        let (progress, why) = sender.walk(budget, batch, cx);
        self.saw_ring(stall_of(queue, true), why, cx);
        self.count_sent();
        if batch.is_empty() {
            self.give_back(queue, cx);
        }
        cx.fetched(progress)
    }

    /// Completes fetched descriptors, and interrupts if one of them requests it.
    pub(super) fn give_back(&mut self, queue: usize, cx: &mut Context<'_>) {
        if !self.function.bus_master() {
            return;
        }
        let Some(done) = self.sender(queue).map(|mut sender| sender.give_back(cx)) else { return };
        if done.any {
            write_head_back(&self.registers, queue, cx);
        }
        if done.reported > 0 {
            self.transmitted(queue, done.reported, cx);
        }
    }

    /// Moves what the sender has counted to the function's counters, which wrap.
    fn count_sent(&mut self) {
        let [frames, octets] = [r::GPTC, r::GOTCL].map(|name| std::mem::take(&mut self.registers[name]));
        self.registers[r::GOTCH] = 0;
        self.count(r::VFGPTC, frames);
        self.count_octets(r::VFGOTC, r::VFGOTCH, octets);
    }

    /// Adds to a counter that wraps.
    pub(super) fn count(&mut self, name: Reg, more: u32) {
        self.registers[name] = self.registers[name].wrapping_add(more);
    }

    /// Adds to a counter of octets: 32 bits, of the 82599 36.
    pub(super) fn count_octets(&mut self, low: Reg, high: Reg, more: u32) {
        let (sum, carry) = self.registers[low].overflowing_add(more);
        self.registers[low] = sum;
        if self.model.ten_gigabit {
            self.registers[high] = (self.registers[high] + u32::from(carry)) & 0xf;
        }
    }
}
