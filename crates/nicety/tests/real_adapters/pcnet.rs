//! The PCnet under Linux's pcnet32: the tests of its other users; and two of them carry in both directions at once, for as long as
//! requested. QEMU's own model carries no frame between two pcnets, and its guest's driver has been seen to end.

use std::time::{Duration, Instant};

use nicety_guests::Guest;
use nicety_trials::scope::is_full;

use crate::{
    stage::{LATER, Stage, address, ping, quiet, sh, well},
    user_mode::machine,
};

/// Duration of traffic between two of them, in a normal and in a full run.
const DURATION: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(600)];
/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

fn guests<const N: usize>(adapters: [&str; N]) -> (Stage, [Guest; N]) {
    let stage = Stage::new(&adapters);
    let mut number = 0;
    let mut guests = [(); N].map(|()| {
        number += 1;
        well(Guest::start(&stage.root, stage.at_port(machine(1), number)))
    });
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    (stage, guests)
}

#[test]
fn linux_s_pcnet32_passes_its_loopback_test_and_reads_every_register_while_the_link_stays() {
    for adapter in ["pcnet", "vlance"] {
        let (stage, [mut guest, mut other]) = guests([adapter, "virtio-net"]);
        for _ in 0..3 {
            let text = well(guest.succeed("ethtool -t eth0 offline", LATER));
            assert!(text.contains("The test result is PASS"), "{text}");
            let dump = sh(&mut guest, "ethtool -d eth0");
            let status = dump.split_once("CSR00:").and_then(|(_, rest)| rest.split_whitespace().next());
            let status = status.and_then(|word| u16::from_str_radix(word, 16).ok()).unwrap_or_default();
            // A frame may go meanwhile: TINT, RINT, INTR.
            assert!(status & !0x0680 == 0x0073 && dump.contains("CSR88:   1003  0262"), "{dump}");
            ping(&mut guest, "", &address(2));
            ping(&mut other, "", &address(1));
        }
        assert_eq!(sh(&mut guest, "cat /sys/class/net/eth0/carrier"), "1\n");
        assert_eq!(stage.report("vm1")["bad_accesses"], 0, "{}", stage.report("vm1"));
        quiet(&mut guest);
    }
}

#[test]
fn two_pcnets_carry_both_ways_at_once_for_ten_seconds_or_of_everything_for_ten_minutes() {
    let (stage, mut both) = guests(["pcnet", "pcnet"]);
    for (guest, peer) in both.iter_mut().zip([2, 1]) {
        let sink = "(nc -l -p 9001 -e sh -c 'cat >/dev/null' >/dev/null 2>&1 &)";
        sh(guest, &format!("{sink}; until netstat -ltn | grep -q :9001; do rest; done"));
        ping(guest, "", &address(peer));
    }
    for (guest, peer) in both.iter_mut().zip([2, 1]) {
        sh(guest, &format!("(nc {} 9001 </dev/zero >/dev/null 2>&1 &)", address(peer)));
    }
    let (begin, lasts) = (Instant::now(), DURATION[usize::from(is_full())]);
    let mut before = ["vm1", "vm2"].map(|name| stage.received(name));
    while begin.elapsed() < lasts {
        std::thread::sleep(CHECK_INTERVAL);
        let now = ["vm1", "vm2"].map(|name| stage.received(name));
        assert!(now.iter().zip(before).all(|(now, before)| *now > before + 100), "{before:?}, then {now:?}");
        for (guest, peer) in both.iter_mut().zip([2, 1]) {
            ping(guest, "", &address(peer));
        }
        before = now;
    }
    println!("{before:?} frames received in {:?}", begin.elapsed());
    for (guest, name) in both.iter_mut().zip(["vm1", "vm2"]) {
        let errors =
            "cd /sys/class/net/eth0/statistics; cat rx_errors tx_errors rx_over_errors tx_fifo_errors tx_dropped";
        assert_eq!(sh(guest, errors), "0\n".repeat(5));
        let report = stage.report(name);
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
        quiet(guest);
    }
}
