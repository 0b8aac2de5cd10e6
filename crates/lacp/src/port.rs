//! The machines of one port: receive, periodic, mux, churn detection and transmit (IEEE 802.1AX-2014, sections 6.4.12 to 6.4.17).

use std::collections::VecDeque;

use nicety_adapter::Time;
use nicety_frame::Mac;
use serde::{Deserialize, Serialize};

use crate::Settings;
use crate::pdu::{FRAME_BYTES, Info, Pdu, State};

const SECOND_NS: u64 = 1_000_000_000;
/// Section 6.4.4: `Fast_Periodic_Time`, `Slow_Periodic_Time`, `Short_Timeout_Time`, `Long_Timeout_Time`, `Churn_Detection_Time` and
/// `Aggregate_Wait_Time`.
const FAST_NS: u64 = SECOND_NS;
const SLOW_NS: u64 = 30 * SECOND_NS;
const SHORT_NS: u64 = 3 * SECOND_NS;
const LONG_NS: u64 = 90 * SECOND_NS;
const CHURN_NS: u64 = 60 * SECOND_NS;
const WAIT_NS: u64 = 2 * SECOND_NS;
/// Most PDUs in one `Fast_Periodic_Time`: section 6.4.16.
pub(super) const PDUS_MAX: usize = 3;
/// Most markers that are answered in a second, of the ten frames that a slow protocol may send (annex 57A.3 of IEEE 802.3).
pub(super) const MARKERS_MAX: usize = 5;
/// The pause after a frame for which the link had no room.
const RETRY_NS: u64 = 10_000_000;

/// The receive machine's state: section 6.4.12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Receive {
    /// The link is down.
    Disabled,
    /// The partner has not been heard for its time, or never.
    Expired,
    /// No partner answers.
    Defaulted,
    /// The partner is heard.
    Current,
}

/// The mux machine's state, with independent control: section 6.4.15.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mux {
    /// The port is in no aggregate.
    Detached,
    /// The port joins an aggregate once the other ports do.
    Waiting,
    /// The port is in an aggregate.
    Attached,
    /// Takes frames.
    Collecting,
    /// Takes and sends frames.
    Distributing,
}

/// The selection logic's decision: section 6.4.14.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Selected {
    No,
    Standby,
    Yes,
}

#[derive(Debug)]
pub(crate) struct Port {
    pub is_up: bool,
    pub receive: Receive,
    pub mux: Mux,
    pub selected: Selected,
    pub partner: Info,
    /// Its own system was heard: the link leads back here.
    pub(super) looped_until: Option<Time>,
    pub(super) actor: Info,
    pub(super) source: Mac,
    /// End of `current_while_timer`, of `wait_while_timer`, and of `periodic_timer`.
    pub(super) current_until: Option<Time>,
    pub wait_until: Option<Time>,
    pub(super) periodic_at: Option<Time>,
    /// Need to transmit.
    pub(super) needs: bool,
    pub(super) retry_at: Time,
    /// Times of the last PDUs and of the last marker responses, and the responses to send.
    pub(super) sent: VecDeque<Time>,
    pub(super) answered: VecDeque<Time>,
    pub(super) answers: VecDeque<Box<[u8; FRAME_BYTES]>>,
    /// The times since when actor and partner are not in sync.
    pub(super) out_of_sync: [Option<Time>; 2],
}

impl Port {
    /// `number` is the port's, from 1.
    pub fn new(settings: &Settings, number: u16) -> Self {
        let state = State::AGGREGATION.with(State::DEFAULTED, true);
        let mut this = Self {
            is_up: false,
            receive: Receive::Disabled,
            mux: Mux::Detached,
            selected: Selected::No,
            partner: Info::DEFAULT,
            looped_until: None,
            actor: Info { port: number, state, ..Info::DEFAULT },
            source: settings.system,
            current_until: None,
            wait_until: None,
            periodic_at: None,
            needs: false,
            retry_at: Time::ZERO,
            sent: VecDeque::with_capacity(PDUS_MAX),
            answered: VecDeque::with_capacity(MARKERS_MAX),
            answers: VecDeque::with_capacity(MARKERS_MAX),
            out_of_sync: [None; 2],
        };
        this.set_actor(settings);
        this
    }

    /// Takes this end's settings. A port whose key or system changes leaves its aggregate (`port_moved` and section 6.4.14: its LAG is
    /// another).
    pub fn set_actor(&mut self, settings: &Settings) {
        let Settings { is_active, is_fast, system_priority, system, key, port_priority, .. } = *settings;
        let before = self.actor;
        let state = before.state.with(State::ACTIVITY, is_active).with(State::SHORT_TIMEOUT, is_fast);
        self.actor = Info { system_priority, system, key, port_priority, port: before.port, state };
        self.source = system;
        self.source.0[5] = self.source.0[5].wrapping_add(self.actor.port as u8);
        if !self.actor.is_same_link(&before) {
            self.selected = Selected::No;
        }
        self.needs |= self.actor != before;
    }

