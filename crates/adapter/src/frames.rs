//! The frames of a batch that one receiver gets.

use crate::batch::{Batch, PACKETS, Packet};
use crate::counters::QUEUES;

/// What changes on the way to one receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edit {
    /// Nothing.
    #[default]
    Keep,
    /// The outer 802.1Q tag goes.
    Untag,
    /// An 802.1Q tag with this control information comes.
    Tag(u16),
}

/// One packet of a batch, for one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Index in the batch.
    pub packet: u16,
    /// What changes on the way.
    pub edit: Edit,
}

/// What one receiver gets of a batch, in order: at most [`PACKETS`] picks.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// Where they come from.
    pub batch: &'a Batch,
    /// Which of them.
    pub picks: &'a [Pick],
}

impl<'a> Frames<'a> {
    /// The picks with their packets, numbered as [`Delivery`] numbers them.
    pub fn iter(&self) -> impl Iterator<Item = (usize, Pick, &'a Packet)> + use<'a> {
        let batch = self.batch;
        let picks: &'a [Pick] = self.picks;
        picks.iter().take(PACKETS).enumerate().filter_map(move |(i, pick)| Some((i, *pick, batch.packet(pick.packet)?)))
    }
}

/// What became of the picks: those not refused were taken, or dropped and counted by the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delivery {
    /// Bit i: pick i found no room yet. It may be offered again, first, when the queue has room.
    pub refused: u64,
    /// For each queue the pick that it refused after it had taken some of its frames, plus one.
    begun: [u8; QUEUES],
}

impl Delivery {
    /// Nothing was taken, nor looked at.
    pub fn all_refused() -> Self {
        Self { refused: u64::MAX, ..Self::default() }
    }

    /// Marks a pick as refused.
    pub fn refuse(&mut self, pick: usize) {
        self.refused |= 1u64.checked_shl(pick as u32).unwrap_or(0);
    }

    /// Marks a pick as refused, of which this queue has taken so many frames.
    pub fn refuse_rest(&mut self, pick: usize, queue: u16, taken: u32) {
        self.refuse(pick);
        if taken > 0
            && let Some(begun) = self.begun.get_mut(usize::from(queue))
        {
            *begun = pick as u8 + 1;
        }
    }

    /// The queue that has taken some frames of a pick that was refused.
    pub fn begun(&self, pick: usize) -> Option<u16> {
        self.begun.iter().position(|begun| usize::from(*begun) == pick + 1).map(|queue| queue as u16)
    }

    /// Whether a pick was refused.
    pub fn is_refused(&self, pick: usize) -> bool {
        self.refused & 1u64.checked_shl(pick as u32).unwrap_or(0) != 0
    }
}
