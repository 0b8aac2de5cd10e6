//! The fabric of the host: what it asks of the ports and of the switch, and what others ask of it.

use std::sync::Arc;

use nicety_adapter::PortId;
use nicety_frame::Mac;
use nicety_host::{FabricGroups, Host, in_one_line};
use nicety_plane::{GateMode, Port, Presence};
use nicety_switch::{Learned, Vlan};

use super::{Daemon, PortSpec};
use crate::fabric::around::{Around, Changes, InForce, NotNow};
use crate::fabric::{FabricError, FabricReport, Joined, PlaceReport};
use crate::serve::live::{ChangeError, Live};

impl Daemon {
    /// This host joins the fabric of its host file, if it names one. To be called before the process confines itself. Nothing is asked of
    /// etcd before [`Daemon::begin_fabric`].
    ///
    /// # Errors
    /// Its files cannot be read, or threads cannot be started.
    pub(crate) fn join_fabric(&self, host: &Host) -> Result<(), FabricError> {
        let Some(config) = &host.fabric else { return Ok(()) };
        let joined = Joined::start(config, host, self.hops(&config.tunnel), self.clock)?;
        // Called once.
        let _first = self.fabric.set(joined);
        Ok(())
    }

    /// The ports are served, and are changed by this.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn begin_fabric(live: &Arc<Live>) -> std::io::Result<()> {
        let Some(joined) = live.daemon().fabric.get() else { return Ok(()) };
        let changes: Arc<dyn Changes> = Arc::clone(live) as _;
        joined.begin(live.weak_daemon(), Arc::downgrade(&changes))
    }

    /// The state of the fabric. `None`: the host file names none.
    pub fn fabric(&self) -> Option<FabricReport> {
        self.fabric.get().map(Joined::report)
    }

    /// Where an address is, in all groups of the fabric that this host has ports in. `None`: the host file names no fabric.
    pub fn places(&self, mac: Mac) -> Option<Vec<PlaceReport>> {
        self.fabric.get().map(|joined| joined.places(mac))
    }

    /// Another process takes the ports over, or does not after all.
    pub(crate) fn pause_fabric(&self, is_paused: bool) {
        self.fabric.get().into_iter().for_each(|joined| joined.pause(is_paused));
    }

    /// The state of the fabric, for the process that takes the ports over. `None`: there is no fabric, or it is not paused.
    pub(crate) fn fabric_for_next(&self) -> Option<Vec<u8>> {
        self.fabric.get()?.take_known()
    }

    /// This is known of the fabric, from the process before this one. To be called before [`Daemon::begin_fabric`].
    pub(crate) fn resume_fabric(&self, known: Vec<u8>) {
        if let Some(joined) = self.fabric.get() {
            joined.resume(known);
        }
    }
}

/// The use of a part of a port, for other hosts.
fn presence(part: &Arc<Port>) -> Presence {
    let Some(epochs) = part.epochs() else { return part.presence() };
    // A twin receives nothing. Until the first epoch is closed, a shut gate says that nobody knows yet whose the VM is. Afterwards the VM is
    // protected: it stands still for each copy, and goes on here.
    match (part.presence(), epochs.mode(), epochs.current()) {
        (_, GateMode::Mute, _) | (_, GateMode::Shut, 1) => Presence::Nobody,
        (Presence::Waiting, GateMode::Shut | GateMode::Armed, _) => Presence::Running,
        (presence, ..) => presence,
    }
}

impl Around for Daemon {
    fn each_fabric_port(&self, visit: &mut dyn FnMut(PortId, &PortSpec, Presence)) {
        for (id, running) in self.ports().iter().filter(|(_, running)| running.spec.config.in_fabric) {
            let presence = running.parts().map(presence).max();
            visit(*id, &running.spec, presence.unwrap_or(Presence::Nobody));
        }
    }

    fn each_way_out(&self, without: &str, visit: &mut dyn FnMut(&str, &Vlan)) {
        let mut carries = |id: PortId, name: &str| {
            let policy = self.plane.switch().policy(id);
            if !policy.blocked {
                visit(name, &policy.vlan);
            }
        };
        let uplinks = self.uplinks();
        let alone = uplinks.iter().filter(|uplink| uplink.team.is_none() && uplink.name != without);
        alone.for_each(|uplink| carries(uplink.port.id(), &uplink.name));
        drop(uplinks);
        self.teams().iter().for_each(|team| carries(team.id, &team.spec.name));
    }

    fn learned(&self) -> Vec<Learned> {
        self.addresses()
    }

    fn leads_to_uplink(&self, uplink: &str, mac: Mac, vlan: u16) {
        let id = self.uplinks().iter().find(|running| running.name == uplink).map(|running| running.port.id());
        id.into_iter().for_each(|id| self.leads_to_port(id, mac, vlan));
    }

    fn leads_to_port(&self, id: PortId, mac: Mac, vlan: u16) {
        let (addresses, now) = (self.plane.switch().addresses(), self.clock.now());
        if addresses.find(mac, vlan, now).is_some_and(|at| at != id) {
            addresses.learn(mac, vlan, id, now);
        }
    }
}

impl Changes for Live {
    fn apply_groups(&self, groups: &FabricGroups) -> Result<InForce, NotNow> {
        let (failed, changed) = match self.apply_fabric(groups) {
            Ok(changed) => (Vec::new(), changed),
            Err(ChangeError::Halfway { why, changed }) => (why, *changed),
            Err(ChangeError::Waits(why)) => return Err(NotNow::Waits(in_one_line(&why))),
            Err(error) => return Err(NotNow::Refused(in_one_line(&error))),
        };
        Ok(InForce { plan: changed.plan.to_string(), failed, not_kept: changed.not_kept })
    }
}
