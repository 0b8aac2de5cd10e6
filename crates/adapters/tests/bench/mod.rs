//! The bench that all families' tests stand on: one adapter, its guest's memory and time, and the port on its other side. It knows
//! an adapter by its seams only.
//!
//! A family adds what is its chip's own as further methods of [`Bench`]: registers, descriptors, a driver's steps. That is why this
//! is a module of each test program (`#[path]`), and not a crate: only the crate of a type can add methods to it.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Face, Frames, Offload, Outbox, PciFace, Pick, PortId,
    Progress, Reason, Scratch, Set, Time, Unfolded, Wants,
};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_memory::{Map, Rights};

pub mod packets;

use packets::MAC;

/// Most calls until a queue is empty. More mean that it never is.
const CALLS: usize = 10_000;
/// Bytes of the guest's memory.
pub const MEMORY: usize = 16 << 20;

/// A guest with one adapter. `T` is the state of a family's driver; its fields are reached as the bench's own.
pub struct Bench<T = ()> {
    pub nic: Box<dyn Adapter>,
    /// The guest's memory.
    pub map: Arc<Map>,
    /// The doorbell page, if the guest has mapped it.
    pub page: Option<Arc<Map>>,
    /// Whether its worker polls it all the time.
    pub polls: bool,
    pub out: Outbox,
    pub counters: Counters,
    pub now: Time,
    pub batch: Batch,
    /// Accesses to the chip's registers so far.
    pub accesses: u64,
    /// The interrupt line, as last reported.
    pub level: bool,
    /// The BAR of the registers, and the offset of the first one.
    pub bar: u8,
    pub base: u64,
    pub own: T,
}

impl<T> Deref for Bench<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.own
    }
}

impl<T> DerefMut for Bench<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.own
    }
}

/// A new adapter of this model, with the address [`MAC`].
pub fn adapter(model: &str) -> Box<dyn Adapter> {
    adapter_with(model, &Settings::new(Mac(MAC)))
}

pub fn adapter_with(model: &str, settings: &Settings) -> Box<dyn Adapter> {
    (nicety_adapters::find(model).unwrap().create)(settings).unwrap()
}

impl<T> Bench<T> {
    /// A bench with this adapter, and [`MEMORY`].
    pub fn around(nic: Box<dyn Adapter>, own: T) -> Self {
        Self {
            nic,
            map: Arc::new(Map::private(MEMORY).unwrap()),
            page: None,
            polls: false,
            out: Outbox::default(),
            counters: Counters::default(),
            now: Time(1_000_000),
            batch: Batch::new(),
            accesses: 0,
            level: false,
            bar: 0,
            base: 0,
            own,
        }
    }

    pub fn call<R>(&mut self, act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>) -> R) -> R {
        let Self { nic, map, page, polls, out, counters, now, level, .. } = self;
        let window = page.as_ref().map(|page| page.window(0, 4096, Rights::BOTH).unwrap());
        let result = act(
            &mut **nic,
            &mut Context { memory: map, page: window.as_ref(), polls: *polls, out, counters, now: *now },
        );
        *level = out.line.unwrap_or(*level);
        result
    }

    pub fn pci<R>(&mut self, act: impl FnOnce(&mut dyn PciFace, &mut Context<'_>) -> R) -> R {
        self.call(|nic, cx| match nic.face() {
            Face::Pci(face) => act(face, cx),
            Face::Rings(_) => unreachable!("a PCI function"),
        })
    }
}

/// Configuration space and registers.
impl<T> Bench<T> {
    pub fn config_read<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.pci(|face, _| face.function().config_read(offset, &mut data));
        data
    }

    pub fn config_write(&mut self, offset: u16, data: &[u8]) {
        self.pci(|face, cx| face.config_write(offset, data, cx));
    }

    /// The level of INTx.
    pub fn line(&mut self) -> bool {
        self.pci(|face, _| face.function().intx_level())
    }

    pub fn bar_read(&mut self, bar: u8, offset: u64, data: &mut [u8]) {
        self.accesses += 1;
        self.pci(|face, cx| face.read(bar, offset, data, cx));
    }

    pub fn bar_write(&mut self, bar: u8, offset: u64, data: &[u8]) {
        self.accesses += 1;
        self.pci(|face, cx| face.write(bar, offset, data, cx));
    }

    fn register<const N: usize>(&mut self, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        self.bar_read(self.bar, self.base + offset, &mut data);
        data
    }

    pub fn r8(&mut self, offset: u64) -> u8 {
        u8::from_le_bytes(self.register(offset))
    }

    pub fn r16(&mut self, offset: u64) -> u16 {
        u16::from_le_bytes(self.register(offset))
    }

    pub fn r(&mut self, offset: u64) -> u32 {
        u32::from_le_bytes(self.register(offset))
    }

    pub fn w8(&mut self, offset: u64, value: u8) {
        self.bar_write(self.bar, self.base + offset, &[value]);
    }

    pub fn w16(&mut self, offset: u64, value: u16) {
        self.bar_write(self.bar, self.base + offset, &value.to_le_bytes());
    }

    pub fn w(&mut self, offset: u64, value: u32) {
        self.bar_write(self.bar, self.base + offset, &value.to_le_bytes());
    }
}

