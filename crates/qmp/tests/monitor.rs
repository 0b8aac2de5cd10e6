//! A monitor and its peers: one that speaks QMP, and each kind that does not.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nicety_qmp::{Cause, Command, Error, Item, Limits, Monitor, Version};
use rustix::event::{PollFd, Timespec, poll};
use serde_json::{Value, json};

/// As QEMU 11.1.3 sends it.
const GREETING: &str = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 3, \"minor\": 1, \"major\": 11}, \"package\": \"Debian 1:11.1.3+ds-1~bpo13+1\"}, \"capabilities\": [\"oob\"]}}\r\n";
const LIMITS: Limits = Limits { greeting: Duration::from_millis(200), answer: Duration::from_millis(300) };

fn pair() -> (Monitor, UnixStream) {
    let (own, peer) = UnixStream::pair().expect("a socket pair");
    peer.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    (Monitor::new(own.into(), "/run/vm1.qmp", LIMITS, Instant::now()), peer)
}

/// Turns the monitor, as its owner does, until it has an item or fails.
fn item(monitor: &mut Monitor) -> Result<Item, Error> {
    let end = Instant::now() + Duration::from_secs(5);
    loop {
        let result = monitor.turn(Instant::now());
        if let Some(item) = monitor.next() {
            return Ok(item);
        }
        result?;
        assert!(Instant::now() < end, "nothing comes and no limit ends: {monitor:?}");
        let wait = monitor.wake_at().map_or(Duration::from_secs(1), |at| at.saturating_duration_since(Instant::now()));
        let wait = Timespec::try_from(wait + Duration::from_millis(1)).expect("a short time");
        let events = monitor.events();
        poll(&mut [PollFd::from_borrowed_fd(monitor.as_fd(), events)], Some(&wait)).expect("poll");
    }
}

fn cause(monitor: &mut Monitor) -> (Cause, String) {
    let error = item(monitor).expect_err("it must fail");
    (error.cause.clone(), error.to_string())
}

fn line(peer: &mut BufReader<UnixStream>) -> Value {
    let mut line = String::new();
    peer.read_line(&mut line).expect("a line");
    serde_json::from_str(&line).expect("JSON")
}

/// Greets, and answers the negotiation.
fn greet(monitor: &mut Monitor, peer: UnixStream) -> BufReader<UnixStream> {
    let mut peer = BufReader::new(peer);
    peer.get_mut().write_all(GREETING.as_bytes()).expect("written");
    monitor.turn(Instant::now()).expect("a turn");
    assert_eq!(line(&mut peer), json!({"execute": "qmp_capabilities", "arguments": {"enable": ["oob"]}}));
    peer.get_mut().write_all(b"{\"return\": {}}\r\n").expect("written");
    monitor.turn(Instant::now()).expect("a turn");
    assert!(monitor.is_ready());
    peer
}

#[test]
fn commands_leave_after_the_negotiation_and_answers_come_with_their_numbers_between_events() {
    let (mut monitor, peer) = pair();
    let first = monitor.send(&Command::new("query-status", json!({})), Instant::now());
    let mut peer = greet(&mut monitor, peer);
    let yank = Command { is_out_of_band: true, ..Command::new("yank", json!({"instances": []})) };
    let second = monitor.send(&yank, Instant::now());
    monitor.turn(Instant::now()).expect("a turn");
    assert_eq!(line(&mut peer), json!({"execute": "query-status", "arguments": {}, "id": first}));
    assert_eq!(line(&mut peer), json!({"exec-oob": "yank", "arguments": {"instances": []}, "id": second}));
    let event = "{\"timestamp\": {\"seconds\": 1796080000, \"microseconds\": 172400}, \"event\": \"STOP\"}\r\n";
    let other =
        format!("{{\"id\": {second}, \"error\": {{\"class\": \"GenericError\", \"desc\": \"not found\"}}}}\r\n");
    let answer = format!("{{\"return\": {{\"running\": true}}, \"id\": {first}}}\r\n");
    // In pieces, as a socket may give them.
    for piece in [event, &other, &answer].concat().as_bytes().chunks(7) {
        peer.get_mut().write_all(piece).expect("written");
        monitor.turn(Instant::now()).expect("a turn");
    }
    let at = Duration::new(1_796_080_000, 172_400_000);
    assert_eq!(item(&mut monitor), Ok(Item::Event { name: "STOP".into(), data: Value::Null, at }));
    let Ok(Item::Answer { id, result: Err(failure) }) = item(&mut monitor) else { panic!("an answer") };
    assert_eq!((id, failure.to_string()), (second, "not found".to_owned()));
    assert_eq!(item(&mut monitor), Ok(Item::Answer { id: first, result: Ok(json!({"running": true})) }));
    assert_eq!(monitor.version(), Some(Version { major: 11, minor: 1, micro: 3 }));
    assert_eq!(monitor.wake_at(), None, "nothing is waited for");
}

