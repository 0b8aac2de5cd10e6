//! Plays a tape: makes the same calls of another adapter of the same kind.

use std::fmt;
use std::sync::Arc;

use nicety_memory::{Map, MapError, Mapping, Place};

use super::call::{Call, Entry};
use super::ear::{Ear, Heard, pci, rings};
use super::sum::Sum;
use crate::adapter::Adapter;
use crate::batch::{Batch, Offload, PortId};
use crate::context::Context;
use crate::counters::Counters;
use crate::outbox::Outbox;
use crate::progress::Progress;

/// See the module's page.
pub struct Player {
    ear: Ear,
    memory: Arc<Map>,
    counters: Counters,
    /// The batch in flight, and a copy of it: what its spans show was played only once.
    batch: Batch,
    sent: Vec<(Vec<u8>, Offload)>,
    calls: u64,
}

/// The first call that was answered otherwise than on the tape. The adapter is of no more use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Calls before it.
    pub number: u64,
    /// The entry.
    pub entry: Entry,
    /// The difference.
    pub what: Difference,
}

/// The part of a call that differs from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// It read more or fewer bytes of guest memory.
    Reads,
    /// It answered, asked for, sent or wrote something else.
    Answers,
    /// Its state differs after it.
    State,
    /// There is no memory for the guest's.
    Memory,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Difference::Reads => "it reads another number of bytes of guest memory",
            Difference::Answers => "it answers, asks for, sends or writes something else",
            Difference::State => "its state afterwards differs",
            Difference::Memory => "this host has no memory for the guest's",
        };
        write!(f, "call {}, `{}`: {what}", self.number, self.entry.call)
    }
}

impl Player {
    /// Plays to this adapter, which is as new as the recorded one was.
    pub fn new(adapter: Box<dyn Adapter>) -> Self {
        let (memory, counters, batch) = (Map::empty(), Counters::default(), Batch::new());
        Self { ear: Ear::new(adapter), memory, counters, batch, sent: Vec::new(), calls: 0 }
    }

    /// The adapter.
    pub fn adapter(&self) -> &dyn Adapter {
        self.ear.adapter.as_ref()
    }

    /// The packets of the last fetch, with the offloads still to do.
    pub fn sent(&self) -> &[(Vec<u8>, Offload)] {
        &self.sent
    }

    /// Makes the entry's call. Returns the adapter's requests.
    ///
    /// # Errors
    /// The adapter does not do what the recorded one did.
    pub fn play(&mut self, entry: &Entry) -> Result<Outbox, Box<Divergence>> {
        let mut out = Outbox::default();
        let heard = self.make(entry, &mut out);
        let what = match heard {
            None => Some(Difference::Memory),
            Some(Heard { is_whole: false, .. }) => Some(Difference::Reads),
            Some(Heard { sum, .. }) if sum != entry.sum => Some(Difference::Answers),
            Some(_) if entry.state.is_some_and(|state| state != Sum::state(self.adapter())) => Some(Difference::State),
            Some(_) => None,
        };
        self.calls += 1;
        match what {
            Some(what) => Err(Box::new(Divergence { number: self.calls - 1, entry: entry.clone(), what })),
            None => Ok(out),
        }
    }

