//! LACP: several links to one partner become one (IEEE 802.1AX-2014, clause 6). Pure: time is passed in, frames go in and out as bytes.
//!
//! ```text
//! link up, PDU ──► receive machine ──► partner's parameters ──► selection: which links are one aggregate?
//!                                                               │
//! PDU ◄── transmit ◄── periodic machine                         ▼
//!                                      mux machine: detached → waiting → attached → collecting → distributing
//! ```
//!
//! All links are ports of one aggregator: those whose partner is the same system with the same key are used, and of several such groups
//! one. A link takes frames before it sends any, and sends only when its partner takes them (independent control), so that a link
//! that comes or goes loses none. If no partner answers anywhere, one link carries the traffic alone, as with Linux's `lacp_strict = off`.
//!
//! Not implemented: conversation-sensitive collection and distribution (version 2), markers of our own.
#![forbid(unsafe_code)]

mod pdu;
mod port;
mod saved;

use nicety_adapter::Time;
use nicety_frame::Mac;

pub use pdu::{DESTINATION, FRAME_BYTES, Heard, Info, Pdu, State, read};
pub use port::{Mux, Receive};
use port::{Port, Selected};
pub use saved::Saved;
use serde::{Deserialize, Serialize};

/// The settings of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// It sends PDUs in any case; else only to a partner that does.
    pub is_active: bool,
    /// It asks its partner for a PDU each second, and misses it after 3 s; else each 30 s, and after 90 s.
    pub is_fast: bool,
    /// The fewest links with which the aggregate uses any. 0 is 1.
    pub min_links: usize,
    /// Priority of this system; lower is preferred.
    pub system_priority: u16,
    /// This system: an address of one station. The links' own addresses follow it.
    pub system: Mac,
    /// The key of its links.
    pub key: u16,
    /// Their priority.
    pub port_priority: u16,
}

/// A set of links that may be one: those with the same partner, or one without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Lag {
    /// The partner's system priority, system and key.
    Group(u16, [u8; 6], u16),
    /// A partner that does not aggregate, or none: this link by itself.
    Alone(usize),
}

/// A link's state, for a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The receive machine's state.
    pub receive: Receive,
    /// The mux machine's state.
    pub mux: Mux,
    /// It is left out, for other links are used.
    pub stands_by: bool,
    /// Its own end.
    pub actor: Info,
    /// Its partner.
    pub partner: Info,
    /// Its frames come back to it.
    pub is_looped: bool,
    /// It, or its partner, has not agreed for a minute.
    pub churns: [bool; 2],
}

/// The links of one aggregate, by their numbers from 0. At most 32.
#[derive(Debug)]
pub struct Aggregate {
    min_links: usize,
    ports: Vec<Port>,
    chosen: Option<Lag>,
}

impl Aggregate {
    /// An aggregate whose links are down.
    pub fn new(settings: &Settings, links: usize) -> Self {
        let ports = (1..).take(links).map(|number| Port::new(settings, number)).collect();
        Self { min_links: settings.min_links.max(1), ports, chosen: None }
    }

    /// Takes other settings while it runs. Links whose key or system changes leave the aggregate and join it anew; other settings cost
    /// nothing. [`tick`](Self::tick) must follow.
    pub fn set(&mut self, settings: &Settings) {
        self.min_links = settings.min_links.max(1);
        self.ports.iter_mut().for_each(|port| port.set_actor(settings));
    }

    /// A link goes up or down. [`tick`](Self::tick) must follow.
    pub fn link(&mut self, link: usize, is_up: bool, now: Time) {
        if let Some(port) = self.ports.get_mut(link) {
            port.link(is_up, now);
        }
    }

    /// A frame came in on a link. [`tick`](Self::tick) must follow. True if it is one of this protocol.
    pub fn hear(&mut self, link: usize, frame: &[u8], now: Time) -> bool {
        let Some(port) = self.ports.get_mut(link) else { return false };
        let heard = read(frame);
        match heard {
            Some(Heard::Lacp(pdu)) => port.hear(pdu, now),
            Some(Heard::Marker(response)) => port.answer(response),
            None => return false,
        }
        true
    }

    /// Runs the machines until nothing changes.
    pub fn tick(&mut self, now: Time) {
        self.ports.iter_mut().for_each(|port| port.expire_timers(now));
        // The longest way of a mux machine: from distributing down to detached, and up again as far as it can.
        for _ in 0..16 {
            self.select();
            let waits = |port: &Port| port.selected == Selected::Yes && port.wait_until.is_some();
            let is_ready = !self.ports.iter().any(waits);
            let moved = self.ports.iter_mut().filter_map(|port| port.step_mux(is_ready, now).then_some(())).count();
            if moved == 0 {
                break;
            }
        }
        self.ports.iter_mut().for_each(|port| port.step_others(now));
    }

