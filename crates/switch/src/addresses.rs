//! The address table: the port from which an address last sent.
//!
//! A set holds four entries in one cache line. An entry is a key word (address and filtering identifier) and a value word (port,
//! second of last use, a check on the key). Both are atomics written one after the other, so a reader may see a new key with an old
//! value. The check turns that into a miss, and a miss is a flood, which is always correct.
//!
//! Guests choose addresses. So one guest may try to evict another's address from the table, and read the frames that are then flooded:
//! - The hash has a [seed](Limits::seed): the addresses that share a set differ from daemon to daemon.
//! - A port with an address in a full set replaces its own. Otherwise the port with the most addresses in the table loses one, if it
//!   has more than the new address's port; if not, the new address is not learned. (Open vSwitch also evicts from the port with the
//!   most: lib/mac-learning.c, `evict_mac_entry_fairly`.)
//! - A port has at most [this many](Limits::port_addresses) addresses; uplinks have no limit.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nicety_adapter::{PortId, Time};
use nicety_frame::Mac;

use crate::{Limits, PORTS};

const WAYS: usize = 4;
/// Number of sets that are searched for aged entries when an address is new.
const SWEPT: usize = 4;

/// Four entries, one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    entries: [Entry; WAYS],
}

#[derive(Debug, Default)]
struct Entry {
    /// Bits 0–47 the address, 48–60 the filtering identifier, 63 set when in use.
    key: AtomicU64,
    /// Bits 0–15 the port number plus 1, 16–31 the check, 32–63 the second of last use; 0 if the entry is free. All changes are made by
    /// compare-and-swap, so that each entry is counted once.
    value: AtomicU64,
}

/// The addresses of one port.
#[derive(Debug)]
struct Share {
    count: AtomicU32,
    most: AtomicU32,
}

/// An entry, for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The address.
    pub address: Mac,
    /// The filtering identifier of its VLAN: 0 on the flat network, the VLAN's number, or 4096 and a service VLAN's.
    pub fid: u16,
    /// The port from which it last sent.
    pub port: PortId,
    /// Time since then, in whole seconds.
    pub silent: Duration,
}

/// See the module's page.
#[derive(Debug)]
pub struct Addresses {
    sets: Box<[Set]>,
    shares: Box<[Share]>,
    seed: [u64; 2],
    ageing_s: u32,
    /// The next set to sweep.
    hand: AtomicUsize,
}

/// An address to look up: the key word and its hash, which is slower to compute than the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    word: u64,
    hash: u64,
}

impl Key {
    pub(crate) fn address(self) -> Mac {
        address_in(self.word)
    }

    /// Whether it is a group address: the first bit on the wire.
    pub(crate) fn is_multicast(self) -> bool {
        self.word & 1 << 40 != 0
    }
}

fn address_in(word: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    Mac([a, b, c, d, e, f])
}

