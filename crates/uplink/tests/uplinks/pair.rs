//! A pair carries packets whole, reports its backlog correctly, and survives any peer.

use crate::common::*;
use nicety_adapter::{Checksum, Counters, Offload, Reason, Time, Uplink};
use nicety_socket::ListenError;
use nicety_uplink::{Pair, Parting, SocketError, Stream};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

#[test]
fn a_packet_of_64_kb_crosses_whole_both_ways_and_its_cuts_hold() {
    let (mut one, mut other) = Pair::connected().unwrap();
    let data = payload(60_000);
    for _ in 0..2 {
        let mut counters = Counters::default();
        let sender = Sender::new(&[(partial(&data), tso())]);
        assert_eq!(sender.deliver(&mut one, &mut counters, Time::ZERO).refused(), 0);
        assert_eq!(counters.taken().packets, 1);
        assert_eq!(counters.taken().frames, 42);
        assert!(readable(&other));
        let (batch, progress) = fetch(&mut other, &mut counters, Time::ZERO);
        assert!(progress.armed);
        assert_eq!(counters.transmitted(), counters.taken());
        assert_eq!(batch.packets()[0].offload, tso(), "still one packet");
        let cut = frames(&batch, PLAIN);
        assert_eq!(cut.len(), 42);
        assert_eq!(cut.iter().flat_map(|frame| checked_payload(frame)).collect::<Vec<u8>>(), data);
        other.complete(&batch);
        std::mem::swap(&mut one, &mut other);
    }
}

#[test]
fn each_state_of_a_checksum_arrives_as_it_was() {
    let (mut one, mut other) = Pair::connected().unwrap();
    let mut counters = Counters::default();
    let states = [Checksum::AsIs, Checksum::Verified, PARTIAL];
    let packets = states.map(|checksum| {
        let frame = if checksum == PARTIAL { partial(b"hello") } else { tcp(b"hello") };
        (frame, Offload { checksum, segment: None })
    });
    Sender::new(&packets).deliver(&mut one, &mut counters, Time::ZERO);
    let (batch, _) = fetch(&mut other, &mut counters, Time::ZERO);
    assert_eq!(batch.packets().iter().map(|packet| packet.offload.checksum).collect::<Vec<_>>(), states);
    for frame in frames(&batch, PLAIN) {
        assert_eq!(checked_payload(&frame), b"hello");
    }
}

#[test]
fn a_full_socket_refuses_and_takes_the_rest_when_it_is_read() {
    let (mut one, mut other) = Pair::connected().unwrap();
    let mut counters = Counters::default();
    let sender = fill(&mut one, &mut counters, 1 << 20);
    let mut arrived = 0;
    loop {
        let (batch, progress) = fetch(&mut other, &mut Counters::default(), Time::ZERO);
        arrived += batch.len() as u64;
        other.complete(&batch);
        if progress.armed {
            break;
        }
    }
    assert_eq!(arrived, counters.taken().packets);
    assert!(readable(&one), "room is told");
    fetch(&mut one, &mut counters, Time::ZERO);
    check_has_room(&mut one, &sender, &mut counters);
}

#[test]
fn a_batch_that_is_not_completed_keeps_its_bytes_while_more_arrive() {
    let (mut one, mut other) = Pair::connected().unwrap();
    let mut counters = Counters::default();
    Sender::new(&[(tcp(&payload(1000)), Offload::default())]).deliver(&mut one, &mut counters, Time::ZERO);
    let (held, _) = fetch(&mut other, &mut counters, Time::ZERO);
    for _ in 0..200 {
        Sender::new(&[(tcp(&[1; 1000]), Offload::default())]).deliver(&mut one, &mut counters, Time::ZERO);
        let (batch, _) = fetch(&mut other, &mut counters, Time::ZERO);
        assert_eq!(batch.len(), 1);
        other.complete(&batch);
    }
    assert_eq!(checked_payload(&frames(&held, PLAIN)[0]), payload(1000));
}

/// A path in a directory of its own.
fn place(name: &str) -> std::path::PathBuf {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(std::process::id().to_string());
    std::fs::create_dir_all(&directory).unwrap();
    directory.join(name)
}

