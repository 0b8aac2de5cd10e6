//! A daemon is replaced by another program under its guests: no connection closes, no frame is lost, nothing is forgotten; and a
//! program that cannot take over changes nothing.

#[path = "upgraded/bad.rs"]
mod bad;
#[path = "upgraded/browsed.rs"]
mod browsed;
#[path = "upgraded/browser.rs"]
mod browser;
#[path = "upgraded/disk.rs"]
mod disk;
#[path = "upgraded/many.rs"]
mod many;
#[path = "upgraded/memory.rs"]
mod memory;
#[path = "upgraded/next_version.rs"]
mod next_version;
#[path = "upgraded/page.rs"]
mod page;
mod station;
#[path = "upgraded/steps.rs"]
mod steps;
#[path = "steps/mod.rs"]
mod steps_of;
#[path = "upgraded/still.rs"]
mod still;
#[path = "upgraded/storms.rs"]
mod storms;
#[path = "upgraded/unapplied.rs"]
mod unapplied;
#[path = "upgraded/uplinks.rs"]
mod uplinks;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nicety_vfio_user::{Client, NoMemory};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use station::{Process, Station, keep};
use steps_of::is_late;
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);
/// A guest's client gives up a connection after four seconds (`CONNECT_TIMEOUT` of the lab's stations).
const CONNECTS: Duration = Duration::from_secs(5);
/// More frames than a connection takes that is asked for, repeatedly, and not made: sent and received ones of both guests.
const ANSWERED: u64 = 20;

/// A kept daemon with two guests.
struct Kept {
    guests: Vec<Station>,
    dir: TempDir,
    keeper: Process,
}

impl Kept {
    fn start(adapters: &[&str]) -> Kept {
        let mut kept = Self::start_empty_with(adapters);
        kept.attach(adapters);
        kept
    }

    /// Two ports without guests.
    fn start_empty() -> Kept {
        Self::start_empty_with(&["e1000", "virtio-net"])
    }

    fn start_empty_with(adapters: &[&str]) -> Kept {
        let dir = tempfile::tempdir().unwrap();
        let mut host = "[daemon]\ncontrol = \"control.sock\"\nworkers = 2\n".to_owned();
        for (adapter, number) in adapters.iter().zip(1..) {
            host += &format!(
                "\n[[port]]\nname = \"vm{number}\"\nadapter = \"{adapter}\"\nmac = \"52:54:00:12:34:{number:02x}\"\n\
                 socket = \"vm{number}.sock\"\n"
            );
        }
        Self::start_on(dir, &host)
    }

    /// A daemon with this host file, and without guests.
    fn start_on(dir: TempDir, host: &str) -> Kept {
        Self::starts_on(dir, host).unwrap_or_else(|log| panic!("{log}"))
    }

