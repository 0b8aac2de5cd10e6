//! The port that gets a mirror's copies.

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Bucket, PACKETS, Packet, Pick, Rate, Reason, Shape, Time};

use super::{ASIDE, Port};
use crate::losses::Losses;

/// The rate of a mirror, and what it may still copy.
#[derive(Debug)]
pub(super) struct MirrorRate {
    rate: Rate,
    bucket: Bucket,
}

impl Port {
    /// It gets a mirror's copies from now on, at most at this rate; or no longer. True if it has got none before.
    pub(crate) fn set_copies(&self, rate: Option<Rate>) -> bool {
        let mut inner = self.lock();
        self.mark(ASIDE, rate.is_some());
        let had = inner.mirror.as_ref().map(|mirror| mirror.rate);
        if had != rate {
            let bucket = |rate| Bucket::new(rate, Shape::usual_burst_bytes(rate));
            inner.mirror = rate.map(|rate| MirrorRate { rate, bucket: bucket(rate) });
        }
        had.is_none()
    }

    /// Offers copies. Those beyond the mirror's rate are dropped and counted, and nobody waits for the others.
    pub(crate) fn offer_copies(&self, batch: &Batch, picks: &[Pick], now: Time) {
        let mut go = ArrayVec::<Pick, PACKETS>::new();
        let mut inner = self.lock();
        let (mut sum, mut refused) = (0, 0);
        // Without a rate it is a mirror's no longer.
        let Some(MirrorRate { bucket, .. }) = &mut inner.mirror else { return };
        for pick in picks {
            let bytes = batch.packet(pick.packet).map_or(0, Packet::wire_bytes);
            // Never full: a batch has no more packets.
            if bucket.ready(now) && go.try_push(*pick).is_ok() {
                bucket.charge(bytes, now);
                sum += bytes;
            } else {
                refused += 1;
            }
        }
        (0..refused).for_each(|_| inner.counters.receive_drop(Reason::MirrorLimit));
        inner.owe(sum);
        drop(inner);
        let _nobody_is_held = self.offer(batch, &go, &mut Losses::off(), now);
    }
}
