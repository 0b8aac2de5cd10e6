//! A packet under construction: pieces of the sender's memory become a private head and spans.

use std::cell::OnceCell;
use std::mem::ManuallyDrop;

use nicety_frame::Tag;
use nicety_memory::{Fault, Rights, Span};

use crate::counters::Reason;

use super::admit::Applicant;
use super::{
    Batch, HEAD_BYTES, HEAD_MAX, HEAD_PLACE, HEAD_SLACK, Head, Offload, PACKET_BYTES, PACKETS, Packet, SPANS,
    SPANS_PER_PACKET,
};

/// Reasons why a packet could not be drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftError {
    /// The packet's memory is not accessible.
    Fault(Fault),
    /// More pieces than [`SPANS_PER_PACKET`].
    TooManyPieces,
    /// Longer than [`PACKET_BYTES`].
    TooLong,
    /// The batch has no more spans; the packet may go in the next one.
    BatchFull,
}

impl From<DraftError> for Reason {
    /// The drop reason. If an empty batch has too few spans, no batch has enough.
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::Fault(fault) => fault.into(),
            DraftError::TooManyPieces | DraftError::BatchFull => Self::TooManyPieces,
            DraftError::TooLong => Self::TooLong,
        }
    }
}

/// An offload that changes no byte that the switch judges.
#[derive(Clone, Copy, Debug)]
pub struct Admitted(Offload);

impl Admitted {
    /// The remaining work.
    #[inline]
    pub fn offload(&self) -> Offload {
        self.0
    }
}

/// A packet under construction. If dropped without [`Draft::finish`], the batch is unchanged.
#[derive(Debug)]
pub struct Draft<'b> {
    batch: &'b mut Batch,
    head_want: usize,
    head_len: usize,
    spans_at: usize,
    payload: u32,
    /// Its head was parsed for an offload that was admitted.
    is_admitted: bool,
}

impl<'b> Draft<'b> {
    /// Begins a packet with a private head of `head` bytes.
    pub(super) fn begin(batch: &'b mut Batch, head: usize) -> Self {
        let spans_at = batch.spans.len();
        Self {
            head_want: head.clamp(HEAD_BYTES, HEAD_MAX),
            head_len: 0,
            spans_at,
            payload: 0,
            is_admitted: false,
            batch,
        }
    }

