//! Offloads in descriptors: checksums, segmentation, tags.

use nicety_adapter::{Checksum, Edit, Offload, Reason};
use nicety_frame::{Tag, Tci};

use crate::bench::{
    MAC, batch_of, ethernet, ipv4, ipv6, partial, payload, plain_batch, tcp, udp4, verified, with_pseudo,
};
use crate::guest::*;

/// A context: MACLEN 14, this IP header, tag, kind of transport, MSS and L4LEN.
fn context(ip: u32, tag: u32, kind: u32, mss: u32, l4: u32) -> [u32; 4] {
    [ip | 14 << 9 | tag << 16, 0, CONTEXT | kind, l4 << 8 | mss << 16]
}

const TCP: u32 = 1 << 11;
const IPV4: u32 = 1 << 10;
const TSE: u32 = 1 << 31;
const VLE: u32 = 1 << 30;
const IXSM: u32 = 1 << 8;
const TXSM: u32 = 1 << 9;

#[test]
fn the_transport_checksum_is_made_where_the_context_says() {
    let mut g = Guest::opened();
    for (ip, header) in [(ipv4(6, &tcp(&payload(99))), 20), (ipv6(6, &tcp(&payload(99))), 40)] {
        let packet = with_pseudo(ethernet(if header == 20 { 0x0800 } else { 0x86dd }, &ip), 119);
        g.put(TX_DATA, &packet);
        g.push(0, context(header as u32, 0, TCP, 0, 0));
        g.push(0, [TX_DATA as u32, 0, DATA | packet.len() as u32, TXSM]);
        g.ring(0);
        let out = g.drain(0);
        assert_eq!(out.len(), 1);
        assert_eq!(verified(&out[0]), payload(99));
    }
}

#[test]
fn a_packet_of_tcp_is_cut_as_the_context_says() {
    let mut g = Guest::opened();
    for (ip, header, kind) in
        [(ipv4(6, &tcp(&payload(4000))), 20, TCP | IPV4), (ipv6(6, &tcp(&payload(4000))), 40, TCP)]
    {
        let mut packet = with_pseudo(ethernet(if header == 20 { 0x0800 } else { 0x86dd }, &ip), 0);
        // igb_tso: no length, no checksum.
        if header == 20 {
            packet[16..18].fill(0);
            packet[24..26].fill(0);
        } else {
            packet[18..20].fill(0);
        }
        g.put(TX_DATA, &packet);
        g.push(0, context(header as u32, 0, kind, 1448, 20));
        let (first, rest) = (1000, packet.len() as u32 - 1000);
        let command = DATA & !0x0900_0000 | TSE;
        let options = if header == 20 { IXSM | TXSM } else { TXSM };
        g.push(0, [TX_DATA as u32, 0, command | first, options | 4000 << 14]);
        g.push(0, [TX_DATA as u32 + first, 0, DATA | TSE | rest, 0]);
        g.ring(0);
        let out = g.drain(0);
        let bodies: Vec<u8> = out.iter().flat_map(|frame| verified(frame)).collect();
        assert_eq!((out.len(), bodies), (3, payload(4000)));
    }
    assert_eq!(g.r(0x40f8), 2, "TSCTC");
    assert_eq!(g.r(0x4080), 6, "GPTC");
}

#[test]
fn each_of_the_two_contexts_is_kept_until_it_is_given_anew() {
    let mut g = Guest::opened();
    let packet = with_pseudo(ethernet(0x0800, &ipv4(6, &tcp(&payload(50)))), 70);
    g.put(TX_DATA, &packet);
    g.push(0, context(20, 0, TCP, 0, 0));
    let mut other = context(40, 0, 0, 0, 0);
    other[3] |= 1 << 4;
    g.push(0, other);
    g.push(0, [TX_DATA as u32, 0, DATA | packet.len() as u32, TXSM]);
    g.ring(0);
    assert_eq!(verified(&g.drain(0)[0]), payload(50));
    g.push(0, [TX_DATA as u32, 0, DATA | packet.len() as u32, TXSM]);
    g.ring(0);
    assert_eq!(verified(&g.drain(0)[0]), payload(50), "without another one");
}

#[test]
fn what_cannot_be_cut_or_summed_is_dropped_and_the_next_packet_goes() {
    let mut g = Guest::opened();
    let packet = ethernet(0x0800, &ipv4(6, &tcp(&payload(3000))));
    g.put(TX_DATA, &packet);
    for (given, command, options) in [
        // No MSS; headers of another kind; an SCTP checksum.
        (context(20, 0, TCP | IPV4, 0, 20), DATA | TSE, TXSM),
        (context(24, 0, TCP | IPV4, 1448, 20), DATA | TSE, TXSM),
        (context(20, 0, 1 << 12, 0, 0), DATA, TXSM),
    ] {
        g.push(0, given);
        g.push(0, [TX_DATA as u32, 0, command | packet.len() as u32, options]);
    }
    let small = ethernet(0x88b5, &payload(60));
    g.put(TX_DATA + 0x4000, &small);
    g.push(0, [TX_DATA as u32 + 0x4000, 0, DATA | small.len() as u32, 0]);
    g.ring(0);
    assert_eq!(g.drain(0), [small]);
    assert_eq!(g.counters.transmit_drops[Reason::BadOffload as usize], 3);
    assert!(g.done(0, 1) && g.done(0, 3) && g.done(0, 5) && g.done(0, 6));
}

