//! The folders of a host file's daemon, for its sandbox (docs/threat-model.md).

use std::path::{Path, PathBuf};

use nicety_host::{Host, PageAddress, PortConfig, Role, UplinkConfig, UplinkKind};
use nicety_sandbox::{Folders, Grant, NotGranted, granted};
use rustix::fs::{Access as Right, AtFlags, CWD, accessat};

use crate::registry::Registry;

/// The folder of a file that does not need to exist.
fn folder(path: &Path) -> PathBuf {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

/// The folders of a file that is read again, whatever replaced it: its own, and if it is a link, that of what it leads to.
fn folders_to_read(path: &Path) -> Vec<PathBuf> {
    let target = path.canonicalize().ok().map(|real| folder(&real));
    std::iter::once(folder(path)).chain(target).collect()
}

/// The folders that this daemon uses: those of its sockets, captures, state and traces, and those that `[daemon] folders` names.
pub fn folders(host: &Host, control: &Path, record: Option<&Path>) -> Folders {
    let mut all = Folders::new();
    // The user has one of them at most.
    Registry::here().folders().into_iter().for_each(|folder| all.grant_if_there(folder, Grant::Write));
    let mut grant = |path: PathBuf, grant| all.grant(path, grant);
    folders_to_read(&host.path).into_iter().for_each(|folder| grant(folder, Grant::Read));
    grant(folder(control), Grant::Write);
    grant(folder(&host.state()), Grant::Write);
    if let Some(PageAddress::Socket(path)) = &host.daemon.page {
        grant(folder(path), Grant::Write);
    }
    record.into_iter().for_each(|record| grant(record.to_owned(), Grant::Write));
    host.daemon.folders.iter().for_each(|named| grant(named.clone(), Grant::Write));
    for port in &host.ports {
        grant(folder(&port.socket), Grant::Write);
        port.rom.iter().flat_map(|rom| folders_to_read(rom)).for_each(|folder| grant(folder, Grant::Read));
    }
    let is_ours = |uplink: &&UplinkConfig| !is_openers(uplink);
    for path in host.uplinks.iter().filter(is_ours).filter_map(path_of) {
        grant(folder(path), Grant::Write);
    }
    all
}

/// The path of an uplink at which the daemon makes a file or a socket, or opens a file.
fn path_of(uplink: &UplinkConfig) -> Option<&Path> {
    match &uplink.kind {
        UplinkKind::Pair { socket, .. } | UplinkKind::Stream { socket, .. } => Some(socket),
        UplinkKind::Capture { file } => Some(file),
        UplinkKind::Tap { .. } | UplinkKind::Xdp { .. } | UplinkKind::Null | UplinkKind::Querier => None,
    }
}

/// Whether an opener opens an uplink's file, and nobody removes it.
fn is_openers(uplink: &UplinkConfig) -> bool {
    nicety_socket::is_made_elsewhere() && matches!(uplink.kind, UplinkKind::Capture { .. })
}

/// Whether this process could use a path if nothing confined it. If not, the error of opening it has the reason, and no key of the host
/// file would help.
fn may(path: &Path, rights: Right) -> bool {
    accessat(CWD, path, rights, AtFlags::EACCESS).is_ok()
}

fn allowed(path: &Path) -> Result<(), NotGranted> {
    let folder = folder(path);
    match granted() {
        Some(folders) if may(&folder, Right::WRITE_OK | Right::EXEC_OK) => folders.allows(&folder),
        _ => Ok(()),
    }
}

/// Whether the sandbox lets a port be opened now.
pub(crate) fn allows_port(port: &PortConfig) -> Result<(), NotGranted> {
    if let (Some(rom), Some(folders)) = (&port.rom, granted())
        && may(rom, Right::READ_OK)
    {
        folders_to_read(rom).iter().try_for_each(|folder| folders.allows_reading(folder))?;
    }
    // Connecting takes no right in the folder.
    if port.role == Role::Connect { Ok(()) } else { allowed(&port.socket) }
}

/// Whether the sandbox lets an uplink be opened now.
pub(crate) fn allows_uplink(uplink: &UplinkConfig) -> Result<(), NotGranted> {
    let connects = matches!(
        uplink.kind,
        UplinkKind::Pair { role: Role::Connect, .. } | UplinkKind::Stream { role: Role::Connect, .. }
    );
    match path_of(uplink) {
        Some(path) if !connects && !is_openers(uplink) => allowed(path),
        _ => Ok(()),
    }
}
