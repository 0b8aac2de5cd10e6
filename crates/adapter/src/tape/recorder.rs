//! An adapter around another one, which tapes all that it hears.

use std::sync::Arc;

use nicety_memory::{Map, Window};
use nicety_pci::{Function, Rom};

use super::call::{Call, Entry, Offer};
use super::ear::{Ear, Heard, pci, rings};
use super::sum::Sum;
use crate::adapter::{Adapter, Event, Reset};
use crate::batch::Batch;
use crate::context::Context;
use crate::face::{Face, Mappable, PciFace, RingFace, RingPlace};
use crate::family::{Ask, Family};
use crate::frames::{Delivery, Frames};
use crate::progress::{Budget, Progress};
use crate::snapshot::{RestoreError, Snapshot};
use crate::stall::Stall;
use crate::time::Time;

/// A digest of the state goes along once in so many calls.
const STATE_EVERY: u32 = 256;
/// Most bytes of a virtio device's configuration space.
const CONFIG_MAX: usize = 256;

/// Takes the entries of a tape. Called with the port's lock held: it must not block.
pub type Sink = Box<dyn FnMut(Entry) + Send>;

/// See the module's page. Questions to the adapter are answered from copies of its answers, made after each call.
pub struct Recorder {
    ear: Ear,
    sink: Sink,
    face: Copied,
    /// Calls until the state goes along.
    until_state: u32,
    /// The time of the last call.
    now: Time,
}

/// Answers of the adapter's face that never change, copied once.
enum Copied {
    Pci { function: Box<Function>, rom: Option<Rom>, empty_page: Option<Mappable> },
    Rings { features: u128, rings: u16, config: Vec<u8> },
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Recorder")
    }
}

impl Copied {
    fn of(adapter: &mut dyn Adapter) -> Self {
        match adapter.face() {
            Face::Pci(pci) => {
                let empty_page = pci.empty_page();
                Self::Pci { function: Box::new(pci.function().clone()), rom: pci.rom().cloned(), empty_page }
            }
            Face::Rings(rings) => {
                let mut config = vec![0; CONFIG_MAX];
                while !config.is_empty() && !rings.config(0, &mut config) {
                    config.pop();
                }
                Self::Rings { features: rings.features(), rings: rings.rings(), config }
            }
        }
    }

    fn refresh(&mut self, adapter: &mut dyn Adapter) {
        match (self, adapter.face()) {
            (Self::Pci { function, .. }, Face::Pci(pci)) => function.as_mut().clone_from(pci.function()),
            (Self::Rings { features, config, .. }, Face::Rings(rings)) => {
                *features = rings.features();
                rings.config(0, config);
            }
            // An adapter has one face.
            _ => {}
        }
    }
}

impl Recorder {
    /// Records this adapter, which is new. The tape begins with its state, so that an adapter with other settings plays it, too.
    pub fn new(mut adapter: Box<dyn Adapter>, sink: Sink) -> Self {
        let (face, state) = (Copied::of(adapter.as_mut()), adapter.save());
        let mut this = Self { ear: Ear::new(adapter), sink, face, until_state: STATE_EVERY, now: Time::ZERO };
        // It takes its own state.
        let _restored = this.restore(&state);
        this
    }

    fn note(&mut self, at: Time, call: Call, Heard { read, sum, .. }: Heard) {
        self.face.refresh(self.ear.adapter.as_mut());
        self.now = at;
        self.until_state -= 1;
        let state = (self.until_state == 0).then(|| Sum::state(self.ear.adapter.as_ref()));
        if state.is_some() {
            self.until_state = STATE_EVERY;
        }
        (self.sink)(Entry { at, call, read, sum, state });
    }

