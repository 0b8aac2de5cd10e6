//! Guards: frames that a guarded port's guest may not send, by the RFCs that describe how to recognise them.

use std::net::{Ipv4Addr, Ipv6Addr};

use nicety_adapter::Reason;
use nicety_frame::vlan::{Tag, Tci};
use nicety_switch::{Guards, Policy};

use crate::world::World;
use crate::{A, B, EVERYBODY, customer, frame, plain};

const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;

/// An IPv4 packet: RFC 791, section 3.1. `fragment` is its flags and offset.
fn v4(protocol: u8, fragment: u16, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let [high, low] = ((header + payload.len()) as u16).to_be_bytes();
    let [flags, offset] = fragment.to_be_bytes();
    let fixed = [0x40 + header as u8 / 4, 0, high, low, 0, 7, flags, offset, 64, protocol, 0, 0];
    [&fixed[..], &[10, 0, 0, 1], &[10, 0, 0, 2], options, payload].concat()
}

/// A UDP header and some payload: RFC 768.
fn udp(from: u16, to: u16) -> Vec<u8> {
    [from.to_be_bytes(), to.to_be_bytes(), [0, 16], [0, 0], [1; 2], [2; 2], [3; 2], [4; 2]].concat()
}

fn udp4(from: u16, to: u16) -> Vec<u8> {
    frame(EVERYBODY, A, &[], IPV4, &v4(17, 0, &[], &udp(from, to)))
}

/// An IPv6 packet: RFC 8200, section 3.
fn v6(from: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (payload.len() as u16).to_be_bytes();
    let to: Ipv6Addr = "ff02::1".parse().unwrap();
    [&[0x60, 0, 0, 0, high, low, next, 255][..], &from.octets(), &to.octets(), payload].concat()
}

