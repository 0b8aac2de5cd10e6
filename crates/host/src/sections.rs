//! The tables of a host file: their keys, the allowed values, and their translation into parts of a [`Host`] (docs/host-file.md).

use std::collections::hash_map;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nicety_adapter::{Face, Mappable, count};
use nicety_adapters::{Entry, REGISTRY, Settings};
use nicety_frame::Mac;
use nicety_switch::{Policy, Private};
use toml::de::DeTable;

use super::access::{self, AccessConfig, AccountError, CONTROL_KEYS, KEYS, access, group_number};
use super::card::{self, CARD, Cards, FUNCTION_KEYS, LINK_STATE};
use super::document::{Document, List};
use super::errors::did_you_mean;
use super::form::{Form, INTERFACE_MOST, NAME_MOST, words};
use super::io_class::{Around, IO_CLASS, io_classes};
use super::minimum::Minimum;
use super::mirror::{MIRROR, mirrors};
use super::page::{PAGE, page};
use super::paths::{self, Paths};
use super::policy::{self, Parts};
use super::quantity::{Bytes, Seconds};
use super::team::{TEAM, team};
use super::tolerance::{self, FT};
use super::walk::{Found, Key, Kind, Section, Walk, within};
use super::workers;
use super::{
    CardConfig, DaemonConfig, Doorbells, FunctionConfig, Host, InwardConfig, PortConfig, Role, SwitchConfig,
    UplinkConfig, UplinkKind,
};

/// The range of a port's receive buffer.
const BUFFER: (Bytes, Bytes) = (Bytes(64 << 10), Bytes(1 << 30));
/// The range of the room for what comes in by an uplink for one class and port.
const INWARD: (Bytes, Bytes) = (Bytes(512 << 10), Bytes(64 << 20));
/// The range of the ageing time (IEEE 802.1Q-2018, table 8-6).
const AGEING: (Seconds, Seconds) = (Seconds(10), Seconds(1_000_000));

/// Most workers of a daemon.
const WORKERS_MOST: u32 = 64;
/// Most queues of a tap: as many as members of a team.
const QUEUES_MOST: u32 = 16;

const NAME: &str =
    "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other port's, and not the uplink's";
const SOCKET: &str = "a path of at most 107 bytes, each once; a relative one begins at the host file's folder";

/// Every table of a host file.
pub const KINDS: [&Kind; 11] =
    [&SWITCH, &UPLINK, &TEAM, &CARD, &IO_CLASS, &MIRROR, &DAEMON, &FT, &SOCKETS, &PORT_GROUP, &PORT];

static SWITCH: Kind = Kind {
    heading: "[switch]",
    name: "switch",
    keys: &[
        Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first"),
        Key::new("addresses", Form::Number(64, 4_194_304), "a whole number from 64 to 4194304"),
        Key::new("ageing", Form::Seconds(AGEING.0, AGEING.1), "\"10s\" to \"1000000s\""),
        Key::new("port_addresses", Form::Number(1, 4_194_304), "a whole number from 1 to 4194304"),
    ],
    several: false,
};

