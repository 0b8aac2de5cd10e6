//! The daemon is replaced by another process under its guests' traffic: QEMU, which never reconnects, and the guests' drivers notice
//! nothing.

use std::time::Instant;

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Setup, Start};

use crate::{
    migration::{finish, stream},
    stage::{
        HOST, SOON, Stage, TAP, TWO_WORKERS, address, mac, mapped_port, ping, pinged, port, port_of_pairs, quiet, sh,
        well, with_pairs,
    },
    steps::is_late,
    user_mode::machine,
};

/// Number of upgrades in a row.
const UPGRADES: usize = 10;
/// Requests with a byte pattern that the sender compares, twenty a second.
const ASK: &str = "/usr/bin/ping -n -q -i 0.05 -s 1400";
/// The adapters of the guest in QEMU, at ports 1 to 4; each has a network of its own. Its peer is in user mode, at port 5. The functions'
/// doorbells are mapped.
const ADAPTERS: [&str; 4] = ["e1000", "vmxnet3", "virtio-net", "igbvf"];
const PEER: u8 = 5;

/// An address in the network of an adapter's port.
fn at(network: u8, host: u8) -> String {
    format!("10.9.{}.{host}", 2 + network)
}

/// Gives the guest's adapter at this port its address.
fn set_address(guest: &mut Guest, number: u8, host: u8) {
    let found =
        format!("for d in /sys/class/net/*; do [ $(cat $d/address) = {} ] && basename $d; done; true", mac(number));
    let interface = sh(guest, &found);
    let interface = interface.trim();
    assert!(!interface.is_empty(), "port {number}");
    sh(guest, &format!("ip addr add {}/24 dev {interface}; ip link set {interface} up", at(number, host)));
    sh(guest, &format!("until has_carrier {interface}; do rest; done"));
}

/// Replaces the daemon by the same program, at another time if the machine is too busy. Returns the answer.
pub fn upgrade(stage: &mut Stage) -> String {
    let control = stage.served.socket("control.sock");
    let command = format!("'{}' upgrade --control {}", env!("CARGO_BIN_EXE_nicety"), control.display());
    let end = Instant::now() + SOON;
    loop {
        let done = stage.namespace.run(&command, SOON);
        match done {
            Err(error) if is_late(&error.to_string()) && Instant::now() < end => println!("{error}"),
            done => return stage.ready(done),
        }
    }
}

/// Frames that ports have dropped, in either direction.
fn dropped(stage: &Stage, names: [&str; 2]) -> u64 {
    let reports = names.map(|name| stage.report(name));
    let drops = reports.iter().flat_map(|report| ["transmit_drops", "receive_drops"].map(|way| &report[way]));
    drops.filter_map(|drops| drops.as_object()).flatten().filter_map(|(_, count)| count.as_u64()).sum()
}

