//! Teams of uplinks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nicety_adapter::{PortId, Reason, Time};
use nicety_frame::Mac;
use nicety_host::{LacpConfig, TeamMode, TransmitHash};
use nicety_lacp::Settings;
use nicety_plane::{Capacity, ClassState, Group, Hash, Loop, MEMBERS_MAX, MemberState, Mode, Port, State, Steering};
use nicety_switch::Policy;
use nicety_uplink::Interface;
use tracing::{info, warn};

use super::counts::Counts;
use super::{Daemon, PortView, StartError};
use crate::run::image::TeamImage;

/// The middle of the range: of equal links none is preferred.
const LACP_PORT_PRIORITY: u16 = 128;

/// The specification of a team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamSpec {
    /// Its name.
    pub name: String,
    /// Its uplinks by name, in the order of preference. At most [`MEMBERS_MAX`].
    pub members: Vec<String>,
    /// The rule by which it uses them.
    pub mode: TeamMode,
    /// Its address as an LACP system.
    pub system: Mac,
    /// Its policy on the switch.
    pub policy: Policy,
}

/// A team that is open. Its members are uplinks.
#[derive(Debug)]
pub(super) struct RunningTeam {
    pub id: PortId,
    pub spec: TeamSpec,
    steering: Arc<Steering>,
    /// The members' names by their places. A member keeps its place; a new one gets the first that is free.
    names: [Option<String>; MEMBERS_MAX],
    /// The uplinks that are open, by their places.
    ports: [Option<Arc<Port>>; MEMBERS_MAX],
    /// Counts of uplinks that have left.
    pub gone: Counts,
}

impl RunningTeam {
    fn place(&self, member: &str) -> Option<usize> {
        self.names.iter().position(|name| name.as_deref() == Some(member))
    }

    /// Gives each member a place.
    fn take_places(&mut self, spec: TeamSpec) {
        self.spec = spec;
        for name in &mut self.names {
            name.take_if(|name| !self.spec.members.contains(name));
        }
        for member in self.spec.members.clone() {
            if self.place(&member).is_none()
                && let Some(free) = self.names.iter_mut().find(|name| name.is_none())
            {
                *free = Some(member);
            }
        }
    }

    /// The members' places, in the order of preference.
    fn order(&self) -> impl Iterator<Item = usize> {
        self.spec.members.iter().filter_map(|member| self.place(member))
    }

    /// Counts of all members, with those of uplinks that have left.
    pub(super) fn counts(&self) -> Counts {
        let mut now = Counts::default();
        self.ports.iter().flatten().for_each(|port| now.add(port.state()));
        let Counts { transmit, receive, outward, inward } = &self.gone;
        now.transmit.add_all(*transmit);
        now.receive.add_all(*receive);
        for (sums, gone) in [(&mut now.outward, outward), (&mut now.inward, inward)] {
            let stays = |class: &&ClassState| sums.iter().any(|sum| sum.name == class.name);
            let gone: Vec<ClassState> = gone.iter().filter(stays).cloned().collect();
            gone.into_iter().for_each(|class| class.add_to(sums));
        }
        now
    }

    fn mode(&self) -> (Mode, Hash) {
        match &self.spec.mode {
            TeamMode::Standby { primary, fail_back } => {
                let mut order: Vec<usize> = self.order().collect();
                let primary = order.remove(*primary);
                order.insert(0, primary);
                let fail_back = Duration::from_secs(fail_back.0.into());
                (Mode::Standby { order, fail_back }, Hash::default())
            }
            TeamMode::Lacp(config) => (Mode::Lacp(lacp(config, self.spec.system)), hash(config.hash)),
            TeamMode::Port => (Mode::Port, Hash::default()),
            TeamMode::Source => (Mode::Source, Hash::default()),
            TeamMode::Queues { one_sends } => (Mode::Queues { one_sends: *one_sends }, Hash::default()),
            TeamMode::Load(rates) => {
                let links = self.spec.members.iter().zip(rates).filter_map(|(name, rate)| {
                    let (place, name) = (self.place(name)?, name.clone());
                    Some(Capacity { place, name, bits_per_second: rate.bits_per_second() })
                });
                (Mode::Load(links.collect()), Hash::default())
            }
        }
    }

    fn team(&self) -> Group {
        Group::team(self.id, Arc::clone(&self.steering), self.ports.to_vec())
    }
}

fn lacp(config: &LacpConfig, system: Mac) -> Settings {
    let LacpConfig { is_active, is_fast, min_links, system_priority, key, hash: _, system: _ } = *config;
    let (min_links, port_priority) = (min_links.into(), LACP_PORT_PRIORITY);
    Settings { is_active, is_fast, min_links, system_priority, system, key, port_priority }
}

fn hash(hash: TransmitHash) -> Hash {
    match hash {
        TransmitHash::Layer2 => Hash::Layer2,
        TransmitHash::Layer23 => Hash::Layer23,
        TransmitHash::Layer34 => Hash::Layer34,
        TransmitHash::Encap23 => Hash::Encap23,
        TransmitHash::Encap34 => Hash::Encap34,
        TransmitHash::VlanSource => Hash::VlanSource,
    }
}

