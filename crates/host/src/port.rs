//! `[[port]]`: a VM's adapter on the switch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use nicety_adapter::count;
use nicety_adapters::{Entry, REGISTRY, Settings};
use nicety_frame::Mac;
use nicety_pci::Rom;
use nicety_switch::{Policy, Private};

use super::access::{self, AccessConfig, AccountError, KEYS, access, group_number};
use super::card::{self, Cards, FUNCTION_KEYS, FunctionConfig, LINK_STATE, LinkState};
use super::daemon::WORKERS_MAX;
use super::doorbells::{DOORBELLS, Doorbells, mappable};
use super::errors::did_you_mean;
use super::form::{Form, words};
use super::group::{Groups, PortParts};
use super::names::{self, Ways, earlier};
use super::paths::Paths;
use super::policy;
use super::quantity::Bytes;
use super::role::{ROLES, Role};
use super::rom::{self, RomFileError};
use super::walk::{Found, Key, Kind, Section, Walk, within};
use super::workers;

/// The range of a port's receive buffer.
const BUFFER: (Bytes, Bytes) = (Bytes(64 << 10), Bytes(1 << 30));
const NAME: &str =
    "1 to 64 letters, digits, -, _ and ., a letter or digit first; no other port's, and not the uplink's";
const SOCKET: &str = "a path of at most 107 bytes, each once; a relative one begins at the host file's folder";
/// Longest origin, in characters.
const ORIGIN_MAX: usize = 200;
/// Whether the PCI subsystem is VMware's.
const SUBSYSTEMS: [(&str, bool); 2] = [("chip", false), ("vmware", true)];

/// `[[port]]`.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// Its name, unique.
    pub name: String,
    /// Its adapter.
    pub entry: &'static Entry,
    /// Its address, unique.
    pub mac: Mac,
    /// The socket at which a VMM connects, or listens.
    pub socket: PathBuf,
    /// Whether this side listens there.
    pub role: Role,
    /// The path of its doorbells to the daemon, if the file says. See [`PortConfig::is_mapped`].
    pub doorbells: Option<Doorbells>,
    /// Its receive buffer.
    pub buffer: Bytes,
    /// The maximum of queue pairs, if the file says.
    pub queues: Option<u16>,
    /// The largest MTU, if the file says.
    pub mtu: Option<u16>,
    /// The file of an option ROM.
    pub rom: Option<PathBuf>,
    /// Whether its PCI subsystem is VMware's, not its chip's.
    pub is_vmwares: bool,
    /// Whether it stands by for another port of the same VM.
    pub standby: bool,
    /// Whether a vhost-user port's state goes with its guest when a VMM moves it.
    pub device_state: bool,
    /// The worker that serves it, or its first queue pair, from 0, if the file says.
    pub worker: Option<u16>,
    /// The number of workers that serve its queue pairs.
    pub workers: u16,
    /// The accounts that may connect. The default if this side connects.
    pub access: AccessConfig,
    /// Its port group, if it is in one.
    pub group: Option<String>,
    /// Its link.
    pub link: LinkState,
    /// Its place on a card, if it is a function of one.
    pub function: Option<FunctionConfig>,
    /// The program that has made it for a VM, and removes it with that VM. `None`: a person has written it.
    pub origin: Option<String>,
    /// Its policy on the switch, with its group's values.
    pub policy: Policy,
    /// Its group is the fabric's.
    pub in_fabric: bool,
    /// And that one is not known yet: its link is down, and it carries nothing.
    pub waits_for_group: bool,
}

/// The protocol between a VMM and a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The adapter is a whole PCI function, emulated here.
    VfioUser,
    /// The VMM emulates the PCI function; the rings are served here.
    VhostUser,
}

impl PortConfig {
    /// The default receive buffer.
    pub const BUFFER: Bytes = Bytes(1 << 20);

    /// A port with these required keys, and no other.
    pub fn new(name: &str, entry: &'static Entry, mac: Mac, socket: PathBuf) -> Self {
        Self {
            name: name.to_owned(),
            entry,
            mac,
            socket,
            role: Role::default(),
            doorbells: None,
            buffer: Self::BUFFER,
            queues: None,
            mtu: None,
            rom: None,
            is_vmwares: false,
            standby: false,
            device_state: true,
            worker: None,
            workers: 1,
            access: AccessConfig::default(),
            group: None,
            link: LinkState::default(),
            function: None,
            origin: None,
            policy: Policy::default(),
            in_fabric: false,
            waits_for_group: false,
        }
    }

    /// The protocol between a VMM and this port.
    pub fn transport(&self) -> Transport {
        if self.entry.about.transports.contains(&"vfio-user") { Transport::VfioUser } else { Transport::VhostUser }
    }

