//! Originating port, source address, load: all members carry frames, and the neighbouring switches know nothing of the team. Each station is
//! reached by one member, by which it also sends; what the neighbours flood comes in by all of them, so that
//! most duplicates are refused (`plane/duplicates.rs`).

use nicety_adapter::{PortId, Time};

use super::mode::{Capacity, Mode};
use super::rule::{Links, Loads, Moved, Rule};
use super::saved::SavedRule;
use super::saved::{SavedSpread, saved_place};
use super::{MEMBERS_MAX, numbers};

/// Copies of a flooded frame come in by several members one after the other. When another member takes over the flooded ones, it takes them
/// after this time: one that has come in by the former member comes in no more.
const IN_FLIGHT_NS: u64 = 5_000_000;
/// Loads are measured over this time.
const MEASURED_NS: u64 = 1_000_000_000;
/// A link that is used by more than this for so long gives a port away.
const FULL_PERCENT: u64 = 75;
const FULL_NS: u64 = 30_000_000_000;

/// A link's load.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Bytes sent and taken at the last measurement.
    bytes: [u64; 2],
    percent: u64,
    full_since: Option<Time>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Spread {
    up: u32,
    /// The member by which flooded frames are taken, and the time from which on.
    hears: Option<usize>,
    hears_at: Option<Time>,
    capacities: Vec<Capacity>,
    loads: [Load; MEMBERS_MAX],
    /// Bytes that each port had sent at the last measurement.
    sent: Vec<u64>,
    measured_at: Option<Time>,
    moved: Option<Moved>,
}

impl Spread {
    /// Spreads by originating port or source address.
    pub fn new() -> Self {
        Self::by_load(&[])
    }

    /// Spreads by load: a full link gives ports to others, if its rate is known.
    pub fn by_load(capacities: &[Capacity]) -> Self {
        Self {
            up: 0,
            hears: None,
            hears_at: None,
            capacities: capacities.to_vec(),
            loads: [Load::default(); MEMBERS_MAX],
            sent: Vec::new(),
            measured_at: None,
            moved: None,
        }
    }

    fn is_up(&self, member: usize) -> bool {
        self.up >> member & 1 != 0
    }

    fn capacity(&self, place: usize) -> Option<&Capacity> {
        self.capacities.iter().find(|link| link.place == place)
    }

    /// A share of a link, in percent.
    fn percent(&self, place: usize, bytes: u64, ns: u64) -> u64 {
        let capacity = self.capacity(place).map_or(0, |link| link.bits_per_second);
        let bits = u128::from(bytes) * 8 * 1_000_000_000 * 100;
        let whole = u128::from(capacity.max(1)) * u128::from(ns.max(1));
        u64::try_from(bits / whole).unwrap_or(u64::MAX)
    }

    /// Measures the links, and moves a port away from one that is full for too long.
    fn measure(&mut self, loads: &Loads<'_>, ns: u64, now: Time) {
        for (place, bytes) in loads.links.iter().enumerate() {
            let before = std::mem::replace(&mut self.loads[place].bytes, *bytes);
            let most = (0..2).map(|way| bytes[way].saturating_sub(before[way])).max().unwrap_or_default();
            let percent = self.percent(place, most, ns);
            let load = &mut self.loads[place];
            load.percent = percent;
            load.full_since = (percent > FULL_PERCENT).then(|| load.full_since.unwrap_or(now));
        }
        let sent: Vec<u64> = loads.ports.iter().map(|bytes| bytes.load(std::sync::atomic::Ordering::Relaxed)).collect();
        let before = std::mem::replace(&mut self.sent, sent);
        let is_due = |place: &usize| self.loads[*place].full_since.is_some_and(|since| since.after_ns(FULL_NS) <= now);
        let Some(full) = numbers(self.up.into()).find(is_due) else { return };
        if before.len() == self.sent.len() {
            self.moved = self.relief(full, &before, ns, loads);
        }
        if let Some(Moved { to, .. }) = &self.moved {
            (self.loads[full].full_since, self.loads[*to].full_since) = (None, None);
        }
    }

