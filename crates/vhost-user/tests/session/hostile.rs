//! Hostile peers: half a message, garbage, wrong descriptors, impossible memory.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nicety_memory::shared_file;
use nicety_vhost_user::{Ended, Kick, Refusal, Session, TIMEOUT};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::sock_ctrl_msg::ScmSocket;

use crate::lingering::lingering;
use crate::port::{TestPort, serve};

/// Messages made by hand, with numbers from docs/interop/vhost-user.rst.
pub struct Raw(pub UnixStream);

impl Raw {
    pub fn send(&mut self, code: u32, flags: u32, body: &[u8], fds: &[i32]) {
        let header = [code, flags, body.len() as u32].map(u32::to_ne_bytes).concat();
        let bytes = [&header[..], body].concat();
        self.0.send_with_fds(&[&bytes[..]], fds).expect("the session reads");
    }

    /// Sends a request with a reply, and returns the reply's body.
    pub fn exchange(&mut self, code: u32, body: &[u8]) -> Vec<u8> {
        self.send(code, 1, body, &[]);
        self.reply(code)
    }

    /// Sends a request that asks for its result, and returns the result: 0 is success.
    pub fn result(&mut self, code: u32, body: &[u8], fds: &[i32]) -> u64 {
        self.send(code, 1 | 8, body, fds);
        u64::from_ne_bytes(self.reply(code).try_into().expect("a number"))
    }

    fn reply(&mut self, code: u32) -> Vec<u8> {
        let mut header = [0; 12];
        self.0.read_exact(&mut header).expect("a reply");
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
        assert_eq!((word(0), word(4)), (code, 1 | 4), "a reply to the request, version 1");
        let mut body = vec![0; word(8) as usize];
        self.0.read_exact(&mut body).expect("its body");
        body
    }

    pub fn negotiate(&mut self) {
        let offered = self.exchange(15, &[]);
        self.send(16, 1, &offered, &[]);
    }

    /// Shares 1 MiB at guest address 0; its address in this process is 0x1000_0000_0000.
    pub fn share(&mut self) {
        let file = shared_file("guest", 0x10_0000).unwrap();
        assert_eq!(self.result(5, &table(&[[0, 0x10_0000, USER, 0]]), &[file.as_raw_fd()]), 0);
    }

    pub fn ring(&mut self, ring: u32, at: u64) {
        assert_eq!(self.result(8, &pair(ring, 64), &[]), 0);
        assert_eq!(self.result(9, &addresses(ring, USER + at), &[]), 0);
        let bell = EventFd::new(0).unwrap();
        assert_eq!(self.result(12, &u64::from(ring).to_ne_bytes(), &[bell.as_raw_fd()]), 0);
    }
}

const USER: u64 = 0x1000_0000_0000;

fn pair(first: u32, second: u32) -> Vec<u8> {
    [first, second].map(u32::to_ne_bytes).concat()
}

fn addresses(ring: u32, at: u64) -> Vec<u8> {
    [pair(ring, 0), [at, at + 0x2000, at + 0x1000, 0].map(u64::to_ne_bytes).concat()].concat()
}

fn table(regions: &[[u64; 4]]) -> Vec<u8> {
    let words = regions.iter().flatten().flat_map(|word| word.to_ne_bytes());
    pair(regions.len() as u32, 0).into_iter().chain(words).collect()
}

fn connected() -> (crate::port::Served, Raw) {
    let (served, stream) = serve(&TestPort::new(None));
    let mut raw = Raw(stream);
    raw.negotiate();
    (served, raw)
}

#[test]
fn half_a_message_stalls_nobody_else_and_ends_with_its_sender() {
    let (served, mut half) = connected();
    half.0.write_all(&[1, 0, 0, 0, 1]).unwrap();
    let (other, mut whole) = connected();
    assert_ne!(whole.exchange(1, &[]), [0; 8]);
    drop(whole);
    assert!(matches!(other.ended(), Ended::Gone));
    drop(half);
    assert!(matches!(served.ended(), Ended::Wire(_)), "it was cut");
}

