//! Frames in both directions: rings, sizes, filters, refusals, resets.

use nicety_adapter::{Checksum, Edit, Offload, Pick, Reason, Reset, Segment, SegmentKind};
use nicety_frame::{Tag, Tci};

use crate::bench::*;

fn drops(b: &Bench, reason: Reason) -> (u64, u64) {
    (b.counters.transmit_drops[reason as usize], b.counters.receive_drops[reason as usize])
}

#[test]
fn a_frame_goes_out_in_pieces_and_its_descriptors_come_back_when_it_is_done() {
    let mut b = Bench::opened();
    b.r(ICR);
    let frame = ethernet(0x0800, &payload(1400));
    b.put(TX_DATA, &frame);
    b.descriptor(0, TX_DATA, 100, 0);
    b.descriptor(1, TX_DATA + 100, 7, 0);
    b.descriptor(2, TX_DATA + 107, (frame.len() as u32 - 107) | CMD, 0);
    b.w(TDT, 3);
    assert!(b.out.work.contains(0));
    assert!(!b.fetch().more);
    assert_eq!(cut(&b.batch), std::slice::from_ref(&frame));
    assert_eq!((b.r(TDH), b.status_of(2)), (0, 0), "not before it is done");
    b.complete();
    assert_eq!((b.r(TDH), b.status_of(0), b.status_of(2)), (3, 0, 1));
    assert_eq!(b.r(ICR) & 3, 3, "TXDW and TXQE");
    assert_eq!((b.r(0x4080), b.r(0x4090)), (1, frame.len() as u32 + 4), "GPTC, GOTCL");
    assert_eq!(b.counters.transmitted().packets, 1);
}

#[test]
fn short_frames_are_padded_both_ways() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &ethernet(0x0806, &[1; 28]));
    b.descriptor(0, TX_DATA, 42 | CMD, 0);
    b.w(TDT, 1);
    assert_eq!(b.transmit()[0].len(), 60);
    b.put(RX_DATA, &[0xee; 100]);
    b.bring_one(&ethernet(0x0806, &[1; 28]));
    assert_eq!(b.received(0), (64, 0x07, 0, 0), "DD, EOP, IXSM");
    assert_eq!(b.get(RX_DATA + 42, 18), [0; 18]);
    assert_eq!(b.get(RX_DATA + 64, 1), [0xee]);
}

#[test]
fn a_packet_waits_for_its_last_descriptor() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &payload(200));
    b.descriptor(0, TX_DATA, 100, 0);
    b.descriptor(1, TX_DATA + 100, 100 | CMD, 0);
    b.w(TDT, 1);
    assert!(b.transmit().is_empty());
    assert_eq!(b.r(TDH), 0);
    b.w(TDT, 2);
    assert_eq!(b.transmit(), [payload(200)]);
}

#[test]
fn a_ring_wraps_and_a_batch_is_bounded() {
    let mut b = Bench::opened();
    for i in 0..RING {
        b.put(TX_DATA + i * 64, &[i as u8; 64]);
        b.descriptor(i, TX_DATA + i * 64, 64 | CMD, 0);
    }
    let mut sent = 0_u32;
    for _ in 0..5 {
        let tail = (sent + 200) % 256;
        b.w(TDT, tail);
        assert!(b.fetch().more, "64 a turn");
        assert_eq!(b.batch.len(), 64);
        b.complete();
        let rest = b.transmit();
        assert_eq!(rest.len(), 200 - 64);
        sent = tail;
        assert_eq!(rest[135][0], (tail + 255) as u8);
        assert_eq!(b.r(TDH), tail);
    }
}

#[test]
fn what_cannot_be_sent_is_dropped_with_its_reason_and_the_ring_goes_on() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &payload(64));
    b.descriptor(0, 0xdead_beef_0000, 64 | CMD, 0);
    b.descriptor(1, TX_DATA, 5 | CMD, 0);
    for i in 2..7 {
        b.descriptor(i, TX_DATA, 0xffff, 0);
    }
    b.descriptor(7, TX_DATA, 0xffff | CMD, 0);
    b.descriptor(8, TX_DATA, 64 | CMD, 0);
    b.w(TDT, 9);
    assert_eq!(b.transmit(), [payload(64)]);
    for reason in [Reason::BadAddress, Reason::TooShort, Reason::TooLong] {
        assert_eq!(drops(&b, reason).0, 1, "{reason:?}");
    }
    assert_eq!((b.r(TDH), b.status_of(0), b.status_of(7)), (9, 1, 1));
    b.link(false);
    b.descriptor(9, TX_DATA, 64 | CMD, 0);
    b.w(TDT, 10);
    assert!(b.transmit().is_empty());
    assert_eq!((drops(&b, Reason::LinkDown).0, b.status_of(9)), (1, 1));
}

