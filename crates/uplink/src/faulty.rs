//! Decorates an uplink with a bad line: it loses, duplicates, reorders and damages outgoing packets, by probability and seed.
//!
//! For tests of the code behind an uplink. The same seed and calls give the same faults. With both ends of a pair decorated, the
//! line is bad in both directions.

use std::os::fd::BorrowedFd;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Budget, Counters, Delivery, Frames, News, PACKETS, Packet, Pick, PortId, Progress, Reason, Time, Uplink,
    UplinkSettings,
};
use nicety_memory::{MapError, Span, copy};

use crate::buffers::{Buffers, SLOT_BYTES};

/// Probability of each fault, in thousandths of the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// A packet is lost; counted as refused by the uplink.
    pub drop: u16,
    /// A packet is sent twice.
    pub duplicate: u16,
    /// A packet changes places with its predecessor.
    pub reorder: u16,
    /// One bit of a packet is inverted, behind the Ethernet addresses.
    pub corrupt: u16,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Faulty<U> {
    inner: U,
    faults: Faults,
    seed: u64,
    damaged: Buffers,
    batch: Batch,
}

impl<U: Uplink> Faulty<U> {
    /// Decorates `inner` with these faults, from this seed.
    pub fn new(inner: U, faults: Faults, seed: u64) -> Result<Self, MapError> {
        Ok(Self { inner, faults, seed: seed.max(1), damaged: Buffers::new(SLOT_BYTES)?, batch: Batch::new() })
    }

    /// The decorated uplink.
    pub fn inner(&self) -> &U {
        &self.inner
    }

    /// Marsaglia's xorshift64 ("Xorshift RNGs", 2003, section 3).
    fn random(&mut self) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed
    }

    fn chance(&mut self, thousandths: u16) -> bool {
        self.random() % 1000 < u64::from(thousandths)
    }

    /// Sends a copy of a packet with one bit inverted. The error is the packet's first refused frame.
    fn send_damaged(
        &mut self,
        frames: &Frames<'_>,
        pick: Pick,
        packet: &Packet,
        counters: &mut Counters,
        now: Time,
    ) -> Result<(), u32> {
        let (head, len) = (frames.batch.head(packet), packet.len());
        let whole = self.damaged.span(0, len);
        self.damaged.map().write_span(whole, head);
        let mut to = whole.piece(head.len() as u32, len);
        for from in frames.batch.spans(packet) {
            let copied = copy(frames.batch.source(), *from, self.damaged.map(), to);
            to = to.piece(copied, to.len());
        }
        let room = u64::from(len.saturating_sub(12)).max(1);
        let place = 12 + (self.random() % room) as u32;
        let bit = 1 << (self.random() % 8);
        self.turn(whole.piece(place, 1), bit);
        self.batch.start(self.damaged.map(), frames.batch.origin, frames.batch.queue);
        let drafted = self.batch.draft(head.len()).is_some_and(|mut draft| {
            let pushed = draft.push_span(whole).is_ok();
            if pushed {
                draft.finish_copy(packet.offload);
            }
            pushed
        });
        if !drafted {
            counters.receive_drop(Reason::UplinkRefused);
            return Ok(());
        }
        let picks = [Pick { packet: 0, ..pick }];
        let delivery = self.inner.deliver(&Frames::new(&self.batch, &picks), counters, now);
        delivery.refusals().first().map_or(Ok(()), |refusal| Err(refusal.from.into()))
    }

    fn turn(&self, at: Span, bit: u8) {
        let mut byte = [0];
        self.damaged.map().read_span(at, &mut byte);
        self.damaged.map().write_span(at, &[byte[0] ^ bit]);
    }
}

impl<U: Uplink> Uplink for Faulty<U> {
    fn fetch(
        &mut self,
        port: PortId,
        budget: Budget,
        batch: &mut Batch,
        counters: &mut Counters,
        now: Time,
    ) -> Progress {
        self.inner.fetch(port, budget, batch, counters, now)
    }

    fn complete(&mut self, batch: &Batch) {
        self.inner.complete(batch);
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, now: Time) -> Delivery {
        let mut delivery = Delivery::default();
        // Undamaged packets: the pick, and its number in the caller's list (none for a duplicate).
        let mut picks = ArrayVec::<Pick, PACKETS>::new();
        let mut numbers = ArrayVec::<Option<usize>, PACKETS>::new();
        let mut full = false;
        for (index, pick, packet) in frames.iter() {
            if full || picks.is_full() {
                delivery.refuse(index, 0, pick.from.into());
            } else if self.chance(self.faults.drop) {
                counters.receive_drop(Reason::UplinkRefused);
            } else if self.chance(self.faults.corrupt) {
                if let Err(from) = self.send_damaged(frames, pick, packet, counters, now) {
                    delivery.refuse(index, 0, from);
                    full = true;
                }
            } else {
                picks.push(pick);
                numbers.push(Some(index));
                let last = picks.len() - 1;
                if last > 0 && self.chance(self.faults.reorder) {
                    picks.swap(last - 1, last);
                    numbers.swap(last - 1, last);
                }
                if !picks.is_full() && self.chance(self.faults.duplicate) {
                    picks.push(pick);
                    numbers.push(None);
                }
            }
        }
        if !picks.is_empty() {
            let inner = self.inner.deliver(&Frames::new(frames.batch, &picks), counters, now);
            for refusal in inner.refusals() {
                if let Some(number) = numbers.get(usize::from(refusal.pick)).copied().flatten() {
                    delivery.refuse(number, 0, refusal.from.into());
                }
            }
        }
        delivery
    }

    fn withholds(&self) -> bool {
        self.inner.withholds()
    }

    fn pause(&mut self, now: Time) {
        self.inner.pause(now);
    }

    fn carrier(&self) -> bool {
        self.inner.carrier()
    }

    fn features(&self) -> Vec<&'static str> {
        self.inner.features()
    }

    fn vacant(&self) -> Option<String> {
        self.inner.vacant()
    }

    fn remark(&self) -> Option<String> {
        self.inner.remark()
    }

    fn news(&mut self) -> Option<News> {
        self.inner.news()
    }

    fn set(&mut self, settings: &UplinkSettings) -> std::io::Result<()> {
        self.inner.set(settings)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn wake(&self) -> Option<Time> {
        self.inner.wake()
    }
}