static UPLINK: Kind = Kind {
    heading: "[uplink]",
    name: "uplink",
    keys: &[
        Key::new(
            "kind",
            Form::Words(&words(&UPLINK_WORDS)),
            "\"tap\", \"xdp\", \"pair\", \"stream\", \"capture\", \"null\", \"querier\" or \"none\"",
        )
        .required(),
        Key::new(
            "name",
            Form::UplinkName,
            "with kind = \"tap\": an interface's name of 1 to 15 characters, such as \"tap0\"; else 1 to 64 letters, digits, -, _ and ., a letter or digit first; no port's, and no other uplink's",
        ),
        Key::new("interface", Form::Interface, "with kind = \"xdp\": an interface's name, such as \"eth0\""),
        Key::new("queues", Form::Number(1, QUEUES_MOST), "with kind = \"tap\" or \"xdp\": a whole number from 1 to 16"),
        Key::new("socket", Form::Socket, "with kind = \"pair\" or \"stream\": a path of at most 107 bytes"),
        Key::new("role", Form::Words(&words(&ROLES)), "with kind = \"pair\" or \"stream\": \"listen\" or \"connect\""),
        Key::new("file", Form::Path, "with kind = \"capture\": a path, of no other file or socket here"),
        Key::new("rate", Form::Rate, "an amount per second, such as \"100Mbit/s\"; not with kind = \"none\""),
        Key::new(
            "inward_rate",
            Form::Rate,
            "with kind = \"tap\", \"xdp\", \"pair\" or \"stream\": an amount per second, a little below the link's, and at most rate",
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
        policy::UPLINK_LLDP,
    ],
    several: true,
};

static DAEMON: Kind = Kind {
    heading: "[daemon]",
    name: "daemon",
    keys: &[
        Key::new("workers", Form::Number(1, WORKERS_MOST), "a whole number from 1 to 64"),
        Key::new("control", Form::Socket, "a path of at most 107 bytes"),
        CONTROL_KEYS[0],
        CONTROL_KEYS[1],
        CONTROL_KEYS[2],
        CONTROL_KEYS[3],
        Key::new("control_change_group", Form::Account, "a group's name or number, whose members may also change"),
        Key::new("state", Form::Path, "a path, of no other file or socket here"),
        Key::new("listed", Form::Flag, "true or false"),
        Key::new("sandbox", Form::Words(&words(&SANDBOX)), "\"on\" or \"off\""),
        Key::new("folders", Form::Paths(FOLDERS_MOST), "paths of at most 64 folders, with commas between them"),
        PAGE,
    ],
    several: false,
};

/// Whether the daemon's threads are confined.
const SANDBOX: [(&str, bool); 2] = [("on", true), ("off", false)];
/// Most folders for live changes.
const FOLDERS_MOST: usize = 64;

static SOCKETS: Kind = Kind { heading: "[sockets]", name: "sockets", keys: &KEYS, several: false };

const GROUP_KEYS: [Key; 1] =
    [Key::new("name", Form::Name, "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other group's")
        .required()];

static PORT_GROUP: Kind = Kind {
    heading: "[[port_group]]",
    name: "port_group",
    keys: &policy::with::<{ GROUP_KEYS.len() + policy::KEYS.len() }>(&GROUP_KEYS, &policy::KEYS),
    several: false,
};

const ROLES: [(&str, Role); 2] = [("listen", Role::Listen), ("connect", Role::Connect)];
const DOORBELLS: [(&str, Doorbells); 2] = [("trapped", Doorbells::Trapped), ("mapped", Doorbells::Mapped)];
/// Whether the PCI subsystem is VMware's.
const SUBSYSTEMS: [(&str, bool); 2] = [("chip", false), ("vmware", true)];

const PORT_KEYS: [Key; 30] = [
    Key::new("name", Form::Name, NAME).required(),
    Key::new("adapter", Form::Adapter, "a name that `nicety adapters` lists").required(),
    Key::new(
        "mac",
        Form::Mac,
        "the address of one station, such as \"52:54:00:12:34:01\"; each once, but for a standby's",
    )
    .required(),
    Key::new("socket", Form::Socket, SOCKET).required(),
    Key::new("role", Form::Words(&words(&ROLES)), "\"listen\" or \"connect\", for virtio-net"),
    Key::new(
        "doorbells",
        Form::Words(&words(&DOORBELLS)),
        "\"trapped\", or \"mapped\" for an adapter whose doorbells can be",
    ),
    Key::new("buffer", Form::Bytes(BUFFER.0, BUFFER.1), "\"64KiB\" to \"1GiB\""),
    Key::new("queues", Form::Number(1, u16::MAX as u32), "a whole number from 1 to the adapter's queue pairs"),
    Key::new(
        "mtu",
        Form::Number(policy::MTU_LEAST, u16::MAX as u32),
        "for an adapter that announces an MTU, such as virtio-net: a whole number from 68 to 65535",
    ),
    Key::new("rom", Form::Path, "a path of an option ROM, for an adapter that is a PCI function of its own"),
    Key::new(
        "subsystem",
        Form::Words(&words(&SUBSYSTEMS)),
        "\"chip\", or \"vmware\" for an e1000 of any kind or an e1000e",
    ),
    Key::new("standby", Form::Flag, "true or false; true for a virtio adapter"),
    Key::new("worker", Form::Number(0, WORKERS_MOST - 1), "a whole number from 0, below the daemon's workers"),
    Key::new("workers", Form::Number(1, WORKERS_MOST), "for virtio-net: a whole number from 1 to the daemon's workers"),
    tolerance::PEER,
    KEYS[0],
    KEYS[1],
    KEYS[2],
    KEYS[3],
    Key::new("port_group", Form::Name, "the name of a [[port_group]]"),
    policy::BOUND_KEYS[0],
    policy::BOUND_KEYS[1],
    FUNCTION_KEYS[0],
    FUNCTION_KEYS[1],
    FUNCTION_KEYS[2],
    FUNCTION_KEYS[3],
    LINK_STATE,
    FUNCTION_KEYS[4],
    FUNCTION_KEYS[5],
    FUNCTION_KEYS[6],
];

static PORT: Kind = Kind {
    heading: "[[port]]",
    name: "port",
    keys: &policy::with::<{ PORT_KEYS.len() + policy::KEYS.len() }>(&PORT_KEYS, &policy::KEYS),
    several: false,
};

impl List {
    /// The kind of its tables.
    pub fn kind(self) -> &'static Kind {
        match self {
            Self::Ports => &PORT,
            Self::Groups => &PORT_GROUP,
            Self::Uplinks => &UPLINK,
            Self::Cards => &CARD,
            Self::Teams => &TEAM,
            Self::Mirrors => &MIRROR,
            Self::Classes => &IO_CLASS,
        }
    }
}

