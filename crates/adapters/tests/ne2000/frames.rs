//! Frames from packet memory, and into its ring.

use nicety_adapter::{Checksum, Offload, Reason, Segment, SegmentKind};

use crate::bench::*;

#[test]
fn what_the_driver_writes_is_sent_and_told_once() {
    let mut b = Bench::opened();
    for (number, len) in [60_usize, 61, 100, 1513, 1514, 1518].into_iter().enumerate() {
        let sent = frame(PEER, MAC, len, number as u8);
        assert_eq!(b.send(&sent), [sent]);
        assert!(b.level);
        assert_eq!((b.inb(EN0_ISR), b.inb(EN0_TSR) & 1), (ENISR_TX, 1));
        b.outb(ENISR_TX, EN0_ISR);
        assert!(!b.level);
        assert!(b.turn().is_empty(), "once");
    }
    assert_eq!(b.counters.transmitted().frames, 6);
}

#[test]
fn the_command_register_says_that_it_sends_until_it_has_sent() {
    let mut b = Bench::opened();
    b.block_output(&frame(PEER, MAC, 60, 0), TX_PAGE);
    b.trigger_send(60, TX_PAGE);
    assert_eq!(b.inb(E8390_CMD) & 4, 4);
    b.outb(0x20, E8390_CMD);
    assert_eq!((b.inb(E8390_CMD) & 4, b.inb(EN0_ISR)), (4, 0));
    assert_eq!(b.turn().len(), 1);
    assert_eq!((b.inb(E8390_CMD) & 4, b.inb(EN0_ISR)), (0, ENISR_TX));
}

#[test]
fn the_second_buffer_is_filled_while_the_first_is_sent() {
    let mut b = Bench::opened();
    let (first, second) = (frame(PEER, MAC, 1514, 1), frame(PEER, MAC, 1514, 2));
    b.block_output(&first, 0x40);
    b.trigger_send(1514, 0x40);
    b.block_output(&second, 0x46);
    assert_eq!(b.turn(), [first]);
    b.trigger_send(1514, 0x46);
    assert_eq!(b.turn(), [second]);
}

#[test]
fn a_frame_that_its_driver_did_not_pad_is_padded() {
    let mut b = Bench::opened();
    let short = frame(PEER, MAC, 42, 0);
    let sent = b.send(&short);
    assert_eq!((sent[0].len(), &sent[0][..42], sent[0][42..].iter().all(|byte| *byte == 0)), (60, &short[..], true));
}

#[test]
fn without_a_link_a_frame_is_lost_and_its_carrier_with_it() {
    let mut b = Bench::opened();
    b.link(false);
    assert!(b.send(&frame(PEER, MAC, 60, 0)).is_empty());
    assert_eq!((b.inb(EN0_ISR), b.inb(EN0_TSR)), (ENISR_TX, 0x13));
    assert_eq!(b.counters.transmit_drops[Reason::LinkDown as usize], 1);
    b.link(true);
    assert_eq!(b.send(&frame(PEER, MAC, 60, 0)).len(), 1);
}

#[test]
fn in_loopback_frames_are_sent_to_nobody_and_none_is_received() {
    let mut b = Bench::opened();
    b.outb(0x02, EN0_TXCR);
    assert!(b.send(&frame(PEER, MAC, 60, 0)).is_empty());
    assert_eq!(b.inb(EN0_ISR), ENISR_TX);
    assert!(b.arrive(&frame(MAC, PEER, 60, 0)));
    assert_eq!(b.counters.receive_drops[Reason::ReceiverOff as usize], 1);
    b.outb(0, EN0_TXCR);
    assert_eq!(b.send(&frame(PEER, MAC, 60, 0)).len(), 1);
}

