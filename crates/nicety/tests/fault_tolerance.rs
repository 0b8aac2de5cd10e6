//! `nicety ft start`: an ordinary TCP client of Linux keeps its connection while one host of the guest after the other is killed.
//!
//! ```text
//! nc ── bridge ─┬─ tap0 ── host 0, killed at a random instant      host 0 and host 1 are joined by TCP,
//!               └─ tap1 ── host 1, which takes over                and by the file of the lease
//! ```
//! Then a new host 0 joins host 1, and host 1 is killed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nicety_guests::{Namespace, Root};
use nicety_trials::random::Random;
use nicety_trials::scope::is_full;

#[path = "fault_tolerance/etcd.rs"]
mod etcd;

/// Hosts that are killed in each of four tests, in a normal and in a full run: 1000 in all. Each test ends within the time that
/// `cargo xtask test` gives to one, and can be repeated alone.
const KILLS: [usize; 2] = [2, 250];
/// Bytes of an exchange.
const PIECE: u64 = 3000;
/// Time limit for everything that should take a second or two. A killed host's lease lasts a second.
const SOON: Duration = Duration::from_secs(30);

fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// A process that ends with this value.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// The namespace, and the files of both hosts.
struct Stage {
    root: Root,
    namespace: Namespace,
    folder: tempfile::TempDir,
    hosts: usize,
    /// The lease's place, the addresses at which both hosts listen, and where the other one looks for them.
    lease: String,
    addresses: [&'static str; 2],
    peers: [Option<&'static str>; 2],
    /// More words for each host.
    words: Vec<&'static str>,
    /// The hosts are joined by UNIX sockets.
    sockets: bool,
    /// Each host has a mount namespace of its own, in which its `seen0` or `seen1` is the folder `shared`, with the lease.
    mounts: bool,
}

impl Stage {
    fn new() -> Self {
        let root = Root::lay(&mut |line| eprintln!("{line}")).unwrap();
        let mut namespace = Namespace::open(&root).unwrap();
        namespace.bridge("br0", "10.9.0.1/24", &["tap0", "tap1"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), [7; 32]).unwrap();
        let (lease, addresses) = ("lease".to_owned(), ["127.0.0.1"; 2]);
        Self {
            root,
            namespace,
            folder,
            hosts: 0,
            lease,
            addresses,
            peers: [None; 2],
            words: Vec::new(),
            sockets: false,
            mounts: false,
        }
    }

    fn enter(&self, program: &Path) -> Command {
        let words = self.namespace.entrance();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program).current_dir(self.folder.path());
        command
    }

    /// Starts a host at one of the taps, and returns it with its log.
    fn start(&mut self, place: usize, role: &str, adapter: &str) -> Host {
        self.start_with(place, role, adapter, &[])
    }

    /// The same, with words that replace others.
    fn start_with(&mut self, place: usize, role: &str, adapter: &str, words: &[&str]) -> Host {
        let log = self.folder.path().join(format!("host{}", self.hosts));
        let control = self.folder.path().join(format!("control{}", self.hosts));
        self.hosts += 1;
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let mut command = if self.mounts {
            let seen = format!("seen{place}");
            let script = "mount -o bind shared $0 && exec \"$@\"";
            let mut command = self.enter(&self.root.busybox());
            command.args(["unshare", "-m", "sh", "-c", script, &seen]).arg(program);
            self.lease = format!("{seen}/lease");
            command
        } else {
            self.enter(program)
        };
        let [ours, theirs] = [place, 1 - place].map(|place| format!("{}:{}", self.addresses[place], 7001 + place));
        let theirs = self.peers[1 - place].map_or(theirs, str::to_owned);
        let [ours, theirs] = if self.sockets {
            [place, 1 - place].map(|place| format!("unix:host{place}.sock"))
        } else {
            [ours, theirs]
        };
        let word = |name: &str, usual: &str| {
            let given = words.chunks(2).find(|pair| pair[0] == name);
            given.map_or(usual, |pair| pair[1]).to_owned()
        };
        let [ours, theirs] = [word("--listen", &ours), word("--peer", &theirs)];
        command.args(["ft", "start", "--role", role, "--listen", &ours, "--peer", &theirs]);
        command.args(["--tap", &format!("tap{place}"), "--key", "key", "--lease", &self.lease]);
        command.args(["--address", "10.9.0.2/24", "--adapter", adapter]).arg("--control").arg(&control);
        command.args(&self.words);
        let out = File::create(&log).unwrap();
        command.stdout(out.try_clone().unwrap()).stderr(out).stdin(Stdio::null());
        Host { process: Process(command.spawn().unwrap()), log, control }
    }

    /// `ip` in the namespace.
    fn ip(&self, words: &[&str]) {
        let done = self.enter(&self.root.busybox()).arg("ip").args(words).status().unwrap();
        assert!(done.success(), "ip {words:?}");
    }

    /// Starts etcd, which keeps the lease from now on.
    fn etcd(&mut self) -> Process {
        const URL: &str = "http://127.0.0.1:2379";
        let etcd = nicety_guests::Etcd::lay(&mut |line| eprintln!("{line}")).unwrap().command();
        let mut command = self.enter(Path::new(etcd.get_program()));
        command.args(etcd.get_args()).args(["--data-dir", "etcd", "--listen-client-urls", URL]);
        command.args(["--advertise-client-urls", URL, "--listen-peer-urls", "http://127.0.0.1:2380"]);
        let log = File::create(self.folder.path().join("etcd.log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.lease = "etcd://127.0.0.1:2379/nicety/guest".to_owned();
        Process(command.spawn().unwrap())
    }

    /// Asks etcd's JSON gateway for a change, until it listens.
    fn ask_etcd(&self, path: &str, body: &str) {
        let end = Instant::now() + SOON;
        loop {
            let mut command = self.enter(&self.root.busybox());
            command
                .args(["nc", "127.0.0.1", "2379"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut nc = Process(command.spawn().unwrap());
            let mut into = nc.0.stdin.take().unwrap();
            let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n", body.len());
            let mut answer = String::new();
            if into.write_all(format!("{head}{body}").as_bytes()).is_ok() {
                nc.0.stdout.take().unwrap().read_to_string(&mut answer).unwrap();
            }
            if answer.starts_with("HTTP/1.0 200") {
                return;
            }
            assert!(answer.is_empty() && Instant::now() < end, "{path}: {answer}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a relay from a TCP port of the namespace to another one.
    fn relay(&self, from: u16, to: u16) -> Relay {
        let rule = self.folder.path().join(format!("relay{from}"));
        let mut command = self.enter(&std::env::current_exe().unwrap());
        command.args(["--exact", RELAY, "--nocapture"]).env(RELAY, format!("{from} {to} {}", rule.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let relay = Relay { rule, _process: Process(command.spawn().unwrap()) };
        relay.set(&Rule::default());
        relay
    }

    /// The lease, as it is in its file.
    fn lease(&self) -> String {
        fs::read_to_string(self.folder.path().join("lease")).unwrap_or_default()
    }
}

/// What a relay does with each piece of at most 1 KiB.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    /// Milliseconds that a piece waits on its way there, and back.
    there: u64,
    back: u64,
    /// Pieces back wait only for requests with this text.
    of: &'static str,
}

/// A piece that waits for so long waits until the rule changes.
const HANGS: u64 = 1_000_000;

/// A process in the namespace between a client and its server, which delays what they say.
struct Relay {
    rule: PathBuf,
    _process: Process,
}

impl Relay {
    fn set(&self, Rule { there, back, of }: &Rule) {
        let new = self.rule.with_extension("new");
        fs::write(&new, format!("{there} {back} {of}")).unwrap();
        fs::rename(new, &self.rule).unwrap();
    }
}

const RELAY: &str = "a_relay_says_what_it_hears_and_later_if_it_is_told_to";

/// The rule as the relay reads it.
fn rule(file: &Path) -> Option<(u64, u64, String)> {
    let text = fs::read_to_string(file).ok()?;
    let mut words = text.splitn(3, ' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.to_owned()))
}

/// Copies one direction. What was read is delivered, also after its sender has hung up: a request may be carried out whose answer nobody
/// waits for any more.
fn relays(from: &mut TcpStream, to: &mut TcpStream, wait_ms: impl Fn(&[u8]) -> Option<u64>) {
    let mut piece = [0; 1 << 10];
    while let Ok(read @ 1..) = from.read(&mut piece) {
        let begun = Instant::now();
        while wait_ms(&piece[..read]).is_some_and(|wait_ms| begun.elapsed() < Duration::from_millis(wait_ms)) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&piece[..read]).is_err() {
            break;
        }
    }
    let _ended = to.shutdown(Shutdown::Write);
}

/// Is the process of a relay, if it is told to be one.
#[test]
fn a_relay_says_what_it_hears_and_later_if_it_is_told_to() {
    let Ok(words) = std::env::var(RELAY) else { return };
    let words: Vec<&str> = words.splitn(3, ' ').collect();
    let [from, to] = [words[0], words[1]].map(|port| port.parse::<u16>().unwrap());
    let file = PathBuf::from(words[2]);
    for client in TcpListener::bind(("127.0.0.1", from)).unwrap().incoming() {
        let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else { continue };
        for stream in [&client, &server] {
            stream.set_nodelay(true).unwrap();
        }
        let asked = Arc::new(std::sync::Mutex::new(String::new()));
        let [mut here, mut there] = [&client, &server].map(|stream| stream.try_clone().unwrap());
        let (heard, rules) = (Arc::clone(&asked), file.clone());
        std::thread::spawn(move || {
            relays(&mut here, &mut there, |piece| {
                let mut asked = heard.lock().unwrap();
                // The beginning of a request names it. A connection may carry several, one after the other.
                if asked.is_empty() || piece.starts_with(b"POST ") {
                    *asked = String::from_utf8_lossy(piece).into_owned();
                }
                rule(&rules).map(|(there, ..)| there)
            });
        });
        let (mut here, mut there, rules) = (client, server, file.clone());
        std::thread::spawn(move || {
            relays(&mut there, &mut here, |_| {
                let (_, back, of) = rule(&rules)?;
                asked.lock().unwrap().contains(&of).then_some(back)
            });
        });
    }
}

struct Host {
    process: Process,
    log: PathBuf,
    control: PathBuf,
}

impl Host {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let process = rustix::process::Pid::from_child(&self.process.0);
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// `nicety ft WORD`.
    fn ask(&self, word: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.arg("ft").arg(word[0]).arg(&self.control).args(&word[1..]);
        command.output().unwrap()
    }

    fn status(&self) -> serde_json::Value {
        let output = self.ask(&["status", "--json"]);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Until when it owns the guest, by what it says.
    fn owns_until(&self) -> Option<Instant> {
        let mut stream = std::os::unix::net::UnixStream::connect(&self.control).ok()?;
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(b"status\n").ok()?;
        let asked = Instant::now();
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let status: serde_json::Value = serde_json::from_str(&text).ok()?;
        // It answered after it was asked, so its lease ends no earlier than this.
        let left = status["lease_milliseconds"].as_u64().filter(|left| *left > 0)?;
        Some(asked + Duration::from_millis(left))
    }

    /// Waits until it has ended.
    fn end(&mut self) -> std::process::ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = self.process.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it still runs: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The last state that it told, without complaints.
    fn state(&self) -> String {
        self.said().lines().rfind(|line| !line.starts_with("nicety: ")).unwrap_or_default().to_owned()
    }

    /// Waits until it has said this.
    fn wait_for(&self, words: &str) {
        let end = Instant::now() + SOON;
        while !self.said().contains(words) {
            assert!(Instant::now() < end, "{words}: {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it is in this state.
    fn wait(&mut self, state: &str) {
        let end = Instant::now() + SOON;
        while !self.state().starts_with(state) {
            let ended = self.process.0.try_wait().unwrap();
            assert!(ended.is_none() && Instant::now() < end, "it is not \"{state}\": {}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// nc, and a count of the bytes that came back as they should.
struct Client {
    _nc: Process,
    into: ChildStdin,
    sent: u64,
    answered: Arc<AtomicU64>,
}

impl Client {
    fn connect(stage: &Stage) -> Self {
        let mut command = stage.enter(&stage.root.busybox());
        command.args(["nc", "10.9.0.2", "7"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut nc = command.spawn().unwrap();
        let (into, mut out) = (nc.stdin.take().unwrap(), nc.stdout.take().unwrap());
        let answered = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&answered);
        std::thread::spawn(move || {
            let (mut bytes, mut at) = ([0; 64 << 10], 0);
            while let Ok(read @ 1..) = out.read(&mut bytes) {
                for byte in &bytes[..read] {
                    // A wrong byte ends the count: the test fails by its time limit and says where.
                    if *byte != pattern(at) {
                        return;
                    }
                    at += 1;
                }
                count.store(at, Ordering::Release);
            }
        });
        Self { _nc: Process(nc), into, sent: 0, answered }
    }

    fn send(&mut self) {
        let piece: Vec<u8> = (self.sent..self.sent + PIECE).map(pattern).collect();
        self.into.write_all(&piece).expect("the connection lives");
        self.sent += PIECE;
    }

    /// Waits until all that was sent has come back.
    fn wait(&self) {
        let end = Instant::now() + SOON;
        while self.answered.load(Ordering::Acquire) < self.sent {
            let answered = self.answered.load(Ordering::Acquire);
            assert!(Instant::now() < end, "byte {answered} of {} did not come back", self.sent);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn exchange(&mut self, duration: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < duration {
            self.send();
            self.wait();
        }
    }
}

fn outlives(adapter: &str, kills: usize, seed: u64) {
    let mut stage = Stage::new();
    let mut random = Random::new(seed);
    let mut primary = stage.start(0, "primary", adapter);
    primary.wait("primary");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(50));
    let mut place = 0;
    let mut outages = Vec::new();
    for kill in 0..kills {
        let mut secondary = stage.start(1 - place, "secondary", adapter);
        primary.wait("primary, protected");
        client.exchange(Duration::from_micros(random.below(300_000)));
        // Bytes are on their way in both directions when the host dies.
        client.send();
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        // On a machine that is so busy that a host says nothing for 0.3 s, the primary goes on alone until that host is back, and its death
        // is the guest's. It did so once in 100 kills, between the last look at it and the kill. Now it is stopped first, so that the
        // lease says for certain whether the secondary is the heir.
        loop {
            primary.signal(rustix::process::Signal::STOP);
            let lease = stage.lease();
            if !lease.contains("peer -") {
                break;
            }
            primary.signal(rustix::process::Signal::CONT);
            println!("{adapter}, kill {kill}: it had lost its secondary: once more");
            primary.wait("primary, protected");
        }
        let log = primary.log.clone();
        drop(primary);
        let dead = Instant::now();
        let [said, lease] = [log, stage.folder.path().join("lease")].map(|file| fs::read_to_string(file).unwrap());
        while !secondary.state().starts_with("primary") {
            let ended = secondary.process.0.try_wait().unwrap();
            let told = || format!("the dead host said\n{said}\nthe lease was\n{lease}\n{}", secondary.said());
            assert!(ended.is_none() && dead.elapsed() < SOON, "{}", told());
            std::thread::sleep(Duration::from_millis(5));
        }
        client.wait();
        outages.push(dead.elapsed());
        println!("{adapter}, kill {kill}: {} bytes so far, {:.2} s", client.sent, dead.elapsed().as_secs_f64());
        (primary, place) = (secondary, 1 - place);
    }
    client.exchange(Duration::from_millis(50));
    outages.sort();
    let [median, of_100, most] = [kills / 2, kills * 99 / 100, kills - 1].map(|index| outages[index].as_secs_f64());
    println!(
        "{adapter}: {kills} kills, {} bytes; back after {median:.2} s in the median, {of_100:.2} s in 99 of 100, {most:.2} s at most",
        client.sent
    );
}

#[test]
fn a_connection_outlives_one_host_after_the_other() {
    outlives("e1000", KILLS[usize::from(is_full())], 36);
}

#[test]
fn a_connection_outlives_one_host_after_the_other_once_more() {
    outlives("e1000", KILLS[usize::from(is_full())], 38);
}

#[test]
fn a_connection_outlives_one_host_after_the_other_over_virtio_net() {
    outlives("virtio-net", KILLS[usize::from(is_full())], 37);
}

#[test]
fn a_connection_outlives_one_host_after_the_other_over_virtio_net_once_more() {
    outlives("virtio-net", KILLS[usize::from(is_full())], 39);
}

/// Both hosts are joined by UNIX sockets. One that was killed leaves its socket's file, and the next one takes the place.
#[test]
fn hosts_may_be_joined_by_unix_sockets() {
    let mut stage = Stage::new();
    stage.sockets = true;
    let mut primary = stage.start(0, "primary", "e1000");
    let mut secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    // The place of a host that lives is its own.
    let mut second = stage.start(0, "secondary", "e1000");
    assert!(!second.end().success() && second.said().contains("unix:host0.sock: another process listens there"));
    for place in [0, 1] {
        client.send();
        drop(primary);
        secondary.wait("primary");
        client.wait();
        primary = secondary;
        secondary = stage.start(place, "secondary", "e1000");
        primary.wait("primary, protected");
        client.exchange(Duration::from_millis(100));
    }
    // The same key is asked for.
    drop(secondary);
    fs::write(stage.folder.path().join("key"), [8; 32]).unwrap();
    let stranger = stage.start(1, "secondary", "e1000");
    stranger.wait_for("not authentic");
    drop((stranger, primary));
    // Wrong paths say why.
    fs::write(stage.folder.path().join("host1.sock.text"), "").unwrap();
    for (words, why) in [
        (["--listen", "unix:host1.sock.text"], "something is there that is no socket: remove it"),
        (["--listen", "unix:none/host1.sock"], "unix:none/host1.sock: No such file or directory"),
        (["--peer", "unix:nobody.sock"], "unix:nobody.sock: nobody listens there"),
        (["--listen", "unix:"], "neither an IP address"),
    ] {
        let host = stage.start_with(1, "secondary", "e1000", &words);
        host.wait_for(why);
    }
}

/// The hosts see the lease's folder at different paths, each in a mount namespace of its own, as two machines see their shared storage.
#[test]
fn hosts_share_a_lease_between_two_mount_namespaces() {
    let mut stage = Stage::new();
    for folder in ["shared", "seen0", "seen1"] {
        fs::create_dir(stage.folder.path().join(folder)).unwrap();
    }
    stage.mounts = true;
    let primary = {
        let mut primary = stage.start(0, "primary", "e1000");
        primary.wait("primary, not protected");
        primary
    };
    let mut secondary = stage.start(1, "secondary", "e1000");
    primary.wait_for("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    let seen = |name: &str| stage.folder.path().join(name).join("lease").exists();
    assert_eq!([seen("shared"), seen("seen0"), seen("seen1")], [true, false, false]);
    // It stands still, and loses the guest to the other one, which sees the same file.
    primary.signal(rustix::process::Signal::STOP);
    client.send();
    secondary.wait("primary");
    client.wait();
    primary.signal(rustix::process::Signal::CONT);
    primary.wait_for("another host owns the guest");
    client.exchange(Duration::from_millis(100));
}

/// Longer than its lease: when it continues it ends, and the connection has moved.
#[test]
fn a_host_that_stood_still_for_longer_than_its_lease_ends_when_it_goes_on() {
    let mut stage = Stage::new();
    let mut primary = stage.start(0, "primary", "vmxnet3");
    let mut secondary = stage.start(1, "secondary", "vmxnet3");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    primary.signal(rustix::process::Signal::STOP);
    client.send();
    secondary.wait("primary");
    client.wait();
    primary.signal(rustix::process::Signal::CONT);
    let end = Instant::now() + SOON;
    while primary.process.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it still runs: {}", primary.said());
        client.exchange(Duration::from_millis(5));
    }
    assert!(primary.said().contains("another host owns the guest"), "{}", primary.said());
    client.exchange(Duration::from_millis(200));
}

/// Each is asked at its control socket: what it does, to hand the guest over, and to stop.
#[test]
fn a_host_says_what_it_does_hands_the_guest_over_and_stops() {
    let mut stage = Stage::new();
    let mut primary = stage.start(0, "primary", "e1000");
    let mut secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(300));
    let status = primary.status();
    assert_eq!((status["role"].as_str(), status["protected"].as_bool()), (Some("primary"), Some(true)), "{status}");
    let number = |name: &str| status.pointer(name).and_then(serde_json::Value::as_u64).unwrap();
    assert!(number("/log/sent_bytes") > client.sent && number("/log/received_bytes") > 0, "{status}");
    assert!(number("/commit_microseconds/count") > 10 && number("/commit_microseconds/median") > 0, "{status}");
    assert!((1..=900).contains(&number("/lease_milliseconds")) && number("/lag_calls") < 64, "{status}");
    assert_eq!(secondary.status()["role"], "secondary");
    let said = String::from_utf8(primary.ask(&["status"]).stdout).unwrap();
    assert!(said.starts_with("primary, protected, epoch ") && said.contains("\ncommit  "), "{said}");
    println!("{said}");
    // Only the primary can hand over.
    let refused = secondary.ask(&["failover"]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("no primary"),
        "{refused:?}"
    );
    client.send();
    let begun = Instant::now();
    assert!(primary.ask(&["failover"]).status.success());
    assert!(primary.end().success());
    secondary.wait("primary");
    client.wait();
    println!("handed over in {:.2} s", begun.elapsed().as_secs_f64());
    // A new secondary joins, and leaves.
    let mut primary = secondary;
    let mut secondary = stage.start(0, "secondary", "e1000");
    primary.wait("primary, protected");
    assert!(secondary.ask(&["stop"]).status.success());
    assert!(secondary.end().success());
    primary.wait("primary, not protected");
    client.exchange(Duration::from_millis(100));
    // The guest's end: its lease is free.
    let _secondary = stage.start(0, "secondary", "e1000");
    primary.wait("primary, protected");
    assert!(primary.ask(&["stop"]).status.success());
    assert!(primary.end().success());
    assert!(stage.lease().starts_with("holder -\npeer -\n"), "{}", stage.lease());
}

/// The log's link passes 20 KiB/s, and the guest is pinged with fifty times of that. Its answers fill the gate, no byte of a client is lost, and
/// nobody loses the other.
#[test]
fn a_guest_waits_for_a_slow_secondary_and_its_host_says_so() {
    let mut stage = Stage::new();
    let relay = stage.relay(7101, 7001);
    stage.peers[0] = Some("127.0.0.1:7101");
    let mut primary = stage.start(0, "primary", "e1000");
    let secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(100));
    relay.set(&Rule { there: 0, back: 50, of: "" });
    client.send();
    let ping = || {
        let mut command = stage.enter(&stage.root.busybox());
        command.args(["ping", "-q", "-i", "0.01", "-s", "1400", "10.9.0.2"]).stdout(Stdio::null());
        Process(command.spawn().unwrap())
    };
    let pings: Vec<Process> = (0..8).map(|_| ping()).collect();
    primary.wait_for("nicety: ft: the secondary: it is slow, and the guest waits for it");
    let status = primary.status();
    assert!(status["gate"]["holds_guest"] == true && status["gate"]["bytes"].as_u64().unwrap() < 2 << 20, "{status}");
    let said = String::from_utf8(primary.ask(&["status"]).stdout).unwrap();
    assert!(said.contains("; the guest waits for the secondary\n"), "{said}");
    drop(pings);
    relay.set(&Rule::default());
    client.wait();
    primary.wait_for("nicety: ft: the secondary: it keeps up again");
    primary.wait("primary, protected");
    assert_eq!(secondary.status()["role"], "secondary");
}

/// A name that has no address is named, with what to do.
#[test]
fn a_name_that_nobody_knows_is_told() {
    let mut stage = Stage::new();
    stage.peers = [Some("host1.invalid:7001"); 2];
    let secondary = stage.start(1, "secondary", "e1000");
    secondary.wait_for("nicety: ft: the other host: host1.invalid:7001: no address was found for this name (");
    stage.lease = "etcd://etcd1.invalid:2379/nicety/guest".to_owned();
    let primary = stage.start(0, "primary", "e1000");
    primary.wait_for("nicety: ft: the lease: etcd1.invalid:2379: no address was found for this name (");
}

/// Each says why, and the guest goes on.
#[test]
fn a_peer_with_another_guest_or_key_is_refused_with_a_sentence() {
    let mut stage = Stage::new();
    let mut primary = stage.start(0, "primary", "e1000");
    primary.wait("primary");
    let mut client = Client::connect(&stage);
    client.exchange(Duration::from_millis(50));
    stage.words = vec!["--port", "8"];
    let other = stage.start(1, "secondary", "e1000");
    let end = Instant::now() + SOON;
    let sentence = "the peer's guest has other settings";
    while !(other.said().contains(sentence) && primary.said().contains(sentence)) {
        assert!(Instant::now() < end, "{}\n{}", primary.said(), other.said());
        client.exchange(Duration::from_millis(5));
    }
    drop(other);
    stage.words = Vec::new();
    fs::write(stage.folder.path().join("key"), [8; 32]).unwrap();
    let stranger = stage.start(1, "secondary", "e1000");
    while !stranger.said().contains("not authentic") {
        assert!(Instant::now() < end, "{}", stranger.said());
        client.exchange(Duration::from_millis(5));
    }
    drop(stranger);
    fs::write(stage.folder.path().join("key"), [7; 32]).unwrap();
    let _secondary = stage.start(1, "secondary", "e1000");
    primary.wait("primary, protected");
    client.exchange(Duration::from_millis(50));
}