    /// Makes a call, and tapes it.
    fn call<R>(
        &mut self,
        call: Call,
        cx: &mut Context<'_>,
        act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>, &mut Sum) -> R,
    ) -> R {
        self.look_at_memory(cx);
        let (result, heard) = self.ear.call(cx, None, act);
        self.note(cx.now, call, heard);
        result
    }

    fn look_at_memory(&mut self, cx: &Context<'_>) {
        if self.ear.takes_memory(cx.memory) {
            let nothing = Heard { read: Vec::new(), sum: 0, is_whole: true };
            self.note(cx.now, Call::Memory(cx.memory.places()), nothing);
        }
    }

    /// A call without a context.
    fn call_alone<R>(&mut self, call: Call, act: impl FnOnce(&mut dyn Adapter, &mut Sum) -> R) -> R {
        let mut sum = Sum::default();
        let result = act(self.ear.adapter.as_mut(), &mut sum);
        self.note(self.now, call, Heard { read: Vec::new(), sum: sum.value(), is_whole: true });
        result
    }
}

impl Adapter for Recorder {
    fn face(&mut self) -> Face<'_> {
        match self.face {
            Copied::Pci { .. } => Face::Pci(self),
            Copied::Rings { .. } => Face::Rings(self),
        }
    }

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let origin = batch.origin;
        self.call(Call::Fetch { queue, budget }, cx, |adapter, cx, sum| {
            batch.start(cx.memory, origin, queue);
            let progress = adapter.fetch(queue, budget, batch, cx);
            sum.number(u64::from(progress.more) << 1 | u64::from(progress.armed));
            sum.batch(batch);
            progress
        })
    }

    fn complete(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        self.call(Call::Complete, cx, |adapter, cx, _| adapter.complete(batch, cx));
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.look_at_memory(cx);
        let offer = Offer::of(frames);
        let (delivery, heard) = self.ear.offer(&offer, cx, None);
        self.note(cx.now, Call::Deliver(offer), heard);
        delivery
    }

    fn notice(&mut self, event: Event, cx: &mut Context<'_>) {
        self.call(Call::Notice(event), cx, |adapter, cx, _| adapter.notice(event, cx));
    }

    fn tick(&mut self, cx: &mut Context<'_>) {
        self.call(Call::Tick, cx, |adapter, cx, _| adapter.tick(cx));
    }

    fn reset(&mut self, kind: Reset, cx: &mut Context<'_>) {
        self.call(Call::Reset(kind), cx, |adapter, cx, _| adapter.reset(kind, cx));
    }

    fn transmit_queues(&self) -> u16 {
        self.ear.adapter.transmit_queues()
    }

    fn is_driven(&self) -> bool {
        self.ear.adapter.is_driven()
    }

    fn features(&self) -> Vec<&'static str> {
        self.ear.adapter.features()
    }

    fn stall(&self, number: u16) -> Option<Stall> {
        self.ear.adapter.stall(number)
    }

    fn receive_block(&self) -> Option<&'static str> {
        self.ear.adapter.receive_block()
    }

    fn ask(&mut self) -> Option<Ask> {
        self.call_alone(Call::Ask, |adapter, sum| {
            let ask = adapter.ask();
            sum.bytes(format!("{ask:?}").as_bytes());
            ask
        })
    }

    fn family_of_one(&self) -> Option<Box<dyn Family>> {
        self.ear.adapter.family_of_one()
    }
}

impl Snapshot for Recorder {
    fn save(&self) -> Vec<u8> {
        self.ear.adapter.save()
    }

    fn save_mapped(&self, _page: &Window<'_>) -> Vec<u8> {
        self.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), RestoreError> {
        self.call_alone(Call::Restore(saved.to_vec()), |adapter, sum| {
            let restored = adapter.restore(saved);
            sum.number(restored.is_ok().into());
            restored
        })
    }
}

impl PciFace for Recorder {
    fn function(&self) -> &Function {
        match &self.face {
            Copied::Pci { function, .. } => function,
            Copied::Rings { .. } => unreachable!("rings have no PCI function"),
        }
    }

