//! Borrowed descriptors: a peer has sent them, and closing them must not block us.
//!
//! close(2) can block on:
//! - the server of a FUSE file system, which may be the peer (FLUSH)
//! - data that a TCP socket lingers over (socket(7)). A UNIX socket may have one in flight
//! - a pipe's lock
//! - the lock of an epoll that holds the descriptor, even an eventfd, while it copies events to a missing page (epoll_wait(2),
//!   userfaultfd(2))
//!
//! So a limited number of threads closes every descriptor except memory files, which no epoll takes. While all of these threads are
//! blocked, further descriptors wait.
//!
//! A peer's descriptors have an [`Account`]. It blocks two of these threads at most, and its port is told how many descriptors wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicety_sandbox::Kind;
use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

use crate::release::{holds_much, release};

/// Most threads that close descriptors: this many may block at once.
pub const CLOSING_MAX: usize = 64;
/// A thread's stack: it calls close(2).
const STACK: usize = 128 << 10;
/// If nothing was closed for this long, all threads are blocked.
const STUCK: Duration = Duration::from_secs(1);

/// A peer with more dropped descriptors than this, none of which is closed, is sent away: it fills this process.
pub const UNCLOSED_MAX: usize = 1000;
/// Most threads that descriptors of one account may block at once.
const ACCOUNT_THREADS_MAX: usize = 2;

/// Time that an idle thread waits for another descriptor before it ends.
const LINGER: Duration = Duration::from_secs(10);

static CLOSERS: Closers = Closers::new(drop, LINGER);

/// Starts the first closing thread.
pub(crate) fn ready() {
    CLOSERS.start();
}

/// A peer's descriptor. Dropping it closes it on another thread; the caller does not wait.
#[derive(Debug)]
pub struct PeerFd {
    fd: Option<OwnedFd>,
    serial: u64,
    account: Option<Arc<Account>>,
}

/// One peer's share of the threads that close descriptors.
#[derive(Debug, Default)]
pub struct Account {
    open: AtomicUsize,
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    /// Threads that close its descriptors.
    threads: usize,
    /// Descriptors that wait for one of these threads.
    waiting: VecDeque<OwnedFd>,
}

impl Account {
    /// Descriptors that were dropped and are not closed yet.
    pub fn unclosed(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Whether there are [too many](UNCLOSED_MAX) of them.
    pub fn is_exceeded(&self) -> bool {
        self.unclosed() > UNCLOSED_MAX
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The descriptor, if a thread may close it now. Else it waits.
    fn begin(&self, fd: OwnedFd) -> Option<OwnedFd> {
        let mut turns = self.turns();
        if turns.threads == ACCOUNT_THREADS_MAX {
            turns.waiting.push_back(fd);
            return None;
        }
        turns.threads += 1;
        Some(fd)
    }

    /// A thread has closed a descriptor. The next one for it.
    fn next(&self) -> Option<OwnedFd> {
        self.open.fetch_sub(1, Ordering::Relaxed);
        let mut turns = self.turns();
        let next = turns.waiting.pop_front();
        turns.threads -= usize::from(next.is_none());
        next
    }
}

thread_local! {
    static PAYS: RefCell<Option<Arc<Account>>> = const { RefCell::new(None) };
}

/// This thread serves one peer: all descriptors that it receives from now on have this account.
pub fn this_thread_pays(account: Arc<Account>) {
    PAYS.set(Some(account));
}

/// Whether too many descriptors of [this thread's](this_thread_pays) peer are not closed.
pub fn this_threads_is_exceeded() -> bool {
    PAYS.try_with(|pays| pays.borrow().as_ref().is_some_and(|account| account.is_exceeded())).unwrap_or(false)
}

/// A number that no other descriptor of this process has had: the kernel gives the number of a closed one to the next.
pub fn serial() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

impl PeerFd {
    /// Its [serial number](serial).
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// It has this account from now on.
    pub fn charge_to(&mut self, account: &Arc<Account>) {
        self.account = Some(Arc::clone(account));
    }

    /// The same descriptor, with this account.
    #[must_use]
    pub fn charged_to(mut self, account: Option<&Arc<Account>>) -> Self {
        self.account = account.cloned();
        self
    }
}

impl From<OwnedFd> for PeerFd {
    fn from(fd: OwnedFd) -> Self {
        // A thread that is ending has lost its mark.
        let account = PAYS.try_with(|pays| pays.borrow().clone()).unwrap_or_default();
        Self { fd: Some(fd), serial: serial(), account }
    }
}

impl From<PeerFd> for OwnedFd {
    fn from(mut fd: PeerFd) -> Self {
        fd.fd.take().expect("it goes with what it is in")
    }
}

impl AsFd for PeerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it goes with what it is in").as_fd()
    }
}

