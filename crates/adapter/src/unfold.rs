//! A packet in the form for one receiver: whole or segmented, with its tag inserted or removed, and its checksum computed or
//! verified while the payload is copied. This is the only place where payload moves between guests.
//!
//! A receiver states what it accepts ([`Wants`]), asks for the length of each piece, finds buffers for it, and calls
//! [`Piece::write`]: payload first, then the head, once its checksum is known.

mod piece;
mod whole;

use arrayvec::ArrayVec;
use nicety_frame::checksum::Verdict;
use nicety_frame::ethernet::FRAME_LEN_MIN;
use nicety_frame::{Segmenter, Tag, Tci, vlan};

use crate::batch::{Batch, Checksum, HEAD_MAX, Offload, Packet, Segment, SegmentKind};
use crate::counters::Reason;
use crate::frames::{Edit, Frames, Pick};
use piece::Head;
pub use piece::Piece;
pub use whole::{Short, Whole};

/// The buffer for edited heads: one on the stack per delivery, used for all its pieces.
pub type Scratch = ArrayVec<u8, { HEAD_MAX + 16 }>;

/// Forms of frames that a receiver accepts, as configured by its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// Longest frame in bytes, tags and frame check sequence not counted (1514 for an MTU of 1500).
    pub frame_max: u32,
    /// TCP over IPv4 may arrive unsegmented.
    pub tcp4: bool,
    /// TCP over IPv6 may arrive unsegmented.
    pub tcp6: bool,
    /// UDP may arrive unsegmented.
    pub udp: bool,
    /// A partial checksum may stay partial.
    pub partial: bool,
    /// An outer VLAN tag of this protocol identifier is removed and [reported separately](Piece::tag); 0: no tag is removed.
    pub strip: u16,
    /// Transport checksums that were not verified must be verified.
    pub verify: bool,
}

/// The state of a delivered frame's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    /// Verified or computed here.
    Good,
    /// Verified here, and wrong.
    Bad,
    /// Not checked, or there is none.
    Unknown,
}

impl From<Verdict> for Checked {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Good => Self::Good,
            Verdict::Bad => Self::Bad,
            Verdict::Absent | Verdict::Unknown => Self::Unknown,
        }
    }
}

/// The part of [`Wants`] that is needed until the end, in one byte. A copy of the struct would read a whole word that was just written
/// in parts. That defeats store forwarding: the read would wait for all earlier writes, including those to cold guest memory.
#[derive(Clone, Copy, Debug)]
struct Asked(u8);

impl Asked {
    fn of(wants: &Wants) -> Self {
        Self(u8::from(wants.partial) | u8::from(wants.verify) << 1)
    }

    fn partial(self) -> bool {
        self.0 & 1 != 0
    }

    fn verify(self) -> bool {
        self.0 & 2 != 0
    }
}

/// The change to a frame's VLAN tags: the number of outer tags to remove, the tag to insert, and the tag to report separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Retagging {
    drop: u8,
    put: Option<Tag>,
    reported: Option<Tci>,
}

impl Retagging {
    /// First the switch's edit, then the receiver's stripping.
    fn of(head: &[u8], edit: Edit, strip: u16) -> Self {
        // A tag can be removed only if a type field follows it.
        let (first, second) = (vlan::outer(head).filter(|_| head.len() >= 18), vlan::second(head));
        let second = second.filter(|_| head.len() >= 22);
        let tagged = u8::from(first.is_some());
        let (drop, put, seen) = match edit {
            Edit::Keep => (0, None, first),
            Edit::Untag => (tagged, None, first.and(second)),
            Edit::Tag(tag) => (0, Some(tag), Some(tag)),
            Edit::Retag(tag) => (tagged, Some(tag), Some(tag)),
        };
        match seen.filter(|tag| tag.tpid == strip) {
            Some(tag) if put.is_some() => Self { drop, put: None, reported: Some(tag.tci) },
            Some(tag) => Self { drop: drop + 1, put: None, reported: Some(tag.tci) },
            None => Self { drop, put, reported: None },
        }
    }

    fn changes(self) -> bool {
        self.drop != 0 || self.put.is_some()
    }

    /// Number of bytes by which the head grows.
    fn shift(self) -> i16 {
        4 * (i16::from(self.put.is_some()) - i16::from(self.drop))
    }

    /// Length of a frame that had `len` bytes. A frame that gets shorter is padded, as a sender would: with its tag it may have had
    /// 802.3's minimum length.
    #[inline]
    fn len(self, len: u32) -> u32 {
        let least = if self.shift() < 0 { FRAME_LEN_MIN as u32 } else { 0 };
        len.saturating_add_signed(self.shift().into()).max(least)
    }
}

/// A packet for one receiver.
#[derive(Debug)]
pub struct Unfolded<'a> {
    batch: &'a Batch,
    packet: &'a Packet,
    /// The first frame to deliver.
    from: u16,
    tags: Retagging,
    wants: Asked,
    cut: Option<Segmenter<'a>>,
    kind: Option<SegmentKind>,
}

