//! Intel's chips beyond carrying frames, under Linux's drivers: what they count, held against the switch to the byte; igb's filters; the
//! longest frames.

use std::{collections::BTreeMap, fmt::Debug, time::Instant};

use nicety_adapters::find;
use nicety_guests::Guest;
use nicety_trials::extent::is_asked;

use crate::{
    stage::{HOST, SOON, Stage, address, ping, quiet, send, sh, well},
    user_mode::machine,
};

/// Every chip of the family.
const CHIPS: [&str; 5] = ["e1000", "e1000-82545em", "e1000-82544gc", "e1000e", "igb"];
/// What it moves each way for its counters, in MiB.
const BULK: u32 = 8;
/// Headers of a segment of TCP over IPv4 with time stamps: the daemon counts them once for each packet, a wire carries them with each frame.
const HEADERS: u64 = 66;
/// The check sequence, which the chips count with each frame.
const CHECK: u64 = 4;
/// Segments of the largest packet that Linux hands over.
const SEGMENTS_MAX: u64 = 65_536 / 1448 + 1;

/// Counters at one moment: those of `ethtool -S` and of the guest's TCP; packets, frames and bytes, out and in, at the switch.
#[derive(Clone, Debug, PartialEq)]
struct Counted {
    own: BTreeMap<String, u64>,
    switch: [[u64; 3]; 2],
}

impl Counted {
    fn read(stage: &Stage, guest: &mut Guest, name: &str) -> Counted {
        let tcp = "grep '^Tcp: [0-9]' /proc/net/snmp | cut -d ' ' -f 11 | sed 's/^/segments_in: /'";
        let text = sh(guest, &format!("ethtool -S eth0; {tcp}"));
        let pairs = text.lines().filter_map(|line| line.trim().split_once(": "));
        let own = pairs.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect();
        let report = stage.report(name);
        let switch = ["transmit", "receive"].map(|way| {
            ["packets", "frames", "bytes"]
                .map(|what| report[way].as_array().into_iter().flatten().filter_map(|queue| queue[what].as_u64()).sum())
        });
        Counted { own, switch }
    }

    fn at_rest(stage: &Stage, guest: &mut Guest, name: &str) -> Counted {
        at_rest(|| Counted::read(stage, guest, name))
    }

    /// What one of the driver's counters has gone up by.
    #[track_caller]
    fn more(&self, before: &Counted, counter: &str) -> u64 {
        let of = |counted: &Counted| counted.own.get(counter).copied();
        let of = |counted| of(counted).unwrap_or_else(|| panic!("no counter {counter}: {:?}", self.own));
        of(self) - of(before)
    }

    /// Frames out and in, their bytes on a wire, and how many of them a packet was cut into beyond its first.
    fn wire(&self, before: &Counted) -> [(u64, u64, u64); 2] {
        [0, 1].map(|way| {
            let [packets, frames, bytes] = [0, 1, 2].map(|n| self.switch[way][n] - before.switch[way][n]);
            (frames, bytes + HEADERS * (frames - packets) + CHECK * frames, frames - packets)
        })
    }
}

/// A kernel sends frames of its own at any time: counts belong together only if nothing moves from one reading to the next.
fn at_rest<T: PartialEq + Debug>(mut read: impl FnMut() -> T) -> T {
    let (begin, mut last) = (Instant::now(), read());
    loop {
        let now = read();
        if now == last {
            return now;
        }
        assert!(begin.elapsed() < SOON, "the counters do not come to rest: {last:?}, {now:?}");
        last = now;
    }
}