    fn set(&mut self, bits: State, on: bool) {
        self.actor.state = self.actor.state.with(bits, on);
    }

    pub fn actor(&self) -> &Info {
        &self.actor
    }

    /// The link goes up or down.
    pub fn link(&mut self, is_up: bool, now: Time) {
        if is_up == self.is_up {
            return;
        }
        self.is_up = is_up;
        self.partner.state = self.partner.state.with(State::SYNCHRONIZATION, false);
        if is_up {
            // PORT_DISABLED, then EXPIRED: a partner that was there may be again.
            self.expire(now);
        } else {
            (self.receive, self.selected, self.current_until) = (Receive::Disabled, Selected::No, None);
            self.set(State::EXPIRED, false);
            self.answers.clear();
            self.looped_until = None;
        }
        self.out_of_sync = [None; 2];
    }

    /// State EXPIRED.
    fn expire(&mut self, now: Time) {
        self.receive = Receive::Expired;
        self.partner.state = self.partner.state.with(State::SYNCHRONIZATION, false).with(State::SHORT_TIMEOUT, true);
        self.current_until = Some(now.after_ns(SHORT_NS));
        self.set(State::EXPIRED, true);
    }

    /// Timers of the receive machine.
    pub fn expire_timers(&mut self, now: Time) {
        let _looped_before = self.looped_until.take_if(|at| *at <= now);
        let _waited = self.wait_until.take_if(|at| *at <= now);
        if self.current_until.take_if(|at| *at <= now).is_none() {
            return;
        }
        match self.receive {
            Receive::Current => self.expire(now),
            Receive::Expired => {
                // State DEFAULTED: update_Default_Selected, recordDefault.
                if !self.partner.is_same_link(&Info::DEFAULT) {
                    self.selected = Selected::No;
                }
                self.partner = Info::DEFAULT;
                self.receive = Receive::Defaulted;
                self.set(State::EXPIRED, false);
                self.set(State::DEFAULTED, true);
            }
            Receive::Disabled | Receive::Defaulted => {}
        }
    }

    /// An LACPDU came in: state CURRENT.
    pub fn hear(&mut self, Pdu { actor: theirs, partner: ours }: Pdu, now: Time) {
        if !self.is_up {
            return;
        }
        if theirs.system == self.actor.system {
            self.looped_until = Some(now.after_ns(LONG_NS));
            return;
        }
        self.looped_until = None;
        // update_Selected.
        if !theirs.is_same_link(&self.partner) {
            self.selected = Selected::No;
        }
        // update_NTT.
        let told = State::ACTIVITY | State::SHORT_TIMEOUT | State::SYNCHRONIZATION | State::AGGREGATION;
        if !ours.is_same_link(&self.actor) || ours.state.only(told) != self.actor.state.only(told) {
            self.needs = true;
        }
        // recordPDU.
        let is_alone = !theirs.state.has(State::AGGREGATION);
        let is_kept = theirs.state.has(State::ACTIVITY)
            || (self.actor.state.has(State::ACTIVITY) && ours.state.has(State::ACTIVITY));
        let is_in_sync =
            theirs.state.has(State::SYNCHRONIZATION) && is_kept && (is_alone || ours.is_same_link(&self.actor));
        let asked_short = self.partner.state.has(State::SHORT_TIMEOUT);
        self.partner = Info { state: theirs.state.with(State::SYNCHRONIZATION, is_in_sync), ..theirs };
        self.set(State::DEFAULTED | State::EXPIRED, false);
        self.receive = Receive::Current;
        let is_fast = self.actor.state.has(State::SHORT_TIMEOUT);
        self.current_until = Some(now.after_ns(if is_fast { SHORT_NS } else { LONG_NS }));
        if !asked_short && self.partner.state.has(State::SHORT_TIMEOUT) {
            self.periodic_at = Some(now);
        }
    }

    /// A marker came in. Of a flood only some are answered.
    pub fn answer(&mut self, mut response: Box<[u8; FRAME_BYTES]>) {
        if self.is_up && self.answers.len() < MARKERS_MAX {
            response[6..12].copy_from_slice(&self.source.0);
            self.answers.push_back(response);
        }
    }

