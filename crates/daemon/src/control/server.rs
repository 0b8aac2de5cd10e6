//! The server: one thread, at most [`CONNECTIONS_MOST`] connections. No client blocks another: a silent client is disconnected
//! after [`TIMEOUT`], or as soon as its place is needed. Changes run on their own threads, one at a time.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as StdStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nicety_socket::{Accepted, Access, Listener, PeerCredentials};
use nix::unistd::{Gid, Uid, User, getgrouplist};
use rustix::process::geteuid;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tower_service::Service;
use tracing::{debug, warn};

use super::api::{Problem, TOO_LARGE, TOO_LATE};
use super::stream::Endless;
use super::{Inspect, REQUEST_MOST, TIMEOUT, routes};
use crate::clock::Clock;
use crate::port_log::{Share, counted};

/// Most connections at once.
pub(super) const CONNECTIONS_MOST: usize = 64;
/// The longest time of a connection, unless it is a capture's.
const LIFE: Duration = Duration::from_secs(60);
/// The pause after the system refused a connection (for example without free descriptors).
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The credentials of a client; `None` if the system does not report them.
pub(super) type Peer = Option<PeerCredentials>;

/// What requests work on.
pub(super) struct Served {
    pub(super) host: PathBuf,
    pub(super) inspect: Arc<dyn Inspect>,
    pub(super) changers: Changers,
    /// The number of captures that are being read.
    pub(super) captures: Arc<AtomicUsize>,
}

/// Who may make changes: root, the daemon's user, the socket's owner, and the members of a group.
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
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(user)) else { return false };
    let Ok(name) = std::ffi::CString::new(user.name) else { return false };
    getgrouplist(&name, Gid::from_raw(first)).is_ok_and(|groups| groups.iter().any(|found| found.as_raw() == group))
}

/// See the module's page.
pub(super) struct Server {
    pub(super) listener: Listener,
    pub(super) bell: Arc<OwnedFd>,
    pub(super) served: Arc<Served>,
}

/// Makes a descriptor usable with tokio.
struct Watched<T>(T);

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// One client.
struct Client {
    task: JoinHandle<()>,
    /// Its request is being answered.
    busy: Arc<AtomicBool>,
}

impl Server {
    /// Serves until the eventfd is signalled.
    pub(super) fn run(self, runtime: &tokio::runtime::Runtime) {
        if let Err(error) = runtime.block_on(self.serve()) {
            warn!("waiting for control connections: {error}");
        }
    }

    #[expect(
        deprecated,
        reason = "what replaces it is unsafe to call; both descriptors live as long as they are watched"
    )]
    async fn serve(self) -> io::Result<()> {
        let listener = AsyncFd::with_interest(Watched(self.listener), Interest::READABLE)?;
        let bell = AsyncFd::with_interest(Watched(Arc::clone(&self.bell)), Interest::READABLE)?;
        let router = routes::router(Arc::clone(&self.served));
        // A client that holds all descriptors causes no more log lines than any other.
        let (clock, mut share) = (Clock::start(), Share::default());
        let mut clients: Vec<Client> = Vec::new();
        loop {
            let mut ready = tokio::select! {
                biased;
                rung = bell.readable() => return rung.map(drop),
                ready = listener.readable() => ready?,
            };
            clients.retain(|client| !client.task.is_finished());
            match ready.get_inner().0.accept(false) {
                Ok(Accepted::Client(socket, peer)) => {
                    if clients.len() >= CONNECTIONS_MOST {
                        make_room(&mut clients);
                    }
                    clients.extend(answer(socket, peer, &router));
                }
                Ok(_) => ready.clear_ready(),
                // No descriptors are left: free one by disconnecting a silent client.
                Err(_) if make_room(&mut clients) => {}
                Err(errno) => {
                    if let Some(unsaid) = share.may_say(clock.now()) {
                        warn!("{}", counted(format_args!("a control connection was not accepted: {errno}"), unsaid));
                    }
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
            // Connected clients are served before the next one is accepted.
            tokio::task::yield_now().await;
        }
    }
}

/// Disconnects the client that has been connected longest without a whole request, or else without reading its answer. False if
/// there is none.
fn make_room(clients: &mut Vec<Client>) -> bool {
    let silent = clients.iter().position(|client| !client.busy.load(Ordering::Relaxed));
    let leaves = !clients.is_empty();
    if leaves {
        clients.remove(silent.unwrap_or(0)).task.abort();
    }
    leaves
}

/// Speaks HTTP with a client, in its own task.
fn answer(socket: OwnedFd, peer: Peer, router: &Router) -> Option<Client> {
    let stream = match UnixStream::from_std(StdStream::from(socket)) {
        Ok(stream) => stream,
        Err(error) => {
            debug!("a control connection cannot be watched: {error}");
            return None;
        }
    };
    let busy = Arc::new(AtomicBool::new(false));
    let (asked, router) = (Arc::clone(&busy), router.clone());
    let endless = Arc::new(AtomicBool::new(false));
    let goes_on = Arc::clone(&endless);
    let service = service_fn(move |request: Request<Incoming>| {
        let (asked, mut router, endless) = (Arc::clone(&asked), router.clone(), Arc::clone(&endless));
        async move {
            let (mut head, body) = request.into_parts();
            head.extensions.insert(peer);
            // A body has the same timeout as its head; a change has none.
            let whole = tokio::time::timeout(TIMEOUT, to_bytes(Body::new(body), REQUEST_MOST)).await;
            let body = match whole {
                Ok(Ok(body)) => body,
                Ok(Err(_)) => {
                    let most = format!("a request's body has at most {REQUEST_MOST} bytes, and comes whole");
                    return Ok(Problem::new(TOO_LARGE, most).into_response());
                }
                Err(_) => {
                    let late = format!("the request was not whole after {TIMEOUT:?}");
                    return Ok(Problem::new(TOO_LATE, late).into_response());
                }
            };
            asked.store(true, Ordering::Relaxed);
            let answer = router.call(Request::from_parts(head, Body::from(body))).await;
            // An endless answer keeps its place until it ends.
            let lasts = answer.as_ref().is_ok_and(|answer| answer.extensions().get::<Endless>().is_some());
            endless.store(lasts, Ordering::Relaxed);
            asked.store(lasts, Ordering::Relaxed);
            answer
        }
    });
    let task = tokio::spawn(async move {
        let mut http = hyper::server::conn::http1::Builder::new();
        // A client may close its half after the request: socat does.
        http.timer(TokioTimer::new()).header_read_timeout(TIMEOUT).half_close(true);
        let connection = http.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        loop {
            match tokio::time::timeout(LIFE, &mut connection).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => debug!("a control connection ended: {error}"),
                Err(_) if goes_on.load(Ordering::Relaxed) => continue,
                Err(_) => debug!("a control connection ended: it had lasted {LIFE:?}"),
            }
            break;
        }
    });
    Some(Client { task, busy })
}
