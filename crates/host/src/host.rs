//! A whole host file: its tables, and their translation into a [`Host`] (docs/host-file.md).

use std::path::{Path, PathBuf};

use nicety_socket::MAX_PATH;
use nicety_switch::Vlan;
use toml::Table;
use toml::de::DeTable;
use toml_parser::Source;

use super::access::{self, KEYS, access};
use super::around::Around;
use super::card::{CARD, CardConfig, Cards, card};
use super::daemon::{self, DAEMON, DaemonConfig};
use super::document::{Document, List};
use super::errors::{DeepControl, HostError, HostErrors, MISTAKES_MAX, ReadError};
use super::fabric::{self, FABRIC, FabricConfig};
use super::fabric_groups::FabricGroups;
use super::flow_export::{FLOW_EXPORT, FlowExportConfig, flow_exports};
use super::group::{Groups, PORT_GROUP};
use super::io_class::{IoClassConfig, rest_first};
use super::io_classes::{IO_CLASS, io_classes};
use super::minimum::{Minimum, reserve};
use super::mirror::{MIRROR, MirrorConfig, mirrors};
use super::names::Ways;
use super::paths::{Paths, trace_files};
use super::port::{Before, PORT, PortConfig, Taken, port};
use super::regular::read_most;
use super::switch::{SWITCH, SwitchConfig, switch};
use super::team::{TEAM, TeamConfig, team};
use super::tolerance::{self, FT, ToleranceConfig};
use super::uplink::{UPLINK, UplinkConfig, UplinkKind, uplink};
use super::vm::{Beside, VM, VmConfig, vms};
use super::walk::{Kind, Section, Walk};
use super::way_out::{carries, serves};

/// Every table of a host file.
pub const KINDS: [&Kind; 14] = [
    &SWITCH,
    &UPLINK,
    &TEAM,
    &CARD,
    &IO_CLASS,
    &MIRROR,
    &FLOW_EXPORT,
    &DAEMON,
    &FT,
    &FABRIC,
    &SOCKETS,
    &PORT_GROUP,
    &PORT,
    &VM,
];

/// The kind of a list's tables.
pub fn kind_of(list: List) -> &'static Kind {
    match list {
        List::Ports => &PORT,
        List::Groups => &PORT_GROUP,
        List::Uplinks => &UPLINK,
        List::Cards => &CARD,
        List::Teams => &TEAM,
        List::Mirrors => &MIRROR,
        List::FlowExports => &FLOW_EXPORT,
        List::Classes => &IO_CLASS,
    }
}

static SOCKETS: Kind = Kind { heading: "[sockets]", name: "sockets", keys: &KEYS, several: false };
/// Longest host file in bytes: far more than a thousand ports with all their keys.
pub const FILE_MAX: u64 = 4 << 20;
/// Most tokens of a host file: more than a thousand ports need with all their keys. The parser takes some 200 bytes per token.
const TOKENS_MAX: usize = 400_000;

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
    /// The exports of flows, in the file's order.
    pub flow_exports: Vec<FlowExportConfig>,
    /// The daemon.
    pub daemon: DaemonConfig,
    /// `[ft]`: the daemons that protect each other's VMs.
    pub tolerance: Option<ToleranceConfig>,
    /// `[fabric]`: the switch is one with those of other hosts.
    pub fabric: Option<FabricConfig>,
    /// The groups of the fabric, as far as they are known.
    pub fabric_groups: Option<FabricGroups>,
    /// The ports, in the file's order. There may be none: ports are added while the daemon serves.
    pub ports: Vec<PortConfig>,
    /// The VMs that are copied to a twin on another host, in the file's order.
    pub vms: Vec<VmConfig>,
    /// The file as a document: its values as written.
    pub document: Document,
    /// The use of each of its paths.
    paths: Paths,
}

