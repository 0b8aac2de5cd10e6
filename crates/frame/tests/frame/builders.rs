//! Headers that we write, read by smoltcp and etherparse; headers that etherparse writes, read by our views.

use crate::packets::packet;
use nicety_frame::ethernet::ethertype;
use nicety_frame::{BuildError, L3Kind, L4Kind, Mac, Malformed, arp, ethernet, ipv4, ipv6, tcp, udp};
use proptest::prelude::*;
use smoltcp::wire::{ArpPacket, EthernetFrame, Ipv4Packet, Ipv6Packet, TcpPacket, UdpPacket};
use std::net::{Ipv4Addr, Ipv6Addr};

proptest! {
    #[test]
    fn views_read_what_smoltcp_reads(packet in packet(100)) {
        let frame = ethernet::View::parse(&packet.bytes).unwrap();
        let theirs = EthernetFrame::new_checked(&packet.bytes).unwrap();
        prop_assert_eq!(frame.destination().0, theirs.dst_addr().0);
        prop_assert_eq!(frame.source().0, theirs.src_addr().0);
        prop_assert_eq!(frame.ethertype(), u16::from(theirs.ethertype()));
        let l3 = &packet.bytes[packet.l3_at..];
        match packet.plan.l3 {
            L3Kind::V4 => {
                let (ours, theirs) = (ipv4::View::parse(l3).unwrap(), Ipv4Packet::new_checked(l3).unwrap());
                prop_assert!(ours.checksum_ok() && theirs.verify_checksum());
                prop_assert_eq!(ours.header_len(), usize::from(theirs.header_len()));
                prop_assert_eq!((ours.total_len(), ours.id()), (theirs.total_len(), theirs.ident()));
                prop_assert_eq!((ours.source(), ours.destination()), (theirs.src_addr(), theirs.dst_addr()));
                prop_assert_eq!(ours.payload(), theirs.payload());
            }
            L3Kind::V6 => {
                let (ours, theirs) = (ipv6::View::parse(l3).unwrap(), Ipv6Packet::new_checked(l3).unwrap());
                prop_assert_eq!(ours.flow_label(), theirs.flow_label());
                prop_assert_eq!(ours.payload_len(), theirs.payload_len());
                prop_assert_eq!((ours.source(), ours.destination()), (theirs.src_addr(), theirs.dst_addr()));
                prop_assert_eq!(ours.payload(), theirs.payload());
            }
        }
        let l4 = &packet.bytes[packet.l4_at..];
        match packet.plan.l4 {
            L4Kind::Tcp => {
                let (ours, theirs) = (tcp::View::parse(l4).unwrap(), TcpPacket::new_checked(l4).unwrap());
                prop_assert_eq!((ours.source_port(), ours.destination_port()), (theirs.src_port(), theirs.dst_port()));
                prop_assert_eq!(ours.sequence() as i32, theirs.seq_number().0);
                prop_assert_eq!((ours.flags() & tcp::flag::FIN != 0, ours.flags() & tcp::flag::CWR != 0),
                    (theirs.fin(), theirs.cwr()));
                prop_assert_eq!(ours.options(), theirs.options());
                prop_assert_eq!(ours.payload(), theirs.payload());
            }
            L4Kind::Udp => {
                let (ours, theirs) = (udp::View::parse(l4).unwrap(), UdpPacket::new_checked(l4).unwrap());
                prop_assert_eq!((ours.len(), ours.checksum()), (theirs.len(), theirs.checksum()));
                prop_assert_eq!(ours.payload(), theirs.payload());
            }
        }
    }

    #[test]
    fn ip_headers_that_we_write_are_read_alike(source: [u8; 16], destination: [u8; 16], id: u16, class: u8,
        label in 0_u32..0x10_0000, options in 0_usize..=10, payload_len in 0_usize..1000, frag in 0_u16..0x2000,
        dont: bool, more: bool)
    {
        let mut out = vec![0xee; 1100];
        let [a, b, c, d, ..] = source;
        let header = ipv4::Header {
            source: Ipv4Addr::new(a, b, c, d), destination: Ipv4Addr::LOCALHOST, protocol: 17, ttl: 9, id,
            traffic_class: class, dont_fragment: dont, more_fragments: more, fragment_offset_8: frag,
            options: &vec![1; options * 4], payload_len,
        };
        let len = header.write(&mut out).unwrap();
        let read = Ipv4Packet::new_checked(&out[..len + payload_len]).unwrap();
        prop_assert!(read.verify_checksum());
        prop_assert_eq!((read.src_addr(), read.dst_addr()), (header.source, header.destination));
        prop_assert_eq!((read.ident(), read.hop_limit(), read.dont_frag(), read.more_frags()), (id, 9, dont, more));
        prop_assert_eq!((read.frag_offset(), read.dscp(), read.ecn()), (frag << 3, class >> 2, class & 3));
        prop_assert_eq!((usize::from(read.header_len()), read.payload().len()), (len, payload_len));
        let view = ipv4::View::parse(&out).unwrap();
        prop_assert_eq!((view.dont_fragment(), view.more_fragments()), (read.dont_frag(), read.more_frags()));
        prop_assert_eq!(view.fragment_offset(), usize::from(read.frag_offset()));
        prop_assert_eq!((view.ttl(), view.protocol(), view.traffic_class()), (9, 17, class));
        let header = ipv6::Header {
            source: Ipv6Addr::from(source), destination: Ipv6Addr::from(destination), next_header: 6, hop_limit: 3,
            traffic_class: class, flow_label: label, payload_len,
        };
        let len = header.write(&mut out).unwrap();
        let read = Ipv6Packet::new_checked(&out[..len + payload_len]).unwrap();
        prop_assert_eq!((read.src_addr(), read.dst_addr()), (header.source, header.destination));
        prop_assert_eq!((read.traffic_class(), read.flow_label(), read.hop_limit()), (class, label, 3));
        prop_assert_eq!((u8::from(read.next_header()), read.payload().len()), (6, payload_len));
    }

    #[test]
    fn arp_packets_are_read_alike(operation: u16, sender_mac: [u8; 6], sender: [u8; 4], target: [u8; 4]) {
        let packet = arp::Packet {
            operation, sender_mac: Mac(sender_mac), sender: sender.into(), target_mac: Mac::ZERO, target: target.into(),
        };
        let mut out = [0; 40];
        prop_assert_eq!(packet.write(&mut out), Ok(28));
        let read = ArpPacket::new_checked(&out).unwrap();
        prop_assert_eq!(u16::from(read.operation()), operation);
        prop_assert_eq!(read.source_hardware_addr(), &sender_mac[..]);
        prop_assert_eq!((read.source_protocol_addr(), read.target_protocol_addr()), (&sender[..], &target[..]));
        prop_assert_eq!(arp::Packet::parse(&out), Ok(packet));
        out[1] = 6;
        prop_assert_eq!(arp::Packet::parse(&out), Err(Malformed::Version));
    }
}