    /// Sends what is due on a link: `send` is false if there is no room.
    pub fn speak(&mut self, link: usize, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        if let Some(port) = self.ports.get_mut(link) {
            port.speak(now, send);
        }
    }

    /// The time at which a link needs a [`tick`](Self::tick) and a [`speak`](Self::speak).
    pub fn wake(&self, link: usize) -> Option<Time> {
        self.ports.get(link)?.wake()
    }

    /// The links that take frames, a bit each.
    pub fn collecting(&self) -> u32 {
        self.those(|port| matches!(port.mux, Mux::Collecting | Mux::Distributing))
    }

    /// The links that send frames, a bit each.
    pub fn distributing(&self) -> u32 {
        self.those(|port| port.mux == Mux::Distributing)
    }

    fn those(&self, is_one: impl Fn(&Port) -> bool) -> u32 {
        self.ports.iter().zip(0..32).filter(|(port, _)| is_one(port)).fold(0, |all, (_, bit)| all | 1 << bit)
    }

    /// A link's state.
    pub fn view(&self, link: usize, now: Time) -> Option<View> {
        let port = self.ports.get(link)?;
        Some(View {
            receive: port.receive,
            mux: port.mux,
            stands_by: port.selected == Selected::Standby,
            actor: *port.actor(),
            partner: port.partner,
            is_looped: port.is_looped(),
            churns: port.churns(now),
        })
    }

    /// The set that a link belongs to; `None` if it cannot be used.
    fn lag(&self, link: usize) -> Option<Lag> {
        let Port { is_up, receive, partner, .. } = &self.ports[link];
        let has_partner = *partner != Info::DEFAULT && partner.system.0 != [0; 6];
        match receive {
            _ if !is_up || self.ports[link].is_looped() => None,
            Receive::Current | Receive::Expired if has_partner && partner.state.has(State::AGGREGATION) => {
                Some(Lag::Group(partner.system_priority, partner.system.0, partner.key))
            }
            Receive::Current | Receive::Defaulted => Some(Lag::Alone(link)),
            Receive::Expired | Receive::Disabled => None,
        }
    }

    /// Links of a set that hear their partner.
    fn heard(&self, lag: Lag) -> usize {
        let is_in = |link: usize| self.ports[link].receive == Receive::Current && self.lag(link) == Some(lag);
        (0..self.ports.len()).filter(|link| is_in(*link)).count()
    }

    /// The selection logic: the set in use stays while it has enough links that hear their partner; else the one with the most is next,
    /// and with equally many the one whose first link comes first. A link without a partner is used if no link has one.
    fn select(&mut self) {
        let lags: Vec<Option<Lag>> = (0..self.ports.len()).map(|link| self.lag(link)).collect();
        let is_enough = |heard: usize| heard >= self.min_links;
        let stays = self.chosen.filter(|chosen| is_enough(self.heard(*chosen)));
        let best = || {
            let heard =
                lags.iter().flatten().map(|lag| (self.heard(*lag), *lag)).filter(|(heard, _)| is_enough(*heard));
            // The first of the greatest: `max_by_key` takes the last.
            heard.rev().max_by_key(|(heard, _)| *heard).map(|(_, lag)| lag)
        };
        let alone = || {
            let was = self.chosen.filter(|chosen| lags.contains(&Some(*chosen)) && matches!(chosen, Lag::Alone(_)));
            let hears = self.ports.iter().any(|port| port.receive == Receive::Current);
            was.or_else(|| lags.iter().flatten().copied().find(|lag| matches!(lag, Lag::Alone(_))))
                .filter(|_| !hears && self.min_links == 1)
        };
        self.chosen = stays.or_else(best).or_else(alone);
        for (port, lag) in self.ports.iter_mut().zip(lags) {
            let wanted = match lag {
                None => Selected::No,
                Some(lag) if Some(lag) == self.chosen => Selected::Yes,
                Some(_) => Selected::Standby,
            };
            // A link that was deselected because its partner changed leaves its aggregate before it joins another.
            if port.selected != Selected::No || port.mux == Mux::Detached {
                port.selected = wanted;
            }
        }
    }
}

#[cfg(test)]
#[path = "lacp_test.rs"]
mod tests;
