//! The ways in which a team uses its members, as values that a host changes while the team runs. Members are named by their places.

use std::time::Duration;

use nicety_lacp::Settings;

use super::{Capacity, Hash, Lacp, MEMBERS_MOST, Queues, Rule, Spread, Standby};

/// A way in which a team uses its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One at a time: [`Standby`].
    Standby {
        /// The members in the order of preference; the first is the primary.
        order: Vec<usize>,
        /// The time for which the primary must be up before it is used again after a failure.
        fail_back: Duration,
    },
    /// All that LACP agrees on: [`Lacp`].
    Lacp(Settings),
    /// All that are up, each port by one of them: [`Spread`].
    Port,
    /// All that are up, each station by one of them.
    Source,
    /// All that are up, each port by one of them, which a full link leaves.
    Load(Vec<Capacity>),
    /// The queues of one interface: [`Queues`].
    Queues {
        /// All frames leave by one of them: a rate or a class holds for the interface.
        one_sends: bool,
    },
}

impl Mode {
    /// A rule for this mode, whose members are all down.
    pub fn rule(&self) -> Box<dyn Rule> {
        match self {
            Self::Standby { order, fail_back } => Box::new(Standby::ordered(order, *fail_back)),
            Self::Lacp(settings) => Box::new(Lacp::new(settings, MEMBERS_MOST)),
            Self::Port | Self::Source => Box::new(Spread::new()),
            Self::Load(capacities) => Box::new(Spread::by_load(capacities)),
            Self::Queues { one_sends } => Box::new(Queues::new(*one_sends)),
        }
    }

    /// The only value that may choose a frame's member in this mode, if there is but one.
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
