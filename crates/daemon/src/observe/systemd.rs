//! Reports to the service manager that started the daemon (sd_notify(3), `Type=notify`): ready, reloading, stopping, a status
//! line. Without `NOTIFY_SOCKET` in the environment nothing is reported.
//!
//! A watchdog is fed each time that every worker has finished a round: the keeper's, which kills and replaces this daemon alone, or, without
//! a keeper that has one, the service manager's (`WatchdogSec=`). Without either, and without reports, there is no thread.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_keeper::{Holder, WATCHES};
use sd_notify::NotifyState;
use tracing::warn;

use crate::daemon::{Daemon, PortView, Probe};

/// The status line is at most this old.
const STATUS_PERIOD: Duration = Duration::from_secs(5);
/// The manager recommends half of the watchdog's time. A third leaves room for a late answer.
const WATCHDOG_SHARE: u32 = 3;
/// The time between two looks for an answer that is late: the watchdog hears of it this much later at most.
const LATE_PERIOD: Duration = Duration::from_millis(250);

/// Whether a service manager listens.
fn is_supervised() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

/// Sends a report. A manager that does not take it is no reason to end, but it may end the daemon later: so the log has it.
fn report(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("the service manager was not told: {error}");
    }
}

/// The status line of `systemctl status`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Status {
    ports: usize,
    attached: usize,
    failed: usize,
    uplinks: Vec<String>,
}

impl Status {
    fn of(views: &[PortView]) -> Self {
        let ports = || views.iter().filter(|view| view.spec.is_some());
        Self {
            ports: ports().count(),
            attached: ports().filter(|view| view.state.attached).count(),
            failed: ports().filter(|view| view.state.failed.is_some()).count(),
            uplinks: views.iter().filter(|view| view.spec.is_none()).map(|view| view.name.clone()).collect(),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let Self { ports, attached, failed, uplinks } = self;
        write!(f, "{ports} port{}, {attached} with a VM", plural(*ports))?;
        if *failed > 0 {
            write!(f, ", {failed} failed")?;
        }
        match &uplinks[..] {
            [] => f.write_str("; no uplink"),
            names => write!(f, "; uplink{} {}", plural(names.len()), names.join(", ")),
        }
    }
}

/// The supervisor that ends a daemon whose workers stand still, and its time.
#[derive(Clone, Debug)]
enum Watchdog {
    /// The keeper.
    Keeper(Arc<Holder>, Duration),
    /// The service manager.
    Manager(Duration),
}

impl Watchdog {
    fn of(daemon: &Daemon) -> Option<Self> {
        let limit = std::env::var(WATCHES).ok().and_then(|limit| limit.parse().ok()).map(Duration::from_micros);
        match (daemon.holder(), limit) {
            (Some(keeper), Some(limit)) => Some(Self::Keeper(Arc::clone(keeper), limit)),
            _ => sd_notify::watchdog_enabled().map(Self::Manager),
        }
    }

    fn limit(&self) -> Duration {
        let (Self::Keeper(_, limit) | Self::Manager(limit)) = self;
        *limit
    }

    fn feed(&self) {
        match self {
            Self::Keeper(keeper, _) => keeper.lives(),
            Self::Manager(_) => report(&[NotifyState::Watchdog]),
        }
    }
}

/// Reports from time to time.
struct Rounds {
    daemon: Arc<Daemon>,
    /// The last status line.
    status: Status,
    /// Open question to the workers. `None`: there is no watchdog.
    probe: Option<Probe>,
}

impl Rounds {
    fn new(daemon: Arc<Daemon>, status: Status, is_watched: bool) -> Self {
        let probe = is_watched.then(|| daemon.probe());
        Self { daemon, status, probe }
    }

    /// Whether to feed the watchdog: every worker has answered since it was fed last.
    fn feeds(&mut self) -> bool {
        let feeds = self.probe.as_mut().is_some_and(Probe::is_answered);
        if feeds {
            self.probe = Some(self.daemon.probe());
        }
        feeds
    }

    /// The status line, if it is another one. Waits for a worker that is stuck in a port.
    fn status(&mut self) -> Option<String> {
        let status = Status::of(&self.daemon.views());
        let is_new = status != self.status;
        self.status = status;
        is_new.then(|| self.status.to_string())
    }

    /// Reports until it is stopped.
    fn run(&mut self, period: Duration, watchdog: Option<&Watchdog>, stopped: &Receiver<()>) {
        let (mut wait, is_supervised) = (period, is_supervised());
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let feeds = self.feeds();
            if feeds {
                watchdog.into_iter().for_each(Watchdog::feed);
            }
            if self.probe.is_some() && !feeds {
                wait = period.min(LATE_PERIOD);
                continue;
            }
            wait = period;
            if is_supervised && let Some(status) = self.status() {
                report(&[NotifyState::Status(&status)]);
            }
        }
    }
}

