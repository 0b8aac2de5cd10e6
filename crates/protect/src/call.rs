//! One request to the third party at a time.

use nicety_adapter::Time;
use nicety_lease::{Answer, Request};

use crate::{Action, Terms};

/// The request under way, and when the next one may be made.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Call {
    number: u32,
    under_way: Option<(Request, Time)>,
    not_before: Time,
}

impl Call {
    /// Asks, unless the same was asked, or something was a moment ago. A request that waits gives way to another one.
    pub fn ask(&mut self, request: Request, terms: &Terms, now: Time) -> Option<Action> {
        let waits = self.under_way.is_some_and(|(asked, since)| asked == request && now.since(since) < terms.lease);
        if waits || now < self.not_before {
            return None;
        }
        self.number += 1;
        self.under_way = Some((request, now));
        self.not_before = now.after(terms.again);
        Some(Action::Ask(self.number, request))
    }

    /// Takes the request with this number, and the time at which it was made. `None`: another one was made since.
    pub fn answered(&mut self, number: u32) -> Option<(Request, Time)> {
        self.under_way.take_if(|_| number == self.number)
    }

    /// The next request may be made at once.
    pub fn hurry(&mut self) {
        self.not_before = Time::ZERO;
    }

    /// When to ask again.
    pub fn wake_at(&self, terms: &Terms) -> Time {
        self.under_way.map_or(self.not_before, |(_, since)| since.after(terms.lease))
    }
}

/// Whether the lease says that nobody may take the VM over, by this request or by an earlier one whose answer was lost.
pub fn is_alone(answer: &Answer, me: crate::Run) -> bool {
    answer.holder == Some(me) && answer.peer.is_none()
}
