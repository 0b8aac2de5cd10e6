//! A packet as one receiver gets it: whole, or cut into frames, with its tag put in or taken out, its checksum made
//! or verified while the payload is copied. The one place where payload moves between guests.
//!
//! A receiver says what it can take ([`Wants`]), asks for the length of each piece, finds buffers for it, and calls
//! [`Piece::write`]: payload first, then the head, whose checksum is known by then.

mod piece;

use arrayvec::ArrayVec;
use nicety_frame::{Segmenter, Tag, Tci, vlan};

use crate::batch::{Batch, Checksum, HEAD_MOST, Offload, Packet, Segment, SegmentKind};
use crate::counters::Reason;
use crate::frames::{Edit, Frames, Pick};
use piece::Head;
pub use piece::Piece;

/// Where heads are edited, if anything changes: one on the stack of a delivery, used for all its pieces.
pub type Scratch = ArrayVec<u8, { HEAD_MOST + 16 }>;

/// What a receiver can take, as its driver has set it up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Longest frame in bytes, tags and frame check sequence not counted (1514 for an MTU of 1500).
    pub frame_max: u32,
    /// TCP over IPv4 may come uncut.
    pub tcp4: bool,
    /// TCP over IPv6 may come uncut.
    pub tcp6: bool,
    /// UDP may come uncut.
    pub udp: bool,
    /// A partial checksum may stay partial.
    pub partial: bool,
    /// The outer 802.1Q tag is taken out and told apart.
    pub untag: bool,
    /// Transport checksums that nobody vouches for are to be verified.
    pub verify: bool,
}

/// What is known of a delivered frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Verified here, or made here.
    Good,
    /// Verified here, and wrong.
    Bad,
    /// Not looked at, or there is none.
    Unknown,
}

/// What of [`Wants`] counts until the end, in one byte. Copied field by field, it would be read as a word that was just
/// written as bytes, and such a read waits until all that was written before, to cold guest memory too, has arrived.
#[derive(Clone, Copy, Debug)]
struct Asked(u8);

impl Asked {
    fn of(wants: &Wants) -> Self {
        Self(u8::from(wants.partial) | u8::from(wants.untag) << 1 | u8::from(wants.verify) << 2)
    }

    fn partial(self) -> bool {
        self.0 & 1 != 0
    }

    fn untag(self) -> bool {
        self.0 & 2 != 0
    }

    fn verify(self) -> bool {
        self.0 & 4 != 0
    }
}

/// A packet for one receiver.
#[derive(Debug)]
pub struct Unfolded<'a> {
    batch: &'a Batch,
    packet: &'a Packet,
    edit: Edit,
    wants: Asked,
    cut: Option<Segmenter<'a>>,
    kind: Option<SegmentKind>,
}

impl<'a> Unfolded<'a> {
    /// Prepares a pick for a receiver. The reason why it can never take it is its drop's reason.
    #[inline(always)]
    pub fn new(frames: &Frames<'a>, pick: Pick, wants: Wants) -> Result<Self, Reason> {
        let batch = frames.batch;
        let packet = batch.packet(pick.packet).ok_or(Reason::BadDescriptor)?;
        let mut this = Self { batch, packet, edit: pick.edit, wants: Asked::of(&wants), cut: None, kind: None };
        if packet.len() < 14 {
            return Err(Reason::TooShort);
        }
        // Tags are not counted: looked for only where they matter.
        let fits = |len: u32| {
            len <= wants.frame_max || len <= wants.frame_max.saturating_add(4 * batch.layout(packet).tag_count() as u32)
        };
        match packet.offload.segment {
            Some(segment) if !this.passes(&wants, segment) => {
                let head = batch.head(packet);
                let payload = packet.len().saturating_sub(u32::from(batch.layout(packet).headers_len));
                let kind = segment.kind;
                let cut = Segmenter::new(head, batch.layout(packet), payload as usize, segment.mss, kind);
                let cut = cut.map_err(|_| Reason::BadOffload)?;
                if !fits(cut.head_len() as u32 + u32::from(segment.mss).min(payload)) {
                    return Err(Reason::TooLong);
                }
                this.cut = Some(cut);
            }
            Some(segment) => this.kind = Some(segment.kind),
            None if !fits(packet.len()) => return Err(Reason::TooLong),
            None => {}
        }
        Ok(this)
    }

    #[inline]
    fn passes(&self, wants: &Wants, segment: Segment) -> bool {
        let v4 = self.batch.layout(self.packet).l3.is_some_and(|l3| l3.kind == nicety_frame::L3Kind::V4);
        match segment.kind {
            SegmentKind::Tcp if v4 => wants.tcp4,
            SegmentKind::Tcp => wants.tcp6,
            SegmentKind::Udp => wants.udp,
        }
    }

    /// Pieces: 1, or the frames that it is cut into.
    #[inline]
    pub fn count(&self) -> u32 {
        self.cut.as_ref().map_or(1, |cut| cut.count() as u32)
    }

