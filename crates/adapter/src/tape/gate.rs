//! Output commit: what an adapter's guest sends waits until a log elsewhere has all calls that precede it.
//!
//! ```text
//! port ──► Gate ──► Recorder ──► adapter        fetch: descriptors are completed at once, packets are kept here
//!           │          └──► Log: each call      ◄── Commit: so many calls are known elsewhere
//!           └── packets whose calls are known ──► the port's batch, and the switch
//! ```
//! Packets of all transmit queues wait in one order, and leave in it. With [`BYTES`] or [`PACKETS`] of them the gate fetches no more:
//! the guest's descriptors wait in its rings, and its driver waits as for any busy adapter.
//!
//! An adapter between two calls has nothing in flight, because each batch is completed in the fetch. So a log can begin at any call, with
//! the adapter's state ([`Log::begin`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nicety_memory::{Map, MapError, Rights, Window};
use nicety_pci::{Function, Rom};

use super::call::Entry;
use super::recorder::Recorder;
use crate::adapter::{Adapter, Event, Reset};
use crate::batch::{Batch, Offload, PACKET_BYTES};
use crate::context::Context;
use crate::counters::Reason;
use crate::face::{Face, Mappable, PciFace, RingFace, RingPlace};
use crate::family::{Ask, Family};
use crate::frames::{Delivery, Frames};
use crate::outbox::Set;
use crate::progress::{Budget, Progress};
use crate::snapshot::{RestoreError, Snapshot};
use crate::stall::Stall;

/// With so many bytes waiting the gate fetches no more. One fetch may go beyond.
const BYTES: u64 = 1 << 20;
/// With so many packets waiting the gate fetches no more.
const PACKETS: usize = 4096;
/// Room for the packets of one batch: the bytes of a turn's budget, and one more packet.
const STAGING_BYTES: usize = (64 << 10) + PACKET_BYTES as usize;

/// Nothing is logged: all may leave.
const OPEN: u64 = u64::MAX;
/// All may leave, and a log is to begin.
const WANTED: u64 = u64::MAX - 1;
/// Nothing may leave.
const CLOSED: u64 = u64::MAX - 2;
/// Nothing may leave before a log has begun.
const CLOSED_WANTED: u64 = u64::MAX - 3;
/// The number of calls is below.
const CALLS_END: u64 = CLOSED_WANTED;

/// Takes an adapter's calls. Called with the port's lock held: it must not block.
pub trait Log: Send + Sync {
    /// What follows makes sense by itself: the adapter's memory and its state come first. So many calls were made before.
    fn begin(&self, calls: u64);
    /// The next call.
    fn call(&self, entry: Entry);
}

/// The state that a gate shares with whoever sends its log.
#[derive(Debug)]
pub struct Commit {
    /// Calls that were made.
    made: AtomicU64,
    /// Calls that are known elsewhere, or [`OPEN`], [`WANTED`], [`CLOSED`], [`CLOSED_WANTED`].
    known: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}

/// Contents of a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The guest waits, too.
    pub is_full: bool,
}

impl Commit {
    /// Of a new gate, which is open, or closed.
    pub fn new(is_closed: bool) -> Self {
        let known = AtomicU64::new(if is_closed { CLOSED } else { OPEN });
        Self { made: AtomicU64::new(0), known, packets: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// A log is to begin at the next call. Until then all may leave, unless the gate is closed.
    pub fn want(&self) {
        let wanted = |known: u64| match known {
            OPEN => Some(WANTED),
            CLOSED => Some(CLOSED_WANTED),
            _ => None,
        };
        let _changed = self.known.try_update(Ordering::Relaxed, Ordering::Relaxed, wanted);
    }

    /// So many calls are known elsewhere. Ignored while no log has begun.
    pub fn know(&self, calls: u64) {
        let grown = |known: u64| (known < CALLS_END && known < calls && calls < CALLS_END).then_some(calls);
        let _known = self.known.try_update(Ordering::Release, Ordering::Relaxed, grown);
    }

    /// Nobody logs: all may leave.
    pub fn open(&self) {
        self.known.store(OPEN, Ordering::Release);
    }

    /// The log has ended. What waits does so until another one has begun. False if the gate is open.
    pub fn close(&self) -> bool {
        let close = |known: u64| (known < WANTED).then_some(CLOSED);
        self.known.try_update(Ordering::Release, Ordering::Relaxed, close).is_ok()
    }

    /// Whether a log has begun: what waits does so until it is acknowledged.
    pub fn is_logging(&self) -> bool {
        self.known.load(Ordering::Relaxed) < CALLS_END
    }

    /// Calls that were made.
    pub fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }

    /// What waits.
    pub fn waiting(&self) -> Waiting {
        let [packets, bytes] = [&self.packets, &self.bytes].map(|count| count.load(Ordering::Relaxed));
        Waiting { packets, bytes, is_full: is_full(packets as usize, bytes) }
    }
}

fn is_full(packets: usize, bytes: u64) -> bool {
    bytes >= BYTES || packets >= PACKETS
}

/// A packet that waits.
struct Held {
    /// Calls that must be known.
    needs: u64,
    queue: u16,
    head: u16,
    offload: Offload,
    bytes: Vec<u8>,
}

/// See the module's page.
pub struct Gate {
    inner: Recorder,
    commit: Arc<Commit>,
    log: Arc<dyn Log>,
    /// The batch of the inner adapter.
    fetched: Batch,
    held: VecDeque<Held>,
    bytes: u64,
    /// Queues that may have work, and were not asked because the gate was full.
    unasked: Set,
    /// The packets of the port's batch.
    staging: Arc<Map>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    /// The queue by which a port asks for packets that may leave now, and for no others.
    pub const RELEASED: u16 = Set::NUMBERS - 1;

