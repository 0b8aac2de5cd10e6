//! The list of what opening a host file needs. `serve` and `serve --check` go through it, and live changes through its parts.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nicety_host::{Host, PortConfig, Role, TeamConfig, UplinkConfig, UplinkKind};
use nicety_keeper::{Group, Holder, Opener};
use nicety_socket::{Access, ListenError, Place};
use nicety_uplink::{Capture, SocketError, Tap, Vxlan, VxlanError, Xdp, XdpError};

use super::{Held, OpenedAhead, OpenedLink, Prepared, Refused, ServeError, spec};
use crate::daemon::{PortSpec, StartError};
use crate::fabric;
use crate::paths::{PathUse, of_uplink};
use crate::protection::{self, ProtectionError};
use crate::run::kept_uplinks::HeldUplinks;
use crate::run::recorder::{self, Target};

/// The test whether a socket is served.
type SocketCheck = fn(&Path, &Access) -> Result<Place, ListenError>;

fn connecting(path: &Path, access: &Access) -> Result<Place, ListenError> {
    nicety_socket::check(path, access)
}

/// Things that a daemon finds when it starts.
#[derive(Debug, Default)]
pub struct Before {
    /// Opened by this process before it gave its rights up.
    pub opened: OpenedAhead,
    /// The keeper.
    pub holder: Option<Arc<Holder>>,
    /// Opens what this process may not.
    pub opener: Option<Arc<Opener>>,
    /// Descriptors that the keeper holds of a daemon that was killed.
    pub groups: Vec<Group>,
    /// A daemon of this keeper served these ports, and was killed.
    pub follows: bool,
}

/// Checks everything that [`start`](super::start) needs and that exists already.
pub fn prepare<'a>(host: &'a Host, record: Option<Target>) -> Result<Prepared<'a>, Refused> {
    prepare_from(host, record, Before::default())
}

/// Like [`prepare`], with what is there before.
pub fn prepare_from<'a>(host: &'a Host, record: Option<Target>, before: Before) -> Result<Prepared<'a>, Refused> {
    checked(host, record, connecting, before, false)
}

/// Makes the same checks as [`prepare`], without a connection that a running daemon would notice. `is_beside`: a daemon has this host's
/// control socket, so what is in use may be its own.
pub fn check<'a>(host: &'a Host, record: Option<Target>, is_beside: bool) -> Result<Prepared<'a>, Refused> {
    let look = |path: &Path, access: &Access| nicety_socket::check_quietly(path, access);
    checked(host, record, look, Before::default(), is_beside)
}

fn checked<'a>(
    host: &'a Host,
    record: Option<Target>,
    look: SocketCheck,
    before: Before,
    is_beside: bool,
) -> Result<Prepared<'a>, Refused> {
    let Before { opened: ahead, holder, opener, groups, follows } = before;
    let mut held = Held::new();
    groups.into_iter().for_each(|group| held.entry(group.name.clone()).or_default().push(group));
    let mut uplinks = HeldUplinks::take(&mut held);
    holder.iter().for_each(|holder| uplinks.keep_only(&host.uplinks, holder));
    let (mut errors, mut served, mut opened) = (Vec::new(), Vec::new(), BTreeMap::new());
    let names = host.ports.iter().map(|port| port.name.as_str());
    let recorded = record.as_ref().map_or(Ok(()), |target| recorder::check(target, names));
    errors.extend(recorded.err().map(|error| ServeError::from(StartError::from(error))));
    match host.tolerance.as_ref().map_or(Ok(()), protection::check) {
        Err(ProtectionError::Listen { address, source }) if is_beside && is_in_use(&source) => {
            served.push(PathBuf::from(format!("[ft] listen {address}")));
        }
        checked => errors.extend(checked.err().map(ServeError::from)),
    }
    let joins = host.fabric.as_ref().map_or(Ok(()), fabric::check);
    errors.extend(joins.err().map(ServeError::from));
    let mut ports = Vec::new();
    for config in &host.ports {
        // After a kill its sockets are ours, and may still listen: a look would be a VMM to them, or find them in use.
        let spec = if follows { spec(config) } else { spec_by(config, &mut served, look) };
        match spec {
            Ok(spec) => ports.push(spec),
            Err(error) => errors.push(error),
        }
    }
    // Uplinks that are held are open already.
    for config in host.uplinks.iter().filter(|config| !ahead.has(config) && !uplinks.has(config)) {
        errors.extend(check_uplink(config, &mut served, look, opener.as_deref(), is_beside).err());
    }
    errors.extend(host.teams.iter().filter_map(|team| check_team(host, team).err()));
    for (name, queues) in ahead.queues {
        match queues {
            Ok(queues) => _ = opened.insert(name, OpenedLink::Queues(queues)),
            Err(error) => errors.push(error.into()),
        }
    }
    for (name, tunnel) in ahead.tunnels {
        match tunnel {
            Ok(tunnel) => _ = opened.insert(name, OpenedLink::Tunnel(Box::new(tunnel))),
            Err(error) => errors.push(error.into()),
        }
    }
    if errors.is_empty() {
        Ok(Prepared { host, record, ports, holder, held, follows, uplinks, opener, opened, served })
    } else {
        Err(Refused(errors))
    }
}

fn is_in_use(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::AddrInUse
}