#[test]
fn a_socket_that_another_program_has_is_named_with_what_to_do() {
    let (mut monitor, _peer) = pair();
    let (cause, sentence) = cause(&mut monitor);
    assert_eq!(cause, Cause::NoGreeting { limit: LIMITS.greeting });
    for words in ["/run/vm1.qmp", "another program has this QMP socket", "-qmp unix:PATH,server=on,wait=off"] {
        assert!(sentence.contains(words), "{sentence}");
    }
}

#[test]
fn a_peer_of_another_protocol_is_told_by_what_it_says() {
    for (said, want) in [
        (&b"QEMU 11.1.3 monitor - type 'help' for more information\r\n(qemu) "[..], Cause::ForPeople),
        (b"{\n    \"QMP\": {\n", Cause::Pretty),
        // A vhost-user message: GET_FEATURES, version 1, no payload. No end of a line ever comes.
        (&[1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], Cause::NotQmp { said: "\u{1}\0\0\0\u{1}\0\0\0\0\0\0\0".into() }),
        (b"SSH-2.0-OpenSSH_10.0\r\n", Cause::NotQmp { said: "SSH-2.0-OpenSSH_10.0".into() }),
        (b"{\"hello\": 1}\r\n", Cause::NotQmp { said: "{\"hello\": 1}".into() }),
        (b"{\"QMP\": {\"version\": {}}}\r\n", Cause::NotQmp { said: "{\"QMP\": {\"version\": {}}}".into() }),
    ] {
        let (mut monitor, mut peer) = pair();
        peer.write_all(said).expect("written");
        assert_eq!(cause(&mut monitor).0, want);
    }
}

#[test]
fn a_peer_that_closes_is_told_from_one_that_never_greeted_and_its_last_event_is_heard() {
    let (mut monitor, peer) = pair();
    drop(peer);
    assert_eq!(cause(&mut monitor).0, Cause::ClosedAtOnce);
    let (mut monitor, mut peer) = pair();
    peer.write_all(b"{\"QMP\": ").expect("written");
    drop(peer);
    assert_eq!(cause(&mut monitor).0, Cause::NotQmp { said: "{\"QMP\": ".into() });
    let (mut monitor, peer) = pair();
    let mut peer = greet(&mut monitor, peer);
    peer.get_mut().write_all(b"{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true}}\r\n").expect("written");
    drop(peer);
    let heard = item(&mut monitor);
    assert!(matches!(&heard, Ok(Item::Event { name, .. }) if name == "SHUTDOWN"), "{heard:?}");
    assert_eq!(cause(&mut monitor).0, Cause::Closed);
}

#[test]
fn a_line_without_an_end_and_one_that_is_no_json_end_the_connection() {
    let (mut monitor, peer) = pair();
    let mut peer = greet(&mut monitor, peer);
    let writer = std::thread::spawn(move || {
        // It fails when the monitor has had enough.
        for _ in 0..64 {
            _ = peer.get_mut().write_all(&[b'x'; 64 << 10]);
        }
    });
    assert_eq!(cause(&mut monitor).0, Cause::LongLine);
    drop(monitor);
    writer.join().expect("the writer ends");
    for said in
        ["{\"return\": {}", "[1]", "{\"return\": {}, \"id\": 99}", "{\"error\": {\"desc\": \"JSON parse error\"}}"]
    {
        let (mut monitor, peer) = pair();
        let mut peer = greet(&mut monitor, peer);
        peer.get_mut().write_all(format!("{said}\r\n").as_bytes()).expect("written");
        assert_eq!(cause(&mut monitor).0, Cause::Malformed { said: said.into() });
    }
}