    /// Around an adapter that is new.
    ///
    /// # Errors
    /// There is no memory for a batch.
    pub fn new(adapter: Box<dyn Adapter>, commit: Arc<Commit>, log: Arc<dyn Log>) -> Result<Self, MapError> {
        let (counted, sink) = (Arc::clone(&commit), Arc::clone(&log));
        let note = move |entry| {
            counted.made.fetch_add(1, Ordering::Release);
            sink.call(entry);
        };
        let inner = Recorder::new(adapter, Box::new(note));
        let staging = Arc::new(Map::private(STAGING_BYTES)?);
        let (fetched, held) = (Batch::new(), VecDeque::new());
        Ok(Self { inner, commit, log, fetched, held, bytes: 0, unasked: Set::default(), staging })
    }

    /// Before each call: begins a log that is wanted.
    #[inline]
    fn look(&mut self, cx: &mut Context<'_>) {
        let known = self.commit.known.load(Ordering::Relaxed);
        if matches!(known, WANTED | CLOSED_WANTED) {
            self.begin(known, cx);
        }
    }

    #[cold]
    fn begin(&mut self, wanted: u64, cx: &mut Context<'_>) {
        let made = self.commit.made();
        if self.commit.known.compare_exchange(wanted, made, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.log.begin(made);
        self.inner.renew(cx);
        if wanted == CLOSED_WANTED {
            // Frames that wait may leave once the peer has the state that sent them.
            let needs = self.commit.made();
            self.held.iter_mut().for_each(|held| held.needs = needs);
        }
    }

    /// Fetches from the adapter, and completes what it gives.
    fn take(&mut self, queue: u16, budget: Budget, batch: &Batch, cx: &mut Context<'_>) -> Progress {
        self.fetched.start(cx.memory, batch.origin, queue);
        let (progress, packets) = self.inner.fetch_bytes(queue, budget, &mut self.fetched, cx);
        if self.fetched.is_empty() {
            self.fetched.release();
            return progress;
        }
        let needs = self.commit.made();
        for (packet, (bytes, offload)) in self.fetched.packets().iter().zip(packets) {
            self.bytes += bytes.len() as u64;
            self.held.push_back(Held { needs, queue, head: packet.head_len(), offload, bytes });
        }
        self.inner.complete(&self.fetched, cx);
        self.fetched.release();
        progress
    }

    /// The number of calls that the next packet may need.
    fn limit(&self) -> u64 {
        match self.commit.known.load(Ordering::Acquire) {
            CLOSED | CLOSED_WANTED => 0,
            known => known,
        }
    }

    fn may_release(&self) -> bool {
        self.held.front().is_some_and(|held| held.needs <= self.limit())
    }

    /// Puts packets that may leave into the port's batch.
    fn release(&mut self, budget: Budget, batch: &mut Batch) {
        let limit = self.limit();
        let queue = self.held.front().map_or(0, |held| held.queue);
        batch.start(&self.staging, batch.origin, queue);
        let mut at = 0;
        while let Some(Held { head, offload, bytes, .. }) = self.held.front().filter(|held| held.needs <= limit)
            && budget.allows(batch)
        {
            let len = bytes.len() as u32;
            let Some(span) = self.staging.whole(at, len, Rights::BOTH) else { break };
            let Some(mut draft) = batch.draft((*head).into()) else { break };
            if self.staging.write(at, bytes).is_err() || draft.push_span(span).is_err() {
                break;
            }
            draft.finish_copy(*offload);
            at += u64::from(len);
            self.bytes -= u64::from(len);
            self.held.pop_front();
        }
    }

    fn show(&self) {
        self.commit.packets.store(self.held.len() as u64, Ordering::Relaxed);
        self.commit.bytes.store(self.bytes, Ordering::Relaxed);
    }

    fn is_full(&self) -> bool {
        is_full(self.held.len(), self.bytes)
    }
}

impl Adapter for Gate {
    fn face(&mut self) -> Face<'_> {
        match self.inner.face() {
            Face::Pci(_) => Face::Pci(self),
            Face::Rings(_) => Face::Rings(self),
        }
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.look(cx);
        let mut progress = Progress { more: false, armed: true };
        if queue != Self::RELEASED {
            if self.is_full() {
                self.unasked.insert(queue);
            } else {
                progress = self.take(queue, budget, batch, cx);
            }
        }
        self.release(budget, batch);
        if !self.is_full() {
            cx.out.work.extend(std::mem::take(&mut self.unasked));
        }
        if self.may_release() {
            cx.out.work.insert(Self::RELEASED);
        }
        self.show();
        progress
    }