impl Drop for PeerFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            // The kernel itself answers F_GET_SEALS, and only for memory files (fcntl(2)).
            match fcntl_get_seals(&fd) {
                Ok(_) if holds_much(fd.as_fd()) => release(fd),
                Ok(_) => drop(fd),
                Err(_) => CLOSERS.take_for(fd, self.account.take()),
            }
        }
    }
}

/// Number of descriptors that stay open because all [`CLOSING_MAX`] threads have been blocked for a while.
pub fn left_open() -> usize {
    CLOSERS.left_open()
}

/// Threads that close descriptors. One is always idle, up to the limit: a thread starts the next one before it closes anything.
/// Callers start none: a new thread maps its stack, which may wait for another mapping of this process. Threads that stay idle end,
/// except one, which joins them: detached threads crashed once in glibc 2.36 while they ended (pthread_detach(3); not reproduced).
struct Closers {
    close: fn(OwnedFd),
    /// Time that a thread is idle before it ends.
    linger: Duration,
    state: Mutex<Closing>,
    come: Condvar,
}

struct Closing {
    waiting: VecDeque<(OwnedFd, Option<Arc<Account>>)>,
    threads: usize,
    /// Threads that wait for a descriptor.
    idle: usize,
    /// Time at which a thread last took a descriptor.
    taken: Option<Instant>,
    /// Threads that were not joined yet.
    handles: Vec<JoinHandle<()>>,
}

impl Closers {
    const fn new(close: fn(OwnedFd), linger: Duration) -> Self {
        let state = Closing { waiting: VecDeque::new(), threads: 0, idle: 0, taken: None, handles: Vec::new() };
        Self { close, linger, state: Mutex::new(state), come: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Closing> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    #[cfg(test)]
    fn take(&'static self, fd: OwnedFd) {
        self.take_for(fd, None);
    }

    fn take_for(&'static self, fd: OwnedFd, account: Option<Arc<Account>>) {
        account.iter().for_each(|account| _ = account.open.fetch_add(1, Ordering::Relaxed));
        let mut state = self.state();
        state.waiting.push_back((fd, account));
        let none = state.threads == 0;
        drop(state);
        self.come.notify_one();
        if none {
            self.start();
        }
    }

    /// Starts a thread if none is idle and the limit allows it.
    fn start(&'static self) {
        let mut state = self.state();
        if state.idle > 0 || state.threads == CLOSING_MAX {
            return;
        }
        state.threads += 1;
        drop(state);
        let started = nicety_sandbox::spawn(Kind::Closing, "closing", STACK, || self.work());
        let mut state = self.state();
        match started {
            Ok(handle) => state.handles.push(handle),
            // The next thread that takes a descriptor tries again.
            Err(_) => state.threads -= 1,
        }
    }

    fn work(&'static self) {
        while let Some((fd, account)) = self.next() {
            self.start();
            let mut next = Some(fd);
            while let Some(fd) = next {
                // Without the option a socket does not linger. The call fails for anything but a socket.
                let _not_a_socket = set_socket_linger(&fd, None);
                (self.close)(fd);
                next = account.as_ref().and_then(|account| account.next());
            }
        }
    }

    /// Waits for a descriptor; `None` if there was none for a while, and another thread is idle too.
    fn next(&self) -> Option<(OwnedFd, Option<Arc<Account>>)> {
        let mut state = self.state();
        loop {
            while let Some((fd, account)) = state.waiting.pop_front() {
                state.taken = Some(Instant::now());
                let fd = match &account {
                    Some(account) => account.begin(fd),
                    None => Some(fd),
                };
                if let Some(fd) = fd {
                    return Some((fd, account));
                }
            }
            for gone in state.handles.extract_if(.., |handle| handle.is_finished()) {
                // Its closure has ended: join does not block.
                let _no_result = gone.join();
            }
            state.idle += 1;
            let (after, waited) =
                self.come.wait_timeout(state, self.linger).unwrap_or_else(|poisoned| poisoned.into_inner());
            state = after;
            state.idle -= 1;
            if waited.timed_out() && state.waiting.is_empty() && state.idle > 0 {
                state.threads -= 1;
                return None;
            }
        }
    }

    fn left_open(&self) -> usize {
        let state = self.state();
        let stuck = state.taken.is_some_and(|taken| taken.elapsed() >= STUCK);
        if stuck && state.idle == 0 && state.threads == CLOSING_MAX { state.waiting.len() } else { 0 }
    }
}

#[cfg(test)]
#[path = "../tests/lingering/mod.rs"]
mod lingering;

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};
    use std::thread;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::pwrite;
    use rustix::pipe::pipe;

