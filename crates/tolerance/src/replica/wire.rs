//! The network side of a replica, in memory: an uplink with two queues of plain frames.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, Offload, PortId, Progress, Scratch, Time, Unfolded, Uplink, Wants,
};
use nicety_memory::{Map, MapError, Rights, Span};

/// Bytes of the ring of frames to the guest, and of the slot in which a frame from it is put together.
const RING: u64 = 256 << 10;
const SLOT: u64 = 16 << 10;
/// Bytes of the longest frame: jumbo frames of 9000 bytes.
pub const FRAME_MAX: u32 = 9014;

/// The frames on the wire.
#[derive(Debug, Default)]
pub struct Ends {
    /// Frames to the switch.
    pub to_switch: VecDeque<Vec<u8>>,
    /// Frames from the switch.
    pub from_switch: VecDeque<Vec<u8>>,
}

/// The far end of a [`Wire`].
#[derive(Clone, Debug, Default)]
pub struct Far(Arc<Mutex<Ends>>);

impl Far {
    /// Both queues.
    pub fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The near end.
#[derive(Debug)]
pub struct Wire {
    far: Far,
    map: Arc<Map>,
    at: u64,
    scratch: Scratch,
}

impl Wire {
    /// A wire and its far end.
    pub fn new() -> Result<(Self, Far), MapError> {
        let far = Far::default();
        let map = Arc::new(Map::private((RING + SLOT) as usize)?);
        Ok((Self { far: far.clone(), map, at: 0, scratch: Scratch::new() }, far))
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
            let Some(frame) = ends.to_switch.pop_front() else { break };
            let len = frame.len() as u64;
            if self.at + len > RING {
                self.at = 0;
            }
            if self.map.write(self.at, &frame).is_ok()
                && let Some(mut draft) = batch.draft(0)
                && draft.push(self.at, frame.len() as u32).is_ok()
                && draft.finish(Offload::default(), 0).is_ok()
            {
                counters.sent(0, 1, len);
            }
            self.at += len;
        }
        Progress { more: !ends.to_switch.is_empty(), armed: true }
    }

    fn complete(&mut self, _: &Batch) {}

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        let mut scratch = std::mem::take(&mut self.scratch);
        let wants = Wants { frame_max: FRAME_MAX, ..Wants::default() };
        for (_, pick, packet) in frames.iter() {
            let unfolded = match Unfolded::new(frames, pick, wants) {
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
                    self.far.ends().from_switch.push_back(bytes);
                }
            }
            counters.received(0, u64::from(unfolded.count()), u64::from(packet.len()));
        }
        self.scratch = scratch;
        Delivery::default()
    }

    fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }
}
