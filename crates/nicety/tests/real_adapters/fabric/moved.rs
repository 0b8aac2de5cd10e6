//! A guest in QEMU with virtio-net that moves from one host of a fabric to another one, while a third host's guest sends to it all the
//! time. It keeps its group, its policy and its counters.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use nicety_guests::{Accel, Folder, Guest, GuestConfig, Kernel, Machine, Namespace, Port, Root, Served, Setup};
use nicety_trials::scope::{is_asked, is_full};
use serde_json::{Value, json};

use super::{
    LOOPBACK,
    requests::{INTERVAL, Pause, Requests},
    sender::{Sender, claims, in_web, tables},
    start_etcd,
};
use crate::{
    migration::migrate,
    monitor::Monitor,
    stage::{LATER, SOON, address, port, quiet, sh, well},
    standby::{bring_up, function_and_standby},
};

/// The hosts between which the guest moves.
const NAMES: [&str; 2] = ["a", "b"];
/// Answers before and after a move. Those before are more: so the counters of a new port cannot be taken for those that were kept.
const BEFORE: usize = 150;
const AFTER: usize = 30;
/// Frames of the guest that are no answers: what Linux says of itself, and the announcement of a move.
const OTHERS_MAX: u64 = 100;
/// Within this time after its function's rings have started, a guest is reached by it.
const REACHED: Duration = Duration::from_millis(100);

/// Three hosts of a fabric in one network. Two have the moving guest's ports.
struct Hosts {
    served: [Served; 2],
    sender: Sender,
    namespace: Namespace,
    root: Root,
    place: tempfile::TempDir,
    _etcd: Folder,
}

/// A QEMU, and its monitor.
struct Vm {
    guest: Guest,
    monitor: Monitor,
}

