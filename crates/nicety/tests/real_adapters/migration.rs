//! QEMU migrates a running guest with virtio-net from one daemon to another. The daemons do not know each other: QEMU reads the log
//! of written pages that the first one fills, and passes the rings' positions to the second one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Machine, Port, Served, Setup};
use nicety_trials::scope::is_asked;
use serde_json::{Value, json};

use crate::{
    monitor::Monitor,
    stage::{LATER, Stage, TWO_WORKERS, address, ping, port, port_of_pairs, quiet, sh, well, with_pairs},
    standby::{bring_up, function_and_standby},
    user_mode::machine,
};

/// Migrates the guest away, and waits until that is done. Returns QEMU's status.
pub fn migrate(monitor: &mut Monitor, to: &str) -> Value {
    monitor.run("migrate-set-parameters", json!({"max-bandwidth": 0}));
    let end = Instant::now() + LATER;
    loop {
        monitor.run("migrate", json!({"uri": to}));
        let status = ended(monitor, end);
        if status["status"] == "completed" {
            return status;
        }
        // The other QEMU listens a moment after its socket is there.
        let why = status["error-desc"].as_str().unwrap_or_default();
        assert!(why.ends_with("Connection refused") && Instant::now() < end, "{status}");
    }
}

/// Waits until a migration is completed or has failed. Returns its status.
fn ended(monitor: &mut Monitor, end: Instant) -> Value {
    loop {
        let status = monitor.run("query-migrate", json!({}));
        if ["failed", "completed"].iter().any(|done| status["status"] == *done) {
            return status;
        }
        assert!(Instant::now() < end, "{status}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A stage whose first port's guest may move to another daemon. A stream joins that daemon to the stage's own.
struct Move {
    stage: Stage,
    other: Served,
    place: tempfile::TempDir,
}

impl Move {
    fn new(adapters: &[&str]) -> Move {
        let ports = (1..).zip(adapters).map(|(number, adapter)| port(adapter, number)).collect();
        Move::of(ports, vec![port(adapters[0], 1)], "")
    }

    /// With these ports here and there. `tables` are in both host files.
    fn of(here: Vec<Port>, there: Vec<Port>, tables: &str) -> Move {
        let place = well(tempfile::tempdir());
        let socket = place.path().join("link").display().to_string();
        let setup = |listens| Setup {
            link: Some(Link::Stream { socket: socket.clone(), listens }),
            link_more: tables.to_owned(),
            daemon_more: TWO_WORKERS.to_owned(),
            ..Setup::default()
        };
        let mut stage = Stage::set_up(here, setup(true));
        let program = Path::new(env!("CARGO_BIN_EXE_nicety"));
        let other = Served::start_as(program, &mut stage.namespace, there, setup(false));
        Move { stage, other: well(other), place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Destination of the guest's memory.
    fn incoming(&self) -> String {
        format!("unix:{}", self.path("incoming").display())
    }

    /// A guest at the first port of one of the daemons. `words`: further options of its device.
    fn config(&self, served: &Served, words: &str, pairs: u8, monitor: &str) -> GuestConfig {
        let mut config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        config = served.attach(config.address("eth0", &format!("{}/24", address(1))), "vm1");
        Monitor::at(with_pairs(config, pairs, words), &self.path(monitor))
    }

    /// A guest at the first two ports of one of the daemons, a function and its standby.
    fn pair(&self, served: &Served, monitor: &str) -> GuestConfig {
        let config = GuestConfig { accel: Accel::Tcg, ..GuestConfig::new(Kernel::V6_12) };
        let mut config = ["vm1", "vm2"].into_iter().fold(config, |config, name| served.attach(config, name));
        for word in &mut config.devices {
            *word = word.replace("virtio-net-pci,", "virtio-net-pci,failover=on,");
        }
        Monitor::at(config, &self.path(monitor))
    }

    /// Frames through the first port of the other daemon: sent, and received.
    fn passed(&self) -> [u64; 2] {
        self.passed_by("vm1")
    }

    /// Frames through a port of the other daemon: sent, and received.
    fn passed_by(&self, name: &str) -> [u64; 2] {
        let answer: Value = well(serde_json::from_str(&self.other.ask().unwrap_or_default()));
        let ports = answer["ports"].as_array().cloned().unwrap_or_default();
        let port = ports.iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no port in {answer}"));
        ["transmit", "receive"]
            .map(|way| port[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum())
    }
}

/// Begins to send over TCP, until [`finish`] stops it; both sides compute a checksum.
pub fn stream(from: &mut Guest, to: &mut Guest, address: &str) {
    let receive = "rm -f /tmp/came; (nc -l -p 9000 -e sh -c 'sha256sum >/tmp/came' >/dev/null 2>&1 &)";
    sh(to, &format!("{receive}; until netstat -ltn | grep -q :9000; do rest; done"));
    let made = "dd if=/dev/urandom of=/tmp/block bs=64k count=16 2>/dev/null; mkfifo /tmp/copy; \
                (sha256sum </tmp/copy >/tmp/sent 2>/dev/null &)";
    let blocks = "while [ ! -e /tmp/stop ]; do cat /tmp/block; done";
    sh(from, &format!("{made}; (({blocks}) | tee /tmp/copy | nc {address} 9000 >/dev/null 2>&1 &)"));
}

/// Ends a stream, and compares the checksums of both sides.
pub fn finish(from: &mut Guest, to: &mut Guest) {
    let sent = sh(from, "touch /tmp/stop; until [ -s /tmp/sent ]; do rest; done; cat /tmp/sent");
    let came = sh(to, "until [ -s /tmp/came ]; do rest; done; cat /tmp/came");
    assert!(sent.len() > 64, "{sent:?}");
    assert_eq!(came, sent);
}

/// A guest that may move, one that stays, and the first one's QEMU at the destination.
fn guests(moving: &Move, words: &str, pairs: u8) -> [Guest; 3] {
    let stage = &moving.stage;
    let mut guest = well(Guest::start(&stage.root, moving.config(&stage.served, words, pairs, "here")));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 2)));
    [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    sh(&mut guest, &format!("[ {pairs} = 1 ] || ethtool -L eth0 combined {pairs}"));
    ping(&mut guest, "", &address(2));
    let mut config = moving.config(&moving.other, words, pairs, "there");
    config.devices.extend(["-incoming".to_owned(), moving.incoming()]);
    let moved = well(Guest::start(&stage.root, config));
    stage.wait_until("incoming", || moving.path("incoming").exists());
    [guest, peer, moved]
}

/// The guest's pairs are dealt to two workers here and there, if it has several.
fn moves(words: &str, pairs: u8) {
    let own = || if pairs > 1 { port_of_pairs(1, pairs) } else { port("virtio-net", 1) };
    let moving = Move::of(vec![own(), port("e1000", 2)], vec![own()], "");
    let stage = &moving.stage;
    let [mut guest, mut peer, mut moved] = guests(&moving, words, pairs);
    stream(&mut guest, &mut peer, &address(2));
    stream(&mut peer, &mut guest, &address(1));
    stage.wait_more("frames", 500, || stage.received("vm1"));
    let status = migrate(&mut Monitor::of(&moving.path("here")), &moving.incoming());
    let before = moving.passed();
    let goes_on = || moving.passed().iter().zip(before).all(|(now, before)| *now >= before + 500);
    stage.wait_until("frames at the other daemon", goes_on);
    drop(guest);
    finish(&mut moved, &mut peer);
    finish(&mut peer, &mut moved);
    ping(&mut moved, "", &address(2));
    quiet(&mut moved);
    let report = stage.report("vm1");
    assert_eq!((&report["condition"], &report["guest_errors"]), (&json!("waiting"), &json!(0)), "{report}");
    println!("{words:?}: down for {} ms, {} bytes of memory sent", status["downtime"], status["ram"]["transferred"]);
}

#[test]
fn qemu_moves_a_guest_from_one_daemon_to_another_under_tcp_both_ways() {
    moves("", 1);
}

#[test]
#[ignore = "only with --full: split rings in the usual run"]
fn qemu_moves_a_guest_with_packed_rings_and_two_workers_too() {
    moves("packed=on,", 2);
}

/// The log of written pages is by guest-physical addresses, and a device behind an IOMMU has others: the daemon refuses the log.
#[test]
#[ignore = "only with --full: a boot behind an IOMMU for one refusal"]
fn a_guest_behind_an_iommu_is_not_moved_and_stays_in_use() {
    let moving = Move::new(&["virtio-net", "e1000"]);
    let stage = &moving.stage;
    let mut config = moving.config(&stage.served, "iommu_platform=on,disable-legacy=on,", 1, "here");
    config.devices.splice(0..0, ["-device", "intel-iommu,caching-mode=on,intremap=off"].map(str::to_owned));
    config.append.extend(["intel_iommu=on", "iommu.passthrough=0"].map(str::to_owned));
    let mut guest = well(Guest::start(&stage.root, config));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 2)));
    [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    ping(&mut guest, "", &address(2));
    let mut monitor = Monitor::of(&moving.path("here"));
    monitor.run("migrate", json!({"uri": "exec:cat >/dev/null"}));
    let status = ended(&mut monitor, Instant::now() + LATER);
    println!("{status}");
    assert_eq!(status["status"], "failed", "{status}");
    ping(&mut guest, "", &address(2));
    quiet(&mut guest);
}

/// QEMU has the guest announce itself if its driver can; otherwise QEMU asks the daemon to.
#[test]
fn a_guest_that_says_nothing_is_found_where_it_has_moved_to() {
    for words in ["", "guest_announce=off,"] {
        let moving = Move::new(&["virtio-net", "e1000"]);
        let [guest, mut peer, mut moved] = guests(&moving, words, 1);
        migrate(&mut Monitor::of(&moving.path("here")), &moving.incoming());
        drop(guest);
        moving.stage.wait_until("an announcement", || moving.passed()[0] > 0);
        ping(&mut peer, "", &address(1));
        quiet(&mut moved);
    }
}

/// QEMU has no state of a function that it could move (`vfio_user_pci_ops` in its hw/vfio-user/pci.c), and does not say so: its
/// `vfio_user_pci_realize` registers neither a state nor a blocker. So the guest lets the function go before, and finds one afterwards.
#[test]
fn a_guest_that_lets_its_function_go_moves_under_tcp_and_finds_a_function_where_it_has_moved_to() {
    if !is_asked("ixgbevf") {
        return;
    }
    let mut here = function_and_standby("ixgbevf");
    here.push(port("e1000", 3));
    let moving = Move::of(here, function_and_standby("ixgbevf"), "[[card]]\nname = \"nic\"\nchip = \"82599\"\n");
    let stage = &moving.stage;
    let mut guest = well(Guest::start(&stage.root, moving.pair(&stage.served, "here")));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 3)));
    [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    bring_up(&mut guest);
    ping(&mut guest, "", &address(3));
    let mut config = moving.pair(&moving.other, "there");
    config.devices.extend(["-incoming".to_owned(), moving.incoming()]);
    let mut moved = well(Guest::start(&stage.root, config));
    stage.wait_until("incoming", || moving.path("incoming").exists());

    stream(&mut guest, &mut peer, &address(3));
    stream(&mut peer, &mut guest, &address(1));
    let both = |before: [u64; 2], now: [u64; 2]| before.iter().zip(now).all(|(before, now)| now >= before + 500);
    let carries = |name: &str| {
        let now = || [stage.sent(name), stage.received(name)];
        let before = now();
        stage.wait_until(&format!("frames by {name}"), || both(before, now()));
    };
    carries("vm1");
    sh(&mut guest, "cd /sys/bus/pci/drivers/ixgbevf; echo 1 >$(ls -d *:*)/remove");
    carries("vm2");
    let status = migrate(&mut Monitor::of(&moving.path("here")), &moving.incoming());
    let goes_on = |name: &str| {
        let before = moving.passed_by(name);
        stage.wait_until(&format!("frames by {name} of the other daemon"), || both(before, moving.passed_by(name)));
    };
    goes_on("vm2");
    drop(guest);
    sh(&mut moved, "echo 1 >/sys/bus/pci/rescan");
    goes_on("vm1");
    finish(&mut moved, &mut peer);
    finish(&mut peer, &mut moved);
    ping(&mut moved, "", &address(3));
    quiet(&mut moved);
    println!("down for {} ms, {} bytes of memory sent", status["downtime"], status["ram"]["transferred"]);
}
