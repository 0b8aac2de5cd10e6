//! `[uplink]`, or one of several `[[uplink]]`: a way out of the switch.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use nicety_switch::{Private, Vlan};
use nicety_uplink::{Rate, VXLAN_PORT, VxlanSettings};

use super::form::{Form, words};
use super::names::{Ways, interface, name};
use super::paths::Paths;
use super::policy;
use super::quantity::Bytes;
use super::role::{ROLES, Role};
use super::tunnel::{self, TunnelConfig};
use super::walk::{Found, Key, Kind, Section, Walk, within};

/// The range of the room for what comes in by an uplink for one class and port.
const INWARD: (Bytes, Bytes) = (Bytes(512 << 10), Bytes(64 << 20));
/// Most queues of a tap: as many as members of a team.
const QUEUES_MAX: u32 = 16;
/// Whether an uplink sends LLDP, and whether it receives it.
const WAYS: [(&str, (bool, bool)); 4] =
    [("off", (false, false)), ("send", (true, false)), ("receive", (false, true)), ("both", (true, true))];
/// The LLDP of an uplink.
const LLDP: Key = Key::new(
    "lldp",
    Form::Words(&words(&WAYS)),
    "\"send\", \"receive\", \"both\" or \"off\"; not with kind = \"querier\" or \"vxlan\"",
);

/// `[uplink]`, or one of several `[[uplink]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkConfig {
    /// Its name on the switch: a tap's interface, else its `name`, else its kind.
    pub name: String,
    /// Its kind.
    pub kind: UplinkKind,
    /// Its highest rate, both ways.
    pub rate: Option<Rate>,
    /// The VLANs behind it.
    pub vlan: Vlan,
    /// Its part of a private VLAN.
    pub private: Private,
    /// Whether it gets only the multicasts that were joined beyond it, and those that nobody has joined.
    pub snooping: bool,
    /// Whether it sends LLDP to its neighbour, and receives it.
    pub lldp: Lldp,
    /// Whether I/O control believes the priority and the code point of what comes in.
    pub trust_marks: bool,
    /// Inward I/O control, if there is any.
    pub inward: Option<InwardConfig>,
    /// Whether it carries nothing.
    pub blocked: bool,
    /// The uplink or team with which it made a loop.
    pub in_loop: Option<String>,
    /// The team that it is in. Then the switch knows only that.
    pub team: Option<String>,
}

impl UplinkConfig {
    /// Whether another configuration of this uplink has the same link. Then the differences can be changed while it is open.
    pub fn is_same_link(&self, other: &Self) -> bool {
        // The switch knows the queues of an interface as a team, which is made with its policy. Rates are the queues' own.
        let (blocked, in_loop) = (self.blocked, self.in_loop.clone());
        let other = Self { rate: self.rate, inward: self.inward, blocked, in_loop, ..other.clone() };
        let is_whole = |uplink: &Self| uplink.queues() > 1 && *self != other;
        let is_same = self.name == other.name && self.kind.is_same_link(&other.kind);
        is_same && self.team == other.team && !is_whole(self) && !is_whole(&other)
    }

    /// Number of its queues: 1 but for an interface with `queues`.
    pub fn queues(&self) -> u16 {
        match self.kind {
            UplinkKind::Tap { queues, .. } | UplinkKind::Xdp { queues, .. } => queues,
            _ => 1,
        }
    }
}

/// The queue of what comes in by an uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InwardConfig {
    /// The rate at which it is passed on.
    pub rate: Rate,
    /// Most bytes that wait for one class and port.
    pub buffer: Bytes,
}

impl InwardConfig {
    /// The default of `receive_buffer`.
    pub const BUFFER: Bytes = Bytes(1 << 20);
}

/// The directions of LLDP (IEEE 802.1AB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lldp {
    /// Whether LLDP frames are sent.
    pub sends: bool,
    /// Whether received LLDP frames are kept and shown.
    pub receives: bool,
}

/// The kinds of uplinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkKind {
    /// A tap interface of the host.
    Tap {
        /// Its name.
        name: String,
        /// Its queues, 1 to 16. With more than one each port sends on one of them.
        queues: u16,
    },
    /// An interface of the host, past the host's network stack (AF_XDP).
    Xdp {
        /// Its name.
        interface: String,
        /// Its queues, 1 to 16: its first ones. With more than one each port sends on one of them.
        queues: u16,
    },
    /// A socket to another daemon, or to a program.
    Pair {
        /// Its path.
        socket: PathBuf,
        /// This end's role.
        role: Role,
    },
    /// A stream socket to a QEMU.
    Stream {
        /// Its path.
        socket: PathBuf,
        /// This end's role.
        role: Role,
    },
    /// A tunnel to other hosts.
    Vxlan(TunnelConfig),
    /// Outgoing frames are written to a capture file.
    Capture {
        /// The file.
        file: PathBuf,
    },
    /// Outgoing frames are discarded.
    Null,
    /// A querier of multicast groups; it leads to no network.
    Querier,
}

