//! The lease: a third party, which both hosts can ask, says which of them owns the guest.
//!
//! The owner holds a lease. It counts the lease from the moment at which it *asked*; the third party counts from the moment at which it
//! *answered*, which is later. So an owner's lease has always ended for the owner when the third party gives it to another one. Both
//! clocks may differ in rate by what [`Terms::margin_ns`](crate::node::Terms) covers.

use nicety_adapter::Time;

/// One run of one host's program. A program that starts again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// A request to the third party. Each is carried out as a whole or not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Own a guest that nobody has ever owned.
    Found,
    /// Own a VM that runs here: nobody owns it, or its owner's lease has run out. Not for a run that has had it, and lost it.
    Begin,
    /// Go on as the owner.
    Renew,
    /// Go on without a secondary: nobody may take the guest over from now on. Only in this epoch.
    Alone {
        /// The epoch that the asking host knows.
        epoch: u32,
    },
    /// From now on `peer` knows all that has left, and may take the guest over when the lease ends. Only in this epoch.
    Pair {
        /// The epoch that the asking host knows.
        epoch: u32,
        /// The secondary.
        peer: NodeId,
    },
    /// Take the guest over.
    Take,
    /// Own the guest no longer. Who may take it over may do so at once; if there is none, the guest is gone.
    Release,
}

/// The third party's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Whether the request was carried out.
    pub granted: bool,
    /// The owner afterwards.
    pub holder: Option<NodeId>,
    /// It may take the guest over.
    pub peer: Option<NodeId>,
    /// Grows with each change of owner or peer.
    pub epoch: u32,
}

/// Runs that have lost a VM and are remembered. Each is ended by its own host soon.
const PAST: usize = 8;

/// The third party's memory, and its rules. Whoever stores it does each [`Lease::ask`] atomically.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The owner.
    pub holder: Option<NodeId>,
    /// It may take the guest over.
    pub peer: Option<NodeId>,
    /// Grows with each change of the two.
    pub epoch: u32,
    /// Grows with each granted request of the owner: a third party without a clock sees by it that the owner lives.
    pub renewals: u64,
    /// The last owners before this one, the newest first: what they run is stale.
    pub past: [Option<NodeId>; PAST],
}

impl Lease {
    fn lost(&mut self, run: NodeId) {
        let others = self.past.into_iter().flatten().filter(|other| *other != run).map(Some);
        let mut past = std::iter::once(Some(run)).chain(others).chain(std::iter::repeat(None));
        self.past = std::array::from_fn(|_| past.next().flatten());
    }

    /// Carries out a request of `who`. `expired`: the owner has renewed nothing for the whole lease, by the third party's clock.
    pub fn ask(&mut self, who: NodeId, request: Request, expired: bool) -> Answer {
        let owns = self.holder == Some(who);
        let granted = match request {
            Request::Found => owns || (self.holder.is_none() && self.peer.is_none()),
            Request::Begin => owns || ((self.holder.is_none() || expired) && !self.past.contains(&Some(who))),
            Request::Renew | Request::Release => owns,
            Request::Alone { epoch } | Request::Pair { epoch, .. } => owns && epoch == self.epoch,
            // An answer may get lost: asking again is no mistake.
            Request::Take => owns || (self.peer == Some(who) && (expired || self.holder.is_none())),
        };
        if granted {
            let peer = match request {
                Request::Pair { peer, .. } => Some(peer),
                Request::Renew | Request::Release => self.peer,
                Request::Take | Request::Found | Request::Begin if owns => self.peer,
                Request::Found | Request::Begin | Request::Alone { .. } | Request::Take => None,
            };
            let changes = !owns || matches!(request, Request::Alone { .. } | Request::Pair { .. } | Request::Release);
            self.epoch += u32::from(changes);
            self.renewals += 1;
            let left = self.holder.filter(|holder| *holder != who || request == Request::Release);
            if let Some(run) = left {
                self.lost(run);
            }
            (self.holder, self.peer) = (Some(who).filter(|_| request != Request::Release), peer);
        }
        Answer { granted, holder: self.holder, peer: self.peer, epoch: self.epoch }
    }
}

/// A third party in memory, with a clock: for simulations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    /// Its memory.
    pub lease: Lease,
    /// End of the owner's lease.
    pub until: u64,
    term_ns: u64,
}

impl Keeper {
    /// Leases last this long.
    pub fn new(term_ns: u64) -> Self {
        Self { lease: Lease::default(), until: 0, term_ns }
    }

    /// Answers at `now`, by its own clock.
    pub fn ask(&mut self, who: NodeId, request: Request, now: Time) -> Answer {
        let answer = self.lease.ask(who, request, now.0 >= self.until);
        if answer.granted {
            self.until = now.0.saturating_add(self.term_ns);
        }
        answer
    }
}
