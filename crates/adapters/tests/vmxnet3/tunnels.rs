//! Frames sent in VXLAN or Geneve, with the offload requests of each version (Linux `vmxnet3_tq_xmit`).

use nicety_adapter::{Batch, Reason};

use crate::guest::{Guest, MAC, Offload, Open, SEQUENCE, payload};
use crate::packets::{partial, prepared_for_tso, sequence, tcp4, tcp6, tunneled, verified};

/// All tunnel capabilities in DCR: those of Geneve, and those of VXLAN.
const GENEVE: u32 = 1 << 2 | 1 << 3 | 1 << 6;
const VXLAN: u32 = 1 << 4 | 1 << 5 | 1 << 7;
const CHECKSUM: u32 = 2;
const TSO: u32 = 3;
const ENCAP: u32 = 1;

fn opened(version: u32, capabilities: u32) -> Guest {
    let mut guest = Guest::opened(Open { version, ..Open::default() });
    guest.write(1, 0x48, capabilities);
    guest
}

/// Offset of the inner frame's Ethernet header.
fn inner_at(geneve: bool) -> usize {
    14 + 20 + 8 + if geneve { 12 } else { 8 }
}

/// Sends one packet. Returns the frames at another guest, or `None` if it is dropped.
fn sent(mut guest: Guest, frame: &[u8], offload: Offload) -> Option<Vec<Vec<u8>>> {
    let headers = offload.hlen as usize;
    let rest = frame[headers..].chunks(16_384);
    let pieces: Vec<&[u8]> = std::iter::once(&frame[..headers]).chain(rest).collect();
    guest.send(0, &pieces, offload);
    let mut batch = Batch::new();
    guest.fetch_into(0, &mut batch);
    if batch.is_empty() {
        assert_eq!(guest.counters.transmit_drops[Reason::BadOffload as usize], 1);
        return None;
    }
    let mut receiver = Guest::opened(Open::default());
    assert_eq!(receiver.deliver(&batch).refused(), 0);
    Some(receiver.receive(0, true).into_iter().map(|packet| packet.bytes).collect())
}

/// A version's request for a tunnel's offload, for a packet with headers of `hlen` bytes.
fn request(version: u32, hlen: usize, mss: Option<u32>, checksum_at: usize) -> Offload {
    let hlen = hlen as u32;
    match (version, mss) {
        (7, Some(mss)) => Offload { om: TSO, hlen, msscof: mss, inner: true, ..Offload::default() },
        (7, None) => Offload { om: CHECKSUM, hlen, msscof: checksum_at as u32, inner: true, ..Offload::default() },
        (_, mss) => Offload { om: ENCAP, hlen, msscof: mss.unwrap_or(0), ..Offload::default() },
    }
}

#[test]
fn an_inner_checksum_is_made_as_versions_four_to_seven_ask_for_it_and_refused_before() {
    for version in 1..=7 {
        for (geneve, inner) in [(false, tcp4(MAC, b"hello")), (true, tcp6(MAC, b"hello"))] {
            let l4 = inner_at(geneve) + if inner[12] == 8 { 34 } else { 54 };
            let expected = tunneled(&inner, geneve);
            let mut frame = tunneled(&partial(inner), geneve);
            // The outer checksum is already right: it takes the inner one into account (lco_csum).
            frame[40..42].copy_from_slice(&expected[40..42]);
            let arrived = sent(opened(version, GENEVE | VXLAN), &frame, request(version, l4 + 20, None, l4 + 16));
            assert_eq!(arrived, (version >= 4).then(|| vec![expected]), "version {version}");
        }
    }
}