    fn config_write(&mut self, offset: u16, data: &[u8], cx: &mut Context<'_>) {
        let call = Call::ConfigWrite { offset, data: data.to_vec() };
        self.call(call, cx, |adapter, cx, _| pci(adapter, |pci| pci.config_write(offset, data, cx)));
    }

    fn read(&mut self, bar: u8, offset: u64, data: &mut [u8], cx: &mut Context<'_>) {
        let call = Call::Read { bar, offset, len: data.len() as u32 };
        self.call(call, cx, |adapter, cx, sum| {
            pci(adapter, |pci| pci.read(bar, offset, data, cx));
            sum.bytes(data);
        });
    }

    fn write(&mut self, bar: u8, offset: u64, data: &[u8], cx: &mut Context<'_>) {
        let call = Call::Write { bar, offset, data: data.to_vec() };
        self.call(call, cx, |adapter, cx, _| pci(adapter, |pci| pci.write(bar, offset, data, cx)));
    }

    fn empty_page(&self) -> Option<Mappable> {
        match &self.face {
            Copied::Pci { empty_page, .. } => *empty_page,
            Copied::Rings { .. } => None,
        }
    }

    fn rom(&self) -> Option<&Rom> {
        match &self.face {
            Copied::Pci { rom, .. } => rom.as_ref(),
            Copied::Rings { .. } => None,
        }
    }
}

impl RingFace for Recorder {
    fn features(&self) -> u128 {
        match self.face {
            Copied::Rings { features, .. } => features,
            Copied::Pci { .. } => 0,
        }
    }

    fn take_features(&mut self, features: u128) -> bool {
        self.call_alone(Call::Features(features), |adapter, sum| {
            let taken = rings(adapter, |rings| rings.take_features(features)) == Some(true);
            sum.number(taken.into());
            taken
        })
    }

    fn rings(&self) -> u16 {
        match self.face {
            Copied::Rings { rings, .. } => rings,
            Copied::Pci { .. } => 0,
        }
    }

    fn place(&mut self, ring: u16, place: RingPlace) -> bool {
        self.call_alone(Call::Place { ring, place }, |adapter, sum| {
            let placed = rings(adapter, |rings| rings.place(ring, place)) == Some(true);
            sum.number(placed.into());
            placed
        })
    }

    fn start(&mut self, ring: u16, base: u32, cx: &mut Context<'_>) -> bool {
        self.call(Call::Start { ring, base }, cx, |adapter, cx, sum| {
            let started = rings(adapter, |rings| rings.start(ring, base, cx)) == Some(true);
            sum.number(started.into());
            started
        })
    }

    fn stop(&mut self, ring: u16, cx: &mut Context<'_>) -> u32 {
        self.call(Call::Stop(ring), cx, |adapter, cx, sum| {
            let base = rings(adapter, |rings| rings.stop(ring, cx)).unwrap_or_default();
            sum.number(base.into());
            base
        })
    }

    fn keep(&mut self, file: Option<Arc<Map>>) {
        let call = Call::Keep(file.as_ref().map(|file| file.mapped_bytes()));
        let file = file.map(|file| Arc::new(file.taped(Arc::clone(self.ear.tape()))));
        self.call_alone(call, |adapter, _| rings(adapter, |rings| rings.keep(file)));
    }

    fn enable(&mut self, ring: u16, on: bool, cx: &mut Context<'_>) {
        self.call(Call::Enable { ring, on }, cx, |adapter, cx, _| rings(adapter, |rings| rings.enable(ring, on, cx)));
    }

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        self.call(Call::Kick(ring), cx, |adapter, cx, _| rings(adapter, |rings| rings.kick(ring, cx)));
    }

    fn config(&self, offset: u32, data: &mut [u8]) -> bool {
        let Copied::Rings { config, .. } = &self.face else { return false };
        let from = offset as usize;
        let there = from.checked_add(data.len()).and_then(|end| config.get(from..end));
        there.is_some_and(|there| {
            data.copy_from_slice(there);
            true
        })
    }
}
