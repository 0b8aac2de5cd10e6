//! The list of a host file's paths. Checks of what opening needs, the sandbox and the look at a unit's settings all go through it.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use nicety_host::{
    EtcdConfig, Host, LeasePlace, ListenAddress, PageAddress, PeerAddress, PortConfig, Role, UplinkConfig, UplinkKind,
    VmConfig,
};

/// The use that a daemon makes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// It makes a socket there.
    Listens,
    /// It connects to a socket that another process has made.
    Connects,
    /// It makes a file there.
    Writes,
    /// It makes a capture there. With a keeper an opener does.
    Captures,
    /// It reads a file.
    Reads,
    /// It makes sockets and files in this folder.
    Fills,
}

/// A path of a host file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath<'a> {
    /// The key that names it, for a person: with its value if it may be a default.
    pub key: String,
    /// The path.
    pub path: Cow<'a, Path>,
    /// Its use.
    pub does: PathUse,
    /// Whether it does that before it confines itself, and never again.
    pub is_early: bool,
}

impl<'a> HostPath<'a> {
    fn new(key: impl Into<String>, path: impl Into<Cow<'a, Path>>, does: PathUse) -> Self {
        Self { key: key.into(), path: path.into(), does, is_early: false }
    }

    fn early(self) -> Self {
        Self { is_early: true, ..self }
    }
}

/// All paths that a host file names, and its state file. `control` is the control socket, if its path is known.
pub fn of_host<'a>(host: &'a Host, control: Option<&'a Path>) -> Vec<HostPath<'a>> {
    let with_value = |key: &str, path: &Path| format!("{key} = \"{}\"", path.display());
    let mut all = Vec::new();
    all.extend(control.map(|path| HostPath::new(with_value("daemon.control", path), path, PathUse::Listens)));
    let state = host.state();
    all.push(HostPath::new(with_value("daemon.state", &state), state, PathUse::Writes));
    if let Some(PageAddress::Socket(path)) = &host.daemon.page {
        all.push(HostPath::new("daemon.page", path, PathUse::Listens));
    }
    if let Some(ft) = &host.tolerance {
        if let Some(ListenAddress::Unix(path)) = &ft.listen {
            all.push(HostPath::new("ft.listen", path, PathUse::Listens).early());
        }
        all.push(HostPath::new("ft.key", &ft.key, PathUse::Reads).early());
        match &ft.lease {
            Some(LeasePlace::Folder(folder)) => all.push(HostPath::new("ft.lease", folder, PathUse::Fills)),
            Some(LeasePlace::Etcd(etcd)) => all.extend(of_etcd("ft", etcd)),
            None => {}
        }
    }
    if let Some(fabric) = &host.fabric {
        all.extend(of_etcd("fabric", &fabric.etcd));
        let state = fabric_state(host);
        all.push(HostPath::new(with_value("daemon.state", &state), state, PathUse::Writes));
    }
    all.extend(host.vms.iter().flat_map(of_vm));
    all.extend(host.ports.iter().flat_map(of_port));
    all.extend(host.uplinks.iter().filter_map(of_uplink));
    all.extend(host.daemon.folders.iter().map(|folder| HostPath::new("daemon.folders", folder, PathUse::Fills)));
    all
}

/// The file that keeps the last known state of the fabric, beside the state file.
pub fn fabric_state(host: &Host) -> PathBuf {
    let mut name = host.state().into_os_string();
    name.push(".fabric");
    PathBuf::from(name)
}

/// The files by which etcd is asked. `table`: the one that names them.
fn of_etcd<'a>(table: &str, etcd: &'a EtcdConfig) -> impl Iterator<Item = HostPath<'a>> + use<'a> {
    let EtcdConfig { endpoints: _, user, ca, identity } = etcd;
    let files = [
        ("etcd_password", user.as_ref().map(|user| &user.password)),
        ("etcd_ca", ca.as_ref()),
        ("etcd_certificate", identity.as_ref().map(|identity| &identity.certificate)),
        ("etcd_key", identity.as_ref().map(|identity| &identity.key)),
    ];
    let table = table.to_owned();
    files
        .into_iter()
        .filter_map(move |(key, path)| Some(HostPath::new(format!("{table}.{key}"), path?, PathUse::Reads).early()))
}

/// The paths of a VM. Its threads are there before the daemon confines itself.
fn of_vm(vm: &VmConfig) -> impl Iterator<Item = HostPath<'_>> {
    let key = |key: &str| format!("vm {}: {key}", vm.name);
    let qmp = HostPath::new(key("qmp"), &vm.qmp, PathUse::Connects).early();
    let peer = match &vm.peer {
        PeerAddress::Unix(path) => Some(HostPath::new(key("peer"), path, PathUse::Connects).early()),
        _ => None,
    };
    [qmp].into_iter().chain(peer)
}

/// The paths of a port.
pub fn of_port(port: &PortConfig) -> impl Iterator<Item = HostPath<'_>> {
    let key = |key: &str| format!("port {}: {key}", port.name);
    let rom = port.rom.as_ref().map(|rom| HostPath::new(key("rom"), rom, PathUse::Reads));
    let socket = HostPath::new(key("socket"), &port.socket, at_socket(port.role));
    rom.into_iter().chain([socket])
}

/// The path of an uplink, if it has one.
pub fn of_uplink(uplink: &UplinkConfig) -> Option<HostPath<'_>> {
    let key = |key: &str| format!("uplink {}: {key}", uplink.name);
    match &uplink.kind {
        UplinkKind::Pair { socket, role } | UplinkKind::Stream { socket, role } => {
            Some(HostPath::new(key("socket"), socket, at_socket(*role)))
        }
        UplinkKind::Capture { file } => Some(HostPath::new(key("file"), file, PathUse::Captures)),
        UplinkKind::Tap { .. }
        | UplinkKind::Xdp { .. }
        | UplinkKind::Vxlan(_)
        | UplinkKind::Null
        | UplinkKind::Querier => None,
    }
}

fn at_socket(role: Role) -> PathUse {
    match role {
        Role::Listen => PathUse::Listens,
        Role::Connect => PathUse::Connects,
    }
}
