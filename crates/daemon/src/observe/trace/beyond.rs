//! The way of a frame beyond this host: to which other hosts a tunnel sends it, and which port has its destination there. All of it is what
//! this host knows: the table of its tunnel, and what the hosts of the fabric have published.

use std::net::IpAddr;

use nicety_adapter::{Edit, Reason};
use nicety_frame::{Layout, Mac, Vni};
use nicety_uplink::Way;

use super::{NAMES_MAX, TraceHost, TraceStage, TraceStep, trace_step};
use crate::daemon::{Daemon, PortView};
use crate::fabric::PlaceReport;

/// See the module's page.
#[derive(Debug)]
pub(super) struct Beyond {
    pub(super) step: TraceStep,
    /// The hosts that get the frame.
    pub(super) hosts: Vec<TraceHost>,
    /// The reason for which the tunnel drops it.
    pub(super) dropped: Option<Reason>,
}

/// The other hosts, as far as they are known.
struct Known<'a> {
    /// Names in the fabric.
    names: &'a [(String, String)],
    /// The place of the destination.
    places: &'a [PlaceReport],
}

impl Beyond {
    /// Of a frame that leaves by this port with this edit. `None`: the port is no tunnel.
    pub(super) fn of(daemon: &Daemon, view: &PortView, frame: &[u8], edit: Edit) -> Option<Self> {
        let to = Mac(*frame.first_chunk()?);
        let way = daemon.way(view, vlan(frame, edit), to)?;
        let fabric = daemon.fabric().filter(|fabric| fabric.tunnel == view.name);
        let places = fabric.as_ref().and_then(|_| daemon.places(to)).unwrap_or_default();
        let names = fabric.into_iter().flat_map(|fabric| fabric.hosts).map(|host| (host.address, host.name));
        Some(Known { names: &names.collect::<Vec<_>>(), places: &places }.beyond(&way))
    }
}

impl Known<'_> {
    fn beyond(&self, way: &Way) -> Beyond {
        let said = |what, hosts, dropped| Beyond { step: trace_step(TraceStage::Tunnel, what), hosts, dropped };
        match way {
            Way::NoNetwork => {
                let reason = Reason::Filtered;
                said(
                    format!("its VLAN is none of the tunnel's: dropped there, {}", reason.name()),
                    vec![],
                    Some(reason),
                )
            }
            Way::Hop(vni, address) => {
                let host = self.host(*address, true);
                said(format!("{}: {}", in_network(*vni, &[host.to_string()], 1), port(&host)), vec![host], None)
            }
            Way::All(vni, hops) if hops.is_empty() => {
                let reason = Reason::NoReceiver;
                said(format!("no other host has network {vni}: dropped there, {}", reason.name()), vec![], Some(reason))
            }
            Way::All(vni, hops) => {
                let hosts: Vec<TraceHost> = hops.iter().map(|address| self.host(*address, false)).collect();
                let names: Vec<String> = hosts.iter().take(NAMES_MAX).map(ToString::to_string).collect();
                said(format!("{}, as all hosts with this network", in_network(*vni, &names, hosts.len())), hosts, None)
            }
        }
    }

    /// The host with this tunnel, and with `is_one` the port that has the destination.
    fn host(&self, address: IpAddr, is_one: bool) -> TraceHost {
        let address = address.to_string();
        let host = self.names.iter().find(|(known, _)| *known == address).map(|(_, name)| name.clone());
        let is_there = |place: &&PlaceReport| place.is_current && Some(&place.host) == host.as_ref();
        let place = self.places.iter().find(is_there).filter(|_| is_one);
        let (port, group) = place.map(|place| (place.port.clone(), place.group.clone())).unzip();
        TraceHost { host, address, port, group }
    }
}

fn in_network(vni: Vni, names: &[String], count: usize) -> String {
    let more = if count > names.len() { format!(" and {} more", count - names.len()) } else { String::new() };
    format!("in network {vni} to {}{more}", names.join(", "))
}

fn port(host: &TraceHost) -> String {
    match (&host.port, &host.group) {
        (Some(port), Some(group)) => format!("its port {port} (port group {group}) has the destination"),
        _ => "the destination was heard there, and its port is not known here".to_owned(),
    }
}

/// The VLAN with which a frame leaves; 0: without a tag.
fn vlan(frame: &[u8], edit: Edit) -> u16 {
    match edit {
        Edit::Tag(tag) | Edit::Retag(tag) => tag.tci.id(),
        Edit::Untag => 0,
        Edit::Keep => Layout::parse(frame).tags.iter().flatten().next().map_or(0, |tag| tag.tci.id()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [(&str, bool); 2] = [("node-3", false), ("node-2", true)];

    fn beyond(way: &Way) -> Beyond {
        let names = [("192.0.2.2", "node-2"), ("192.0.2.3", "node-3")];
        let names = names.map(|(address, name)| (address.to_owned(), name.to_owned()));
        let places = PLACES.map(|(host, is_current)| PlaceReport {
            group: "web".to_owned(),
            host: host.to_owned(),
            port: "vm7".to_owned(),
            sequence: 5,
            is_current,
        });
        Known { names: &names, places: &places }.beyond(way)
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn a_frame_ends_at_the_port_that_its_host_has_published() {
        let vni = Vni::new(5010).unwrap();
        let Beyond { step, hosts, dropped } = beyond(&Way::Hop(vni, ip(2)));
        let words = "in network 5010 to node-2 (192.0.2.2): its port vm7 (port group web) has the destination";
        assert_eq!((step.what.as_str(), dropped), (words, None));
        assert_eq!((hosts[0].host.as_deref(), hosts[0].port.as_deref()), (Some("node-2"), Some("vm7")));
        // Its claim there is overtaken: the frame still goes where the tunnel's table says.
        let there = beyond(&Way::Hop(vni, ip(3)));
        assert!(
            there.step.what.ends_with("(192.0.2.3): the destination was heard there, and its port is not known here")
        );
        // A peer that the host file names.
        let plain = beyond(&Way::Hop(vni, ip(9)));
        assert!(plain.step.what.starts_with("in network 5010 to 192.0.2.9: "), "{plain:?}");
    }

    #[test]
    fn a_frame_for_all_is_sent_to_each_host_with_the_network_and_one_for_nobody_is_dropped() {
        let vni = Vni::new(5010).unwrap();
        let all = beyond(&Way::All(vni, vec![ip(2), ip(9)]));
        assert_eq!(all.step.what, "in network 5010 to node-2 (192.0.2.2), 192.0.2.9, as all hosts with this network");
        assert_eq!((all.hosts.len(), all.hosts[0].port.as_ref()), (2, None));
        let many = beyond(&Way::All(vni, (1..=20).map(ip).collect()));
        assert!(many.step.what.contains("192.0.2.8 and 12 more, as all hosts"), "{many:?}");
        let none = beyond(&Way::All(vni, Vec::new()));
        assert_eq!(
            (none.step.what.as_str(), none.dropped),
            ("no other host has network 5010: dropped there, no-receiver", Some(Reason::NoReceiver))
        );
        assert_eq!(beyond(&Way::NoNetwork).dropped, Some(Reason::Filtered));
    }
}
