//! One frame on its way into a receiver's buffers: first the payload, summed during the copy, then the head.

use nicety_frame::checksum;
use nicety_frame::ethernet::FRAME_LEN_MIN;
use nicety_frame::{Fragment, Layout, Sum, Tci};
use nicety_memory::{CopySum, Map, Span, copy, copy_sum};

use super::{Checked, Scratch};
use crate::batch::{Batch, Checksum, Offload, Packet};

/// The head of a piece: the private head if nothing changes, else one in the scratch buffer.
#[derive(Debug)]
pub(super) enum Head<'a> {
    Private(&'a [u8]),
    Edited(&'a mut Scratch),
}

impl Head<'_> {
    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Private(head) => head,
            Self::Edited(head) => head,
        }
    }
}

/// One frame (or one unsegmented packet) for one receiver.
#[derive(Debug)]
pub struct Piece<'a> {
    pub(super) batch: &'a Batch,
    pub(super) packet: &'a Packet,
    pub(super) head: Head<'a>,
    /// Payload bytes of a segmented piece that lie in the private head, behind the headers.
    pub(super) inner: &'a [u8],
    /// The range of the spans' bytes that follows.
    pub(super) from: u32,
    pub(super) len: u32,
    /// Bytes of padding behind it: fewer than Ethernet's shortest frame has.
    pub(super) pad: u32,
    pub(super) verify: bool,
    pub(super) made: bool,
    /// Checksum and segmentation, as reported to the receiver.
    pub offload: Offload,
    /// The control information of the tag that the receiver [strips](super::Wants::strip).
    pub tag: Option<Tci>,
}

impl Piece<'_> {
    /// Its length in bytes.
    pub fn len(&self) -> u32 {
        (self.head().len() + self.inner.len()) as u32 + self.len + self.pad
    }

    /// Whether there is nothing to write; never for a piece of a real packet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its head, as it will be written, except a checksum that is not computed yet.
    pub fn head(&self) -> &[u8] {
        self.head.bytes()
    }

    /// The packet's own head, before any edit: the basis of [`Piece::layout`].
    pub fn private_head(&self) -> &[u8] {
        self.batch.head(self.packet)
    }

    /// The parsed head, before any edit of its tags.
    pub fn layout(&self) -> &Layout {
        self.batch.layout(self.packet)
    }

    /// Writes it to spans of the receiver's memory, which must hold at least [`Piece::len`] bytes together.
    #[inline]
    pub fn write(&mut self, target: &Map, to: &[Span]) -> Checked {
        let (summed, offset) = self.summed();
        let mut cursor = Cursor { spans: to, at: self.head().len() as u32 };
        let mut sum = CopySum::default();
        let mut left = summed;
        if !self.inner.is_empty() {
            cursor.put(target, self.inner);
            let n = (self.inner.len() as u32).min(left);
            sum.add(&self.inner[..n as usize]);
            left -= n;
        }
        self.copy_spans(target, &mut cursor, &mut sum, left);
        if self.pad > 0 {
            cursor.put(target, [0; FRAME_LEN_MIN].get(..self.pad as usize).unwrap_or_default());
        }
        let payload = Sum::of(sum.fold());
        let checked = self.conclude(payload, summed, offset);
        Cursor { spans: to, at: 0 }.put(target, self.head());
        checked
    }

    /// Number of bytes to sum behind the head (and its inner part).
    #[inline]
    fn summed(&self) -> (u32, u32) {
        let all = self.inner.len() as u32 + self.len;
        if self.made {
            return (all, 0);
        }
        if !self.verify {
            return (0, 0);
        }
        let layout = self.layout();
        if layout.l4.is_none() || layout.l3.is_none_or(|l3| l3.fragment != Fragment::Whole) {
            return (0, 0);
        }
        // A frame's padding behind the IP packet is not covered by the checksum.
        let head = self.batch.head(self.packet);
        let l4 = layout.l4_total_len(head).unwrap_or(0) as u32 + layout.l4.map_or(0, |l4| u32::from(l4.offset));
        (l4.saturating_sub(head.len() as u32).min(all), l4)
    }

    #[inline]
    fn copy_spans(&self, target: &Map, cursor: &mut Cursor<'_>, sum: &mut CopySum, mut summed: u32) {
        let source = self.batch.source();
        let (mut skip, mut left) = (self.from, self.len);
        for span in self.batch.spans(self.packet) {
            let mut piece = span.piece(skip, left);
            skip = skip.saturating_sub(span.len());
            left -= piece.len();
            while !piece.is_empty() {
                let Some(room) = cursor.room() else { return };
                let copied = if summed > 0 {
                    let n = copy_sum(source, piece.piece(0, summed), target, room, sum);
                    summed -= n;
                    n
                } else {
                    copy(source, piece, target, room)
                };
                if copied == 0 {
                    return;
                }
                cursor.at += copied;
                piece = piece.piece(copied, piece.len());
            }
            if left == 0 {
                return;
            }
        }
    }

    /// Stores the computed checksum, or verifies the received one.
    #[inline]
    fn conclude(&mut self, payload: Sum, summed: u32, l4_end: u32) -> Checked {
        if self.made {
            let Checksum::Partial { start, field } = self.offload.checksum else { return Checked::Unknown };
            let offset = usize::from(field).saturating_sub(usize::from(start));
            let Head::Edited(head) = &mut self.head else { return Checked::Unknown };
            let made = checksum::complete(head, usize::from(start), offset, payload);
            self.offload.checksum = Checksum::Verified;
            return if made.is_some() { Checked::Good } else { Checked::Unknown };
        }
        match self.offload.checksum {
            Checksum::Verified | Checksum::Partial { .. } => return Checked::Good,
            Checksum::AsIs if !self.verify => return Checked::Unknown,
            Checksum::AsIs => {}
        }
        let head = self.batch.head(self.packet);
        let layout = self.layout();
        let headers = usize::from(layout.headers_len);
        let verdict = checksum::check_with(head, layout, |len| {
            let private = head.get(headers..headers + len.min(head.len() - headers))?;
            let whole = headers + len == l4_end as usize && len - private.len() == summed as usize;
            whole.then(|| checksum::sum(private).then(payload, private.len() % 2 == 1))
        });
        verdict.into()
    }
}

/// A position in a list of spans.
struct Cursor<'a> {
    spans: &'a [Span],
    at: u32,
}

impl Cursor<'_> {
    /// The rest of the current span; `None` at the end of the list.
    #[inline]
    fn room(&mut self) -> Option<Span> {
        while let [first, rest @ ..] = self.spans {
            if self.at < first.len() {
                return Some(first.piece(self.at, first.len()));
            }
            self.at -= first.len();
            self.spans = rest;
        }
        None
    }

    #[inline]
    fn put(&mut self, target: &Map, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some(room) = self.room() else { return };
            let n = bytes.len().min(room.len() as usize);
            target.write_span(room.piece(0, n as u32), &bytes[..n]);
            self.at += n as u32;
            bytes = &bytes[n..];
        }
    }
}
