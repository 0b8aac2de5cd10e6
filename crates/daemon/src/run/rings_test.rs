//! A front end that sends one message after another: kicks while its port's worker is busy (the test takes the worker's part),
//! and new memory without end.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use nicety_adapter::{PortId, Time};
use nicety_adapters::{Settings, find};
use nicety_frame::Mac;
use nicety_plane::{End, Port};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::TempDir;

use super::*;
use crate::run::kicks::KICKS_MAX;
use crate::run::shell::PortShell;

/// Most time for any step of these tests.
const TIMEOUT: Duration = Duration::from_secs(20);
/// More kicks than may be in flight, plus more than any socket holds.
const FLOOD: usize = 4096;

struct Stage {
    server: RingsServer,
    inbox: Arc<Inbox>,
    front: UnixStream,
    group: Arc<Group>,
    _folder: TempDir,
}

impl Stage {
    fn new() -> Stage {
        Self::named("vm")
    }

    fn named(name: &str) -> Stage {
        let folder = TempDir::new().unwrap();
        let (clock, inbox, id) = (Clock::start(), Arc::new(Inbox::new().unwrap()), PortId(1));
        let adapter = (find("virtio-net").unwrap().create)(&Settings::new(Mac([2, 0, 0, 0, 0, 1]))).unwrap();
        let signals = Arc::new(Signals::rings());
        let shell = PortShell::new(id, Arc::clone(&inbox), Arc::clone(&signals), None, clock);
        let port = Arc::new(Port::new(id, End::guest(adapter), Box::new(shell), 1 << 16).unwrap());
        let log = Arc::new(PortLog::new(id, name, "virtio-net", clock, Arc::clone(&inbox)));
        let path = folder.path().join("vm.sock");
        let listener = Listener::bind(&path).unwrap();
        let front = UnixStream::connect(&path).unwrap();
        front.set_write_timeout(Some(TIMEOUT)).unwrap();
        let group = Arc::new(Group::parts(port, []));
        let socket = FrontendSocket::Listen(listener);
        let parts = Arc::clone(&group);
        let preparing = Preparing::new(log, socket, parts, signals, vec![Arc::clone(&inbox)], None).unwrap();
        let server = RingsServer::start(preparing).unwrap();
        Stage { server, inbox, front, group, _folder: folder }
    }

    /// Takes the kicks that have arrived; returns their number, with descriptors.
    fn take(&self) -> usize {
        let mut notes = Vec::new();
        self.inbox.take(&mut notes);
        notes.iter().filter(|note| matches!(note, Note::Kick(_, _, Some(_), _))).count()
    }
}

/// Sends SET_VRING_KICK of ring 0 (docs/interop/vhost-user.rst: request 12, version 1, 8 bytes). Returns false if the socket is
/// full.
fn kick(front: &UnixStream, flags: SendFlags) -> bool {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    send(front, &[12, 1, 8, 0, 0], bell.as_fd(), flags)
}

/// Sends SET_MEM_TABLE of one region at address 0 in guest and front end (request 5: number of regions, padding, 32 bytes per
/// region).
fn share(front: &UnixStream, memory: BorrowedFd<'_>, len: u32) -> bool {
    send(front, &[5, 1, 40, 1, 0, 0, 0, len, 0, 0, 0, 0, 0], memory, SendFlags::empty())
}

fn send(front: &UnixStream, words: &[u32], fd: BorrowedFd<'_>, flags: SendFlags) -> bool {
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let rights = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&rights)));
    sendmsg(front, &[IoSlice::new(&message)], &mut control, flags | SendFlags::NOSIGNAL).is_ok()
}

#[test]
fn of_a_flood_of_kicks_64_are_on_their_way_and_the_port_is_given_up_though_its_worker_takes_none() {
    let stage = Stage::new();
    // The socket takes a number of kicks, plus those that were taken in between.
    let sent = (0..FLOOD).take_while(|_| kick(&stage.front, SendFlags::DONTWAIT)).count();
    assert!(sent > KICKS_MAX, "{sent} were sent");
    let (done, ended) = std::sync::mpsc::channel();
    let Stage { server, inbox, front, _folder, .. } = stage;
    let end = Instant::now() + TIMEOUT;
    while Arc::strong_count(&server.kicks) < 2 + KICKS_MAX {
        assert!(Instant::now() < end, "no kicks came");
        std::thread::yield_now();
    }
    std::thread::spawn(move || {
        drop(server);
        done.send(()).unwrap();
    });
    ended.recv_timeout(TIMEOUT).expect("it waits for its worker");
    let mut notes = Vec::new();
    inbox.take(&mut notes);
    assert_eq!(notes.iter().filter(|note| matches!(note, Note::Kick(..))).count(), KICKS_MAX);
    drop(front);
}

