//! The daemon stands still (SIGSTOP) for longer than QEMU waits for an answer (5 s): reads give ones, writes count as done. Afterwards
//! each guest's driver gets its network back unaided.

use std::path::Path;
use std::time::{Duration, Instant};

use nicety_trials::scope::{is_asked, is_full};

use crate::{
    killed::{answered, flood, guest_with},
    stage::{Stage, sh, well},
    upgraded::daemon,
};

/// For longer than one request is waited for, and not than two.
const STANDS_STILL: Duration = Duration::from_secs(7);
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

fn comes_back(adapters: &[&str], times: &[Duration]) {
    let adapters: Vec<&str> = adapters.iter().copied().filter(|adapter| is_asked(adapter)).collect();
    if adapters.is_empty() {
        return;
    }
    let (stage, mut guest) = guest_with(&adapters, Path::new(env!("CARGO_BIN_EXE_nicety")), "");
    for time in times {
        for number in (1..).take(adapters.len()) {
            flood(&mut guest, number);
            stage.wait_more(adapters[usize::from(number) - 1], 50, || stage.received(&format!("vm{number}")));
        }
        stand_still(&stage, *time);
        let began = Instant::now();
        for (number, adapter) in (1..).zip(&adapters) {
            answered(&stage, &mut guest, number);
            println!("{adapter}: back {:.1?} after {time:.0?}", began.elapsed());
        }
        sh(&mut guest, "killall ping; true");
    }
    println!("{}", stage.served.log());
    let log = stage.served.log();
    assert!(!log.contains("disconnected") && !log.contains("loses its adapter"), "{log}");
}

#[test]
fn all_adapters_of_a_guest_in_qemu_come_back_when_the_daemon_stood_still_for_seven_seconds() {
    comes_back(&["e1000", "e1000e", "rtl8139", "igbvf", "vmxnet3"], &[STANDS_STILL; 2]);
    if is_full() {
        comes_back(&["igb", "ixgbevf", "virtio-net-pci"], &[STANDS_STILL; 2]);
        comes_back(&["pcnet", "rtl8139-plain", "ne2k_pci"], &[STANDS_STILL; 2]);
    }
}

/// Linux's igb and ixgbevf give an adapter up for ever whose registers read as ones twice.
#[test]
fn adapters_come_back_when_the_daemon_stood_still_until_the_keeper_killed_it() {
    if is_full() {
        comes_back(&["e1000", "e1000e", "rtl8139", "igbvf", "vmxnet3"], &[IS_KILLED]);
    }
}
