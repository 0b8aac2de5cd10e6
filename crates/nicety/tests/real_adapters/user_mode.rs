//! The same drivers in user-mode kernels, at the host's own speed; and what ends badly there.

use std::time::{Duration, Instant};

use nicety_adapters::REGISTRY;
use nicety_lab::real::{Error, Guest, processes_of_group};

use crate::{
    drivers::{carries_between, goes_and_returns},
    stage::{HOST, LATER, SOON, Stage, address, ping, send, sh, well},
};

/// The driver's functions are built in: it is taken from its device, and given to it again.
const GO: &str = "device=$(readlink -f /sys/class/net/eth0/device); driver=$(readlink -f $device/driver); \
                  echo ${device##*/} >$driver/unbind";
const COME: &str = "echo ${device##*/} >$driver/bind";

fn both(adapter: &str) -> (Stage, Guest, Guest) {
    println!("{adapter}");
    let stage = Stage::new(&[adapter, adapter]);
    let [left, right] = stage.boot_user_mode([1, 2]);
    println!("answered after {:.2} and {:.2} s", left.boot_time().as_secs_f64(), right.boot_time().as_secs_f64());
    (stage, left, right)
}

/// Floods the host from the guest, which goes on meanwhile.
fn flood(guest: &mut Guest) {
    sh(guest, &format!("(ping -f {HOST} >/dev/null 2>&1 &); (nc {HOST} 9 </dev/zero >/dev/null 2>&1 &)"));
}

/// Waits until nothing of a guest runs.
#[track_caller]
fn wait_gone(leader: u32) {
    let end = Instant::now() + SOON;
    while !processes_of_group(leader).is_empty() {
        assert!(Instant::now() < end, "processes of the guest go on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_user_mode_kernel_carries_over_every_adapter() {
    for entry in REGISTRY {
        carries_between(entry.about.name, both(entry.about.name));
    }
}

#[test]
fn a_hundred_megabytes_come_whole_over_every_adapter() {
    for entry in REGISTRY {
        let (_stage, mut left, mut right) = both(entry.about.name);
        // Half of the guest's memory: three times that, and back.
        for _ in 0..3 {
            send(&mut left, &mut right, &address(2), 100);
        }
        send(&mut right, &mut left, &address(1), 100);
    }
}

#[test]
fn a_driver_in_a_user_mode_kernel_leaves_its_device_under_traffic_and_comes_back() {
    for entry in REGISTRY {
        goes_and_returns(both(entry.about.name), (GO, COME));
    }
}

#[test]
fn a_user_mode_guest_is_off_when_it_powers_off_under_traffic() {
    for entry in REGISTRY {
        let stage = Stage::new(&[entry.about.name]);
        for _ in 0..3 {
            let [mut guest] = stage.boot_user_mode([1]);
            let leader = guest.process();
            flood(&mut guest);
            let off = guest.run("sleep 0.3; poweroff -f; sleep 20", SOON);
            assert!(matches!(off, Err(Error::Gone { .. })), "{}: {off:?}", entry.about.name);
            wait_gone(leader);
        }
    }
}

#[test]
fn the_next_user_mode_guest_gets_the_port_of_one_that_was_killed_under_traffic() {
    // Not virtio-net yet: of some hundred such guests one stops answering on its console (docs/limits.md).
    for entry in REGISTRY.iter().filter(|entry| entry.about.name != "virtio-net") {
        let stage = Stage::new(&[entry.about.name]);
        for _ in 0..5 {
            let [mut guest] = stage.boot_user_mode([1]);
            ping(&mut guest, "", HOST);
            let leader = guest.process();
            flood(&mut guest);
            drop(guest);
            wait_gone(leader);
        }
    }
}

#[test]
fn a_user_mode_guest_outlives_a_daemon_that_is_killed_under_traffic() {
    for entry in REGISTRY {
        let mut stage = Stage::new(&[entry.about.name]);
        let [mut guest] = stage.boot_user_mode([1]);
        ping(&mut guest, "", HOST);
        flood(&mut guest);
        well(stage.served.kill(&mut stage.namespace));
        // It sees a dead adapter, and goes on without it.
        let text = sh(&mut guest, &format!("killall ping nc; ping -c 2 -W 1 -w 3 {HOST}; echo alive"));
        assert!(text.ends_with("alive\n") && text.contains("100% packet loss"), "{}: {text}", entry.about.name);
        let leader = guest.process();
        let off = guest.run("poweroff -f; sleep 20", LATER);
        assert!(matches!(off, Err(Error::Gone { .. })), "{}: {off:?}", entry.about.name);
        wait_gone(leader);
    }
}
