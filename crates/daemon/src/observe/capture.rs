//! Captures: frames in the switch, sent to a client of the control socket.
//!
//! ```text
//! worker:          batch, decision, fates → Tap: filter, copy → Chunk ──► bounded queue
//! control thread:  Chunk → pcapng blocks (`file.rs`) → the connection
//! ```
//!
//! A worker never waits here. Frames for which the queue has no room are lost, and counted per port. Without a capture there is
//! no tap and no cost.

mod bpf;
mod file;
mod record;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use nicety_adapter::{
    Batch, Checksum, Edit, Frames, Offload, PACKET_BYTES, Packet, Pick, PortId, Reason, Scratch, Segment, Time,
    Unfolded, Wants,
};
use nicety_frame::{Sum, checksum};
use nicety_plane::{Fate, Watcher};
use nicety_switch::{PORTS, Plan};
use tokio::sync::mpsc;

pub use bpf::{BpfError, INSTRUCTIONS_MAX, Program, Raw};
pub use file::{Encoder, Names};
pub use record::FileCapture;

/// Most bytes that may wait for a reader.
const WAITING_MAX: usize = 8 << 20;
/// Most chunks that may wait for a reader.
const CHUNKS_MAX: usize = 4096;

/// The side of the switch where frames are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Frames from a port, before any change.
    Ingress,
    /// Frames to a port, with the switch's changes.
    Egress,
}

/// Selects the frames of a capture.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Only these ports. `None`: all ports.
    pub ports: Option<Vec<PortId>>,
    /// Only at this stage.
    pub stage: Option<Stage>,
    /// Only dropped frames.
    pub drops: bool,
    /// Only frames that this program accepts.
    pub filter: Option<Program>,
    /// Most bytes kept of each frame.
    pub snap: u32,
}

impl Scope {
    fn has(&self, port: PortId, stage: Stage) -> bool {
        self.stage.is_none_or(|only| only == stage) && self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

/// One frame.
#[derive(Clone, Copy, Debug)]
struct CapturedFrame {
    /// The frame's source port on ingress, its target port on egress.
    port: PortId,
    /// The frame's length, and the length kept in the chunk.
    len: u32,
    bytes: u32,
    /// The number of frames of its segmentation, and their payload size.
    cut: Option<(u32, u16)>,
    what: What,
}

/// The comment on a frame.
#[derive(Clone, Copy, Debug)]
enum What {
    /// Ingress: the frame goes to this port and to so many others.
    To(PortId, usize),
    /// Ingress: the frame was dropped.
    Nowhere(Reason),
    /// Egress: the frame came from this port.
    Out { from: PortId, edit: Edit, fate: Fate },
}

/// Frames of one batch.
#[derive(Debug)]
struct Chunk {
    time: Time,
    frames: Vec<CapturedFrame>,
    bytes: Vec<u8>,
}

/// Counters of one port.
#[derive(Debug, Default)]
struct Tally {
    /// Frames that matched.
    seen: AtomicU64,
    /// Matching frames that were lost for lack of room.
    lost: AtomicU64,
}

/// The watcher of one capture.
#[derive(Debug)]
struct Tap {
    scope: Scope,
    sender: mpsc::Sender<Chunk>,
    /// Bytes in the queue.
    waiting: Arc<AtomicUsize>,
    tallies: Arc<[Tally]>,
}

/// The reading end of a capture.
#[derive(Debug)]
pub(crate) struct Reader {
    chunks: mpsc::Receiver<Chunk>,
    waiting: Arc<AtomicUsize>,
    tallies: Arc<[Tally]>,
}

/// Both ends of a capture.
pub(crate) fn tap(scope: Scope) -> (Arc<dyn Watcher>, Reader) {
    let (sender, chunks) = mpsc::channel(CHUNKS_MAX);
    let tallies: Arc<[Tally]> = (0..PORTS).map(|_| Tally::default()).collect();
    let waiting = Arc::<AtomicUsize>::default();
    let reader = Reader { chunks, waiting: Arc::clone(&waiting), tallies: Arc::clone(&tallies) };
    (Arc::new(Tap { scope, sender, waiting, tallies }), reader)
}

impl Watcher for Tap {
    fn watches_egress(&self, port: PortId) -> bool {
        self.scope.has(port, Stage::Egress)
    }

    fn ingress(&self, batch: &Batch, plan: &Plan, now: Time) {
        if !self.scope.has(batch.origin, Stage::Ingress) {
            return;
        }
        let mut gathering = Gathering::new(self, now);
        for (packet, index) in batch.packets().iter().zip(0..) {
            let dropped = plan.drops().iter().find(|(dropped, _)| *dropped == index);
            let what = match dropped {
                Some((_, reason)) => What::Nowhere(*reason),
                None if self.scope.drops => continue,
                None => {
                    let mut receivers = plan.receivers().iter().filter(|port| plan.has(**port, index));
                    let Some(first) = receivers.next() else { continue };
                    What::To(*first, receivers.count())
                }
            };
            let private = (batch.head(packet), packet.offload);
            gathering.add(batch.origin, batch, packet, private, what);
        }
        gathering.send();
    }

    fn egress(&self, port: PortId, batch: &Batch, offered: &[(Pick, Fate)], now: Time) {
        // Take frames whole, as in the batch. They are segmented later, for receivers that cannot take them whole.
        let wants =
            Wants { frame_max: PACKET_BYTES, tcp4: true, tcp6: true, udp: true, partial: true, ..Wants::default() };
        let (mut gathering, mut scratch) = (Gathering::new(self, now), Scratch::new());
        for &(pick, fate) in offered {
            if self.scope.drops && !matches!(fate, Fate::Dropped(_)) {
                continue;
            }
            let Some(packet) = batch.packet(pick.packet) else { continue };
            let what = What::Out { from: batch.origin, edit: pick.edit, fate };
            let picks = [pick];
            let unfolded = Unfolded::new(&Frames::new(batch, &picks), pick, wants);
            match unfolded.as_ref().ok().and_then(|unfolded| unfolded.piece(0, &mut scratch)) {
                Some(piece) => gathering.add(port, batch, packet, (piece.head(), piece.offload), what),
                None => gathering.add(port, batch, packet, (batch.head(packet), packet.offload), what),
            }
        }
        gathering.send();
    }
}

/// A chunk under construction, for one batch.
struct Gathering<'a> {
    tap: &'a Tap,
    chunk: Chunk,
}

impl<'a> Gathering<'a> {
    fn new(tap: &'a Tap, time: Time) -> Self {
        Self { tap, chunk: Chunk { time, frames: Vec::new(), bytes: Vec::new() } }
    }