#[test]
fn after_bulk_tcp_with_segmentation_intel_s_counters_are_the_switch_s_to_the_frame_and_byte() {
    for chip in CHIPS.into_iter().filter(|chip| is_asked(chip)) {
        let stage = Stage::new(&[chip, "virtio-net"]);
        let start = |number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)));
        let (mut guest, mut peer) = (start(1), start(2));
        stage.ready(guest.wait_ready());
        stage.ready(peer.wait_ready());
        // TCP counts a merged packet once.
        sh(
            &mut guest,
            "ethtool -K eth0 rx on gro off tso on; until [ $(cat /sys/class/net/eth0/carrier) = 1 ]; do usleep 20000; done",
        );
        ping(&mut guest, "", &address(2));
        let before = Counted::at_rest(&stage, &mut guest, "vm1");
        send(&mut guest, &mut peer, &address(2), BULK);
        send(&mut peer, &mut guest, &address(1), BULK);
        let after = Counted::at_rest(&stage, &mut guest, "vm1");

        let [sent, received] = after.wire(&before);
        for (way, (frames, bytes, cut)) in [("tx", sent), ("rx", received)] {
            let own = ["packets", "bytes"].map(|what| after.more(&before, &format!("{way}_{what}")));
            assert_eq!(own, [frames, bytes], "{chip}, {way}: by its registers, and by the switch");
            assert!(cut > frames / 2, "{chip}, {way}: {cut} of {frames} frames were of packets that were cut");
        }
        let segmented = after.more(&before, "tx_tcp_seg_good");
        let most = sent.2;
        assert!(
            (most.div_ceil(SEGMENTS_MAX)..=most).contains(&segmented),
            "{chip}: {segmented} packets made {most} more"
        );
        for counter in ["tx_tcp_seg_failed", "rx_missed_errors", "rx_crc_errors", "rx_long_length_errors"] {
            assert_eq!(after.more(&before, counter), 0, "{chip}: {counter}");
        }
        let judged = if chip == "igb" {
            assert_eq!(after.more(&before, "rx_queue_0_csum_err"), 0, "{chip}");
            String::new()
        } else {
            let (good, segments) = (after.more(&before, "rx_csum_offload_good"), after.more(&before, "segments_in"));
            assert_eq!(
                (good, after.more(&before, "rx_csum_offload_errors")),
                (segments, 0),
                "{chip}: checksums judged"
            );
            format!(", {good} checksums good")
        };
        println!(
            "{chip}: out {sent:?}, in {received:?} (frames, bytes, of them cut), {segmented} packets segmented{judged}"
        );
        quiet(&mut guest);
    }
}

