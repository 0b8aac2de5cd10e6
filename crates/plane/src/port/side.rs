//! The steps that each end of a port does in its own way.

use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Counters, Delivery, Frames, Outbox, PortId, Progress, Set, Shape, Time, Uplink};
use nicety_memory::Map;

use super::Shell;
use super::family::Membership;
use super::shaping::SavedTokens;
use super::state::State;
use crate::backlog::{Backlog, Drained};
use crate::order::LaneKey;
use crate::stage::Stage;

/// The work of an end. A method with a body here is for one kind of end alone: the other keeps this body, which does nothing.
///
/// Methods that call the adapter or uplink may panic: [`Inner::ask`](super::Inner::ask) catches that.
pub(super) trait Side {
    fn name(&self) -> &'static str;

    /// Its adapter or uplink has panicked, and is not called any more.
    fn abandon(&mut self);

    /// The uplink, if it is a link that has not panicked.
    fn uplink(&mut self) -> Option<&mut dyn Uplink> {
        None
    }

    /// Its adapter's family, if the adapter is a function of a card.
    fn family(&mut self) -> Option<&mut Membership> {
        None
    }

    /// Adds what it knows to the port's state.
    fn describe(&self, state: &mut State);

    /// The time that it has asked for has come. True if that is a reason to ask it for frames, and to offer it some.
    fn tick(&mut self, counters: &mut Counters, now: Time) -> bool;

    /// Carries out what its adapter or uplink asks for outside of the port, and returns the rest. `Err`: it panicked.
    fn settle(&mut self, counters: &mut Counters, shell: &dyn Shell) -> Result<Outbox, String>;

    /// Descriptors read beyond the usual number since the last [`settle`](Side::settle).
    fn excess(&self) -> u32 {
        0
    }

    /// Whether the port gets a turn when an agent wants one.
    fn wakes_for_agents(&self) -> bool {
        false
    }

    /// Whether its driver has started it; a link needs none.
    fn is_driven(&self) -> bool {
        true
    }

    /// Whether a neighbour can hear it.
    fn has_carrier(&mut self) -> bool {
        false
    }

    /// Whether it is a link that can pass frames now.
    fn passes(&mut self) -> bool {
        false
    }

    /// Its guest has this memory from now on. Returns the old one.
    fn replace_memory(&mut self, memory: Arc<Map>) -> Arc<Map> {
        memory
    }

    /// Its guest has mapped this page of doorbells, or none.
    fn set_page(&mut self, _page: Option<Arc<Map>>) {}

    /// Its worker polls it in each round, or not. True if that is new. Only guests have queues that are polled.
    fn set_polls(&mut self, _polls: bool) -> bool {
        false
    }

    /// Whether its worker polls it in each round.
    fn polls(&self) -> bool {
        false
    }

    /// The host decides the state of its guest's link.
    fn set_link(&mut self, _is_up: bool) {}

    /// Errors of its guest up to this number were reported by another process.
    fn go_on_after(&mut self, _errors: u64) {}

    /// Refusals of its guest's frames are logged, or not.
    fn set_logs(&mut self, _logs: bool) {}

    /// Whether a refusal is to be logged now.
    fn logs(&mut self, _now: Time) -> bool {
        false
    }

    /// Sets the shapes. True if what waits may go now.
    fn set_shapes(&mut self, _transmit: Option<Shape>, _receive: Option<Shape>, _waits: bool) -> bool {
        false
    }

    /// Replaces the backlog as soon as that is empty. Returns the backlogs that are no longer needed.
    fn change_backlog(&mut self, new: Backlog, _backlog: &mut Backlog) -> [Option<Box<Backlog>>; 3] {
        [Some(Box::new(new)), None, None]
    }

    /// The VM has gone. Returns its memory.
    fn detach(&mut self, counters: &mut Counters) -> Arc<Map>;

