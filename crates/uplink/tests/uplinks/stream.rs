//! A stream carries frames as QEMU's `-netdev stream` does, trusts no length, and finds its peer again.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use crate::common::*;
use nicety_adapter::{Counters, Frames, Offload, Pick, Reason, Time, Uplink};
use nicety_socket::ListenError;
use nicety_uplink::{Severed, SocketError, Stream};

/// A frame as it appears in a stream.
fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// A path in a directory of its own.
fn place(name: &str) -> PathBuf {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stream-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

/// One end, and a peer that the test controls.
fn with_peer(name: &str) -> (Stream, UnixStream) {
    let path = place(name);
    let stream = Stream::listen(&path).unwrap();
    let peer = UnixStream::connect(&path).unwrap();
    peer.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    (stream, peer)
}

/// All frames that arrive.
fn all(stream: &mut Stream, counters: &mut Counters) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    loop {
        let (batch, progress) = fetch(stream, counters, Time::ZERO);
        out.extend(frames(&batch, PLAIN));
        stream.complete(&batch);
        if progress.armed {
            return out;
        }
    }
}

#[test]
fn a_frame_stands_behind_its_length_in_four_bytes_big_endian_both_ways() {
    let (mut stream, mut peer) = with_peer("bytes");
    let mut counters = Counters::default();
    assert!(all(&mut stream, &mut counters).is_empty());
    let frame = tcp(&payload(100));
    Sender::new(&[(frame.clone(), Offload::default())]).deliver(&mut stream, &mut counters, Time::ZERO);
    let mut bytes = vec![0; 4 + frame.len()];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], [0, 0, 0, 154]);
    assert_eq!(bytes[4..], frame);
    peer.write_all(&bytes).unwrap();
    assert!(readable(&stream));
    assert_eq!(all(&mut stream, &mut counters), [frame]);
    assert_eq!((counters.transmitted().frames, counters.taken().frames), (1, 1));
}

#[test]
fn a_short_frame_leaves_with_the_least_length_of_ethernet() {
    let (mut stream, mut peer) = with_peer("short");
    let mut counters = Counters::default();
    all(&mut stream, &mut counters);
    let frame = tcp(b"");
    assert_eq!(frame.len(), 54);
    Sender::new(&[(frame.clone(), Offload::default())]).deliver(&mut stream, &mut counters, Time::ZERO);
    let mut bytes = [1; 64];
    peer.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..4], [0, 0, 0, 60]);
    assert_eq!(bytes[4..58], frame);
    assert_eq!(bytes[58..], [0; 6]);
}

#[test]
fn a_packet_of_64_kb_leaves_as_frames_whose_checksums_hold() {
    let (mut one, mut other) = Stream::connected().unwrap();
    let data = payload(60_000);
    let mut counters = Counters::default();
    let sender = Sender::new(&[(partial(&data), tso())]);
    assert_eq!(sender.deliver(&mut one, &mut counters, Time::ZERO).refused(), 0);
    assert_eq!((counters.taken().packets, counters.taken().frames), (1, 42));
    let arrived = all(&mut other, &mut counters);
    assert_eq!(arrived.len(), 42);
    assert_eq!(counters.transmitted().frames, 42);
    assert_eq!(arrived.iter().flat_map(|frame| checked_payload(frame)).collect::<Vec<u8>>(), data);
}

#[test]
fn a_stream_that_comes_byte_by_byte_gives_the_same_frames() {
    let (mut stream, mut peer) = with_peer("bytewise");
    let mut counters = Counters::default();
    let sent = [tcp(b"one"), tcp(&payload(1400)), tcp(b"three")];
    let mut got = all(&mut stream, &mut counters);
    for byte in sent.iter().flat_map(|frame| framed(frame)) {
        peer.write_all(&[byte]).unwrap();
        got.extend(all(&mut stream, &mut counters));
    }
    assert_eq!(got, sent);
}

#[test]
fn much_more_than_a_buffer_arrives_in_order_at_any_length() {
    let (mut stream, mut peer) = with_peer("much");
    let mut counters = Counters::default();
    let lengths = [14, 60, 1514, 9000, 66_047, 15, 65_550];
    let sent: Vec<Vec<u8>> =
        (0..140).map(|n| payload(lengths[n % lengths.len()]).iter().map(|b| b ^ n as u8).collect()).collect();
    let bytes: Vec<u8> = sent.iter().flat_map(|frame| framed(frame)).collect();
    let writer = std::thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
    let mut got = Vec::new();
    while got.len() < sent.len() {
        assert!(readable(&stream), "{} of {}", got.len(), sent.len());
        let (batch, _) = fetch(&mut stream, &mut counters, Time::ZERO);
        let wants = nicety_adapter::Wants { frame_max: nicety_adapter::PACKET_BYTES, ..PLAIN };
        got.extend(frames(&batch, wants));
        stream.complete(&batch);
    }
    writer.join().unwrap().unwrap();
    assert!(got == sent);
}

