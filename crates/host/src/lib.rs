//! The host file: the daemon's configuration, in TOML (docs/host-file.md is its reference).
//!
//! All mistakes of a file are reported at once, each with its line, its key and what is allowed there.

#![forbid(unsafe_code)]

use std::fs::OpenOptions;
use std::io::Read;
use std::path::{Path, PathBuf};

use nicety_adapters::{About, Entry, REGISTRY, Settings};
use nicety_frame::Mac;
use nicety_pci::Rom;
use nicety_socket::MAX_PATH;
use nicety_switch::{Policy, Private, Vlan};
use nicety_uplink::Rate;
use serde::{Deserialize, Serialize};
use toml::de::DeTable;
use toml_parser::Source;
use utoipa::ToSchema;

mod access;
mod card;
mod document;
mod eavesdrop;
mod errors;
mod form;
mod io_class;
mod minimum;
mod mirror;
mod page;
mod paths;
mod peer;
mod policy;
mod port_terms;
mod quantity;
pub mod regular;
mod sections;
mod team;
mod tolerance;
mod walk;
mod way_out;
mod workers;

pub use access::{AccessConfig, AccountError, group_number};
pub use card::{CardConfig, FUNCTIONS_MOST, FunctionConfig, LinkState, with_usual_priority};
pub use document::{Document, List};
pub use eavesdrop::Eavesdropping;
use errors::MISTAKES_MOST;
pub use errors::{DeepControl, HostError, HostErrors, ReadError, did_you_mean, meant};
pub use form::Form;
use io_class::rest_first;
pub use io_class::{IoClassConfig, TransportPorts};
use minimum::{Minimum, reserve};
pub use mirror::{MIRRORS_MOST, MirrorConfig, MirrorDirection};
pub use page::PageAddress;
pub use paths::trace_files;
pub use peer::{ListenAddress, NoListen, NoPeer, PeerAddress};
pub use policy::{link_words, policy_words};
pub use port_terms::with_port_terms;
pub use quantity::{Bytes, QuantityError, Seconds};
pub use sections::KINDS;
pub use team::{LacpConfig, TeamConfig, TeamMode, TransmitHash};
pub use tolerance::open_key;
pub use walk::{Key, Kind};
pub use way_out::{carries, serves};

/// Longest host file in bytes: far more than a thousand ports with all their keys.
pub const FILE_MOST: u64 = 4 << 20;
/// Most tokens of a host file: more than a thousand ports need with all their keys. The parser takes some 200 bytes per token.
const TOKENS_MOST: usize = 400_000;

/// The allowed forms of a line.
const TOML: &str = "TOML: [switch] or [[port]] begins a table, and name = \"vm1\" is a key in it, once";

/// A whole host file.
#[derive(Clone, Debug)]
pub struct Host {
    /// The file.
    pub path: PathBuf,
    /// The switch.
    pub switch: SwitchConfig,
    /// The switch's uplinks, in the file's order.
    pub uplinks: Vec<UplinkConfig>,
    /// The teams of uplinks.
    pub teams: Vec<TeamConfig>,
    /// The cards whose functions are ports.
    pub cards: Vec<CardConfig>,
    /// The classes of frames on uplinks and teams, in the file's order.
    pub io_classes: Vec<IoClassConfig>,
    /// The mirrors, in the file's order.
    pub mirrors: Vec<MirrorConfig>,
    /// The daemon.
    pub daemon: DaemonConfig,
    /// Fault tolerance of ports, if there is any.
    pub tolerance: Option<ToleranceConfig>,
    /// The ports, in the file's order. There may be none: ports are added while the daemon serves.
    pub ports: Vec<PortConfig>,
    /// The file as a document: its values as written.
    pub document: Document,
    /// The use of each of its paths.
    paths: paths::Paths,
}

