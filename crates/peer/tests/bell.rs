//! Bells whose other side shares the open file and is hostile.

use std::net::{TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nicety_peer::Bell;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, fcntl_getfl, fcntl_setfl, memfd_create, open};
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};

/// Longest that a call here may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The largest count; a write that would exceed it waits (eventfd(2)).
const FULL: u64 = u64::MAX - 1;

/// The result of `act`. Fails if `act` blocks.
fn at_once<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    finished.recv_timeout(TIMEOUT).expect("it waits for its peer")
}

/// Two handles of an eventfd.
fn pair() -> (OwnedFd, OwnedFd) {
    let peers = eventfd(0, EventfdFlags::empty()).unwrap();
    (peers.try_clone().unwrap(), peers)
}

/// Clears O_NONBLOCK, as a hostile peer does after it has passed the descriptor on.
fn make_blocking(fd: &OwnedFd) {
    let flags = fcntl_getfl(fd).unwrap();
    fcntl_setfl(fd, flags - OFlags::NONBLOCK).unwrap();
}

fn count(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).unwrap();
    u64::from_ne_bytes(count)
}

fn is_readable(fd: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn each_ringing_counts_one() {
    assert_eq!(nicety_peer::ready(), Ok(()), "a kernel with CONFIG_AIO");
    let (ours, peers) = pair();
    let bell = Bell::from_fd(ours).unwrap();
    for _ in 0..10_000 {
        bell.ring().unwrap();
    }
    assert_eq!(count(&peers), 10_000);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|_| bell.ring().unwrap()));
        }
    });
    assert_eq!(count(&peers), 40_000);
    bell.ring().unwrap();
    assert!(bell.clear() && !bell.clear() && !is_readable(&peers));
}

#[test]
fn an_eventfd_that_gives_its_count_one_by_one_is_not_heard() {
    let semaphore = eventfd(3, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC).unwrap();
    assert_eq!(Bell::to_hear(semaphore.try_clone().unwrap()).unwrap_err(), Errno::INVAL);
    Bell::from_fd(semaphore).unwrap().ring().unwrap();
    Bell::to_hear(pair().0).unwrap();
}

#[test]
fn a_peer_that_fills_an_eventfd_and_has_it_block_is_not_waited_for() {
    let (ours, peers) = pair();
    let bell = Bell::from_fd(ours).unwrap();
    make_blocking(&peers);
    rustix::io::write(&peers, &FULL.to_ne_bytes()).unwrap();
    at_once(move || {
        for _ in 0..1000 {
            bell.ring().unwrap();
        }
    });
    assert!(is_readable(&peers) && count(&peers) >= FULL);
}

#[test]
fn a_peer_that_empties_an_eventfd_and_has_it_block_is_not_waited_for() {
    let (ours, peers) = pair();
    let bell = Bell::to_hear(ours).unwrap();
    make_blocking(&peers);
    assert!(!at_once(move || bell.clear()));
}

#[test]
fn a_peer_that_does_not_read_its_socket_or_closes_it_is_not_waited_for() {
    let (ours, mut peers) = UnixStream::pair().unwrap();
    let (bell, ours) = (Bell::from_fd(OwnedFd::from(ours.try_clone().unwrap())).unwrap(), ours);
    let bell = at_once(move || {
        ours.set_nonblocking(false).unwrap();
        (0..10_000).for_each(|_| bell.ring().unwrap());
        assert!(!bell.clear(), "nobody reads where others read as well");
        bell
    });
    let mut one = [0; 8];
    std::io::Read::read_exact(&mut peers, &mut one).unwrap();
    assert_eq!(u64::from_ne_bytes(one), 1);
    drop(peers);
    assert!(bell.ring().is_err());
}

#[test]
fn a_peer_that_fills_or_empties_a_pipe_and_has_it_block_or_closes_it_is_not_waited_for() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let peers = [reader.try_clone().unwrap(), writer.try_clone().unwrap()];
    let (heard, rung) = (Bell::to_hear(reader).unwrap(), Bell::from_fd(writer).unwrap());
    peers.iter().for_each(make_blocking);
    let (heard, rung) = at_once(move || {
        (0..10_000).for_each(|_| rung.ring().unwrap());
        while heard.clear() {}
        (heard, rung)
    });
    rung.ring().unwrap();
    assert!(heard.clear() && !is_readable(&peers[0]));
    drop((heard, peers));
    // Another thread closes the read end; ring until it has.
    at_once(move || while rung.ring().is_ok() {});
}

#[test]
fn anything_else_is_no_bell() {
    let (datagram, _other) = UnixDatagram::pair().unwrap();
    let folder = open("/", OFlags::DIRECTORY, Mode::empty()).unwrap();
    let others: [OwnedFd; 7] = [
        datagram.into(),
        TcpListener::bind("127.0.0.1:0").unwrap().into(),
        UdpSocket::bind("127.0.0.1:0").unwrap().into(),
        epoll::create(epoll::CreateFlags::CLOEXEC).unwrap(),
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap(),
        memfd_create("anon_inode:[eventfd]", MemfdFlags::CLOEXEC).unwrap(),
        folder,
    ];
    for fd in others {
        assert_eq!(Bell::to_hear(fd.try_clone().unwrap()).unwrap_err(), Errno::INVAL, "{fd:?}");
        assert_eq!(Bell::from_fd(fd.try_clone().unwrap()).unwrap_err(), Errno::INVAL, "{fd:?}");
    }
    let (stream, _other) = UnixStream::pair().unwrap();
    assert_eq!(Bell::to_hear(OwnedFd::from(stream)).unwrap_err(), Errno::INVAL, "it would have to be read");
}