#[test]
fn a_stopped_chip_sends_nothing_new_and_receives_nothing() {
    let mut b = Bench::opened();
    b.outb(0x25, E8390_CMD);
    assert!(b.turn().is_empty());
    assert_eq!(b.inb(E8390_CMD), 0x21);
    assert!(b.arrive(&frame(MAC, PEER, 60, 0)));
    assert_eq!(b.counters.receive_drops[Reason::ReceiverOff as usize], 1);
}

#[test]
fn frames_of_every_length_come_through_the_ring_as_it_goes_round() {
    let mut b = Bench::opened();
    for number in 0..600_usize {
        let sent = frame(MAC, PEER, 60 + number * 41 % 1455, number as u8);
        assert!(b.arrive(&sent));
        assert_eq!(b.receive(), Some((1, sent)), "{number}");
        assert_eq!(b.receive(), None);
    }
    assert_eq!(b.counters.taken().frames, 600);
}

#[test]
fn a_full_ring_refuses_what_comes_and_has_room_when_its_driver_reads() {
    let mut b = Bench::opened();
    // 52 pages: Linux keeps one, since its boundary is one page behind; one stays free; a frame of 1514 bytes takes six.
    for number in 0..8 {
        assert!(b.arrive(&frame(MAC, PEER, 1514, number)), "{number}");
    }
    assert!(!b.arrive(&frame(MAC, PEER, 1514, 8)));
    assert!(b.arrive(&frame(MAC, PEER, 500, 9)), "two pages are left");
    assert!(!b.arrive(&frame(MAC, PEER, 60, 10)));
    assert!(b.out.room.is_empty());
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 1514, 0))));
    assert!(!b.arrive(&frame(MAC, PEER, 1514, 8)), "its driver is reading");
    for number in 1..8 {
        assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 1514, number))));
    }
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 500, 9))));
    assert!(b.out.room.is_empty());
    assert_eq!(b.receive(), None);
    assert!(b.out.room.contains(0), "it is offered again");
    assert!(b.arrive(&frame(MAC, PEER, 1514, 8)));
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 1514, 8))));
    assert_eq!((b.receive(), b.inb(EN0_ISR) & 0x10), (None, 0), "nothing was overwritten");
}

#[test]
fn a_ring_whose_boundary_is_a_page_before_its_first_is_full_at_its_last() {
    let mut b = Bench::opened();
    // As ei_receive leaves it after a read up to the ring's first page.
    b.outb(RX_PAGE - 1, EN0_BOUNDARY);
    // Fifty pages: eight frames of six pages, and one of two.
    let lens = [1514, 1514, 1514, 1514, 1514, 1514, 1514, 1514, 500];
    for (len, number) in lens.into_iter().zip(0..) {
        assert!(number < 8 || !b.arrive(&frame(MAC, PEER, 600, 9)), "three pages");
        assert!(b.arrive(&frame(MAC, PEER, len, number)), "{number}");
    }
    for (len, number) in lens.into_iter().zip(0..) {
        assert_eq!(b.receive(), Some((1, frame(MAC, PEER, len, number))));
    }
}

