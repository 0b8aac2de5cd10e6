//! `[[io_class]]`: classes of frames on an uplink or a team, their keys, and whether the link can keep what they promise.

use nicety_ioc::{CLASSES_MAX, Prefix, Terms};
use nicety_uplink::Rate;

use super::around::{Around, NAMES_MAX};
use super::errors::did_you_mean;
use super::form::{Form, words};
use super::io_class::{IoClassConfig, REST, TransportPorts, rest_first};
use super::minimum::{Minimum, reserve};
use super::names::name;
use super::port_terms::{LIMIT_MIN, single, within_class};
use super::walk::{Found, Key, Kind, Section, Walk};

/// The part of a link that may be reserved, in percent: the rest is for frames that nobody has thought of.
const RESERVED_MAX: u64 = 75;
const RATE: &str = "an amount per second, such as \"2Gbit/s\"";
const LIMIT: &str = "an amount per second, from \"1Mbit/s\", not less than the reservation";
const SHARES: Form = Form::Number(1, 100);
const URGENT: [(&str, bool); 2] = [("low", true), ("normal", false)];

/// Transport ports of the classes that have usual ones: libvirt's migration_port_min and migration_port_max, and IANA's for iSCSI and NFS.
const USUAL: [(&str, (u16, u16)); 3] =
    [("migration", (49_152, 49_215)), ("iscsi", (3260, 3260)), ("nfs", (2049, 2049))];
/// The classes whose reservation is served first unless the file says otherwise.
const URGENT_NAMES: [&str; 2] = ["management", "ft"];

const KEYS: [Key; 21] = [
    Key::new("name", Form::Name, "\"management\", \"migration\", \"ft\", \"iscsi\", \"nfs\", \"vm\", or 1 to 64 letters, digits, -, _ and .; once for each uplink").required(),
    Key::new("uplink", Form::UplinkName, "the name of an uplink that is in no team, or of a team").required(),
    Key::new("shares", SHARES, "a whole number from 1 to 100"),
    Key::new("reservation", Form::Rate, RATE),
    Key::new("limit", Form::Rate, LIMIT),
    Key::new("delay", Form::Words(&words(&URGENT)), "with reservation: \"low\" or \"normal\""),
    Key::new("port_shares", SHARES, "a whole number from 1 to 100"),
    Key::new("port_reservation", Form::Rate, "an amount per second; those of all its ports within the class's reservation"),
    Key::new("port_limit", Form::Rate, "an amount per second, from \"1Mbit/s\", not less than port_reservation"),
    Key::new("shares_of", Form::PortShares(NAMES_MAX), "at most 64 ports with their shares: \"vm1=80,vm2=10\""),
    Key::new("reservation_of", Form::PortRates(NAMES_MAX), "at most 64 ports with a rate: \"vm1=1Gbit/s\"; together with the other ports' within the class's reservation"),
    Key::new("limit_of", Form::PortRates(NAMES_MAX), "at most 64 ports with a rate from \"1Mbit/s\", not less than the port's reservation"),
    Key::new("ports", Form::UplinkNames(NAMES_MAX), "the names of at most 64 ports with commas between them"),
    Key::new("groups", Form::UplinkNames(NAMES_MAX), "the names of at most 64 port groups with commas between them"),
    Key::new("vlan", Form::Number(1, 4094), "a VLAN: a whole number from 1 to 4094"),
    Key::new("pcp", Form::Number(0, 7), "a whole number from 0 to 7, of ports whose word is trusted"),
    Key::new("dscp", Form::Number(0, 63), "a whole number from 0 to 63, of ports whose word is trusted"),
    Key::new("network", Form::Network, "an IP address, or a network such as \"10.0.0.0/8\""),
    Key::new("transport_ports", Form::TransportPorts, "a TCP and UDP port such as \"3260\", or a range such as \"49152-49215\""),
    Key::new("mark_pcp", Form::Number(0, 7), "a whole number from 0 to 7"),
    Key::new("mark_dscp", Form::Number(0, 63), "a whole number from 0 to 63"),
];

