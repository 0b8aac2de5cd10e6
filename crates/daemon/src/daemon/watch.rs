//! Watchers, which are captures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_plane::{Histogram, Watcher};

use super::Daemon;

impl Daemon {
    /// Adds a watcher.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        self.plane.watch(watcher);
    }

    /// Removes a watcher.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.plane.unwatch(watcher);
    }

    /// The names of all ports, uplinks included, by their numbers.
    pub fn names(&self) -> BTreeMap<PortId, String> {
        let mut names: BTreeMap<_, _> =
            self.uplinks().iter().map(|uplink| (uplink.port.id(), uplink.name.clone())).collect();
        names.extend(self.teams().iter().map(|team| (team.id, team.spec.name.clone())));
        names.extend(self.ports().iter().map(|(id, running)| (*id, running.spec.config.name.clone())));
        names
    }

    /// The numbers of all ports by their names, other parts of ports included.
    pub fn numbers(&self) -> BTreeMap<String, u16> {
        let mut numbers: BTreeMap<_, _> = self.names().into_iter().map(|(id, name)| (name, id.0)).collect();
        let ports = self.ports();
        let parts = ports.values().flat_map(|running| &running.others);
        numbers.extend(parts.map(|part| (part.log.port().to_owned(), part.port.id().0)));
        numbers
    }

    /// Changes whenever [`Daemon::names`] may have changed.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// The times that frames spend in the switch.
    pub fn times(&self) -> Histogram {
        self.plane.times()
    }

    /// The time since 1970-01-01 00:00 UTC, by the clock of frames.
    pub fn wall(&self) -> Duration {
        self.epoch() + Duration::from_nanos(self.clock.now().0)
    }
}
