//! Saving and restoring in the middle of work.

use nicety_adapter::{Event, RestoreError};

use crate::bench::*;

fn moved(b: &Bench, model: &str) -> Bench {
    let mut other = Bench::of(model);
    (other.lens, other.base) = (b.lens, b.base);
    b.hand_over(&mut other);
    other.restored();
    other
}

#[test]
fn a_restored_adapter_goes_on_where_the_other_stood() {
    let mut b = Bench::opened("vmxnet2");
    (0..3).for_each(|index| b.queue(index, &frame(60)));
    b.ring_bell();
    b.sent();
    b.bring(&[&frame(9014), &frame(61)]);
    b.queue(3, &frame(99));
    let mut other = moved(&b, "vmxnet2");
    assert_eq!((other.out.line, other.out.work.contains(0)), (Some(true), true));
    assert_eq!(other.sent(), [frame(99)]);
    other.bring(&[&frame(9014)]);
    assert_eq!((other.received(0, 2).0, other.received(1, 2).0), (DRIVER, DRIVER_FRAG));
    assert_eq!(other.frame_at(2, 2), frame(9014));
    other.bring(&[&to([0xff; 6], 60)]);
    assert_eq!(other.received(0, 3).0, DRIVER, "the filter came with it");
}

#[test]
fn packets_that_are_on_their_way_are_sent_again() {
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.fetch();
    let mut other = moved(&b, "vmxnet");
    assert_eq!(other.sent(), [frame(60)]);
}

#[test]
fn completions_that_wait_are_told_by_the_one_that_was_restored() {
    let mut b = Bench::opened("vmxnet");
    b.queue(0, &frame(60));
    b.ring_bell();
    b.sent();
    let mut other = moved(&b, "vmxnet");
    assert!(!other.line());
    other.pass(5_000_000);
    assert!(other.line());
}

#[test]
fn the_first_vmxnet_takes_no_state_of_the_enhanced_one() {
    let saved = Bench::opened("vmxnet2").nic.save();
    let refused = Bench::of("vmxnet").nic.restore(&saved);
    assert_eq!(refused, Err(RestoreError::Kind { found: "vmxnet2".to_owned(), wanted: "vmxnet" }));
}

#[test]
fn a_state_whose_rings_were_lost_goes_on_after_a_second_kill() {
    for model in ["vmxnet", "vmxnet2"] {
        let mut b = Bench::opened(model);
        b.queue(0, &frame(60));
        b.ring_bell();
        b.sent();
        b.bring(&[&frame(61)]);
        let mut next = moved(&b, model);
        next.call(|nic, cx| nic.notice(Event::Lost, cx));
        assert_eq!(Bench::of(model).nic.restore(&next.nic.save()), Ok(()), "{model}");
    }
}
