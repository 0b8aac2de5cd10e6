//! The processor time that a frame costs between two tunnels, or between two taps that the kernel's bridges and `vxlan` devices join, on one
//! thread.
//!
//! ```sh
//! cargo build --release -p nicety-uplink --example tunnel
//! for way in nicety kernel; do unshare -Urn target/release/examples/tunnel packets 1 single $way; done
//! unshare -Urn strace -c -e trace=sendmmsg,recvmmsg target/release/examples/tunnel frames 8
//! ```
//! The first argument is what the guests send: `packets` of 60,000 bytes that are to be cut, TCP `frames` of 1,500 bytes in sequence, or
//! `short` frames of 64 bytes. The second one is the number of flows, one frame of each in turn. The third one is the cable, a veth pair:
//! `uncut` passes on what is not cut, as a card does that cuts tunnelled packets; with `single` the kernel cuts before the cable, and joins
//! behind it (GRO). The last one is the way. It needs `ip` and `ethtool`.

#[path = "../tests/elsewhere/mod.rs"]
mod elsewhere;
mod help;

use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use elsewhere::Elsewhere;
use nicety_adapter::{
    Batch, Budget, Checksum, Counters, Edit, Frames, Offload, Pick, PortId, Segment, SegmentKind, Time, Uplink,
};
use nicety_frame::{Layout, Mac, Tag, Tci, Vni, checksum};
use nicety_memory::Map;
use nicety_uplink::{Hop, Hops, Network, Tap, VXLAN_PORT, Vxlan, VxlanSettings};

const TIME: Duration = Duration::from_secs(3);
const ENDS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// Leaves guests 1500 bytes.
const UNDER_MTU: u16 = 1550;
const VLAN: u16 = 10;
const NETWORK: u32 = 5010;
const TARGET: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn run(words: &str) {
    let mut words = words.split(' ');
    let status = Command::new(words.next().unwrap_or_default()).args(words).status();
    assert!(status.expect("a program").success(), "the command failed");
}

/// A full batch of packets, one of each flow in turn.
fn packets(what: &str, flows: usize) -> Batch {
    let (len, protocol) = match what {
        "packets" => (60_000, 6),
        "frames" => (1514, 6),
        _ => (60, 17),
    };
    let map = Arc::new(Map::private(64 * len).expect("memory"));
    let mut batch = Batch::new();
    batch.start(&map, PortId(0), 0);
    while Budget::TURN.allows(&batch) {
        let (number, at) = (batch.len(), batch.len() * len);
        let mut frame = vec![0u8; len];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..34].copy_from_slice(&[0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 9, 8, 2, 10, 9, 8, 1]);
        frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        // The packets of a flow follow each other without a gap.
        frame[18..20].copy_from_slice(&((number / flows) as u16).to_be_bytes());
        frame[34..38].copy_from_slice(&[((number % flows) >> 8) as u8, (number % flows) as u8, 0, 80]);
        if protocol == 6 {
            frame[38..42].copy_from_slice(&((number / flows * (len - 54)) as u32).to_be_bytes());
            frame[46..48].copy_from_slice(&[0x50, 0x10]);
        } else {
            frame[38..40].copy_from_slice(&((len - 34) as u16).to_be_bytes());
        }
        let header = checksum::sum(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&header.to_be_bytes());
        let layout = Layout::parse(&frame);
        let offload = if what == "packets" {
            let field = checksum::prepare(&mut frame, &layout, len as u32).expect("TCP");
            let segment = Segment { kind: SegmentKind::Tcp, mss: 1446, headers: 54 };
            Offload { checksum: Checksum::Partial { start: 34, field }, segment: Some(segment) }
        } else {
            checksum::fill(&mut frame, &layout).expect("a transport header");
            Offload::default()
        };
        map.write(at as u64, &frame).expect("room");
        let mut draft = batch.draft(54).expect("room");
        draft.push(at as u64, len as u32).expect("room");
        draft.finish(offload, 0).expect("an IP packet");
    }
    batch
}

fn tunnel(end: usize) -> Vxlan {
    let [own, peer] = [ENDS[end], ENDS[1 - end]].map(|end| end.parse::<IpAddr>().expect("an address"));
    let hops = Hops::new(1);
    hops.set(&[Hop { address: peer, networks: None }]);
    let vni = Vni::new(NETWORK).expect("a network");
    hops.tell(vni, Mac(TARGET), peer).expect("room");
    let networks = vec![Network { vlan: Some(VLAN), vni }];
    Vxlan::open(VxlanSettings { address: own, port: VXLAN_PORT, mtu: UNDER_MTU, networks }, hops, 1).expect("a tunnel")
}

