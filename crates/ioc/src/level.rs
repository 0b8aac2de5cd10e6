//! One level of the hierarchy: members that compete for what the level above gets.

use nicety_adapter::{Rate, Time};

use crate::QUANTUM_BYTES;
use crate::curve::Curve;
use crate::heap::Heap;
use crate::timeline::Timeline;

/// A reservation that was served late is caught up with for this long, or for one largest packet at its rate; more is lost. On a slow
/// link each packet of others makes it late.
const CATCH_UP_NS: u64 = 50_000_000;
/// The largest packet, a segmented one.
const LARGEST_BYTES: u64 = 64 << 10;
/// A limit is kept on average over this time: a worker that wakes late loses nothing.
const LIMIT_BURST_NS: u64 = 2_000_000;
/// An urgent member may send this many bytes at once, before all others.
const URGENT_BYTES: u64 = 64 << 10;
/// The deadline of an urgent member is this much earlier than any other's.
const URGENT_NS: u64 = 1 << 40;
/// Virtual time starts again above this.
const VIRTUAL_MAX: u64 = 1 << 62;

/// The terms of a class, or of a port in its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Its part while the link is full, beside the others' shares: 1 to 100.
    pub shares: u16,
    /// At least this rate, whenever it has frames. What it does not use is lent to the others.
    pub reservation: Option<Rate>,
    /// The limit: at most this rate.
    pub limit: Option<Rate>,
    /// Its reservation is served before all others', at most 64 KiB at once.
    pub is_urgent: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self { shares: 50, reservation: None, limit: None, is_urgent: false }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing of it waits.
    #[default]
    Idle,
    Competing,
    /// It may not send until later.
    Limited,
}

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    reserved: Curve,
    limit: Curve,
    share: Curve,
    shares: u16,
    state: State,
    is_urgent: bool,
    /// Bytes that it sends when it is served next.
    request: u32,
    /// Limit of its reservation's lag, in nanoseconds.
    catch_up_ns: u64,
}

impl Member {
    fn reserved_deadline(&self) -> u64 {
        if self.is_urgent {
            self.reserved.at.saturating_sub(URGENT_NS)
        } else {
            self.reserved.at.saturating_add(self.reserved.span(self.request.into()))
        }
    }

    fn share_deadline(&self) -> u64 {
        self.share.at + self.share.span(self.request.into())
    }
}

/// The member that is served next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub member: u16,
    pub by_reservation: bool,
    /// Bytes that it asked for.
    pub request: u32,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Level {
    members: Vec<Member>,
    /// The order of reservations, by real time.
    reserved: Timeline,
    /// The order of shares, by virtual time, which runs while members are served by shares.
    shared: Timeline,
    virtual_now: u64,
    /// The sum of the shares of those that compete.
    competing: u32,
    limited: Heap,
    /// Members that are not idle.
    active: u32,
}

impl Level {
    pub fn new(members: usize, terms: Terms) -> Self {
        let mut this = Self {
            members: vec![Member::default(); members],
            reserved: Timeline::new(members),
            shared: Timeline::new(members),
            virtual_now: 0,
            competing: 0,
            limited: Heap::new(members),
            active: 0,
        };
        (0..members).for_each(|member| this.set(member as u16, terms));
        this
    }

    /// Changes an idle member's terms.
    pub fn set(&mut self, member: u16, terms: Terms) {
        let Some(member) = self.members.get_mut(usize::from(member)) else { return };
        member.reserved.change(Curve::of_rate(terms.reservation));
        member.limit.change(Curve::of_rate(terms.limit));
        member.share.change(Curve::of_shares(terms.shares));
        (member.shares, member.is_urgent) = (terms.shares.max(1), terms.is_urgent);
        member.catch_up_ns = member.reserved.span(LARGEST_BYTES).max(CATCH_UP_NS);
    }

    /// Number of members of which frames wait.
    pub fn active(&self) -> u32 {
        self.active
    }

    pub fn is_idle(&self, member: u16) -> bool {
        self.members[usize::from(member)].state == State::Idle
    }

