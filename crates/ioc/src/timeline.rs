//! Members with an eligible time and a deadline: of the eligible ones the earliest deadline is first.

use crate::heap::Heap;

/// See the module's page.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Members that are not eligible yet, by eligible time.
    pub waiting: Heap,
    /// Eligible members, by deadline.
    pub ready: Heap,
}

impl Timeline {
    pub fn new(members: usize) -> Self {
        Self { waiting: Heap::new(members), ready: Heap::new(members) }
    }

    /// Adds a member that is not there.
    #[inline]
    pub fn insert(&mut self, member: u16, start: u64, deadline: u64, now: u64) {
        if start <= now {
            self.ready.insert(member, deadline);
        } else {
            self.waiting.insert(member, start);
        }
    }

    pub fn remove(&mut self, member: u16) {
        if !self.ready.remove(member) {
            self.waiting.remove(member);
        }
    }

    /// Makes those ready that are eligible now.
    #[inline]
    pub fn ripen(&mut self, now: u64, deadline: impl Fn(u16) -> u64) {
        while let Some((start, member)) = self.waiting.first()
            && start <= now
        {
            self.waiting.remove(member);
            self.ready.insert(member, deadline(member));
        }
    }

    pub fn clear(&mut self) {
        self.waiting.clear();
        self.ready.clear();
    }

    /// Takes this much from all times.
    pub fn lower(&mut self, by: u64) {
        self.waiting.lower(by);
        self.ready.lower(by);
    }
}
