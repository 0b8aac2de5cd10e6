//! The host file: the daemon's configuration, in TOML (docs/host-file.md is its reference).
//!
//! All mistakes of a file are reported at once, each with its line, its key and what is allowed there.

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
mod document;
mod eavesdrop;
mod errors;
mod paths;
mod policy;
mod quantity;
mod sections;
mod walk;

pub use access::{AccessConfig, AccountError, group_number};
pub use document::{Document, List};
pub use eavesdrop::Eavesdropping;
use errors::MISTAKES_MOST;
pub use errors::{DeepControl, HostError, HostErrors, ReadError, did_you_mean, meant};
pub use policy::policy_words;
pub use quantity::{Bytes, QuantityError, Seconds};
pub use sections::KINDS;
pub use walk::{Key, Kind};

/// Longest host file in bytes: far more than a thousand ports with all their keys.
pub const FILE_MOST: u64 = 4 << 20;
/// Most tokens of a host file: more than a thousand ports need with all their keys. The parser takes some 200 bytes for each.
const TOKENS_MOST: usize = 400_000;

/// What a line may be.
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
    /// The daemon.
    pub daemon: DaemonConfig,
    /// The ports, in the file's order; at least one.
    pub ports: Vec<PortConfig>,
    /// The file as a document: what it says, as written.
    pub document: Document,
    /// What each of its paths is used for.
    paths: paths::Paths,
}

/// `[switch]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its name.
    pub name: String,
    /// The size of its address table.
    pub addresses: usize,
    /// How long it keeps an address that sends nothing.
    pub ageing: Seconds,
    /// Most addresses of one port that is no uplink.
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
    /// What it is.
    pub kind: UplinkKind,
    /// Its highest rate, both ways.
    pub rate: Option<Rate>,
    /// The VLANs behind it.
    pub vlan: Vlan,
    /// Its part of a private VLAN.
    pub private: Private,
    /// Whether it gets, of multicasts, only what was joined beyond it, and what nobody has.
    pub snooping: bool,
    /// Whether it tells its neighbour who it is, and listens to who that is.
    pub lldp: Lldp,
}

/// Which way LLDP goes (IEEE 802.1AB).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lldp {
    /// It is sent.
    pub sends: bool,
    /// What comes is kept and shown.
    pub receives: bool,
}

/// What an uplink is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkKind {
    /// A tap interface of the host.
    Tap {
        /// Its name.
        name: String,
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
    /// Asks hosts for their groups, and leads nowhere.
    Querier,
}

impl UplinkKind {
    /// The interface's name, or the kind.
    pub fn name(&self) -> &str {
        match self {
            Self::Tap { name } => name,
            Self::Pair { .. } => "pair",
            Self::Stream { .. } => "stream",
            Self::Capture { .. } => "capture",
            Self::Null => "null",
            Self::Querier => "querier",
        }
    }
}

/// Which end of its socket this side is.
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
    /// The control socket, if the file names one: [`Host::control`] knows the default.
    pub control: Option<PathBuf>,
    /// Who may connect to it.
    pub access: AccessConfig,
    /// The group whose members may also change, by name or number.
    pub change_group: Option<String>,
    /// Where live changes are kept, if the file says: [`Host::state`] knows the default.
    pub state: Option<PathBuf>,
    /// Whether `nicety ports` and `attach` find the daemon without its host file.
    pub listed: bool,
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
        }
    }
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
    /// Where a VMM connects, or listens.
    pub socket: PathBuf,
    /// Whether this side listens there.
    pub role: Role,
    /// How its doorbells reach the daemon, if the file says: see [`PortConfig::is_mapped`].
    pub doorbells: Option<Doorbells>,
    /// Its receive buffer.
    pub buffer: Bytes,
    /// The maximum of queue pairs, if the file says.
    pub queues: Option<u16>,
    /// The largest MTU, if the file says.
    pub mtu: Option<u16>,
    /// An option ROM's file.
    pub rom: Option<PathBuf>,
    /// Whether its PCI subsystem is VMware's, and not its chip's.
    pub is_vmwares: bool,
    /// It stands by for another port of the same VM.
    pub standby: bool,
    /// Who may connect; the default if it is this side that connects.
    pub access: AccessConfig,
    /// Its port group, if it is in one.
    pub group: Option<String>,
    /// What it may do on the switch, its group's values included.
    pub policy: Policy,
}

/// How a guest's doorbells reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doorbells {
    /// As messages: an idle port costs nothing.
    Trapped,
    /// As words of a polled page: no messages, but some idle cost.
    Mapped,
}