/// Values that must be unique, each with its first line.
#[derive(Debug)]
pub(super) struct Seen {
    names: HashMap<String, usize>,
    addresses: HashMap<Mac, usize>,
    /// Addresses of ports that stand by for another port with the same address.
    standbys: HashMap<Mac, usize>,
    paths: Paths,
    /// The uplinks' names. They must differ from the ports' names because of `nicety ports NAME`.
    pub(super) uplinks: Vec<Found<String>>,
    /// The teams' names, which must differ from those too.
    pub(super) teams: Vec<Found<String>>,
    /// The uplinks that are in a team.
    pub(super) members: Vec<String>,
    pub(super) cards: Cards,
    /// Access to a port without its own setting.
    access: AccessConfig,
    /// The name and the policy of each port group.
    groups: Vec<(String, Parts)>,
    /// The daemon's workers.
    workers: usize,
}

/// The line of an earlier equal value. Notes this line if there is none.
pub(super) fn earlier<K: Eq + Hash>(seen: &mut HashMap<K, usize>, key: K, line: usize) -> Option<usize> {
    // One line may hold several values.
    match seen.entry(key) {
        hash_map::Entry::Occupied(first) => Some(*first.get()),
        hash_map::Entry::Vacant(none) => {
            none.insert(line);
            None
        }
    }
}

