//! The folders of a host file's daemon, for its sandbox (docs/threat-model.md).

use std::path::{Path, PathBuf};

use nicety_host::{Host, PortConfig, UplinkConfig};
use nicety_sandbox::{Folders, Grant, NotGranted, granted};
use rustix::fs::{Access as Right, AtFlags, CWD, accessat};

use crate::paths::{HostPath, PathUse, of_host, of_port, of_uplink};
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
    folders_to_read(&host.path).into_iter().for_each(|folder| all.grant(folder, Grant::Read));
    record.into_iter().for_each(|record| all.grant(record.to_owned(), Grant::Write));
    let late = of_host(host, Some(control)).into_iter().filter(|one| !one.is_early && !is_openers(one.does));
    for HostPath { path, does, .. } in late {
        match does {
            PathUse::Reads => folders_to_read(&path).into_iter().for_each(|folder| all.grant(folder, Grant::Read)),
            PathUse::Fills => all.grant(path.into_owned(), Grant::Write),
            // A port that connects keeps a file beside the socket, and either role may become the other.
            PathUse::Listens | PathUse::Connects | PathUse::Writes | PathUse::Captures => {
                all.grant(folder(&path), Grant::Write);
            }
        }
    }
    all
}

/// Whether this process could use a path if nothing confined it. If not, the error of opening it has the reason, and no key of the host
/// file would help.
fn may(path: &Path, rights: Right) -> bool {
    accessat(CWD, path, rights, AtFlags::EACCESS).is_ok()
}

/// Whether the sandbox lets a port be opened now.
pub(crate) fn allows_port(port: &PortConfig) -> Result<(), NotGranted> {
    of_port(port).filter(|one| !one.is_early).try_for_each(|one| allows(&one))
}

/// Whether the sandbox lets an uplink be opened now.
pub(crate) fn allows_uplink(uplink: &UplinkConfig) -> Result<(), NotGranted> {
    of_uplink(uplink).map_or(Ok(()), |one| allows(&one))
}

fn allows(HostPath { path, does, .. }: &HostPath<'_>) -> Result<(), NotGranted> {
    let Some(folders) = granted() else { return Ok(()) };
    let folder = folder(path);
    match does {
        PathUse::Reads if may(path, Right::READ_OK) => {
            folders_to_read(path).iter().try_for_each(|folder| folders.allows_reading(folder))
        }
        PathUse::Listens | PathUse::Writes | PathUse::Captures
            if !is_openers(*does) && may(&folder, Right::WRITE_OK | Right::EXEC_OK) =>
        {
            folders.allows(&folder)
        }
        // Connecting takes no right in the folder.
        _ => Ok(()),
    }
}

/// Whether an opener opens the file, and nobody removes it.
fn is_openers(does: PathUse) -> bool {
    nicety_socket::is_made_elsewhere() && does == PathUse::Captures
}
