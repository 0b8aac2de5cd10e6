//! The control socket, by which programs and commands such as `nicety ports` and `apply` talk to a running daemon.
//!
//! HTTP/1.1 with JSON on a UNIX stream socket. Only its owner may connect, unless the host file says otherwise. Everyone who can
//! connect may read. The peer's user and group decide whether it may change anything (`served.rs`). The paths are in `routes.rs`,
//! their types in [`api`]. The daemon serves an OpenAPI document made from both.
//!
//! ```text
//! → GET /v1/ports/vm9 HTTP/1.1
//! ← HTTP/1.1 404 Not Found
//!   content-type: application/problem+json
//!   {"type":"/v1/problems/no-such-port","title":…,"status":404,"detail":"there is no port \"vm9\"; did you mean \"vm1\"? …"}
//! ```
//!
//! A thread of its own serves the socket and never touches a worker's loop. A whole request must arrive within [`TIMEOUT`]. 64
//! clients can be connected at once. The next one replaces the client that was silent longest, of the user who has most clients.
//! Users who may only read have short bodies and a budget of processor time (`budget.rs`). The daemon parses one host file at a time,
//! and its size is [bounded](Host::parse).

#![forbid(unsafe_code)]

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_daemon::daemon::{NoteBytes, RestartError};
use nicety_daemon::fabric::{FabricReport, PlaceReport};
use nicety_daemon::flows::FlowExportReport;
use nicety_daemon::live::Live;
use nicety_daemon::protection::{VmReport, Wish};
use nicety_daemon::report::PortReport;
use nicety_daemon::saved::{PortState, SaveError};
use nicety_frame::Mac;
use nicety_host::{AccountError, Host, did_you_mean, group_number};
use nicety_keeper::Opener;
use nicety_sandbox::Kind;
use nicety_socket::{Access, ListenError, Listener, Place};
use rustix::fs::{Access as Right, AtFlags, CWD, accessat};
use rustix::io::Errno;
use tokio::sync::{Notify, Semaphore, watch};
use tracing::warn;

use api::AddressList;
use served::{Changers, Served};
use server::{Accepting, Server};

pub mod api;
mod beside;
mod body;
mod budget;
mod client;
mod clients;
mod handed;
mod inspect;
mod keeper;
mod metrics;
mod naming;
mod page;
mod routes;
mod schemas;
mod served;
mod server;
mod stream;

pub use client::{Ask, AskError, Reply, ask, ask_within, capture};
pub use inspect::Soon;
pub use keeper::{keeper_socket, may_change};
pub use naming::{Begun, Change, HEAD_MAX, body, change_in, opened_by, opened_by_entry};
pub use page::{Bound, Line, Page, Recent};

/// The API version: the first part of the paths, and the version of `--json`.
pub const VERSION: u32 = 1;
/// Longest request body in bytes: a host file as JSON.
pub const REQUEST_MAX: usize = 16 << 20;
/// The timeout for a request's head, and again for its body.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Connections that wait to be accepted: enough for one client among others that connect all the time.
const BACKLOG: u16 = 128;
/// The answer while the daemon starts.
const STARTING_SENTENCE: &str = "the daemon is still starting: ask again in a moment";
/// Most addresses in an answer: some megabytes. A table may have 4 million.
const ADDRESSES_MAX: usize = 65_536;
/// Most ports that an answer names when the requested port does not exist.
const NAMES_MAX: usize = 16;

/// The daemon's interface to the control socket. Called from the control thread.
pub trait Inspect: Send + Sync {
    /// Whether the daemon serves. Before that it reports only itself.
    fn is_ready(&self) -> bool;

    /// All ports, the uplink first.
    fn ports(&self) -> Vec<PortReport>;

    /// Notes the bytes of everything, as [`nicety_daemon::daemon::Daemon::carried`]. It is called each second.
    fn carried(&self, note: &mut NoteBytes<'_>);

    /// The addresses that the switch has learned, up to the limit of an answer.
    fn addresses(&self) -> AddressList;

    /// The VMs that are protected, or are to be.
    fn vms(&self) -> Vec<VmReport> {
        Vec::new()
    }

    /// An administrator's wish for a VM. The error is a sentence.
    fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        let _ = wish;
        Err(format!("there is no [[vm]] {vm:?}"))
    }

    /// The fabric that the host is in, if it is in one.
    fn fabric(&self) -> Option<FabricReport> {
        None
    }

    /// The places of an address in the fabric. `None`: the host is in no fabric.
    fn places(&self, mac: Mac) -> Option<Vec<PlaceReport>> {
        let _ = mac;
        None
    }

