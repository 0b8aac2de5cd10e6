//! The server: one thread, and a [bounded number](super::clients) of connections. No client blocks another. A silent client is
//! disconnected after [`TIMEOUT`], or as soon as its place is needed. Changes run on their own threads, one at a time.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nicety_daemon::clock::Clock;
use nicety_daemon::port_log::{Share, counted};
use nicety_keeper::Opener;
use nicety_socket::{Listener, PeerCredentials};
use tokio::net::UnixListener;
use tokio::sync::Notify;
use tower_service::Service;
use tracing::{debug, warn};

use super::beside::changes_end;
use super::body::Busy;
use super::budget::{Budget, Meter, Metered};
use super::clients::{Client, Clients};
use super::handed::{Coming, Handed, Stream};
use super::served::{Peer, Served};
use super::stream::Endless;
use super::{TIMEOUT, routes};

/// The longest duration of a connection, unless it is a capture's.
const LIFE: Duration = Duration::from_secs(60);
/// Connections of users who may only read that are accepted at once. Then the next one waits for a [`BREATH`]: connecting costs
/// such a user less than it costs the daemon.
const READERS_AT_ONCE: u32 = 4;
const BREATH: Duration = Duration::from_millis(1);
/// The time that clients have to read their answers when another daemon serves already.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// The pause after the system refused a connection (for example without free descriptors).
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

/// The control socket's server.
pub(super) struct Server {
    /// Dropping it removes the socket's file.
    pub(super) listener: Listener,
    pub(super) accepting: Accepting,
    /// Ends the server.
    pub(super) end: Arc<Notify>,
    pub(super) served: Arc<Served>,
}

/// The process that accepts the connections.
pub(super) enum Accepting {
    /// This process, from this listening socket.
    Own(OwnedFd),
    /// Another process, which has read what a connection begins with (docs/adr/0027).
    Handed(Coming),
}

impl Accepting {
    pub(super) fn new(listener: &Listener, opener: Option<&Opener>) -> io::Result<Self> {
        Ok(match opener.and_then(|opener| opener.accepts(listener.as_fd())) {
            Some(connections) => Self::Handed(Coming::new(connections)?),
            None => Self::Own(listener.as_fd().try_clone_to_owned()?),
        })
    }
}

/// [`Accepting`] in a runtime.
enum Source {
    Own(UnixListener),
    Handed(Handed),
}

impl Source {
    fn new(accepting: Accepting) -> io::Result<Self> {
        Ok(match accepting {
            Accepting::Own(listener) => Self::Own(UnixListener::from_std(listener.into())?),
            Accepting::Handed(connections) => Self::Handed(Handed::new(connections)?),
        })
    }

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Own(listener) => Ok(Stream::of(listener.accept().await?.0)),
            Self::Handed(handed) => handed.accept().await,
        }
    }
}

impl Server {
    /// Serves until it is notified.
    pub(super) fn run(self, runtime: &tokio::runtime::Runtime) {
        if let Err(error) = runtime.block_on(self.serve()) {
            warn!("waiting for control connections: {error}");
        }
        // Changes that have begun are finished.
        runtime.block_on(changes_end());
    }