#[test]
fn a_frame_of_no_bytes_and_one_too_long_are_counted_and_the_next_one_is_read() {
    let (mut stream, mut peer) = with_peer("lengths");
    let mut counters = Counters::default();
    let good = tcp(b"hello");
    // 66 047 is the switch's longest packet, 69 632 is QEMU's longest frame.
    for (bytes, reason) in [
        (framed(&[]), Reason::TooShort),
        (framed(&[7; 13]), Reason::TooShort),
        (framed(&vec![7; 66_048]), Reason::TooLong),
        (framed(&vec![7; 69_632]), Reason::TooLong),
    ] {
        let before = counters.transmit_drops[reason as usize];
        let bytes = [bytes, framed(&good)].concat();
        let mut writer = peer.try_clone().unwrap();
        let writing = std::thread::spawn(move || writer.write_all(&bytes));
        let mut got = Vec::new();
        while got.is_empty() {
            assert!(readable(&stream));
            got = all(&mut stream, &mut counters);
        }
        writing.join().unwrap().unwrap();
        assert_eq!(got, std::slice::from_ref(&good));
        assert_eq!(counters.transmit_drops[reason as usize], before + 1);
    }
    assert!(stream.joined());
    peer.write_all(&framed(&good)).unwrap();
    assert_eq!(all(&mut stream, &mut counters), [good]);
}

#[test]
fn a_peer_that_sends_no_lengths_is_left_and_the_next_one_is_taken() {
    let path = place("foreign");
    let mut stream = Stream::listen(&path).unwrap();
    let mut counters = Counters::default();
    for (said, length) in [(&b"GET / HTTP/1.1\r\n"[..], 0x4745_5420), (&[0, 1, 16, 1], 69_633), (&[255; 4], u32::MAX)] {
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.write_all(&framed(&tcp(b"first"))).unwrap();
        peer.write_all(said).unwrap();
        assert!(readable(&stream));
        assert_eq!(checked_payload(&all(&mut stream, &mut counters)[0]), b"first");
        assert_eq!(stream.severed(), Some(Severed::Length(length)));
        assert!(!stream.joined());
        assert!(stream.vacant().unwrap().starts_with("the peer does not send frames behind their lengths"));
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0, "it is told");
    }
}

#[test]
fn half_a_frame_goes_with_its_peer() {
    let path = place("half");
    let mut stream = Stream::listen(&path).unwrap();
    let mut counters = Counters::default();
    let frame = tcp(&payload(500));
    for half in [1, 4, 5, 300] {
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.write_all(&framed(&frame)[..half]).unwrap();
        assert!(readable(&stream));
        assert!(all(&mut stream, &mut counters).is_empty());
        assert!(stream.joined());
        drop(peer);
        assert!(readable(&stream));
        assert!(all(&mut stream, &mut counters).is_empty());
        assert_eq!(stream.severed(), Some(Severed::Gone));
        let mut next = UnixStream::connect(&path).unwrap();
        next.write_all(&framed(&frame)).unwrap();
        assert!(readable(&stream));
        assert_eq!(all(&mut stream, &mut counters), std::slice::from_ref(&frame));
        drop(next);
        all(&mut stream, &mut counters);
    }
    assert_eq!(counters.transmit_drops.iter().sum::<u64>(), 0);
}

#[test]
fn an_end_that_connects_waits_for_a_peer_and_finds_it_again() {
    let path = place("again");
    let mut client = Stream::connect(&path).unwrap();
    assert!(!client.joined());
    assert!(client.vacant().unwrap().ends_with("nobody listens there"));
    let nowhere = Stream::connect("/dev/null/up.sock").unwrap().vacant().unwrap();
    assert!(nowhere.starts_with("cannot join /dev/null/up.sock, and tries again every second: Not a dir"), "{nowhere}");
    let mut counters = Counters::default();
    let sender = Sender::new(&[(tcp(b"hello"), Offload::default())]);
    assert_eq!(sender.deliver(&mut client, &mut counters, Time::ZERO).refused(), 0);
    assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 1);
    for _ in 0..2 {
        let listener = UnixListener::bind(&path).unwrap();
        while !client.joined() {
            assert!(readable(&client), "its timer tells");
            fetch(&mut client, &mut counters, Time::ZERO);
        }
        let (mut peer, _) = listener.accept().unwrap();
        assert_eq!(client.vacant(), None);
        sender.deliver(&mut client, &mut counters, Time::ZERO);
        peer.read_exact(&mut [0; 64]).unwrap();
        peer.write_all(&framed(&tcp(b"hello"))).unwrap();
        assert_eq!(checked_payload(&all(&mut client, &mut counters)[0]), b"hello");
        drop((peer, listener));
        std::fs::remove_file(&path).unwrap();
        assert!(readable(&client));
        fetch(&mut client, &mut counters, Time::ZERO);
        assert_eq!((client.joined(), client.severed()), (false, Some(Severed::Gone)));
    }
}