    /// The port that a full link gives away: of those that another link can carry below the limit, the one that sends most.
    fn relief(&self, full: usize, before: &[u64], ns: u64, loads: &Loads<'_>) -> Option<Moved> {
        let to = numbers(self.up.into())
            .filter(|place| *place != full && self.capacity(*place).is_some())
            .min_by_key(|place| self.loads[*place].percent)?;
        let of = |port: usize| self.sent[port].saturating_sub(before[port]);
        let ports = (0..self.sent.len()).filter(|port| of(*port) > 0 && (loads.place)(*port) == Some(full));
        let fits = |port: &usize| {
            let there = self.loads[to].percent + self.percent(to, of(*port), ns);
            there <= FULL_PERCENT && there < self.loads[full].percent
        };
        let port = ports.filter(fits).max_by_key(|port| of(*port))?;
        let name = |place| self.capacity(place).map_or("", |link| &link.name);
        let words = format!(
            "moves from uplink {} to {}: {0} was above {FULL_PERCENT} % for {} s, now {} %; {1} {} %",
            name(full),
            name(to),
            FULL_NS / 1_000_000_000,
            self.loads[full].percent,
            self.loads[to].percent
        );
        Some(Moved { port: PortId(port as u16), to, words })
    }
}

impl Default for Spread {
    fn default() -> Self {
        Self::new()
    }
}

impl Rule for Spread {
    fn set(&mut self, mode: &Mode, _: Time) -> bool {
        match mode {
            Mode::Port | Mode::Source => self.capacities.clear(),
            Mode::Load(capacities) => self.capacities.clone_from(capacities),
            Mode::Standby { .. } | Mode::Lacp(_) | Mode::Queues { .. } => return false,
        }
        true
    }

    /// The ports' bytes are measured anew: a port moves a second later at worst.
    fn save(&self) -> Option<SavedRule> {
        let Self { up, hears, hears_at, capacities: _, loads, sent: _, measured_at, moved: _ } = self;
        let load = |load: &Load| (load.bytes, load.percent, load.full_since);
        let (hears, loads) = (hears.map(saved_place), loads.iter().map(load).collect());
        let saved = SavedSpread { up: *up, hears, hears_at: *hears_at, loads, measured_at: *measured_at };
        Some(SavedRule::Spread(saved))
    }

    fn restore(&mut self, saved: &SavedRule) -> bool {
        let SavedRule::Spread(SavedSpread { up, hears, hears_at, loads, measured_at }) = saved else { return false };
        let hears = hears.map(usize::from).filter(|place| *place < MEMBERS_MAX);
        (self.up, self.hears, self.hears_at, self.measured_at) = (*up, hears, *hears_at, *measured_at);
        for (load, (bytes, percent, full_since)) in self.loads.iter_mut().zip(loads) {
            *load = Load { bytes: *bytes, percent: *percent, full_since: *full_since };
        }
        true
    }

    fn link(&mut self, member: usize, is_up: bool, _: Time) {
        self.up = self.up & !(1 << member) | u32::from(is_up) << member;
    }

    fn tick(&mut self, now: Time) {
        if self.hears.is_none_or(|member| !self.is_up(member)) {
            let first = numbers(self.up.into()).next();
            if self.hears.is_some() {
                self.hears_at = Some(now.after_ns(IN_FLIGHT_NS));
            }
            // The former one is remembered until there is another.
            self.hears = first.or(self.hears);
        }
        let _taken_from_now_on = self.hears_at.take_if(|at| *at <= now);
    }

    fn measured_at(&self) -> Option<Time> {
        (!self.capacities.is_empty()).then(|| self.measured_at.map_or(Time::ZERO, |at| at.after_ns(MEASURED_NS)))
    }

    fn loads(&mut self, loads: &Loads<'_>, now: Time) {
        let last = self.measured_at.replace(now);
        let ns = last.map_or(0, |last| now.0.saturating_sub(last.0));
        if ns >= MEASURED_NS {
            self.measure(loads, ns, now);
        } else {
            self.sent.clear();
        }
    }

    fn take_moved(&mut self) -> Option<Moved> {
        self.moved.take()
    }

    fn wake(&self, member: usize) -> Option<Time> {
        self.hears_at.filter(|_| self.hears == Some(member))
    }

    fn links(&self) -> Links {
        Links { collecting: self.up, distributing: self.up, lingering: 0 }
    }

    fn floods(&self) -> Option<u32> {
        let hears = self.hears.filter(|member| self.hears_at.is_none() && self.is_up(*member));
        Some(hears.map_or(0, |member| 1 << member))
    }

    fn announces(&self) -> bool {
        true
    }

    fn words(&self, member: usize, _: Time) -> String {
        match self.capacity(member) {
            _ if !self.is_up(member) => "no carrier".to_owned(),
            Some(_) => format!("active, {} % used", self.loads[member].percent),
            None => "active".to_owned(),
        }
    }
}
