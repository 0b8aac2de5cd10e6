//! Saving and restoring in the middle of work.

use crate::bench::*;

#[test]
fn a_restored_adapter_goes_on_where_the_other_stood() {
    let mut b = Bench::opened();
    for index in 0..3 {
        b.queue(index, &frame(60));
    }
    b.kick();
    b.transmit();
    b.bring(&[&frame(60), &frame(61)]);
    b.queue(3, &frame(99));
    let mut other = Bench::new();
    b.hand_over(&mut other);
    other.restored();
    assert_eq!(other.out.line, Some(true));
    assert_eq!(other.transmit(), [frame(99)]);
    other.bring_one(&frame(62));
    assert_eq!(other.received(2).1, 66);
    assert_eq!(other.csr(0) & (RINT | TINT), RINT | TINT);
}

#[test]
fn frames_that_are_on_their_way_are_sent_again() {
    let mut b = Bench::opened();
    b.queue(0, &frame(60));
    b.kick();
    b.fetch();
    let mut other = Bench::new();
    b.hand_over(&mut other);
    assert_eq!(other.transmit(), [frame(60)]);
}
