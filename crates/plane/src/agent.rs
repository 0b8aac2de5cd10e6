//! Agents hear and speak on a port without a guest: for the protocols between neighbours that no switch forwards (LACP, LLDP), for
//! multicast groups, and for addresses that are reached by this port from now on.

use std::net::IpAddr;

use nicety_adapter::{Frames, HEAD_BYTES, Time};
use serde::{Deserialize, Serialize};

/// Most bytes of a frame that an agent sends to the link's neighbour.
pub(crate) const OUTWARD_MAX: usize = 1514;
/// Most bytes of a frame that an agent sends to the switch: the private head that each packet has.
pub(crate) const INWARD_MAX: usize = HEAD_BYTES;

/// The state of an agent's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Frames can pass: the uplink has carrier, or a peer, and has not failed.
    pub is_up: bool,
    /// Frames wait for the uplink.
    pub has_backlog: bool,
    /// Bytes that were sent to the neighbour, and taken from it, so far.
    pub bytes: [u64; 2],
}

/// A port's neighbour, as it tells by LLDP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The system's name; without one, its chassis's name.
    pub system: String,
    /// Name of the neighbour's port.
    pub port: String,
    /// End of its time to live.
    pub until: Time,
}

/// Hears and speaks on a port, in the port's own turns: to the neighbour of the link or, by its [`Role`], to the switch. The port makes
/// these calls with its lock held, so an agent must not call back into the port, nor block.
pub trait Agent: Send {
    /// The port's state, at the end of each of its turns, before [`speak`](Agent::speak).
    fn link(&mut self, _state: LinkState, _now: Time) {}

    /// A frame came in that the switch does not forward. Its destination is reserved for the neighbour (IEEE 802.1Q-2018, table 8-1), or
    /// this link carries no traffic now. `frame` has at most 1514 bytes, and its tag. Returns true if the frame was for this agent: it then
    /// counts as `taken`, and not as dropped.
    fn hear(&mut self, _frame: &[u8], _now: Time) -> bool {
        false
    }

    /// The switch sends these frames to the port. Only a [`Role::Querier`] is shown them.
    fn receive(&mut self, _frames: &Frames<'_>, _now: Time) {}

    /// Sends the frames that are due, each by one call of `send`, which returns false if there is no room now. A frame for the neighbour
    /// has at most 1514 bytes, a frame for the switch at most 128.
    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool);

    /// The time of the next turn that this agent needs; a past time means at once.
    fn wake(&self) -> Option<Time>;

    /// Whether the agent's work is done. It then leaves the port.
    fn is_done(&self) -> bool {
        false
    }

    /// The agent's state, for another process; `None` if the agent begins anew there.
    fn save(&self) -> Option<SavedAgent> {
        None
    }

    /// Goes on from the state of an agent in the same role. Call it before the first turn.
    fn restore(&mut self, _saved: &SavedAgent) {}

    /// Another process has heard this neighbour on the same link.
    fn meet(&mut self, _neighbour: &Neighbour) {}

    /// The neighbour that this agent has heard, if it listens for one.
    fn neighbour(&self, _now: Time) -> Option<&Neighbour> {
        None
    }
}

/// An agent's purpose. A port has one of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A team's member.
    Member,
    /// Tells the neighbour who is here: [`Announcer`](crate::Announcer).
    Announcer,
    /// Hears who the neighbour is.
    Listener,
    /// Asks the switch's other ports for their multicast groups: [`Querier`](crate::Querier).
    Querier,
    /// Announces once the addresses that are behind this port from now on. On an uplink it tells the neighbour, on a guest's port the
    /// switch.
    Herald,
    /// Sends a probe to the neighbour once, to find out whether the probe comes back by another uplink.
    Probe,
    /// Another protocol.
    Other,
}

impl Role {
    /// Whether such an agent speaks to the switch on this port, and not to the neighbour of its link.
    pub(crate) fn faces_switch(self, is_link: bool) -> bool {
        match self {
            Self::Querier => true,
            Self::Herald => !is_link,
            Self::Member | Self::Announcer | Self::Listener | Self::Probe | Self::Other => false,
        }
    }
}

/// The state of an agent, for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SavedAgent {
    /// The state of a [`Role::Querier`].
    Querier(SavedQuerier),
    /// The frames that a [`Role::Herald`] has still to send.
    Herald(Vec<Vec<u8>>),
}

/// The state of a querier, for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedQuerier {
    pub(crate) mac: [u8; 6],
    /// Its VLANs, and until when others query there, for IGMP and for MLD.
    pub(crate) networks: Vec<(Option<u16>, [Time; 2])>,
    pub(crate) next: u32,
    pub(crate) at: Time,
    pub(crate) rounds: u32,
    pub(crate) left: Vec<LeftGroup>,
}

/// A group that a host has left, and the number of queries still to send for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftGroup {
    /// Its place among the networks.
    pub network: u32,
    pub group: IpAddr,
    pub count: u8,
    pub at: Time,
}