/// The host that a document describes. It is complete only if the walk noted no mistake.
pub(super) fn host<'a>(walk: &mut Walk, root: &'a DeTable<'a>, path: &Path) -> Host {
    let dir = path.parent().unwrap_or(Path::new(""));
    walk.unknown_sections(root, &KINDS);
    let usual = walk.sections(root, &SOCKETS).pop().map(|section| access(walk, section, &access::PORTS));
    let mut seen = Seen {
        names: HashMap::new(),
        addresses: HashMap::new(),
        standbys: HashMap::new(),
        paths: Paths::new(path),
        uplinks: Vec::new(),
        teams: Vec::new(),
        members: Vec::new(),
        cards: Cards::default(),
        access: usual.unwrap_or_default(),
        groups: Vec::new(),
        workers: 1,
    };
    for section in walk.sections(root, &PORT_GROUP) {
        group(walk, section, &mut seen);
    }
    let switch = walk.sections(root, &SWITCH).pop().map_or_else(SwitchConfig::default, |section| switch(walk, section));
    let sections = walk.sections(root, &UPLINK);
    let uplinks = sections.into_iter().filter_map(|section| Some((section, uplink(walk, section, dir, &mut seen)?)));
    let mut uplinks: Vec<_> = uplinks.collect();
    let sections = walk.sections(root, &TEAM);
    let teams: Vec<_> =
        sections.into_iter().filter_map(|section| team(walk, section, &mut seen, &mut uplinks)).collect();
    let uplinks: Vec<UplinkConfig> = uplinks.into_iter().map(|(_, uplink)| uplink).collect();
    seen.members.extend(uplinks.iter().filter(|uplink| uplink.team.is_some()).map(|uplink| uplink.name.clone()));
    let is_way_out = |uplink: &&UplinkConfig| uplink.team.is_none() && uplink.kind != UplinkKind::Querier;
    let outs = uplinks.iter().filter(is_way_out).count() + teams.len();
    for section in walk.sections(root, &CARD) {
        card::card(walk, section, outs, &mut seen);
    }
    let daemon = walk
        .sections(root, &DAEMON)
        .pop()
        .map_or_else(DaemonConfig::default, |section| daemon(walk, section, dir, &mut seen));
    seen.workers = daemon.workers;
    let sections = walk.sections(root, &PORT);
    // Queues have numbers of their own, and so has the team that they are.
    let numbers = |uplink: &UplinkConfig| if uplink.queues() > 1 { 1 + usize::from(uplink.queues()) } else { 1 };
    let others = uplinks.iter().map(numbers).sum::<usize>() + teams.len();
    let most = nicety_switch::PORTS.saturating_sub(others.max(1));
    if let Some(section) = sections.get(most) {
        let what =
            format!("a switch has at most {most} ports besides its uplink{}", if uplinks.len() > 1 { "s" } else { "" });
        walk.note(section.line, "port", what, String::new());
    }
    let tolerance = walk.sections(root, &FT).pop().and_then(|section| tolerance::tolerance(walk, section, dir));
    let is_tolerant = tolerance.is_some();
    let ports = sections.into_iter().filter_map(|section| {
        let port = port(walk, section, dir, &mut seen)?;
        tolerance::check(walk, section, &port, is_tolerant);
        Some((section, port))
    });
    let ports: Vec<(Section<'_>, PortConfig)> = ports.collect();
    let cards = seen.cards.into_list();
    let minimums = minimums(&ports, &cards);
    let ports: Vec<PortConfig> = ports.into_iter().map(|(_, port)| port).collect();
    let groups = seen.groups.iter().map(|(name, _)| name.as_str()).collect();
    let sections = walk.sections(root, &IO_CLASS);
    let around = Around { uplinks: &uplinks, teams: &teams, ports: &ports, groups };
    let io_classes = io_classes(walk, sections, &minimums, &around);
    let sections = walk.sections(root, &MIRROR);
    let mirrors = mirrors(walk, sections, &around, &io_classes);
    Host {
        path: path.to_owned(),
        switch,
        uplinks,
        teams,
        cards,
        io_classes,
        mirrors,
        daemon,
        tolerance,
        ports,
        document: Document::default(),
        paths: seen.paths,
    }
}

