//! `serve --check`: settings that can be served but cannot work.

use nicety_host::{Host, IoClassConfig, PortConfig, UplinkConfig, UplinkKind, carries, serves};
use nicety_switch::{Private, Vlan};

/// Sentences, each about frames that cannot pass, that would loop, or that guests could put into a class.
pub fn warnings(host: &Host) -> Vec<String> {
    let mut warnings: Vec<String> = host.ports.iter().filter_map(|port| lonely(host, port)).collect();
    warnings.extend(pairs(host, &master).into_iter().map(|pair| pair.sentence));
    warnings.extend(host.io_classes.iter().filter_map(|class| open_class(host, class)));
    warnings
}

/// A sentence if guests could choose a class by their own frames, and gain by that.
fn open_class(host: &Host, class: &IoClassConfig) -> Option<String> {
    let rest = host.io_classes.iter().find(|rest| rest.is_rest() && rest.uplink == class.uplink);
    let rest = rest.cloned().unwrap_or_else(|| IoClassConfig::rest(&class.uplink));
    let believed: Vec<&str> = class.believed(&host.ports).collect();
    // Ports with VLANs cannot choose another one.
    let chooses_tags = |port: &PortConfig| port.policy.vlan == Vlan::Flat && !believed.contains(&port.name.as_str());
    let by_vlan_alone = class.network.is_none() && class.transport.is_none();
    if !class.is_open_to_guests(&rest) || (by_vlan_alone && !host.ports.iter().any(chooses_tags)) {
        return None;
    }
    let IoClassConfig { name, uplink, .. } = class;
    let what = class.more_than(&rest)?;
    let keys = class.chosen_by();
    let whose = match &believed[..] {
        [] => "no guest".to_owned(),
        some => format!("{} alone", some.join(", ")),
    };
    Some(format!(
        "class {uplink}/{name} has {what}, and any guest could choose it by {keys}: it has frames of {whose}; write {keys} together with \
         ports = \"…\" or groups = \"…\""
    ))
}

/// A sentence if a port's network has no other member.
fn lonely(host: &Host, port: &PortConfig) -> Option<String> {
    // Whom a port reaches that waits for its group is not known yet.
    if port.waits_for_group || host.has_way_out(&port.policy.vlan) {
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

/// A name for a port's VLANs, behind "a function".
fn of(vlan: &Vlan) -> String {
    match vlan {
        Vlan::Flat => "on the flat network".to_owned(),
        Vlan::Access(id) => format!("in VLAN {id}"),
        Vlan::Service(id) => format!("in service VLAN {id}"),
        Vlan::Trunk { allowed, .. } => format!("with VLANs {allowed}"),
    }
}

/// An uplink outside teams, or a team: the switch knows it as one way out.
struct Way<'a> {
    name: &'a str,
    vlan: &'a Vlan,
    private: Private,
    /// The interfaces of the host behind it.
    interfaces: Vec<&'a str>,
    /// The one with which it made a loop before.
    in_loop: Option<&'a str>,
    /// It is the fabric's tunnel.
    is_tunnel: bool,
}

/// Two ways out between which the switch relays frames. If both lead into one network, these go round.
pub struct Pair {
    /// Their names.
    pub names: [String; 2],
    /// Whether the host says that both lead into one network.
    pub is_known: bool,
    /// The sentence, with what to do.
    pub sentence: String,
}

/// The pairs of a host file that are not blocked.
pub fn pairs_of(host: &Host) -> Vec<Pair> {
    pairs(host, &master)
}

/// The bridge or bond that an interface of this machine is a port of.
fn master(interface: &str) -> Option<String> {
    let master = std::fs::read_link(format!("/sys/class/net/{interface}/master")).ok()?;
    Some(master.file_name()?.to_str()?.to_owned())
}

fn interface(uplink: &UplinkConfig) -> Option<&str> {
    match &uplink.kind {
        UplinkKind::Tap { name, .. } => Some(name),
        UplinkKind::Xdp { interface, .. } => Some(interface),
        _ => None,
    }
}

fn ways(host: &Host) -> Vec<Way<'_>> {
    let leads = |uplink: &&UplinkConfig| {
        let is_dead_end = matches!(uplink.kind, UplinkKind::Capture { .. } | UplinkKind::Null | UplinkKind::Querier);
        uplink.team.is_none() && !uplink.blocked && !is_dead_end
    };
    let uplinks = host.uplinks.iter().filter(leads).map(|uplink| Way {
        name: &uplink.name,
        vlan: &uplink.vlan,
        private: uplink.private,
        interfaces: interface(uplink).into_iter().collect(),
        in_loop: uplink.in_loop.as_deref(),
        is_tunnel: matches!(&uplink.kind, UplinkKind::Vxlan(tunnel) if tunnel.is_fabric),
    });
    let teams = host.teams.iter().filter(|team| !team.blocked).map(|team| {
        let members = team.members.iter().filter_map(|member| host.uplink(member));
        Way {
            name: &team.name,
            vlan: &team.vlan,
            private: team.private,
            interfaces: members.filter_map(interface).collect(),
            in_loop: team.in_loop.as_deref(),
            is_tunnel: false,
        }
    });
    uplinks.chain(teams).collect()
}

