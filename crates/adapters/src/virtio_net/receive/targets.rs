//! Receive buffers, read ahead: the chains of a receive ring that are one buffer in one memory region each, as most are.
//!
//! A run of frames that need no change is written to them, one after another, and is completed at once. Any other chain is walked in its
//! turn ([`Areas::chain`]).

use nicety_adapter::{Checksum, Frames, PACKETS, Pick, QueueCounters, Wants, Whole};
use nicety_memory::{Map, Target, Touch, Translator};

use super::checksum_of;
use crate::virtio_net::chain::{INDIRECT, NEXT, WRITE};
use crate::virtio_net::registers::{Header, header};
use crate::virtio_net::returns::Returns;
use crate::virtio_net::ring::Ring;
use crate::virtio_net::ring::areas::Areas;

/// Prefetch distance, in buffers.
const AHEAD: usize = 8;
/// Bytes of a buffer to prefetch: the header and a short frame.
const PREFETCH_BYTES: u32 = (header::LEN + 64) as u32;

/// The longest frame that is written in the shortest way.
const SHORT_MAX: u32 = 64;
/// The header of a frame in one buffer, without checksum work.
const PLAIN: u128 = 1 << 80;

/// Buffers from a position in the driver's ring on.
pub(super) struct Targets<'m, const PACKED: bool> {
    first: u16,
    len: u16,
    /// The token of each chain; once a frame is written, its used entry.
    chains: [u64; PACKETS],
    /// Empty if the chain must be walked.
    buffers: [Target<'m>; PACKETS],
    /// Counts of the frames that this call has written, in runs and otherwise.
    pub got: QueueCounters,
}

/// The frames of a call that are for one queue.
pub(super) struct Run<'a> {
    pub frames: &'a Frames<'a>,
    /// The queue of each frame, if there are several.
    pub queues: Option<&'a [u16; PACKETS]>,
    pub queue: u16,
    pub wants: &'a Wants,
    pub features: u128,
}

impl<'m, const PACKED: bool> Targets<'m, PACKED> {
    /// No buffers.
    pub fn new() -> Self {
        Self {
            first: 0,
            len: 0,
            chains: [0; PACKETS],
            buffers: [Target::default(); PACKETS],
            got: QueueCounters::default(),
        }
    }

    /// Reads the next chains of a ring, at most `most`.
    // Out of line, as `fill`: each of the two loops has the registers to itself.
    #[inline(never)]
    pub fn read(&mut self, memory: &'m Map, ring: &Ring, areas: &Areas<'_, PACKED>, most: u16) {
        // The driver has usually filled the ring long ago. All these lines are at its processor or in memory, as its index is, so that they
        // are asked for together.
        areas.prefetch_chains(ring.next, most);
        areas.prefetch_used(ring.used, most);
        let Ok(seen) = areas.seen(ring) else { return };
        let mut translator = Translator::new(memory);
        self.first = ring.next;
        let mut descriptors = [0; PACKETS];
        self.len = areas.read_burst(self.first, seen, most, &mut self.chains, &mut descriptors);
        let descriptors = descriptors.iter().take(self.len.into());
        for (buffer, descriptor) in self.buffers.iter_mut().zip(descriptors) {
            let (address, len) = (*descriptor as u64, (*descriptor >> 64) as u32);
            let flags = Areas::<PACKED>::flags(*descriptor);
            *buffer = if flags & (NEXT | INDIRECT | WRITE) == WRITE
                && let Some(target) = translator.target(address, len)
            {
                target
            } else {
                prefetch(memory, address, len, flags);
                Target::default()
            };
        }
        self.buffers
            .iter()
            .take(AHEAD.min(self.len.into()))
            .for_each(|buffer| buffer.prefetch(header::LEN as u32, PREFETCH_BYTES));
    }

    /// Writes frames from an index on, and completes their chains. It stops at a frame that needs a change, or whose chain is not one
    /// buffer that holds it. Returns the index of the first frame of this queue that it has not written.
    #[inline(never)]
    pub fn fill(
        &mut self,
        ring: &mut Ring,
        areas: &Areas<'_, PACKED>,
        run: &Run<'_>,
        from: usize,
        returns: &mut Returns,
    ) -> usize {
        let first = usize::from(areas.distance(self.first, ring.next));
        let end = usize::from(self.len).min(first.saturating_add(areas.steps_left() as usize)).min(PACKETS);
        let takes_short = run.wants.strip == 0 && !run.wants.verify && run.wants.frame_max >= SHORT_MAX;
        // A copy: what a reference leads to would be loaded again after each access to guest memory.
        let frames = Frames { ..*run.frames };
        let (mut index, mut at) = (from, first);
        while at < end
            && let Some(pick) = frames.picks.get(index)
        {
            if run.queues.is_some_and(|queues| queues[index % PACKETS] != run.queue) {
                index = index.wrapping_add(1);
                continue;
            }
            let buffer = &self.buffers[at];
            let len = if takes_short
                && let Some(frame) = Whole::short(&frames, *pick)
                && buffer.write_short::<{ header::LEN }>(PLAIN, frame)
            {
                frame.len() as u32
            } else {
                let Some(len) = run.fill_one(*pick, buffer) else { break };
                len
            };
            self.chains[at] |= u64::from(len.wrapping_add(header::LEN as u32)) << 32;
            if let Some(buffer) = self.buffers.get(at.wrapping_add(AHEAD)) {
                buffer.prefetch(header::LEN as u32, PREFETCH_BYTES);
            }
            at = at.wrapping_add(1);
            index = index.wrapping_add(1);
        }
        let Some(chains) = self.chains.get(first..at).filter(|chains| !chains.is_empty()) else { return index };
        let count = chains.len() as u64;
        let bytes = chains.iter().fold(0_u64, |sum, chain| sum.wrapping_add(chain >> 32));
        let bytes = bytes.wrapping_sub(count.wrapping_mul(header::LEN as u64));
        self.got.add_all(QueueCounters { packets: count, frames: count, bytes });
        areas.note_ones(count as u32);
        ring.next = areas.after(ring.next, count as u16);
        areas.disarm(ring);
        returns.write(ring, areas);
        areas.give_back_run(ring, chains);
        index
    }
}

impl Run<'_> {
    /// Writes a frame of any kind that needs no change. Returns its length; `None` if it does, or if the buffer does not hold it.
    #[inline(never)]
    fn fill_one(&self, pick: Pick, buffer: &Target<'_>) -> Option<u32> {
        let whole = Whole::of(self.frames, pick, self.wants)?;
        let header = match whole.checksum() {
            Checksum::AsIs => PLAIN,
            checksum => Header { num_buffers: 1, ..checksum_of(checksum, whole.checked(), self.features) }.number(),
        };
        whole.write::<{ header::LEN }>(header, buffer).then(|| whole.len())
    }
}

/// Prefetches the start of a chain that must be walked.
#[cold]
#[inline(never)]
fn prefetch(memory: &Map, address: u64, len: u32, flags: u16) {
    let touch = if flags & INDIRECT == 0 { Touch::Write } else { Touch::Read };
    memory.prefetch(address, len.min(PREFETCH_BYTES), touch);
}
