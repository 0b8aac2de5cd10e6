//! `[[team]]`: several uplinks behind one port of the switch.

use nicety_frame::Mac;
use nicety_switch::{Private, Vlan};
use nicety_uplink::Rate;

use super::errors::did_you_mean;
use super::form::{Form, words};
use super::names::{Ways, name};
use super::policy;
use super::quantity::Seconds;
use super::uplink::{UplinkConfig, UplinkKind};
use super::walk::{Found, Key, Kind, Section, Walk, within};

/// Most members of a team.
pub(super) const MEMBERS_MAX: usize = 16;
/// The range of the fail-back delay.
const FAIL_BACK: (Seconds, Seconds) = (Seconds(0), Seconds(86_400));

/// A team.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamConfig {
    /// Its name on the switch.
    pub name: String,
    /// The uplinks in it, by name, in the order of preference.
    pub members: Vec<String>,
    /// The rule by which it uses them.
    pub mode: TeamMode,
    /// The VLANs behind it.
    pub vlan: Vlan,
    /// Its part of a private VLAN.
    pub private: Private,
    /// Whether it gets only the multicasts that were joined beyond it, and those that nobody has joined.
    pub snooping: bool,
    /// Whether it carries nothing.
    pub blocked: bool,
    /// The uplink or team with which it made a loop.
    pub in_loop: Option<String>,
}

/// The rule by which a team uses its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TeamMode {
    /// One at a time.
    Standby {
        /// The place of the member that is used whenever it is up.
        primary: usize,
        /// The time for which it must be up before it is used again after a failure.
        fail_back: Seconds,
    },
    /// All that LACP agrees on with the partner.
    Lacp(LacpConfig),
    /// All, each port by one of them.
    Port,
    /// All, each source address by one of them.
    Source,
    /// All, each port by one of them; a link that is full gives ports away. The rates of the members.
    Load(Vec<Rate>),
    /// The queues of one tap. No host file says so: it has `queues`.
    Queues {
        /// All frames leave by one queue, because a rate or classes hold for the tap.
        one_sends: bool,
    },
}

/// The settings of 802.3ad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LacpConfig {
    /// Whether it speaks first.
    pub is_active: bool,
    /// Whether it asks for a PDU each second.
    pub is_fast: bool,
    /// The fewest links with which the team uses any.
    pub min_links: u16,
    /// Priority of this system.
    pub system_priority: u16,
    /// The key of its links.
    pub key: u16,
    /// The parts of a frame that choose its link.
    pub hash: TransmitHash,
    /// The system's address, if the file says.
    pub system: Option<Mac>,
}

/// The parts of a frame that choose its link, by the names of Linux's bonding driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitHash {
    /// Ethernet addresses and type.
    Layer2,
    /// MAC and IP addresses.
    Layer23,
    /// IP addresses and ports.
    Layer34,
    /// As `Layer23`, of the innermost packet in tunnels.
    Encap23,
    /// As `Layer34`, of the innermost packet in tunnels.
    Encap34,
    /// The VLAN and the source address.
    VlanSource,
}

impl TeamMode {
    /// Whether a team changes to another mode without a pause: it is the same rule with other settings, and LACP need not agree anew.
    pub fn is_same_way(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Standby { .. }, Self::Standby { .. }) => true,
            // No neighbour has to agree.
            (Self::Port | Self::Source | Self::Load(_), Self::Port | Self::Source | Self::Load(_)) => true,
            (Self::Lacp(one), Self::Lacp(other)) => {
                let identity = |config: &LacpConfig| (config.system, config.system_priority, config.key);
                identity(one) == identity(other)
            }
            _ => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Standby,
    Lacp,
    Port,
    Source,
    Load,
}

const MODES: [(&str, Mode); 5] = [
    ("active-standby", Mode::Standby),
    ("802.3ad", Mode::Lacp),
    ("originating-port", Mode::Port),
    ("source-address", Mode::Source),
    ("load", Mode::Load),
];
/// Whether LACP speaks first, and whether it asks for a PDU each second.
const LACP: [(&str, bool); 2] = [("active", true), ("passive", false)];
const RATES: [(&str, bool); 2] = [("fast", true), ("slow", false)];
const HASHES: [(&str, TransmitHash); 6] = [
    ("layer2", TransmitHash::Layer2),
    ("layer2+3", TransmitHash::Layer23),
    ("layer3+4", TransmitHash::Layer34),
    ("encap2+3", TransmitHash::Encap23),
    ("encap3+4", TransmitHash::Encap34),
    ("vlan+srcmac", TransmitHash::VlanSource),
];

