//! A VM that survives its host: two daemons, two unmodified QEMUs, and a guest elsewhere that notices nothing.

mod between;
mod cut;
mod fabric;
mod links;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Machine, Namespace, Port, Root, Served, Setup};
use nicety_trials::scope::is_full;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{
    fabric::sender,
    migration::{finish, stream},
    monitor::Monitor,
    stage::{LATER, SOON, address, pinged, port, sh, well},
    user_mode::machine,
};

/// Two hosts, joined by a stream: the VM's port is `vm1` on both. The second one has `vm2` as well, for who talks to the VM.
pub struct Hosts {
    pub root: Root,
    pub namespace: Namespace,
    pub served: [Served; 2],
    /// Its QEMU on each host.
    vms: [Option<Guest>; 2],
    /// Numbers of the VM's ports.
    ports: &'static [u8],
    place: tempfile::TempDir,
    /// Stale twins that were started again although nothing was done to them.
    restarts: u32,
    /// Most of them: see [`Hosts::protected`].
    restarts_max: u32,
}

/// What a test wants of its hosts.
struct Wanted<'a> {
    checkpoint: &'a str,
    /// More words for the daemons.
    options: &'a [&'a str],
    /// Numbers of the VM's ports.
    ports: &'static [u8],
    /// The key of `[ft]` that says where the lease is, at each host. None: a folder.
    lease: Option<[&'a str; 2]>,
    /// Each daemon reaches the other one by a socket of the test's, `to-a` or `to-b`.
    is_between: bool,
    /// The hosts are in a fabric, instead of joined by a stream.
    is_in_fabric: bool,
}

impl Default for Wanted<'_> {
    fn default() -> Self {
        Wanted { checkpoint: "50ms", options: &[], ports: &[1], lease: None, is_between: false, is_in_fabric: false }
    }
}

/// Address of a VM's second adapter.
const SECOND: &str = "10.9.4.1";
/// The name of a host, for paths.
const NAMES: [&str; 2] = ["a", "b"];
/// A survivor goes on within the lease, which is 1 s, and what a busy machine takes beyond that.
const OUTAGE_MAX: Duration = Duration::from_secs(1 + 3);
/// A busy machine may stand still for longer than a silent host may (0.3 s): so many times in a test, and once in ten kills.
const RESTARTS_MAX: u32 = 2;

impl Hosts {
    pub fn new(checkpoint: &str, options: &[&str]) -> Hosts {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let namespace = well(Namespace::open(&root));
        Hosts::with((root, namespace), well(tempfile::tempdir()), &Wanted { checkpoint, options, ..Wanted::default() })
    }

    fn with((root, mut namespace): (Root, Namespace), place: tempfile::TempDir, wanted: &Wanted<'_>) -> Hosts {
        let &Wanted { checkpoint, options, ports, lease, is_between, is_in_fabric } = wanted;
        let path = |name: String| place.path().join(name).display().to_string();
        well(std::fs::write(path("key".into()), [7; 32]));
        well(std::fs::create_dir(path("leases".into())));
        let setup = |host: usize| {
            let [own, other] = [NAMES[host], NAMES[1 - host]];
            let folder = format!("lease = \"{}\"", path("leases".into()));
            let lease = lease.map_or(folder.as_str(), |lease| lease[host]);
            let names: Vec<String> = ports.iter().map(|number| format!("vm{number}")).collect();
            let tables = format!(
                "[ft]\nlisten = \"unix:{}\"\nkey = \"{}\"\n{lease}\n\
                 [[vm]]\nname = \"guest\"\nports = \"{}\"\nqmp = \"{}\"\npeer = \"unix:{}\"\ncheckpoint = \"{checkpoint}\"\n",
                path(format!("{own}.ft")),
                path("key".into()),
                names.join(", "),
                path(format!("{own}.qmp")),
                path(if is_between { format!("to-{other}") } else { format!("{other}.ft") }),
            );
            let options = options.iter().map(|&word| word.to_owned()).collect();
            if is_in_fabric {
                return Setup { daemon_more: sender::tables(own, host) + &tables, options, ..Setup::default() };
            }
            let link = Some(Link::Stream { socket: path("link".into()), listens: host == 0 });
            Setup { link, link_more: tables, options, ..Setup::default() }
        };
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let mut start =
            |host: usize, ports: Vec<Port>| well(Served::start_as(program, &mut namespace, ports, setup(host)));
        let in_group = |port| if is_in_fabric { sender::in_web(port) } else { port };
        let own = || ports.iter().map(|&number| port("virtio-net", number)).map(in_group);
        let served = [start(0, own().collect()), start(1, own().chain([in_group(port("e1000", 2))]).collect())];
        Hosts { root, namespace, served, vms: [None, None], ports, place, restarts: 0, restarts_max: RESTARTS_MAX }
    }

