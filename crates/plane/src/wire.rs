//! The network beyond the switch, in memory: an uplink with two queues.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, Offload, PortId, Progress, Scratch, Segment, Time, Unfolded, Uplink,
    Wants,
};
use nicety_memory::{Map, Rights, Span};

/// Bytes of the ring of outgoing frames, and of the slot for incoming ones.
const RING: u64 = 1 << 20;
const SLOT: u64 = 128 << 10;

/// The frames on the wire.
#[derive(Debug, Default)]
pub struct Ends {
    /// Frames to the switch, with their offload requests.
    pub outgoing: VecDeque<(Vec<u8>, Offload)>,
    /// Frames from the switch.
    pub incoming: VecDeque<(Vec<u8>, Offload)>,
}

/// The far end of a [`Wire`].
#[derive(Clone, Debug, Default)]
pub struct Far(Arc<Mutex<Ends>>);

impl Far {
    /// Both queues.
    pub fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// The near end: an uplink of the switch.
#[derive(Debug)]
pub struct Wire {
    far: Far,
    map: Arc<Map>,
    at: u64,
    wants: Wants,
    scratch: Scratch,
    whole: bool,
}

impl Wire {
    /// A wire that takes plain frames of up to 9018 bytes, or (`whole`) TSO packets and partial checksums too.
    pub fn new(whole: bool) -> Result<(Self, Far), nicety_memory::MapError> {
        let far = Far::default();
        let map = Arc::new(Map::private((RING + SLOT) as usize)?);
        let frame_max = if whole { 80_000 } else { 9_018 };
        let wants = Wants { frame_max, tcp4: whole, tcp6: whole, udp: whole, partial: whole, ..Wants::default() };
        Ok((Self { far: far.clone(), map, at: 0, wants, scratch: Scratch::new(), whole }, far))
    }

    fn spans(&self, len: u32) -> Vec<Span> {
        let mut spans = Vec::new();
        let translated = self.map.translate(RING, len, Rights::WRITE, |span| {
            spans.push(span);
            true
        });
        if translated.is_err() {
            spans.clear();
        }
        spans
    }
}

impl Uplink for Wire {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, counters: &mut Counters, _: Time) -> Progress {
        batch.start(&self.map, port, 0);
        let mut ends = self.far.ends();
        while budget.allows(batch) {
            let Some((frame, offload)) = ends.outgoing.pop_front() else { break };
            let len = frame.len() as u64;
            if self.at + len > RING {
                self.at = 0;
            }
            let headers = offload.segment.map_or(0, |Segment { headers, .. }| usize::from(headers));
            if self.map.write(self.at, &frame).is_err() {
                continue;
            }
            if let Some(mut draft) = batch.draft(headers)
                && draft.push(self.at, frame.len() as u32).is_ok()
                && draft.finish(offload, 0).is_ok()
            {
                counters.sent(0, 1, len);
            }
            self.at += len;
        }
        Progress { more: !ends.outgoing.is_empty(), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        let mut scratch = std::mem::take(&mut self.scratch);
        for (_, pick, packet) in frames.iter() {
            let unfolded = match Unfolded::new(frames, pick, self.wants) {
                Ok(unfolded) => unfolded,
                Err(reason) => {
                    counters.receive_drop(reason);
                    continue;
                }
            };
            for index in 0..unfolded.count() {
                let Some(mut piece) = unfolded.piece(index, &mut scratch) else { break };
                let spans = self.spans(piece.len());
                piece.write(&self.map, &spans);
                let mut bytes = vec![0; piece.len() as usize];
                if self.map.read(RING, &mut bytes).is_ok() {
                    self.far.ends().incoming.push_back((bytes, piece.offload));
                }
            }
            let pieces = if self.whole { packet.frames() } else { unfolded.count() };
            counters.received(0, u64::from(pieces), u64::from(packet.len()));
        }
        self.scratch = scratch;
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}