fn host(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// A frame with the chain of extension headers `chain`: each header's number, and its bytes behind the first one.
fn chained(chain: &[(u8, &[u8])], last: u8, payload: &[u8]) -> Vec<u8> {
    let numbers = chain.iter().map(|(number, _)| *number).chain([last]);
    let mut bytes = Vec::new();
    for ((_, rest), next) in chain.iter().zip(numbers.clone().skip(1)) {
        bytes.extend([&[next], *rest].concat());
    }
    bytes.extend(payload);
    frame(ALL_NODES, A, &[], IPV6, &v6(host("fe80::1"), numbers.clone().next().unwrap(), &bytes))
}

/// Destination options with only padding, and fragment headers, both without the next-header field: RFC 8200, sections 4.6 and 4.5.
const OPTIONS: (u8, &[u8]) = (60, &[0, 1, 4, 0, 0, 0, 0]);
const WHOLE: (u8, &[u8]) = (44, &[0, 0, 0, 0, 0, 0, 7]);
const FIRST: (u8, &[u8]) = (44, &[0, 0, 1, 0, 0, 0, 7]);
const LATER: (u8, &[u8]) = (44, &[0, 0, 8, 0, 0, 0, 7]);

/// Types of neighbour discovery (RFC 4861, section 4) with the bytes before their options: an address first, if the type has one.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const REDIRECT: u8 = 137;
/// Types of options: section 4.6.1.
const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;

/// A message of neighbour discovery for the address `about`, with these options.
fn message(kind: u8, about: Ipv6Addr, options: &[&[u8]]) -> Vec<u8> {
    let about: &[u8] = &about.octets();
    let body = match kind {
        ROUTER_ADVERTISEMENT => vec![0; 8],
        SOLICITATION | ADVERTISEMENT => about.to_vec(),
        REDIRECT => [about, &[9; 16]].concat(),
        _ => Vec::new(),
    };
    [&[kind, 0, 0, 0, 0, 0, 0, 0], &body[..], &options.concat()].concat()
}

fn link(kind: u8, address: [u8; 6]) -> Vec<u8> {
    [&[kind, 1][..], &address].concat()
}

/// A frame with such a message, from a host.
fn discovery(from: &str, kind: u8, about: &str, options: &[&[u8]]) -> Vec<u8> {
    frame(ALL_NODES, A, &[], IPV6, &v6(host(from), 58, &message(kind, host(about), options)))
}

/// ARP, RFC 826: its operation, the sender, and the target's IP address.
fn arp(operation: u8, sender: ([u8; 6], [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    [&[0, 1, 8, 0, 6, 4, 0, operation][..], &sender.0, &sender.1, &[0; 6], &target].concat()
}

fn request(sender: [u8; 6], ip: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    frame(EVERYBODY, A, &[], ARP, &arp(1, (sender, ip), target))
}

/// Port 0 has these guards and the addresses 10.0.0.1 and fe80::1; port 1 has no guards.
fn guarded(guards: Guards) -> World {
    let ip = vec!["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
    World::new(&[Policy { guards, ip, ..Policy::default() }, Policy::default()])
}

fn dhcp() -> World {
    guarded(Guards { dhcp_server: true, ..Guards::default() })
}

fn router() -> World {
    guarded(Guards { router_advertisement: true, ..Guards::default() })
}

fn neighbour() -> World {
    guarded(Guards { arp: true, ..Guards::default() })
}

fn multicast_router() -> World {
    guarded(Guards { multicast_router: true, ..Guards::default() })
}

/// For each guard a frame that it must refuse: the type and the rest of the frame; and the reason.
fn forbidden() -> [(World, u16, Vec<u8>, Reason); 6] {
    let other = message(ADVERTISEMENT, host("fe80::9"), &[&link(TARGET_LINK, A)]);
    let advertisement = message(ROUTER_ADVERTISEMENT, host("::"), &[]);
    [
        (dhcp(), IPV4, v4(17, 0, &[], &udp(67, 68)), Reason::DhcpGuard),
        (dhcp(), IPV6, v6(host("fe80::1"), 17, &udp(547, 546)), Reason::DhcpGuard),
        (router(), IPV6, v6(host("fe80::1"), 58, &advertisement), Reason::RouterGuard),
        (neighbour(), ARP, arp(2, (A, [10, 0, 0, 9]), [10, 0, 0, 2]), Reason::ArpGuard),
        (neighbour(), IPV6, v6(host("fe80::1"), 58, &other), Reason::ArpGuard),
        (multicast_router(), IPV4, v4(2, 0, &[], &[0x11, 10, 0, 0, 0, 0, 0, 0]), Reason::MulticastRouterGuard),
    ]
}

#[test]
fn a_guarded_frame_is_refused_behind_any_number_of_tags() {
    // Linux removes priority tags one after another (net/core/dev.c, __netif_receive_skb_core, check_vlan_id); VU#855201.
    for (mut world, ethertype, payload, reason) in forbidden() {
        for tags in (0..=8).chain([24, 27, 28, 29, 60, 126]) {
            let stacks = [vec![customer(0, 0); tags], vec![Tag::service(Tci(0)); tags]];
            for stack in stacks {
                let sent = frame(EVERYBODY, A, &stack, ethertype, &payload);
                assert_eq!(world.refused(0, sent), Some(reason), "{tags} tags");
            }
        }
        for tpid in [0x9100_u16, 0x9200, 0x9300, 0x88e7, 0x893f] {
            let inner = [&tpid.to_be_bytes()[..], &[0, 0], &ethertype.to_be_bytes(), &payload].concat();
            let sent = [&EVERYBODY[..], &A, &inner].concat();
            assert_eq!(world.refused(0, sent), Some(reason), "a tag of type {tpid:#06x}");
        }
        let cut = [&EVERYBODY[..], &A, &[0x81, 0, 0]].concat();
        assert_eq!(world.refused(0, cut), Some(reason), "it ends within its tag");
    }
}

#[test]
fn ip_and_arp_in_llc_are_refused() {
    // Hosts should accept IP in SNAP (RFC 1122, section 2.3.3; RFC 1042), and access points convert it to plain frames (RFC 5416; VU#855201).
    for (mut world, ethertype, payload, reason) in forbidden() {
        for tags in 0..3 {
            for organisation in [[0, 0, 0], [0, 0, 0xf8]] {
                for hidden in [ethertype, 0x8100] {
                    let tag = if hidden == 0x8100 { [&[0, 0][..], &ethertype.to_be_bytes()].concat() } else { vec![] };
                    let snap = [&[0xaa, 0xaa, 3][..], &organisation, &hidden.to_be_bytes(), &tag, &payload].concat();
                    // The length field may have any value (CVE-2021-27861).
                    for len in [0, snap.len() as u16, 1500, 0x05ff] {
                        let sent = frame(EVERYBODY, A, &vec![customer(0, 0); tags], len, &snap);
                        assert_eq!(world.refused(0, sent), Some(reason), "{hidden:#06x}, {tags} tags, length {len}");
                    }
                }
            }
        }
        let (sap, cut) =
            ([&[6, 6, 3][..], &payload].concat(), [&EVERYBODY[..], &A, &[0, 40, 0xaa, 0xaa, 3, 0, 0, 0, 8]]);
        assert_eq!(world.refused(0, frame(EVERYBODY, A, &[], 43, &sap)), Some(reason), "IP's own access point");
        assert_eq!(world.refused(0, cut.concat()), Some(reason), "it ends within its header");
        let discovery = [&[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0][..], &[1; 30]].concat();
        assert_eq!(world.refused(0, frame([1, 0, 0xc, 0xcc, 0xcc, 0xcc], A, &[], 38, &discovery)), None, "CDP");
        assert_eq!(world.refused(0, frame(EVERYBODY, A, &[], 38, &[0xf0; 38])), None, "NetBIOS");
    }
}

#[test]
fn a_damaged_ip_header_is_refused() {
    for (mut world, _, _, reason) in forbidden() {
        for (ethertype, payload) in [(IPV4, vec![0x44; 46]), (IPV4, vec![0x65; 46]), (IPV6, vec![0x45; 46])] {
            assert_eq!(world.refused(0, frame(EVERYBODY, A, &[], ethertype, &payload)), Some(reason));
        }
        let cut = frame(EVERYBODY, A, &[], IPV4, &[0x45; 46])[..33].to_vec();
        assert_eq!(world.refused(0, cut), Some(reason), "it is cut off");
    }
}

#[test]
fn other_frames_pass_every_guard() {
    let all = Guards { bpdu: true, dhcp_server: true, arp: true, router_advertisement: true, multicast_router: true };
    let mut world = guarded(all);
    let tcp = [1, 187, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 16, 0, 0, 0, 0, 0, 0];
    for tags in 0..9 {
        for (ethertype, payload) in [
            (IPV4, v4(6, 0, &[], &tcp)),
            (IPV4, v4(6, 0, &[1, 1, 1, 0], &tcp)),
            (IPV4, v4(17, 0, &[], &udp(68, 67))),
            (IPV4, v4(17, 0x2000, &[], &udp(4000, 4001))),
            (IPV4, v4(17, 0x0008, &[], &udp(67, 68))),
            (IPV4, v4(1, 0, &[], &[8, 0, 0, 0])),
            (IPV4, v4(2, 0, &[0x94, 4, 0, 0], &[0x16, 0, 0, 0, 239, 1, 1, 1])),
            (IPV6, v6(host("fe80::1"), 6, &tcp)),
            (IPV6, v6(host("fe80::1"), 17, &udp(546, 547))),
            (IPV6, v6(host("fe80::1"), 58, &[128, 0, 0, 0, 0, 0, 0, 0])),
            (IPV6, v6(host("fe80::1"), 50, &[1; 40])),
            (IPV6, v6(host("fe80::1"), 59, &[])),
            (IPV6, v6(host("fe80::1"), 58, &message(ROUTER_SOLICITATION, host("::"), &[&link(SOURCE_LINK, A)]))),
            (ARP, arp(2, (A, [10, 0, 0, 1]), [10, 0, 0, 2])),
            (RARP, arp(3, (A, [0; 4]), [0; 4])),
            (0x88cc, vec![2, 7, 4, 2, 0, 0, 0, 0, 10]),
        ] {
            let sent = frame(EVERYBODY, A, &vec![customer(0, 0); tags], ethertype, &payload);
            assert_eq!(world.refused(0, sent), None, "{tags} tags, {ethertype:#06x} {payload:?}");
        }
    }
    let fragment = chained(&[LATER], 17, &udp(547, 546));
    assert_eq!(world.refused(0, fragment), None, "the rest of a packet whose beginning was judged");
    assert_eq!(world.refused(0, chained(&[FIRST, OPTIONS], 17, &udp(4000, 4001))), None);
    assert_eq!(world.refused(0, chained(&[(0, OPTIONS.1), OPTIONS, WHOLE, OPTIONS], 6, &tcp)), None);
}

#[test]
fn a_dhcp_server_behind_a_guarded_port_is_not_heard() {
    let mut world = dhcp();
    // Clients do not check an answer's source port (busybox, networking/udhcp/dhcpc.c, udhcp_recv_raw_packet).
    for from in [67, 68, 547, 1067, 0] {
        assert_eq!(world.refused(0, udp4(from, 68)), Some(Reason::DhcpGuard), "from {from}");
    }
    assert_eq!(world.refused(0, udp4(67, 1068)), Some(Reason::DhcpGuard));
    assert_eq!(world.refused(0, udp4(68, 67)), None, "a client");
    assert_eq!(world.refused(1, udp4(67, 68)), None, "the other port is not guarded");
    // RFC 7610, section 5: recognised by its destination port.
    for (ports, expected) in [
        ((547, 546), Some(Reason::DhcpGuard)),
        ((1547, 546), Some(Reason::DhcpGuard)),
        ((547, 1546), Some(Reason::DhcpGuard)),
        ((546, 547), None),
        ((1546, 547), None),
    ] {
        let payload = udp(ports.0, ports.1);
        for chain in [&[][..], &[OPTIONS], &[WHOLE], &[FIRST, OPTIONS]] {
            assert_eq!(world.refused(0, chained(chain, 17, &payload)), expected, "{ports:?} {chain:?}");
        }
        let options = frame(EVERYBODY, A, &[], IPV4, &v4(17, 0, &[1; 40], &udp(67, 68)));
        assert_eq!(world.refused(0, options), Some(Reason::DhcpGuard));
    }
    // A fragment that ends before its ports cannot be judged: it may belong to any packet.
    let tiny = [&EVERYBODY[..], &A, &IPV4.to_be_bytes(), &v4(17, 0x2000, &[], &[0, 67])].concat();
    assert_eq!(world.refused(0, tiny), Some(Reason::DhcpGuard));
    assert_eq!(world.refused(0, chained(&[FIRST], 17, &[0, 1])), Some(Reason::DhcpGuard));
}

#[test]
fn a_router_advertisement_from_a_guarded_port_is_not_heard_however_deep_it_is() {
    let mut world = router();
    for kind in [ROUTER_ADVERTISEMENT, REDIRECT] {
        let sent = message(kind, host("fe80::1"), &[]);
        // RFC 7113, section 3: the whole chain is parsed. A frame whose chain is too long for that is dropped.
        for depth in [0, 1, 3, 8, 9, 40] {
            let chain = vec![OPTIONS; depth];
            assert_eq!(world.refused(0, chained(&chain, 58, &sent)), Some(Reason::RouterGuard), "{depth} headers");
        }
        for chain in [&[WHOLE][..], &[FIRST], &[WHOLE, LATER], &[FIRST, OPTIONS], &[WHOLE, FIRST]] {
            assert_eq!(world.refused(0, chained(chain, 58, &sent)), Some(Reason::RouterGuard), "{chain:?}");
        }
    }
    assert_eq!(world.refused(0, chained(&[FIRST], 58, &[])), Some(Reason::RouterGuard), "its beginning is cut off");
    assert_eq!(world.refused(0, chained(&[FIRST], 60, &[])), Some(Reason::RouterGuard));
    let solicitation = message(ROUTER_SOLICITATION, host("::"), &[]);
    assert_eq!(world.refused(0, chained(&[OPTIONS], 58, &solicitation)), None);
    // IPv4 has both too: RFC 792, and RFC 1256, section 3. Linux accepts redirects (net/ipv4/icmp.c, icmp_redirect).
    for (kind, expected) in [(5, Some(Reason::RouterGuard)), (9, Some(Reason::RouterGuard)), (10, None), (0, None)] {
        for fragment in [0, 0x2000] {
            let sent = frame(EVERYBODY, A, &[], IPV4, &v4(1, fragment, &[], &[kind, 1, 0, 0, 10, 0, 0, 1]));
            assert_eq!(world.refused(0, sent), expected, "ICMP {kind}");
        }
    }
    let cut = [&EVERYBODY[..], &A, &IPV4.to_be_bytes(), &v4(1, 0x2000, &[], &[])].concat();
    assert_eq!(world.refused(0, cut), Some(Reason::RouterGuard));
}

#[test]
fn a_next_header_that_nobody_knows_is_refused() {
    // RFC 7610, section 5 (2), and RFC 7113, section 3: dropped by default, because some receiver may take it for an extension header
    // (RFC 7045).
    for (mut world, reason) in [
        (dhcp(), Reason::DhcpGuard),
        (router(), Reason::RouterGuard),
        (neighbour(), Reason::ArpGuard),
        (multicast_router(), Reason::MulticastRouterGuard),
    ] {
        for next in [148, 200, 253, 254, 255] {
            let hidden = [&[58, 0, 0, 0, 0, 0, 0, 0][..], &message(ROUTER_ADVERTISEMENT, host("::"), &[])].concat();
            assert_eq!(world.refused(0, chained(&[], next, &hidden)), Some(reason), "{next}");
            assert_eq!(world.refused(0, chained(&[OPTIONS], next, &hidden)), Some(reason), "{next}");
        }
    }
}

/// An authentication header (RFC 4302, section 2): its length counts words of 4 bytes, less 2. This one has a check value of 12 bytes.
const AUTHENTICATION: (u8, &[u8]) = (51, &[4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);

#[test]
fn every_assigned_protocol_passes_a_guard_that_can_read_it() {
    // IANA's registry of protocol numbers, July 2025. Its extension headers have a test of their own; PIM (103) and IGMP have a guard.
    let extensions = [0, 43, 44, 51, 60, 135, 139, 140];
    for (mut world, spared) in [(dhcp(), None), (router(), None), (neighbour(), None), (multicast_router(), Some(103))]
    {
        for next in (0..148).filter(|next| !extensions.contains(next) && Some(*next) != spared) {
            assert_eq!(world.refused(0, chained(&[], next, &[128; 40])), None, "{next}");
        }
    }
}

#[test]
fn what_lies_behind_an_extension_header_of_any_kind_is_judged_and_nothing_else_is_refused() {
    // Linux walks 51 and 135 (net/ipv6/exthdrs_core.c, ipv6_skip_exthdr and ipv6_find_hdr; net/ipv6/ah6.c; net/ipv6/mip6.c). IANA lists
    // 139 and 140 too: RFC 7401, section 5.1, and RFC 5533, section 5.1. Length 0 is 8 bytes, but of 51.
    let eight: &[u8] = &[0, 1, 2, 3, 4, 5, 6];
    let sixteen: &[u8] = &[1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];
    let others = [135, 139, 140].into_iter().flat_map(|number| [(number, eight), (number, sixteen)]);
    let advertisement = message(ROUTER_ADVERTISEMENT, host("::"), &[]);
    let forged = message(ADVERTISEMENT, host("fe80::9"), &[&link(TARGET_LINK, A)]);
    let own = message(ADVERTISEMENT, host("fe80::1"), &[&link(TARGET_LINK, A)]);
    let query = [130, 0, 0, 0, 0, 0, 0, 0];
    let all = Guards { bpdu: true, dhcp_server: true, arp: true, router_advertisement: true, multicast_router: true };
    for header in others.chain([AUTHENTICATION]) {
        for chain in [&[header][..], &[OPTIONS, header], &[header, OPTIONS], &[FIRST, header]] {
            let sends = |guards, last, payload: &[u8]| guarded(guards).refused(0, chained(chain, last, payload));
            let arp = Guards { arp: true, ..Guards::default() };
            assert_eq!(dhcp().refused(0, chained(chain, 17, &udp(547, 546))), Some(Reason::DhcpGuard), "{chain:?}");
            assert_eq!(router().refused(0, chained(chain, 58, &advertisement)), Some(Reason::RouterGuard), "{chain:?}");
            assert_eq!(sends(arp, 58, &forged), Some(Reason::ArpGuard), "{chain:?}");
            let queried = multicast_router().refused(0, chained(chain, 58, &query));
            assert_eq!(queried, Some(Reason::MulticastRouterGuard), "{chain:?}");
            let is_fragment = chain[0].0 == 44;
            assert_eq!(sends(arp, 58, &own), is_fragment.then_some(Reason::ArpGuard), "RFC 6980; {chain:?}");
            for (last, payload) in
                [(6, &[1; 20][..]), (17, &udp(4000, 4001)), (58, &[128, 0, 0, 0, 0, 0, 0, 0]), (59, &[])]
            {
                assert_eq!(sends(all, last, payload), None, "{chain:?} {last}");
            }
            // Frames that a guard cannot read to their end: a header beyond the first 128 bytes, and one that is cut off.
            let long = (header.0, [&[60][..], &[0; 240]].concat());
            let long = [chain, &[(long.0, &long.1[..])]].concat();
            assert_eq!(dhcp().refused(0, chained(&long, 6, &[1; 20])), Some(Reason::DhcpGuard), "{chain:?}");
        }
        // RFC 8200, section 4.1: a fragment header comes before these.
        assert_eq!(dhcp().refused(0, chained(&[header, WHOLE], 6, &[1; 20])), Some(Reason::DhcpGuard));
    }
    // IPv4 has an authentication header too.
    let authenticated = |last: u8, payload: &[u8]| {
        let packet = [&[last][..], AUTHENTICATION.1, payload].concat();
        frame(EVERYBODY, A, &[], IPV4, &v4(51, 0, &[], &packet))
    };
    assert_eq!(dhcp().refused(0, authenticated(17, &udp(67, 68))), Some(Reason::DhcpGuard));
    assert_eq!(router().refused(0, authenticated(1, &[5, 1, 0, 0, 10, 0, 0, 1])), Some(Reason::RouterGuard));
    for (last, payload) in [(6, &[1; 20][..]), (17, &udp(68, 67)), (1, &[8, 0, 0, 0]), (4, &[0x45; 20])] {
        assert_eq!(guarded(all).refused(0, authenticated(last, payload)), None, "{last}");
    }
}

#[test]
fn arp_for_others_addresses_is_refused() {
    let mut world = neighbour();
    let (own, other) = ([10, 0, 0, 1], [10, 0, 0, 9]);
    assert_eq!(world.refused(0, request(A, own, other)), None);
    assert_eq!(world.refused(0, request(A, other, own)), Some(Reason::ArpGuard));
    assert_eq!(world.refused(0, request(B, own, other)), Some(Reason::ArpGuard));
    // A probe claims its target address: RFC 5227, section 2.1.1.
    assert_eq!(world.refused(0, request(A, [0; 4], own)), None);
    assert_eq!(world.refused(0, request(A, [0; 4], other)), Some(Reason::ArpGuard), "whose it is gives it up");
    assert_eq!(world.refused(0, frame(EVERYBODY, A, &[], ARP, &[9; 28])), Some(Reason::ArpGuard));
    // RFC 903: an announcement names only its sender; a reply gives its target an address.
    for (operation, sender, expected) in
        [(3, A, None), (3, B, Some(Reason::ArpGuard)), (4, A, Some(Reason::ArpGuard)), (4, B, Some(Reason::ArpGuard))]
    {
        let sent = frame(EVERYBODY, A, &[], RARP, &arp(operation, (sender, [0; 4]), [0; 4]));
        assert_eq!(world.refused(0, sent), expected, "operation {operation}");
    }
    let mut open = World::new(&[
        Policy { guards: Guards { arp: true, ..Guards::default() }, ..Policy::default() },
        Policy::default(),
    ]);
    assert_eq!(open.refused(0, request(A, other, own)), None, "no address is bound");
    assert_eq!(open.refused(0, request(A, [0; 4], other)), None);
    assert_eq!(open.refused(0, request(B, other, own)), Some(Reason::ArpGuard));
    let bound: Ipv4Addr = other.into();
    let of_another_kind = Policy {
        guards: Guards { arp: true, ..Guards::default() },
        ip: vec!["fe80::1".parse().unwrap()],
        ..Policy::default()
    };
    assert_eq!(World::new(&[of_another_kind, Policy::default()]).refused(0, request(A, bound.octets(), own)), None);
}

#[test]
fn neighbour_discovery_that_binds_an_address_to_another_station_is_refused() {
    let (mut bound, guards) = (neighbour(), Guards { arp: true, ..Guards::default() });
    let mut open = World::new(&[Policy { guards, ..Policy::default() }, Policy::default()]);
    // Linux stores one option of each type in its table: net/ipv6/ndisc.c, ndisc_recv_ns, _na, _rs, ndisc_router_discovery, and
    // net/ipv6/route.c, rt6_do_redirect.
    for (kind, option) in [
        (SOLICITATION, SOURCE_LINK),
        (ADVERTISEMENT, TARGET_LINK),
        (ROUTER_SOLICITATION, SOURCE_LINK),
        (ROUTER_ADVERTISEMENT, SOURCE_LINK),
        (REDIRECT, TARGET_LINK),
    ] {
        for (world, own) in [(&mut bound, "fe80::1"), (&mut open, "fe80::77")] {
            let mut refused = |options: &[&[u8]]| world.refused(0, discovery(own, kind, own, options));
            assert_eq!(refused(&[&link(option, A)]), None, "{kind}");
            assert_eq!(refused(&[&link(option, B)]), Some(Reason::ArpGuard), "{kind}");
            assert_eq!(
                refused(&[&link(option, A), &link(option, B)]),
                Some(Reason::ArpGuard),
                "{kind}: the second one"
            );
            assert_eq!(refused(&[&[option, 0, 2, 0, 0, 0, 0, 0xa]]), Some(Reason::ArpGuard), "no length");
            assert_eq!(refused(&[&[option, 2, 2, 0, 0, 0, 0, 0xa]]), Some(Reason::ArpGuard), "beyond its end");
            assert_eq!(refused(&[&link(14, B)]), None, "an option about something else");
            let padded = [discovery(own, kind, own, &[&link(option, A)]), vec![1; 8]].concat();
            assert_eq!(world.refused(0, padded), None, "what follows the packet");
            let sent = message(kind, host(own), &[&link(option, A)]);
            assert_eq!(
                world.refused(0, chained(&[FIRST], 58, &sent)),
                Some(Reason::ArpGuard),
                "RFC 6980: no fragments"
            );
        }
        assert_eq!(open.refused(0, discovery("fe80::9", kind, "fe80::9", &[&link(option, A)])), None);
        let others = discovery("fe80::9", kind, "fe80::9", &[&link(option, A)]);
        assert_eq!(bound.refused(0, others), Some(Reason::ArpGuard), "{kind}");
    }
    // Duplicate address detection claims an address: RFC 4862, section 5.4.3; RFC 6620, section 3.2.3.
    assert_eq!(bound.refused(0, discovery("::", SOLICITATION, "fe80::1", &[&link(14, A)])), None);
    assert_eq!(bound.refused(0, discovery("::", SOLICITATION, "fe80::9", &[])), Some(Reason::ArpGuard));
    assert_eq!(open.refused(0, discovery("::", SOLICITATION, "fe80::9", &[])), None);
    assert_eq!(bound.refused(0, discovery("::", ROUTER_SOLICITATION, "::", &[])), None, "it has no address yet");
    assert_eq!(bound.refused(0, discovery("fe80::1", 128, "::", &[])), None, "an echo");
}

#[test]
fn queries_and_hellos_of_multicast_routers_from_a_guarded_port_are_refused() {
    let mut world = multicast_router();
    let refused = Some(Reason::MulticastRouterGuard);
    // RFC 3376, RFC 4286, and PIM's and DVMRP's types: RFC 9166's registry. Hosts send the reports and the leave.
    for (kind, expected) in [
        (0x11, refused),
        (0x13, refused),
        (0x14, refused),
        (0x30, refused),
        (0x12, None),
        (0x16, None),
        (0x17, None),
        (0x22, None),
    ] {
        for fragment in [0, 0x2000] {
            let sent = frame(EVERYBODY, A, &[], IPV4, &v4(2, fragment, &[], &[kind, 0, 0, 0, 0, 0, 0, 0]));
            assert_eq!(world.refused(0, sent), expected, "IGMP {kind:#04x}");
        }
    }
    assert_eq!(world.refused(0, frame(EVERYBODY, A, &[], IPV4, &v4(103, 0, &[], &[0x20, 0, 0, 0]))), refused, "PIM");
    assert_eq!(world.refused(0, chained(&[], 103, &[0x20, 0, 0, 0])), refused);
    for (kind, expected) in [(130, refused), (151, refused), (153, refused), (131, None), (132, None), (143, None)] {
        for chain in [&[][..], &[(0, OPTIONS.1)], &[FIRST]] {
            assert_eq!(world.refused(0, chained(chain, 58, &[kind, 0, 0, 0, 0, 0, 0, 0])), expected, "ICMPv6 {kind}");
        }
    }
    assert_eq!(world.refused(0, chained(&[FIRST], 58, &[])), refused);
    assert_eq!(world.refused(1, frame(EVERYBODY, B, &[], IPV4, &v4(2, 0, &[], &[0x11; 8]))), None, "it is not guarded");
}

#[test]
fn spanning_tree_from_a_guarded_port_is_refused_by_name() {
    let mut world = guarded(Guards { bpdu: true, ..Guards::default() });
    assert_eq!(world.refused(0, plain([1, 0x80, 0xc2, 0, 0, 0], A)), Some(Reason::BpduGuard));
    assert_eq!(world.refused(0, plain([1, 0x80, 0xc2, 0, 0, 8], A)), Some(Reason::BpduGuard), "providers' bridges");
    assert_eq!(world.refused(0, plain([1, 0, 0x0c, 0xcc, 0xcc, 0xcd], A)), Some(Reason::BpduGuard));
    assert_eq!(world.refused(1, plain([1, 0, 0x0c, 0xcc, 0xcc, 0xcd], B)), None);
}
