//! How a daemon that ends takes leave of VMMs that stay.
//!
//! A connection that is closed while a message in it is unread is reset, and that ends QEMU 11.1, and the VM with it (`error_setv:
//! Assertion '*errp == NULL' failed`). So it is told first, and what it sends meanwhile is taken, unread.

use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

/// How long a VMM has to notice.
pub(super) const PATIENCE: Duration = Duration::from_millis(300);

/// Tells the peer of a connection that nothing more comes, and closes it when the peer has closed it or its time is over. Nobody
/// waits but whoever joins the thread. Without one it is closed at once.
pub(super) fn take_leave<S: AsFd + Send + 'static>(connection: S, patience: Duration) -> Option<JoinHandle<()>> {
    let _it_may_have_gone = shutdown(connection.as_fd(), Shutdown::Write);
    let wait = move || {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            // Nothing is asked for: that it is hung up on is told all the same.
            match poll(&mut [PollFd::new(&connection, PollFlags::empty())], Some(&left)) {
                Err(rustix::io::Errno::INTR) => {}
                _gone_or_over => return,
            }
        }
    };
    thread::Builder::new().name("farewell".to_owned()).spawn(wait).ok()
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
}