    /// `None` without memory for the guest's.
    fn make(&mut self, Entry { at, call, read, .. }: &Entry, out: &mut Outbox) -> Option<Heard> {
        let alone = |sum: Sum| Some(Heard { read: Vec::new(), sum: sum.value(), is_whole: true });
        let Self { ear, memory, counters, batch, sent, .. } = self;
        let mut sum = Sum::default();
        match call {
            Call::Memory(places) => {
                *memory = Arc::new(memory_at(places).ok()?);
                ear.takes_memory(memory);
                return Some(Heard { read: Vec::new(), sum: 0, is_whole: true });
            }
            Call::Features(features) => {
                sum.number(u64::from(
                    rings(ear.adapter.as_mut(), |rings| rings.take_features(*features)) == Some(true),
                ));
                return alone(sum);
            }
            Call::Place { ring, place } => {
                sum.number(u64::from(rings(ear.adapter.as_mut(), |rings| rings.place(*ring, *place)) == Some(true)));
                return alone(sum);
            }
            Call::Keep(bytes) => {
                let file = bytes.map(|bytes| Map::private(usize::try_from(bytes).unwrap_or(usize::MAX)));
                let file = file.transpose().ok()?.map(|file| Arc::new(file.taped(Arc::clone(ear.tape()))));
                rings(ear.adapter.as_mut(), |rings| rings.keep(file));
                return alone(sum);
            }
            Call::Restore(state) => {
                sum.number(ear.adapter.restore(state).is_ok().into());
                return alone(sum);
            }
            Call::Ask => {
                sum.bytes(format!("{:?}", ear.adapter.ask()).as_bytes());
                return alone(sum);
            }
            _ => {}
        }
        let mut cx = Context::new(&*memory, out, counters, *at);
        if let Call::Deliver(offer) = call {
            return Some(ear.offer(offer, &mut cx, Some(read.clone())).1);
        }
        let ((), heard) = ear
            .call(&mut cx, Some(read.clone()), |adapter, cx, sum| with_context(adapter, call, (batch, sent), cx, sum));
        Some(heard)
    }
}

/// Calls that need a context, but not the ear.
type InFlight<'a> = (&'a mut Batch, &'a mut Vec<(Vec<u8>, Offload)>);

fn with_context(
    adapter: &mut dyn Adapter,
    call: &Call,
    (batch, sent): InFlight<'_>,
    cx: &mut Context<'_>,
    sum: &mut Sum,
) {
    match call {
        Call::Read { bar, offset, len } => {
            let mut data = vec![0xff; *len as usize];
            pci(adapter, |pci| pci.read(*bar, *offset, &mut data, cx));
            sum.bytes(&data);
        }
        Call::Write { bar, offset, data } => drop(pci(adapter, |pci| pci.write(*bar, *offset, data, cx))),
        Call::ConfigWrite { offset, data } => drop(pci(adapter, |pci| pci.config_write(*offset, data, cx))),
        Call::Start { ring, base } => {
            sum.number(u64::from(rings(adapter, |rings| rings.start(*ring, *base, cx)) == Some(true)));
        }
        Call::Stop(ring) => {
            sum.number(u64::from(rings(adapter, |rings| rings.stop(*ring, cx)).unwrap_or_default()));
        }
        Call::Enable { ring, on } => drop(rings(adapter, |rings| rings.enable(*ring, *on, cx))),
        Call::Kick(ring) => drop(rings(adapter, |rings| rings.kick(*ring, cx))),
        Call::Fetch { queue, budget } => {
            batch.start(cx.memory, PortId::default(), *queue);
            let Progress { more, armed } = adapter.fetch(*queue, *budget, batch, cx);
            sum.number(u64::from(more) << 1 | u64::from(armed));
            *sent = sum.batch(batch);
        }
        Call::Complete => adapter.complete(batch, cx),
        Call::Notice(event) => adapter.notice(*event, cx),
        Call::Tick => adapter.tick(cx),
        Call::Reset(kind) => adapter.reset(*kind, cx),
        Call::Memory(_) | Call::Features(_) | Call::Place { .. } | Call::Keep(_) | Call::Restore(_) | Call::Ask => {}
        Call::Deliver(_) => {}
    }
}

/// Private memory with these regions.
fn memory_at(places: &[Place]) -> Result<Map, MapError> {
    places.iter().try_fold(Map::default(), |map, Place { base, len, rights, is_shared }| {
        if *is_shared {
            let bytes = usize::try_from(*len).unwrap_or(usize::MAX);
            map.with(*base, Arc::new(Mapping::private(bytes)?), *rights)
        } else {
            map.with_absent(*base, *len, *rights)
        }
    })
}
