//! Frames in both directions, and their lengths.

use nicety_adapter::{Edit, Reason};
use nicety_frame::{Tag, Tci};

use crate::bench::{cut, ethernet, frame, payload, plain_batch};
use crate::guest::{self, *};

#[test]
fn a_frame_goes_out_and_one_comes_in_and_both_are_counted() {
    let mut g = Guest::opened();
    let out = frame(100);
    assert_eq!(g.send_plain(&out), std::slice::from_ref(&out));
    assert_eq!(g.get(TRANSMIT_RING + 12, 1)[0] & 1, 1, "DD");
    let incoming = frame(214);
    assert_eq!(g.bring_one(&incoming).refused(), 0);
    assert_eq!(g.get(guest::buffer(0), incoming.len()), incoming);
    let [_, _, status, rest] = g.written(0);
    assert_eq!((status & 3, rest), (3, incoming.len() as u32), "DD, EOP; no check sequence");
    // Octets count the check sequence.
    assert_eq!((g.r(VFGPTC), g.r(VFGOTC)), (1, 104));
    assert_eq!((g.r(VFGPRC), g.r(VFGORC)), (1, 218));
    assert_eq!((g.r(VFGPRC), g.r(VFGORC)), (1, 218), "reading clears nothing");
}

#[test]
fn nothing_moves_before_the_reset_message() {
    let mut g = Guest::new(true);
    g.w(0x3808, 4096);
    g.w(0x3800, TRANSMIT_RING as u32);
    g.w(0x3828, ENABLE);
    assert_eq!(g.send_plain(&frame(100)), [] as [Vec<u8>; 0]);
    g.w(0x2808, 4096);
    g.w(0x2800, RECEIVE_RING as u32);
    g.w(RXDCTL, ENABLE);
    g.w(RDT, 255);
    g.bring_one(&frame(100));
    assert_eq!(g.dropped(Reason::ReceiverOff), 1);
}

/// ixgbe_set_vlan_anti_spoofing in Linux's ixgbe_82599.c, and E1000_DTXSWC_VLAN_SPOOF_MASK in its igb's e1000_82575.c: a function
/// whose host checks what it sends has the tags of its own VLANs, of VLAN 0, and none.
#[test]
fn a_checked_function_sends_no_tag_of_a_vlan_that_it_was_not_granted() {
    let mut g = Guest::opened();
    let tagged = |id: u8| ethernet(0x8100, &[vec![0xe0, id, 0x88, 0xb5], payload(60)].concat());
    let sends = |g: &mut Guest, id| g.send_plain(&tagged(id)).len();
    assert_eq!(sends(&mut g, 5), 1, "its host does not check");
    g.host_sets(|policy| policy.checks_tags = true);
    assert_eq!(sends(&mut g, 5), 0);
    assert_eq!((g.dropped(Reason::Forged), g.counters.guest_errors()), (1, 0), "counted; no mistake of its driver");
    assert_eq!(g.get(TRANSMIT_RING + 16 + 12, 1)[0] & 1, 1, "DD: the descriptor goes back");
    assert_eq!(g.r(VFGPTC), 1, "it was not sent");
    assert_eq!((sends(&mut g, 0), g.send_plain(&frame(100)).len()), (1, 1), "a priority, and no tag");
    // VLAN 5 is added, and VLAN 6 is not.
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], 0xa001_0004);
    assert_eq!((sends(&mut g, 5), sends(&mut g, 6)), (1, 0));
    assert_eq!(g.exchange(&[4, 5])[0], 0xa000_0004);
    assert_eq!(sends(&mut g, 5), 0, "and taken away");
    // It keeps nothing of its host's: a reset of the function changes no check.
    g.exchange(&[1]);
    assert_eq!(sends(&mut g, 6), 0);
    g.host_sets(|policy| policy.checks_tags = false);
    assert_eq!(sends(&mut g, 6), 1);
}

/// Linux's receivers take a tag of VLAN 0 off, and look at the next one (vlan_do_receive): the first other VLAN is the frame's.
#[test]
fn a_checked_function_sends_no_vlan_behind_a_priority_or_a_service_tag() {
    let mut g = Guest::opened();
    g.host_sets(|policy| policy.checks_tags = true);
    assert_eq!(g.exchange(&[1 << 16 | 4, 5])[0], 0xa001_0004);
    let bytes = |tags: &[(u16, u8)]| {
        let [(first, id), rest @ ..] = tags else { unreachable!() };
        let mut behind = vec![0xe0, *id];
        rest.iter().for_each(|(tpid, id)| behind.extend([tpid.to_be_bytes(), [0x20, *id]].concat()));
        ethernet(*first, &[behind, vec![0x88, 0xb5], payload(60)].concat())
    };
    const C: u16 = 0x8100;
    const S: u16 = 0x88a8;
    let passes: [&[(u16, u8)]; 5] = [&[(C, 0)], &[(C, 5)], &[(C, 5), (C, 6)], &[(C, 0), (C, 5)], &[(S, 0), (C, 0)]];
    let refused: [&[(u16, u8)]; 6] = [
        &[(C, 0), (C, 6)],
        &[(C, 0), (C, 0), (C, 6)],
        &[(S, 0), (C, 6)],
        &[(C, 0), (S, 5)],
        &[(S, 5)],
        &[(C, 6), (C, 5)],
    ];
    for tags in passes {
        assert_eq!(g.send_plain(&bytes(tags)).len(), 1, "{tags:x?}");
    }
    for (tags, count) in refused.into_iter().zip(1..) {
        assert_eq!((g.send_plain(&bytes(tags)).len(), g.dropped(Reason::Forged)), (0, count), "{tags:x?}");
    }
    // More tags than its head holds.
    assert_eq!(g.send_plain(&bytes(&[(C, 0); 200])).len(), 0);
}

