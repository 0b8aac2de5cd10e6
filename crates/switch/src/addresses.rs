//! The address table: the port from which an address was last heard.
//!
//! A set holds four entries in one cache line. An entry is a key word (address and filtering identifier) and a value word (port,
//! second of last use, a check on the key). Both are atomics written one after the other, so a reader may see a new key with an old
//! value. The check turns that into a miss, and a miss is a flood, which is always correct. A full set replaces the entry that was
//! silent longest.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nicety_adapter::{PortId, Time};
use nicety_frame::Mac;

const WAYS: usize = 4;

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
    /// Bits 0–15 the port, 16–31 the check, 32–63 the second of last use.
    value: AtomicU64,
}

/// An entry for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The address.
    pub address: Mac,
    /// The filtering identifier of its VLAN: 0 on the flat network, the VLAN's number, or 4096 and a service VLAN's.
    pub fid: u16,
    /// The port from which it was last heard.
    pub port: PortId,
    /// How long ago, in whole seconds.
    pub silent: Duration,
}

/// See the module's page.
#[derive(Debug)]
pub struct Addresses {
    sets: Box<[Set]>,
    ageing_s: u32,
}

/// An address to look up: the key word and its hash, which is slower to compute than the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    word: u64,
    hash: u64,
}

impl Key {
    pub(crate) fn new(address: Mac, fid: u16) -> Self {
        let [a, b, c, d, e, f] = address.0;
        let word = 1 << 63 | u64::from(fid & 0x1fff) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        Self { word, hash: mix(word) }
    }

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

/// A multiplicative mix (the finaliser of SplitMix64): the low bits choose the set, the high ones are the check.
fn mix(key: u64) -> u64 {
    let x = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn second(now: Time) -> u32 {
    (now.0 / 1_000_000_000) as u32
}

fn value_of(port: PortId, check: u64, second: u32) -> u64 {
    u64::from(port.0) | (check >> 48) << 16 | u64::from(second) << 32
}

impl Addresses {
    /// An empty table for about this many addresses.
    pub fn new(addresses: usize, ageing: Duration) -> Self {
        let sets = addresses.clamp(WAYS, 1 << 24).div_ceil(WAYS).next_power_of_two();
        let sets = (0..sets).map(|_| Set::default()).collect();
        Self { sets, ageing_s: u32::try_from(ageing.as_secs()).unwrap_or(u32::MAX) }
    }

    fn set(&self, key: Key) -> &Set {
        &self.sets[key.hash as usize & (self.sets.len() - 1)]
    }

    /// Prefetches an address's set, without waiting for it.
    pub(crate) fn prefetch(&self, key: Key) {
        std::hint::black_box(self.set(key).entries[0].key.load(Ordering::Relaxed));
    }

    /// The port from which an address was heard within the ageing time.
    pub fn find(&self, address: Mac, fid: u16, now: Time) -> Option<PortId> {
        self.find_key(Key::new(address, fid), now)
    }

    #[inline]
    pub(crate) fn find_key(&self, key: Key, now: Time) -> Option<PortId> {
        let entry = self.set(key).entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.word)?;
        let value = entry.value.load(Ordering::Acquire);
        let whole = (value >> 16) & 0xffff == key.hash >> 48;
        let fresh = second(now).saturating_sub((value >> 32) as u32) <= self.ageing_s;
        (whole && fresh).then_some(PortId(value as u16))
    }

    /// An address was heard from a port. Writes only if the port or the second has changed.
    pub fn learn(&self, address: Mac, fid: u16, port: PortId, now: Time) {
        self.learn_key(Key::new(address, fid), port, now);
    }

    #[inline]
    pub(crate) fn learn_key(&self, key: Key, port: PortId, now: Time) {
        let value = value_of(port, key.hash, second(now));
        let set = self.set(key);
        if let Some(entry) = set.entries.iter().find(|entry| entry.key.load(Ordering::Acquire) == key.word) {
            if entry.value.load(Ordering::Relaxed) != value {
                entry.value.store(value, Ordering::Release);
            }
            return;
        }
        let idle = |entry: &&Entry| match entry.key.load(Ordering::Relaxed) {
            0 => 0,
            _ => 1 + (entry.value.load(Ordering::Relaxed) >> 32),
        };
        if let Some(entry) = set.entries.iter().min_by_key(idle) {
            entry.value.store(value, Ordering::Release);
            entry.key.store(key.word, Ordering::Release);
        }
    }

    /// Forgets all addresses learned from a port.
    pub fn forget(&self, port: PortId) {
        for entry in self.sets.iter().flat_map(|set| &set.entries) {
            if entry.key.load(Ordering::Relaxed) != 0 && entry.value.load(Ordering::Relaxed) as u16 == port.0 {
                entry.key.store(0, Ordering::Release);
            }
        }
    }

    /// All current entries, in no order.
    pub fn iter(&self, now: Time) -> impl Iterator<Item = Learned> + '_ {
        let now = second(now);
        self.sets.iter().flat_map(|set| &set.entries).filter_map(move |entry| {
            let (key, value) = (entry.key.load(Ordering::Acquire), entry.value.load(Ordering::Acquire));
            let age = now.saturating_sub((value >> 32) as u32);
            let silent = Duration::from_secs(u64::from(age));
            (key != 0 && age <= self.ageing_s).then_some(Learned {
                address: address_in(key),
                fid: (key >> 48) as u16 & 0x1fff,
                port: PortId(value as u16),
                silent,
            })
        })
    }
}
