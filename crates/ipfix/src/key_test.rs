use super::*;

const DESTINATION: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SOURCE: [u8; 6] = [2, 0, 0, 0, 0, 1];

fn frame(more: &[&[u8]]) -> Vec<u8> {
    let mut frame = [&DESTINATION[..], &SOURCE].concat();
    more.iter().for_each(|part| frame.extend_from_slice(part));
    frame.resize(frame.len().max(60), 0);
    frame
}

/// IPv4's header with this first byte, total length, and fragment field.
fn ipv4(first: u8, len: u16, fragment: u16, protocol: u8) -> Vec<u8> {
    let [len_high, len_low] = len.to_be_bytes();
    let [high, low] = fragment.to_be_bytes();
    let mut header = vec![first, 0, len_high, len_low, 0, 0, high, low, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    header.resize(usize::from(first & 0xf) * 4, 1);
    header
}

/// TCP's header from port 4000 to 80, with SYN and ACK.
const SYN_ACK: [u8; 20] = [0x0f, 0xa0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0];
const UDP_DNS: [u8; 8] = [0x0f, 0xa0, 0, 53, 0, 8, 0, 0];

#[test]
fn a_tcp_frame_has_its_addresses_ports_and_flags() {
    let head = frame(&[&[8, 0], &ipv4(0x45, 40, 0x4000, 6), &SYN_ACK]);
    let seen = Seen::of(&head);
    assert_eq!((seen.key.destination_mac(), seen.key.source_mac()), (DESTINATION, SOURCE));
    assert_eq!((seen.key.ethertype(), seen.key.vlan(), seen.key.version()), (0x0800, 0, 4));
    assert_eq!(seen.key.ipv4(), [[10, 0, 0, 1], [10, 0, 0, 2]]);
    assert_eq!((seen.key.protocol(), seen.key.ports()), (6, [4000, 80]));
    assert_eq!(seen.flags.swap_bytes(), 0x5012, "as the frame has them");
    assert_eq!(seen.octets_of(1, 60), 40, "padding is no part of the packet");
    assert_eq!(seen.octets_of(3, 3 * 1514), 3 * 1500, "of segments the headers' length says nothing");
}

#[test]
fn both_ways_to_read_a_head_agree() {
    for (protocol, header) in [(6, &SYN_ACK[..]), (17, &UDP_DNS)] {
        let head = frame(&[&[8, 0], &ipv4(0x45, 40, 0, protocol), header]);
        assert_eq!(Seen::of(&head), Seen::unusual(&head));
        assert_ne!(Seen::of(&head), Seen::unusual(&frame(&[&[8, 0], &ipv4(0x45, 40, 0, protocol)])));
    }
}

#[test]
fn options_tags_and_ipv6_are_read_too() {
    let options = Seen::of(&frame(&[&[8, 0], &ipv4(0x46, 44, 0, 6), &SYN_ACK]));
    assert_eq!((options.key.ports(), options.flags.swap_bytes()), ([4000, 80], 0x5012));
    let tagged = Seen::of(&frame(&[&[0x81, 0, 0x60, 20, 8, 0], &ipv4(0x45, 28, 0, 17), &UDP_DNS]));
    assert_eq!((tagged.key.vlan(), tagged.key.ethertype(), tagged.key.ports()), (20, 0x0800, [4000, 53]));
    assert_eq!(tagged.octets(64), 28);
    let (from, to) = ([0xfd; 16], [0xfe; 16]);
    let head = frame(&[&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64], &from, &to, &UDP_DNS]);
    let v6 = Seen::of(&head);
    assert_eq!((v6.key.version(), v6.key.ipv6(), v6.key.ports()), (6, [from, to], [4000, 53]));
    assert_eq!((v6.key.protocol(), v6.octets(62)), (17, 48));
}

#[test]
fn a_later_fragment_has_no_ports_and_arp_no_protocol() {
    let later = Seen::of(&frame(&[&[8, 0], &ipv4(0x45, 48, 0x2001, 17), &UDP_DNS]));
    assert_eq!((later.key.protocol(), later.key.ports(), later.key.ipv4()[1]), (17, [0, 0], [10, 0, 0, 2]));
    let arp = Seen::of(&frame(&[&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]]));
    assert_eq!((arp.key.ethertype(), arp.key.version(), arp.key.protocol()), (0x0806, 0, 0));
    assert_eq!(arp.octets(60), 46);
}

#[test]
fn any_head_is_read_however_short_or_strange() {
    let whole = frame(&[&[0x81, 0, 0, 1, 8, 0], &ipv4(0x4f, 80, 0, 6), &SYN_ACK]);
    for len in 0..whole.len() {
        for byte in [0, 0x41, 0x45, 0x60, 0xff] {
            let mut head = whole[..len].to_vec();
            head.iter_mut().skip(12).step_by(3).for_each(|at| *at = byte);
            let seen = Seen::of(&head);
            assert!(seen.octets(len as u32) <= len as u64);
        }
    }
}

#[test]
fn a_difference_in_any_part_of_a_key_changes_its_hash() {
    let head = frame(&[&[8, 0], &ipv4(0x45, 40, 0, 6), &SYN_ACK]);
    let key = Seen::of(&head).key_with(Outcome { egress: 3, dropped: 0, directions: 3 });
    for bit in 0..512 {
        let mut other = key;
        other.0[bit / 64] ^= 1 << (bit % 64);
        assert_ne!(other.hash(), key.hash(), "bit {bit}");
    }
    assert_eq!(key.outcome(), Outcome { egress: 3, dropped: 0, directions: 3 });
}