    /// One transition of the mux machine, if one is due. `is_ready`: no selected port waits any more.
    pub fn step_mux(&mut self, is_ready: bool, now: Time) -> bool {
        let in_sync = self.partner.state.has(State::SYNCHRONIZATION);
        let partner_collects = self.partner.state.has(State::COLLECTING);
        let is_selected = self.selected == Selected::Yes;
        let next = match self.mux {
            Mux::Detached if self.selected != Selected::No => Mux::Waiting,
            Mux::Waiting if self.selected == Selected::No => Mux::Detached,
            Mux::Waiting if is_selected && is_ready => Mux::Attached,
            Mux::Attached if !is_selected => Mux::Detached,
            Mux::Attached if in_sync => Mux::Collecting,
            Mux::Collecting if !is_selected || !in_sync => Mux::Attached,
            Mux::Collecting if partner_collects => Mux::Distributing,
            Mux::Distributing if !is_selected || !in_sync || !partner_collects => Mux::Collecting,
            _ => return false,
        };
        self.wait_until = (next == Mux::Waiting).then(|| now.after_ns(WAIT_NS));
        self.mux = next;
        self.set(State::SYNCHRONIZATION, matches!(next, Mux::Attached | Mux::Collecting | Mux::Distributing));
        self.set(State::COLLECTING, matches!(next, Mux::Collecting | Mux::Distributing));
        self.set(State::DISTRIBUTING, next == Mux::Distributing);
        self.needs |= next != Mux::Waiting;
        true
    }

    /// The periodic machine, and the churn detection.
    pub fn step_others(&mut self, now: Time) {
        if self.is_up && self.speaks() {
            let interval = if self.partner.state.has(State::SHORT_TIMEOUT) { FAST_NS } else { SLOW_NS };
            // Time that jumps, or a partner that asks for a shorter interval, brings the next one nearer.
            let at = self.periodic_at.get_or_insert(now);
            if *at <= now {
                self.needs = true;
                *at = now.after_ns(interval);
            }
            *at = (*at).min(now.after_ns(interval));
        } else {
            self.periodic_at = None;
            self.needs = false;
        }
        let in_sync = [self.actor.state, self.partner.state].map(|state| state.has(State::SYNCHRONIZATION));
        for (since, in_sync) in self.out_of_sync.iter_mut().zip(in_sync) {
            if in_sync || !self.is_up {
                *since = None;
            } else {
                since.get_or_insert(now);
            }
        }
    }

    /// Whether its own PDUs come back.
    pub fn is_looped(&self) -> bool {
        self.looped_until.is_some()
    }

    /// Whether one of the partners is active.
    fn speaks(&self) -> bool {
        self.actor.state.has(State::ACTIVITY) || self.partner.state.has(State::ACTIVITY)
    }

    /// Whether actor and partner have been out of sync for so long that somebody should look: section 6.4.17.
    pub fn churns(&self, now: Time) -> [bool; 2] {
        self.out_of_sync.map(|since| since.is_some_and(|since| since.after_ns(CHURN_NS) <= now))
    }

    /// The time from which another frame may go, after those at these times.
    fn may_follow(sent: &VecDeque<Time>, most: usize) -> Time {
        let oldest = sent.len().checked_sub(most).and_then(|index| sent.get(index));
        oldest.map_or(Time::ZERO, |at| at.after_ns(SECOND_NS))
    }

    fn note(sent: &mut VecDeque<Time>, most: usize, now: Time) {
        if sent.len() >= most {
            sent.pop_front();
        }
        sent.push_back(now);
    }

    /// Sends what is due.
    pub fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        if !self.is_up || now < self.retry_at {
            return;
        }
        if self.needs && Self::may_follow(&self.sent, PDUS_MAX) <= now {
            let pdu = Pdu { actor: self.actor, partner: self.partner };
            if !send(&pdu.frame(self.source)) {
                self.retry_at = now.after_ns(RETRY_NS);
                return;
            }
            self.needs = false;
            Self::note(&mut self.sent, PDUS_MAX, now);
        }
        while let Some(response) = self.answers.front()
            && Self::may_follow(&self.answered, MARKERS_MAX) <= now
        {
            if !send(&response[..]) {
                self.retry_at = now.after_ns(RETRY_NS);
                return;
            }
            self.answers.pop_front();
            Self::note(&mut self.answered, MARKERS_MAX, now);
        }
    }

    /// The time of the next event.
    pub fn wake(&self) -> Option<Time> {
        if !self.is_up {
            return None;
        }
        let pdu = self.needs.then(|| Self::may_follow(&self.sent, PDUS_MAX).max(self.retry_at));
        let response =
            (!self.answers.is_empty()).then(|| Self::may_follow(&self.answered, MARKERS_MAX).max(self.retry_at));
        [pdu, response, self.periodic_at, self.current_until, self.wait_until].into_iter().flatten().min()
    }
}
