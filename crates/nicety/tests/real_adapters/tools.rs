//! An administrator's `ethtool` commands, for every adapter: the settings that its driver shows and changes, and that frames still
//! pass afterwards; and that guest and switch count alike.

use std::time::Instant;

use nicety_guests::Guest;
use nicety_trials::scope::in_linux as entries;

use crate::{
    packed::features,
    stage::{HOST, LATER, SOON, Stage, address, answered_each_once, change, ping, port, quiet, sh, well},
    user_mode::machine,
};

/// Options that show settings. A driver without a setting says so.
const SHOWN: [&str; 9] = ["-i", "-d", "-e", "-g", "-c", "-k", "-a", "-x", "-T"];
/// Commands that change settings, and the result if the driver accepts them: the command, the command that shows it, and a line of
/// its output.
const CHANGES: [(&str, &str, &str); 9] = [
    ("-G eth0 rx 512 tx 512", "-g eth0 | grep '^RX:' | tail -n 1", "RX:512"),
    ("-C eth0 rx-usecs 10", "-c eth0 | grep '^rx-usecs:'", "rx-usecs:10"),
    ("-C eth0 rx-usecs 3", "-c eth0 | grep '^rx-usecs:'", "rx-usecs:3"),
    ("-K eth0 rx off", "-k eth0 | grep '^rx-checksumming:'", "rx-checksumming:off"),
    ("-K eth0 rx on", "-k eth0 | grep '^rx-checksumming:'", "rx-checksumming:on"),
    ("-K eth0 tso off", "-k eth0 | grep '^tcp-segmentation-offload:'", "tcp-segmentation-offload:off"),
    ("-K eth0 tso on", "-k eth0 | grep '^tcp-segmentation-offload:'", "tcp-segmentation-offload:on"),
    ("-A eth0 autoneg off rx off tx off", "-a eth0 | grep '^RX:'", "RX:off"),
    ("-A eth0 autoneg off rx on tx on", "-a eth0 | grep '^RX:'", "RX:on"),
];
/// Messages of drivers and kernel about a missing feature.
const UNSUPPORTED: &str = "not supported|cannot get|cannot set|could not change|invalid argument|unmodified";

/// Runs ethtool. Returns its output; `None` if the driver lacks the feature.
fn ethtool(guest: &mut Guest, arguments: &str) -> Option<String> {
    let run = well(guest.run(&format!("ethtool {arguments} 2>&1"), SOON));
    let lacking = UNSUPPORTED.split('|').any(|message| run.text.to_lowercase().contains(message));
    assert!(run.code == 0 || lacking, "ethtool {arguments}: {} {}", run.code, run.text);
    (run.code == 0 && !lacking).then_some(run.text)
}

fn one(adapter: &str, cpus: u32) -> (Stage, Guest) {
    println!("{adapter}");
    let stage = Stage::new(&[adapter]);
    let guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(cpus), 1)));
    (stage, guest)
}

/// Removes a known kernel warning: pcnet32_set_ringparam in Linux's pcnet32.c frees memory with interrupts off. It is the driver's
/// own fault.
fn forgive(guest: &mut Guest) {
    sh(guest, "! dmesg | grep -q pcnet32_set_ringparam || dmesg -c >/dev/null");
}

fn carrier(guest: &mut Guest) {
    sh(guest, "until has_carrier eth0; do rest; done");
}

/// Adapters whose drivers hear of their own link. pcnet32 takes its cable for plugged in, over vhost-user the link is the VMM's, and
/// `functions.rs` has the functions'.
const HEAR_OF_THEIR_LINK: [&str; 6] = ["e1000", "e1000e", "igb", "rtl8139", "vmxnet3", "virtio-net-pci"];

