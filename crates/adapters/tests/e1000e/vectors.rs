//! MSI-X, MSI and the line: the message for each cause, the end of a cause, and the number of register accesses.

use crate::bench::*;
use crate::guest::*;

fn tcp_frame() -> Vec<u8> {
    ethernet(0x0800, &ipv4(6, &tcp(b"x")))
}

#[test]
fn with_msi_x_and_eiac_an_interrupt_reads_no_register_and_a_poll_writes_ims_once() {
    let mut b = extended();
    vectors(&mut b);
    b.bring_one(&tcp_frame());
    assert_eq!(b.messages(), [0], "receive queue 0 on its vector");
    let before = b.accesses;
    // While the driver polls, nothing interrupts: EIAC has cleared and masked the cause.
    b.bring_one(&tcp_frame());
    assert!(b.messages().is_empty());
    b.w(IMS, RXQ0);
    assert_eq!((b.messages(), b.accesses - before), (vec![0], 1), "what came meanwhile is told");
    b.w(IMS, RXQ0);
    assert!(b.messages().is_empty(), "once");
    assert_eq!(b.r(IMS) & RXQ0, RXQ0);
    assert_eq!(b.r(0x4100), 2, "IAC counts interrupts");
}

#[test]
fn completions_have_a_vector_of_their_own() {
    let mut b = extended();
    vectors(&mut b);
    b.put(TX_DATA, &tcp_frame());
    b.descriptor(0, TX_DATA, 0x0b00_0000 | 60, 0);
    b.w(TDT, 1);
    assert_eq!(b.transmit().len(), 1);
    assert_eq!(b.messages(), [1]);
    b.bring_one(&tcp_frame());
    assert_eq!(b.messages(), [0]);
}

#[test]
fn the_rest_is_told_by_other_which_reads_icr_and_is_masked_by_its_message() {
    let mut b = extended();
    vectors(&mut b);
    b.link(false);
    assert_eq!(b.messages(), [2]);
    assert_eq!(b.r(IMS) & OTHER, 0, "EIAME masks what IAM names");
    // e1000_msix_other.
    let icr = b.r(ICR);
    assert_eq!(icr & (OTHER | LSC), OTHER | LSC);
    assert_eq!(b.r(STATUS) & 2, 0);
    b.w(IMS, OTHER | LSC);
    assert!(b.messages().is_empty());
    b.link(true);
    assert_eq!(b.messages(), [2]);
}

#[test]
fn clearing_other_clears_what_it_tells_of() {
    let mut b = extended();
    vectors(&mut b);
    b.link(false);
    b.w(ICR, OTHER);
    assert_eq!(b.r(ICS) & (OTHER | LSC), 0);
}

#[test]
fn a_vector_that_ivar_does_not_call_valid_or_that_is_not_there_tells_nothing() {
    for ivar in [0x0000_0000, 0x0000_000d, 0x0000_000f] {
        let mut b = extended();
        vectors(&mut b);
        b.w(IVAR, ivar);
        b.bring_one(&tcp_frame());
        assert!(b.messages().is_empty(), "IVAR {ivar:#x}");
        b.w(IVAR, 0xc);
        assert_eq!(b.messages(), [4], "it waits until somebody is to be told");
    }
}

#[test]
fn eitr_spaces_the_messages_of_its_vector_alone() {
    let mut b = extended();
    vectors(&mut b);
    // 195 units of 256 ns: 20000 a second.
    b.w(EITR, 195);
    let (mut signalled, mut wake) = (Vec::new(), None);
    let start = b.now;
    for _ in 0..1000 {
        b.now = b.now.after_ns(1000);
        if wake.is_some_and(|at| at <= b.now) {
            wake = None;
            b.tick();
        }
        b.bring_one(&tcp_frame());
        if b.messages().contains(&0) {
            signalled.push(b.now.0 - start.0);
            let rdh = b.r(RDH);
            for i in 0..RING {
                b.put(RX_RING + i * 16, &(RX_DATA + i * 2048).to_le_bytes());
            }
            b.w(RDT, (rdh + 255) % 256);
            b.w(IMS, RXQ0);
        }
        wake = b.out.wake.take().or(wake);
    }
    assert!((18..=21).contains(&signalled.len()), "{} in a millisecond", signalled.len());
    assert!(signalled.windows(2).all(|pair| pair[1] - pair[0] >= 195 * 256), "{signalled:?}");
    b.put(TX_DATA, &tcp_frame());
    b.descriptor(0, TX_DATA, 0x0b00_0000 | 60, 0);
    b.w(TDT, 1);
    b.transmit();
    assert!(b.messages().contains(&1), "another vector has its own");
}