pub(super) static TEAM: Kind = Kind {
    heading: "[[team]]",
    name: "team",
    keys: &[
        Key::new(
            "name",
            Form::Name,
            "1 to 64 letters, digits, -, _ and ., a letter or digit first; no port's, no uplink's, and no other team's",
        )
        .required(),
        Key::new(
            "members",
            Form::UplinkNames(MEMBERS_MAX),
            "the names of 1 to 16 uplinks with commas between them, each in one team",
        )
        .required(),
        Key::new(
            "mode",
            Form::Words(&words(&MODES)),
            "\"active-standby\", \"802.3ad\", \"originating-port\", \"source-address\" or \"load\"",
        )
        .required(),
        Key::new("primary", Form::UplinkName, "with mode = \"active-standby\": the name of a member"),
        Key::new(
            "fail_back",
            Form::Seconds(FAIL_BACK.0, FAIL_BACK.1),
            "with mode = \"active-standby\": \"0s\" to \"86400s\"",
        ),
        Key::new("lacp", Form::Words(&words(&LACP)), "with mode = \"802.3ad\": \"active\" or \"passive\""),
        Key::new("lacp_rate", Form::Words(&words(&RATES)), "with mode = \"802.3ad\": \"fast\" or \"slow\""),
        Key::new(
            "min_links",
            Form::Number(1, MEMBERS_MAX as u32),
            "with mode = \"802.3ad\": a whole number from 1 to 16",
        ),
        Key::new(
            "system_priority",
            Form::Number(1, u16::MAX as u32),
            "with mode = \"802.3ad\": a whole number from 1 to 65535",
        ),
        Key::new("key", Form::Number(1, u16::MAX as u32), "with mode = \"802.3ad\": a whole number from 1 to 65535"),
        Key::new(
            "system",
            Form::Mac,
            "with mode = \"802.3ad\": an address of one station, such as \"02:00:00:00:00:0a\"",
        ),
        Key::new(
            "hash",
            Form::Words(&words(&HASHES)),
            "with mode = \"802.3ad\": \"layer2\", \"layer2+3\", \"layer3+4\", \"encap2+3\", \"encap3+4\" or \"vlan+srcmac\"",
        ),
        policy::KEYS[0],
        policy::KEYS[1],
        policy::KEYS[2],
        policy::KEYS[3],
        Key::new("private", Form::Words(&words(&policy::PRIVATE)), "\"promiscuous\" or \"isolated\""),
        Key::new("snooping", Form::Flag, "true or false"),
        policy::BLOCKED,
        policy::LOOP_WITH,
    ],
    several: false,
};

/// Keys that a team has in its members' place.
const OF_THE_TEAM: [&str; 6] = ["vlan", "trunk", "native", "qinq", "private", "snooping"];

