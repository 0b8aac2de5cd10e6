//! `serve --check`: settings that can be served but cannot work.

use nicety_host::{Host, PortConfig, UplinkConfig, UplinkKind, carries, serves};
use nicety_switch::{Private, Vlan};

/// Sentences, each about frames that cannot pass, or that would loop.
pub fn warnings(host: &Host) -> Vec<String> {
    let mut warnings: Vec<String> = host.ports.iter().filter_map(|port| lonely(host, port)).collect();
    let alone: Vec<UplinkConfig> = host.uplinks.iter().filter(|uplink| uplink.team.is_none()).cloned().collect();
    warnings.extend(loops(&alone));
    warnings
}

/// A sentence if a port's network has no other member.
fn lonely(host: &Host, port: &PortConfig) -> Option<String> {
    if host.has_way_out(&port.policy.vlan) {
        return None;
    }
    let mut others = host.ports.iter().filter(|other| other.name != port.name).map(|other| &other.policy.vlan);
    let name = &port.name;
    match &port.policy.vlan {
        Vlan::Access(id) if !others.any(|other| carries(other, *id)) => {
            Some(format!("port {name} is in VLAN {id}, which no uplink and no other port carries: it reaches nobody"))
        }
        Vlan::Service(id) if !others.any(|other| serves(other, *id)) => Some(format!(
            "port {name} is in service VLAN {id}, which no uplink and no other port carries: it reaches nobody"
        )),
        Vlan::Flat if host.ports.len() + host.uplinks.len() > 1 && !others.any(|other| *other == Vlan::Flat) => {
            Some(format!(
                "port {name} has no VLAN, and no uplink and no other port is on the flat network: it reaches nobody"
            ))
        }
        vlan if port.function.is_some() && host.ways_out().next().is_some() => Some(format!(
            "port {name} is a function {}, which no uplink carries: it reaches ports of this host alone",
            of(vlan)
        )),
        _ => None,
    }
}

/// What a port's VLANs are, behind "a function".
fn of(vlan: &Vlan) -> String {
    match vlan {
        Vlan::Flat => "on the flat network".to_owned(),
        Vlan::Access(id) => format!("in VLAN {id}"),
        Vlan::Service(id) => format!("in service VLAN {id}"),
        Vlan::Trunk { allowed, .. } => format!("with VLANs {allowed}"),
    }
}

/// Pairs of uplinks between which the switch would loop frames, if both lead to the same network.
fn loops(uplinks: &[UplinkConfig]) -> Vec<String> {
    let leads = |uplink: &&UplinkConfig| {
        !matches!(uplink.kind, UplinkKind::Capture { .. } | UplinkKind::Null | UplinkKind::Querier)
    };
    let uplinks: Vec<&UplinkConfig> = uplinks.iter().filter(leads).collect();
    let mut sentences = Vec::new();
    for (index, one) in uplinks.iter().enumerate() {
        for other in &uplinks[index + 1..] {
            let apart = one.private == Private::Isolated && other.private == Private::Isolated;
            if !apart && let Some(what) = shared(&one.vlan, &other.vlan) {
                sentences.push(format!(
                    "uplinks {} and {} both carry {what}: if they lead into one network, frames go round without end; part them \
                     by VLAN, or give both private = \"isolated\"",
                    one.name, other.name
                ));
            }
        }
    }
    sentences
}

/// A network that both uplinks reach.
fn shared(one: &Vlan, other: &Vlan) -> Option<String> {
    match (one, other) {
        (Vlan::Flat, Vlan::Flat) => Some("the flat network".to_owned()),
        (Vlan::Service(id), vlan) | (vlan, Vlan::Service(id)) => {
            serves(vlan, *id).then(|| format!("service VLAN {id}"))
        }
        (Vlan::Access(id), vlan) | (vlan, Vlan::Access(id)) => carries(vlan, *id).then(|| format!("VLAN {id}")),
        (Vlan::Trunk { allowed, native }, trunk @ Vlan::Trunk { .. }) => {
            let both = allowed.iter().chain(*native).find(|id| carries(trunk, *id));
            both.map(|id| format!("VLAN {id}"))
        }
        (Vlan::Flat, Vlan::Trunk { .. }) | (Vlan::Trunk { .. }, Vlan::Flat) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn of(uplinks: &[&str], ports: &[&str]) -> Vec<String> {
        let uplinks =
            uplinks.iter().enumerate().map(|(index, more)| format!("[[uplink]]\nname = \"up{index}\"\n{more}\n"));
        let ports = ports.iter().enumerate().map(|(index, more)| {
            format!(
                "[[port]]\nname = \"vm{index}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:{index:02x}\"\nsocket = \"{index}\"\n{more}\n"
            )
        });
        let text: String = uplinks.chain(ports).collect();
        warnings(&Host::parse(&text, Path::new("/etc/host.toml")).unwrap())
    }

    const PAIR: &str = "kind = \"pair\"\nsocket = \"a\"";
    const STREAM: &str = "kind = \"stream\"\nsocket = \"b\"";

    #[test]
    fn a_vlan_that_nobody_else_carries_is_told() {
        let alone = "port vm0 is in VLAN 10, which no uplink and no other port carries: it reaches nobody";
        assert!(of(&[PAIR], &["vlan = 10", ""]).is_empty(), "an uplink without VLANs carries it with its tag");
        let trunk = format!("{PAIR}\ntrunk = \"5-10\"");
        assert_eq!(of(&[&trunk], &["vlan = 11"]), [alone.replace("10", "11")]);
        assert!(of(&[&trunk], &["vlan = 10"]).is_empty());
        assert!(of(&[], &["vlan = 10", "vlan = 10"]).is_empty());
        assert!(of(&[], &["vlan = 10", "trunk = \"20\"\nnative = 10"]).is_empty());
        assert_eq!(of(&[], &["vlan = 10", "qinq = 10"]).len(), 2, "a service VLAN is another");
        let flat = "port vm0 has no VLAN, and no uplink and no other port is on the flat network: it reaches nobody";
        assert_eq!(of(&[&trunk], &[""]), [flat]);
        assert!(of(&[], &[""]).is_empty(), "one port alone is a beginning");
        let querier = "kind = \"querier\"\nvlan = 10";
        assert_eq!(of(&[querier], &["vlan = 10"]), [alone]);
    }

    #[test]
    fn two_uplinks_that_carry_the_same_are_told_unless_they_are_isolated() {
        let flat = of(&[PAIR, STREAM], &[""]);
        assert!(
            flat.len() == 1 && flat[0].starts_with("uplinks up0 and up1 both carry the flat network: "),
            "{flat:?}"
        );
        let isolated = [PAIR, STREAM].map(|uplink| format!("{uplink}\nprivate = \"isolated\""));
        assert!(of(&[&isolated[0], &isolated[1]], &[""]).is_empty());
        let with = |uplink: &str, more: &str| format!("{uplink}\n{more}");
        let trunks = [with(PAIR, "trunk = \"5-10\""), with(STREAM, "trunk = \"10-20\"")];
        let found = of(&[&trunks[0], &trunks[1]], &["vlan = 7"]);
        assert!(found.len() == 1 && found[0].starts_with("uplinks up0 and up1 both carry VLAN 10: "), "{found:?}");
        assert!(of(&[&with(PAIR, "vlan = 5"), &with(STREAM, "vlan = 6")], &["vlan = 5", "vlan = 6"]).is_empty());
        assert!(of(&[PAIR, "kind = \"null\""], &[""]).is_empty(), "it leads nowhere");
    }
}
