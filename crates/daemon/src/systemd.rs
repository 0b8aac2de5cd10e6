//! Reports to the service manager that started the daemon (sd_notify(3), `Type=notify`): ready, reloading, stopping, a status
//! line, and a watchdog (`WatchdogSec=`) that is fed only while every worker finishes its rounds. Without `NOTIFY_SOCKET` in the
//! environment nothing is reported, and there is no thread.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use sd_notify::NotifyState;
use tracing::warn;

use crate::daemon::{Daemon, PortView};

/// The status line is at most this old.
const STATUS_PERIOD: Duration = Duration::from_secs(5);
/// The manager recommends half of the watchdog's time. A third leaves room for a late probe.
const WATCHDOG_SHARE: u32 = 3;

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
        if !is_supervised() {
            return Ok(Self { stop: None, thread: None });
        }
        let first = Status::of(&daemon.views());
        report(&[NotifyState::Ready, NotifyState::Status(&first.to_string())]);
        let (stop, stopped) = channel();
        let (daemon, watchdog) = (Arc::clone(daemon), sd_notify::watchdog_enabled());
        let period = period(watchdog);
        let thread = nicety_sandbox::spawn(nicety_sandbox::Kind::Supervision, "supervision", 256 << 10, move || {
            let mut said = first;
            while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                if watchdog.is_some() && daemon.workers_progress(period) {
                    report(&[NotifyState::Watchdog]);
                }
                let status = Status::of(&daemon.views());
                if status != said {
                    report(&[NotifyState::Status(&status.to_string())]);
                    said = status;
                }
            }
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
    use nicety_switch::Limits;

    use super::*;

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

    #[test]
    fn workers_that_run_answer_a_probe_and_workers_that_have_ended_do_not() {
        let daemon = Daemon::start(Limits::default(), 2).unwrap();
        assert!(daemon.workers_progress(Duration::from_secs(10)));
        daemon.stop();
        assert!(!daemon.workers_progress(Duration::from_millis(50)));
    }
}