#[test]
fn transport_headers_that_we_write_are_read_alike() {
    let mut out = [0xee; 100];
    let header = tcp::Header {
        source_port: 80,
        destination_port: 40_000,
        sequence: 0x1122_3344,
        acknowledgement: 0x5566_7788,
        flags: tcp::flag::ACK | tcp::flag::PSH,
        window: 501,
        urgent: 3,
        options: &[1, 1, 1, 0],
    };
    assert_eq!(header.write(&mut out), Ok(24));
    let read = etherparse::TcpSlice::from_slice(&out[..30]).unwrap();
    assert_eq!((read.source_port(), read.destination_port(), read.window_size()), (80, 40_000, 501));
    assert_eq!((read.sequence_number(), read.acknowledgment_number()), (0x1122_3344, 0x5566_7788));
    assert_eq!((read.ack(), read.psh(), read.syn(), read.urgent_pointer()), (true, true, false, 3));
    assert_eq!((read.options(), read.checksum(), read.payload().len()), (&[1, 1, 1, 0][..], 0, 6));
    assert_eq!(udp::Header { source_port: 53, destination_port: 1053, payload_len: 5 }.write(&mut out), Ok(8));
    let read = etherparse::UdpSlice::from_slice(&out[..13]).unwrap();
    assert_eq!((read.source_port(), read.destination_port(), read.length(), read.checksum()), (53, 1053, 13, 0));
}

#[test]
fn an_edit_changes_its_field_and_nothing_else() {
    let mut out = [0; 60];
    let header = ipv4::Header { protocol: 6, payload_len: 10, ..Default::default() };
    header.write(&mut out).unwrap();
    let mut edit = ipv4::Edit::parse(&mut out).unwrap();
    edit.set_total_len(40);
    edit.set_id(7);
    edit.set_ttl(1);
    edit.set_traffic_class(3);
    edit.set_source(Ipv4Addr::new(1, 2, 3, 4));
    edit.set_destination(Ipv4Addr::new(5, 6, 7, 8));
    edit.fill_checksum();
    let read = Ipv4Packet::new_checked(&out[..40]).unwrap();
    assert!(read.verify_checksum());
    assert_eq!((read.ident(), read.hop_limit(), read.ecn()), (7, 1, 3));
    assert_eq!((read.src_addr(), read.dst_addr()), (Ipv4Addr::new(1, 2, 3, 4), Ipv4Addr::new(5, 6, 7, 8)));

    let mut frame = [0; 14];
    let header = ethernet::Header { destination: Mac::BROADCAST, source: Mac([2; 6]), ethertype: ethertype::ARP };
    assert_eq!(header.write(&mut frame), Ok(14));
    ethernet::Edit::parse(&mut frame).unwrap().set_source(Mac([4; 6]));
    let read = EthernetFrame::new_checked(&frame).unwrap();
    assert_eq!((read.dst_addr().0, read.src_addr().0, u16::from(read.ethertype())), ([0xff; 6], [4; 6], 0x0806));
}

#[test]
fn what_does_not_fit_is_not_written() {
    let v4 = |payload_len, options| ipv4::Header { payload_len, options, ..Default::default() };
    assert_eq!(v4(65_515, &[]).write(&mut [0; 20]), Ok(20));
    assert_eq!(v4(65_516, &[]).write(&mut [0; 20]), Err(BuildError::Length));
    assert_eq!(v4(usize::MAX, &[]).write(&mut [0; 20]), Err(BuildError::Length));
    assert_eq!(v4(0, &[]).write(&mut [0; 19]), Err(BuildError::NoRoom));
    assert_eq!(v4(0, &[1; 44]).write(&mut [0; 99]), Err(BuildError::Options));
    assert_eq!(v4(0, &[1; 3]).write(&mut [0; 99]), Err(BuildError::Options));
    assert_eq!(udp::Header { payload_len: 65_528, ..Default::default() }.write(&mut [0; 8]), Err(BuildError::Length));
    assert_eq!(tcp::Header { options: &[1; 40], ..Default::default() }.write(&mut [0; 59]), Err(BuildError::NoRoom));
    assert_eq!(ipv6::Header::default().write(&mut [0; 39]), Err(BuildError::NoRoom));
}
