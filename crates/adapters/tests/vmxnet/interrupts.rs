//! Interrupts of the driver, and their cost.

use crate::bench::*;

/// Longer than any delay of completions or moderation.
const LONG_NS: u64 = 5_000_000;

#[test]
fn interrupts_are_on_once_the_rings_are_named_and_an_acknowledgement_ends_one() {
    let mut b = Bench::opened("vmxnet");
    b.bring(&[&frame(60)]);
    assert!(b.line(), "Linux's driver never sends INTR_ENABLE");
    b.command(ACK);
    assert!(!b.line());
    b.post(0);
    b.pass(LONG_NS);
    assert!(!b.line(), "all is taken");
    b.bring(&[&frame(60)]);
    assert!(b.line());
}

#[test]
fn disabled_interrupts_wait_until_they_are_enabled() {
    let mut b = Bench::opened("vmxnet");
    b.command(DISABLE);
    b.bring(&[&frame(60)]);
    b.pass(LONG_NS);
    assert!(!b.line());
    b.command(ENABLE);
    assert!(b.line());
    b.command(DISABLE);
    assert!(!b.line());
    // vic_stop and vic_init.
    b.w(0, 0);
    b.lay();
    b.open();
    b.bring(&[&frame(60)]);
    assert!(b.line());
}

#[test]
fn what_an_acknowledgement_behind_the_work_has_hidden_is_told_again_once() {
    // vic_intr: it has taken the first frame, and a second one comes before it acknowledges.
    let mut b = Bench::opened("vmxnet");
    b.bring(&[&frame(60)]);
    assert!(b.line());
    b.post(0);
    b.bring(&[&frame(61)]);
    b.command(ACK);
    assert!(!b.line());
    b.pass(50_000);
    assert!(!b.line(), "not at once: Linux's driver acknowledges first");
    b.pass(100_000);
    assert!(b.line());
    b.command(ACK);
    b.pass(LONG_NS);
    assert!(!b.line(), "once");
    // A frame that the interrupt itself announced is not announced again, even if the driver leaves it in the ring.
    let mut b = Bench::opened("vmxnet");
    b.bring(&[&frame(60)]);
    assert!(b.line());
    b.command(ACK);
    b.pass(LONG_NS);
    assert!(!b.line(), "it was acknowledged");
    // The same for a completion.
    b.queue(0, &frame(60));
    b.ring_bell();
    b.sent();
    b.pass(LONG_NS);
    assert!(b.line());
    b.command(ACK);
    b.pass(LONG_NS);
    assert!(!b.line(), "it was acknowledged");
    // Later frames are no reason either.
    let mut b = Bench::opened("vmxnet");
    b.lens = [8, 32, 16];
    b.bring(&[&frame(1514)]);
    b.command(ACK);
    b.post(0);
    b.pass(90_000);
    b.command(DISABLE);
    b.bring(&[&frame(60)]);
    b.pass(LONG_NS);
    b.command(ENABLE);
    assert!(b.line());
}

#[test]
fn completions_wait_for_company_and_are_told_in_the_end_if_the_driver_has_not_looked() {
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.sent();
    assert!(!b.line());
    b.bring(&[&frame(60)]);
    assert!(b.line(), "a frame's interrupt tells of both");
    b.command(ACK);
    b.post(0);
    b.put32(DATA + TX_CUR, 1);
    b.pass(LONG_NS);
    assert!(!b.line());
    b.queue(1, &frame(60));
    b.ring_bell();
    b.sent();
    b.pass(LONG_NS);
    assert!(b.line(), "alone");
    b.command(ACK);
    b.put32(DATA + TX_CUR, 2);
    b.pass(LONG_NS);
    b.queue(2, &frame(60));
    b.ring_bell();
    b.sent();
    b.put32(DATA + TX_CUR, 3);
    b.pass(LONG_NS);
    assert!(!b.line(), "the driver has found it by itself: vmxnet_tx looks");
}

#[test]
fn a_driver_that_stopped_is_woken_at_once() {
    let mut b = Bench::opened("vmxnet");
    (0..16).for_each(|index| b.queue(index, &frame(60)));
    b.put32(DATA + TX_STOPPED, 1);
    b.ring_bell();
    assert_eq!(b.sent().len(), 16);
    assert!(b.line());
    // Also if it stopped after all entries had come back: x86 may have let it read too early.
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.sent();
    b.put32(DATA + TX_CUR, 1);
    b.put32(DATA + TX_STOPPED, 1);
    b.pass(LONG_NS);
    assert!(b.line());
}

#[test]
fn a_busy_driver_does_not_ring_and_an_idle_one_does() {
    let mut b = Bench::opened("vmxnet");
    assert_eq!(b.get32(DATA + TX_CLUSTER), 0);
    b.queue(0, &frame(60));
    b.ring_bell();
    assert!(b.fetch().more);
    assert!(b.get32(DATA + TX_CLUSTER) > 100, "it is served");
    b.complete();
    // A packet without a doorbell.
    b.queue(1, &frame(61));
    assert_eq!(b.sent(), [frame(61)]);
    assert_eq!(b.get32(DATA + TX_CLUSTER), 0, "the next one rings");
    // A packet whose driver read the old number.
    b.queue(2, &frame(62));
    b.out.work = Default::default();
    b.pass(60_000);
    assert!(b.out.work.contains(0));
    assert_eq!(b.sent(), [frame(62)]);
}

#[test]
fn a_bulk_flow_interrupts_seldom_and_half_a_ring_at_once() {
    let mut b = Bench::of("vmxnet");
    b.lens = [128, 1, 16];
    b.lay();
    b.open();
    let long = frame(1514);
    let frames = [&long[..]; 12];
    let (mut edges, mut next) = (0, 0);
    for _ in 0..100 {
        b.bring(&frames);
        if b.line() {
            edges += 1;
            b.command(ACK);
            (0..128).for_each(|index| _ = (b.received(0, index).0 == DRIVER).then(|| b.post(index)));
        }
        next += 12;
        b.pass(50_000);
    }
    assert!(edges <= next / 50, "{edges} interrupts for {next} frames");
    b.pass(LONG_NS);
    b.command(ACK);
    (0..128).for_each(|index| b.post(index));
    b.bring(&frames);
    b.command(ACK);
    (0..6).for_each(|_| _ = b.bring(&frames));
    assert!(b.line(), "half a ring is used up");
}