    fn qmp(&self, host: usize) -> PathBuf {
        self.place.path().join(format!("{}.qmp", NAMES[host]))
    }

    /// Starts the VM's QEMU on a host: it runs, or waits to be a twin.
    pub fn start(&mut self, host: usize, waits: bool) {
        let mut config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        // The second adapter is in a network of its own.
        let addresses = [address(1), SECOND.to_owned()];
        for (index, (number, address)) in self.ports.iter().zip(addresses).enumerate() {
            config = config.address(&format!("eth{index}"), &format!("{address}/24"));
            config = self.served[host].attach(config, &format!("vm{number}"));
        }
        config = Monitor::at(config, &self.qmp(host));
        for word in &mut config.devices {
            *word = word.replace("reconnect-ms=1000", "reconnect-ms=50");
        }
        if waits {
            config.devices.extend(["-incoming", "defer"].map(str::to_owned));
        }
        let guest = well(Guest::start(&self.root, config));
        self.vms[host] = Some(guest);
    }

    /// The same, of a VM whose processor runs its firmware, which waits for a disk that does not come; with more of a command line.
    fn start_with(&mut self, host: usize, waits: bool, words: &[&str]) {
        let start = nicety_guests::Start::Network;
        let mut config = GuestConfig { accel: Accel::Tcg, memory_mib: 64, start, ..GuestConfig::new(Kernel::V6_12) };
        config = Monitor::at(self.served[host].attach(config, "vm1"), &self.qmp(host));
        config.devices.extend(words.iter().map(|&word| word.to_owned()));
        if waits {
            config.devices.extend(["-incoming", "defer"].map(str::to_owned));
        }
        let launch = well(config.launch(&self.root));
        self.vms[host] = Some(well(Guest::launch(launch)));
    }

    /// Signals the daemon and the VM's QEMU of a host.
    fn freeze(&mut self, host: usize, signal: Signal) {
        let vm = self.vm(host).process();
        for process in [self.served[host].process(), vm] {
            let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
            well(kill_process(pid.unwrap_or_else(|| panic!("a process")), signal));
        }
    }

    /// The VM on this host.
    #[track_caller]
    fn vm(&mut self, host: usize) -> &mut Guest {
        self.vms[host].as_mut().unwrap_or_else(|| panic!("no QEMU on host {host}"))
    }

    /// A VM that runs on the first host, and is protected; and who talks to it.
    fn begin(&mut self) -> Guest {
        let outside = self.outside();
        self.start(0, false);
        let ready = self.vm(0).wait_ready();
        self.ready(ready);
        self.start(1, true);
        self.protected(0);
        outside
    }

