//! Standbys, I/O control, mirrors, exports of flows and loops know ports, uplinks and teams by their numbers: they are set once all of these are open.

use std::collections::HashMap;
use std::sync::Arc;

use nicety_frame::Mac;
use nicety_host::{Host, PortConfig};
use nicety_plane::Port;
use tracing::warn;

use super::{Daemon, Running};
use crate::spec::processors;

impl Daemon {
    /// Tells all that names ports, uplinks or teams which of a host's are there now. Call it after some were opened, closed or changed: their
    /// numbers may be others.
    pub(crate) fn settle(&self, host: &Host) {
        self.pair_standbys();
        self.set_busy_poll(host.daemon.always_polls);
        self.set_io_control(host);
        self.show_links(host);
        self.set_mirrors(host);
        self.set_flows(host);
        self.note_loops(host);
    }

    /// Each port that stands by for another one knows that port: the one with its address, in its VLAN.
    fn pair_standbys(&self) {
        let ports = self.ports();
        let standbys = || ports.values().filter(|running| running.spec.config.standby);
        if standbys().next().is_none() {
            return;
        }
        let primaries = ports.values().filter(|running| !running.spec.config.standby);
        let primaries: HashMap<Mac, &Running> = primaries.map(|running| (running.spec.config.mac, running)).collect();
        for standby in standbys() {
            let PortConfig { mac, policy, .. } = &standby.spec.config;
            let primary = primaries.get(mac).filter(|primary| primary.spec.config.policy.vlan == policy.vlan);
            let parts: Vec<&Arc<Port>> = primary.into_iter().flat_map(|primary| primary.parts()).collect();
            standby.parts().for_each(|part| part.stand_by(*mac, parts.iter().copied()));
        }
    }

    fn set_busy_poll(&self, always: bool) {
        let (workers, processors) = (self.workers.len(), processors());
        if always && processors <= workers {
            warn!(
                "[daemon] busy_poll = \"always\": {workers} workers take a processor each, and of {processors} none is left to VMs: \
                 remove the key, or give the daemon more"
            );
        }
        self.workers.iter().for_each(|worker| worker.inbox.set_always_polls(always));
    }

    /// Uplinks and teams of a host that are blocked for a loop say with which other one, also if another daemon has found it.
    fn note_loops(&self, host: &Host) {
        // A loop is one of one VLAN. The tunnel carries those of all groups.
        let tunnel = host.fabric.as_ref().and_then(|fabric| self.known_uplink(&fabric.tunnel));
        tunnel.into_iter().for_each(|tunnel| self.plane.spare_uplink(tunnel, "the fabric's tunnel"));
        let uplinks = host.uplinks.iter().map(|one| (&one.name, one.blocked, &one.in_loop));
        let teams = host.teams.iter().map(|one| (&one.name, one.blocked, &one.in_loop));
        for (name, _, other) in uplinks.chain(teams).filter(|(_, is_blocked, _)| *is_blocked) {
            other.iter().for_each(|other| self.note_loop(name, other));
        }
    }
}
