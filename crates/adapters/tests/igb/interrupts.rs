//! MSI-X as Linux uses it, and the other kinds of interrupts.

use crate::bench::{ethernet, payload};
use crate::guest::*;

fn opened(queues: u64) -> Guest {
    let mut g = Guest::opened();
    g.open_msix(queues);
    g.messages();
    g
}

#[test]
fn a_frame_interrupts_by_its_queues_vector_and_costs_no_register_read() {
    let mut g = opened(2);
    g.open_queue(1);
    g.w(MRQC, 1 << 3);
    let frame = ethernet(0x88b5, &payload(60));
    let before = g.accesses;
    g.bring_one(&frame);
    assert_eq!(g.messages(), [2]);
    g.bring_one(&frame);
    assert_eq!(g.messages(), [] as [u16; 0], "it has masked itself");
    g.w(EIMS, 1 << 2);
    assert_eq!(g.messages(), [2], "what came meanwhile");
    g.w(EIMS, 1 << 2);
    assert_eq!(g.messages(), [] as [u16; 0], "its cause has cleared itself");
    assert_eq!(g.accesses - before, 2);
    assert_eq!((g.r(EICR), g.r(EIMS)), (0, 7));
}

#[test]
fn a_vector_pauses_as_eitr_says() {
    let mut g = opened(1);
    let frame = ethernet(0x88b5, &payload(60));
    // 49 µs, without a change to the running pause.
    g.w(EITR + 4, 196 | 1 << 31);
    assert_eq!(g.r(EITR + 4), 196);
    g.bring_one(&frame);
    assert_eq!(g.messages(), [1]);
    g.w(EIMS, 2);
    g.bring_one(&frame);
    assert_eq!(g.messages(), [] as [u16; 0]);
    let due = g.out.wake.unwrap();
    assert_eq!(due.since(g.now).as_nanos(), 49_000);
    g.now = due;
    g.tick();
    assert_eq!(g.messages(), [1]);
}

#[test]
fn the_link_interrupts_by_the_vector_of_all_else_once() {
    let mut g = opened(1);
    g.link(false);
    assert_eq!(g.messages(), [0]);
    assert_eq!(g.r(ICR), 1 << 31 | 1 << 2);
    g.w(EIMS, 1);
    assert_eq!(g.messages(), [] as [u16; 0]);
    g.link(true);
    assert_eq!(g.messages(), [0]);
    assert_eq!((g.r(ICR) & 4, g.r(STATUS) & 2), (4, 2));
}

#[test]
fn completions_interrupt_by_the_transmit_queues_vector_soon() {
    let mut g = opened(1);
    // A separate vector for the transmit queue.
    g.w(IVAR, 0x8281);
    g.w(EIMS, 7);
    g.w(EIAC, 7);
    g.w(EIAM, 7);
    g.send_plain(0, &ethernet(0x88b5, &payload(60)));
    let due = g.out.wake.unwrap();
    assert!(due.since(g.now).as_micros() <= 2000, "{due:?}");
    g.now = due;
    g.tick();
    assert_eq!(g.messages(), [2]);
}

#[test]
fn software_raises_a_vector_as_the_watchdog_does() {
    let mut g = opened(8);
    g.w(EICS, 0x1fe);
    assert_eq!(g.messages(), (1..9).collect::<Vec<_>>());
    g.w(EIMC, 0x1ff);
    g.w(EICS, 0x002);
    assert_eq!((g.messages(), g.r(EICS)), (vec![], 2));
    assert_eq!((g.r(EICR), g.r(EICR)), (2, 0));
}

#[test]
fn without_messages_the_line_is_up_until_the_cause_is_read_and_iam_masks() {
    let mut g = Guest::opened();
    let enabled = 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7 | 1 << 28 | 1 << 30;
    g.w(IMS, enabled);
    g.w(IAM, enabled);
    g.out.line = None;
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!(g.out.line.take(), Some(true));
    let cause = g.r(ICR);
    assert_eq!(cause & (1 << 31 | 1 << 7), 1 << 31 | 1 << 7, "igb_intr looks at both");
    assert_eq!(g.out.line.take(), Some(false));
    assert_eq!(g.r(IMS), 0);
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!(g.out.line, None);
    g.w(IMS, enabled);
    assert_eq!(g.out.line, Some(true));
}

#[test]
fn msi_and_a_single_vector_of_msi_x_carry_every_cause() {
    for (capability, high) in [(0x50, 0), (0x70, 0x80)] {
        let mut g = Guest::opened();
        g.message_control(capability, high);
        g.w(IMS, 1 << 7 | 1 << 2);
        g.messages();
        g.bring_one(&ethernet(0x88b5, &payload(60)));
        assert_eq!(g.messages(), [0]);
        g.r(ICR);
        g.link(false);
        assert_eq!(g.messages(), [0]);
    }
}

#[test]
fn a_vector_that_msi_x_does_not_have_is_none() {
    let mut g = opened(1);
    g.w(IVAR, 0x9f9f);
    g.w(EIMS, !0);
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    assert_eq!((g.messages(), g.r(EICR)), (vec![], 0));
}

#[test]
fn what_came_before_its_queue_had_a_vector_is_told_when_it_has_one() {
    // igb_open: igb_configure fills the rings before igb_request_irq routes them.
    let mut g = Guest::opened();
    g.bring_one(&ethernet(0x88b5, &payload(60)));
    g.open_msix(2);
    assert_eq!(g.messages(), [1], "and not for the other queue");
}

#[test]
fn a_reset_lets_go_of_frames_that_wait_for_buffers() {
    let mut g = Guest::opened();
    g.w(crate::guest::receive(0, 0x18), 0);
    assert_eq!(g.bring_one(&ethernet(0x88b5, &payload(60))).refused(), 1);
    g.out.room = nicety_adapter::Set::default();
    let control = g.r(CTRL);
    g.w(CTRL, control | 1 << 26);
    assert!(g.out.room.contains(0));
}
