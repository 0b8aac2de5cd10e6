//! A user-mode guest whose server dies, hangs, or is slow: its kernel reports that in one sentence, nothing in it waits for ever,
//! and the device comes back with the server.

use std::time::{Duration, Instant};

use nicety_guests::{Guest, processes_of_group};
use nicety_trials::scope::{few, in_linux as entries};

use crate::{
    stage::{HOST, LATER, SOON, Stage, address, ping, quiet, sh, side_by_side, well},
    user_mode::{flood, machine},
};

/// Attaches the device again: writes its option from the kernel's command line to the module's parameter. A device that disappears
/// by itself must be gone first: the new one needs its name.
const ATTACH: &str = "word=$(grep -o '[a-z_]*\\.device=[^ ]*' /proc/cmdline); module=${word%%.device*}; \
                      while [ $module = virtio_uml ] && [ -e /sys/class/net/eth0 ]; do rest; done; \
                      echo ${word#*=} >/sys/module/$module/parameters/device";
/// Texts of a kernel's complaint about itself.
const TRACES: [&str; 4] = ["Call Trace", "WARNING", "BUG", "cut here"];
/// Message of both transports about a server that is gone.
const GONE: &str = "the device is gone";
/// The kernel checks a queue that has not moved for 5 s (`watchdog_timeo` of the drivers).
const WATCHDOG: &str = "sleep 7";

/// All messages go to the console, also those after the last command.
const LOUD: &str = "ignore_loglevel";

/// A daemon with a port of this adapter, and a guest there, with these arguments for its kernel.
fn one(adapter: &str, words: &[&str]) -> (Stage, Guest) {
    println!("{adapter}");
    let stage = Stage::new(&[adapter]);
    let guest = boot(&stage, words);
    (stage, guest)
}

fn boot(stage: &Stage, words: &[&str]) -> Guest {
    let mut machine = machine(1);
    machine.append.extend(words.iter().map(|&word| word.to_owned()));
    let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine, 1)));
    ping(&mut guest, "", HOST);
    guest
}

/// The sentences in which the guest's kernel reported that a server is gone. Waits for `times` of them; there must be no kernel
/// trace.
#[track_caller]
fn gone_messages(guest: &mut Guest, times: usize) -> Vec<String> {
    sh(guest, &format!("until [ $(dmesg | grep -c '{GONE}') -ge {times} ]; do rest; done"));
    let text = sh(guest, "dmesg");
    assert!(!TRACES.iter().any(|trace| text.contains(trace)), "{text}");
    let lines: Vec<String> = text.lines().filter(|line| line.contains(GONE)).map(str::to_owned).collect();
    assert_eq!(lines.len(), times, "{text}");
    lines
}

/// Powers the guest off. It must end soon, without a kernel trace on its console.
#[track_caller]
fn powers_off(mut guest: Guest) -> String {
    let (leader, begin) = (guest.process(), Instant::now());
    well(guest.order("poweroff -f", SOON));
    let off = |guest: &Guest| guest.console().contains("reboot: Power down");
    while !(processes_of_group(leader).is_empty() && off(&guest)) {
        assert!(begin.elapsed() < SOON, "it does not power off:\n{}", guest.console());
        std::thread::sleep(Duration::from_millis(20));
    }
    let console = guest.console();
    assert!(!TRACES.iter().any(|trace| console.contains(trace)), "{console}");
    console
}

fn attach_again(guest: &mut Guest) {
    sh(guest, ATTACH);
    sh(guest, "until [ -e /sys/class/net/eth0 ]; do rest; done");
    sh(guest, &format!("ip addr add {}/24 dev eth0; ip link set eth0 up", address(1)));
    ping(guest, "", HOST);
}

