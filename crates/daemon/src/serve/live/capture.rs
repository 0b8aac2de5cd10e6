//! Finds the ports of a capture by the names in the running host file.

use std::sync::Arc;

use nicety_adapter::PortId;
use nicety_host::List;
use nicety_plane::Watcher;

use super::{ChangeError, Live};
use crate::observe::capture::{self, Encoder, Scope};

/// Selects all dropped frames, unless a port has this name.
pub const DROPS: &str = "drops";

/// A running capture.
#[derive(Debug)]
pub struct Capture {
    /// Takes copies of frames until the capture ends.
    pub watcher: Arc<dyn Watcher>,
    /// Makes the capture file's bytes of them.
    pub encoder: Encoder,
    /// Its ports.
    pub ports: Vec<PortId>,
}

impl Live {
    /// Starts a capture of a port, an uplink, the ports of a group, or all [dropped](DROPS) frames. `scope` has the other
    /// options.
    pub fn capture(&self, of: &str, mut scope: Scope) -> Result<Capture, ChangeError> {
        let names = self.daemon.names();
        let of_port = |wanted: &str| names.iter().find(|(_, name)| *name == wanted).map(|(id, _)| *id);
        let ports: Vec<PortId> = match of_port(of) {
            Some(id) => vec![id],
            None if of == DROPS => {
                scope.drops = true;
                names.keys().copied().collect()
            }
            None => {
                let running = self.running();
                let members = running.host.document.members(of);
                let members = members.ok_or_else(|| super::missing(&running.host.document, List::Ports, of))?;
                members.into_iter().filter_map(of_port).collect()
            }
        };
        if !scope.drops {
            scope.ports = Some(ports.clone());
        }
        let (watcher, reader) = capture::tap(scope);
        let encoder = Encoder::new(reader, self.daemon.epoch(), names);
        self.daemon.watch(&watcher);
        Ok(Capture { watcher, encoder, ports })
    }
}
