//! What chips count, under Linux's drivers, held against the switch: Intel's to the byte, Realtek's to the frame.

use std::{collections::BTreeMap, fmt::Debug, time::Instant};

use nicety_guests::Guest;
use nicety_trials::extent::{entries, is_asked};

use crate::{
    stage::{SOON, Stage, address, ping, quiet, send, sh, well},
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

/// Moves [`BULK`] each way between a guest with this adapter, set up so, and one with virtio-net: the daemon, the guest, and what was
/// counted before and after.
fn bulk(adapter: &str, set_up: &str) -> (Stage, Guest, Counted, Counted) {
    let stage = Stage::new(&[adapter, "virtio-net"]);
    let start = |number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)));
    let (mut guest, mut peer) = (start(1), start(2));
    stage.ready(guest.wait_ready());
    stage.ready(peer.wait_ready());
    sh(&mut guest, set_up);
    ping(&mut guest, "", &address(2));
    let before = Counted::at_rest(&stage, &mut guest, "vm1");
    send(&mut guest, &mut peer, &address(2), BULK);
    send(&mut peer, &mut guest, &address(1), BULK);
    let after = Counted::at_rest(&stage, &mut guest, "vm1");
    (stage, guest, before, after)
}

#[test]
fn after_bulk_tcp_with_segmentation_intel_s_counters_are_the_switch_s_to_the_frame_and_byte() {
    for chip in entries().iter().map(|entry| entry.about.name).filter(|name| CHIPS.contains(name)) {
        // TCP counts a merged packet once.
        let carrier = "until [ $(cat /sys/class/net/eth0/carrier) = 1 ]; do usleep 20000; done";
        let (_stage, mut guest, before, after) =
            bulk(chip, &format!("ethtool -K eth0 rx on gro off tso on; {carrier}"));

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

#[test]
fn after_bulk_tcp_with_segmentation_an_rtl8139_s_counters_are_the_switch_s_to_the_frame() {
    if !is_asked("rtl8139") {
        return;
    }
    let (_stage, mut guest, before, after) = bulk("rtl8139", "ethtool -K eth0 sg on tx on tso on");
    let [(sent, _, cut), (received, ..)] = after.wire(&before);
    let own = ["tx_ok", "rx_ok"].map(|counter| after.more(&before, counter));
    assert_eq!(own, [sent, received], "by its dump, and by the switch");
    assert!(cut > sent / 2, "{cut} of {sent} frames were of packets that were cut");
    println!("rtl8139: {sent} frames out, {cut} of them cut, {received} in");
    quiet(&mut guest);
}