    /// It was restored from a state of this time by its own clock, which goes on. Returns the state of its link.
    fn go_on_from(&mut self, _at: Time, _counters: &mut Counters, _now: Time) -> Option<bool> {
        None
    }

    /// The memory of frames that are fetched from it.
    fn source(&self) -> &Arc<Map>;

    /// Fetches into a batch that has its origin and queue.
    fn fetch(&mut self, budget: Budget, batch: &mut Batch, counters: &mut Counters, now: Time) -> Progress;

    /// A fetch has not panicked.
    fn fetched(&mut self, _batch: &Batch, _now: Time) {}

    /// Whether frames may have come that the last fetch left where they wait.
    fn withholds(&mut self) -> bool {
        false
    }

    fn complete(&mut self, batch: &Batch, counters: &mut Counters, now: Time);

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery;

    /// No more frames come for now, although some wait.
    fn pause(&mut self, _now: Time) {}

    /// Frames for it found no room.
    fn missed(&mut self, _frames: u32, _counters: &mut Counters, _now: Time) {}

    /// Logs what calls have written to a guest's memory.
    fn publish(&self) {}

    /// The number of links that hold it grows by this (backpressure). Links are never held.
    fn hold(&mut self, _by: i32) {}

    fn is_held(&self) -> bool {
        false
    }

    /// Holds a sender, unless it is stuck. True if it was not held before. A guest holds nobody: what it does not read is dropped.
    fn hold_sender(&mut self, _sender: PortId, _backlog: &mut Backlog, _now: Time, _shell: &dyn Shell) -> bool {
        false
    }

    /// The watchdog: whether it has taken nothing for so long that it must release the senders that it holds.
    fn watch(&mut self, _backlog: &Backlog, _now: Time, _shell: &dyn Shell) -> bool {
        false
    }

    /// Whether there are tokens for frames from it.
    fn may_send(&self, _now: Time) -> bool {
        true
    }

    /// The time of the next tokens for frames from it, if there are none now.
    fn sends_at(&self, _now: Time) -> Option<Time> {
        None
    }

    /// Whether there are tokens for frames for it.
    fn may_receive(&self, _now: Time) -> bool {
        true
    }

    /// Bytes for which there are tokens, for it.
    fn receive_tokens(&self, _now: Time) -> u64 {
        u64::MAX
    }

    fn charge_receive(&mut self, _bytes: u64, _now: Time) {}

    /// The time of a turn to ask for, if frames from it, or for it, wait for tokens.
    fn tokens_at(&mut self, _sends: bool, _receives: bool, _counters: &mut Counters, _now: Time) -> Option<Time> {
        None
    }

    /// The lane of the backlog in which a refused frame waits.
    fn lane(&self, sender: PortId, queue: u16) -> LaneKey;

    /// Whether room in any queue opens all lanes.
    fn opens_all(&self) -> bool;

    /// Whether frames must wait before it is asked: behind others, or for tokens.
    fn must_wait(&self, is_behind: bool, now: Time) -> bool;

    /// Whether frames wait for which there is room.
    fn may_drain(&self, room: Set, stage: &Stage) -> bool;

    /// Frames were offered to it from the backlog.
    fn drained(&mut self, drained: &Drained, backlog: &mut Backlog, now: Time);

    /// The backlog was dropped.
    fn cleared(&mut self, _backlog: &mut Backlog) {}

    /// Forgets waits whose time has come.
    fn pass(&mut self, _now: Time) {}

    /// The backlog has frames of another process.
    fn restored(&mut self) {}

    /// The tokens for what comes from it, and for what is for it, if they are limited.
    fn save_tokens(&self) -> [Option<SavedTokens>; 2] {
        [None; 2]
    }

    fn restore_tokens(&mut self, _saved: [Option<SavedTokens>; 2]) {}

    /// Whether it has work at this time, beside frames.
    fn is_due(&self, _now: Time) -> bool {
        false
    }
}
