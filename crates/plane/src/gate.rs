//! Output commit: what a guest sends waits until its twin on another host has the state that it was sent from.
//!
//! The VM is copied to its twin again and again. What it sends between two copies is an *epoch*, which the next copy closes
//! ([`Epochs::close`]). An epoch leaves, in order, when the twin has the copy that closed it ([`Epochs::release`]); or all leaves, if there
//! is no twin any more. What was released leaves only until the lease ends: after that the twin may own the VM. The gate looks at the
//! worker's clock each time that it gives packets, because the whole host may have stood still since the release.
//!
//! ```text
//! adapter ──► Gate: descriptors are completed at once, packets are copied ──► the port's batch, and the switch
//! ```
//! With [`BYTES_MAX`] or [`PACKETS_MAX`] of them the gate fetches no more: descriptors wait in the guest's rings, as for any busy adapter.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nicety_adapter::{Adapter, Batch, Budget, Context, Offload, PACKET_BYTES, Progress, Reason, Set, Time};
use nicety_memory::{Map, MapError, Rights};
use serde::{Deserialize, Serialize};

use crate::backlog::SavedOffload;

/// With so many bytes waiting a gate fetches no more. One fetch may go beyond.
const BYTES_MAX: u64 = 1 << 20;
/// With this many packets waiting a gate fetches no more.
const PACKETS_MAX: usize = 4096;
/// Room for the packets of one batch: the bytes of a turn's budget, and one more packet.
const STAGING_BYTES: usize = (64 << 10) + PACKET_BYTES as usize;
/// Buffers of packets that have left, kept for the next ones.
const SPARE_MAX: usize = 256;

/// The queue by which a port asks for packets that may leave now, and for no others.
pub(crate) const RELEASED: u16 = Set::NUMBERS - 1;

/// The rule by which frames of a guest leave its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GateMode {
    /// All leave at once.
    Open,
    /// All frames leave at once, until an epoch is closed. The mode then becomes [`GateMode::Shut`].
    Armed,
    /// Frames of released epochs leave, while the lease lasts.
    Shut,
    /// The guest is the twin of one that runs elsewhere: what it sends is taken and dropped, and it receives nothing.
    Mute,
}

impl GateMode {
    const ALL: [Self; 4] = [Self::Open, Self::Armed, Self::Shut, Self::Mute];
}

/// The epochs of a port. The gates of all its parts share them with the caller that knows which copy the twin has.
pub struct Epochs {
    mode: AtomicU8,
    /// The number of the epoch that goes on, from 1.
    current: AtomicU64,
    /// Epochs up to this number may leave.
    released: AtomicU64,
    /// The lease's end, in nanoseconds of the port's clock.
    until_ns: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// Packets and bytes that the guest has sent since the first epoch began. A twin's are not counted.
    taken: [AtomicU64; 2],
    /// Called, with the port's lock held, when a gate is half full: the guest soon has to wait.
    hurry: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for Epochs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Epochs");
        out.field("mode", &self.mode()).field("current", &self.current()).field("released", &self.released());
        out.field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

/// The number of packets and bytes that the guest has sent since the protection began, and that have left the gates. No count ever goes
/// back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatePosition {
    /// The packets that the guest has sent.
    pub taken: Waiting,
    /// The part of it that has left.
    pub left: Waiting,
}

impl GatePosition {
    /// The packets that wait at this position. `None`: more have left than were sent, which cannot be.
    pub fn waiting(&self) -> Option<Waiting> {
        let packets = self.taken.packets.checked_sub(self.left.packets)?;
        Some(Waiting { packets, bytes: self.taken.bytes.checked_sub(self.left.bytes)? })
    }

    /// Whether this position can belong to a later copy than the position `before`.
    pub fn follows(&self, before: &Self) -> bool {
        let is_so = |now: Waiting, then: Waiting| now.packets >= then.packets && now.bytes >= then.bytes;
        is_so(self.taken, before.taken) && is_so(self.left, before.left)
    }
}