/// A team's members: the name and the state of each that is open.
pub type MemberViews = Vec<(String, MemberState)>;

impl Daemon {
    /// Adds a team to the switch. Its members are opened after it, with [`Daemon::open_uplink`].
    pub fn open_team(&self, spec: &TeamSpec) -> Result<(), StartError> {
        self.open_team_from(spec, None)
    }

    /// A team goes on. Its members arrive after it.
    pub(crate) fn team_arrives(&self, spec: &TeamSpec, image: &TeamImage) {
        // Another address would be another system to the partner.
        let spec = TeamSpec { system: Mac(image.system), ..spec.clone() };
        if let Err(error) = self.open_team_from(&spec, Some(image)) {
            warn!("team {} does not go on: {error}", spec.name);
        }
    }

    /// All teams, for [`Daemon::team_arrives`]. Call it while the workers stand still.
    pub(crate) fn team_images(&self) -> Vec<TeamImage> {
        let image = |team: &RunningTeam| TeamImage {
            name: team.spec.name.clone(),
            id: team.id.0,
            system: team.spec.system.0,
            places: team.names.to_vec(),
            steering: team.steering.save(),
        };
        self.teams().iter().map(image).collect()
    }

    fn open_team_from(&self, spec: &TeamSpec, image: Option<&TeamImage>) -> Result<(), StartError> {
        let id = image.map_or_else(|| self.free_id(0), |image| PortId(image.id));
        let nobody = Mode::Standby { order: Vec::new(), fail_back: Duration::ZERO };
        let steering = Arc::new(Steering::in_mode(&nobody, Hash::default()));
        let (mut names, ports) = <([Option<String>; MEMBERS_MAX], _)>::default();
        let places = image.map(|image| &image.places[..]).unwrap_or_default();
        names.iter_mut().zip(places).for_each(|(name, place)| name.clone_from(place));
        let mut team = RunningTeam { id, spec: spec.clone(), steering, names, ports, gone: Counts::default() };
        team.take_places(spec.clone());
        let (mode, hash) = team.mode();
        if let Some(image) = image {
            team.steering = Arc::new(Steering::in_mode(&mode, hash));
            team.steering.restore(&image.steering, self.clock.now());
        }
        let joined = self.plane.join_team(Arc::new(team.team()), &spec.policy);
        joined.map_err(|source| StartError::Switch { port: spec.name.clone(), source })?;
        self.plane.change_team(id, &mode, hash, self.clock.now());
        self.plane.guard_uplink(id, &spec.name);
        self.teams().push(team);
        self.generation.fetch_add(1, Ordering::Relaxed);
        info!(team = spec.name, "opened");
        Ok(())
    }

    /// Changes a team while it works: its mode, its policy, the order of its members, and who they are. Uplinks that are members no more are
    /// closed before; new ones are opened after it.
    pub fn set_team(&self, spec: &TeamSpec) -> Result<(), StartError> {
        let mut teams = self.teams();
        let Some(team) = teams.iter_mut().find(|team| team.spec.name == spec.name) else {
            return Err(StartError::NoTeam(spec.name.clone()));
        };
        team.take_places(spec.clone());
        let (mode, hash) = team.mode();
        if !spec.policy.blocked {
            self.plane.unloop(team.id);
        }
        // The team has joined, so there is room for it.
        let _joined = self.plane.join_team(Arc::new(team.team()), &spec.policy);
        self.plane.carrier_changed(team.id, self.clock.now());
        self.plane.change_team(team.id, &mode, hash, self.clock.now());
        Ok(())
    }

    /// The common part of the queues of the interface with this name. They may arrive before their team does.
    pub(crate) fn interface(&self, name: &str) -> Arc<Interface> {
        let mut interfaces = self.interfaces.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        Arc::clone(interfaces.entry(name.to_owned()).or_default())
    }

    /// All frames leave by one of the queues of the interface with this name from now on, or by all. Frames that wait leave where they are.
    pub(super) fn set_queues(&self, name: &str, one_sends: bool) {
        let mut teams = self.teams();
        let Some(team) = teams.iter_mut().find(|team| team.spec.name == name) else { return };
        if let TeamMode::Queues { one_sends: before } = &mut team.spec.mode
            && std::mem::replace(before, one_sends) != one_sends
        {
            let (mode, hash) = team.mode();
            self.plane.change_team(team.id, &mode, hash, self.clock.now());
        }
    }

    /// A team carries nothing from now on, or again what it carried before.
    pub(crate) fn block_team(&self, name: &str, blocked: bool) {
        let mut teams = self.teams();
        let Some(team) = teams.iter_mut().find(|team| team.spec.name == name) else { return };
        team.spec.policy.blocked = blocked;
        if !blocked {
            self.plane.unloop(team.id);
        }
        self.plane.set_team_policy(team.id, &team.spec.policy);
        self.plane.carrier_changed(team.id, self.clock.now());
    }

