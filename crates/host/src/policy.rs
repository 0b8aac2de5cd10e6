//! A port's policy: the keys of `[[port_group]]` and of `[[port]]`. A port takes missing values from its group.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use nicety_adapter::Shape;
use nicety_frame::Mac;
use nicety_switch::{ADDRESS_LIMIT_MAX, Guards, Policy, Private, Storm, Vlan, VlanId, VlanSet};
use nicety_uplink::Rate;

use super::form::{Form, NAME_MAX, words};
use super::quantity::Bytes;
use super::walk::{Found, Key, Section, Walk, within};

/// The range of a token bucket's depth.
const BURST: (Bytes, Bytes) = (Bytes(2 << 10), Bytes(1 << 30));
/// The range of VLAN numbers (IEEE 802.1Q-2018, table 9-2).
const VLAN_FORM: Form = Form::Number(1, 4094);
const VLAN: &str = "a VLAN: a whole number from 1 to 4094; one of vlan, trunk and qinq";
const WORDS: &str = "\"accept\" or \"reject\"";
const AVERAGE: &str = "an amount per second, such as \"100Mbit/s\"";
const PEAK: &str = "an amount per second, not less than the average, which is needed";
const DEPTH: &str = "\"2KiB\" to \"1GiB\"; with an average";
const LIMIT: &str = "frames per second: a whole number from 1 to 10000000";
/// Most IP addresses that may be bound to a port.
const IPS_MAX: usize = 64;
/// Most MAC addresses of a port beside its own.
pub(super) const MACS_MAX: usize = ADDRESS_LIMIT_MAX as usize - 1;
const ACCEPT: [(&str, bool); 2] = [("accept", true), ("reject", false)];
const ACCEPT_FORM: Form = Form::Words(&words(&ACCEPT));
const LIMIT_FORM: Form = Form::Number(1, 10_000_000);
/// Whether a port keeps what its guest says by LLDP.
const LLDP: [(&str, bool); 2] = [("receive", true), ("off", false)];
/// The parts of a private VLAN that have names.
pub(super) const PRIVATE: [(&str, Private); 2] =
    [("promiscuous", Private::Promiscuous), ("isolated", Private::Isolated)];
/// Whether an uplink or a team carries nothing.
pub(super) const BLOCKED: Key = Key::new("blocked", Form::Flag, "true or false");
/// Why it carries nothing.
pub(super) const LOOP_WITH: Key = Key::new(
    "loop_with",
    Form::UplinkName,
    "with blocked: the uplink or team with which it made a loop; the daemon writes it",
);
/// The least MTU: IPv4's (RFC 791, section 3.2).
pub(super) const MTU_MIN: u32 = 68;

/// The index of the ARP guard in [`Parts::guards`].
const ARP: usize = 2;

/// The keys of a policy.
pub(super) const KEYS: [Key; 29] = [
    Key::new("vlan", VLAN_FORM, VLAN),
    Key::new(
        "trunk",
        Form::Vlans,
        "VLANs with commas between them, such as \"10,20-30\", or \"all\"; one of vlan, trunk and qinq",
    ),
    Key::new("native", VLAN_FORM, "with trunk: a whole number from 1 to 4094"),
    Key::new("qinq", VLAN_FORM, VLAN),
    Key::new("private", Form::Words(&words(&PRIVATE)), "\"promiscuous\" or \"isolated\"; not with community"),
    Key::new("community", Form::Number(1, u16::MAX as u32), "a whole number from 1 to 65535; not with private"),
    Key::new("promiscuous", ACCEPT_FORM, WORDS),
    Key::new("mac_changes", ACCEPT_FORM, WORDS),
    Key::new("forged_transmits", ACCEPT_FORM, WORDS),
    Key::new("address_limit", Form::Number(1, ADDRESS_LIMIT_MAX as u32), "a whole number from 1 to 64"),
    Key::new("bpdu_guard", Form::Flag, "true or false"),
    Key::new("dhcp_guard", Form::Flag, "true or false"),
    Key::new("arp_guard", Form::Flag, "true or false"),
    Key::new("ra_guard", Form::Flag, "true or false"),
    Key::new("multicast_router_guard", Form::Flag, "true or false"),
    Key::new(
        "mtu_limit",
        Form::Number(MTU_MIN, u16::MAX as u32),
        "bytes: a whole number from 68 to 65535, and not less than mtu",
    ),
    Key::new("log_refusals", Form::Flag, "true or false"),
    Key::new("snooping", Form::Flag, "true or false"),
    Key::new("lldp", Form::Words(&words(&LLDP)), "\"receive\" or \"off\""),
    Key::new("trust_marks", Form::Flag, "true or false"),
    Key::new("broadcast_limit", LIMIT_FORM, LIMIT),
    Key::new("multicast_limit", LIMIT_FORM, LIMIT),
    Key::new("unknown_limit", LIMIT_FORM, LIMIT),
    Key::new("send_average", Form::Rate, AVERAGE),
    Key::new("send_peak", Form::Rate, PEAK),
    Key::new("send_burst", Form::Bytes(BURST.0, BURST.1), DEPTH),
    Key::new("receive_average", Form::Rate, AVERAGE),
    Key::new("receive_peak", Form::Rate, PEAK),
    Key::new("receive_burst", Form::Bytes(BURST.0, BURST.1), DEPTH),
];

