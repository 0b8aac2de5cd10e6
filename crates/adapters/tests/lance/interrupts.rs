//! Causes, masks, and the interrupt rate.

use crate::bench::*;

/// pcnet32_interrupt: reads, clears and masks the causes. False if there were none.
fn interrupt(b: &mut Bench) -> bool {
    let causes = b.csr(0);
    if causes & 0x8f00 == 0 {
        return false;
    }
    b.wcsr(0, causes & !0x004f);
    let masks = b.csr(3);
    b.wcsr(3, masks | 0x5f00);
    true
}

/// The end of pcnet32_poll.
fn unmask(b: &mut Bench) {
    let masks = b.csr(3);
    b.wcsr(3, masks & 0x00ff);
    b.wcsr(0, INEA);
}

/// pcnet32_rx: takes received frames from a descriptor on, and gives the buffers back. Returns the next descriptor.
fn take(b: &Bench, mut next: u32) -> u32 {
    while b.received(next % 32).0 & OWN == 0 {
        b.post(next % 32, RX_DATA + next % 32 * 2048, 1544);
        next += 1;
    }
    next
}

#[test]
fn causes_hold_the_line_until_ones_clear_them() {
    let mut b = Bench::opened();
    b.bring_one(&frame(60));
    assert!(b.line());
    assert_eq!(b.csr(0) & 0xff80, RINT | INTR);
    b.wcsr(0, INEA);
    assert!(b.line());
    b.wcsr(0, RINT | INEA);
    assert!(!b.line());
    assert_eq!(b.csr(0) & 0xff80, 0);
}

#[test]
fn masks_of_csr3_and_ienable_hold_the_line_down_but_not_the_cause() {
    let mut b = Bench::opened();
    b.wcsr(3, 0x0400);
    b.bring_one(&frame(60));
    assert!(!b.line());
    assert_eq!(b.csr(0) & 0xff80, RINT, "INTR is of what is not masked");
    b.wcsr(3, 0);
    assert!(b.line());
    b.wcsr(0, 0);
    assert!(!b.line());
    assert_eq!(b.csr(0) & 0xff80, RINT | INTR, "whatever IENA says");
    b.wcsr(0, INEA);
    assert!(b.line());
}

#[test]
fn idon_interrupts_if_nobody_cleared_it() {
    let mut b = Bench::new();
    b.command(7);
    b.wbcr(20, 2);
    b.rings();
    b.wcsr(1, BLOCK as u16);
    b.wcsr(0, INIT | INEA);
    assert!(b.line());
    assert!(interrupt(&mut b));
    assert!(!b.line());
}

#[test]
fn csr4_s_user_interrupt_and_transmission_s_start_can_interrupt() {
    let mut b = Bench::opened();
    b.wcsr(4, 0x0995);
    assert!(b.line(), "UINTCMD");
    assert_eq!(b.csr(4) & 0x00c0, 0x0040);
    b.wcsr(4, 0x0955);
    assert!(!b.line());
    b.wcsr(3, 0x5f00);
    b.wcsr(4, 0x0911);
    b.queue(0, &frame(60));
    b.kick();
    b.transmit();
    assert!(b.line(), "TXSTRT");
    assert_eq!(b.csr(4) & 0x026a, 0x0008);
    b.wcsr(4, 0x0919);
    assert!(!b.line());
}

#[test]
fn good_transmissions_are_quiet_if_csr5_says_so_but_for_those_that_ask() {
    let mut b = Bench::opened();
    b.wcsr(5, 0x8000);
    b.queue(0, &frame(60));
    b.kick();
    b.transmit();
    assert_eq!(b.csr(0) & TINT, 0);
    b.wcsr(5, 0xc000);
    b.put(TX_DATA + 4096, &frame(60));
    b.tx(1, TX_DATA + 4096, 60, WHOLE | 0x1000);
    b.kick();
    b.transmit();
    assert_eq!(b.csr(0) & TINT, TINT, "LTINT");
}

