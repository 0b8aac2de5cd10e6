//! The owner of descriptors, for any division of the bytes into sends (unix(7), SCM_RIGHTS).

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nicety_vfio_user::SessionError;

use crate::kit::{DeviceCall, Raw, event, memfd, message, pair, take, words};
use crate::lingering::lingering;

fn map(address: u32) -> Vec<u8> {
    message(1, 2, 0, &words(&[32, 3, 0, 0, address, 0, 0x1000, 0]))
}

fn connect(start: u32, count: u32) -> Vec<u8> {
    message(2, 8, 0, &words(&[20, 4 | 32, 2, start, count]))
}

fn write() -> Vec<u8> {
    message(3, 10, 0x10, &[&words(&[0, 0, 0, 1])[..], &[1]].concat())
}

/// Address of every window, and whether it has a file.
fn maps(raw: &Raw) -> Vec<(u64, bool)> {
    let calls = raw.model.calls().into_iter();
    calls
        .filter_map(|t| if let DeviceCall::Map { address, file, .. } = t { Some((address, file)) } else { None })
        .collect()
}

#[test]
fn a_window_without_a_file_does_not_take_the_file_of_the_next_one() {
    let mut raw = Raw::ready();
    let file = memfd(b"x");
    raw.send(&map(0x1000), &[]);
    raw.send(&write(), &[]);
    raw.send(&map(0x2000), &[&file]);
    raw.send(&map(0x3000), &[]);
    raw.send(&write(), &[]);
    raw.send(&map(0x4000), &[&file]);
    raw.settle().unwrap();
    assert_eq!(maps(&raw), [(0x1000, false), (0x2000, true), (0x3000, false), (0x4000, true)]);
    assert_eq!(raw.session.counters().fds_refused, 0);
}

#[test]
fn a_file_sent_with_a_batch_of_messages_goes_to_the_one_that_takes_files() {
    let mut raw = Raw::ready();
    let file = memfd(b"x");
    raw.send(&[write(), map(0x1000), write(), write()].concat(), &[&file]);
    raw.settle().unwrap();
    assert_eq!(maps(&raw), [(0x1000, true)]);
    assert_eq!(raw.session.counters().fds_refused, 0);
}

#[test]
fn a_message_sent_in_two_parts_has_the_descriptors_of_either() {
    for (first, second) in [(true, false), (false, true)] {
        for cut in [1, 15, 16, 20, 47] {
            let mut raw = Raw::ready();
            let file = memfd(b"x");
            let (some, none) = (vec![&file], vec![]);
            let bytes = map(0x1000);
            raw.send(&[write(), bytes[..cut].to_vec()].concat(), if first { &some } else { &none });
            raw.turn().unwrap();
            raw.send(&bytes[cut..], if second { &some } else { &none });
            raw.settle().unwrap();
            assert_eq!(maps(&raw), [(0x1000, true)], "cut at {cut}");
        }
    }
}

#[test]
fn eventfds_of_several_messages_waiting_together_each_find_their_vector() {
    let mut raw = Raw::ready();
    let events: Vec<_> = (0..8).map(|_| event()).collect();
    raw.send(&connect(0, 2), &[&events[0], &events[1]]);
    raw.send(&message(4, 9, 0, &words(&[0, 0, 0, 4])), &[]);
    raw.send(&connect(2, 4), &[&events[2], &events[3], &events[4], &events[5]]);
    raw.send(&connect(1, 1), &[]);
    raw.send(&connect(6, 2), &[&events[6], &events[7]]);
    raw.settle().unwrap();
    assert!(raw.replies().iter().all(|r| r.error == 0));
    for vector in 0..8 {
        raw.model.interrupts.raise_msix(vector);
    }
    let counts: Vec<u64> = events.iter().map(take).collect();
    assert_eq!(counts, [1, 0, 1, 1, 1, 1, 1, 1], "vector 1 was taken away again");
}

#[test]
fn descriptors_that_nothing_takes_are_closed_counted_and_answered_with_an_error() {
    let mut raw = Raw::ready();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(raw.errno(9, &words(&[0, 0, 0, 4]), &[&writer, &writer]), 22);
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0]), &[&writer, &writer]), 22);
    assert_eq!(raw.errno(99, &[], &[&writer]), 95);
    assert_eq!(raw.session.counters().fds_refused, 5);
    drop(writer);
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0, "no copy of the pipe is left open");
}

#[test]
fn more_descriptors_than_a_message_may_have_end_the_session_and_are_closed() {
    for many in [17, 253] {
        let mut raw = Raw::ready();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        raw.send(&connect(0, 1), &vec![&writer; many]);
        assert_eq!(raw.settle(), Err(SessionError::TooManyDescriptors(many)));
        drop((writer, raw));
        assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn descriptors_trickling_in_with_one_unfinished_message_are_bounded() {
    let mut raw = Raw::ready();
    let file = memfd(b"x");
    let mut outcome = Ok(());
    for byte in map(0x1000) {
        raw.send(&[byte], &[&file]);
        outcome = raw.turn().map(|_| ());
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!(outcome, Err(SessionError::TooManyDescriptors(17)));
}

#[test]
fn an_eventfd_that_would_have_its_writer_or_reader_wait_is_refused() {
    let mut raw = Raw::ready();
    let (trigger, unmask) = (words(&[20, 4 | 32, 2, 0, 1]), words(&[20, 4 | 16, 0, 0, 1]));
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    for fd in [memfd(b"x"), epoll] {
        assert_eq!(raw.errno(8, &trigger, &[&fd]), 22);
        assert_eq!(raw.errno(8, &unmask, &[&fd]), 22);
    }
    let (ours, _theirs) = pair();
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(raw.errno(8, &trigger, &[&ours]), 0);
    assert_eq!(raw.errno(8, &trigger, &[&writer]), 0, "User-Mode Linux has pipes");
    assert_eq!(raw.errno(8, &unmask, &[&ours]), 22, "it would have to be read");
    assert_eq!(raw.errno(8, &unmask, &[&event()]), 0);
}

#[test]
fn a_session_waits_for_no_descriptor_to_be_closed_that_nobody_asked_for_or_that_is_on_its_way() {
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let mut raw = Raw::ready();
        let (socket, _unread) = lingering();
        raw.send(&write(), &[&socket]);
        drop(socket);
        raw.settle().unwrap();
        assert_eq!(raw.session.counters().fds_refused, 1);
        let (socket, _unread) = lingering();
        raw.send(&write(), &[&socket]);
        drop(socket);
        drop(raw.session);
        done.send(()).unwrap();
        // Keep the peers open until the test is done: a socket whose peer has closed does not linger.
        thread::park();
    });
    finished.recv_timeout(Duration::from_secs(20)).expect("it waits for a descriptor to be closed");
}