fn pairs(host: &Host, master: &dyn Fn(&str) -> Option<String>) -> Vec<Pair> {
    let ways = ways(host);
    let mut pairs = Vec::new();
    for (index, one) in ways.iter().enumerate() {
        for other in &ways[index + 1..] {
            let apart = one.private == Private::Isolated && other.private == Private::Isolated;
            if let (false, Some(what)) = (apart, shared(one.vlan, other.vlan)) {
                pairs.push(pair(one, other, &what, master));
            }
        }
    }
    pairs
}

/// The interfaces of a way, and the bridges and bonds that these are ports of, directly or by another one. An AF_XDP uplink may be a bridge's
/// or a bond's own.
fn around(way: &Way<'_>, master: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let up = |interface: &&str| {
        std::iter::successors(Some((*interface).to_owned()), |lower| master(lower))
            .take(MASTERS_MAX)
            .collect::<Vec<_>>()
    };
    way.interfaces.iter().flat_map(up).collect()
}

/// A port of a bond that is a port of a bridge has two masters above it. More are a mistake of the host's.
const MASTERS_MAX: usize = 8;

/// The end of a sentence about a loop.
const SURE: &str = "frames go round, and the newer one will be blocked";

fn pair(one: &Way<'_>, other: &Way<'_>, what: &str, master: &dyn Fn(&str) -> Option<String>) -> Pair {
    let others = around(other, master);
    let common = around(one, master).into_iter().find(|known| others.contains(known));
    let made_one = one.in_loop == Some(other.name) || other.in_loop == Some(one.name);
    let names = [one.name, other.name].map(str::to_owned);
    if one.is_tunnel || other.is_tunnel {
        let (tunnel, uplink) = if one.is_tunnel { (one.name, other.name) } else { (other.name, one.name) };
        let sentence = format!(
            "uplink {uplink} and the fabric's tunnel {tunnel} both carry {what}: if another host of the fabric has an uplink into that \
             network, too, frames go round, and {uplink} will be blocked; have such an uplink on one host only"
        );
        return Pair { names, is_known: made_one, sentence };
    }
    let [one, other] = &names;
    let (both, then) = match &common {
        Some(bridge) => (format!("both carry {what} into {bridge}"), SURE.to_owned()),
        None if made_one => {
            (format!("both carry {what}, and made a loop before"), format!("if nothing else has changed, {SURE}"))
        }
        None => (format!("both carry {what}"), format!("if they lead into one network, {SURE}")),
    };
    let sentence = format!(
        "uplinks {one} and {other} {both}: {then}; make them a team, part them by VLAN, or give both private = \"isolated\""
    );
    Pair { names, is_known: common.is_some() || made_one, sentence }
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
        let blocked = format!("{STREAM}\nblocked = true");
        assert!(of(&[PAIR, &blocked], &[""]).is_empty(), "it carries nothing");
        // A host file that was edited by hand, and has lost the block.
        let lost = of(&[PAIR, &format!("{STREAM}\nloop_with = \"up0\"")], &[""]);
        let words = "uplinks up0 and up1 both carry the flat network, and made a loop before: if nothing else has changed, frames go round, \
                     and the newer one will be blocked; ";
        assert!(lost.len() == 1 && lost[0].starts_with(words), "{lost:?}");
        let isolated = [PAIR, STREAM].map(|uplink| format!("{uplink}\nprivate = \"isolated\""));
        assert!(of(&[&isolated[0], &isolated[1]], &[""]).is_empty());
        let with = |uplink: &str, more: &str| format!("{uplink}\n{more}");
        let trunks = [with(PAIR, "trunk = \"5-10\""), with(STREAM, "trunk = \"10-20\"")];
        let found = of(&[&trunks[0], &trunks[1]], &["vlan = 7"]);
        assert!(found.len() == 1 && found[0].starts_with("uplinks up0 and up1 both carry VLAN 10: "), "{found:?}");
        assert!(of(&[&with(PAIR, "vlan = 5"), &with(STREAM, "vlan = 6")], &["vlan = 5", "vlan = 6"]).is_empty());
        assert!(of(&[PAIR, "kind = \"null\""], &[""]).is_empty(), "it leads nowhere");
    }

    #[test]
    fn two_ways_into_one_bridge_of_the_host_are_known_to_be_a_loop() {
        let tap = |name: &str| format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\n");
        let team = "[[team]]\nname = \"lan\"\nmode = \"active-standby\"\nmembers = \"l0\"\n";
        let text = ["l0", "l1", "m0"].map(tap).concat() + team;
        let host = Host::parse(&text, Path::new("/etc/host.toml")).unwrap();
        let master = |interface: &str| (interface != "m0").then(|| "br0".to_owned());
        let known: Vec<Pair> = pairs(&host, &master).into_iter().filter(|pair| pair.is_known).collect();
        let [pair] = &known[..] else { panic!() };
        assert_eq!(
            (pair.names.each_ref().map(String::as_str), pair.sentence.as_str()),
            (
                ["l1", "lan"],
                "uplinks l1 and lan both carry the flat network into br0: frames go round, and the newer one will be blocked; make them \
                 a team, part them by VLAN, or give both private = \"isolated\""
            )
        );
    }

    #[test]
    fn an_uplink_beside_a_fabric_s_tunnel_is_told_to_be_on_one_host_only() {
        let groups =
            nicety_host::FabricGroups::parse("format = 1\n[[port_group]]\nname = \"web\"\nvni = 5010\nvlan = 10\n");
        let text = "[fabric]\nname = \"prod\"\nhost = \"node-1\"\ntunnel = \"tunnel\"\netcd = \"http://etcd1:2379\"\n\
                    [[uplink]]\nkind = \"vxlan\"\nname = \"tunnel\"\naddress = \"192.0.2.1\"\n\
                    [[uplink]]\nkind = \"tap\"\nname = \"tap0\"\nvlan = 10\n";
        let host = Host::parse_with(text, Path::new("/etc/host.toml"), groups.ok().as_ref()).unwrap();
        let [pair] = &pairs(&host, &|_| None)[..] else { panic!() };
        let words = "uplink tap0 and the fabric's tunnel tunnel both carry VLAN 10: if another host of the fabric has an uplink into that \
                     network, too, frames go round, and tap0 will be blocked; have such an uplink on one host only";
        assert_eq!((pair.sentence.as_str(), pair.is_known), (words, false));
    }

    #[test]
    fn a_bridge_is_found_above_a_bond_and_as_an_uplink_of_its_own() {
        let xdp = |name: &str| format!("[[uplink]]\nkind = \"xdp\"\nname = \"{name}\"\ninterface = \"{name}\"\n");
        let master = |interface: &str| {
            let above = [("eth0", "bond0"), ("bond0", "br0"), ("l0", "br0"), ("m0", "br1")];
            above.iter().find(|(lower, _)| *lower == interface).map(|(_, above)| (*above).to_owned())
        };
        for (name, other, bridge) in
            [("l0", "eth0", "br0"), ("l0", "bond0", "br0"), ("l0", "br0", "br0"), ("m0", "eth0", "")]
        {
            let text = format!("[[uplink]]\nkind = \"tap\"\nname = \"{name}\"\n{}", xdp(other));
            let host = Host::parse(&text, Path::new("/etc/host.toml")).unwrap();
            let [pair] = &pairs(&host, &master)[..] else { panic!() };
            assert_eq!(pair.is_known, !bridge.is_empty(), "{name} and {other}");
            assert!(!pair.is_known || pair.sentence.contains(&format!(" into {bridge}: ")), "{}", pair.sentence);
        }
    }

    #[test]
    fn a_class_with_more_that_guests_could_choose_is_told_and_whose_word_counts() {
        let class = |name: &str, more: &str| format!("[[io_class]]\nuplink = \"up0\"\nname = \"{name}\"\n{more}\n");
        let of = |class: &str, ports: &[&str]| {
            let ports: String = ports.iter().enumerate().map(|(index, more)| {
                format!("[[port]]\nname = \"vm{index}\"\nadapter = \"e1000\"\nmac = \"52:54:00:00:00:{index:02x}\"\nsocket = \"{index}\"\n{more}\n")
            }).collect();
            let text = format!("[[uplink]]\nname = \"up0\"\n{PAIR}\nrate = \"1Gbit/s\"\n{ports}{class}");
            warnings(&Host::parse(&text, Path::new("/etc/host.toml")).unwrap())
        };
        let reserved = "reservation = \"100Mbit/s\"";
        assert_eq!(
            of(&class("iscsi", reserved), &["", ""]),
            [
                "class up0/iscsi has a reservation, and any guest could choose it by transport_ports = \"3260\": it has frames of no guest; \
              write transport_ports = \"3260\" together with ports = \"…\" or groups = \"…\""
            ]
        );
        let more = of(&class("migration", "shares = 100"), &["", "trust_marks = true"]);
        assert!(more[0].starts_with("class up0/migration has more shares than class vm, and any guest could choose it by transport_ports = \"49152-49215\": it has frames of vm1 alone; "), "{more:?}");
        assert!(of(&class("iscsi", &format!("{reserved}\nports = \"vm0\"")), &[""]).is_empty());
        assert!(of(&class("nfs", "limit = \"100Mbit/s\""), &[""]).is_empty(), "nobody gains by a limit");
        let marked = of(&class("iscsi", "mark_pcp = 5"), &[""]);
        assert!(
            marked[0].starts_with("class up0/iscsi has a mark above class vm's, and any guest could"),
            "{marked:?}"
        );
        assert!(of(&class("nfs", "mark_pcp = 1\nmark_dscp = 8"), &[""]).is_empty(), "nor by a mark that is below none");
        let limited = class("vm", "port_limit = \"10Mbit/s\"");
        let freed = of(&(limited.clone() + &class("nfs", "shares = 10")), &[""]);
        assert!(
            freed[0].starts_with("class up0/nfs has no such limit as class vm, and any guest could choose it by "),
            "{freed:?}"
        );
        assert!(of(&(limited + &class("nfs", "limit = \"10Mbit/s\"")), &[""]).is_empty());
        let management = class("management", &format!("vlan = 10\n{reserved}"));
        let told =
            |more: &str| of(&management, &[more, more]).iter().any(|told| told.starts_with("class up0/management"));
        assert_eq!(
            (told("vlan = 10"), told("")),
            (false, true),
            "the VLAN of a port is the operator's word, a tag is the guest's"
        );
    }
}
