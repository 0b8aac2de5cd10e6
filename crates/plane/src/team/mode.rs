//! The ways in which a team uses its members, as values that a host changes while the team runs. Members are named by their places.

use std::time::Duration;

use nicety_lacp::Settings;

use super::{Lacp, MEMBERS_MOST, Rule, Standby};

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
}

impl Mode {
    /// A rule for this mode, whose members are all down.
    pub fn rule(&self) -> Box<dyn Rule> {
        match self {
            Self::Standby { order, fail_back } => Box::new(Standby::ordered(order, *fail_back)),
            Self::Lacp(settings) => Box::new(Lacp::new(settings, MEMBERS_MOST)),
        }
    }
}
