//! The traffic of the last minutes: kept while somebody reads, and for as long as a chart shows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_daemon::report::{AddressReport, PortReport, QueueReport};

use crate::Inspect;

/// Reports are made at most this often.
pub(super) const FRESH: Duration = Duration::from_millis(500);
/// The list of addresses may be long: it is made at most this often.
const ADDRESSES_FRESH: Duration = Duration::from_secs(5);
/// Most addresses that are kept for a page.
pub(super) const ADDRESSES_MOST: usize = 200;
/// The time that charts show.
pub(super) const SHOWN: Duration = Duration::from_secs(120);
/// Most moments of a series: one for each half second.
const MOMENTS_MOST: usize = 240;
/// Interval of the points of small pictures.
const COARSE: Duration = Duration::from_secs(3);
/// Time between two kept counts of drops.
const DROPS_EVERY: Duration = Duration::from_secs(10);

/// Counters of a port at one moment: of what its guest, or the outside of an uplink, sends and gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub bytes: [u64; 2],
    pub frames: [u64; 2],
    pub drops: u64,
}

impl Total {
    pub fn of(port: &PortReport) -> Self {
        let sum = |queues: &[QueueReport], of: fn(&QueueReport) -> u64| queues.iter().map(of).sum();
        let both = |of: fn(&QueueReport) -> u64| [sum(&port.transmit, of), sum(&port.receive, of)];
        let drops = port.transmit_drops.values().chain(port.receive_drops.values()).sum();
        Self { bytes: both(|queue| queue.bytes), frames: both(|queue| queue.frames), drops }
    }
}

/// The name of a series: a port's, or a class's of an uplink.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series {
    pub port: String,
    pub class: Option<String>,
}

impl Series {
    pub fn port(name: &str) -> Self {
        Self { port: name.to_owned(), class: None }
    }

    pub fn class(port: &str, class: &str) -> Self {
        Self { port: port.to_owned(), class: Some(class.to_owned()) }
    }
}

/// The bytes of all series of a port: of itself, sent and got; of its classes, out of the uplink and in by it.
fn series(port: &PortReport) -> Vec<(Series, [u64; 2])> {
    let mut all = vec![(Series::port(&port.name), Total::of(port).bytes)];
    let mut classes = BTreeMap::<&str, [u64; 2]>::new();
    for (way, of) in [&port.io_classes, &port.inward_classes].into_iter().enumerate() {
        of.iter().for_each(|class| classes.entry(&class.name).or_default()[way] = class.bytes);
    }
    all.extend(classes.into_iter().map(|(class, bytes)| (Series::class(&port.name, class), bytes)));
    all
}

/// A chart's value: the rate in bit/s between two moments, in seconds from the chart's begin.
pub(super) type Step = (f64, f64, f64);

/// Drops by port and reason.
type Drops = BTreeMap<(String, String), u64>;

/// The addresses that the switch has learned: some of them, and the number of all.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    pub first: Vec<AddressReport>,
    pub all: usize,
}

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: Option<(Instant, Arc<Vec<PortReport>>)>,
    addresses: Option<(Instant, Arc<Addresses>)>,
    moments: BTreeMap<Series, VecDeque<(Instant, [u64; 2])>>,
    drops: VecDeque<(Instant, Drops)>,
    begin: Option<Instant>,
}

impl History {
    /// The present reports, not older than half a second.
    pub fn look(&mut self, inspect: &dyn Inspect, now: Instant) -> Arc<Vec<PortReport>> {
        if let Some((at, ports)) = &self.latest
            && now.duration_since(*at) < FRESH
        {
            return Arc::clone(ports);
        }
        let ports = Arc::new(inspect.ports());
        self.note(&ports, now);
        self.latest = Some((now, Arc::clone(&ports)));
        ports
    }

    /// The addresses of the switch, not older than some seconds.
    pub fn addresses(&mut self, inspect: &dyn Inspect, now: Instant) -> Arc<Addresses> {
        if let Some((at, addresses)) = &self.addresses
            && now.duration_since(*at) < ADDRESSES_FRESH
        {
            return Arc::clone(addresses);
        }
        let list = inspect.addresses();
        let (mut first, more) = (list.addresses, list.more);
        let all = first.len() + more;
        let key = |address: &AddressReport| (address.port.clone(), address.address.clone());
        if first.len() > ADDRESSES_MOST {
            first.select_nth_unstable_by_key(ADDRESSES_MOST, key);
            first.truncate(ADDRESSES_MOST);
        }
        first.sort_by_key(key);
        let addresses = Arc::new(Addresses { first, all });
        self.addresses = Some((now, Arc::clone(&addresses)));
        addresses
    }

