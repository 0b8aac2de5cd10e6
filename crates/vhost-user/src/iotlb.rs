//! The translations of an IOMMU that the front end models ("IOTLB messages"): a cache, filled on demand.
//!
//! With VIRTIO_F_ACCESS_PLATFORM a driver uses I/O virtual addresses. A page that is not in the cache is asked for on the back end's
//! channel (`VHOST_USER_BACKEND_IOTLB_MSG`); the front end answers with an update on the main one, and takes translations back.

use std::collections::BTreeMap;
use std::sync::Arc;

use nicety_memory::{MAX_REGIONS, Map, MapError, Miss, Misses, Piece, Rights};

use crate::protocol::Fields;

/// Bytes of `struct vhost_iotlb_msg` (linux/vhost_types.h).
pub(crate) const MESSAGE_BYTES: usize = 32;
/// Values of the field `perm`: read, write, both.
const READ: u8 = 1;
const WRITE: u8 = 2;
/// Values of the field `type`.
const MISS: u8 = 1;
const UPDATE: u8 = 2;
const INVALIDATE: u8 = 3;
/// Most translations. When they are all there, the cache is emptied: what is used is asked for again.
const ENTRIES_MAX: usize = MAX_REGIONS;

/// A front end's message about a range of I/O virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Iotlb {
    /// It translates to this address in the front end's process.
    Update { address: u64, len: u64, user: u64, rights: Rights },
    /// It translates to nothing any more.
    Invalidate { address: u64, len: u64 },
}

impl Iotlb {
    pub fn read(body: &[u8]) -> Option<Self> {
        let mut fields = Fields(body);
        let (address, len, user) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let [perm, kind, _padding @ ..] = fields.0.first_chunk::<8>().filter(|_| body.len() == MESSAGE_BYTES)?;
        match *kind {
            UPDATE => {
                address.checked_add(len.checked_sub(1)?)?;
                user.checked_add(len)?;
                let rights = Rights { read: perm & READ != 0, write: perm & WRITE != 0 };
                ((READ..=READ | WRITE).contains(perm)).then_some(Self::Update { address, len, user, rights })
            }
            INVALIDATE => Some(Self::Invalidate { address, len }),
            _ => None,
        }
    }
}

/// The message that asks for a page.
pub(crate) fn question(miss: Miss) -> [u8; MESSAGE_BYTES] {
    let mut out = [0; MESSAGE_BYTES];
    out[..8].copy_from_slice(&miss.address.to_ne_bytes());
    out[24] = if miss.write { WRITE } else { READ };
    out[25] = MISS;
    out
}

/// The cache.
#[derive(Debug)]
pub(crate) struct Cache {
    misses: Arc<Misses>,
    /// The length of each translation by its first address.
    entries: BTreeMap<u64, u64>,
    map: Arc<Map>,
}

impl Cache {
    pub fn new(misses: Arc<Misses>) -> Self {
        let map = Arc::new(Map::on_demand(Arc::clone(&misses)));
        Self { misses, entries: BTreeMap::new(), map }
    }

    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    pub fn misses(&self) -> &Arc<Misses> {
        &self.misses
    }

    /// Forgets all translations.
    pub fn clear(&mut self) {
        *self = Self::new(Arc::clone(&self.misses));
        self.misses.answered();
    }

    /// Forgets all translations that overlap a range. A translation goes as a whole.
    pub fn invalidate(&mut self, address: u64, len: u64) {
        let end = address.saturating_add(len);
        let below = self.entries.range(..end).rev();
        let overlaps = |(first, bytes): &(&u64, &u64)| first.saturating_add(**bytes) > address;
        let gone: Vec<(u64, u64)> = below.take_while(overlaps).map(|(first, bytes)| (*first, *bytes)).collect();
        let mut map = Map::clone(&self.map);
        for (first, bytes) in gone {
            self.entries.remove(&first);
            map = map.without_within(first, bytes);
        }
        self.map = Arc::new(map);
        self.misses.answered();
    }

    /// Adds a translation, in place of those that it overlaps.
    pub fn update(&mut self, address: u64, piece: Piece, len: u64, rights: Rights) -> Result<(), MapError> {
        if self.entries.len() >= ENTRIES_MAX {
            self.clear();
        }
        self.invalidate(address, len);
        self.map = Arc::new(self.map.with(address, piece, rights)?);
        self.entries.insert(address, len);
        Ok(())
    }
}
