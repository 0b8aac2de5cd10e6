//! Hostile peers: garbage, half messages, floods, silence.

use nicety_vfio_user::codec::HeaderError;
use nicety_vfio_user::{Client, ClientError, NoMemory, SessionError};
use proptest::prelude::*;
use std::time::Duration;

use crate::kit::{DeviceCall, Model, Raw, message, pair, words};

/// A step that takes longer hangs.
const HANGS: Duration = Duration::from_secs(60);

#[test]
fn a_session_fed_byte_by_byte_does_the_same() {
    let mut raw = Raw::fresh();
    let mut stream = message(0, 1, 0, b"\0\0\x01\0{\"capabilities\":{}}\0");
    stream.extend(message(1, 10, 0, &[&words(&[3, 0, 0, 2])[..], &[8, 9]].concat()));
    stream.extend(message(2, 9, 0, &words(&[3, 0, 0, 2])));
    for byte in stream {
        raw.send(&[byte], &[]);
        raw.turn().unwrap();
    }
    let replies = raw.replies();
    assert_eq!(replies.iter().map(|r| (r.id, r.error)).collect::<Vec<_>>(), [(0, 0), (1, 0), (2, 0)]);
    assert_eq!(replies[2].payload[16..], [8, 9]);
}

#[test]
fn nothing_but_version_is_understood_first() {
    for command in [0u16, 2, 5, 9, 10, 13, 16, 99] {
        let mut raw = Raw::fresh();
        raw.send(&message(3, command, 0, &words(&[0; 8])), &[]);
        assert_eq!(raw.turn(), Err(SessionError::NoVersion(command)));
        let replies = raw.replies();
        assert_eq!((replies.len(), replies[0].error), (1, 22), "it is told, and then the session ends");
        assert_eq!(raw.model.calls(), []);
    }
    let mut raw = Raw::fresh();
    raw.send(&message(3, 1, 0, &[1, 0, 0, 0]), &[]);
    assert_eq!(raw.turn(), Err(SessionError::OtherVersion(1)));
    let mut raw = Raw::fresh();
    raw.send(&message(3, 1, 0, b"\0\0\0\0{\"capabilities\":"), &[]);
    assert!(matches!(raw.turn(), Err(SessionError::BadVersion(_))));
}

/// vhost-user.rst, "Header": request, flags, size, each of 32 bits. QEMU's first message is GET_FEATURES, 1; Linux's own front
/// end's (arch/um/drivers/virtio_uml.c) is SET_OWNER, 3; others ask for protocol features, 15, or for a reply, flag 8.
#[test]
fn a_client_that_speaks_vhost_user_is_told_apart_by_its_first_eight_bytes() {
    for (request, flags) in [(1u8, 1u8), (3, 1), (15, 1), (3, 9)] {
        let first = [request, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0];
        for bytes in 8..=first.len() {
            let mut raw = Raw::fresh();
            raw.send(&first[..7], &[]);
            assert_eq!(raw.turn().unwrap().handled, 0);
            raw.send(&first[7..bytes], &[]);
            assert_eq!(raw.turn(), Err(SessionError::VhostUser), "{request}, {flags}, {bytes}");
            assert_eq!(raw.model.calls(), []);
        }
    }
    // After VERSION the same bytes are only an invalid header.
    let mut raw = Raw::ready();
    raw.send(&words(&[1, 1, 0, 0]), &[]);
    assert_eq!(raw.turn(), Err(SessionError::Header(HeaderError::TooShort(1))));
}

#[test]
fn no_version_message_of_any_number_and_size_is_taken_for_vhost_user() {
    for id in (0..=u16::MAX).step_by(251) {
        for text in (0..200).chain([1000, 4000]) {
            let json = format!("\0\0\x01\0{{{}}}\0", " ".repeat(text));
            let mut raw = Raw::fresh();
            raw.send(&message(id, 1, 0, json.as_bytes()), &[]);
            assert_eq!(raw.turn().unwrap().handled, 1, "{id}, {text}");
        }
    }
}

#[test]
fn a_header_that_cannot_be_true_ends_the_session_with_a_sentence() {
    let cases = [
        (0u32, 0u32, HeaderError::TooShort(0)),
        (15, 0, HeaderError::TooShort(15)),
        (0xffff_ffff, 0, HeaderError::TooLong(0xffff_ffff)),
        ((1 << 20) + 4097, 0, HeaderError::TooLong((1 << 20) + 4097)),
        (16, 2, HeaderError::Type(2)),
        (16, 0xf, HeaderError::Type(15)),
    ];
    for (size, flags, expected) in cases {
        let mut raw = Raw::ready();
        let mut bytes = message(1, 9, flags, &[]);
        bytes[4..8].copy_from_slice(&size.to_le_bytes());
        raw.send(&bytes, &[]);
        let error = raw.settle().unwrap_err();
        assert_eq!(error, SessionError::Header(expected));
        assert!(error.to_string().starts_with("the peer sent something that is not vfio-user: a message "));
    }
}

