//! I/O control of uplinks: classes of a host file, with the ports' numbers.

use nicety_host::{Host, IoClassConfig, PortConfig, UplinkConfig};
use nicety_ioc::{Class, ClassTerms, Match};
use nicety_plane::InwardControl;
use nicety_switch::Vlan;
use tracing::warn;

use super::Daemon;

/// The I/O control that an uplink has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IoControl {
    /// The classes of what leaves.
    pub outward: Vec<Class>,
    /// The control of frames that come in.
    pub inward: Option<InwardControl>,
}

impl Daemon {
    /// Gives each uplink the classes that a host file names for it. A direction of an uplink whose classes are the same goes on undisturbed.
    pub(super) fn set_io_control(&self, host: &Host) {
        let mut names: Vec<(String, u16)> =
            self.ports().iter().map(|(id, running)| (running.spec.config.name.clone(), id.0)).collect();
        names.extend(self.uplinks().iter().map(|running| (running.name.clone(), running.port.id().0)));
        names.extend(self.teams().iter().map(|running| (running.spec.name.clone(), running.id.0)));
        let of_queues = || host.uplinks.iter().filter(|uplink| uplink.queues() > 1);
        // One queue sends before there are classes, and as long as there are some.
        for uplink in of_queues().filter(|uplink| host.sends_by_one_queue(uplink)) {
            self.set_queues(&uplink.name, true);
        }
        for running in self.uplinks().iter_mut() {
            let is_queue = |team: &&String| host.uplink(team).is_some_and(|uplink| uplink.queues() > 1);
            let name = running.team.as_ref().filter(is_queue).unwrap_or(&running.name);
            let wanted = host.uplink(name).map_or_else(IoControl::default, |uplink| control(host, uplink, &names));
            let was = std::mem::replace(&mut running.control, wanted);
            let IoControl { outward, inward } = &running.control;
            if was.outward != *outward {
                running.port.set_io_control(outward, self.clock.now());
            }
            if was.inward != *inward {
                self.set_inward(&running.name, &running.port, inward.as_ref());
            }
        }
        for uplink in of_queues().filter(|uplink| !host.sends_by_one_queue(uplink)) {
            self.set_queues(&uplink.name, false);
        }
    }

    fn set_inward(&self, name: &str, port: &nicety_plane::Port, control: Option<&InwardControl>) {
        if let Err(error) = port.set_inward(control, self.clock.now()) {
            warn!(uplink = name, "what comes in is not controlled as the host file says: {error}");
        }
    }
}

/// The classes of an uplink, with the numbers of these ports, uplinks and teams.
pub(super) fn control(host: &Host, uplink: &UplinkConfig, names: &[(String, u16)]) -> IoControl {
    // A port that is not open has no number.
    let number_of = |port: &str| names.iter().find(|(name, _)| name == port).map(|(_, number)| *number);
    let classes =
        |configs: Vec<IoClassConfig>| configs.iter().map(|config| class(config, &number_of)).collect::<Vec<Class>>();
    let inward = uplink.inward.map(|inward| InwardControl {
        rate: inward.rate,
        buffer_bytes: u32::try_from(inward.buffer.0).unwrap_or(u32::MAX),
        classes: classes(host.classes_of(uplink)),
    });
    let mut outward = classes(host.outward_classes_of(uplink));
    for rule in outward.iter_mut().flat_map(|class| &mut class.matches) {
        let has_it = |port: &&PortConfig| port.policy.vlan != Vlan::Flat && Some(port.policy.priority) == rule.pcp;
        rule.untagged = host.ports.iter().filter(has_it).filter_map(|port| number_of(&port.name)).collect();
    }
    IoControl { outward, inward }
}

fn class(config: &IoClassConfig, number_of: &impl Fn(&str) -> Option<u16>) -> Class {
    let rule = Match {
        ports: config.ports.as_ref().map(|ports| ports.iter().filter_map(|port| number_of(port)).collect()),
        vlan: config.vlan.map(|id| (id, id)),
        pcp: config.pcp,
        untagged: Vec::new(),
        dscp: config.dscp,
        address: config.network,
        transport: config.transport.map(|ports| (ports.0, ports.1)),
    };
    let of_ports = config.terms_of_ports();
    let single = of_ports.iter().filter_map(|(port, terms)| Some((number_of(port)?, *terms)));
    Class {
        name: config.name.clone(),
        terms: ClassTerms { class: config.terms, each: config.each, ports: single.collect() },
        matches: if config.is_rest() { Vec::new() } else { vec![rule] },
        mark_pcp: config.mark_pcp,
        mark_dscp: config.mark_dscp,
    }
}
