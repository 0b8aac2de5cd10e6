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
//!
//! Workers [keep](crate::pairs) what they found here. Sets are divided into shards, and each shard has an epoch. A change of an entry that
//! somebody keeps raises its shard's epoch, so that no worker uses what it kept of that shard. An address that is learned first, or heard
//! again at its port, raises none. So a guest that sends from ever new addresses does not empty its neighbours' caches.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nicety_adapter::{PortId, Time};
use nicety_frame::Mac;
use nicety_memory::{Touch, prefetch};

use crate::{Limits, PORTS};

const WAYS: usize = 4;
/// Number of sets that are searched for aged entries when an address is new.
const SWEPT: usize = 4;

/// Most shards of the table.
const SHARDS: usize = 1024;
/// The bit of a value that says that a worker keeps what it found there.
const KEPT: u64 = 1 << 63;

/// Each table has another identity.
static TABLES: AtomicU64 = AtomicU64::new(1);

/// Four entries, one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set {
    entries: [Entry; WAYS],
}

impl Set {
    #[inline(always)]
    fn entry(&self, key: Key) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.0)
    }
}

#[derive(Debug, Default)]
struct Entry {
    /// Bits 0–47 the address, 48–60 the filtering identifier, 63 set when in use.
    key: AtomicU64,
    /// Bits 0–15 the port number plus 1, 16–31 the check, 32–62 the second of last use, 63 whether a worker keeps it; 0 if the entry is
    /// free. All changes are made by compare-and-swap, so that each entry is counted once.
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
    hand: Hand,
    /// The epoch of each shard.
    epochs: Box<[AtomicU32; SHARDS]>,
    /// The bits of a set's number that are its shard's.
    shard_mask: usize,
    id: u64,
}

/// The next set to sweep. It moves with each address that is new, so it has its lines to itself: what stands beside it is read for each frame,
/// by other workers too. (Two lines: processors fetch them in pairs.)
#[derive(Debug)]
#[repr(align(128))]
struct Hand(AtomicUsize);

/// The table's entry for an address.
#[derive(Clone, Copy)]
pub(crate) struct Held<'a> {
    entry: &'a Entry,
    value: u64,
}

impl Held<'_> {
    /// Its port.
    #[inline(always)]
    pub(crate) fn port(self) -> PortId {
        PortId((self.value as u16).wrapping_sub(1))
    }

    /// A worker keeps it from now on. False if it has changed.
    #[inline(always)]
    pub(crate) fn keep(self) -> bool {
        let Self { entry, value } = self;
        let keep = || entry.value.compare_exchange(value, value | KEPT, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        value & KEPT != 0 || keep()
    }
}

/// An address to look up, in the form of [`Entry::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// The key of no address.
    pub(crate) const NONE: Self = Self(0);

    /// The key of an address, which is the word's low 48 bits.
    #[inline(always)]
    pub(crate) fn new(address: u64, fid: u16) -> Self {
        Self(1 << 63 | u64::from(fid & 0x1fff) << 48 | address)
    }

    #[inline(always)]
    fn of(address: Mac, fid: u16) -> Self {
        Self::new(address.to_u64(), fid)
    }

    #[inline(always)]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn address(self) -> Mac {
        address_in(self.0)
    }

    /// Whether it is a group address: the first bit on the wire.
    pub(crate) fn is_multicast(self) -> bool {
        self.0 & 1 << 40 != 0
    }
}

/// An address and its hash, by which its set is found.
#[derive(Clone, Copy)]
pub(crate) struct Hashed {
    key: Key,
    hash: u64,
}

/// A frame's destination and source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keys {
    pub target: Key,
    pub source: Key,
}

impl Keys {
    /// Keys that no frame has.
    pub const NONE: Self = Self { target: Key::NONE, source: Key::NONE };

    /// The keys of a header's first bytes.
    #[inline(always)]
    pub fn new(header: &[u8; 14], fid: u16) -> Self {
        // Whole words are read, and what is not of an address is shifted out.
        let word = |at| header[at..].first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes) >> 16);
        Self { target: Key::new(word(0), fid), source: Key::new(word(6), fid) }
    }

    /// The keys in the flat network; `None` if shorter than an Ethernet header.
    #[inline(always)]
    pub fn in_head(head: &[u8]) -> Option<Self> {
        Some(Self::new(head.first_chunk()?, 0))
    }
}

/// The state of a table before a look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    /// The shards of destination and source.
    pub shards: u32,
    /// The sum of their epochs. Epochs only rise, so the sum is the same while both are.
    pub sum: u32,
}

fn address_in(word: u64) -> Mac {
    let [_, _, a, b, c, d, e, f] = word.to_be_bytes();
    Mac([a, b, c, d, e, f])
}

/// Makes secret words of a seed (the finaliser of SplitMix64).
fn mix(key: u64) -> u64 {
    let x = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Both halves of a product, folded: each bit of the result depends on all of both words. Not a CRC, which is linear: its collisions can
/// be computed without knowing its seed.
#[inline(always)]
pub(crate) fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one) * u128::from(other);
    (product >> 64) as u64 ^ product as u64
}