    /// Replaces the daemon of a host. The protection goes on, as both daemons say.
    #[track_caller]
    fn upgrade(&mut self, host: usize) {
        // On a busy machine the twin may have been lost a moment ago.
        self.protected(0);
        let control = self.served[host].socket("control.sock");
        let command = format!("'{}' upgrade --control {}", env!("CARGO_BIN_EXE_nicety"), control.display());
        let said = self.namespace.run(&command, SOON);
        println!("{}", self.ready(said));
        let goes_on = |said: &str| said.matches("a daemon was replaced: the protection goes on").count() == 2;
        let end = Instant::now() + LATER;
        while !goes_on(&self.said()) {
            assert!(Instant::now() < end, "the protection has not gone on\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the VM's QEMU on a host at once.
    fn kill(&mut self, host: usize) {
        let guest = self.vms[host].take().unwrap_or_else(|| panic!("no QEMU on host {host}"));
        let pid = i32::try_from(guest.process()).ok().and_then(Pid::from_raw);
        well(kill_process(pid.unwrap_or_else(|| panic!("a process")), Signal::KILL));
        drop(guest);
    }

    /// As a unit would: a twin that ends is started again.
    #[track_caller]
    fn twin_again(&mut self, host: usize) {
        let end = Instant::now() + LATER;
        while self.vm(host).runs() {
            assert!(Instant::now() < end, "its QEMU does not end: {}\n{}", self.report(host), self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
        self.vms[host] = None;
        self.start(host, true);
    }

    /// Who talks to the VM.
    pub fn outside(&self) -> Guest {
        let machine = machine(1).address("eth0", &format!("{}/24", address(2)));
        let mut guest = well(Guest::start(&self.root, self.served[1].attach(machine, "vm2")));
        self.ready(guest.wait_ready());
        guest
    }

    #[track_caller]
    pub fn ready<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}\n{}", self.said()))
    }

    fn said(&self) -> String {
        let [a, b] = self.served.each_ref().map(Served::log);
        format!("the first daemon said\n{a}\nthe second daemon said\n{b}")
    }

    /// The output of `nicety ft` on a host.
    fn ft(&mut self, host: usize, words: &str) -> Result<String, nicety_guests::Error> {
        let control = self.served[host].socket("control.sock");
        let program = env!("CARGO_BIN_EXE_nicety");
        self.namespace.run(&format!("'{program}' ft {words} --control {} 2>&1", control.display()), SOON)
    }

    /// The report about the VM of a host's daemon.
    pub fn report(&self, host: usize) -> Value {
        let answer = self.served[host].get("/v1/vms").unwrap_or_default();
        let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        answer["vms"][0].clone()
    }

    #[track_caller]
    pub fn wait(&self, host: usize, what: &str, mut done: impl FnMut(&Value) -> bool) {
        let end = Instant::now() + LATER;
        loop {
            let report = self.report(host);
            if done(&report) {
                return;
            }
            assert!(Instant::now() < end, "not {what}: {report}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The VM's owner was lost at this time: its twin goes on, and soon.
    #[track_caller]
    fn survives(&self, host: usize, lost: Instant) {
        self.wait(host, "taken over", |report| report["role"] == "owner" && report["state"] == "alone");
        self.is_soon(lost.elapsed());
    }

    #[track_caller]
    fn is_soon(&self, outage: Duration) {
        assert!(outage < OUTAGE_MAX, "the VM was away for {outage:?}\n{}", self.said());
    }

    /// A twin that is of no use ends, and is started again, as by its unit: on a busy machine a host may seem silent. That is counted, for
    /// each costs a protection: more than a busy machine explains are a defect.
    #[track_caller]
    pub fn protected(&mut self, host: usize) {
        let end = Instant::now() + LATER;
        while self.report(host)["protected"] != true {
            if !self.vm(1 - host).runs() {
                self.restarts += u32::from(self.report(1 - host)["state"] == "stale");
                println!("twin {} on host {} again: {}", self.restarts, 1 - host, self.report(host));
                assert!(
                    self.restarts <= self.restarts_max,
                    "{} twins were lost by themselves\n{}",
                    self.restarts,
                    self.said()
                );
                self.twin_again(1 - host);
            }
            assert!(Instant::now() < end, "not protected: {}\n{}", self.report(host), self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Requests while the VM may be in motion: each one twentieth of a second after the other. The longest silence between two answers, or after
/// the last one.
fn pings(guest: &mut Guest, count: u32) -> (String, Duration) {
    let text = sh(guest, &format!("/usr/bin/ping -n -D -i 0.05 -c {count} -W 5 {} || true", address(1)));
    let time = |line: &str| line.strip_prefix('[')?.split(']').next()?.parse::<f64>().ok();
    let times: Vec<f64> = text.lines().filter_map(time).collect();
    let number = |line: &str| line.split_once("icmp_seq=")?.1.split(' ').next()?.parse::<u32>().ok();
    let last = text.lines().filter_map(number).max().unwrap_or(0);
    let after = 0.05 * f64::from(count.saturating_sub(last));
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(after, f64::max);
    (text, Duration::from_secs_f64(longest))
}

#[test]
fn a_vm_goes_on_at_its_twin_when_its_qemu_is_killed_and_takes_a_new_twin_again_and_again() {
    let mut hosts = Hosts::new("50ms", &[]);
    let mut outside = hosts.begin();
    let (text, _) = pings(&mut outside, 20);
    assert_eq!(pinged(&text), [20, 20, 0], "{}", hosts.said());
    let report = hosts.report(0);
    println!("{report}");
    assert!(report["wire_bytes"].as_f64() < report["stream_bytes"].as_f64().map(|bytes| bytes * 1.03), "{report}");

    // One TCP connection of the VM's, whose bytes are checked, lives on over all of them.
    stream(hosts.vm(0), &mut outside, &address(2));
    let kills = if is_full() { 100 } else { 3 };
    hosts.restarts_max += kills as u32 / 10;
    let mut outages = Vec::new();
    for round in 0..kills {
        let [from, to] = [round % 2, (round + 1) % 2];
        let pings = std::thread::spawn(move || outside_pings(outside));
        std::thread::sleep(Duration::from_millis(400));
        // On a busy machine its twin may have been lost meanwhile.
        hosts.protected(from);
        let lost = Instant::now();
        hosts.kill(from);
        hosts.survives(to, lost);
        let (back, text, outage) = pings.join().unwrap_or_else(|_| panic!("the requests"));
        outside = back;
        println!("{round}: silent for {outage:?}, {}", hosts.report(to)["takeover_microseconds"]);
        hosts.is_soon(outage);
        assert!(text.contains(" 60 packets transmitted") || text.contains("60 packets transmitted"), "{text}");
        outages.push(outage);
        hosts.start(from, true);
        hosts.protected(to);
    }
    let last = kills % 2;
    finish(hosts.vm(last), &mut outside);
    outages.sort_unstable();
    println!("outages: median {:?}, worst {:?}", outages[outages.len() / 2], outages[outages.len() - 1]);
}

/// Requests in a thread of their own.
fn outside_pings(mut outside: Guest) -> (Guest, String, Duration) {
    let (text, longest) = pings(&mut outside, 60);
    (outside, text, longest)
}

/// The keeper starts the next daemon, which goes on with the VM that runs there: nobody takes over. A protection goes on in a daemon that
/// replaces another one, and ends with one that is killed.
#[test]
fn a_vm_stays_where_it_is_when_its_daemon_is_killed_or_replaced_and_stays_or_is_protected_again() {
    let mut hosts = Hosts::new("50ms", &["--keeper"]);
    let mut outside = hosts.begin();
    stream(hosts.vm(0), &mut outside, &address(2));
    for what in ["kill", "upgrade"] {
        let requests = std::thread::spawn(move || outside_pings(outside));
        std::thread::sleep(Duration::from_millis(400));
        if what == "kill" {
            let keeper = hosts.served[0].process();
            let daemon = daemon_of(keeper).unwrap_or_else(|| panic!("no daemon: {}", hosts.said()));
            well(kill_process(daemon, Signal::KILL));
            hosts.twin_again(1);
        } else {
            hosts.upgrade(0);
        }
        let (back, _, outage) = requests.join().unwrap_or_else(|_| panic!("the requests"));
        outside = back;
        println!("{what}: silent for {outage:?}");
        hosts.is_soon(outage);
        hosts.protected(0);
        assert_eq!(hosts.report(1)["takeovers"], 0, "{}", hosts.said());
    }
    finish(hosts.vm(0), &mut outside);
}

fn daemon_of(keeper: u32) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).ok()?;
    let is_daemon = |pid: &u32| crate::steps::is_daemon((*pid).into());
    let daemon = children.split_whitespace().filter_map(|pid| pid.parse().ok()).rfind(is_daemon)?;
    i32::try_from(daemon).ok().and_then(Pid::from_raw)
}

/// Keeper, daemon and QEMU at once: only the lease tells the twin.
#[test]
fn a_vm_goes_on_at_its_twin_when_its_whole_host_dies() {
    let mut hosts = Hosts::new("50ms", &[]);
    let mut outside = hosts.begin();
    stream(hosts.vm(0), &mut outside, &address(2));
    let requests = std::thread::spawn(move || outside_pings(outside));
    std::thread::sleep(Duration::from_millis(400));
    let lost = Instant::now();
    let Hosts { served, namespace, .. } = &mut hosts;
    well(served[0].kill(namespace));
    hosts.kill(0);
    hosts.survives(1, lost);
    let (mut outside, _, outage) = requests.join().unwrap_or_else(|_| panic!("the requests"));
    println!("silent for {outage:?}, {}", hosts.report(1));
    hosts.is_soon(outage);
    finish(hosts.vm(1), &mut outside);
    assert_eq!(hosts.report(1)["takeovers"], 1);
}

/// An administrator hands the VM over, ends its protection, and begins it again.
#[test]
fn a_vm_is_handed_over_stopped_and_protected_by_an_administrators_wish() {
    let mut hosts = Hosts::new("50ms", &[]);
    let mut outside = hosts.begin();
    stream(hosts.vm(0), &mut outside, &address(2));
    let refused = hosts.ft(1, "failover guest").err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("does not run here"), "{refused}");
    println!("{}", well(hosts.ft(0, "failover guest")));
    hosts.wait(1, "handed over", |report| report["state"] == "alone");
    // Its QEMU was told to end.
    hosts.twin_again(0);
    hosts.protected(1);
    println!("{}", well(hosts.ft(1, "stop guest")));
    hosts.wait(1, "stopped", |report| report["why_not"].as_str().is_some_and(|why| why.contains("it was stopped")));
    hosts.twin_again(0);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(hosts.report(1)["protected"], json!(false));
    println!("{}", well(hosts.ft(1, "protect guest")));
    hosts.protected(1);
    println!("{}", well(hosts.ft(1, "status")));
    finish(hosts.vm(1), &mut outside);
}

/// A service of the VM: each connection gets the next number. Its state is a file of the guest.
fn count_in(guest: &mut Guest) {
    let next = "n=$(cat /tmp/n 2>/dev/null || echo 0); n=$((n + 1)); echo $n >/tmp/n; echo $n";
    sh(guest, &format!("echo '{next}' >/tmp/next; (nc -ll -p 7 -e sh /tmp/next >/dev/null 2>&1 &)"));
    sh(guest, "until netstat -ltn | grep -q :7; do rest; done");
}

/// Whoever was told a number never sees it, or a smaller one, again: no answered request is forgotten, whatever is killed.
fn counts_up(text: &str) -> usize {
    let numbers: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let is_rising = numbers.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(is_rising, "{numbers:?}");
    numbers.len()
}

#[test]
fn no_answered_request_is_forgotten_whatever_is_killed_and_a_host_that_stood_still_says_nothing_afterwards() {
    let mut hosts = Hosts::new("50ms", &[]);
    let mut outside = hosts.begin();
    count_in(hosts.vm(0));
    let rounds = if is_full() { 20 } else { 2 };
    for round in 0..rounds {
        let [from, to] = [round % 2, (round + 1) % 2];
        let requests = format!("for n in $(seq 40); do nc -w 3 {} 7 </dev/null; done 2>/dev/null; true", address(1));
        let asked = std::thread::spawn(move || {
            let text = sh(&mut outside, &requests);
            (outside, text)
        });
        std::thread::sleep(Duration::from_millis(700));
        // On a busy machine its twin may have been lost meanwhile.
        hosts.protected(from);
        let is_frozen = round % 2 == 0 && from == 0;
        let lost = Instant::now();
        if is_frozen {
            // Its daemon and its QEMU stand still, as in a host that swaps, and go on when the twin owns the VM.
            hosts.freeze(from, Signal::STOP);
        } else {
            hosts.kill(from);
        }
        hosts.survives(to, lost);
        if is_frozen {
            hosts.freeze(from, Signal::CONT);
            // The lease says so: its QEMU is told to end.
            hosts.wait(from, "without the VM", |report| report["role"] == "absent");
            hosts.vms[from] = None;
        }
        let (back, text) = asked.join().unwrap_or_else(|_| panic!("the requests"));
        outside = back;
        let answers = counts_up(&text);
        println!("{round}: {answers} of 40 answered");
        assert!(answers > 10, "{text}\n{}", hosts.said());
        hosts.start(from, true);
        hosts.protected(to);
    }
}

/// What cannot be protected is refused before anything begins, with the reason at both hosts.
#[test]
fn a_twin_with_another_command_line_and_a_vm_that_cannot_be_copied_are_refused_with_the_reason() {
    let mut hosts = Hosts::new("50ms", &[]);
    hosts.start_with(0, false, &[]);
    for (words, why) in [
        (&["-uuid", "00000000-0000-0000-0000-000000000007"][..], "the UUID (-uuid) differs"),
        (&["-device", "virtio-rng-pci"][..], "virtio-rng-pci"),
        (&["-drive", "file=DISK,format=raw,if=virtio"][..], "can be written"),
    ] {
        let disk = hosts.place.path().join("disk").display().to_string();
        well(std::fs::write(&disk, vec![0; 1 << 20]));
        let words: Vec<String> = words.iter().map(|word| word.replace("DISK", &disk)).collect();
        hosts.start_with(1, true, &words.iter().map(String::as_str).collect::<Vec<_>>());
        for host in [0, 1] {
            hosts.wait(host, why, |report| report["why_not"].as_str().is_some_and(|said| said.contains(why)));
        }
        assert_eq!(hosts.report(0)["state"], "alone");
        hosts.kill(1);
        hosts.wait(1, "gone", |report| report["role"] == "absent");
    }
    // Another program has the socket: QEMU serves one at a time.
    hosts.kill(0);
    hosts.wait(0, "gone", |report| report["role"] == "absent");
}
