//! Serves a host file: checks what it names, opens it, and changes it while it is open.

mod ahead;
mod check;
pub mod handover;
mod kept;
pub mod live;
mod open;
mod reconcile;
pub mod sandbox;
pub mod signals;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nicety_adapter::UplinkSettings;
use nicety_frame::Mac;
use nicety_host::{AccountError, Host, PortConfig, RomFileError, TeamConfig, TeamMode, UplinkConfig, UplinkKind};
use nicety_keeper::{Group, Holder, Opener};
use nicety_switch::{Limits, Policy};
use nicety_uplink::{CaptureError, SocketError, TapError, VxlanError, XdpError};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::daemon::{Daemon, PortSpec, RestartError, StartError, TeamSpec, UplinkAgents};
use crate::fabric::FabricError;
use crate::protection::ProtectionError;
use crate::random::random;
use crate::run::kept_uplinks::HeldUplinks;
use crate::run::recorder::Target;
pub use ahead::{OpenedAhead, open_ahead};
pub use check::{Before, check, prepare, prepare_from};
pub(crate) use check::{check_team, check_uplink_again, checked_spec};
use open::maker;
pub(crate) use open::{keep_uplinks, uplink_again};
pub(crate) use reconcile::{HandedOver, OpenedLink, PortArrival, Reconciled, Steps, UplinkArrival, reconcile};

