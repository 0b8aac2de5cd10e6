//! The daemon stands still (SIGSTOP) for longer than QEMU waits for an answer (5 s): reads give ones, writes count as done. Afterwards
//! each guest's driver gets its network back unaided.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_guests::Guest;
use nicety_trials::scope::{is_asked, is_full};

use crate::{
    killed::{answered, at, flood, guest_with},
    stage::{Stage, mac, sh, well},
    upgraded::daemon,
};

const PROGRAM: &str = env!("CARGO_BIN_EXE_nicety");
/// For longer than one request is waited for, and not than two.
const STANDS_STILL: Duration = Duration::from_secs(7);
/// The daemon's words about it.
const GAVE_UP: &str = "waited for too long for this daemon";
/// For longer than two requests are waited for, one after the other.
const FOR_TWO_REQUESTS: Duration = Duration::from_secs(12);
/// For longer than the keeper waits for a daemon's signs: it kills this one.
const IS_KILLED: Duration = Duration::from_secs(75);

fn signal(process: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(well(status).success());
}

fn stand_still(stage: &Stage, time: Duration) {
    let process = daemon(stage).unwrap_or_else(|| panic!("there is no daemon: {}", stage.served.log()));
    signal(process, "-STOP");
    std::thread::sleep(time);
    if daemon(stage) == Some(process) {
        signal(process, "-CONT");
    }
    stage.wait_until("the daemon", || stage.served.counts().is_some());
}

/// Stands still under a flood of one adapter after the other: a guest's processor waits for one request at a time.
fn comes_back(adapters: &[&str], times: &[Duration]) {
    let adapters: Vec<&str> = adapters.iter().copied().filter(|adapter| is_asked(adapter)).collect();
    if adapters.is_empty() {
        return;
    }
    let (stage, mut guest) = guest_with(&adapters, Path::new(PROGRAM), "");
    for time in times {
        for (number, adapter) in (1..).zip(&adapters) {
            stands_still_under(&stage, &mut guest, number, *time);
            let began = Instant::now();
            answered(&stage, &mut guest, number);
            println!("{adapter}: back {:.1?} after {time:.0?}", began.elapsed());
        }
    }
    // No adapter has lost its network when another one's request was given up.
    (1..).take(adapters.len()).for_each(|number| answered(&stage, &mut guest, number));
    still_connected(&stage);
}

/// The daemon stands still while the adapter at this port is flooded. Those that have no message for a frame may notice nothing.
fn stands_still_under(stage: &Stage, guest: &mut Guest, number: u8, time: Duration) {
    let name = format!("vm{number}");
    flood(guest, number);
    stage.wait_more("frames", 50, || stage.received(&name));
    let given_up = || stage.served.log().matches(GAVE_UP).count();
    let before = given_up();
    stand_still(stage, time);
    stage.wait_until("requests that were given up", || {
        given_up() > before || time >= IS_KILLED || is_silent(stage, &name)
    });
    sh(guest, "killall ping; true");
}

/// Whether an adapter asks for nothing: its doorbells are mapped, or it is virtio-net.
fn is_silent(stage: &Stage, name: &str) -> bool {
    ["vmxnet3", "virtio-net-pci"].iter().any(|adapter| stage.report(name)["adapter"] == *adapter)
}

fn still_connected(stage: &Stage) {
    let log = stage.served.log();
    println!("{log}");
    assert!(!log.contains("disconnected") && !log.contains("loses its adapter"), "{log}");
}

#[test]
fn all_adapters_of_a_guest_in_qemu_come_back_when_the_daemon_stood_still_for_seven_seconds() {
    comes_back(&["e1000", "igb", "igbvf", "ixgbevf", "rtl8139"], &[STANDS_STILL]);
    if is_full() {
        comes_back(&["e1000e", "vmxnet3", "pcnet", "ne2k_pci", "virtio-net-pci"], &[STANDS_STILL; 2]);
    }
}

/// Linux's igb and ixgbevf give an adapter up for ever if two reads in a row give ones, or one of CTRL or VFSTATUS: igb_rd32 in
/// igb_main.c, ixgbevf_check_remove in ixgbevf_main.c. The others read on.
#[test]
#[ignore = "only with --full: seven seconds in the usual run"]
fn each_adapter_comes_back_when_the_daemon_stood_still_for_twelve_seconds_or_when_its_driver_is_bound_again() {
    for adapter in ["e1000", "e1000e", "rtl8139", "igbvf", "vmxnet3", "pcnet", "ne2k_pci", "virtio-net-pci"] {
        comes_back(&[adapter], &[FOR_TWO_REQUESTS; 2]);
    }
    ["igb", "ixgbevf"].into_iter().for_each(comes_back_bound_again);
}

fn comes_back_bound_again(adapter: &str) {
    if !is_asked(adapter) {
        return;
    }
    let (stage, mut guest) = guest_with(&[adapter], Path::new(PROGRAM), "");
    stands_still_under(&stage, &mut guest, 1, FOR_TWO_REQUESTS);
    let is_back = format!("/usr/bin/ping -n -q -c 1 -i 0.05 -w 20 {} >/dev/null && echo yes || echo no", at(1, 254));
    let is_back = sh(&mut guest, &is_back) == "yes\n";
    println!("{adapter}: by itself: {is_back}\n{}", sh(&mut guest, "dmesg | tail -n 30"));
    if !is_back {
        let found = format!("for d in /sys/class/net/*; do [ $(cat $d/address) != {} ] || break; done", mac(1));
        let bound = "f=$(basename $(readlink -f $d/device)); p=$(readlink -f $d/device/driver); echo $f >$p/unbind; echo $f >$p/bind";
        let address =
            format!("ip addr add {}/24 dev $i; ip link set $i up; until has_carrier $i; do rest; done", at(1, 1));
        let net = "until [ -e /sys/bus/pci/devices/$f/net ]; do rest; done; i=$(ls /sys/bus/pci/devices/$f/net)";
        sh(&mut guest, &format!("{found}; {bound}; {net}; {address}"));
        answered(&stage, &mut guest, 1);
    }
    still_connected(&stage);
}

/// Not igb and ixgbevf: see above.
#[test]
#[ignore = "only with --full: seven seconds in the usual run"]
fn adapters_come_back_when_the_daemon_stood_still_until_the_keeper_killed_it() {
    let adapters = ["e1000", "e1000e", "rtl8139", "igbvf", "vmxnet3"];
    adapters.iter().for_each(|adapter| comes_back(&[adapter], &[IS_KILLED]));
}
