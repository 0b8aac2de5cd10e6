//! A team's state, for another process that goes on with its members.

use nicety_adapter::Time;
use serde::{Deserialize, Serialize};

/// The state of a [`Steering`](super::Steering).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSteering {
    /// Its rule's.
    pub rule: Option<SavedRule>,
    /// Members that distribute, a bit each.
    pub spread: u32,
    /// The hash in use, by its number.
    pub hash: u8,
    /// Lower half: the members whose link is up, a bit each. Upper half: the members that still drop the frames that waited when they took
    /// over.
    pub up: u32,
    /// Frames that found no usable member.
    pub lost: u64,
    /// A change that waits until backlogs are empty: the time at which it happens in any case, and the members that have not reported an
    /// empty backlog.
    pub settling: Option<(Time, u32)>,
    /// The time of the last change in nanoseconds.
    pub changed_at: u64,
    /// Ports that have moved, and the places of their members.
    pub moved_to: Vec<(u16, u8)>,
}

/// The state of a [`Rule`](super::Rule).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedRule {
    /// Active-standby.
    Standby(SavedStandby),
    /// 802.3ad.
    Lacp(nicety_lacp::Saved),
    /// Originating port, source address, load.
    Spread(SavedSpread),
    /// Queues of one interface: those whose link is up.
    Queues(u32),
    /// Queues of one interface, of which one sends.
    OneQueue(SavedSender),
}

/// The state of [`Queues`](super::Queues) of which one sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSender {
    /// The members whose link is up, a bit each.
    pub(super) up: u32,
    /// The place of the one that sends.
    pub(super) sender: u8,
}

/// The state of a [`Standby`](super::Standby).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedStandby {
    pub(super) up: u32,
    pub(super) active: Option<u8>,
    pub(super) has_begun: bool,
    pub(super) back_at: Option<Time>,
    pub(super) lingering: Option<u8>,
    pub(super) takes_at: Option<Time>,
}

/// The state of a [`Spread`](super::Spread).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSpread {
    pub(super) up: u32,
    pub(super) hears: Option<u8>,
    pub(super) hears_at: Option<Time>,
    /// By the members' places: bytes sent and taken at the last measurement, the load in percent, and since when it is full.
    pub(super) loads: Vec<([u64; 2], u64, Option<Time>)>,
    pub(super) measured_at: Option<Time>,
}

/// A member's place as it is saved.
pub(super) fn saved_place(place: usize) -> u8 {
    u8::try_from(place).unwrap_or(u8::MAX)
}