/// Linux's own front end (arch/um/drivers/virtio_uml.c, vhost_user_init) does this, and waits for the reply.
#[test]
fn the_message_that_agrees_on_replies_is_replied_to_if_it_asks() {
    let (served, stream) = serve(&TestPort::new(None));
    let mut raw = Raw(stream);
    let offered = raw.exchange(15, &[]);
    assert_eq!(raw.result(16, &offered, &[]), 0);
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

/// The cases run in parallel threads, so the test takes the timeout only once.
#[test]
fn who_says_nothing_or_stops_within_a_message_or_takes_no_answer_is_sent_away_and_who_rests_between_messages_is_not() {
    let (silent, _says_nothing) = serve(&TestPort::new(None));
    let (stalled, mut half) = connected();
    half.0.write_all(&[1, 0, 0, 0, 1]).unwrap();
    let (unread, mut asking) = connected();
    let (rested, mut resting) = connected();
    let (dripped, mut dripping) = connected();
    // Single bytes, 3 s apart: a header of twelve bytes would take 36 s.
    let drip = std::thread::spawn(move || {
        let header = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
        header
            .chunks(1)
            .take_while(|byte| {
                std::thread::sleep(std::time::Duration::from_secs(3));
                dripping.0.write_all(byte).is_ok()
            })
            .count()
    });
    let flood = std::thread::spawn(move || {
        let question = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
        // At first the session waits for its answers to be read, and this thread for room to write. Then the session disconnects.
        while asking.0.write_all(&question).is_ok() {}
    });
    let begun = std::time::Instant::now();
    assert!(matches!(silent.ended(), Ended::Silent));
    assert!(matches!(stalled.ended(), Ended::Wire(why) if why.contains("stopped within a message")));
    assert!(matches!(unread.ended(), Ended::Wire(why) if why.contains("does not take its answer")));
    assert!(matches!(dripped.ended(), Ended::Wire(why) if why.contains("stopped within a message")));
    assert!(begun.elapsed() >= TIMEOUT - std::time::Duration::from_secs(1) && begun.elapsed() < TIMEOUT * 4);
    assert!(drip.join().unwrap() < 12);
    flood.join().unwrap();
    assert_ne!(resting.exchange(1, &[]), [0; 8], "it may be silent now");
    drop(resting);
    assert!(matches!(rested.ended(), Ended::Gone));
}

#[test]
fn somebody_at_the_door_is_seen_to_while_a_front_end_is_served() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (listener, mut other_client) = UnixStream::pair().unwrap();
    let session = Session::new(OwnedFd::from(ours), TestPort::new(None)).unwrap();
    let (report, reports) = std::sync::mpsc::channel();
    let served = std::thread::spawn(move || {
        let on_connect = || {
            (&listener).read_exact(&mut [0; 1]).unwrap();
            report.send(()).unwrap();
            Duration::ZERO
        };
        session.run_beside(Some(listener.as_fd()), on_connect)
    });
    let mut raw = Raw(theirs);
    for _ in 0..3 {
        raw.negotiate();
        other_client.write_all(b"!").unwrap();
        reports.recv_timeout(TIMEOUT).expect("a knock is heard");
    }
    assert_ne!(raw.exchange(1, &[]), [0; 8]);
    drop(raw);
    assert!(matches!(served.join().unwrap(), Ended::Gone));
}

#[test]
fn a_door_that_is_left_alone_is_heard_again_afterwards_and_keeps_no_session_from_its_messages_and_its_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    // This byte is never read, so the listener stays readable.
    let (listener, mut other_client) = UnixStream::pair().unwrap();
    other_client.write_all(b"!").unwrap();
    let session = Session::new(OwnedFd::from(ours), TestPort::new(None)).unwrap();
    let (report, reports) = mpsc::channel();
    let served = thread::spawn(move || {
        let mut pauses = [Duration::from_millis(1), Duration::from_millis(1)].into_iter();
        let on_connect = || {
            report.send(()).unwrap();
            // Longer than this test runs.
            pauses.next().unwrap_or(Duration::from_secs(3600))
        };
        session.run_beside(Some(listener.as_fd()), on_connect)
    });
    for _ in 0..3 {
        reports.recv_timeout(TIMEOUT).expect("it is heard after a pause");
    }
    let mut raw = Raw(theirs);
    for _ in 0..100 {
        assert_ne!(raw.exchange(1, &[]), [0; 8]);
    }
    drop(raw);
    assert!(matches!(served.join().unwrap(), Ended::Gone));
    assert_eq!(reports.try_iter().count(), 0, "a message does not open the door");
}