/// The keys of a port's own addresses. A group does not have them.
pub(super) const BOUND_KEYS: [Key; 2] = [
    Key::new(
        "bound_macs",
        Form::Macs(MACS_MAX),
        "1 to 63 MAC addresses of one station each, with commas between them; no other port's; with mac_changes or forged_transmits = \"reject\"",
    ),
    Key::new(
        "bound_ips",
        Form::Ips(IPS_MAX),
        "1 to 64 IPv4 or IPv6 addresses with commas between them, such as \"192.0.2.7,fe80::7\"; with arp_guard = true",
    ),
];

/// A table's own keys, and more.
pub(super) const fn with<const N: usize>(own: &[Key], more: &[Key]) -> [Key; N] {
    let mut all = [own[0]; N];
    let mut at = 0;
    while at < N {
        all[at] = if at < own.len() { own[at] } else { more[at - own.len()] };
        at += 1;
    }
    all
}

/// The shape of one direction, as far as the table sets it.
#[derive(Clone, Copy, Debug, Default)]
struct ShapeParts {
    average: Option<Rate>,
    peak: Option<Rate>,
    burst: Option<Bytes>,
}

/// A table's policy, as far as the table sets it.
#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    vlan: Option<Vlan>,
    private: Option<Private>,
    promiscuous: Option<bool>,
    mac_changes: Option<bool>,
    forged_transmits: Option<bool>,
    address_limit: Option<u16>,
    guards: [Option<bool>; 5],
    mtu: Option<u16>,
    log: Option<bool>,
    snooping: Option<bool>,
    lldp: Option<bool>,
    trust_marks: Option<bool>,
    storm: [Option<u32>; 3],
    send: ShapeParts,
    receive: ShapeParts,
}

impl Parts {
    /// Reads a table.
    pub(super) fn read(walk: &mut Walk, section: Section<'_>) -> Self {
        let word = |walk: &mut Walk, key| walk.word(section, key, &ACCEPT).map(|found| found.value);
        let flag = |walk: &mut Walk, key| walk.boolean(section, key).map(|found| found.value);
        let limit = |walk: &mut Walk, key| walk.integer(section, key).map(|found| found.value);
        Self {
            vlan: vlan(walk, section),
            private: private(walk, section),
            promiscuous: word(walk, "promiscuous"),
            mac_changes: word(walk, "mac_changes"),
            forged_transmits: word(walk, "forged_transmits"),
            address_limit: walk.integer(section, "address_limit").map(|found| found.value as u16),
            guards: ["bpdu_guard", "dhcp_guard", "arp_guard", "ra_guard", "multicast_router_guard"]
                .map(|key| flag(walk, key)),
            mtu: walk.integer(section, "mtu_limit").map(|found| found.value as u16),
            log: flag(walk, "log_refusals"),
            snooping: flag(walk, "snooping"),
            lldp: walk.word(section, "lldp", &LLDP).map(|found| found.value),
            trust_marks: flag(walk, "trust_marks"),
            storm: ["broadcast_limit", "multicast_limit", "unknown_limit"].map(|key| limit(walk, key)),
            send: ShapeParts::read(walk, section, ["send_average", "send_peak", "send_burst"]),
            receive: ShapeParts::read(walk, section, ["receive_average", "receive_peak", "receive_burst"]),
        }
    }

