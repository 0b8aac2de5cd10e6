//! Addresses that a map does not translate yet: it is the cache of an IOMMU (an IOTLB), and somebody else translates on demand.
//!
//! An access to such an address is [absent](crate::Fault::Absent), not refused: the device stops before its first side effect, and
//! tries again with the next map. The page is asked for once, until the map changes.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a page that is asked for. An answer may translate more.
const PAGE: u64 = 4096;
/// Most pages of one access that are asked for: a packet of 64 KiB.
const PAGES_MAX: usize = 17;
/// Most pages that are asked for and not answered.
const ASKED_MAX: usize = 256;

/// A page that a device wants to access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Bus address of the page.
    pub address: u64,
    /// Whether the device wants to write there. False: to read.
    pub write: bool,
}

/// The pages that a device misses. A map asks there once told ([`Map::on_demand`](crate::Map::on_demand)).
pub struct Misses {
    asked: Mutex<Asked>,
    notify: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Asked {
    /// Misses that nobody has taken yet.
    new: Vec<Miss>,
    /// Misses that were taken, and have no answer.
    taken: Vec<Miss>,
}

impl fmt::Debug for Misses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Misses").finish_non_exhaustive()
    }
}

impl Misses {
    /// No page is missed. `notify` is called when [`Misses::take`] has pages; it must not block.
    pub fn new(notify: impl Fn() + Send + Sync + 'static) -> Self {
        Self { asked: Mutex::default(), notify: Box::new(notify) }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages to ask for. Each is returned once, until [`Misses::answered`].
    pub fn take(&self) -> Vec<Miss> {
        let mut asked = self.lock();
        let new = std::mem::take(&mut asked.new);
        asked.taken.extend(&new);
        new
    }

    /// The map has changed: what it still misses is asked for again.
    pub fn answered(&self) {
        self.lock().taken.clear();
    }

    /// A device wants to access `[from, end)`.
    #[cold]
    pub(crate) fn ask(&self, from: u64, end: u64, write: bool) {
        let mut asked = self.lock();
        let Asked { new, taken } = &mut *asked;
        let before = new.len();
        let first = from & !(PAGE - 1);
        for address in (first..end).step_by(PAGE as usize).take(PAGES_MAX) {
            let miss = Miss { address, write };
            if new.len() + taken.len() < ASKED_MAX && !new.contains(&miss) && !taken.contains(&miss) {
                new.push(miss);
            }
        }
        let is_first = before == 0 && !new.is_empty();
        drop(asked);
        if is_first {
            (self.notify)();
        }
    }
}
