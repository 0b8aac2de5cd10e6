//! A class of frames on an uplink or a team, and what it is promised there.

use nicety_ioc::{Prefix, Terms};
use nicety_switch::Vlan;
use nicety_uplink::Rate;

use super::around::trusts_marks;
use super::port::PortConfig;

/// The class of all frames that are of no other.
pub(super) const REST: &str = "vm";

/// A class of frames on an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoClassConfig {
    /// Its name.
    pub name: String,
    /// The uplink or the team.
    pub uplink: String,
    /// The terms of the class.
    pub terms: Terms,
    /// The terms of each port in the class.
    pub each: Terms,
    /// Terms of single ports, by their names.
    pub single: Vec<(String, Terms)>,
    /// The names of the ports whose frames it has, with those of the groups; `None`: of all.
    pub ports: Option<Vec<String>>,
    /// The VLAN of its frames.
    pub vlan: Option<u16>,
    /// The priority in their tags.
    pub pcp: Option<u8>,
    /// Their differentiated services code point.
    pub dscp: Option<u8>,
    /// Networks of their source or destination.
    pub network: Option<Prefix>,
    /// Their TCP or UDP ports, source or destination.
    pub transport: Option<TransportPorts>,
    /// The priority that they get, if they leave with a tag.
    pub mark_pcp: Option<u8>,
    /// The code point that they get, if they are IP.
    pub mark_dscp: Option<u8>,
    /// Ports with a minimum rate of their own, functions of cards: by [`super::Host::outward_classes_of`] alone.
    pub minimums: Vec<(String, Rate)>,
}

/// TCP and UDP ports, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportPorts(pub u16, pub u16);

impl std::str::FromStr for TransportPorts {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse().map_err(|_| "it is no port from 0 to 65535, and no range of them");
        let (first, last) = (port(first)?, port(last)?);
        if first <= last { Ok(Self(first, last)) } else { Err("its last port is below its first") }
    }
}

impl IoClassConfig {
    /// Whether it is that of all frames that are of no other.
    pub fn is_rest(&self) -> bool {
        self.name == REST
    }

    /// The class of all frames that are of no other, if the file does not name it.
    pub fn rest(uplink: &str) -> Self {
        Self {
            name: REST.to_owned(),
            uplink: uplink.to_owned(),
            terms: Terms::default(),
            each: Terms::default(),
            single: Vec::new(),
            ports: None,
            vlan: None,
            pcp: None,
            dscp: None,
            network: None,
            transport: None,
            mark_pcp: None,
            mark_dscp: None,
            minimums: Vec::new(),
        }
    }

    /// Whether its frames are those of all ports whose marks are [trusted](Self::trusts).
    pub(super) fn has_trusted_ports(&self) -> bool {
        self.ports.is_none() && (self.pcp.is_some() || self.dscp.is_some())
    }

    /// Whether the marks of a port by which this class has its frames are trusted, if it names no ports.
    pub(super) fn trusts(&self, port: &PortConfig) -> bool {
        trusts_marks(port, self.dscp.is_some())
    }

    /// Whether a guest's own frame could choose it and gain by that: it has more than the class of the rest, names no ports and no
    /// groups, and looks at what guests write themselves. Such a class has frames of those guests alone whose word counts.
    pub fn is_open_to_guests(&self, rest: &Self) -> bool {
        let reads_guests_words = !self.is_rest() && self.ports.is_none() && self.pcp.is_none() && self.dscp.is_none();
        reads_guests_words && self.more_than(rest).is_some()
    }

