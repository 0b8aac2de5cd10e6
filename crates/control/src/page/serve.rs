//! The page's server: few connections, each with time limits, one thread.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
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
use super::history::{FRESH, History};
use super::host;
use super::limits::Limits;
use super::recent::Recent;
use super::requests;
use super::view::View;
use crate::Inspect;

/// Most connections at once. Further ones wait to be accepted.
const CONNECTIONS_MOST: usize = 32;
/// The time that a client may take to ask, and to ask again.
const QUIET: Duration = Duration::from_secs(5);
/// Ports are looked at so often without a reader.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The host file's rates are read at most this often.
const LIMITS_FRESH: Duration = Duration::from_secs(1);
/// Most choices of the host's page that are kept for other readers of the same.
const PAGES_MOST: usize = 4;
/// The longest duration of a connection.
const LIFE: Duration = Duration::from_secs(60);
/// The pause after the system refused a connection.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct Server {
    place: Place,
    end: Arc<Notify>,
    shown: Arc<Shown>,
}

/// What requests are answered from.
pub(super) struct Shown {
    pub file: PathBuf,
    pub switch: String,
    pub inspect: Arc<dyn Inspect>,
    pub history: Mutex<History>,
    pub recent: Arc<Recent>,
    /// The lines in charts, of the host file that ran when it could last be read.
    limits: Mutex<(Option<Instant>, Arc<Limits>)>,
    /// The pages of the host as they were chosen last, and when each was made: however many ask for one, it is made twice a second at most.
    host_pages: Mutex<VecDeque<(View, Instant, Bytes)>>,
    /// The text of the metrics, as the page.
    metrics: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Shown {
    pub fn new(host: &Host, inspect: Arc<dyn Inspect>, recent: Arc<Recent>) -> Self {
        let (file, switch) = (host.path.clone(), host.switch.name.clone());
        Self {
            file,
            switch,
            inspect,
            history: Mutex::default(),
            recent,
            limits: Mutex::new((None, Arc::new(Limits::of(host)))),
            host_pages: Mutex::default(),
            metrics: Default::default(),
        }
    }

    /// The page of the host.
    pub fn host_page(&self, view: &View) -> Bytes {
        let mut made = self.host_pages.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, at, _)| at.elapsed() < FRESH);
        if let Some((.., page)) = made.iter().find(|(of, ..)| of == view) {
            return page.clone();
        }
        let page = Bytes::from(host::page(self, view));
        if made.len() == PAGES_MOST {
            made.pop_front();
        }
        made.push_back((view.clone(), Instant::now(), page.clone()));
        page
    }

    /// Looks at the ports, for the charts of those who read later.
    fn look(&self) {
        if self.inspect.is_ready() {
            let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
            history.tick(self.inspect.as_ref(), Instant::now());
        }
    }

    /// The lines in charts. During a change they are those from before.
    pub fn limits(&self) -> Arc<Limits> {
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        if limits.0.is_none_or(|at| at.elapsed() >= LIMITS_FRESH)
            && let Some(new) = self.inspect.live().and_then(|live| live.try_host(Limits::of))
        {
            *limits = (Some(Instant::now()), Arc::new(new));
        }
        Arc::clone(&limits.1)
    }

    /// The text of the metrics. Readers that come meanwhile wait for the same text.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn metrics(&self) -> Result<Bytes, String> {
        let mut made = self.metrics.lock().await;
        if let Some((at, text)) = &*made
            && at.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let live = self.inspect.live().ok_or("this daemon serves no host file")?;
        let text = crate::metrics::text(live).await.map_err(|problem| problem.detail.clone())?;
        let text = Bytes::from(text);
        *made = Some((Instant::now(), text.clone()));
        Ok(text)
    }
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
        let places = Arc::new(Semaphore::new(CONNECTIONS_MOST));
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use nicety_daemon::daemon::{NoteBytes, RestartError};
    use nicety_daemon::report::PortReport;
    use nicety_daemon::saved::{PortState, SaveError};

    use super::*;
    use crate::api::AddressList;

    /// Counts how often it is asked.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Inspect for Counting {
        fn is_ready(&self) -> bool {
            true
        }

        fn ports(&self) -> Vec<PortReport> {
            self.0.fetch_add(1, Ordering::Relaxed);
            vec![crate::tests::port("vm1")]
        }

        fn carried(&self, note: &mut NoteBytes<'_>) {
            crate::tests::carried(&[crate::tests::port("vm1")], note);
        }

        fn addresses(&self) -> AddressList {
            AddressList { addresses: Vec::new(), more: 0 }
        }

        fn restart(&self, name: &str) -> Result<(), RestartError> {
            Err(RestartError::Missing(name.to_owned()))
        }

        fn save(&self, name: &str) -> Result<PortState, SaveError> {
            Err(SaveError::Missing(name.to_owned()))
        }

        fn restore(&self, name: &str, _: PortState) -> Result<(), SaveError> {
            Err(SaveError::Missing(name.to_owned()))
        }
    }

    #[test]
    fn many_readers_share_a_page() {
        let host = Host::parse("", std::path::Path::new("/etc/host.toml")).unwrap();
        let counting = Arc::<Counting>::default();
        let shown = Shown::new(&host, Arc::clone(&counting) as Arc<dyn Inspect>, Arc::default());
        let begin = Instant::now();
        (0..1000).for_each(|_| assert!(!shown.host_page(&View::default()).is_empty()));
        let (asked, most) = (counting.0.load(Ordering::Relaxed), begin.elapsed().as_millis() / FRESH.as_millis() + 1);
        assert!(asked as u128 <= most, "{asked} times in {:?}", begin.elapsed());
    }
}
