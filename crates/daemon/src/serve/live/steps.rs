//! The steps of a plan, checked before the first one is made.

use std::path::{Path, PathBuf};

use nicety_host::{Host, PortConfig, Role, TeamConfig, UplinkConfig};
use nicety_keeper::Opener;

use super::ChangeError;
use super::plan::{Change, Kind, Plan};
use crate::named;
use crate::serve::sandbox;
use crate::serve::{self, PortArrival, Steps, UplinkArrival};

/// The steps of a plan, if all of them can be made, as far as that can be known in advance.
pub(super) fn steps(
    plan: &Plan,
    old: &Host,
    new: &Host,
    opener: Option<&Opener>,
) -> Result<Steps<'static>, ChangeError> {
    let mut steps = Steps::default();
    let (mut refused, mut served) = (Vec::new(), Vec::new());
    let ours = freed(plan, old);
    for Change { kind, object, port: name, .. } in &plan.changes {
        let name = name.as_deref();
        match (object.as_str(), name) {
            ("uplink", _) => uplink(&mut steps, *kind, name, old, new),
            ("team", Some(name)) => team(&mut steps, *kind, name, new),
            ("mirror", _) | (_, None) => {}
            (_, Some(name)) => {
                if matches!(kind, Kind::Reopen | Kind::Remove) {
                    steps.close_ports.push(name.to_owned());
                }
                let Some(config) = new.port(name) else { continue };
                let is_ours = ours.contains(&config.socket.as_path());
                refused.extend(port(&mut steps, *kind, config, is_ours, &mut served).err());
            }
        }
    }
    refused.extend(
        served.iter().map(|path| format!("{} is served by another process: choose another path", path.display())),
    );
    let named: Vec<&String> = plan.changes.iter().filter_map(|change| change.port.as_ref()).collect();
    let is_named = |team: &&TeamConfig| named.iter().any(|name| team.name == **name || team.members.contains(name));
    let teams = new.teams.iter().filter(is_named);
    refused.extend(teams.filter_map(|team| Some(serve::check_team(new, team).err()?.to_string())));
    for (uplink, _) in &steps.uplinks {
        if let Err(why) = sandbox::allows_uplink(uplink) {
            refused.push(format!("uplink {}: {why}", uplink.name));
            continue;
        }
        let checked = serve::check_uplink_again(&old.uplinks, uplink, opener);
        refused.extend(checked.err().map(|error| error.to_string()));
    }
    if let Some(opener) = opener {
        let ports = steps.ports.iter().filter_map(|(spec, _)| new.port(&spec.config.name)).map(named::port);
        let uplinks = steps.uplinks.iter().filter_map(|(uplink, _)| named::uplink(uplink));
        refused.extend(named::are_named(opener, ports.chain(uplinks).collect()).err());
    }
    let gone = old.cards.iter().filter(|card| new.card(&card.name).is_none());
    steps.close_cards.extend(gone.map(|card| card.name.clone()));
    if refused.is_empty() { Ok(steps) } else { Err(ChangeError::Lacking(refused.join("; "))) }
}

/// Sockets of ports that are closed or changed: free by the time when others are opened. A look at them now would connect to our own ports.
fn freed<'a>(plan: &Plan, old: &'a Host) -> Vec<&'a Path> {
    let changes = plan.changes.iter().filter(|change| change.kind != Kind::Add && change.object == "port");
    let ports = changes.filter_map(|change| old.port(change.port.as_deref()?));
    ports.filter(|port| port.role == Role::Listen).map(|port| port.socket.as_path()).collect()
}

/// The step for a port. The error is a sentence for a person.
fn port(
    steps: &mut Steps<'_>,
    kind: Kind,
    config: &PortConfig,
    is_ours: bool,
    served: &mut Vec<PathBuf>,
) -> Result<(), String> {
    if kind != Kind::Set {
        sandbox::allows_port(config).map_err(|why| format!("port {}: {why}", config.name))?;
    }
    let spec = if is_ours { serve::spec(config) } else { serve::checked_spec(config, served) };
    let spec = spec.map_err(|error| error.to_string())?;
    match kind {
        Kind::Set => steps.set_ports.push(spec),
        Kind::Add => steps.ports.push((spec, PortArrival::New)),
        _ => steps.ports.push((spec, PortArrival::Reopened)),
    }
    Ok(())
}

/// The step for a team.
fn team(steps: &mut Steps<'_>, kind: Kind, name: &str, new: &Host) {
    let spec = new.team(name).map(|config| serve::team_spec(config, &new.path));
    match kind {
        Kind::Add => steps.teams.extend(spec),
        Kind::Set => steps.set_teams.extend(spec),
        Kind::Remove => steps.close_teams.push(name.to_owned()),
        Kind::Reopen | Kind::Restart => {}
    }
}

/// The step for an uplink: the one of this name, or the only one.
fn uplink(steps: &mut Steps<'_>, kind: Kind, name: Option<&str>, old: &Host, new: &Host) {
    let of = |host: &Host| name.map_or_else(|| host.uplinks.first(), |name| host.uplink(name)).cloned();
    if matches!(kind, Kind::Reopen | Kind::Remove) {
        steps.close_uplinks.extend(of(old));
    }
    let arrival = |config: UplinkConfig| match old.uplink(&config.name) {
        None => (config, UplinkArrival::New),
        Some(_) => (config, UplinkArrival::Reopened),
    };
    match kind {
        Kind::Set => steps.set_uplinks.extend(of(new)),
        Kind::Add | Kind::Reopen => steps.uplinks.extend(of(new).map(arrival)),
        Kind::Remove | Kind::Restart => {}
    }
}