    /// Fills in missing values from a group.
    pub(super) fn or(self, group: &Self) -> Self {
        let each = |index: usize| self.guards[index].or(group.guards[index]);
        Self {
            guards: std::array::from_fn(each),
            mtu: self.mtu.or(group.mtu),
            log: self.log.or(group.log),
            snooping: self.snooping.or(group.snooping),
            lldp: self.lldp.or(group.lldp),
            trust_marks: self.trust_marks.or(group.trust_marks),
            storm: std::array::from_fn(|index| self.storm[index].or(group.storm[index])),
            vlan: self.vlan.or_else(|| group.vlan.clone()),
            private: self.private.or(group.private),
            promiscuous: self.promiscuous.or(group.promiscuous),
            mac_changes: self.mac_changes.or(group.mac_changes),
            forged_transmits: self.forged_transmits.or(group.forged_transmits),
            address_limit: self.address_limit.or(group.address_limit),
            send: self.send.or(group.send),
            receive: self.receive.or(group.receive),
        }
    }

    /// Checks that the shapes are complete. Otherwise notes a mistake of this table.
    pub(super) fn check(&self, walk: &mut Walk, section: Section<'_>) {
        self.send.check(walk, section, ["send_average", "send_peak", "send_burst"]);
        self.receive.check(walk, section, ["receive_average", "receive_peak", "receive_burst"]);
    }

    /// The rate to which what the guest sends is shaped.
    pub(super) fn send_average(&self) -> Option<Rate> {
        self.send.average
    }

    /// Whether what the guest sends or receives is shaped.
    pub(super) fn has_rates(&self) -> bool {
        self.send.average.is_some() || self.receive.average.is_some()
    }

    /// Whether frames without a tag get one.
    pub(super) fn tags(&self) -> bool {
        matches!(self.vlan, Some(Vlan::Access(_)))
    }

    /// Checks a port's policy against the port's other keys. A bound address without a guard would protect nothing, so it is a
    /// mistake.
    pub(super) fn check_port(&self, walk: &mut Walk, section: Section<'_>, mtu: Option<u16>) {
        let rejects = [self.mac_changes, self.forged_transmits].contains(&Some(false));
        if let (Some(line), false) = (walk.place(section, "bound_macs"), rejects) {
            let what = "the port accepts mac_changes and forged_transmits: it may have any address";
            walk.wrong(section, "bound_macs", line, what);
        }
        if let (Some(line), None | Some(false)) = (walk.place(section, "bound_ips"), self.guards[ARP]) {
            walk.wrong(section, "bound_ips", line, "there is no arp_guard = true, which would hold the VM to them");
        }
        if let (Some(port_mtu), Some(most)) = (mtu, self.mtu)
            && port_mtu > most
        {
            let line = walk.place(section, "mtu_limit").unwrap_or(section.line);
            walk.wrong(
                section,
                "mtu_limit",
                line,
                format!("{most} is less than mtu, {port_mtu}, which the VM is told"),
            );
        }
    }

    /// The policy of a port with these addresses, its own first, and this priority.
    pub(super) fn policy(self, addresses: Vec<Mac>, ip: Vec<IpAddr>, priority: u8) -> Policy {
        let usual = Policy::default();
        let [bpdu, dhcp_server, arp, router_advertisement, multicast_router] =
            self.guards.map(Option::unwrap_or_default);
        let [broadcast, multicast, unknown] = self.storm;
        Policy {
            addresses,
            vlan: self.vlan.unwrap_or_default(),
            priority,
            // Whom the host believes is known when all of its file is read: `believe`.
            regenerates: true,
            is_service: false,
            private: self.private.unwrap_or_default(),
            promiscuous: self.promiscuous.unwrap_or(usual.promiscuous),
            mac_changes: self.mac_changes.unwrap_or(usual.mac_changes),
            forged_transmits: self.forged_transmits.unwrap_or(usual.forged_transmits),
            address_limit: self.address_limit,
            guards: Guards { bpdu, dhcp_server, arp, router_advertisement, multicast_router },
            ip,
            mtu: self.mtu,
            log: self.log.unwrap_or(usual.log),
            storm: Storm { broadcast, multicast, unknown },
            snooping: self.snooping.unwrap_or(usual.snooping),
            lldp: self.lldp.unwrap_or(usual.lldp),
            trust_marks: self.trust_marks.unwrap_or(usual.trust_marks),
            blocked: usual.blocked,
            transmit: self.send.shape(),
            receive: self.receive.shape(),
        }
    }
}

