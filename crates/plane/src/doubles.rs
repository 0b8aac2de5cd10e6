//! Doubles for tests of whatever holds ports, and for a first program that embeds them: shells, and an adapter and an uplink whose traffic a
//! test writes.
//!
//! - [`Silent`] does nothing with a port's requests; [`Memo`] records them.
//! - [`Traffic`] is what one end sends and takes. [`Ringed`] makes a guest's adapter of it, and [`Linked`] an uplink.
//! - [`Wire`] is traffic by two queues, and [`link`] such an uplink. [`crate::wire`] has one that carries offloads too.
//! - [`frame`] makes a frame, [`send`] and [`send_all`] put frames into a batch, and [`bytes`] takes one out.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use arrayvec::ArrayVec;
use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Edit, Event, Face, Frames, News, Outbox, Packet, PortId,
    Progress, Reason, Reset, RingFace, RingPlace, Set, Snapshot, Time, Uplink,
};
use nicety_memory::Map;

use crate::port::Shell;

/// The last wake-ups that a [`Memo`] keeps.
const WAKES_MAX: usize = 64;
/// Room for a frame in a sender's memory, and the memory of a [`Linked`].
const PLACE: u64 = 2048;
const MEMORY: usize = 1 << 20;

/// A shell that does nothing: the test itself makes the turns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Shell for Silent {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
}

/// The requests of a port so far. A test takes what it has seen.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Interrupt messages, each once.
    pub messages: Set,
    /// Number of interrupt messages.
    pub raised: u64,
    /// The INTx line.
    pub line: bool,
    /// Number of rises of the line.
    pub edges: u64,
    /// The next wake-up.
    pub wake: Option<Time>,
    /// The last wake-ups, in order. They lie in place, so that a test may count allocations.
    pub wakes: ArrayVec<Time, WAKES_MAX>,
    /// A turn is due.
    pub scheduled: bool,
    /// Events at the uplink's peer.
    pub news: Vec<News>,
    /// Frames of the guest that the policy refused.
    pub refused: Vec<Reason>,
    /// Causes of failure.
    pub failures: Vec<String>,
}

/// A shell that records. Its clones share the record.
#[derive(Clone, Debug, Default)]
pub struct Memo(Arc<Mutex<Asked>>);

impl Memo {
    /// The recorded requests.
    pub fn asked(&self) -> MutexGuard<'_, Asked> {
        lock(&self.0)
    }
}

impl Shell for Memo {
    fn messages(&self, vectors: Set) {
        let mut asked = self.asked();
        asked.messages.extend(vectors);
        asked.raised += u64::from(vectors.len());
    }

    fn line(&self, level: bool) {
        let mut asked = self.asked();
        asked.edges += u64::from(level && !asked.line);
        asked.line = level;
    }

    fn schedule(&self) {
        self.asked().scheduled = true;
    }

    fn wake_at(&self, time: Time) {
        let mut asked = self.asked();
        asked.wake = Some(asked.wake.map_or(time, |earlier| earlier.min(time)));
        if asked.wakes.is_full() {
            asked.wakes.remove(0);
        }
        asked.wakes.push(time);
    }

    fn news(&self, news: News) {
        self.asked().news.push(news);
    }

    fn refused(&self, reason: Reason) {
        self.asked().refused.push(reason);
    }

    fn failed(&self, cause: &str) {
        self.asked().failures.push(cause.to_owned());
    }
}

/// The traffic of one end of a port. By default it sends nothing and takes everything.
pub trait Traffic: Send {
    /// Number of rings of a [`Ringed`], and of its transmit queues.
    const RINGS: u16 = 1;