impl UplinkKind {
    /// Whether another kind has the same link: the peers and the networks of a tunnel can change while it is open.
    fn is_same_link(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Vxlan(one), Self::Vxlan(other)) => {
                let VxlanSettings { address, port, mtu, networks: _ } = &one.settings;
                let with = &other.settings;
                (*address, *port, *mtu) == (with.address, with.port, with.mtu) && one.is_fabric == other.is_fabric
            }
            _ => self == other,
        }
    }

    /// A tap's name, or the kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Tap { name, .. } => name,
            Self::Xdp { .. } => "xdp",
            Self::Pair { .. } => "pair",
            Self::Stream { .. } => "stream",
            Self::Vxlan(_) => "vxlan",
            Self::Capture { .. } => "capture",
            Self::Null => "null",
            Self::Querier => "querier",
        }
    }
}

pub(super) static UPLINK: Kind = Kind {
    heading: "[uplink]",
    name: "uplink",
    keys: &[
        Key::new(
            "kind",
            Form::Words(&words(&UPLINK_WORDS)),
            "\"tap\", \"xdp\", \"pair\", \"stream\", \"vxlan\", \"capture\", \"null\", \"querier\" or \"none\"",
        )
        .required(),
        Key::new(
            "name",
            Form::UplinkName,
            "with kind = \"tap\": an interface's name of 1 to 15 characters, such as \"tap0\"; else 1 to 64 letters, digits, -, _ and ., a letter or digit first; no port's, and no other uplink's",
        ),
        Key::new("interface", Form::Interface, "with kind = \"xdp\": an interface's name, such as \"eth0\""),
        Key::new("queues", Form::Number(1, QUEUES_MAX), "with kind = \"tap\" or \"xdp\": a whole number from 1 to 16"),
        Key::new("socket", Form::Socket, "with kind = \"pair\" or \"stream\": a path of at most 107 bytes"),
        Key::new("role", Form::Words(&words(&ROLES)), "with kind = \"pair\" or \"stream\": \"listen\" or \"connect\""),
        tunnel::KEYS[0],
        tunnel::KEYS[1],
        tunnel::KEYS[2],
        tunnel::KEYS[3],
        tunnel::KEYS[4],
        Key::new("file", Form::Path, "with kind = \"capture\": a path, of no other file or socket here"),
        Key::new("rate", Form::Rate, "an amount per second, such as \"100Mbit/s\"; not with kind = \"none\""),
        Key::new(
            "inward_rate",
            Form::Rate,
            "with kind = \"tap\", \"xdp\", \"pair\", \"stream\" or \"vxlan\": an amount per second, a little below the link's, and at most rate",
        ),
        Key::new("receive_buffer", Form::Bytes(INWARD.0, INWARD.1), "with inward_rate: \"512KiB\" to \"64MiB\""),
        policy::KEYS[0],
        policy::KEYS[1],
        policy::KEYS[2],
        policy::KEYS[3],
        policy::BLOCKED,
        policy::LOOP_WITH,
        Key::new("trust_marks", Form::Flag, "true or false"),
        Key::new("private", Form::Words(&words(&policy::PRIVATE)), "\"promiscuous\" or \"isolated\""),
        Key::new("snooping", Form::Flag, "true or false; not with kind = \"querier\""),
        LLDP,
    ],
    several: true,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum UplinkWord {
    Tap,
    Xdp,
    Pair,
    Stream,
    Vxlan,
    Capture,
    Null,
    Querier,
    None,
}

const UPLINK_WORDS: [(&str, UplinkWord); 9] = [
    ("tap", UplinkWord::Tap),
    ("xdp", UplinkWord::Xdp),
    ("pair", UplinkWord::Pair),
    ("stream", UplinkWord::Stream),
    ("vxlan", UplinkWord::Vxlan),
    ("capture", UplinkWord::Capture),
    ("null", UplinkWord::Null),
    ("querier", UplinkWord::Querier),
    ("none", UplinkWord::None),
];

/// Reads an uplink. `None`: there is none, or it has mistakes. `tunnel`: the name of the one that carries the fabric.
pub(super) fn uplink(
    walk: &mut Walk,
    section: Section<'_>,
    dir: &Path,
    ways: &mut Ways,
    paths: &mut Paths,
    tunnel: Option<&str>,
) -> Option<UplinkConfig> {
    let word = walk.word(section, "kind", &UPLINK_WORDS)?.value;
    let is_fabric =
        word == UplinkWord::Vxlan && tunnel.is_some_and(|name| walk.peek(section, "name").unwrap_or("vxlan") == name);
    own_keys(walk, section, word, is_fabric);
    match (word, walk.place(section, "rate")) {
        (UplinkWord::None, Some(line)) => {
            walk.wrong(section, "rate", line, "there is nothing to pace without an uplink");
        }
        (UplinkWord::Querier, Some(line)) => walk.wrong(section, "rate", line, "a querier has nothing to pace"),
        _ => {}
    }
    if let (UplinkWord::Querier, Some(line)) = (word, walk.place(section, "snooping")) {
        walk.wrong(section, "snooping", line, "a querier needs to hear what hosts say");
    }
    match (word, walk.place(section, "lldp")) {
        (UplinkWord::Querier, Some(line)) => walk.wrong(section, "lldp", line, "a querier has no neighbour"),
        (UplinkWord::Vxlan, Some(line)) => walk.wrong(section, "lldp", line, "a tunnel has no neighbour"),
        _ => {}
    }
    let rate = walk.parsed(section, "rate").map(|found| found.value);
    let inward = inward(walk, section, word, rate);
    let vlan = policy::vlan(walk, section).unwrap_or_default();
    let kind = match word {
        UplinkWord::Tap => UplinkKind::Tap { name: interface(walk, section, "name")?, queues: queues(walk, section) },
        UplinkWord::Xdp => {
            UplinkKind::Xdp { interface: interface(walk, section, "interface")?, queues: queues(walk, section) }
        }
        UplinkWord::Pair | UplinkWord::Stream => {
            let role = walk.word(section, "role", &ROLES).map(|found| found.value).unwrap_or_default();
            let socket = paths.socket(walk, section, "socket", dir)?;
            match word {
                UplinkWord::Pair => UplinkKind::Pair { socket, role },
                _ => UplinkKind::Stream { socket, role },
            }
        }
        UplinkWord::Vxlan => UplinkKind::Vxlan(tunnel::tunnel(walk, section, &vlan)?),
        UplinkWord::Capture => UplinkKind::Capture { file: paths.capture(walk, section, dir)? },
        UplinkWord::Null => UplinkKind::Null,
        UplinkWord::Querier => UplinkKind::Querier,
        UplinkWord::None => return None,
    };
    let private = policy::private(walk, section).unwrap_or_default();
    let named = if word == UplinkWord::Tap { None } else { name(walk, section) };
    let line = walk.place(section, "name").or_else(|| walk.place(section, "kind")).unwrap_or(section.line);
    let name = named.map_or_else(|| kind.name().to_owned(), |named| named.value);
    if let Some(other) = ways.uplinks.iter().find(|other| other.value == name) {
        let what = format!("{name:?} is {} already: give this one a name of its own", walk.whose("uplink", other.line));
        walk.wrong(section, "name", line, what);
    }
    ways.uplinks.push(Found { value: name.clone(), line });
    let [snooping, trust_marks] =
        ["snooping", "trust_marks"].map(|key| walk.boolean(section, key).is_some_and(|found| found.value));
    let ((blocked, in_loop), lldp) = (policy::blocked(walk, section), lldp(walk, section));
    let team = None;
    Some(UplinkConfig { name, kind, rate, vlan, private, snooping, lldp, trust_marks, inward, blocked, in_loop, team })
}

/// Checks that an uplink has the keys of its kind, and none of another's.
fn own_keys(walk: &mut Walk, section: Section<'_>, word: UplinkWord, is_fabric: bool) {
    // For each key: the kinds of uplinks that have it, and whether it is required.
    let keys: [(&str, &[UplinkWord], bool); 11] = [
        (
            "name",
            &[
                UplinkWord::Tap,
                UplinkWord::Xdp,
                UplinkWord::Pair,
                UplinkWord::Stream,
                UplinkWord::Vxlan,
                UplinkWord::Capture,
                UplinkWord::Null,
                UplinkWord::Querier,
            ],
            false,
        ),
        ("interface", &[UplinkWord::Xdp], true),
        ("queues", &[UplinkWord::Tap, UplinkWord::Xdp], false),
        ("socket", &[UplinkWord::Pair, UplinkWord::Stream], true),
        ("role", &[UplinkWord::Pair, UplinkWord::Stream], false),
        ("address", &[UplinkWord::Vxlan], true),
        ("udp_port", &[UplinkWord::Vxlan], false),
        ("peers", &[UplinkWord::Vxlan], false),
        ("vnis", &[UplinkWord::Vxlan], !is_fabric),
        ("mtu", &[UplinkWord::Vxlan], false),
        ("file", &[UplinkWord::Capture], true),
    ];
    for (key, its, needed) in keys {
        match (walk.place(section, key), its.contains(&word)) {
            (None, true) if needed => walk.missing(section, key),
            (Some(line), false) => walk.wrong(section, key, line, "it does not belong to this kind of uplink"),
            _ => {}
        }
    }
    if is_fabric {
        for key in ["peers", "vnis", "vlan", "trunk", "native", "qinq"] {
            if let Some(line) = walk.place(section, key) {
                let what = "this uplink is [fabric] tunnel: the fabric knows its hosts, and its groups say which VLANs go there";
                walk.wrong(section, key, line, format!("{what}; leave {key} out"));
            }
        }
    }
    if word == UplinkWord::Tap && walk.place(section, "name").is_none() {
        walk.missing(section, "name");
    }
}

fn inward(walk: &mut Walk, section: Section<'_>, word: UplinkWord, rate: Option<Rate>) -> Option<InwardConfig> {
    let found = walk.parsed::<Rate>(section, "inward_rate");
    let buffer = walk
        .parsed::<Bytes>(section, "receive_buffer")
        .filter(|found| within(walk, section, "receive_buffer", found, INWARD));
    if let (Some(line), None) = (walk.place(section, "receive_buffer"), &found) {
        walk.wrong(section, "receive_buffer", line, "without inward_rate nothing waits here");
    }
    let Found { value, line } = found?;
    if !matches!(word, UplinkWord::Tap | UplinkWord::Xdp | UplinkWord::Pair | UplinkWord::Stream | UplinkWord::Vxlan) {
        walk.wrong(section, "inward_rate", line, "nothing comes in by this kind of uplink");
    } else if let Some(rate) = rate.filter(|rate| *rate < value) {
        let what = format!(
            "{value} is above the uplink's rate of {rate}: what comes in would wait before it reaches the daemon"
        );
        walk.wrong(section, "inward_rate", line, what);
    }
    Some(InwardConfig { rate: value, buffer: buffer.map_or(InwardConfig::BUFFER, |found| found.value) })
}

/// An interface's queues. Its LLDP would be each queue's own.
fn queues(walk: &mut Walk, section: Section<'_>) -> u16 {
    let found = walk.integer(section, "queues").map(|found| found.value).unwrap_or(1);
    if found > 1
        && let Some(line) = walk.place(section, "lldp")
    {
        walk.wrong(section, "lldp", line, "it does not go with several queues: leave it away, or `queues`");
    }
    u16::try_from(found).unwrap_or(1)
}

/// Reads the LLDP of an uplink.
fn lldp(walk: &mut Walk, section: Section<'_>) -> Lldp {
    let (sends, receives) = walk.word(section, "lldp", &WAYS).map(|found| found.value).unwrap_or_default();
    Lldp { sends, receives }
}

/// The keys of an uplink that are not its policy's and differ from the default, and their values. What it is made of, a name or a path, is
/// not among them.
pub fn link_words(uplink: &UplinkConfig) -> BTreeMap<String, String> {
    let UplinkConfig { rate, lldp: Lldp { sends, receives }, inward, .. } = uplink;
    let lldp = WAYS.iter().find(|(_, ways)| *ways == (*sends, *receives)).map(|(word, _)| (*word).to_owned());
    let buffer = inward.map(|inward| inward.buffer).filter(|buffer| *buffer != InwardConfig::BUFFER);
    let tunnel = if let UplinkKind::Vxlan(tunnel) = &uplink.kind { Some(tunnel) } else { None };
    let peers = tunnel.map(TunnelConfig::peers_text).filter(|peers| !peers.is_empty());
    let port = tunnel.map(|tunnel| tunnel.settings.port).filter(|port| *port != VXLAN_PORT);
    let mtu = tunnel.map(|tunnel| tunnel.settings.mtu).filter(|mtu| *mtu != TunnelConfig::MTU);
    let words = [
        ("peers", peers),
        ("vnis", tunnel.map(|tunnel| tunnel.vnis.clone())),
        ("udp_port", port.map(|port| port.to_string())),
        ("mtu", mtu.map(|mtu| mtu.to_string())),
        ("rate", rate.map(|rate| rate.to_string())),
        ("lldp", lldp.filter(|_| *sends || *receives)),
        ("inward_rate", inward.map(|inward| inward.rate.to_string())),
        ("receive_buffer", buffer.map(|buffer| buffer.to_string())),
        ("queues", (uplink.queues() > 1).then(|| uplink.queues().to_string())),
    ];
    words.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

#[cfg(test)]
#[path = "uplink_test.rs"]
mod tests;
