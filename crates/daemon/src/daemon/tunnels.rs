//! Forwarding tables of tunnels. The tunnel's worker reads one; the fabric, which knows where guests are, writes to it.

use std::collections::BTreeMap;
use std::sync::{MutexGuard, PoisonError};

use nicety_uplink::Hops;

use super::Daemon;
use crate::random::random;

impl Daemon {
    /// The hops of the tunnel with this name. They outlive it: one that is opened again has the same.
    pub fn hops(&self, name: &str) -> Hops {
        self.all_hops().entry(name.to_owned()).or_insert_with(|| Hops::new(random())).clone()
    }

    /// The tunnel of this name, which is about to join, finds other hosts by these.
    pub(crate) fn feed_by(&self, name: &str, hops: Hops) {
        self.all_hops().insert(name.to_owned(), hops);
    }

    fn all_hops(&self) -> MutexGuard<'_, BTreeMap<String, Hops>> {
        self.hops.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
