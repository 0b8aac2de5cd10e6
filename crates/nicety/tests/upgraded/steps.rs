//! A kill at every message of an upgrade, of the old daemon and of the new one. The keeper runs in this process, and all that it and the
//! daemons send each other passes through here.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use nicety_keeper::Start;
use rustix::process::{Pid, getpriority_process, setpriority_process};

use super::bad::signal;
use super::*;
use crate::steps_of::{Plan, Relay, Victim};

/// Identity and command register of an e1000: PCI 3.0, 6.2; Intel's 8254x manual, 4.1.
const IDENTITY: [u8; 4] = [0x86, 0x80, 0x0e, 0x10];
const BUS_MASTER: [u8; 2] = [7, 0];
/// The region of the configuration space (linux/vfio.h: VFIO_PCI_CONFIG_REGION_INDEX).
const CONFIG: u32 = 7;

/// Two ports, each with a VMM.
pub(super) struct Swept {
    pub(super) dir: TempDir,
    pub(super) relay: Arc<Relay>,
    vmms: Vec<Vmm>,
    keeper: std::thread::JoinHandle<std::io::Result<std::process::ExitStatus>>,
}

impl Swept {
    pub(super) fn start() -> Swept {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut host = format!("[daemon]\ncontrol = \"{}\"\nworkers = 2\n", path("control.sock").display());
        for number in [1, 2] {
            host += &format!(
                "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:0{number}\"\nsocket = \"{}\"\n",
                path(&format!("vm{number}.sock")).display()
            );
        }
        std::fs::write(path("host.toml"), host).unwrap();
        let (program, log) = (path("nicety"), path("log"));
        let script = format!(
            "#!/bin/sh\nunset XDG_RUNTIME_DIR\nexec '{}' \"$@\" 2>>'{}'\n",
            env!("CARGO_BIN_EXE_nicety"),
            log.display()
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
        let relay = Arc::new(Relay::default());
        let start = Start { program, arguments: vec!["serve".into(), path("host.toml").into()] };
        let keeper = std::thread::spawn({
            let relay = Arc::clone(&relay);
            move || relay.keep(&start)
        });
        let end = Instant::now() + SOON;
        let connected = |number| {
            loop {
                if let Some(mut vmm) = Vmm::connect(&path(&format!("vm{number}.sock"))) {
                    vmm.client.region_write(CONFIG, 4, &BUS_MASTER).unwrap();
                    break vmm;
                }
                assert!(Instant::now() < end, "{}", std::fs::read_to_string(&log).unwrap_or_default());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let vmms = [1, 2].map(connected).into();
        Swept { dir, relay, vmms, keeper }
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub(super) fn asked(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).arg("--control").arg(self.dir.path().join("control.sock")).output().unwrap()
    }

    /// The one daemon that is left, when it serves.
    pub(super) fn serves(&self, when: &str) -> u64 {
        let end = Instant::now() + SOON;
        loop {
            if let [pid] = self.relay.pids()[..]
                && self.asked(&["ports"]).status.success()
                && self.relay.pids() == [pid]
            {
                return pid;
            }
            if Instant::now() >= end || self.keeper.is_finished() {
                panic!("{when}: not one daemon that serves: {}", self.seen());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The keeper and its children, and what is said.
    fn seen(&self) -> String {
        let keeper = if self.keeper.is_finished() { "has ended" } else { "runs" };
        let mut text = format!("the keeper {keeper}\n");
        for pid in self.relay.pids() {
            for file in ["cmdline", "status", "wchan"] {
                let found = std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
                text += &format!("{pid} {file}: {}\n", found.replace('\0', " ").trim());
            }
        }
        let answer = self.asked(&["ports"]);
        text + &format!("{answer:?}\n{}", self.log())
    }

    /// Both VMMs are served by the adapters that they have set up.
    pub(super) fn check(&mut self, when: &str) {
        for vmm in &mut self.vmms {
            let (mut identity, mut command) = ([0; 4], [0; 2]);
            let read = vmm.client.region_read(CONFIG, 0, &mut identity);
            let read = read.and_then(|()| vmm.client.region_read(CONFIG, 4, &mut command));
            if let Err(error) = read {
                panic!("{when}: {error}\n{}", std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
            }
            assert_eq!((identity, command), (IDENTITY, BUS_MASTER), "{when}");
        }
    }

    /// No VM waits for this daemon any more.
    fn runs_as_usual(&self, daemon: u64, usual: &BTreeSet<i32>) {
        let end = Instant::now() + SOON;
        while nice_values(daemon as u32) != *usual {
            assert!(Instant::now() < end, "{:?} instead of {usual:?}", nice_values(daemon as u32));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the daemon, and with it the keeper.
    pub(super) fn end(self) {
        signal(self.serves("in the end"), "TERM");
        assert_eq!(self.keeper.join().unwrap().unwrap().code(), Some(0));
    }

    /// Kills a daemon when so many messages of an upgrade have passed. Returns the next one, or `None` if there was no such message.
    fn kill_at(&mut self, step: usize, victim: Victim) -> Option<String> {
        let program = self.dir.path().join("nicety");
        // The messages of an upgrade that was refused because the machine was busy are others: then the step is repeated.
        let answer = in_time(|| {
            let old = self.serves("before");
            *self.relay.plan.lock().unwrap() = Some(Plan { victim, begun: false, left: step, old, came: None });
            self.asked(&["upgrade", program.to_str().unwrap()])
        });
        let Plan { came, old, .. } = self.relay.plan.lock().unwrap().take().unwrap();
        let when = format!("{victim:?} at {step}, {came:?}");
        let now = self.serves(&when);
        self.check(&when);
        let said = String::from_utf8_lossy(&answer.stderr);
        println!("{when}: {} serves; {}", if now == old { "the same" } else { "another" }, said.trim());
        assert!(victim == Victim::New || came.is_none() || now != old, "{when}\n{}", self.log());
        assert!(came.is_some() || answer.status.success(), "{when}: {said}\n{}", self.log());
        came
    }
}

/// A daemon says in less time that it serves, and tells the old one, when it has all images.
const LATE: Duration = Duration::from_millis(100);

#[test]
fn a_kill_at_any_message_of_an_upgrade_leaves_one_daemon_that_serves_every_vmm() {
    let mut swept = Swept::start();
    for victim in [Victim::Old, Victim::New] {
        let mut steps = 0;
        loop {
            // The next daemon gets some messages ahead of every other kill.
            let is_late = victim == Victim::New && steps % 2 == 0;
            *swept.relay.late.lock().unwrap() = if is_late { LATE } else { Duration::ZERO };
            if swept.kill_at(steps, victim).is_none() {
                break;
            }
            steps += 1;
        }
        // From the request to the keeper until the answer: at least one message of each kind, and two images.
        assert!(steps >= 12, "{steps}");
    }
    let log = swept.log();
    assert!(!log.contains("loses its adapter") && !log.contains("disconnected"), "{log}");
    swept.end();
}

/// The last word of the old daemon, by which the new one goes on: `crates/daemon/src/serve/handover.rs`.
const GO: u8 = 8;

/// The lowest nice value (sched(7)).
const HURRIED: i32 = -20;

/// Whether this process's threads may have that value (RLIMIT_NICE, CAP_SYS_NICE).
fn may_run_first() -> bool {
    std::thread::spawn(|| setpriority_process(None, HURRIED).is_ok()).join().unwrap()
}

/// Those of a process's threads (proc(5)).
fn nice_values(process: u32) -> BTreeSet<i32> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let ids = threads.filter_map(|thread| Pid::from_raw(thread.file_name().to_str()?.parse().ok()?));
    ids.filter_map(|id| getpriority_process(Some(id)).ok()).collect()
}

/// The nice values of the two daemons of an upgrade, until that is over.
fn while_both_wait(relay: &Relay, over: &AtomicBool) -> BTreeSet<[BTreeSet<i32>; 2]> {
    let mut seen = BTreeSet::new();
    while !over.load(Relaxed) {
        if let [old, new] = relay.pids()[..] {
            seen.insert([old, new].map(|pid| nice_values(pid as u32)));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    seen
}

/// The new daemon waits three seconds for other messages.
#[test]
fn a_daemon_that_lets_go_late_is_waited_for_by_the_next_one() {
    let usual = BTreeSet::from([getpriority_process(None).unwrap()]);
    let mut swept = Swept::start();
    let program = swept.dir.path().join("nicety");
    let old = swept.serves("before");
    *swept.relay.delayed.lock().unwrap() = Some((GO, Duration::from_secs(4)));
    let over = AtomicBool::new(false);
    let (answer, seen) = std::thread::scope(|scope| {
        let seen = scope.spawn(|| while_both_wait(&swept.relay, &over));
        let _over = Over(&over);
        let answer = in_time(|| swept.asked(&["upgrade", program.to_str().unwrap()]));
        over.store(true, Relaxed);
        (answer, seen.join().unwrap())
    });
    assert!(answer.status.success(), "{answer:?}\n{}", swept.log());
    let now = swept.serves("after");
    assert_ne!(now, old);
    let first = if may_run_first() { BTreeSet::from([HURRIED]) } else { usual.clone() };
    assert!(seen.contains(&[first.clone(), first]), "both run before others while VMs wait: {seen:?}");
    swept.runs_as_usual(now, &usual);
    swept.check("after");
    let log = swept.log();
    assert!(!log.contains("loses its adapter") && !log.contains("disconnected"), "{log}");
    assert!(!log.contains("the daemon was killed"), "the adapters were not reset: {log}");
    signal(now, "KILL");
    let next = swept.serves("after a kill");
    assert_ne!(next, now);
    swept.runs_as_usual(next, &usual);
    swept.end();
}

/// A register that keeps whatever is written to it, of one byte: PCI 3.0, 6.2.4, Interrupt Line.
const SCRATCH: u64 = 0x3c;
/// Accesses of each VMM between two kills, at least.
const BETWEEN: u64 = 200;

/// Says that it is over when the test ends, however it ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Accesses without a pause. This client ends with an answer that it has not asked for, and with one without its data.
fn accesses(vmm: &mut Vmm, over: &AtomicBool, made: &AtomicU64) {
    for value in (0..=u8::MAX).cycle() {
        let [mut identity, mut scratch] = [[0; 4], [0; 4]];
        if value % 2 == 0 {
            vmm.client.region_write(CONFIG, SCRATCH, &[value]).unwrap();
        } else {
            vmm.client.region_write_posted(CONFIG, SCRATCH, &[value]).unwrap();
        }
        vmm.client.region_read(CONFIG, 0, &mut identity).unwrap();
        vmm.client.region_read(CONFIG, SCRATCH, &mut scratch).unwrap();
        assert_eq!((identity, scratch[0]), (IDENTITY, value));
        made.fetch_add(3, Relaxed);
        if over.load(Relaxed) {
            break;
        }
    }
}

/// vfio-user.rst: a message has one reply. It says nothing of a server that is killed, and clients take it at its word.
#[test]
fn each_answer_comes_once_and_with_its_data_when_the_daemon_is_killed_under_its_vmms_accesses() {
    let kills = if nicety_trials::scope::is_full() { 300 } else { 5 };
    let mut swept = Swept::start();
    let (over, made) = (AtomicBool::new(false), [(); 2].map(|()| AtomicU64::new(0)));
    let mut vmms = std::mem::take(&mut swept.vmms);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        let threads: Vec<_> =
            vmms.iter_mut().zip(&made).map(|(vmm, made)| scope.spawn(|| accesses(vmm, &over, made))).collect();
        for round in 1..=kills {
            let before = made.each_ref().map(|made| made.load(Relaxed));
            let end = Instant::now() + SOON;
            while made.iter().zip(before).any(|(made, before)| made.load(Relaxed) < before + BETWEEN) {
                assert!(!threads.iter().any(|thread| thread.is_finished()), "{round}: {}", swept.log());
                assert!(Instant::now() < end, "{round}: {}", swept.log());
                std::thread::yield_now();
            }
            // The daemon that has answered since the last kill.
            let pid = *swept.relay.pids().last().unwrap();
            signal(pid, "KILL");
        }
    });
    let log = swept.log();
    println!(
        "{kills} kills, {made:?} accesses, {} answers that may have come twice",
        log.matches("may have come twice").count()
    );
    assert!(!log.contains("loses its adapter") && !log.contains("disconnected"), "{log}");
    assert!(!log.contains("may have come twice"), "{log}");
    swept.end();
}
