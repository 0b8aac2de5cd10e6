//! The interface of every adapter.

use crate::batch::Batch;
use crate::context::Context;
use crate::face::Face;
use crate::family::{Answer, Ask, Family};
use crate::frames::{Delivery, Frames};
use crate::progress::{Budget, Progress};
use crate::snapshot::Snapshot;
use crate::stall::Stall;

/// The kind of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Power on, for another VM: everything is reset.
    Bus,
    /// A function-level reset, a change from D3hot to D0, or a reset by the VMM. The VMM resets when its VM restarts, or when its guest
    /// wakes from suspend to RAM. A driver that wakes goes on with the settings that it had.
    Function,
}

/// Events that a port reports to its adapter. An adapter handles every event: a missing one does not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The link went up or down.
    Link(bool),
    /// The guest's memory map was replaced: addresses must be translated anew.
    Memory,
    /// The guest's mapped doorbell page is new, with all zeros, or the device's state was replaced. From now on the page must show the
    /// register values.
    Page,
    /// The adapter's state was restored. Signal all due interrupts now, and check the queues without a doorbell.
    Restored,
    /// The process that served the adapter was killed, and an older state was restored. Two parts of this state are valid: the
    /// configuration space, and registers at whose change the adapter has asked to [keep](crate::Outbox::KEEP) its state. Touch no ring,
    /// because the driver has gone on. Make the driver reset the adapter, by the event to which it reacts soonest.
    Lost,
    /// The adapter's family has answered an [ask](Adapter::ask).
    Answer(Answer),
    /// The port dropped this many frames for its guest, because they found no buffer and no room to wait.
    Missed(u32),
    /// The VMM has given up accesses that were not answered in time. The driver's reads returned ones, and its writes took effect later
    /// than it knew. Unlike after [`Event::Lost`], the state is valid. If the driver may have believed the ones, make it reset the adapter.
    Unanswered,
}

/// A virtual network adapter: a state machine between a guest's driver and the switch.
///
/// Its owner, `nicety_plane::Port` or your program, calls it so:
/// 1. The adapter is made. It is as after power-on, and not [driven](Adapter::is_driven).
/// 2. The guest's accesses go to its [face](Adapter::face). In one of them the driver starts the device, and rings its doorbells.
/// 3. After each call the owner looks into the [`Outbox`](crate::Outbox) of the call's [`Context`], and takes what is in it: interrupts to
///    signal, transmit queues that have work, a time to be called at.
/// 4. For each transmit queue with work: [`fetch`](Adapter::fetch) fills a batch, the switch decides, each receiver's
///    [`deliver`](Adapter::deliver) takes its frames, and [`complete`](Adapter::complete) gives the descriptors back to the driver. While
///    `fetch` says that there is more, the queue gets another turn.
/// 5. A receiver that refuses frames has no buffers. They wait at the owner, and are delivered again when the outbox names the queue
///    under `room`.
/// 6. At the time that the adapter asked for, [`tick`](Adapter::tick) is called. What happens around it comes by
///    [`notice`](Adapter::notice).
/// 7. A VM that restarts has its adapter [reset](Adapter::reset). A VM that moves has its state [saved](Snapshot::save), and restored
///    into a new adapter, which then notices [`Event::Restored`].
///
/// ```text
/// loop {
///     guest's access ──► face().read / write ──► outbox: work, messages, line, wake
///     for queue in outbox.work { fetch ──► switch ──► deliver (receivers) ──► complete }
///     at the wake-up time ──► tick
/// }
/// ```
/// Every call ends in bounded time, whatever the guest's rings contain, allocates nothing, and never panics.
///
/// An owner in one page: `crates/plane/examples/vmm.rs`, with MSI-X: `crates/plane/examples/messages.rs`. An adapter of your own: the book's page
/// "Writing an adapter".
pub trait Adapter: Snapshot + Send {
    /// Its interface to the guest.
    fn face(&mut self) -> Face<'_>;

    /// Reads descriptors of a transmit queue into `batch`, which the caller has [started](Batch::start). No descriptor is completed
    /// yet. Dropped frames are counted here.
    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress;

    /// The packets of `batch` are done: completes their descriptors, and interrupts if the guest enabled that.
    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>);

    /// Puts frames into the guest's buffers. Each is taken, dropped and counted, or refused for lack of room. Once a queue refuses,
    /// it refuses for the rest of the call; a [held](Frames::held) queue refuses from the start. The adapter keeps no position:
    /// [`Pick::from`](crate::Pick::from) is the first frame to deliver, and a refusal names the first one not taken.
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery;

    /// Handles an event.
    fn notice(&mut self, event: Event, cx: &mut Context<'_>);

    /// The time asked for with [`Outbox::wake`](crate::Outbox::wake) has come.
    fn tick(&mut self, cx: &mut Context<'_>);

    /// Resets the adapter.
    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>);

    /// Number of transmit queues that may have work now.
    fn transmit_queues(&self) -> u16;

    /// Whether the guest's driver has started the device: frames may flow.
    fn is_driven(&self) -> bool;

    /// The features that the guest's driver has enabled, in short words for a person ("tso4", "rx-checksum", "mq 4").
    fn features(&self) -> Vec<&'static str>;

    /// Whether a queue is stopped because its driver broke it. Queues are numbered as in
    /// [`Outbox::stalled`](crate::Outbox::stalled).
    fn stall(&self, _number: u16) -> Option<Stall> {
        None
    }

    /// Why the receiver takes no frame now, in words for a person: "its receiver is off (CSR0.RXON)". Only registers are looked at: `None`
    /// also if the reason lies in a ring in guest memory, or if the adapter is not driven.
    fn receive_block(&self) -> Option<&'static str> {
        None
    }

    /// Takes the adapter's next ask for its family, after [`Outbox::ASK`](crate::Outbox::ASK). The answer comes as [`Event::Answer`].
    fn ask(&mut self) -> Option<Ask> {
        None
    }

    /// Makes a family for a port that belongs to no card. This adapter is its only function, number 0.
    fn family_of_one(&self) -> Option<Box<dyn Family>> {
        None
    }
}