    /// The exports of flows.
    fn flow_exports(&self) -> Vec<FlowExportReport> {
        Vec::new()
    }

    /// Restarts a failed port.
    fn restart(&self, name: &str) -> Result<(), RestartError>;

    /// Saves a port and stops it.
    fn save(&self, name: &str) -> Result<PortState, SaveError>;

    /// Restores a port.
    fn restore(&self, name: &str, state: PortState) -> Result<(), SaveError>;

    /// The interface for changes; `None` if the daemon cannot be changed.
    fn live(&self) -> Option<Arc<Live>> {
        None
    }

    /// Notified when the daemon has blocked an uplink by itself, which [`Live::keep_loops`] keeps. `None`: never.
    fn looped(&self) -> Option<Arc<Notify>> {
        None
    }
}

/// The answer to a request for an unknown port: the most similar name, and the existing ones.
fn no_port(requested: &str, ports: &[PortReport]) -> String {
    let names = || ports.iter().map(|port| port.name.as_str());
    let listed: Vec<&str> = names().take(NAMES_MAX).collect();
    let more = if ports.len() > listed.len() { ", …" } else { "" };
    format!(
        "there is no port {requested:?}{} (there are: {}{more})",
        did_you_mean(requested, names()),
        listed.join(", ")
    )
}

/// Reasons why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be made.
    #[error("the control socket: {0}")]
    Listen(#[from] ListenError),
    /// The socket's folder cannot be made. It may belong to another user than the current one, as with sudo.
    #[error(
        "the folder {path} for the control socket cannot be made: {error}; is XDG_RUNTIME_DIR this user's? [daemon] control in the host file names another path"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// An account that may connect is unknown.
    #[error("the control socket: {0}")]
    Account(#[from] AccountError),
    /// The page cannot be served at its place.
    #[error("the page at {place}: {error}; [daemon] page in the host file names another place")]
    Page {
        /// The place.
        place: String,
        /// The cause.
        error: io::Error,
    },
    /// The thread, or its runtime, cannot be made.
    #[error("the control socket {path}: {error}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

impl ControlError {
    /// Whether this process may not make sockets of the page's kind. A systemd unit may forbid it (RestrictAddressFamilies=).
    fn is_page_forbidden(&self) -> bool {
        let forbids = |error: &io::Error| {
            let errno = Errno::from_io_error(error);
            matches!(errno, Some(Errno::AFNOSUPPORT | Errno::PERM | Errno::ACCESS))
        };
        matches!(self, Self::Page { error, .. } if forbids(error))
    }

    /// Whether another process serves the socket; that process can be asked who it is.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Listen(ListenError::InUse(_)))
    }
}

/// The path of the control socket, checked, and its accounts.
#[derive(Debug)]
pub struct Prepared {
    path: PathBuf,
    access: Access,
    /// The number and name of the group whose members may make changes.
    group: Option<(u32, String)>,
    /// The folder to make, if it is missing.
    folder: Option<PathBuf>,
    /// Whether another daemon serves the socket already.
    pub served: bool,
    /// The state of the page's place. An error: this process may not make sockets of its kind, and serves without it.
    pub page: Result<Place, ControlError>,
    /// Has the socket's connections accepted by another process.
    opener: Option<Arc<Opener>>,
}

impl Prepared {
    /// The keeper behind this opener has the socket's connections accepted, if it can.
    #[must_use]
    pub fn accepted_by(mut self, opener: Option<Arc<Opener>>) -> Self {
        self.opener = opener;
        self
    }
}

/// The test whether a socket is served.
type Look = fn(&Path, &Access) -> Result<Place, ListenError>;

/// Checks whether a control socket can be made at `path`, which [`Host::control`] chose, and whether the page's place is free. A folder
/// that the host file names must exist. The default folder is made if it is missing.
pub fn prepare(host: &Host, path: &Path) -> Result<Prepared, ControlError> {
    let look = |path: &Path, access: &Access| nicety_socket::check(path, access);
    with_page(host, checked(host, path, look)?, look)
}

/// Makes the same checks as [`prepare`], without a connection that a running daemon would notice.
pub fn check(host: &Host, path: &Path) -> Result<Prepared, ControlError> {
    let look = |path: &Path, access: &Access| nicety_socket::check_quietly(path, access);
    with_page(host, checked(host, path, look)?, look)
}

/// The control socket of a daemon that this one replaces: nothing is checked.
pub fn again(host: &Host, path: &Path) -> Result<Prepared, ControlError> {
    checked(host, path, |_, _| Ok(Place::Free))
}

/// Adds the state of the page's place. Beside a daemon that has the control socket, a place in use is that daemon's.
fn with_page(host: &Host, prepared: Prepared, look: Look) -> Result<Prepared, ControlError> {
    let page = match Bound::check(host, look) {
        Err(ControlError::Page { error, .. }) if prepared.served && error.kind() == io::ErrorKind::AddrInUse => {
            Ok(Place::Served)
        }
        Err(error) if !error.is_page_forbidden() => return Err(error),
        page => page,
    };
    Ok(Prepared { page, ..prepared })
}

fn checked(host: &Host, path: &Path, look: Look) -> Result<Prepared, ControlError> {
    let access = host.daemon.access.resolve()?;
    let group = host.daemon.change_group.as_ref();
    let group = group.map(|name| Ok::<_, AccountError>((group_number(name)?, name.clone()))).transpose()?;
    let usual = host.daemon.control.is_none();
    let folder = path.parent().filter(|dir| usual && !dir.as_os_str().is_empty() && !dir.exists());
    let served = match folder {
        Some(dir) => {
            let above = dir.parent().unwrap_or(Path::new("/"));
            let may = accessat(CWD, above, Right::WRITE_OK | Right::EXEC_OK, AtFlags::EACCESS);
            may.map_err(|errno| ControlError::Folder { path: dir.to_owned(), error: errno.into() })?;
            false
        }
        None => look(path, &access)? == Place::Served,
    };
    let (path, folder, page) = (path.to_owned(), folder.map(Path::to_owned), Ok(Place::Free));
    Ok(Prepared { path, access, group, folder, served, page, opener: None })
}

/// Makes the default folder, for the owner only. The keeper and the daemon do.
fn make_folder(path: PathBuf) -> Result<(), ControlError> {
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(ControlError::Folder { path, error }),
        _ => Ok(()),
    }
}