/// The keys that name an uplink or ports: these are a host's, and so is a sum over its ports.
const OF_A_HOST: [&str; 6] = ["uplink", "port_reservation", "shares_of", "reservation_of", "limit_of", "ports"];

pub(super) static IO_CLASS: Kind = Kind { heading: "[[io_class]]", name: "io_class", keys: &KEYS, several: false };

/// A class of a fabric: it is on the tunnel of each host.
pub static FABRIC_CLASS: Kind = Kind {
    heading: "[[io_class]]",
    name: "io_class",
    keys: &without::<{ KEYS.len() - OF_A_HOST.len() }>(&KEYS, &OF_A_HOST),
    several: false,
};

/// The keys but for those with these names.
const fn without<const N: usize>(keys: &[Key], names: &[&str]) -> [Key; N] {
    let mut left = [keys[0]; N];
    let (mut at, mut next) = (0, 0);
    while next < keys.len() {
        let (mut is_left, mut name) = (true, 0);
        while name < names.len() {
            is_left &= !is_same(keys[next].name, names[name]);
            name += 1;
        }
        if is_left {
            left[at] = keys[next];
            at += 1;
        }
        next += 1;
    }
    left
}

const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let (mut same, mut at) = (one.len() == other.len(), 0);
    while same && at < one.len() {
        same = one[at] == other[at];
        at += 1;
    }
    same
}

/// The keys by which a class has its frames.
const MATCHES: [&str; 7] = ["ports", "groups", "vlan", "pcp", "dscp", "network", "transport_ports"];