/// A multiplicative mix (the finaliser of SplitMix64).
fn mix(key: u64) -> u64 {
    let x = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn second(now: Time) -> u32 {
    (now.0 / 1_000_000_000) as u32
}

fn value_of(port: PortId, check: u64, second: u32) -> u64 {
    u64::from(port.0.wrapping_add(1)) | (check >> 48) << 16 | u64::from(second) << 32
}

/// The port of a value; `None` if the entry is free.
#[inline]
fn port_in(value: u64) -> Option<PortId> {
    (value as u16).checked_sub(1).map(PortId)
}

impl Addresses {
    /// An empty table.
    pub fn new(limits: Limits) -> Self {
        let Limits { addresses, ageing, port_addresses: _, seed, relays: _ } = limits;
        let sets = addresses.clamp(WAYS, 1 << 24).div_ceil(WAYS).next_power_of_two();
        let share = || Share { count: AtomicU32::new(0), most: AtomicU32::new(u32::MAX) };
        let first = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
        Self {
            sets: (0..sets).map(|_| Set::default()).collect(),
            shares: (0..PORTS).map(|_| share()).collect(),
            seed: [first, mix(first.wrapping_add(0x9e37_79b9_7f4a_7c15))],
            ageing_s: u32::try_from(ageing.as_secs()).unwrap_or(u32::MAX),
            hand: AtomicUsize::new(0),
        }
    }

    /// Keeps at most this many addresses of a port. Applies from its next new address on.
    pub fn limit(&self, port: PortId, most: u32) {
        if let Some(share) = self.share(port) {
            share.most.store(most, Ordering::Relaxed);
        }
    }

    /// The key of an address. The hash's low bits choose the set, the high ones are the check. One secret word is added before the mix, and
    /// another before a last multiplication: an outsider cannot compute which addresses share a set.
    #[inline(always)]
    pub(crate) fn key(&self, address: Mac, fid: u16) -> Key {
        let [a, b, c, d, e, f] = address.0;
        let word = 1 << 63 | u64::from(fid & 0x1fff) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        let x = (mix(word ^ self.seed[0]) ^ self.seed[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Key { word, hash: x ^ (x >> 32) }
    }

    #[inline(always)]
    fn set(&self, key: Key) -> &Set {
        &self.sets[key.hash as usize & (self.sets.len() - 1)]
    }

    /// Prefetches an address's set, without waiting for it.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: Key) {
        std::hint::black_box(self.set(key).entries[0].key.load(Ordering::Relaxed));
    }

    /// The port from which an address has sent within the ageing time.
    pub fn find(&self, address: Mac, fid: u16, now: Time) -> Option<PortId> {
        self.find_key(self.key(address, fid), now)
    }

    /// Like [`find`](Self::find), and for how many whole seconds it has sent nothing.
    #[cold]
    pub fn heard(&self, address: Mac, fid: u16, now: Time) -> Option<(PortId, u32)> {
        let key = self.key(address, fid);
        let entry = self.set(key).entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.word)?;
        let value = entry.value.load(Ordering::Acquire);
        let port = port_in(value).filter(|_| self.is_fresh(value, now) && (value >> 16) & 0xffff == key.hash >> 48)?;
        Some((port, second(now).saturating_sub((value >> 32) as u32)))
    }

    #[inline(always)]
    pub(crate) fn find_key(&self, key: Key, now: Time) -> Option<PortId> {
        let entry = self.set(key).entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.word)?;
        let value = entry.value.load(Ordering::Acquire);
        let whole = (value >> 16) & 0xffff == key.hash >> 48;
        if whole && self.is_fresh(value, now) { port_in(value) } else { None }
    }

    #[inline(always)]
    fn is_fresh(&self, value: u64, now: Time) -> bool {
        second(now).saturating_sub((value >> 32) as u32) <= self.ageing_s
    }

    /// An address has sent from a port. Writes only if the port or the second has changed.
    pub fn learn(&self, address: Mac, fid: u16, port: PortId, now: Time) {
        self.learn_key(self.key(address, fid), port, now);
    }

    #[inline(always)]
    pub(crate) fn learn_key(&self, key: Key, port: PortId, now: Time) {
        let value = value_of(port, key.hash, second(now));
        let set = self.set(key);
        match set.entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.word) {
            Some(entry) => {
                let old = entry.value.load(Ordering::Relaxed);
                if old != value {
                    self.learn_again(entry, old, value, port);
                }
            }
            None => self.learn_first(set, key, value, port, now),
        }
    }

    /// A known address has sent in another second, or from another port. A port at its address limit takes no address from another port:
    /// the address becomes unknown.
    fn learn_again(&self, entry: &Entry, old: u64, value: u64, port: PortId) {
        let is_taken = port_in(old) == Some(port) || self.has_room(port);
        self.replace(entry, old, if is_taken { value } else { 0 });
    }

    /// Finds a place for a new address: see the module's page.
    #[cold]
    fn learn_first(&self, set: &Set, key: Key, value: u64, port: PortId, now: Time) {
        self.sweep(now);
        let entries = set.entries.each_ref().map(|entry| (entry, entry.value.load(Ordering::Relaxed)));
        let has_room = self.has_room(port);
        let free = || entries.iter().find(|(_, old)| *old == 0 || !self.is_fresh(*old, now));
        let own = || entries.iter().filter(|(_, old)| port_in(*old) == Some(port)).min_by_key(|(_, old)| old >> 32);
        let count = |old: u64| port_in(old).map_or(0, |holder| self.count(holder));
        let hoarded = || {
            let most = entries.iter().max_by_key(|(_, old)| (count(*old), Reverse(old >> 32)));
            most.filter(|(_, old)| count(*old) > self.count(port))
        };
        let with_room = |place: Option<_>| place.filter(|_| has_room);
        let place = with_room(free()).or_else(own).or_else(|| with_room(hoarded()));
        if let Some((entry, old)) = place
            && self.replace(entry, *old, value)
        {
            entry.key.store(key.word, Ordering::Release);
        }
    }

    /// Frees aged entries in the next sets, so that old addresses do not count towards their port.
    fn sweep(&self, now: Time) {
        let first = self.hand.fetch_add(SWEPT, Ordering::Relaxed);
        for at in first..first.wrapping_add(SWEPT) {
            for entry in &self.sets[at & (self.sets.len() - 1)].entries {
                let old = entry.value.load(Ordering::Relaxed);
                if old != 0 && !self.is_fresh(old, now) {
                    self.replace(entry, old, 0);
                }
            }
        }
    }

    /// Changes an entry's value, and counts it. False if another worker was faster.
    fn replace(&self, entry: &Entry, old: u64, new: u64) -> bool {
        if entry.value.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_err() {
            return false;
        }
        let (before, after) = (port_in(old), port_in(new));
        if before != after {
            if let Some(share) = before.and_then(|port| self.share(port)) {
                share.count.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(share) = after.and_then(|port| self.share(port)) {
                share.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    fn share(&self, port: PortId) -> Option<&Share> {
        self.shares.get(usize::from(port.0))
    }

    fn count(&self, port: PortId) -> u32 {
        self.share(port).map_or(0, |share| share.count.load(Ordering::Relaxed))
    }

    fn has_room(&self, port: PortId) -> bool {
        self.share(port).is_some_and(|share| self.count(port) < share.most.load(Ordering::Relaxed))
    }

    /// Forgets all addresses learned from a port.
    pub fn forget(&self, port: PortId) {
        // The whole table is looked through.
        if self.count(port) > 0 {
            self.forget_all(|of| of == port);
        }
    }

    /// Forgets all addresses learned from these ports.
    pub(crate) fn forget_all(&self, is_gone: impl Fn(PortId) -> bool) {
        for entry in self.sets.iter().flat_map(|set| &set.entries) {
            let old = entry.value.load(Ordering::Relaxed);
            if port_in(old).is_some_and(&is_gone) {
                self.replace(entry, old, 0);
            }
        }
    }

    /// All current entries, in no order.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = Learned> + '_ {
        self.sets.iter().flat_map(|set| &set.entries).filter_map(move |entry| {
            let (key, value) = (entry.key.load(Ordering::Acquire), entry.value.load(Ordering::Acquire));
            let port = port_in(value).filter(|_| key != 0 && self.is_fresh(value, now))?;
            let silent = Duration::from_secs(second(now).saturating_sub((value >> 32) as u32).into());
            Some(Learned { address: address_in(key), fid: (key >> 48) as u16 & 0x1fff, port, silent })
        })
    }
}
