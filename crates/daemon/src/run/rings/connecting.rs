//! A port that connects to its front end (QEMU: `server=on`; DPDK's virtio-user: `server=1`). It tries until a front end listens,
//! and again after the front end has gone. The socket's file is the front end's: nothing here makes or removes it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nicety_peer::PeerFd;
use nicety_socket::{JoinError, PeerCredentials, join};
use nicety_vhost_user::TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketType;

use super::{Served, Stop, session};
use crate::run::port_log::Kind;

/// The pause before the next try: the first and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The reason why no front end is there, for a person.
#[derive(Debug, Default)]
pub(super) struct Absence(Mutex<Option<String>>);

impl Absence {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn why(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Stores a reason. Returns whether it differs from the last one.
    fn is_new(&self, why: &str) -> bool {
        let mut last = self.lock();
        let is_new = last.as_deref() != Some(why);
        *last = Some(why.to_owned());
        is_new
    }
}

/// Serves one front end after another that listens at a path, until asked to stop.
pub(super) fn serve(path: &Path, served: &Arc<Served>, stop: &Stop, absence: &Absence) {
    let mut pause = PAUSES.0;
    while !stop.is_asked() {
        // A port that has failed is served by another thread when it is restarted.
        if served.failure().is_some() {
            stop.pause(PAUSES.1, served, None);
            continue;
        }
        let place = identity(path);
        nicety_sandbox::forget_refused_here();
        match join(path, SocketType::STREAM) {
            Ok(socket) => {
                let begun = Instant::now();
                let peer = PeerCredentials::of(&socket);
                let what = format_args!("connected to the front end at {}", path.display());
                served.log.say_of(Kind::Connected, peer.map(|peer| peer.pid), what);
                *absence.lock() = None;
                if speaks(&socket, path, place, served, stop, absence) && served.failure().is_none() {
                    *absence.lock() = None;
                    session(socket, None, served, stop);
                } else {
                    // The front end may have sent a descriptor that takes long to be closed.
                    drop(PeerFd::from(socket));
                }
                // A front end that disconnects at once, again and again, is no better than none.
                if begun.elapsed() >= PAUSES.1 {
                    pause = PAUSES.0;
                }
            }
            Err(error) => {
                let why = format!("connecting to {}: {error}{}", path.display(), nicety_sandbox::refused_here());
                let kind = if error == JoinError::Nobody { Kind::NotListening } else { Kind::Unreached };
                if absence.is_new(&why) {
                    served.log.say(kind, format_args!("{why}; it is tried again, at least every {:?}", PAUSES.1));
                }
            }
        }
        stop.pause(pause, served, None);
        pause = (2 * pause).min(PAUSES.1);
    }
}

/// Waits until the front end sends something or disconnects. A connection waits at the front end's socket while another back end
/// has the front end (QEMU), or until the front end asks for the link (DPDK). The front end serves it as soon as it accepts it.
/// So the connection is given up only if the path has another socket by then.
fn speaks(
    socket: &OwnedFd,
    path: &Path,
    place: Option<(u64, u64)>,
    served: &Served,
    stop: &Stop,
    absence: &Absence,
) -> bool {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    while !stop.is_asked() {
        // A connection that nobody has served is made again by the next process.
        stop.stand(|_| served.front(None, None));
        let mut ready =
            [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(stop.bell.as_fd(), PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => {}
            _ if !ready[0].revents().is_empty() => return true,
            // The thread is asked to stop, or a signal came.
            _ => continue,
        }
        let why = format!(
            "connected to {}: who listens there has said nothing for {TIMEOUT:?}: it hangs, is no vhost-user front end, or has another \
             back end",
            path.display()
        );
        if absence.is_new(&why) {
            served.log.say(Kind::Unreached, why);
        }
        if identity(path) != place {
            return false;
        }
    }
    false
}

/// The identity of the file at a path: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}