#[test]
fn half_a_message_waits_without_a_sound_and_closing_in_the_middle_is_told_apart() {
    let mut raw = Raw::ready();
    assert!(!raw.session.is_within_message(), "it rests between messages");
    let bytes = message(1, 9, 0, &words(&[0, 0, 0, 4]));
    for cut in 1..bytes.len() {
        let mut raw = Raw::ready();
        raw.send(&bytes[..cut], &[]);
        for _ in 0..3 {
            assert_eq!(raw.turn().unwrap().handled, 0);
        }
        assert_eq!(raw.model.calls(), []);
        assert!(raw.session.is_within_message(), "whoever has a clock may end it");
        drop(std::mem::replace(&mut raw.peer, pair().0));
        assert_eq!(raw.turn(), Err(SessionError::ClosedWithinMessage), "cut at {cut}");
    }
    drop(std::mem::replace(&mut raw.peer, pair().0));
    assert_eq!(raw.turn(), Err(SessionError::Closed));
}

#[test]
fn what_was_lent_is_given_back_however_the_session_ends() {
    let mut raw = Raw::ready();
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 0x1000, 0, 0x1000, 0]), &[]), 0);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(raw.errno(8, &words(&[20, 4 | 32, 2, 0, 1]), &[&writer]), 0);
    drop(writer);
    raw.send(&[0xff; 16], &[]);
    assert!(raw.turn().is_err());
    let Raw { mut session, mut model, .. } = raw;
    session.disconnect(&mut model);
    assert_eq!(model.calls().last(), Some(&DeviceCall::Unmap(None)));
    assert_eq!(rustix::io::read(&reader, &mut [0; 1]).unwrap(), 0, "the eventfd is closed");
}

#[test]
fn a_peer_that_does_not_read_its_answers_is_not_read_either_and_costs_bounded_memory() {
    let mut raw = Raw::ready();
    // A request of 32 bytes for an answer of a megabyte, 1500 times.
    let question = message(1, 9, 0, &words(&[0, 0, 3, 1 << 20]));
    let mut sent = 0;
    rustix::io::ioctl_fionbio(&raw.peer, true).unwrap();
    while sent < 1500 && rustix::io::write(&raw.peer, &question) == Ok(32) {
        sent += 1;
    }
    for _ in 0..50 {
        raw.turn().unwrap();
    }
    assert!(raw.session.wants_write() && !raw.session.wants_read());
    let handled = raw.session.counters().reads;
    assert!(handled <= 2, "{handled} megabytes of answers were made for nobody");
    // The peer begins to read: every request is answered after all, in order.
    let mut received = 0u64;
    let mut part = vec![0; 1 << 20];
    while received < sent * ((1 << 20) + 32) {
        if let Ok((count, _)) = rustix::net::recv(&raw.peer, &mut part[..], rustix::net::RecvFlags::DONTWAIT) {
            received += count as u64;
        }
        raw.turn().unwrap();
    }
    assert_eq!(raw.session.counters().reads, sent);
    assert!(!raw.session.wants_write() && raw.session.wants_read());
}

#[test]
fn a_megabyte_of_write_arrives_whole_and_one_byte_more_is_refused() {
    let (near, far) = pair();
    let server = crate::kit::serve(far, Model::new());
    let mut guest = crate::kit::client(near);
    let data = vec![0x5a; 1 << 20];
    assert!(matches!(guest.region_write(2, 0, &data), Err(ClientError::Refused { .. })), "region 2 always fails");
    assert!(matches!(guest.region_write(2, 0, &vec![0; (1 << 20) + 1]), Err(ClientError::Limit(_))));
    let mut back = vec![0; 1 << 20];
    guest.region_read(3, 1, &mut back).unwrap();
    assert!(back.iter().enumerate().all(|(n, b)| *b == (n + 1) as u8));
    drop(guest);
    let (error, _, model) = server.join().unwrap();
    assert_eq!(error, SessionError::Closed);
    assert_eq!(model.calls()[0], DeviceCall::Write(2, 0, data));
}

#[test]
fn a_server_that_says_nothing_or_goes_away_does_not_hold_the_client_up() {
    let (near, _far) = pair();
    let (say, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let connected = Client::from_socket(near, Duration::from_millis(50), Box::new(NoMemory));
        let _test_gave_up = say.send(connected.map(drop));
    });
    let error = said.recv_timeout(HANGS).expect("the client waits for a server that says nothing").unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let (near, far) = pair();
    drop(far);
    let error = Client::from_socket(near, Duration::from_secs(5), Box::new(NoMemory)).unwrap_err();
    assert_eq!(error, ClientError::Session(SessionError::Closed));
}

