//! The daemon that requests work on, and the users who may change it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use nicety_socket::{Access, PeerCredentials};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::process::geteuid;
use tokio::sync::Semaphore;

use super::Inspect;

/// The credentials of a client; `None` if the system does not report them.
pub(super) type Peer = Option<PeerCredentials>;

/// The state that requests work on.
pub(super) struct Served {
    pub(super) host: PathBuf,
    pub(super) inspect: Arc<dyn Inspect>,
    pub(super) changers: Changers,
    /// The number of running captures.
    pub(super) captures: Arc<AtomicUsize>,
    /// Permits to read and parse a host file or a state.
    pub(super) large: Arc<Semaphore>,
}

/// The users that may make changes: root, the daemon's user, the socket's owner, and the members of a group.
#[derive(Debug)]
pub(super) struct Changers {
    users: Vec<u32>,
    /// The group's number and name.
    group: Option<(u32, String)>,
}

impl Changers {
    pub(super) fn new(access: &Access, group: Option<(u32, String)>) -> Self {
        let owner = access.owner.as_ref().map(|owner| owner.id);
        Self { users: [0, geteuid().as_raw()].into_iter().chain(owner).collect(), group }
    }

    pub(super) fn include(&self, peer: Peer) -> bool {
        let Some(PeerCredentials { uid, gid, .. }) = peer else { return false };
        self.users.contains(&uid)
            || self.group.as_ref().is_some_and(|(group, _)| *group == gid || is_in(uid, gid, *group))
    }

    /// Whether this user may always make changes, and has no [budget](super::budget).
    pub(super) fn has(&self, peer: Peer) -> bool {
        peer.is_some_and(|peer| self.users.contains(&peer.uid))
    }

    pub(super) fn refusal(&self, peer: Peer) -> String {
        let who = peer.map_or_else(|| "a process without a user".to_owned(), |peer| format!("user {}", peer.uid));
        let group = match &self.group {
            Some((_, name)) => format!(", or be in group {name}"),
            None => "; [daemon] control_change_group in the host file names a group that may".to_owned(),
        };
        format!("{who} may read, and not change: be root, the daemon's user or the socket's owner{group}")
    }
}

/// Whether a user belongs to a group, according to the system's databases.
fn is_in(user: u32, first: u32, group: u32) -> bool {
    // The databases are files, which this thread may not open.
    let found = nicety_sandbox::look_up(move || {
        let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return false };
        let Ok(name) = std::ffi::CString::new(user.name) else { return false };
        getgrouplist(&name, Gid::from_raw(first)).is_ok_and(|groups| groups.iter().any(|found| found.as_raw() == group))
    });
    found.unwrap_or(false)
}
