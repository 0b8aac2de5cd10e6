use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use tempfile::TempDir;

use super::*;
use crate::report::{Condition, MadeOf, Soon};

/// A daemon of as many ports as it is told.
struct Fake(usize);

impl Inspect for Fake {
    fn is_ready(&self) -> bool {
        true
    }

    fn ports(&self) -> Vec<PortReport> {
        (0..self.0).map(|number| port(&format!("vm{number}"))).collect()
    }

    fn addresses(&self) -> Vec<AddressReport> {
        vec![AddressReport { address: "52:54:00:12:34:01".into(), port: "vm0".into(), silent_seconds: 4 }]
    }
}

fn port(name: &str) -> PortReport {
    PortReport {
        name: name.to_owned(),
        adapter: Some("e1000".into()),
        mac: Some("52:54:00:12:34:01".into()),
        socket: Some("/run/vm.sock".into()),
        made_of: Some(MadeOf { queues: None, mtu: None, rom: false, mapped: false, buffer: 1 << 20 }),
        condition: Condition::Up,
        sentence: "a VM is attached, and its driver is up".into(),
        last_end: None,
        features: vec!["tso4".into()],
        transmit: Vec::new(),
        receive: Vec::new(),
        transmit_drops: BTreeMap::new(),
        receive_drops: BTreeMap::from([("no-buffer".to_owned(), 3)]),
        interrupts: 1,
        signals: 1,
        register_reads: 2,
        register_writes: 3,
        bad_accesses: 0,
        guest_errors: 0,
        backlog_frames: 0,
        backlog_bytes: 0,
    }
}

/// A control socket in a folder that is made for it.
fn below(dir: &TempDir) -> PathBuf {
    dir.path().join("made/c.sock")
}

/// A control socket in a folder of this test alone, gone at its end.
struct Scratch {
    dir: TempDir,
    control: Control,
}

impl Scratch {
    fn new(ports: usize) -> Self {
        let dir = TempDir::new().unwrap();
        let control = Control::start(&below(&dir), Path::new("/etc/host.toml"), Arc::new(Fake(ports))).unwrap();
        Self { dir, control }
    }

    fn path(&self) -> PathBuf {
        below(&self.dir)
    }

