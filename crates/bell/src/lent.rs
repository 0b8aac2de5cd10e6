//! Descriptors that a peer has sent, and how they are got rid of.
//!
//! Closing may wait: for the server of a FUSE file system, which may be the peer (FLUSH); for data that a TCP socket lingers over
//! (socket(7), and a UNIX socket may have one on its way in it); for a pipe's lock; for that of an epoll which the peer has put it
//! into, be it an eventfd, and which copies events to where a page is missing (epoll_wait(2), userfaultfd(2)). So whatever is no
//! memory file, which no epoll takes, is closed by other threads, so many at most; what comes while all of those are waiting waits for
//! one.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

use crate::release::{holds_much, release};

/// How many descriptors may be waited for at once until they are closed.
pub const CLOSING_MOST: usize = 64;
/// A thread's stack: it calls close(2).
const STACK: usize = 128 << 10;
/// When nothing was closed for so long, somebody has all threads wait.
const STUCK: Duration = Duration::from_secs(1);

static CLOSERS: Closers = Closers::new(drop);

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
                Err(_) => CLOSERS.take(fd),
            }
        }
    }
}

/// How many descriptors stay open because [`CLOSING_MOST`] others have been waiting to be closed for a while.
pub fn left_open() -> usize {
    CLOSERS.left_open()
}

/// Threads that close descriptors. They stay: one for each descriptor, let go of while it ended, has crashed in glibc 2.36
/// (pthread_detach(3)), once, and could not be made to again.
struct Closers {
    close: fn(OwnedFd),
    state: Mutex<Closing>,
    come: Condvar,
}

struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// Those that wait for a descriptor.
    idle: usize,
    /// When a thread last took one.
    taken: Option<Instant>,
}

impl Closers {
    const fn new(close: fn(OwnedFd)) -> Self {
        let state = Closing { waiting: VecDeque::new(), threads: 0, idle: 0, taken: None };
        Self { close, state: Mutex::new(state), come: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Closing> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn take(&'static self, fd: OwnedFd) {
        let mut state = self.state();
        state.waiting.push_back(fd);
        if state.waiting.len() <= state.idle {
            self.come.notify_one();
            return;
        }
        // Those that there are may all be held up.
        if state.threads == CLOSING_MOST {
            return;
        }
        state.threads += 1;
        drop(state);
        let closes = thread::Builder::new().name("closing".to_owned()).stack_size(STACK);
        if closes.spawn(|| self.work()).is_err() {
            // The next that comes tries again.
            self.state().threads -= 1;
        }
    }

    fn work(&self) -> ! {
        loop {
            let fd = self.next();
            // Of a socket nothing lingers then; anything else has no such option, and is no socket.
            let _may_be_no_socket = set_socket_linger(&fd, None);
            (self.close)(fd);
        }
    }

    fn next(&self) -> OwnedFd {
        let mut state = self.state();
        loop {
            if let Some(fd) = state.waiting.pop_front() {
                state.taken = Some(Instant::now());
                return fd;
            }
            state.idle += 1;
            state = self.come.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.idle -= 1;
        }
    }

    fn left_open(&self) -> usize {
        let state = self.state();
        let stuck = state.taken.is_some_and(|taken| taken.elapsed() >= STUCK);
        if stuck && state.idle == 0 && state.threads == CLOSING_MOST { state.waiting.len() } else { 0 }
    }
}

#[cfg(test)]
#[path = "../tests/lingering/mod.rs"]
mod lingering;

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::pwrite;
    use rustix::pipe::pipe;

    use super::lingering::lingering;
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
    fn nobody_waits_for_descriptors_to_be_closed_and_what_is_beyond_a_bound_waits_for_a_thread() {
        static CLOSERS: Closers = Closers::new(slow);
        let busy = SERVER.lock().unwrap();
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let pipes: Vec<_> = (0..CLOSING_MOST + 6).map(|_| watched()).collect();
            let readers: Vec<_> = pipes.into_iter().map(|(write, read)| (CLOSERS.take(write), read).1).collect();
            done.send(readers).unwrap();
        });
        let readers = finished.recv_timeout(PATIENCE).expect("it waits for a descriptor to be closed");
        until("it is told that some stay open", || CLOSERS.left_open() == 6);
        assert_eq!(CLOSERS.state().threads, CLOSING_MOST);
        drop(busy);
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
        until("the threads wait for more", || CLOSERS.state().idle == CLOSING_MOST);
        assert_eq!(CLOSERS.left_open(), 0);
        let (write, read) = watched();
        CLOSERS.take(write);
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed by one of them");
        assert_eq!(CLOSERS.state().threads, CLOSING_MOST);
    }

    #[test]
    fn one_thread_that_is_free_is_not_all_that_many_at_once_get() {
        static CLOSERS: Closers = Closers::new(slow);
        let (write, read) = watched();
        CLOSERS.take(write);
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        until("a thread is free", || CLOSERS.state().idle == 1);
        let busy = SERVER.lock().unwrap();
        let readers: Vec<_> = (0..8).map(|_| watched()).map(|(write, read)| (CLOSERS.take(write), read).1).collect();
        until("each has a thread", || CLOSERS.state().waiting.is_empty());
        drop(busy);
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
    }

    #[test]
    fn a_socket_that_lingers_keeps_no_thread() {
        static CLOSERS: Closers = Closers::new(drop);
        let (socket, _peer) = lingering();
        CLOSERS.take(socket);
        until("a thread is free", || CLOSERS.state().idle == 1);
    }

    #[test]
    fn however_many_come_at_once_all_are_closed() {
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        pwrite(&memory, &vec![1; 2 << 20], 0).unwrap();
        let pipes: Vec<_> = (0..4 * CLOSING_MOST).map(|_| watched()).collect();
        let mut readers = Vec::new();
        for (write, read) in pipes {
            drop((Lent::from(write), Lent::from(memory.try_clone().unwrap())));
            readers.push(read);
        }
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
    }
}