/// `[switch]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name.
    pub name: String,
    /// The size of its address table.
    pub addresses: usize,
    /// The time after which it forgets an address that sends nothing.
    pub ageing: Seconds,
    /// Most addresses of one port that is not an uplink.
    pub port_addresses: u32,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self { name: "switch0".to_owned(), addresses: 32_768, ageing: Seconds(300), port_addresses: 1024 }
    }
}

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
        let is_same = self.name == other.name && self.kind == other.kind;
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
    /// A tap's name, or the kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Tap { name, .. } => name,
            Self::Xdp { .. } => "xdp",
            Self::Pair { .. } => "pair",
            Self::Stream { .. } => "stream",
            Self::Capture { .. } => "capture",
            Self::Null => "null",
            Self::Querier => "querier",
        }
    }
}

/// The end of a socket that this side is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Waits for the peer to connect.
    #[default]
    Listen,
    /// Connects to the peer, and tries again until it listens.
    Connect,
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
        })
    }
}

/// `[daemon]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonConfig {
    /// Threads that serve ports.
    pub workers: usize,
    /// The control socket, if the file names one. [`Host::control`] knows the default.
    pub control: Option<PathBuf>,
    /// The accounts that may connect to it.
    pub access: AccessConfig,
    /// The group whose members may also make changes, by name or number.
    pub change_group: Option<String>,
    /// The file that keeps live changes, if the file names one. [`Host::state`] knows the default.
    pub state: Option<PathBuf>,
    /// Whether `nicety ports` and `attach` find the daemon without its host file.
    pub listed: bool,
    /// Whether the daemon's threads are confined.
    pub sandbox: bool,
    /// Folders that live changes may use, besides those that the file names elsewhere.
    pub folders: Vec<PathBuf>,
    /// Where the page about the daemon is served, if anywhere.
    pub page: Option<PageAddress>,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            workers: 1,
            control: None,
            access: AccessConfig::default(),
            change_group: None,
            state: None,
            listed: true,
            sandbox: true,
            folders: Vec::new(),
            page: None,
        }
    }
}

/// `[ft]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToleranceConfig {
    /// The place at which other daemons connect.
    pub listen: Option<ListenAddress>,
    /// The file with the key that all of them share.
    pub key: PathBuf,
}

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
    /// The worker that serves it, or its first queue pair, from 0, if the file says.
    pub worker: Option<u16>,
    /// The number of workers that serve its queue pairs.
    pub workers: u16,
    /// The daemon that has its log: what its guest sends waits until that has what precedes it.
    pub ft_peer: Option<PeerAddress>,
    /// The accounts that may connect. The default if this side connects.
    pub access: AccessConfig,
    /// Its port group, if it is in one.
    pub group: Option<String>,
    /// Its link.
    pub link: LinkState,
    /// Its place on a card, if it is a function of one.
    pub function: Option<FunctionConfig>,
    /// Its policy on the switch, with its group's values.
    pub policy: Policy,
}