/// A served control socket. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    socket: Option<OwnedFd>,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Makes the socket and serves it. Makes a missing default folder, for the owner only. `host` is the host file.
    pub fn start(prepared: Prepared, host: &Path, inspect: Arc<dyn Inspect>) -> Result<Self, ControlError> {
        let Prepared { path, access, group, folder, served: _, page: _, opener } = prepared;
        folder.map_or(Ok(()), make_folder)?;
        let listener = Listener::bind_queue(&path, &access, BACKLOG)?;
        Self::serve(listener, access, group, host, inspect, opener.as_deref())
    }

    /// Goes on with the socket of a daemon that this one replaces. `prepared` is of [`again`].
    pub fn go_on(
        prepared: Prepared,
        socket: OwnedFd,
        host: &Path,
        inspect: Arc<dyn Inspect>,
    ) -> Result<Self, ControlError> {
        let Prepared { path, access, group, folder: _, served: _, page: _, opener } = prepared;
        let mut listener = Listener::go_on(socket, path)?;
        listener.own();
        Self::serve(listener, access, group, host, inspect, opener.as_deref())
    }

    fn serve(
        listener: Listener,
        access: Access,
        group: Option<(u32, String)>,
        host: &Path,
        inspect: Arc<dyn Inspect>,
        opener: Option<&Opener>,
    ) -> Result<Self, ControlError> {
        let path = listener.path().to_owned();
        let system = |error| ControlError::System { path: path.clone(), error };
        let socket = listener.as_fd().try_clone_to_owned().map_err(system)?;
        let end = Arc::<Notify>::default();
        let changers = Changers::new(&access, group);
        let served = Arc::new(Served {
            host: host.to_owned(),
            inspect,
            changers,
            paused: watch::Sender::new(false),
            handed_over: Mutex::default(),
            waits: Notify::new(),
            large: Arc::new(Semaphore::new(1)),
        });
        let accepting = Accepting::new(&listener, opener).map_err(system)?;
        let server = Server { listener, accepting, end: Arc::clone(&end), served };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_io().enable_time().build().map_err(system)?;
        let thread = nicety_sandbox::spawn(Kind::Control, "control", 0, move || server.run(&runtime));
        let thread = Some(thread.map_err(system)?);
        Ok(Self { path, socket: Some(socket), end, thread })
    }

    /// A descriptor of the socket, for the daemon that replaces this one. `None` the second time.
    pub fn socket(&mut self) -> Option<OwnedFd> {
        self.socket.take()
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.end.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the control thread had panicked");
        }
    }
}

#[cfg(test)]
mod readers_test;
#[cfg(test)]
#[path = "control_test.rs"]
mod tests;
