//! Received frames in descriptors: legacy, extended, split.

use nicety_adapter::Edit;
use nicety_frame::{Tag, Tci};

use crate::bench::*;
use crate::guest::*;

fn tcp_frame(len: usize) -> Vec<u8> {
    tcp4(MAC, &payload(len))
}

#[test]
fn an_extended_descriptor_says_length_status_errors_and_tag() {
    let mut b = extended();
    b.w(CTRL, 0x4000_0241);
    b.w(RXCSUM, 0x300);
    let frame = tcp_frame(100);
    let sender = plain_batch(&[&frame]);
    b.bring(&sender, Edit::Tag(Tag { tpid: 0x8100, tci: Tci(0xa123) }));
    // DD, EOP, VP, TCPCS, IPCS.
    assert_eq!(written(&b, RX_RING, 0), (0, 0, 0x6b, frame.len() as u16, 0xa123));
    assert_eq!(b.get(RX_DATA, frame.len()), frame);
    let mut bad = frame.clone();
    bad[60] ^= 1;
    b.bring_one(&bad);
    assert_eq!(written(&b, RX_RING, 1).2, 0x2000_0063, "TCPE");
    b.bring_one(&udp4(MAC, 53, &[1, 2, 3, 4]));
    assert_eq!(written(&b, RX_RING, 2).2, 0x73, "UDPCS, and padded to 60");
    assert_eq!(written(&b, RX_RING, 2).3, 60);
    b.bring_one(&ethernet(0x88b5, &payload(100)));
    assert_eq!(written(&b, RX_RING, 3).2, 0x07, "IXSM");
}

#[test]
fn a_legacy_descriptor_says_the_same_in_its_own_places() {
    let mut b = opened();
    b.w(RXCSUM, 0x300);
    let mut frame = tcp_frame(100);
    frame[60] ^= 1;
    b.bring_one(&frame);
    assert_eq!(b.received(0), (frame.len() as u16 + 4, 0x63, 0x20, 0));
}

#[test]
fn a_jumbo_frame_takes_as_many_extended_descriptors_as_it_needs() {
    let mut b = extended();
    b.w(RCTL, RCTL_LINUX | 0x0400_0020);
    let frame = ethernet(0x88b5, &payload(8986));
    b.bring_one(&frame);
    for index in 0..4 {
        assert_eq!(written(&b, RX_RING, index), (0, 0, 1, 2048, 0), "descriptor {index}");
    }
    assert_eq!(written(&b, RX_RING, 4), (0, 0, 7, (9000 - 4 * 2048) as u16, 0));
    assert_eq!(b.get(RX_DATA, frame.len()), frame);
    assert_eq!(b.r(RDH), 5);
}

#[test]
fn flxbuf_sizes_buffers_in_kibibytes() {
    let mut b = opened();
    b.w(RFCTL, 0x8000);
    // FLXBUF 3: 3 KiB.
    b.open_receive(RX_RING, RING as u32, RCTL_LINUX | 0x1c00_0020, 3072);
    b.bring_one(&ethernet(0x88b5, &payload(3986)));
    assert_eq!((written(&b, RX_RING, 0).3, written(&b, RX_RING, 1).3), (3072, 4000 - 3072));
}

/// e1000_setup_rctl with two pages: 256 bytes of headers, two buffers of 4 KiB; descriptors of 32 bytes.
fn split(b: &mut Bench) {
    b.w(RFCTL, 0x8000);
    b.w(0x2170, 0x0004_0402);
    for (offset, value) in [(0x2808, 256 * 32), (0x2800, RX_RING as u32), (RDT, 0), (RDH, 0)] {
        b.w(offset, value);
    }
    for i in 0..256 {
        let at = RX_DATA + i * 0x4000;
        for (n, address) in [at, at + 0x1000, at + 0x2000, !0].into_iter().enumerate() {
            b.put(RX_RING + i * 32 + 8 * n as u64, &address.to_le_bytes());
        }
    }
    b.w(RCTL, RCTL_LINUX | 0x0400_0420);
    // The tail counts units of 16 bytes: e1000_alloc_rx_buffers_ps.
    b.w(RDT, 255 << 1);
}

/// A written-back split descriptor: status, lengths of headers and payload, header status.
fn split_written(b: &Bench, index: u64) -> (u32, [u16; 4], u16) {
    let d = b.get(RX_RING + index * 32, 32);
    let half = |at: usize| u16::from_le_bytes([d[at], d[at + 1]]);
    let status = u32::from_le_bytes([d[8], d[9], d[10], d[11]]);
    (status, [half(12), half(18), half(20), half(22)], half(16))
}

#[test]
fn headers_are_split_from_their_payload() {
    let mut b = opened();
    split(&mut b);
    b.w(RXCSUM, 0x300);
    let frame = tcp_frame(6000);
    b.bring_one(&frame);
    assert_eq!(split_written(&b, 0), (0x63, [54, 4096, 1904, 0], 0x8000 | 54));
    assert_eq!(b.get(RX_DATA, 54), frame[..54]);
    assert_eq!(b.get(RX_DATA + 0x1000, 4096), frame[54..54 + 4096]);
    assert_eq!(b.get(RX_DATA + 0x2000, 1904), frame[54 + 4096..]);
    assert_eq!(b.r(RDH), 2);
    // A frame without headers to split fills the buffers in order.
    let plain = ethernet(0x88b5, &payload(586));
    b.bring_one(&plain);
    assert_eq!(split_written(&b, 1), (0x07, [256, 344, 0, 0], 0));
    assert_eq!(b.get(RX_DATA + 0x4000, 256), plain[..256]);
    assert_eq!(b.get(RX_DATA + 0x5000, 344), plain[256..]);
}

#[test]
fn a_split_ring_wraps_and_what_needs_two_descriptors_takes_two() {
    let mut b = opened();
    split(&mut b);
    let frame = tcp_frame(9000);
    for _ in 0..127 {
        b.bring_one(&frame);
    }
    assert_eq!(split_written(&b, 0), (1, [54, 4096, 4096, 0], 0x8000 | 54));
    assert_eq!(split_written(&b, 1).1, [0, 9000 - 8192, 0, 0]);
    assert_eq!(b.r(RDH), 2 * 254);
    assert_ne!(b.bring_one(&frame).refused(), 0, "one descriptor is left, and it needs two");
    b.w(RDT, 20);
    b.bring_one(&frame);
    assert_eq!(b.r(RDH), 0, "around the end");
}

#[test]
fn buffers_of_no_bytes_take_nothing() {
    let mut b = opened();
    split(&mut b);
    b.w(0x2170, 0);
    let frame = tcp_frame(100);
    b.bring_one(&frame);
    assert_eq!(b.counters.receive_drops[nicety_adapter::Reason::BadDescriptor as usize], 1);
    // The headers fit; there is no buffer for their payload.
    b.w(0x2170, 2);
    b.bring_one(&frame);
    assert_eq!(b.r(RDH), 0);
}