/// The host takes the link down, and up again.
fn unplug(stage: &mut Stage, guest: &mut Guest) {
    change(stage, "port set vm1 link_state=disable");
    sh(guest, "until ! has_carrier eth0; do rest; done");
    assert_eq!(
        sh(guest, "cat /sys/class/net/eth0/carrier; ethtool eth0 | grep -o 'Link detected: .*'"),
        "0\nLink detected: no\n"
    );
    let before = stage.dropped("vm1");
    sh(guest, &format!("! /usr/bin/ping -c 1 -W 1 {HOST} >/dev/null"));
    let _never_answers = stage.namespace.run(&format!("ping -c 1 -W 1 {}", address(1)), SOON);
    assert!(stage.dropped("vm1") > before, "{}", stage.report("vm1"));
    change(stage, "port set vm1 link_state=");
    carrier(guest);
    // The neighbour was given up meanwhile: the first packet may be refused.
    sh(guest, &format!("until /usr/bin/ping -c 1 -W 1 {HOST} >/dev/null; do rest; done"));
    ping(guest, "", HOST);
}

/// Checks that guest and switch count the same frames, in both directions.
fn agree(stage: &Stage, guest: &mut Guest) {
    let read = |stage: &Stage, guest: &mut Guest| {
        let text =
            sh(guest, "cd /sys/class/net/eth0/statistics; ethtool -S eth0 >/dev/null 2>&1; cat tx_packets rx_packets");
        let own: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let report = stage.report("vm1");
        let sum = |way: &str| -> u64 {
            report[way].as_array().into_iter().flatten().filter_map(|queue| queue["frames"].as_u64()).sum()
        };
        (own, vec![sum("transmit"), sum("receive")])
    };
    // A kernel sends frames of its own at any time: two counts match only if nothing moves between the readings.
    let counted = |stage: &Stage, guest: &mut Guest| {
        let begin = Instant::now();
        let mut last = read(stage, guest);
        loop {
            let now = read(stage, guest);
            if now == last {
                return now;
            }
            last = now;
            assert!(begin.elapsed() < SOON, "the counters do not come to rest: {last:?}");
        }
    };
    let moved = |before: &[u64], after: &[u64]| -> Vec<u64> {
        after.iter().zip(before).map(|(after, before)| after - before).collect()
    };
    let before = counted(stage, guest);
    sh(guest, &format!("/usr/bin/ping -n -q -f -c 500 -s 1000 {HOST} >/dev/null"));
    let begin = Instant::now();
    loop {
        let after = counted(stage, guest);
        let (own, switchs) = (moved(&before.0, &after.0), moved(&before.1, &after.1));
        if own.len() == 2 && own == switchs && own[0] >= 500 && own[1] >= 500 {
            println!("frames out and in, by guest and switch: {own:?}");
            return;
        }
        assert!(begin.elapsed() < SOON, "the guest counted {own:?}, the switch {switchs:?}");
    }
}

#[test]
fn what_ethtool_shows_and_changes_every_driver_shows_and_takes_and_frames_go_on() {
    for entry in entries() {
        let name = entry.about.name;
        let (mut stage, mut guest) = one(name, 1);
        let has = |guest: &mut Guest| -> Vec<&str> {
            SHOWN.into_iter().filter(|shown| ethtool(guest, &format!("{shown} eth0")).is_some()).collect()
        };
        let shown = has(&mut guest);
        assert!(shown.contains(&"-i") && shown.contains(&"-k"), "{shown:?}");
        let mut taken = Vec::new();
        for (change, show, line) in CHANGES {
            if ethtool(&mut guest, change).is_none() {
                continue;
            }
            let now = sh(&mut guest, &format!("ethtool {show} | tr -d ' \\t'"));
            if now.contains("[fixed]") {
                continue;
            }
            assert_eq!(now.trim(), line, "after ethtool {change}");
            forgive(&mut guest);
            taken.push(change);
            carrier(&mut guest);
            ping(&mut guest, "", HOST);
        }
        println!("{name}: ethtool shows {shown:?}, and changes {taken:?}");
        agree(&stage, &mut guest);
        if HEAR_OF_THEIR_LINK.contains(&name) {
            unplug(&mut stage, &mut guest);
        }
        quiet(&mut guest);
        let report = stage.report("vm1");
        // A register dump also reads reserved registers, so bad accesses are not checked.
        assert_eq!(report["guest_errors"], 0, "{report}");
    }
}