/// Frames that wait in gates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Epochs {
    /// The first epoch begins. `hurry` is called when a gate is half full: it must not wait.
    pub fn new(mode: GateMode, hurry: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            mode: AtomicU8::new(mode as u8),
            current: AtomicU64::new(1),
            released: AtomicU64::new(0),
            until_ns: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            taken: [AtomicU64::new(0), AtomicU64::new(0)],
            hurry: OnceLock::from(Box::new(hurry) as Box<dyn Fn() + Send + Sync>),
        }
    }

    /// Goes on with the epochs of another process. A twin stays mute. For any other guest no frame leaves before the next release, because
    /// the lease may have ended.
    pub fn again(saved: SavedEpochs) -> Self {
        let SavedEpochs { is_mute, current, released, taken } = saved;
        let mode = if is_mute { GateMode::Mute } else { GateMode::Shut };
        let epochs = Self { hurry: OnceLock::new(), ..Self::new(mode, || {}) };
        epochs.current.store(current.max(1), Ordering::Relaxed);
        epochs.released.store(released.min(current.saturating_sub(1)), Ordering::Relaxed);
        [taken.packets, taken.bytes]
            .iter()
            .zip(&epochs.taken)
            .for_each(|(count, own)| own.store(*count, Ordering::Relaxed));
        epochs
    }

    /// For the process that goes on with them.
    pub fn save(&self) -> SavedEpochs {
        let taken = self.position().taken;
        let is_mute = self.mode() == GateMode::Mute;
        SavedEpochs { is_mute, current: self.current(), released: self.released(), taken }
    }

    /// For [`Epochs::again`]: as in [`Epochs::new`]. The first call counts.
    pub fn set_hurry(&self, hurry: impl Fn() + Send + Sync + 'static) {
        let _first = self.hurry.set(Box::new(hurry));
    }

    /// The rule by which frames leave now.
    pub fn mode(&self) -> GateMode {
        GateMode::ALL[usize::from(self.mode.load(Ordering::Acquire)) % GateMode::ALL.len()]
    }

    /// Sets the mode. Call [`Port::release_frames`](crate::Port::release_frames) afterwards, which lets the frames leave that may leave.
    /// [`GateMode::Shut`] takes back each release: frames that have not left wait for the next one.
    pub fn set_mode(&self, mode: GateMode) {
        if mode == GateMode::Shut {
            self.until_ns.store(0, Ordering::Release);
        }
        self.mode.store(mode as u8, Ordering::Release);
    }

    /// The number of the epoch that goes on.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Acquire)
    }

    /// The number of the last epoch that may leave.
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Acquire)
    }

    /// Closes the current epoch, and returns its number. Call it while the guest stands still.
    pub fn close(&self) -> u64 {
        let armed = (GateMode::Armed as u8, GateMode::Shut as u8);
        let _other_mode = self.mode.compare_exchange(armed.0, armed.1, Ordering::AcqRel, Ordering::Relaxed);
        self.current.fetch_add(1, Ordering::AcqRel)
    }

    /// Releases an epoch: the twin has the copy that closed it. `until` is the end of the lease, by the port's clock; a later end also
    /// counts for earlier releases. Call [`Port::release_frames`](crate::Port::release_frames) afterwards, which lets the frames leave. An
    /// epoch that is not closed is not released.
    pub fn release(&self, epoch: u64, until: Time) {
        self.until_ns.fetch_max(until.0, Ordering::AcqRel);
        if epoch < self.current() {
            self.released.fetch_max(epoch, Ordering::AcqRel);
        }
    }

    /// The frames that wait.
    pub fn waiting(&self) -> Waiting {
        let [packets, bytes] = [&self.packets, &self.bytes].map(|count| count.load(Ordering::Relaxed));
        Waiting { packets, bytes }
    }

    /// The position of the gates. It is exact while the guest stands still and no packet leaves.
    pub fn position(&self) -> GatePosition {
        let waiting = self.waiting();
        let [packets, bytes] = self.taken.each_ref().map(|count| count.load(Ordering::Relaxed));
        let taken = Waiting { packets, bytes };
        let left =
            Waiting { packets: packets.saturating_sub(waiting.packets), bytes: bytes.saturating_sub(waiting.bytes) };
        GatePosition { taken, left }
    }

    /// The last epoch whose frames may leave now.
    fn limit(&self, now: Time) -> u64 {
        match self.mode() {
            GateMode::Open | GateMode::Armed => u64::MAX,
            GateMode::Shut if now.0 < self.until_ns.load(Ordering::Acquire) => self.released(),
            GateMode::Shut | GateMode::Mute => 0,
        }
    }
}

/// [`Epochs`], for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEpochs {
    is_mute: bool,
    current: u64,
    released: u64,
    taken: Waiting,
}

/// The gate of a part of a port, for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedGate {
    /// Its port's epochs.
    pub epochs: SavedEpochs,
    held: Vec<SavedPacket>,
}

/// A packet that waits, for another process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPacket {
    epoch: u64,
    queue: u16,
    head: u16,
    offload: SavedOffload,
    #[serde(with = "crate::bytes")]
    bytes: Vec<u8>,
}

/// A packet that waits.
struct Held {
    epoch: u64,
    queue: u16,
    head: u16,
    offload: Offload,
    bytes: Vec<u8>,
}

/// The gate of one adapter. See the module's page.
pub(crate) struct Gate {
    epochs: Arc<Epochs>,
    /// The batch of the adapter.
    fetched: Batch,
    held: VecDeque<Held>,
    bytes: u64,
    spare: Vec<Vec<u8>>,
    /// Queues that may have work, and were not asked because the gate was full.
    unasked: Set,
    /// The packets of the port's batch.
    staging: Arc<Map>,
}

impl Gate {
    pub fn new(epochs: Arc<Epochs>) -> Result<Self, MapError> {
        let staging = Arc::new(Map::private(STAGING_BYTES)?);
        let (fetched, held, spare) = (Batch::new(), VecDeque::new(), Vec::new());
        Ok(Self { epochs, fetched, held, bytes: 0, spare, unasked: Set::default(), staging })
    }

    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// For the process that goes on with it.
    pub fn save(&self) -> SavedGate {
        let packet = |Held { epoch, queue, head, offload, bytes }: &Held| SavedPacket {
            epoch: *epoch,
            queue: *queue,
            head: *head,
            offload: (*offload).into(),
            bytes: bytes.clone(),
        };
        SavedGate { epochs: self.epochs.save(), held: self.held.iter().map(packet).collect() }
    }

