//! A receiver gets the frame on which the switch decided, except for the checksum field of its transport header. The tests find
//! headers with etherparse, so that the adapters' own parser cannot agree with itself.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use nicety_adapter::{Batch, Checksum, Offload, Pick, PortId, Segment, SegmentKind, Time};
use nicety_plane::{Fate, Watcher};
use nicety_switch::Plan;
use nicety_trials::rig::MAC;

use crate::packets::bytes;
use crate::{PEER, World, all_that, cuts};

/// VXLAN's port (RFC 7348, section 5).
const VXLAN: u16 = 4789;

/// A frame as the switch saw it, and the frame that arrived at the wire's far end.
type Passed = (Vec<u8>, (Vec<u8>, Offload));

/// Records the frames that the switch forwarded to the wire, as it saw them.
#[derive(Debug, Default)]
struct Judge(Mutex<Vec<Vec<u8>>>);

impl Watcher for Judge {
    fn watches_egress(&self, _: PortId) -> bool {
        false
    }

    fn ingress(&self, batch: &Batch, plan: &Plan, _: Time) {
        for pick in plan.picks(PortId(0)) {
            let packet = batch.packet(pick.packet).unwrap();
            let mut whole = batch.head(packet).to_vec();
            for span in batch.spans(packet) {
                let mut piece = vec![0; span.len() as usize];
                batch.source().read_span(*span, &mut piece);
                whole.extend(piece);
            }
            self.0.lock().unwrap().push(whole);
        }
    }

    fn egress(&self, _: PortId, _: &Batch, _: &[(Pick, Fate)], _: Time) {}
}

fn judge(world: &World) -> Arc<Judge> {
    let judge = Arc::new(Judge::default());
    let watcher: Arc<dyn Watcher> = Arc::clone(&judge) as _;
    world.rig.plane.watch(&watcher);
    judge
}

/// Offset of a slice within its frame.
fn place(frame: &[u8], piece: &[u8]) -> usize {
    piece.as_ptr() as usize - frame.as_ptr() as usize
}

/// The transport header of a frame: its offset, and its checksum field.
fn transport(frame: &[u8]) -> Vec<(usize, Range<usize>)> {
    let Ok(sliced) = LaxSlicedPacket::from_ethernet(frame) else { return Vec::new() };
    match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let at = place(frame, tcp.slice());
            vec![(at, at + 16..at + 18)]
        }
        Some(TransportSlice::Udp(udp)) => {
            let at = place(frame, udp.slice());
            let inner = place(frame, udp.payload()) + 8;
            let mut found = vec![(at, at + 6..at + 8)];
            if udp.destination_port() == VXLAN && frame.len() > inner {
                let moved = |(l4, field): (usize, Range<usize>)| (l4 + inner, field.start + inner..field.end + inner);
                found.extend(transport(&frame[inner..]).into_iter().map(moved));
            }
            found
        }
        _ => Vec::new(),
    }
}

fn ethernet(types: &[u16], payload: &[u8]) -> Vec<u8> {
    let tags =
        types.iter().flat_map(|kind| if *kind == 0x8100 { vec![0x81, 0, 0, 5] } else { kind.to_be_bytes().to_vec() });
    [&PEER[..], &MAC.0, &tags.collect::<Vec<_>>(), payload].concat()
}

fn ipv4(protocol: u8, fragment: u16, options: usize, payload: &[u8]) -> Vec<u8> {
    let total = (20 + options + payload.len()) as u16;
    let mut header = vec![0x45 + options as u8 / 4, 0];
    header.extend(total.to_be_bytes());
    header.extend([0, 1]);
    header.extend(fragment.to_be_bytes());
    header.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    header.extend(vec![1; options]);
    [header, payload.to_vec()].concat()
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next, 64][..], &[0xfd; 32], payload].concat()
}

fn tcp() -> Vec<u8> {
    [&[0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0x20, 0, 0, 0, 0, 0][..], bytes(41, 7)].concat()
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let ([high, low], [long, short]) = (port.to_be_bytes(), (8 + payload.len() as u16).to_be_bytes());
    [&[0x12, 0x34, high, low, long, short, 0, 0], payload].concat()
}

