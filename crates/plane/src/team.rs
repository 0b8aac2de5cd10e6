//! Teams: several uplinks behind one logical port of the switch.
//!
//! ```text
//! switch:   … ── logical port 7 ──►  team: which member?  ──►  member 8: lock, backlog, uplink
//!                    ▲                 (Steering)         ──►  member 9: lock, backlog, uplink
//!                    └── origin 7 ◄── what a member fetches, if it collects
//! ```
//!
//! A member is a [`Port`] with its own number, worker, lock and backlog; the switch does not know it. So a sender is held by, and a
//! frame waits for, one member. A [`Rule`] decides which members send and take frames; [`Steering`] publishes that to all workers in one
//! word, and keeps the frames of a flow in order while it changes.

mod copies;
mod hash;
mod lacp;
mod mode;
mod moved;
mod queues;
mod saved;
mod spread;
mod standby;
mod steering;

use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, PACKETS, Packet, Pick, PortId, Time};

use crate::port::Port;
pub use hash::Hash;
pub use lacp::Lacp;
pub use mode::Mode;
pub(crate) use moved::frame as announcement;
pub use queues::Queues;
pub use saved::{SavedRule, SavedSteering};
pub use spread::{Capacity, Spread};
pub use standby::Standby;
pub(crate) use steering::MemberAgent;
pub use steering::{Links, Loads, MemberState, Moved, Rule, Steering};

/// Most members of a team.
pub const MEMBERS_MOST: usize = 16;

/// The uplinks of one logical port, in the order in which the host names them.
#[derive(Debug)]
pub struct Team {
    id: PortId,
    steering: Arc<Steering>,
    /// By their places; `None` for one that is not open.
    members: Vec<Option<Arc<Port>>>,
}

/// The numbers of the bits that are set.
pub(crate) fn numbers(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        number
    })
}

impl Team {
    /// A team of ports that were made [for it](Port::in_team), each at its place. A place may be empty.
    pub fn new(id: PortId, steering: Arc<Steering>, members: Vec<Option<Arc<Port>>>) -> Self {
        Self { id, steering, members }
    }

    /// Its logical port number.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// The decision which members are used.
    pub fn steering(&self) -> &Arc<Steering> {
        &self.steering
    }

    /// The members that are open.
    pub fn members(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.members.iter().flatten()
    }

    fn member(&self, place: usize) -> Option<&Arc<Port>> {
        self.members.get(place)?.as_ref()
    }

    /// The member by which a packet leaves now.
    pub(crate) fn member_for(&self, batch: &Batch, pick: &Pick) -> Option<&Arc<Port>> {
        let choice = self.steering.choice();
        let hash = batch.packet(pick.packet).map_or(0, |packet| choice.hash().of(batch, packet, pick));
        self.member(self.steering.member(choice, hash, batch.origin)?)
    }

    /// Divides a receiver's picks among the members, and gives each member's to `offer`. Picks for which there is no member are dropped
    /// and counted.
    pub(crate) fn divide(&self, batch: &Batch, picks: &[Pick], mut offer: impl FnMut(&Arc<Port>, &[Pick])) {
        let Some(only) = self.steering.only() else { return self.divide_by_hash(batch, picks, offer) };
        match self.member(only) {
            Some(member) => offer(member, picks),
            None => self.steering.lost(picks.len()),
        }
    }

    fn divide_by_hash(&self, batch: &Batch, picks: &[Pick], mut offer: impl FnMut(&Arc<Port>, &[Pick])) {
        let mut shares = [0u64; MEMBERS_MOST];
        // One choice for the whole batch: no frame sees another state of the links than its neighbour.
        let choice = self.steering.choice();
        let hash = choice.hash();
        if hash.is_of_port() {
            // Each part of a port is served by a worker, and so is each queue.
            let sender = if hash == Hash::Sender { batch.sender } else { batch.origin };
            let place = self.steering.member(choice, sender.0.into(), batch.origin);
            let Some(member) = place.and_then(|place| self.member(place)) else {
                return self.steering.lost(picks.len());
            };
            if hash == Hash::Moved {
                let bytes = picks.iter().filter_map(|pick| batch.packet(pick.packet)).map(Packet::wire_bytes).sum();
                self.steering.note_sent(batch.origin, bytes);
            }
            return offer(member, picks);
        }
        let mut lost = 0;
        for (pick, bit) in picks.iter().zip(0..) {
            let hash = batch.packet(pick.packet).map_or(0, |packet| hash.of(batch, packet, pick));
            match choice.member(hash).and_then(|member| shares.get_mut(member)) {
                Some(share) => *share |= 1 << bit,
                None => lost += 1,
            }
        }
        for (share, member) in shares.into_iter().zip(&self.members).filter(|(share, _)| *share != 0) {
            let Some(member) = member else {
                lost += share.count_ones() as usize;
                continue;
            };
            let part: ArrayVec<Pick, PACKETS> = numbers(share).filter_map(|at| picks.get(at).copied()).collect();
            offer(member, &part);
        }
        if lost > 0 {
            self.steering.lost(lost);
        }
    }

    /// The member at this place has left.
    pub(crate) fn leave(&self, place: usize, now: Time) {
        self.steering.leave(place, now);
    }

    /// Gives turns to members that need one because another member's state changed.
    pub(crate) fn stir(&self) {
        for index in numbers(self.steering.take_stirred()) {
            if let Some(member) = self.member(index) {
                member.stir();
            }
        }
    }

    /// The members' states.
    pub fn states(&self, now: Time) -> Vec<MemberState> {
        self.steering.states(self.members.len(), now)
    }
}
