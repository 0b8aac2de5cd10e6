//! Saves a port's state, and restores it in another daemon: `nicety port save` and `restore`.

use std::sync::mpsc;

use nicety_adapter::PortId;

use super::{Daemon, REMOVE_TIMEOUT};
use crate::run::inbox::Note;
use crate::run::saved::{PortState, SaveError};

impl Daemon {
    /// Saves a port and stops it until it is restored or its VMM disconnects. Saving a stopped port again gives the same state.
    pub fn save(&self, name: &str) -> Result<PortState, SaveError> {
        let (id, (done, answer)) = (self.function(name)?, mpsc::channel());
        self.inbox(id).push(Note::Save(id, done));
        answer.recv_timeout(REMOVE_TIMEOUT).map_err(|_| SaveError::Late)?
    }

    /// Restores a port whose attached VM does not use it, or that [`Daemon::save`] has stopped. The port continues at once, with
    /// the memory and the eventfds of the connected VMM.
    pub fn restore(&self, name: &str, state: PortState) -> Result<(), SaveError> {
        let (id, (done, answer)) = (self.function(name)?, mpsc::channel());
        self.inbox(id).push(Note::Restore(id, Box::new(state), done));
        answer.recv_timeout(REMOVE_TIMEOUT).map_err(|_| SaveError::Late)?
    }

    /// The port of this name, if it is a PCI function.
    fn function(&self, name: &str) -> Result<PortId, SaveError> {
        if self.uplinks().iter().any(|uplink| uplink.name == name) {
            return Err(SaveError::NoFunction(name.to_owned()));
        }
        let ports = self.ports();
        let found = ports.iter().find(|(_, running)| running.spec.config.name == name);
        match found.ok_or_else(|| SaveError::Missing(name.to_owned()))? {
            (_, running) if running.rings.is_some() => Err(SaveError::NoFunction(name.to_owned())),
            (id, _) => Ok(*id),
        }
    }
}