/// Reads a team, and takes its members out of the switch. `uplinks` are those of the file, each with its table.
pub(super) fn team(
    walk: &mut Walk,
    section: Section<'_>,
    ways: &mut Ways,
    uplinks: &mut [(Section<'_>, UplinkConfig)],
) -> Option<TeamConfig> {
    let name = name(walk, section).filter(|found| {
        let taken = ways.whose(&found.value);
        if let Some((whose, line)) = taken {
            let what = format!("{:?} is {} already: choose another name", found.value, walk.whose(whose, line));
            walk.wrong(section, "name", found.line, what);
        }
        taken.is_none()
    });
    ways.teams.extend(name.clone());
    let members = members(walk, section, name.as_ref().map_or("", |name| &name.value), uplinks);
    let mode = walk.word(section, "mode", &MODES).map(|found| found.value);
    let of_modes: [(&str, Mode); 9] = [
        ("primary", Mode::Standby),
        ("fail_back", Mode::Standby),
        ("lacp", Mode::Lacp),
        ("lacp_rate", Mode::Lacp),
        ("min_links", Mode::Lacp),
        ("system_priority", Mode::Lacp),
        ("key", Mode::Lacp),
        ("system", Mode::Lacp),
        ("hash", Mode::Lacp),
    ];
    for (key, its) in of_modes {
        if let (Some(line), Some(mode)) = (walk.place(section, key), mode)
            && mode != its
        {
            walk.wrong(section, key, line, "it does not belong to this mode");
        }
    }
    let mode = match mode {
        Some(Mode::Standby) => Some(standby(walk, section, &members)),
        Some(Mode::Lacp) => Some(lacp(walk, section, members.len())),
        Some(Mode::Port) => Some(TeamMode::Port),
        Some(Mode::Source) => Some(TeamMode::Source),
        Some(Mode::Load) => Some(load(walk, section, &members, uplinks)),
        None => None,
    };
    let vlan = policy::vlan(walk, section).unwrap_or_default();
    let private = policy::private(walk, section).unwrap_or_default();
    let snooping = walk.boolean(section, "snooping").is_some_and(|found| found.value);
    let (blocked, in_loop) = policy::blocked(walk, section);
    Some(TeamConfig { name: name?.value, members, mode: mode?, vlan, private, snooping, blocked, in_loop })
}

fn members(
    walk: &mut Walk,
    section: Section<'_>,
    team: &str,
    uplinks: &mut [(Section<'_>, UplinkConfig)],
) -> Vec<String> {
    let mut members = Vec::new();
    for Found { value: wanted, line } in walk.list::<String>(section, "members", MEMBERS_MAX) {
        let names: Vec<String> = uplinks.iter().map(|(_, uplink)| uplink.name.clone()).collect();
        let found = uplinks.iter_mut().find(|(_, uplink)| uplink.name == wanted);
        let Some((its, uplink)) = found else {
            let what = if wanted.is_empty() {
                "it has no member: name one or more uplinks".to_owned()
            } else {
                format!("there is no uplink {wanted:?}{}", did_you_mean(&wanted, names.iter().map(String::as_str)))
            };
            walk.wrong(section, "members", line, what);
            continue;
        };
        if let Some(other) = &uplink.team {
            let what = if other == team && !team.is_empty() {
                format!("uplink {wanted} is named twice")
            } else {
                format!("uplink {wanted} is in team {other} already, and can be in one")
            };
            walk.wrong(section, "members", line, what);
            continue;
        }
        if uplink.queues() > 1 {
            let what = format!("uplink {wanted} has several queues, which are a team already: leave its `queues` away");
            walk.wrong(section, "members", line, what);
            continue;
        }
        let is_no_link = matches!(
            uplink.kind,
            UplinkKind::Vxlan(_) | UplinkKind::Capture { .. } | UplinkKind::Null | UplinkKind::Querier
        );
        if is_no_link {
            let what = format!("uplink {wanted} is no link to a neighbour: its kind is {:?}", uplink.kind.name());
            walk.wrong(section, "members", line, what);
            continue;
        }
        for key in OF_THE_TEAM {
            if let Some(line) = walk.place(*its, key) {
                walk.wrong(*its, key, line, format!("this uplink is a member of team {team}: say it there"));
            }
        }
        uplink.team = Some(team.to_owned());
        // It carries what its team carries. An uplink may have been blocked before a team took it.
        (uplink.blocked, uplink.in_loop) = (false, None);
        members.push(wanted);
    }
    members
}

fn load(
    walk: &mut Walk,
    section: Section<'_>,
    members: &[String],
    uplinks: &[(Section<'_>, UplinkConfig)],
) -> TeamMode {
    let uplinks = uplinks.iter().map(|(_, uplink)| uplink);
    let rate = |member: &String| uplinks.clone().find(|uplink| uplink.name == *member)?.rate;
    if let (Some(line), Some(unknown)) =
        (walk.place(section, "mode"), members.iter().find(|member| rate(member).is_none()))
    {
        let what = format!("uplink {unknown} has no rate, and nobody knows when it is full: give each member its rate");
        walk.wrong(section, "mode", line, what);
    }
    TeamMode::Load(members.iter().filter_map(rate).collect())
}

fn standby(walk: &mut Walk, section: Section<'_>, members: &[String]) -> TeamMode {
    let primary = walk.string(section, "primary").and_then(|Found { value: wanted, line }| {
        let place = members.iter().position(|member| member == wanted);
        if place.is_none() {
            let what = format!("{wanted:?} is no member{}", did_you_mean(wanted, members.iter().map(String::as_str)));
            walk.wrong(section, "primary", line, what);
        }
        place
    });
    let fail_back = walk
        .parsed::<Seconds>(section, "fail_back")
        .filter(|found| within(walk, section, "fail_back", found, FAIL_BACK));
    TeamMode::Standby {
        primary: primary.unwrap_or_default(),
        fail_back: fail_back.map_or(Seconds(0), |found| found.value),
    }
}

fn lacp(walk: &mut Walk, section: Section<'_>, members: usize) -> TeamMode {
    let mut number = |key: &str, usual: u16| {
        let found = walk.integer(section, key);
        found.map_or(usual, |found| u16::try_from(found.value).unwrap_or(usual))
    };
    let (min_links, system_priority, key) =
        (number("min_links", 1), number("system_priority", 32_768), number("key", 1));
    if let Some(line) = walk.place(section, "min_links").filter(|_| usize::from(min_links) > members && members > 0) {
        let what = format!("the team has {members} members, and would never use one");
        walk.wrong(section, "min_links", line, what);
    }
    let system = walk.parsed::<Mac>(section, "system").filter(|found| {
        let is_station = found.value.is_unicast() && found.value != Mac([0; 6]);
        if !is_station {
            walk.wrong(section, "system", found.line, format!("{} is no station's address", found.value));
        }
        is_station
    });
    TeamMode::Lacp(LacpConfig {
        system: system.map(|found| found.value),
        is_active: walk.word(section, "lacp", &LACP).is_none_or(|found| found.value),
        is_fast: walk.word(section, "lacp_rate", &RATES).is_some_and(|found| found.value),
        min_links,
        system_priority,
        key,
        hash: walk.word(section, "hash", &HASHES).map_or(TransmitHash::Layer34, |found| found.value),
    })
}

#[cfg(test)]
#[path = "team_test.rs"]
pub(super) mod tests;
