use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::time::Instant;

use super::*;

const HANGS: Duration = Duration::from_secs(20);

/// So many records.
fn tally(records: u64) -> Tally {
    vec![(Arc::new(Port { name: "vm1".to_owned(), vlan: 0 }), records)]
}

/// A connection, and a clock that a test sets.
struct Stage {
    connection: Connection,
    now: Time,
}

impl Stage {
    fn new(collector: &str) -> Self {
        Self { connection: Connection::new(collector.parse().unwrap()), now: Time::ZERO }
    }

    /// Looks until this is found; the kernel may take a moment.
    fn until(&mut self, what: Look) {
        let end = Instant::now() + HANGS;
        while self.connection.look(self.now) != what {
            assert!(Instant::now() < end, "{what:?}: {:?}", self.connection);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Looks until the kernel has done what it does without more room at the other end.
    fn settle(&mut self) {
        let mut quiet = Instant::now();
        let mut before = (0, 0);
        let end = Instant::now() + HANGS;
        while quiet.elapsed() < Duration::from_millis(300) {
            self.connection.look(self.now);
            let stream = self.stream();
            let after = (stream.written, stream.taken);
            if after != before {
                (before, quiet) = (after, Instant::now());
            }
            assert!(Instant::now() < end, "{:?}", self.connection);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stream(&self) -> &Stream {
        let State::Open { stream, .. } = &self.connection.state else { panic!("{:?}", self.connection) };
        stream
    }

    /// Records that were lost since the last call.
    fn lost(&mut self) -> u64 {
        sum(&self.connection.take_lost())
    }

    fn later(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
    }
}

#[test]
fn datagrams_reach_a_collector_by_udp_and_one_that_refuses_is_tried_again() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let place = collector.local_addr().unwrap();
    let mut stage = Stage::new(&format!("udp:{place}"));
    assert_eq!(stage.connection.look(stage.now), Look::New);
    assert!(stage.connection.send(b"one", tally(1), stage.now));
    let mut bytes = [0; 9];
    assert_eq!((collector.recv(&mut bytes).unwrap(), &bytes[..3]), (3, &b"one"[..]));
    drop(collector);
    // The first datagram is answered by ICMP, which the next call is told of.
    let (end, mut sent) = (Instant::now() + HANGS, 1);
    while stage.connection.send(b"two", tally(1), stage.now) {
        sent += 1;
        assert!(Instant::now() < end, "nobody refuses");
    }
    assert_eq!(stage.connection.why(), Some("Connection refused (os error 111)"));
    assert_eq!(stage.connection.look(stage.now), Look::Away);
    stage.later(1);
    assert_eq!(stage.connection.look(stage.now), Look::New, "templates are due again");
    assert!(stage.connection.why().is_some(), "UDP does not know yet whether anybody is there");
    assert!(stage.connection.send(b"templates", Tally::new(), stage.now));
    stage.until(Look::Away);
    assert_eq!(stage.connection.why(), Some("Connection refused (os error 111)"), "a look knows of it as well");
    let collector = UdpSocket::bind(place).unwrap();
    stage.later(1);
    assert_eq!(stage.connection.look(stage.now), Look::New);
    assert!(stage.connection.send(b"three", tally(1), stage.now));
    assert!(stage.connection.why().is_some());
    assert_eq!((stage.connection.look(stage.now), stage.connection.why()), (Look::Open, None), "nobody has refused");
    assert_eq!(collector.recv(&mut bytes).unwrap(), 5);
    // Refused records count as sent as long as nobody has said so.
    assert_eq!((stage.connection.take_sent(), stage.lost()), (sent + 1, 0));
}

#[test]
fn a_collector_by_tcp_that_is_away_is_tried_again_each_second() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    drop(listener);
    let mut stage = Stage::new(&format!("tcp:{place}"));
    let end = Instant::now() + HANGS;
    while stage.connection.why().is_none() {
        assert_eq!(stage.connection.look(stage.now), Look::Away);
        assert!(Instant::now() < end);
    }
    assert_eq!(stage.connection.why(), Some("Connection refused (os error 111)"));
    assert!(!stage.connection.send(b"lost", tally(1), stage.now));
    let listener = TcpListener::bind(place).unwrap();
    assert_eq!(stage.connection.look(stage.now), Look::Away, "not yet");
    stage.later(1);
    stage.until(Look::New);
    assert_eq!((stage.connection.look(stage.now), stage.connection.why()), (Look::Open, None));
    assert!(stage.connection.send(b"here", tally(1), stage.now));
    let (mut reader, _) = listener.accept().unwrap();
    let end = Instant::now() + HANGS;
    while !stage.connection.is_flushed() {
        assert_eq!(stage.connection.look(stage.now), Look::Open);
        assert!(Instant::now() < end);
    }
    let mut bytes = [0; 4];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!((&bytes, stage.connection.take_sent()), (b"here", 1));
}

#[test]
fn a_slow_collector_by_tcp_delays_nobody_and_is_left_when_it_takes_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stage = Stage::new(&format!("tcp:{}", listener.local_addr().unwrap()));
    stage.until(Look::New);
    let (mut slow, _) = listener.accept().unwrap();
    let message = vec![7; 16 << 10];
    let (mut sent, begin) = (0, Instant::now());
    while stage.connection.has_room() {
        assert!(stage.connection.send(&message, tally(100), stage.now));
        stage.connection.look(stage.now);
        sent += 1;
        assert!(sent < 10_000, "the kernel takes some megabytes");
    }
    assert!(begin.elapsed() < HANGS && !stage.connection.is_flushed());
    // It takes something: it is slow, and not away.
    stage.later(9);
    slow.read_exact(&mut vec![0; 1 << 20]).unwrap();
    let end = Instant::now() + HANGS;
    while !stage.connection.has_room() {
        assert_eq!(stage.connection.look(stage.now), Look::Open);
        assert!(Instant::now() < end);
    }
    stage.connection.send(&vec![7; 8 << 20], tally(1), stage.now);
    stage.settle();
    stage.later(10);
    assert_eq!(stage.connection.look(stage.now), Look::Away);
    assert_eq!(stage.connection.why(), Some("it has taken nothing for 10 s"));
    assert!(stage.lost() > 0, "what was not sent");
    assert_eq!((stage.lost(), stage.connection.is_flushed()), (0, true));
}

#[test]
fn a_collector_by_tcp_that_is_always_behind_takes_no_more_memory_and_each_of_its_records_is_counted_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stage = Stage::new(&format!("tcp:{}", listener.local_addr().unwrap()));
    stage.until(Look::New);
    let (mut slow, _) = listener.accept().unwrap();
    let message = vec![7; 16 << 10];
    let (mut offered, mut sent) = (0, 0);
    for _ in 0..400 {
        while stage.connection.has_room() {
            assert!(stage.connection.send(&message, tally(100), stage.now));
            offered += 100;
            stage.connection.look(stage.now);
        }
        slow.read_exact(&mut vec![0; 64 << 10]).unwrap();
        stage.connection.look(stage.now);
        sent += stage.connection.take_sent();
        let stream = stage.stream();
        assert!(stream.unsent.capacity() <= 3 * UNSENT_MAX, "{}", stream.unsent.capacity());
    }
    assert!(!stage.connection.is_flushed() && sent < offered, "{sent} of {offered}: it is behind");
    assert_eq!(stage.connection.look(stage.now), Look::Open);
    drop(slow);
    stage.until(Look::Away);
    sent += stage.connection.take_sent();
    assert_eq!(sent + stage.lost(), offered);
}

