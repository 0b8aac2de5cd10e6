//! Descriptors that a peer has sent, and how they are got rid of.
//!
//! Closing may wait: for the server of a FUSE file system, which may be the peer (FLUSH); for data that a TCP socket lingers over
//! (socket(7), and a UNIX socket may have one on its way in it); for a pipe's lock. So a descriptor of which it is not known that
//! closing it takes no time is closed by a thread of its own; so many of those, and no more, may wait at once.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{fcntl_get_seals, readlink};

use crate::release::{holds_much, release};

/// How many descriptors may be waited for at once until they are closed.
pub const CLOSING_MOST: usize = 64;

static CLOSING: AtomicUsize = AtomicUsize::new(0);
static LEFT_OPEN: AtomicUsize = AtomicUsize::new(0);

/// A descriptor of a peer's. Dropped, it is closed, and nobody waits for that.
#[derive(Debug)]
pub struct Lent(Option<OwnedFd>);

impl From<OwnedFd> for Lent {
    fn from(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }
}

impl From<Lent> for OwnedFd {
    fn from(mut lent: Lent) -> Self {
        lent.0.take().expect("it goes with what it is in")
    }
}

impl AsFd for Lent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("it goes with what it is in").as_fd()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            // F_GET_SEALS is answered by the kernel, for memory files alone (fcntl(2)).
            match fcntl_get_seals(&fd) {
                Ok(_) if holds_much(fd.as_fd()) => release(fd),
                Ok(_) => drop(fd),
                Err(_) => discard(fd, closes_at_once, drop),
            }
        }
    }
}

/// How many descriptors stay open because [`CLOSING_MOST`] others wait to be closed already, or no thread could be started.
pub fn left_open() -> usize {
    LEFT_OPEN.load(Ordering::Relaxed)
}

/// Whether it is an eventfd. The question waits for nobody, unlike fstat(2).
fn closes_at_once(fd: BorrowedFd<'_>) -> bool {
    readlink(format!("/proc/self/fd/{}", fd.as_raw_fd()), Vec::new())
        .is_ok_and(|name| name.as_bytes() == b"anon_inode:[eventfd]")
}

fn discard(fd: OwnedFd, at_once: fn(BorrowedFd<'_>) -> bool, close: fn(OwnedFd)) {
    if at_once(fd.as_fd()) {
        return close(fd);
    }
    let mut kept = Kept(Some(fd));
    if CLOSING.fetch_add(1, Ordering::Relaxed) < CLOSING_MOST {
        let closes = move || {
            kept.0.take().map(close);
            CLOSING.fetch_sub(1, Ordering::Relaxed);
        };
        if thread::Builder::new().name("closing".to_owned()).spawn(closes).is_ok() {
            return;
        }
    }
    CLOSING.fetch_sub(1, Ordering::Relaxed);
}

/// A descriptor that is left open if nobody takes it.
struct Kept(Option<OwnedFd>);

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let _open = fd.into_raw_fd();
            LEFT_OPEN.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
    use rustix::io::pwrite;
    use rustix::pipe::pipe;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    /// Whoever has it has all that wait in `slow` wait.
    static SERVER: Mutex<()> = Mutex::new(());

    fn slow(fd: OwnedFd) {
        let _answered = SERVER.lock();
        drop(fd);
    }

    /// A pipe's write end, and what reads its end of file once that is closed.
    fn watched() -> (OwnedFd, OwnedFd) {
        let (read, write) = pipe().unwrap();
        (write, read)
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn of_all_but_memory_files_eventfds_alone_are_closed_by_whoever_drops_them() {
        assert!(closes_at_once(eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_fd()));
        let (write, read) = watched();
        let file = open("/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        for fd in [write, read, file, one.into()] {
            assert!(!closes_at_once(fd.as_fd()));
        }
    }

    #[test]
    fn nobody_waits_for_a_descriptor_to_be_closed_and_beyond_a_bound_they_stay_open() {
        let busy = SERVER.lock().unwrap();
        let (write, first) = watched();
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            discard(write, |_| false, slow);
            let more: Vec<_> = (0..CLOSING_MOST + 5).map(|_| watched()).collect();
            for (write, _) in more {
                discard(write, |_| false, slow);
            }
            done.send(()).unwrap();
        });
        finished.recv_timeout(PATIENCE).expect("it waits for a descriptor to be closed");
        assert_eq!(left_open(), 6, "all but those that are being closed");
        drop(busy);
        rustix::io::read(&first, &mut [0]).unwrap();
        until("the others are closed", || CLOSING.load(Ordering::Relaxed) == 0);
        // A place has become free.
        let (write, read) = watched();
        drop(Lent::from(write));
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0));
        // Of memory files none stays open, however many there are and whatever they hold.
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        pwrite(&memory, &vec![1; 2 << 20], 0).unwrap();
        (0..4 * CLOSING_MOST).for_each(|_| drop(Lent::from(memory.try_clone().unwrap())));
        assert_eq!(left_open(), 6);
    }
}
