//! `[[io_class]]`: a class of frames on an uplink or a team, and what it is promised there.

use nicety_ioc::{CLASSES_MOST, Prefix, Terms};
use nicety_switch::Vlan;
use nicety_uplink::Rate;

use super::errors::did_you_mean;
use super::form::{Form, words};
use super::minimum::{Minimum, reserve};
use super::port_terms::{single, within_class};
use super::sections::name;
use super::walk::{Found, Key, Kind, Section, Walk};
use super::{PortConfig, TeamConfig, UplinkConfig};

/// The class of all frames that are of no other.
const REST: &str = "vm";
/// Most names in a list.
pub(super) const NAMES_MOST: usize = 64;
/// A lower limit would keep a segmented packet of 64 KiB for more than half a second.
pub(super) const LIMIT_LEAST: u64 = 1_000_000;
/// The part of a link that may be reserved, in percent: the rest is for frames that nobody has thought of.
const RESERVED_MOST: u64 = 75;
const RATE: &str = "an amount per second, such as \"2Gbit/s\"";
const LIMIT: &str = "an amount per second, from \"1Mbit/s\", not less than the reservation";
const SHARES: Form = Form::Number(1, 100);
const URGENT: [(&str, bool); 2] = [("low", true), ("normal", false)];

/// Transport ports of the classes that have usual ones: libvirt's migration_port_min and migration_port_max, and IANA's for iSCSI and NFS.
const USUAL: [(&str, (u16, u16)); 3] =
    [("migration", (49_152, 49_215)), ("iscsi", (3260, 3260)), ("nfs", (2049, 2049))];
/// The classes whose reservation is served first unless the file says otherwise.
const URGENT_NAMES: [&str; 2] = ["management", "ft"];

pub(super) static IO_CLASS: Kind = Kind {
    heading: "[[io_class]]",
    name: "io_class",
    keys: &[
        Key::new("name", Form::Name, "\"management\", \"migration\", \"ft\", \"iscsi\", \"nfs\", \"vm\", or 1 to 64 letters, digits, -, _ and .; once for each uplink").required(),
        Key::new("uplink", Form::UplinkName, "the name of an uplink that is in no team, or of a team").required(),
        Key::new("shares", SHARES, "a whole number from 1 to 100"),
        Key::new("reservation", Form::Rate, RATE),
        Key::new("limit", Form::Rate, LIMIT),
        Key::new("delay", Form::Words(&words(&URGENT)), "with reservation: \"low\" or \"normal\""),
        Key::new("port_shares", SHARES, "a whole number from 1 to 100"),
        Key::new("port_reservation", Form::Rate, "an amount per second; those of all its ports within the class's reservation"),
        Key::new("port_limit", Form::Rate, "an amount per second, from \"1Mbit/s\", not less than port_reservation"),
        Key::new("shares_of", Form::PortShares(NAMES_MOST), "at most 64 ports with their shares: \"vm1=80,vm2=10\""),
        Key::new("reservation_of", Form::PortRates(NAMES_MOST), "at most 64 ports with a rate: \"vm1=1Gbit/s\"; together with the other ports' within the class's reservation"),
        Key::new("limit_of", Form::PortRates(NAMES_MOST), "at most 64 ports with a rate from \"1Mbit/s\", not less than the port's reservation"),
        Key::new("ports", Form::UplinkNames(NAMES_MOST), "the names of at most 64 ports with commas between them"),
        Key::new("groups", Form::UplinkNames(NAMES_MOST), "the names of at most 64 port groups with commas between them"),
        Key::new("vlan", Form::Number(1, 4094), "a VLAN: a whole number from 1 to 4094"),
        Key::new("pcp", Form::Number(0, 7), "a whole number from 0 to 7, of ports whose word is trusted"),
        Key::new("dscp", Form::Number(0, 63), "a whole number from 0 to 63, of ports whose word is trusted"),
        Key::new("network", Form::Network, "an IP address, or a network such as \"10.0.0.0/8\""),
        Key::new("transport_ports", Form::TransportPorts, "a TCP and UDP port such as \"3260\", or a range such as \"49152-49215\""),
        Key::new("mark_pcp", Form::Number(0, 7), "a whole number from 0 to 7"),
        Key::new("mark_dscp", Form::Number(0, 63), "a whole number from 0 to 63"),
    ],
    several: false,
};

