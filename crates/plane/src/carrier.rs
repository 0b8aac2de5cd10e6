//! Ports whose adapter's link is an uplink's carrier: the functions of a card.

use std::sync::{Arc, Mutex, MutexGuard};

use nicety_adapter::{PortId, Time};

use crate::plane::{Plane, Slot};
use crate::port::Port;

/// The followers of uplinks, each with the number of its uplink or team.
#[derive(Debug, Default)]
pub(crate) struct Followers(Mutex<Vec<(PortId, Arc<Port>)>>);

impl Followers {
    fn lock(&self) -> MutexGuard<'_, Vec<(PortId, Arc<Port>)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Plane {
    /// The link of this port's adapter is the carrier of an uplink or a team from now on; or up, with `None`.
    pub fn follow(&self, port: &Arc<Port>, uplink: Option<PortId>, now: Time) {
        let mut followers = self.followers.lock();
        followers.retain(|(_, other)| !Arc::ptr_eq(other, port));
        followers.extend(uplink.map(|uplink| (uplink, Arc::clone(port))));
        drop(followers);
        match uplink {
            Some(uplink) => self.show_carrier(uplink, &[Arc::clone(port)], now),
            None => port.set_link(true, now),
        }
    }

    /// A port has left: its adapter follows no uplink any more.
    pub(crate) fn unfollow(&self, left: &Port) {
        self.followers.lock().retain(|(_, port)| !std::ptr::eq(port.as_ref(), left));
    }

    /// The carrier of an uplink has changed: the links of its followers, and of those of its team, change too.
    pub fn carrier_changed(&self, uplink: PortId, now: Time) {
        let whose = self.port(uplink).and_then(|port| port.team()).unwrap_or(uplink);
        let followers: Vec<Arc<Port>> = {
            let all = self.followers.lock();
            all.iter().filter(|(followed, _)| *followed == whose).map(|(_, port)| Arc::clone(port)).collect()
        };
        if !followers.is_empty() {
            self.show_carrier(whose, &followers, now);
        }
    }

    /// Sets the links of these followers. Another thread may do so at the same time, and have seen another carrier: who comes last looks
    /// again.
    fn show_carrier(&self, whose: PortId, followers: &[Arc<Port>], now: Time) {
        loop {
            let is_up = self.has_carrier(whose);
            followers.iter().for_each(|port| port.set_link(is_up, now));
            if self.has_carrier(whose) == is_up {
                return;
            }
        }
    }

    /// Whether an uplink, or a member of a team, has a carrier.
    fn has_carrier(&self, id: PortId) -> bool {
        match self.switch().slots().get(id) {
            Some(Slot::Port(port)) => port.has_carrier(),
            Some(Slot::Team(team)) => team.members().any(|member| member.has_carrier()),
            None => false,
        }
    }
}
