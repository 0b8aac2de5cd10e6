//! Signs of life: the keeper waits for the daemon's, and the service manager for the keeper's (sd_notify(3), `WATCHDOG=1`).
//!
//! A daemon that has given one gives them from then on, each time that all its workers have finished a round. The keeper counts rounds
//! of its own without any, and not the time: so a machine or a process group that was stopped meanwhile costs no daemon.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};

/// The time after which a silent daemon is killed, if the service manager does not say another.
const LIMIT: Duration = Duration::from_secs(60);
/// Rounds in that time.
const ROUNDS: u32 = 6;

/// The service manager's socket. It is connected once: a sign of life needs no free descriptor.
#[derive(Debug)]
struct Manager(OwnedFd);

impl Manager {
    fn connect(name: &OsStr) -> Result<Self, Errno> {
        let address = match name.as_bytes().split_first() {
            Some((b'@', name)) => SocketAddrUnix::new_abstract_name(name)?,
            _ => SocketAddrUnix::new(name.as_bytes())?,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(&socket, &address)?;
        Ok(Self(socket))
    }

    fn feed(&self) -> Result<(), Errno> {
        send(&self.0, b"WATCHDOG=1\n", SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(drop)
    }
}

/// The keeper's watch.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The time after which a silent daemon is killed.
    pub limit: Duration,
    /// Whether the service manager waits for this process.
    is_watched: bool,
    manager: Option<Manager>,
    /// Rounds since the daemon's last sign. `None`: it has given none.
    silent: Option<u32>,
    next: Instant,
}

impl Watch {
    /// A watch with the environment's interval (sd_watchdog_enabled(3)).
    pub fn begin(now: Instant) -> Self {
        let mut watch = Self::with(sd_notify::watchdog_enabled(), now);
        watch.connect();
        watch
    }

    fn connect(&mut self) {
        let name = std::env::var_os("NOTIFY_SOCKET").filter(|_| self.is_watched);
        self.manager = name.and_then(|name| Manager::connect(&name).ok());
    }

    fn with(manager: Option<Duration>, now: Instant) -> Self {
        let limit = manager.filter(|limit| !limit.is_zero()).unwrap_or(LIMIT);
        Self { limit, is_watched: manager.is_some(), manager: None, silent: None, next: now }
    }

    /// The daemon lives.
    pub fn heard(&mut self) {
        self.silent = Some(0);
    }

    /// Another daemon serves, which has given no sign yet.
    pub fn begin_anew(&mut self) {
        self.silent = None;
    }

    /// The time of the next round, if there is any.
    pub fn next(&self) -> Option<Instant> {
        (self.is_watched || self.silent.is_some()).then_some(self.next)
    }

    fn feed(&mut self) {
        let fed = self.manager.as_ref().map(Manager::feed);
        if !matches!(fed, Some(Ok(()) | Err(Errno::AGAIN))) {
            // The manager was started anew. One that does not take it may end this process: nobody else could be told.
            self.connect();
            let _ = self.manager.as_ref().map(Manager::feed);
        }
    }

    /// Begins a round, if it is time. True if the daemon is to be killed.
    pub fn round(&mut self, now: Instant) -> bool {
        if self.next().is_none_or(|next| now < next) {
            return false;
        }
        self.next = now + self.limit / ROUNDS;
        if self.is_watched {
            self.feed();
        }
        let Some(silent) = &mut self.silent else { return false };
        *silent += 1;
        if *silent <= ROUNDS {
            return false;
        }
        self.silent = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_that_has_given_a_sign_and_gives_no_more_is_late_after_the_limit_and_once() {
        let limit = Duration::from_secs(6);
        let begun = Instant::now();
        let mut watch = Watch::with(Some(limit), begun);
        let rounds = |watch: &mut Watch, from: u32, to: u32| {
            (from..to).map(|second| watch.round(begun + Duration::from_secs(second.into()))).collect::<Vec<_>>()
        };
        assert_eq!(rounds(&mut watch, 0, 20), [false; 20], "it has given none yet");
        watch.heard();
        assert_eq!(rounds(&mut watch, 20, 26), [false; 6]);
        watch.heard();
        assert_eq!(rounds(&mut watch, 26, 34), [false, false, false, false, false, false, true, false]);
        watch.heard();
        // An hour in which this process did not run is one round.
        assert_eq!(rounds(&mut watch, 3634, 3636), [false; 2]);
        watch.begin_anew();
        assert_eq!(rounds(&mut watch, 3636, 3656), [false; 20]);
    }

    #[test]
    fn without_a_manager_there_are_rounds_only_for_a_daemon_that_gives_signs() {
        let begun = Instant::now();
        let mut watch = Watch::with(None, begun);
        assert_eq!((watch.next(), watch.limit), (None, LIMIT));
        watch.heard();
        assert_eq!(watch.next(), Some(begun));
    }
}