/// The path of a guest's doorbells to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// Messages: an idle port costs nothing.
    Trapped,
    /// Words of a polled page: no messages, but some cost while idle.
    Mapped,
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
            worker: None,
            workers: 1,
            ft_peer: None,
            access: AccessConfig::default(),
            group: None,
            link: LinkState::default(),
            function: None,
            policy: Policy::default(),
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
            // A log has writes, and a page has none.
            _ if self.ft_peer.is_some() => false,
            Some(doorbells) => doorbells == Doorbells::Mapped,
            None => processors > 1 && sections::mappable(self.entry).is_some_and(|part| part.usual),
        }
    }

    /// Whether another configuration of this port has the same adapter at the same socket. Then the differences can be changed
    /// while a VM is attached. A function's address is its card's to change.
    pub fn is_same_adapter(&self, other: &Self) -> bool {
        let mapped = |port: &Self| [1, 2].map(|processors| port.is_mapped(processors));
        let made = |port: &Self| {
            let PortConfig { role, queues, mtu, is_vmwares, standby, worker, workers, ft_peer, .. } = port;
            (
                port.entry.about.name,
                *role,
                mapped(port),
                *queues,
                *mtu,
                *is_vmwares,
                *standby,
                *worker,
                *workers,
                ft_peer.clone(),
            )
        };
        let is_same_address = self.mac == other.mac || (self.function.is_some() && other.function.is_some());
        made(self) == made(other) && is_same_address && self.socket == other.socket && self.rom == other.rom
    }

    /// Reads its option ROM.
    pub fn read_rom(&self) -> Result<Option<Rom>, RomFileError> {
        self.rom.as_deref().map(|path| read_rom(path, self.entry.about)).transpose()
    }

    /// The settings that create its adapter, with this option ROM.
    pub fn settings(&self, rom: Option<Rom>) -> Settings {
        let subsystem = self.entry.about.vmware_subsystem.filter(|_| self.is_vmwares);
        Settings { mac: self.mac, mtu: self.mtu, queues: self.queues, rom, subsystem, standby: self.standby }
    }
}

/// The reason why an option ROM's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the option ROM {path} cannot be used: {why}; name another with rom = \"FILE\", or leave rom out")]
pub struct RomFileError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub why: String,
}

fn read_rom(path: &Path, about: &About) -> Result<Rom, RomFileError> {
    let wrong = |why: String| RomFileError { path: path.to_owned(), why };
    // Read one byte more than a ROM may have, so that a longer file is refused and not truncated.
    let bytes = read_most(path, (16 << 20) + 1).map_err(|error| wrong(error.to_string()))?;
    let mut rom = Rom::new(bytes).map_err(|error| wrong(error.to_string()))?;
    let (vendor, device) = about.pci;
    if let Err(error) = rom.expect(vendor, device) {
        // iPXE's driver serves several chips. Its ROM's header names one of them, or none, as in Debian's pxe-ne2k_pci.rom.
        let kin =
            |other: &About| about.boot.rom.is_some() && other.boot.rom == about.boot.rom && other.pci == rom.ids();
        if rom.ids() != (0, 0) && !REGISTRY.iter().any(|entry| kin(entry.about)) {
            return Err(wrong(format!("{error}, and {} is {vendor:04x}:{device:04x}", about.name)));
        }
        rom.patch_ids(vendor, device);
    }
    Ok(rom)
}