#[test]
fn a_user_mode_guest_whose_daemon_is_killed_says_so_in_one_sentence_goes_on_and_powers_off() {
    side_by_side(&entries(), |entry| {
        let (mut stage, mut guest) = one(entry.about.name, &[LOUD]);
        flood(&mut guest);
        well(stage.served.kill(&mut stage.namespace));
        sh(&mut guest, &format!("{WATCHDOG}; killall ping nc || true"));
        let lines = gone_messages(&mut guest, 1);
        println!("{}: {}", entry.about.name, lines.concat());
        assert!(lines[0].contains("/vm1.sock: the server has closed the connection; the device is gone"), "{lines:?}");
        powers_off(guest);
        // The next guest can use the port.
        well(stage.served.restart(&mut stage.namespace));
        quiet(&mut boot(&stage, &[]));
    });
}

#[test]
fn a_user_mode_guest_attaches_its_device_again_after_the_daemons_restart() {
    for entry in few() {
        let (mut stage, mut guest) = one(entry.about.name, &[LOUD]);
        if entry.about.transports.contains(&"vfio-user") {
            let busy = well(guest.run(ATTACH, SOON));
            assert!(busy.code != 0 && busy.text.contains("busy"), "one that answers stays: {busy:?}");
        }
        for round in 1..=3 {
            flood(&mut guest);
            well(stage.served.kill_and_restart(&mut stage.namespace));
            sh(&mut guest, "killall ping nc || true");
            attach_again(&mut guest);
            gone_messages(&mut guest, round);
        }
    }
}

/// A register read waits for an answer. A virtio device has no reads; the wait comes when it is removed.
#[test]
fn a_user_mode_guest_waits_for_a_daemon_that_stands_still_no_longer_than_it_says() {
    side_by_side(&entries(), |entry| {
        let (mut stage, mut guest) = one(entry.about.name, &[LOUD, "vfio_user.timeout_ms=1000"]);
        flood(&mut guest);
        well(stage.served.stand_still(&mut stage.namespace));
        let begin = Instant::now();
        let console = if entry.about.transports.contains(&"vfio-user") {
            let function = "d=$(readlink -f /sys/class/net/eth0/device); case $d in */virtio[0-9]*) d=${d%/*};; esac";
            let ones = sh(&mut guest, &format!("{function}; od -An -tx4 -N4 $d/config"));
            assert_eq!(ones.trim(), "ffffffff");
            let lines = gone_messages(&mut guest, 1);
            sh(&mut guest, "killall ping nc || true; ip link set eth0 down; ethtool -S eth0 >/dev/null 2>&1 || true");
            powers_off(guest) + &lines.concat()
        } else {
            // Linux's driver polls its control queue under the lock of all interfaces. Nothing else hangs, and the guest powers
            // off.
            let command =
                "killall ping nc 2>/dev/null; (ip link add link eth0 name eth0.5 type vlan id 5; touch /tmp/done) &";
            sh(&mut guest, &format!("{command} sleep 1; [ ! -e /tmp/done ]"));
            powers_off(guest)
        };
        println!("{}: it was off after {:.1} s", entry.about.name, begin.elapsed().as_secs_f64());
        assert!(begin.elapsed() < LATER);
        assert!(console.contains("/vm1.sock: the server does not answer; the device is gone"), "{console}");
        well(stage.served.go_on(&mut stage.namespace));
        quiet(&mut boot(&stage, &[]));
    });
}

/// virtio-net waits for its control queue. A server that always serves it late makes a guest useless, and nothing else reports it.
#[test]
fn a_user_mode_guest_whose_control_queue_is_served_late_says_so_and_goes_on() {
    let (mut stage, mut guest) = one("virtio-net", &[LOUD]);
    well(stage.served.stand_still(&mut stage.namespace));
    let command = "(ip link add link eth0 name eth0.5 type vlan id 5; touch /tmp/done) &";
    sh(&mut guest, &format!("{command} sleep 2; [ ! -e /tmp/done ]"));
    well(stage.served.go_on(&mut stage.namespace));
    let slow = "/vm1.sock: the server is slow: it took more than [1-9] s to serve its control queue";
    sh(&mut guest, &format!("until [ -e /tmp/done ] && dmesg | grep -q '{slow}'; do rest; done"));
    ping(&mut guest, "", HOST);
    assert_eq!(sh(&mut guest, "dmesg | grep -c 'the server' || true"), "1\n");
}
