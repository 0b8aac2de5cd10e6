//! Mixed traffic, on the adapters that hypervisors serve worst and on paravirtual ones: TCP in both directions, requests of every
//! size, datagrams, an interface that goes down and up. In a normal run for seconds; in a full run for two hours, and for ten
//! minutes.

use std::{
    thread,
    time::{Duration, Instant},
};

use nicety_guests::Guest;
use nicety_trials::scope::{is_asked, is_full};

use crate::{
    stage::{Stage, address, amount, ping, quiet, send, sh, side_by_side, well},
    user_mode::machine,
};

/// One chip for each driver.
const CLASSIC: [&str; 4] = ["pcnet", "rtl8139", "rtl8139-plain", "ne2k_pci"];
/// Paravirtual adapters with a Linux driver.
const PARAVIRTUAL: [&str; 3] = ["vmxnet3", "virtio-net", "virtio-net-pci"];
/// Duration per adapter, in a normal run.
const SHORT: Duration = Duration::from_secs(8);
/// Duration of streams and datagrams in one round.
const STREAMS: Duration = Duration::from_secs(2);

/// Two user-mode guests with this adapter, and a sink for streams in each.
fn pair(adapter: &str) -> (Stage, [Guest; 2]) {
    let stage = Stage::new(&[adapter, adapter]);
    let mut both = [1, 2].map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number))));
    for guest in &mut both {
        stage.ready(guest.wait_ready());
        let sink = "(while nc -l -p 9001 -e sh -c 'cat >/dev/null'; do :; done >/dev/null 2>&1 &)";
        sh(guest, &format!("{sink}; netserver -4 >/dev/null </dev/null 2>&1"));
        sh(guest, "until netstat -ltn | grep -q :9001; do rest; done");
    }
    (stage, both)
}

/// All kinds of traffic at once, then a file whose bytes are compared.
fn round(adapter: &str, stage: &Stage, both: &mut [Guest; 2], number: u32) {
    let before = ["vm1", "vm2"].map(|name| stage.received(name));
    for (guest, peer) in both.iter_mut().zip([address(2), address(1)]) {
        sh(guest, &format!("(nc {peer} 9001 </dev/zero >/dev/null 2>&1 &)"));
        let datagrams = format!("netperf -4 -H {peer} -t UDP_STREAM -l {} -- -m 200", STREAMS.as_secs());
        sh(guest, &format!("({datagrams} >/dev/null 2>&1 &)"));
        let size = number * 131 % 1472;
        let requests = format!("/usr/bin/ping -n -q -f -w {} -s {size} {peer}", STREAMS.as_secs());
        sh(guest, &format!("({requests} >/dev/null 2>&1 &)"));
    }
    thread::sleep(STREAMS);
    both.iter_mut().for_each(|guest| _ = sh(guest, "killall nc netperf ping; true"));
    let after = ["vm1", "vm2"].map(|name| stage.received(name));
    assert!(after.iter().zip(before).all(|(after, before)| *after > before + 100), "{before:?}, then {after:?}");
    for guest in both.iter_mut() {
        let sink = "netstat -ltn | grep -q :9001 || (while nc -l -p 9001 -e sh -c 'cat >/dev/null'; do :; done >/dev/null 2>&1 &)";
        sh(guest, &format!("{sink}; until netstat -ltn | grep -q :9001; do rest; done"));
    }
    let [left, right] = both;
    let carrier = "until has_carrier eth0; do rest; done";
    sh(left, &format!("ip link set eth0 down; ip link set eth0 up; {carrier}"));
    ping(left, "", &address(2));
    send(left, right, &address(2), amount(adapter, 8));
    send(right, left, &address(1), amount(adapter, 8));
}

/// Runs all these adapters at the same time, for seconds, or for `long` in a full run. Drivers must not log anything.
fn carry(adapters: &[&str], long: Duration) {
    let adapters: Vec<&str> = adapters.iter().copied().filter(|adapter| is_asked(adapter)).collect();
    let lasts = if is_full() { long } else { SHORT };
    side_by_side(&adapters, |adapter| {
        let (stage, mut both) = pair(adapter);
        let (begin, mut rounds) = (Instant::now(), 0);
        while begin.elapsed() < lasts {
            rounds += 1;
            round(adapter, &stage, &mut both, rounds);
            both.iter_mut().for_each(quiet);
        }
        let frames = ["vm1", "vm2"].map(|name| stage.received(name));
        println!("{adapter}: {rounds} rounds, {frames:?} frames received in {:?}", begin.elapsed());
        for name in ["vm1", "vm2"] {
            let report = stage.report(name);
            assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
        }
    });
}

#[test]
fn classic_adapters_carry_mixed_traffic_for_seconds_or_of_everything_for_two_hours_without_a_driver_s_word() {
    carry(&CLASSIC, Duration::from_secs(7200));
}

#[test]
fn paravirtual_adapters_carry_mixed_traffic_for_seconds_or_of_everything_for_ten_minutes_without_a_driver_s_word() {
    carry(&PARAVIRTUAL, Duration::from_secs(600));
}