fn read_most(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = regular::open(path, OpenOptions::new().read(true))?;
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Host {
    /// Reads a host file. Its relative paths become absolute.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let failed = |error| ReadError::Io { path: path.to_owned(), error };
        let bytes = read_most(path, FILE_MOST + 1).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ReadError::Missing { path: path.to_owned() },
            _ => failed(error),
        })?;
        if bytes.len() as u64 > FILE_MOST {
            return Err(ReadError::Long { path: path.to_owned(), most: FILE_MOST });
        }
        let absolute = std::path::absolute(path).map_err(failed)?;
        let shown = |mut errors: HostErrors| {
            // Report the path as the person named it.
            errors.path = path.to_owned();
            ReadError::Wrong(errors)
        };
        let no_text = |at: usize, what: &str| {
            let before = bytes.get(..at).unwrap_or(&[]);
            let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
            shown(HostErrors::new(path, vec![malformed(line, what)]))
        };
        if let Some(at) = bytes.iter().position(|&byte| byte == 0) {
            return Err(no_text(at, "it is no text, it has a zero byte: is it another file?"));
        }
        let text = std::str::from_utf8(&bytes).map_err(|error| no_text(error.valid_up_to(), "it is not UTF-8 text"))?;
        Self::parse(text, &absolute).map_err(shown)
    }

    /// Parses a host file's text. Relative paths start at `path`'s folder. Links in them are resolved.
    pub fn parse(text: &str, path: &Path) -> Result<Self, HostErrors> {
        Self::parsed(text, path, false)
    }

    /// Parses a text that a program has made. Unlike in [`Host::parse`], its mistakes name ports and not lines.
    pub fn parse_change(text: &str, path: &Path) -> Result<Self, HostErrors> {
        Self::parsed(text, path, true)
    }

    fn parsed(text: &str, path: &Path, is_change: bool) -> Result<Self, HostErrors> {
        if let Some(why) = too_much(text) {
            return Err(HostErrors::new(path, vec![malformed(1, &why)]));
        }
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut walk = walk::Walk::new(text);
        if !errors.is_empty() {
            return Err(no_toml(&walk, text, path, &errors));
        }
        if is_change {
            walk.name_tables(root.get_ref());
        }
        let mut host = sections::host(&mut walk, root.get_ref(), path);
        policy::believe(&mut host);
        host.document = Document::parse(text, path.parent().unwrap_or(Path::new(""))).unwrap_or_default();
        if walk.errors.is_empty() { Ok(host) } else { Err(HostErrors::new(path, walk.into_errors())) }
    }

    /// The uplink of this name.
    pub fn uplink(&self, name: &str) -> Option<&UplinkConfig> {
        self.uplinks.iter().find(|uplink| uplink.name == name)
    }

    /// The team of this name.
    pub fn team(&self, name: &str) -> Option<&TeamConfig> {
        self.teams.iter().find(|team| team.name == name)
    }

    /// The card of this name.
    pub fn card(&self, name: &str) -> Option<&CardConfig> {
        self.cards.iter().find(|card| card.name == name)
    }

    /// The classes of what comes in by an uplink, or by its team if it is in one: the one of all frames that fit no other first. None without I/O control of
    /// either direction.
    pub fn classes_of(&self, uplink: &UplinkConfig) -> Vec<IoClassConfig> {
        let place = uplink.team.as_ref().unwrap_or(&uplink.name);
        let named = self.classes_at(place);
        if named.is_empty() && uplink.inward.is_none() {
            return Vec::new();
        }
        let mut classes = rest_first(place, &named);
        // Nobody's, or everybody's: the link itself is trusted or not.
        let believed = (!uplink.trust_marks).then(Vec::new);
        classes
            .iter_mut()
            .filter(|class| class.has_trusted_ports())
            .for_each(|class| class.ports.clone_from(&believed));
        let rest = classes.first().cloned().unwrap_or_else(|| IoClassConfig::rest(place));
        let open = classes.iter_mut().filter(|class| !uplink.trust_marks && class.is_open_to_guests(&rest));
        open.for_each(|class| class.ports = Some(class.believed(&self.ports).map(str::to_owned).collect()));
        classes
    }

    /// The classes of what leaves by an uplink, like [`Host::classes_of`], with the minimum rates of functions whose card has this uplink.
    /// None without I/O control of this direction.
    pub fn outward_classes_of(&self, uplink: &UplinkConfig) -> Vec<IoClassConfig> {
        let place = uplink.team.as_ref().unwrap_or(&uplink.name);
        let named = self.classes_at(place);
        let minimums = self.ports.iter().filter_map(|port| Minimum::of(port, &self.cards));
        let minimums: Vec<Minimum> = minimums.filter(|minimum| minimum.uplink == *place).collect();
        if named.is_empty() && minimums.is_empty() {
            return Vec::new();
        }
        let mut classes = rest_first(place, &named);
        for class in classes.iter_mut().filter(|class| class.has_trusted_ports()) {
            let trusted = self.ports.iter().filter(|port| class.trusts(port));
            class.ports = Some(trusted.map(|port| port.name.clone()).collect());
        }
        // What comes in by another uplink is no guest's.
        let others = self.uplinks.iter().map(|uplink| &uplink.name).chain(self.teams.iter().map(|team| &team.name));
        let rest = classes.first().cloned().unwrap_or_else(|| IoClassConfig::rest(place));
        for class in classes.iter_mut().filter(|class| class.is_open_to_guests(&rest)) {
            let guests = class.believed(&self.ports).map(str::to_owned);
            class.ports = Some(guests.chain(others.clone().cloned()).collect());
        }
        reserve(&mut classes, &minimums, self.ports.len());
        classes
    }

    /// Whether all frames leave by one queue of an uplink with several: what limits and divides them is in one place.
    pub fn sends_by_one_queue(&self, uplink: &UplinkConfig) -> bool {
        uplink.rate.is_some() || !self.outward_classes_of(uplink).is_empty()
    }

    /// The classes that the file names for an uplink or a team.
    fn classes_at(&self, place: &str) -> Vec<&IoClassConfig> {
        self.io_classes.iter().filter(|class| class.uplink == place).collect()
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The path of the control socket: the one in the file; else in `runtime`, the user's runtime folder (`XDG_RUNTIME_DIR`);
    /// else beside the host file. Each path may be too long for a socket.
    pub fn control(&self, runtime: Option<&Path>) -> Result<PathBuf, DeepControl> {
        let name = &self.switch.name;
        let path = match (&self.daemon.control, runtime) {
            (Some(path), _) => path.clone(),
            (None, Some(runtime)) => runtime.join("nicety").join(format!("{name}.sock")),
            (None, None) => self.path.with_file_name(format!("nicety-{name}.sock")),
        };
        let length = path.as_os_str().len();
        if length > MAX_PATH { Err(DeepControl { path, length }) } else { Ok(path) }
    }
}