/// A frame of each kind that a stack may leave to its adapter, and of kinds that only an attacker sends.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6, tag) = (0x0800, 0x86dd, 0x8100);
    let hop_by_hop = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp()].concat();
    let inner = ethernet(&[v4], &ipv4(6, 0, 0, &tcp()));
    let gre = [&[0x80, 0, 8, 0, 0, 0, 0, 0][..], &ipv4(6, 0, 0, &tcp())].concat();
    vec![
        ("TCP over IPv4", ethernet(&[v4], &ipv4(6, 0, 0, &tcp()))),
        ("UDP over IPv4 with options", ethernet(&[v4], &ipv4(17, 0, 8, &udp(68, bytes(40, 1))))),
        ("TCP over IPv6", ethernet(&[v6], &ipv6(6, &tcp()))),
        ("UDP over IPv6", ethernet(&[v6], &ipv6(17, &udp(53, bytes(33, 2))))),
        ("TCP behind a hop-by-hop header", ethernet(&[v6], &ipv6(0, &hop_by_hop))),
        ("TCP behind a tag", ethernet(&[tag, v4], &ipv4(6, 0, 0, &tcp()))),
        ("TCP behind two tags", ethernet(&[tag, tag, v6], &ipv6(6, &tcp()))),
        ("TCP behind three tags", ethernet(&[tag, tag, tag, v4], &ipv4(6, 0, 0, &tcp()))),
        (
            "TCP in VXLAN",
            ethernet(&[v4], &ipv4(17, 0, 0, &udp(VXLAN, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat()))),
        ),
        ("TCP in GRE with a checksum", ethernet(&[v4], &ipv4(47, 0, 0, &gre))),
        ("a later fragment", ethernet(&[v4], &ipv4(17, 100, 0, bytes(60, 3)))),
        ("ICMP", ethernet(&[v4], &ipv4(1, 0, 0, &[&[8, 0, 0, 0, 0, 1, 0, 1][..], bytes(40, 4)].concat()))),
        ("ARP", ethernet(&[0x0806], &[&[0, 1, 8, 0, 6, 4, 0, 2][..], bytes(38, 5)].concat())),
        ("LLC", ethernet(&[60], bytes(60, 6))),
    ]
}

/// Offsets that a request may name: all header borders, and offsets between and after them.
fn requests() -> impl Iterator<Item = (u16, u16)> {
    let starts = (0..112).step_by(2).chain([1, 13, 23, 33, 55]);
    starts.flat_map(|start| [0, 1, 2, 4, 6, 8, 9, 10, 16].map(|offset| (start, start + offset)))
}

/// End of the headers that a switch reads: after the transport header, or after the last known header.
fn headers(frame: &[u8]) -> usize {
    let sliced = LaxSlicedPacket::from_ethernet(frame).unwrap();
    match (&sliced.transport, &sliced.net) {
        (Some(TransportSlice::Tcp(tcp)), _) => place(frame, tcp.slice()) + tcp.header_slice().len(),
        (Some(TransportSlice::Udp(udp)), _) => place(frame, udp.payload()),
        (_, Some(LaxNetSlice::Ipv4(ip))) => place(frame, ip.payload().payload),
        _ => 14,
    }
}

/// Whether a request may be carried out: it names the transport header's checksum, or bytes that no switch reads.
fn sound(frame: &[u8], (start, field): (u16, u16)) -> bool {
    let named = (usize::from(start), usize::from(field)..usize::from(field) + 2);
    transport(frame).contains(&named) || usize::from(start) >= headers(frame)
}

/// Lets the queued packets pass.
fn pass(world: &mut World, judge: &Judge) -> Vec<Passed> {
    world.guest.flush().unwrap();
    world.run();
    let (judged, out) = (std::mem::take(&mut *judge.0.lock().unwrap()), world.out());
    assert_eq!(judged.len(), out.len());
    judged.into_iter().zip(out).collect()
}

fn check_checksum(case: &str, (judged, (got, offload)): &Passed) {
    let allowed = transport(judged);
    let differs = (0..judged.len()).filter(|at| judged.get(*at) != got.get(*at));
    let outside: Vec<usize> = differs.filter(|at| !allowed.iter().any(|(_, field)| field.contains(at))).collect();
    assert!(outside.is_empty(), "{case}: bytes {outside:?} of {judged:02x?} came as {got:02x?}");
    assert!(got.len() == judged.len(), "{case}");
    if let Checksum::Partial { start, field } = offload.checksum {
        let (start, field) = (usize::from(start), usize::from(field));
        let known = allowed.contains(&(start, field..field + 2));
        assert!(known, "{case}: the receiver is to write a sum from {start} to {field}");
    }
}

#[test]
fn a_checksum_reaches_nothing_but_the_field_of_the_transport_header_that_was_judged() {
    for name in all_that(|features| features.checksum) {
        for whole in [false, true] {
            let mut world = World::new(name, whole);
            world.rude = true;
            let judge = judge(&world);
            for (kind, frame) in frames() {
                let case = format!("{name}: {kind}");
                let (mut passed, mut expected) = (0, 0);
                let asked = requests().filter(|(_, field)| usize::from(*field) + 2 <= frame.len());
                for (number, (start, field)) in asked.enumerate() {
                    let offload = Offload { checksum: Checksum::Partial { start, field }, segment: None };
                    // A driver refuses a request that its device cannot express.
                    if world.guest.queue(&frame, &offload).is_ok_and(|queued| queued) {
                        expected += usize::from(sound(&frame, (start, field)));
                    }
                    if number % 24 == 23 {
                        passed += pass(&mut world, &judge).iter().map(|pair| check_checksum(&case, pair)).count();
                    }
                }
                passed += pass(&mut world, &judge).iter().map(|pair| check_checksum(&case, pair)).count();
                // A switch need not read three tags. The other descriptors name a protocol, not an offset.
                if kind != "TCP behind three tags" && ["e1000", "e1000e", "vmxnet3", "virtio-net"].contains(&name) {
                    assert_eq!(passed, expected, "{case}");
                }
            }
        }
    }
}

