//! Toeplitz hashes against Microsoft's vectors, CRCs against the catalogue and a register that shifts the other way.

use nicety_frame::crc::{Crc, fcs, multicast_be, multicast_le};
use nicety_frame::toeplitz::{HashKind, HashKinds, Input, Table, hash};
use nicety_frame::{Layout, Mac, ipv4, ipv6, tcp};
use proptest::prelude::*;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Microsoft, "Verifying the RSS hash calculation": the key.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// The same page: destination, port, source, port, hash of the addresses, hash with TCP ports.
const V4: [(&str, u16, &str, u16, u32, u32); 5] = [
    ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323e_8fc2, 0x51cc_c178),
    ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xd718_262a, 0xc626_b0ea),
    ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xd2d0_a5de, 0x5c2b_394a),
    ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x8298_9176, 0xafc7_327f),
    ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5d18_09c5, 0x10e8_28a2),
];
const V6: [(&str, u16, &str, u16, u32, u32); 3] = [
    ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2cc1_8cd5, 0x4020_7d3d),
    ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0f0c_461c, 0xdde5_1bbf),
    ("fe80::200:f8ff:fe21:67cf", 38024, "3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251, 0x4b61_e985, 0x02d1_feef),
];

fn frame(destination: &str, to: u16, source: &str, from: u16) -> Vec<u8> {
    let mut frame = vec![0; 128];
    let at = if let Ok(destination) = destination.parse::<Ipv4Addr>() {
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        let source = source.parse().unwrap();
        let header = ipv4::Header { source, destination, protocol: 6, payload_len: 20, ..Default::default() };
        14 + header.write(&mut frame[14..]).unwrap()
    } else {
        frame[12..14].copy_from_slice(&[0x86, 0xdd]);
        let (source, destination): (Ipv6Addr, Ipv6Addr) = (source.parse().unwrap(), destination.parse().unwrap());
        let header = ipv6::Header { source, destination, next_header: 6, payload_len: 20, ..Default::default() };
        14 + header.write(&mut frame[14..]).unwrap()
    };
    tcp::Header { source_port: from, destination_port: to, ..Default::default() }.write(&mut frame[at..]).unwrap();
    frame
}

#[test]
fn hashes_agree_with_microsofts_vectors() {
    let table = Table::new(&KEY);
    for (destination, to, source, from, plain, with_ports) in V4.into_iter().chain(V6) {
        let frame = frame(destination, to, source, from);
        let layout = Layout::parse(&frame);
        let only_addresses = HashKinds::NONE.with(HashKind::V4).with(HashKind::V6);
        for (enabled, expected) in [(HashKinds::ALL, with_ports), (only_addresses, plain)] {
            let input = Input::of(&frame, &layout, enabled).unwrap();
            assert!(enabled.has(input.kind));
            assert_eq!(hash(&KEY, input.bytes()), expected, "{source} to {destination}");
            assert_eq!(table.hash(input.bytes()), expected, "{source} to {destination}");
        }
        let v4 = frame[12] == 0x08;
        let mut esp = frame.clone();
        esp[if v4 { 23 } else { 20 }] = 50;
        let layout_of_esp = Layout::parse(&esp);
        let input = |enabled| Input::of(&esp, &layout_of_esp, enabled).unwrap();
        let only_esp = input(HashKinds::NONE.with(HashKind::V4Esp).with(HashKind::V6Esp));
        assert_eq!(hash(&KEY, only_esp.bytes()), with_ports, "an index where ports would be");
        assert_eq!(input(HashKinds::ALL).kind, if v4 { HashKind::V4 } else { HashKind::V6 });
        let only_udp = HashKinds::NONE.with(HashKind::V4Udp).with(HashKind::V6Udp);
        assert_eq!(Input::of(&frame, &layout, only_udp), None);
    }
}

#[test]
fn a_fragment_is_hashed_without_ports() {
    let (destination, to, source, from, plain, _) = V4[0];
    let mut frame = frame(destination, to, source, from);
    frame[20] = 0x20;
    let input = Input::of(&frame, &Layout::parse(&frame), HashKinds::ALL).unwrap();
    assert_eq!((input.kind, hash(&KEY, input.bytes())), (HashKind::V4, plain));
}

#[test]
fn the_check_value_of_the_crc_is_cbf43926() {
    // The check value of CRC-32/ISO-HDLC in Greg Cook's catalogue of CRC algorithms.
    assert_eq!(fcs(b"123456789"), 0xcbf4_3926);
}

/// The register of IEEE 802.3 clause 3.2.9: it shifts left, and each byte's first bit on the wire enters first.
fn shifted_left(bytes: &[u8]) -> u32 {
    let mut register = 0xffff_ffff_u32;
    for bit in bytes.iter().flat_map(|byte| (0..8).map(move |bit| u32::from(byte >> bit) & 1)) {
        let out = (register >> 31) ^ bit;
        register = (register << 1) ^ (if out == 1 { 0x04c1_1db7 } else { 0 });
    }
    register
}

proptest! {
    #[test]
    fn both_forms_agree_with_a_register_that_shifts_left(bytes: Vec<u8>, mac: [u8; 6], cut: prop::sample::Index) {
        let mut crc = Crc::new();
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        crc.push(first);
        crc.push(second);
        prop_assert_eq!(crc.big_endian(), shifted_left(&bytes));
        prop_assert_eq!(crc.little_endian(), shifted_left(&bytes).reverse_bits());
        prop_assert_eq!(multicast_be(Mac(mac)), shifted_left(&mac));
        prop_assert_eq!(multicast_le(Mac(mac)).reverse_bits(), shifted_left(&mac));
    }

    #[test]
    fn a_frame_with_its_fcs_leaves_the_residue(mut frame: Vec<u8>) {
        // IEEE 802.3 clause 3.2.9: the register of a good frame ends as c704dd7b.
        frame.extend(fcs(&frame).to_le_bytes());
        prop_assert_eq!(shifted_left(&frame), 0xc704_dd7b);
        let mut crc = Crc::new();
        crc.push(&frame);
        prop_assert_eq!(crc.big_endian(), 0xc704_dd7b);
    }

    #[test]
    fn a_table_hashes_as_the_definition_does(key: Vec<u8>, input in prop::collection::vec(any::<u8>(), 0..=36)) {
        // The definition: for each set bit of the input, the 32 bits of the key from that position.
        let bit = |at: usize| key.get(at / 8).map_or(0, |byte| u32::from(byte >> (7 - at % 8)) & 1);
        let mut expected = 0;
        for at in 0..input.len() * 8 {
            if input[at / 8] >> (7 - at % 8) & 1 == 1 {
                expected ^= (at..at + 32).fold(0, |window, at| (window << 1) | bit(at));
            }
        }
        prop_assert_eq!(hash(&key, &input), expected);
        prop_assert_eq!(Table::new(&key).hash(&input), expected);
    }
}