/// The second, in 31 bits: 68 years.
#[inline(always)]
pub(crate) fn second(now: Time) -> u32 {
    (now.0 / 1_000_000_000) as u32 & 0x7fff_ffff
}

/// The second of a value.
#[inline(always)]
fn second_in(value: u64) -> u32 {
    (value >> 32) as u32 & 0x7fff_ffff
}

fn value_of(port: PortId, hash: u64, second: u32) -> u64 {
    u64::from(port.0.wrapping_add(1)) | (hash >> 48) << 16 | u64::from(second) << 32
}

/// Whether a value belongs to the key with this hash.
#[inline(always)]
fn is_checked(value: u64, hash: u64) -> bool {
    (value >> 16) as u16 == (hash >> 48) as u16
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
            // A multiplication by an odd word loses nothing of the other one.
            seed: [first, mix(first.wrapping_add(0x9e37_79b9_7f4a_7c15)) | 1],
            ageing_s: u32::try_from(ageing.as_secs()).unwrap_or(u32::MAX),
            hand: Hand(AtomicUsize::new(0)),
            epochs: Box::new([const { AtomicU32::new(0) }; SHARDS]),
            shard_mask: sets.min(SHARDS) - 1,
            id: TABLES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Keeps at most this many addresses of a port. Applies from its next new address on.
    pub fn limit(&self, port: PortId, most: u32) {
        if let Some(share) = self.share(port) {
            share.most.store(most, Ordering::Relaxed);
        }
    }

    /// An address with its hash. The hash's low bits choose the set, the high ones are the check. Both words of the seed are secret, so
    /// an outsider cannot compute which addresses share a set.
    #[inline(always)]
    pub(crate) fn hashed(&self, key: Key) -> Hashed {
        Hashed { key, hash: fold(key.0 ^ self.seed[0], key.0.rotate_left(32) ^ self.seed[1]) }
    }

    #[inline(always)]
    fn set(&self, hash: u64) -> &Set {
        &self.sets[hash as usize & (self.sets.len() - 1)]
    }

    /// The shard of its set.
    #[inline(always)]
    fn shard(&self, hash: u64) -> usize {
        hash as usize & self.shard_mask
    }

    /// Prefetches an address's set, without waiting for it.
    #[inline(always)]
    pub(crate) fn prefetch(&self, key: Key) {
        prefetch(self.set(self.hashed(key).hash), Touch::Read);
    }

    /// The port from which an address has sent within the ageing time.
    pub fn find(&self, address: Mac, fid: u16, now: Time) -> Option<PortId> {
        self.find_key(Key::of(address, fid), now)
    }

    /// Like [`find`](Self::find), and for how many whole seconds it has sent nothing.
    #[cold]
    pub fn heard(&self, address: Mac, fid: u16, now: Time) -> Option<(PortId, u32)> {
        let Hashed { key, hash } = self.hashed(Key::of(address, fid));
        let entry = self.set(hash).entry(key)?;
        let value = entry.value.load(Ordering::Acquire);
        let port = port_in(value).filter(|_| self.is_fresh(value, now) && is_checked(value, hash))?;
        Some((port, second(now).saturating_sub(second_in(value))))
    }

    #[inline(always)]
    pub(crate) fn find_key(&self, key: Key, now: Time) -> Option<PortId> {
        self.find_held(self.hashed(key), now).map(Held::port)
    }

    #[inline(always)]
    pub(crate) fn find_held(&self, Hashed { key, hash }: Hashed, now: Time) -> Option<Held<'_>> {
        let entry = self.set(hash).entry(key)?;
        let value = entry.value.load(Ordering::Acquire);
        let is_known = is_checked(value, hash) && self.is_fresh(value, now) && port_in(value).is_some();
        is_known.then_some(Held { entry, value })
    }

    #[inline(always)]
    fn is_fresh(&self, value: u64, now: Time) -> bool {
        second(now).saturating_sub(second_in(value)) <= self.ageing_s
    }

    /// An address has sent from a port. Writes only if the port or the second has changed.
    pub fn learn(&self, address: Mac, fid: u16, port: PortId, now: Time) {
        self.learn_key(self.hashed(Key::of(address, fid)), port, now);
    }

    /// Returns what the table held already; `None` if something changed.
    #[inline(always)]
    pub(crate) fn learn_key(&self, address: Hashed, port: PortId, now: Time) -> Option<Held<'_>> {
        let Hashed { key, hash } = address;
        let new = value_of(port, hash, second(now));
        let set = self.set(hash);
        match set.entry(key) {
            Some(entry) => {
                let value = entry.value.load(Ordering::Acquire);
                if value & !KEPT == new {
                    return Some(Held { entry, value });
                }
                self.learn_again(entry, value, new, self.shard(hash));
            }
            None => self.learn_first(address, new, port, now),
        }
        None
    }

    /// A known address has sent in another second, or from another port. A port at its address limit takes no address from another port:
    /// the address becomes unknown.
    fn learn_again(&self, entry: &Entry, old: u64, value: u64, shard: usize) {
        let port = port_in(value);
        let new = if port_in(old) == port {
            value | old & KEPT
        } else if port.is_some_and(|port| self.has_room(port)) {
            value
        } else {
            0
        };
        if let Some(replaced) = self.replace(entry, old, new) {
            self.changed(replaced & !new, shard);
        }
    }

    /// The identity of this table.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Two secret words.
    #[inline(always)]
    pub(crate) fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The epochs of a destination and a source, before they are looked up.
    #[inline(always)]
    pub(crate) fn stamp(&self, target: Hashed, source: Hashed) -> Stamp {
        let shards = (self.shard(target.hash) | self.shard(source.hash) << 16) as u32;
        Stamp { shards, sum: self.sum(shards) }
    }

    /// The sum of two shards' epochs.
    #[inline(always)]
    pub(crate) fn sum(&self, shards: u32) -> u32 {
        let epoch = |shard: u32| self.epochs[shard as usize % SHARDS].load(Ordering::Acquire);
        epoch(shards).wrapping_add(epoch(shards >> 16))
    }

    /// An entry with this value is another's now: nobody uses what it has kept of the shard.
    fn changed(&self, value: u64, shard: usize) {
        if value & KEPT != 0 {
            self.epochs[shard & self.shard_mask & (SHARDS - 1)].fetch_add(1, Ordering::Release);
        }
    }

    /// Finds a place for a new address: see the module's page.
    #[cold]
    fn learn_first(&self, Hashed { key, hash }: Hashed, value: u64, port: PortId, now: Time) {
        self.sweep(now);
        let entries = self.set(hash).entries.each_ref().map(|entry| (entry, entry.value.load(Ordering::Relaxed)));
        let has_room = self.has_room(port);
        let free = || entries.iter().find(|(_, old)| *old == 0 || !self.is_fresh(*old, now));
        let own =
            || entries.iter().filter(|(_, old)| port_in(*old) == Some(port)).min_by_key(|(_, old)| second_in(*old));
        let count = |old: u64| port_in(old).map_or(0, |holder| self.count(holder));
        let hoarded = || {
            let most = entries.iter().max_by_key(|(_, old)| (count(*old), Reverse(second_in(*old))));
            most.filter(|(_, old)| count(*old) > self.count(port))
        };
        let with_room = |place: Option<_>| place.filter(|_| has_room);
        let place = with_room(free()).or_else(own).or_else(|| with_room(hoarded()));
        if let Some((entry, old)) = place
            && let Some(replaced) = self.replace(entry, *old, value)
        {
            entry.key.store(key.0, Ordering::Release);
            self.changed(replaced, self.shard(hash));
        }
    }

    /// Frees aged entries in the next sets, so that old addresses do not count towards their port.
    fn sweep(&self, now: Time) {
        let first = self.hand.0.fetch_add(SWEPT, Ordering::Relaxed);
        for at in first..first.wrapping_add(SWEPT) {
            let at = at & (self.sets.len() - 1);
            for entry in &self.sets[at].entries {
                let old = entry.value.load(Ordering::Relaxed);
                if old != 0 && !self.is_fresh(old, now) {
                    self.free(entry, old, at);
                }
            }
        }
    }

    /// Frees an entry of a set.
    fn free(&self, entry: &Entry, old: u64, set: usize) {
        if let Some(replaced) = self.replace(entry, old, 0) {
            self.changed(replaced, set);
        }
    }

    /// Changes an entry's value, and counts it. Returns the value before; `None` if another worker was faster. A worker that has come to
    /// keep the entry is not faster.
    fn replace(&self, entry: &Entry, old: u64, new: u64) -> Option<u64> {
        let replace = |old| entry.value.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
        let replaced =
            replace(old).or_else(|found| if found == old | KEPT { replace(found) } else { Err(found) }).ok()?;
        let (before, after) = (port_in(replaced), port_in(new));
        if before != after {
            if let Some(share) = before.and_then(|port| self.share(port)) {
                share.count.fetch_sub(1, Ordering::Relaxed);
            }
            if let Some(share) = after.and_then(|port| self.share(port)) {
                share.count.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(replaced)
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
        for (set, at) in self.sets.iter().zip(0..) {
            for entry in &set.entries {
                let old = entry.value.load(Ordering::Relaxed);
                if port_in(old).is_some_and(&is_gone) {
                    self.free(entry, old, at);
                }
            }
        }
    }

    /// All current entries, in no order.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = Learned> + '_ {
        self.sets.iter().flat_map(|set| &set.entries).filter_map(move |entry| {
            let (key, value) = (entry.key.load(Ordering::Acquire), entry.value.load(Ordering::Acquire));
            let port = port_in(value).filter(|_| key != 0 && self.is_fresh(value, now))?;
            let silent = Duration::from_secs(second(now).saturating_sub(second_in(value)).into());
            Some(Learned { address: address_in(key), fid: (key >> 48) as u16 & 0x1fff, port, silent })
        })
    }
}
