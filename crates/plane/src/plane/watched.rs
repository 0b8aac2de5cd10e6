//! Watchers of a plane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, PACKETS, Pick, Time};
use nicety_switch::{Plan, Slots};

use super::{GUARDED, Plane, Slot, WATCHED};
use crate::losses::Losses;
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
        self.note_watched();
    }

    /// Removes a watcher. It may still see a batch that is in flight.
    pub fn unwatch(&self, watcher: &Arc<dyn Watcher>) {
        self.watchers.rcu(|old| {
            let mut new = Vec::clone(old);
            new.retain(|other| !Arc::ptr_eq(other, watcher));
            new
        });
        self.note_watched();
    }

    /// Sets the flag by whether there are watchers or mirrors.
    pub(crate) fn note_watched(&self) {
        // A concurrent call has changed a list before this (then the list is not empty below), or sets the flag after it.
        self.watched.fetch_and(!WATCHED, Ordering::SeqCst);
        if !self.watchers.load().is_empty() || !self.mirrors.load().is_empty() {
            self.watched.fetch_or(WATCHED, Ordering::SeqCst);
        }
    }

    /// Sets the flag by whether there are uplinks between which frames could go round.
    pub(crate) fn note_guarded(&self, guards: bool) {
        match guards {
            true => self.watched.fetch_or(GUARDED, Ordering::SeqCst),
            false => self.watched.fetch_and(!GUARDED, Ordering::SeqCst),
        };
    }

    /// [`WATCHED`], [`GUARDED`], [`COUNTED`](super::COUNTED).
    #[inline]
    pub(crate) fn watched(&self) -> u8 {
        self.watched.load(Ordering::Relaxed)
    }

    /// Remembers what may go round, shows a batch to the watchers, and adds the mirrors to its receivers. Returns the bytes of the copies that are to be made, which
    /// are not the sender's to pay.
    #[cold]
    #[inline(never)]
    pub(crate) fn show_ingress(
        &self,
        port: &Port,
        batch: &Batch,
        plan: &mut Plan,
        slots: Option<&Slots<Slot>>,
        now: Time,
    ) -> u64 {
        if self.watched() & GUARDED != 0 {
            self.note_flooded(port, batch, plan, now);
        }
        self.watchers.load().iter().for_each(|watcher| watcher.ingress(batch, plan, now));
        slots.map_or(0, |slots| self.copy_ingress(port, batch, plan, slots))
    }

    /// Like [`Port::offer`], and shows the frames to the watchers and to the mirrors, if there are any.
    #[inline]
    pub(crate) fn offer_shown(
        &self,
        port: &Port,
        batch: &Batch,
        picks: &[Pick],
        losses: &mut Losses,
        now: Time,
    ) -> bool {
        if self.watched() & WATCHED != 0 {
            self.offer_watched(port, batch, picks, losses, now)
        } else {
            port.offer(batch, picks, losses, now)
        }
    }

    #[cold]
    fn offer_watched(&self, port: &Port, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) -> bool {
        let holds = self.offer_each(port, batch, picks, losses, now);
        self.copy_egress(port, batch, picks, now);
        holds
    }

    fn offer_each(&self, port: &Port, batch: &Batch, picks: &[Pick], losses: &mut Losses, now: Time) -> bool {
        let watchers = self.watchers.load();
        let shown = port.place().shown;
        if !watchers.iter().any(|watcher| watcher.watches_egress(shown)) {
            return port.offer(batch, picks, losses, now);
        }
        let mut offered = ArrayVec::<_, PACKETS>::new();
        let holds = port.offer_each(batch, picks, losses, now, |pick, fate| {
            // Never full: a batch has no more packets.
            let _pushed = offered.try_push((pick, fate));
        });
        for watcher in watchers.iter().filter(|watcher| watcher.watches_egress(shown)) {
            watcher.egress(shown, batch, &offered, now);
        }
        holds
    }
}
