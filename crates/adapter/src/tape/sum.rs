//! A digest of what an adapter answers, or a guest does: FNV-1a over 64-bit words, with a shift (draft-eastlake-fnv-17, section 2). It finds differences,
//! and resists nobody.

use crate::adapter::Adapter;
use crate::batch::{Batch, Checksum, Offload, Packet, Segment};
use crate::frames::Delivery;
use crate::outbox::{Outbox, Set};

/// See the module's page.
#[derive(Clone, Copy, Debug)]
pub struct Sum(u64);

impl Default for Sum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Sum {
    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x0100_0000_01b3);
        // A product's low bits do not depend on the factor's high ones.
        self.0 ^= self.0 >> 32;
    }

    /// Adds bytes, and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.number(u64::from_le_bytes(*word)));
        rest.iter().for_each(|byte| self.number((*byte).into()));
    }

    fn set(&mut self, set: Set) {
        let mut left = set;
        while let Some(number) = left.pop() {
            self.number(number.into());
        }
        self.number(u64::MAX);
    }

    /// Requests to the port.
    pub(super) fn outbox(&mut self, out: &Outbox) {
        let Outbox { work, room, messages, stalled, excess, line, wake } = *out;
        [work, room, messages, stalled].into_iter().for_each(|set| self.set(set));
        self.number(excess.into());
        self.number(line.map_or(2, u64::from));
        self.number(wake.map_or(0, |wake| wake.0));
    }

    /// Frames that were not taken.
    pub(super) fn delivery(&mut self, delivery: &Delivery) {
        for refusal in delivery.refusals() {
            self.number(u64::from(refusal.pick) << 32 | u64::from(refusal.queue) << 16 | u64::from(refusal.from));
        }
    }

    /// Packets that were fetched. Returns them. The batch's generation is no part: an adapter that goes on from a state has another one.
    pub(super) fn batch(&mut self, batch: &Batch) -> Vec<(Vec<u8>, Offload)> {
        let packets = batch.packets().iter().map(|packet| {
            let mut bytes = vec![0; packet.len() as usize];
            batch.copy(packet, &mut bytes);
            self.bytes(&bytes);
            self.packet(packet);
            (bytes, packet.offload)
        });
        packets.collect()
    }

    fn packet(&mut self, packet: &Packet) {
        let Offload { checksum, segment } = packet.offload;
        self.number(packet.cookie);
        self.number(packet.head_len().into());
        match checksum {
            Checksum::AsIs => self.number(0),
            Checksum::Verified => self.number(1),
            Checksum::Partial { start, field } => self.number(2 | u64::from(start) << 16 | u64::from(field) << 32),
        }
        let cut = |Segment { kind, mss, headers }| kind as u64 | u64::from(mss) << 16 | u64::from(headers) << 32;
        self.number(segment.map_or(u64::MAX, cut));
    }

    /// The digest so far.
    pub fn value(self) -> u64 {
        self.0
    }

    /// A digest of an adapter's state.
    pub(super) fn state(adapter: &dyn Adapter) -> u64 {
        let mut sum = Self::default();
        sum.bytes(&adapter.save());
        sum.value()
    }
}
