//! The queues of one interface as a team: every queue takes frames, and every one sends them, or one sends for all.
//!
//! A port sends on one queue, by its number ([`Hash::Sender`](super::Hash::Sender)). The interface gives a flow's frames to the queue that has
//! last sent some of it (Linux, drivers/net/tun.c, `tun_flow_update`), so the answers for a port come on its queue. What comes on another
//! queue, as the first frames of a flow from outside do, reaches its port all the same: the switch decides by address.
//!
//! A limit, a share or a reservation is one of the interface. With one of these all frames leave by one queue's port: it has the lock, the
//! tokens and the order of all. What comes in has one control for all queues ([`Steering::inward`](super::Steering)).

use nicety_adapter::Time;

use super::MEMBERS_MAX;
use super::mode::Mode;
use super::rule::{Links, Rule};
use super::saved::SavedRule;
use super::saved::{SavedSender, saved_place};

/// The rule of a team of queues.
#[derive(Debug, Default)]
pub struct Queues {
    up: u32,
    one_sends: bool,
    /// The queue that sends if one does. It stays the same while it is up.
    sender: Option<usize>,
}

impl Queues {
    /// Queues that are all down. `one_sends`: all frames leave by one of them.
    pub fn new(one_sends: bool) -> Self {
        Self { one_sends, ..Self::default() }
    }

    fn choose_sender(&mut self) {
        let is_up = |sender: &usize| self.up >> sender & 1 != 0;
        let first = (self.up != 0).then_some(self.up.trailing_zeros() as usize);
        self.sender = self.sender.filter(is_up).or(first);
    }
}

impl Rule for Queues {
    fn set(&mut self, mode: &Mode, _now: Time) -> bool {
        let Mode::Queues { one_sends } = mode else { return false };
        self.one_sends = *one_sends;
        true
    }

    fn save(&self) -> Option<SavedRule> {
        let Self { up, one_sends, sender } = self;
        Some(match sender.filter(|_| *one_sends) {
            Some(sender) => SavedRule::OneQueue(SavedSender { up: *up, sender: saved_place(sender) }),
            None => SavedRule::Queues(*up),
        })
    }

    fn restore(&mut self, saved: &SavedRule) -> bool {
        match saved {
            SavedRule::Queues(up) => self.up = *up,
            SavedRule::OneQueue(SavedSender { up, sender }) => {
                self.up = *up;
                self.sender = Some(usize::from(*sender)).filter(|sender| *sender < MEMBERS_MAX);
            }
            _ => return false,
        }
        self.choose_sender();
        true
    }

    fn link(&mut self, member: usize, is_up: bool, _now: Time) {
        if is_up {
            self.up |= 1 << member;
        } else {
            self.up &= !(1 << member);
        }
        self.choose_sender();
    }

    fn tick(&mut self, _now: Time) {}

    fn wake(&self, _member: usize) -> Option<Time> {
        None
    }

    fn links(&self) -> Links {
        let distributing = match self.sender.filter(|_| self.one_sends) {
            Some(sender) => 1 << sender,
            None => self.up,
        };
        // Frames that wait at the other queues leave there.
        Links { collecting: self.up, distributing, lingering: self.up & !distributing }
    }

    fn is_one_link(&self) -> bool {
        true
    }

    fn words(&self, member: usize, _now: Time) -> String {
        let is_up = self.up >> member & 1 != 0;
        let only_takes = self.one_sends && self.sender != Some(member);
        match (is_up, only_takes) {
            (false, _) => "no carrier",
            (true, true) => "takes frames only",
            (true, false) => "active",
        }
        .to_owned()
    }
}
