//! Several ports behind one number of the switch: the links of a team, the queues of a tap, the parts of a guest's port.
//!
//! ```text
//! switch:   … ── number 7 ──►  group: which port?  ──►  port 8: lock, backlog, uplink or adapter
//!                    ▲           (Chooser)         ──►  port 9: lock, backlog, uplink or adapter
//!                    └── origin 7 ◄── what one of them fetches
//! ```
//!
//! Each is a [`Port`] with a number of its own, which places it on a worker, and on which the switch decides nothing. So a sender is held by,
//! and a frame waits for, one of them.
//!
//! - **A team** ([`Steering`]) has a number that is no port's. A rule decides which links send and take frames; none may be left.
//! - **The parts of a guest's port** whose queue pairs several workers serve (docs/adr/0025): the first has the port's number. A flow stays
//!   on one part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, PACKETS, Packet, Pick, PortId, Reason, Time};

use crate::hash::Hash;
use crate::losses::Losses;
use crate::port::Port;
use crate::team::{Choice, MEMBERS_MAX, MemberState, Steering, numbers};

/// Most parts of a guest's port.
pub const PARTS_MAX: usize = 16;

const _: () = assert!(PARTS_MAX <= MEMBERS_MAX);

/// Several ports behind one number.
#[derive(Debug)]
pub struct Group {
    id: PortId,
    /// The ports by their places; `None` for one that is not open.
    ports: ArrayVec<Option<Arc<Port>>, MEMBERS_MAX>,
    chooser: Chooser,
}

/// Chooses a port for each packet.
#[derive(Debug)]
enum Chooser {
    Steering(Arc<Steering>),
    /// The parts whose guest receives on one of their queues, a bit each.
    Parts(AtomicU32),
}

/// The division of a batch's packets.
enum Route {
    /// All go to one place, or nowhere.
    Whole(Option<usize>),
    /// All go to one place, by the port that they come from.
    ByPort(Option<usize>, Hash),
    /// Each goes where this value of it says.
    ByHash(Hash, Places),
}

enum Places {
    OfTeam(Choice),
    OfParts(ArrayVec<usize, MEMBERS_MAX>),
}

impl Places {
    fn of(&self, hash: u32) -> Option<usize> {
        match self {
            Self::OfTeam(choice) => choice.member(hash),
            Self::OfParts(parts) => parts.get(hash as usize % parts.len().max(1)).copied(),
        }
    }
}

impl Group {
    /// A team of ports that were made [for it](Port::in_team), each at its place. A place may be empty.
    pub fn team(id: PortId, steering: Arc<Steering>, members: impl IntoIterator<Item = Option<Arc<Port>>>) -> Self {
        Self { id, ports: members.into_iter().take(MEMBERS_MAX).collect(), chooser: Chooser::Steering(steering) }
    }

    /// A port of these parts: the first, which has its number, and others that were made as [parts of it](Port::part_of).
    pub fn parts(first: Arc<Port>, others: impl IntoIterator<Item = Arc<Port>>) -> Self {
        let id = first.id();
        let ports = std::iter::once(first).chain(others).map(Some).take(MEMBERS_MAX).collect();
        Self { id, ports, chooser: Chooser::Parts(AtomicU32::new(0)) }
    }

