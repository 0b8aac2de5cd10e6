//! A range of bus addresses, and a device's rights to it.

use std::sync::Arc;

use crate::mapping::Mapping;

/// A device's rights to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The device may read (DMA from the guest).
    pub read: bool,
    /// The device may write (DMA to the guest).
    pub write: bool,
}

impl Rights {
    /// Both ways: ordinary RAM.
    pub const BOTH: Self = Self { read: true, write: true };
    /// Reads only: a ROM.
    pub const READ: Self = Self { read: true, write: false };
    /// Writes only.
    pub const WRITE: Self = Self { read: false, write: true };

    #[inline(always)]
    pub(crate) fn allow(self, wanted: Self) -> bool {
        (self.read || !wanted.read) && (self.write || !wanted.write)
    }

    /// The rights that both allow.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { read: self.read && other.read, write: self.write && other.write }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub base: u64,
    pub len: u64,
    pub rights: Rights,
    /// Its mapping and the offset in it, unless it was not shared.
    pub place: Option<(Arc<Mapping>, u64)>,
}

impl Region {
    /// The address behind its last byte; a region never ends beyond the address space.
    pub fn end(&self) -> u64 {
        self.base + self.len
    }

    /// Its rights, if it was shared.
    pub fn mapped_rights(&self) -> Option<Rights> {
        self.place.as_ref().map(|_| self.rights)
    }

    /// Whether it was shared, with these rights.
    pub fn gives(&self, wanted: Rights) -> bool {
        self.mapped_rights().is_some_and(|rights| rights.allow(wanted))
    }
}