/// A bus address. Chips of 32 bits have theirs in an `u32`; a literal alone is an `i32`.
pub trait Address {
    fn bus(self) -> u64;
}

impl Address for u64 {
    fn bus(self) -> u64 {
        self
    }
}

impl Address for u32 {
    fn bus(self) -> u64 {
        self.into()
    }
}

impl Address for i32 {
    fn bus(self) -> u64 {
        self.try_into().unwrap()
    }
}

/// The guest's memory.
impl<T> Bench<T> {
    pub fn put(&self, at: impl Address, bytes: &[u8]) {
        self.map.write(at.bus(), bytes).unwrap();
    }

    pub fn put32(&self, at: impl Address, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    pub fn put64(&self, at: impl Address, value: u64) {
        self.put(at, &value.to_le_bytes());
    }

    pub fn get(&self, at: impl Address, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.map.read(at.bus(), &mut bytes).unwrap();
        bytes
    }

    fn value<const N: usize>(&self, at: impl Address) -> [u8; N] {
        self.get(at, N).try_into().unwrap()
    }

    pub fn get16(&self, at: impl Address) -> u16 {
        u16::from_le_bytes(self.value(at))
    }

    pub fn get32(&self, at: impl Address) -> u32 {
        u32::from_le_bytes(self.value(at))
    }

    pub fn get64(&self, at: impl Address) -> u64 {
        u64::from_le_bytes(self.value(at))
    }
}

/// The port's side: transmit.
impl<T> Bench<T> {
    pub fn fetch_into(&mut self, queue: u16, batch: &mut Batch) -> Progress {
        batch.start(&self.map, PortId(1), queue);
        self.call(|nic, cx| nic.fetch(queue, Budget::TURN, batch, cx))
    }

    pub fn complete_of(&mut self, batch: &Batch) {
        self.call(|nic, cx| nic.complete(batch, cx));
    }

    /// Fetches a queue's packets into the bench's own batch.
    pub fn fetch_of(&mut self, queue: u16) -> Progress {
        let mut batch = std::mem::take(&mut self.batch);
        let progress = self.fetch_into(queue, &mut batch);
        self.batch = batch;
        progress
    }

    pub fn fetch(&mut self) -> Progress {
        self.fetch_of(0)
    }

    pub fn complete(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        self.complete_of(&batch);
        self.batch = batch;
    }

    /// Fetches and completes until the queue is empty. Returns what `read` makes of the batches.
    pub fn fetch_all<R>(&mut self, queue: u16, read: impl Fn(&Batch) -> Vec<R>) -> Vec<R> {
        let mut all = Vec::new();
        for _ in 0..CALLS {
            let progress = self.fetch_of(queue);
            all.extend(read(&self.batch));
            self.complete();
            if !progress.more {
                self.out.work = Set::default();
                return all;
            }
        }
        panic!("a transmit queue that never empties");
    }
}

/// The port's side: receive, and time.
impl<T> Bench<T> {
    /// Delivers all packets of another port's batch.
    pub fn deliver(&mut self, batch: &Batch) -> Delivery {
        let picks: Vec<Pick> = (0..batch.len() as u16).map(Pick::whole).collect();
        self.deliver_some(batch, &picks)
    }

    pub fn deliver_some(&mut self, batch: &Batch, picks: &[Pick]) -> Delivery {
        self.call(|nic, cx| nic.deliver(&Frames::new(batch, picks), cx))
    }

    pub fn bring_one(&mut self, frame: &[u8]) -> Delivery {
        self.deliver(&plain_batch(&[frame]))
    }

    pub fn link(&mut self, up: bool) {
        self.call(|nic, cx| nic.notice(Event::Link(up), cx));
    }

