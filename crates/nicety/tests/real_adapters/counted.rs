//! Counters of adapters and Linux's drivers, compared with the switch: Intel's, vmxnet3's and virtio-net's to the byte, Realtek's
//! to the frame.

use std::{collections::BTreeMap, fmt::Debug, time::Instant};

use nicety_guests::{Guest, Kernel};
use nicety_trials::scope::{entries, is_asked};

use crate::{
    stage::{HOST, SOON, Stage, address, ping, port, quiet, send, sh, well},
    user_mode::machine,
};

/// Every chip of the family.
const CHIPS: [&str; 5] = ["e1000", "e1000-82545em", "e1000-82544gc", "e1000e", "igb"];
/// MiB that are sent in each direction for the counters.
const BULK: u32 = 8;
/// Headers of a TCP segment over IPv4 with time stamps: the daemon counts them once per packet, a wire carries them with each
/// frame.
const HEADERS: u64 = 66;
/// TCP payload in each frame of a packet except the last.
const PAYLOAD: u64 = 1448;
/// Bytes of the check sequence, which the chips count with each frame.
const CHECK: u64 = 4;
/// Most segments in a packet from Linux.
const SEGMENTS_MAX: u64 = 65_536 / PAYLOAD + 1;
/// Padding of a reset. A port counts a frame below Ethernet's shortest as padded, as a chip does; virtio-net's driver counts it
/// unpadded. Without ARP requests only TCP's bare resets are so short (54 bytes), and the kernel has a counter for them.
const RESET_PADDING: u64 = 6;
/// Queue pairs of an adapter that is counted by queue.
const QUEUES: u64 = 2;
/// Connections to closed ports of the host. Each one uses the queues that its addresses and ports hash to.
const FLOWS: &str = "for n in $(seq 9200 9263); do nc -w 1 HOST $n </dev/null >/dev/null 2>&1; done; true";

/// Packets, frames and bytes of a queue, or of several.
pub type Carried = [u64; 3];

/// Counters at one moment: the guest's TCP, its interface and `ethtool -S`; and each queue at the switch, out and in.
#[derive(Clone, Debug, PartialEq)]
pub struct Counted {
    own: BTreeMap<String, u64>,
    switch: [BTreeMap<u64, Carried>; 2],
}

impl Counted {
    fn read(stage: &Stage, guest: &mut Guest, name: &str) -> Counted {
        let tcp = "awk '/^Tcp: [0-9]/ { print \"segments_in: \" $11; print \"sent_again: \" $13; print \"errors: \" $14; \
                   print \"resets: \" $15; print \"bad_sums: \" $16 }' /proc/net/snmp";
        let interface = "cd /sys/class/net/eth0/statistics; for n in [rt]x_packets [rt]x_bytes; do echo \"interface $n: $(cat $n)\"; done";
        let text = sh(guest, &format!("{tcp}; {interface}; ethtool -S eth0"));
        let (mut own, mut queue) = (BTreeMap::new(), String::new());
        for (name, value) in text.lines().filter_map(|line| line.trim().split_once(": ")) {
            let Ok(value) = value.trim().parse() else { continue };
            // vmxnet3's names are the same for all queues: a line that names the queue precedes its counters.
            if let Some(direction) = name.strip_suffix(" Queue#") {
                queue = format!("{direction}{value} ");
                continue;
            }
            own.insert(format!("{queue}{name}"), value);
        }
        let report = stage.report(name);
        let switch = ["transmit", "receive"].map(|direction| {
            let queues = report[direction].as_array().into_iter().flatten();
            let carried = |queue: &serde_json::Value| ["packets", "frames", "bytes"].map(|what| queue[what].as_u64());
            queues
                .filter_map(|queue| match (queue["queue"].as_u64(), carried(queue)) {
                    (Some(number), [Some(packets), Some(frames), Some(bytes)]) => {
                        Some((number, [packets, frames, bytes]))
                    }
                    _ => None,
                })
                .collect()
        });
        Counted { own, switch }
    }

    pub fn at_rest(stage: &Stage, guest: &mut Guest, name: &str) -> Counted {
        at_rest(|| Counted::read(stage, guest, name))
    }

    /// Increase of one of the driver's counters.
    #[track_caller]
    pub fn more(&self, before: &Counted, counter: &str) -> u64 {
        let of = |counted: &Counted| counted.own.get(counter).copied();
        let of = |counted| of(counted).unwrap_or_else(|| panic!("no counter {counter}: {:?}", self.own));
        of(self) - of(before)
    }