    /// The first time at which a member may send that may not now.
    pub fn limited_until(&self) -> Option<Time> {
        self.limited.first().map(|(at, _)| Time(at))
    }

    /// Frames of an idle member begin to wait; it will send `request` bytes when it is served.
    pub fn activate(&mut self, number: u16, request: u32, now: Time) {
        let member = &mut self.members[usize::from(number)];
        let credit = if member.is_urgent { member.reserved.span(URGENT_BYTES) } else { 0 };
        let since = now.0.saturating_sub(credit);
        if member.reserved.at < since {
            member.reserved.set(since);
        }
        member.request = request;
        self.active += 1;
        self.join(number, now);
    }

    /// A member competes from now on: what it did not use before is not its own.
    fn join(&mut self, number: u16, now: Time) {
        let member = &mut self.members[usize::from(number)];
        if member.share.at < self.virtual_now {
            member.share.set(self.virtual_now);
        }
        self.enter(number, now);
    }

    /// A member that was not to send until later competes again, unless its own limit holds it.
    pub fn resume(&mut self, number: u16, now: Time) {
        if self.members[usize::from(number)].state == State::Limited {
            self.limited.remove(number);
            self.join(number, now);
        }
    }

    fn enter(&mut self, number: u16, now: Time) {
        let member = &mut self.members[usize::from(number)];
        if member.limit.is_there() && member.limit.at > now.0 {
            member.state = State::Limited;
            self.limited.insert(number, member.limit.at);
            return;
        }
        member.state = State::Competing;
        self.competing += u32::from(member.shares);
        if member.reserved.is_there() {
            self.reserved.insert(number, member.reserved.at, member.reserved_deadline(), now.0);
        }
        self.shared.insert(number, member.share.at, member.share_deadline(), self.virtual_now);
    }

    /// Takes a member out of both orders.
    fn leave(&mut self, number: u16) {
        let member = &self.members[usize::from(number)];
        if member.state == State::Competing {
            self.competing -= u32::from(member.shares);
            if member.reserved.is_there() {
                self.reserved.remove(number);
            }
            self.shared.remove(number);
        }
    }

    /// A member competes no more. What it had above its share, or lacks, is the others': virtual time moves, so that they are neither
    /// late nor early together (Stoica and Abdel-Wahab 1995, section 4).
    fn settle(&mut self, number: u16) {
        let member = &self.members[usize::from(number)];
        if self.competing > 0 {
            let ahead = i128::from(member.share.at) - i128::from(self.virtual_now);
            let others = ahead * i128::from(member.shares) / i128::from(self.competing);
            self.virtual_now = u64::try_from(i128::from(self.virtual_now) - others).unwrap_or_default();
        }
    }

    /// A competing member may not send until this time.
    pub fn suspend(&mut self, number: u16, until: Time) {
        self.leave(number);
        self.settle(number);
        self.members[usize::from(number)].state = State::Limited;
        self.limited.insert(number, until.0);
    }

    /// The member that is served next. The same one until it is [served](Self::served).
    pub fn pick(&mut self, now: Time) -> Option<Pick> {
        while let Some((at, member)) = self.limited.first()
            && at <= now.0
        {
            self.resume(member, now);
        }
        let Self { members, reserved, shared, virtual_now, .. } = self;
        let pick = |member: u16, by_reservation| {
            Some(Pick { member, by_reservation, request: members[usize::from(member)].request })
        };
        reserved.ripen(now.0, |member| members[usize::from(member)].reserved_deadline());
        if let Some((_, member)) = reserved.ready.first() {
            return pick(member, true);
        }
        if shared.ready.is_empty() {
            // Nobody lies behind: virtual time jumps to the first.
            *virtual_now = shared.waiting.first()?.0.max(*virtual_now);
        }
        shared.ripen(*virtual_now, |member| members[usize::from(member)].share_deadline());
        pick(shared.ready.first()?.1, false)
    }