#[test]
fn a_frame_arrives_with_its_length_and_posts_one_interrupt_cause() {
    let mut b = Bench::opened();
    b.r(ICR);
    let frame = ethernet(0x88b5, &payload(900));
    b.bring_one(&frame);
    assert_eq!(b.received(0).0, frame.len() as u16 + 4);
    assert_eq!(b.get(RX_DATA, frame.len()), frame);
    assert_eq!((b.r(RDH), b.r(ICR)), (1, 0x80));
    assert_eq!((b.r(0x4074), b.r(0x4074)), (1, 0), "GPRC clears on reading");
    assert_eq!((b.r(0x4088), b.r(0x4088)), (918, 918), "GORCL does not,");
    assert_eq!((b.r(0x408c), b.r(0x4088)), (0, 0), "but GORCH clears both");
}

#[test]
fn a_long_frame_takes_as_many_buffers_as_it_needs() {
    for (size, bits) in [(2048, 0), (1024, 1 << 16), (512, 2 << 16), (256, 3 << 16), (4096, 3 << 16 | 1 << 25)] {
        for strip in [0, 1 << 26] {
            let mut b = Bench::opened();
            b.open_receive(RX_RING, 256, RCTL_LINUX | 0x20 | bits | strip, size);
            let frame = ethernet(0x88b5, &payload(8986));
            b.bring_one(&frame);
            let total = 9000 + if strip == 0 { 4 } else { 0 };
            let count = u64::div_ceil(total, size);
            for i in 0..count - 1 {
                assert_eq!(b.received(i), (size as u16, 1, 0, 0));
            }
            let (len, status, _, _) = b.received(count - 1);
            assert_eq!((u64::from(len), status & 3), (total - (count - 1) * size, 3));
            assert_eq!(b.get(RX_DATA, 9000), frame);
        }
    }
}

#[test]
fn without_long_packets_the_standard_s_length_is_the_limit() {
    let mut b = Bench::opened();
    b.bring_one(&ethernet(0x88b5, &payload(1501)));
    assert_eq!(drops(&b, Reason::TooLong).1, 1);
    b.bring_one(&ethernet(0x88b5, &payload(1500)));
    let mut tagged = ethernet(0x8100, &[0, 5, 0x88, 0xb5]);
    tagged.extend(payload(1500));
    b.bring_one(&tagged);
    assert_eq!((b.received(0).0, b.received(1).0), (1518, 1522));
}

#[test]
fn addresses_are_filtered_as_the_registers_say() {
    let mut b = Bench::opened();
    let to = |first: [u8; 6]| [&first[..], &PEER, &[0x88, 0xb5], &[0; 50]].concat();
    let arrives = |b: &mut Bench, address: [u8; 6]| {
        let before = b.r(RDH);
        b.bring_one(&to(address));
        b.r(RDH) != before
    };
    let group = [1, 0, 0x5e, 0, 0, 0xfb];
    assert!(arrives(&mut b, MAC) && arrives(&mut b, [0xff; 6]));
    assert!(!arrives(&mut b, PEER) && !arrives(&mut b, group));
    assert_eq!(drops(&b, Reason::Filtered).1, 2);
    // e1000_hash_mc_addr with filter type 0.
    let hash = (u32::from(group[4]) >> 4) | (u32::from(group[5]) << 4);
    b.w(0x5200 + u64::from(hash >> 5 & 0x7f) * 4, 1 << (hash & 0x1f));
    assert!(arrives(&mut b, group));
    assert_eq!((b.received(0).1, b.received(2).1), (0x07, 0x87), "PIF: passed an inexact filter");
    assert!(!arrives(&mut b, [1, 0, 0x5e, 0, 0, 0xfc]));
    b.w(RCTL, RCTL_LINUX | 0x10);
    assert!(arrives(&mut b, [1, 0, 0x5e, 0, 0, 0xfc]) && !arrives(&mut b, PEER));
    b.w(RCTL, RCTL_LINUX | 8);
    assert!(arrives(&mut b, PEER));
    b.w(RCTL, RCTL_LINUX & !0x8000);
    assert!(!arrives(&mut b, [0xff; 6]));
    b.w(0x5408, u32::from_le_bytes([2, 0, 0, 0]));
    b.w(0x540c, 0x8000_0200);
    assert!(arrives(&mut b, PEER));
    b.w(0x540c, 0x8001_0200);
    assert!(arrives(&mut b, [0xff; 6]), "selected by source");
}