/// A frame's headers, without the fields that segmentation changes, and its payload.
fn segment_parts(frame: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let sliced = LaxSlicedPacket::from_ethernet(frame).unwrap();
    let (mut head, payload) = (frame[..headers(frame)].to_vec(), frame[headers(frame)..].to_vec());
    match sliced.net.unwrap() {
        // Total length, identification, checksum (RFC 791, section 3.1).
        LaxNetSlice::Ipv4(ip) => {
            let at = place(frame, ip.header().slice());
            head[at + 2..at + 6].fill(0);
            head[at + 10..at + 12].fill(0);
        }
        // Payload length (RFC 8200, section 3).
        LaxNetSlice::Ipv6(ip) => head[place(frame, ip.header().slice()) + 4..][..2].fill(0),
        LaxNetSlice::Arp(_) => panic!("ARP is not cut"),
    }
    let (l4, field) = transport(frame).remove(0);
    head[field].fill(0);
    match sliced.transport.unwrap() {
        // Sequence number; FIN, PSH and CWR (Intel 317453, table 3-16).
        TransportSlice::Tcp(_) => {
            head[l4 + 4..l4 + 8].fill(0);
            head[l4 + 13] &= !(0x01 | 0x08 | 0x80);
        }
        // Length (RFC 768).
        _ => head[l4 + 4..l4 + 6].fill(0),
    }
    (head, payload)
}

/// Large packets: kind of segmentation, the packet, the offset of its transport header and the length of its headers.
fn large() -> Vec<(SegmentKind, Vec<u8>, u16, u16)> {
    let tcp = [&tcp()[..20], bytes(6000, 9)].concat();
    let udp = udp(53, bytes(6000, 8));
    let hop_by_hop = [&[6, 0, 1, 4, 0, 0, 0, 0][..], &tcp].concat();
    let (v4, v6, tag) = (0x0800, 0x86dd, 0x8100);
    vec![
        (SegmentKind::Tcp, ethernet(&[v4], &ipv4(6, 0, 0, &tcp)), 34, 54),
        (SegmentKind::Tcp, ethernet(&[tag, v4], &ipv4(6, 0, 8, &tcp)), 46, 66),
        (SegmentKind::Tcp, ethernet(&[v6], &ipv6(6, &tcp)), 54, 74),
        (SegmentKind::Tcp, ethernet(&[tag, tag, v6], &ipv6(0, &hop_by_hop)), 70, 90),
        (SegmentKind::Udp, ethernet(&[v4], &ipv4(17, 0, 0, &udp)), 34, 42),
        (SegmentKind::Udp, ethernet(&[v6], &ipv6(17, &udp)), 54, 62),
    ]
}

#[test]
fn segmentation_changes_nothing_but_lengths_ids_sequence_numbers_and_checksums_of_what_was_judged() {
    for name in all_that(|features| cuts(features, 6000)) {
        let mut world = World::new(name, false);
        world.rude = true;
        let judge = judge(&world);
        let mut cut = 0;
        for (kind, packet, l4, right) in large() {
            let field = |kind| l4 + if kind == SegmentKind::Udp { 6 } else { 16 };
            let kinds =
                [(kind, field(kind)), (SegmentKind::Tcp, field(SegmentKind::Tcp)), (SegmentKind::Udp, 40), (kind, 24)];
            for (kind, field) in kinds {
                for headers in [right, right + 4, right - 4, 54, 34, 14, 0, 200] {
                    let segment = Some(Segment { kind, mss: 1000, headers });
                    let offload = Offload { checksum: Checksum::Partial { start: l4, field }, segment };
                    if world.guest.queue(&packet, &offload).is_err() {
                        continue;
                    }
                    world.guest.flush().unwrap();
                    world.run();
                    let (judged, out) = (std::mem::take(&mut *judge.0.lock().unwrap()), world.out());
                    let [judged] = &judged[..] else {
                        assert!(judged.is_empty() && out.is_empty(), "{name}");
                        continue;
                    };
                    let (head, payload) = segment_parts(judged);
                    let mut joined = Vec::new();
                    for (frame, _) in &out {
                        let (one, part) = segment_parts(frame);
                        assert!(one == head, "{name}: {judged:02x?}");
                        joined.extend(part);
                    }
                    assert!(joined == payload && out.len() == 6, "{name}: {} frames", out.len());
                    cut += 1;
                }
            }
        }
        assert!(cut > 0, "{name} cuts none");
        println!("{name}: {cut} packets cut");
    }
}
