//! TCP with segmentation between an e1000 and a virtio-net, as each guest's kernel receives it: a packet that both can carry whole
//! stays whole, and a checksum that the sender left to its adapter is not computed on the direction. Its copies are counted in the
//! simulation (`counts/moved.rs`).

use nicety_guests::{Guest, Layer};
use nicety_trials::scope::is_asked;

use crate::{
    counted::{Carried, Counted},
    sizes::{FILES, PACKAGES},
    stage::{Stage, address, ping, quiet, send, sh, well},
    user_mode::{machine, take},
};

/// MiB in each direction.
const BULK: u32 = 8;
/// Bytes of the longest frame, for an MTU of 1500.
const FRAME: u64 = 1514;
/// Inspects the TCP packets with data that the kernel has received from its adapter, and the driver's information on each
/// (`PACKET_VNET_HDR` in packet(7): ten bytes before it, a `struct virtio_net_hdr`), until it is stopped. It reports the number of
/// packets, of packets with several frames, and of packets whose checksum is still to be computed; the bytes of the longest one;
/// and the number of packets missed.
const INSPECT: &str = r#"socket(S, 17, 3, 8) or die $!; setsockopt(S, 1, 33, pack("i", 1 << 26)) or die $!; setsockopt(S, 263, 15, pack("i", 1)) or die $!;
setsockopt(S, 1, 20, pack("qq", 0, 100000)) or die $!; $SIG{TERM} = sub { $end = 1 }; $seen = $large = $partial = $longest = 0; open(F, ">/tmp/looks");
for (;;) { if (!defined(recv(S, $d, 70000, 0))) { last if $end; next; } next if ord(substr($d, 33, 1)) != 6 || length($d) <= 10 + 74; $seen++;
  ($flags, $kind) = unpack("CC", $d); $large++ if $kind; $partial++ if $flags & 1; $longest = length($d) - 10 if length($d) - 10 > $longest; }
$s = getsockopt(S, 263, 6) or die $!; ($all, $missed) = unpack("II", $s); print "$seen $large $partial $longest $missed";"#;

/// Packets that a guest's kernel received.
#[derive(Debug)]
struct Seen {
    packets: u64,
    /// Packets of several frames.
    large: u64,
    /// Packets with a checksum that is still to be computed.
    partial: u64,
    longest: u64,
}

/// Sends from one guest to the other, while [`INSPECT`] inspects the packets there.
fn inspect(from: &mut Guest, to: &mut Guest, address: &str) -> Seen {
    sh(
        to,
        &format!("rm -f /tmp/looks; (perl -e '{INSPECT}' >/tmp/seen 2>&1 &); until [ -e /tmp/looks ]; do rest; done"),
    );
    send(from, to, address, BULK);
    let text = sh(to, "killall perl; while pidof perl >/dev/null; do rest; done; cat /tmp/seen");
    let numbers: Vec<u64> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
    let Ok([packets, large, partial, longest, missed]) = <[u64; 5]>::try_from(numbers) else { panic!("{text}") };
    assert_eq!(missed, 0, "{text}");
    Seen { packets, large, partial, longest }
}

#[test]
fn tcp_from_an_e1000_reaches_virtio_net_whole_and_unsummed_and_from_virtio_net_an_e1000_in_frames_with_good_sums() {
    if !is_asked("e1000") || !is_asked("virtio-net") {
        return;
    }
    let layer = well(Layer::lay("perl", PACKAGES, &mut |line| eprintln!("{line}")));
    let stage = Stage::new(&["e1000", "virtio-net"]);
    let start = |number| well(Guest::start(&stage.root, stage.at_port(machine(1), number)));
    let (mut chip, mut rings) = (start(1), start(2));
    for guest in [&mut chip, &mut rings] {
        stage.ready(guest.wait_ready());
        take(guest, &layer, &FILES);
        sh(guest, "ethtool -K eth0 tso on gro off");
    }
    // The kernel must verify the checksums itself, and not trust our chip. Linux's e1000 uses the chip's verification from the
    // start (XsumRX in e1000_param.c), but tells the kernel that it does not: it turns off only what was turned on first.
    let carrier = "until has_carrier eth0; do rest; done";
    sh(&mut chip, &format!("for word in on off; do ethtool -K eth0 rx $word; {carrier}; done"));
    ping(&mut chip, "", &address(2));

    let at_rest = |chip: &mut Guest, rings: &mut Guest| {
        [(chip, "vm1"), (rings, "vm2")].map(|(guest, name)| Counted::at_rest(&stage, guest, name))
    };
    let lost = ["vm1", "vm2"].map(|name| lost(&stage, name));
    let first = at_rest(&mut chip, &mut rings);
    let seen = inspect(&mut chip, &mut rings, &address(2));
    let second = at_rest(&mut chip, &mut rings);
    let [[sent, _], [_, came]] = [0, 1].map(|guest: usize| second[guest].carried(&first[guest]));
    println!("e1000 to virtio-net: {seen:?}; packets, frames and bytes {sent:?} sent, {came:?} came");
    assert!(seen.longest > 8 * FRAME && seen.large > 0, "{seen:?}");
    assert_eq!(seen.partial, seen.packets, "sums that are still to be made");
    assert_eq!(cut(sent), cut(came));
    assert!(2 * cut(came) > came[1], "{came:?}");
    // The driver counts the packets that it receives: a packet in pieces would count several times. A port's count would still be
    // one.
    assert_eq!(second[1].more(&first[1], "interface rx_packets"), came[0]);

    let seen = inspect(&mut rings, &mut chip, &address(1));
    let third = at_rest(&mut chip, &mut rings);
    let [[_, came], [sent, _]] = [0, 1].map(|guest: usize| third[guest].carried(&second[guest]));
    println!("virtio-net to e1000: {seen:?}; packets, frames and bytes {sent:?} sent, {came:?} came");
    assert_eq!((seen.large, seen.partial, seen.longest), (0, 0, FRAME), "{seen:?}");
    assert!(2 * cut(sent) > sent[1], "{sent:?}");
    assert_eq!(cut(sent), cut(came));
    assert_eq!(third[0].more(&second[0], "rx_packets"), came[1], "the chip counts frames");
    assert_eq!(third[0].more(&first[0], "rx_csum_offload_good"), 0, "the kernel does the sums");

    // A kernel also retransmits packets that were only late: so the ports' drops show the losses.
    assert_eq!(["vm1", "vm2"].map(|name| self::lost(&stage, name)), lost);
    for (number, guest) in [&mut chip, &mut rings].into_iter().enumerate() {
        let more = |counter| third[number].more(&first[number], counter);
        assert_eq!((more("errors"), more("bad_sums")), (0, 0), "TCP of guest {}", number + 1);
        println!("guest {}: {} segments sent again", number + 1, more("sent_again"));
        quiet(guest);
    }
}

/// Drops of a port in both directions, by reason, except those of others' multicasts.
fn lost(stage: &Stage, name: &str) -> Vec<(String, serde_json::Value)> {
    let report = stage.report(name);
    let drops =
        ["transmit_drops", "receive_drops"].map(|direction| report[direction].as_object().cloned().unwrap_or_default());
    drops.into_iter().flatten().filter(|(reason, _)| reason != "filtered").collect()
}

/// Frames beyond the first of each packet.
fn cut([packets, frames, _]: Carried) -> u64 {
    frames - packets
}