#[test]
fn a_qemu_that_does_not_answer_is_given_up_and_the_command_is_named() {
    let (mut monitor, peer) = pair();
    let _peer = greet(&mut monitor, peer);
    monitor.send(&Command::new("query-migrate", json!({})), Instant::now());
    let (cause, sentence) = cause(&mut monitor);
    assert_eq!(cause, Cause::NoAnswer { command: "query-migrate".into(), limit: LIMITS.answer });
    assert!(sentence.contains("main loop is stuck"), "{sentence}");
    // The negotiation has a limit too.
    let (mut monitor, mut peer) = pair();
    peer.write_all(GREETING.as_bytes()).expect("written");
    assert!(item(&mut monitor).is_err_and(|error| error.to_string().contains("qmp_capabilities")));
}

#[test]
fn a_monitor_whose_owner_takes_nothing_stops_reading_and_loses_nothing() {
    let (mut monitor, peer) = pair();
    let mut peer = greet(&mut monitor, peer);
    let events = 20_000;
    let writer = std::thread::spawn(move || {
        let line = b"{\"event\": \"RESUME\"}\r\n".repeat(events);
        peer.get_mut().set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
        peer.get_mut().write_all(&line).expect("all is taken at last");
        let mut rest = Vec::new();
        peer.get_mut().read_to_end(&mut rest).expect("the monitor closes");
    });
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..50 {
        monitor.turn(Instant::now()).expect("a turn");
    }
    assert!(!monitor.events().contains(rustix::event::PollFlags::IN), "it does not ask for more");
    for _ in 0..events {
        item(&mut monitor).expect("an event");
    }
    drop(monitor);
    writer.join().expect("the writer ends");
}

#[test]
fn an_owner_that_asks_without_end_is_stopped() {
    let (mut monitor, peer) = pair();
    let _peer = greet(&mut monitor, peer);
    for _ in 0..65 {
        monitor.send(&Command::new("query-status", json!({})), Instant::now());
    }
    assert_eq!(cause(&mut monitor).0, Cause::TooManyCommands);
}

#[test]
fn a_descriptor_goes_with_its_command() {
    use std::mem::MaybeUninit;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    let (mut monitor, peer) = pair();
    let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
    let now = Instant::now();
    monitor.send(&Command::new("query-status", json!({})), now);
    let id = monitor.give("nicety", ours.into(), now);
    monitor.send(&Command::new("query-name", json!({})), now);
    let peer = greet(&mut monitor, peer).into_inner();
    let (mut text, mut with_fd) = (String::new(), String::new());
    let mut given = None;
    while text.matches('\n').count() + with_fd.matches('\n').count() < 3 {
        let (mut bytes, mut space) = ([0; 4096], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [std::io::IoSliceMut::new(&mut bytes)];
        let count = recvmsg(&peer, &mut pieces, &mut control, RecvFlags::empty()).expect("bytes").bytes;
        let fds: Vec<_> = control
            .drain()
            .filter_map(|message| if let RecvAncillaryMessage::ScmRights(fds) = message { Some(fds) } else { None })
            .flatten()
            .collect();
        let to = if fds.is_empty() { &mut text } else { &mut with_fd };
        to.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        given = given.or(fds.into_iter().next());
        monitor.turn(Instant::now()).expect("a turn");
    }
    let is_getfd = |value: &Value| *value == json!({"execute": "getfd", "arguments": {"fdname": "nicety"}, "id": id});
    assert!(with_fd.lines().any(|line| is_getfd(&serde_json::from_str(line).expect("JSON"))), "{with_fd}");
    assert!(!text.contains("getfd"), "{text}");
    UnixStream::from(given.expect("a descriptor")).write_all(b"x").expect("written");
    let mut one = [0];
    theirs.read_exact(&mut one).expect("it is the other end");
}
