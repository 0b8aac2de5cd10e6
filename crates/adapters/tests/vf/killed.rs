//! The daemon was killed, and the next one has the function's state of some time ago: its driver must reset it.

use nicety_adapter::Event;

use crate::bench::{adapter, frame};
use crate::guest::*;

/// E1000_VT_MSGTYPE_.
const CTS: u32 = 0x2000_0000;
const NACK: u32 = 0x4000_0000;

/// The next process knows what the driver has set up, and no position.
fn lose(g: &mut Guest) {
    let kept = g.nic.save();
    g.nic = adapter("igbvf");
    g.nic.restore(&kept).unwrap();
    g.call(|nic, cx| nic.notice(Event::Lost, cx));
}

/// e1000_check_for_link_vf: the mailbox is looked at after RSTD, or when an interrupt has set get_link_status; after a NACK without
/// CTS igbvf_has_link resets.
#[test]
fn its_driver_is_interrupted_and_finds_a_nack_instead_of_a_link() {
    let mut g = Guest::opened();
    g.open_msix();
    g.bring_one(&frame(100));
    assert_eq!(g.messages(), [1]);
    let counted = g.r(VFGPRC);
    lose(&mut g);
    assert_eq!(g.messages(), [0, 1, 2], "igbvf_msix_other sets get_link_status");
    let bits = g.r(V2PMAILBOX);
    assert_eq!(bits & (PFSTS | RSTD | RSTI | VFU), PFSTS | RSTD);
    assert_eq!(g.r(VFGPRC), counted, "igbvf_update_stats takes differences");
    assert_eq!(g.read_message()[0] & (CTS | NACK), 0, "it waits for the physical function");
    assert_eq!(g.r(V2PMAILBOX) & PFSTS, PFSTS);
    assert_eq!(g.read_message()[0] & (CTS | NACK), NACK, "it resets");
    // igbvf_reset, igbvf_up.
    g.ask(CTRL, 1 << 26);
    assert_eq!(g.r(V2PMAILBOX) & RSTD, RSTD);
    assert_eq!(g.exchange(&[1])[0], 0x8000_0001);
    g.open();
    g.open_msix();
    g.messages();
    g.bring_one(&frame(100));
    assert_eq!((g.messages(), g.written(0)[2] & 1), (vec![1], 1));
}

/// A link that changes meanwhile is no news for a driver that has not read.
#[test]
fn a_link_that_changes_before_its_driver_has_read_does_not_hide_the_reset() {
    let mut g = Guest::opened();
    lose(&mut g);
    g.call(|nic, cx| nic.notice(Event::Link(false), cx));
    g.call(|nic, cx| nic.notice(Event::Link(true), cx));
    assert_eq!(g.r(V2PMAILBOX) & (PFSTS | RSTD), PFSTS | RSTD);
    assert_eq!(g.read_message()[0] & (CTS | NACK), 0);
    assert_eq!(g.r(V2PMAILBOX) & PFSTS, PFSTS);
    assert_eq!(g.r(VMBMEM) & CTS, 0);
}
