//! The frames of a batch for one receiver, and their fate.

use arrayvec::ArrayVec;
use nicety_frame::{Tag, vlan};

use crate::batch::{Batch, PACKETS, Packet};
use crate::outbox::Set;

/// The switch's change to a frame for one receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edit {
    /// No change.
    #[default]
    Keep,
    /// Removes the outer VLAN tag, if there is one.
    Untag,
    /// Inserts this VLAN tag before any other.
    Tag(Tag),
    /// Replaces the outer tag with this VLAN tag, or inserts it if there is none: for a priority-tagged frame (VLAN id 0) into an
    /// access VLAN.
    Retag(Tag),
}

/// One packet of a batch, for one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Index in the batch.
    pub packet: u16,
    /// The first frame to deliver, of the frames that the packet is [segmented](crate::Offload::segment) into; earlier ones were
    /// delivered before. 0 for a packet of one frame.
    pub from: u16,
    /// The edit.
    pub edit: Edit,
}

impl Pick {
    /// A whole packet, unchanged.
    #[inline]
    pub fn whole(packet: u16) -> Self {
        Self { packet, from: 0, edit: Edit::Keep }
    }
}

/// The frames of a batch for one receiver, in order: at most [`PACKETS`] picks.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// The batch.
    pub batch: &'a Batch,
    /// The picks.
    pub picks: &'a [Pick],
    /// Receive queues with older frames waiting: they refuse these frames, to keep the order.
    pub held: Set,
}

impl<'a> Frames<'a> {
    /// Frames for a receiver without a backlog.
    pub fn new(batch: &'a Batch, picks: &'a [Pick]) -> Self {
        Self { batch, picks, held: Set::default() }
    }

    /// The picks with their packets, numbered as in [`Delivery`].
    pub fn iter(&self) -> impl Iterator<Item = (usize, Pick, &'a Packet)> + use<'a> {
        let batch = self.batch;
        let picks: &'a [Pick] = self.picks;
        picks.iter().take(PACKETS).enumerate().filter_map(move |(i, pick)| Some((i, *pick, batch.packet(pick.packet)?)))
    }

    /// The outer VLAN tag of a pick after the edit: a receiver's VLAN filter compares this.
    #[inline]
    pub fn outer_tag(&self, pick: Pick) -> Option<Tag> {
        let head = || self.batch.packet(pick.packet).map_or(&[][..], |packet| self.batch.head(packet));
        match pick.edit {
            Edit::Keep => vlan::outer(head()),
            Edit::Untag => vlan::outer(head()).and(vlan::second(head())),
            Edit::Tag(tag) | Edit::Retag(tag) => Some(tag),
        }
    }
}

/// A pick that found no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The number of the pick.
    pub pick: u8,
    /// The receive queue that had no room.
    pub queue: u8,
    /// The first frame that was not taken: [`Pick::from`] of the next offer.
    pub from: u16,
}

/// The fate of the picks: all that are not refused were taken, or dropped and counted by the receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    refused: u64,
    refusals: ArrayVec<Refusal, PACKETS>,
}

impl Delivery {
    /// All picks refused: nothing was taken.
    pub fn all_refused(frames: &Frames<'_>) -> Self {
        let mut this = Self::default();
        frames.iter().for_each(|(pick, offered, _)| this.refuse(pick, 0, u32::from(offered.from)));
        this
    }

    /// Marks a pick as refused. The queue has taken the pick's frames before `from`; the rest is offered again when the queue
    /// [has room](crate::Outbox::room).
    pub fn refuse(&mut self, pick: usize, queue: u16, from: u32) {
        const { assert!(PACKETS <= 64 && crate::FRAMES_PER_PACKET <= u16::MAX as u32) }
        let bit = 1u64.checked_shl(pick as u32).unwrap_or(0);
        if self.refused & bit == 0 && bit != 0 {
            self.refused |= bit;
            // Full only if a pick were refused twice.
            let _pushed = self.refusals.try_push(Refusal { pick: pick as u8, queue: queue as u8, from: from as u16 });
        }
    }

    /// The refused picks, a bit each.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The refused picks, in order of refusal.
    pub fn refusals(&self) -> &[Refusal] {
        &self.refusals
    }

    /// The refused picks for the next offer.
    pub fn again<'a>(&'a self, picks: &'a [Pick]) -> impl Iterator<Item = Pick> + 'a {
        self.refusals
            .iter()
            .filter_map(|refusal| picks.get(usize::from(refusal.pick)).map(|pick| Pick { from: refusal.from, ..*pick }))
    }

    /// Whether a pick was refused.
    pub fn is_refused(&self, pick: usize) -> bool {
        self.refused & 1u64.checked_shl(pick as u32).unwrap_or(0) != 0
    }
}