/// The reports of a serving daemon. Dropping it ends its thread.
#[derive(Debug)]
pub struct Supervision {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Supervision {
    /// Reports that all sockets listen, and keeps the status line and the watchdog up to date from now on.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn begin(daemon: &Arc<Daemon>) -> std::io::Result<Self> {
        let watchdog = Watchdog::of(daemon);
        if !is_supervised() && watchdog.is_none() {
            return Ok(Self { stop: None, thread: None });
        }
        // The keeper waits for further signs after the first one.
        watchdog.iter().for_each(Watchdog::feed);
        let first = Status::of(&daemon.views());
        report(&[NotifyState::Ready, NotifyState::Status(&first.to_string())]);
        let (stop, stopped) = channel();
        let period = period(watchdog.as_ref().map(Watchdog::limit));
        let mut rounds = Rounds::new(Arc::clone(daemon), first, watchdog.is_some());
        let thread = nicety_sandbox::spawn(nicety_sandbox::Kind::Supervision, "supervision", 256 << 10, move || {
            rounds.run(period, watchdog.as_ref(), &stopped);
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    /// Runs a reload between the two reports that the manager expects of it (`Type=notify-reload`, systemd 253 and later; earlier ones
    /// show the state `reloading`).
    pub fn reload(&self, reload: impl FnOnce()) {
        if self.thread.is_none() {
            return reload();
        }
        match NotifyState::monotonic_usec_now() {
            Ok(now) => report(&[NotifyState::Reloading, now]),
            Err(_) => report(&[NotifyState::Reloading]),
        }
        reload();
        report(&[NotifyState::Ready]);
    }

    /// Reports that the daemon ends. The watchdog is no longer fed, nor is it watched by then.
    pub fn stopping(&self) {
        if self.thread.is_some() {
            report(&[NotifyState::Stopping, NotifyState::Status("ending")]);
        }
    }
}

/// The time between two rounds.
fn period(watchdog: Option<Duration>) -> Duration {
    watchdog.map_or(STATUS_PERIOD, |limit| (limit / WATCHDOG_SHARE).min(STATUS_PERIOD))
}

impl Drop for Supervision {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the thread that reports to the service manager had panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use nicety_adapter::{Batch, Budget, Context, Progress};
    use nicety_plane::doubles::{Linked, Traffic};
    use nicety_switch::Limits;
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::daemon::JoiningUplink;

    #[test]
    fn the_status_line_counts_ports_and_vms_and_names_the_uplinks() {
        let one = Status { ports: 1, ..Status::default() };
        assert_eq!(one.to_string(), "1 port, 0 with a VM; no uplink");
        let uplinks = vec!["tap0".to_owned(), "querier".to_owned()];
        let some = Status { ports: 3, attached: 2, failed: 1, uplinks };
        assert_eq!(some.to_string(), "3 ports, 2 with a VM, 1 failed; uplinks tap0, querier");
    }

    #[test]
    fn the_watchdog_is_fed_well_within_its_time() {
        // sd_watchdog_enabled(3): every half of the time at the latest.
        for limit in [1, 10, 60, 3600].map(Duration::from_secs) {
            assert!(period(Some(limit)) * 2 < limit, "{limit:?}");
        }
        assert_eq!(period(None), STATUS_PERIOD);
    }

    /// An uplink that holds its worker until it is released.
    struct Stuck {
        entered: Sender<()>,
        released: Receiver<()>,
    }

    impl Traffic for Stuck {
        fn fetch(&mut self, _: u16, _: Budget, _: &mut Batch, _: &mut Context<'_>) -> Progress {
            let _nobody_asks = self.entered.send(());
            let _released = self.released.recv();
            Progress { more: false, armed: true }
        }
    }

    /// Waits until the watchdog is fed.
    fn is_fed(rounds: &mut Rounds) -> bool {
        let end = Instant::now() + Duration::from_secs(20);
        while !rounds.feeds() {
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    #[test]
    fn one_worker_of_two_that_is_stuck_stops_the_feeding_and_its_late_answer_feeds() {
        let daemon = Arc::new(Daemon::start(Limits::default(), 2).unwrap());
        let mut rounds = Rounds::new(Arc::clone(&daemon), Status::default(), true);
        assert!(is_fed(&mut rounds) && is_fed(&mut rounds), "both run");
        let ((entered, stuck), (release, released)) = (channel(), channel());
        let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
        let uplink = Box::new(Linked::new(Stuck { entered, released }).with_bell(bell));
        daemon.open_uplink(JoiningUplink::new("stuck", uplink)).unwrap();
        stuck.recv_timeout(Duration::from_secs(20)).expect("its worker asks the uplink for frames");
        // The last question may have been answered before. This one is asked while the worker is stuck: only the other worker answers.
        rounds.probe = Some(daemon.probe());
        let end = Instant::now() + Duration::from_secs(20);
        while rounds.probe.as_ref().unwrap().missing > 1 {
            assert!(Instant::now() < end, "the other worker runs");
            assert!(!rounds.feeds());
        }
        assert!(!rounds.feeds());
        drop(release);
        assert!(is_fed(&mut rounds), "the answer counts, however late it is");
    }

    #[test]
    fn workers_that_have_ended_feed_no_more_and_without_a_watchdog_nobody_is_asked() {
        let daemon = Arc::new(Daemon::start(Limits::default(), 2).unwrap());
        let mut unwatched = Rounds::new(Arc::clone(&daemon), Status::default(), false);
        assert!(!unwatched.feeds() && unwatched.status().is_none());
        daemon.stop();
        let mut rounds = Rounds::new(daemon, Status::default(), true);
        assert!(!rounds.feeds());
    }
}
