//! Teams of uplinks.

use std::sync::Arc;

use nicety_adapter::{PortId, Reason, Time};
use nicety_plane::{Hash, MemberState, Port, Rule, State, Steering, Team};
use nicety_switch::Policy;
use tracing::info;

use super::{Daemon, PortView, StartError};

/// A team that is open. Its members are uplinks.
#[derive(Debug)]
pub(super) struct RunningTeam {
    pub name: String,
    pub id: PortId,
    pub policy: Policy,
    steering: Arc<Steering>,
    /// The uplinks that are open, by their places.
    members: Vec<Option<Arc<Port>>>,
}

/// An uplink's place in a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The team's name.
    pub team: String,
    /// Its place among the members.
    pub place: usize,
}

/// A team's members: the name and the state of each that is open.
pub type MemberViews = Vec<(String, MemberState)>;

impl Daemon {
    /// Adds a team to the switch. Its members are opened after it, with [`Daemon::open_uplink`].
    pub fn open_team(
        &self,
        name: &str,
        members: usize,
        rule: Box<dyn Rule>,
        hash: Hash,
        policy: &Policy,
    ) -> Result<(), StartError> {
        let id = self.free_id(0);
        let steering = Arc::new(Steering::new(rule, hash));
        let team = Arc::new(Team::new(id, Arc::clone(&steering), vec![None; members]));
        let joined = self.plane.join_team(team, policy);
        joined.map_err(|source| StartError::Switch { port: name.to_owned(), source })?;
        let members = vec![None; members];
        self.teams().push(RunningTeam { name: name.to_owned(), id, policy: policy.clone(), steering, members });
        info!(team = name, "opened");
        Ok(())
    }

    /// Removes a team whose members are closed.
    pub fn close_team(&self, name: &str) {
        let closed = {
            let mut teams = self.teams();
            let index = teams.iter().position(|team| team.name == name);
            index.map(|index| teams.remove(index))
        };
        if let Some(team) = closed {
            self.plane.leave_all(&[team.id]);
            info!(team = name, "closed");
        }
    }

    /// Makes a port a member.
    pub(super) fn as_member(&self, port: Port, membership: &Membership) -> Result<Port, StartError> {
        let teams = self.teams();
        let Some(team) = teams.iter().find(|team| team.name == membership.team) else {
            return Err(StartError::NoTeam(membership.team.clone()));
        };
        let memory = |source| StartError::Memory { port: team.name.clone(), source };
        port.in_team(team.id, &team.steering, membership.place).map_err(memory)
    }

    /// The team uses this port from now on, or none, at this place.
    pub(super) fn fill_place(&self, membership: &Membership, port: Option<Arc<Port>>) {
        let mut teams = self.teams();
        let Some(team) = teams.iter_mut().find(|team| team.name == membership.team) else { return };
        let has_left = port.is_none();
        if let Some(place) = team.members.get_mut(membership.place) {
            *place = port;
        }
        let new = Team::new(team.id, Arc::clone(&team.steering), team.members.clone());
        // The team has joined, so there is room for it.
        let _joined = self.plane.join_team(Arc::new(new), &team.policy);
        if has_left {
            self.plane.leave_team(team.id, membership.place, self.clock.now());
        }
    }

    /// The teams as ports: their frames are counted by their members, but for those that found none in use.
    pub(super) fn team_views(&self, uplink: impl Fn(PortId) -> Option<String>) -> Vec<PortView> {
        let (epoch, now) = (self.epoch(), self.clock.now());
        let view = |team: &RunningTeam| {
            let mut state = State::of_team();
            state.counters.receive_drops[Reason::LinkDown as usize] = team.steering.lost_frames();
            PortView {
                spec: None,
                name: team.name.clone(),
                id: team.id,
                policy: team.policy.clone(),
                wanted: Vec::new(),
                neighbour: None,
                state,
                signals: 0,
                blank: false,
                last_end: None,
                absence: None,
                epoch,
                members: Some(self.members_of(team, &uplink, now)),
            }
        };
        self.teams().iter().map(view).collect()
    }

    fn members_of(&self, team: &RunningTeam, uplink: impl Fn(PortId) -> Option<String>, now: Time) -> MemberViews {
        let states = team.steering.states(team.members.len(), now);
        let open = team.members.iter().zip(states).filter_map(|(port, state)| Some((port.as_ref()?.id(), state)));
        open.filter_map(|(id, state)| Some((uplink(id)?, state))).collect()
    }
}
