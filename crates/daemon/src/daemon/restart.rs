//! Restarts a failed port: `nicety ports restart`.

use std::sync::Arc;

use nicety_plane::caught;
use tracing::info;

use super::{Daemon, JoiningUplink, PortSpec, RunningUplink, StartError};
use crate::run::inbox::Note;
use crate::run::kept_uplinks::{UplinkHold, let_go_first};
use crate::run::recorder::Recorder;

/// Reasons why a port was not restarted.
#[derive(Debug, thiserror::Error)]
pub enum RestartError {
    /// There is no port of this name.
    #[error("there is no port {0:?}")]
    Missing(String),
    /// The port has not failed.
    #[error("port {0} has not failed: a restart would take its adapter away from its VM; nothing was done")]
    NotFailed(String),
    /// The restart would overwrite its capture file.
    #[error("{0} is a capture, and a new one would overwrite it: end the daemon, keep the file, and start it again")]
    Capture(String),
    /// An uplink could not be made.
    #[error("uplink {name}: {why}; it is closed now: ask again when that is mended")]
    Uplink {
        /// Its name.
        name: String,
        /// The cause.
        why: String,
    },
    /// The new port was not opened.
    #[error(transparent)]
    New(StartError),
    /// The old port is closed, but the new one was not opened.
    #[error("{0}; it is closed now: ask again when that is mended")]
    Start(#[from] StartError),
    /// Making the uplink panicked.
    #[error("port {name} fails while it is made: {cause}; it is closed now: report it")]
    Panicked {
        /// Its name.
        name: String,
        /// The panic message.
        cause: String,
    },
}

impl Daemon {
    /// Closes a failed port and opens it as new, with the same name, socket and settings, and with counters of 0. Its VM must be
    /// started again, unless its adapter reconnects by itself (virtio-net). A working port is left alone. Call it from one
    /// thread: a second restart must come after the first.
    pub fn restart(&self, name: &str) -> Result<(), RestartError> {
        if self.uplinks().iter().any(|uplink| uplink.name == name) {
            return self.restart_uplink(name);
        }
        let (spec, recorder) = self.failed(name)?;
        self.close(name);
        self.open_again(spec, recorder).inspect(|()| info!(port = name, "restarted"))
    }

    /// Opens a port that was not there. A panic of its adapter is an error.
    pub(crate) fn open_new(&self, spec: PortSpec) -> Result<(), RestartError> {
        match caught(|| self.open(spec.clone())) {
            Ok(opened) => opened.map(drop).map_err(RestartError::New),
            Err(cause) => Err(RestartError::Panicked { name: spec.config.name, cause }),
        }
    }

    /// Opens a port in place of one that was closed. If that fails, [`Daemon::restart`] can open it later.
    fn open_again(&self, spec: PortSpec, recorder: Option<Arc<Recorder>>) -> Result<(), RestartError> {
        let opened = caught(|| self.open_recorded(spec.clone(), recorder.clone()));
        let error = match opened {
            Ok(opened) => opened.err().map(RestartError::from),
            Err(cause) => Some(RestartError::Panicked { name: spec.config.name.clone(), cause }),
        };
        let Some(error) = error else { return Ok(()) };
        self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((spec, recorder));
        Err(error)
    }

    /// Opens a port with other settings in place of one that was closed. If that fails, [`Daemon::restart`] can open it later.
    pub(crate) fn reopen(&self, spec: PortSpec) -> Result<(), RestartError> {
        let recorder = self.recorder(&spec)?;
        self.open_again(spec, recorder)
    }

    /// The specification of a port that has failed, or could not be reopened.
    fn failed(&self, name: &str) -> Result<(PortSpec, Option<Arc<Recorder>>), RestartError> {
        if let Some(running) = self.ports().values().find(|running| running.spec.config.name == name) {
            return match running.failure() {
                Some(_) => Ok((running.spec.clone(), running.recorder.clone())),
                None => Err(RestartError::NotFailed(name.to_owned())),
            };
        }
        let mut lost = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let index = lost.iter().position(|(spec, _)| spec.config.name == name);
        index.map(|index| lost.swap_remove(index)).ok_or_else(|| RestartError::Missing(name.to_owned()))
    }

    /// The keeper holds what this uplink has opened from now on, under this name. Without a keeper nothing is done.
    pub(crate) fn keep_uplink(&self, name: &str, kept: String) {
        let Some(holder) = self.holder.get() else { return };
        let mut uplinks = self.uplinks();
        let Some(uplink) = uplinks.iter_mut().find(|uplink| uplink.name == name) else { return };
        uplink.kept = Some(kept.clone());
        let id = uplink.port.id();
        drop(uplinks);
        self.inbox(id).push(Note::Hold(id, UplinkHold::new(kept, Arc::clone(holder))));
    }

    fn restart_uplink(&self, name: &str) -> Result<(), RestartError> {
        let mut held = self.uplinks();
        let found = held.iter_mut().find(|uplink| uplink.name == name);
        let Some(RunningUplink { port, buffer_bytes, policy, maker, team, kept, agents, .. }) = found else {
            return Err(RestartError::Missing(name.to_owned()));
        };
        if port.failure().is_none() {
            return Err(RestartError::NotFailed(name.to_owned()));
        }
        let Some(maker) = maker.take() else { return Err(RestartError::Capture(name.to_owned())) };
        // Blocked for a loop it stays so: the plane forgets that when the port leaves.
        policy.blocked |= team.is_none() && self.plane.switch().is_blocked(port.id());
        let (id, buffer_bytes, policy, team) = (port.id(), *buffer_bytes, policy.clone(), team.clone());
        let (agents, kept) = (agents.clone(), kept.clone());
        drop(held);
        // Close the old one first: two cannot share a tap or a socket. Closing it again is harmless.
        self.give_up(&[id]);
        let make = || match caught(|| maker(self)) {
            Ok(made) => made,
            Err(cause) => Err(cause),
        };
        // The keeper closes what it has held a moment later.
        let made = if kept.is_some() { let_go_first(make, |_| true) } else { make() };
        let opened = match made {
            Ok(uplink) => {
                let team = team.as_deref();
                let joining = JoiningUplink { buffer_bytes, policy, team, ..JoiningUplink::new(name, uplink) };
                self.open_uplink(joining).map_err(RestartError::Start)
            }
            Err(why) => Err(RestartError::Uplink { name: name.to_owned(), why }),
        };
        kept.into_iter().for_each(|kept| self.keep_uplink(name, kept));
        self.set_uplink_agents(name, agents);
        // It can be restarted again, whatever the result.
        if let Some(uplink) = self.uplinks().iter_mut().find(|uplink| uplink.name == name) {
            uplink.maker = Some(maker);
        }
        opened.inspect(|()| info!(uplink = name, "restarted"))
    }
}
