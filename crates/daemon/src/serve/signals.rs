//! Serves a host file until a signal ends the daemon.

use std::mem::ManuallyDrop;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::daemon::Daemon;
use crate::observe::systemd::Supervision;
use crate::serve::live::Live;
use crate::serve::{Prepared, ServeError, start};

/// The reason why the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A signal.
    Signal(i32),
    /// Another process serves the ports now: nothing that it uses may be closed or removed.
    HandedOver,
}

/// Serves a host file until SIGTERM or SIGINT, or until SIGHUP from a closed terminal. Any other SIGHUP reads the host file
/// again. `ready` is called when all sockets exist. It returns the interface for changes, or the reason not to serve after all.
pub fn serve(
    prepared: Prepared<'_>,
    ready: impl FnOnce(&Arc<Daemon>) -> std::io::Result<Arc<Live>>,
) -> Result<Ended, ServeError> {
    serve_by(|| start(prepared), ready)
}

/// Like [`serve`], with a daemon that `start` makes.
pub fn serve_by(
    start: impl FnOnce() -> Result<Daemon, ServeError>,
    ready: impl FnOnce(&Arc<Daemon>) -> std::io::Result<Arc<Live>>,
) -> Result<Ended, ServeError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(ServeError::Signals)?;
    let had_terminal = has_terminal();
    let daemon = Arc::new(start()?);
    let live = ready(&daemon).map_err(|why| {
        daemon.stop();
        ServeError::Sandbox(why)
    })?;
    live.ends_by(signals.handle());
    let supervision = Supervision::begin(&daemon).map_err(ServeError::Supervision)?;
    daemon.serves();
    let mut ended_by = None;
    for signal in signals.forever() {
        if signal == SIGHUP && (!had_terminal || has_terminal()) {
            supervision.reload(|| live.reload());
        } else {
            daemon.ends();
            // If another process serves already, it has been told too: here the last answer is still to be sent.
            if !live.gives_up_upgrade() {
                ended_by = Some(signal);
                break;
            }
        }
    }
    let Some(ended_by) = ended_by else {
        // Another process serves the ports: their sockets stay, and their VMMs hear of no end.
        let _never_dropped = ManuallyDrop::new((supervision, live, daemon));
        return Ok(Ended::HandedOver);
    };
    info!(signal = signal_hook::low_level::signal_name(ended_by).unwrap_or("?"), "ending");
    supervision.stopping();
    drop(supervision);
    daemon.stop();
    Ok(Ended::Signal(ended_by))
}

/// Whether there is a controlling terminal. For a closed one tty(4) reports ENXIO.
fn has_terminal() -> bool {
    std::fs::OpenOptions::new().read(true).custom_flags(without_waiting()).open("/dev/tty").is_ok()
}

/// Opening the terminal must not wait for a modem's carrier.
fn without_waiting() -> i32 {
    (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits().cast_signed()
}
