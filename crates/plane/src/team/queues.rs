//! The queues of one interface as a team: every queue takes frames and sends them.
//!
//! A port sends on one queue, by its number ([`Hash::Sender`](super::Hash::Sender)). The interface gives a flow's frames to the queue that has
//! last sent some of it (Linux, drivers/net/tun.c, `tun_flow_update`), so the answers for a port come on its queue. What comes on another
//! queue, as the first frames of a flow from outside do, reaches its port all the same: the switch decides by address.

use nicety_adapter::Time;

use super::{Links, Rule, SavedRule};

/// The rule of a team of queues.
#[derive(Debug, Default)]
pub struct Queues {
    up: u32,
}

impl Rule for Queues {
    fn save(&self) -> Option<SavedRule> {
        Some(SavedRule::Queues(self.up))
    }

    fn restore(&mut self, saved: &SavedRule) -> bool {
        let SavedRule::Queues(up) = saved else { return false };
        self.up = *up;
        true
    }

    fn link(&mut self, member: usize, is_up: bool, _now: Time) {
        if is_up {
            self.up |= 1 << member;
        } else {
            self.up &= !(1 << member);
        }
    }

    fn tick(&mut self, _now: Time) {}

    fn wake(&self, _member: usize) -> Option<Time> {
        None
    }

    fn links(&self) -> Links {
        Links { collecting: self.up, distributing: self.up, lingering: 0 }
    }

    fn words(&self, member: usize, _now: Time) -> String {
        let is_up = self.up >> member & 1 != 0;
        if is_up { "active" } else { "no carrier" }.to_owned()
    }
}
