//! Frames in both directions.

use nicety_adapter::{Reason, Set};

use crate::bench::{ethernet, ipv4, payload, tcp};
use crate::guest::{self, *};

#[test]
fn a_frame_goes_out_and_one_comes_in_by_advanced_descriptors() {
    let mut g = Guest::opened();
    let out = ethernet(0x88b5, &payload(100));
    assert_eq!(g.send_plain(0, &out), std::slice::from_ref(&out));
    assert!(g.done(0, 0));
    assert_eq!(g.r(guest::transmit(0, 0x10)), 1, "TDH");
    let frame = ethernet(0x0800, &ipv4(17, &payload(200)));
    assert_eq!(g.bring_one(&frame).refused(), 0);
    assert_eq!(g.buffer(0, 0, frame.len()), frame);
    let [information, hash, status, rest] = g.written(0, 0);
    // IPv4; DD, EOP; its length.
    assert_eq!((information >> 4 & 0xfff, hash, status & 3, rest), (1 | 1 << 5, 0, 3, frame.len() as u32));
    assert_eq!(g.r(guest::receive(0, 0x10)), 1, "RDH");
    assert_eq!((g.counters.sent_frames(), g.counters.received_frames()), (1, 1));
}

trait Frames {
    fn sent_frames(&self) -> u64;
    fn received_frames(&self) -> u64;
}

impl Frames for nicety_adapter::Counters {
    fn sent_frames(&self) -> u64 {
        self.transmit.iter().map(|queue| queue.frames).sum()
    }

    fn received_frames(&self) -> u64 {
        self.receive.iter().map(|queue| queue.frames).sum()
    }
}

#[test]
fn the_last_queue_carries_like_the_first() {
    let mut g = Guest::opened();
    g.open_queue(15);
    let out = ethernet(0x88b5, &payload(300));
    assert_eq!(g.send_plain(15, &out), std::slice::from_ref(&out));
    assert!(g.done(15, 0) && !g.done(0, 0));
    // MRQC's default queue has three bits: 7 at most. An EtherType filter has the same limit; a flow filter has not.
    g.w(MRQC, 7 << 3);
    g.open_queue(7);
    g.bring_one(&out);
    assert_eq!(g.written(7, 0)[2] & 3, 3);
    assert_eq!(g.counters.receive[7].frames, 1);
}

#[test]
fn small_drivers_use_legacy_descriptors_as_ipxe_does() {
    let mut g = Guest::opened();
    let out = ethernet(0x88b5, &payload(64));
    g.put(TX_DATA, &out);
    // EOP, IFCS, RS.
    g.push(0, [TX_DATA as u32, 0, 0x0b00_0000 | out.len() as u32, 0]);
    g.ring(0);
    assert_eq!(g.drain(0), [out]);
    assert!(g.done(0, 0));
    g.open_receive_queue(0, 0x0002);
    let frame = ethernet(0x0800, &ipv4(6, &tcp(&payload(10))));
    g.bring_one(&frame);
    let [low, high, lengths, status] = g.written(0, 0);
    assert_eq!((u64::from(low), high), (guest::buffer(0, 0), 0), "the address stays");
    assert_eq!((lengths & 0xffff, status & 3), (frame.len().max(60) as u32, 3));
}

#[test]
fn a_frame_that_is_longer_than_its_buffers_takes_several() {
    let mut g = Guest::opened();
    g.w(RLPML, 0x2600);
    let frame = ethernet(0x88b5, &payload(5000));
    g.bring_one(&frame);
    let lengths = [0, 1, 2].map(|index| (g.written(0, index)[2] & 3, g.written(0, index)[3] & 0xffff));
    assert_eq!(lengths, [(1, 2048), (1, 2048), (3, 5014 - 4096)]);
    assert_eq!([g.buffer(0, 0, 2048), g.buffer(0, 1, 2048), g.buffer(0, 2, 918)].concat(), frame);
    assert_eq!(g.r(0x4074), 1, "GPRC");
    assert_eq!(g.r(0x4070), 1, "PRC1522");
}

#[test]
fn what_rlpml_does_not_allow_never_reaches_a_buffer() {
    let mut g = Guest::opened();
    g.w(RLPML, 1550);
    let longest = ethernet(0x88b5, &payload(1550 - 12 - 14));
    g.bring_one(&longest);
    assert_eq!(g.written(0, 0)[3] & 0xffff, 1538);
    g.bring_one(&ethernet(0x88b5, &payload(1550 - 12 - 13)));
    assert_eq!(g.counters.receive_drops[Reason::TooLong as usize], 1);
    assert_eq!(g.r(0x40ac), 1, "ROC");
    // Without RCTL.LPE the limit is the standard's frame length.
    g.w(RCTL, RCTL_LINUX & !0x20);
    g.bring_one(&longest);
    assert_eq!(g.counters.receive_drops[Reason::TooLong as usize], 2);
}

