//! Agents hear and speak on a port for the protocols between neighbours that no switch forwards: LACP and LLDP.

use nicety_adapter::Time;

use crate::lldp::Neighbour;

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

/// Hears on a port, and speaks on an uplink's, in the port's own turns. Its calls are made with the port's lock held: it must not call back
/// into the port, nor block.
pub trait Agent: Send {
    /// The port's state, at the end of each of its turns, before [`speak`](Agent::speak).
    fn link(&mut self, _state: LinkState, _now: Time) {}

    /// A frame came in that the switch does not forward: its destination is reserved for the neighbour (IEEE 802.1Q-2018, table 8-1), or
    /// this link carries no traffic now. At most 1514 bytes of it are here, and a tag if it has one.
    fn hear(&mut self, _frame: &[u8], _now: Time) {}

    /// Sends what is due, each whole frame by a call of `send`, which is false if the uplink has no room now.
    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool);

    /// The time of the next turn that it needs; a past time means at once.
    fn wake(&self) -> Option<Time>;

    /// Another process has heard this neighbour on the same link.
    fn meet(&mut self, _neighbour: &Neighbour) {}

    /// The neighbour that it has heard, if that is what it is for.
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
    /// Another protocol.
    Other,
}