/// A listener whose connections have room for some kilobytes.
fn small_listener() -> TcpListener {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, 4096).unwrap();
    rustix::net::bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    TcpListener::from(socket)
}

#[test]
fn records_for_a_host_that_acknowledges_nothing_are_not_sent_although_the_kernel_has_taken_them() {
    let listener = small_listener();
    let mut stage = Stage::new(&format!("tcp:{}", listener.local_addr().unwrap()));
    stage.until(Look::New);
    let (_silent, _) = listener.accept().unwrap();
    for _ in 0..100 {
        assert!(stage.connection.send(&[7; 1024], tally(1), stage.now));
        stage.connection.look(stage.now);
    }
    assert_eq!(stage.stream().unsent.len(), 0, "the kernel has taken all");
    stage.settle();
    let sent = stage.connection.take_sent();
    assert!(sent < 100 && !stage.connection.is_flushed(), "{sent}");
    stage.later(9);
    assert_eq!(stage.connection.look(stage.now), Look::Open);
    stage.later(1);
    assert_eq!(stage.connection.look(stage.now), Look::Away);
    assert_eq!(stage.connection.why(), Some("it has taken nothing for 10 s"));
    let lost = stage.connection.take_lost();
    assert_eq!(sent + sum(&lost), 100);
    assert!(lost.iter().all(|(port, _)| port.name == "vm1"), "{lost:?}");
}

#[test]
fn a_collector_that_closes_or_resets_its_connection_gets_another_one() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stage = Stage::new(&format!("tcp:{}", listener.local_addr().unwrap()));
    stage.until(Look::New);
    drop(listener.accept().unwrap());
    stage.until(Look::Away);
    assert_eq!(stage.connection.why(), Some("it has closed the connection"));
    stage.later(1);
    stage.until(Look::New);
    // A connection that is closed with unread bytes is reset.
    let (resets, _) = listener.accept().unwrap();
    stage.connection.send(b"unread", tally(1), stage.now);
    stage.connection.look(stage.now);
    let end = Instant::now() + HANGS;
    while resets.peek(&mut [0; 6]).unwrap() < 6 {
        assert!(Instant::now() < end);
    }
    drop(resets);
    stage.until(Look::Away);
    assert_eq!(stage.connection.why(), Some("Connection reset by peer (os error 104)"));
    stage.later(1);
    stage.until(Look::New);
}
