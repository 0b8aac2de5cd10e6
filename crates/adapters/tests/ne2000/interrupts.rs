//! ISR, IMR, and the line.

use nicety_adapter::{Offload, Outbox, Reset};

use crate::bench::*;

#[test]
fn a_cause_holds_the_line_while_it_is_enabled_and_not_acknowledged() {
    let mut b = Bench::opened();
    assert!(!b.level);
    assert!(b.arrive(&frame(MAC, PEER, 60, 0)));
    assert!(b.level);
    assert_eq!((b.inb(EN0_ISR), b.inb(EN0_ISR)), (ENISR_RX, ENISR_RX), "reading changes nothing");
    b.outb(0, EN0_IMR);
    assert!(!b.level);
    b.outb(0x3f, EN0_IMR);
    assert!(b.level);
    b.outb(!ENISR_RX, EN0_ISR);
    assert!(b.level, "others were acknowledged");
    b.outb(ENISR_RX, EN0_ISR);
    assert!(!b.level);
    assert_eq!(b.inb(EN0_ISR), 0);
}

#[test]
fn the_reset_bit_neither_interrupts_nor_is_acknowledged_and_goes_with_the_start() {
    let mut b = Bench::opened();
    b.outb(0xff, EN0_IMR);
    b.outb(0x21, E8390_CMD);
    assert_eq!((b.inb(EN0_ISR), b.level), (ENISR_RESET, false));
    b.outb(0xff, EN0_ISR);
    assert_eq!(b.inb(EN0_ISR), ENISR_RESET);
    b.outb(0x20, E8390_CMD);
    assert_eq!(b.inb(EN0_ISR), ENISR_RESET, "neither start nor stop");
    b.outb(0x22, E8390_CMD);
    assert_eq!(b.inb(EN0_ISR), 0);
}

#[test]
fn remote_dma_s_completion_interrupts_if_it_is_enabled() {
    let mut b = Bench::opened();
    b.outb(ENISR_RDC, EN0_IMR);
    b.remote(0x12, 0x4000, 2);
    assert!(!b.level);
    b.bar_write(0, NE_DATAPORT, &[1, 2]);
    assert!(b.level);
    b.outb(ENISR_RDC, EN0_ISR);
    assert!(!b.level);
    b.remote(0x0a, 0x4000, 0);
    assert!(b.level, "a transfer of nothing is complete at once");
}

#[test]
fn a_tally_that_is_half_full_interrupts_and_reading_clears_it() {
    let mut b = Bench::opened();
    b.outb(0x24, EN0_RXCR);
    for number in 0..300 {
        assert!(b.arrive(&frame(MAC, PEER, 60, number as u8)));
        assert_eq!(b.level, number >= 127, "{number}");
    }
    assert_eq!(b.inb(EN0_RSR) & 0x40, 0x40, "monitor mode");
    assert_eq!(b.inb(EN0_ISR), ENISR_COUNTERS);
    assert_eq!((b.inb(EN0_COUNTER2), b.inb(EN0_COUNTER2)), (192, 0), "it stops at 192, and reading clears it");
    assert_eq!(b.receive(), None, "nothing is stored");
    assert_eq!(b.counters.receive_drops.iter().sum::<u64>(), 300);
}

/// DP8390D, 10.3, RCR: monitor mode counts frames without buffering them. eth_probe in iPXE's ns8390.c starts the chip so before it
/// has set CURR, to test its memory.
#[test]
fn monitor_mode_needs_no_ring() {
    let mut b = Bench::new();
    b.link(true);
    for (value, offset) in [(0x24, EN0_RXCR), (0x40, EN0_STARTPG), (0x80, EN0_STOPPG), (0x22, E8390_CMD)] {
        b.outb(value, offset);
    }
    assert!(b.arrive(&frame(MAC, PEER, 60, 0)) && b.arrive(&frame([0xff; 6], PEER, 60, 0)));
    b.out.stalled.remove(Outbox::KEEP);
    assert_eq!((b.counters.guest_errors(), b.nic.stall(0), b.out.stalled.is_empty()), (0, None, true));
    assert_eq!(b.inb(EN0_RSR), 0x40, "DIS");
    b.outb(0x04, EN0_RXCR);
    assert!(b.arrive(&frame([0xff; 6], PEER, 60, 0)));
    assert_eq!(b.counters.guest_errors(), 1, "a receiver that is on needs one");
}