    pub(super) fn note(&mut self, ports: &[PortReport], now: Instant) {
        self.begin.get_or_insert(now);
        for (series, bytes) in ports.iter().flat_map(series) {
            let moments = self.moments.entry(series).or_default();
            // Counters of a port that was opened as new begin again.
            if moments.back().is_some_and(|(_, before)| bytes.iter().zip(before).any(|(now, then)| now < then)) {
                moments.clear();
            }
            moments.push_back((now, bytes));
            while moments.len() > MOMENTS_MOST || moments.front().is_some_and(|(at, _)| now.duration_since(*at) > SHOWN)
            {
                moments.pop_front();
            }
        }
        self.moments.retain(|_, moments| moments.back().is_some_and(|(at, _)| *at == now));
        if self.drops.back().is_none_or(|(at, _)| now.duration_since(*at) >= DROPS_EVERY) {
            self.drops.push_back((now, drops(ports)));
        }
        while self.drops.front().is_some_and(|(at, _)| now.duration_since(*at) > SHOWN) {
            self.drops.pop_front();
        }
    }

    /// The rates of a series, in bit/s, one way. Times are seconds from the chart's begin.
    pub fn steps(&self, series: &Series, way: usize, now: Instant) -> Vec<Step> {
        let moments = self.moments.get(series).into_iter().flatten();
        steps(moments, way, now)
    }

    /// The same with a point for each [`COARSE`], which stays until the next one has come: a small picture changes rarely.
    pub fn coarse(&self, series: &Series, way: usize) -> Vec<Step> {
        let Some((begin, moments)) = self.begin.zip(self.moments.get(series)) else { return Vec::new() };
        let slot = |at: Instant| at.duration_since(begin).as_secs() / COARSE.as_secs();
        let mut kept: Vec<&(Instant, [u64; 2])> = Vec::new();
        for moment in moments {
            if kept.last().is_none_or(|(last, _)| slot(*last) < slot(moment.0)) {
                kept.push(moment);
            }
        }
        let Some((last, _)) = kept.last() else { return Vec::new() };
        steps(kept.iter().copied(), way, *last)
    }

    /// The present rate of a series, in bit/s, if it has been looked at twice.
    pub fn rate(&self, series: &Series, way: usize) -> Option<f64> {
        let mut newest = self.moments.get(series)?.iter().rev();
        let ((to, after), (from, before)) = (newest.next()?, newest.next()?);
        Some(bits_per_second((from, before), (to, after), way))
    }

    /// The frames that were dropped since the oldest count that is kept, and how long ago that was.
    pub fn dropped_lately(&self, ports: &[PortReport], now: Instant) -> (Drops, Duration) {
        let Some((since, before)) = self.drops.front() else { return (Drops::new(), Duration::ZERO) };
        let mut lately = drops(ports);
        lately.retain(|key, count| {
            // Counters of a port that was opened as new begin again.
            let then = before.get(key).copied().filter(|then| then <= count).unwrap_or(0);
            *count -= then;
            *count > 0
        });
        (lately, now.duration_since(*since))
    }
}

fn drops(ports: &[PortReport]) -> Drops {
    let mut all = Drops::new();
    for port in ports {
        for (reason, count) in port.transmit_drops.iter().chain(&port.receive_drops).filter(|(_, count)| **count > 0) {
            *all.entry((port.name.clone(), reason.clone())).or_default() += count;
        }
    }
    all
}

fn bits_per_second((from, before): (&Instant, &[u64; 2]), (to, after): (&Instant, &[u64; 2]), way: usize) -> f64 {
    let bits = after[way].saturating_sub(before[way]) as f64 * 8.0;
    bits / to.duration_since(*from).as_secs_f64().max(1e-3)
}

