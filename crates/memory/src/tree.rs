//! Regions by bus address: an immutable tree. A change makes new nodes along one path from the root and shares all others. So a
//! batch in flight keeps the old tree, and adding or removing a region copies no others.
//!
//! Up to [`MAX`] regions, more than QEMU has, are one sorted list.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::region::{Region, Rights};

/// Most regions of a leaf, and most children of a branch.
const MAX: usize = 32;

/// The sums of a subtree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub regions: usize,
    /// Mapped bytes.
    pub mapped: u64,
    /// Bytes that were not shared.
    pub absent: u64,
}

impl Sums {
    fn of(region: &Region) -> Self {
        let (mapped, absent) = if region.place.is_some() { (region.len, 0) } else { (0, region.len) };
        Self { regions: 1, mapped, absent }
    }

    fn and(self, other: Self) -> Self {
        let Self { regions, mapped, absent } = other;
        Self { regions: self.regions + regions, mapped: self.mapped + mapped, absent: self.absent + absent }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Child {
    /// The lowest address of its regions.
    first: u64,
    /// The end of its last region.
    end: u64,
    /// The rights to every address between the two, if all of them are mapped.
    rights: Option<Rights>,
    sums: Sums,
    tree: Tree,
}

/// See the module's page. Only the root may be an empty leaf.
#[derive(Clone, Debug)]
pub(crate) enum Tree {
    Leaf(Arc<[Region]>),
    Branch(Arc<[Child]>),
}

impl Default for Tree {
    fn default() -> Self {
        Self::Leaf(Arc::new([]))
    }
}

impl Tree {
    /// The last region that starts at or below an address. `last` caches the index of the last region found.
    #[inline]
    pub fn at(&self, address: u64, last: &AtomicUsize) -> Option<&Region> {
        if let Self::Leaf(regions) = self {
            let found = regions.get(last.load(Ordering::Relaxed));
            if let Some(region) = found.filter(|region| address.wrapping_sub(region.base) < region.len) {
                return Some(region);
            }
            let index = last_at(regions, address)?;
            last.store(index, Ordering::Relaxed);
            return regions.get(index);
        }
        self.find(address)
    }

    /// Like [`Tree::at`], always from the root.
    pub fn find(&self, address: u64) -> Option<&Region> {
        let mut tree = self;
        loop {
            match tree {
                Self::Leaf(regions) => return regions.get(last_at(regions, address)?),
                Self::Branch(children) => tree = &children.get(child_at(children, address)?)?.tree,
            }
        }
    }

    /// The first region that starts above an address.
    fn above(&self, address: u64) -> Option<&Region> {
        match self {
            Self::Leaf(regions) => regions.get(regions.partition_point(|region| region.base <= address)),
            Self::Branch(children) => {
                let after = children.partition_point(|child| child.first <= address);
                let within = after.checked_sub(1).and_then(|index| children.get(index)?.tree.above(address));
                within.or_else(|| children.get(after)?.tree.first())
            }
        }
    }

    fn first(&self) -> Option<&Region> {
        match self {
            Self::Leaf(regions) => regions.first(),
            Self::Branch(children) => children.first()?.tree.first(),
        }
    }

    /// The first address from `at` to `end` that is not mapped with these rights; `end` or more if there is none. It takes few steps,
    /// however many regions lie between them.
    pub fn reach(&self, mut at: u64, end: u64, wanted: Rights) -> u64 {
        match self {
            Self::Leaf(regions) => {
                for region in &regions[last_at(regions, at).unwrap_or(0)..] {
                    if at >= end || at.wrapping_sub(region.base) >= region.len || !region.gives(wanted) {
                        break;
                    }
                    at = region.end();
                }
            }
            Self::Branch(children) => {
                for child in &children[child_at(children, at).unwrap_or(0)..] {
                    if at >= end || at < child.first {
                        break;
                    }
                    let is_whole = child.rights.is_some_and(|rights| rights.allow(wanted));
                    at = if is_whole { at.max(child.end) } else { child.tree.reach(at, end, wanted) };
                    if at < child.end {
                        break;
                    }
                }
            }
        }
        at
    }

    /// The rights to every address from its first region to its last, if all of them are mapped; and the end of the last.
    fn cover(&self) -> (Option<Rights>, u64) {
        let (mut rights, mut end) = (Some(Rights::BOTH), None);
        let mut add = |first: u64, last: u64, own: Option<Rights>| {
            let follows = end.replace(last).is_none_or(|end| end == first);
            rights = rights.zip(own).filter(|_| follows).map(|(all, own)| all.and(own));
        };
        match self {
            Self::Leaf(regions) => regions.iter().for_each(|one| add(one.base, one.end(), one.mapped_rights())),
            Self::Branch(children) => children.iter().for_each(|one| add(one.first, one.end, one.rights)),
        }
        (rights, end.unwrap_or(0))
    }

    /// All regions, in order.
    pub fn each(&self, seen: &mut impl FnMut(&Region)) {
        match self {
            Self::Leaf(regions) => regions.iter().for_each(seen),
            Self::Branch(children) => children.iter().for_each(|child| child.tree.each(seen)),
        }
    }

    pub fn sums(&self) -> Sums {
        match self {
            Self::Leaf(regions) => regions.iter().map(Sums::of).fold(Sums::default(), Sums::and),
            Self::Branch(children) => children.iter().map(|child| child.sums).fold(Sums::default(), Sums::and),
        }
    }

    /// Whether a region overlaps `[base, end)`.
    pub fn overlaps(&self, base: u64, end: u64) -> bool {
        self.find(base).is_some_and(|region| region.end() > base)
            || self.above(base).is_some_and(|region| region.base < end)
    }

    /// This tree plus a region that overlaps none.
    pub fn with(&self, region: Region) -> Self {
        let mut grown = self.grown(region);
        if grown.len() == 1 {
            return grown.remove(0).tree;
        }
        Self::Branch(grown.into())
    }

    /// Like [`Tree::with`], as one or two children of a branch.
    fn grown(&self, region: Region) -> Vec<Child> {
        match self {
            Self::Leaf(regions) => {
                let mut regions = regions.to_vec();
                regions.insert(regions.partition_point(|other| other.base < region.base), region);
                halves(regions).map(|half| Child::of(Self::Leaf(half.into()))).collect()
            }
            Self::Branch(children) => {
                let place = child_at(children, region.base).unwrap_or(0);
                let mut children = children.to_vec();
                let grown = children[place].tree.grown(region);
                children.splice(place..=place, grown);
                halves(children).map(|half| Child::of(Self::Branch(half.into()))).collect()
            }
        }
    }

    /// This tree without the regions within `[base, end)`; calls `gone` with each of them.
    pub fn without(&self, base: u64, end: u64, gone: &mut impl FnMut(&Region)) -> Self {
        let mut left = self.reduced(base, end, gone).unwrap_or_default();
        while let Self::Branch(children) = &left
            && let [only] = &**children
        {
            left = only.tree.clone();
        }
        if matches!(left, Self::Branch(_)) && left.sums().regions <= MAX / 2 {
            let mut regions = Vec::new();
            left.each(&mut |region| regions.push(region.clone()));
            left = Self::Leaf(regions.into());
        }
        left
    }

    /// Like [`Tree::without`]; `None` if no region is left.
    fn reduced(&self, base: u64, end: u64, gone: &mut impl FnMut(&Region)) -> Option<Self> {
        match self {
            Self::Leaf(regions) => {
                let is_left = |region: &&Region| region.base < base || region.end() > end;
                regions.iter().filter(|region| !is_left(region)).for_each(&mut *gone);
                let left: Vec<Region> = regions.iter().filter(is_left).cloned().collect();
                (!left.is_empty()).then(|| Self::Leaf(left.into()))
            }
            Self::Branch(children) => {
                let mut left = Vec::with_capacity(children.len());
                for (index, child) in children.iter().enumerate() {
                    // All regions of this child end before the next child starts.
                    let next = children.get(index + 1).map(|next| next.first);
                    if child.first >= end || next.is_some_and(|next| next <= base) {
                        left.push(child.clone());
                    } else if child.first < base || next.is_none_or(|next| next > end) {
                        left.extend(child.tree.reduced(base, end, gone).map(Child::of));
                    } else {
                        child.tree.each(gone);
                    }
                }
                (!left.is_empty()).then(|| Self::Branch(left.into()))
            }
        }
    }
}

impl Child {
    fn of(tree: Tree) -> Self {
        let (rights, end) = tree.cover();
        Self { first: tree.first().map_or(0, |region| region.base), end, rights, sums: tree.sums(), tree }
    }
}

#[inline]
fn last_at(regions: &[Region], address: u64) -> Option<usize> {
    regions.partition_point(|region| region.base <= address).checked_sub(1)
}

#[inline]
fn child_at(children: &[Child], address: u64) -> Option<usize> {
    children.partition_point(|child| child.first <= address).checked_sub(1)
}

/// One node, or two halves if it is too large.
fn halves<T>(mut all: Vec<T>) -> impl Iterator<Item = Vec<T>> {
    let second = (all.len() > MAX).then(|| all.split_off(all.len() / 2));
    std::iter::once(all).chain(second)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::region::Rights;

    fn region(base: u64, len: u64) -> Region {
        Region { base, len, rights: Rights::BOTH, place: None }
    }

    /// Checks the nodes below; returns the depth.
    fn check(tree: &Tree) -> usize {
        let Tree::Branch(children) = tree else { return 1 };
        assert!((1..=MAX).contains(&children.len()));
        assert!(children.is_sorted_by_key(|child| child.first));
        for child in children.iter() {
            assert_eq!(Some(child.first), child.tree.first().map(|region| region.base));
            assert_eq!(child.sums, child.tree.sums());
            assert_eq!((child.rights, child.end), child.tree.cover());
        }
        let depths: Vec<usize> = children.iter().map(|child| check(&child.tree)).collect();
        assert!(depths.iter().all(|depth| *depth == depths[0]));
        depths[0] + 1
    }

    /// Compares the tree with a standard map, under seeded random changes (xorshift64).
    #[test]
    fn regions_come_and_go_and_each_address_finds_its_own() {
        for seed in 1..=5u64 {
            let (mut state, mut tree, mut model) = (seed, Tree::default(), BTreeMap::<u64, u64>::new());
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            for step in 0..3000 {
                let (base, len) = (random(10_000), 1 + random(8));
                // First it grows, then it shrinks.
                if random(10) < if step < 2000 { 8 } else { 3 } {
                    let overlaps = model.iter().any(|(&other, &bytes)| other < base + len && base < other + bytes);
                    assert_eq!(tree.overlaps(base, base + len), overlaps);
                    if !overlaps {
                        tree = tree.with(region(base, len));
                        model.insert(base, len);
                    }
                } else {
                    let end = base + random(60);
                    let mut gone = 0;
                    tree = tree.without(base, end, &mut |_| gone += 1);
                    let before = model.len();
                    model.retain(|&other, bytes| other < base || other + *bytes > end);
                    assert_eq!(gone, before - model.len());
                }
                if step % 50 == 0 {
                    assert!(check(&tree) <= 4);
                }
                let address = random(10_100);
                let found = tree.find(address).map(|region| (region.base, region.len));
                assert_eq!(found, model.range(..=address).next_back().map(|(&base, &len)| (base, len)));
                // Nothing here was shared, so nothing is reachable.
                assert_eq!(tree.reach(address, address + 1000, Rights::BOTH), address);
                let sums = Sums { regions: model.len(), mapped: 0, absent: model.values().sum() };
                assert_eq!(tree.sums(), sums);
            }
            let mut all = Vec::new();
            tree.each(&mut |region| all.push((region.base, region.len)));
            assert!(all.iter().copied().eq(model));
            assert_eq!(tree.without(0, u64::MAX, &mut |_| {}).sums(), Sums::default());
        }
    }

    /// Compares the tree with a list of addresses.
    #[test]
    fn what_is_mapped_in_a_row_is_reached_whatever_regions_come_and_go_and_whatever_rights_they_have() {
        const END: u64 = 6000;
        let mapping = Arc::new(crate::Mapping::private(8).unwrap());
        let kinds = [Some(Rights::BOTH), Some(Rights::READ), None];
        for seed in 1..=3u64 {
            let (mut state, mut tree, mut model) = (seed, Tree::default(), vec![None; END as usize + 8]);
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            for step in 0..4000 {
                // Regions lie close together, mostly with all rights.
                let (base, len) = (random(END) & !7, 8);
                let kind = if random(40) == 0 { kinds[random(3) as usize] } else { kinds[0] };
                if tree.overlaps(base, base + len) && step % 5 == 0 {
                    tree = tree.without(base, base + len, &mut |_| {});
                    model[base as usize..][..8].fill(None);
                } else if !tree.overlaps(base, base + len) {
                    let place = kind.map(|_| (Arc::clone(&mapping), 0));
                    tree = tree.with(Region { base, len, rights: kind.unwrap_or(Rights::BOTH), place });
                    model[base as usize..][..8].fill(kind);
                }
                for wanted in [Rights::READ, Rights::WRITE] {
                    let (from, end) = (random(END), random(END));
                    let is_mapped = |at: &u64| model[*at as usize].is_some_and(|rights: Rights| rights.allow(wanted));
                    let reached = (from..end).find(|at| !is_mapped(at)).unwrap_or(end.max(from));
                    assert_eq!(tree.reach(from, end, wanted).min(end.max(from)), reached, "{from} to {end}");
                }
            }
            check(&tree);
        }
    }

    #[test]
    fn a_change_of_many_regions_shares_all_but_a_path() {
        let mut tree = Tree::default();
        for number in 0..65_535u64 {
            tree = tree.with(region(number << 12, 4096));
        }
        assert!(check(&tree) <= 4);
        let Tree::Branch(before) = &tree else { panic!("a leaf") };
        for changed in [tree.with(region(1 << 40, 4096)), tree.without(7 << 12, 8 << 12, &mut |_| {})] {
            let Tree::Branch(after) = &changed else { panic!("a leaf") };
            let is_same = |(one, other): (&Child, &Child)| match (&one.tree, &other.tree) {
                (Tree::Branch(one), Tree::Branch(other)) => Arc::ptr_eq(one, other),
                _ => false,
            };
            let shared = before.iter().zip(after.iter()).filter(|pair| is_same(*pair)).count();
            assert_eq!(shared, before.len() - 1);
        }
    }
}
