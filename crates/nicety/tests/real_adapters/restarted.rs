//! The daemon is killed under its guests' traffic and started again: QEMU reconnects, the guests continue, lost frames are counted,
//! and no frame that arrives is damaged.

use nicety_guests::{Guest, Kernel};

use crate::{
    migration::{finish, stream},
    stage::{
        IN_HAND, Stage, address, answered_each_once, ping, pinged, port, port_of_pairs, quiet, sh, well, with_pairs,
    },
};

/// Number of times that the daemon is killed.
const KILLS: usize = 3;
/// Requests with a byte pattern that the sender compares, a hundred per second.
const ASK: &str = "/usr/bin/ping -n -q -i 0.01 -s 1400";

/// Number of requests, of answers, and of duplicate answers.
fn asked(guest: &mut Guest) -> [u64; 3] {
    pinged(&sh(guest, "killall -INT ping; until grep -q received /tmp/asked; do rest; done; cat /tmp/asked"))
}

/// The first guest has so many queue pairs; several are dealt to two workers.
fn survives(words: &str, pairs: u8) {
    let first = if pairs > 1 { port_of_pairs(1, pairs) } else { port("virtio-net", 1) };
    let mut stage = Stage::with_two_workers(vec![first, port("virtio-net", 2)]);
    let start = |number| {
        let config = stage.config(Kernel::V6_12, number);
        let config = with_pairs(config, if number == 1 { pairs } else { 1 }, words);
        well(Guest::start(&stage.root, config))
    };
    let (mut left, mut right) = (start(1), start(2));
    [&mut left, &mut right].into_iter().for_each(|guest| stage.ready(guest.wait_ready()));
    sh(&mut left, &format!("[ {pairs} = 1 ] || ethtool -L eth0 combined {pairs}"));
    ping(&mut left, "", &address(2));
    stream(&mut left, &mut right, &address(2));
    stream(&mut right, &mut left, &address(1));
    sh(&mut left, &format!("({ASK} {} >/tmp/asked 2>&1 &)", address(2)));
    let (left, right) = (std::cell::RefCell::new(left), std::cell::RefCell::new(right));
    let seen = || {
        let what = "dmesg | tail -n 5; cat /proc/net/dev; cat /proc/interrupts | grep virtio; cat /proc/net/netstat | tail -n 2; cat /tmp/asked";
        [&left, &right].map(|guest| sh(&mut guest.borrow_mut(), what)).join("\n---\n")
    };
    for _ in 0..KILLS {
        stage.wait_more_or("frames", 1000, || stage.received("vm1"), seen);
        stage.wait_more_or("frames", 1000, || stage.received("vm2"), seen);
        well(stage.served.kill_and_restart(&mut stage.namespace));
    }
    for name in ["vm1", "vm2"] {
        stage.wait_more_or("frames", 1000, || stage.received(name), seen);
    }
    let (mut left, mut right) = (left.into_inner(), right.into_inner());
    finish(&mut left, &mut right);
    finish(&mut right, &mut left);
    let [sent, answered, twice] = asked(&mut left);
    println!("{words:?}: {KILLS} daemons killed, {} of {sent} requests lost, {twice} answered twice", sent - answered);
    assert!(twice <= KILLS as u64 * IN_HAND, "{twice} answered twice");
    // Frames that wait in the rings are not lost. Lost are only those in the daemon's hands (perhaps none), and those for which a
    // ring had no room: the longer the daemon is away, the more.
    assert!(answered > 0, "none of {sent}");
    let queues = stage.by_queue("vm1", "transmit");
    println!("frames sent by queue: {queues:?}");
    assert_eq!(queues.len(), usize::from(pairs), "all pairs are used");
    answered_each_once(&mut left, "", 2000, &address(2));
    for (guest, name) in [(&mut left, "vm1"), (&mut right, "vm2")] {
        let report = stage.report(name);
        assert_eq!((&report["condition"], &report["guest_errors"]), (&"up".into(), &0.into()), "{report}");
        quiet(guest);
    }
}

#[test]
fn guests_in_qemu_go_on_under_tcp_both_ways_when_the_daemon_is_killed_and_nothing_is_damaged() {
    survives("", 1);
}

/// QEMU keeps no state of packed rings: the daemon has recorded their positions itself.
#[test]
#[ignore = "only with --full: split rings in the usual run"]
fn guests_in_qemu_with_packed_rings_and_two_workers_go_on_as_well() {
    survives("packed=on,", 2);
}