    /// Resets sent by the guest's TCP, for counters of transmitted packets. Received ones are counted with their padding.
    fn resets(&self, before: &Counted, direction: &str) -> u64 {
        if direction == "tx" { self.more(before, "resets") } else { 0 }
    }

    /// Increase of each queue's counters, out and in.
    fn by_queue(&self, before: &Counted) -> [BTreeMap<u64, Carried>; 2] {
        [0, 1].map(|direction| {
            let earlier = |queue: &u64| before.switch[direction].get(queue).copied().unwrap_or_default();
            let since = |(queue, now): (&u64, &Carried)| {
                let then = earlier(queue);
                (*queue, [0, 1, 2].map(|n| now[n] - then[n]))
            };
            self.switch[direction].iter().map(since).collect()
        })
    }

    /// Sum over all queues, out and in.
    pub fn carried(&self, before: &Counted) -> [Carried; 2] {
        let all = |queues: BTreeMap<u64, Carried>| {
            queues.into_values().fold([0; 3], |sum: Carried, queue| [0, 1, 2].map(|n| sum[n] + queue[n]))
        };
        self.by_queue(before).map(all)
    }

    /// Frames out and in, their bytes on a wire, and the number of frames beyond the first of each packet.
    fn wire(&self, before: &Counted) -> [(u64, u64, u64); 2] {
        self.carried(before).map(|[packets, frames, bytes]| {
            (frames, bytes + HEADERS * (frames - packets) + CHECK * frames, frames - packets)
        })
    }
}

/// Reads until two readings are equal: a kernel sends frames of its own at any time, so counters match only while nothing moves.
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

/// Sends [`BULK`] in each direction between a guest with this adapter and this set-up, and one with virtio-net. Returns the stage,
/// the guest, and the counters before and after.
fn bulk(adapter: &str, set_up: &str) -> (Stage, Guest, Counted, Counted) {
    let stage = Stage::new(&[adapter, "virtio-net"]);
    let guest = well(Guest::start(&stage.root, stage.at_port(machine(1), 1)));
    moved(stage, guest, set_up, "true")
}

/// Like [`bulk`], with a given stage and its first port's guest, which runs `also` before the counters are read.
fn moved(mut stage: Stage, mut guest: Guest, set_up: &str, also: &str) -> (Stage, Guest, Counted, Counted) {
    let mut peer = well(Guest::start(&stage.root, stage.at_port(machine(1), 2)));
    stage.ready(guest.wait_ready());
    stage.ready(peer.wait_ready());
    sh(&mut guest, set_up);
    for to in [&*address(2), HOST] {
        ping(&mut guest, "", to);
    }
    add_static_arp(&mut stage, &mut guest, &mut peer);
    let before = Counted::at_rest(&stage, &mut guest, "vm1");
    send(&mut guest, &mut peer, &address(2), BULK);
    send(&mut peer, &mut guest, &address(1), BULK);
    sh(&mut guest, also);
    let after = Counted::at_rest(&stage, &mut guest, "vm1");
    (stage, guest, before, after)
}

/// Makes static ARP entries, so no ARP requests are sent from here on: see [`RESET_PADDING`].
fn add_static_arp(stage: &mut Stage, guest: &mut Guest, peer: &mut Guest) {
    sh(guest, "awk 'NR > 1 { print $1, $4 }' /proc/net/arp | while read to mac; do arp -s $to $mac; done");
    let known = format!("arp -s {} {}", address(1), port("virtio-net", 1).mac);
    sh(peer, &known);
    well(stage.namespace.run(&format!("\"$busybox\" {known}"), SOON));
}

/// A stage with two ports: this adapter with [`QUEUES`], and a virtio-net.
fn several_queues(adapter: &str) -> Stage {
    let mut ports = vec![port(adapter, 1), port("virtio-net", 2)];
    ports[0].more = format!("queues = {QUEUES}\n");
    Stage::with(ports)
}

/// Checks that each queue carried frames in both directions, and that most frames were segments of cut packets, or would be on a
/// wire.
#[track_caller]
fn check_queues(adapter: &str, after: &Counted, before: &Counted) {
    for (direction, queues) in ["out", "in"].into_iter().zip(after.by_queue(before)) {
        println!("{adapter}, {direction}: packets, frames and bytes by queue {queues:?}");
        let used = queues.values().filter(|[_, frames, _]| *frames > 0).count();
        assert_eq!(used as u64, QUEUES, "{adapter}, {direction}: {queues:?}");
        let [packets, frames] = [0, 1].map(|n| queues.values().map(|queue| queue[n]).sum::<u64>());
        assert!(frames - packets > frames / 2, "{adapter}, {direction}: {frames} frames of {packets} packets");
    }
}