fn steps<'a>(moments: impl Iterator<Item = &'a (Instant, [u64; 2])> + Clone, way: usize, now: Instant) -> Vec<Step> {
    let place = |at: Instant| (SHOWN.as_secs_f64() - now.saturating_duration_since(at).as_secs_f64()).max(0.0);
    let pairs = moments.clone().zip(moments.skip(1));
    pairs
        .map(|((from, before), (to, after))| {
            (place(*from), place(*to), bits_per_second((from, before), (to, after), way))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(bytes: u64, drops: u64) -> PortReport {
        let mut port = crate::tests::port("vm1");
        let queue = QueueReport { queue: 0, packets: 0, frames: 0, bytes };
        (port.transmit, port.receive) = (vec![queue], Vec::new());
        port.receive_drops = [("buffer-full".to_owned(), drops)].into();
        port
    }

    fn after(moments: &[(u64, u64)]) -> (History, Instant) {
        let begin = Instant::now();
        let mut history = History::default();
        let mut last = begin;
        for (seconds, bytes) in moments {
            last = begin + Duration::from_secs(*seconds);
            history.note(&[with(*bytes, *bytes)], last);
        }
        (history, last)
    }

    fn vm1() -> Series {
        Series::port("vm1")
    }

    #[test]
    fn a_rate_is_the_bytes_between_two_moments() {
        let (history, now) = after(&[(0, 0), (1, 1000), (3, 1500)]);
        assert_eq!(history.steps(&vm1(), 0, now), [(117.0, 118.0, 8000.0), (118.0, 120.0, 2000.0)]);
        assert_eq!(history.rate(&vm1(), 0), Some(2000.0));
        assert_eq!(history.rate(&vm1(), 1), Some(0.0));
        assert_eq!(history.rate(&Series::port("vm2"), 0), None);
    }

    #[test]
    fn a_port_that_was_opened_as_new_begins_again_and_old_moments_go() {
        assert_eq!(after(&[(0, 5000), (1, 0)]).0.rate(&vm1(), 0), None);
        let (history, now) = after(&[(0, 0), (100, 10), (201, 20)]);
        assert_eq!(history.steps(&vm1(), 0, now).len(), 1, "two minutes");
        let many: Vec<(u64, u64)> = (0..500).map(|number| (number / 5, number)).collect();
        assert!(after(&many).0.moments[&vm1()].len() <= MOMENTS_MOST);
    }

    #[test]
    fn a_small_picture_has_a_point_each_three_seconds_and_does_not_move_between() {
        let moments = |end: u64| (0..=end).map(|second| (second, second * 125)).collect::<Vec<_>>();
        let (history, _) = after(&moments(120));
        let all = history.coarse(&vm1(), 0);
        assert_eq!(all.len(), 40);
        assert!(all.iter().all(|(from, to, rate)| to - from == 3.0 && *rate == 1000.0), "{all:?}");
        let picture = |end: u64| after(&moments(end)).0.coarse(&vm1(), 0);
        assert_eq!((picture(30), picture(31)), (picture(32), picture(32)));
        assert_ne!(picture(32), picture(33));
    }

    #[test]
    fn the_drops_of_the_last_two_minutes_are_those_since_the_oldest_count() {
        let (history, now) = after(&[(0, 5), (60, 25), (130, 105), (140, 110)]);
        let (lately, since) = history.dropped_lately(&[with(0, 112)], now);
        assert_eq!(lately, [(("vm1".to_owned(), "buffer-full".to_owned()), 87)].into());
        assert_eq!(since, Duration::from_secs(80));
        // Opened as new: its counters began again.
        assert_eq!(history.dropped_lately(&[with(0, 3)], now).0.into_values().collect::<Vec<_>>(), [3]);
        assert_eq!(history.dropped_lately(&[with(0, 25)], now).0.len(), 0);
    }

    #[test]
    fn a_class_has_a_series_of_its_own_each_way() {
        let mut port = with(0, 0);
        let class = |bytes| nicety_daemon::report::ClassReport {
            name: "storage".to_owned(),
            packets: 0,
            bytes,
            waiting: 0,
            dropped: 0,
            marked: 0,
        };
        let (begin, mut history) = (Instant::now(), History::default());
        (port.io_classes, port.inward_classes) = (vec![class(0)], vec![class(1000)]);
        history.note(std::slice::from_ref(&port), begin);
        (port.io_classes, port.inward_classes) = (vec![class(250)], vec![class(1500)]);
        history.note(&[port], begin + Duration::from_secs(1));
        let storage = Series::class("vm1", "storage");
        assert_eq!([0, 1].map(|way| history.rate(&storage, way)), [Some(2000.0), Some(4000.0)]);
    }
}