impl<'a> Unfolded<'a> {
    /// Prepares a pick for a receiver. The error is the drop reason of a packet that the receiver can never take.
    #[inline(always)]
    pub fn new(frames: &Frames<'a>, pick: Pick, wants: Wants) -> Result<Self, Reason> {
        let batch = frames.batch;
        let packet = batch.packet(pick.packet).ok_or(Reason::BadDescriptor)?;
        if packet.len() < 14 {
            return Err(Reason::TooShort);
        }
        let edited = pick.edit != Edit::Keep || wants.strip != 0;
        let tags =
            if edited { Retagging::of(batch.head(packet), pick.edit, wants.strip) } else { Retagging::default() };
        let mut this = Self { batch, packet, from: pick.from, tags, wants: Asked::of(&wants), cut: None, kind: None };
        // Tags do not count towards the limit; they are parsed only if needed.
        let fits = |len: u32| {
            len <= wants.frame_max || len <= wants.frame_max.saturating_add(4 * batch.layout(packet).tag_count() as u32)
        };
        match packet.offload.segment {
            // A delivery that began with segmented frames continues with them.
            Some(segment) if pick.from > 0 || !this.passes(&wants, segment) => {
                let head = batch.head(packet);
                let kind = segment.kind;
                let headers =
                    if kind == SegmentKind::Tunnel { segment.headers } else { batch.layout(packet).headers_len };
                let payload = packet.len().saturating_sub(u32::from(headers));
                let cut = Segmenter::new(head, batch.layout(packet), payload as usize, segment.mss, kind);
                let cut = cut.map_err(|_| Reason::BadOffload)?;
                if !fits(cut.head_len() as u32 + u32::from(segment.mss).min(payload)) {
                    return Err(Reason::TooLong);
                }
                if usize::from(pick.from) >= cut.count() {
                    return Err(Reason::BadDescriptor);
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
            SegmentKind::Tunnel => false,
        }
    }

    /// The number of pieces: 1, or the number of frames.
    #[inline]
    pub fn count(&self) -> u32 {
        self.cut.as_ref().map_or(1, |cut| cut.count() as u32)
    }

    /// The packet.
    #[inline]
    pub fn packet(&self) -> &'a Packet {
        self.packet
    }

    /// The numbers of the pieces to deliver: all, or those that an earlier delivery did not take.
    #[inline]
    pub fn wanted(&self) -> std::ops::Range<u32> {
        u32::from(self.from)..self.count()
    }

    /// The length of piece `index`, as it will be written.
    #[inline]
    pub fn len(&self, index: u32) -> u32 {
        let len = match &self.cut {
            None => self.packet.len(),
            Some(cut) => cut.payload(index as usize).map_or(0, |range| (cut.head_len() + range.len()) as u32),
        };
        self.tags.len(len)
    }

    /// Always false: a pick has at least one piece.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether the receiver gets the packet's own head unchanged.
    #[inline]
    fn as_it_is(&self) -> bool {
        let made = self.makes(&self.packet.offload);
        self.cut.is_none() && !self.tags.changes() && !made
    }

    /// Whether a partial checksum is computed here.
    #[inline]
    fn makes(&self, offload: &Offload) -> bool {
        matches!(offload.checksum, Checksum::Partial { .. }) && !self.wants.partial() && self.kind.is_none()
    }

    /// Piece `index`, edited in `scratch` if anything changes. `None` if there is no such piece.
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
                pad: 0,
                verify,
                made: false,
                offload,
                tag: self.tags.reported,
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
        self.edit_tags(scratch, &mut offload)?;
        let made = self.makes(&offload);
        let verify = self.wants.verify() && offload.checksum == Checksum::AsIs;
        let pad = self.len(index).saturating_sub((scratch.len() + inner.len()) as u32 + len);
        Some(Piece {
            batch: self.batch,
            packet: self.packet,
            head: Head::Edited(scratch),
            inner,
            from,
            len,
            pad,
            verify,
            made,
            offload,
            tag: self.tags.reported,
        })
    }

    /// Removes and inserts tags, and adjusts the offsets behind them.
    #[inline]
    fn edit_tags(&self, head: &mut Scratch, offload: &mut Offload) -> Option<()> {
        if !self.tags.changes() {
            return Some(());
        }
        for _ in 0..self.tags.drop {
            let len = head.len();
            let (len, _) = vlan::strip(head, len)?;
            head.truncate(len);
        }
        if let Some(tag) = self.tags.put {
            let len = head.len();
            head.try_extend_from_slice(&[0; 4]).ok()?;
            vlan::insert(head, len, tag).ok()?;
        }
        let shift = self.tags.shift();
        if let Checksum::Partial { start, field } = &mut offload.checksum {
            *start = start.checked_add_signed(shift)?;
            *field = field.checked_add_signed(shift)?;
        }
        if let Some(segment) = &mut offload.segment {
            segment.headers = segment.headers.checked_add_signed(shift)?;
        }
        Some(())
    }
}