#[test]
fn a_queue_without_buffers_refuses_and_the_others_go_on() {
    let mut g = Guest::opened();
    g.open_queue(1);
    g.w(guest::receive(0, 0x18), 0);
    let frame = ethernet(0x88b5, &payload(100));
    assert_eq!(g.bring_one(&frame).refused(), 1);
    assert_eq!(g.r(0x40a0), 1, "RNBC");
    g.w(MRQC, 1 << 3);
    assert_eq!(g.bring_one(&frame).refused(), 0);
    g.out.room = Set::default();
    g.w(guest::receive(0, 0x18), 8);
    assert!(g.out.room.contains(0) && !g.out.room.contains(1));
}

#[test]
fn headers_are_split_off_where_the_driver_wants_them() {
    let mut g = Guest::opened();
    // DESCTYPE 2, headers of 128 bytes, packets of 2 KiB.
    g.open_receive_queue(0, 2 << 25 | 2 << 8 | 2);
    let body = payload(700);
    let frame = ethernet(0x0800, &ipv4(6, &tcp(&body)));
    g.bring_one(&frame);
    let [information, _, status, rest] = g.written(0, 0);
    assert_eq!((information >> 31, information >> 21 & 0x3ff), (1, 54), "SPH and HDR_LEN");
    assert_eq!((status & 3, rest & 0xffff), (3, 700));
    assert_eq!(g.get(header_buffer(0), 54), frame[..54]);
    assert_eq!(g.buffer(0, 0, 700), body);
    // A frame without known headers goes whole into the packet's buffer.
    let plain = ethernet(0x88b5, &payload(100));
    g.bring_one(&plain);
    assert_eq!((g.written(0, 1)[0] >> 21, g.written(0, 1)[3] & 0xffff), (0, 114));
    assert_eq!(g.buffer(0, 1, 114), plain);
    // DESCTYPE 5: the header buffer is always filled.
    g.open_receive_queue(0, 5 << 25 | 1 << 8 | 2);
    g.bring_one(&plain);
    assert_eq!((g.written(0, 0)[0] >> 21 & 0x3ff, g.written(0, 0)[3] & 0xffff), (64, 50));
    assert_eq!([g.get(header_buffer(0), 64), g.buffer(0, 0, 50)].concat(), plain);
}

#[test]
fn the_driver_finds_the_head_in_its_own_memory_if_it_asks_for_that() {
    let mut g = Guest::opened();
    let at = 0x8_0000;
    g.w(guest::transmit(0, 0x3c), 0);
    g.w(guest::transmit(0, 0x38), at as u32 | 1);
    g.send_plain(0, &ethernet(0x88b5, &payload(60)));
    g.send_plain(0, &ethernet(0x88b5, &payload(60)));
    assert_eq!(g.get(at, 4), 2_u32.to_le_bytes());
}

#[test]
fn a_queue_or_a_direction_that_is_off_carries_nothing() {
    let mut g = Guest::opened();
    let frame = ethernet(0x88b5, &payload(60));
    g.w(guest::transmit(0, 0x28), 0);
    assert!(g.send_plain(0, &frame).is_empty() && !g.done(0, 0));
    g.w(guest::receive(0, 0x28), 0);
    g.bring_one(&frame);
    assert_eq!(g.counters.receive_drops[Reason::ReceiverOff as usize], 1);
    g.w(guest::transmit(0, 0x28), ENABLE);
    assert!(g.out.work.contains(0), "what waits is looked at");
    assert_eq!(g.drain(0), std::slice::from_ref(&frame));
    // CTRL's own master disable: STATUS shows its effect.
    let control = g.r(CTRL);
    g.w(CTRL, control | 4);
    assert_eq!(g.r(STATUS) >> 19 & 1, 0);
    assert!(g.send_plain(0, &frame).is_empty());
    g.w(CTRL, control);
    assert_eq!((g.r(STATUS) >> 19 & 1, g.drain(0)), (1, vec![frame]));
}

#[test]
fn a_state_that_is_saved_amid_work_goes_on_elsewhere() {
    let mut g = Guest::opened();
    let frame = ethernet(0x88b5, &payload(60));
    g.send_plain(0, &frame);
    g.bring_one(&frame);
    let mut other = Guest::new();
    g.hand_over(&mut other);
    other.bring_one(&frame);
    assert_eq!(other.written(0, 1)[2] & 3, 3, "the second buffer");
    assert_eq!((other.r(guest::transmit(0, 0x10)), other.r(0x4080)), (1, 1), "TDH and GPTC");
}
