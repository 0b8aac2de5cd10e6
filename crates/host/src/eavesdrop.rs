//! Eavesdropping: the ports whose unicasts other ports can read, by their policies (docs/switch.md, "Who can read whose frames").

use std::fmt;

use nicety_switch::{Policy, Vlan, VlanSet};

use super::port::PortConfig;

/// The ports that can be eavesdropped on, and those that can eavesdrop, by the keys that allow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Eavesdropping {
    /// Number of ports.
    ports: usize,
    /// Ports whose unicasts another port can read.
    on: Vec<String>,
    /// Keys, and the ports that can read another's unicasts because of them.
    by: Vec<(Vec<&'static str>, Vec<String>)>,
}

impl Eavesdropping {
    /// Eavesdropping among these ports.
    pub fn among(ports: &[PortConfig]) -> Self {
        let mut all = Self { ports: ports.len(), ..Self::default() };
        let hears = |listener: &PortConfig, port: &PortConfig| {
            // A standby port belongs to the same VM.
            listener.mac != port.mac && meet(&listener.policy.vlan, &port.policy.vlan)
        };
        for port in ports {
            let by = |listener: &&PortConfig| hears(listener, port) && !keys(&listener.policy).is_empty();
            if ports.iter().any(|listener| by(&listener)) {
                all.on.push(port.name.clone());
            }
            let keys = keys(&port.policy);
            if keys.is_empty() || !ports.iter().any(|other| hears(port, other)) {
                continue;
            }
            match all.by.iter_mut().find(|(known, _)| *known == keys) {
                Some((_, names)) => names.push(port.name.clone()),
                None => all.by.push((keys, vec![port.name.clone()])),
            }
        }
        all
    }

    fn names(&self, names: &[String]) -> String {
        if names.len() == self.ports && names.len() > 2 { "all ports".to_owned() } else { names.join(", ") }
    }
}

impl fmt::Display for Eavesdropping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.on.is_empty() {
            return f.write_str("no port can be eavesdropped on by another");
        }
        write!(f, "can be eavesdropped on: {}", self.names(&self.on))?;
        for (keys, names) in &self.by {
            write!(f, "; by {} ({})", self.names(names), keys.join(", "))?;
        }
        Ok(())
    }
}

/// The keys that are `"accept"` and let a port get frames for another port's address.
fn keys(policy: &Policy) -> Vec<&'static str> {
    let Policy { promiscuous, mac_changes, forged_transmits, .. } = policy;
    let keys = [("promiscuous", promiscuous), ("mac_changes", mac_changes), ("forged_transmits", forged_transmits)];
    keys.into_iter().filter_map(|(key, accepts)| accepts.then_some(key)).collect()
}

/// Whether two ports have a VLAN in common.
fn meet(one: &Vlan, other: &Vlan) -> bool {
    let (one, other) = (vlans(one), vlans(other));
    one.flat && other.flat || shares(&one.customer, &other.customer) || shares(&one.service, &other.service)
}

fn shares(one: &VlanSet, other: &VlanSet) -> bool {
    one.iter().any(|id| other.contains(id))
}

#[derive(Default)]
struct Vlans {
    flat: bool,
    customer: VlanSet,
    service: VlanSet,
}

fn vlans(vlan: &Vlan) -> Vlans {
    match vlan {
        Vlan::Flat => Vlans { flat: true, ..Vlans::default() },
        Vlan::Access(id) => Vlans { customer: [*id].into_iter().collect(), ..Vlans::default() },
        Vlan::Service(id) => Vlans { service: [*id].into_iter().collect(), ..Vlans::default() },
        // A trunk also has the service VLANs of the same numbers.
        Vlan::Trunk { allowed, native } => {
            let mut customer = allowed.clone();
            customer.extend(*native);
            Vlans { flat: false, customer, service: allowed.clone() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;

    /// The warning about ports with these keys.
    fn warning(ports: &[&str]) -> String {
        let port = |(index, keys): (usize, &&str)| {
            format!(
                "[[port]]\nname = \"vm{index}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:0{index}\"\nsocket = \"{index}.sock\"\n{keys}\n"
            )
        };
        let text: String = ports.iter().enumerate().map(port).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("host.toml");
        std::fs::write(&path, text).unwrap();
        Eavesdropping::among(&Host::read(&path).unwrap().ports).to_string()
    }

    const STRICT: &str = "mac_changes = \"reject\"\nforged_transmits = \"reject\"";

    #[test]
    fn each_port_that_another_can_read_is_named_with_whom_and_by_which_keys() {
        let nobody = "no port can be eavesdropped on by another";
        assert_eq!(warning(&[""]), nobody, "alone");
        assert_eq!(warning(&["", ""]), "can be eavesdropped on: vm0, vm1; by vm0, vm1 (mac_changes, forged_transmits)");
        assert_eq!(
            warning(&["", "", ""]),
            "can be eavesdropped on: all ports; by all ports (mac_changes, forged_transmits)"
        );
        assert_eq!(warning(&[STRICT, STRICT]), nobody);
        // The restriction protects the port's neighbours, not the port itself.
        assert_eq!(
            warning(&[STRICT, "mac_changes = \"reject\""]),
            "can be eavesdropped on: vm0; by vm1 (forged_transmits)"
        );
        assert_eq!(
            warning(&[STRICT, &format!("{STRICT}\npromiscuous = \"accept\"")]),
            "can be eavesdropped on: vm0; by vm1 (promiscuous)"
        );
    }

    #[test]
    fn ports_without_a_vlan_in_common_read_nothing_of_each_other() {
        let nobody = "no port can be eavesdropped on by another";
        assert_eq!(warning(&["vlan = 10", "vlan = 20"]), nobody);
        assert_eq!(warning(&["vlan = 10", ""]), nobody);
        assert_eq!(warning(&["vlan = 10", "qinq = 10"]), nobody);
        let trunk = warning(&["vlan = 10", "trunk = \"10,20\"", "vlan = 30"]);
        assert_eq!(trunk, "can be eavesdropped on: vm0, vm1; by vm0, vm1 (mac_changes, forged_transmits)");
        assert_ne!(warning(&["vlan = 10", "trunk = \"20\"\nnative = 10"]), nobody);
        assert_ne!(warning(&["qinq = 10", "trunk = \"10\""]), nobody);
    }
}