#[test]
fn a_large_packet_in_a_tunnel_becomes_packets_with_right_checksums_inside_and_outside() {
    let payload = payload(40_000);
    for version in 1..=7 {
        for (geneve, outer_checksum) in [(false, false), (false, true), (true, false), (true, true)] {
            for inner in [tcp4(MAC, &payload), tcp6(MAC, &payload)] {
                let at = inner_at(geneve);
                let l4 = at + if inner[12] == 8 { 34 } else { 54 };
                let frame = tunneled(&prepared_for_tso(inner), geneve);
                let asked = Offload { outer_checksum, ..request(version, l4 + 20, Some(1350), 0) };
                let Some(arrived) = sent(opened(version, GENEVE | VXLAN), &frame, asked) else {
                    assert!(version < 4);
                    continue;
                };
                assert!(version >= 4 && arrived.len() == 30, "version {version}");
                let mut joined = Vec::new();
                for packet in &arrived {
                    let part = verified(&packet[at..]);
                    assert_eq!(sequence(&packet[at..]), SEQUENCE + joined.len() as u32);
                    joined.extend(part);
                    if outer_checksum {
                        assert_eq!(verified(packet)[..], packet[42..], "the outer checksum");
                    } else {
                        assert_eq!(packet[40..42], [0, 0]);
                    }
                    assert_eq!(packet[..12], frame[..12]);
                    assert_eq!(packet[42..at], frame[42..at], "the tunnel's header");
                }
                assert!(joined == payload);
            }
        }
    }
}

#[test]
fn version_seven_gives_a_tunnel_only_what_its_driver_turned_on_for_it() {
    for geneve in [false, true] {
        let l4 = inner_at(geneve) + 34;
        let own = if geneve { GENEVE } else { VXLAN };
        let small = tunneled(&partial(tcp4(MAC, b"hello")), geneve);
        let large = tunneled(&prepared_for_tso(tcp4(MAC, &payload(4000))), geneve);
        for capabilities in (0..10).map(|bit| 1 << bit).chain([0, GENEVE, VXLAN]) {
            let allowed = |needed: u32| capabilities & own & needed == own & needed;
            let passes = |frame, asked| sent(opened(7, capabilities), frame, asked).is_some();
            let (checksum, tso) = (request(7, l4 + 20, None, l4 + 16), request(7, l4 + 20, Some(1350), 0));
            assert_eq!(passes(&small, checksum), allowed(1 << 2 | 1 << 4), "{capabilities:#x}");
            assert_eq!(passes(&large, tso), allowed(1 << 3 | 1 << 5), "{capabilities:#x}");
            let sums = Offload { outer_checksum: true, ..tso };
            assert_eq!(passes(&large, sums), allowed(1 << 3 | 1 << 5 | 1 << 6 | 1 << 7), "{capabilities:#x}");
        }
    }
}

#[test]
fn what_is_no_tunnel_or_does_not_fit_its_headers_is_dropped() {
    let l4 = inner_at(false) + 34;
    let frame = tunneled(&prepared_for_tso(tcp4(MAC, &payload(4000))), false);
    let asked = request(6, l4 + 20, Some(1350), 0);
    assert!(sent(opened(6, 0), &frame, asked).is_some());
    let mut wrong = vec![
        (6, frame.clone(), Offload { hlen: asked.hlen + 4, ..asked }),
        (6, frame.clone(), Offload { hlen: 42, ..asked }),
        (6, frame.clone(), Offload { hlen: 1023, ..asked }),
        (6, frame.clone(), Offload { msscof: 1, ..asked }),
        (6, frame.clone(), Offload { inner: true, om: TSO, ..asked }),
        (7, frame.clone(), asked),
        (7, frame.clone(), Offload { msscof: l4 as u32 + 15, ..request(7, l4 + 20, None, 0) }),
        (6, tcp4(MAC, &payload(4000)), Offload { hlen: 54, ..asked }),
    ];
    // Another port; no identifier; a fragment.
    for (at, value) in [(37, 9), (42, 0), (20, 0x20)] {
        let mut frame = frame.clone();
        frame[at] = value;
        wrong.push((6, frame, asked));
    }
    for (place, (version, frame, asked)) in wrong.into_iter().enumerate() {
        assert_eq!(sent(opened(version, GENEVE | VXLAN), &frame, asked), None, "{place}");
    }
}
