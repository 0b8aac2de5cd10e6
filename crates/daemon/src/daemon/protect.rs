//! Ports of a VM that is copied to its twin on another host.

use std::sync::Arc;

use nicety_memory::MapError;
use nicety_plane::Group;

use super::Daemon;
use crate::run::protected::{Protected, release};
use crate::run::rings::Moving;

/// The reason why a port is not protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// No such port.
    #[error("there is no port {0:?}: nicety ports lists them")]
    NoPort(String),
    /// Its state does not go with its guest.
    #[error("port {0:?}: {1}")]
    NoState(String, &'static str),
    /// There is no memory for its gate.
    #[error("port {port:?}: no memory for what waits: {source}")]
    Memory {
        /// Its name.
        port: String,
        /// The cause.
        source: MapError,
    },
}

const NO_FRONT_END: &str =
    "QEMU copies no VM whose adapter it does not emulate itself: a protected VM has virtio-net behind vhost-user";
const NO_STATE: &str =
    "it has device_state = false, and a protected VM needs its state: remove that key, and start the VM again";

impl Daemon {
    /// A vhost-user port: its parts, and what of it goes with its guest.
    fn moved(&self, name: &str) -> Result<(Arc<Group>, Arc<Moving>), ProtectError> {
        let ports = self.ports();
        let running = ports.values().find(|running| running.spec.config.name == name);
        let running = running.ok_or_else(|| ProtectError::NoPort(name.to_owned()))?;
        let no_state = |why| ProtectError::NoState(name.to_owned(), why);
        let rings = running.rings.as_ref().ok_or_else(|| no_state(NO_FRONT_END))?;
        let moving = rings.moving().ok_or_else(|| no_state(NO_STATE))?;
        Ok((running.group(), Arc::clone(moving)))
    }

    /// What the port's guest sends waits from now on as the protection of its VM says, or the guest is a mute twin.
    ///
    /// # Errors
    /// The port is not there, its state does not go with its guest, or there is no memory.
    pub fn protect(&self, name: &str, protected: &Arc<Protected>) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        for part in parts.ports() {
            let set = part.set_gate(protected.epochs());
            set.map_err(|source| ProtectError::Memory { port: name.to_owned(), source })?;
        }
        moving.protect(Some(Arc::clone(protected)));
        Ok(())
    }

    /// The port's VM is not protected any more: all that its guest sends leaves. What waits still is dropped: open the gate before.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    pub fn unprotect(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        moving.protect(None);
        parts.ports().for_each(|part| part.remove_gate());
        Ok(())
    }

    /// Frames that may leave now do.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    pub fn release(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, _) = self.moved(name)?;
        release(&parts);
        Ok(())
    }

    /// The port's VM, a twin, takes over.
    ///
    /// # Errors
    /// The port is not there, or its state does not go with its guest.
    pub fn own(&self, name: &str) -> Result<(), ProtectError> {
        let (parts, moving) = self.moved(name)?;
        moving.own(&parts, self.clock.now());
        Ok(())
    }
}
