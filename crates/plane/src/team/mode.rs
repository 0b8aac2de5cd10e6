//! The ways in which a team uses its members, as values that a host changes while the team runs. Members are named by their places.

use std::time::Duration;

use nicety_lacp::Settings;

use crate::hash::Hash;

/// A link of a team by load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Its place in the team.
    pub place: usize,
    /// Its name, for a person.
    pub name: String,
    /// Its rate in bit/s, each way.
    pub bits_per_second: u64,
}

/// A way in which a team uses its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One at a time: [`Standby`](super::Standby).
    Standby {
        /// The members in the order of preference; the first is the primary.
        order: Vec<usize>,
        /// The time for which the primary must be up before it is used again after a failure.
        fail_back: Duration,
    },
    /// All that LACP agrees on: [`Lacp`](super::Lacp).
    Lacp(Settings),
    /// All that are up, each port by one of them: [`Spread`](super::Spread).
    Port,
    /// All that are up, each station by one of them.
    Source,
    /// All members that are up, each port by one of them. If a link is full, ports move to other members.
    Load(Vec<Capacity>),
    /// The queues of one interface: [`Queues`](super::Queues).
    Queues {
        /// All frames leave by one of them: a rate or a class holds for the interface.
        one_sends: bool,
    },
}

impl Mode {
    /// The hash that chooses a frame's member, if this mode allows only one.
    pub fn hash(&self) -> Option<Hash> {
        match self {
            Self::Standby { .. } => Some(Hash::default()),
            Self::Lacp(_) => None,
            Self::Port => Some(Hash::Port),
            Self::Queues { .. } => Some(Hash::Sender),
            Self::Source => Some(Hash::Source),
            Self::Load(_) => Some(Hash::Moved),
        }
    }
}