#[test]
fn after_bulk_tcp_with_segmentation_intel_s_counters_are_the_switch_s_to_the_frame_and_byte() {
    for chip in entries().iter().map(|entry| entry.about.name).filter(|name| CHIPS.contains(name)) {
        // TCP counts a merged packet once.
        let carrier = "until has_carrier eth0; do rest; done";
        let (_stage, mut guest, before, after) =
            bulk(chip, &format!("ethtool -K eth0 rx on gro off tso on; {carrier}"));

        let [sent, received] = after.wire(&before);
        for (direction, (frames, bytes, cut)) in [("tx", sent), ("rx", received)] {
            let own = ["packets", "bytes"].map(|what| after.more(&before, &format!("{direction}_{what}")));
            assert_eq!(own, [frames, bytes], "{chip}, {direction}: by its registers, and by the switch");
            assert!(cut > frames / 2, "{chip}, {direction}: {cut} of {frames} frames were of packets that were cut");
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

/// All vmxnet3 counters except those of losses come from the device: the driver has them written into memory (GET_STATS) and adds
/// them up (`vmxnet3_get_stats64` and `vmxnet3_tq_dev_stats` in Linux's vmxnet3_ethtool.c). According to that driver's upt1_defs.h
/// a TSO packet counts as the frames that it is cut into, and a packet received whole (LRO) as the frames that it was made of. Its
/// bytes are the packet's, without the headers that a wire would repeat with each further frame: so they equal the switch's.
#[test]
fn after_bulk_tcp_with_segmentation_a_vmxnet3_s_counters_are_the_switch_s_by_queue_to_the_frame_and_byte() {
    if !is_asked("vmxnet3") {
        return;
    }
    let stage = several_queues("vmxnet3");
    let guest = well(Guest::start(&stage.root, stage.at_port(machine(QUEUES as u32), 1)));
    let set_up = "ethtool -K eth0 tso on rx on lro on gro off";
    let (_stage, mut guest, before, after) = moved(stage, guest, set_up, &FLOWS.replace("HOST", HOST));
    check_queues("vmxnet3", &after, &before);
    let names = [("Tx", "tx", ["TSO pkts tx", "TSO bytes tx"]), ("Rx", "rx", ["LRO pkts rx", "LRO byte rx"])];
    for ((prefix, direction, large), queues) in names.into_iter().zip(after.by_queue(&before)) {
        for (queue, [packets, frames, bytes]) in queues {
            let of = |counter: &str| after.more(&before, &format!("{prefix}{queue} {counter}"));
            let sum = |what: &str| {
                ["ucast", "mcast", "bcast"].map(|cast| of(&format!("{cast} {what} {direction}"))).iter().sum()
            };
            let own: [u64; 2] = ["pkts", "bytes"].map(sum);
            assert_eq!(own, [frames, bytes], "{direction} queue {queue}: by the device, and by the switch");
            // No counter has the number of large packets: derive it from the frames beyond the first.
            let [segments, large_bytes] = large.map(of);
            let (cut, count) = (frames - packets, segments - (frames - packets));
            assert!(
                (cut.div_ceil(SEGMENTS_MAX)..=cut).contains(&count),
                "{direction} queue {queue}: {count} made {cut} more"
            );
            // All frames of such a packet except the last are full.
            let payload = large_bytes - HEADERS * count;
            assert!(
                (PAYLOAD * cut + count..=PAYLOAD * segments).contains(&payload),
                "{direction} queue {queue}: {payload} bytes of payload in {segments} frames of {count} packets"
            );
            println!(
                "vmxnet3, {direction} queue {queue}: {count} large packets of {segments} frames and {large_bytes} bytes"
            );
            let lost = match direction {
                "tx" => ["pkts tx err", "pkts tx discard", "drv dropped tx total"],
                _ => ["pkts rx err", "drv dropped rx total", "rx buf alloc fail"],
            };
            for counter in lost {
                assert_eq!(of(counter), 0, "{direction} queue {queue}: {counter}");
            }
        }
    }
    let all = [0, 1].map(|direction| after.carried(&before)[direction]);
    for (direction, [_, frames, bytes]) in ["tx", "rx"].into_iter().zip(all) {
        let own = ["packets", "bytes"].map(|what| after.more(&before, &format!("interface {direction}_{what}")));
        assert_eq!(own, [frames, bytes], "{direction}: by the interface, and by the switch");
    }
    // A packet that arrives whole counts once for TCP; in addition there are a few packets such as ARP.
    let (packets, segments) = (all[1][0], after.more(&before, "segments_in"));
    assert!((segments..segments + 50).contains(&packets), "{packets} packets came, {segments} for TCP");
    quiet(&mut guest);
}

/// `ethtool -S` has the device's own counters of each queue (`hw`: virtio 1.3, 5.1.6.5.10, requested through the control queue).
/// The interface has the driver's, which are sums of its counters per queue (`virtnet_stats` in Linux's virtio_net.c). All of them
/// count packets: a large packet counts once, with its headers once. Neither device nor driver counts frames, so the test compares
/// the switch's packets.
#[test]
fn after_bulk_tcp_with_segmentation_virtio_net_s_counters_and_its_driver_s_are_the_switch_s_to_the_packet_and_byte() {
    for adapter in ["virtio-net", "virtio-net-pci"].into_iter().filter(|adapter| is_asked(adapter)) {
        let stage = several_queues(adapter);
        let guest = well(Guest::start(&stage.root, stage.at_port(machine(QUEUES as u32), 1)));
        let set_up = format!("ethtool -L eth0 combined {QUEUES}; ethtool -K eth0 tso on gro off");
        let (_stage, mut guest, before, after) = moved(stage, guest, &set_up, &FLOWS.replace("HOST", HOST));
        check_queues(adapter, &after, &before);
        for (direction, queues) in ["tx", "rx"].into_iter().zip(after.by_queue(&before)) {
            for (queue, [packets, _, bytes]) in queues {
                let own =
                    ["packets", "bytes"].map(|what| after.more(&before, &format!("{direction}{queue}_hw_{what}")));
                assert_eq!(
                    own,
                    [packets, bytes],
                    "{adapter}, {direction} queue {queue}: by the device, and by the switch"
                );
            }
        }
        check_interface_counters(adapter, &after, &before);
        assert_eq!(after.more(&before, "rx_drops"), 0, "{adapter}");
        quiet(&mut guest);
    }
}

/// Linux 6.1's virtio_net.c shows the driver's own counters of each queue by `ethtool -S`; later versions only by netlink. QEMU
/// handles the control queue itself, so the device's counters are not available.
#[test]
fn after_bulk_tcp_with_segmentation_what_linux_6_1_counts_of_each_queue_in_qemu_is_what_the_switch_counts() {
    if !is_asked("virtio-net") {
        return;
    }
    let stage = several_queues("virtio-net");
    let mut config = stage.config(Kernel::V6_1, 1);
    config.cpus = QUEUES as u32;
    for word in &mut config.devices {
        *word = word.replace("vhost-user,", &format!("vhost-user,queues={QUEUES},"));
        *word = word.replace("virtio-net-pci,", &format!("virtio-net-pci,mq=on,vectors={},", 2 * QUEUES + 2));
    }
    let guest = well(Guest::start(&stage.root, config));
    let set_up = format!("ethtool -L eth0 combined {QUEUES}; ethtool -K eth0 tso on gro off");
    let (_stage, mut guest, before, after) = moved(stage, guest, &set_up, &FLOWS.replace("HOST", HOST));
    check_queues("virtio-net in QEMU", &after, &before);
    for (direction, queues) in ["tx", "rx"].into_iter().zip(after.by_queue(&before)) {
        for (queue, carried) in queues {
            let own =
                ["packets", "bytes"].map(|what| after.more(&before, &format!("{direction}_queue_{queue}_{what}")));
            check_driver_counters(
                &format!("{direction} queue {queue}"),
                own,
                carried,
                after.resets(&before, direction),
            );
        }
    }
    check_interface_counters("virtio-net in QEMU", &after, &before);
    quiet(&mut guest);
}

/// Checks that the interface counts the switch's packets and bytes.
#[track_caller]
fn check_interface_counters(adapter: &str, after: &Counted, before: &Counted) {
    for (direction, carried) in ["tx", "rx"].into_iter().zip(after.carried(before)) {
        let own = ["packets", "bytes"].map(|what| after.more(before, &format!("interface {direction}_{what}")));
        check_driver_counters(&format!("{adapter}, {direction}"), own, carried, after.resets(before, direction));
    }
}

/// Checks that the driver's packets and bytes are the switch's, except for the padding of at most `resets` resets.
#[track_caller]
fn check_driver_counters(what: &str, own: [u64; 2], [packets, _, bytes]: Carried, resets: u64) {
    let padded = (0..=resets).any(|count| own[1] + RESET_PADDING * count == bytes);
    assert!(
        own[0] == packets && padded,
        "{what}: {own:?} by the driver, {packets} and {bytes} by the switch, {resets} resets"
    );
}