impl ShapeParts {
    fn read(walk: &mut Walk, section: Section<'_>, [average, peak, burst]: [&str; 3]) -> Self {
        let depth = walk.parsed::<Bytes>(section, burst);
        let depth = depth.filter(|found| within(walk, section, burst, found, BURST));
        Self {
            average: walk.parsed(section, average).map(|found| found.value),
            peak: walk.parsed(section, peak).map(|found| found.value),
            burst: depth.map(|found| found.value),
        }
    }

    fn or(self, group: Self) -> Self {
        Self {
            average: self.average.or(group.average),
            peak: self.peak.or(group.peak),
            burst: self.burst.or(group.burst),
        }
    }

    fn check(&self, walk: &mut Walk, section: Section<'_>, [average, peak, burst]: [&str; 3]) {
        let line = |walk: &Walk, key| walk.place(section, key).unwrap_or(section.line);
        match (self.average, self.peak) {
            (Some(held), Some(most)) if most < held => {
                let at = line(walk, peak);
                walk.wrong(section, peak, at, format!("{most} is less than {average}, which is {held}"));
            }
            (None, Some(_)) => {
                let at = line(walk, peak);
                walk.wrong(section, peak, at, format!("there is no {average}"));
            }
            _ => {}
        }
        if self.average.is_none() && self.burst.is_some() {
            let at = line(walk, burst);
            walk.wrong(section, burst, at, format!("there is no {average}"));
        }
    }

    fn shape(self) -> Option<Shape> {
        let average = self.average?;
        let burst_bytes = self.burst.map_or_else(|| Shape::usual_burst_bytes(average), |burst| burst.0);
        Some(Shape { average, peak: self.peak, burst_bytes })
    }
}

/// The differences between a policy and the default, by the keys of the host file.
pub fn policy_words(policy: &Policy) -> BTreeMap<String, String> {
    let Policy {
        addresses,
        vlan,
        priority,
        regenerates: _,
        is_service: _,
        private,
        promiscuous,
        mac_changes,
        forged_transmits,
        address_limit,
        guards,
        ip,
        storm,
        mtu,
        snooping,
        lldp,
        trust_marks,
        blocked,
        log,
        transmit,
        receive,
    } = policy;
    let mut words = BTreeMap::new();
    let mut say = |key: &str, value: Option<String>| {
        words.extend(value.map(|value| (key.to_owned(), value)));
    };
    match vlan {
        Vlan::Flat => {}
        Vlan::Access(id) => say("vlan", Some(id.to_string())),
        Vlan::Service(id) => say("qinq", Some(id.to_string())),
        Vlan::Trunk { allowed, native } => {
            let all = *allowed == VlanSet::all();
            say("trunk", Some(if all { "all".to_owned() } else { allowed.to_string() }));
            say("native", native.map(|id| id.to_string()));
        }
    }
    say("qos", (*priority != 0).then(|| priority.to_string()));
    match private {
        Private::Promiscuous => {}
        Private::Isolated => say("private", Some("isolated".to_owned())),
        Private::Community(number) => say("community", Some(number.to_string())),
        Private::Vepa => say("bridge", Some("vepa".to_owned())),
    }
    say("promiscuous", promiscuous.then(|| "accept".to_owned()));
    say("mac_changes", (!mac_changes).then(|| "reject".to_owned()));
    say("forged_transmits", (!forged_transmits).then(|| "reject".to_owned()));
    say("address_limit", address_limit.map(|limit| limit.to_string()));
    let Guards { bpdu, dhcp_server, arp, router_advertisement, multicast_router } = guards;
    let flags = [
        ("bpdu_guard", bpdu),
        ("dhcp_guard", dhcp_server),
        ("arp_guard", arp),
        ("ra_guard", router_advertisement),
        ("multicast_router_guard", multicast_router),
        ("snooping", snooping),
        ("trust_marks", trust_marks),
        ("blocked", blocked),
        ("log_refusals", log),
    ];
    flags.into_iter().for_each(|(key, on)| say(key, on.then(|| "true".to_owned())));
    let Storm { broadcast, multicast, unknown } = storm;
    let limits = [("broadcast_limit", broadcast), ("multicast_limit", multicast), ("unknown_limit", unknown)];
    limits.into_iter().for_each(|(key, limit)| say(key, limit.map(|limit| limit.to_string())));
    say("lldp", lldp.then(|| "receive".to_owned()));
    say("bound_macs", list(addresses.iter().skip(1)));
    say("bound_ips", list(ip));
    say("mtu_limit", mtu.map(|mtu| mtu.to_string()));
    for (direction, shape) in [("send", transmit), ("receive", receive)] {
        let Some(Shape { average, peak, burst_bytes }) = shape else { continue };
        say(&format!("{direction}_average"), Some(average.to_string()));
        say(&format!("{direction}_peak"), peak.map(|peak| peak.to_string()));
        say(&format!("{direction}_burst"), Some(Bytes(*burst_bytes).to_string()));
    }
    words
}