#[test]
fn an_interrupt_that_waited_for_the_mask_comes_once_for_all_frames() {
    let mut b = Bench::opened();
    b.outb(0, EN0_IMR);
    (0..5).for_each(|number| assert!(b.arrive(&frame(MAC, PEER, 100, number))));
    b.outb(0x3f, EN0_IMR);
    assert_eq!((b.counters.interrupts, b.level), (1, true));
    let frames: Vec<Vec<u8>> = std::iter::from_fn(|| b.receive()).map(|(_, frame)| frame).collect();
    assert_eq!(frames, (0..5).map(|number| frame(MAC, PEER, 100, number)).collect::<Vec<_>>());
}

#[test]
fn a_port_reset_stops_it_and_a_bus_reset_makes_it_new() {
    let mut b = Bench::opened();
    b.block_output(&[7; 64], TX_PAGE);
    b.arrive(&frame(MAC, PEER, 60, 0));
    assert!(b.level);
    b.reset();
    assert!(!b.level && !b.nic.is_driven());
    assert_eq!(b.inb(E8390_CMD), 0x21);
    b.outb(0x49, EN0_DCFG);
    assert_eq!(b.block_input(0x4000, 4), [7; 4], "its memory stays");
    b.call(|nic, cx| nic.reset(Reset::Bus, cx));
    let mut new = Bench::new();
    new.link(true);
    assert!(b.nic.save() == new.nic.save());
    let delivery = b.bring(&frame(MAC, PEER, 60, 0), Offload::default(), 0);
    assert_eq!(delivery.refused(), 0, "it is off: nothing waits");
}

/// DP8390D, 10.3, ISR: PRX reports a reception, and a write of one clears it.
#[test]
fn a_frame_that_the_driver_has_seen_and_acknowledged_is_not_told_of_again_though_it_lies_there() {
    for looks in [false, true] {
        let mut b = Bench::opened();
        assert!(b.arrive(&frame(MAC, PEER, 100, 1)));
        assert_eq!(b.inb(EN0_ISR), ENISR_RX);
        if looks {
            b.current();
        }
        b.outb(ENISR_RX, EN0_ISR);
        assert_eq!((b.inb(EN0_ISR), b.level), (0, false), "looked at CURR: {looks}");
        b.now = b.now.after_ns(1_000_000_000);
        b.call(|nic, cx| nic.tick(cx));
        assert_eq!((b.inb(EN0_ISR), b.level), (0, false));
        assert!(b.arrive(&frame(MAC, PEER, 100, 2)));
        assert_eq!((b.inb(EN0_ISR), b.level), (ENISR_RX, true), "the next one tells");
    }
}

#[test]
fn a_frame_that_comes_between_a_driver_s_look_and_its_acknowledgement_outlasts_that() {
    let mut b = Bench::opened();
    assert!(b.arrive(&frame(MAC, PEER, 100, 1)));
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, 1))));
    b.current();
    // The guest did not run for a while.
    b.now = b.now.after_ns(1_000_000_000);
    b.call(|nic, cx| nic.tick(cx));
    assert!(b.arrive(&frame(MAC, PEER, 100, 2)));
    b.outb(ENISR_RX, EN0_ISR);
    assert_eq!((b.inb(EN0_ISR), b.level), (ENISR_RX, true));
    assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, 2))));
    assert_eq!((b.receive(), b.inb(EN0_ISR)), (None, 0));
}