impl Host {
    /// The file that keeps live changes: the one that the file names, else one beside it.
    pub fn state(&self) -> PathBuf {
        self.daemon.state.clone().unwrap_or_else(|| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(".state");
            PathBuf::from(name)
        })
    }
}

/// An error for a text that is larger than any host file. Checked before parsing: the parser takes many times the text's length
/// of memory.
fn too_much(text: &str) -> Option<String> {
    if text.len() as u64 > FILE_MOST {
        return Some(format!("it has more than {FILE_MOST} bytes: is it another file?"));
    }
    let is_more = Source::new(text).lex().nth(TOKENS_MOST).is_some();
    is_more.then(|| format!("it has more than {TOKENS_MOST} words and signs: is it another file?"))
}

/// The mistakes of a text that is not TOML, one per line: the others in a line would follow from the first.
fn no_toml(walk: &walk::Walk, text: &str, path: &Path, errors: &[toml::de::Error]) -> HostErrors {
    let lines = errors.iter().map(|error| (walk.line(&error.span().unwrap_or(text.len()..text.len())), error));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by_key(|(line, _)| *line);
    lines.dedup_by_key(|(line, _)| *line);
    let more = lines.len().saturating_sub(MISTAKES_MOST);
    lines.truncate(MISTAKES_MOST);
    let mut list: Vec<_> =
        lines.iter().map(|(line, error)| unreadable(*line, walk.text_of(*line, text), error.message())).collect();
    if let (Some(last), 1..) = (list.last_mut(), more) {
        last.what.push_str(&format!("; and {more} more lines with mistakes"));
    }
    if let Some(first) = list.first_mut() {
        first.allowed = TOML.to_owned();
    }
    HostErrors::new(path, list)
}

fn malformed(line: usize, why: &str) -> HostError {
    let of = String::new();
    HostError { line, of, key: String::new(), what: why.lines().collect::<Vec<_>>().join("; "), allowed: String::new() }
}

/// The error for a line that is not TOML. It quotes enough of the line to recognise it.
fn unreadable(line: usize, text: &str, why: &str) -> HostError {
    let found: String = text.trim().chars().take(60).collect();
    let found = if found.is_empty() { found } else { format!(", in `{found}`") };
    malformed(line, &format!("{why}{found}"))
}

#[cfg(test)]
#[path = "host_test.rs"]
mod tests;
