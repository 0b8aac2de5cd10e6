//! Who looks on: captures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nicety_adapter::PortId;
use nicety_plane::{Histogram, Watcher};

use super::Daemon;

impl Daemon {
    /// Lets somebody look on from now on.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        self.plane.watch(watcher);
    }

    /// Somebody has seen enough.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.plane.unwatch(watcher);
    }

    /// The names of all ports, uplinks included, by their numbers.
    pub fn names(&self) -> BTreeMap<PortId, String> {
        let mut names: BTreeMap<_, _> =
            self.uplinks().iter().map(|uplink| (uplink.port.id(), uplink.name.clone())).collect();
        names.extend(self.ports().iter().map(|(id, running)| (*id, running.spec.name.clone())));
        names
    }

    /// Another number as soon as [`Daemon::names`] may be others.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// How long frames are in the switch.
    pub fn times(&self) -> Histogram {
        self.plane.times()
    }

    /// What time it is, since 1970-01-01 00:00 UTC, by the clock of its frames.
    pub fn wall(&self) -> Duration {
        self.epoch() + Duration::from_nanos(self.clock.now().0)
    }
}
