//! Ports with a peer: what their guests send leaves when another daemon has the log (docs/fault-tolerance.md, "Ports").

#[macro_use]
#[path = "../../plane/tests/workers/mod.rs"]
mod workers;
#[allow(dead_code, reason = "its stage is another one")]
mod logged;
mod nic;
mod stage;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use nic::Nic;
use nicety_daemon::tolerance::ToleranceReport;
use nicety_host::{ListenAddress, PeerAddress, ToleranceConfig};
use stage::Stage;
use tempfile::TempDir;

/// A link between two daemons that a test can hold.
struct Wire {
    address: SocketAddr,
    state: Arc<AtomicU8>,
}

const PASSES: u8 = 0;
const HOLDS: u8 = 1;
const IS_CUT: u8 = 2;
/// 512 KiB/s: a log's largest message takes a quarter of the time after which a peer counts as silent.
const IS_SLOW: u8 = 3;
const SLOW_BYTES: usize = 8 << 10;
const SLOW_PAUSE: Duration = Duration::from_millis(16);

impl Wire {
    fn to(peer: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::new(AtomicU8::new(PASSES)));
        let all = Arc::clone(&state);
        std::thread::spawn(move || {
            for one in listener.incoming() {
                let (Ok(one), Ok(other)) = (one, TcpStream::connect(peer)) else { continue };
                if all.load(Ordering::SeqCst) == IS_CUT {
                    continue;
                }
                for (mut from, mut to) in [
                    (one.try_clone().unwrap(), other.try_clone().unwrap()),
                    (other.try_clone().unwrap(), one.try_clone().unwrap()),
                ] {
                    let state = Arc::clone(&all);
                    std::thread::spawn(move || copy(&mut from, &mut to, &state));
                }
            }
        });
        Self { address, state }
    }

    fn set(&self, state: u8) {
        self.state.store(state, Ordering::SeqCst);
    }
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, state: &AtomicU8) {
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let mut bytes = [0; 64 << 10];
    loop {
        let is_slow = state.load(Ordering::SeqCst) == IS_SLOW;
        let room = if is_slow { SLOW_BYTES } else { bytes.len() };
        let read = match from.read(&mut bytes[..room]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
            Err(_) => break,
        };
        if is_slow && read > 0 {
            std::thread::sleep(SLOW_PAUSE);
        }
        while state.load(Ordering::SeqCst) == HOLDS {
            std::thread::sleep(Duration::from_millis(1));
        }
        if state.load(Ordering::SeqCst) == IS_CUT || to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ended = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// Keys, and the daemon that has the logs.
struct Pair {
    folder: TempDir,
    stage: Stage,
    /// Where the peer listens, and that by TCP.
    at: ListenAddress,
    listen: SocketAddr,
    peer: Option<Stage>,
}

impl Pair {
    /// A daemon with ports, and a peer. Nothing else listens at its address.
    fn new(workers: usize) -> Self {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("key"), [7; 32]).unwrap();
        std::fs::write(folder.path().join("other"), [8; 32]).unwrap();
        let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let stage = Stage::new(workers, &[]);
        let this = Self { folder, stage, at: listen.into(), listen, peer: None };
        this.stage.daemon.tolerate(&ToleranceConfig { listen: None, key: this.key("key"), lease: None }).unwrap();
        this
    }

    fn key(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start_peer(&mut self, key: &str) {
        let peer = Stage::new(1, &[]);
        peer.daemon
            .tolerate(&ToleranceConfig { listen: Some(self.at.clone()), key: self.key(key), lease: None })
            .unwrap();
        self.peer = Some(peer);
    }

    /// Opens a port with its log at this address, and one that gets what it sends.
    fn open(&self, ft_peer: impl Into<PeerAddress>) {
        let mut spec = self.stage.spec(1, "e1000");
        spec.config.ft_peer = Some(ft_peer.into());
        self.stage.daemon.open(spec).unwrap();
        self.stage.daemon.open(self.stage.spec(2, "e1000")).unwrap();
    }

    fn report(&self) -> ToleranceReport {
        self.stage.view(1).tolerance.expect("it has a peer")
    }

    fn until_protected(&self) {
        self.stage.until("protection", || self.report().protected);
    }
}

with_one_worker_and_with_two!(
    a_port_is_protected_while_its_peer_follows_and_goes_on_without_it,
    frames_wait_for_a_peer_that_is_silent_and_for_no_longer_than_the_rule_says,
    frames_go_on_when_their_peer_is_another_process_than_before,
    a_guest_waits_for_a_slow_peer_while_its_port_and_the_log_say_so_and_goes_on_with_it,
);

fn a_port_is_protected_while_its_peer_follows_and_goes_on_without_it(workers: usize) {
    let mut pair = Pair::new(workers);
    pair.start_peer("key");
    pair.open(pair.listen);
    let (mut one, mut two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    pair.until_protected();
    // Each frame once in each direction, and what the adapter reads of rings.
    let frames = 2 * 64 * nic::FRAME as u64;
    let (mut round, mut right, mut sent) = (0, 0, pair.report().sent_bytes);
    while right < 4 {
        round += 1;
        one.send().unwrap();
        pair.stage.until("frames", || pair.stage.taken(2) == 64 * round);
        two.repost().unwrap();
        // The log of what comes in.
        two.send().unwrap();
        pair.stage.until("frames back", || pair.stage.taken(1) == 64 * round);
        one.repost().unwrap();
        pair.stage.until("acknowledgements", || {
            let report = pair.report();
            report.protected && report.lag_calls == 0
        });
        let report = pair.report();
        let bytes = report.sent_bytes - std::mem::replace(&mut sent, report.sent_bytes);
        right += u64::from((frames..frames * 3 / 2).contains(&bytes));
        // On a machine so busy that a daemon stands still for a second, the port goes on alone for a while, and a log begins anew.
        assert!(round < 40, "{report}, {bytes} in the last round, for {frames} bytes of frames; {right} were right");
        assert!((report.gate_packets, report.gate_bytes, report.gate_is_full) == (0, 0, false), "{report}");
        assert!(report.commit_median_microseconds.is_some() && report.calls > 8, "{report}");
    }
    pair.peer = None;
    pair.stage.until("its peer's end", || !pair.report().protected);
    assert!(pair.report().why_not.is_some());
    one.send().unwrap();
    pair.stage.until("frames without a peer", || pair.stage.taken(2) == (round + 1) * 64);
    two.repost().unwrap();
    pair.start_peer("key");
    pair.until_protected();
    one.send().unwrap();
    pair.stage.until("frames with another peer", || pair.stage.taken(2) == (round + 2) * 64);
    pair.until_protected();
}

fn frames_wait_for_a_peer_that_is_silent_and_for_no_longer_than_the_rule_says(workers: usize) {
    let mut pair = Pair::new(workers);
    pair.start_peer("key");
    let wire = Wire::to(pair.listen);
    pair.open(wire.address);
    let (mut one, two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    pair.until_protected();
    wire.set(HOLDS);
    one.send().unwrap();
    pair.stage.until("the end of the rule", || {
        let has_left = pair.stage.taken(2) > 0;
        let is_protected = pair.report().protected;
        assert!(!(has_left && is_protected), "a frame has left that the peer does not know");
        has_left && !is_protected
    });
    pair.stage.until("all frames", || pair.stage.taken(2) == 64);
    wire.set(IS_CUT);
    wire.set(PASSES);
    pair.until_protected();
    drop(two);
}

fn frames_go_on_when_their_peer_is_another_process_than_before(workers: usize) {
    let mut pair = Pair::new(workers);
    pair.start_peer("key");
    let wire = Wire::to(pair.listen);
    pair.open(wire.address);
    let (mut one, _two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    pair.until_protected();
    let calls = pair.report().calls;
    // The connection ends, as that of a daemon that was replaced, and the next one finds a peer without a log.
    wire.set(IS_CUT);
    one.send().unwrap();
    pair.stage.until("the fetch", || pair.report().calls > calls);
    wire.set(PASSES);
    pair.stage.until("frames", || pair.stage.taken(2) == 64);
}

/// The peer lives, and acknowledges later than the guest sends: nothing is lost, and the port stays protected.
fn a_guest_waits_for_a_slow_peer_while_its_port_and_the_log_say_so_and_goes_on_with_it(workers: usize) {
    logged::keep();
    let mut pair = Pair::new(workers);
    pair.start_peer("key");
    let wire = Wire::to(pair.listen);
    pair.open(wire.address);
    let (mut one, _two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    // On a machine so busy that a daemon stands still for a second, the port goes on alone: once more.
    let tries = (0..5).map(|_| waits_for_a_slow_peer(&pair, &wire, &mut one));
    assert!(tries.into_iter().any(|has_waited| has_waited), "{}", pair.report());
}

/// False if the port has lost its peer.
fn waits_for_a_slow_peer(pair: &Pair, wire: &Wire, one: &mut Nic) -> bool {
    // The gate holds 1 MiB, and the fetch that reaches it ends.
    const GATE_BYTES: u64 = 1 << 20;
    const BATCH_BYTES: u64 = 64 * nic::FRAME as u64;
    wire.set(PASSES);
    pair.until_protected();
    wire.set(IS_SLOW);
    let mut sent = 0;
    while !pair.report().gate_is_full {
        if !pair.report().protected {
            return false;
        }
        assert!(sent < 2 * GATE_BYTES, "the gate took {sent} bytes: {}", pair.report());
        one.send().unwrap();
        sent += BATCH_BYTES;
        pair.stage.until("the fetch", || one.is_fetched() || pair.report().gate_is_full);
    }
    let says = format!("its guest waits for {}, which is slow", wire.address);
    let has_told = || logged::lines_of("vm1").iter().any(|line| line.contains(&says));
    pair.stage.until("a line in the log", || {
        let report = pair.report();
        assert!(report.gate_bytes <= GATE_BYTES + BATCH_BYTES, "{report}");
        assert!(!report.gate_is_full || report.to_string().ends_with(", and the guest waits"), "{report}");
        if one.is_fetched() {
            one.send().unwrap();
        }
        !report.protected || has_told()
    });
    if !pair.report().protected {
        return false;
    }
    wire.set(PASSES);
    pair.stage.until("the rest", || {
        let report = pair.report();
        one.is_fetched() && (report.gate_packets, report.lag_calls) == (0, 0)
    });
    pair.report().protected
}

#[test]
fn a_peer_with_another_key_protects_nobody_and_holds_nobody_up() {
    let mut pair = Pair::new(1);
    pair.start_peer("other");
    pair.open(pair.listen);
    let (mut one, _two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    pair.stage.until("a reason", || pair.report().why_not.is_some_and(|why| why.contains("another key")));
    one.send().unwrap();
    pair.stage.until("frames", || pair.stage.taken(2) == 64);
    assert!(!pair.report().protected);
}

/// The name has an IPv6 address, too, at which nobody listens.
#[test]
fn a_peer_may_have_a_name() {
    let mut pair = Pair::new(1);
    let peer: PeerAddress = format!("localhost:{}", pair.listen.port()).parse().unwrap();
    pair.open(peer.clone());
    let (mut one, _two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    let tried = format!("{peer} at ");
    pair.stage.until("a refusal", || pair.report().why_not.is_some_and(|why| why.contains(&tried)));
    pair.start_peer("key");
    pair.until_protected();
    one.send().unwrap();
    pair.stage.until("frames", || pair.stage.taken(2) == 64);
    pair.until_protected();
    assert_eq!(pair.report().peer, peer.to_string());
}

/// So does a daemon that replaces the peer: it listens at the same path.
#[test]
fn a_peer_may_be_at_a_unix_socket() {
    let mut pair = Pair::new(1);
    let path = pair.key("peer.sock");
    pair.open(PeerAddress::Unix(path.clone()));
    let (mut one, mut two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    pair.stage.until("a refusal", || pair.report().why_not.is_some_and(|why| why.contains("nobody listens there")));
    pair.at = ListenAddress::Unix(path.clone());
    pair.start_peer("key");
    pair.until_protected();
    assert_eq!(pair.report().peer, format!("unix:{}", path.display()));
    one.send().unwrap();
    pair.stage.until("frames", || pair.stage.taken(2) == 64);
    two.repost().unwrap();
    pair.peer = None;
    pair.stage.until("its peer's end", || !pair.report().protected);
    pair.start_peer("key");
    pair.until_protected();
    one.send().unwrap();
    pair.stage.until("frames with another peer", || pair.stage.taken(2) == 128);
}

/// The peer listens to a limited number of logs.
#[test]
fn who_takes_all_places_for_logs_and_says_nothing_keeps_none_of_them() {
    let mut pair = Pair::new(1);
    pair.start_peer("key");
    let silent: Vec<TcpStream> = (0..256).map(|_| TcpStream::connect(pair.listen).unwrap()).collect();
    pair.open(pair.listen);
    let (mut one, _two) = (Nic::new(&pair.stage, 1), Nic::new(&pair.stage, 2));
    one.send().unwrap();
    pair.stage.until("frames", || pair.stage.taken(2) == 64);
    pair.until_protected();
    drop(silent);
}

#[test]
fn a_port_with_a_peer_needs_a_key() {
    let stage = Stage::new(1, &[]);
    let mut spec = stage.spec(1, "e1000");
    spec.config.ft_peer = Some("127.0.0.1:9".parse().unwrap());
    let why = stage.daemon.open(spec).unwrap_err().to_string();
    assert!(why.contains("there was no [ft]"), "{why}");
    let folder = TempDir::new().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, [7; 15]).unwrap();
    let why = stage.daemon.tolerate(&ToleranceConfig { listen: None, key, lease: None }).unwrap_err().to_string();
    assert!(why.contains("a key has at least 16 bytes"), "{why}");
}