impl Host {
    /// Reads a host file. Its relative paths become absolute.
    pub fn read(path: &Path) -> Result<Self, ReadError> {
        let failed = |error| ReadError::Io { path: path.to_owned(), error };
        let bytes = read_most(path, FILE_MAX + 1).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => ReadError::Missing { path: path.to_owned() },
            _ => failed(error),
        })?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(ReadError::Long { path: path.to_owned(), most: FILE_MAX });
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
        Self::parsed(text, path, false, None)
    }

    /// Parses a text that a program has made. Unlike in [`Host::parse`], its mistakes name ports and not lines.
    pub fn parse_change(text: &str, path: &Path) -> Result<Self, HostErrors> {
        Self::parsed(text, path, true, None)
    }

    /// The same for a host whose fabric has these groups. Without a `[fabric]` they are ignored.
    pub fn parse_with(text: &str, path: &Path, groups: Option<&FabricGroups>) -> Result<Self, HostErrors> {
        Self::parsed(text, path, true, groups)
    }

    /// Another host file in place of this one, with the same groups of the fabric.
    pub fn changed(&self, document: &Document) -> Result<Self, HostErrors> {
        Self::parse_with(&document.text(), &self.path, self.fabric_groups.as_ref())
    }

    /// The same host file with other groups of the fabric.
    pub fn with_fabric(&self, groups: Option<&FabricGroups>) -> Result<Self, HostErrors> {
        Self::parse_with(&self.document.text(), &self.path, groups)
    }

    fn parsed(text: &str, path: &Path, is_change: bool, groups: Option<&FabricGroups>) -> Result<Self, HostErrors> {
        if let Some(why) = too_much(text) {
            return Err(HostErrors::new(path, vec![malformed(1, &why)]));
        }
        let own = text;
        let with_classes = groups.and_then(|groups| groups.with_classes(text));
        let (text, of_fabric) = with_classes.as_ref().map_or((own, 0), |(whole, count)| (whole.as_str(), *count));
        let (root, errors) = DeTable::parse_recoverable(text);
        let mut walk = Walk::new(text);
        if !errors.is_empty() {
            return Err(no_toml(&walk, text, path, &errors));
        }
        if is_change {
            walk.name_tables(root.get_ref());
        }
        let mut host = host(&mut walk, root.get_ref(), path, (groups, of_fabric));
        host.believe();
        host.document = Document::parse(own, path.parent().unwrap_or(Path::new(""))).unwrap_or_default();
        if walk.errors.is_empty() { Ok(host) } else { Err(HostErrors::new(path, walk.into_errors())) }
    }

    /// The priority that a guest puts into its tags counts if its marks are trusted, if a class believes it, or if it is a trusted function.
    fn believe(&mut self) {
        for port in &mut self.ports {
            let believes = |class: &IoClassConfig| {
                class.pcp.is_some() && class.ports.as_ref().is_some_and(|ports| ports.contains(&port.name))
            };
            let is_trusted = port.function.as_ref().is_some_and(|function| function.trusted);
            port.policy.regenerates = !(port.policy.trust_marks || is_trusted || self.io_classes.iter().any(believes));
        }
    }

    /// A port's table, with the values of `[sockets]` and of its port group.
    pub fn port_table(&self, name: &str) -> Table {
        let own = self.document.port(name).unwrap_or_default();
        let group = self.port(name).and_then(|port| port.group.as_deref()).zip(self.fabric_groups.as_ref());
        let mut whole = group.map(|(group, all)| all.table(group)).unwrap_or_default();
        // The group's name and network are no keys of a port.
        whole.remove("vni");
        whole.extend(own);
        whole
    }

    /// The tables beside the ports, sorted by name, with those of the fabric's groups and classes: `fabric.port_group.web`.
    pub fn tables(&self) -> Vec<(String, Table)> {
        let groups = self.fabric_groups.iter().flat_map(FabricGroups::tables);
        let groups = groups.map(|(name, table)| (format!("fabric.{name}"), table));
        self.document.tables().into_iter().chain(groups).collect()
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

    /// The VM of this name.
    pub fn vm(&self, name: &str) -> Option<&VmConfig> {
        self.vms.iter().find(|vm| vm.name == name)
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

    /// The file that keeps live changes: the one that the file names, else one beside it.
    pub fn state(&self) -> PathBuf {
        self.daemon.state.clone().unwrap_or_else(|| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(".state");
            PathBuf::from(name)
        })
    }

    /// Checks that the daemon's other files overwrite nothing that the host file names. These are the default control socket, and
    /// the traces in the folder `record`. `named` is the host file's path as a person wrote it.
    pub fn leaves_room(&self, named: &Path, control: &Path, record: Option<&Path>) -> Result<(), HostErrors> {
        let mut errors = Vec::new();
        let mut make = |path: &Path, ours: &str, other: &str| errors.extend(self.paths.clash(path, ours, other));
        if self.daemon.control.is_none() {
            make(control, "the control socket", "name another with [daemon] control");
        }
        if self.daemon.state.is_none() {
            make(&self.state(), "the state file", "name another with [daemon] state");
        }
        if let Some(folder) = record.and_then(|folder| std::path::absolute(folder).ok()) {
            let other = "name another folder with --record";
            make(&folder, "the folder of --record", other);
            for port in &self.ports {
                for part in trace_files(&folder, &port.name) {
                    make(&part, &format!("port {}'s trace of --record", port.name), other);
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(HostErrors::new(named, errors)) }
    }

    /// The VLANs of the ways out: of teams, and of uplinks that are in none. A querier carries no traffic.
    pub fn ways_out(&self) -> impl Iterator<Item = &Vlan> {
        let is_way_out = |uplink: &&UplinkConfig| uplink.kind != UplinkKind::Querier && uplink.team.is_none();
        let uplinks = self.uplinks.iter().filter(is_way_out).map(|uplink| &uplink.vlan);
        uplinks.chain(self.teams.iter().map(|team| &team.vlan))
    }

    /// Whether frames of a port with these VLANs leave by an uplink. One without VLANs also carries, with their tags, those that no other
    /// uplink has.
    pub fn has_way_out(&self, vlan: &Vlan) -> bool {
        self.ways_out().any(|way| match vlan {
            Vlan::Flat => *way == Vlan::Flat,
            _ if *way == Vlan::Flat => true,
            Vlan::Access(id) => carries(way, *id),
            Vlan::Service(id) => serves(way, *id),
            Vlan::Trunk { allowed, native } => {
                allowed.iter().chain(*native).any(|id| carries(way, id) || serves(way, id))
            }
        })
    }
}

/// The host that a document describes. It is complete only if the walk noted no mistake. `known`: what is known of the fabric, and how many
/// classes in the document are the fabric's.
fn host<'a>(
    walk: &mut Walk,
    root: &'a DeTable<'a>,
    path: &Path,
    (known, of_fabric): (Option<&FabricGroups>, usize),
) -> Host {
    let dir = path.parent().unwrap_or(Path::new(""));
    walk.unknown_sections(root, &KINDS, &[]);
    let usual = walk.sections(root, &SOCKETS).pop().map(|section| access(walk, section, &access::PORTS));
    let (mut paths, mut ways) = (Paths::new(path), Ways::default());
    let section = walk.sections(root, &FABRIC).pop();
    let fabric_groups = section.and(known).cloned();
    let mut groups = section.map_or_else(Groups::default, |_| Groups::of_fabric(fabric_groups.clone()));
    for section in walk.sections(root, &PORT_GROUP) {
        groups.read(walk, section);
    }
    let switch = walk.sections(root, &SWITCH).pop().map_or_else(SwitchConfig::default, |section| switch(walk, section));
    let tunnel = section.and_then(|section| walk.peek(section, "tunnel"));
    let (mut uplinks, teams) = links(walk, root, dir, &mut ways, &mut paths, tunnel);
    let fabric = section.and_then(|section| fabric::fabric(walk, section, dir));
    if let (Some(section), Some(tunnel)) = (section, tunnel) {
        fabric::carried(walk, section, tunnel, &mut uplinks, fabric_groups.as_ref());
    }
    let cards = cards(walk, root, (&uplinks, &teams), &ways);
    let daemon = walk.sections(root, &DAEMON).pop();
    let daemon = daemon.map_or_else(DaemonConfig::default, |section| daemon::daemon(walk, section, dir, &mut paths));
    let sections = walk.sections(root, &PORT);
    within_switch(walk, &sections, &uplinks, &teams);
    let ft = walk.sections(root, &FT).pop();
    let tolerance = ft.and_then(|section| tolerance::tolerance(walk, section, dir));
    let mut before = Before {
        dir,
        paths,
        ways,
        cards,
        groups,
        access: usual.unwrap_or_default(),
        workers: daemon.workers,
        ports: Taken::default(),
    };
    let ports = sections.into_iter().filter_map(|section| Some((section, port(walk, section, &mut before)?)));
    let ports: Vec<(Section<'_>, PortConfig)> = ports.collect();
    let cards = before.cards.into_list();
    let minimums = minimums(&ports, &cards);
    let ports: Vec<PortConfig> = ports.into_iter().map(|(_, port)| port).collect();
    let sections = walk.sections(root, &IO_CLASS);
    sections.iter().take(of_fabric).for_each(|section| walk.call_fabric_s(*section));
    let has_more_groups = before.groups.is_open();
    let groups = before.groups.names().collect();
    let around = Around { uplinks: &uplinks, teams: &teams, ports: &ports, groups, has_more_groups };
    let io_classes = io_classes(walk, (sections, of_fabric), &minimums, &around);
    let sections = walk.sections(root, &MIRROR);
    let mirrors = mirrors(walk, sections, &around, &io_classes);
    let sections = walk.sections(root, &FLOW_EXPORT);
    let flow_exports = flow_exports(walk, sections, &around);
    let sections = walk.sections(root, &VM);
    let beside = Beside { ft, tolerance: tolerance.as_ref(), ports: &ports, dir };
    let vms = vms(walk, sections, &beside, &mut before.paths);
    Host {
        path: path.to_owned(),
        switch,
        uplinks,
        teams,
        cards,
        io_classes,
        mirrors,
        flow_exports,
        daemon,
        tolerance,
        fabric,
        fabric_groups,
        ports,
        vms,
        document: Document::default(),
        paths: before.paths,
    }
}

/// Reads the uplinks and the teams that take some of them.
fn links<'a>(
    walk: &mut Walk,
    root: &'a DeTable<'a>,
    dir: &Path,
    ways: &mut Ways,
    paths: &mut Paths,
    tunnel: Option<&str>,
) -> (Vec<UplinkConfig>, Vec<TeamConfig>) {
    let sections = walk.sections(root, &UPLINK);
    let uplinks =
        sections.into_iter().filter_map(|section| Some((section, uplink(walk, section, dir, ways, paths, tunnel)?)));
    let mut uplinks: Vec<_> = uplinks.collect();
    let sections = walk.sections(root, &TEAM);
    let teams = sections.into_iter().filter_map(|section| team(walk, section, ways, &mut uplinks)).collect();
    let uplinks: Vec<UplinkConfig> = uplinks.into_iter().map(|(_, uplink)| uplink).collect();
    ways.members.extend(uplinks.iter().filter(|uplink| uplink.team.is_some()).map(|uplink| uplink.name.clone()));
    (uplinks, teams)
}

fn cards<'a>(
    walk: &mut Walk,
    root: &'a DeTable<'a>,
    (uplinks, teams): (&[UplinkConfig], &[TeamConfig]),
    ways: &Ways,
) -> Cards {
    let is_way_out = |uplink: &&UplinkConfig| uplink.team.is_none() && uplink.kind != UplinkKind::Querier;
    let outs = uplinks.iter().filter(is_way_out).count() + teams.len();
    let mut cards = Cards::default();
    for section in walk.sections(root, &CARD) {
        card(walk, section, outs, ways, &mut cards);
    }
    cards
}

