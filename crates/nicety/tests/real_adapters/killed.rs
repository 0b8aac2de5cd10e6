//! The daemon is killed under its guests' traffic (SIGKILL), and its keeper starts the next one: QEMU, which never reconnects, notices
//! nothing, and each guest's driver gets its network back unaided.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_guests::{Accel, Guest, GuestConfig, Kernel, Link, Setup, Start};
use nicety_trials::scope::{is_asked, is_full};

use crate::{
    stage::{FLOOD, HOST, LATER, SOON, Stage, TAP, mac, mapped_port, ping, sh, well},
    upgraded::daemon,
    user_mode::machine,
};

/// A keeper starts so many daemons a minute that were killed, and no more.
const KILLS_A_MINUTE: usize = 10;
/// So they are killed this far apart.
const PACE: Duration = Duration::from_millis(6_500);

/// Number of kills in a row with `--full`.
const KILLS: usize = 100;

/// Kills the daemon. Returns the time until the next one answers.
fn kill(stage: &Stage) -> Duration {
    let killed = daemon(stage).unwrap_or_else(|| panic!("there is no daemon: {}", stage.served.log()));
    let began = Instant::now();
    let status = std::process::Command::new("kill").args(["-9", &killed.to_string()]).status();
    assert!(well(status).success());
    stage.wait_until("the next daemon", || {
        daemon(stage).is_some_and(|now| now != killed) && stage.served.counts().is_some()
    });
    began.elapsed()
}

/// An address in the network of an adapter's port.
pub fn at(number: u8, host: u8) -> String {
    format!("10.9.{}.{host}", 3 + number)
}

/// One guest in QEMU with all these adapters, each with a network of its own, in which the host is number 254. This program keeps its
/// daemon. QEMU's own virtio-net has these properties.
pub fn guest_with(adapters: &[&str], keeper: &Path, properties: &str) -> (Stage, Guest) {
    let ports: Vec<_> = (1..).zip(adapters).map(|(number, adapter)| mapped_port(adapter, number)).collect();
    let setup =
        Setup { link: Some(Link::Tap(TAP.to_owned())), options: vec!["--keeper".to_owned()], ..Setup::default() };
    let numbers = 1..=ports.len() as u8;
    let mut stage = Stage::set_up_as(keeper, ports, setup);
    let config = GuestConfig { accel: Accel::Tcg, start: Start::Saved, ..GuestConfig::new(Kernel::V6_12) };
    let attach = |config, number| stage.served.attach(config, &format!("vm{number}"));
    let mut config = numbers.clone().fold(config, attach);
    for word in &mut config.devices {
        *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,{properties}"));
    }
    let mut guest = well(Guest::start(&stage.root, config));
    stage.ready(guest.wait_ready());
    // Each interface answers for its own address only: else a reply comes to any of them.
    sh(&mut guest, "echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore");
    for number in numbers {
        let found =
            format!("for d in /sys/class/net/*; do [ $(cat $d/address) = {} ] && basename $d; done; true", mac(number));
        let interface = sh(&mut guest, &found);
        let interface = interface.trim();
        assert!(!interface.is_empty(), "port {number}: {}", stage.served.log());
        sh(&mut guest, &format!("ip addr add {}/24 dev {interface}; ip link set {interface} up", at(number, 1)));
        sh(&mut guest, &format!("until has_carrier {interface}; do rest; done"));
        well(stage.namespace.run(&format!("ip addr add {}/24 dev {TAP}", at(number, 254)), SOON));
        answered(&stage, &mut guest, number);
    }
    (stage, guest)
}

/// Waits until the host answers in the network of this port.
pub fn answered(stage: &Stage, guest: &mut Guest, number: u8) {
    // With both limits ping asks until one request was answered (ping(8), -w): one that is lost costs 50 ms and no second.
    let ping = format!("/usr/bin/ping -n -q -c 1 -i 0.05 -w 5 {}", at(number, 254));
    let asked = format!("until {ping} >/dev/null 2>&1; do rest; done");
    if let Err(error) = guest.succeed(&asked, LATER) {
        let state = guest.succeed("dmesg | tail -n 40; ip -s addr; cat /proc/interrupts", SOON);
        panic!("{error}\n{}\n{}", state.unwrap_or_else(|worse| worse.to_string()), stage.served.log());
    }
}

/// Requests as fast as they are answered, in the network of this port, in the background.
pub fn flood(guest: &mut Guest, number: u8) {
    sh(guest, &format!("({FLOOD} {} >/dev/null 2>&1 &)", at(number, 254)));
}

/// `usual`: number of kills without `--full`.
fn survives(adapters: &[&str], usual: usize) {
    survives_with(adapters, usual, "");
}

