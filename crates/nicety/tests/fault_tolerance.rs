//! `nicety ft start`: an ordinary TCP client of Linux keeps its connection while one host of the guest after the other is killed.
//!
//! ```text
//! nc ── bridge ─┬─ tap0 ── host 0, killed at a random instant      host 0 and host 1 are joined by TCP,
//!               └─ tap1 ── host 1, which takes over                and by the file of the lease
//! ```
//! Then a new host 0 joins host 1, and host 1 is killed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nicety_guests::{Namespace, Root};
use nicety_trials::random::Random;
use nicety_trials::scope::is_full;

/// Hosts that are killed, in a normal and in a full run.
const KILLS: [usize; 2] = [4, 100];
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
}

impl Stage {
    fn new() -> Self {
        let root = Root::lay(&mut |line| eprintln!("{line}")).unwrap();
        let mut namespace = Namespace::open(&root).unwrap();
        namespace.bridge("br0", "10.9.0.1/24", &["tap0", "tap1"]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("key"), [7; 32]).unwrap();
        Self { root, namespace, folder, hosts: 0 }
    }

    fn enter(&self, program: &Path) -> Command {
        let words = self.namespace.entrance();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(program).current_dir(self.folder.path());
        command
    }

    /// Starts a host at one of the taps, and returns it with its log.
    fn start(&mut self, place: usize, role: &str, adapter: &str) -> Host {
        let log = self.folder.path().join(format!("host{}", self.hosts));
        self.hosts += 1;
        let mut command = self.enter(Path::new(env!("CARGO_BIN_EXE_nicety")));
        let [ours, theirs] = [place, 1 - place].map(|place| format!("127.0.0.1:{}", 7001 + place));
        command.args(["ft", "start", "--role", role, "--listen", &ours, "--peer", &theirs]);
        command.args(["--tap", &format!("tap{place}"), "--key", "key", "--lease", "lease"]);
        command.args(["--address", "10.9.0.2/24", "--adapter", adapter]);
        let out = File::create(&log).unwrap();
        command.stdout(out.try_clone().unwrap()).stderr(out).stdin(Stdio::null());
        Host { process: Process(command.spawn().unwrap()), log }
    }
}

struct Host {
    process: Process,
    log: std::path::PathBuf,
}

impl Host {
    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The last state that it told, without complaints.
    fn state(&self) -> String {
        self.said().lines().rfind(|line| !line.starts_with("nicety: ")).unwrap_or_default().to_owned()
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
        let secondary = stage.start(1 - place, "secondary", adapter);
        primary.wait("primary, protected");
        client.exchange(Duration::from_micros(random.below(300_000)));
        // Bytes are on their way in both directions when the host dies.
        client.send();
        std::thread::sleep(Duration::from_micros(random.below(3000)));
        // On a machine that is so busy that a host says nothing for 0.3 s, the primary goes on alone until that host is back; and one
        // that stands still for a second has been replaced before it is killed.
        if primary.state().starts_with("primary, not protected") && primary.process.0.try_wait().unwrap().is_none() {
            println!("{adapter}, kill {kill}: it had lost its secondary: once more");
            primary.wait("primary, protected");
        }
        let log = primary.log.clone();
        drop(primary);
        let dead = Instant::now();
        let [said, lease] = [log, stage.folder.path().join("lease")].map(|file| fs::read_to_string(file).unwrap());
        while !secondary.state().starts_with("primary") {
            let told = || format!("the dead host said\n{said}\nthe lease was\n{lease}\n{}", secondary.said());
            assert!(dead.elapsed() < SOON, "{}", told());
            std::thread::sleep(Duration::from_millis(5));
        }
        client.wait();
        outages.push(dead.elapsed());
        println!("{adapter}, kill {kill}: {} bytes so far, {:.2} s", client.sent, dead.elapsed().as_secs_f64());
        (primary, place) = (secondary, 1 - place);
    }
    client.exchange(Duration::from_millis(50));
    outages.sort();
    println!("{adapter}: {} bytes over {} hosts, median outage {:?}", client.sent, kills + 1, outages[kills / 2]);
}

#[test]
fn a_connection_outlives_one_host_after_the_other() {
    outlives("e1000", KILLS[usize::from(is_full())], 36);
}

#[test]
fn a_connection_outlives_one_host_after_the_other_over_virtio_net() {
    outlives("virtio-net", KILLS[usize::from(is_full())], 37);
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
    let process = rustix::process::Pid::from_child(&primary.process.0);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    client.send();
    secondary.wait("primary");
    client.wait();
    rustix::process::kill_process(process, rustix::process::Signal::CONT).unwrap();
    let end = Instant::now() + SOON;
    while primary.process.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "it still runs: {}", primary.said());
        client.exchange(Duration::from_millis(5));
    }
    assert!(primary.said().contains("another host owns the guest"), "{}", primary.said());
    client.exchange(Duration::from_millis(200));
}
