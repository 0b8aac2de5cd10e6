//! Routes causes to vectors.

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

/// Most causes of a table.
pub const ROUTES: usize = 32;
/// An entry of a table without a vector.
const NONE: u8 = 0xff;

/// Maps causes to MSI-X vectors. The line, and MSI with one vector, carry every cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterruptRouter {
    /// Cause `n` interrupts by vector `n`.
    Direct,
    /// Each cause has an entry (82574: IVAR), which the driver writes.
    Table(ArrayVec<u8, ROUTES>),
}

impl InterruptRouter {
    /// A table for this many causes, at most [`ROUTES`]. No cause has a vector yet.
    pub fn table(causes: usize) -> Self {
        Self::Table(std::iter::repeat_n(NONE, causes.min(ROUTES)).collect())
    }

    /// Routes a cause to a vector below 255, or to none. Ignores causes outside the table.
    pub fn route(&mut self, cause: u16, vector: Option<u8>) {
        if let Self::Table(table) = self
            && let Some(entry) = table.get_mut(usize::from(cause))
        {
            *entry = vector.unwrap_or(NONE);
        }
    }

    /// The vector of a cause.
    pub fn vector(&self, cause: u16) -> Option<u16> {
        match self {
            Self::Direct => Some(cause),
            Self::Table(table) => table.get(usize::from(cause)).filter(|entry| **entry != NONE).map(|e| u16::from(*e)),
        }
    }

    /// Whether it has the same shape as another, so that a saved router can replace it.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Direct, Self::Direct) => true,
            (Self::Table(one), Self::Table(two)) => one.len() == two.len(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_routes_the_causes_that_it_has_and_a_direct_router_all() {
        let mut table = InterruptRouter::table(25);
        assert_eq!(table.vector(20), None);
        table.route(20, Some(3));
        table.route(25, Some(1));
        assert_eq!((table.vector(20), table.vector(25), table.vector(u16::MAX)), (Some(3), None, None));
        table.route(20, None);
        assert_eq!(table.vector(20), None);
        assert_eq!(InterruptRouter::Direct.vector(64), Some(64));
        assert!(!table.fits(&InterruptRouter::Direct) && !table.fits(&InterruptRouter::table(24)));
    }
}