#[test]
fn the_longest_message_is_read_whole_and_one_byte_more_ends_the_session() {
    // GET_CONFIG has the longest body: 4096 bytes and its header. No other request needs that much.
    let longest = 4096 + 64;
    let (served, mut raw) = connected();
    assert_eq!(raw.result(3, &vec![7; longest], &[]), 0, "SET_OWNER has no body, and is not read for one");
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
    let (served, mut raw) = connected();
    raw.send(3, 1, &vec![7; longest + 1], &[]);
    assert!(matches!(served.ended(), Ended::Wire(why) if why.contains(&format!("a message of {} bytes", longest + 1))));
}

/// QEMU 11 leaves out regions with `share=off`, and memory that is no file.
#[test]
fn a_ring_of_a_front_end_that_shares_no_memory_is_refused_for_that_reason() {
    let (served, mut raw) = connected();
    let bell = EventFd::new(0).unwrap();
    assert_eq!(raw.result(5, &pair(0, 0), &[]), 0);
    assert_eq!(raw.result(8, &pair(1, 64), &[]), 0);
    assert_eq!(raw.result(9, &addresses(1, USER), &[]), 0);
    assert_eq!(raw.result(12, &1u64.to_ne_bytes(), &[bell.as_raw_fd()]), 1);
    served.port.look(|inside| assert_eq!(inside.refused, ["ring 1 cannot be started: the front end shares no memory"]));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn a_message_in_pieces_is_a_message() {
    let (served, mut raw) = connected();
    for byte in [2u32, 1, 8].map(u32::to_ne_bytes).concat().into_iter().chain((1u64 << 32).to_ne_bytes()) {
        raw.0.write_all(&[byte]).unwrap();
    }
    assert_ne!(raw.exchange(1, &[]), [0; 8]);
    assert!(served.port.look(|inside| inside.adapter.features()).contains(&"virtio-1"));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn garbage_ends_the_session_with_a_reason() {
    for bytes in [[0xffu8; 64], [0; 64], *b"GET / HTTP/1.1\r\nHost: nobody.example\r\nUser-Agent: lost\r\n\r\n......"] {
        let (served, mut raw) = connected();
        raw.0.write_all(&bytes).unwrap();
        match served.ended() {
            Ended::Wire(_) | Ended::Refused(_) => {}
            ended => panic!("{ended:?}"),
        }
    }
}

/// vfio-user.rst, "Header": a message number and a command, 1 (VERSION), of 16 bits each; size, flags and error of 32 bits each.
/// The message of QEMU 11 has 214 bytes; with another size its header would look like our version.
#[test]
fn a_front_end_that_speaks_vfio_user_is_told_apart_by_its_first_twelve_bytes() {
    for (id, size) in [(0u8, 214u8), (0, 213), (7, 20), (255, 255)] {
        let (served, stream) = serve(&TestPort::new(None));
        let mut raw = Raw(stream);
        raw.0.write_all(&[id, 0, 1, 0, size, 0, 0, 0]).unwrap();
        // Unread bytes would reset the connection.
        raw.0.write_all(&[0; 100]).unwrap();
        // A reply (1) with the error (0x20) EPROTONOSUPPORT.
        let mut answer = [0; 16];
        raw.0.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [id, 0, 1, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 93, 0, 0, 0]);
        drop(raw);
        assert!(matches!(served.ended(), Ended::VfioUser), "{id}, {size}");
    }
    // Not a later message of vfio-user, nor another command: neither protocol knows those as a first message.
    let (served, mut raw) = connected();
    raw.0.write_all(&[0, 0, 1, 0, 214, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert!(matches!(served.ended(), Ended::Wire(why) if why.contains("not version 1")));
    let (served, stream) = serve(&TestPort::new(None));
    Raw(stream).0.write_all(&[0, 0, 2, 0, 214, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert!(matches!(served.ended(), Ended::Wire(why) if why.contains("not version 1")));
}

#[test]
fn no_request_is_taken_for_vfio_user_whichever_comes_first() {
    for code in 1..=44 {
        for flags in [1, 1 | 8] {
            let (served, stream) = serve(&TestPort::new(None));
            let mut raw = Raw(stream);
            raw.send(code, flags, &[], &[]);
            raw.0.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(matches!(served.ended(), Ended::Gone | Ended::Refused(_)), "{code}, {flags}");
        }
    }
}

#[test]
fn random_messages_never_panic() {
    let mut state = 7u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for _ in 0..300 {
        let (served, mut raw) = connected();
        for _ in 0..8 {
            let body: Vec<u8> = (0..next() % 48).map(|_| (next() % 5) as u8).collect();
            let header = [(next() % 46) as u32, 1 | 8, body.len() as u32].map(u32::to_ne_bytes).concat();
            // The session may have ended already.
            let _ = raw.0.write_all(&[&header[..], &body].concat());
        }
        raw.0.shutdown(std::net::Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        let _ = raw.0.read_to_end(&mut rest);
        served.ended();
    }
}

#[test]
fn a_refusal_that_nobody_asks_about_ends_the_session() {
    let (served, mut raw) = connected();
    raw.send(2, 1, &u64::MAX.to_ne_bytes(), &[]);
    assert!(matches!(served.ended(), Ended::Refused(Refusal::Features(u64::MAX))));
}

/// "uses zero length of payload to indicate an error" (VHOST_USER_GET_CONFIG).
#[test]
fn configuration_space_beyond_its_end_is_answered_by_no_payload_and_the_session_goes_on() {
    let (served, mut raw) = connected();
    let ask = |offset: u32, size: u32| [&pair(offset, size)[..], &[0; 4], &vec![7; size as usize]].concat();
    // struct virtio_net_config has 24 bytes without the fields for tunnels (virtio 1.2, 5.1.4).
    for (offset, size) in [(0, 24), (23, 1), (24, 0), (6, 2)] {
        let reply = raw.exchange(24, &ask(offset, size));
        assert_eq!(reply.len(), 12 + size as usize, "{size} from {offset}");
        assert_eq!(reply[..8], pair(offset, size));
    }
    for (offset, size) in [(0, 25), (24, 1), (25, 0), (8, 4096), (u32::MAX, 1)] {
        assert_eq!(raw.exchange(24, &ask(offset, size)), [], "{size} from {offset}");
    }
    let refused = served.port.look(|inside| inside.refused.clone());
    assert_eq!(refused.len(), 5);
    assert_eq!(refused[0], "GetConfig: 25 bytes from 0 on do not lie within configuration space");
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

/// Bit 8 of a kick requests polling of the ring, which is not implemented.
#[test]
fn a_ring_that_is_to_be_polled_is_refused_in_words_and_may_be_told_again_with_a_kick() {
    let (served, mut raw) = connected();
    raw.share();
    assert_eq!(raw.result(8, &pair(1, 64), &[]), 0);
    assert_eq!(raw.result(9, &addresses(1, USER), &[]), 0);
    assert_eq!(raw.result(12, &(1u64 | 1 << 8).to_ne_bytes(), &[]), 1);
    served.port.look(|inside| {
        assert!(
            inside.refused[0].starts_with("SetVringKick: ring 1 comes without a descriptor"),
            "{:?}",
            inside.refused
        );
        assert_eq!(inside.adapter.transmit_queues(), 0, "nobody would serve it");
    });
    raw.ring(1, 0);
    served.port.look(|inside| assert!(matches!(inside.kicks.get(&1), Some(Kick::Bell(_)))));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
    // A front end that did not request a result learns of the refusal by the end of the session.
    let (served, mut raw) = connected();
    raw.send(12, 1, &(1u64 | 1 << 8).to_ne_bytes(), &[]);
    assert!(matches!(served.ended(), Ended::Refused(Refusal::Unheard { ring: 1 })));
}

#[test]
fn wrong_descriptors_are_refused() {
    let (served, mut raw) = connected();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let bell = EventFd::new(0).unwrap();
    let (file, bell) = (file.as_raw_fd(), bell.as_raw_fd());
    let (ring, polled) = (1u64.to_ne_bytes(), (1u64 | 1 << 8).to_ne_bytes());
    assert_eq!(raw.result(12, &ring, &[file]), 1, "a file cannot be kicked");
    let (socket, _other) = UnixStream::pair().unwrap();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    assert_eq!(raw.result(12, &ring, &[socket.as_raw_fd()]), 1, "nor can what the front end may be reading from");
    assert_eq!(raw.result(13, &ring, &[epoll.as_raw_fd()]), 1, "whoever waits at it may have others wait");
    assert_eq!(raw.result(12, &ring, &[epoll.as_raw_fd()]), 1, "this goes for watching it as well");
    assert_eq!(raw.result(13, &ring, &[socket.as_raw_fd()]), 0, "User-Mode Linux is called so");
    assert_eq!(raw.result(12, &ring, &[]), 1, "none came");
    assert_eq!(raw.result(12, &ring, &[bell, bell]), 1, "two came");
    assert_eq!(raw.result(12, &polled, &[bell]), 1, "none was to come");
    assert_eq!(raw.result(13, &99u64.to_ne_bytes(), &[bell]), 1, "no such ring");
    assert_eq!(raw.result(3, &[], &[bell]), 1, "SET_OWNER takes none");
    assert_eq!(raw.result(13, &polled, &[]), 0, "polling for calls is allowed");
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn nobody_waits_for_a_descriptor_to_be_closed_that_nobody_asked_for() {
    let (served, mut raw) = connected();
    raw.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (socket, _unread) = lingering();
    // Send the message in two parts, so that the session holds the last handle when it reads.
    let message = [3u32, 1 | 8, 0].map(u32::to_ne_bytes).concat();
    raw.0.send_with_fds(&[&message[..4]], &[socket.as_raw_fd()]).unwrap();
    drop(socket);
    raw.0.write_all(&message[4..]).unwrap();
    assert_eq!(raw.reply(3), 1u64.to_ne_bytes(), "SET_OWNER takes none");
    drop((raw, served));
}

#[test]
fn a_session_that_ends_waits_for_no_descriptor_to_be_closed_that_is_on_its_way() {
    // The holder of the last handle closes the descriptors in flight in the socket: the session or its closer.
    for closer_stays in [false, true] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut raw = Raw(theirs);
        // SET_OWNER with an unknown version ends the session; it never reads the second message.
        raw.send(3, 2, &[], &[]);
        let (socket, _unread) = lingering();
        raw.send(3, 1, &[], &[socket.as_raw_fd()]);
        drop(socket);
        let session = Session::new(OwnedFd::from(ours), TestPort::new(None)).unwrap();
        let closer = session.closer().unwrap();
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let closer = Some(closer).filter(|_| closer_stays);
            let ended = session.run();
            drop(closer);
            done.send(ended).unwrap();
        });
        let ended = finished.recv_timeout(Duration::from_secs(20)).expect("it waits for a descriptor to be closed");
        assert!(matches!(ended, Ended::Wire(_)), "{ended}");
    }
}

#[test]
fn more_descriptors_than_any_message_has_end_the_session() {
    let (served, mut raw) = connected();
    let bell = EventFd::new(0).unwrap();
    raw.send(3, 1, &[], &[bell.as_raw_fd(); 100]);
    assert!(matches!(served.ended(), Ended::Wire(_)));
}

#[test]
fn impossible_memory_is_refused_and_changes_nothing() {
    let (served, mut raw) = connected();
    raw.share();
    let file = shared_file("guest", 0x10_0000).unwrap();
    let fd = file.as_raw_fd();
    let page = |base: u64, len: u64, offset: u64| [base, len, USER, offset];
    let bad: [(&str, Vec<[u64; 4]>); 5] = [
        ("overlap", vec![page(0, 0x2000, 0), page(0x1000, 0x2000, 0)]),
        ("the end of the file", vec![page(0, 0x20_0000, 0)]),
        ("no bytes", vec![page(0, 0, 0)]),
        ("the end of the address space", vec![page(u64::MAX - 0xfff, 0x2000, 0)]),
        ("an offset that overflows", vec![page(0, 0x1000, u64::MAX - 0xfff)]),
    ];
    for (what, regions) in bad {
        let fds = vec![fd; regions.len()];
        assert_eq!(raw.result(5, &table(&regions), &fds), 1, "{what}");
    }
    assert_eq!(raw.result(5, &table(&[page(0, 0x1000, 0)]), &[fd, fd]), 1, "a descriptor too many");
    assert_eq!(raw.result(5, &pair(1, 0), &[fd]), 1, "no region follows");
    assert_eq!(raw.result(5, &[table(&[page(0, 0x1000, 0)]), vec![0; 31]].concat(), &[fd]), 1, "a part of one follows");
    let add = [vec![0; 8], table(&[page(0x8000, 0x1000, 0)])[8..].to_vec()].concat();
    assert_eq!(raw.result(37, &add, &[fd]), 1, "ADD_MEM_REG over what is there");
    assert_eq!(raw.result(38, &add, &[]), 1, "REM_MEM_REG of what is not");
    served.port.look(|inside| assert_eq!(inside.memory.mapped_bytes(), 0x10_0000));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

/// Linux before 6.12 in user mode (virtio_uml.c, `vhost_user_set_mem_table`) has one region, and sends two.
#[test]
fn room_for_regions_that_are_none_is_not_looked_at() {
    let (served, mut raw) = connected();
    let file = shared_file("guest", 0x10_0000).unwrap();
    let region = table(&[[0, 0x10_0000, USER, 0]]);
    assert_eq!(raw.result(5, &[region, vec![0; 32]].concat(), &[file.as_raw_fd()]), 0);
    served.port.look(|inside| assert_eq!(inside.memory.mapped_bytes(), 0x10_0000));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn more_regions_than_were_said_are_refused() {
    let (served, mut raw) = connected();
    let file = shared_file("guest", 0x1000).unwrap();
    for i in 0..130u64 {
        let region = [(0x1000 * i), 0x1000, USER + 0x1000 * i, 0].map(u64::to_ne_bytes).concat();
        let refused = raw.result(37, &[vec![0; 8], region].concat(), &[file.as_raw_fd()]);
        assert_eq!(refused, u64::from(i >= 128), "region {i}");
    }
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

#[test]
fn a_ring_outside_memory_is_refused_and_may_be_told_again() {
    let (served, mut raw) = connected();
    raw.result(2, &(1u64 << 30).to_ne_bytes(), &[]);
    raw.share();
    let bell = EventFd::new(EFD_NONBLOCK).unwrap();
    assert_eq!(raw.result(8, &pair(1, 64), &[]), 0);
    assert_eq!(raw.result(12, &1u64.to_ne_bytes(), &[bell.as_raw_fd()]), 0, "not all is told yet");
    assert_eq!(raw.result(9, &addresses(1, 0), &[]), 1, "no address of the front end's");
    assert_eq!(raw.result(9, &addresses(1, USER + 0xf_f000), &[]), 1, "it ends outside");
    assert_eq!(raw.result(9, &addresses(1, USER + 4), &[]), 1, "misaligned");
    assert_eq!(raw.result(8, &pair(99, 64), &[]), 1, "no such ring");
    assert_eq!(raw.result(9, &addresses(1, USER), &[]), 0);
    served.port.look(|inside| assert_eq!(inside.adapter.transmit_queues(), 0, "not enabled yet"));
    assert_eq!(raw.result(18, &pair(1, 1), &[]), 0);
    served.port.look(|inside| assert_eq!(inside.adapter.transmit_queues(), 1));
    // The ring's memory is removed, and may return: the ring stops, and the table is in force.
    let file: OwnedFd = shared_file("elsewhere", 0x1000).unwrap();
    assert_eq!(raw.result(5, &table(&[[0, 0x1000, 0x5000, 0]]), &[file.as_raw_fd()]), 0);
    served.port.look(|inside| {
        assert_eq!(inside.adapter.transmit_queues(), 0);
        assert_eq!(inside.memory.mapped_bytes(), 0x1000);
    });
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}

/// QEMU shares more than 4 GiB like this: two regions that are contiguous in its own process, but not for the guest.
#[test]
fn a_ring_behind_the_last_byte_of_a_region_is_in_the_next_one_or_nowhere() {
    let (served, mut raw) = connected();
    raw.result(2, &(1u64 << 30).to_ne_bytes(), &[]);
    let file = shared_file("guest", 0x20_0000).unwrap();
    let regions = [[0, 0x10_0000, USER, 0], [1 << 32, 0x10_0000, USER + 0x10_0000, 0x10_0000]];
    assert_eq!(raw.result(5, &table(&regions), &[file.as_raw_fd(); 2]), 0);
    let bell = EventFd::new(EFD_NONBLOCK).unwrap();
    assert_eq!(raw.result(8, &pair(1, 64), &[]), 0);
    assert_eq!(raw.result(12, &1u64.to_ne_bytes(), &[bell.as_raw_fd()]), 0);
    assert_eq!(raw.result(18, &pair(1, 1), &[]), 0);
    assert_eq!(raw.result(9, &addresses(1, USER + 0x20_0000), &[]), 1);
    served.port.look(|inside| {
        let [refused] = &inside.refused[..] else { panic!("one refusal: {:?}", inside.refused) };
        assert!(refused.contains("its address lies in none of the memory regions"), "{refused}");
    });
    assert_eq!(raw.result(9, &addresses(1, USER + 0x10_0000), &[]), 0, "it begins where the first region ends");
    served.port.look(|inside| assert_eq!(inside.adapter.transmit_queues(), 1));
    drop(raw);
    assert!(matches!(served.ended(), Ended::Gone));
}
