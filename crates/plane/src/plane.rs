//! All ports of one switch.

mod announce;
mod carrier;
mod duplicates;
mod flows;
mod looped;
mod mirror;
mod passing;
mod trace;
mod turn;
mod watched;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32};

use arc_swap::ArcSwap;
use nicety_adapter::{Batch, Pick, PortId, Time};
use nicety_switch::{Full, Limits, Policy, Switch, Vlan};

use crate::agent::Neighbour;
use crate::flows::FlowPlan;
use crate::group::Group;
use crate::hash::Hash;
use crate::port::{Port, PortRights};
use crate::team::Mode;
use crate::times::{Histogram, Times};
use crate::watch::Watcher;
pub use carrier::AdapterLink;
use carrier::Followers;
pub use looped::Loop;
use looped::LoopGuard;
use mirror::Mirrors;
pub use mirror::{MIRRORS_MAX, Mirror, Mirrored};
pub use trace::{Trace, TraceError};
pub use turn::{Outcome, Turn};

/// Reasons why a port could not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneError {
    /// The switch has its maximum of ports.
    Full(Full),
    /// The number is in use.
    Taken(PortId),
}

impl std::fmt::Display for PlaneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Full(full) => full.fmt(f),
            Self::Taken(port) => write!(f, "port number {} is taken", port.0),
        }
    }
}

impl std::error::Error for PlaneError {}

/// The meaning of a number of the switch. The ports of a group have numbers too, on which the switch decides nothing.
#[derive(Clone, Debug)]
pub enum Slot {
    /// One port.
    Port(Arc<Port>),
    /// Several ports, of which each frame goes to one.
    Group(Arc<Group>),
    /// A port that gets a mirror's copies, at most at a rate, and nothing else.
    Sink(Arc<Port>),
}

impl Slot {
    /// The port with this number; a team has none.
    pub fn port(&self) -> Option<&Arc<Port>> {
        match self {
            Self::Port(port) | Self::Sink(port) => Some(port),
            Self::Group(group) => group.lead(),
        }
    }

    /// The team, if it is one.
    pub fn team(&self) -> Option<&Arc<Group>> {
        match self {
            Self::Group(group) if group.steering().is_some() => Some(group),
            Self::Port(_) | Self::Group(_) | Self::Sink(_) => None,
        }
    }

    /// Its ports.
    pub(crate) fn ports(&self) -> impl Iterator<Item = &Arc<Port>> {
        let (port, group) = match self {
            Self::Port(port) | Self::Sink(port) => (Some(port), None),
            Self::Group(group) => (None, Some(group)),
        };
        port.into_iter().chain(group.into_iter().flat_map(|group| group.ports()))
    }

    /// The port that a packet goes to now.
    pub(crate) fn port_for(&self, batch: &Batch, pick: &Pick) -> Option<&Arc<Port>> {
        match self {
            Self::Port(port) | Self::Sink(port) => Some(port),
            Self::Group(group) => group.port_for(batch, pick),
        }
    }

    /// Whether it has not left.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        self.port().is_none_or(|port| !port.has_left())
    }

    /// Whether it is a guest's.
    pub(crate) fn is_guests(&self) -> bool {
        self.port().is_some_and(|port| !port.is_link())
    }
}

/// A switch and its ports. Workers read the list without a lock; a join or leave replaces the whole list.
#[derive(Debug)]
pub struct Plane {
    switch: Switch<Slot>,
    /// [`WATCHED`], [`GUARDED`], [`COUNTED`]: read once per batch and receiver.
    pub(crate) watched: AtomicU8,
    /// The number of `flows`, for workers, which keep a copy.
    pub(crate) flow_version: AtomicU32,
    pub(crate) flows: ArcSwap<FlowPlan>,
    pub(crate) watchers: ArcSwap<Vec<Arc<dyn Watcher>>>,
    pub(crate) mirrors: ArcSwap<Mirrors>,
    pub(crate) times: Times,
    pub(crate) followers: Followers,
    pub(crate) guard: LoopGuard,
}

/// There are watchers or mirrors.
pub(crate) const WATCHED: u8 = 1;
/// There are uplinks between which frames could go round.
pub(crate) const GUARDED: u8 = 2;
/// Flows are counted.
pub(crate) const COUNTED: u8 = 4;

impl Plane {
    /// A switch without ports.
    pub fn new(limits: Limits) -> Self {
        Self {
            guard: LoopGuard::new(limits.seed),
            switch: Switch::new(limits),
            watched: AtomicU8::new(0),
            flow_version: AtomicU32::new(0),
            flows: ArcSwap::default(),
            watchers: ArcSwap::default(),
            mirrors: ArcSwap::default(),
            times: Times::default(),
            followers: Followers::default(),
        }
    }

    /// The switch.
    pub fn switch(&self) -> &Switch<Slot> {
        &self.switch
    }

    /// A port joins. A member of a team joins behind it, and so does a part of a port.
    pub fn join(&self, port: Arc<Port>) -> Result<(), PlaneError> {
        let id = port.id();
        self.is_free(id)?;
        let is_uplink = port.is_link();
        let joined = match port.place().is_behind_another() {
            true => self.switch.keep(id, Slot::Port(port)),
            false => self.place(port),
        };
        if joined.is_ok() && is_uplink {
            self.mark_guarded();
        }
        joined.map_err(PlaneError::Full)
    }