    /// Whether its doorbells are mapped by a daemon with this many processors. [Usual](nicety_adapter::Mappable::usual) ones are,
    /// unless the file says otherwise. With one processor they are not: polling would take its time from the guest.
    pub fn is_mapped(&self, processors: usize) -> bool {
        match self.doorbells {
            Some(doorbells) => doorbells == Doorbells::Mapped,
            None => processors > 1 && mappable(self.entry).is_some_and(|part| part.usual),
        }
    }

    /// Whether another configuration of this port has the same adapter at the same socket. Then the differences can be changed
    /// while a VM is attached. A function's address is its card's to change.
    pub fn is_same_adapter(&self, other: &Self) -> bool {
        let mapped = |port: &Self| [1, 2].map(|processors| port.is_mapped(processors));
        let made = |port: &Self| {
            // All fields are named: a new key is live, or it is not.
            let PortConfig {
                role,
                queues,
                mtu,
                is_vmwares,
                standby,
                device_state,
                worker,
                workers,
                name: _,
                entry: _,
                mac: _,
                socket: _,
                doorbells: _,
                buffer: _,
                rom: _,
                access: _,
                group: _,
                link: _,
                function: _,
                origin: _,
                policy: _,
                in_fabric: _,
                waits_for_group: _,
            } = port;
            (
                port.entry.about.name,
                *role,
                mapped(port),
                *queues,
                *mtu,
                *is_vmwares,
                (*standby, *device_state),
                *worker,
                *workers,
            )
        };
        let is_same_address = self.mac == other.mac || (self.function.is_some() && other.function.is_some());
        made(self) == made(other) && is_same_address && self.socket == other.socket && self.rom == other.rom
    }

    /// Reads its option ROM.
    pub fn read_rom(&self) -> Result<Option<Rom>, RomFileError> {
        self.rom.as_deref().map(|path| rom::read(path, self.entry.about)).transpose()
    }

    /// The settings that create its adapter, with this option ROM.
    pub fn settings(&self, rom: Option<Rom>) -> Settings {
        let subsystem = self.entry.about.vmware_subsystem.filter(|_| self.is_vmwares);
        Settings { mac: self.mac, mtu: self.mtu, queues: self.queues, rom, subsystem, standby: self.standby }
    }
}

const PORT_KEYS: [Key; 31] = [
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
        Form::Number(policy::MTU_MIN, u16::MAX as u32),
        "for an adapter that announces an MTU, such as virtio-net: a whole number from 68 to 65535",
    ),
    Key::new("rom", Form::Path, "a path of an option ROM, for an adapter that is a PCI function of its own"),
    Key::new(
        "subsystem",
        Form::Words(&words(&SUBSYSTEMS)),
        "\"chip\", or \"vmware\" for an e1000 of any kind or an e1000e",
    ),
    Key::new("standby", Form::Flag, "true or false; true for a virtio adapter"),
    Key::new("device_state", Form::Flag, "true or false; for an adapter behind vhost-user"),
    Key::new("worker", Form::Number(0, WORKERS_MAX - 1), "a whole number from 0, below the daemon's workers"),
    Key::new("workers", Form::Number(1, WORKERS_MAX), "for virtio-net: a whole number from 1 to the daemon's workers"),
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
    Key::new("origin", Form::Line(ORIGIN_MAX), "1 to 200 characters, none of them a control character"),
];

pub(super) static PORT: Kind = Kind {
    heading: "[[port]]",
    name: "port",
    keys: &policy::with::<{ PORT_KEYS.len() + policy::KEYS.len() }>(&PORT_KEYS, &policy::KEYS),
    several: false,
};

/// Facts of the tables before a port's, and names that are taken so far.
pub(super) struct Before<'a> {
    /// The folder of the host file.
    pub(super) dir: &'a Path,
    pub(super) paths: Paths,
    pub(super) ways: Ways,
    pub(super) cards: Cards,
    pub(super) groups: Groups,
    /// Access to a port without its own setting.
    pub(super) access: AccessConfig,
    /// The daemon's workers.
    pub(super) workers: usize,
    pub(super) ports: Taken,
}

/// Values that only one port may have, each with its first line.
#[derive(Debug, Default)]
pub(super) struct Taken {
    names: HashMap<String, usize>,
    addresses: HashMap<Mac, usize>,
    /// Addresses of ports that stand by for another port with the same address.
    standbys: HashMap<Mac, usize>,
}

