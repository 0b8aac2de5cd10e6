//! How connections to VMMs are closed: when the daemon ends, and when the port is taken.
//!
//! Closing a connection with an unread message resets it, and a reset makes QEMU 11.1 abort with its VM (`error_setv: Assertion
//! '*errp == NULL' failed`). So the daemon shuts down its half first, then reads and discards what the VMM still sends.

use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nicety_vfio_user::decline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

/// How long a VMM has to notice.
pub(super) const TIMEOUT: Duration = Duration::from_millis(300);

/// Shuts down our half of a connection. A thread closes it when the peer has closed its half, or after the timeout. Nobody waits,
/// except a caller that joins the thread. If no thread can be started, the connection is closed at once.
pub(super) fn take_leave<S: AsFd + Send + 'static>(connection: S, timeout: Duration) -> Option<JoinHandle<()>> {
    let _it_may_have_gone = shutdown(connection.as_fd(), Shutdown::Write);
    in_a_thread(move || wait_for(&connection, PollFlags::empty(), Instant::now() + timeout))
}

/// As [`take_leave`], for a VMM whose port is taken: its first message, which comes at once, is answered with the refusal.
pub(super) fn turn_away<S: AsFd + Send + 'static>(connection: S, timeout: Duration) -> Option<JoinHandle<()>> {
    in_a_thread(move || {
        let end = Instant::now() + timeout;
        wait_for(&connection, PollFlags::IN, end);
        // A VMM that got the answer disconnects: no shutdown needed.
        if !decline(&connection, Errno::BUSY) {
            let _it_may_have_gone = shutdown(&connection, Shutdown::Write);
        }
        wait_for(&connection, PollFlags::empty(), end);
    })
}

fn in_a_thread(act: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    thread::Builder::new().name("farewell".to_owned()).spawn(act).ok()
}

/// Waits for `what`, or until the peer has hung up, which poll(2) always reports.
fn wait_for(connection: &impl AsFd, what: PollFlags, end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        if !matches!(poll(&mut [PollFd::new(connection, what)], Some(&left)), Err(Errno::INTR)) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_is_told_and_may_send_until_it_has_gone_or_its_time_is_over() {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let leaving = take_leave(ours, Duration::from_secs(3600)).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "nothing more comes");
        peer.write_all(b"a message").unwrap();
        assert!(!leaving.is_finished());
        drop(peer);
        leaving.join().unwrap();

        let (ours, mut peer) = UnixStream::pair().unwrap();
        take_leave(ours, Duration::from_millis(1)).unwrap().join().unwrap();
        assert_eq!(peer.write(b"a message").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_is_turned_away_hears_why_or_the_end() {
        // VERSION (vfio-user.rst, "Header"), answered with an error, EBUSY.
        let version = [7, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let busy = [7, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 16, 0, 0, 0];
        for (says, hears) in [(&version[..], &busy[..]), (b"garbage garbage", b"")] {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            let leaving = turn_away(ours, Duration::from_secs(3600)).unwrap();
            peer.write_all(says).unwrap();
            let mut heard = [0; 16];
            let count = peer.read(&mut heard).unwrap();
            assert_eq!(&heard[..count], hears);
            assert!(!leaving.is_finished(), "what is unread would reset the connection");
            drop(peer);
            leaving.join().unwrap();
        }
        let (ours, mut peer) = UnixStream::pair().unwrap();
        turn_away(ours, Duration::from_millis(1)).unwrap().join().unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "who says nothing is not waited for");
    }
}
