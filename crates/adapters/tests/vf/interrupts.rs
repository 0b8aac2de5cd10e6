//! Three vectors: sent, received, other causes.

use crate::bench::frame;
use crate::guest::*;

#[test]
fn a_vector_masks_and_clears_itself_until_its_driver_enables_it_again() {
    let mut g = Guest::opened();
    g.open_msix();
    g.bring_one(&frame(100));
    assert_eq!(g.messages(), [1]);
    // DPDK takes a mailbox cause only if EICR reads 0: rte_igbvf_interrupt_handler.
    assert_eq!((g.r(EICR), g.r(EIMS)), (0, 5));
    g.bring_one(&frame(100));
    assert_eq!(g.messages(), [] as [u16; 0]);
    g.w(EIMS, 2);
    assert_eq!(g.messages(), [1]);
    g.w(EICS, 2);
    g.w(EIMS, 2);
    assert_eq!(g.messages(), [1], "igbvf_watchdog_task raises it by EICS");
}

#[test]
fn a_sent_packet_interrupts_by_its_own_vector() {
    let mut g = Guest::opened();
    g.open_msix();
    g.send_plain(&frame(100));
    g.pass(3_000_000);
    assert_eq!(g.messages(), [0]);
}

#[test]
fn an_answer_interrupts_by_the_vector_of_ivar_misc() {
    let mut g = Guest::opened();
    g.open_msix();
    g.exchange(&[5, 1522]);
    assert_eq!(g.messages(), [2]);
}

/// igbvf_open enables rings before it routes them, and reads EICR after that. Its watchdog then raises the vector by EICS.
#[test]
fn frames_that_came_before_the_vector_are_found_by_the_watchdog() {
    let mut g = Guest::opened();
    g.bring_one(&frame(100));
    g.open_msix();
    assert_eq!(g.messages(), [] as [u16; 0]);
    g.w(EICS, 2);
    assert_eq!(g.messages(), [1]);
}