#[test]
fn a_tag_comes_out_of_the_context_and_goes_into_the_descriptor() {
    let mut g = Guest::opened();
    let packet = ethernet(0x88b5, &payload(60));
    g.put(TX_DATA, &packet);
    g.push(0, context(0, 0x6005, 0, 0, 0));
    g.push(0, [TX_DATA as u32, 0, DATA | VLE | packet.len() as u32, 0]);
    g.ring(0);
    let tagged = [&packet[..12], &[0x81, 0, 0x60, 5], &packet[12..]].concat();
    assert_eq!(g.drain(0), [tagged]);
    // CTRL.VME strips.
    let control = g.r(CTRL);
    g.w(CTRL, control | 1 << 30);
    let sender = plain_batch(&[&packet]);
    g.bring(&sender, Edit::Tag(Tag { tpid: 0x8100, tci: Tci(0x6005) }));
    let [_, _, status, rest] = g.written(0, 0);
    assert_eq!((status >> 3 & 1, rest), (1, 0x6005 << 16 | packet.len() as u32));
    assert_eq!(g.buffer(0, 0, packet.len()), packet);
    // RCTL.VFE passes the VLANs in VFTA.
    g.w(RCTL, RCTL_LINUX | 1 << 18);
    g.bring(&sender, Edit::Tag(Tag { tpid: 0x8100, tci: Tci(0x6005) }));
    assert_eq!(g.counters.receive_drops[Reason::Filtered as usize], 1);
    g.w(0x5600, 1 << 5);
    g.bring(&sender, Edit::Tag(Tag { tpid: 0x8100, tci: Tci(0x6005) }));
    assert_eq!(g.written(0, 1)[2] & 3, 3);
}

#[test]
fn checksums_of_what_arrives_are_verified_and_told() {
    let mut g = Guest::opened();
    let mut good = partial(udp4(MAC, 9, &payload(100)));
    let asked = Offload { checksum: Checksum::Partial { start: 34, field: 40 }, segment: None };
    g.bring(&batch_of(&[(&good, asked)]), Edit::Keep);
    // L4CS, UDPCS, IPCS, and no error.
    assert_eq!(g.written(0, 0)[2] & 0x6000_0070, 0x70);
    good[40] ^= 0x55;
    g.bring_one(&good);
    assert_eq!(g.written(0, 1)[2] & 0x6000_0070, 0x2000_0070, "L4E");
    g.w(RXCSUM, 0x2000);
    g.bring_one(&good);
    assert_eq!(g.written(0, 2)[2] & 0x6000_0070, 0);
}

/// The guest chooses MACLEN and IPLEN freely (7.2.2.2).
#[test]
fn a_checksum_goes_to_the_transport_header_s_field_or_behind_the_headers_or_nowhere() {
    let mut g = Guest::opened();
    let frames = [
        (ethernet(0x0800, &ipv4(6, &tcp(&payload(80)))), 54, (34, TCP)),
        (ethernet(0x86dd, &ipv6(17, &[&[0, 68, 0, 67, 0, 88, 0, 0], &payload(80)[..]].concat())), 62, (54, 0)),
    ];
    for (frame, headers, named) in &frames {
        g.put(TX_DATA, frame);
        for (mac, ip, kind) in (0..80)
            .step_by(2)
            .flat_map(|mac| [0, 20, 21, 40, 48].into_iter().flat_map(move |ip| [(mac, ip, TCP), (mac, ip, 0)]))
        {
            g.counters.transmit_drops.fill(0);
            g.push(0, [ip | mac << 9, 0, CONTEXT | kind, 0]);
            g.push(0, [TX_DATA as u32, 0, DATA | frame.len() as u32, TXSM | (frame.len() as u32) << 14]);
            g.ring(0);
            let field = mac + ip + if kind == TCP { 16 } else { 6 };
            let may = (mac + ip, kind) == *named || mac + ip >= *headers && field as usize + 2 <= frame.len();
            let out = g.drain(0);
            assert_eq!(out.len(), usize::from(may), "{mac} {ip}");
            assert_eq!(g.counters.transmit_drops[Reason::BadOffload as usize], u64::from(!may), "{mac} {ip}");
            for mut wire in out {
                let at = field as usize;
                wire[at..at + 2].copy_from_slice(&frame[at..at + 2]);
                assert_eq!(&wire, frame, "{mac} {ip}: only the field");
            }
        }
    }
}

#[test]
fn what_linux_asks_for_when_its_count_of_header_bytes_wraps_is_dropped() {
    // igb_tso keeps the header bytes in eight bits: with 184 bytes of options 258 become 2, L4LEN is right modulo 256, and its
    // borrow makes the MSS 0xffff. PAYLEN is 256 too large.
    for (options, sent) in [(176_usize, 3), (184, 0)] {
        let extension = [&[6, (options / 8 - 1) as u8, 1, (options - 4) as u8][..], &vec![0; options - 4]].concat();
        let ip = ipv6(60, &[extension, tcp(&payload(4000))].concat());
        let mut packet = ethernet(0x86dd, &ip);
        packet[18..20].fill(0);
        let mut g = Guest::opened();
        g.put(TX_DATA, &packet);
        let (l4, headers) = (14 + 40 + options as u32, (14 + 40 + options + 20) as u8);
        let sizes = u32::from(headers).wrapping_sub(l4) << 8 | 1448 << 16;
        g.push(0, [(40 + options as u32) | 14 << 9, 0, CONTEXT | TCP, sizes]);
        let rest = (packet.len() as u32 - u32::from(headers)) << 14;
        g.push(0, [TX_DATA as u32, 0, DATA | TSE | packet.len() as u32, TXSM | rest]);
        g.ring(0);
        assert_eq!(g.drain(0).len(), sent, "{options} bytes of options");
        assert_eq!(g.counters.transmit_drops[Reason::BadOffload as usize], u64::from(sent == 0));
    }
}