    /// Closes the team of this name, if there is one. Its members are closed before.
    pub fn close_team(&self, name: &str) {
        let closed = {
            let mut teams = self.teams();
            let index = teams.iter().position(|team| team.spec.name == name);
            index.map(|index| teams.remove(index))
        };
        self.interfaces.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(name);
        if let Some(team) = closed {
            self.plane.leave_all(&[team.id]);
            self.generation.fetch_add(1, Ordering::Relaxed);
            info!(team = name, "closed");
        }
    }

    /// Makes a port, the uplink of this name, a member.
    pub(super) fn as_member(&self, port: Port, uplink: &str, team: &str) -> Result<Port, StartError> {
        let no_team = || StartError::NoTeam(team.to_owned());
        let teams = self.teams();
        let team = teams.iter().find(|running| running.spec.name == team).ok_or_else(no_team)?;
        let place = team.place(uplink).ok_or_else(no_team)?;
        Ok(port.in_team(team.id, &team.steering, place))
    }

    /// Notes which uplinks and teams are blocked, and with which other one they would make a loop.
    pub(super) fn note_blocked(&self, views: &mut [PortView]) {
        let loops = self.plane.loops();
        for view in views.iter_mut().filter(|view| view.spec.is_none()) {
            view.blocked = self.plane.switch().is_blocked(view.id);
            // One that is blocked may be the other one of a loop, too.
            let is_its = |found: &&Loop| view.name == if view.blocked { &*found.name } else { &*found.other };
            view.in_loop = loops.iter().find(is_its).cloned();
        }
    }

    /// Calls this once the plane has blocked an uplink or a team by itself: from a worker, so it must not wait. Only the first call counts.
    pub fn on_loop(&self, call: Box<dyn Fn() + Send + Sync>) {
        self.plane.on_loop(call);
    }

    /// The uplinks and teams that are blocked because they lead into another one's network.
    pub(crate) fn loops(&self) -> Vec<Loop> {
        self.plane.loops()
    }

    /// An uplink or a team that is blocked made a loop with another one, when another daemon served it.
    pub(super) fn note_loop(&self, name: &str, other: &str) {
        let team = self.teams().iter().find(|team| team.spec.name == name).map(|team| team.id);
        if let Some(blocked) = team.or_else(|| self.known_uplink(name)) {
            let (name, other) = (name.to_owned(), other.to_owned());
            self.plane.loop_again(Loop { blocked, name, other, spared: None });
        }
    }

    /// The team uses this port from now on, or none, as the uplink of this name.
    pub(super) fn fill_place(&self, uplink: &str, team: &str, port: Option<Arc<Port>>) {
        let mut teams = self.teams();
        let Some(team) = teams.iter_mut().find(|running| running.spec.name == team) else { return };
        let Some(place) = team.place(uplink) else { return };
        let has_left = port.is_none();
        if let Some(old) = std::mem::replace(&mut team.ports[place], port) {
            let mut state = old.state();
            let all = state.classes.iter_mut().chain(&mut state.inward_classes);
            all.for_each(|class| class.waiting = 0);
            if matches!(team.spec.mode, TeamMode::Queues { .. }) {
                // The control of what comes in is the interface's, and stays.
                state.inward_classes.clear();
            }
            team.gone.add(state);
        }
        // The team has joined, so there is room for it.
        let _joined = self.plane.join_team(Arc::new(team.team()), &team.spec.policy);
        if has_left {
            self.plane.leave_team(team.id, place, self.clock.now());
        }
    }

    /// The teams as ports: the sums of what their members have carried. Drops are their members', but for frames that found none in use.
    pub(super) fn team_views(&self, uplink: impl Fn(PortId) -> Option<String>) -> Vec<PortView> {
        let (epoch, now) = (self.epoch(), self.clock.now());
        let view = |team: &RunningTeam| {
            let mut state = State::of_team();
            state.counters.receive_drops[Reason::LinkDown as usize] = team.steering.lost_frames();
            let Counts { transmit, receive, outward, inward } = team.counts();
            state.counters.sent_all(0, transmit);
            state.counters.received_all(0, receive);
            (state.classes, state.inward_classes) = (outward, inward);
            PortView {
                members: Some(self.members_of(team, &uplink, now)),
                ..PortView::new(&team.spec.name, team.id, &team.spec.policy, state, epoch)
            }
        };
        self.teams().iter().map(view).collect()
    }

    fn members_of(&self, team: &RunningTeam, uplink: impl Fn(PortId) -> Option<String>, now: Time) -> MemberViews {
        let states = team.steering.states(MEMBERS_MAX, now);
        let open =
            team.order().filter_map(|place| Some((team.ports[place].as_ref()?.id(), states.get(place)?.clone())));
        open.filter_map(|(id, state)| Some((uplink(id)?, state))).collect()
    }
}
