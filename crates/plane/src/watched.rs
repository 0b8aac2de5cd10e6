//! Watchers of a plane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, PACKETS, Pick, Time};
use nicety_switch::Plan;

use crate::plane::Plane;
use crate::port::Port;
use crate::watch::Watcher;

impl Plane {
    /// Adds a watcher.
    pub fn watch(&self, watcher: &Arc<dyn Watcher>) {
        self.watchers.rcu(|old| {
            let mut new = Vec::clone(old);
            new.push(Arc::clone(watcher));
            new
        });
        self.watched.store(true, Ordering::Relaxed);
    }

    /// Removes a watcher. It may still see a batch that is in flight.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.watchers.rcu(|old| {
            let mut new = Vec::clone(old);
            new.retain(|other| !Arc::ptr_eq(other, watcher));
            new
        });
        // A concurrent `watch` sets the flag before this (then the list is not empty below) or after it.
        self.watched.store(false, Ordering::SeqCst);
        if !self.watchers.load().is_empty() {
            self.watched.store(true, Ordering::SeqCst);
        }
    }

    /// Whether there are watchers.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn show_ingress(&self, batch: &Batch, plan: &Plan, now: Time) {
        self.watchers.load().iter().for_each(|watcher| watcher.ingress(batch, plan, now));
    }

    /// Like [`Port::offer`], and shows the frames to the watchers.
    #[cold]
    pub(crate) fn offer_watched(&self, port: &Port, batch: &Batch, picks: &[Pick], now: Time) -> bool {
        let watchers = self.watchers.load();
        if !watchers.iter().any(|watcher| watcher.watches_egress(port.id())) {
            return port.offer(batch, picks, now);
        }
        let mut offered = ArrayVec::<_, PACKETS>::new();
        let holds = port.offer_each(batch, picks, now, |pick, fate| {
            // Never full: a batch has no more packets.
            let _pushed = offered.try_push((pick, fate));
        });
        for watcher in watchers.iter().filter(|watcher| watcher.watches_egress(port.id())) {
            watcher.egress(port.id(), batch, &offered, now);
        }
        holds
    }
}