#[test]
fn a_full_socket_keeps_what_it_took_refuses_the_rest_and_says_when_there_is_room() {
    let (mut one, mut other) = Stream::connected().unwrap();
    let mut counters = Counters::default();
    let sender = fill(&mut one, &mut counters, 1 << 16);
    let mut arrived = 0;
    let mut take = |other: &mut Stream| {
        for frame in all(other, &mut Counters::default()) {
            assert_eq!(checked_payload(&frame), payload(1400));
            arrived += 1;
        }
        arrived
    };
    assert!(take(&mut other) < counters.taken().packets, "some wait in the uplink's own buffer");
    while one.wake().is_none() {
        assert!(readable(&one), "room is told");
        fetch(&mut one, &mut counters, Time::ZERO);
        take(&mut other);
    }
    assert_eq!(take(&mut other), counters.taken().packets);
    check_has_room(&mut one, &sender, &mut counters);
}

#[test]
fn a_packet_cut_into_tiny_frames_is_sent_piece_by_piece() {
    let (mut one, mut other) = Stream::connected().unwrap();
    let mut counters = Counters::default();
    let mut offload = tso();
    if let Some(segment) = &mut offload.segment {
        segment.mss = 4;
    }
    // 2000 and 12 500 frames of 60 bytes: the latter are more than the buffer holds at once.
    let data = payload(8000);
    Sender::new(&[(partial(&data), offload)]).deliver(&mut one, &mut counters, Time::ZERO);
    let arrived = all(&mut other, &mut Counters::default());
    assert_eq!(arrived.len(), 2000);
    assert_eq!(arrived.iter().flat_map(|frame| checked_payload(frame)).collect::<Vec<u8>>(), data);
    // A frame that the socket does not take is refused, and delivery continues there.
    let sender = Sender::new(&[(partial(&payload(50_000)), offload)]);
    let (mut rest, mut offers, mut bytes) = (vec![Pick::whole(0)], 0, Vec::new());
    while !rest.is_empty() {
        let delivery = one.deliver(&Frames::new(&sender.batch, &rest), &mut counters, Time::ZERO);
        rest = delivery.again(&rest).collect();
        bytes.extend(all(&mut other, &mut Counters::default()).iter().flat_map(|frame| checked_payload(frame)));
        let _notices_room = fetch(&mut one, &mut Counters::default(), Time::ZERO);
        offers += 1;
        assert!(offers < 100, "it never ends");
    }
    assert!(offers > 1, "more than the socket holds");
    assert_eq!(bytes, payload(50_000));
    assert_eq!((counters.taken().packets, counters.receive_drops.iter().sum::<u64>()), (2, 0));
}

#[test]
fn a_batch_that_is_not_completed_keeps_its_bytes_while_more_arrive() {
    let (mut stream, mut peer) = with_peer("held");
    let mut counters = Counters::default();
    peer.write_all(&framed(&tcp(&payload(1000)))).unwrap();
    assert!(readable(&stream));
    let (held, _) = fetch(&mut stream, &mut counters, Time::ZERO);
    assert_eq!(held.len(), 1);
    for _ in 0..30 {
        peer.write_all(&framed(&tcp(&[1; 1000]))).unwrap();
        let (batch, progress) = fetch(&mut stream, &mut counters, Time::ZERO);
        assert!(batch.is_empty() && progress.more);
    }
    assert_eq!(checked_payload(&frames(&held, PLAIN)[0]), payload(1000));
    stream.complete(&held);
    drop(held);
    assert_eq!(all(&mut stream, &mut counters).len(), 30);
}

#[test]
fn one_listens_at_a_path_and_the_other_is_told() {
    let path = place("taken");
    let stream = Stream::listen(&path).unwrap();
    assert!(matches!(Stream::listen(&path), Err(SocketError::Listen(ListenError::InUse(_)))));
    drop(stream);
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    assert!(matches!(Stream::listen(&path), Err(SocketError::Listen(ListenError::NotASocket(_)))));
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    assert!(matches!(Stream::connect("x".repeat(200)), Err(SocketError::Os { doing: "connecting to", .. })));
}
