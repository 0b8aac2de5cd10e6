//! A port that connects to its front end (QEMU: `server=on`; DPDK's virtio-user: `server=1`): it tries until one listens, and again
//! when it has gone. The socket's file is the front end's: nothing here makes or removes it.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nicety_bell::Lent;
use nicety_socket::{JoinError, PeerCredentials, join};
use nicety_vhost_user::TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::SocketType;

use super::{Served, Stop, session};
use crate::port_log::Kind;

/// The pause before the next try: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Why no front end is there, for a person.
#[derive(Debug, Default)]
pub(super) struct Sought(Mutex<Option<String>>);

impl Sought {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn why(&self) -> Option<String> {
        self.lock().clone()
    }

    /// Whether it is another reason than before.
    fn is_new(&self, why: &str) -> bool {
        let mut last = self.lock();
        let is_new = last.as_deref() != Some(why);
        *last = Some(why.to_owned());
        is_new
    }
}

/// Serves the front end that listens at a path, one after another, until asked to stop.
pub(super) fn serve(path: &Path, served: &Arc<Served>, stop: &Stop, sought: &Sought) {
    let mut pause = PAUSES.0;
    while !stop.is_asked() {
        // A port that has failed is served by another thread when it is restarted.
        if served.port.failure().is_some() {
            stop.pause(PAUSES.1);
            continue;
        }
        let place = identity(path);
        match join(path, SocketType::STREAM) {
            Ok(socket) => {
                let begun = Instant::now();
                let peer = PeerCredentials::of(&socket);
                let what = format_args!("connected to the front end at {}", path.display());
                served.log.say_of(Kind::Connected, peer.map(|peer| peer.pid), what);
                *sought.lock() = None;
                if speaks(&socket, path, place, served, stop, sought) && served.port.failure().is_none() {
                    *sought.lock() = None;
                    session(socket, None, served, stop);
                } else {
                    // It may have sent something that takes long to be closed.
                    drop(Lent::from(socket));
                }
                // One that goes at once, again and again, is no better than none.
                if begun.elapsed() >= PAUSES.1 {
                    pause = PAUSES.0;
                }
            }
            Err(error) => {
                let why = format!("connecting to {}: {error}", path.display());
                let kind = if error == JoinError::Nobody { Kind::Sought } else { Kind::Unreached };
                if sought.is_new(&why) {
                    served.log.say(kind, format_args!("{why}; it is tried again, at least every {:?}", PAUSES.1));
                }
            }
        }
        stop.pause(pause);
        pause = (2 * pause).min(PAUSES.1);
    }
}

/// Waits until the front end says something, or has gone. A connection waits at its socket while another back end has it (QEMU), or
/// until the front end asks for the link (DPDK), and is its own as soon as it takes it: it is given up only if another socket is at
/// the path by then.
fn speaks(
    socket: &OwnedFd,
    path: &Path,
    place: Option<(u64, u64)>,
    served: &Served,
    stop: &Stop,
    sought: &Sought,
) -> bool {
    let timeout = Timespec { tv_sec: TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    while !stop.is_asked() {
        let mut ready =
            [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(stop.bell.as_fd(), PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => {}
            _ if !ready[0].revents().is_empty() => return true,
            // It is asked to stop, or a signal came.
            _ => continue,
        }
        let why = format!(
            "connected to {}: who listens there has said nothing for {TIMEOUT:?}: it hangs, is no vhost-user front end, or has another \
             back end",
            path.display()
        );
        if sought.is_new(&why) {
            served.log.say(Kind::Unreached, why);
        }
        if identity(path) != place {
            return false;
        }
    }
    false
}

/// Which file is at a path: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}