    /// Adds a frame with this head and offload and the batch's payload.
    fn add(&mut self, port: PortId, batch: &Batch, packet: &Packet, (head, offload): (&[u8], Offload), what: What) {
        let Scope { filter, snap, .. } = &self.tap.scope;
        let Some(tally) = self.tap.tallies.get(usize::from(port.0)) else { return };
        let (len, begin) = (head.len() as u32 + packet.payload_len(), self.chunk.bytes.len());
        // A filter may read any byte, and a checksum covers all bytes.
        let most = if filter.is_some() || offload.checksum != Checksum::AsIs { len } else { len.min(*snap) };
        write(&mut self.chunk.bytes, head, batch, packet, most as usize);
        let frame = &mut self.chunk.bytes[begin..];
        if let (Checksum::Partial { start, field }, None) = (offload.checksum, offload.segment) {
            let (start, field) = (usize::from(start), usize::from(field));
            let _invalid_offload = checksum::complete(frame, start, field.saturating_sub(start), Sum::ZERO);
        }
        if filter.as_ref().is_some_and(|filter| !filter.wants(frame)) {
            self.chunk.bytes.truncate(begin);
            return;
        }
        tally.seen.fetch_add(1, Ordering::Relaxed);
        let bytes = most.min(*snap);
        self.chunk.bytes.truncate(begin + bytes as usize);
        if self.tap.waiting.load(Ordering::Relaxed) + self.chunk.bytes.len() > WAITING_MAX {
            self.chunk.bytes.truncate(begin);
            tally.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let cut = offload.segment.map(|segment: Segment| (segment.frames(len), segment.mss));
        self.chunk.frames.push(CapturedFrame { port, len, bytes, cut, what });
    }

    /// Sends the chunk, unless it is empty.
    fn send(self) {
        let Self { tap, chunk } = self;
        if chunk.frames.is_empty() {
            return;
        }
        let bytes = chunk.bytes.len();
        tap.waiting.fetch_add(bytes, Ordering::Relaxed);
        if let Err(unsent) = tap.sender.try_send(chunk) {
            tap.waiting.fetch_sub(bytes, Ordering::Relaxed);
            for frame in unsent.into_inner().frames {
                tap.tallies[usize::from(frame.port.0)].lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Appends the first `most` bytes of a frame.
fn write(out: &mut Vec<u8>, head: &[u8], batch: &Batch, packet: &Packet, most: usize) {
    let end = out.len() + most;
    out.extend_from_slice(&head[..head.len().min(most)]);
    for span in batch.spans(packet) {
        let at = out.len();
        out.resize((at + span.len() as usize).min(end), 0);
        batch.source().read_span(*span, &mut out[at..]);
    }
    // The spans should be as long as the frame. If they are shorter, pad with zeros.
    out.resize(end, 0);
}

#[cfg(test)]
#[path = "capture_test.rs"]
mod tests;
