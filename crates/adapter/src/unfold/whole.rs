//! A packet that its receiver gets unchanged, in one piece and one buffer: the common case.

use nicety_frame::{checksum, vlan};
use nicety_memory::Target;

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
        if pick.edit != Edit::Keep || pick.from != 0 || wants.strip != 0 || packet.offload.segment.is_some() {
            return None;
        }
        let judged = match packet.offload.checksum {
            Checksum::AsIs => !wants.verify,
            Checksum::Verified => true,
            Checksum::Partial { .. } => wants.partial,
        };
        if !judged || packet.len() < 14 || packet.len() > wants.frame_max {
            return None;
        }
        Some(Self { batch: frames.batch, packet })
    }

    /// The bytes of a pick, if the private head has all of them, and they need no change and no checksum work. Most short frames are such.
    /// Only for a receiver that wants no tag stripped and no checksum verified ([`Wants::strip`], [`Wants::verify`]).
    #[inline(always)]
    pub fn short(frames: &Frames<'a>, pick: Pick) -> Option<&'a [u8]> {
        let packet = frames.batch.packet(pick.packet)?;
        let is_plain = pick.edit == Edit::Keep
            && pick.from == 0
            && packet.offload.segment.is_none()
            && packet.offload.checksum == Checksum::AsIs
            && packet.payload_len() == 0;
        if is_plain { Some(frames.batch.head(packet)) } else { None }
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

    /// Writes it to the start of a receive buffer, behind a header of `N` bytes. False if there is no room for both; then nothing is written.
    #[inline]
    pub fn write<const N: usize>(&self, header: u128, to: &Target<'_>) -> bool {
        let (head, payload) = (self.batch.head(self.packet), self.packet.payload_len());
        if payload > 0 && self.len().saturating_add(N as u32) > to.len() {
            return false;
        }
        let is_written = to.write::<N>(header, head);
        let mut at = (N as u32).wrapping_add(head.len() as u32);
        for span in self.batch.spans(self.packet) {
            to.copy(at, self.batch.source(), *span);
            at = at.wrapping_add(span.len());
        }
        is_written
    }
}

/// A frame that its receiver gets unchanged, and whose bytes are all in the packet's private head. Most short frames are such. The receiver
/// may want its checksum verified.
#[derive(Debug)]
pub struct Short<'a> {
    batch: &'a Batch,
    packet: &'a Packet,
    bytes: &'a [u8],
    verify: bool,
}

impl<'a> Short<'a> {
    /// A pick for a receiver. `None` if it must be [unfolded](super::Unfolded).
    #[inline(always)]
    pub fn of(frames: &Frames<'a>, pick: Pick, wants: &Wants) -> Option<Self> {
        let packet = frames.batch.packet(pick.packet)?;
        let is_plain = pick.edit == Edit::Keep
            && pick.from == 0
            && packet.offload.segment.is_none()
            && !matches!(packet.offload.checksum, Checksum::Partial { .. })
            && packet.payload_len() == 0;
        if !is_plain {
            return None;
        }
        let bytes = frames.batch.head(packet);
        if bytes.len() < 14
            || bytes.len() > wants.frame_max as usize
            || wants.strip != 0 && vlan::outer(bytes).is_some()
        {
            return None;
        }
        Some(Self { batch: frames.batch, packet, bytes, verify: wants.verify })
    }

    /// Its bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The packet.
    #[inline(always)]
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }

    /// The state of its checksum, which is verified if the receiver wants that.
    #[inline]
    pub fn checked(&self) -> Checked {
        match self.packet.offload.checksum {
            Checksum::AsIs if self.verify => checksum::check(self.bytes, self.batch.layout(self.packet)).into(),
            Checksum::AsIs => Checked::Unknown,
            Checksum::Verified | Checksum::Partial { .. } => Checked::Good,
        }
    }
}
