//! The one order in which a daemon becomes what a host says: at its start, also after a kill, by a change, by a restart of a port, and when it
//! goes on with the ports of another process.

use std::borrow::Cow;

use nicety_adapter::Time;
use nicety_host::{Host, List, UplinkConfig};
use nicety_keeper::Group;
use nicety_plane::{SavedAgent, SavedFrames};
use nicety_uplink::{Vxlan, Xdp};

use super::kept::{begin_anew, revive};
use super::open::{add_tunnel, open_uplink, open_uplink_with, open_xdp};
use super::{ServeError, close_uplink, set_uplink, settle_agents};
use crate::daemon::{Arriving, ArrivingUplink, Daemon, PortSpec, PortView, TeamSpec};
use crate::run::image::{LearnedImage, TeamImage};
use crate::run::kept_uplinks::HeldUplinks;
use crate::run::rings::Preparing;
use crate::run::service::Service;

/// The state in which a port comes to this daemon.
#[derive(Debug)]
pub(crate) enum PortArrival {
    /// It is new. If it cannot be opened, it is as if it had never been asked for.
    New,
    /// It was closed, to be opened with other settings. If that fails, a restart can open it later.
    Reopened,
    /// A daemon of this keeper served it, and was killed. Nothing of it is held.
    Begun,
    /// The same, and the keeper holds what it had.
    Held(Vec<Group>),
}

/// The state in which an uplink comes to this daemon.
#[derive(Debug)]
pub(crate) enum UplinkArrival {
    /// It is new. If it cannot be opened, it is as if it had never been asked for.
    New,
    /// It was closed, to be opened with other settings.
    Reopened,
    /// It was opened before this process gave rights up.
    Opened(OpenedLink),
    /// The keeper holds what it had opened for a daemon that was killed.
    Held(HeldUplinks),
}

/// Links that were opened before this process gave rights up.
#[derive(Debug)]
pub(crate) enum OpenedLink {
    /// The queues of an interface.
    Queues(Vec<Xdp>),
    /// A tunnel.
    Tunnel(Box<Vxlan>),
}

/// The ports, uplinks and teams that another daemon hands over. It stands still meanwhile.
#[derive(Default)]
pub(crate) struct HandedOver<'a> {
    pub teams: Vec<(TeamSpec, &'a TeamImage)>,
    pub uplinks: Vec<ArrivingUplink>,
    pub ports: Vec<(String, Arriving)>,
    /// The time at which it stopped.
    pub since: Time,
    /// The addresses that its switch knew.
    pub learned: &'a [LearnedImage],
    /// Its uplinks' LLDP frames: neighbours know an uplink by the address in them.
    pub announced: &'a [(String, Vec<u8>)],
}

/// The changes to make: everything that is to be closed, opened or set.
#[derive(Default)]
pub(crate) struct Steps<'a> {
    pub close_ports: Vec<String>,
    pub close_uplinks: Vec<UplinkConfig>,
    pub close_teams: Vec<String>,
    pub close_cards: Vec<String>,
    pub ports: Vec<(PortSpec, PortArrival)>,
    pub set_ports: Vec<PortSpec>,
    pub teams: Vec<TeamSpec>,
    pub set_teams: Vec<TeamSpec>,
    pub uplinks: Vec<(UplinkConfig, UplinkArrival)>,
    pub set_uplinks: Vec<UplinkConfig>,
    /// Failed ports and uplinks, by their names. They open in their own places.
    pub restart: Vec<String>,
    pub handed_over: HandedOver<'a>,
}

/// A port that goes on once its services are given to workers.
type PortToServe = (String, (Vec<Service>, Option<Preparing>));
/// An uplink that goes on so, if it does.
type UplinkToServe = (String, Option<(Service, SavedFrames, Vec<SavedAgent>)>);

/// The result.
pub(crate) struct Reconciled<'a> {
    /// The host that is served: without new ports and uplinks that could not be opened.
    pub host: Cow<'a, Host>,
    /// The last states of the ports that were closed.
    pub closed: Vec<PortView>,
    /// Uplinks and ports that were handed over, and are not served yet.
    pub uplinks: Vec<UplinkToServe>,
    pub ports: Vec<PortToServe>,
}