#[test]
fn an_end_that_listens_takes_one_peer_after_the_other() {
    let path = place("one-after-the-other");
    let mut server = Pair::listen(&path).unwrap();
    assert!(matches!(Pair::listen(&path), Err(SocketError::Listen(ListenError::InUse(_)))));
    let mut counters = Counters::default();
    // Checking for a server made a connection that has closed again: it counts as a peer.
    fetch(&mut server, &mut counters, Time::ZERO);
    let sender = Sender::new(&[(tcp(b"hello"), Offload::default())]);
    assert_eq!(sender.deliver(&mut server, &mut counters, Time::ZERO).refused(), 0);
    assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 1);
    for _ in 0..3 {
        let mut client = Pair::connect(&path).unwrap();
        sender.deliver(&mut client, &mut counters, Time::ZERO);
        assert!(readable(&server));
        let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
        assert_eq!(batch.len(), 1);
        server.complete(&batch);
        assert!(server.joined());
        sender.deliver(&mut server, &mut counters, Time::ZERO);
        let (batch, _) = fetch(&mut client, &mut counters, Time::ZERO);
        assert_eq!(checked_payload(&frames(&batch, PLAIN)[0]), b"hello");
        drop(client);
        assert!(readable(&server));
        fetch(&mut server, &mut counters, Time::ZERO);
        assert_eq!(server.parting(), Some(Parting::Gone));
        assert!(!server.joined());
    }
    drop(server);
    assert!(!path.exists());
}

#[test]
fn an_end_that_connects_waits_for_a_peer_and_finds_it_again() {
    let path = place("again");
    let mut client = Pair::connect(&path).unwrap();
    let mut counters = Counters::default();
    let sender = Sender::new(&[(tcp(b"hello"), Offload::default())]);
    assert_eq!(sender.deliver(&mut client, &mut counters, Time::ZERO).refused(), 0);
    assert_eq!(counters.receive_drops[Reason::LinkDown as usize], 1);
    let why = format!("cannot join {}, and tries again every second: nobody listens there", path.display());
    assert_eq!(client.vacant(), Some(why));
    for _ in 0..3 {
        let mut server = Pair::listen(&path).unwrap();
        while !client.joined() {
            fetch(&mut server, &mut counters, Time::ZERO);
            assert!(readable(&client), "its timer tells, or the peer");
            fetch(&mut client, &mut counters, Time::ZERO);
        }
        assert_eq!(client.vacant(), None);
        for out in [true, false] {
            let (from, to) = if out { (&mut client, &mut server) } else { (&mut server, &mut client) };
            sender.deliver(from, &mut counters, Time::ZERO);
            let (batch, _) = fetch(to, &mut counters, Time::ZERO);
            assert_eq!(checked_payload(&frames(&batch, PLAIN)[0]), b"hello");
            to.complete(&batch);
        }
        drop(server);
        assert!(readable(&client));
        fetch(&mut client, &mut counters, Time::ZERO);
        assert_eq!((client.joined(), client.parting()), (false, Some(Parting::Gone)));
    }
    assert!(matches!(Pair::connect("x".repeat(200)), Err(SocketError::Os { doing: "connecting to", .. })));
}

#[test]
fn an_end_that_connects_to_what_is_no_pairs_socket_says_what_that_is() {
    let path = place("misnamed");
    std::fs::write(&path, "").unwrap();
    for vacant in [Pair::connect(&path).unwrap().vacant(), Stream::connect(&path).unwrap().vacant()] {
        let vacant = vacant.unwrap();
        assert!(vacant.ends_with("every second: that is no socket: remove it, or name another"), "{vacant}");
    }
    std::fs::remove_file(&path).unwrap();
    let stream_socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let vacant = Pair::connect(&path).unwrap().vacant().unwrap();
    assert!(vacant.contains("that is no pair's socket, but of bytes, as those of VMs' ports"), "{vacant}");
    drop(stream_socket);
    let vacant = Pair::connect(&path).unwrap().vacant().unwrap();
    assert!(vacant.ends_with("every second: nobody listens there"), "a socket that was left behind: {vacant}");
    let _pair = Pair::listen(&path).unwrap();
    let vacant = Stream::connect(&path).unwrap().vacant().unwrap();
    assert!(vacant.ends_with("as pairs' are: name another, or take kind = \"pair\" here"), "{vacant}");
}

/// A peer that follows the protocol only as far as the test needs.
fn stranger(path: &std::path::Path) -> std::os::fd::OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// The hello from the protocol's documentation.
const HELLO: &[u8] = b"\0nicety\0\x01\0\x10\0\xff\x01\x01\0";