/// Adapters whose drivers use a queue for each processor, an indirection table, and a self-test.
#[test]
fn several_queues_carry_as_the_driver_s_table_says() {
    let (stage, mut guest) = one("igb", 2);
    let channels = sh(&mut guest, "ethtool -l eth0 | tr -d ' \\t' | grep '^Combined:'");
    assert_eq!(channels, "Combined:8\nCombined:2\n", "a queue for each processor, of the driver's most");
    let queues = |guest: &mut Guest| -> Vec<u64> {
        let text = sh(guest, "ethtool -S eth0 | tr -d ' \\t' | grep -E '^rx_queue_[0-9]+_packets:' | cut -d: -f2");
        text.lines().filter_map(|line| line.parse().ok()).collect()
    };
    let flows = |guest: &mut Guest, table: &str| -> Vec<u64> {
        sh(guest, &format!("ethtool -X eth0 {table}"));
        let before = queues(guest);
        // Each connection to a closed port is a flow of its own, whose refusal comes back.
        sh(guest, &format!("for n in $(seq 9200 9263); do nc -w 1 {HOST} $n </dev/null >/dev/null 2>&1; done; true"));
        queues(guest).iter().zip(before).map(|(after, before)| after - before).collect()
    };
    let both = flows(&mut guest, "equal 2");
    assert!(both.len() == 2 && both.iter().all(|frames| *frames >= 8), "spread over both: {both:?}");
    let second = flows(&mut guest, "weight 0 1");
    assert!(second[1] >= 60 && second[0] < 8, "the table names the second alone: {second:?}");
    println!("igb: by the table's halves {both:?}, by its second queue alone {second:?}");
    let shown = sh(&mut guest, "ethtool -x eth0");
    assert!(shown.contains("RX flow hash indirection table"), "{shown}");
    sh(&mut guest, "ethtool -X eth0 default; ethtool -L eth0 combined 1");
    carrier(&mut guest);
    ping(&mut guest, "", HOST);
    sh(&mut guest, "ethtool -L eth0 combined 2");
    carrier(&mut guest);
    ping(&mut guest, "", HOST);
    let report = stage.report("vm1");
    let used = report["receive"].as_array().into_iter().flatten().filter(|queue| queue["frames"].as_u64() > Some(0));
    assert!(used.count() >= 2, "the switch counts them apart, too: {report}");
    quiet(&mut guest);
}

/// Connections to closed ports go out on the queues that Linux hashes them to, and their refusals arrive on the queues that RSS
/// selects. QEMU's own vmxnet3 receives only on its first queue.
#[test]
fn vmxnet3_carries_on_each_of_four_queues_both_ways() {
    let (stage, mut guest) = one("vmxnet3", 4);
    sh(&mut guest, &format!("for n in $(seq 9200 9299); do nc -w 1 {HOST} $n </dev/null >/dev/null 2>&1; done; true"));
    for way in ["transmit", "receive"] {
        let frames = stage.by_queue("vm1", way);
        println!("vmxnet3: {way} {frames:?} frames by queue");
        assert!(frames.len() == 4 && frames.iter().all(|&frames| frames >= 4), "{way}: {frames:?}");
    }
    assert_eq!(stage.report("vm1")["guest_errors"], 0);
    quiet(&mut guest);
}

/// Frames of 64 UDP flows that arrive on each of two queues after this command.
fn flows(stage: &mut Stage, guest: &mut Guest, set: &str) -> Vec<u64> {
    let queues = |stage: &Stage| -> Vec<u64> {
        // The daemon leaves out a queue without frames.
        stage.by_queue("vm1", "receive").into_iter().chain([0, 0]).take(2).collect()
    };
    // Each probe goes to another port: a flow of its own. Linux must refuse each at once: by default it refuses one a second.
    sh(guest, &format!("echo 0 >/proc/sys/net/ipv4/icmp_ratelimit; ethtool {set}"));
    ping(guest, "", HOST);
    let before = queues(stage);
    // Ports far apart: Toeplitz hashes are linear. With one in a hundred of the drivers' random keys, 64 consecutive ports (six
    // bits differ) would all hash to one of two queues.
    let ports = "$(\"$busybox\" seq 1031 4099 62516)";
    let one = format!("\"$busybox\" traceroute -n -q 4 -w 1 -m 1 -p $p {} >/dev/null", address(1));
    let probes = format!("for p in {ports}; do {one}; done");
    well(stage.namespace.run(&probes, LATER));
    queues(stage).iter().zip(before).map(|(after, before)| after - before).collect()
}

