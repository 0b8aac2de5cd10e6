//! The state from which the page's requests are answered.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use nicety_host::Host;

use super::history::{FRESH, History};
use super::limits::Limits;
use super::recent::Recent;
use super::view::View;
use crate::Inspect;

/// The host file's rates are read at most this often.
const LIMITS_FRESH: Duration = Duration::from_secs(1);
/// Most choices of the host's page that are kept for other readers of the same.
const PAGES_MAX: usize = 4;

/// The state from which requests are answered.
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

    /// The page of the host, as it was made for another reader of the same lately, or as `make` makes it.
    pub fn host_page(&self, view: &View, make: impl FnOnce() -> String) -> Bytes {
        let mut made = self.host_pages.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, at, _)| at.elapsed() < FRESH);
        if let Some((.., page)) = made.iter().find(|(of, ..)| of == view) {
            return page.clone();
        }
        let page = Bytes::from(make());
        if made.len() == PAGES_MAX {
            made.pop_front();
        }
        made.push_back((view.clone(), Instant::now(), page.clone()));
        page
    }

    /// Looks at the ports, for the charts of those who read later.
    pub fn look(&self) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nicety_daemon::daemon::{NoteBytes, RestartError};
    use nicety_daemon::report::PortReport;
    use nicety_daemon::saved::{PortState, SaveError};

    use super::*;
    use crate::api::AddressList;
    use crate::page::host;

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
        let page = |shown: &Shown| shown.host_page(&View::default(), || host::page(shown, &View::default()));
        let begin = Instant::now();
        (0..1000).for_each(|_| assert!(!page(&shown).is_empty()));
        let (asked, most) = (counting.0.load(Ordering::Relaxed), begin.elapsed().as_millis() / FRESH.as_millis() + 1);
        assert!(asked as u128 <= most, "{asked} times in {:?}", begin.elapsed());
    }
}
