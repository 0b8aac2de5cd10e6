//! Ports of a daemon that was killed go on: the keeper has held what they had opened.

use nicety_keeper::Group;
use nicety_socket::ListenError;
use tracing::warn;

use super::ServeError;
use crate::daemon::{Daemon, PortSpec, StartError};
use crate::run::kept_uplinks::let_go_first;

/// A port goes on whose process was killed, or begins anew.
pub(super) fn revive(daemon: &Daemon, port: PortSpec, groups: Vec<Group>) -> Result<(), ServeError> {
    let name = port.config.name.clone();
    let again = port.clone();
    let Err(why) = crate::run::journal::read(groups).and_then(|kept| daemon.revive(port, kept)) else { return Ok(()) };
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
            warn!(port = port.config.name, "the killed daemon's socket {at} is not closed yet, and is replaced");
            // If that fails, the next try says why.
            let _ = std::fs::remove_file(&path);
            Ok(daemon.open(port.clone()).map(drop)?)
        }
        opened => Ok(opened.map(drop)?),
    }
}