/// QEMU's own virtio-net has these properties.
fn survives_with(adapters: &[&str], usual: usize, properties: &str) {
    let kills = if is_full() { KILLS } else { usual };
    let adapters: Vec<&str> = adapters.iter().copied().filter(|adapter| is_asked(adapter)).collect();
    if adapters.is_empty() {
        return;
    }
    let (stage, mut guest) = guest_with(&adapters, Path::new(env!("CARGO_BIN_EXE_nicety")), properties);
    let mut longest = vec![Duration::ZERO; adapters.len()];
    for round in 1..=kills {
        let round_began = Instant::now();
        for number in (1..).take(adapters.len()) {
            flood(&mut guest, number);
            stage.wait_more(adapters[usize::from(number) - 1], 50, || stage.received(&format!("vm{number}")));
        }
        let next = kill(&stage);
        let began = Instant::now();
        for (number, longest) in (1..).zip(&mut longest) {
            answered(&stage, &mut guest, number);
            *longest = began.elapsed().max(*longest);
        }
        println!("{round}: the next daemon after {next:.0?}, all networks after {:.1?}", began.elapsed());
        sh(&mut guest, "killall ping; true");
        if kills > KILLS_A_MINUTE {
            std::thread::sleep(PACE.saturating_sub(round_began.elapsed()));
        }
    }
    for (adapter, longest) in adapters.iter().zip(&longest) {
        println!("{adapter}: its network was back after {longest:.1?} at most");
    }
    for number in (1..).take(adapters.len()) {
        answered(&stage, &mut guest, number);
    }
    let log = stage.served.log();
    assert!(!log.contains("disconnected") && !log.contains("loses its adapter"), "{log}");
}

#[test]
fn intels_adapters_and_their_qemu_survive_kills_of_the_daemon_under_a_flood() {
    survives(&["e1000", "e1000e", "igb", "igbvf", "ixgbevf"], 3);
}

#[test]
fn paravirtual_adapters_and_their_qemu_survive_kills_of_the_daemon_under_a_flood() {
    survives(&["vmxnet3", "virtio-net-pci", "virtio-net"], 3);
}

#[test]
#[ignore = "only with --full: split rings in the usual run"]
fn virtio_net_on_packed_rings_and_its_qemu_survive_kills_of_the_daemon_under_a_flood() {
    survives_with(&["virtio-net"], 0, "packed=on,");
}

#[test]
fn classic_adapters_and_their_qemu_survive_kills_of_the_daemon_under_a_flood() {
    survives(&["pcnet", "rtl8139", "rtl8139-plain", "ne2k_pci"], 1);
}

/// A user-mode guest, whose kernel has a client of its own for vfio-user.
fn survives_in_user_mode(adapter: &str, kills: usize) {
    let setup =
        Setup { link: Some(Link::Tap(TAP.to_owned())), options: vec!["--keeper".to_owned()], ..Setup::default() };
    let stage = Stage::set_up(vec![mapped_port(adapter, 1)], setup);
    let mut guest = well(Guest::start(&stage.root, stage.at_port(machine(1), 1)));
    stage.ready(guest.wait_ready());
    ping(&mut guest, "", HOST);
    for round in 1..=kills {
        let round_began = Instant::now();
        flood(&mut guest, 0);
        stage.wait_more(adapter, 50, || stage.received("vm1"));
        let next = kill(&stage);
        let began = Instant::now();
        answered(&stage, &mut guest, 0);
        println!("{adapter}, {round}: the next daemon after {next:.0?}, the network after {:.1?}", began.elapsed());
        sh(&mut guest, "killall ping; true");
        if kills > KILLS_A_MINUTE {
            std::thread::sleep(PACE.saturating_sub(round_began.elapsed()));
        }
    }
    let said = sh(&mut guest, "dmesg");
    assert!(!said.contains("the device is gone"), "{said}");
    let log = stage.served.log();
    assert!(!log.contains("disconnected") && !log.contains("loses its adapter"), "{log}");
}

/// Its client takes an answer that comes twice for a defect, and lets the device go. pcnet's driver waits for the answer to a register's
/// read at each interrupt, vmxnet3's for none.
#[test]
fn a_user_mode_guest_goes_on_under_a_flood_when_the_daemon_is_killed() {
    let all = [
        "vmxnet3",
        "pcnet",
        "e1000",
        "e1000e",
        "igb",
        "rtl8139",
        "rtl8139-plain",
        "ne2k_pci",
        "virtio-net-pci",
        "igbvf",
        "ixgbevf",
    ];
    let adapters = if is_full() { &all[..] } else { &all[..2] };
    for adapter in adapters.iter().filter(|adapter| is_asked(adapter)) {
        survives_in_user_mode(adapter, if is_full() { 20 } else { 2 });
    }
}