#[test]
fn a_lone_frame_and_its_answer_take_one_interrupt_each_way_at_most() {
    let mut b = Bench::opened();
    let mut next = 0;
    let before = b.counters.interrupts;
    for round in 0..50 {
        b.queue(round % 16, &frame(100));
        b.kick();
        b.transmit();
        b.pass(50_000);
        b.bring_one(&frame(100));
        assert!(b.line(), "an answer waits for nobody");
        assert!(interrupt(&mut b));
        next = take(&b, next);
        unmask(&mut b);
        b.pass(1_000_000);
    }
    assert_eq!(next, 50);
    assert_eq!(b.counters.interrupts - before, 50, "completions come with the answers");
}

#[test]
fn a_lone_transmission_is_told_within_two_milliseconds() {
    let mut b = Bench::opened();
    b.queue(0, &frame(100));
    b.kick();
    b.transmit();
    assert!(!b.line());
    b.pass(2_000_000);
    assert!(b.line());
    assert_eq!(b.csr(0) & TINT, TINT);
}

#[test]
fn more_than_three_quarters_of_a_ring_of_completions_are_told_at_once() {
    let mut b = Bench::opened();
    for index in 0..13 {
        b.queue(index, &frame(1514));
    }
    b.kick();
    b.transmit();
    assert!(b.line());
}

#[test]
fn a_bulk_flow_interrupts_once_for_three_quarters_of_a_ring_and_what_a_poll_took_is_not_told_again() {
    let mut b = Bench::opened();
    let (mut next, mut interrupts) = (0, 0);
    // A frame every 12 µs. The driver's fourteen accesses take as long as twelve frames, and its poll takes all frames of the
    // meantime.
    let arrive = |b: &mut Bench, frames: u32| {
        for _ in 0..frames {
            b.bring_one(&frame(1514));
            b.pass(12_000);
        }
    };
    while next < 1000 {
        arrive(&mut b, 1);
        if b.line() {
            interrupts += 1;
            assert!(interrupt(&mut b));
            arrive(&mut b, 12);
            next = take(&b, next);
            unmask(&mut b);
            assert!(!b.line(), "frame {next}");
        }
    }
    assert!((20..35).contains(&interrupts), "{interrupts} interrupts for 1000 frames");
    arrive(&mut b, 1);
    b.pass(500_000);
    assert!(b.line(), "the last is not forgotten");
}

#[test]
fn what_a_driver_has_taken_back_of_its_transmissions_is_not_told_again() {
    let mut b = Bench::opened();
    b.queue(0, &frame(60));
    b.kick();
    b.transmit();
    b.bring_one(&frame(60));
    assert!(interrupt(&mut b));
    b.queue(1, &frame(60));
    b.kick();
    b.transmit();
    take(&b, 0);
    // pcnet32_tx clears the buffer's address.
    (0..2).for_each(|index| b.put(TX_RING + index * 16, &[0; 4]));
    unmask(&mut b);
    b.pass(10_000_000);
    assert!(!b.line());
    assert_eq!(b.csr(0) & TINT, TINT, "whoever reads it sees it");
}

#[test]
fn a_driver_that_polls_csr0_without_interrupts_sees_everything_at_once() {
    let mut b = Bench::opened();
    b.wcsr(0, 0);
    b.queue(0, &frame(60));
    b.wcsr(0, TDMD);
    b.transmit();
    assert_eq!(b.csr(0) & (TINT | RINT), TINT);
    b.wcsr(0, TINT);
    b.bring_one(&frame(60));
    assert_eq!(b.csr(0) & (TINT | RINT), RINT);
    assert!(!b.line());
    // A poll that was due before the driver demanded one.
    b.pass(2_000_000);
    assert_eq!(b.out.wake, None, "an idle adapter asks for no time");
}

#[test]
fn an_interrupt_takes_linux_fourteen_accesses_and_a_frame_two() {
    let mut b = Bench::opened();
    b.bring_one(&frame(60));
    let before = b.accesses;
    interrupt(&mut b);
    take(&b, 0);
    unmask(&mut b);
    assert_eq!(b.accesses - before, 14);
    b.queue(0, &frame(60));
    let before = b.accesses;
    b.kick();
    assert_eq!(b.accesses - before, 2);
}