    async fn serve(self) -> io::Result<()> {
        let Self { listener: _removes_the_file, accepting, end, served } = self;
        let source = Source::new(accepting)?;
        let router = routes::router(Arc::clone(&served));
        // A client that holds all descriptors causes no more log lines than any other.
        let (clock, mut share) = (Clock::start(), Share::default());
        let (mut clients, budget, mut readers) = (Clients::default(), Arc::<Budget>::default(), 0u32);
        let mut paused = served.paused.subscribe();
        let looped = served.inspect.looped().unwrap_or_default();
        loop {
            if let Some(live) = served.handed_over() {
                clients.finish(LAST_ANSWERS).await;
                live.end_handed_over();
                end.notified().await;
                return Ok(());
            }
            let is_paused = *paused.borrow_and_update();
            let undo_at = served.inspect.live().and_then(|live| live.undo_at());
            let accepted = tokio::select! {
                biased;
                () = end.notified() => return Ok(()),
                _ = paused.changed() => continue,
                () = looped.notified() => {
                    keep_loops(&served);
                    continue;
                }
                () = served.waits.notified() => continue,
                () = sleep_until(undo_at) => {
                    undo_late(&served);
                    continue;
                }
                accepted = source.accept(), if !is_paused => accepted,
            };
            clients.tidy();
            match accepted {
                Ok(stream) => {
                    let peer = PeerCredentials::of(stream.socket());
                    let reader = peer.filter(|_| !served.changers.has(peer)).map(|peer| peer.uid);
                    clients.make_room_for(reader);
                    let meter = reader.map(|user| Meter::new(&budget, user));
                    clients.add(answer(stream, peer, &router, meter));
                    readers += u32::from(reader.is_some());
                    if readers >= READERS_AT_ONCE {
                        readers = 0;
                        tokio::time::sleep(BREATH).await;
                    }
                }
                // The client has gone already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                // No descriptors are left: disconnect a silent client to free one.
                Err(_) if clients.make_room() => {}
                Err(error) => {
                    if let Some(suppressed) = share.admit(clock.now()) {
                        warn!(
                            "{}",
                            counted(format_args!("a control connection was not accepted: {error}"), suppressed)
                        );
                    }
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            }
            // Connected clients are served before the next one is accepted.
            tokio::task::yield_now().await;
        }
    }
}

/// Keeps what runs, beside this thread, which may not open files.
fn keep_loops(served: &Served) {
    let Some(live) = served.inspect.live() else { return };
    let keep = move || live.keep_loops();
    if let Err(error) = nicety_sandbox::spawn(nicety_sandbox::Kind::ControlChange, "control-change", 0, keep) {
        warn!("an uplink was blocked, and that is not kept: {error}");
    }
}

/// Waits until then. `None`: for ever.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

/// Undoes a change that nobody has confirmed in time, beside this thread.
fn undo_late(served: &Arc<Served>) {
    let Some(live) = served.inspect.live().filter(|live| live.is_late()) else { return };
    let served = Arc::clone(served);
    let undo = move || {
        live.undo_late();
        served.waits.notify_one();
    };
    if let Err(error) = nicety_sandbox::spawn(nicety_sandbox::Kind::ControlChange, "control-change", 0, undo) {
        warn!("a change that nobody has confirmed is not undone yet: {error}");
    }
}

/// Speaks HTTP with a client, in its own task.
fn answer(stream: Stream, peer: Peer, router: &Router, meter: Option<Meter>) -> Client {
    let reader = meter.as_ref().and(peer).map(|peer| peer.uid);
    let busy = Arc::new(AtomicBool::new(false));
    let (answering, router) = (Arc::clone(&busy), router.clone());
    let endless = Arc::new(AtomicBool::new(false));
    let (goes_on, pays) = (Arc::clone(&endless), meter.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (answering, mut router) = (Arc::clone(&answering), router.clone());
        let (endless, pays) = (Arc::clone(&endless), pays.clone());
        async move {
            if let Some(meter) = pays {
                meter.paid().await;
            }
            let mut request = request.map(Body::new);
            answering.store(request.body().is_end_stream(), Ordering::Relaxed);
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(Busy(Arc::clone(&answering)));
            let answer = router.call(request).await;
            // An endless answer keeps its place until it ends.
            let lasts = answer.as_ref().is_ok_and(|answer| answer.extensions().get::<Endless>().is_some());
            endless.store(lasts, Ordering::Relaxed);
            answering.store(lasts, Ordering::Relaxed);
            answer
        }
    });
    let task = async move {
        let mut http = hyper::server::conn::http1::Builder::new();
        // A client may close its half after the request, as socat does.
        http.timer(TokioTimer::new()).header_read_timeout(TIMEOUT).half_close(true);
        http.keep_alive(stream.may_ask_again());
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
    };
    Client { task: tokio::spawn(Metered::new(task, meter)), busy, reader }
}
