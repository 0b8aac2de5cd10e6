//! A binary heap of numbered members, from which any member can be removed.

/// Marks a member that is not in the heap.
const ABSENT: u16 = u16::MAX;

/// The member with the least key is first.
#[derive(Clone, Debug)]
pub(crate) struct Heap {
    entries: Vec<(u64, u16)>,
    /// Each member's place among the entries.
    places: Vec<u16>,
}

impl Heap {
    /// A heap for members 0 to `members` − 1.
    pub fn new(members: usize) -> Self {
        Self { entries: Vec::with_capacity(members), places: vec![ABSENT; members] }
    }

    /// The first member and its key.
    #[inline]
    pub fn first(&self) -> Option<(u64, u16)> {
        self.entries.first().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a member that is not in the heap.
    pub fn insert(&mut self, member: u16, key: u64) {
        self.entries.push((key, member));
        self.rise(self.entries.len() - 1, (key, member));
    }

    /// Removes a member. False if it was not in the heap.
    pub fn remove(&mut self, member: u16) -> bool {
        let place = std::mem::replace(&mut self.places[usize::from(member)], ABSENT);
        if place == ABSENT {
            return false;
        }
        let place = usize::from(place);
        if let Some(last) = self.entries.pop()
            && place < self.entries.len()
        {
            if place > 0 && last < self.entries[(place - 1) / 2] {
                self.rise(place, last);
            } else {
                self.sink(place, last);
            }
        }
        true
    }

    pub fn clear(&mut self) {
        for (_, member) in self.entries.drain(..) {
            self.places[usize::from(member)] = ABSENT;
        }
    }

    /// Takes this much from all keys; none becomes less than 0. Their order stays.
    pub fn lower(&mut self, by: u64) {
        self.entries.iter_mut().for_each(|(key, _)| *key = key.saturating_sub(by));
    }

    fn put(&mut self, place: usize, entry: (u64, u16)) {
        self.entries[place] = entry;
        self.places[usize::from(entry.1)] = place as u16;
    }

    fn rise(&mut self, mut place: usize, entry: (u64, u16)) {
        while place > 0 {
            let above = (place - 1) / 2;
            if self.entries[above] <= entry {
                break;
            }
            self.put(place, self.entries[above]);
            place = above;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize, entry: (u64, u16)) {
        loop {
            let mut below = 2 * place + 1;
            let Some(&left) = self.entries.get(below) else { break };
            let mut least = left;
            if let Some(&right) = self.entries.get(below + 1)
                && right < left
            {
                (below, least) = (below + 1, right);
            }
            if entry <= least {
                break;
            }
            self.put(place, least);
            place = below;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_leave_in_the_order_of_their_keys_whatever_was_removed_between() {
        let mut seed = 1u64;
        let mut random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 40
        };
        for count in 1..100u16 {
            let mut heap = Heap::new(100);
            let keys: Vec<u64> = (0..count).map(|_| random() % 50).collect();
            (0..count).for_each(|member| heap.insert(member, keys[usize::from(member)]));
            let removed: Vec<u16> = (0..count).filter(|_| random() % 3 == 0).collect();
            removed.iter().for_each(|&member| assert!(heap.remove(member) && !heap.remove(member)));
            let mut left: Vec<(u64, u16)> =
                (0..count).filter(|m| !removed.contains(m)).map(|m| (keys[usize::from(m)], m)).collect();
            left.sort_unstable();
            let mut popped = Vec::new();
            while let Some((key, member)) = heap.first() {
                assert!(heap.remove(member));
                popped.push((key, member));
            }
            assert_eq!(popped, left);
        }
    }
}
