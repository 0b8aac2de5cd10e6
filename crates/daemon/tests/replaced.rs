//! Protected VMs whose daemon is replaced, or begins again after a kill: the test plays both QEMUs and their guests.

mod hosts;
mod played;
mod rings_guest;
mod upgrade;

use std::io::{Read, Write};
use std::time::Duration;

use hosts::{Hosts, Side, goes_alone, terms};
use rings_guest::until;
use serde_json::json;

/// Bytes of QEMU's stream come out at the other QEMU, both ways.
fn carries(hosts: &Hosts, bytes: &[u8]) {
    for [from, to] in [[&hosts.here, &hosts.there], [&hosts.there, &hosts.here]] {
        from.qemu().stream().write_all(bytes).unwrap();
        let mut came = vec![0; bytes.len()];
        to.qemu().stream().read_exact(&mut came).unwrap();
        assert_eq!(came, bytes);
    }
}

/// The answers that real ones give while they copy.
fn copy_each_other(hosts: &Hosts) {
    for (side, mode) in [(&hosts.here, "primary"), (&hosts.there, "secondary")] {
        side.qemu().answers("query-colo-status", json!({"return": {"mode": mode, "last-mode": "none"}}));
    }
}

/// The next copy, and what has waited for it.
fn next_copy(hosts: &mut Hosts, epoch: u64, waits: u8) {
    let (bases, state) = hosts.save();
    let there = hosts.there.guest.stop();
    hosts.load(&state, there);
    hosts.goes_on(bases, false);
    until("what has waited", || hosts.here.heard().contains(&waits));
    until("a report", || hosts.here.report().epoch == epoch);
}

/// The protection is the same: its first copy was not made again.
fn is_the_same(hosts: &Hosts) {
    hosts.here.state("protected");
    hosts.there.state("heir");
    assert_eq!([hosts.here.qemu().count("migrate"), hosts.there.qemu().count("migrate-incoming")], [1, 1]);
    assert!([&hosts.here, &hosts.there].iter().all(|side| !side.qemu().has_heard("x-colo-lost-heartbeat")));
}

#[test]
fn a_protection_goes_on_with_its_epochs_and_what_waits_in_gates_when_each_daemon_is_replaced() {
    let mut hosts = Hosts::protected(terms());
    copy_each_other(&hosts);
    carries(&hosts, b"before");
    hosts.here.send(3);
    for (round, is_here) in (2..).zip([true, false, true]) {
        let waits = round as u8 + 1;
        let side = if is_here { &mut hosts.here } else { &mut hosts.there };
        side.upgrade(terms());
        carries(&hosts, b"after");
        is_the_same(&hosts);
        assert!(!hosts.here.heard().contains(&waits), "no copy has it");
        until("a report", || hosts.here.report().gate_packets == 1);
        // Its VM runs on in between, and what it sends is of the same epoch.
        hosts.here.send(waits + 100);
        next_copy(&mut hosts, round, waits);
        until("the frame behind it", || hosts.here.heard().ends_with(&[waits, waits + 100]));
        hosts.here.send(waits + 1);
    }
    // And the twin has what it needs.
    goes_alone(hosts.there.qemu());
    hosts.kill_here();
    hosts.there.qemu().hears("x-colo-lost-heartbeat");
    hosts.there.state("alone");
    hosts.there.send(99);
    until("a frame of the new owner", || hosts.there.heard().contains(&99));
}

/// The VM is in the middle of a copy: saved here, and not loaded there.
#[test]
fn a_copy_that_is_under_way_when_a_daemon_is_replaced_is_finished_in_the_next_one() {
    for is_here in [true, false] {
        let mut hosts = Hosts::protected(terms());
        copy_each_other(&hosts);
        hosts.here.send(3);
        let (bases, state) = hosts.save();
        let there = hosts.there.guest.stop();
        let side = if is_here { &mut hosts.here } else { &mut hosts.there };
        side.upgrade(terms());
        is_the_same(&hosts);
        assert!(!hosts.here.heard().contains(&3), "the twin has not loaded it");
        hosts.load(&state, there);
        hosts.goes_on(bases, false);
        until("what has waited", || hosts.here.heard().contains(&3));
    }
}

#[test]
fn a_protection_goes_on_in_a_daemon_whose_upgrade_has_failed() {
    for is_here in [true, false] {
        let mut hosts = Hosts::protected(terms());
        copy_each_other(&hosts);
        hosts.here.send(3);
        let side = if is_here { &hosts.here } else { &hosts.there };
        let why = upgrade::refused(&side.daemon, &side.host).to_string();
        assert!(why.contains("nothing was changed"), "{why}");
        carries(&hosts, b"after");
        is_the_same(&hosts);
        next_copy(&mut hosts, 2, 3);
    }
}

/// Its QEMU is killed while nobody listens to it.
#[test]
fn a_vm_whose_qemu_dies_while_its_daemon_is_replaced_goes_on_at_the_twin() {
    let mut hosts = Hosts::protected(terms());
    copy_each_other(&hosts);
    goes_alone(hosts.there.qemu());
    hosts.here.send(3);
    hosts.here.replace();
    hosts.kill_here();
    hosts.here.daemon.protect_vms(terms()).unwrap();
    hosts.there.qemu().hears("x-colo-lost-heartbeat");
    hosts.there.state("alone");
    assert_eq!(hosts.there.report().takeovers, 1);
    assert!(!hosts.here.heard().contains(&3), "no copy has it");
}

/// As after a kill: what of the stream was in the process is lost, so a new protection begins. The lease still names a twin, and whether
/// that has taken over is not known before the lease is there.
#[test]
fn nothing_leaves_a_vm_whose_daemon_has_begun_again_before_the_lease_says_that_it_is_alone() {
    let mut hosts = Hosts::protected(terms());
    goes_alone(hosts.here.qemu());
    hosts.exchange_lease();
    hosts.there.daemon.stop();
    hosts.here.daemon.stop();
    let folder = hosts.folder.path();
    let next = Side::without(folder, "a", "b", terms());
    let qemu = hosts.here.qemu.take();
    hosts.here = Side { qemu, ..next };
    hosts.here.guest.start([0, 0]);
    hosts.here.state("begins");
    hosts.here.send(7);
    std::thread::sleep(Duration::from_millis(300));
    assert!(hosts.here.heard().is_empty(), "{:?}", hosts.here.heard());
    hosts.exchange_lease();
    hosts.here.state("alone");
    until("what has waited", || hosts.here.heard() == [7]);
}

/// A twin's report says how much of what its VM has sent was held when the copy was made with which it goes on.
#[test]
fn a_takeover_says_how_much_the_other_host_held() {
    let mut hosts = Hosts::protected(terms());
    goes_alone(hosts.there.qemu());
    assert_eq!(hosts.there.report().takeover_unseen_packets, None);
    [3, 4, 5].into_iter().for_each(|first| hosts.here.send(first));
    let (_, state) = hosts.save();
    let there = hosts.there.guest.stop();
    hosts.there.guest.load(&state);
    hosts.there.guest.start(there);
    hosts.kill_here();
    hosts.there.state("alone");
    let report = hosts.there.report();
    assert_eq!((report.takeovers, report.takeover_unseen_packets), (1, Some(3)));
    assert!(report.takeover_unseen_bytes.is_some_and(|bytes| bytes >= 3 * 14), "{report}");
    assert!(report.to_string().contains("the other host held 3 packets"), "{report}");
}