    /// A daemon with this host file, or the log of one that has ended.
    fn starts_on(dir: TempDir, host: &str) -> Result<Kept, String> {
        std::fs::write(dir.path().join("host.toml"), host).unwrap();
        let mut kept = Kept { guests: Vec::new(), keeper: keep(dir.path()), dir };
        let end = Instant::now() + SOON;
        while kept.asked(&["ports"]).status.code() != Some(0) {
            if kept.keeper.0.try_wait().unwrap().is_some() {
                return Err(kept.log());
            }
            assert!(Instant::now() < end, "{}", kept.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(kept)
    }

    /// A daemon whose host file names a free TCP port of this machine. One that was free a moment ago may be in use: then it is another.
    fn start_at_port(host: impl Fn(SocketAddr) -> String) -> (Kept, SocketAddr) {
        let end = Instant::now() + SOON;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let text = host(address);
            match Self::starts_on(dir, &text) {
                Ok(kept) => return (kept, address),
                Err(log) => assert!(log.contains("in use") && Instant::now() < end, "{log}"),
            }
        }
    }

    /// Starts the guests.
    fn attach(&mut self, adapters: &[&str]) {
        for (adapter, number) in adapters.iter().zip(1..) {
            let socket = self.path(&format!("vm{number}.sock"));
            let attach = match *adapter {
                "virtio-net" => json!({ "vhost-user": { "socket": socket } }),
                driver => json!({ "vfio-user": { "driver": driver, "socket": socket } }),
            };
            self.guests.push(Station::start(&attach, number));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Runs a command of this program for the daemon.
    fn asked(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).arg("--control").arg(self.path("control.sock")).output().unwrap()
    }

    fn json(&self, words: &[&str]) -> Value {
        let output = self.asked(words);
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Upgrades to the same program. Returns the pause in milliseconds.
    fn upgrade(&self) -> f64 {
        self.upgraded()["stopped_ns"].as_f64().unwrap() / 1e6
    }

    /// Upgrades to the same program, again if the machine was too busy for it. Returns the answer.
    fn upgraded(&self) -> Value {
        let output = in_time(|| self.asked(&["upgrade", "--json"]));
        assert!(output.status.success(), "{output:?}\n{}", self.log());
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A guest sends requests until some are answered: frames pass in both directions. A client that does not connect in its time answers
    /// without any.
    fn asks(&mut self, from: usize, to: [u8; 4], when: &str) {
        let (end, mut seconds) = (Instant::now() + SOON, 0.1);
        loop {
            let done = self.guests[from].asked(&json!({ "transact": { "to": to, "seconds": seconds } }));
            // On a busy machine an answer, which passes three processes, takes longer than these seconds, each time anew.
            seconds *= 2.0;
            if !answered(&done, when, self).is_empty() {
                return;
            }
            assert!(Instant::now() < end, "{when}: no request was answered\n{}", self.log());
        }
    }

    /// The first guest asks the second one, and is answered.
    fn answers(&mut self, when: &str) {
        let to = self.guests[1].address;
        self.asks(0, to, when);
    }

    /// A guest sends requests for some seconds. Returns when the first ones have been answered; its answer must be read.
    fn begins_to_ask(&mut self, from: usize, to: [u8; 4], seconds: f64) {
        let end = Instant::now() + SOON;
        loop {
            let before = self.frames();
            self.guests[from].order(&json!({ "transact": { "to": to, "seconds": seconds } }));
            let connected = Instant::now() + CONNECTS;
            while Instant::now() < connected {
                let [sent, received, _] = self.frames();
                if sent + received >= before[0] + before[1] + ANSWERED {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(Instant::now() < end, "no request is answered\n{}", self.log());
            self.guests[from].answer();
        }
    }

    /// The reason why an upgrade to this program was refused.
    fn refused(&self, program: &Path) -> String {
        let output = self.asked(&["upgrade", program.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{output:?}\n{}", self.log());
        String::from_utf8(output.stderr).unwrap()
    }

    /// The daemons: the one that serves comes last.
    fn pids(&self) -> Vec<u64> {
        let children = format!("/proc/{0}/task/{0}/children", self.keeper.0.id());
        let children = std::fs::read_to_string(children).unwrap();
        let children = children.split_whitespace().map(|pid| pid.parse().unwrap());
        children.filter(|pid| station::is_daemon(*pid)).collect()
    }

    /// The process that serves, if no upgrade is being made.
    fn pid(&self) -> u64 {
        let end = Instant::now() + SOON;
        loop {
            // Between a killed daemon's end and the next one's start there is none.
            if let Some(pid) = self.pids().last() {
                return *pid;
            }
            assert!(Instant::now() < end, "{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until this process is the only daemon: the keeper ends those that were given up.
    fn serves_alone(&self, pid: u64, when: &str) {
        let end = Instant::now() + SOON;
        while self.pids() != [pid] {
            assert!(Instant::now() < end, "{when}: {:?}, not {pid}\n{}", self.pids(), self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Frames that the guests' ports have carried, and those that they have dropped.
    fn frames(&self) -> [u64; 3] {
        let ports = self.json(&["ports", "--json"]);
        let is_guest = |port: &&Value| port["name"].as_str().unwrap().starts_with("vm");
        let ports: Vec<&Value> = ports["ports"].as_array().unwrap().iter().filter(is_guest).collect();
        let sum = |way: &str| -> u64 {
            let queues = ports.iter().flat_map(|port| port[way].as_array().unwrap());
            queues.filter_map(|queue| queue["frames"].as_u64()).sum()
        };
        let dropped = ports.iter().flat_map(|port| {
            ["transmit_drops", "receive_drops"].into_iter().flat_map(|way| port[way].as_object().into_iter().flatten())
        });
        let dropped = dropped.filter_map(|(_, count)| count.as_u64()).sum();
        [sum("transmit"), sum("receive"), dropped]
    }
}

/// Asks for an upgrade until its answer is another one than that the machine was too busy.
fn in_time(ask: impl Fn() -> Output) -> Output {
    let end = Instant::now() + SOON;
    loop {
        let output = ask();
        let said = String::from_utf8_lossy(&output.stderr);
        if !is_late(&said) {
            return output;
        }
        println!("{}", said.trim());
        assert!(Instant::now() < end, "{said}");
    }
}

/// The nanoseconds of each request that was answered.
fn answered(done: &Value, when: &str, kept: &Kept) -> Vec<u64> {
    let each = serde_json::from_value(done["transacted"]["each_ns"].clone());
    each.unwrap_or_else(|error| panic!("{when}: {error}: {done}\n{}", kept.log()))
}

/// Number of upgrades in a row.
fn in_a_row() -> usize {
    if nicety_trials::scope::is_full() { 100 } else { 10 }
}

/// Waits until all frames that guests of pairs have sent since have arrived at the other guest of their pair, or were counted as dropped.
fn none_is_lost(kept: &Kept, before: [u64; 3]) -> [u64; 3] {
    let end = Instant::now() + SOON;
    loop {
        let after = kept.frames();
        let [sent, received, dropped] = [0, 1, 2].map(|at| after[at] - before[at]);
        if sent == received + dropped {
            return [sent, received, dropped];
        }
        assert!(
            Instant::now() < end,
            "{sent} sent, {received} received, {dropped} dropped: {} are lost\n{}",
            sent as i64 - (received + dropped) as i64,
            kept.log()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Upgrades so often under requests and answers of one guest, which go on until the last upgrade was made.
fn goes_on(adapters: &[&str], upgrades: usize) {
    kept_goes_on(Kept::start(adapters), adapters, upgrades);
}

fn kept_goes_on(mut kept: Kept, adapters: &[&str], upgrades: usize) {
    let to = kept.guests[1].address;
    kept.answers("before");
    let (before, first) = (kept.frames(), kept.pid());
    let seconds = 1.0 + upgrades as f64 * 0.4;
    kept.begins_to_ask(0, to, seconds);
    let mut pauses: Vec<f64> = (0..upgrades).map(|_| kept.upgrade()).collect();
    let done = kept.guests[0].answer();
    let each = answered(&done, "upgraded", &kept);
    let after = none_is_lost(&kept, before);
    pauses.sort_by(f64::total_cmp);
    let longest = each.iter().max().unwrap() / 1_000_000;
    println!(
        "{adapters:?}: {upgrades} upgrades, median {:.1} ms, longest {:.1} ms; {} requests, the slowest {longest} ms; {after:?}",
        pauses[upgrades / 2],
        pauses[upgrades - 1],
        each.len()
    );
    assert!(after[0] > 0 && after[1] > 0, "counters go on: {after:?}");
    assert_ne!(first, kept.pid());
    let log = kept.log();
    assert_eq!(log.matches(" has connected").count(), 2, "no connection was closed: {log}");
    assert!(!log.contains("disconnected"), "{log}");
    assert_eq!(log.matches("another daemon serves now").count(), upgrades, "{log}");
    // Addresses that were learned before are known.
    let addresses = kept.json(&["ports", "--addresses", "--json"]);
    assert_eq!(addresses["addresses"].as_array().map(Vec::len), Some(2), "{addresses}");
}

/// Processes of a daemon by its folder, with their arguments (proc(5)).
fn processes(folder: &Path) -> Vec<String> {
    let folder = folder.canonicalize().unwrap();
    let entries = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let here = entries.filter(|path| std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == folder));
    here.filter_map(|path| std::fs::read_to_string(path.join("cmdline")).ok()).collect()
}

/// The old daemon's workers stand still for ever once the next one has their ports.
#[test]
fn an_end_that_is_asked_for_during_an_upgrade_leaves_no_process() {
    for delay in (0..6).map(|step| Duration::from_millis(60 * step)) {
        let mut kept = Kept::start_empty();
        let folder = kept.dir.path().to_owned();
        assert!(processes(&folder).len() >= 2, "{:?}", processes(&folder));
        std::thread::scope(|scope| {
            scope.spawn(|| kept.asked(&["upgrade"]));
            std::thread::sleep(delay);
            let keeper = Pid::from_child(&kept.keeper.0);
            kill_process(keeper, Signal::TERM).unwrap();
        });
        let end = Instant::now() + SOON;
        while kept.keeper.0.try_wait().unwrap().is_none() || !processes(&folder).is_empty() {
            assert!(Instant::now() < end, "{delay:?}: {:?}\n{}", processes(&folder), kept.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A port that joins its VLAN loses the addresses that were learned from it before.
#[test]
fn addresses_of_a_vlan_are_known_after_an_upgrade() {
    let port = |number: u8| {
        format!(
            "[[port]]\nname = \"vm{number}\"\nadapter = \"e1000\"\nmac = \"52:54:00:12:34:0{number}\"\n\
             socket = \"vm{number}.sock\"\nvlan = 5\n"
        )
    };
    let host = format!("[daemon]\ncontrol = \"control.sock\"\n{}{}", port(1), port(2));
    let mut kept = Kept::start_on(tempfile::tempdir().unwrap(), &host);
    kept.attach(&["e1000", "e1000"]);
    kept.answers("before");
    let learned = |kept: &Kept| {
        let answer = kept.json(&["ports", "--addresses", "--json"]);
        let of = |entry: &Value| (entry["address"].clone(), entry["port"].clone());
        let mut learned: Vec<_> = answer["addresses"].as_array().unwrap().iter().map(of).collect();
        learned.sort_by_key(|of| format!("{of:?}"));
        learned
    };
    let before = learned(&kept);
    assert_eq!(before.len(), 2, "{before:?}");
    kept.upgrade();
    assert_eq!(learned(&kept), before);
}

#[test]
fn embedded_guests_go_on_while_the_daemon_is_replaced_again_and_again() {
    goes_on(&["e1000", "vmxnet3"], in_a_row());
    goes_on(&["virtio-net", "virtio-net"], in_a_row());
}

/// Every adapter, to one of another kind.
#[test]
fn every_adapter_goes_on_in_the_next_daemon() {
    let adapters: Vec<&str> = nicety_trials::scope::entries().into_iter().map(|entry| entry.about.name).collect();
    for adapter in adapters {
        goes_on(&[adapter, if adapter == "virtio-net" { "e1000" } else { "virtio-net" }], 2);
    }
}

#[test]
fn an_upgrade_that_cannot_be_made_changes_nothing_and_says_why() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let file = |name: &str, bytes: &[u8], mode: u32| {
        let path = kept.path(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    };
    // An ELF header of machine 0xfff0, which no kernel runs.
    let mut foreign = std::fs::read(env!("CARGO_BIN_EXE_nicety")).unwrap();
    foreign.truncate(4096);
    foreign[18..20].copy_from_slice(&[0xf0, 0xff]);
    let cases = [
        (kept.path("nothing"), "No such file"),
        (file("text", b"hello", 0o644), "Permission denied"),
        (file("foreign", &foreign, 0o755), "Exec format error"),
        (file("public", b"#!/bin/sh\n", 0o777), "everybody may write to"),
        (file("ends", b"#!/bin/sh\nexit 7\n", 0o755), "it ended with exit code 7"),
        (file("crashes", b"#!/bin/sh\nkill -SEGV $$\n", 0o755), "signal 11 ended it"),
        (file("speaks", b"#!/bin/sh\necho hello >&0\nsleep 1\n", 0o755), "it ended with exit code 0"),
        (file("hangs", b"#!/bin/sh\nexec sleep 600\n", 0o755), "no answer within 10s"),
    ];
    let pid = kept.pid();
    for (program, why) in cases {
        let refused = kept.refused(&program);
        assert!(refused.contains(why) && refused.contains("this daemon goes on"), "{program:?}: {refused}");
        kept.answers(&format!("{program:?}"));
        kept.serves_alone(pid, &format!("{program:?}"));
    }
    kept.upgrade();
    kept.answers("upgraded");
}

#[test]
fn a_daemon_without_a_keeper_says_that_it_has_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("host.toml"), "[daemon]\ncontrol = \"control.sock\"\n").unwrap();
    let _daemon = station::serve(dir.path());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
    command.args(["upgrade", "--control"]).arg(dir.path().join("control.sock"));
    let end = Instant::now() + SOON;
    loop {
        let words = String::from_utf8(command.output().unwrap().stderr).unwrap();
        if words.contains("nicety serve --keeper") {
            break;
        }
        assert!(Instant::now() < end, "{words}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_upgrade_under_way_refuses_another_and_a_change_waits_for_it() {
    let kept = Kept::start(&["e1000", "e1000"]);
    let hangs = kept.path("hangs");
    std::fs::write(&hangs, "#!/bin/sh\nexec sleep 600\n").unwrap();
    std::fs::set_permissions(&hangs, PermissionsExt::from_mode(0o755)).unwrap();
    let pid = kept.pid();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| kept.refused(&hangs));
        let end = Instant::now() + SOON;
        while !kept.log().contains("upgrades the daemon to") {
            assert!(Instant::now() < end, "{}", kept.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        let second = kept.refused(Path::new(env!("CARGO_BIN_EXE_nicety")));
        assert!(second.contains("another upgrade is under way"), "{second}");
        // The old daemon goes on after ten seconds, and makes the change.
        let changed = kept.asked(&["port", "set", "vm2", "send_average=10Mbit/s"]);
        assert!(changed.status.success(), "{changed:?}");
        assert!(first.join().unwrap().contains("no answer within 10s"));
    });
    kept.serves_alone(pid, "the first one was late");
    kept.upgrade();
    let ports = kept.json(&["ports", "--json"]);
    let vm2 = ports["ports"].as_array().unwrap().iter().find(|port| port["name"] == "vm2").unwrap();
    assert!(vm2["policy"].to_string().contains("10Mbit/s"), "the live change stays: {vm2}");
}

#[test]
fn a_keeper_starts_a_killed_daemon_again_and_ends_with_one_that_ends() {
    let mut kept = Kept::start(&["e1000", "e1000"]);
    let pid = kept.pid();
    let began = Instant::now();
    Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    while kept.asked(&["ports"]).status.code() != Some(0) || kept.pid() == pid {
        assert!(began.elapsed() < SOON, "{}", kept.log());
    }
    let elapsed = began.elapsed();
    // The rest of the time it waited for a processor (Documentation/scheduler/sched-stats.rst).
    let tasks = std::fs::read_dir(format!("/proc/{}/task", kept.pid())).unwrap().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok());
    let ran_ns: u64 = texts.filter_map(|text| text.split_whitespace().next()?.parse::<u64>().ok()).sum();
    println!("a killed daemon answers again after {elapsed:.0?}, and has run for {} ms", ran_ns / 1_000_000);
    Command::new("kill").args(["-TERM", &kept.keeper.0.id().to_string()]).status().unwrap();
    assert_eq!(kept.keeper.0.wait().unwrap().code(), Some(0), "{}", kept.log());
    assert!(!kept.path("control.sock").exists() && !kept.path("vm1.sock").exists());
}

/// A VMM, and its socket.
struct Vmm {
    client: Client,
    socket: UnixStream,
}

impl Vmm {
    fn connect(path: &Path) -> Option<Vmm> {
        let socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(SOON)).unwrap();
        let client = Client::from_socket(socket.try_clone().unwrap().into(), SOON, Box::new(NoMemory)).ok()?;
        Some(Vmm { client, socket })
    }
}

/// The keeper holds the connection, too: it must let go of it when the daemon does.
#[test]
fn a_vmm_that_a_daemon_disconnects_after_a_kill_sees_the_end() {
    let kept = Kept::start_empty();
    let mut vmm = Vmm::connect(&kept.path("vm1.sock")).unwrap();
    for _ in 0..2 {
        let pid = kept.pid();
        Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
        let mut identity = [0; 4];
        vmm.client.region_read(7, 0, &mut identity).unwrap();
        assert_eq!(identity, [0x86, 0x80, 0x0e, 0x10]);
        let began = Instant::now();
        while kept.asked(&["ports"]).status.code() != Some(0) || kept.pid() == pid {
            assert!(began.elapsed() < SOON, "{}", kept.log());
        }
    }
    // No header: of no length that there could be.
    vmm.socket.write_all(&[0xff; 16]).unwrap();
    match vmm.socket.read(&mut [0; 16]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}\n{}", kept.log()),
    }
}