/// The minimum rates of functions.
fn minimums<'a>(ports: &[(Section<'a>, PortConfig)], cards: &[CardConfig]) -> Vec<(Section<'a>, Minimum)> {
    let of = |(section, port): &(Section<'a>, PortConfig)| Some((*section, Minimum::of(port, cards)?));
    ports.iter().filter_map(of).collect()
}

fn switch(walk: &mut Walk, section: Section<'_>) -> SwitchConfig {
    let usual = SwitchConfig::default();
    let name = name(walk, section).map_or(usual.name, |found| found.value);
    let addresses = walk.integer(section, "addresses");
    let ageing =
        walk.parsed::<Seconds>(section, "ageing").filter(|found| within(walk, section, "ageing", found, AGEING));
    let each = walk.integer(section, "port_addresses");
    SwitchConfig {
        name,
        port_addresses: each.map_or(usual.port_addresses, |found| found.value),
        addresses: addresses.map_or(usual.addresses, |found| found.value as usize),
        ageing: ageing.map_or(usual.ageing, |found| found.value),
    }
}

fn daemon(walk: &mut Walk, section: Section<'_>, dir: &Path, seen: &mut Seen) -> DaemonConfig {
    let workers = walk.integer(section, "workers").map_or(1, |found| found.value as usize);
    let control = seen.paths.socket(walk, section, "control", dir);
    let listed = walk.boolean(section, "listed").is_none_or(|found| found.value);
    let state = seen.paths.state(walk, section, dir);
    let change_group = access::name(walk, section, "control_change_group");
    let sandbox = walk.word(section, "sandbox", &SANDBOX).is_none_or(|found| found.value);
    let folders = paths::folders(walk, section, dir, FOLDERS_MOST);
    let access = access(walk, section, &access::CONTROL);
    let page = page(walk, section, dir, &mut seen.paths);
    DaemonConfig { workers, control, access, change_group, state, listed, sandbox, folders, page }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum UplinkWord {
    Tap,
    Xdp,
    Pair,
    Stream,
    Capture,
    Null,
    Querier,
    None,
}

const UPLINK_WORDS: [(&str, UplinkWord); 8] = [
    ("tap", UplinkWord::Tap),
    ("xdp", UplinkWord::Xdp),
    ("pair", UplinkWord::Pair),
    ("stream", UplinkWord::Stream),
    ("capture", UplinkWord::Capture),
    ("null", UplinkWord::Null),
    ("querier", UplinkWord::Querier),
    ("none", UplinkWord::None),
];

fn uplink(walk: &mut Walk, section: Section<'_>, dir: &Path, seen: &mut Seen) -> Option<UplinkConfig> {
    let word = walk.word(section, "kind", &UPLINK_WORDS)?.value;
    // For each key: the kinds of uplinks that have it, and whether it is required.
    let keys: [(&str, &[UplinkWord], bool); 6] = [
        (
            "name",
            &[
                UplinkWord::Tap,
                UplinkWord::Xdp,
                UplinkWord::Pair,
                UplinkWord::Stream,
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
        ("file", &[UplinkWord::Capture], true),
    ];
    for (key, its, needed) in keys {
        match (walk.place(section, key), its.contains(&word)) {
            (None, true) if needed => walk.missing(section, key),
            (Some(line), false) => walk.wrong(section, key, line, "it does not belong to this kind of uplink"),
            _ => {}
        }
    }
    if word == UplinkWord::Tap && walk.place(section, "name").is_none() {
        walk.missing(section, "name");
    }
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
    if let (UplinkWord::Querier, Some(line)) = (word, walk.place(section, "lldp")) {
        walk.wrong(section, "lldp", line, "a querier has no neighbour");
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
            let socket = seen.paths.socket(walk, section, "socket", dir)?;
            match word {
                UplinkWord::Pair => UplinkKind::Pair { socket, role },
                _ => UplinkKind::Stream { socket, role },
            }
        }
        UplinkWord::Capture => UplinkKind::Capture { file: seen.paths.capture(walk, section, dir)? },
        UplinkWord::Null => UplinkKind::Null,
        UplinkWord::Querier => UplinkKind::Querier,
        UplinkWord::None => return None,
    };
    let private = policy::private(walk, section).unwrap_or_default();
    let named = if word == UplinkWord::Tap { None } else { name(walk, section) };
    let line = walk.place(section, "name").or_else(|| walk.place(section, "kind")).unwrap_or(section.line);
    let name = named.map_or_else(|| kind.name().to_owned(), |named| named.value);
    if let Some(other) = seen.uplinks.iter().find(|other| other.value == name) {
        let what = format!("{name:?} is {} already: give this one a name of its own", walk.whose("uplink", other.line));
        walk.wrong(section, "name", line, what);
    }
    seen.uplinks.push(Found { value: name.clone(), line });
    let [snooping, trust_marks] =
        ["snooping", "trust_marks"].map(|key| walk.boolean(section, key).is_some_and(|found| found.value));
    let ((blocked, in_loop), lldp) = (policy::blocked(walk, section), policy::lldp(walk, section));
    let team = None;
    Some(UplinkConfig { name, kind, rate, vlan, private, snooping, lldp, trust_marks, inward, blocked, in_loop, team })
}

fn inward(
    walk: &mut Walk,
    section: Section<'_>,
    word: UplinkWord,
    rate: Option<nicety_uplink::Rate>,
) -> Option<InwardConfig> {
    let found = walk.parsed::<nicety_uplink::Rate>(section, "inward_rate");
    let buffer = walk
        .parsed::<Bytes>(section, "receive_buffer")
        .filter(|found| within(walk, section, "receive_buffer", found, INWARD));
    if let (Some(line), None) = (walk.place(section, "receive_buffer"), &found) {
        walk.wrong(section, "receive_buffer", line, "without inward_rate nothing waits here");
    }
    let Found { value, line } = found?;
    if !matches!(word, UplinkWord::Tap | UplinkWord::Xdp | UplinkWord::Pair | UplinkWord::Stream) {
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

fn group(walk: &mut Walk, section: Section<'_>, seen: &mut Seen) {
    let parts = Parts::read(walk, section);
    parts.check(walk, section);
    let Some(Found { value: name, line }) = name(walk, section) else { return };
    if seen.groups.iter().any(|(known, _)| *known == name) {
        walk.wrong(section, "name", line, format!("there is a port group {name:?} already: choose another name"));
        return;
    }
    seen.groups.push((name, parts));
}

/// A port's policy: its own values, then its group's.
fn policy_parts(walk: &mut Walk, section: Section<'_>, seen: &Seen, mtu: Option<u16>) -> Parts {
    let mut parts = Parts::read(walk, section);
    if let Some(Found { value: wanted, line }) = walk.string(section, "port_group") {
        match seen.groups.iter().find(|(name, _)| name == wanted) {
            Some((_, group)) => parts = parts.or(group),
            None => {
                let names = seen.groups.iter().map(|(name, _)| name.as_str());
                let what = format!("there is no port group {wanted:?}{}", did_you_mean(wanted, names));
                walk.wrong(section, "port_group", line, what);
            }
        }
    }
    parts.check(walk, section);
    parts.check_port(walk, section, mtu);
    parts
}

fn port(walk: &mut Walk, section: Section<'_>, dir: &Path, seen: &mut Seen) -> Option<PortConfig> {
    let name = name(walk, section).filter(|found| {
        let port = earlier(&mut seen.names, found.value.clone(), found.line).map(|line| ("port", line));
        let uplink = seen.uplinks.iter().find(|uplink| uplink.value == found.value);
        let team = seen.teams.iter().find(|team| team.value == found.value);
        let taken = port.or(uplink.map(|uplink| ("uplink", uplink.line))).or(team.map(|team| ("team", team.line)));
        if let Some((whose, line)) = taken {
            let what = format!("{:?} is {} already: choose another name", found.value, walk.whose(whose, line));
            walk.wrong(section, "name", found.line, what);
        }
        taken.is_none()
    });
    let entry = adapter(walk, section);
    let standby = walk.boolean(section, "standby");
    let stands_by = standby.as_ref().is_some_and(|found| found.value);
    let addresses = addresses(walk, section, if stands_by { &mut seen.standbys } else { &mut seen.addresses });
    let ips = policy::bound_ips(walk, section);
    let socket = seen.paths.socket(walk, section, "socket", dir);
    let role = walk.word(section, "role", &ROLES).map(|found| found.value).unwrap_or_default();
    let buffer = walk.parsed::<Bytes>(section, "buffer").filter(|found| within(walk, section, "buffer", found, BUFFER));
    let doorbells = walk.word(section, "doorbells", &DOORBELLS);
    let queues = walk.integer(section, "queues");
    let mtu = walk.integer(section, "mtu");
    let worker = walk.integer(section, "worker");
    if let Some(found) = worker.as_ref().filter(|found| found.value as usize >= seen.workers) {
        let what = format!("the daemon has {}: workers are counted from 0", count(seen.workers as u64, "worker"));
        walk.wrong(section, "worker", found.line, what);
    }
    let rom = seen.paths.rom(walk, section, dir);
    let subsystem = walk.word(section, "subsystem", &SUBSYSTEMS);
    let own = access(walk, section, &access::PORTS);
    if let (Some(line), Some(name)) = (walk.place(section, "group"), &own.group)
        && seen.groups.iter().any(|(group, _)| group == name)
        && matches!(group_number(name), Err(AccountError::Unknown { .. }))
    {
        let what = format!(
            "there is no UNIX group {name:?}, whose members could connect; a port group is chosen by port_group = {name:?}"
        );
        walk.wrong(section, "group", line, what);
    }
    let access = match role {
        Role::Listen => own.or(&seen.access),
        Role::Connect => {
            no_access(walk, section);
            AccessConfig::default()
        }
    };
    if let Some(entry) = entry {
        let (doorbells, queues, mtu) = (doorbells.as_ref(), queues.as_ref(), mtu.as_ref());
        let is_vmwares = subsystem.as_ref().is_some_and(|found| found.value);
        fits(walk, section, entry, &Requirements { doorbells, queues, mtu, is_vmwares, stands_by });
    }
    let mtu = mtu.and_then(|found| u16::try_from(found.value).ok());
    let parts = policy_parts(walk, section, seen, mtu);
    let group = walk.string(section, "port_group").map(|found| found.value.to_owned());
    let function = card::function(walk, section, entry, seen);
    let workers = workers::read(walk, section, entry, queues.as_ref().map(|found| found.value), &parts, seen.workers);
    if let (Some(least), Some(most)) = (function.as_ref().and_then(|function| function.min_rate), parts.send_average())
        && least > most
    {
        let line = walk.place(section, "min_rate").unwrap_or(section.line);
        walk.wrong(section, "min_rate", line, format!("it may send at most {most} (send_average)"));
    }
    let priority = card::priority(walk, section, parts.tags());
    let (entry, addresses) = (entry?, addresses?);
    Some(PortConfig {
        name: name?.value,
        entry,
        mac: *addresses.first()?,
        socket: socket?,
        role,
        doorbells: doorbells.map(|found| found.value),
        buffer: buffer.map_or(PortConfig::BUFFER, |found| found.value),
        queues: queues.and_then(|found| u16::try_from(found.value).ok()),
        mtu,
        rom,
        is_vmwares: subsystem.is_some_and(|found| found.value),
        standby: stands_by,
        worker: worker.and_then(|found| u16::try_from(found.value).ok()),
        workers: workers.unwrap_or(1),
        ft_peer: tolerance::peer(walk, section, dir),
        access,
        group,
        link: card::link_state(walk, section),
        policy: bound(parts.policy(addresses, ips, priority), function.as_ref()),
        function,
    })
}

/// A function may send only from its own address, unless the host trusts it or does not check; and to the uplink alone with VEPA.
fn bound(policy: Policy, function: Option<&FunctionConfig>) -> Policy {
    let is_checked = function.is_some_and(|function| function.checks_source && !function.trusted);
    let private = if function.is_some_and(|function| function.is_vepa) { Private::Vepa } else { policy.private };
    Policy { forged_transmits: policy.forged_transmits && !is_checked, private, ..policy }
}

/// Refuses access keys on a port that connects: nobody connects to it.
fn no_access(walk: &mut Walk, section: Section<'_>) {
    for Key { name, .. } in &KEYS {
        if let Some(line) = walk.place(section, name) {
            let what = "with role = \"connect\" the socket is the VMM's, which says who may connect: leave this out";
            walk.wrong(section, name, line, what);
        }
    }
}

fn adapter(walk: &mut Walk, section: Section<'_>) -> Option<&'static Entry> {
    let Found { value: given, line } = walk.string(section, "adapter")?;
    let found = nicety_adapters::find(given);
    if found.is_none() {
        let names = || REGISTRY.iter().map(|entry| entry.about.name);
        let what = format!("there is no adapter {given:?}{}", did_you_mean(given, names()));
        walk.note(line, "port.adapter", what, names().collect::<Vec<_>>().join(", "));
    }
    found
}

/// A port's addresses, `mac` first. `None` without a valid `mac`.
fn addresses(walk: &mut Walk, section: Section<'_>, seen: &mut HashMap<Mac, usize>) -> Option<Vec<Mac>> {
    let mac = walk.parsed::<Mac>(section, "mac").filter(|found| is_its_own(walk, section, "mac", found, seen));
    let bound = walk.list::<Mac>(section, "bound_macs", policy::MACS_MOST);
    let bound: Vec<Mac> = bound
        .into_iter()
        .filter(|found| is_its_own(walk, section, "bound_macs", found, seen))
        .map(|found| found.value)
        .collect();
    Some([vec![mac?.value], bound].concat())
}

/// Whether an address is one station's and not used by another. Otherwise notes a mistake.
fn is_its_own(
    walk: &mut Walk,
    section: Section<'_>,
    key: &str,
    found: &Found<Mac>,
    seen: &mut HashMap<Mac, usize>,
) -> bool {
    let Found { value: mac, line } = *found;
    if !mac.is_unicast() {
        let what =
            format!("{mac} is not the address of one station: its first byte must be even, and not all bytes zero");
        walk.wrong(section, key, line, what);
        return false;
    }
    let first = earlier(seen, mac, line);
    if let Some(first) = first {
        walk.wrong(section, key, line, format!("{mac} is the address of {} already", walk.at(first)));
    }
    first.is_none()
}

/// A port's requirements on its adapter.
struct Requirements<'a> {
    doorbells: Option<&'a Found<Doorbells>>,
    queues: Option<&'a Found<u32>>,
    mtu: Option<&'a Found<u32>>,
    is_vmwares: bool,
    stands_by: bool,
}

/// Checks that the adapter supports the port's settings.
fn fits(walk: &mut Walk, section: Section<'_>, entry: &Entry, required: &Requirements<'_>) {
    let about = entry.about;
    let Requirements { doorbells, queues, mtu, is_vmwares, stands_by } = *required;
    if let Some(found) = queues.filter(|found| found.value > u32::from(about.queues)) {
        let most = match about.queues {
            1 => "one queue pair".to_owned(),
            most => format!("at most {most} queue pairs"),
        };
        walk.wrong(section, "queues", found.line, format!("{} has {most}, not {}", about.name, found.value));
    }
    if let Some(found) = mtu.filter(|_| !about.announces_mtu) {
        let what = format!(
            "{} does not tell its driver an MTU: leave this out, and set it in the guest (at most {})",
            about.name, about.mtu_max
        );
        walk.wrong(section, "mtu", found.line, what);
    } else if let Some(found) = mtu.filter(|found| found.value > about.mtu_max) {
        let what = format!("{} carries at most {} bytes, not {}", about.name, about.mtu_max, found.value);
        walk.wrong(section, "mtu", found.line, what);
    }
    if let Some(found) = doorbells.filter(|found| found.value == Doorbells::Mapped && !can_map(entry)) {
        walk.wrong(section, "doorbells", found.line, format!("{} cannot have its doorbells mapped", about.name));
    }
    if let Some(line) = walk.place(section, "role").filter(|_| !about.transports.contains(&"vhost-user")) {
        let what = format!("{} is reached by vfio-user, where a VMM always connects: leave this out", about.name);
        walk.wrong(section, "role", line, what);
    }
    if let Some(line) = walk.place(section, "rom").filter(|_| !about.transports.contains(&"vfio-user")) {
        let what = format!("{}'s PCI function, and with it the option ROM, is the VMM's", about.name);
        walk.wrong(section, "rom", line, what);
    }
    if let Some(line) = walk.place(section, "subsystem").filter(|_| is_vmwares && about.vmware_subsystem.is_none()) {
        let what = format!("VMware has no PCI subsystem of its own for {}: leave this out", about.name);
        walk.wrong(section, "subsystem", line, what);
    }
    if let Some(line) = walk.place(section, "standby").filter(|_| stands_by && !about.stands_by) {
        let what = format!("{} cannot tell its driver that it stands by: only virtio can", about.name);
        walk.wrong(section, "standby", line, what);
    }
}

/// Whether a guest can map the adapter's doorbells. Creates an adapter to find out.
fn can_map(entry: &Entry) -> bool {
    mappable(entry).is_some()
}

/// The part that a guest can map. Makes an adapter of each kind once, and remembers its answer: VMs may wait while a host file is read.
pub(super) fn mappable(entry: &Entry) -> Option<Mappable> {
    static KNOWN: Mutex<BTreeMap<&str, Option<Mappable>>> = Mutex::new(BTreeMap::new());
    let look = || {
        let mut adapter = (entry.create)(&Settings::new(Mac([0x52, 0x54, 0, 0, 0, 1]))).ok()?;
        match adapter.face() {
            Face::Pci(pci) => pci.mappable(),
            Face::Rings(_) => None,
        }
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    *known.entry(entry.about.name).or_insert_with(look)
}

pub(super) fn name(walk: &mut Walk, section: Section<'_>) -> Option<Found<String>> {
    let Found { value: name, line } = walk.string(section, "name")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let what = if name.is_empty() {
        "it is empty".to_owned()
    } else if let Some(odd) = name.chars().find(|&c| !plain(c)) {
        format!("{name:?} has a {odd:?}")
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        format!("{name:?} does not begin with a letter or digit")
    } else if name.len() > NAME_MOST {
        format!("it has {} characters", name.len())
    } else {
        return Some(Found { value: name.to_owned(), line });
    };
    walk.wrong(section, "name", line, what);
    None
}

/// A valid interface name on Linux (dev_valid_name in net/core/dev.c).
fn interface(walk: &mut Walk, section: Section<'_>, key: &str) -> Option<String> {
    let Found { value: name, line } = walk.string(section, key)?;
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ':' | '%');
    if name.is_empty() || name.len() > INTERFACE_MOST || matches!(name, "." | "..") || name.contains(bad) {
        walk.wrong(section, key, line, format!("{name:?} cannot be an interface's name"));
        return None;
    }
    Some(name.to_owned())
}
