//! A packet that its receiver gets unchanged, in one piece and one buffer: the common case.

use nicety_memory::{Map, Span, copy};

use super::{Checked, Wants};
use crate::batch::{Batch, Checksum, Packet};
use crate::frames::{Edit, Frames, Pick};

/// See the module's page.
#[derive(Debug)]
pub struct Whole<'a> {
    batch: &'a Batch,
    packet: &'a Packet,
}

impl<'a> Whole<'a> {
    /// A pick for a receiver. `None` if it must be segmented, edited, summed or verified: then it must be
    /// [unfolded](super::Unfolded).
    #[inline(always)]
    pub fn of(frames: &Frames<'a>, pick: Pick, wants: &Wants) -> Option<Self> {
        let packet = frames.batch.packet(pick.packet)?;
        let kept = pick.edit == Edit::Keep && pick.from == 0 && wants.strip == 0 && packet.offload.segment.is_none();
        let judged = match packet.offload.checksum {
            Checksum::AsIs => !wants.verify,
            Checksum::Verified => true,
            Checksum::Partial { .. } => wants.partial,
        };
        let fits = packet.len() >= 14 && packet.len() <= wants.frame_max;
        (kept && judged && fits).then_some(Self { batch: frames.batch, packet })
    }

    /// Bytes.
    #[inline]
    pub fn len(&self) -> u32 {
        self.packet.len()
    }

    /// Always false: a frame has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The packet.
    #[inline]
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }

    /// The checksum work still to do.
    #[inline]
    pub fn checksum(&self) -> Checksum {
        self.packet.offload.checksum
    }

    /// The state of its checksum.
    #[inline]
    pub fn checked(&self) -> Checked {
        if self.packet.offload.checksum == Checksum::AsIs { Checked::Unknown } else { Checked::Good }
    }

    /// Writes it to a span of the receiver's memory, which must hold at least [`Whole::len`] bytes.
    #[inline(always)]
    pub fn write(&self, target: &Map, to: Span) {
        let head = self.batch.head(self.packet);
        target.write_span(to, head);
        let mut at = head.len() as u32;
        for span in self.batch.spans(self.packet) {
            at += copy(self.batch.source(), *span, target, to.piece(at, span.len()));
        }
    }
}