    /// Its number.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// The ports that are open, in order.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Port>> {
        self.ports.iter().flatten()
    }

    pub(crate) fn at(&self, place: usize) -> Option<&Arc<Port>> {
        self.ports.get(place)?.as_ref()
    }

    /// The port with the group's number. A team has none.
    pub fn lead(&self) -> Option<&Arc<Port>> {
        match self.chooser {
            Chooser::Steering(_) => None,
            Chooser::Parts(_) => self.at(0),
        }
    }

    /// A team's decision which members are used.
    pub fn steering(&self) -> Option<&Arc<Steering>> {
        match &self.chooser {
            Chooser::Steering(steering) => Some(steering),
            Chooser::Parts(_) => None,
        }
    }

    /// The part that serves a queue pair. Pairs are dealt to the parts in turn. So even a guest that uses few pairs uses many parts.
    pub fn of_pair(&self, pair: u16) -> Option<&Arc<Port>> {
        self.at(usize::from(pair) % self.ports.len().max(1))
    }

    /// Finds out on which parts the guest receives. Call it when the guest's queues have changed. A flow may then change its part, and
    /// overtake its own frames that wait at the old part.
    pub fn look(&self, now: Time) {
        let Chooser::Parts(live) = &self.chooser else { return };
        if self.ports.len() > 1 {
            let receives = |port: &Arc<Port>| port.with_rings(now, |rings, _| rings.receives()).unwrap_or(false);
            let bits = self.ports().zip(0..).fold(0, |bits, (part, bit)| bits | u32::from(receives(part)) << bit);
            live.store(bits, Ordering::Release);
        }
    }

    /// One choice for a whole batch: no frame sees another state of the links than its neighbour.
    fn route(&self, batch: &Batch) -> Route {
        match &self.chooser {
            Chooser::Steering(steering) => {
                if let Some(only) = steering.only() {
                    return Route::Whole(Some(only));
                }
                let choice = steering.choice();
                let hash = choice.hash();
                if hash.is_of_port() {
                    // Each part of a port is served by a worker, and so is each queue.
                    let sender = if hash == Hash::Sender { batch.sender } else { batch.origin };
                    return Route::ByPort(steering.member(choice, sender.0.into(), batch.origin), hash);
                }
                Route::ByHash(hash, Places::OfTeam(choice))
            }
            Chooser::Parts(live) => {
                let live = live.load(Ordering::Acquire);
                // If the guest receives on no queue, the first part gets all, and counts them.
                if live.count_ones() < 2 {
                    return Route::Whole(Some(live.trailing_zeros() as usize % MEMBERS_MAX));
                }
                Route::ByHash(Hash::Layer34, Places::OfParts(numbers(live.into()).take(MEMBERS_MAX).collect()))
            }
        }
    }

    /// The port that a packet goes to now.
    pub(crate) fn port_for(&self, batch: &Batch, pick: &Pick) -> Option<&Arc<Port>> {
        self.at(match self.route(batch) {
            Route::Whole(place) | Route::ByPort(place, _) => place?,
            Route::ByHash(hash, places) => places.of(hash.of(batch, batch.packet(pick.packet)?, pick))?,
        })
    }

    /// Divides a receiver's picks among the ports, and gives each port's to `offer`. Picks for which there is no port are dropped and
    /// counted.
    pub(crate) fn divide(
        &self,
        batch: &Batch,
        picks: &[Pick],
        losses: &mut Losses,
        mut offer: impl FnMut(&Arc<Port>, &[Pick], &mut Losses),
    ) {
        let (hash, places) = match self.route(batch) {
            Route::Whole(place) => return self.offer_whole(place, picks, losses, offer),
            Route::ByPort(place, hash) => {
                if hash == Hash::Moved && place.is_some() {
                    self.note_sent(batch, picks);
                }
                return self.offer_whole(place, picks, losses, offer);
            }
            Route::ByHash(hash, places) => (hash, places),
        };
        let (mut shares, mut lost) = ([0u64; MEMBERS_MAX], 0u64);
        for (pick, bit) in picks.iter().zip(0..) {
            let hash = batch.packet(pick.packet).map_or(0, |packet| hash.of(batch, packet, pick));
            match places.of(hash).and_then(|place| shares.get_mut(place)) {
                Some(share) => *share |= 1 << bit,
                None => lost |= 1 << bit,
            }
        }
        for (share, place) in shares.into_iter().zip(0..).filter(|(share, _)| *share != 0) {
            let Some(port) = self.at(place) else {
                lost |= share;
                continue;
            };
            let picks: ArrayVec<Pick, PACKETS> = numbers(share).filter_map(|at| picks.get(at).copied()).collect();
            offer(port, &picks, losses);
        }
        if lost != 0 {
            self.lose(numbers(lost).filter_map(|at| picks.get(at)), losses);
        }
    }

    /// No port took these frames.
    #[cold]
    fn lose<'a>(&self, picks: impl Iterator<Item = &'a Pick>, losses: &mut Losses) {
        if let Chooser::Steering(steering) = &self.chooser {
            steering.lost(picks.inspect(|pick| losses.note(pick.packet, Reason::LinkDown)).count());
        }
    }

    fn offer_whole(
        &self,
        place: Option<usize>,
        picks: &[Pick],
        losses: &mut Losses,
        offer: impl FnOnce(&Arc<Port>, &[Pick], &mut Losses),
    ) {
        match place.and_then(|place| self.at(place)) {
            Some(port) => offer(port, picks, losses),
            None => self.lose(picks.iter(), losses),
        }
    }

    /// A team that moves busy ports counts what each sends.
    fn note_sent(&self, batch: &Batch, picks: &[Pick]) {
        if let Chooser::Steering(steering) = &self.chooser {
            let bytes = picks.iter().filter_map(|pick| batch.packet(pick.packet)).map(Packet::wire_bytes).sum();
            steering.note_sent(batch.origin, bytes);
        }
    }

    /// Gives turns to members of a team that need one because another member's state changed.
    pub(crate) fn stir(&self) {
        let stirred = self.steering().map_or(0, |steering| steering.take_stirred());
        numbers(stirred).filter_map(|place| self.at(place)).for_each(|port| port.stir());
    }

    /// The states of a team's members.
    pub fn states(&self, now: Time) -> Vec<MemberState> {
        self.steering().map_or_else(Vec::new, |steering| steering.states(self.ports.len(), now))
    }
}