/// Checks that the switch has a number for each port.
fn within_switch(walk: &mut Walk, ports: &[Section<'_>], uplinks: &[UplinkConfig], teams: &[TeamConfig]) {
    // Queues have numbers of their own, and so has the team that they are.
    let numbers = |uplink: &UplinkConfig| if uplink.queues() > 1 { 1 + usize::from(uplink.queues()) } else { 1 };
    let others = uplinks.iter().map(numbers).sum::<usize>() + teams.len();
    let most = nicety_switch::PORTS.saturating_sub(others.max(1));
    if let Some(section) = ports.get(most) {
        let what =
            format!("a switch has at most {most} ports besides its uplink{}", if uplinks.len() > 1 { "s" } else { "" });
        walk.note(section.line, "port", what, String::new());
    }
}

/// The minimum rates of functions.
fn minimums<'a>(ports: &[(Section<'a>, PortConfig)], cards: &[CardConfig]) -> Vec<(Section<'a>, Minimum)> {
    let of = |(section, port): &(Section<'a>, PortConfig)| Some((*section, Minimum::of(port, cards)?));
    ports.iter().filter_map(of).collect()
}

/// An error for a text that is larger than any host file. Checked before parsing: the parser takes many times the text's length
/// of memory.
fn too_much(text: &str) -> Option<String> {
    if text.len() as u64 > FILE_MAX {
        return Some(format!("it has more than {FILE_MAX} bytes: is it another file?"));
    }
    let is_more = Source::new(text).lex().nth(TOKENS_MAX).is_some();
    is_more.then(|| format!("it has more than {TOKENS_MAX} words and signs: is it another file?"))
}

/// The mistakes of a text that is not TOML, one per line: the others in a line would follow from the first.
fn no_toml(walk: &Walk, text: &str, path: &Path, errors: &[toml::de::Error]) -> HostErrors {
    let lines = errors.iter().map(|error| (walk.line(&error.span().unwrap_or(text.len()..text.len())), error));
    let mut lines: Vec<_> = lines.collect();
    lines.sort_by_key(|(line, _)| *line);
    lines.dedup_by_key(|(line, _)| *line);
    let more = lines.len().saturating_sub(MISTAKES_MAX);
    lines.truncate(MISTAKES_MAX);
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