impl Hosts {
    /// `more` is in the files of the two.
    fn new(ports: &[Port], more: &str) -> Hosts {
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        let etcd = start_etcd(&mut namespace, LOOPBACK);
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let served = [0, 1].map(|host| {
            let setup = Setup { daemon_more: tables(NAMES[host], host) + more, ..Setup::default() };
            let ports = ports.iter().cloned().map(in_web).collect();
            well(Served::start_as(program, &mut namespace, ports, setup))
        });
        let sender = Sender::start(&mut namespace);
        Hosts { served, sender, namespace, root, place: well(tempfile::tempdir()), _etcd: etcd }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Starts a QEMU with this machine at a host. It waits for a guest that comes, or boots.
    fn start(&self, host: usize, mut machine: GuestConfig, waits: bool) -> Vm {
        let socket = self.path(NAMES[host]);
        // That of a QEMU that has ended.
        _ = std::fs::remove_file(&socket);
        machine = Monitor::at(machine, &socket);
        if waits {
            machine.devices.extend(["-incoming", "defer"].map(str::to_owned));
        }
        let mut guest = well(Guest::start(&self.root, machine));
        if !waits {
            self.ready(guest.wait_ready());
        }
        self.until("its monitor", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
        Vm { guest, monitor: Monitor::of(&socket) }
    }

    /// A machine with virtio-net at a host.
    fn machine(&self, host: usize) -> GuestConfig {
        let config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        self.served[host].attach(config.address("eth0", &format!("{}/24", address(1))), "vm1")
    }

    /// A machine with a function and its standby at a host.
    fn pair(&self, host: usize) -> GuestConfig {
        let config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        let mut config = ["vm1", "vm2"].into_iter().fold(config, |config, name| self.served[host].attach(config, name));
        for word in &mut config.devices {
            *word = word.replace("virtio-net-pci,", "virtio-net-pci,failover=on,");
        }
        config
    }

    fn said(&self) -> String {
        let [a, b] = self.served.each_ref().map(Served::log);
        format!("a said\n{a}\nb said\n{b}\nthe sender's host said\n{}", self.sender.served.log())
    }

    #[track_caller]
    fn ready<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> T {
        result.unwrap_or_else(|error| panic!("{error}\n{}", self.said()))
    }

    #[track_caller]
    fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let end = Instant::now() + SOON;
        while !done() {
            assert!(Instant::now() < end, "{what}: not within {SOON:?}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn port(&self, host: usize, name: &str) -> Value {
        let text = self.served[host].get(&format!("/v1/ports/{name}")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}\n{}", self.said()))
    }

    /// The host to which the sender's host sends the guest's frames.
    fn place(&self) -> Option<String> {
        self.sender.place()
    }

    /// Waits until that is this host. Returns when it was seen.
    #[track_caller]
    fn known(&self, host: usize) -> SystemTime {
        self.until(&format!("it is known at {}", NAMES[host]), || self.place().as_deref() == Some(NAMES[host]));
        SystemTime::now()
    }

    /// Requests to the guest at the first host, which go on.
    fn requests(&self, to: &mut Guest) -> Requests {
        self.known(0);
        let requests = self.sender.requests(to);
        requests.answered(BEFORE);
        requests
    }
}

/// Frames of a port: sent, and received.
fn passed(port: &Value) -> [u64; 2] {
    ["transmit", "receive"]
        .map(|way| port[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum())
}

/// The port at the new place has the group, the policy and the counters of the old one.
#[track_caller]
fn is_same(before: &Value, after: &Value, requests: &Requests) {
    for key in ["port_group", "policy", "mac", "adapter"] {
        assert_eq!(before[key], after[key], "{key}: {before}\n{after}");
    }
    assert_eq!((&after["port_group"], &after["policy"]["vlan"]), (&json!("web"), &json!("10")), "{after}");
    let most = requests.count() as u64 + OTHERS_MAX;
    for (before, after) in passed(before).into_iter().zip(passed(after)) {
        assert!(before >= BEFORE as u64 && (before..=most).contains(&after), "{before}, {after} of at most {most}");
    }
}

#[test]
fn a_guest_that_qemu_migrates_to_another_host_and_back_is_reached_at_each_without_a_loss_beyond_its_pause() {
    let mut hosts = Hosts::new(&[port("virtio-net", 1)], "");
    let mut vm = hosts.start(0, hosts.machine(0), false);
    let mut requests = hosts.requests(&mut vm.guest);
    let moves = if is_full() { 10 } else { 2 };
    for number in 0..moves {
        let [from, to] = [number % 2, 1 - number % 2];
        let mut next = hosts.start(to, hosts.machine(to), true);
        let incoming = format!("unix:{}", hosts.path("incoming").display());
        next.monitor.run("migrate-incoming", json!({"uri": incoming}));
        requests.answered(AFTER);
        assert_eq!(hosts.place().as_deref(), Some(NAMES[from]), "it waits at the other one");
        let before = hosts.port(from, "vm1");
        let status = migrate(&mut vm.monitor, &incoming);
        let known = hosts.known(to);
        next.monitor.wait("query-status", "running", LATER);
        let pause = Pause { begin: vm.monitor.time_of("STOP"), end: next.monitor.time_of("RESUME"), known };
        requests.answered(AFTER);
        requests.judge(&format!("to {}, down for {} ms by QEMU's count", NAMES[to], status["downtime"]), pause);
        is_same(&before, &hosts.port(to, "vm1"), &requests);
        // The old QEMU ends.
        vm = next;
        hosts.until("its old place is given up", || hosts.port(from, "vm1")["condition"] == "waiting");
        requests.answered(AFTER);
        assert_eq!(claims(&mut hosts.namespace), [NAMES[to]], "{}", hosts.said());
    }
    hosts.sender.is_apart();
    quiet(&mut vm.guest);
}

#[test]
fn a_guest_that_qemu_saves_into_a_file_and_restores_on_another_host_is_reached_there() {
    let mut hosts = Hosts::new(&[port("virtio-net", 1)], "");
    let mut vm = hosts.start(0, hosts.machine(0), false);
    let mut requests = hosts.requests(&mut vm.guest);
    let file = format!("file:{}", hosts.path("saved").display());
    let before = hosts.port(0, "vm1");
    migrate(&mut vm.monitor, &file);
    let begin = vm.monitor.time_of("STOP");
    assert_eq!(hosts.place().as_deref(), Some("a"), "it stands still there, and may go on");
    drop(vm);
    hosts.until("its address is nowhere", || hosts.place().is_none());
    assert_eq!(claims(&mut hosts.namespace), [""; 0]);
    let mut next = hosts.start(1, hosts.machine(1), true);
    hosts.known(1);
    next.monitor.run("migrate-incoming", json!({"uri": file}));
    next.monitor.wait("query-status", "running", LATER);
    let pause = Pause { begin, end: next.monitor.time_of("RESUME"), known: hosts.known(1) };
    requests.answered(AFTER);
    requests.judge("restored", pause);
    is_same(&before, &hosts.port(1, "vm1"), &requests);
    assert_eq!(claims(&mut hosts.namespace), ["b"]);
    hosts.sender.is_apart();
    quiet(&mut next.guest);
}

/// The time in which this is done to the guest's adapters, until its frames pass by this port of a host.
fn change(hosts: &Hosts, guest: &mut Guest, host: usize, carrier: &str, act: &str) -> Pause {
    let begin = SystemTime::now();
    sh(guest, act);
    let before = passed(&hosts.port(host, carrier));
    let both = |now: [u64; 2]| now.iter().zip(before).all(|(now, before)| *now >= before + 5);
    let end = Instant::now() + LATER;
    while !both(passed(&hosts.port(host, carrier))) {
        let mut why = || format!("{}\n{}", hosts.port(host, carrier), sh(guest, "ip link; dmesg | tail -n 20"));
        assert!(Instant::now() < end, "no frames by {carrier} of {}: {}", NAMES[host], why());
        std::thread::sleep(Duration::from_millis(2));
    }
    let end = SystemTime::now();
    Pause { begin, end, known: end }
}

/// QEMU moves no state of a function, so the guest lets it go before, and finds one of the other host afterwards.
#[test]
fn a_guest_with_a_function_and_a_standby_of_one_address_moves_by_the_standby_and_is_reached_at_each_port() {
    if !is_asked("ixgbevf") {
        return;
    }
    let card = "[[card]]\nname = \"nic\"\nchip = \"82599\"\n";
    let mut hosts = Hosts::new(&function_and_standby("ixgbevf"), card);
    let mut vm = hosts.start(0, hosts.pair(0), false);
    bring_up(&mut vm.guest);
    let mut requests = hosts.requests(&mut vm.guest);
    let remove = "cd /sys/bus/pci/drivers/ixgbevf; echo 1 >$(ls -d *:*)/remove";
    let pause = change(&hosts, &mut vm.guest, 0, "vm2", remove);
    requests.judge_change("the function has gone", pause);
    requests.answered(BEFORE);
    let mut next = hosts.start(1, hosts.pair(1), true);
    let incoming = format!("unix:{}", hosts.path("incoming").display());
    next.monitor.run("migrate-incoming", json!({"uri": incoming}));
    requests.answered(AFTER);
    assert_eq!(hosts.place().as_deref(), Some("a"), "it waits at the other one");
    let before = hosts.port(0, "vm2");
    migrate(&mut vm.monitor, &incoming);
    let known = hosts.known(1);
    next.monitor.wait("query-status", "running", LATER);
    let pause = Pause { begin: vm.monitor.time_of("STOP"), end: next.monitor.time_of("RESUME"), known };
    requests.answered(AFTER);
    requests.judge("the standby has moved", pause);
    is_same(&before, &hosts.port(1, "vm2"), &requests);
    drop(vm);
    let pause = change(&hosts, &mut next.guest, 1, "vm1", "echo 1 >/sys/bus/pci/rescan");
    requests.answered(AFTER);
    let lost = requests.judge_change("there is a function again", pause);
    let most = (REACHED.as_millis() / INTERVAL.as_millis()) as usize;
    assert!(lost <= most, "{lost} requests were lost, of at most {most}");
    assert_eq!((hosts.place().as_deref(), claims(&mut hosts.namespace)), (Some("b"), vec!["b".to_owned()]));
    hosts.sender.is_apart();
    quiet(&mut next.guest);
}