#[test]
fn vlan_tags_are_filtered_stripped_and_inserted() {
    let mut b = Bench::opened();
    let mut tagged = ethernet(0x8100, &[0x60, 5, 0x88, 0xb5]);
    tagged.extend(payload(100));
    let plain = ethernet(0x88b5, &payload(100));
    b.bring_one(&tagged);
    assert_eq!(b.get(RX_DATA, 118), tagged, "left in");
    let ctrl = b.r(CTRL);
    b.w(CTRL, ctrl | 1 << 30);
    b.bring_one(&tagged);
    assert_eq!(b.received(1), (118, 0x0f, 0, 0x6005));
    assert_eq!(b.get(RX_DATA + 2048, 114), plain);
    b.w(RCTL, RCTL_LINUX | 1 << 18);
    b.bring_one(&tagged);
    assert_eq!(drops(&b, Reason::Filtered).1, 1);
    b.w(0x5600, 1 << 5);
    b.bring_one(&tagged);
    assert_eq!(b.r(RDH), 3);
    b.bring(&plain_batch(&[&plain]), Edit::Tag(Tag::customer(Tci(0x0005))));
    assert_eq!(b.received(3).3, 5);
    b.bring(&plain_batch(&[&tagged]), Edit::Untag);
    assert_eq!((b.received(4).1 & 8, b.get(RX_DATA + 4 * 2048, 114)), (0, plain.clone()));
    b.put(TX_DATA, &plain);
    b.descriptor(0, TX_DATA, plain.len() as u32 | CMD | 1 << 30, 0x6005 << 16);
    b.w(TDT, 1);
    assert_eq!(b.transmit(), [tagged]);
}

/// The chip recognizes a tag by the type in VET (manual, 13.4.12): it neither strips nor filters an 802.1ad tag.
#[test]
fn a_tag_of_another_type_than_vets_arrives_as_it_left() {
    let mut b = Bench::opened();
    let mut service = ethernet(0x88a8, &[0x60, 5, 0x81, 0, 0x20, 7, 0x88, 0xb5]);
    service.extend(payload(100));
    let (ctrl, len) = (b.r(CTRL), service.len());
    b.w(CTRL, ctrl | 1 << 30);
    b.w(RCTL, RCTL_LINUX | 1 << 18);
    b.bring_one(&service);
    assert_eq!((b.received(0).1 & 8, b.get(RX_DATA, len)), (0, service.clone()));
    assert_eq!(drops(&b, Reason::Filtered).1, 0, "the driver filters 802.1Q alone");
    // A driver that sets VET to 802.1ad gets this tag stripped and inserted, and no other.
    b.w(0x38, 0x88a8);
    b.w(0x5600, 1 << 5);
    b.bring_one(&service);
    assert_eq!((b.received(1).1 & 8, b.received(1).3), (8, 0x6005));
    let mut customer = ethernet(0x8100, &[0x20, 7, 0x88, 0xb5]);
    customer.extend(payload(100));
    assert_eq!(b.get(RX_DATA + 2048, customer.len()), customer);
    b.put(TX_DATA, &customer);
    b.descriptor(0, TX_DATA, customer.len() as u32 | CMD | 1 << 30, 0x6005 << 16);
    b.w(TDT, 1);
    assert_eq!(b.transmit(), [service]);
}

#[test]
fn a_full_ring_refuses_and_goes_on_at_the_same_segment() {
    let mut b = Bench::opened();
    let frame = partial(tcp4(MAC, &payload(5000)));
    let segment = Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 });
    let offload = Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment };
    b.w(RDT, 2);
    let sender = batch_of(&[(&frame, offload), (&frame, offload)]);
    let delivery = b.bring(&sender, Edit::Keep);
    let rest: Vec<Pick> = delivery.again(&[Pick::whole(0), Pick::whole(1)]).collect();
    assert_eq!(rest, [Pick { from: 2, ..Pick::whole(0) }, Pick::whole(1)]);
    assert_eq!((b.r(RDH), b.r(0x40a0)), (2, 1), "two of four segments; RNBC");
    assert!(b.out.room.is_empty());
    b.w(RDT, 200);
    assert!(b.out.room.contains(0));
    assert_eq!(b.deliver_some(&sender, &rest).refused(), 0);
    assert_eq!(b.r(RDH), 8);
    let got: Vec<u8> =
        (0..4).flat_map(|i| verified(&b.get(RX_DATA + i * 2048, usize::from(b.received(i).0) - 4))).collect();
    assert_eq!(got, payload(5000));
    let taken = b.counters.taken();
    assert_eq!((taken.packets, taken.frames), (2, 8));
    b.w(RDT, 9);
    assert_eq!(b.bring(&sender, Edit::Keep).refused(), 0b11);
    b.w(RDT, 200);
    b.bring_one(&ethernet(0x88b5, &[1; 50]));
    assert_eq!((b.r(RDH), b.received(9).0), (10, 68), "another packet is not taken for the rest of that one");
}