    /// The picked member sent this many bytes; it will send `next` bytes when it is served again, or nothing of it waits.
    pub fn served(&mut self, pick: Pick, bytes: u64, next: Option<u32>, now: Time) {
        let number = pick.member;
        let competing = self.competing;
        self.leave(number);
        let member = &mut self.members[usize::from(number)];
        if member.limit.is_there() {
            member.limit.advance(now.0.saturating_sub(LIMIT_BURST_NS), bytes);
        }
        let before = member.share.at;
        member.share.advance(before, bytes);
        if pick.by_reservation {
            member.reserved.advance(now.0.saturating_sub(member.catch_up_ns), bytes);
            // It may have more than its share. It does not owe that to the others: they get theirs from now on.
            let lead = member.share.span(2 * bytes.max(QUANTUM_BYTES.into()));
            let most = before.max(self.virtual_now.saturating_add(lead));
            if member.share.at > most {
                member.share.set(most);
            }
        } else {
            member.postpone(bytes, now);
            self.virtual_now += Curve::of_all(bytes, competing);
        }
        match next {
            Some(request) => {
                member.request = request;
                self.enter(number, now);
            }
            None => {
                member.state = State::Idle;
                self.active -= 1;
                self.settle(number);
            }
        }
        if self.virtual_now > VIRTUAL_MAX {
            self.start_again();
        }
    }

    /// Whether the limit of a member lets it send now.
    #[inline]
    pub fn admits(&self, number: u16, now: Time) -> bool {
        let limit = &self.members[usize::from(number)].limit;
        !limit.is_there() || limit.at <= now.0
    }

    /// Whether a member has a limit.
    #[inline]
    pub fn is_limited(&self, number: u16) -> bool {
        self.members[usize::from(number)].limit.is_there()
    }

    /// Whether a member has a reservation.
    #[inline]
    pub fn is_reserved(&self, number: u16) -> bool {
        self.members.get(usize::from(number)).is_some_and(|member| member.reserved.is_there())
    }

    /// A member sent this many bytes while nobody competed.
    #[inline]
    pub fn passed(&mut self, number: u16, bytes: u64, now: Time) {
        let member = &mut self.members[usize::from(number)];
        member.postpone(bytes, now);
        if member.limit.is_there() {
            member.limit.advance(now.0.saturating_sub(LIMIT_BURST_NS), bytes);
        }
    }

    /// Nothing waits any more.
    pub fn clear(&mut self) {
        self.reserved.clear();
        self.shared.clear();
        self.limited.clear();
        self.members.iter_mut().for_each(|member| member.state = State::Idle);
        (self.competing, self.active) = (0, 0);
    }

    /// The clock went back: no tag lies ahead of it.
    #[cold]
    pub fn turn_back(&mut self, now: Time) {
        for number in 0..self.members.len() as u16 {
            let state = self.members[usize::from(number)].state;
            self.leave(number);
            self.limited.remove(number);
            let Member { reserved, limit, .. } = &mut self.members[usize::from(number)];
            for curve in [reserved, limit] {
                if curve.at > now.0 {
                    curve.set(now.0);
                }
            }
            if state != State::Idle {
                self.enter(number, now);
            }
        }
    }

    #[cold]
    fn start_again(&mut self) {
        let by = std::mem::take(&mut self.virtual_now);
        self.shared.lower(by);
        self.members.iter_mut().for_each(|member| member.share.at = member.share.at.saturating_sub(by));
    }
}

impl Member {
    /// Frames that went by shares or alone postpone the reservation by one frame at most: the member does not pay for them later. An
    /// urgent one keeps what is left of the bytes that it may send at once.
    #[inline]
    fn postpone(&mut self, bytes: u64, now: Time) {
        if self.reserved.is_there() && self.reserved.at + self.catch_up_ns > now.0 {
            let mut at = now.0.saturating_add(self.reserved.span(bytes.min(QUANTUM_BYTES.into())));
            if self.is_urgent {
                let full = now.0.saturating_sub(self.reserved.span(URGENT_BYTES));
                at = at.min(self.reserved.at.max(full).saturating_add(self.reserved.span(bytes)));
            }
            if self.reserved.at < at {
                self.reserved.set(at);
            }
        }
    }
}
