//! The plan of a batch: which port gets which packets.

use std::ops::Range;

use arrayvec::ArrayVec;
use nicety_adapter::{Edit, PACKETS, Pick, PortId, Reason};

/// For each receiver its picks, in the order of the batch; and the dropped packets. Made once, reused.
#[derive(Debug, Default)]
pub struct Plan {
    lists: Vec<ArrayVec<Pick, PACKETS>>,
    receivers: Vec<PortId>,
    drops: ArrayVec<(u16, Reason), PACKETS>,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empties it and makes room for this many ports. Allocates only when the switch has grown.
    pub(crate) fn begin(&mut self, ports: usize) {
        self.clear();
        if self.lists.len() < ports {
            self.lists.resize_with(ports, ArrayVec::new);
            self.receivers.reserve(ports);
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        for port in self.receivers.drain(..) {
            self.lists[usize::from(port.0)].clear();
        }
        self.drops.clear();
    }

    /// A port gets these packets.
    pub(crate) fn add(&mut self, port: PortId, packets: Range<u16>) {
        if let Some(list) = self.lists.get_mut(usize::from(port.0)) {
            if list.is_empty() {
                self.receivers.push(port);
            }
            // All of them fit: a batch has no more packets.
            let room = list.remaining_capacity();
            list.extend(packets.map(Pick::whole).take(room));
        }
    }

    /// As [`Plan::add`], with an edit of the tags.
    #[inline]
    pub(crate) fn add_edited(&mut self, port: PortId, packets: Range<u16>, edit: Edit) {
        if let Some(list) = self.lists.get_mut(usize::from(port.0)) {
            if list.is_empty() {
                self.receivers.push(port);
            }
            let room = list.remaining_capacity();
            list.extend(packets.map(|packet| Pick { packet, from: 0, edit }).take(room));
        }
    }

    pub(crate) fn drop(&mut self, packet: u16, reason: Reason) {
        let _full_only_if_a_batch_were_longer_than_itself = self.drops.try_push((packet, reason));
    }

    /// Drops the batch's first `packets`, whatever was decided.
    #[cold]
    pub fn drop_all(&mut self, packets: usize, reason: Reason) {
        self.clear();
        (0..packets as u16).for_each(|packet| self.drop(packet, reason));
    }

    /// A receiver left before delivery: removes its packets from the plan, and returns them, a bit each.
    #[cold]
    pub fn miss(&mut self, port: PortId) -> u64 {
        let Some(list) = self.lists.get_mut(usize::from(port.0)) else { return 0 };
        let missed = bits(list);
        list.clear();
        missed
    }

    /// Packets whose receivers have all left count as dropped.
    #[cold]
    pub fn drop_missed(&mut self, missed: u64) {
        let reached = self.receivers.iter().fold(0, |all, port| all | bits(self.picks(*port)));
        for packet in (0..PACKETS as u16).filter(|packet| (missed & !reached) >> packet & 1 != 0) {
            self.drop(packet, Reason::Removed);
        }
    }

    /// The ports that get packets.
    pub fn receivers(&self) -> &[PortId] {
        &self.receivers
    }

    /// The picks of a port.
    pub fn picks(&self, port: PortId) -> &[Pick] {
        self.lists.get(usize::from(port.0)).map_or(&[], |list| list.as_slice())
    }

    /// The dropped packets, each with the reason.
    pub fn drops(&self) -> &[(u16, Reason)] {
        &self.drops
    }
}

/// The packets of some picks, a bit each: a batch has no more than 64.
fn bits(picks: &[Pick]) -> u64 {
    const { assert!(PACKETS <= 64) }
    picks.iter().fold(0, |bits, pick| bits | 1u64.checked_shl(pick.packet.into()).unwrap_or(0))
}