/// The keys by which a class has its frames.
const MATCHES: [&str; 7] = ["ports", "groups", "vlan", "pcp", "dscp", "network", "transport_ports"];

/// A class of frames on an uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoClassConfig {
    /// Its name.
    pub name: String,
    /// The uplink or the team.
    pub uplink: String,
    /// What it gets.
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
    fn overlaps(&self, other: &Self) -> bool {
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
}

/// The rest of the file, as far as classes depend on it.
pub(super) struct Around<'a> {
    pub uplinks: &'a [UplinkConfig],
    pub teams: &'a [TeamConfig],
    pub ports: &'a [PortConfig],
    pub groups: Vec<&'a str>,
}

/// Whether the host trusts a port's marks. A trusted function's priority counts, as in the tags of what leaves; its code point does not.
fn trusts_marks(port: &PortConfig, by_dscp: bool) -> bool {
    port.policy.trust_marks || (!by_dscp && port.function.as_ref().is_some_and(|own| own.trusted))
}

impl Around<'_> {
    /// The ports and the members of the groups that a section names by `ports` and `groups`. `None`: it has neither key.
    pub(super) fn named_ports(&self, walk: &mut Walk, section: Section<'_>) -> Option<Vec<String>> {
        let named = walk.place(section, "ports").or_else(|| walk.place(section, "groups")).is_some();
        let mut ports = Vec::new();
        for Found { value: wanted, line } in walk.list::<String>(section, "ports", NAMES_MOST) {
            let names = || self.ports.iter().map(|port| port.name.as_str());
            if !names().any(|name| name == wanted) {
                let what = format!("there is no port {wanted:?}{}", did_you_mean(&wanted, names()));
                walk.wrong(section, "ports", line, what);
            }
            ports.push(wanted);
        }
        for Found { value: wanted, line } in walk.list::<String>(section, "groups", NAMES_MOST) {
            if !self.groups.contains(&wanted.as_str()) {
                let what =
                    format!("there is no port group {wanted:?}{}", did_you_mean(&wanted, self.groups.iter().copied()));
                walk.wrong(section, "groups", line, what);
            }
            let members = self.ports.iter().filter(|port| port.group.as_ref() == Some(&wanted));
            ports.extend(members.map(|port| port.name.clone()));
        }
        ports.sort_unstable();
        ports.dedup();
        named.then_some(ports)
    }

    /// Whether the marks of any port, or of what comes in by any uplink, are trusted.
    fn trusts_any(&self, by_dscp: bool) -> bool {
        self.ports.iter().any(|port| trusts_marks(port, by_dscp))
            || self.uplinks.iter().any(|uplink| uplink.trust_marks)
    }

    /// The slowest link of an uplink or team: its name and its rate, or the name of one without a rate.
    fn slowest(&self, name: &str) -> Result<(&str, Rate), String> {
        let mut slowest = None;
        for link in self.links(name) {
            let Some(rate) = link.rate else { return Err(link.name.clone()) };
            if slowest.is_none_or(|(_, least)| rate < least) {
                slowest = Some((link.name.as_str(), rate));
            }
        }
        slowest.ok_or_else(|| name.to_owned())
    }

    /// The link of an uplink or team with the least `inward_rate`, if any has one.
    fn slowest_inward(&self, name: &str) -> Option<(&str, Rate)> {
        self.links(name).filter_map(|link| Some((link.name.as_str(), link.inward?.rate))).min_by_key(|(_, rate)| *rate)
    }

    fn links(&self, name: &str) -> impl Iterator<Item = &UplinkConfig> {
        let team = self.teams.iter().find(|team| team.name == name);
        let is_its = move |uplink: &&UplinkConfig| match team {
            Some(team) => team.members.contains(&uplink.name),
            None => uplink.name == name,
        };
        self.uplinks.iter().filter(is_its)
    }
}