    /// Bytes so far.
    #[inline]
    pub fn len(&self) -> u32 {
        self.head_len as u32 + self.payload
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `len` bytes of the sender's memory: the first ones are copied to the private head, the rest is translated.
    pub fn push(&mut self, address: u64, len: u32) -> Result<(), DraftError> {
        if self.len().checked_add(len).is_none_or(|total| total > PACKET_BYTES) {
            return Err(DraftError::TooLong);
        }
        let for_head =
            if self.payload > 0 { 0 } else { (self.head_want - self.head_len.min(self.head_want)).min(len as usize) };
        if for_head > 0 {
            let (source, at) = (&self.batch.source, self.head_len);
            let head = place(&mut self.batch.heads, self.batch.len);
            source.read(address, &mut head[at..at + for_head]).map_err(DraftError::Fault)?;
            self.head_len += for_head;
        }
        let rest = len - for_head as u32;
        if rest > 0 {
            let address = address.checked_add(for_head as u64);
            let address = address.ok_or(DraftError::Fault(Fault::Refused { address: u64::MAX, len: rest }))?;
            self.push_spans(address, rest)?;
        }
        Ok(())
    }

    fn push_spans(&mut self, address: u64, len: u32) -> Result<(), DraftError> {
        let Batch { source, spans, .. } = &mut *self.batch;
        let first = self.spans_at;
        let mut full = None;
        let translated = source.translate(address, len, Rights::READ, |span| {
            if spans.len() > first && spans.last_mut().is_some_and(|last| last.joins(span)) {
                return true;
            }
            if spans.len() - first >= SPANS_PER_PACKET {
                full = Some(DraftError::TooManyPieces);
            } else if spans.len() >= SPANS {
                full = Some(DraftError::BatchFull);
            } else {
                spans.push(span);
            }
            full.is_none()
        });
        match (full, translated) {
            (Some(error), _) => return Err(error),
            (None, Err(fault)) => return Err(DraftError::Fault(fault)),
            (None, Ok(())) => self.payload += len,
        }
        Ok(())
    }

    /// Appends a translated span of the batch's source map: for an uplink's own buffers.
    #[inline]
    pub fn push_span(&mut self, span: Span) -> Result<(), DraftError> {
        if self.len().checked_add(span.len()).is_none_or(|total| total > PACKET_BYTES) {
            return Err(DraftError::TooLong);
        }
        let mut span = span;
        if self.payload == 0 && self.head_len < self.head_want {
            let for_head = (self.head_want - self.head_len).min(span.len() as usize);
            let (source, at) = (&self.batch.source, self.head_len);
            let head = place(&mut self.batch.heads, self.batch.len);
            source.read_span(span.piece(0, for_head as u32), &mut head[at..at + for_head]);
            self.head_len += for_head;
            span = span.piece(for_head as u32, span.len());
        }
        if !span.is_empty() {
            if self.batch.spans.len() - self.spans_at >= SPANS_PER_PACKET {
                return Err(DraftError::TooManyPieces);
            }
            if self.batch.spans.len() >= SPANS {
                return Err(DraftError::BatchFull);
            }
            self.batch.spans.push(span);
            self.payload += span.len();
        }
        Ok(())
    }

    /// The private head, to edit in place (for a header checksum offload).
    #[inline]
    pub fn head_mut(&mut self) -> &mut [u8] {
        let len = self.head_len;
        &mut self.place()[..len]
    }

    /// The place of the private head.
    #[inline]
    fn place(&mut self) -> &mut [u8; HEAD_PLACE] {
        place(&mut self.batch.heads, self.batch.len)
    }

    /// Pads with zeros to `len` bytes (60: the shortest frame without its check sequence), if all of it is in the head.
    #[inline]
    pub fn pad_to(&mut self, len: usize) {
        let len = len.min(HEAD_BYTES);
        if self.payload == 0 && self.head_len < len {
            let from = self.head_len;
            self.place()[from..len].fill(0);
            self.head_len = len;
        }
    }

    /// Inserts a VLAN tag behind the addresses. Then the offsets of an [`Offload`] grow ([`Offload::behind_tag`]). False if the
    /// frame has no addresses, or too many tags.
    pub fn tag(&mut self, tag: Tag) -> bool {
        if self.head_len < 14 || self.head_len + 4 > HEAD_MAX + HEAD_SLACK {
            return false;
        }
        let len = self.head_len;
        let head = &mut self.place()[..len + 4];
        head.copy_within(12..len, 16);
        head[12..16].copy_from_slice(&tag.to_bytes());
        self.head_len += 4;
        true
    }

    /// Checks an offload against the packet, which is complete, tags included: it must not change anything that the switch judges
    /// (`admit.rs`). The error is the reason for the packet's drop.
    #[inline]
    pub fn admit(&mut self, offload: Offload) -> Result<Admitted, Reason> {
        if !offload.changes_bytes() {
            return Ok(Admitted(offload));
        }
        self.admit_change(offload).ok_or(Reason::BadOffload)
    }

    #[inline(never)]
    fn admit_change(&mut self, offload: Offload) -> Option<Admitted> {
        let Batch { source, heads, spans, layouts, is_parsed, len, summed, .. } = &mut *self.batch;
        let head = place(heads, *len).get_mut(..self.head_len)?;
        let applicant = Applicant { source, head, spans: spans.get(self.spans_at..)?, summed };
        let (offload, layout) = applicant.admit(offload)?;
        *layouts.get_mut(*len)? = OnceCell::from(layout);
        is_parsed.set(true);
        self.is_admitted = true;
        Some(Admitted(offload))
    }

    /// Completes the packet with an offload that was admitted for it, and adds it to the batch.
    #[inline]
    pub fn finish_admitted(self, Admitted(offload): Admitted, cookie: u64) {
        self.join(offload, cookie);
    }

    /// Admits the offload, and completes the packet.
    #[inline]
    pub fn finish(mut self, offload: Offload, cookie: u64) -> Result<(), Reason> {
        let admitted = self.admit(offload)?;
        self.finish_admitted(admitted, cookie);
        Ok(())
    }

    /// Completes a packet that requests no offload.
    #[inline]
    pub fn finish_plain(self, cookie: u64) {
        self.join(Offload::default(), cookie);
    }

    /// Completes a copy of a packet of another batch: its offload was admitted there. The copy's private head has the same length.
    #[inline]
    pub fn finish_copy(self, offload: Offload) {
        self.join(offload, 0);
    }

    #[inline(always)]
    fn join(self, offload: Offload, cookie: u64) {
        // What it has added to the batch stays.
        let mut draft = ManuallyDrop::new(self);
        let packet = Packet {
            cookie,
            payload: draft.payload,
            spans_at: draft.spans_at as u16,
            spans: draft.batch.spans.len().wrapping_sub(draft.spans_at) as u16,
            offload,
            head_len: draft.head_len as u16,
            index: 0,
        };
        draft.batch.join(packet);
    }
}

/// The place of the head of the packet with an index.
#[inline]
fn place(heads: &mut [Head; PACKETS], index: usize) -> &mut [u8; HEAD_PLACE] {
    let Head(bytes) = &mut heads[index % PACKETS];
    bytes
}

impl Batch {
    /// Makes the packet the last one. There is room for it.
    #[inline(always)]
    fn join(&mut self, packet: Packet) {
        let index = self.len;
        if let Some(place) = self.packets.get_mut(index) {
            self.bytes = self.bytes.wrapping_add(packet.wire_bytes());
            *place = Packet { index: index as u16, ..packet };
            self.len = index.wrapping_add(1);
        }
    }

    /// Adds a packet that is one span of the batch's source map and requests no offload. A packet shorter than `least` (at most
    /// [`HEAD_BYTES`]) is padded with zeros. Returns its length.
    #[inline(always)]
    pub fn push_plain(&mut self, span: Span, least: usize, cookie: u64) -> Result<u32, DraftError> {
        if span.len() > PACKET_BYTES {
            return Err(DraftError::TooLong);
        }
        let spans_at = self.spans.len();
        let mut head_len = span.len().min(HEAD_BYTES as u32);
        let payload = span.len() - head_len;
        if self.len >= PACKETS || (payload > 0 && spans_at >= SPANS) {
            return Err(DraftError::BatchFull);
        }
        let head = place(&mut self.heads, self.len);
        self.source.read_span(span, &mut head[..head_len as usize]);
        if payload > 0 {
            self.spans.push(span.piece(head_len, payload));
        } else if let Some(padding) = head.get_mut(head_len as usize..least)
            && !padding.is_empty()
        {
            padding.fill(0);
            head_len = least as u32;
        }
        self.join(Packet {
            cookie,
            payload,
            head_len: head_len as u16,
            index: 0,
            spans_at: spans_at as u16,
            spans: u16::from(payload > 0),
            offload: Offload::default(),
        });
        Ok(head_len + payload)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.batch.spans.truncate(self.spans_at);
        if self.is_admitted
            && let Some(layout) = self.batch.layouts.get_mut(self.batch.len)
        {
            *layout = OnceCell::new();
        }
    }
}
