//! Links of adapters that their host decides.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::{PortId, Time};

use super::Plane;
use crate::port::Port;

/// The link of a port's adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterLink {
    /// Always up.
    Up,
    /// Always down.
    Down,
    /// The carrier of the uplink or the team with this number.
    Carrier(PortId),
}

/// Ports whose adapter's link was decided, each with its link.
#[derive(Debug, Default)]
pub(crate) struct Followers(Mutex<BTreeMap<PortId, (Arc<Port>, AdapterLink)>>);

impl Followers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PortId, (Arc<Port>, AdapterLink)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn link(&self, of: &Arc<Port>) -> Option<AdapterLink> {
        self.lock().get(&of.id()).filter(|(port, _)| Arc::ptr_eq(port, of)).map(|(_, link)| *link)
    }
}

impl Plane {
    /// Makes `link` the link of this port's adapter.
    pub fn follow(&self, port: &Arc<Port>, link: AdapterLink, now: Time) {
        self.followers.lock().insert(port.id(), (Arc::clone(port), link));
        self.show_link(port, now);
    }

    /// A port has left: nobody decides its adapter's link any more.
    pub fn unfollow(&self, left: &Port) {
        let mut followers = self.followers.lock();
        if followers.get(&left.id()).is_some_and(|(port, _)| std::ptr::eq(port.as_ref(), left)) {
            followers.remove(&left.id());
        }
    }

    /// The carrier of an uplink has changed: the links of its followers, and of those of its team, change too.
    pub fn carrier_changed(&self, uplink: PortId, now: Time) {
        let whose = AdapterLink::Carrier(self.port(uplink).and_then(|port| port.team()).unwrap_or(uplink));
        let all = self.followers.lock();
        let followers: Vec<_> = all.values().filter(|(_, link)| *link == whose).map(|(port, _)| port.clone()).collect();
        drop(all);
        followers.iter().for_each(|port| self.show_link(port, now));
    }

    /// Sets the link of a port's adapter. Another thread may do so at the same time, and have seen another carrier, or what the host
    /// had decided before: who comes last looks again.
    fn show_link(&self, port: &Arc<Port>, now: Time) {
        while let Some(is_up) = self.has_link(port) {
            port.set_link(is_up, now);
            if self.has_link(port) == Some(is_up) {
                return;
            }
        }
    }

    /// Whether the link of this port's adapter is to be up. `None` if nobody decides it.
    fn has_link(&self, port: &Arc<Port>) -> Option<bool> {
        Some(match self.followers.link(port)? {
            AdapterLink::Up => true,
            AdapterLink::Down => false,
            AdapterLink::Carrier(whose) => self.has_carrier(whose),
        })
    }

    /// Whether an uplink, or a member of a team, has a carrier, and is not blocked.
    fn has_carrier(&self, id: PortId) -> bool {
        if self.switch().is_blocked(id) {
            return false;
        }
        self.switch().slots().get(id).is_some_and(|slot| slot.ports().any(|port| port.has_carrier()))
    }
}