/// Reasons why the daemon could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A port or a worker failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A port could not be opened.
    #[error(transparent)]
    Port(#[from] RestartError),
    /// Something that is open could not be changed. A sentence.
    #[error("{0}")]
    Change(String),
    /// An option ROM cannot be used.
    #[error("port {port}: {source}")]
    Rom {
        /// The port.
        port: String,
        /// The cause.
        source: RomFileError,
    },
    /// A user or group that may connect is unknown.
    #[error("port {port}: {source}")]
    Account {
        /// The port.
        port: String,
        /// The cause.
        source: AccountError,
    },
    /// A tap cannot be opened.
    #[error("the uplink: {0}")]
    Tap(#[from] TapError),
    /// An interface's queues cannot be opened.
    #[error("the uplink: {0}")]
    Xdp(#[from] XdpError),
    /// A pair or a stream cannot be opened.
    #[error("the uplink: {0}")]
    Socket(#[from] SocketError),
    /// A tunnel cannot be opened.
    #[error("the uplink: {0}")]
    Vxlan(#[from] VxlanError),
    /// A capture file cannot be opened.
    #[error("the uplink: {0}")]
    Capture(#[from] CaptureError),
    /// The uplink's rate cannot be limited, or it cannot announce itself.
    #[error("the uplink cannot be paced or announced: {0}")]
    Settings(std::io::Error),
    /// The members of a team carry frames of different lengths.
    #[error("team {team}: {0} has an MTU of {1}, and {2} one of {3}: a flow may take any of them; make them equal (ip link set {2} mtu {1})", .one.0, .one.1, .other.0, .other.1)]
    Mtu {
        /// The team.
        team: String,
        /// The first member, and its MTU in bytes.
        one: (String, u32),
        /// One that differs.
        other: (String, u32),
    },
    /// The ports of the old daemon cannot go on here.
    #[error("taking over: {0}")]
    HandOver(String),
    /// VMs cannot be protected.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// The fabric cannot be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Signals cannot be caught.
    #[error("catching signals: {0}")]
    Signals(std::io::Error),
    /// The thread that reports to the service manager cannot be started.
    #[error("reporting to the service manager: {0}")]
    Supervision(std::io::Error),
    /// The kernel does not confine the daemon although the host file asks for it.
    #[error(transparent)]
    Sandbox(std::io::Error),
}

/// A checked host file. The checks make and change nothing, and keep nothing open.
#[derive(Debug)]
pub struct Prepared<'a> {
    host: &'a Host,
    record: Option<Target>,
    ports: Vec<PortSpec>,
    /// The keeper.
    holder: Option<Arc<Holder>>,
    /// The ports that the keeper has held for a daemon that was killed, by name.
    held: Held,
    /// A daemon of this keeper served these ports before, and was killed.
    follows: bool,
    /// Descriptors of uplinks that the keeper has held.
    uplinks: HeldUplinks,
    /// Opens what this process may not.
    opener: Option<Arc<Opener>>,
    /// Links that are open already, by uplink.
    opened: BTreeMap<String, OpenedLink>,
    /// Sockets that another process serves, and where peers connect to it. Serving can begin when they are free.
    pub served: Vec<PathBuf>,
}

/// Groups of descriptors by the names of their ports.
type Held = BTreeMap<String, Vec<Group>>;

/// All problems, one per line.
#[derive(Debug)]
pub struct Refused(Vec<ServeError>);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Refused {}

/// The specification of a port.
pub(crate) fn spec(config: &PortConfig) -> Result<PortSpec, ServeError> {
    let port = || config.name.clone();
    let rom = config.read_rom().map_err(|source| ServeError::Rom { port: port(), source })?;
    let access = config.access.resolve().map_err(|source| ServeError::Account { port: port(), source })?;
    Ok(PortSpec { config: config.clone(), rom, access })
}

fn settings(config: &UplinkConfig) -> UplinkSettings {
    UplinkSettings { rate: config.rate }
}

/// The settings of an uplink's agents. Its LLDP frames have this address, or a new one.
fn agents(config: &UplinkConfig, address: Option<Mac>) -> UplinkAgents {
    let querier = (config.kind == UplinkKind::Querier).then(|| (own_address(), config.vlan.clone()));
    UplinkAgents { announcement: announcement(config, address), querier }
}

/// An uplink's LLDP frame to its neighbour, if it sends any. It has this address, or a new one.
fn announcement(config: &UplinkConfig, address: Option<Mac>) -> Option<Vec<u8>> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let what = format!("Nicety {}", nicety_version::BUILD);
    config
        .lldp
        .sends
        .then(|| nicety_plane::announcement(address.unwrap_or_else(own_address), host.trim(), &config.name, &what))
}

/// A locally administered address for our own frames, a new one each time.
fn own_address() -> Mac {
    let [a, b, c, d, ..] = random().to_ne_bytes();
    own(a, b, c, d)
}

fn own(a: u8, b: u8, c: u8, d: u8) -> Mac {
    Mac([2, 0x4e, a, b, c, d])
}

/// An uplink's policy: its VLANs.
pub fn policy(config: &UplinkConfig) -> Policy {
    let UplinkConfig { vlan, private, snooping, lldp, trust_marks, blocked, .. } = config;
    let (private, snooping, trust_marks, blocked) = (*private, *snooping, *trust_marks, *blocked);
    let (vlan, is_service) = (vlan.clone(), config.kind == UplinkKind::Querier);
    Policy { vlan, private, snooping, lldp: lldp.receives, trust_marks, blocked, is_service, ..Policy::default() }
}

/// The specification of a team of a host file at this path.
pub(crate) fn team_spec(config: &TeamConfig, path: &Path) -> TeamSpec {
    let TeamConfig { name, members, mode, vlan, private, snooping, blocked, in_loop: _ } = config;
    let (private, snooping, blocked) = (*private, *snooping, *blocked);
    let policy = Policy { vlan: vlan.clone(), private, snooping, blocked, ..Policy::default() };
    let set = match mode {
        TeamMode::Lacp(config) => config.system,
        _ => None,
    };
    let system = set.unwrap_or_else(|| system(path, name));
    TeamSpec { name: name.clone(), members: members.clone(), mode: mode.clone(), system, policy }
}

/// The address of a team as an LACP system. It is the same after a restart: partners would take another one for another machine. It is made
/// of the machine's identity, which must not be told as it is (machine-id(5)), and of the team's.
fn system(path: &Path, team: &str) -> Mac {
    let Ok(machine) = std::fs::read("/etc/machine-id") else { return own_address() };
    let digest = Sha256::new().chain_update("nicety lacp system").chain_update(machine);
    let digest =
        digest.chain_update(path.as_os_str().as_encoded_bytes()).chain_update([0]).chain_update(team).finalize();
    let [a, b, c, d, ..] = <[u8; 32]>::from(digest);
    own(a, b, c, d)
}

/// The specification of the team of an interface's queues, of which one sends for all, or each.
fn queues_spec(config: &UplinkConfig, one_sends: bool) -> TeamSpec {
    TeamSpec {
        name: config.name.clone(),
        members: (0..usize::from(config.queues())).map(|place| queue_name(&config.name, place)).collect(),
        mode: TeamMode::Queues { one_sends },
        system: own_address(),
        policy: policy(config),
    }
}

/// The name of a queue of an uplink. No uplink of a host file has a slash in its name.
fn queue_name(uplink: &str, place: usize) -> String {
    format!("{uplink}/{place}")
}

/// Closes an uplink, with its queues if it has several.
fn close_uplink(daemon: &Daemon, config: &UplinkConfig) {
    match config.queues() {
        1 => daemon.close_uplink(&config.name),
        queues => {
            (0..usize::from(queues)).for_each(|place| daemon.close_uplink(&queue_name(&config.name, place)));
            daemon.close_team(&config.name);
        }
    }
}

/// Changes an open uplink, whose link stays the same. The error is a sentence for a person.
fn set_uplink(daemon: &Daemon, config: &UplinkConfig) -> Result<(), String> {
    if config.queues() > 1 {
        daemon.block_team(&config.name, config.blocked);
        return (0..usize::from(config.queues())).try_for_each(|place| {
            let name = queue_name(&config.name, place);
            daemon.set_uplink(&name, &settings(config), &policy(config), maker(config, place))
        });
    }
    if let UplinkKind::Vxlan(tunnel) = &config.kind {
        ahead::set_tunnel(tunnel, &daemon.hops(&config.name));
    }
    daemon.set_uplink(&config.name, &settings(config), &policy(config), maker(config, 0))?;
    daemon.set_uplink_agents(&config.name, agents(config, None));
    Ok(())
}

/// The limits of a host file's switch.
pub(crate) fn limits(host: &Host) -> Limits {
    Limits {
        addresses: host.switch.addresses,
        ageing: std::time::Duration::from_secs(host.switch.ageing.0.into()),
        port_addresses: host.switch.port_addresses,
        ..Limits::default()
    }
}

/// The teams of a host file: of uplinks, and of the queues of an uplink.
pub(crate) fn teams(host: &Host) -> impl Iterator<Item = TeamSpec> {
    let queues = host.uplinks.iter().filter(|config| config.queues() > 1);
    let queues = queues.map(|config| queues_spec(config, host.sends_by_one_queue(config)));
    host.teams.iter().map(|config| team_spec(config, &host.path)).chain(queues)
}

/// Number of links of a host file: each queue of an uplink is one.
pub(crate) fn links(host: &Host) -> usize {
    host.uplinks.iter().map(|config| usize::from(config.queues())).sum()
}

/// The agents of uplinks that go on here. Neighbours know them by the addresses in their earlier announcements.
fn settle_agents(daemon: &Daemon, host: &Host, announced: &[(String, Vec<u8>)]) {
    for config in &host.uplinks {
        let before = announced.iter().find(|(name, _)| *name == config.name);
        let address = before.and_then(|(_, frame)| frame.get(6..12)?.try_into().ok()).map(Mac);
        daemon.set_uplink_agents(&config.name, agents(config, address));
    }
}

/// Starts everything that a host file names, or nothing. Records the guests' accesses if a folder is given.
pub fn start(prepared: Prepared<'_>) -> Result<Daemon, ServeError> {
    let Prepared { host, record, ports, holder, mut held, follows, mut uplinks, opener, mut opened, served: _ } =
        prepared;
    let daemon = Daemon::start(limits(host), host.daemon.workers)?;
    opener.into_iter().for_each(|opener| daemon.open_by(opener));
    if let Some(target) = record {
        daemon.record(target)?;
    }
    daemon.ready_to_protect(host)?;
    daemon.ready_to_export();
    if let Some(warning) = host.tolerance.as_ref().and_then(|ft| nicety_host::open_key(&ft.key)) {
        warn!("[ft] {warning}");
    }
    if let Some(holder) = holder {
        daemon.keep_by(Arc::clone(&holder));
        // The host file names them no more.
        let is_gone = |name: &String| !ports.iter().any(|port| port.config.name == *name);
        for (name, _closed) in held.extract_if(.., |name, _| is_gone(name)) {
            let _no_keeper = holder.forget(&name, u64::MAX);
        }
    }
    if !held.is_empty() {
        daemon.takes_over();
    }
    let ports = ports.into_iter().map(|port| {
        let arrival = match held.remove(&port.config.name) {
            Some(groups) => PortArrival::Held(groups),
            None if follows => PortArrival::Begun,
            None => PortArrival::New,
        };
        (port, arrival)
    });
    let arrivals = host.uplinks.iter().map(|config| {
        let opened = opened.remove(&config.name).map(UplinkArrival::Opened);
        let held = opened.or_else(|| uplinks.take_of(config).map(UplinkArrival::Held));
        (config.clone(), held.unwrap_or(UplinkArrival::New))
    });
    let (ports, uplinks) = (ports.collect(), arrivals.collect());
    let teams = host.teams.iter().map(|config| team_spec(config, &host.path)).collect();
    reconcile(&daemon, Cow::Borrowed(host), Steps { ports, teams, uplinks, ..Steps::default() }, Err)?;
    daemon.join_fabric(host)?;
    daemon.begin_traces()?;
    Ok(daemon)
}