#[test]
fn a_receiver_that_is_off_drops_and_says_so() {
    let mut b = Bench::opened();
    b.w(RCTL, 0);
    b.bring_one(&ethernet(0x88b5, &[0; 50]));
    b.w(RCTL, RCTL_LINUX);
    b.command(3);
    b.bring_one(&ethernet(0x88b5, &[0; 50]));
    assert_eq!(drops(&b, Reason::ReceiverOff).1, 2);
    b.command(7);
    b.link(false);
    b.bring_one(&ethernet(0x88b5, &[0; 50]));
    assert_eq!(drops(&b, Reason::ReceiverOff).1, 3);
    b.link(true);
    b.put(RX_RING, &0xdead_beef_0000_u64.to_le_bytes());
    b.bring_one(&ethernet(0x88b5, &[0; 50]));
    assert_eq!(drops(&b, Reason::BadAddress).1, 1);
    assert_eq!(b.received(0).2 & 0x80, 0x80, "RXE, and the ring goes on");
    b.bring_one(&ethernet(0x88b5, &[0; 50]));
    assert_eq!(b.received(1).1 & 3, 3);
}

#[test]
fn a_reset_between_fetch_and_completion_makes_it_stale() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &payload(64));
    for how in 0..3 {
        b.descriptor(0, TX_DATA, 64 | CMD, 0);
        b.w(TDT, 1);
        b.fetch();
        assert_eq!(b.batch.len(), 1);
        match how {
            0 => b.reset(),
            1 => b.call(|nic, cx| nic.reset(Reset::Bus, cx)),
            _ => b.w(TDH, 0),
        }
        b.complete();
        assert_eq!((b.status_of(0), b.r(TDH)), (0, 0));
        b.command(7);
        b.open_transmit(TX_RING, 256);
    }
    b.w(TDT, 1);
    assert_eq!(b.transmit().len(), 1);
}

#[test]
fn a_stale_completion_gives_nothing_back_that_was_fetched_since() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &payload(64));
    for how in 0..2 {
        b.descriptor(0, TX_DATA, 64 | CMD, 0);
        b.w(TDT, 1);
        b.fetch();
        let stale = std::mem::take(&mut b.batch);
        if how == 0 {
            b.reset();
            b.open_transmit(TX_RING, 256);
        } else {
            b.w(TDT, 0);
            b.w(TDH, 0);
        }
        b.w(TDT, 1);
        b.fetch();
        assert_eq!(b.batch.len(), 1);
        let fresh = std::mem::replace(&mut b.batch, stale);
        b.complete();
        assert_eq!((b.r(TDH), b.status_of(0)), (0, 0));
        b.batch = fresh;
        b.complete();
        assert_eq!((b.r(TDH), b.status_of(0)), (1, 1));
        b.w(TDT, 0);
        b.w(TDH, 0);
    }
}

#[test]
fn refused_frames_are_asked_for_again_when_bus_mastering_returns() {
    let mut b = Bench::opened();
    b.w(RDT, 0);
    assert_eq!(b.bring_one(&ethernet(0x88b5, &[0; 50])).refused(), 1);
    b.command(3);
    assert!(b.out.room.is_empty());
    b.command(7);
    assert!(b.out.room.contains(0) && b.out.work.contains(0));
}

#[test]
fn mac_loopback_brings_frames_back_through_the_filters() {
    let mut b = Bench::opened();
    b.w(RCTL, RCTL_LINUX | 0x40);
    b.put(TX_DATA, &ethernet(0x88b5, &payload(100)));
    b.put(TX_DATA + 1000, &[PEER.to_vec(), payload(100)].concat());
    b.descriptor(0, TX_DATA, 114 | CMD, 0);
    b.descriptor(1, TX_DATA + 1000, 106 | CMD, 0);
    b.w(TDT, 2);
    assert!(b.transmit().is_empty());
    assert_eq!((b.r(RDH), b.r(TDH), b.status_of(1)), (1, 2, 1));
    assert_eq!(b.get(RX_DATA, 114), ethernet(0x88b5, &payload(100)));
}
