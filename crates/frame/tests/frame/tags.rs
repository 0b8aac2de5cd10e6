//! VLAN editing against etherparse, and written MAC addresses.

use crate::packets::packet;
use etherparse::SlicedPacket;
use nicety_frame::ethernet::MacError;
use nicety_frame::vlan::{self, EditError};
use nicety_frame::{Mac, Tag, Tci};
use proptest::prelude::*;

proptest! {
    #[test]
    fn an_inserted_tag_is_the_outermost_and_stripping_takes_it_off(packet in packet(60), tci: u16, service: bool) {
        let tag = if service { Tag::service(Tci(tci)) } else { Tag::customer(Tci(tci)) };
        let mut buffer = packet.bytes.clone();
        buffer.resize(packet.bytes.len() + 10, 0xdd);
        let len = vlan::insert(&mut buffer, packet.bytes.len(), tag).unwrap();
        prop_assert_eq!(len, packet.bytes.len() + 4);
        prop_assert_eq!(vlan::outer(&buffer[..len]), Some(tag));
        let ids = SlicedPacket::from_ethernet(&buffer[..len]).unwrap().vlan_ids();
        prop_assert_eq!((ids[0].value(), ids.len()), (tci & 0xfff, packet.plan.tags.len() + 1));
        prop_assert!(buffer[len..].iter().all(|&byte| byte == 0xdd));
        prop_assert_eq!(vlan::strip(&mut buffer, len), Some((packet.bytes.len(), tag)));
        prop_assert_eq!(&buffer[..packet.bytes.len()], &packet.bytes[..]);
    }
}

#[test]
fn a_head_without_room_or_tag_is_left_alone() {
    let tag = Tag::customer(Tci::new(7, true, 4094));
    let mut buffer = [0x11; 64];
    assert_eq!(vlan::insert(&mut buffer, 61, tag), Err(EditError::NoRoom));
    assert_eq!(vlan::insert(&mut buffer, 65, tag), Err(EditError::NoRoom));
    assert_eq!(vlan::insert(&mut buffer, usize::MAX, tag), Err(EditError::NoRoom));
    assert_eq!(vlan::insert(&mut buffer, 13, tag), Err(EditError::Short));
    assert_eq!(vlan::strip(&mut buffer, 64), None);
    assert_eq!(vlan::strip(&mut buffer, 65), None);
    assert_eq!(vlan::replace(&mut buffer, tag), None);
    assert_eq!(buffer, [0x11; 64]);
    assert_eq!(vlan::insert(&mut buffer, 60, tag), Ok(64));
    assert_eq!(buffer[12..16], [0x81, 0x00, 0xff, 0xfe]);
    assert_eq!(vlan::strip(&mut buffer, 17), None, "the type behind the tag is cut off");
    assert_eq!(vlan::replace(&mut buffer, Tag::service(Tci(1))), Some(tag));
    assert_eq!(buffer[12..16], [0x88, 0xa8, 0x00, 0x01]);
}

#[test]
fn a_mac_address_reads_as_it_is_written() {
    let mac: Mac = "52:54:00:12:34:56".parse().unwrap();
    assert_eq!(mac, Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]));
    assert_eq!(mac.to_string(), "52:54:00:12:34:56");
    assert_eq!("52-54-00-AB-cd-EF".parse::<Mac>().unwrap().to_string(), "52:54:00:ab:cd:ef");
    assert_eq!(mac.to_u64(), 0x5254_0012_3456);
}

#[test]
fn a_wrong_mac_address_is_told_what_is_wrong_and_what_is_allowed() {
    for (text, error) in [
        ("", MacError::Parts(1)),
        ("52:54:00:12:34", MacError::Parts(5)),
        ("52:54:00:12:34:56:78", MacError::Parts(7)),
        ("52:54-00:12:34:56", MacError::Mixed),
        ("52-54:00:12:34:01", MacError::Mixed),
        ("52:54:00:12:34:5", MacError::Digits(6)),
        ("52:+4:00:12:34:56", MacError::Digits(2)),
        ("52:54:0g:12:34:56", MacError::Digits(3)),
        ("52:54:00:12:34:é", MacError::Digits(6)),
    ] {
        assert_eq!(text.parse::<Mac>(), Err(error), "{text}");
    }
    let error = "52:54:00:12:34".parse::<Mac>().unwrap_err().to_string();
    assert!(error.contains("has 5") && error.contains("52:54:00:12:34:56"), "{error}");
}

#[test]
fn kinds_of_address_are_told_apart() {
    let kinds = |mac: Mac| (mac.is_multicast(), mac.is_broadcast(), mac.is_unicast(), mac.is_local());
    assert_eq!(kinds(Mac::BROADCAST), (true, true, false, true));
    assert_eq!(kinds(Mac::ZERO), (false, false, false, false));
    assert_eq!(kinds(Mac([0x01, 0, 0x5e, 0, 0, 1])), (true, false, false, false));
    assert_eq!(kinds(Mac([0x52, 0x54, 0, 0, 0, 1])), (false, false, true, true));
    assert!(Mac([0x01, 0x80, 0xc2, 0, 0, 2]).is_link_local());
    assert!(!Mac([0x01, 0x80, 0xc2, 0, 0, 0x10]).is_link_local());
}

#[test]
fn a_stack_of_tags_is_told_from_the_outside_in_and_ends_with_the_frame() {
    let stack = [Tag::service(Tci(9)), Tag::customer(Tci(5)), Tag::customer(Tci(0xe001))];
    let tags: Vec<u8> = stack.iter().flat_map(|tag| tag.to_bytes()).collect();
    let frame = [&[0; 12][..], &tags, &[8, 0, 0x81, 0]].concat();
    assert_eq!(vlan::stack(&frame).collect::<Vec<_>>(), stack);
    assert_eq!(vlan::stack(&frame[..23]).count(), 2, "the third is cut");
    assert_eq!(vlan::stack(&frame[..7]).count(), 0);
}

#[test]
fn a_tag_is_told_by_its_kind_and_number_without_its_priority() {
    let tags = [Tag::customer(Tci(0xe00a)), Tag::service(Tci(100))];
    assert_eq!(tags.map(|tag| tag.to_string()), ["tag 10", "service tag 100"]);
}
