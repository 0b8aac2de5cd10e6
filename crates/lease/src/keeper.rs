//! A third party in memory, with a clock: for simulations.

use crate::lease::{Answer, Lease, NodeId, Request};

/// See the module's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    /// Its memory.
    pub lease: Lease,
    /// End of the owner's lease, in nanoseconds of its own clock.
    pub until: u64,
    term_ns: u64,
}

impl Keeper {
    /// Leases last this long.
    pub fn new(term_ns: u64) -> Self {
        Self { lease: Lease::default(), until: 0, term_ns }
    }

    /// Answers at `now_ns`, by its own clock.
    pub fn ask(&mut self, who: NodeId, request: Request, now_ns: u64) -> Answer {
        let answer = self.lease.ask(who, request, now_ns >= self.until);
        if answer.granted {
            self.until = now_ns.saturating_add(self.term_ns);
        }
        answer
    }
}