/// ei_receive in Linux's lib8390.c takes nine frames and then acknowledges; it would learn of more only with the next frame.
#[test]
fn a_ring_gets_as_many_frames_as_linux_takes_at_once_and_the_others_wait() {
    let mut b = Bench::opened();
    (0..9).for_each(|number| assert!(b.arrive(&frame(MAC, PEER, 100, number))));
    assert!(!b.arrive(&frame(MAC, PEER, 100, 9)));
    (0..9).for_each(|number| assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, number)))));
    b.outb(ENISR_RX, EN0_ISR);
    assert_eq!((b.inb(EN0_ISR), b.level), (0, false));
    assert!(b.out.room.contains(0));
    (9..12).for_each(|number| assert!(b.arrive(&frame(MAC, PEER, 100, number))));
    (9..12).for_each(|number| assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, number)))));
    assert_eq!(b.receive(), None);
    assert_eq!((b.inb(EN0_ISR), b.level), (0, false));
}

/// As on the chip, the next frame reports those in the ring: so it must arrive.
#[test]
fn a_driver_that_takes_fewer_frames_and_acknowledges_hears_of_the_others_with_the_next_one() {
    let mut b = Bench::opened();
    (0..9).for_each(|number| assert!(b.arrive(&frame(MAC, PEER, 100, number))));
    assert!(!b.arrive(&frame(MAC, PEER, 100, 9)));
    (0..4).for_each(|number| assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, number)))));
    b.outb(ENISR_RX, EN0_ISR);
    assert_eq!((b.level, b.inb(EN0_ISR)), (false, 0));
    assert!(b.out.room.contains(0), "what waits comes");
    assert!(b.arrive(&frame(MAC, PEER, 100, 9)));
    assert_eq!((b.level, b.inb(EN0_ISR)), (true, ENISR_RX));
    (4..10).for_each(|number| assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, number)))));
}

#[test]
fn no_frame_comes_while_a_driver_takes_others_until_it_ends_or_has_had_time_enough() {
    let mut b = Bench::opened();
    assert!(b.arrive(&frame(MAC, PEER, 100, 1)));
    assert!(b.receive().is_some());
    assert!(!b.arrive(&frame(MAC, PEER, 100, 2)), "else ei_interrupt would find more and more, and give up");
    assert!(b.out.wake.is_some() && b.out.room.is_empty());
    b.now = b.out.wake.take().unwrap();
    b.call(|nic, cx| nic.tick(cx));
    assert!(b.out.room.contains(0));
    assert!(b.arrive(&frame(MAC, PEER, 100, 2)));
}

#[test]
fn a_driver_that_polls_and_never_acknowledges_gets_its_frames() {
    // ns8390_poll in iPXE's ns8390.c: IMR is 0, and each poll reads CURR.
    for poll_ns in [1_000, 20_000, 100_000, 1_000_000] {
        let mut b = Bench::opened();
        b.outb(0, EN0_IMR);
        let (mut given, mut taken, mut refused) = (0, 0, false);
        let end = b.now.after_ns(2_000_000_000);
        while taken < 50 {
            assert!(b.now < end, "{poll_ns} ns a poll: {taken} frames in two seconds");
            if b.out.wake.is_some_and(|due| due <= b.now) {
                b.out.wake = None;
                b.call(|nic, cx| nic.tick(cx));
            }
            if given < 50 && (!refused || std::mem::take(&mut b.out.room).contains(0)) {
                refused = !b.arrive(&frame(MAC, PEER, 100, given));
                given += u8::from(!refused);
            }
            let current = b.current();
            let this = b.inb(EN0_BOUNDARY) + 1;
            if if this >= STOP_PAGE { RX_PAGE } else { this } != current {
                assert_eq!(b.receive(), Some((1, frame(MAC, PEER, 100, taken))));
                taken += 1;
            }
            b.now = b.now.after_ns(poll_ns);
        }
    }
}