/// Reads all classes. The first ones, so many, are the fabric's. `minimums`: the minimum rates of functions, each with its port's table.
pub(super) fn io_classes(
    walk: &mut Walk,
    (sections, of_fabric): (Vec<Section<'_>>, usize),
    minimums: &[(Section<'_>, Minimum)],
    around: &Around<'_>,
) -> Vec<IoClassConfig> {
    let mut classes: Vec<(Section<'_>, IoClassConfig)> = Vec::new();
    for (number, section) in sections.into_iter().enumerate() {
        let uplink = place(walk, section, around);
        let Some(class) = io_class(walk, section, uplink, around) else { continue };
        let (is_own, fabric) = (number >= of_fabric, classes.len().min(of_fabric));
        let (of_fabric, own) = classes.split_at(fabric);
        let has_name = |(_, other): &(_, IoClassConfig)| other.name == class.name && other.uplink == class.uplink;
        if is_own && of_fabric.iter().any(has_name) {
            let what = format!(
                "the fabric has a class {:?} on this tunnel, too: choose another name for one of them",
                class.name
            );
            walk.wrong(section, "name", section.line, what);
        } else {
            // A frame that fits a class of the fabric, too, is that one's: nobody here can change the fabric's.
            is_apart(walk, section, &class, if is_own { own } else { of_fabric });
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
        are_few(walk, &of, uplink, "uplink");
        let minimums: Vec<_> = minimums.iter().filter(|(_, minimum)| minimum.uplink == uplink).collect();
        within_link(walk, &of, &minimums, uplink, around);
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

/// Checks that a class has another name than those before it on its uplink, and other frames.
fn is_apart(walk: &mut Walk, section: Section<'_>, class: &IoClassConfig, before: &[(Section<'_>, IoClassConfig)]) {
    let same = || before.iter().filter(|(_, other)| other.uplink == class.uplink);
    if same().any(|(_, other)| other.name == class.name) {
        let what = format!("{} has a class {:?} already: choose another name", class.uplink, class.name);
        walk.wrong(section, "name", section.line, what);
    } else if let Some((_, other)) = same().find(|(_, other)| other.overlaps(class)) {
        let what = format!(
            "a frame may be of this class and of {:?}, by the same keys: give them values that no frame has together",
            other.name
        );
        walk.wrong(section, "name", section.line, what);
    }
}

/// Checks that the scheduler of a link has room for these classes.
fn are_few(walk: &mut Walk, classes: &[&(Section<'_>, IoClassConfig)], uplink: &str, key: &str) {
    let most = CLASSES_MAX - usize::from(!classes.iter().any(|(_, class)| class.is_rest()));
    if let Some((section, _)) = classes.get(most) {
        let what = format!("{uplink} has more than {CLASSES_MAX} classes, with {REST:?}");
        walk.wrong(*section, key, section.line, what);
    }
}

/// Checks the classes of a fabric, as far as no host is needed for it. `groups`: the fabric's.
pub(super) fn fabric_classes(walk: &mut Walk, sections: Vec<Section<'_>>, groups: Vec<&str>) {
    const TUNNEL: &str = "the fabric";
    let around = Around { uplinks: &[], teams: &[], ports: &[], groups, has_more_groups: false };
    let mut classes: Vec<(Section<'_>, IoClassConfig)> = Vec::new();
    for section in sections {
        let Some(mut class) = io_class(walk, section, Some(TUNNEL.to_owned()), &around) else { continue };
        // A port is in one group. So two classes have a port in common if they have a group in common.
        let groups = walk.peek(section, "groups");
        class.ports = groups.map(|groups| groups.split(',').map(|group| group.trim().to_owned()).collect());
        is_apart(walk, section, &class, &classes);
        classes.push((section, class));
    }
    are_few(walk, &classes.iter().collect::<Vec<_>>(), TUNNEL, "name");
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
            "{sum} are reserved on {uplink}, and {RESERVED_MAX} % of its slowest link may be: {most} of the {rate} of {link}"
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
            "{sum} are reserved on {uplink}, and {RESERVED_MAX} % of what comes in may be: {most} of the {rate} of {link} (inward_rate)"
        );
        walk.wrong(section, "reservation", line, what);
    }
}

/// The sum of reservations, with its parts, and the most that may be reserved of a link's rate, if they are more than that.
fn above_most(reserving: &[Rate], rate: Rate) -> Option<(String, String)> {
    let sum: u64 = reserving.iter().map(|rate| rate.bits_per_second()).sum();
    let most = rate.bits_per_second() / 100 * RESERVED_MAX;
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

/// Reads a class of this uplink or team. `None` for it: that is wrong.
fn io_class(
    walk: &mut Walk,
    section: Section<'_>,
    uplink: Option<String>,
    around: &Around<'_>,
) -> Option<IoClassConfig> {
    let name = name(walk, section)?.value;
    let has_key = |key: &&str| section.kind.keys.iter().any(|known| known.name == *key);
    let is_rest = name == REST;
    let given: Vec<&str> = MATCHES.into_iter().filter(|key| walk.place(section, key).is_some()).collect();
    if let (true, Some(key)) = (is_rest, given.first()) {
        let line = walk.place(section, key).unwrap_or(section.line);
        walk.wrong(section, key, line, "\"vm\" is the class of all frames that are of no other: leave this out");
    }
    let usual = USUAL.iter().find(|(usual, _)| *usual == name).map(|(_, ports)| TransportPorts(ports.0, ports.1));
    if !is_rest && given.is_empty() && usual.is_none() {
        let keys: Vec<&str> = MATCHES.into_iter().filter(has_key).collect();
        let what = format!("class {name:?} has no frames: say which, by one or more of {}", keys.join(", "));
        walk.wrong(section, "name", section.line, what);
    }
    let ports = around.named_ports(walk, section);
    for key in ["pcp", "dscp"] {
        if let (Some(line), None, false) = (walk.place(section, key), &ports, around.trusts_any(key == "dscp")) {
            let what = match has_key(&"ports") {
                true => {
                    "each guest chooses this itself: name the ports or groups that are trusted, or give them trust_marks = true"
                }
                false => "each guest chooses this itself: name the groups that are trusted",
            };
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
        if value.bits_per_second() < LIMIT_MIN {
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
#[path = "io_classes_test.rs"]
pub(super) mod tests;
