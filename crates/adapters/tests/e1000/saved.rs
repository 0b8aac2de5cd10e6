//! Saving and restoring, in the middle of work.

use nicety_adapter::RestoreError;

use crate::bench::*;

fn busy() -> Bench {
    let mut b = Bench::opened();
    b.r(ICR);
    b.w(IMS, 0x9d);
    b.w(ITR, 1000);
    b.w(0x1_0040, 77);
    b.set_phy(29, 3);
    b.w(0x5408, u32::from_le_bytes([2, 0, 0, 0]));
    b.w(0x540c, 0x8000_0200);
    b.put(TX_DATA, &payload(64));
    b.descriptor(0, TX_DATA, 64 | CMD, 0);
    b.descriptor(1, TX_DATA, 64 | CMD, 0);
    b.w(TDT, 1);
    b.transmit();
    b.bring_one(&ethernet(0x88b5, &payload(100)));
    b
}

#[test]
fn what_is_restored_saves_to_the_same_bytes_and_goes_on() {
    let mut b = busy();
    let mut other = Bench::new();
    b.hand_over(&mut other);
    other.restored();
    assert_eq!(other.out.line, Some(true), "a pending cause shows again");
    assert_eq!(other.r(ICR) & 0x81, 0x81);
    assert_eq!((other.r(TDH), other.r(RDH), other.r(0x1_0040), other.phy(29)), (1, 1, 77, 3));
    other.w(TDT, 2);
    assert_eq!(other.transmit().len(), 1);
    other.bring_one(&ethernet(0x88b5, &payload(100)));
    let mut second = ethernet(0x88b5, &payload(100));
    second[..6].copy_from_slice(&PEER);
    other.bring_one(&second);
    assert_eq!(other.r(RDH), 3, "also for its second address");
    b.w(0x2820, 100);
    b.r(ICR);
    b.bring_one(&ethernet(0x88b5, &payload(100)));
    b.hand_over(&mut other);
    assert_eq!(other.r(ICS) & 0x80, 0, "a delay that runs goes on");
    other.now = b.now.after_ns(100 * 1024);
    other.tick();
    assert_eq!(other.r(ICS) & 0x80, 0x80, "until its time");
}

#[test]
fn damaged_or_foreign_state_is_refused_and_changes_nothing() {
    let mut b = Bench::opened();
    b.put(TX_DATA, &payload(64));
    b.descriptor(0, TX_DATA, 64 | CMD, 0);
    b.w(TDT, 1);
    b.transmit();
    let saved = b.nic.save();
    let mut other = Bench::new();
    let before = other.nic.save();
    for cut in (0..saved.len()).step_by(97) {
        assert!(other.nic.restore(&saved[..cut]).is_err(), "cut at {cut}");
    }
    for at in (0..saved.len()).step_by(3) {
        let mut bytes = saved.clone();
        bytes[at] ^= 0x55;
        if other.nic.restore(&bytes).is_err() {
            assert_eq!(other.nic.save(), before, "byte {at}");
        } else {
            other = Bench::new();
        }
    }
    let foreign = nicety_adapter::snapshot::encode("vmxnet3", 1, &0_u8);
    assert!(matches!(other.nic.restore(&foreign), Err(RestoreError::Kind { .. })));
}
