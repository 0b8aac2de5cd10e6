//! NuttX's driver (drivers/net/e1000.c): e1000_enable writes the ring's length to RDT, one more than its last index, and
//! e1000_receive writes the index of each descriptor that it has read. QEMU's e1000.c receives with such a tail
//! (e1000_has_rxbufs: RDH and RDT differ).

use crate::bench::*;

/// CONFIG_NET_E1000_RXDESC's like.
const RX_DESC: u32 = 8;

fn opened() -> Bench {
    let mut b = Bench::opened();
    b.open_receive(RX_RING, RX_DESC, RCTL_LINUX, 2048);
    b.w(RDT, RX_DESC);
    b
}

/// e1000_receive.
fn receive(b: &mut Bench, index: u64) {
    assert_eq!(b.received(index).1 & 1, 1, "DD of descriptor {index}");
    b.put64(RX_RING + index * 16 + 8, 0);
    b.w(RDT, index as u32);
}

#[test]
fn a_ring_whose_tail_is_its_length_receives() {
    let mut b = opened();
    for number in 0..20_u64 {
        assert_eq!(b.bring_one(&ethernet(0x88b5, &[number as u8; 60])).refused(), 0, "frame {number}");
        receive(&mut b, number % u64::from(RX_DESC));
    }
    assert_eq!((b.counters.guest_errors(), b.nic.stall(0)), (0, None));
}

#[test]
fn a_tail_beyond_the_ring_gives_each_descriptor_once() {
    let mut b = opened();
    for number in 0..RX_DESC as u8 {
        assert_eq!(b.bring_one(&ethernet(0x88b5, &[number; 60])).refused(), 0, "frame {number}");
    }
    assert_eq!(b.bring_one(&ethernet(0x88b5, &[9; 60])).refused(), 1, "all are unread");
    assert_eq!(b.get(RX_DATA + 14, 1), [0], "the first frame is still there");
    receive(&mut b, 0);
    assert!(b.out.room.contains(0));
    assert_eq!(b.bring_one(&ethernet(0x88b5, &[9; 60])).refused(), 1, "RDT is its index now: the ring is empty");
    receive(&mut b, 1);
    assert_eq!(b.bring_one(&ethernet(0x88b5, &[9; 60])).refused(), 0);
}
