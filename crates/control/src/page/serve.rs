//! The page's server: few connections, each with time limits, one thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use nicety_host::Host;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::MissedTickBehavior;
use tracing::{debug, warn};

use super::Place;
use super::recent::Recent;
use super::requests;
use super::shown::Shown;
use crate::Inspect;

/// Most connections at once. Further ones wait to be accepted.
const CONNECTIONS_MAX: usize = 32;
/// The time that a client may take to ask, and to ask again.
const QUIET: Duration = Duration::from_secs(5);
/// Ports are looked at so often without a reader.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest duration of a connection.
const LIFE: Duration = Duration::from_secs(60);
/// The pause after the system refused a connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Server {
    place: Place,
    end: Arc<Notify>,
    shown: Arc<Shown>,
}

enum Accepting {
    Loopback(TcpListener),
    Socket(UnixListener),
}

impl Server {
    pub fn new(place: Place, end: Arc<Notify>, host: &Host, inspect: Arc<dyn Inspect>, recent: Arc<Recent>) -> Self {
        Self { place, end, shown: Arc::new(Shown::new(host, inspect, recent)) }
    }

    /// Serves until it is notified.
    pub fn run(self, runtime: &tokio::runtime::Runtime, leaves: &AtomicBool) {
        if let Err(error) = runtime.block_on(self.serve()) {
            warn!("the page is not served: {error}");
        }
        if leaves.load(Ordering::Relaxed) {
            // Dropped, a listener would remove its file.
            let _never_dropped = std::mem::ManuallyDrop::new(self.place);
        }
    }

    async fn serve(&self) -> io::Result<()> {
        let descriptor = self.place.descriptor()?;
        let accepting = match self.place {
            Place::Loopback(_) => Accepting::Loopback(TcpListener::from_std(descriptor.into())?),
            Place::Socket(_) => Accepting::Socket(UnixListener::from_std(descriptor.into())?),
        };
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.end.notified() => return Ok(()),
                _ = looks.tick() => {
                    self.shown.look();
                    continue;
                }
                accepted = self.accept(&accepting, &places) => accepted,
            };
            if let Err(error) = accepted
                && error.kind() != io::ErrorKind::ConnectionAborted
            {
                debug!("a reader of the page was not accepted: {error}");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }

    async fn accept(&self, accepting: &Accepting, places: &Arc<Semaphore>) -> io::Result<()> {
        let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
        match accepting {
            Accepting::Loopback(listener) => self.answer(listener.accept().await?.0, place),
            Accepting::Socket(listener) => self.answer(listener.accept().await?.0, place),
        }
        Ok(())
    }

    /// Speaks HTTP with a client, in its own task.
    fn answer(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, place: OwnedSemaphorePermit) {
        let shown = Arc::clone(&self.shown);
        let service = service_fn(move |request: Request<Incoming>| {
            let shown = Arc::clone(&shown);
            async move { Ok::<_, std::convert::Infallible>(requests::answer(&shown, &request).await) }
        });
        let task = async move {
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(QUIET).half_close(true);
            let connection = http.serve_connection(TokioIo::new(stream), service);
            match tokio::time::timeout(LIFE, connection).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(error)) => debug!("a connection to the page ended: {error}"),
            }
            drop(place);
        };
        drop(tokio::spawn(task));
    }
}