    /// A port with parts joins, with a policy. The other parts join before it, so that no frame comes from an unknown number.
    pub fn join_parts(&self, parts: &Arc<Group>, policy: &Policy) -> Result<(), PlaneError> {
        let id = parts.id();
        self.is_free(id)?;
        parts.ports().for_each(|part| self.set_policy(part, policy));
        self.switch.join(id, Slot::Group(Arc::clone(parts))).map_err(PlaneError::Full)
    }

    /// Puts a port where it belongs: among the networks, or aside, where it gets a mirror's copies alone.
    fn place(&self, port: Arc<Port>) -> Result<(), Full> {
        let id = port.id();
        match (port.is_aside(), port.is_link()) {
            (true, _) => self.switch.keep(id, Slot::Sink(port)),
            (false, true) => self.switch.join_uplink(id, Slot::Port(port)),
            (false, false) => self.switch.join(id, Slot::Port(port)),
        }
    }

    /// A port that has joined gets a mirror's copies from now on, or no longer.
    pub(crate) fn move_aside(&self, port: &Arc<Port>) {
        // It has joined, so there is room for it.
        let _joined = self.place(Arc::clone(port));
        if port.is_aside() {
            self.switch.forget(port.id());
        }
    }

    fn is_free(&self, id: PortId) -> Result<(), PlaneError> {
        if self.switch.slots().get(id).is_some() { Err(PlaneError::Taken(id)) } else { Ok(()) }
    }

    /// A team joins with a policy. It replaces an earlier team with the same number. Its members join after it.
    pub fn join_team(&self, team: Arc<Group>, policy: &Policy) -> Result<(), PlaneError> {
        let id = team.id();
        if self.port(id).is_some() {
            return Err(PlaneError::Taken(id));
        }
        self.set_team_policy(id, policy);
        self.switch.join_uplink(id, Slot::Group(team)).map_err(PlaneError::Full)
    }

    /// Sets a team's policy.
    pub fn set_team_policy(&self, id: PortId, policy: &Policy) {
        self.set_guarded_policy(id, policy);
        if policy.blocked {
            self.drop_waiting(id);
        }
    }

    /// The port at this place of a team has left the switch. The team then uses its other members.
    pub fn leave_team(&self, id: PortId, place: usize, now: Time) {
        if let Some(team) = self.team(id) {
            team.steering().inspect(|steering| steering.leave(place, now));
            self.announce_moved(&team, now);
            team.stir();
        }
    }

    /// Changes the mode in which a team uses its members, which stay. `hash` counts in modes that [leave it open](Mode::hash).
    pub fn change_team(&self, id: PortId, mode: &Mode, hash: Hash, now: Time) {
        if let Some(team) = self.team(id) {
            team.steering().inspect(|steering| steering.change(mode, mode.hash().unwrap_or(hash), now));
            self.announce_moved(&team, now);
            team.stir();
        }
    }

    /// The team with this number.
    pub fn team(&self, id: PortId) -> Option<Arc<Group>> {
        self.switch.slots().get(id)?.team().cloned()
    }

    /// A port joins with a policy. If its number is in use, the policy of the port with that number stays.
    pub fn join_with(&self, port: Arc<Port>, policy: &Policy) -> Result<(), PlaneError> {
        self.set_policy(&port, policy);
        self.join(port)
    }

    /// Sets a port's policy: its VLANs, its permitted frames, its rates. The port need not have joined. If another port has its
    /// number now, nothing happens. The change loses and delays no frame, of this port or any other.
    pub fn set_policy(&self, port: &Port, policy: &Policy) {
        if self.port(port.id()).is_some_and(|joined| !std::ptr::eq(joined.as_ref(), port)) {
            return;
        }
        if port.place().shown == port.id() {
            self.set_guarded_policy(port.id(), policy);
            port.listen(policy.lldp);
        }
        if let Some(Slot::Group(parts)) = self.switch.slots().get(port.id()) {
            // Such a port has no rates of its own: see the host file.
            parts.ports().skip(1).for_each(|part| part.set_shapes(None, None, policy.log));
        }
        port.set_shapes(policy.transmit, policy.receive, policy.log);
        let tagged = matches!(policy.vlan, Vlan::Access(_));
        port.set_rights(PortRights { mac_changes: policy.mac_changes, tagged });
        if policy.blocked {
            self.drop_waiting(port.id());
        }
    }

    /// The present LLDP neighbour of a port, if the port listens.
    pub fn neighbour(&self, port: PortId, now: Time) -> Option<Neighbour> {
        self.port(port)?.neighbour(now)
    }

    /// A port leaves.
    pub fn leave(&self, id: PortId) -> Option<Arc<Port>> {
        self.leave_all(&[id]).pop()
    }

    /// Removes ports as [`leave`](Self::leave) does. It visits the switch's tables and the other ports once, whatever the number of ports.
    pub fn leave_all(&self, ids: &[PortId]) -> Vec<Arc<Port>> {
        let left = self.switch.leave_all(ids);
        let ports: Vec<Arc<Port>> = left.iter().filter_map(|slot| slot.port().cloned()).collect();
        self.unguard(ids);
        let slots = self.switch.slots();
        ports.iter().for_each(|port| self.let_go(&port.retire()));
        ports.iter().for_each(|port| self.unfollow(port));
        slots.iter().filter_map(Slot::port).for_each(|other| other.forget(ids));
        ports
    }

    /// How long frames stayed in the switch, sampled from one batch in [`SAMPLE_EVERY`](crate::SAMPLE_EVERY).
    pub fn times(&self) -> Histogram {
        self.times.histogram()
    }

    /// A port by its number.
    pub fn port(&self, id: PortId) -> Option<Arc<Port>> {
        self.switch.slots().get(id)?.port().cloned()
    }
}
