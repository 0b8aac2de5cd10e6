//! I/O control of uplinks: classes of a host file, with the ports' numbers.

use nicety_host::{Host, IoClassConfig, UplinkConfig};
use nicety_ioc::{Class, ClassTerms, Match};

use super::Daemon;

impl Daemon {
    /// Gives each uplink the classes that a host file names for it. Call it after ports or uplinks were opened: their numbers may be
    /// others. An uplink whose classes are the same goes on undisturbed.
    pub fn set_io_control(&self, host: &Host) {
        let names: Vec<(String, u16)> =
            self.ports().iter().map(|(id, running)| (running.spec.name.clone(), id.0)).collect();
        let now = self.clock.now();
        for running in self.uplinks().iter_mut() {
            let classes = host.uplink(&running.name).map_or_else(Vec::new, |uplink| classes(host, uplink, &names));
            if running.classes != classes {
                running.port.set_io_control(&classes, now);
                running.classes = classes;
            }
        }
    }
}

fn classes(host: &Host, uplink: &UplinkConfig, names: &[(String, u16)]) -> Vec<Class> {
    host.classes_of(uplink).iter().map(|config| class(config, names)).collect()
}

fn class(config: &IoClassConfig, names: &[(String, u16)]) -> Class {
    let IoClassConfig { name, uplink: _, terms, each, ports, vlan, pcp, dscp, network, transport, mark_pcp } = config;
    let numbers = |ports: &Vec<String>| {
        names.iter().filter(|(name, _)| ports.contains(name)).map(|(_, number)| *number).collect()
    };
    let rule = Match {
        ports: ports.as_ref().map(numbers),
        vlan: vlan.map(|id| (id, id)),
        pcp: *pcp,
        dscp: *dscp,
        address: *network,
        transport: transport.map(|ports| (ports.0, ports.1)),
    };
    Class {
        name: name.clone(),
        terms: ClassTerms { class: *terms, each: *each, ports: Vec::new() },
        matches: if config.is_rest() { Vec::new() } else { vec![rule] },
        mark_pcp: *mark_pcp,
    }
}