/// Makes a daemon serve this host. An error ends it unless `fails` goes on.
///
/// Ports are opened before uplinks: a capture replaces an older file, which must survive if a port cannot be opened. Ports that are handed
/// over join after the uplinks, because their adapters' state is restored with the carrier of their links.
pub(crate) fn reconcile<'a, E>(
    daemon: &Daemon,
    host: Cow<'a, Host>,
    steps: Steps<'_>,
    mut fails: impl FnMut(ServeError) -> Result<(), E>,
) -> Result<Reconciled<'a>, E> {
    let closed = daemon.close_all(&steps.close_ports);
    steps.close_uplinks.iter().for_each(|uplink| close_uplink(daemon, uplink));
    steps.close_teams.iter().for_each(|name| daemon.close_team(name));
    let mut missing = Vec::new();
    for (spec, arrival) in steps.ports {
        let (name, is_new) = (spec.config.name.clone(), matches!(arrival, PortArrival::New));
        if let Err(error) = open_port(daemon, spec, arrival) {
            fails(error)?;
            missing.extend(is_new.then_some((List::Ports, name)));
        }
    }
    for spec in &steps.set_ports {
        daemon.set(spec).map_err(ServeError::Change).or_else(&mut fails)?;
    }
    for team in &steps.teams {
        daemon.open_team(team).map_err(ServeError::from).or_else(&mut fails)?;
    }
    for team in &steps.set_teams {
        daemon.set_team(team).map_err(ServeError::from).or_else(&mut fails)?;
    }
    for (config, arrival) in steps.uplinks {
        let is_new = matches!(arrival, UplinkArrival::New);
        let opened = match arrival {
            UplinkArrival::New | UplinkArrival::Reopened => open_uplink(daemon, &config),
            UplinkArrival::Opened(OpenedLink::Queues(queues)) => open_xdp(daemon, &config, queues),
            UplinkArrival::Opened(OpenedLink::Tunnel(tunnel)) => add_tunnel(daemon, &config, *tunnel),
            UplinkArrival::Held(mut held) => open_uplink_with(daemon, &config, &mut held),
        };
        if let Err(error) = opened {
            fails(error)?;
            // A team needs all its members.
            missing.extend(is_new.then_some((List::Uplinks, config.name)));
        }
    }
    for uplink in &steps.set_uplinks {
        set_uplink(daemon, uplink).map_err(ServeError::Change).or_else(&mut fails)?;
    }
    for name in &steps.restart {
        daemon.restart(name).map_err(ServeError::from).or_else(&mut fails)?;
    }
    let host = missing.into_iter().fold(host, |host, (list, name)| without(host, list, &name));
    steps.close_cards.iter().for_each(|card| daemon.remove_card(card));
    let (uplinks, ports) = arrive(daemon, &host, steps.handed_over);
    daemon.settle(&host);
    Ok(Reconciled { host, closed, uplinks, ports })
}

fn open_port(daemon: &Daemon, spec: PortSpec, arrival: PortArrival) -> Result<(), ServeError> {
    match arrival {
        PortArrival::New => Ok(daemon.open_new(spec)?),
        PortArrival::Reopened => Ok(daemon.reopen(spec)?),
        PortArrival::Begun => begin_anew(daemon, &spec),
        PortArrival::Held(groups) => revive(daemon, spec, groups),
    }
}

/// Uplinks and ports that are handed over join the switch. Cards get their uplinks before their functions' ports are restored.
fn arrive(daemon: &Daemon, host: &Host, handed_over: HandedOver<'_>) -> (Vec<UplinkToServe>, Vec<PortToServe>) {
    let HandedOver { teams, uplinks, ports, since, learned, announced } = handed_over;
    teams.iter().for_each(|(spec, image)| daemon.team_arrives(spec, image));
    let uplinks: Vec<_> = uplinks.into_iter().map(|one| (one.name.clone(), daemon.uplink_arrives(one))).collect();
    host.cards.iter().for_each(|card| daemon.set_card(card));
    let ports = ports.into_iter().map(|(name, port)| (name, daemon.arrive(port, Some(since)))).collect();
    // After the ports have arrived: a port that is put into its VLAN loses its learned addresses.
    daemon.learn_again(learned);
    if !uplinks.is_empty() {
        settle_agents(daemon, host, announced);
    }
    (uplinks, ports)
}

/// A host without this entry, if it is one.
fn without<'a>(host: Cow<'a, Host>, list: List, name: &str) -> Cow<'a, Host> {
    let document = host.document.without(list, name);
    host.changed(&document).map_or(host, Cow::Owned)
}