#[test]
fn rdtr_holds_a_frame_back_only_where_no_throttle_does() {
    for (eitr, signalled) in [(0, vec![]), (195, vec![0])] {
        let mut b = extended();
        vectors(&mut b);
        b.w(EITR, eitr);
        b.w(0x2820, 32);
        b.w(0x282c, 32);
        b.bring_one(&tcp_frame());
        assert_eq!(b.messages(), signalled, "EITR {eitr}");
        b.now = b.now.after_ns(32 * 1024);
        b.tick();
        assert_eq!(b.messages().len() + signalled.len(), 1);
    }
}

#[test]
fn on_the_line_icr_clears_only_when_the_chip_interrupts_and_masks_itself_with_iame() {
    let mut b = opened();
    b.r(ICR);
    b.w(CTRL_EXT, 0x0800_0000);
    b.w(IAM, 0xffff_ffff);
    b.w(IMS, 0x9d);
    b.out.line = None;
    // A cause that is not enabled, on a shared line: it is not lost.
    b.w(ICS, 0x200);
    assert_eq!((b.r(ICR), b.r(ICR)), (0x0100_0200, 0x0100_0200));
    b.bring_one(&tcp_frame());
    assert_eq!(b.out.line.take(), Some(true));
    // e1000_intr: RXT0, its queue's cause and INT_ASSERTED; everything is masked afterwards.
    assert_eq!(b.r(ICR), 0x8110_0280);
    assert_eq!(b.out.line.take(), Some(false));
    assert_eq!((b.r(IMS), b.r(ICR)), (0, 0));
    b.bring_one(&tcp_frame());
    assert_eq!(b.out.line.take(), None);
    b.w(IMS, 0x9d);
    assert_eq!(b.out.line.take(), Some(true));
}

#[test]
fn msi_tells_every_cause_by_one_message() {
    let mut b = opened();
    b.r(ICR);
    b.config_write(0xd2, &[1, 0]);
    b.w(CTRL_EXT, 0x0800_0000);
    b.w(IAM, 0xffff_ffff);
    b.w(IMS, 0x9d);
    b.messages();
    b.bring_one(&tcp_frame());
    assert_eq!(b.messages(), [0]);
    b.bring_one(&tcp_frame());
    assert!(b.messages().is_empty(), "told already");
    assert_eq!(b.r(ICR) & 0x8000_0080, 0x8000_0080);
    b.w(IMS, 0x9d);
    b.link(false);
    assert_eq!(b.messages(), [0]);
}

/// Sends packets of `pieces` descriptors each, from `first`, as Linux posts them: IDE in each descriptor, RS in the last.
fn send_delayed(b: &mut Bench, first: u64, packets: u64, pieces: u64) {
    b.put(TX_DATA, &tcp_frame());
    for packet in 0..packets {
        for piece in 0..pieces {
            let last = piece + 1 == pieces;
            let command = if last { 0x8b00_0000 } else { 0x8000_0000 };
            b.descriptor(first + packet * pieces + piece, TX_DATA, command | 60, 0);
        }
    }
    b.w(TDT, (first + packets * pieces) as u32);
    assert_eq!(b.transmit().len() as u64, packets);
}

#[test]
fn with_vectors_completions_wait_a_tenth_of_a_millisecond_or_for_a_quarter_of_the_ring() {
    let mut b = extended();
    vectors(&mut b);
    for index in 0..10 {
        send_delayed(&mut b, index, 1, 1);
        assert!(b.messages().is_empty(), "it waits");
        b.now = b.now.after_ns(100_000);
        b.tick();
        assert_eq!(b.messages(), [1], "and no longer for the answers that come just after it");
        b.w(IMS, TXQ0);
        b.now = b.now.after_ns(100_000);
        b.bring_one(&tcp_frame());
        b.messages();
        b.w(IMS, RXQ0);
    }
    send_delayed(&mut b, 10, 5, 16);
    assert_eq!(b.messages(), [1], "80 of 256 descriptors");
}
