//! The plan of a batch: the packets that each port gets.
//!
//! A port's packets are bits of a word, and so are those with each edit: a plan for a flood to a thousand ports takes a few bytes per port,
//! until the flood is finished.

use std::ops::Range;

use arrayvec::ArrayVec;
use nicety_adapter::{Edit, PACKETS, Pick, PortId, Reason};

use crate::pairs::Pairs;

/// Most edits of one packet, besides the unchanged packet: one for a tagged and one for an untagged port of its VLAN.
const EDITS: usize = 2;

const _: () = assert!(PACKETS <= u64::BITS as usize);

/// One port's packets, a bit each; and, among these, the packets that it gets with their first or second edit.
#[derive(Clone, Copy, Debug, Default)]
struct List {
    packets: u64,
    edited: [u64; EDITS],
}

/// The picks of each receiver, in the order of the batch, and the dropped packets. A plan is made once and reused, because it also holds
/// what the switch keeps from batch to batch.
#[derive(Debug)]
pub struct Plan {
    lists: Vec<List>,
    receivers: Vec<PortId>,
    edits: [[Edit; PACKETS]; EDITS],
    /// The packets whose first or second edit is set.
    known: [u64; EDITS],
    drops: ArrayVec<(u16, Reason), PACKETS>,
    pub(crate) pairs: Pairs,
}

impl Default for Plan {
    fn default() -> Self {
        let edits = [[Edit::Keep; PACKETS]; EDITS];
        let (lists, receivers, pairs) = (Vec::new(), Vec::new(), Pairs::default());
        Self { lists, receivers, edits, known: [0; EDITS], drops: ArrayVec::new(), pairs }
    }
}

/// A range of packets, a bit each: not empty, and of a batch's packets.
#[inline]
fn bits(packets: &Range<u16>) -> u64 {
    debug_assert!(packets.start < packets.end);
    let count = packets.end.wrapping_sub(packets.start);
    u64::MAX.wrapping_shr(64u32.wrapping_sub(count.into())).wrapping_shl(packets.start.into())
}

