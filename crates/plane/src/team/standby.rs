//! Active-standby: one member carries all frames, the others wait.

use std::time::Duration;

use nicety_adapter::Time;

use super::MEMBERS_MAX;
use super::mode::Mode;
use super::rule::{Links, Rule};
use super::saved::SavedRule;
use super::saved::{SavedStandby, saved_place};

/// The neighbouring switch floods to all members. When another one becomes active, copies of frames that the old one took, and of those that it
/// sent, may still be on their way to it: it takes frames after this time.
const IN_FLIGHT_NS: u64 = 5_000_000;

/// The members in the order of preference. Another member than the first, the primary, stays active until it fails, or until the primary has
/// been up for the fail-back delay.
#[derive(Debug)]
pub struct Standby {
    /// The members' places.
    order: Vec<usize>,
    primary: usize,
    fail_back: Duration,
    up: u32,
    active: Option<usize>,
    /// The primary has been active.
    has_begun: bool,
    /// The time at which the primary takes over again.
    back_at: Option<Time>,
    /// The member that was active and is still up.
    lingering: Option<usize>,
    /// The active member takes frames from this time on.
    takes_at: Option<Time>,
}

impl Standby {
    /// The primary, then the others by their places. `primary` is its place in the team.
    pub fn new(primary: usize, fail_back: Duration) -> Self {
        let others = (0..MEMBERS_MAX).filter(|member| *member != primary);
        Self::ordered(&std::iter::once(primary).chain(others).collect::<Vec<_>>(), fail_back)
    }

    /// The members in the order of preference, by their places. Without one none is used.
    pub fn ordered(order: &[usize], fail_back: Duration) -> Self {
        Self {
            order: order.to_vec(),
            primary: order.first().copied().unwrap_or_default(),
            fail_back,
            up: 0,
            active: None,
            has_begun: false,
            back_at: None,
            lingering: None,
            takes_at: None,
        }
    }

    fn is_up(&self, member: usize) -> bool {
        self.up >> member & 1 != 0
    }
}

impl Rule for Standby {
    fn set(&mut self, mode: &Mode, now: Time) -> bool {
        let Mode::Standby { order, fail_back } = mode else { return false };
        (self.order, self.fail_back) = (order.clone(), *fail_back);
        let primary = order.first().copied().unwrap_or_default();
        if self.primary != primary {
            self.primary = primary;
            // Another primary has not failed: it takes over at once.
            self.back_at = (self.is_up(primary) && self.active != Some(primary)).then_some(now);
        }
        true
    }

    fn save(&self) -> Option<SavedRule> {
        let Self { order: _, primary: _, fail_back: _, up, active, has_begun, back_at, lingering, takes_at } = self;
        let place = |place: &Option<usize>| place.map(saved_place);
        Some(SavedRule::Standby(SavedStandby {
            up: *up,
            active: place(active),
            has_begun: *has_begun,
            back_at: *back_at,
            lingering: place(lingering),
            takes_at: *takes_at,
        }))
    }

    fn restore(&mut self, saved: &SavedRule) -> bool {
        let SavedRule::Standby(SavedStandby { up, active, has_begun, back_at, lingering, takes_at }) = saved else {
            return false;
        };
        let place = |place: &Option<u8>| place.map(usize::from).filter(|place| *place < MEMBERS_MAX);
        (self.up, self.active, self.has_begun) = (*up, place(active), *has_begun);
        (self.back_at, self.lingering, self.takes_at) = (*back_at, place(lingering), *takes_at);
        true
    }

    fn link(&mut self, member: usize, is_up: bool, now: Time) {
        let was_up = self.is_up(member);
        if is_up {
            self.up |= 1 << member;
        } else {
            self.up &= !(1 << member);
        }
        if member == self.primary && is_up != was_up {
            let returns = is_up && self.active.is_some_and(|active| active != member);
            // When the team begins, links come up one after the other: only a primary that has failed waits.
            let delay = if self.has_begun { self.fail_back } else { Duration::ZERO };
            self.back_at = returns.then(|| now.after(delay));
        }
        if self.lingering.is_some_and(|lingering| !self.is_up(lingering)) {
            self.settled(now);
        }
    }

    fn tick(&mut self, now: Time) {
        let before = self.active;
        if self.active.is_some_and(|active| !self.is_up(active)) {
            self.active = None;
        }
        if self.active.is_none() {
            self.active = self.order.iter().copied().find(|member| self.is_up(*member));
        }
        if self.active == Some(self.primary) {
            (self.has_begun, self.back_at) = (true, None);
        }
        if self.back_at.take_if(|at| *at <= now).is_some() {
            self.lingering = self.active.replace(self.primary);
        }
        if self.active != before && self.lingering.is_none() {
            self.takes_at = Some(now.after_ns(IN_FLIGHT_NS));
        }
        let _taken_from_now_on = self.takes_at.take_if(|at| *at <= now);
    }

    fn wake(&self, member: usize) -> Option<Time> {
        let back = self.back_at.filter(|_| member == self.primary);
        let takes = self.takes_at.filter(|_| self.active == Some(member));
        back.into_iter().chain(takes).min()
    }

    fn links(&self) -> Links {
        let bit = |member: Option<usize>| member.map_or(0, |member| 1 << member);
        Links {
            // The former member takes frames as long as it sends some.
            collecting: bit(self.lingering.or(self.active.filter(|_| self.takes_at.is_none()))),
            distributing: bit(self.active),
            lingering: bit(self.lingering),
        }
    }

    fn announces(&self) -> bool {
        true
    }

    fn settled(&mut self, now: Time) {
        if self.lingering.take().is_some() {
            self.takes_at = Some(now.after_ns(IN_FLIGHT_NS));
        }
    }

    fn words(&self, member: usize, now: Time) -> String {
        if !self.is_up(member) {
            "no carrier".to_owned()
        } else if self.active == Some(member) {
            "active".to_owned()
        } else if let (true, Some(at)) = (member == self.primary, self.back_at) {
            format!("takes over again in {} s", at.0.saturating_sub(now.0).div_ceil(1_000_000_000))
        } else {
            "stands by".to_owned()
        }
    }
}