    /// What comes back for these bytes, if the client then writes no more.
    fn raw(&self, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        // The server may have answered and closed before all of a long request was written.
        let _ = stream.write_all(request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply
    }
}

#[test]
fn a_client_gets_what_it_asks_for() {
    let scratch = Scratch::new(2);
    let host = PathBuf::from("/etc/host.toml");
    let ports = vec![port("vm0"), port("vm1")];
    assert_eq!(ask(&scratch.path(), Ask::Ports).unwrap(), Reply::Ports { host: host.clone(), ports });
    let one = ask(&scratch.path(), Ask::Port { name: "vm1".into() }).unwrap();
    assert_eq!(one, Reply::Port { port: Box::new(port("vm1")) });
    let none = ask(&scratch.path(), Ask::Port { name: "vm9".into() }).unwrap_err();
    assert_eq!(none.to_string(), "there is no port \"vm9\"; did you mean \"vm0\"? (there are: vm0, vm1)");
    let none = ask(&scratch.path(), Ask::Port { name: "gateway".into() }).unwrap_err();
    assert_eq!(none.to_string(), "there is no port \"gateway\" (there are: vm0, vm1)");
    assert!(
        matches!(ask(&scratch.path(), Ask::Addresses).unwrap(), Reply::Addresses { addresses } if addresses.len() == 1)
    );
    let Reply::Version { program, pid, host: served } = ask(&scratch.path(), Ask::Version).unwrap() else { panic!() };
    assert_eq!((program.as_str(), pid, served), (env!("CARGO_PKG_VERSION"), std::process::id(), host));
}

#[test]
fn who_asks_before_the_ports_are_there_is_told_so_and_of_no_ports() {
    let dir = TempDir::new().unwrap();
    let _control = Control::start(&below(&dir), Path::new("/etc/host.toml"), Arc::new(Soon::default())).unwrap();
    for early in [Ask::Ports, Ask::Port { name: "vm1".into() }, Ask::Addresses] {
        let error = ask(&below(&dir), early).unwrap_err();
        assert!(matches!(error, AskError::Starting(_)), "{error}");
        assert_eq!(error.to_string(), "the daemon is still starting: ask again in a moment");
    }
    assert!(matches!(ask(&below(&dir), Ask::Version).unwrap(), Reply::Version { .. }));
}

#[test]
fn the_wire_is_a_line_of_json_each_way() {
    let scratch = Scratch::new(0);
    let reply = scratch.raw(b"{\"version\":1,\"request\":\"ports\"}\n");
    assert_eq!(reply, "{\"version\":1,\"reply\":\"ports\",\"host\":\"/etc/host.toml\",\"ports\":[]}\n");
}

#[test]
fn a_reply_longer_than_a_sockets_buffer_arrives_whole() {
    let scratch = Scratch::new(1023);
    let Reply::Ports { ports, .. } = ask(&scratch.path(), Ask::Ports).unwrap() else { panic!() };
    assert_eq!(ports.len(), 1023);
}

#[test]
fn garbage_is_answered_with_an_error_and_the_next_client_is_served() {
    let scratch = Scratch::new(1);
    let deep = [b"{\"version\":1,\"request\":".as_slice(), &[b'['; 30_000], b"\n"].concat();
    for request in [
        b"\n".as_slice(),
        b"hello\n",
        b"\0\xff\xfe\n",
        b"{}\n",
        b"{\"version\":1}\n",
        b"{\"version\":2,\"request\":\"ports\"}\n",
        b"{\"version\":-1,\"request\":\"ports\"}\n",
        b"{\"version\":1,\"request\":\"prots\"}\n",
        b"{\"version\":1,\"request\":\"port\"}\n",
        b"{\"version\":1,\"request\":\"ports\"}",
        b"",
        &deep,
    ] {
        let reply = scratch.raw(request);
        assert!(reply.starts_with("{\"version\":1,\"reply\":\"error\",\"error\":\""), "{request:?}: {reply}");
        assert!(reply.ends_with("}\n"));
    }
    let long = vec![b'x'; REQUEST_MOST * 2];
    let reply = scratch.raw(&long);
    // The kernel may take the answer away with the connection, if bytes were left unread.
    assert!(reply.is_empty() || reply.contains("a request is one line of at most 65536 bytes"), "{reply}");
    assert!(ask(&scratch.path(), Ask::Version).is_ok());
}

#[test]
fn who_says_nothing_loses_its_turn_after_a_second() {
    let scratch = Scratch::new(1);
    let mut silent = UnixStream::connect(scratch.path()).unwrap();
    let begun = Instant::now();
    silent.write_all(b"{\"version\":1,").unwrap();
    assert!(ask(&scratch.path(), Ask::Version).is_ok(), "the next one is served");
    assert!(begun.elapsed() >= PATIENCE && begun.elapsed() < PATIENCE * 5, "{:?}", begun.elapsed());
    assert_eq!(silent.read(&mut [0; 1]).unwrap(), 0, "and the silent one is hung up on");
}

#[test]
fn it_is_its_owners_only_and_gone_at_the_end() {
    let scratch = Scratch::new(0);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(scratch.path().parent().unwrap()), mode(&scratch.path())), (0o700, 0o600));
    let second = Control::start(&scratch.path(), Path::new("h"), Arc::new(Fake(0))).unwrap_err();
    assert!(second.to_string().contains("is served by another process"), "{second}");
    let path = scratch.path();
    let waiting = UnixStream::connect(&path).unwrap();
    let Scratch { dir: _dir, control } = scratch;
    drop(control);
    drop(waiting);
    assert!(!path.exists());
    assert!(matches!(ask(&path, Ask::Version), Err(AskError::Nobody(_))));
}

#[test]
fn what_is_no_daemon_is_said_to_be_none() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("f.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0\n").unwrap();
        let mut request = String::new();
        BufReader::new(stream).read_line(&mut request).unwrap();
    });
    assert!(matches!(ask(&path, Ask::Ports), Err(AskError::Foreign { .. })));
    other.join().unwrap();
}

#[test]
fn a_daemon_that_hangs_is_not_waited_for_for_ever_whether_it_takes_connections_or_not() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("h.sock");
    let listener = nicety_socket::Listener::bind(&path).unwrap();
    // Those that have gone stay in its queue, until that is full.
    for _ in 0..8 {
        let patience = Duration::from_millis(50);
        let error = client::ask_within(&path, Ask::Version, patience).unwrap_err();
        assert!(matches!(error, AskError::Silent { .. }), "{error}");
        assert!(error.to_string().contains("does not answer within 50ms"), "{error}");
    }
    drop(listener);
}

#[test]
fn what_is_no_socket_or_no_place_for_one_is_said() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(ask(&file, Ask::Version), Err(AskError::NoSocket(_))));
    let long = ask(&dir.path().join("x".repeat(120)), Ask::Version).unwrap_err();
    assert!(matches!(long, AskError::System { .. }) && long.to_string().contains("File name too long"), "{long}");
}