/// Checks whether the members of a team fit together.
pub fn check_team(host: &Host, team: &TeamConfig) -> Result<(), ServeError> {
    let members = team.members.iter().filter_map(|member| host.uplink(member));
    let of = |uplink: &UplinkConfig| match &uplink.kind {
        // A tap that is still to be made gets the usual MTU.
        UplinkKind::Tap { name, .. } | UplinkKind::Xdp { interface: name, .. } => Some((name.clone(), mtu(name)?)),
        _ => None,
    };
    let mtus: Vec<(String, u32)> = members.filter_map(of).collect();
    different_mtus(&team.name, &mtus).map_or(Ok(()), Err)
}

/// The MTU of an interface, if it is there.
fn mtu(interface: &str) -> Option<u32> {
    std::fs::read_to_string(format!("/sys/class/net/{interface}/mtu")).ok()?.trim().parse().ok()
}

/// The first two members that differ.
fn different_mtus(team: &str, mtus: &[(String, u32)]) -> Option<ServeError> {
    let one = mtus.first()?;
    let other = mtus.iter().find(|(_, mtu)| *mtu != one.1)?;
    Some(ServeError::Mtu { team: team.to_owned(), one: one.clone(), other: other.clone() })
}

/// The specification of a port. Checks that its socket can be made, or is served by another process. A port that connects may
/// find its VMM later.
pub fn checked_spec(config: &PortConfig, served: &mut Vec<PathBuf>) -> Result<PortSpec, ServeError> {
    spec_by(config, served, connecting)
}

fn spec_by(config: &PortConfig, served: &mut Vec<PathBuf>, look: SocketCheck) -> Result<PortSpec, ServeError> {
    let spec = spec(config)?;
    if spec.config.role == Role::Connect {
        return Ok(spec);
    }
    let place = look(&spec.config.socket, &spec.access);
    if place.map_err(|source| StartError::Socket { port: spec.config.name.clone(), source })? == Place::Served {
        served.push(spec.config.socket.clone());
    }
    Ok(spec)
}

/// Checks whether an uplink can be made, as far as that is possible without making it.
fn check_uplink(
    config: &UplinkConfig,
    served: &mut Vec<PathBuf>,
    look: SocketCheck,
    opener: Option<&Opener>,
    is_beside: bool,
) -> Result<(), ServeError> {
    match &config.kind {
        UplinkKind::Tap { name, queues: 1 } => Tap::check(opener, name)?,
        UplinkKind::Tap { name, .. } => Tap::check_queues(opener, name, 0)?,
        UplinkKind::Xdp { interface, queues } => Xdp::check(interface, *queues)?,
        UplinkKind::Vxlan(tunnel) => match Vxlan::check(&tunnel.settings) {
            Err(VxlanError::InUse(_)) if is_beside => {}
            checked => checked?,
        },
        // The opener that opens it checks.
        UplinkKind::Capture { .. } if nicety_socket::opener().is_some() => {}
        UplinkKind::Capture { file } => Capture::check(file)?,
        UplinkKind::Pair { .. } | UplinkKind::Stream { .. } | UplinkKind::Null | UplinkKind::Querier => {}
    }
    // A peer that listens may start later.
    if let Some(socket) = own_socket(config)
        && look(&socket, &Access::default()).map_err(SocketError::from)? == Place::Served
    {
        served.push(socket.into_owned());
    }
    Ok(())
}

/// The socket that an uplink makes.
fn own_socket(config: &UplinkConfig) -> Option<Cow<'_, Path>> {
    of_uplink(config).filter(|one| one.does == PathUse::Listens).map(|one| one.path)
}

/// Like [`check_uplink`], for an uplink that replaces others, whose sockets are ours.
pub fn check_uplink_again(old: &[UplinkConfig], new: &UplinkConfig, opener: Option<&Opener>) -> Result<(), ServeError> {
    if matches!(new.kind, UplinkKind::Xdp { .. }) {
        return Err(XdpError::Running(new.name.clone()).into());
    }
    if let UplinkKind::Vxlan(_) = &new.kind {
        // Whether its address is free is found out when the old one is closed.
        let is_confined = nicety_sandbox::is_on();
        return if is_confined { Err(VxlanError::Running(new.name.clone()).into()) } else { Ok(()) };
    }
    if let UplinkKind::Tap { name, queues: 2.. } = &new.kind {
        let is_same =
            |config: &&UplinkConfig| matches!(&config.kind, UplinkKind::Tap { name: held, .. } if held == name);
        let held = old.iter().find(is_same).map_or(0, UplinkConfig::queues);
        return Ok(Tap::check_queues(opener, name, held)?);
    }
    let mut served = Vec::new();
    check_uplink(new, &mut served, connecting, opener, false)?;
    match served.pop() {
        Some(path) if !old.iter().filter_map(own_socket).any(|ours| *ours == path) => {
            Err(SocketError::from(ListenError::InUse(path)).into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_team_with_different_mtus_are_refused() {
        let taps = |mtus: [u32; 3]| (0..).zip(mtus).map(|(at, mtu)| (format!("tap{at}"), mtu)).collect::<Vec<_>>();
        assert!(different_mtus("lan", &taps([1500; 3])).is_none() && different_mtus("lan", &[]).is_none());
        let error = different_mtus("lan", &taps([1500, 1500, 9000])).unwrap();
        let wanted = "team lan: tap0 has an MTU of 1500, and tap2 one of 9000: a flow may take any of them; make them \
                      equal (ip link set tap2 mtu 1500)";
        assert_eq!(error.to_string(), wanted);
        assert_eq!(mtu("lo"), Some(65_536));
        assert_eq!(mtu("no such"), None);
    }
}
