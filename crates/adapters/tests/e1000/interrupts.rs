//! Causes, mask, throttle, receive delay; and the number of messages per batch.

use nicety_adapter::Time;

use crate::bench::*;

#[test]
fn a_cause_waits_for_its_mask_and_reading_icr_takes_the_line_down() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.out.line = None;
    b.bring_one(&ethernet(0x0800, &ipv4(6, &tcp(b"x"))));
    assert_eq!(b.out.line, None);
    b.w(IMS, 0x80);
    assert_eq!(b.out.line.take(), Some(true));
    assert_eq!(b.counters.interrupts, 1);
    assert_eq!(b.r(ICS) & 0x80, 0x80, "ICS reads as ICR");
    assert_eq!(b.r(ICR) & 0x80, 0x80);
    assert_eq!(b.out.line.take(), Some(false));
    assert_eq!(b.r(ICR), 0);
}

#[test]
fn the_throttle_spaces_interrupts_and_loses_none() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(ITR, 195);
    b.w(IMS, 0x9d);
    let frame = ethernet(0x0800, &ipv4(6, &tcp(b"x")));
    let mut raised = Vec::new();
    let start = b.now;
    let mut wake: Option<Time> = None;
    for _ in 0..1000 {
        b.now = b.now.after_ns(1000);
        if wake.is_some_and(|at| at <= b.now) {
            wake = None;
            b.tick();
        }
        b.bring_one(&frame);
        if b.out.line.take() == Some(true) {
            raised.push(b.now.0 - start.0);
            assert_ne!(b.r(ICR) & 0x80, 0);
            let rdh = b.r(RDH);
            b.w(RDT, (rdh + 255) % 256);
            b.out.line = None;
        }
        wake = b.out.wake.take().or(wake);
    }
    assert!((19..=21).contains(&raised.len()), "{} interrupts in a millisecond at 20000 a second", raised.len());
    assert!(raised.windows(2).all(|pair| pair[1] - pair[0] >= 195 * 256), "{raised:?}");
    let left = b.r(ICS) & 0x80;
    let at = b.out.wake.or(wake);
    assert!(left == 0 || at.is_some(), "what still waits has a time");
}

#[test]
fn the_receive_delay_ends_by_its_timer_or_by_a_flush() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(IMS, 0x80);
    b.w(0x2820, 32);
    b.w(0x282c, 64);
    b.out.line = None;
    let frame = ethernet(0x0800, &ipv4(6, &tcp(b"x")));
    let start = b.now;
    b.bring_one(&frame);
    assert_eq!((b.out.line, b.out.wake), (None, Some(start.after_ns(32 * 1024))));
    for _ in 0..3 {
        b.now = b.now.after_ns(20 * 1024);
        b.bring_one(&frame);
    }
    assert_eq!(b.out.wake, Some(start.after_ns(64 * 1024)), "the absolute timer ends it");
    b.now = start.after_ns(64 * 1024);
    b.tick();
    assert_eq!(b.out.line.take(), Some(true));
    b.r(ICR);
    b.out.line = None;
    b.bring_one(&frame);
    assert_eq!((b.out.line, b.out.wake), (None, Some(b.now.after_ns(32 * 1024))), "both timers begin anew");
    b.w(0x2820, 0x8000_0020);
    assert_eq!(b.out.line, Some(true));
}

#[test]
fn a_batch_of_64_frames_costs_one_interrupt_and_a_handful_of_accesses() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(IMS, 0x9d);
    b.out.line = None;
    for i in 0..64 {
        b.descriptor(i, TX_DATA, 100 | CMD, 0);
    }
    let before = b.accesses;
    b.w(TDT, 64);
    assert_eq!(b.transmit().len(), 64);
    assert_eq!(b.out.line.take(), Some(true));
    // e1000_intr and e1000_clean: ICR, IMC, flush, IMS, flush.
    b.r(ICR);
    b.w(IMC, !0);
    b.r(STATUS);
    b.w(IMS, 0x9d);
    b.r(STATUS);
    assert_eq!((b.counters.interrupts, b.accesses - before), (1, 6));
    b.out.line = None;
    let frame = ethernet(0x0800, &ipv4(6, &tcp(&payload(1000))));
    assert_eq!(b.deliver(&plain_batch(&[&frame[..]; 64])).refused(), 0);
    assert_eq!(b.counters.interrupts, 2);
}