    /// Its advantage over the class of the rest, in words. `None`: it has none.
    pub fn more_than(&self, rest: &Self) -> Option<&'static str> {
        let is_above = |own: Option<Rate>, limit: Rate| own.is_none_or(|own| own > limit);
        let of_port = |terms: &Terms| [terms.limit, self.terms.limit].into_iter().flatten().min();
        let single = |port: &String| self.single.iter().find(|(name, _)| name == port).map(|(_, terms)| terms);
        let mut singles = rest.single.iter().filter_map(|(port, terms)| Some((port, terms.limit?)));
        if self.terms.reservation.is_some() {
            Some("a reservation")
        } else if self.terms.shares > rest.terms.shares {
            Some("more shares than class vm")
        } else if self.marks_above(rest) {
            Some("a mark above class vm's")
        } else if rest.terms.limit.is_some_and(|limit| is_above(self.terms.limit, limit))
            || rest.each.limit.is_some_and(|limit| is_above(of_port(&self.each), limit))
            || singles.any(|(port, limit)| is_above(of_port(single(port).unwrap_or(&self.each)), limit))
        {
            Some("no such limit as class vm")
        } else {
            None
        }
    }

    /// Whether what leaves has a mark by which others carry it before the rest. 802.1Q's priority 1 and the code points 1 and 8 (RFC 8622, RFC
    /// 3662) are below none.
    fn marks_above(&self, rest: &Self) -> bool {
        let is_above = |own: Option<u8>, rest: Option<u8>, low: &[u8]| {
            own.is_some_and(|own| !low.contains(&own) && own > rest.unwrap_or(0))
        };
        is_above(self.mark_pcp, rest.mark_pcp, &[1]) || is_above(self.mark_dscp, rest.mark_dscp, &[1, 8])
    }

    /// Whether a port's frames can be of it although it names no ports: the host trusts the port, or has put it into the class's VLAN.
    fn believes(&self, port: &PortConfig) -> bool {
        let is_in = |vlan: &Vlan, id: u16| match vlan {
            Vlan::Access(own) => own.number() == id,
            Vlan::Trunk { allowed, native } => allowed.iter().chain(*native).any(|own| own.number() == id),
            Vlan::Flat | Vlan::Service(_) => false,
        };
        port.policy.trust_marks || self.vlan.is_some_and(|id| is_in(&port.policy.vlan, id))
    }

    /// The guests whose frames a class has that names none, although others could choose it.
    pub fn believed<'a>(&self, ports: &'a [PortConfig]) -> impl Iterator<Item = &'a str> {
        ports.iter().filter(|port| self.believes(port)).map(|port| port.name.as_str())
    }

    /// The keys by which a guest's frame is of it, as in the host file.
    pub fn chosen_by(&self) -> String {
        let transport = self.transport.map(|TransportPorts(first, last)| match first == last {
            true => format!("transport_ports = \"{first}\""),
            false => format!("transport_ports = \"{first}-{last}\""),
        });
        let network = self.network.map(|network| format!("network = \"{network}\""));
        let vlan = self.vlan.map(|vlan| format!("vlan = {vlan}"));
        [transport, network, vlan].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// Whether all frames of a port are its own, unless a class before has them.
    pub(super) fn has_all_frames_of(&self, port: &str) -> bool {
        let Self { ports: Some(ports), vlan: None, pcp: None, dscp: None, network: None, transport: None, .. } = self
        else {
            return false;
        };
        ports.iter().any(|own| own == port)
    }

    /// Whether a frame may fit two classes that look at the same fields. Of classes that look at different fields, the first in the file
    /// has such a frame.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        fn both<T>(one: &Option<T>, other: &Option<T>, common: impl Fn(&T, &T) -> bool) -> bool {
            match (one, other) {
                (Some(one), Some(other)) => common(one, other),
                (None, None) => true,
                _ => false,
            }
        }
        !self.is_rest()
            && !other.is_rest()
            && both(&self.ports, &other.ports, |one, other| one.iter().any(|port| other.contains(port)))
            && both(&self.vlan, &other.vlan, PartialEq::eq)
            && both(&self.pcp, &other.pcp, PartialEq::eq)
            && both(&self.dscp, &other.dscp, PartialEq::eq)
            && both(&self.network, &other.network, Prefix::overlaps)
            && both(&self.transport, &other.transport, |one, other| one.0 <= other.1 && other.0 <= one.1)
    }

    /// The ports with terms of their own: single ports, and functions with a minimum rate, which is a reservation.
    pub fn terms_of_ports(&self) -> Vec<(String, Terms)> {
        let mut all = self.single.clone();
        for (port, rate) in &self.minimums {
            let at = index_of(&mut all, port, self.each);
            let reservation = &mut all[at].1.reservation;
            *reservation = (*reservation).max(Some(*rate));
        }
        all
    }

    /// The reservations of its ports: each port's of its own, and that of all others together. `ports`: the number of all ports.
    pub(super) fn reservations_of_ports(&self, ports: usize) -> Vec<Rate> {
        let own = self.terms_of_ports();
        let others = self.ports.as_ref().map_or(ports, Vec::len).saturating_sub(own.len()) as u64;
        let of_others = self.each.reservation.map_or(0, Rate::bits_per_second).saturating_mul(others);
        own.iter().filter_map(|(_, terms)| terms.reservation).chain(Rate::new(of_others)).collect()
    }
}

/// The place of a port in a list, to whose end it is put with the other ports' terms if it is not there.
pub(super) fn index_of(single: &mut Vec<(String, Terms)>, port: &str, each: Terms) -> usize {
    single.iter().position(|(other, _)| other == port).unwrap_or_else(|| {
        single.push((port.to_owned(), each));
        single.len() - 1
    })
}

/// The classes of an uplink with that of all frames that fit no other first.
pub(super) fn rest_first(uplink: &str, named: &[&IoClassConfig]) -> Vec<IoClassConfig> {
    let rest = named.iter().find(|class| class.is_rest());
    let rest = rest.map_or_else(|| IoClassConfig::rest(uplink), |rest| (*rest).clone());
    let others = named.iter().filter(|class| !class.is_rest()).map(|class| (*class).clone());
    std::iter::once(rest).chain(others).collect()
}
