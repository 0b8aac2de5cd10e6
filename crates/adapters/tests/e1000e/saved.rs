//! Saved, restored and refused states.

use crate::bench::*;
use crate::guest::*;

#[test]
fn what_is_restored_saves_to_the_same_bytes_and_goes_on_with_its_vectors() {
    let mut b = extended();
    vectors(&mut b);
    b.w(EITR, 1000);
    b.w(0xb608, 0x01a0_0000);
    let frame = ethernet(0x0800, &ipv4(6, &tcp(b"x")));
    b.bring_one(&frame);
    b.messages();
    b.w(IMS, RXQ0);
    b.bring_one(&frame);
    assert!(b.messages().is_empty(), "it waits for its throttle");
    let mut other = Bench::of("e1000e");
    b.hand_over(&mut other);
    other.now = b.now.after_ns(1000 * 256);
    other.restored();
    assert_eq!(other.messages(), [0], "and is told in its time");
    other.w(IMS, RXQ0);
    other.now = other.now.after_ns(1000 * 256);
    other.bring_one(&frame);
    assert_eq!(other.messages(), [0]);
    assert_eq!(other.r(RDH), 3);
}

#[test]
fn damaged_or_foreign_state_is_refused_and_changes_nothing() {
    let saved = opened().nic.save();
    let mut other = Bench::of("e1000e");
    let before = other.nic.save();
    for cut in 0..saved.len() {
        assert!(other.nic.restore(&saved[..cut]).is_err());
    }
    let foreign = Bench::of("e1000").nic.save();
    assert!(other.nic.restore(&foreign).is_err());
    assert_eq!(other.nic.save(), before);
}
