//! A VM that survives its host: two daemons, two unmodified QEMUs, and a guest elsewhere that notices nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Machine, Namespace, Port, Root, Served, Setup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
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
    place: tempfile::TempDir,
}

/// The name of a host, for paths.
const NAMES: [&str; 2] = ["a", "b"];

impl Hosts {
    pub fn new(checkpoint: &str) -> Hosts {
        let place = well(tempfile::tempdir());
        let path = |name: String| place.path().join(name).display().to_string();
        well(std::fs::write(path("key".into()), [7; 32]));
        well(std::fs::create_dir(path("leases".into())));
        let setup = |host: usize| {
            let [own, other] = [NAMES[host], NAMES[1 - host]];
            let tables = format!(
                "[ft]\nlisten = \"unix:{}\"\nkey = \"{}\"\nlease = \"{}\"\n\
                 [[vm]]\nname = \"guest\"\nports = \"vm1\"\nqmp = \"{}\"\npeer = \"unix:{}\"\ncheckpoint = \"{checkpoint}\"\n",
                path(format!("{own}.ft")),
                path("key".into()),
                path("leases".into()),
                path(format!("{own}.qmp")),
                path(format!("{other}.ft")),
            );
            let link = Some(Link::Stream { socket: path("link".into()), listens: host == 0 });
            Setup { link, link_more: tables, daemon_more: "sandbox = \"off\"\n".into(), ..Setup::default() }
        };
        let root = well(Root::lay(&mut |line| eprintln!("{line}")));
        let mut namespace = well(Namespace::open(&root));
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let mut start =
            |host: usize, ports: Vec<Port>| well(Served::start_as(program, &mut namespace, ports, setup(host)));
        let served = [start(0, vec![port("virtio-net", 1)]), start(1, vec![port("virtio-net", 1), port("e1000", 2)])];
        Hosts { root, namespace, served, place }
    }

    fn qmp(&self, host: usize) -> PathBuf {
        self.place.path().join(format!("{}.qmp", NAMES[host]))
    }

    /// The VM's QEMU on a host: it runs, or waits to be a twin.
    pub fn vm(&self, host: usize, waits: bool) -> Guest {
        let mut config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        config = self.served[host].attach(config.address("eth0", &format!("{}/24", address(1))), "vm1");
        config = Monitor::at(config, &self.qmp(host));
        if waits {
            config.devices.extend(["-incoming", "defer"].map(str::to_owned));
        }
        well(Guest::start(&self.root, config))
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

    #[track_caller]
    pub fn protected(&self, host: usize) {
        self.wait(host, "protected", |report| report["protected"] == true);
    }
}

/// Kills a guest's QEMU at once.
pub fn kill(guest: Guest) {
    let pid = i32::try_from(guest.process()).ok().and_then(Pid::from_raw).unwrap_or_else(|| panic!("a process"));
    well(kill_process(pid, Signal::KILL));
    drop(guest);
}

/// Requests of a `ping` that runs while the VM's host dies: each one tenth of a second after the other.
fn pings(guest: &mut Guest, count: u32) -> String {
    sh(guest, &format!("/usr/bin/ping -n -i 0.1 -c {count} -W 5 {} || true", address(1)))
}

#[test]
fn a_vm_goes_on_at_its_twin_when_its_qemu_is_killed_and_takes_a_new_twin() {
    let hosts = Hosts::new("50ms");
    let mut outside = hosts.outside();
    let mut first = hosts.vm(0, false);
    hosts.ready(first.wait_ready());
    let mut second = hosts.vm(1, true);
    hosts.protected(0);
    let before = pings(&mut outside, 20);
    println!("protected: {before}");
    assert_eq!(pinged(&before), [20, 20, 0], "{}", hosts.said());
    println!("{}", hosts.report(0));

    // A TCP connection of the VM's, whose bytes are checked, lives on.
    stream(&mut first, &mut outside, &address(2));
    std::thread::sleep(Duration::from_millis(500));
    kill(first);
    hosts.wait(1, "taken over", |report| report["role"] == "owner");
    println!("{}", hosts.report(1));
    finish(&mut second, &mut outside);
    let after = pings(&mut outside, 20);
    println!("taken over: {after}");
    assert_eq!(pinged(&after), [20, 20, 0]);

    let third = hosts.vm(0, true);
    hosts.protected(1);
    let again = pings(&mut outside, 10);
    assert_eq!(pinged(&again), [10, 10, 0], "{}", hosts.said());
    println!("{}", hosts.report(1));
    drop(third);
    let _ = SOON;
}