#[test]
fn a_large_packet_comes_segment_by_segment_and_goes_on_where_there_was_no_room() {
    let mut b = Bench::opened();
    let mut packet = [&MAC[..], &PEER, &[8, 0]].concat();
    packet.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    packet.extend([3, 232, 7, 208, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    let headers = packet.len();
    packet.extend((0..20 * 1460).map(|i| (i * 7 + i / 251) as u8));
    let segment = Segment::of(SegmentKind::Tcp, 1460, headers as u16, packet.len() as u32);
    let offload = Offload { checksum: Checksum::Partial { start: 34, field: 50 }, segment };
    let (mut from, mut payload, mut rounds) = (0, Vec::<u8>::new(), 0);
    while payload.len() < 20 * 1460 && rounds < 100 {
        let delivery = b.bring(&packet, offload, from);
        from = delivery.refusals().first().map_or(20, |refusal| refusal.from);
        while let Some((_, frame)) = b.receive() {
            assert_eq!(u32::from_be_bytes([frame[38], frame[39], frame[40], frame[41]]), payload.len() as u32);
            payload.extend(&frame[headers..]);
        }
        rounds += 1;
    }
    assert!(payload == packet[headers..]);
    assert_eq!(rounds, 3, "eight frames fill the ring");
    assert_eq!((b.counters.taken().packets, b.counters.receive_drops.iter().sum::<u64>()), (1, 0));
}

#[test]
fn the_filter_lets_through_what_its_mode_says() {
    let mut b = Bench::opened();
    // RFC 1112: 224.0.0.1. The top six bits of its ether_crc are 31.
    let group = [1, 0, 0x5e, 0, 0, 1];
    let other = [2, 0, 0, 0, 0, 7];
    let mut comes = |mode: u8, table: [u8; 8]| {
        b.outb(0x60, E8390_CMD);
        (8..).zip(table).for_each(|(offset, byte)| b.outb(byte, offset));
        b.outb(0x20, E8390_CMD);
        b.outb(mode, EN0_RXCR);
        [MAC, [0xff; 6], group, other].map(|to| {
            assert!(b.arrive(&frame(to, PEER, 60, 0)));
            b.only().map(|(status, _)| status)
        })
    };
    let hashed = {
        let mut table = [0; 8];
        table[31 >> 3] = 1 << (31 & 7);
        table
    };
    let (own, many) = (Some(0x01), Some(0x21));
    assert_eq!(comes(0x00, [0xff; 8]), [own, None, None, None]);
    assert_eq!(comes(0x04, [0xff; 8]), [own, many, None, None]);
    assert_eq!(comes(0x08, [0xff; 8]), [own, None, many, None]);
    assert_eq!(comes(0x08, hashed), [own, None, many, None]);
    assert_eq!(comes(0x08, hashed.map(|byte| !byte)), [own, None, None, None]);
    assert_eq!(comes(0x10, [0; 8]), [own, None, None, own]);
    assert_eq!(comes(0x1c, [0xff; 8]), [own, many, many, own]);
}

#[test]
fn a_tagged_frame_of_full_size_arrives_and_a_longer_one_is_counted() {
    let mut b = Bench::opened();
    let mut tagged = frame(MAC, PEER, 1518, 0);
    tagged[12..16].copy_from_slice(&[0x81, 0, 0, 7]);
    assert!(b.arrive(&tagged));
    assert_eq!(b.only(), Some((1, tagged)));
    assert!(b.arrive(&frame(MAC, PEER, 1515, 0)));
    assert_eq!(b.counters.receive_drops[Reason::TooLong as usize], 1);
}

#[test]
fn a_short_frame_arrives_with_60_bytes_wherever_in_the_ring() {
    let mut b = Bench::opened();
    for number in 0..120 {
        assert!(b.arrive(&frame(MAC, PEER, 1514, number)));
        assert!(b.only().is_some());
        let short = frame(MAC, PEER, 14 + usize::from(number) % 46, number);
        assert!(b.arrive(&short));
        let (_, came) = b.only().unwrap();
        assert_eq!((came.len(), &came[..short.len()]), (60, &short[..]));
        assert!(came[short.len()..].iter().all(|byte| *byte == 0), "not what was there before");
    }
}

#[test]
fn a_saved_state_goes_on_with_frames_in_its_ring_and_one_to_send() {
    let mut b = Bench::opened();
    let (coming, going) = (frame(MAC, PEER, 900, 1), frame(PEER, MAC, 900, 2));
    assert!(b.arrive(&coming));
    b.block_output(&going, TX_PAGE);
    b.trigger_send(900, TX_PAGE);
    let mut other = Bench::new();
    b.hand_over(&mut other);
    let mut b = other;
    b.restored();
    assert!(b.level && b.out.work.contains(0));
    assert_eq!(b.turn(), [going]);
    assert_eq!(b.receive(), Some((1, coming)));
}