#[test]
fn a_disabled_line_is_silent_and_comes_back() {
    let mut b = Bench::opened();
    b.w(IMS, 4);
    b.w(ICS, 4);
    assert_eq!(b.out.line.take(), Some(true));
    b.command(0x0507);
    assert_eq!(b.out.line.take(), Some(false));
    b.command(0x0107);
    assert_eq!(b.out.line.take(), Some(true));
}

#[test]
fn few_buffers_are_told_once_when_half_of_them_are_used() {
    let mut b = Bench::opened();
    b.w(RDT, 131);
    b.r(ICR);
    let frame = ethernet(0x88b5, &payload(100));
    let causes: Vec<u32> = (0..6)
        .map(|_| {
            b.bring_one(&frame);
            b.r(ICR)
        })
        .collect();
    assert_eq!(causes, [0x80, 0x80, 0x90, 0x80, 0x80, 0x80]);
}

/// Sends a frame as Linux posts it: EOP, IFCS, RS and IDE (e1000_tx_queue in e1000_main.c, with its default TxIntDelay).
fn send_delayed(b: &mut Bench, index: u64) {
    let frame = ethernet(0x0800, &ipv4(6, &tcp(b"request")));
    b.put(0x8_0000, &frame);
    b.descriptor(index, 0x8_0000, 0x8b00_0000 | frame.len() as u32, 0);
    b.w(TDT, (index + 1) as u32);
    b.transmit();
}

#[test]
fn a_request_and_its_answer_cost_one_interrupt_once_the_answers_rhythm_is_known() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(IMS, 0x9d);
    let mut costs = Vec::new();
    for index in 0..40 {
        let before = b.counters.interrupts;
        send_delayed(&mut b, index);
        // The answer comes after 600 µs; earlier wake-ups of the adapter come first.
        let answer = b.now.after_ns(600_000);
        while let Some(at) = b.out.wake.take().filter(|at| *at < answer) {
            b.now = at;
            b.tick();
            if b.out.line.take() == Some(true) {
                assert_eq!(b.r(ICR) & 0x81, 1, "a completion alone");
            }
        }
        b.now = answer;
        b.bring_one(&ethernet(0x0800, &ipv4(6, &tcp(b"answer"))));
        b.out.line = None;
        b.r(ICR);
        let rdh = b.r(RDH);
        b.w(RDT, (rdh + 255) % 256);
        costs.push(b.counters.interrupts - before);
    }
    assert_eq!(costs[0], 2, "at first the chip is as impatient as the driver asks");
    assert!(costs[10..].iter().all(|&cost| cost == 1), "{costs:?}");
}

#[test]
fn a_completion_without_company_is_told_in_time_and_one_without_ide_at_once() {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(IMS, 0x9d);
    for index in 0..20 {
        send_delayed(&mut b, index);
        assert_ne!(b.out.line.take(), Some(true));
        let at = b.out.wake.take().expect("a time");
        assert!(at.since(b.now).as_micros() <= 2000);
        b.now = at;
        b.tick();
        assert_eq!(b.out.line.take(), Some(true));
        assert_eq!(b.r(ICR) & 1, 1);
        b.now = b.now.after_ns(5_000_000);
    }
    let frame = ethernet(0x0800, &ipv4(6, &tcp(b"urgent")));
    b.put(0x8_0000, &frame);
    b.descriptor(20, 0x8_0000, 0x0b00_0000 | frame.len() as u32, 0);
    b.w(TDT, 21);
    b.out.line = None;
    b.transmit();
    assert_eq!(b.out.line.take(), Some(true));
}