    /// Takes the packets that waited in another process, into an empty gate. Returns the number of invalid packets, which are dropped.
    pub fn restore(&mut self, saved: SavedGate) -> usize {
        let all = saved.held.len();
        let is_possible = |packet: &SavedPacket| {
            usize::from(packet.head) <= packet.bytes.len() && packet.bytes.len() <= PACKET_BYTES as usize
        };
        for SavedPacket { epoch, queue, head, offload, bytes } in saved.held.into_iter().filter(is_possible) {
            self.bytes += bytes.len() as u64;
            self.epochs.packets.fetch_add(1, Ordering::Relaxed);
            self.epochs.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.held.push_back(Held { epoch, queue, head, offload: offload.into(), bytes });
        }
        all - self.held.len()
    }

    /// The memory of the packets that it gives.
    pub fn source(&self) -> &Arc<Map> {
        &self.staging
    }

    /// Fetches packets into a batch that has its origin and queue, and was begun in [`source`](Self::source). `now` is the time of the
    /// port's clock, which was just read. The adapter's clock may differ.
    pub fn fetch(
        &mut self,
        adapter: &mut dyn Adapter,
        budget: Budget,
        batch: &mut Batch,
        now: Time,
        cx: &mut Context<'_>,
    ) -> Progress {
        let mut progress = Progress { more: false, armed: true };
        let queue = batch.queue;
        if queue != RELEASED {
            if self.is_full() {
                self.unasked.insert(queue);
            } else {
                progress = self.take(adapter, budget, batch, cx);
            }
        }
        let limit = self.epochs.limit(now);
        self.release(limit, budget, batch);
        if !self.is_full() {
            cx.out.work.extend(std::mem::take(&mut self.unasked));
        }
        if self.held.front().is_some_and(|held| held.epoch <= limit) {
            cx.out.work.insert(RELEASED);
        }
        progress
    }

    /// Fetches from the adapter, and completes what it gives.
    fn take(&mut self, adapter: &mut dyn Adapter, budget: Budget, batch: &Batch, cx: &mut Context<'_>) -> Progress {
        self.fetched.start(cx.memory, batch.origin, batch.queue);
        let progress = adapter.fetch(batch.queue, budget, &mut self.fetched, cx);
        if self.fetched.is_empty() {
            self.fetched.release();
            return progress;
        }
        let (epoch, mute) = (self.epochs.current(), self.is_mute());
        let before = self.bytes;
        for packet in self.fetched.packets() {
            if mute {
                cx.counters.transmit_drop(Reason::Twin);
                continue;
            }
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.resize(packet.len() as usize, 0);
            self.fetched.copy(packet, &mut bytes);
            self.bytes += bytes.len() as u64;
            // First: what waits was taken.
            self.epochs.taken[0].fetch_add(1, Ordering::Relaxed);
            self.epochs.packets.fetch_add(1, Ordering::Relaxed);
            let (queue, head) = (batch.queue, packet.head_len());
            self.held.push_back(Held { epoch, queue, head, offload: packet.offload, bytes });
        }
        self.epochs.taken[1].fetch_add(self.bytes - before, Ordering::Relaxed);
        self.epochs.bytes.fetch_add(self.bytes - before, Ordering::Relaxed);
        adapter.complete(&self.fetched, cx);
        self.fetched.release();
        if before < BYTES_MAX / 2 && self.bytes >= BYTES_MAX / 2 && self.epochs.mode() == GateMode::Shut {
            self.epochs.hurry.get().into_iter().for_each(|hurry| hurry());
        }
        progress
    }

    /// Puts packets of epochs up to this one into the port's batch.
    fn release(&mut self, limit: u64, budget: Budget, batch: &mut Batch) {
        batch.queue = self.held.front().map_or(batch.queue, |held| held.queue);
        let mut at = 0;
        while let Some(Held { head, offload, bytes, .. }) = self.held.front().filter(|held| held.epoch <= limit)
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
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some(Held { mut bytes, .. }) = self.held.pop_front() else { return };
        let len = bytes.len() as u64;
        self.bytes -= len;
        self.epochs.packets.fetch_sub(1, Ordering::Relaxed);
        self.epochs.bytes.fetch_sub(len, Ordering::Relaxed);
        if self.spare.len() < SPARE_MAX {
            bytes.clear();
            self.spare.push(bytes);
        }
    }

    /// Whether the guest is a twin, which receives nothing.
    pub fn is_mute(&self) -> bool {
        self.epochs.mode() == GateMode::Mute
    }

    /// Drops what waits: how many packets.
    pub fn clear(&mut self) -> usize {
        let packets = self.held.len();
        while !self.held.is_empty() {
            self.forget_first();
        }
        self.unasked = Set::default();
        packets
    }

    fn is_full(&self) -> bool {
        self.bytes >= BYTES_MAX || self.held.len() >= PACKETS_MAX
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.clear();
    }
}