/// EtherType and VLAN priority, which Linux's igb programs. (For addresses it sets pools, which count only with virtual functions.)
#[test]
fn frames_arrive_on_the_queue_that_an_igb_s_filter_names() {
    let stage = Stage::new(&["igb", "virtio-net"]);
    let mut guest = well(Guest::start(&stage.root, stage.at_port(machine(2), 1)));
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 2)));
    stage.ready(guest.wait_ready());
    stage.ready(peer.wait_ready());
    for (guest, number) in [(&mut guest, 1), (&mut peer, 2)] {
        let add = "ip link add link eth0 name eth0.5 type vlan id 5 && ip link set eth0.5 up";
        sh(guest, &format!("{add} && ip addr add 10.9.5.{number}/24 dev eth0.5"));
    }
    sh(&mut peer, "vconfig set_egress_map eth0.5 0 6");
    // Everything else goes to the first queue.
    sh(&mut guest, "ethtool -X eth0 weight 1 0; ethtool -K eth0 ntuple on");
    let queues = |stage: &Stage, guest: &mut Guest| -> [[u64; 2]; 2] {
        let text = sh(guest, "ethtool -S eth0 | grep -E 'rx_queue_[01]_packets' | cut -d : -f 2");
        let own: Vec<u64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let report = stage.report("vm1");
        let of = |number: u64| {
            let mut queues = report["receive"].as_array().into_iter().flatten();
            queues.find(|queue| queue["queue"] == number).and_then(|queue| queue["frames"].as_u64()).unwrap_or(0)
        };
        [[own[0], own[1]], [of(0), of(1)]]
    };
    // What a filter catches, and the requests that are caught.
    let arp = "arping -q -c 4 -I eth0 10.9.3.1";
    let tagged = "/usr/bin/ping -n -q -c 4 -i 0.1 10.9.5.1";
    for (filter, requests) in [("flow-type ether proto 0x0806", arp), ("flow-type ether vlan 0xc000 m 0x1fff", tagged)]
    {
        ping(&mut peer, "", "10.9.5.1");
        let moved = |guest: &mut Guest, peer: &mut Guest| {
            let before = at_rest(|| queues(&stage, guest));
            sh(peer, requests);
            let after = at_rest(|| queues(&stage, guest));
            [0, 1].map(|who| [0, 1].map(|queue: usize| after[who][queue] - before[who][queue]))
        };
        let without = moved(&mut guest, &mut peer);
        assert!(without[0][1] == 0 && without[0][0] >= 4, "without a filter: {without:?}");
        let rule = sh(&mut guest, &format!("ethtool -N eth0 {filter} action 1"));
        let with = moved(&mut guest, &mut peer);
        println!("{filter}: {} by queue, guest's and switch's, before {without:?}, then {with:?}", rule.trim());
        assert!(with[0][1] >= 4, "{filter}: {with:?}");
        assert_eq!(with[0], with[1], "{filter}: guest and switch");
        let number = rule.trim().rsplit(' ').next().unwrap_or_default().to_owned();
        sh(&mut guest, &format!("ethtool -N eth0 delete {number}"));
        let again = moved(&mut guest, &mut peer);
        assert!(again[0][1] == 0 && again[0][0] >= 4, "after it has gone: {again:?}");
    }
    ping(&mut guest, "", HOST);
    quiet(&mut guest);
}

#[test]
fn intel_s_chips_carry_the_longest_frames_that_they_have_and_drop_longer_ones_as_too_long() {
    let chips = ["e1000", "e1000e", "igb"];
    let longest = chips.map(|chip| find(chip).map_or(0, |entry| entry.about.mtu_max));
    let stage = Stage::new(&[&chips[..], &["virtio-net"]].concat());
    let mut guests: Vec<Guest> =
        (1..=4).map(|number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)))).collect();
    guests.iter_mut().for_each(|guest| stage.ready(guest.wait_ready()));
    let Some((peer, guests)) = guests.split_last_mut() else { return };
    sh(peer, &format!("ip link set eth0 mtu {}", longest[0]));
    for ((number, guest), (chip, mtu)) in (1..).zip(&mut *guests).zip(chips.iter().zip(longest)) {
        let carrier = "until [ $(cat /sys/class/net/eth0/carrier) = 1 ]; do usleep 20000; done";
        sh(guest, &format!("ip link set eth0 mtu {mtu} && ! ip link set eth0 mtu {} 2>/dev/null; {carrier}", mtu + 1));
        ping(guest, &format!("-s {} -M do", mtu - 28), &address(4));
        ping(peer, &format!("-s {} -M do", mtu - 28), &address(number));
        send(guest, peer, &address(4), 8);
        send(peer, guest, &address(number), 8);
        let port = format!("vm{number}");
        let long = |stage: &Stage| stage.report(&port)["receive_drops"]["too-long"].as_u64().unwrap_or(0);
        let before = long(&stage);
        if mtu < longest[0] {
            // From 16 bytes above: it takes two tags.
            sh(peer, &format!("! /usr/bin/ping -n -q -c 3 -i 0.2 -W 1 -M do -s {} {}", mtu - 12, address(number)));
            assert_eq!(long(&stage) - before, 3, "{chip}: {}", stage.report(&port));
        }
        println!("{chip}: frames for an MTU of {mtu}, both ways");
        quiet(guest);
        let report = stage.report(&port);
        assert_eq!((&report["guest_errors"], &report["bad_accesses"]), (&0.into(), &0.into()), "{report}");
    }
}
