//! Ports and uplinks of a daemon that was killed go on: the keeper has held what they had opened.

use std::os::fd::OwnedFd;

use nicety_adapter::Uplink;
use nicety_host::{UplinkConfig, UplinkKind};
use nicety_keeper::Group;
use nicety_socket::ListenError;
use nicety_uplink::{Capture, Tap};
use tracing::warn;

use super::{ServeError, adjustable, capture_options, queue_name, uplink};
use crate::daemon::{Daemon, PortSpec, StartError};
use crate::kept_uplinks::{HeldUplinks, let_go_first, name};

/// A port goes on whose process was killed, or begins anew.
pub(super) fn revive(daemon: &Daemon, port: PortSpec, groups: Vec<Group>) -> Result<(), ServeError> {
    let name = port.name.clone();
    let again = port.clone();
    let Err(why) = crate::journal::read(groups).and_then(|kept| daemon.revive(port, kept)) else { return Ok(()) };
    warn!(port = name, "its VM loses its adapter, which does not go on: {why}");
    daemon.forget_kept(&name);
    begin_anew(daemon, &again)
}

/// A port begins anew that a killed daemon of this keeper served.
pub(super) fn begin_anew(daemon: &Daemon, port: &PortSpec) -> Result<(), ServeError> {
    // The keeper's duplicate of the listening socket, or ours, is not closed yet.
    let is_listening = |error: &StartError| matches!(error, StartError::Socket { source: ListenError::InUse(_), .. });
    match let_go_first(|| daemon.open(port.clone()), is_listening) {
        // A VMM makes that wait: a connection that nobody has accepted is slow to close. The socket is the killed daemon's, and nobody
        // answers there.
        Err(StartError::Socket { source: ListenError::InUse(path), .. }) => {
            let at = path.display();
            warn!(port = port.name, "the killed daemon's socket {at} is not closed yet, and is replaced");
            // If that fails, the next try says why.
            let _ = std::fs::remove_file(&path);
            Ok(daemon.open(port.clone()).map(drop)?)
        }
        opened => Ok(opened.map(drop)?),
    }
}

/// The link of an uplink whose daemon was killed.
pub(super) fn found_again(config: &UplinkConfig, daemon: &Daemon, fd: OwnedFd) -> Result<Box<dyn Uplink>, ServeError> {
    match &config.kind {
        UplinkKind::Tap { name, queues } => adjustable(Tap::go_on(daemon.opener(), name, fd, *queues)?, config),
        UplinkKind::Capture { file } => match Capture::resume(fd, &capture_options(daemon)) {
            Ok(capture) => adjustable(capture, config),
            Err(why) => {
                warn!(uplink = config.name, "{} begins anew: {why}", file.display());
                kept_again(daemon, config);
                let is_held = |error: &ServeError| matches!(error, ServeError::Capture(_));
                let_go_first(|| uplink(config, 0, daemon), is_held)
            }
        },
        _ => uplink(config, 0, daemon),
    }
}

/// The keeper closes what it has held of an uplink that begins anew.
fn kept_again(daemon: &Daemon, config: &UplinkConfig) {
    name(config, 0).into_iter().for_each(|name| daemon.forget_kept(&name));
}

/// The queues of a tap: those that were held, and others in place of the rest.
pub(super) fn open_tap_queues(
    daemon: &Daemon,
    config: &UplinkConfig,
    name: &str,
    queues: u16,
    held: &mut HeldUplinks,
) -> Result<Vec<Tap>, ServeError> {
    let found = (0..usize::from(queues)).filter_map(|place| held.remove(config, place));
    let found = found.map(|fd| Tap::go_on(daemon.opener(), name, fd, queues));
    let mut taps: Vec<Tap> = found.collect::<Result<_, _>>()?;
    // Of `tap%d` the kernel has chosen the number.
    let Some(actual) = taps.first().map(|tap| tap.name().to_owned()) else {
        return Ok(Tap::open_queues_by(daemon.opener(), name, queues)?);
    };
    while taps.len() < usize::from(queues) {
        taps.push(Tap::open_queue_again(daemon.opener(), &actual, queues)?);
    }
    Ok(taps)
}

/// The keeper holds what an uplink has opened from now on.
pub(super) fn keep(daemon: &Daemon, config: &UplinkConfig) {
    for place in 0..usize::from(config.queues()) {
        let own = if config.queues() > 1 { queue_name(&config.name, place) } else { config.name.clone() };
        name(config, place).into_iter().for_each(|kept| daemon.keep_uplink(&own, kept));
    }
}