/// Version 4 of the device lets the driver choose the hash fields; in version 7 it asks whether UDP ports may be among them.
#[test]
fn vmxnet3_s_driver_has_udp_hashed_by_its_ports_and_coalesces_as_it_is_told() {
    let (mut stage, mut guest) = one("vmxnet3", 2);
    let mut flows = |guest: &mut Guest, set: &str| flows(&mut stage, guest, set);
    let fields = |guest: &mut Guest| sh(guest, "ethtool -n eth0 rx-flow-hash udp4");
    assert!(!fields(&mut guest).contains("L4 bytes"), "addresses alone at first");
    let alone = flows(&mut guest, "-X eth0 equal 2");
    assert!(alone.iter().any(|frames| *frames >= 64) && alone.iter().any(|frames| *frames < 8), "one queue: {alone:?}");
    let both = flows(&mut guest, "-N eth0 rx-flow-hash udp4 sdfn");
    assert!(both.len() == 2 && both.iter().all(|frames| *frames >= 8), "spread over both: {both:?}");
    assert!(fields(&mut guest).contains("L4 bytes"));
    let second = flows(&mut guest, "-X eth0 weight 0 1");
    assert!(second[1] >= 64 && second[0] < 8, "the table names the second alone: {second:?}");
    println!("UDP by addresses {alone:?}, by ports {both:?}, by the table's second queue alone {second:?}");

    let shown = |guest: &mut Guest| sh(guest, "ethtool -c eth0 | tr -d ' \\t'");
    assert!(shown(&mut guest).contains("AdaptiveRX:on"), "as it is");
    sh(&mut guest, "ethtool -C eth0 adaptive-rx off rx-usecs 5000; ip link set eth0 down; ip link set eth0 up");
    carrier(&mut guest);
    assert!(shown(&mut guest).contains("rx-usecs:5000"));
    // At most one interrupt a frame. How long a vector waits is counted in simulated time: crates/adapters/tests/vmxnet3/coalescing.rs.
    let counts = |stage: &Stage| {
        let frames: u64 =
            ["transmit", "receive"].map(|way| stage.by_queue("vm1", way).iter().sum::<u64>()).iter().sum();
        [stage.report("vm1")["interrupts"].as_u64().unwrap(), frames]
    };
    let before = counts(&stage);
    sh(&mut guest, &format!("/usr/bin/ping -n -q -f -c 200 {HOST} >/dev/null"));
    let after = counts(&stage);
    let [came, frames] = [0, 1].map(|of| after[of] - before[of]);
    assert!((1..=frames).contains(&came), "{came} interrupts for {frames} frames");
    for scheme in ["rx-usecs 0 rx-frames 4 tx-frames 8", "rx-frames 0 tx-frames 0", "adaptive-rx on"] {
        sh(&mut guest, &format!("ethtool -C eth0 {scheme}"));
        sh(&mut guest, &format!("/usr/bin/ping -n -q -f -c 200 {HOST} >/dev/null"));
    }
    assert_eq!(stage.report("vm1")["guest_errors"], 0);
    quiet(&mut guest);
}

/// The capability is in the extended configuration space, which is only visible directly: QEMU's client hides it from its guest.
#[test]
fn a_guest_sees_the_igb_s_virtual_functions_announced_in_extended_configuration_space() {
    let (_stage, mut guest) = one("igb", 1);
    let config = "/sys/class/net/eth0/device/config";
    assert_eq!(sh(&mut guest, &format!("stat -L -c %s {config}")), "4096\n");
    let dword = |guest: &mut Guest, at: u32| sh(guest, &format!("od -An -tx4 -j{at} -N4 {config}")).trim().to_owned();
    assert_eq!(dword(&mut guest, 0x160), "00010010", "SR-IOV, version 1, the last");
    assert_eq!(dword(&mut guest, 0x16c), "00080008", "eight of eight");
    assert!(dword(&mut guest, 0x178).starts_with("10ca"), "8086:10ca");
}

