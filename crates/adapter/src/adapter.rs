//! What every adapter does.

use crate::batch::Batch;
use crate::context::Context;
use crate::face::Face;
use crate::frames::{Delivery, Frames};
use crate::snapshot::Snapshot;
use crate::stall::Stall;

/// How much one call may do. At least one packet is always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Packets at most.
    pub packets: usize,
    /// Bytes at most, after the first packet.
    pub bytes: u64,
}

impl Budget {
    /// What a turn gives: 64 packets, 64 KiB.
    pub const TURN: Self = Self { packets: crate::batch::PACKETS, bytes: 64 << 10 };

    /// Whether one more packet may be fetched into this batch.
    pub fn allows(&self, batch: &Batch) -> bool {
        batch.is_empty() || (batch.len() < self.packets && batch.bytes() < self.bytes)
    }
}

/// How a fetch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// There may be more: call again.
    pub more: bool,
    /// The queue is empty, and the guest will ring when it is not: safe to sleep. If neither is set, poll.
    pub armed: bool,
}

/// What kind of reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Power on, or the bus's reset: everything is as new.
    Bus,
    /// Function-level, or D3hot → D0.
    Function,
}

/// What an adapter is told by its port.
/// An adapter names every event: one that it does not answer does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The link went up or down.
    Link(bool),
    /// The guest's memory map was replaced: addresses must be translated anew.
    Memory,
    /// The page in which the guest maps its doorbells is new, all zeros: it shows from now on what the registers hold.
    Page,
    /// Its state was restored: interrupts that were due or waited for a time are signalled now, and queues are looked at
    /// without a doorbell.
    Restored,
}

/// A virtual network adapter: a state machine between a guest's driver and the switch.
///
/// Every call ends in bounded time whatever the guest's rings say, allocates nothing, and never panics.
pub trait Adapter: Snapshot + Send {
    /// How the guest sees it.
    fn face(&mut self) -> Face<'_>;

    /// Walks descriptors of a transmit queue into `batch`, which the caller has [started](Batch::start). Nothing is
    /// given back to the guest yet. Frames that go nowhere are counted here.
    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress;

    /// The packets of `batch` have been dealt with: gives their descriptors back, and interrupts if the guest wants.
    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>);

    /// Puts frames into the guest's buffers. Each is taken, dropped and counted, or refused for lack of room; once a
    /// queue refuses it refuses for the rest of the call, and a [held](Frames::held) one from the beginning. Nothing is remembered: a pick
    /// says [where it begins](crate::Pick::from), and a refusal where it ended.
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery;

    /// Something happened.
    fn notice(&mut self, event: Event, cx: &mut Context<'_>);

    /// The time asked for with [`Outbox::wake`](crate::Outbox::wake) has come.
    fn tick(&mut self, cx: &mut Context<'_>);

    /// Reset, from outside.
    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>);

    /// Number of transmit queues that may have work now.
    fn transmit_queues(&self) -> u16;

    /// Whether the guest's driver has started the device: frames may flow.
    fn is_driven(&self) -> bool;

    /// The features that the guest's driver has turned on, in words for a person ("tso4", "rx-checksum", "mq 4").
    fn features(&self) -> Vec<&'static str>;

    /// Whether a queue stands still because its driver broke it. Queues have the numbers of [`Outbox::stalled`](crate::Outbox::stalled).
    fn stall(&self, _number: u16) -> Option<Stall> {
        None
    }
}
