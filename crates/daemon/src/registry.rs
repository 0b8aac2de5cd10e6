//! The registry, in which commands find daemons from any folder and environment. Each daemon has a link to its control socket in
//! its user's registry folder. Root's folder is `/run/nicety`; another user's is `/run/user/UID/nicety`, or `/tmp/nicety-UID`
//! without `/run/user/UID`. No other user may write to such a folder.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;

/// The suffix of a link's name.
const ENDING: &str = "control";

/// The folders of one user.
#[derive(Clone, Debug)]
pub struct Registry {
    root: PathBuf,
    user: u32,
}

/// Reasons why a daemon has no link.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The folder belongs to another user, or others may write to it.
    #[error("{0} is no folder that this user alone may write to")]
    NotOurs(PathBuf),
    /// A system call failed.
    #[error("{path}: {error}")]
    System {
        /// The folder or link.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// A daemon's link. Dropping it removes the link.
#[derive(Debug)]
pub struct Entry(PathBuf);

impl Drop for Entry {
    fn drop(&mut self) {
        // A link that cannot be removed is dead, and the next daemon removes it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Control sockets that are served.
    pub sockets: Vec<PathBuf>,
    /// Links of killed daemons, whose socket nobody serves, and the sockets.
    pub stale: Vec<(PathBuf, PathBuf)>,
    /// The folders that were searched.
    pub folders: Vec<PathBuf>,
    /// Folders that were skipped because others may write to them.
    pub unsafe_folders: Vec<PathBuf>,
}

impl Registry {
    /// The registry of this process's user.
    pub fn here() -> Self {
        Self::at(Path::new("/"), geteuid().as_raw())
    }

    /// The registry with `root` as the root folder.
    fn at(root: &Path, user: u32) -> Self {
        Self { root: root.to_owned(), user }
    }

    fn system(&self) -> PathBuf {
        self.root.join("run/nicety")
    }

    fn session(&self) -> PathBuf {
        self.root.join(format!("run/user/{}/nicety", self.user))
    }

    /// The folders for this user's daemons.
    pub fn folders(&self) -> [PathBuf; 3] {
        [self.system(), self.session(), self.fallback()]
    }

    fn fallback(&self) -> PathBuf {
        self.root.join(format!("tmp/nicety-{}", self.user))
    }

    /// Makes a daemon's link. `switch` is a part of its name, for people who list the folder. Removes dead links.
    pub fn enter(&self, switch: &str, control: &Path) -> Result<Entry, RegistryError> {
        let folder = self.own()?;
        for (link, _) in self.links(&folder).into_iter().filter(|(_, socket)| !is_served(socket)) {
            let _already_removed = std::fs::remove_file(link);
        }
        // A daemon has one link, however often it is started.
        let link = folder.join(format!("{switch}-{:016x}.{ENDING}", number_of(control)));
        let fresh = folder.join(format!(".{switch}-{}", std::process::id()));
        let failed = |error| RegistryError::System { path: link.clone(), error };
        let _no_leftover = std::fs::remove_file(&fresh);
        symlink(control, &fresh).map_err(failed)?;
        std::fs::rename(&fresh, &link).map_err(failed)?;
        Ok(Entry(link))
    }

    /// The folder for this user's daemons. Makes it if it is missing.
    fn own(&self) -> Result<PathBuf, RegistryError> {
        let is_ours =
            |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == self.user);
        let (system, session) = (self.system(), self.session());
        let (folder, mode) = if self.user == 0 || is_ours(&system) {
            // Other users of the control socket must be able to enter the folder.
            (system, 0o755)
        } else if session.parent().is_some_and(is_ours) {
            (session, 0o700)
        } else {
            (self.fallback(), 0o700)
        };
        match DirBuilder::new().mode(mode).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(RegistryError::System { path: folder, error });
            }
            _ => {}
        }
        let found = folder.symlink_metadata();
        let found = found.map_err(|error| RegistryError::System { path: folder.clone(), error })?;
        if found.uid() == self.user && is_safe(&found) { Ok(folder) } else { Err(RegistryError::NotOurs(folder)) }
    }

    /// Searches for this user's daemons, and for the system's daemons that this user may query.
    pub fn look(&self) -> Found {
        let mut found = Found::default();
        for folder in [self.system(), self.session(), self.fallback()] {
            found.folders.push(folder.clone());
            let Ok(there) = folder.symlink_metadata() else { continue };
            // The system's folder may belong to a dedicated user.
            let whose = there.uid() == self.user || folder == self.system();
            if !whose || !is_safe(&there) {
                found.unsafe_folders.push(folder);
                continue;
            }
            for (link, socket) in self.links(&folder) {
                if is_served(&socket) {
                    if !found.sockets.contains(&socket) {
                        found.sockets.push(socket);
                    }
                } else {
                    found.stale.push((link, socket));
                }
            }
        }
        found
    }

    /// The links of a folder and their targets, by name.
    fn links(&self, folder: &Path) -> Vec<(PathBuf, PathBuf)> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let links = entries.filter(|path| path.extension().is_some_and(|ending| ending == ENDING));
        let mut links: Vec<_> = links.filter_map(|link| Some((link.clone(), link.read_link().ok()?))).collect();
        links.sort();
        links
    }
}

/// Whether only the owner may write to the folder, and it is not a link.
fn is_safe(folder: &Metadata) -> bool {
    folder.is_dir() && folder.mode() & 0o022 == 0
}

/// Whether a socket is served, as far as this user can know.
pub fn is_served(socket: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (Ok(address), Ok(probe)) =
        (SocketAddrUnix::new(socket), socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None))
    else {
        return false;
    };
    // AGAIN: its queue is full. ACCESS: it belongs to another user; assume that it is served.
    matches!(connect(&probe, &address), Ok(()) | Err(Errno::AGAIN | Errno::ACCESS))
}

/// A path's hash, printed as sixteen digits (FNV-1a, 64 bits: isthe.com/chongo/tech/comp/fnv).
fn number_of(path: &Path) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
#[path = "registry_test.rs"]
mod tests;
