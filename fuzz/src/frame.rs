//! Frame headers: parsing them, and the checksums, segments and hashes that follow from them.

use std::sync::OnceLock;

use nicety_frame::checksum::{self, Verdict};
use nicety_frame::toeplitz::{HashKinds, Input, Table};
use nicety_frame::{Layout, SegmentKind, Segmenter};

/// Number of segments to check from the first on, besides the last: checking all of a million would only take time.
const CHECKED: usize = 40;

/// Any key will do. Making its table takes longer than everything else.
const KEY: [u8; 40] = *b"any key of forty bytes is as good as all";
static TABLE: OnceLock<Table> = OnceLock::new();

/// Input: four bytes of parameters, then the frame.
pub fn run(data: &[u8]) {
    let Some((&[kind, mss_low, mss_high, extra], frame)) = data.split_first_chunk() else { return };
    let layout = Layout::parse(frame);
    assert!(usize::from(layout.headers_len) <= frame.len(), "headers that are understood are there");
    assert!(layout.l4.is_none() || layout.l3.is_some());
    checksums(frame, &layout);
    if let Some(input) = Input::of(frame, &layout, HashKinds::ALL) {
        let table = TABLE.get_or_init(|| Table::new(&KEY));
        assert_eq!(table.hash(input.bytes()), nicety_frame::toeplitz::hash(&KEY, input.bytes()));
    }
    let mss = u16::from_le_bytes([mss_low, mss_high]);
    let kind = if kind & 1 == 0 { SegmentKind::Tcp } else { SegmentKind::Udp };
    let payload = frame.get(usize::from(layout.headers_len)..).unwrap_or_default();
    // The payload may be longer than the frame: a segmenter sees only the headers.
    let len = payload.len() + (usize::from(extra) << 12);
    if let Ok(segmenter) = Segmenter::new(frame, &layout, len, mss, kind) {
        segments(&segmenter, payload, len);
    }
}

fn checksums(frame: &[u8], layout: &Layout) {
    checksum::check(frame, layout);
    let mut copy = frame.to_vec();
    if checksum::fill(&mut copy, layout).is_some() {
        assert_eq!(Layout::parse(&copy), *layout, "a checksum changes no layout");
        assert_eq!(checksum::check(&copy, layout), Verdict::Good, "what is filled in verifies");
    }
}

fn segments(segmenter: &Segmenter<'_>, payload: &[u8], len: usize) {
    let count = segmenter.count();
    let mut head = vec![0; segmenter.head_len()];
    let mut next = 0;
    for index in (0..count.min(CHECKED)).chain(count.saturating_sub(1).max(CHECKED)..count) {
        let Some(segment) = segmenter.segment(index, &mut head) else { panic!("segment {index} of {count}") };
        assert!(index >= CHECKED || segment.payload.start == next, "segments follow one another");
        next = segment.payload.end;
        assert_eq!(segment.last, index + 1 == count);
        assert_eq!(segment.last, segment.payload.end == len, "the last one ends where the packet does");
        let Some(bytes) = payload.get(segment.payload.clone()) else { continue };
        let sum = checksum::sum(bytes);
        assert!(checksum::complete(&mut head, segment.checksum_start, segment.checksum_offset, sum).is_some());
        let whole = [&head[..], bytes].concat();
        let layout = Layout::parse(&whole);
        assert_eq!(checksum::check(&whole, &layout), Verdict::Good, "segment {index} of {count}");
    }
    assert!(segmenter.segment(count, &mut head).is_none());
}