/// Messages that are nearly valid: a valid header with any payload.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let payload = proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(4), Just(32), any::<u8>()], 0..64);
    let flags = prop_oneof![4 => Just(0u32), 1 => Just(0x10), 1 => any::<u32>().prop_map(|f| f & !0xe)];
    (0u16..20, flags, payload).prop_map(|(command, flags, payload)| message(1, command, flags, &payload))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_stream_of_bytes_makes_the_session_panic_or_wait(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        for mut raw in [Raw::fresh(), Raw::ready()] {
            raw.send(&bytes, &[]);
            let _ = raw.settle();
        }
    }

    #[test]
    fn no_stream_of_nearly_right_messages_makes_the_session_panic_or_wait(
        messages in proptest::collection::vec(nearly(), 1..30),
        cuts in proptest::collection::vec(1usize..200, 1..6),
    ) {
        let mut raw = Raw::ready();
        let stream = messages.concat();
        let mut rest = &stream[..];
        for cut in cuts.into_iter().cycle() {
            let (now, later) = rest.split_at(cut.min(rest.len()));
            let _ = rustix::net::send(&raw.peer, now, rustix::net::SendFlags::NOSIGNAL);
            rest = later;
            if raw.turn().is_err() || rest.is_empty() {
                break;
            }
        }
    }
}

#[test]
fn a_peer_that_reads_headers_by_themselves_as_qemu_does_never_finds_half_a_header() {
    use rustix::net::{RecvFlags, recv};
    let mut raw = Raw::ready();
    let (mut sent, mut answered, mut blocked) = (0u32, 0u32, 0);
    for _ in 0..80 {
        // More answers than the socket holds, so that it takes only a part of them.
        let question = |n: u32| message(n as u16, 9, 0, &words(&[0, 0, 3, n * 37 % 700 + 1]));
        raw.send(&(sent + 1..=sent + 1500).flat_map(question).collect::<Vec<_>>(), &[]);
        sent += 1500;
        while raw.turn().unwrap().handled > 0 {}
        blocked += u32::from(raw.session.wants_write());
        while answered < sent {
            let mut header = [0; 16];
            match recv(&raw.peer, &mut header[..], RecvFlags::DONTWAIT) {
                Err(_) => {
                    raw.turn().unwrap();
                    continue;
                }
                Ok((count, _)) => assert_eq!(count, 16, "QEMU calls this \"short read of header\" and gives up"),
            }
            answered += 1;
            assert_eq!(u16::from_le_bytes([header[0], header[1]]), answered as u16);
            let size = u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize - 16;
            let mut payload = vec![0; size];
            assert_eq!(recv(&raw.peer, &mut payload[..], RecvFlags::DONTWAIT).unwrap().0, size);
        }
    }
    assert!(blocked == 80, "the socket was full {blocked} times only");
    let calls = raw.session.counters().send_calls;
    assert!(calls < u64::from(sent) / 10, "{calls} calls for {sent} answers");
}

#[test]
fn a_client_may_have_as_many_windows_as_it_was_told_and_not_one_more() {
    let mut raw = Raw::fresh();
    raw.session.limit_dma_maps(3);
    raw.send(&message(0, 1, 0, b"\0\0\x01\0{\"capabilities\":{\"max_dma_maps\":65535,\"max_msg_fds\":0}}\0"), &[]);
    raw.turn().unwrap();
    let reply = raw.replies().remove(0).payload;
    assert!(std::str::from_utf8(&reply).unwrap().contains("\"max_dma_maps\":3,"));
    for n in 0..3 {
        assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, n << 12, 0, 0x1000, 0]), &[]), 0);
    }
    const ENOSPC: u32 = 28;
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 3 << 12, 0, 0x1000, 0]), &[]), ENOSPC);
    assert_eq!(raw.errno(3, &words(&[24, 0, 0, 0, 0x1000, 0]), &[]), 0);
    assert_eq!(raw.errno(2, &words(&[32, 3, 0, 0, 3 << 12, 0, 0x1000, 0]), &[]), 0);
}

#[test]
fn a_client_that_takes_no_descriptors_is_not_offered_a_mapping() {
    use nicety_vfio_user::{Mapping, RegionInfo};
    let mut raw = Raw::fresh();
    let mapping = Mapping { fd: std::sync::Arc::new(crate::kit::memfd(b"x")), offset: 0, areas: Vec::new() };
    raw.model.shared = Some(RegionInfo { mapping: Some(mapping), ..RegionInfo::trapped(0x1000) });
    raw.send(&message(0, 1, 0, b"\0\0\x01\0{\"capabilities\":{\"max_msg_fds\":0}}\0"), &[]);
    raw.send(&message(1, 5, 0, &words(&[32, 0, 1, 0, 0, 0, 0, 0])), &[]);
    raw.settle().unwrap();
    assert_eq!(raw.replies()[1].payload, words(&[32, 3, 1, 0, 0x1000, 0, 0, 0]));
}