/// The protocol by which a VMM reaches a port.
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

    /// The protocol by which a VMM reaches it.
    pub fn transport(&self) -> Transport {
        if self.entry.about.transports.contains(&"vfio-user") { Transport::VfioUser } else { Transport::VhostUser }
    }

    /// Whether its doorbells are mapped by a daemon with this many processors. Those that
    /// [usually](nicety_adapter::Mappable::usual) are, unless the file says otherwise or there is one processor: polling would take
    /// its time from the guest.
    pub fn is_mapped(&self, processors: usize) -> bool {
        match self.doorbells {
            Some(doorbells) => doorbells == Doorbells::Mapped,
            None => processors > 1 && sections::mappable(self.entry).is_some_and(|part| part.usual),
        }
    }

    /// Whether another configuration of this port has the same adapter at the same socket: the differences can then be changed
    /// while a VM is attached.
    pub fn is_same_adapter(&self, other: &Self) -> bool {
        let mapped = |port: &Self| [1, 2].map(|processors| port.is_mapped(processors));
        let made = |port: &Self| {
            let PortConfig { role, mac, queues, mtu, is_vmwares, standby, .. } = port;
            (port.entry.about.name, *role, *mac, mapped(port), *queues, *mtu, *is_vmwares, *standby)
        };
        made(self) == made(other) && self.socket == other.socket && self.rom == other.rom
    }

    /// The settings that create its adapter; reads the option ROM.
    pub fn settings(&self) -> Result<Settings, RomFileError> {
        let rom = self.rom.as_deref().map(|path| read_rom(path, self.entry.about)).transpose()?;
        let subsystem = self.entry.about.vmware_subsystem.filter(|_| self.is_vmwares);
        Ok(Settings { mac: self.mac, mtu: self.mtu, queues: self.queues, rom, subsystem, standby: self.standby })
    }
}

/// Why an option ROM's file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the option ROM {path} cannot be used: {why}; name another with rom = \"FILE\", or leave rom out")]
pub struct RomFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub why: String,
}

fn read_rom(path: &Path, about: &About) -> Result<Rom, RomFileError> {
    let wrong = |why: String| RomFileError { path: path.to_owned(), why };
    // Read one byte more than a ROM may have, so that a longer file is refused and not truncated.
    let bytes = read_most(path, (16 << 20) + 1).map_err(|error| wrong(error.to_string()))?;
    let mut rom = Rom::new(bytes).map_err(|error| wrong(error.to_string()))?;
    let (vendor, device) = about.pci;
    if let Err(error) = rom.expect(vendor, device) {
        // iPXE's driver serves several chips, and its ROM's header names one of them; or none, as in Debian's pxe-ne2k_pci.rom.
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
    let file = crate::regular::open(path, OpenOptions::new().read(true))?;
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
            // The path as the person named it.
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

    /// Parses a host file's text. Relative paths start at `path`'s folder; links in them are resolved.
    pub fn parse(text: &str, path: &Path) -> Result<Self, HostErrors> {
        Self::parsed(text, path, false)
    }

    /// Parses a text that a program has made: unlike [`Host::parse`]'s, its mistakes name ports and not lines.
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
        host.document = Document::parse(text, path.parent().unwrap_or(Path::new(""))).unwrap_or_default();
        if walk.errors.is_empty() { Ok(host) } else { Err(HostErrors::new(path, walk.into_errors())) }
    }

    /// The uplink of this name.
    pub fn uplink(&self, name: &str) -> Option<&UplinkConfig> {
        self.uplinks.iter().find(|uplink| uplink.name == name)
    }

    /// The port of this name.
    pub fn port(&self, name: &str) -> Option<&PortConfig> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// The control socket: where the file says; else in `runtime`, the user's runtime folder (`XDG_RUNTIME_DIR`); else beside the
    /// host file. Either path may be too long for a socket.
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
    /// Where live changes are kept: where the file says, else beside it.
    pub fn state(&self) -> PathBuf {
        self.daemon.state.clone().unwrap_or_else(|| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(".state");
            PathBuf::from(name)
        })
    }
}

/// Why a text is larger than any host file, before it is parsed: the parser takes many times its length of memory.
fn too_much(text: &str) -> Option<String> {
    if text.len() as u64 > FILE_MOST {
        return Some(format!("it has more than {FILE_MOST} bytes: is it another file?"));
    }
    let is_more = Source::new(text).lex().nth(TOKENS_MOST).is_some();
    is_more.then(|| format!("it has more than {TOKENS_MOST} words and signs: is it another file?"))
}

/// The mistakes of a text that is not TOML, one for each line: the rest would follow from the first one there.
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

/// The error for a line that is not TOML; quotes enough of the line to recognise it.
fn unreadable(line: usize, text: &str, why: &str) -> HostError {
    let found: String = text.trim().chars().take(60).collect();
    let found = if found.is_empty() { found } else { format!(", in `{found}`") };
    malformed(line, &format!("{why}{found}"))
}

#[cfg(test)]
#[path = "host_test.rs"]
mod tests;