/// The numbers of the bits that are set.
fn numbers(mut bits: u64) -> impl Iterator<Item = u16> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as u16);
        bits &= bits.wrapping_sub(1);
        number
    })
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes over what the switch keeps from batch to batch. The other plan's receivers stay as they are.
    pub fn succeed(&mut self, other: &mut Self) {
        self.pairs = std::mem::take(&mut other.pairs);
    }

    /// Empties it and makes room for this many ports. Allocates only when the switch has grown.
    pub(crate) fn begin(&mut self, ports: usize) {
        self.clear();
        if self.lists.len() < ports {
            self.lists.resize(ports, List::default());
            self.receivers.reserve(ports);
        }
    }

    /// Empties it.
    pub fn clear(&mut self) {
        for port in self.receivers.drain(..) {
            self.lists[usize::from(port.0)] = List::default();
        }
        self.known = [0; EDITS];
        self.drops.clear();
    }

    #[inline]
    fn list(&mut self, port: PortId) -> Option<&mut List> {
        let list = self.lists.get_mut(usize::from(port.0))?;
        if list.packets == 0 {
            self.receivers.push(port);
        }
        Some(list)
    }

    /// Adds these packets for a port.
    #[inline]
    pub(crate) fn add(&mut self, port: PortId, packets: Range<u16>) {
        if let Some(list) = self.list(port) {
            list.packets |= bits(&packets);
        }
    }

    /// Like [`Plan::add`], with an edit of the tags, which is one of two for each packet.
    #[inline]
    pub(crate) fn add_edited(&mut self, port: PortId, packets: Range<u16>, edit: Edit) {
        if edit == Edit::Keep {
            return self.add(port, packets);
        }
        let Some(which) = self.edit(&packets, edit) else {
            // A third edit would be for another VLAN.
            return packets.for_each(|packet| self.drop(packet, Reason::Vlan));
        };
        if let Some(list) = self.list(port) {
            list.packets |= bits(&packets);
            list.edited[which] |= bits(&packets);
        }
    }

    /// The index of this edit among these packets' edits. They are of one train, so they have the same edits.
    #[inline]
    fn edit(&mut self, packets: &Range<u16>, edit: Edit) -> Option<usize> {
        let (first, all) = (usize::from(packets.start), bits(packets));
        let is_free = |which: usize| self.known[which] & all == 0;
        let has_it = |which: usize| self.edits[which].get(first) == Some(&edit);
        let which = (0..EDITS).find(|which| is_free(*which) || has_it(*which))?;
        if self.known[which] & all != all {
            self.known[which] |= all;
            self.edits[which].get_mut(first..usize::from(packets.end))?.fill(edit);
        }
        Some(which)
    }

    pub(crate) fn drop(&mut self, packet: u16, reason: Reason) {
        // Never full: it has room for a batch.
        let _pushed = self.drops.try_push((packet, reason));
    }

    /// These packets were decided twice. They count as dropped only if no decision has a receiver for them, and once. `drops`: those
    /// before both decisions.
    pub(crate) fn settle(&mut self, drops: usize, packets: Range<u16>) {
        let reached = self.receivers.iter().fold(0, |all, port| all | self.lists[usize::from(port.0)].packets);
        let mut seen = reached & bits(&packets);
        let of_both: ArrayVec<(u16, Reason), PACKETS> = self.drops.drain(drops..).collect();
        for (packet, reason) in of_both {
            let bit = 1u64.wrapping_shl(packet.into());
            if seen & bit == 0 {
                seen |= bit;
                self.drop(packet, reason);
            }
        }
    }

    /// Drops the batch's first `packets`, regardless of the decision.
    #[cold]
    pub fn drop_all(&mut self, packets: usize, reason: Reason) {
        self.clear();
        (0..packets as u16).for_each(|packet| self.drop(packet, reason));
    }

    /// Counts these packets, a bit each, as taken by an agent of their port, and not as dropped.
    #[cold]
    pub fn take(&mut self, packets: u64) {
        let is_taken = |packet: u16| packets.checked_shr(packet.into()).unwrap_or(0) & 1 != 0;
        self.drops.iter_mut().filter(|(packet, _)| is_taken(*packet)).for_each(|(_, reason)| *reason = Reason::Taken);
    }

    /// A port gets copies of these packets, a bit each, after all receivers so far. They do not count as delivered to anybody.
    #[cold]
    #[inline(never)]
    pub fn copy_to(&mut self, port: PortId, packets: u64) {
        // Not by `list`: with one more caller it is no longer inlined where decisions are made.
        let Some(list) = self.lists.get_mut(usize::from(port.0)).filter(|_| packets != 0) else { return };
        if list.packets == 0 {
            self.receivers.push(port);
        }
        list.packets |= packets;
    }

    /// A receiver left before delivery: removes its packets from the plan, and returns them, a bit each.
    #[cold]
    pub fn miss(&mut self, port: PortId) -> u64 {
        self.lists.get_mut(usize::from(port.0)).map_or(0, |list| std::mem::take(&mut list.packets))
    }

    /// Packets whose receivers have all left count as dropped.
    #[cold]
    pub fn drop_missed(&mut self, missed: u64) {
        let reached = self.receivers.iter().fold(0, |all, port| all | self.lists[usize::from(port.0)].packets);
        let dropped = self.drops.iter().fold(0u64, |all, (packet, _)| all | 1u64.wrapping_shl((*packet).into()));
        for packet in numbers(missed & !reached & !dropped) {
            self.drop(packet, Reason::Removed);
        }
    }

    /// The ports that get packets.
    pub fn receivers(&self) -> &[PortId] {
        &self.receivers
    }

    /// The picks of a port.
    #[inline]
    pub fn picks(&self, port: PortId) -> ArrayVec<Pick, PACKETS> {
        let List { packets, edited: [first, second] } =
            self.lists.get(usize::from(port.0)).copied().unwrap_or_default();
        if first | second == 0 {
            // The packets usually form one run, such as a whole batch.
            let first = packets.trailing_zeros();
            let run = packets.wrapping_shr(first);
            if run & run.wrapping_add(1) == 0 {
                let first = first as u16;
                return (first..first.wrapping_add(run.trailing_ones() as u16)).map(Pick::whole).collect();
            }
            return numbers(packets).map(Pick::whole).collect();
        }
        let edit = |packet: u16| match (first >> packet & 1, second >> packet & 1) {
            (1, _) => self.edits[0][usize::from(packet)],
            (_, 1) => self.edits[1][usize::from(packet)],
            _ => Edit::Keep,
        };
        numbers(packets).map(|packet| Pick { packet, from: 0, edit: edit(packet) }).collect()
    }

    /// The packets that a port gets, a bit each.
    pub fn packets(&self, port: PortId) -> u64 {
        self.lists.get(usize::from(port.0)).map_or(0, |list| list.packets)
    }

    /// The edit of a packet's tags for a port that gets it.
    pub fn edit_of(&self, port: PortId, packet: u16) -> Edit {
        let edited = self.lists.get(usize::from(port.0)).map_or([0; EDITS], |list| list.edited);
        let which = edited.iter().position(|edited| edited.checked_shr(packet.into()).unwrap_or(0) & 1 != 0);
        which.and_then(|which| self.edits[which].get(usize::from(packet))).copied().unwrap_or(Edit::Keep)
    }

    /// Whether a port gets this packet.
    pub fn has(&self, port: PortId, packet: u16) -> bool {
        self.lists
            .get(usize::from(port.0))
            .is_some_and(|list| list.packets.checked_shr(packet.into()).unwrap_or(0) & 1 != 0)
    }

    /// The dropped packets, each with its reason.
    pub fn drops(&self) -> &[(u16, Reason)] {
        &self.drops
    }
}