/// Registers, NVM, interrupt, loopback, link.
#[test]
fn the_igb_passes_every_self_test_of_its_driver() {
    let (_stage, mut guest) = one("igb", 1);
    let text = well(guest.succeed("ethtool -t eth0 offline", LATER));
    assert!(text.contains("The test result is PASS"), "{text}");
    carrier(&mut guest);
    ping(&mut guest, "", HOST);
    quiet(&mut guest);
}

/// The control queue's commands, which QEMU handles itself: by the user-mode kernel's own front end; and of a whole PCI function,
/// which alone supports a ring reset (VIRTIO_F_RING_RESET).
#[test]
fn linux_s_virtio_net_steers_by_its_table_coalesces_counts_and_sizes_its_rings_as_it_is_told() {
    /// RING_RESET, DEVICE_STATS, VQ_NOTF_COAL, NOTF_COAL, HASH_REPORT, RSS (virtio 1.3, 5.1.3 and 6).
    const TAKEN: [usize; 6] = [40, 50, 52, 53, 57, 60];
    for (adapter, taken) in [("virtio-net", &TAKEN[1..]), ("virtio-net-pci", &TAKEN[..])] {
        let mut port = port(adapter, 1);
        port.more = "queues = 2\n".into();
        let mut stage = Stage::with(vec![port]);
        let mut guest = stage.ready(Guest::boot(&stage.root, stage.at_port(machine(2), 1)));
        let bits = features(&mut guest);
        assert!(taken.iter().all(|bit| bits.contains(bit)), "{adapter}: {bits:?}");

        // The driver changes the hash fields only while receive hashing is on.
        let hashes = "ethtool -K eth0 rxhash on && ethtool -k eth0 | grep -q '^receive-hashing: on'";
        sh(&mut guest, &format!("ethtool -L eth0 combined 2; {hashes}; ethtool -N eth0 rx-flow-hash udp4 sdfn"));
        let both = flows(&mut stage, &mut guest, "-X eth0 equal 2");
        assert!(both.iter().all(|frames| *frames >= 8), "{adapter}: spread over both: {both:?}");
        let second = flows(&mut stage, &mut guest, "-X eth0 weight 0 1");
        assert!(second[1] >= 64 && second[0] < 8, "{adapter}: the table names the second alone: {second:?}");
        let key = ["6d"; 40].join(":");
        let same = flows(&mut stage, &mut guest, &format!("-X eth0 equal 2 hkey {key}"));
        assert!(sh(&mut guest, "ethtool -x eth0").contains(&key));
        let addresses = flows(&mut stage, &mut guest, "-N eth0 rx-flow-hash udp4 sd");
        assert!(addresses.iter().any(|frames| *frames < 8), "{adapter}: one queue: {addresses:?}");
        println!(
            "{adapter}: {both:?} by ports, {second:?} by the table, {same:?} by another key, {addresses:?} by addresses"
        );

        sh(&mut guest, "ethtool -C eth0 rx-usecs 5000 rx-frames 8 && ethtool -c eth0 | grep -q '^rx-usecs:.*5000'");
        sh(&mut guest, &format!("/usr/bin/ping -n -q -f -c 200 {HOST} >/dev/null"));
        let one =
            "ethtool -Q eth0 queue_mask 0x2 --coalesce rx-usecs 70; ethtool -Q eth0 queue_mask 0x2 --show-coalesce";
        let shown = sh(&mut guest, one);
        assert!(shown.contains("70"), "{adapter}: {shown}");
        sh(&mut guest, "ethtool -C eth0 rx-usecs 0 rx-frames 1");
        // The device's own counter of each queue, which the driver requests.
        let counted = sh(&mut guest, "ethtool -S eth0 | sed -n 's/^ *rx1_hw_packets: //p'");
        assert!(counted.trim().parse::<u64>().is_ok_and(|frames| frames >= 64), "{adapter}: {counted}");
        if taken.len() == TAKEN.len() {
            sh(
                &mut guest,
                "ethtool -G eth0 rx 64 tx 128 && ethtool -g eth0 | tr -d ' \\t' | tail -n +6 >/tmp/g; grep -q RX:64 /tmp/g && grep -q TX:128 /tmp/g",
            );
        }
        answered_each_once(&mut guest, "-s 1400", 500, HOST);
        assert_eq!(stage.report("vm1")["guest_errors"], 0);
        quiet(&mut guest);
    }
}