/// The classes of an uplink with that of all frames that fit no other first.
pub(super) fn rest_first(uplink: &str, named: &[&IoClassConfig]) -> Vec<IoClassConfig> {
    let rest = named.iter().find(|class| class.is_rest());
    let rest = rest.map_or_else(|| IoClassConfig::rest(uplink), |rest| (*rest).clone());
    let others = named.iter().filter(|class| !class.is_rest()).map(|class| (*class).clone());
    std::iter::once(rest).chain(others).collect()
}

/// Reads all classes. `minimums`: the minimum rates of functions, each with its port's table.
pub(super) fn io_classes(
    walk: &mut Walk,
    sections: Vec<Section<'_>>,
    minimums: &[(Section<'_>, Minimum)],
    around: &Around<'_>,
) -> Vec<IoClassConfig> {
    let mut classes: Vec<(Section<'_>, IoClassConfig)> = Vec::new();
    for section in sections {
        let Some(class) = io_class(walk, section, around) else { continue };
        let same = || classes.iter().filter(|(_, other)| other.uplink == class.uplink);
        if same().any(|(_, other)| other.name == class.name) {
            let what = format!("{} has a class {:?} already: choose another name", class.uplink, class.name);
            walk.wrong(section, "name", section.line, what);
        } else if let Some((_, other)) = same().find(|(_, other)| other.overlaps(&class)) {
            let what = format!(
                "a frame may be of this class and of {:?}, by the same keys: give them values that no frame has together",
                other.name
            );
            walk.wrong(section, "name", section.line, what);
        }
        classes.push((section, class));
    }
    let of_minimums = minimums.iter().map(|(_, minimum)| minimum.uplink.as_str());
    let mut uplinks: Vec<&str> = classes.iter().map(|(_, class)| class.uplink.as_str()).chain(of_minimums).collect();
    uplinks.sort_unstable();
    uplinks.dedup();
    for uplink in uplinks {
        let of: Vec<&(Section<'_>, IoClassConfig)> =
            classes.iter().filter(|(_, class)| class.uplink == uplink).collect();
        let most = CLASSES_MOST - usize::from(!of.iter().any(|(_, class)| class.is_rest()));
        if let Some((section, _)) = of.get(most) {
            let what = format!("{uplink} has more than {CLASSES_MOST} classes, with {REST:?}");
            walk.wrong(*section, "uplink", section.line, what);
        }
        let minimums: Vec<_> = minimums.iter().filter(|(_, minimum)| minimum.uplink == uplink).collect();
        within_link(walk, &of, &minimums, uplink, around);
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

/// Checks that the reservations on an uplink leave a quarter of its slowest link.
fn within_link(
    walk: &mut Walk,
    classes: &[&(Section<'_>, IoClassConfig)],
    minimums: &[&(Section<'_>, Minimum)],
    uplink: &str,
    around: &Around<'_>,
) {
    let named: Vec<&IoClassConfig> = classes.iter().map(|(_, class)| class).collect();
    let mut with_functions = rest_first(uplink, &named);
    reserve(&mut with_functions, minimums.iter().map(|(_, minimum)| minimum), around.ports.len());
    let mut reserving: Vec<Rate> = Vec::new();
    let mut place = None;
    // In the file's order.
    for (section, class) in classes.iter().filter(|(_, class)| class.terms.reservation.is_some()) {
        let raised = with_functions.iter().find(|other| other.name == class.name);
        if raised.is_none_or(|raised| raised.terms.reservation == class.terms.reservation) {
            reserving.extend(class.terms.reservation);
            place = Some((*section, "reservation"));
        }
    }
    for class in &with_functions {
        let own = named.iter().find(|other| other.name == class.name).and_then(|own| own.terms.reservation);
        let its =
            |(_, minimum): &&&(Section<'_>, Minimum)| class.minimums.iter().any(|(port, _)| *port == minimum.port);
        let Some((section, _)) = minimums.iter().rfind(its) else { continue };
        let of_ports = class.reservations_of_ports(around.ports.len());
        if class.terms.reservation != own {
            place = Some((*section, "min_rate"));
            reserving.extend(&of_ports);
        }
        within_limits(walk, *section, class);
    }
    let Some((section, key)) = place else { return };
    let line = walk.place(section, key).unwrap_or(section.line);
    let (link, rate) = match around.slowest(uplink) {
        Ok(found) => found,
        Err(link) => {
            let what = format!("uplink {link} has no rate, and a reservation is a part of it: give it the link's rate");
            walk.wrong(section, key, line, what);
            return;
        }
    };
    if let Some((sum, most)) = above_most(&reserving, rate) {
        let what = format!(
            "{sum} are reserved on {uplink}, and {RESERVED_MOST} % of its slowest link may be: {most} of the {rate} of {link}"
        );
        walk.wrong(section, key, line, what);
        return;
    }
    // Functions' minimum rates are for what leaves.
    let Some((link, rate)) = around.slowest_inward(uplink) else { return };
    let reserving: Vec<Rate> = named.iter().filter_map(|class| class.terms.reservation).collect();
    if let Some((sum, most)) = above_most(&reserving, rate) {
        let last = classes.iter().rfind(|(_, class)| class.terms.reservation.is_some());
        let section = last.map_or(section, |(section, _)| *section);
        let line = walk.place(section, "reservation").unwrap_or(section.line);
        let what = format!(
            "{sum} are reserved on {uplink}, and {RESERVED_MOST} % of what comes in may be: {most} of the {rate} of {link} (inward_rate)"
        );
        walk.wrong(section, "reservation", line, what);
    }
}

/// The sum of reservations, with its parts, and the most that may be reserved of a link's rate, if they are more than that.
fn above_most(reserving: &[Rate], rate: Rate) -> Option<(String, String)> {
    let sum: u64 = reserving.iter().map(|rate| rate.bits_per_second()).sum();
    let most = rate.bits_per_second() / 100 * RESERVED_MOST;
    let shown = |bits: u64| Rate::new(bits).map_or_else(|| format!("{bits}bit/s"), |rate| rate.to_string());
    let parts: Vec<String> = reserving.iter().map(Rate::to_string).collect();
    let text = if parts.len() > 1 { format!("{} = {}", parts.join(" + "), shown(sum)) } else { shown(sum) };
    (sum > most).then(|| (text, shown(most)))
}

/// Checks that the limits of a class let its functions have their minimum rates. `section`: the last one's port.
fn within_limits(walk: &mut Walk, section: Section<'_>, class: &IoClassConfig) {
    let line = walk.place(section, "min_rate").unwrap_or(section.line);
    let name = &class.name;
    if let (Some(sum), Some(limit)) = (class.terms.reservation, class.terms.limit)
        && sum > limit
    {
        let what = format!("with it {sum} are reserved for ports of class {name}, which may send {limit} (limit)");
        walk.wrong(section, "min_rate", line, what);
        return;
    }
    let above = |(_, terms): &(String, Terms)| Some((terms.limit?, terms.reservation.max(terms.limit) > terms.limit));
    if let Some((limit, _)) = class.terms_of_ports().iter().filter_map(above).find(|(_, is_above)| *is_above) {
        let key = if class.each.limit == Some(limit) { "port_limit" } else { "limit_of" };
        let what = format!("a port of class {name} may send at most {limit} ({key})");
        walk.wrong(section, "min_rate", line, what);
    }
}

fn io_class(walk: &mut Walk, section: Section<'_>, around: &Around<'_>) -> Option<IoClassConfig> {
    let name = name(walk, section)?.value;
    let uplink = place(walk, section, around);
    let is_rest = name == REST;
    let given: Vec<&str> = MATCHES.into_iter().filter(|key| walk.place(section, key).is_some()).collect();
    if let (true, Some(key)) = (is_rest, given.first()) {
        let line = walk.place(section, key).unwrap_or(section.line);
        walk.wrong(section, key, line, "\"vm\" is the class of all frames that are of no other: leave this out");
    }
    let usual = USUAL.iter().find(|(usual, _)| *usual == name).map(|(_, ports)| TransportPorts(ports.0, ports.1));
    if !is_rest && given.is_empty() && usual.is_none() {
        let what = format!("class {name:?} has no frames: say which, by one or more of {}", MATCHES.join(", "));
        walk.wrong(section, "name", section.line, what);
    }
    let ports = around.named_ports(walk, section);
    for key in ["pcp", "dscp"] {
        if let (Some(line), None, false) = (walk.place(section, key), &ports, around.trusts_any(key == "dscp")) {
            let what = "each guest chooses this itself: name the ports or groups that are trusted, or give them trust_marks = true";
            walk.wrong(section, key, line, what);
        }
    }
    let is_urgent = walk.word(section, "delay", &URGENT).map(|found| found.value);
    let keys = ["shares", "reservation", "limit"];
    let mut class = terms(walk, section, keys);
    if let (Some(true), None) = (is_urgent, class.reservation) {
        let line = walk.place(section, "delay").unwrap_or(section.line);
        walk.wrong(section, "delay", line, "frames come first up to the class's reservation, and it has none");
    }
    class.is_urgent = is_urgent.unwrap_or(URGENT_NAMES.contains(&name.as_str())) && class.reservation.is_some();
    let each = terms(walk, section, ["port_shares", "port_reservation", "port_limit"]);
    let single = single(walk, section, (each, ports.as_ref()), around);
    let number = |found: Option<Found<u32>>| found.and_then(|found| u16::try_from(found.value).ok());
    let byte = |found: Option<Found<u32>>| found.and_then(|found| u8::try_from(found.value).ok());
    let transport = walk.parsed::<TransportPorts>(section, "transport_ports").map(|found| found.value);
    let class = IoClassConfig {
        name,
        uplink: uplink?,
        terms: class,
        each,
        single,
        ports,
        vlan: number(walk.integer(section, "vlan")),
        pcp: byte(walk.integer(section, "pcp")),
        dscp: byte(walk.integer(section, "dscp")),
        network: walk.parsed::<Prefix>(section, "network").map(|found| found.value),
        transport: transport.or(usual.filter(|_| given.is_empty())),
        mark_pcp: byte(walk.integer(section, "mark_pcp")),
        mark_dscp: byte(walk.integer(section, "mark_dscp")),
        minimums: Vec::new(),
    };
    within_class(walk, section, &class, around.ports.len());
    Some(class)
}

/// The uplink or the team.
fn place(walk: &mut Walk, section: Section<'_>, around: &Around<'_>) -> Option<String> {
    let Found { value: wanted, line } = walk.string(section, "uplink")?;
    let uplink = around.uplinks.iter().find(|uplink| uplink.name == wanted);
    if let Some(team) = uplink.and_then(|uplink| uplink.team.as_ref()) {
        walk.wrong(section, "uplink", line, format!("uplink {wanted} is a member of team {team}: name the team"));
        return None;
    }
    if uplink.is_none() && !around.teams.iter().any(|team| team.name == wanted) {
        let uplinks = around.uplinks.iter().map(|uplink| uplink.name.as_str());
        let names = uplinks.chain(around.teams.iter().map(|team| team.name.as_str()));
        let what = format!("there is no uplink and no team {wanted:?}{}", did_you_mean(wanted, names));
        walk.wrong(section, "uplink", line, what);
        return None;
    }
    Some(wanted.to_owned())
}

fn terms(walk: &mut Walk, section: Section<'_>, [shares, reservation, limit]: [&str; 3]) -> Terms {
    let usual = Terms::default();
    let shares = walk.integer(section, shares).and_then(|found| u16::try_from(found.value).ok());
    let reservation = walk.parsed::<Rate>(section, reservation).map(|found| found.value);
    let found = walk.parsed::<Rate>(section, limit);
    if let Some(Found { value, line }) = found {
        if value.bits_per_second() < LIMIT_LEAST {
            walk.wrong(section, limit, line, format!("{value} is too small"));
        } else if let Some(reserved) = reservation.filter(|reserved| *reserved > value) {
            walk.wrong(section, limit, line, format!("{reserved} are reserved, and only {value} may be sent"));
        }
    }
    Terms {
        shares: shares.unwrap_or(usual.shares),
        reservation,
        limit: found.map(|found| found.value),
        is_urgent: false,
    }
}

#[cfg(test)]
#[path = "io_class_test.rs"]
pub(super) mod tests;
