//! The rule of a team: which members are used.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;

use nicety_adapter::{PortId, Time};

use super::MEMBERS_MAX;
use super::mode::Mode;
use super::saved::SavedRule;

/// Sets of members, a bit each, by their places in the team.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// Frames that come in on these are taken.
    pub collecting: u32,
    /// Frames leave by these.
    pub distributing: u32,
    /// Members that get no new frames to send. Frames that wait there still leave.
    pub lingering: u32,
}

/// Bytes that members and ports have carried so far.
pub struct Loads<'a> {
    /// Bytes sent and taken, by the members' places.
    pub links: &'a [[u64; 2]; MEMBERS_MAX],
    /// Bytes sent through the team, by the ports' numbers.
    pub ports: &'a [AtomicU64],
    /// The member that a port uses.
    pub place: &'a dyn Fn(usize) -> Option<usize>,
}

impl Debug for Loads<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loads").field("links", self.links).finish_non_exhaustive()
    }
}

/// A port uses another member from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The port.
    pub port: PortId,
    /// The member's place.
    pub to: usize,
    /// A sentence for a person: the event and its reason.
    pub words: String,
}

/// Decides which members are used. Members are named by their places in the team.
pub trait Rule: Send + Debug {
    /// A member's link is up or down. Called at least each time that this changes.
    fn link(&mut self, member: usize, is_up: bool, now: Time);

    /// Time passes: called in each member's turns, after [`link`](Rule::link).
    fn tick(&mut self, now: Time);

    /// A frame for the neighbour came in. True if it was for this rule.
    fn hear(&mut self, _member: usize, _frame: &[u8], _now: Time) -> bool {
        false
    }

    /// Sends what is due, as [`Agent::speak`](crate::Agent::speak) does.
    fn speak(&mut self, _member: usize, _now: Time, _send: &mut dyn FnMut(&[u8]) -> bool) {}

    /// The time of the next turn that this member needs.
    fn wake(&self, member: usize) -> Option<Time>;

    /// The members in use.
    fn links(&self) -> Links;

    /// Whether the neighbours must be told when another member is used: they do not know of the team.
    fn announces(&self) -> bool {
        false
    }

    /// The members by which flooded frames are taken, a bit each, if each such frame comes in by all members: see
    /// [`Spread`](super::Spread). `None`: it comes in once.
    fn floods(&self) -> Option<u32> {
        None
    }

    /// The time at which the rule wants to know the [`loads`](Rule::loads).
    fn measured_at(&self) -> Option<Time> {
        None
    }

    /// The loads so far.
    fn loads(&mut self, _loads: &Loads<'_>, _now: Time) {}

    /// A port that is to use another member.
    fn take_moved(&mut self) -> Option<Moved> {
        None
    }

    /// Whether the members are parts of one link: frames may overtake others when one takes the place of another, and what comes in has one
    /// control.
    fn is_one_link(&self) -> bool {
        false
    }

    /// Nothing is sent any more by the lingering members.
    fn settled(&mut self, _now: Time) {}

    /// A member's state in a few words.
    fn words(&self, member: usize, now: Time) -> String;

    /// Takes other settings while it runs. False if this is another rule's mode. [`tick`](Rule::tick) follows.
    fn set(&mut self, _mode: &Mode, _now: Time) -> bool {
        false
    }

    /// The rule's state without its settings, for another process; `None` if it begins anew there.
    fn save(&self) -> Option<SavedRule> {
        None
    }

    /// Restores a saved state. False, and nothing changes, if the state belongs to another rule.
    fn restore(&mut self, _saved: &SavedRule) -> bool {
        false
    }
}