/// Linux's buffers have 1522 bytes at an MTU of 1500, and SRRCTL says 2 KiB.
#[test]
fn no_frame_is_longer_than_the_driver_has_asked_for_whatever_srrctl_says() {
    let mut g = Guest::opened();
    let mut index = 0;
    let canary = [0x5a; 8];
    let mut bring = |g: &mut Guest, bytes: &[u8], edit: Edit| {
        g.put(guest::buffer(index) + 1518, &canary);
        let batch = plain_batch(&[bytes]);
        g.bring(&batch, edit);
        let taken = g.written(index)[2] & 1 != 0;
        assert_eq!(
            g.get(guest::buffer(index) + 1518, 8),
            canary,
            "behind 1518 bytes: the check sequence's, and others'"
        );
        index += u64::from(taken);
        taken
    };
    let tag = Tag { tpid: 0x8100, tci: Tci(0) };
    let tagged = |tags: usize, len: usize| {
        let head: Vec<u8> = [0, 0, 0x81, 0].repeat(tags);
        let mut inner = head;
        if tags > 0 {
            let at = inner.len() - 2;
            inner[at..].copy_from_slice(&[0x88, 0xb5]);
        }
        ethernet(if tags > 0 { 0x8100 } else { 0x88b5 }, &[inner, payload(len - 14 - 4 * tags)].concat())
    };
    assert!(bring(&mut g, &tagged(0, 1514), Edit::Keep));
    assert!(bring(&mut g, &tagged(1, 1518), Edit::Keep));
    assert!(bring(&mut g, &tagged(0, 1514), Edit::Tag(tag)));
    assert!(!bring(&mut g, &tagged(2, 1522), Edit::Keep));
    assert!(!bring(&mut g, &tagged(1, 1518), Edit::Tag(tag)));
    assert!(!bring(&mut g, &tagged(0, 1519), Edit::Keep));
    assert_eq!(g.dropped(Reason::TooLong), 3);
}

/// igbvf_change_mtu and igbvf_setup_srrctl: from 2 KiB on 128 bytes of headers apart, always, and pages' halves of 2 KiB.
#[test]
fn with_a_larger_mtu_headers_go_apart_and_a_frame_takes_several_halves_of_pages() {
    let mut g = Guest::ready(true);
    g.open_receive_ring(1 << 31 | 0x0a00_0000 | 128 << 2 | 2, 9022);
    let long = frame(5000);
    g.bring_one(&long);
    let [information, _, status, rest] = g.written(0);
    assert_eq!((information >> 21 & 0x3ff, status & 3, rest & 0xffff), (128, 1, 2048));
    let [information, _, status, rest] = g.written(1);
    assert_eq!((information >> 21 & 0x3ff, status & 3, rest & 0xffff), (0, 1, 2048));
    assert_eq!((g.written(2)[2] & 3, g.written(2)[3] & 0xffff), (3, 5000 - 128 - 4096));
    let whole =
        [g.get(guest::buffer(0), 128), g.get(page(0), 2048), g.get(page(1), 2048), g.get(page(2), 776)].concat();
    assert_eq!(whole, long);
    g.bring_one(&frame(9019));
    assert_eq!(g.dropped(Reason::TooLong), 1);
}

/// 82576 datasheet, 8.10.7, 8.10.8, 8.12.10 and 8.12.11: heads and tails of descriptors of the ring.
#[test]
fn a_head_or_tail_beyond_its_ring_is_a_guest_error_and_told_in_words() {
    let said = |g: &Guest| g.counters.errors().iter().last().unwrap().to_string();
    let outside = Some("its head or tail lies beyond its end");
    let mut g = Guest::opened();
    assert_eq!(g.nic.receive_block(), None);
    for (register, name) in [(RDT, "tail within the ring (RDT"), (RDH, "head within the ring (RDH")] {
        g.w(register, RING as u32);
        assert_eq!(g.nic.receive_block(), Some("RDH or RDT lies beyond its receive ring (RDLEN)"));
        assert_eq!(g.bring_one(&ethernet(0x88b5, &payload(60))).refused(), 1);
        assert_eq!(g.nic.stall(0).map(|stall| stall.why), outside);
        assert!(said(&g).ends_with(&format!("expected a {name} below RDLEN / 16)")), "{}", said(&g));
        g.w(register, 3);
    }
    g.w(RDT, 9);
    assert_eq!(g.bring_one(&ethernet(0x88b5, &payload(60))).refused(), 0);
    assert_eq!((g.nic.stall(0).map(|stall| stall.why), g.nic.receive_block()), (None, None));
    for (register, name) in [(TDT, "tail within the ring (TDT"), (TDH, "head within the ring (TDH")] {
        g.w(register, RING as u32);
        assert_eq!(g.fetch_all(0, cut), [] as [Vec<u8>; 0]);
        assert_eq!(g.nic.stall(1).map(|stall| stall.why), outside);
        assert!(said(&g).ends_with(&format!("expected a {name} below TDLEN / 16)")), "{}", said(&g));
        g.w(register, 0);
    }
    g.link(false);
    assert_eq!(g.nic.receive_block(), Some("its link is down"));
    g.link(true);
    g.w(RXDCTL, 0);
    assert_eq!(g.nic.receive_block(), Some("no receive queue is on (RXDCTL.ENABLE)"));
    g.config_write(4, &[2, 0]);
    assert_eq!(g.nic.receive_block(), Some("bus mastering is off (PCI command register)"));
}