#[test]
fn a_port_whose_thread_is_stopped_in_a_message_is_handed_over_without_its_front_end() {
    let stage = Stage::new();
    let sent = (0..FLOOD).take_while(|_| kick(&stage.front, SendFlags::DONTWAIT)).count();
    assert!(sent > KICKS_MAX, "{sent} were sent");
    // The thread waits for the worker, which takes no kicks.
    let end = Instant::now() + TIMEOUT;
    while Arc::strong_count(&stage.server.kicks) < 2 + KICKS_MAX {
        assert!(Instant::now() < end, "no kicks came");
        std::thread::yield_now();
    }
    let halt = stage.server.halt();
    halt.ask(true);
    while halt.front(Instant::now() + Duration::from_millis(100)).is_some() {
        assert!(Instant::now() < end, "the thread stands still between two kicks each time");
        // It goes on to the kick for which there is no room.
        halt.resume();
        std::thread::sleep(Duration::from_millis(10));
        halt.ask(true);
    }
    assert!(!halt.send_away());
    let (image, mut table) = halt.without_front_end("vm").unwrap().unwrap().finish();
    assert!(image.name == "vm" && image.session.is_none() && image.calls.is_empty());
    // The next front end is the next process's: its socket is the same.
    let socket = table.take(image.listener.unwrap()).unwrap();
    let next = UnixStream::connect(stage._folder.path().join("vm.sock")).unwrap();
    halt.disconnect();
    stage.server.kicks.end();
    assert!(matches!(halt.front(Instant::now() + TIMEOUT), Some(Ok(_))), "the thread goes on and stands still");
    rustix::net::accept(OwnedFd::from(socket)).unwrap();
    halt.resume();
    drop((next, stage));
}

/// A port's thread stands still before the workers do. QEMU has turned the log on, and has not given its own yet.
#[test]
fn a_page_that_a_worker_writes_after_the_port_s_thread_stands_still_is_in_the_saved_log() {
    const LOG_ALL: u32 = 1 << 26;
    let (mut stage, memory) = (Stage::new(), nicety_memory::shared_file("memory", 1 << 20).unwrap());
    // SET_FEATURES (request 2): VIRTIO_F_VERSION_1, and the log.
    let words = [2_u32, 1, 8, LOG_ALL, 1];
    let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    stage.front.write_all(&message).unwrap();
    assert!(share(&stage.front, memory.as_fd(), 1 << 20));
    let write = |page: u64| {
        let wrote = stage.group.lead().unwrap().with(Time::ZERO, |_, cx| cx.memory.write(4096 * page, &[7]).is_ok());
        wrote.unwrap()
    };
    let end = Instant::now() + TIMEOUT;
    while !write(1) {
        assert!(Instant::now() < end, "no memory");
        std::thread::yield_now();
    }
    let halt = stage.server.halt();
    halt.ask(false);
    let standing = halt.front(end).unwrap().unwrap();
    assert!(write(2));
    let (image, _table) = standing.finish();
    let saved = format!("{:?}", image.session.unwrap());
    assert!(saved.contains("log: Some(Own([(0, 6)]))"), "pages 1 and 2: {saved}");
    halt.resume();
}

#[test]
fn all_kicks_arrive_however_many_come_before_the_worker_takes_the_first() {
    const KICKS: usize = 1000;
    let stage = Stage::new();
    let front = stage.front.try_clone().unwrap();
    let sender = std::thread::spawn(move || assert!((0..KICKS).all(|_| kick(&front, SendFlags::empty()))));
    let (end, mut taken) = (Instant::now() + TIMEOUT, 0);
    while taken < KICKS {
        assert!(Instant::now() < end, "{taken} kicks within {TIMEOUT:?}");
        let now = stage.take();
        assert!(now <= KICKS_MAX, "{now} were on their way at once");
        taken += now;
    }
    sender.join().unwrap();
}

/// No worker handles these messages, so no turns limit them. The port's thread has a part of a processor for them.
#[test]
fn a_front_end_that_shares_its_memory_without_end_has_a_tenth_of_a_processor_for_it() {
    const LASTS: Duration = Duration::from_secs(3);
    let Stage { server, front, _folder, .. } = Stage::named("shares");
    let used = || crate::usage::threads().get("vhost shares").copied();
    // Each message maps one of two files, and unmaps the other.
    let files = ["one", "other"].map(|name| nicety_memory::shared_file(name, 1 << 20).unwrap());
    let begin = Instant::now();
    while begin.elapsed() < LASTS {
        assert!(files.iter().all(|file| share(&front, file.as_fd(), 1 << 20)));
    }
    let (spent, lasted) = (used().unwrap(), begin.elapsed());
    let most = crate::run::allowance::BURST + lasted / crate::run::allowance::PART + Duration::from_millis(20);
    assert!(spent <= most, "{spent:?} of processor time in {lasted:?}: more than {most:?}");
    // The thread rests for longer than this, but its end does not wait for the rest.
    let begin = Instant::now();
    drop(server);
    assert!(begin.elapsed() < crate::run::allowance::REST_MAX / 2, "{:?}", begin.elapsed());
}