    /// The port's batch is of this gate's memory. Its descriptors were completed when they were fetched.
    fn complete(&mut self, _batch: &Batch, cx: &mut Context<'_>) {
        self.look(cx);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.look(cx);
        self.inner.deliver(frames, cx)
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        self.look(cx);
        self.inner.notice(event, cx);
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.look(cx);
        self.inner.tick(cx);
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.look(cx);
        if kind == Reset::Bus {
            // Its VM is gone, and its address may be another's soon.
            for _ in self.held.drain(..) {
                cx.counters.transmit_drop(Reason::Removed);
            }
            (self.bytes, self.unasked) = (0, Set::default());
            self.show();
        }
        self.inner.reset(kind, cx);
    }

    fn transmit_queues(&self) -> u16 {
        self.inner.transmit_queues()
    }

    fn is_driven(&self) -> bool {
        self.inner.is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        Adapter::features(&self.inner)
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        self.inner.stall(number)
    }

    fn receive_block(&self) -> Option<&'static str> {
        self.inner.receive_block()
    }

    fn ask(&mut self) -> Option<Ask> {
        self.inner.ask()
    }

    fn family_of_one(&self) -> Option<Box<dyn Family>> {
        self.inner.family_of_one()
    }
}

impl Snapshot for Gate {
    fn save(&self) -> Vec<u8> {
        self.inner.save()
    }

    fn save_mapped(&self, page: &Window<'_>) -> Vec<u8> {
        self.inner.save_mapped(page)
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        self.inner.restore(saved)
    }
}

impl PciFace for Gate {
    fn function(&self) -> &Function {
        self.inner.function()
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        self.look(cx);
        self.inner.config_write(offset, data, cx);
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        self.look(cx);
        PciFace::read(&mut self.inner, bar, offset, data, cx);
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        self.look(cx);
        PciFace::write(&mut self.inner, bar, offset, data, cx);
    }

    fn empty_page(&self) -> Option<Mappable> {
        self.inner.empty_page()
    }

    fn rom(&self) -> Option<&Rom> {
        self.inner.rom()
    }
}

impl RingFace for Gate {
    fn features(&self) -> u128 {
        RingFace::features(&self.inner)
    }

    fn take_features(&mut self, features: u128) -> bool {
        self.inner.take_features(features)
    }

    fn rings(&self) -> u16 {
        self.inner.rings()
    }

    fn place(&mut self, ring: u16, place: RingPlace) -> bool {
        self.inner.place(ring, place)
    }

    fn start(&mut self, ring: u16, base: u32, cx: &mut Context<'_>) -> bool {
        self.look(cx);
        self.inner.start(ring, base, cx)
    }

    fn stop(&mut self, ring: u16, cx: &mut Context<'_>) -> u32 {
        self.look(cx);
        self.inner.stop(ring, cx)
    }

    fn keep(&mut self, file: Option<Arc<Map>>) {
        RingFace::keep(&mut self.inner, file);
    }

    fn enable(&mut self, ring: u16, on: bool, cx: &mut Context<'_>) {
        self.look(cx);
        self.inner.enable(ring, on, cx);
    }

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        self.look(cx);
        self.inner.kick(ring, cx);
    }

    fn config(&self, offset: u32, data: &mut [u8]) -> bool {
        self.inner.config(offset, data)
    }
}