    use super::lingering::lingering;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);
    /// Its holder blocks all calls of `slow`.
    static SERVER: Mutex<()> = Mutex::new(());

    fn slow(fd: OwnedFd) {
        let _answered = SERVER.lock();
        drop(fd);
    }

    /// A pipe's write end, and the read end, which sees end of file once the write end is closed.
    fn watched() -> (OwnedFd, OwnedFd) {
        let (read, write) = pipe().unwrap();
        (write, read)
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !done() {
            assert!(Instant::now() < end, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn nobody_waits_for_descriptors_to_be_closed_and_what_is_beyond_a_bound_waits_for_a_thread() {
        static CLOSERS: Closers = Closers::new(slow, LINGER);
        let busy = SERVER.lock().unwrap();
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let pipes: Vec<_> = (0..CLOSING_MAX + 6).map(|_| watched()).collect();
            let readers: Vec<_> = pipes.into_iter().map(|(write, read)| (CLOSERS.take(write), read).1).collect();
            done.send(readers).unwrap();
        });
        let readers = finished.recv_timeout(TIMEOUT).expect("it waits for a descriptor to be closed");
        until("it is told that some stay open", || CLOSERS.left_open() == 6);
        assert_eq!(CLOSERS.state().threads, CLOSING_MAX);
        drop(busy);
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
        until("the threads wait for more", || CLOSERS.state().idle == CLOSING_MAX);
        assert_eq!(CLOSERS.left_open(), 0);
        let (write, read) = watched();
        CLOSERS.take(write);
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed by one of them");
        assert_eq!(CLOSERS.state().threads, CLOSING_MAX);
    }

    #[test]
    fn a_peer_whose_descriptors_are_slow_to_close_blocks_two_threads_and_nobody_else_waits() {
        static CLOSERS: Closers = Closers::new(slow_too, LINGER);
        static SERVER: Mutex<()> = Mutex::new(());
        fn slow_too(fd: OwnedFd) {
            // The slow ones are no pipes.
            if set_socket_linger(&fd, None).is_ok() {
                let _answered = SERVER.lock();
            }
            drop(fd);
        }
        let busy = SERVER.lock().unwrap();
        let (slow, other) = (Arc::new(Account::default()), Arc::new(Account::default()));
        let mut peers = Vec::new();
        for _ in 0..4 * CLOSING_MAX {
            let (socket, peer) = std::os::unix::net::UnixStream::pair().unwrap();
            CLOSERS.take_for(socket.into(), Some(Arc::clone(&slow)));
            peers.push(peer);
        }
        let (write, read) = watched();
        CLOSERS.take_for(write, Some(Arc::clone(&other)));
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        assert_eq!((slow.unclosed(), slow.turns().threads), (4 * CLOSING_MAX, ACCOUNT_THREADS_MAX));
        until("it has no others", || other.unclosed() == 0);
        assert!(CLOSERS.state().threads < 8);
        drop(busy);
        until("all are closed", || slow.unclosed() == 0);
    }

    #[test]
    fn one_thread_that_is_free_is_not_all_that_many_at_once_get() {
        static CLOSERS: Closers = Closers::new(slow, LINGER);
        let (write, read) = watched();
        CLOSERS.take(write);
        assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        until("all threads are free", || CLOSERS.state().idle == 2);
        let busy = SERVER.lock().unwrap();
        let readers: Vec<_> = (0..8).map(|_| watched()).map(|(write, read)| (CLOSERS.take(write), read).1).collect();
        until("each has a thread", || CLOSERS.state().waiting.is_empty());
        drop(busy);
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
    }

    #[test]
    fn threads_that_a_burst_needed_end_but_for_one() {
        static CLOSERS: Closers = Closers::new(slow_too, Duration::from_millis(20));
        static SERVER: Mutex<()> = Mutex::new(());
        fn slow_too(fd: OwnedFd) {
            let _answered = SERVER.lock();
            drop(fd);
        }
        for _ in 0..2 {
            let busy = SERVER.lock().unwrap();
            (0..20).for_each(|_| CLOSERS.take(watched().0));
            until("each has a thread", || CLOSERS.state().threads > 20);
            drop(busy);
            until("one is left", || CLOSERS.state().threads == 1);
        }
        until("those that ended are joined", || CLOSERS.state().handles.len() == 1);
    }

    #[test]
    fn a_socket_that_lingers_keeps_no_thread() {
        static CLOSERS: Closers = Closers::new(drop, LINGER);
        let (socket, _peer) = lingering();
        CLOSERS.take(socket);
        until("all threads are free", || CLOSERS.state().idle == 2);
    }

    #[test]
    fn however_many_come_at_once_all_are_closed() {
        let memory = memfd_create("memory", MemfdFlags::CLOEXEC).unwrap();
        pwrite(&memory, &vec![1; 2 << 20], 0).unwrap();
        let pipes: Vec<_> = (0..4 * CLOSING_MAX).map(|_| watched()).collect();
        let mut readers = Vec::new();
        for (write, read) in pipes {
            drop((PeerFd::from(write), PeerFd::from(memory.try_clone().unwrap())));
            readers.push(read);
        }
        for read in readers {
            assert_eq!(rustix::io::read(&read, &mut [0]), Ok(0), "it is closed");
        }
    }
}