/// Reads a port. `None`: it has mistakes.
pub(super) fn port(walk: &mut Walk, section: Section<'_>, before: &mut Before<'_>) -> Option<PortConfig> {
    let dir = before.dir;
    let name = name(walk, section, before);
    let entry = adapter(walk, section);
    let standby = walk.boolean(section, "standby");
    let stands_by = standby.as_ref().is_some_and(|found| found.value);
    let device_state = walk.boolean(section, "device_state");
    let taken = if stands_by { &mut before.ports.standbys } else { &mut before.ports.addresses };
    let addresses = addresses(walk, section, taken);
    let ips = policy::bound_ips(walk, section);
    let socket = before.paths.socket(walk, section, "socket", dir);
    let role = walk.word(section, "role", &ROLES).map(|found| found.value).unwrap_or_default();
    let buffer = walk.parsed::<Bytes>(section, "buffer").filter(|found| within(walk, section, "buffer", found, BUFFER));
    let doorbells = walk.word(section, "doorbells", &DOORBELLS);
    let queues = walk.integer(section, "queues");
    let mtu = walk.integer(section, "mtu");
    let worker = worker(walk, section, before.workers);
    let rom = before.paths.rom(walk, section, dir);
    let subsystem = walk.word(section, "subsystem", &SUBSYSTEMS);
    let access = accounts(walk, section, role, before);
    if let Some(entry) = entry {
        let (doorbells, queues, mtu) = (doorbells.as_ref(), queues.as_ref(), mtu.as_ref());
        let is_vmwares = subsystem.as_ref().is_some_and(|found| found.value);
        fits(walk, section, entry, &Requirements { doorbells, queues, mtu, is_vmwares, stands_by });
    }
    let mtu = mtu.and_then(|found| u16::try_from(found.value).ok());
    let PortParts { parts, in_fabric, waits } = before.groups.policy_of(walk, section, mtu);
    let group = walk.string(section, "port_group").map(|found| found.value.to_owned());
    let function = card::function(walk, section, entry, &mut before.cards);
    let pairs = queues.as_ref().map(|found| found.value);
    let workers = workers::read(walk, section, entry, pairs, &parts, before.workers);
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
        device_state: device_state.is_none_or(|found| found.value),
        worker,
        workers: workers.unwrap_or(1),
        access,
        group,
        link: card::link_state(walk, section),
        origin: origin(walk, section),
        // Nobody knows its networks: it carries nothing.
        policy: Policy { blocked: waits, ..bound(parts.policy(addresses, ips, priority), function.as_ref()) },
        function,
        in_fabric,
        waits_for_group: waits,
    })
}

/// Its name, which no other port, uplink or team has.
fn name(walk: &mut Walk, section: Section<'_>, before: &mut Before<'_>) -> Option<Found<String>> {
    names::name(walk, section).filter(|found| {
        let port = earlier(&mut before.ports.names, found.value.clone(), found.line).map(|line| ("port", line));
        let taken = port.or_else(|| before.ways.whose(&found.value));
        if let Some((whose, line)) = taken {
            let what = format!("{:?} is {} already: choose another name", found.value, walk.whose(whose, line));
            walk.wrong(section, "name", found.line, what);
        }
        taken.is_none()
    })
}

/// The program that has made it.
fn origin(walk: &mut Walk, section: Section<'_>) -> Option<String> {
    let Found { value: text, line } = walk.string(section, "origin")?;
    let what = match text.chars().count() {
        0 => "it is empty: leave it out".to_owned(),
        count if count > ORIGIN_MAX => format!("it has {count} characters"),
        _ if text.chars().any(char::is_control) => format!("{text:?} has a control character"),
        _ => return Some(text.to_owned()),
    };
    walk.wrong(section, "origin", line, what);
    None
}

/// The worker to which it is pinned. `all`: the daemon's workers.
fn worker(walk: &mut Walk, section: Section<'_>, all: usize) -> Option<u16> {
    let found = walk.integer(section, "worker")?;
    if found.value as usize >= all {
        let what = format!("the daemon has {}: workers are counted from 0", count(all as u64, "worker"));
        walk.wrong(section, "worker", found.line, what);
    }
    u16::try_from(found.value).ok()
}

/// The users who may connect: as the port says, else as `[sockets]` does. Nobody if it is this side that connects.
fn accounts(walk: &mut Walk, section: Section<'_>, role: Role, before: &Before<'_>) -> AccessConfig {
    let own = access(walk, section, &access::PORTS);
    if let (Some(line), Some(name)) = (walk.place(section, "group"), &own.group)
        && before.groups.names().any(|group| group == name)
        && matches!(group_number(name), Err(AccountError::Unknown { .. }))
    {
        let what = format!(
            "there is no UNIX group {name:?}, whose members could connect; a port group is chosen by port_group = {name:?}"
        );
        walk.wrong(section, "group", line, what);
    }
    match role {
        Role::Listen => own.or(&before.access),
        Role::Connect => {
            no_access(walk, section);
            AccessConfig::default()
        }
    }
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
    let bound = walk.list::<Mac>(section, "bound_macs", policy::MACS_MAX);
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
    if let Some(found) = doorbells.filter(|found| found.value == Doorbells::Mapped && mappable(entry).is_none()) {
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
    if let Some(line) = walk.place(section, "device_state").filter(|_| !about.transports.contains(&"vhost-user")) {
        let what = format!("no VMM moves the state of {} by vfio-user: leave this out", about.name);
        walk.wrong(section, "device_state", line, what);
    }
}