#[test]
fn guests_in_qemu_and_in_user_mode_go_on_while_the_daemon_is_replaced_ten_times() {
    let ports =
        (1..).zip(ADAPTERS.into_iter().chain(["ixgbevf"])).map(|(number, adapter)| mapped_port(adapter, number));
    let mut ports: Vec<_> = ports.collect();
    // Its pairs are dealt to both.
    ports[2] = port_of_pairs(3, 2);
    let (link, daemon_more) = (Some(Link::Tap(TAP.to_owned())), TWO_WORKERS.to_owned());
    let setup = Setup { link, daemon_more, options: vec!["--keeper".to_owned()], ..Setup::default() };
    let mut stage = Stage::set_up(ports, setup);
    let config = GuestConfig { accel: Accel::Tcg, start: Start::Saved, ..GuestConfig::new(Kernel::V6_12) };
    let config = [1, 2, 3, 4].iter().fold(config, |config, number| stage.served.attach(config, &format!("vm{number}")));
    let config = with_pairs(config, 2, "");
    let mut guest = well(Guest::start(&stage.root, config));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), PEER)));
    [&mut guest, &mut peer].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    for number in [1u8, 2, 3, 4] {
        set_address(&mut guest, number, 1);
        if number == 3 {
            let own = format!("$(grep -l {} /sys/class/net/*/address | cut -d / -f 5)", mac(3));
            sh(&mut guest, &format!("ethtool -L {own} combined 2"));
        }
        if number > 1 {
            sh(&mut peer, &format!("ip addr add {}/24 dev eth0", at(number, PEER)));
        }
        ping(&mut guest, "", &at(number, PEER));
    }
    ping(&mut guest, "", HOST);
    let dropped = |stage: &Stage| ["vm1", "vm2", "vm3", "vm4"].map(|name| dropped(stage, [name, "vm5"]));
    let dropped_before = dropped(&stage);
    stream(&mut guest, &mut peer, &address(PEER));
    stream(&mut peer, &mut guest, &at(2, 1));
    for number in [1u8, 2, 3, 4] {
        sh(&mut guest, &format!("({ASK} {} >/tmp/asked{number} 2>&1 &)", at(number, PEER)));
    }
    // Other flows, for the other worker.
    (0..4).for_each(|_| _ = sh(&mut guest, &format!("({ASK} {} >/dev/null 2>&1 &)", at(3, PEER))));
    let before = stage.sent("vm1");
    for number in 0..UPGRADES {
        stage.wait_more("frames", 20, || stage.received("vm2"));
        let answer = upgrade(&mut stage);
        println!("{number}: {}", answer.lines().next().unwrap_or_default());
    }
    stage.wait_more("frames", 100, || stage.received("vm2"));
    assert!(stage.sent("vm1") > before + 100, "counters go on");
    println!("virtio-net's queues: {:?}", ["transmit", "receive"].map(|way| stage.by_queue("vm3", way)));
    assert_eq!(stage.by_queue("vm3", "receive").len(), 2, "both workers serve it");
    // Neither connection has broken, and not a byte is lost or damaged.
    finish(&mut guest, &mut peer);
    finish(&mut peer, &mut guest);
    sh(&mut guest, "killall -INT ping; true");
    let dropped = dropped(&stage);
    for number in [1u8, 2, 3, 4] {
        let text = sh(
            &mut guest,
            &format!("until grep -q received /tmp/asked{number}; do rest; done; cat /tmp/asked{number}"),
        );
        let [sent, answered, twice] = pinged(&text);
        let place = usize::from(number) - 1;
        let dropped = dropped[place] - dropped_before[place];
        println!("{}: {answered} of {sent} requests were answered, {dropped} frames dropped", ADAPTERS[place]);
        // The last one may be on its way. And a port's backlog, which the streams fill, may have had no room: such frames are counted.
        assert!(sent - answered <= 1 + dropped && twice == 0, "{text}\n{dropped} dropped");
    }
    ping(&mut guest, "", HOST);
    quiet(&mut guest);
    quiet(&mut peer);
    let log = stage.served.log();
    // Tests run as root, of which the sandbox warns. And a busy machine may have been late for an upgrade.
    let is_expected = |line: &str| line.contains("/etc/shadow") || is_late(line);
    let warns = log.lines().any(|line| line.contains("WARN") && !is_expected(line));
    assert!(!log.contains("disconnected") && !warns, "{log}");
    for name in ["vm1", "vm2", "vm3", "vm4", "vm5"] {
        let report = stage.report(name);
        assert_eq!((&report["condition"], &report["guest_errors"]), (&"up".into(), &0.into()), "{report}");
    }
}

/// The process that serves: the keeper's child. `None` between a daemon's end and the next one's start.
pub fn daemon(stage: &Stage) -> Option<u32> {
    let keeper = stage.served.process();
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children"));
    let is_daemon = |pid: &u32| crate::steps::is_daemon((*pid).into());
    children.ok()?.split_whitespace().filter_map(|pid| pid.parse().ok()).rfind(is_daemon)
}

/// QEMU's virtio-net connects again by itself. The adapters behind vfio-user, which does not, are in `killed.rs`.
#[test]
fn a_keeper_gives_a_guest_on_virtio_net_its_network_back_when_the_daemon_is_killed() {
    let ports = vec![port("virtio-net", 1), port("virtio-net", 2)];
    let setup = Setup { options: vec!["--keeper".to_owned()], ..Setup::default() };
    let stage = Stage::set_up(ports, setup);
    let mut both = stage.boot(Kernel::V6_12, [1, 2]);
    let [left, right] = &mut both;
    ping(left, "", &address(2));
    stream(left, right, &address(2));
    for _ in 0..3 {
        stage.wait_more("frames", 200, || stage.received("vm2"));
        let killed = daemon(&stage).unwrap_or_else(|| panic!("there is no daemon: {}", stage.served.log()));
        let status = std::process::Command::new("kill").args(["-9", &killed.to_string()]).status();
        assert!(well(status).success());
        let began = Instant::now();
        stage.wait_until("a frame", || {
            daemon(&stage).is_some_and(|now| now != killed)
                && stage.served.counts().is_some_and(|counts| counts.frames > 0)
        });
        println!("frames again after {:.0?}", began.elapsed());
    }
    finish(left, right);
    ping(right, "", &address(1));
    both.iter_mut().for_each(quiet);
}
