//! The transmit queues, and loopback: see [`Sender`].

use nicety_adapter::{Batch, Budget, Context, Frames, PACKETS, Pick, PortId, Progress};

use super::{Chip, Interrupting, Mac, Own, stall_of};
use crate::intel::flow;
use crate::intel::registers::*;
use crate::intel::transmit::{self, Completed, Sender, Transmit};

/// TDWBAL: write the head to memory.
const HEAD_WRITE_BACK: u32 = 1;
/// Unit of TADV, in nanoseconds.
const DELAY_NS: u64 = 1024;

/// A transmit queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransmitQueue<C> {
    /// Its state.
    pub state: Transmit<C>,
    /// Descriptors fetched earlier are discarded if this has changed.
    pub generation: u32,
}

impl<C: Default> TransmitQueue<C> {
    /// Resets it.
    pub fn reset(&mut self) {
        *self = Self { state: Transmit::default(), generation: self.generation.wrapping_add(1) };
    }

    /// Discards descriptors that were fetched and not completed: the ring restarts at this head.
    fn restart(&mut self, head: u32) {
        self.generation = self.generation.wrapping_add(1);
        (self.state.next, self.state.skipping) = (head, false);
    }
}

/// TDWBAL and TDWBAH (82576 datasheet, 8.12.16): writes the head to the driver's memory.
fn write_head_back(registers: &Bank, queue: usize, cx: &mut Context<'_>) {
    let of = |name| registers.of(name).get(queue).copied().unwrap_or(0);
    let low = of(TDWBAL);
    if low & HEAD_WRITE_BACK == 0 {
        return;
    }
    let address = u64::from(of(TDWBAH)) << 32 | u64::from(low & !3);
    if cx.memory.write(address, &of(TDH).to_le_bytes()).is_err() {
        let place = registers.table().error_place(TDWBAL, queue);
        cx.guest_error(place, address, "an address in guest memory for the head's write-back (TDWBAL, TDWBAH)");
    }
}

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Chip,
{
    /// Whether a queue is on, and the transmitter.
    pub fn has_transmitter(&self, queue: usize) -> bool {
        let is_on = || self.registers.of(TXDCTL).get(queue).is_some_and(|control| control & dctl::ENABLE != 0);
        queue < N && self.registers[TCTL] & tctl::EN != 0 && (!Self::FACTS.advanced || is_on())
    }

    /// Whether a queue's ring is walked.
    pub fn transmits(&self, queue: usize) -> bool {
        self.has_transmitter(queue) && self.may_dma()
    }

    /// Discards a queue's descriptors that were fetched and not completed: the ring restarts at TDH.
    pub fn forget_fetched(&mut self, number: usize) {
        let head = self.registers.of(TDH).get(number).copied().unwrap_or(0);
        if let Some(queue) = self.transmit.get_mut(number) {
            queue.restart(head);
        }
    }

    fn sender(&mut self, queue: usize, looped: bool) -> Option<Sender<'_, O::Contexts>> {
        let checks_tags = self.checks_tags();
        let state = &mut self.transmit.get_mut(queue)?.state;
        let (registers, link_up) = (&mut self.registers, self.link_up);
        let (tags_by_mode, takes_lone) = (Self::FACTS.tags_by_mode, Self::FACTS.takes_lone);
        Some(Sender {
            queue,
            state,
            registers,
            link_up,
            looped,
            tags_by_mode,
            stamped: false,
            takes_lone,
            checks_tags,
            walked: 0,
        })
    }

    /// Whether transmitted frames return to this adapter only.
    pub fn loops(&self) -> bool {
        Self::FACTS.wired && (self.phy.loops() || self.registers[RCTL] & rctl::LBM != 0)
    }

    /// Allocates a private batch before the first frame of a loopback.
    pub fn prepare_loopback(&mut self) {
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
        batch.generation = self.transmit.get(queue).map_or(0, |queue| queue.generation);
        if !self.transmits(queue) {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(queue, budget, batch, false, cx);
            if batch.is_empty() {
                self.give_back(queue, cx);
            }
            return cx.fetched(progress);
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(queue, budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        // Frames without room are lost, as in the chip.
        self.receive(&frames, true, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(queue, cx);
        cx.fetched(progress)
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
        if Self::FACTS.wired {
            flow::send(&mut self.registers, self.link_up, looped, batch, cx.counters);
            if self.pause.holds(cx.now) {
                return idle;
            }
        }
        let Some(mut sender) = self.sender(queue, looped) else { return idle };
        let (progress, why) = sender.walk(budget, batch, cx);
        let stamped = sender.stamped;
        self.saw_ring(stall_of(queue, true), why, cx);
        if stamped {
            self.note_departure(cx);
        }
        self.walked();
        progress
    }

    /// Completes fetched descriptors, and interrupts if one of them requests it.
    pub(super) fn give_back(&mut self, queue: usize, cx: &mut Context<'_>) {
        if !self.may_dma() {
            return;
        }
        let Some(done) = self.sender(queue, false).map(|mut sender| sender.give_back(cx)) else { return };
        if done.any {
            if Self::FACTS.advanced {
                write_head_back(&self.registers, queue, cx);
            }
            self.sent(queue, done, cx);
        }
    }

    /// Handles completed descriptors of the 82540 or the 82574. Each of them may ask for an interrupt at once. `counted` of them wait.
    pub fn sent_classic(&mut self, queue: usize, done: Completed, counted: u32, cx: &mut Context<'_>) {
        if done.empty {
            self.interrupts.raise(cause::TXQE.into());
        }
        if done.reported > 0 {
            let least_ns = u64::from(self.registers[TADV]) * DELAY_NS;
            self.wait_for_interrupt(queue, counted, least_ns, cx);
            if !done.delayed {
                self.completions[queue].hurry(cx.now);
            }
        }
        self.time_passed(cx);
    }

    /// Completions of the 82576's descriptors.
    pub fn sent_advanced(&mut self, queue: usize, done: Completed, cx: &mut Context<'_>) {
        if done.reported > 0 {
            self.wait_for_interrupt(queue, done.reported, 0, cx);
            self.time_passed(cx);
        }
    }

    fn wait_for_interrupt(&mut self, queue: usize, descriptors: u32, least_ns: u64, cx: &Context<'_>) {
        let enough = transmit::ring(&self.registers, queue).0 / 4;
        self.completions[queue].wait(descriptors, enough, least_ns, cx.now);
    }
}