/// Values separated by commas. `None` if there are none.
fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> Option<String> {
    let all: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Reads a port's bound IP addresses.
pub(super) fn bound_ips(walk: &mut Walk, section: Section<'_>) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for Found { value: ip, line } in walk.list::<IpAddr>(section, "bound_ips", IPS_MAX) {
        if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
            walk.wrong(section, "bound_ips", line, format!("{ip} is not the address of one station"));
        } else if ips.contains(&ip) {
            walk.wrong(section, "bound_ips", line, format!("{ip} stands there twice"));
        } else {
            ips.push(ip);
        }
    }
    ips
}

/// Reads a table's VLANs.
pub(super) fn vlan(walk: &mut Walk, section: Section<'_>) -> Option<Vlan> {
    let mut present =
        ["vlan", "trunk", "qinq"].map(|key| walk.place(section, key).map(|line| (key, line))).into_iter().flatten();
    if let (Some((first, _)), Some((second, line))) = (present.next(), present.next()) {
        walk.wrong(section, second, line, format!("there is {first} already: a port is of one kind"));
    }
    if let (Some(line), None) = (walk.place(section, "native"), walk.place(section, "trunk")) {
        walk.wrong(section, "native", line, "there is no trunk: a port of one VLAN has vlan = NUMBER alone");
    }
    let id = |walk: &mut Walk, key| {
        let found = walk.integer(section, key)?;
        u16::try_from(found.value).ok().and_then(VlanId::new)
    };
    let native = id(walk, "native");
    if let Some(found) = walk.string(section, "trunk") {
        let parsed = if found.value == "all" { Ok(VlanSet::all()) } else { found.value.parse::<VlanSet>() };
        return match parsed {
            Ok(mut allowed) => {
                allowed.extend(native);
                Some(Vlan::Trunk { allowed, native })
            }
            Err(error) => {
                walk.wrong(section, "trunk", found.line, error.to_string());
                None
            }
        };
    }
    let service = id(walk, "qinq").map(Vlan::Service);
    id(walk, "vlan").map(Vlan::Access).or(service)
}

/// Reads a table's part in a private VLAN.
pub(super) fn private(walk: &mut Walk, section: Section<'_>) -> Option<Private> {
    if let (Some(_), Some(line)) = (walk.place(section, "private"), walk.place(section, "community")) {
        walk.wrong(section, "community", line, "there is private already: a port is of one part");
    }
    let community = walk.integer(section, "community");
    let community = community.map(|found| Private::Community(found.value as u16));
    walk.word(section, "private", &PRIVATE).map(|found| found.value).or(community)
}

/// Whether an uplink or a team carries nothing, and with which other one it made a loop. That one may be there no more.
pub(super) fn blocked(walk: &mut Walk, section: Section<'_>) -> (bool, Option<String>) {
    let blocked = walk.boolean(section, "blocked").is_some_and(|found| found.value);
    let other = walk.string(section, "loop_with");
    let is_odd = |c: char| c.is_control() || c.is_whitespace();
    if let Some(Found { value, line }) = &other
        && (value.is_empty() || value.len() > NAME_MAX || value.contains(is_odd))
    {
        walk.wrong(section, "loop_with", *line, format!("{value:?} is no name of an uplink or a team"));
    }
    (blocked, other.map(|found| found.value.to_owned()))
}

#[cfg(test)]
#[path = "policy_test.rs"]
mod tests;
