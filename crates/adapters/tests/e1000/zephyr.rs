//! Zephyr's driver (drivers/ethernet/eth_e1000.c), for the NIC of its default board: one descriptor in each direction. It writes 16
//! to RDLEN and TDLEN, which the datasheet's registers read as 0 (317453, 13.4.28: multiples of 128), writes RDT once with 1, TDT
//! with 1 for each frame, and waits for RXO. QEMU's e1000.c (start_xmit and e1000_receive_iov) supports such a ring of one
//! descriptor, and raises RXO for each frame.

use crate::bench::*;

/// RCTL: EN, MPE.
const RCTL_ZEPHYR: u32 = 0x12;
const RXO: u32 = 0x40;
const RX: u64 = RX_RING;

/// e1000_probe and e1000_iface_init.
fn opened() -> Bench {
    let mut b = Bench::new();
    b.command(0x0106);
    for (register, value) in [(0x3800, TX_RING as u32), (0x3804, 0), (0x3808, 16), (TDH, 0), (TDT, 0), (TCTL, 2)] {
        b.w(register, value);
    }
    b.put(RX, &RX_DATA.to_le_bytes());
    b.put(RX + 8, &2048_u16.to_le_bytes());
    for (register, value) in [(0x2800, RX as u32), (0x2804, 0), (0x2808, 16), (RDH, 0), (RDT, 1), (IMS, RXO)] {
        b.w(register, value);
    }
    b.w(CTRL, 0x40);
    b.w(RCTL, RCTL_ZEPHYR);
    b
}

/// e1000_isr and e1000_rx: returns the frame without its check sequence.
fn receive(b: &mut Bench) -> Vec<u8> {
    assert_eq!(b.r(ICR) & !0x3, RXO, "Zephyr says of others: Unhandled interrupt");
    let d = b.get(RX + 8, 8);
    assert_eq!(d[4] & 1, 1, "RX descriptor not ready");
    b.get(RX_DATA, usize::from(u16::from_le_bytes([d[0], d[1]])) - 4)
}

#[test]
fn a_ring_of_one_descriptor_sends_a_frame_for_each_write_of_the_tail() {
    let mut b = opened();
    for number in 0..5 {
        let sent = ethernet(0x88b5, &[number; 60]);
        b.put(TX_DATA, &sent);
        // EOP, RS.
        b.descriptor(0, TX_DATA, 0x0900_0000 | sent.len() as u32, 0);
        b.w(TDT, 1);
        assert!(b.out.work.contains(0));
        assert_eq!(b.transmit(), [sent], "frame {number}");
        assert_eq!(b.status_of(0) & 1, 1, "DD");
        assert!(b.transmit().is_empty(), "once");
        assert_eq!(b.r(TDH), 0);
    }
    assert_eq!(b.counters.guest_errors(), 0);
    assert!(b.nic.stall(1).is_none());
}

#[test]
fn a_ring_of_one_descriptor_receives_frame_after_frame_and_tells_of_each_by_rxo() {
    let mut b = opened();
    for number in 0..5 {
        let sent = ethernet(0x88b5, &[number; 60]);
        assert_eq!(b.bring_one(&sent).refused(), 0, "frame {number}");
        assert_eq!(b.out.line.take(), Some(true));
        let other = ethernet(0x88b5, &[99; 60]);
        assert_eq!(b.bring_one(&other).refused(), 1, "the first one lies there unread");
        assert!(b.out.room.is_empty());
        assert_eq!(receive(&mut b), sent);
        assert_eq!(b.bring_one(&other).refused(), 1, "it is being read");
        b.now = b.out.wake.take().unwrap();
        b.tick();
        assert!(b.out.room.contains(0));
        b.out = nicety_adapter::Outbox::default();
    }
    assert_eq!((b.counters.guest_errors(), b.r(RDH), b.r(RDT)), (0, 0, 1));
    assert_eq!(b.bring_one(&ethernet(0x88b5, &[7; 3000])).refused(), 0, "it is dropped");
    assert_eq!(b.counters.receive_drops[nicety_adapter::Reason::TooLong as usize], 1);
}

/// ICR clears by writing ones too (317453, 13.4.17), which a driver may do instead of the read.
#[test]
fn a_lone_descriptor_whose_cause_is_cleared_by_a_write_receives_the_next_frame_too() {
    let mut b = opened();
    for number in 0..3 {
        let sent = ethernet(0x88b5, &[number; 60]);
        assert_eq!(b.bring_one(&sent).refused(), 0, "frame {number}");
        let other = ethernet(0x88b5, &[99; 60]);
        assert_eq!(b.bring_one(&other).refused(), 1, "the first one lies there unread");
        assert_eq!(b.r(ICS) & RXO, RXO);
        b.w(ICR, !RXO);
        assert_eq!(b.bring_one(&other).refused(), 1, "other causes");
        b.w(ICR, RXO);
        assert_eq!(b.r(ICS) & RXO, 0);
        assert_eq!(b.bring_one(&other).refused(), 1, "it is being read");
        b.now = b.out.wake.take().unwrap();
        b.tick();
        assert!(b.out.room.contains(0));
        b.out = nicety_adapter::Outbox::default();
    }
    b.w(ICR, RXO);
    assert_eq!(b.out.wake, None, "there was nothing to clear");
}

/// Linux's e1000_configure_rx and other drivers enable the receiver before its ring has an address or a length.
#[test]
fn frames_wait_for_a_receiver_that_is_on_and_has_no_ring_yet() {
    let ring = [(0x2808, 128), (0x2800, RX_RING as u32), (RDT, 7)];
    // Its length may be written last.
    let length_last = [ring[2], ring[1], ring[0]];
    for (model, order) in ["e1000", "e1000e", "igb"].into_iter().flat_map(|model| [(model, ring), (model, length_last)])
    {
        let mut b = Bench::of(model);
        b.command(0x0106);
        b.w(CTRL, 0x40);
        // RXDCTL's enable bit of the 82576; the other chips have none.
        b.w(0x2828, 1 << 25);
        b.w(RCTL, RCTL_LINUX);
        for _ in 0..3 {
            assert_eq!(b.bring_one(&ethernet(0x88b5, &[1; 60])).refused(), 1, "{model}");
        }
        assert_eq!((b.counters.guest_errors(), b.counters.receive_drops.iter().sum::<u64>()), (0, 0), "{model}");
        assert!(b.nic.stall(0).is_none());
        b.put(RX_RING, &RX_DATA.to_le_bytes());
        for (register, value) in order {
            // The port offers the frame whenever there is room.
            if b.out.room.contains(0) {
                b.out.room = nicety_adapter::Set::default();
                assert_eq!(b.bring_one(&ethernet(0x88b5, &[1; 60])).refused(), 1, "{model}");
            }
            b.w(register, value);
        }
        assert!(b.out.room.contains(0), "{model}");
        assert_eq!(b.bring_one(&ethernet(0x88b5, &[1; 60])).refused(), 0, "{model}");
        assert_eq!(b.counters.taken().frames, 1, "{model}");
    }
}