    /// Puts frames into the batch, from `cx.memory`. The batch is started.
    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let _ = (queue, budget, batch, cx);
        Progress { more: false, armed: true }
    }

    /// The packets of the batch are done.
    fn complete(&mut self, batch: &Batch) {
        let _ = batch;
    }

    /// Takes or refuses frames.
    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let _ = (frames, cx);
        Delivery::default()
    }

    /// A guest's driver has rung for a ring. There is work in it.
    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        cx.out.work.insert(ring);
    }

    /// Whether a guest's driver is there.
    fn is_driven(&self) -> bool {
        true
    }

    /// As [`Uplink::wake`].
    fn wake(&self) -> Option<Time> {
        None
    }

    /// As [`Uplink::pause`].
    fn pause(&mut self, now: Time) {
        let _ = now;
    }

    /// As [`Uplink::carrier`].
    fn carrier(&self) -> bool {
        true
    }

    /// As [`Uplink::news`].
    fn news(&mut self) -> Option<News> {
        None
    }
}

/// A guest's adapter: rings and no registers.
#[derive(Clone, Debug, Default)]
pub struct Ringed<T>(pub T);

impl<T> Snapshot for Ringed<T> {
    fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        Ok(())
    }
}

impl<T: Traffic> RingFace for Ringed<T> {
    fn features(&self) -> u128 {
        0
    }

    fn take_features(&mut self, _: u128) -> bool {
        true
    }

    fn rings(&self) -> u16 {
        T::RINGS
    }

    fn place(&mut self, _: u16, _: RingPlace) -> bool {
        true
    }

    fn start(&mut self, _: u16, _: u32, _: &mut Context<'_>) -> bool {
        true
    }

    fn stop(&mut self, _: u16, _: &mut Context<'_>) -> u32 {
        0
    }

    fn enable(&mut self, _: u16, _: bool, _: &mut Context<'_>) {}

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        self.0.kick(ring, cx);
    }

    fn config(&self, _: u32, _: &mut [u8]) -> bool {
        false
    }
}

