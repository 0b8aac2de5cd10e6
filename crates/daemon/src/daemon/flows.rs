//! Exports of flows of a host file, with the ports that are open.

use std::sync::Arc;

use nicety_host::Host;
use nicety_ipfix::Port;
use nicety_switch::{Policy, Vlan};

use super::Daemon;
use crate::flows::{FlowExportReport, Ports};

/// A port's name, and the VLAN of its untagged frames.
fn port(name: &str, policy: &Policy) -> Arc<Port> {
    let vlan = match &policy.vlan {
        Vlan::Access(id) | Vlan::Trunk { native: Some(id), .. } => id.number(),
        Vlan::Flat | Vlan::Service(_) | Vlan::Trunk { native: None, .. } => 0,
    };
    Arc::new(Port { name: name.to_owned(), vlan })
}

impl Daemon {
    /// Starts the thread that exports flows. To be called before the process confines itself: collectors are reached by TCP, too.
    pub(crate) fn ready_to_export(&self) {
        self.flows.start();
    }

    /// Counts and exports the flows that a host file names.
    pub(super) fn set_flows(&self, host: &Host) {
        let ports = self.flow_ports();
        if let Some((version, exports)) = self.flows.set(host, ports) {
            self.plane.set_flows(version, exports);
        }
    }

    /// All ports that the switch decides about: no members of teams, and no parts of ports.
    fn flow_ports(&self) -> Ports {
        let mut ports = Ports::default();
        for uplink in self.uplinks().iter().filter(|uplink| uplink.team.is_none()) {
            ports.names.insert(uplink.port.id().0, port(&uplink.name, &uplink.policy));
            ports.uplinks.push(uplink.port.id().0);
        }
        for team in self.teams().iter() {
            ports.names.insert(team.id.0, port(&team.spec.name, &team.spec.policy));
            ports.uplinks.push(team.id.0);
        }
        for (id, running) in self.ports().iter() {
            ports.names.insert(id.0, port(&running.spec.config.name, &running.spec.config.policy));
        }
        ports
    }

    /// The states of the exports of flows.
    pub fn flow_exports(&self) -> Vec<FlowExportReport> {
        self.flows.reports()
    }

    /// Sends all flows that the workers have reported, and ends: another process counts now.
    pub(crate) fn end_flows(&self) {
        self.flows.end();
    }
}
