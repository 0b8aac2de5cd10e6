//! An adapter whose inputs are all known: what a [`Recorder`](super::Recorder) and a [`Player`](super::Player) have in common.

use std::sync::Arc;

use nicety_memory::{Map, Tape};

use super::sum::Sum;
use crate::adapter::Adapter;
use crate::batch::Batch;
use crate::context::Context;
use crate::face::{Face, PciFace, RingFace};
use crate::frames::Delivery;
use crate::outbox::Outbox;

use super::call::Offer;

pub(super) struct Ear {
    pub adapter: Box<dyn Adapter>,
    tape: Arc<Tape>,
    /// The guest's memory, and the same with the tape.
    source: Arc<Map>,
    taped: Arc<Map>,
    /// Room for packets that are offered.
    offered: Option<Batch>,
}

/// The bytes that one call read, and a sum of what the adapter did with them.
pub(super) struct Heard {
    pub read: Vec<u8>,
    pub sum: u64,
    /// Whether a played call read exactly the recorded bytes.
    pub is_whole: bool,
}

impl Ear {
    pub fn new(adapter: Box<dyn Adapter>) -> Self {
        let (source, tape) = (Map::empty(), Arc::new(Tape::default()));
        let taped = Arc::new(source.taped(Arc::clone(&tape)));
        Self { adapter, tape, source, taped, offered: None }
    }

    /// The tape, for memory other than the guest's.
    pub fn tape(&self) -> &Arc<Tape> {
        &self.tape
    }

    /// True if the guest's memory is another map than before.
    pub fn takes_memory(&mut self, memory: &Arc<Map>) -> bool {
        let is_new = !Arc::ptr_eq(&self.source, memory);
        if is_new {
            self.source = Arc::clone(memory);
            self.taped = Arc::new(memory.taped(Arc::clone(&self.tape)));
        }
        is_new
    }

    /// Makes one call. With `played` it reads these bytes in place of guest memory. The call's requests get a digest of their own, and are
    /// then added to the caller's.
    pub fn call<R>(
        &mut self,
        cx: &mut Context<'_>,
        played: Option<Vec<u8>>,
        act: impl FnOnce(&mut dyn Adapter, &mut Context<'_>, &mut Sum) -> R,
    ) -> (R, Heard) {
        let (mut out, mut sum) = (Outbox::default(), Sum::default());
        match played {
            Some(bytes) => self.tape.play(bytes),
            None => self.tape.record(),
        }
        let mut own = Context::new(&self.taped, &mut out, &mut *cx.counters, cx.now);
        let result = act(self.adapter.as_mut(), &mut own, &mut sum);
        let taped = self.tape.close();
        sum.outbox(&out);
        sum.number(taped.written);
        let Outbox { work, room, messages, stalled, excess, line, wake } = out;
        cx.out.work.extend(work);
        cx.out.room.extend(room);
        cx.out.messages.extend(messages);
        cx.out.stalled.extend(stalled);
        cx.out.charge(excess);
        cx.out.line = line.or(cx.out.line);
        // The earlier of both: an early tick does no harm.
        wake.into_iter().for_each(|wake| cx.out.wake_by(wake));
        (result, Heard { read: taped.read, sum: sum.value(), is_whole: taped.is_whole })
    }

    /// Offers frames.
    pub fn offer(&mut self, offer: &Offer, cx: &mut Context<'_>, played: Option<Vec<u8>>) -> (Delivery, Heard) {
        let mut batch = self.offered.take().unwrap_or_default();
        // Without memory they are dropped, and the sums differ.
        let _filled = offer.fill(&mut batch);
        let frames = crate::frames::Frames { batch: &batch, picks: &offer.picks, held: offer.held };
        let (delivery, heard) = self.call(cx, played, |adapter, cx, sum| {
            let delivery = adapter.deliver(&frames, cx);
            sum.delivery(&delivery);
            delivery
        });
        batch.release();
        self.offered = Some(batch);
        (delivery, heard)
    }
}

/// The adapter's PCI face.
pub(super) fn pci<R>(adapter: &mut dyn Adapter, act: impl FnOnce(&mut dyn PciFace) -> R) -> Option<R> {
    match adapter.face() {
        Face::Pci(pci) => Some(act(pci)),
        Face::Rings(_) => None,
    }
}

/// The adapter's rings.
pub(super) fn rings<R>(adapter: &mut dyn Adapter, act: impl FnOnce(&mut dyn RingFace) -> R) -> Option<R> {
    match adapter.face() {
        Face::Pci(_) => None,
        Face::Rings(rings) => Some(act(rings)),
    }
}
