//! Changes ports and uplinks while they run.

use std::os::fd::AsRawFd;

use nicety_adapter::{Uplink, UplinkSettings};
use nicety_frame::Mac;
use nicety_plane::{Agent, Announcer, Querier, Role};
use nicety_switch::{Policy, Vlan};

use super::{Daemon, PortSpec, UplinkAgents, UplinkMaker};
use crate::run::inbox::Note;

impl Daemon {
    /// Changes the values that can change while a VM is attached: the port's receive buffer, its access, its link and its policy.
    /// The error is a sentence for a person.
    pub fn set(&self, spec: &PortSpec) -> Result<(), String> {
        let mut ports = self.ports();
        // A port that waits to be reopened gets these values then.
        let Some(running) = ports.values_mut().find(|running| running.spec.config.name == spec.config.name) else {
            let mut lost = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for (old, _) in lost.iter_mut().filter(|(old, _)| old.config.name == spec.config.name) {
                *old = spec.clone();
            }
            return Ok(());
        };
        let port = || format!("port {}", spec.config.name);
        if running.spec.access != spec.access {
            nicety_socket::change_access(&spec.config.socket, &spec.access)
                .map_err(|error| format!("{}: {error}", port()))?;
            running.spec.access = spec.access.clone();
        }
        if running.spec.buffer_bytes() != spec.buffer_bytes() {
            let set = running.parts().try_for_each(|part| part.set_buffer(spec.buffer_bytes()));
            set.map_err(|error| format!("{}: {error}", port()))?;
            running.spec.config.buffer = spec.config.buffer;
        }
        let before = &running.spec.config;
        if before.policy != spec.config.policy {
            self.plane.set_policy(&running.port, &spec.config.policy);
        }
        let is_moved = before.function != spec.config.function || before.mac != spec.config.mac;
        let waited = before.waits_for_group != spec.config.waits_for_group;
        let has_link = before.link == spec.config.link && !waited && !is_moved;
        running.spec = spec.clone();
        if is_moved {
            self.seat(&running.port, spec);
        }
        if !has_link {
            self.set_link(running);
        }
        Ok(())
    }

    /// An uplink has these agents from now on. One that announces itself already goes on with what it tells, as its neighbour would take
    /// another address for another system; and so does a querier of these VLANs.
    pub fn set_uplink_agents(&self, name: &str, agents: UplinkAgents) {
        let mut uplinks = self.uplinks();
        let Some(running) = uplinks.iter_mut().find(|uplink| uplink.name == name) else { return };
        let UplinkAgents { announcement, querier } = agents;
        if announcement.is_some() != running.port.has_agent(Role::Announcer) {
            let agent = announcement.clone().map(|frame| Box::new(Announcer::new(frame)) as Box<dyn Agent>);
            running.port.set_agent(Role::Announcer, agent);
            running.agents.announcement = announcement;
        }
        let [before, after] = [&running.agents.querier, &querier].map(|one| one.as_ref().map(|(_, vlan)| vlan));
        if before != after {
            let agent = |(mac, vlan): &(Mac, Vlan)| Box::new(Querier::new(*mac, &queried(vlan))) as Box<dyn Agent>;
            let agent = querier.as_ref().map(agent);
            running.port.set_agent(Role::Querier, agent);
            running.agents.querier = querier;
        }
    }

    /// The announcements of all uplinks that send any, by their names.
    pub(crate) fn announcements(&self) -> Vec<(String, Vec<u8>)> {
        self.uplinks()
            .iter()
            .filter_map(|uplink| Some((uplink.name.clone(), uplink.agents.announcement.clone()?)))
            .collect()
    }

    /// Changes the values of an uplink that can change while it is open: the link itself stays, and no frame is lost. `maker` makes
    /// it with these values from now on. The error is a sentence for a person.
    pub fn set_uplink(
        &self,
        name: &str,
        settings: &UplinkSettings,
        policy: &Policy,
        maker: Option<UplinkMaker>,
    ) -> Result<(), String> {
        let mut uplinks = self.uplinks();
        let Some(running) = uplinks.iter_mut().find(|uplink| uplink.name == name) else {
            return Err(format!("there is no uplink {name:?}"));
        };
        (running.policy, running.maker) = (policy.clone(), maker);
        let set = running.port.with_uplink(|uplink| {
            let descriptor = |uplink: &dyn Uplink| uplink.descriptor().map(|fd| fd.as_raw_fd());
            let before = descriptor(uplink);
            uplink.set(settings)?;
            // `Some`: another one is to be watched.
            let moved = (descriptor(uplink) != before).then(|| uplink.descriptor().map(|fd| fd.try_clone_to_owned()));
            moved.map(Option::transpose).transpose()
        });
        // One that has failed gets these values when it is restarted.
        if let Some(set) = set
            && let Some(fd) = set.map_err(|error| format!("uplink {name}: {error}"))?
        {
            let id = running.port.id();
            self.inbox(id).push(Note::Descriptor(id, fd));
        }
        if !policy.blocked {
            self.plane.unloop(running.port.id());
        }
        self.plane.set_policy(&running.port, policy);
        self.plane.carrier_changed(running.port.id(), self.clock.now());
        Ok(())
    }
}

/// The VLANs that a querier asks in, each with its tag; `None` is untagged.
fn queried(vlan: &Vlan) -> Vec<Option<u16>> {
    match vlan {
        Vlan::Flat | Vlan::Access(_) | Vlan::Service(_) => vec![None],
        Vlan::Trunk { allowed, native } => {
            allowed.iter().map(|id| (Some(id) != *native).then(|| id.number())).collect()
        }
    }
}