impl<T: Traffic> Adapter for Ringed<T> {
    fn face(&mut self) -> Face<'_> {
        Face::Rings(self)
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.0.fetch(queue, budget, batch, cx)
    }

    fn complete(&mut self, batch: &Batch, _: &mut Context<'_>) {
        self.0.complete(batch);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.0.deliver(frames, cx)
    }

    fn notice(&mut self, _: Event, _: &mut Context<'_>) {}

    fn tick(&mut self, _: &mut Context<'_>) {}

    fn reset(&mut self, _: Reset, _: &mut Context<'_>) {}

    fn transmit_queues(&self) -> u16 {
        T::RINGS
    }

    fn is_driven(&self) -> bool {
        self.0.is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

/// An uplink. A test gives its port turns, or a worker does, for which it needs a [bell](Linked::with_bell).
#[derive(Debug)]
pub struct Linked<T> {
    traffic: T,
    memory: Arc<Map>,
    bell: Option<OwnedFd>,
}

impl<T: Traffic> Linked<T> {
    /// With a memory of 1 MiB for the frames that it sends.
    ///
    /// # Panics
    /// If this process gets no more memory.
    pub fn new(traffic: T) -> Self {
        Self::sending_from(traffic, Arc::new(Map::private(MEMORY).expect("private memory")))
    }

    /// An uplink with frames that lie in this memory.
    pub fn sending_from(traffic: T, memory: Arc<Map>) -> Self {
        Self { traffic, memory, bell: None }
    }

    /// The same with a descriptor: a worker gives the port a turn while it is readable.
    #[must_use]
    pub fn with_bell(self, bell: OwnedFd) -> Self {
        Self { bell: Some(bell), ..self }
    }

    fn with<R>(&mut self, counters: &mut Counters, now: Time, act: impl FnOnce(&mut T, &mut Context<'_>) -> R) -> R {
        let mut out = Outbox::default();
        act(&mut self.traffic, &mut Context::new(&self.memory, &mut out, counters, now))
    }
}

impl<T: Traffic> Uplink for Linked<T> {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        batch.start(&self.memory, port, 0);
        self.with(counters, now, |traffic, cx| traffic.fetch(0, budget, batch, cx))
    }

    fn complete(&mut self, batch: &Batch) {
        self.traffic.complete(batch);
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        self.with(counters, now, |traffic, cx| traffic.deliver(frames, cx))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(AsFd::as_fd)
    }

    fn wake(&self) -> Option<Time> {
        self.traffic.wake()
    }

    fn pause(&mut self, now: Time) {
        self.traffic.pause(now);
    }

    fn carrier(&self) -> bool {
        self.traffic.carrier()
    }

    fn news(&mut self) -> Option<News> {
        self.traffic.news()
    }
}

/// A test's view of a link that is two queues, with a switch for its carrier and a limit to what it takes.
#[derive(Debug, Default)]
pub struct Wire {
    /// Frames from the world.
    pub outgoing: VecDeque<Vec<u8>>,
    /// Frames to it.
    pub incoming: Vec<Vec<u8>>,
    /// The edits of their tags.
    pub edits: Vec<Edit>,
    /// Number of frames that it still takes.
    pub room: usize,
    /// Frames pass in neither direction without it.
    pub carrier: bool,
}

/// A link with a carrier and much room, and the test's view of it.
pub fn link() -> (Linked<Arc<Mutex<Wire>>>, Arc<Mutex<Wire>>) {
    let wire = Arc::new(Mutex::new(Wire { room: 1 << 20, carrier: true, ..Wire::default() }));
    (Linked::new(Arc::clone(&wire)), wire)
}

impl Traffic for Arc<Mutex<Wire>> {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        send_all(&mut lock(self).outgoing, budget, batch, cx)
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let mut wire = lock(self);
        for (index, pick, packet) in frames.iter() {
            if !wire.carrier {
                cx.counters.receive_drop(Reason::LinkDown);
                continue;
            }
            if wire.room == 0 {
                delivery.refuse(index, 0, 0);
                continue;
            }
            wire.room -= 1;
            let frame = bytes(frames, packet);
            cx.counters.received(0, 1, frame.len() as u64);
            wire.incoming.push(frame);
            wire.edits.push(pick.edit);
        }
        delivery
    }

    fn carrier(&self) -> bool {
        lock(self).carrier
    }
}

/// The address of a station: locally administered, or broadcast for 255.
pub fn address(station: u8) -> [u8; 6] {
    if station == u8::MAX { [station; 6] } else { [2, 0, 0, 0, 0, station] }
}

/// A frame of this length, with a type for experiments (IEEE 802) and zeros behind it.
pub fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut frame = [&address(to)[..], &address(from), &[0x88, 0xb5]].concat();
    frame.resize(len, 0);
    frame
}

/// Memory of 64 KiB with these bytes at its start.
///
/// # Panics
/// If there are more, or this process gets no more memory.
pub fn memory(bytes: &[u8]) -> Arc<Map> {
    let map = Map::private(1 << 16).expect("private memory");
    map.write(0, bytes).expect("its room");
    Arc::new(map)
}

/// Adds a frame without offload to the batch, from this address of the sender's memory.
///
/// # Panics
/// If the batch is full.
pub fn send(batch: &mut Batch, at: u64, len: u32) {
    let mut draft = batch.draft(0).expect("room in the batch");
    draft.push(at, len).expect("room in the batch");
    draft.finish_plain(0);
}

/// Adds frames of at most 2048 bytes from the queue until the budget is spent, and counts them.
///
/// # Panics
/// If the sender's memory has no room for a batch.
pub fn send_all(queue: &mut VecDeque<Vec<u8>>, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
    let mut at = 0;
    while budget.allows(batch)
        && let Some(frame) = queue.pop_front()
    {
        cx.memory.write(at, &frame).expect("room for a batch");
        send(batch, at, frame.len() as u32);
        cx.counters.sent(0, 1, frame.len() as u64);
        at += PLACE;
    }
    Progress { more: !queue.is_empty(), armed: true }
}

/// The bytes of a packet.
pub fn bytes(frames: &Frames<'_>, packet: &Packet) -> Vec<u8> {
    let mut bytes = vec![0; packet.len() as usize];
    frames.batch.copy(packet, &mut bytes);
    bytes
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
