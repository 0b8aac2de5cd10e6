//! The daemon that requests work on, and the users who may change it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nicety_daemon::live::Live;
use nicety_socket::{Access, PeerCredentials};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::process::geteuid;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio::time::timeout;

use super::Inspect;

/// The credentials of a client; `None` if the system does not report them.
pub(super) type Peer = Option<PeerCredentials>;

/// The state that requests work on.
pub(super) struct Served {
    pub(super) host: PathBuf,
    pub(super) inspect: Arc<dyn Inspect>,
    pub(super) changers: Changers,
    /// No connection is accepted: another daemon may be about to serve the socket.
    pub(super) paused: watch::Sender<bool>,
    /// Another daemon serves: this one ends once its clients have their answers.
    pub(super) handed_over: Mutex<Option<Arc<Live>>>,
    /// Notified when a change waits to be confirmed, or no more.
    pub(super) waits: Notify,
    /// Permits to read and parse a host file or a state.
    pub(super) large: Arc<Semaphore>,
}

impl Served {
    /// Accepts no connection from now on, or accepts them again.
    pub(super) fn pause(&self, stops: bool) {
        self.paused.send_replace(stops);
    }

    /// Another daemon serves now: this one ends after the answers to its clients.
    pub(super) fn end_after_answers(&self, live: &Arc<Live>) {
        *self.handed_over.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(Arc::clone(live));
        self.paused.send_replace(true);
    }

    pub(super) fn handed_over(&self) -> Option<Arc<Live>> {
        self.handed_over.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

/// Longest wait for the system's databases of accounts. Some are services elsewhere.
pub(super) const LOOK_UP: Duration = Duration::from_secs(2);

/// The users that may make changes: root, the daemon's user, the socket's owner, and the members of a group.
#[derive(Debug)]
pub(super) struct Changers {
    users: Vec<u32>,
    /// The group's number and name.
    group: Option<(u32, String)>,
    /// One user is looked up at a time: requests must not queue up behind a service that does not answer.
    pub(super) look_ups: Arc<Semaphore>,
}

/// The system did not tell a user's groups in time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct GroupsUnknown;

impl Changers {
    pub(super) fn new(access: &Access, group: Option<(u32, String)>) -> Self {
        let owner = access.owner.as_ref().map(|owner| owner.id);
        let users = [0, geteuid().as_raw()].into_iter().chain(owner).collect();
        Self { users, group, look_ups: Arc::new(Semaphore::new(1)) }
    }

    /// Whether a user may make changes. Other requests are answered while a database is asked.
    pub(super) async fn include(&self, peer: Peer) -> Result<bool, GroupsUnknown> {
        let Some(PeerCredentials { uid, gid, .. }) = peer else { return Ok(false) };
        match &self.group {
            _ if self.users.contains(&uid) => Ok(true),
            None => Ok(false),
            Some((group, _)) if *group == gid => Ok(true),
            Some((group, _)) => self.look_up(uid, gid, *group).await,
        }
    }

    async fn look_up(&self, uid: u32, gid: u32, group: u32) -> Result<bool, GroupsUnknown> {
        let found = async {
            let turn = Arc::clone(&self.look_ups).acquire_owned().await.ok()?;
            let (send, found) = oneshot::channel();
            let look_up = move || {
                let _client_gone = send.send(is_in(uid, gid, group));
                drop(turn);
            };
            nicety_sandbox::look_up_later(look_up).ok()?;
            found.await.ok()
        };
        timeout(LOOK_UP, found).await.ok().flatten().ok_or(GroupsUnknown)
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

/// Whether a user belongs to a group, according to the system's databases. They may be files, which the control thread may not open.
pub(super) fn is_in(user: u32, first: u32, group: u32) -> bool {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return false };
    let Ok(name) = std::ffi::CString::new(user.name) else { return false };
    getgrouplist(&name, Gid::from_raw(first)).is_ok_and(|groups| groups.iter().any(|found| found.as_raw() == group))
}
