//! Closes connections to VMMs, at the end of the daemon and when the port is taken.
//!
//! Closing a connection with an unread message resets it, and a reset makes QEMU 11.1 abort with its VM
//! (`error_setv: Assertion '*errp == NULL' failed`). So the daemon shuts down its half first, then reads and discards the VMM's
//! last messages.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicety_vfio_user::decline;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

/// The time that a VMM has to notice the end.
pub(super) const TIMEOUT: Duration = Duration::from_millis(300);

/// Shuts down our half of a connection. A thread closes it when the peer has closed its half, or after the timeout. Only a caller
/// that joins the thread waits. If no thread can be started, the connection is closed at once.
pub(super) fn close_gently<S: AsFd + Send + 'static>(connection: S, timeout: Duration) -> Option<JoinHandle<()>> {
    let _peer_gone = shutdown(connection.as_fd(), Shutdown::Write);
    in_a_thread(move || wait_for(&connection, PollFlags::empty(), Instant::now() + timeout))
}

/// Like [`close_gently`], for a VMM whose port is taken. The refusal answers its first message, which comes at once.
pub(super) fn decline_gently<S: AsFd + Send + 'static>(connection: S, timeout: Duration) -> Option<JoinHandle<()>> {
    in_a_thread(move || {
        let end = Instant::now() + timeout;
        wait_for(&connection, PollFlags::IN, end);
        // A VMM that got the answer disconnects, so no shutdown is needed.
        if !decline(&connection, Errno::BUSY) {
            let _peer_gone = shutdown(&connection, Shutdown::Write);
        }
        wait_for(&connection, PollFlags::empty(), end);
    })
}

fn in_a_thread(act: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    nicety_sandbox::spawn(nicety_sandbox::Kind::Farewell, "farewell", 0, act).ok()
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
        let closer = close_gently(ours, Duration::from_secs(3600)).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "nothing more comes");
        peer.write_all(b"a message").unwrap();
        assert!(!closer.is_finished());
        drop(peer);
        closer.join().unwrap();

        let (ours, mut peer) = UnixStream::pair().unwrap();
        close_gently(ours, Duration::from_millis(1)).unwrap().join().unwrap();
        assert_eq!(peer.write(b"a message").unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn who_is_turned_away_hears_why_or_the_end() {
        // VERSION (vfio-user.rst, "Header"), answered with the error EBUSY.
        let version = [7, 0, 1, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let busy = [7, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 16, 0, 0, 0];
        for (says, hears) in [(&version[..], &busy[..]), (b"garbage garbage", b"")] {
            let (ours, mut peer) = UnixStream::pair().unwrap();
            let closer = decline_gently(ours, Duration::from_secs(3600)).unwrap();
            peer.write_all(says).unwrap();
            let mut received = [0; 16];
            let count = peer.read(&mut received).unwrap();
            assert_eq!(&received[..count], hears);
            assert!(!closer.is_finished(), "what is unread would reset the connection");
            drop(peer);
            closer.join().unwrap();
        }
        let (ours, mut peer) = UnixStream::pair().unwrap();
        decline_gently(ours, Duration::from_millis(1)).unwrap().join().unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "who says nothing is not waited for");
    }
}