#[test]
fn a_peer_of_another_version_or_another_kind_is_left() {
    let path = place("strangers");
    let mut server = Pair::listen(&path).unwrap();
    let mut counters = Counters::default();
    let newer = b"\0nicety\0\x07\0\x10\0\0\0\0\0";
    for (first, parting) in
        [(&newer[..], Parting::Version(7)), (b"GET / HTTP/1.1", Parting::Foreign), (b"\0", Parting::Foreign)]
    {
        let peer = stranger(&path);
        rustix::net::send(&peer, first, SendFlags::NOSIGNAL).unwrap();
        rustix::net::send(&peer, &[1; 100], SendFlags::NOSIGNAL).unwrap();
        assert!(readable(&server));
        let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
        assert!(batch.is_empty());
        assert_eq!(server.parting(), Some(parting));
        let vacant = server.vacant().unwrap();
        assert!(vacant.starts_with(&format!("{parting}; waits for a peer to join ")), "{vacant}");
    }
}

#[test]
fn messages_that_are_no_packets_are_counted_and_the_next_one_is_read() {
    let path = place("garbage");
    let mut server = Pair::listen(&path).unwrap();
    let mut counters = Counters::default();
    let peer = stranger(&path);
    rustix::net::send(&peer, HELLO, SendFlags::NOSIGNAL).unwrap();
    let mut seed = 1u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    let (mut fetched, mut sent) = (0, 0);
    for round in 0..3000 {
        let mut message = vec![0u8; 1 + (random() % 300) as usize];
        message.fill_with(|| random() as u8);
        if round % 3 == 0 && message.len() >= 16 {
            // The kind and the length are valid, so the test covers the offsets.
            let len = message.len() as u32 - 16;
            message[0] = 1;
            message[1] %= 3;
            message[2] %= 3;
            message[3] = 0;
            message[12..16].copy_from_slice(&len.to_le_bytes());
        }
        rustix::net::send(&peer, &message, SendFlags::NOSIGNAL).unwrap();
        sent += 1;
        let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
        for packet in batch.packets() {
            assert!(packet.len() >= 14);
        }
        fetched += batch.len() as u64;
        server.complete(&batch);
    }
    assert_eq!(fetched + counters.transmit_drops.iter().sum::<u64>(), sent);
    assert_eq!(fetched, counters.transmitted().packets);
    rustix::net::send(&peer, &vec![1; 100_000], SendFlags::NOSIGNAL).unwrap();
    let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
    assert!(batch.is_empty());
    assert_eq!(counters.transmit_drops[Reason::TooLong as usize], 1);
    let mut last = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 59, 0, 0, 0];
    last.extend(tcp(b"hello"));
    rustix::net::send(&peer, &last, SendFlags::NOSIGNAL).unwrap();
    let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
    assert_eq!(checked_payload(&frames(&batch, PLAIN)[0]), b"hello");
}

#[test]
fn a_peer_s_checksum_goes_to_a_transport_header_and_nowhere_else() {
    let path = place("judged");
    let mut server = Pair::listen(&path).unwrap();
    let mut counters = Counters::default();
    let peer = stranger(&path);
    rustix::net::send(&peer, HELLO, SendFlags::NOSIGNAL).unwrap();
    // Offsets: the source address, the type, a port, the protocol; then TCP's checksum.
    for (number, [start, field]) in [[0, 10], [0, 12], [34, 34], [14, 23], [34, 50]].into_iter().enumerate() {
        let mut message = vec![1, 2, 0, 0, start, 0, field, 0, 0, 0, 0, 0, 59, 0, 0, 0];
        message.extend(partial(b"hello"));
        rustix::net::send(&peer, &message, SendFlags::NOSIGNAL).unwrap();
        let (batch, _) = fetch(&mut server, &mut counters, Time::ZERO);
        assert_eq!(
            (batch.len(), counters.transmit_drops[Reason::BadOffload as usize]),
            (number / 4, (number as u64 + 1).min(4))
        );
        batch.packets().iter().for_each(|_| assert_eq!(checked_payload(&frames(&batch, PLAIN)[0]), b"hello"));
        server.complete(&batch);
    }
}

#[test]
fn a_file_at_the_path_is_named_and_left_alone_and_the_socket_is_its_owners() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("nicety-pair-path-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("precious.txt");
    std::fs::write(&path, "mine").unwrap();
    let refused = Pair::listen(&path).unwrap_err();
    assert!(refused.to_string().contains("is not a socket"), "{refused}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    let path = folder.join("uplink.sock");
    let _pair = Pair::listen(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_dir_all(&folder).unwrap();
}