    /// The packet.
    #[inline]
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }

    /// Whether the outer tag leaves the frame: by the switch's edit, or because the receiver takes it apart.
    #[inline]
    fn untags(&self) -> bool {
        self.edit == Edit::Untag || (self.wants.untag() && !matches!(self.edit, Edit::Tag(_)))
    }

    /// Bytes of piece `index`, as they will be written.
    #[inline]
    pub fn len(&self, index: u32) -> u32 {
        let len = match &self.cut {
            None => self.packet.len(),
            Some(cut) => cut.payload(index as usize).map_or(0, |range| (cut.head_len() + range.len()) as u32),
        };
        let tagged = || self.batch.layout(self.packet).tags[0].is_some();
        match self.edit {
            Edit::Tag(_) if !self.wants.untag() => len + 4,
            _ if self.untags() && tagged() => len - 4,
            _ => len,
        }
    }

    /// Always false: a pick has at least one piece.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the receiver gets the packet's own head.
    #[inline]
    fn as_it_is(&self) -> bool {
        let made = self.makes(&self.packet.offload);
        self.cut.is_none() && self.edit == Edit::Keep && !self.wants.untag() && !made
    }

    /// Whether a checksum that was left open is made here.
    #[inline]
    fn makes(&self, offload: &Offload) -> bool {
        matches!(offload.checksum, Checksum::Partial { .. }) && !self.wants.partial() && self.kind.is_none()
    }

    /// Piece `index`, edited in the scratch if anything changes. `None` if there is no such piece.
    #[inline(always)]
    pub fn piece<'s>(&'s self, index: u32, scratch: &'s mut Scratch) -> Option<Piece<'s>> {
        let Self { batch, packet, .. } = *self;
        if self.as_it_is() {
            let (head, offload) = (Head::Private(batch.head(packet)), packet.offload);
            let verify = self.wants.verify() && offload.checksum == Checksum::AsIs;
            let len = packet.payload_len();
            return Some(Piece {
                batch,
                packet,
                head,
                inner: &[],
                from: 0,
                len,
                verify,
                made: false,
                offload,
                tag: None,
            });
        }
        self.edited(index, scratch)
    }

    fn edited<'s>(&'s self, index: u32, scratch: &'s mut Scratch) -> Option<Piece<'s>> {
        scratch.clear();
        let head = self.batch.head(self.packet);
        let (inner, from, len, mut offload);
        match &self.cut {
            None => {
                scratch.try_extend_from_slice(head).ok()?;
                (inner, from, len) = (&[][..], 0, self.packet.payload_len());
                offload = self.packet.offload;
            }
            Some(cut) => {
                let headers = cut.head_len();
                scratch.try_extend_from_slice(head.get(..headers)?).ok()?;
                let segment = cut.segment(index as usize, scratch)?;
                let private = head.len() - headers;
                let (start, end) = (segment.payload.start, segment.payload.end);
                inner = head.get(headers + start.min(private)..headers + end.min(private))?;
                from = start.saturating_sub(private) as u32;
                len = (end - start - inner.len()) as u32;
                let field = segment.checksum_start + segment.checksum_offset;
                let checksum = Checksum::Partial { start: segment.checksum_start as u16, field: field as u16 };
                offload = Offload { checksum, segment: None };
            }
        }
        let tag = self.edit_tag(scratch, &mut offload)?;
        let made = self.makes(&offload);
        let verify = self.wants.verify() && offload.checksum == Checksum::AsIs;
        Some(Piece {
            batch: self.batch,
            packet: self.packet,
            head: Head::Edited(scratch),
            inner,
            from,
            len,
            verify,
            made,
            offload,
            tag,
        })
    }

    /// Puts the tag in or takes it out, and moves the offsets that lie behind it.
    #[inline]
    fn edit_tag(&self, head: &mut Scratch, offload: &mut Offload) -> Option<Option<u16>> {
        let (mut shift, mut told) = (0i16, None);
        if let Edit::Tag(control) = self.edit {
            if self.wants.untag() {
                told = Some(control);
            } else {
                let len = head.len();
                head.try_extend_from_slice(&[0; 4]).ok()?;
                vlan::insert(head, len, Tag::customer(Tci(control))).ok()?;
                shift = 4;
            }
        } else if self.untags()
            && let len = head.len()
            && let Some((len, tag)) = vlan::strip(head, len)
        {
            head.truncate(len);
            told = self.wants.untag().then_some(tag.tci.0).filter(|_| self.edit == Edit::Keep);
            shift = -4;
        }
        if let Checksum::Partial { start, field } = &mut offload.checksum {
            *start = start.checked_add_signed(shift)?;
            *field = field.checked_add_signed(shift)?;
        }
        if let Some(segment) = &mut offload.segment {
            segment.headers = segment.headers.checked_add_signed(shift)?;
        }
        Some(told)
    }
}