/// The kernel's way: a tap on a bridge with a `vxlan` device.
fn kernel(under: &str, end: usize) -> Tap {
    let tap = Tap::open("t0").expect("a tap");
    run("ip link add b0 type bridge");
    let [own, peer] = [ENDS[end], ENDS[1 - end]];
    run(&format!("ip link add vx0 type vxlan id {NETWORK} dstport 8472 local {own} remote {peer} dev {under}"));
    run("ip link set vx0 mtu 1500 master b0");
    run("ip link set t0 master b0");
    ["b0", "vx0", "t0"].iter().for_each(|name| run(&format!("ip link set {name} up")));
    tap
}

/// Processor seconds of this thread: its own, and the kernel's for it (fields 14 and 15 of proc_pid_stat(5), in hundredths).
fn spent() -> [f64; 2] {
    let text = std::fs::read_to_string("/proc/thread-self/stat").expect("proc");
    // The second field is a name in brackets.
    let (_, fields) = text.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    [11, 12].map(|at| fields[at].parse::<f64>().expect("a number") / 100.0)
}

fn main() {
    help::on_request(include_str!("tunnel.rs"));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |at: usize| arguments.get(at).map(String::as_str);
    let what = word(0).unwrap_or("frames");
    let flows = word(1).map_or(1, |word| word.parse().expect("a number of flows")).max(1);
    let cuts = if word(2) == Some("uncut") { "on" } else { "off" };
    let is_kernel = word(3) == Some("kernel");
    let far = Elsewhere::new();
    run(&format!("ip link add near0 mtu {UNDER_MTU} type veth peer name far0 mtu {UNDER_MTU} netns {}", far.id()));
    let lay = |name: &str, end: usize| -> Box<dyn Uplink + Send> {
        run(&format!("ip address add {}/24 dev {name}", ENDS[end]));
        run(&format!("ip link set {name} up"));
        let joins = if cuts == "on" { "off" } else { "on" };
        // A veth device joins only if it cuts no TCP packets (`veth_skb_is_eligible_for_gro()` of drivers/net/veth.c).
        run(&format!(
            "ethtool -K {name} tx-udp_tnl-segmentation {cuts} tx-udp_tnl-csum-segmentation {cuts} tx-udp-segmentation {cuts} tso {cuts} \
             gro {joins}"
        ));
        if is_kernel { Box::new(kernel(name, end)) } else { Box::new(tunnel(end)) }
    };
    let mut one = lay("near0", 0);
    let mut other = far.run(|| lay("far0", 1));
    let batch = packets(what, flows);
    let edit = if is_kernel { Edit::Keep } else { Edit::Tag(Tag::customer(Tci::new(0, false, VLAN))) };
    let picks: Vec<Pick> = (0..batch.len() as u16).map(|packet| Pick { edit, ..Pick::whole(packet) }).collect();
    // What the kernel sends by itself is over.
    std::thread::sleep(Duration::from_secs(1));
    let (mut sent, mut received, mut arrived) = (Counters::default(), Counters::default(), Batch::new());
    let (begin, before) = (Instant::now(), spent());
    let (mut turns, mut fetches, mut packets) = (0u64, 0u64, 0u64);
    while begin.elapsed() < TIME {
        turns += 1;
        one.deliver(&Frames::new(&batch, &picks), &mut sent, Time::ZERO);
        loop {
            fetches += 1;
            let progress = other.fetch(PortId(1), Budget::TURN, &mut arrived, &mut received, Time::ZERO);
            packets +=
                arrived.packets().iter().filter(|packet| arrived.head(packet).starts_with(&TARGET)).count() as u64;
            other.complete(&arrived);
            arrived.release();
            if progress.armed {
                break;
            }
        }
    }
    let [own, kernel] = [0, 1].map(|part| spent()[part] - before[part]);
    let frames = received.transmitted().frames as f64;
    let drops: u64 = sent.receive_drops.iter().chain(&received.transmit_drops).sum();
    println!(
        "{what}, {flows} flows, cable cuts {cuts}, by {}: {:.0} frames/s, {:.0} ns a frame, of which {:.0} the kernel's; {:.1} frames a turn, {:.2} \
         fetches a turn, {:.1} frames a packet; {drops} dropped, {} lost",
        word(3).unwrap_or("nicety"),
        frames / begin.elapsed().as_secs_f64(),
        (own + kernel) / frames * 1e9,
        kernel / frames * 1e9,
        frames / turns as f64,
        fetches as f64 / turns as f64,
        frames / packets as f64,
        sent.taken().frames as i64 - received.transmitted().frames as i64,
    );
}
