//! Frames that wait for a receiver: a ring of bytes that we own, and what each frame in it still needs.
//!
//! What holds after the switch is copied here at once, so that the sender's descriptors go back and a guest that
//! does not read slows nobody. When the ring is full the frame is dropped, with its reason.

use std::collections::VecDeque;
use std::sync::Arc;

use nicety_adapter::{Batch, Budget, Delivery, Edit, Frames, Offload, Packet, Pick, PortId};
use nicety_memory::{Map, MapError, Rights, Span, copy};

/// Frames that can wait at once, however short they are.
const ENTRIES: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u32,
    len: u32,
    /// Ring bytes that it holds: its own, and those skipped before it to stay in one piece.
    held: u32,
    offload: Offload,
    edit: Edit,
    gone: bool,
}

/// See the module's page.
#[derive(Debug)]
pub struct Backlog {
    map: Arc<Map>,
    size: u32,
    head: u32,
    used: u32,
    entries: VecDeque<Entry>,
    batch: Batch,
    picks: Vec<Pick>,
    offered: Vec<u16>,
}

impl Backlog {
    /// A ring of this many bytes. The memory is touched only as it is used.
    pub fn new(bytes: u32) -> Result<Self, MapError> {
        let map = Arc::new(Map::private(bytes.max(1) as usize)?);
        Ok(Self {
            map,
            size: bytes,
            head: 0,
            used: 0,
            entries: VecDeque::with_capacity(ENTRIES),
            batch: Batch::new(),
            picks: Vec::with_capacity(nicety_adapter::PACKETS),
            offered: Vec::with_capacity(nicety_adapter::PACKETS),
        })
    }

    /// Whether no frame waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Frames that wait.
    pub fn len(&self) -> usize {
        self.entries.iter().filter(|entry| !entry.gone).count()
    }

    /// Bytes that it holds at most.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes in use.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Copies a frame in, behind the others. False if there is no room.
    pub fn push(&mut self, batch: &Batch, packet: &Packet, edit: Edit) -> bool {
        let len = packet.len();
        if self.entries.is_empty() {
            // Nothing is to be skipped.
            (self.head, self.used) = (0, 0);
        }
        let tail = self.head.wrapping_add(self.used) % self.size.max(1);
        let skipped = if len > self.size - tail { self.size - tail } else { 0 };
        let held = skipped.saturating_add(len);
        if len == 0 || held > self.size - self.used || self.entries.len() == ENTRIES {
            return false;
        }
        let at = (tail + skipped) % self.size;
        if !self.store(batch, packet, at) {
            return false;
        }
        self.used += held;
        self.entries.push_back(Entry { at, len, held, offload: packet.offload, edit, gone: false });
        true
    }

    fn store(&self, batch: &Batch, packet: &Packet, at: u32) -> bool {
        let head = batch.head(packet);
        if self.map.write(u64::from(at), head).is_err() {
            return false;
        }
        let mut to = self.span(at + head.len() as u32, packet.payload_len());
        for from in batch.spans(packet) {
            let copied = copy(batch.source(), *from, &self.map, to);
            to = to.piece(copied, to.len());
        }
        to.is_empty()
    }

    fn span(&self, at: u32, len: u32) -> Span {
        let mut out = Span::default();
        let whole = self.map.translate(u64::from(at), len, Rights::BOTH, |span| {
            out = span;
            true
        });
        if whole.is_ok() { out } else { Span::default() }
    }

    /// Offers the first frames again, as the budget allows; those that are not refused are gone. Returns how many went, and
    /// their bytes.
    pub fn drain(&mut self, budget: Budget, mut deliver: impl FnMut(&Frames<'_>) -> Delivery) -> (usize, u64) {
        self.batch.start(&self.map, PortId::default(), 0);
        self.picks.clear();
        self.offered.clear();
        for (index, entry) in self.entries.iter().enumerate().filter(|(_, entry)| !entry.gone) {
            let headers = entry.offload.segment.map_or(0, |segment| usize::from(segment.headers));
            let span = self.span(entry.at, entry.len);
            let Some(mut draft) = self.batch.draft(headers) else { break };
            if draft.push_span(span).is_err() {
                break;
            }
            draft.finish(entry.offload, 0);
            self.picks.push(Pick { packet: self.picks.len() as u16, edit: entry.edit });
            self.offered.push(index as u16);
            if !budget.allows(&self.batch) {
                break;
            }
        }
        if self.picks.is_empty() {
            return (0, 0);
        }
        let delivery = deliver(&Frames { batch: &self.batch, picks: &self.picks });
        let (mut gone, mut bytes) = (0, 0);
        for (pick, &index) in self.offered.iter().enumerate() {
            if !delivery.is_refused(pick)
                && let Some(entry) = self.entries.get_mut(usize::from(index))
            {
                entry.gone = true;
                gone += 1;
                bytes += u64::from(entry.len);
            }
        }
        self.batch.release();
        while let Some(entry) = self.entries.front().filter(|entry| entry.gone) {
            self.head = (self.head + entry.held) % self.size.max(1);
            self.used -= entry.held;
            self.entries.pop_front();
        }
        (gone, bytes)
    }

    /// Forgets all; returns how many frames waited.
    pub fn clear(&mut self) -> usize {
        let waiting = self.len();
        self.entries.clear();
        self.head = 0;
        self.used = 0;
        waiting
    }
}