    pub fn tick(&mut self) {
        self.call(|nic, cx| nic.tick(cx));
    }

    /// Lets time pass, with the adapter's requested wake-ups.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now.after_ns(ns);
        let mut ticks = 0;
        while let Some(due) = self.out.wake.take_if(|due| *due <= end) {
            assert!(due > self.now || ticks < 100, "a time that is over is asked for again and again");
            (self.now, ticks) = (self.now.max(due), ticks + 1);
            self.tick();
        }
        self.now = end;
    }

    /// The vectors of the messages sent since the last call.
    pub fn messages(&mut self) -> Vec<u16> {
        let mut set = std::mem::take(&mut self.out.messages);
        std::iter::from_fn(|| set.pop()).collect()
    }

    /// Packets dropped for this reason, in either direction.
    pub fn dropped(&self, reason: Reason) -> u64 {
        self.counters.transmit_drops[reason as usize] + self.counters.receive_drops[reason as usize]
    }

    /// Saves this adapter's state, and gives it to the adapter of another bench, with the guest's memory and its time. What that one
    /// saves must be the same.
    pub fn hand_over(&self, other: &mut Self) {
        let saved = self.nic.save();
        other.nic.restore(&saved).unwrap();
        assert_eq!(other.nic.save(), saved);
        (other.map, other.now) = (Arc::clone(&self.map), self.now);
        other.out = Outbox::default();
    }

    pub fn restored(&mut self) {
        self.call(|nic, cx| nic.notice(Event::Restored, cx));
    }
}

/// Another port's packets.
pub fn batch_of(frames: &[(&[u8], Offload)]) -> Batch {
    const ROOM: usize = 0x1_8000;
    let map = Arc::new(Map::private(frames.len() * ROOM).unwrap());
    let mut batch = Batch::new();
    batch.start(&map, PortId(2), 0);
    for (at, (frame, offload)) in (0..).step_by(ROOM).zip(frames) {
        map.write(at, frame).unwrap();
        let mut draft = batch.draft(0).unwrap();
        draft.push(at, frame.len() as u32).unwrap();
        draft.finish(*offload, 0).unwrap();
    }
    batch
}

/// The same without offload requests.
pub fn plain_batch(frames: &[&[u8]]) -> Batch {
    let frames: Vec<_> = frames.iter().map(|frame| (*frame, Offload::default())).collect();
    batch_of(&frames)
}

/// A batch's packets as their sender left them, with their offload requests.
pub fn packets_of(batch: &Batch) -> Vec<(Vec<u8>, Offload)> {
    let whole = |packet| {
        let mut bytes = batch.head(packet).to_vec();
        for span in batch.spans(packet) {
            let begin = bytes.len();
            bytes.resize(begin + span.len() as usize, 0);
            batch.source().read_span(*span, &mut bytes[begin..]);
        }
        bytes
    };
    batch.packets().iter().map(|packet| (whole(packet), packet.offload)).collect()
}

/// A batch's packets as such a receiver gets them, with the offload requests that are left.
pub fn received_by(batch: &Batch, wants: Wants) -> Vec<(Vec<u8>, Offload)> {
    let target = Map::private(1 << 20).unwrap();
    let mut spans = Vec::new();
    let push = |span| {
        spans.push(span);
        true
    };
    target.translate(0, 1 << 20, Rights::WRITE, push).unwrap();
    let mut scratch = Scratch::new();
    let mut out = Vec::new();
    for pick in (0..batch.len() as u16).map(Pick::whole) {
        let picks = [pick];
        let frames = Frames::new(batch, &picks);
        let unfolded = Unfolded::new(&frames, pick, wants).unwrap();
        for index in 0..unfolded.count() {
            let mut piece = unfolded.piece(index, &mut scratch).unwrap();
            let (mut bytes, offload) = (vec![0; piece.len() as usize], piece.offload);
            piece.write(&target, &spans);
            target.read(0, &mut bytes).unwrap();
            out.push((bytes, offload));
        }
    }
    out
}

/// A batch's packets as frames on a wire: cut, and with their checksums. Frames of any length pass.
pub fn cut(batch: &Batch) -> Vec<Vec<u8>> {
    let wants = Wants { frame_max: 80_000, verify: true, ..Wants::default() };
    received_by(batch, wants).into_iter().map(|(bytes, _)| bytes).collect()
}

/// SplitMix64 (Steele, Lea, Flood 2014).
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.roll() % n
    }
}
