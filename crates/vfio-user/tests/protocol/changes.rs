//! Changes of the client's memory that a device makes in another thread (vfio-user.rst, "VFIO_USER_DMA_MAP",
//! "VFIO_USER_DMA_UNMAP").

use nicety_vfio_user::Errno;

use crate::kit::{DeviceCall, Raw, message, words};

const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const READ: u16 = 9;

/// DMA_MAP of a window of 0x1000 bytes from 0x10000 on, without a file.
fn map(id: u16) -> Vec<u8> {
    message(id, DMA_MAP, 0, &words(&[32, 3, 0, 0, 0x1_0000, 0, 0x1000, 0]))
}

fn unmap(id: u16) -> Vec<u8> {
    message(id, DMA_UNMAP, 0, &words(&[24, 0, 0x1_0000, 0, 0x1000, 0]))
}

/// Reads region 0.
fn read(id: u16) -> Vec<u8> {
    message(id, READ, 0, &words(&[0, 0, 0, 4]))
}

fn slow() -> Raw {
    let mut raw = Raw::ready();
    raw.model.slow = true;
    raw
}

/// The answers: number and error of each.
fn answers(raw: &mut Raw) -> Vec<(u16, u32)> {
    raw.replies().iter().map(|reply| (reply.id, reply.error)).collect()
}

#[test]
fn while_a_change_is_under_way_nothing_more_of_its_client_is_handled_and_then_all_in_order() {
    let mut raw = slow();
    raw.send(&[map(1), read(2), unmap(3), read(4)].concat(), &[]);
    // No call blocks, however many are made.
    for _ in 0..3 {
        let progress = raw.turn().unwrap();
        assert!(raw.session.is_changing() && !raw.session.wants_read() && !progress.more);
    }
    assert_eq!((answers(&mut raw), raw.session.dma_maps()), (vec![], 0));
    assert!(!raw.session.is_within_message());
    raw.model.under_way = false;
    raw.turn().unwrap();
    assert_eq!((answers(&mut raw), raw.session.dma_maps()), (vec![(1, 0), (2, 0)], 0));
    assert!(raw.session.is_changing(), "the window is being given back");
    raw.model.under_way = false;
    assert!(!raw.turn().unwrap().more);
    assert_eq!((answers(&mut raw), raw.session.dma_maps()), (vec![(3, 0), (4, 0)], 0));
    assert!(raw.session.wants_read());
}

#[test]
fn a_window_that_is_not_taken_in_the_end_is_none() {
    let mut raw = slow();
    raw.model.outcome = Err(Errno::INVAL);
    raw.send(&map(1), &[]);
    raw.turn().unwrap();
    raw.model.under_way = false;
    raw.turn().unwrap();
    assert_eq!((answers(&mut raw), raw.session.dma_maps()), (vec![(1, 22)], 0));
}

#[test]
fn a_session_that_ends_within_a_change_gives_all_back() {
    let mut raw = slow();
    raw.send(&map(1), &[]);
    raw.turn().unwrap();
    raw.session.disconnect(&mut raw.model);
    assert!(!raw.session.is_changing());
    assert_eq!(raw.model.calls().last(), Some(&DeviceCall::Unmap(None)));
}
