//! The traffic of the last hour: looked at each second, kept in rings of a fixed size. Charts have it whether or not somebody has read meanwhile.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_daemon::daemon::NoteBytes;
use nicety_daemon::report::{AddressReport, PortReport, QueueReport};

use super::ring::{Carried, RING_BYTES, Span, Step};
use crate::Inspect;

/// Reports are made at most this often.
pub(super) const FRESH: Duration = Duration::from_millis(500);
/// The list of addresses may be long: it is made at most this often.
const ADDRESSES_FRESH: Duration = Duration::from_secs(5);
/// Most addresses that are kept for a page.
pub(super) const ADDRESSES_MAX: usize = 200;
/// Most series whose rates are kept: 22 MB.
const RINGS_MAX: usize = 4096;
const _: () = assert!(RINGS_MAX * RING_BYTES < 23 << 20);
/// The time of which drops are told.
const DROPS_SHOWN: Duration = Duration::from_secs(120);
/// Steps of a chart in one point of a small picture.
const COARSE: u64 = 6;
/// A port that sends nothing and gets at most this is idle: floods reach every port.
const QUIET_BITS: f64 = 10_000.0;
const QUIET_SECONDS: f64 = 300.0;
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

/// The rates of a port, and of its classes.
#[derive(Debug)]
struct Kept {
    own: Carried,
    classes: BTreeMap<String, Carried>,
}

impl Kept {
    fn all(&self) -> impl Iterator<Item = &Carried> {
        std::iter::once(&self.own).chain(self.classes.values())
    }
}

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
    kept: BTreeMap<String, Kept>,
    /// The last look at what was carried.
    noted: Option<Instant>,
    /// Equal ones in a row are one.
    drops: VecDeque<(Instant, Arc<Drops>)>,
    begin: Option<Instant>,
}

impl History {
    /// The present reports, not older than [`FRESH`].
    pub fn look(&mut self, inspect: &dyn Inspect, now: Instant) -> Arc<Vec<PortReport>> {
        if let Some((at, ports)) = &self.latest
            && now.duration_since(*at) < FRESH
        {
            return Arc::clone(ports);
        }
        let ports = Arc::new(inspect.ports());
        self.note_drops(&ports, now);
        self.latest = Some((now, Arc::clone(&ports)));
        self.note(&|note| inspect.carried(note), now);
        ports
    }

    /// Looks for the charts of those who read later. Reports are made only to count drops: they cost more than bytes alone.
    pub fn tick(&mut self, inspect: &dyn Inspect, now: Instant) {
        if self.is_drops_due(now) {
            self.look(inspect, now);
        } else {
            self.note(&|note| inspect.carried(note), now);
        }
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
        if first.len() > ADDRESSES_MAX {
            first.select_nth_unstable_by_key(ADDRESSES_MAX, key);
            first.truncate(ADDRESSES_MAX);
        }
        first.sort_by_key(key);
        let addresses = Arc::new(Addresses { first, all });
        self.addresses = Some((now, Arc::clone(&addresses)));
        addresses
    }

    /// Notes the bytes that `carried` tells. A rate between two moments is one only if there is some time between them.
    fn note(&mut self, carried: &dyn Fn(&mut NoteBytes<'_>), now: Instant) {
        if self.noted.replace(now).is_some_and(|noted| now.duration_since(noted) < FRESH) {
            return;
        }
        let at_ns = self.at_ns(now);
        let mut rings = self.kept.values().flat_map(Kept::all).filter(|carried| carried.has_rings()).count();
        carried(&mut |port, class, bytes| {
            let Some(kept) = self.kept.get_mut(port) else {
                let kept = Kept { own: Carried::new(bytes, at_ns), classes: BTreeMap::new() };
                self.kept.insert(port.to_owned(), kept);
                return;
            };
            let carried = match class {
                None => &mut kept.own,
                Some(class) => match kept.classes.get_mut(class) {
                    Some(carried) => carried,
                    None => {
                        kept.classes.insert(class.to_owned(), Carried::new(bytes, at_ns));
                        return;
                    }
                },
            };
            rings -= usize::from(carried.has_rings());
            carried.note(bytes, at_ns, rings < RINGS_MAX);
            rings += usize::from(carried.has_rings());
        });
        // Others have gone.
        self.kept.retain(|_, kept| kept.own.at_ns() == at_ns);
        self.kept.values_mut().for_each(|kept| kept.classes.retain(|_, class| class.at_ns() == at_ns));
    }

    fn is_drops_due(&self, now: Instant) -> bool {
        self.drops.back().is_none_or(|(at, _)| now.duration_since(*at) >= DROPS_EVERY)
    }

    fn note_drops(&mut self, ports: &[PortReport], now: Instant) {
        if self.is_drops_due(now) {
            let (new, last) = (drops(ports), self.drops.back());
            let kept = last.filter(|(_, last)| **last == new).map(|(_, last)| Arc::clone(last));
            self.drops.push_back((now, kept.unwrap_or_else(|| Arc::new(new))));
        }
        while self.drops.front().is_some_and(|(at, _)| now.duration_since(*at) > DROPS_SHOWN) {
            self.drops.pop_front();
        }
    }

    /// Notes reports, as a look does.
    #[cfg(test)]
    pub fn note_reports(&mut self, ports: &[PortReport], now: Instant) {
        self.note_drops(ports, now);
        self.note(&|note| crate::tests::carried(ports, note), now);
    }

    fn of(&self, series: &Series) -> Option<&Carried> {
        let kept = self.kept.get(&series.port)?;
        match &series.class {
            None => Some(&kept.own),
            Some(class) => kept.classes.get(class),
        }
    }

    fn at_ns(&mut self, now: Instant) -> u64 {
        let begin = *self.begin.get_or_insert(now);
        u64::try_from(now.saturating_duration_since(begin).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The rates of a series, in bit/s, one way. Times are seconds from the chart's begin.
    pub fn steps(&self, series: &Series, way: usize, span: Span) -> Vec<Step> {
        self.of(series).map(|carried| carried.steps(way, span, 1)).unwrap_or_default()
    }

    /// The same with few points, for a small picture. It changes rarely.
    pub fn coarse(&self, series: &Series, way: usize, span: Span) -> Vec<Step> {
        self.of(series).map(|carried| carried.steps(way, span, COARSE)).unwrap_or_default()
    }

    /// The present rate of a series, in bit/s, if it has been looked at twice.
    pub fn rate(&self, series: &Series, way: usize) -> Option<f64> {
        self.of(series)?.rate(way)
    }

    /// Whether a series carries traffic of which no history is kept, because there are too many.
    pub fn is_forgotten(&self, series: &Series) -> bool {
        self.of(series).is_some_and(Carried::is_forgotten)
    }

    /// Whether a port has sent nothing, and got next to nothing, for as long as the shorter charts show.
    pub fn is_quiet(&self, series: &Series) -> bool {
        let Some(carried) = self.of(series) else { return true };
        let mean =
            |steps: Vec<Step>| steps.iter().map(|(from, to, rate)| (to - from) * rate).sum::<f64>() / QUIET_SECONDS;
        carried.quiet(0).is_none_or(|seconds| seconds >= Span::Minutes.seconds())
            && carried.rate(1).is_none_or(|rate| rate <= QUIET_BITS)
            && mean(carried.steps(1, Span::Minutes, 1)) <= QUIET_BITS
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
            history.note_reports(&[with(*bytes, *bytes)], last);
        }
        (history, last)
    }

    fn vm1() -> Series {
        Series::port("vm1")
    }

    #[test]
    fn a_port_that_has_gone_leaves_nothing_and_one_that_is_not_there_has_no_rate() {
        let (mut history, now) = after(&[(0, 0), (1, 1000), (3, 1500)]);
        assert_eq!((history.rate(&vm1(), 0), history.rate(&Series::port("vm2"), 0)), (Some(2000.0), None));
        history.note_reports(&[], now + Duration::from_secs(1));
        assert!(history.kept.is_empty() && history.steps(&vm1(), 0, Span::Hour).is_empty());
    }

    #[test]
    fn a_small_picture_has_fifty_points_and_does_not_move_between_them() {
        let moments = |end: u64| (0..=end).map(|second| (second, second * second)).collect::<Vec<_>>();
        let picture = |end: u64| after(&moments(end)).0.coarse(&vm1(), 0, Span::Minutes);
        assert_eq!(picture(400).len(), 50);
        assert_eq!((picture(30), picture(32)), (picture(31), picture(35)));
        assert_ne!(picture(35), picture(36));
    }

    #[test]
    fn a_port_is_idle_once_it_has_sent_nothing_for_five_minutes_and_floods_wake_nobody() {
        let moments = |bytes: [u64; 2]| {
            let (begin, mut history) = (Instant::now(), History::default());
            for second in 0..=400 {
                let mut port = crate::tests::port("vm1");
                let queue = |bytes| QueueReport { queue: 0, packets: 0, frames: 0, bytes };
                // What it sends, it sends in the first minute.
                (port.transmit, port.receive) =
                    (vec![queue(bytes[0] * second.min(60))], vec![queue(bytes[1] * second)]);
                history.note_reports(&[port], begin + Duration::from_secs(second));
            }
            history
        };
        assert!(moments([0, 0]).is_quiet(&vm1()) && moments([1000, 0]).is_quiet(&vm1()));
        // A broadcast of 60 bytes each second, and 100 kbit/s.
        assert!(moments([0, 60]).is_quiet(&vm1()) && !moments([0, 12_500]).is_quiet(&vm1()));
        assert!(!after(&[(0, 0), (1, 60)]).0.is_quiet(&vm1()));
    }

    /// Bytes that the process has allocated are not counted here: the types are.
    #[test]
    fn a_thousand_busy_ports_have_an_hour_in_six_kilobytes_each() {
        let (begin, mut history) = (Instant::now(), History::default());
        for second in 0..2_u64 {
            let port = |number: usize| {
                let mut port = with(second * 1000, 0);
                port.name = format!("vm{number}");
                port
            };
            let ports: Vec<PortReport> = (0..1000).map(port).collect();
            history.note_reports(&ports, begin + Duration::from_secs(second));
        }
        let rings = history.kept.values().filter(|kept| kept.own.has_rings()).count();
        assert_eq!(rings, 1000);
        let each = RING_BYTES + size_of::<Kept>() + size_of::<String>() + "vm999".len();
        assert!(each < 6 << 10, "{each} bytes");
    }

    #[test]
    fn more_series_than_have_room_have_a_rate_and_no_history() {
        let (begin, mut history) = (Instant::now(), History::default());
        for second in 0..2_u64 {
            let port = |number: usize| {
                let mut port = with(second * 1000, 0);
                port.name = format!("vm{number:04}");
                port
            };
            let ports: Vec<PortReport> = (0..RINGS_MAX + 1).map(port).collect();
            history.note_reports(&ports, begin + Duration::from_secs(second));
        }
        let (kept, last) = (Series::port("vm0000"), Series::port("vm4096"));
        assert!(!history.is_forgotten(&kept) && history.is_forgotten(&last));
        assert_eq!(history.rate(&last, 0), Some(8000.0));
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
        history.note_reports(std::slice::from_ref(&port), begin);
        (port.io_classes, port.inward_classes) = (vec![class(250)], vec![class(1500)]);
        history.note_reports(&[port], begin + Duration::from_secs(1));
        let storage = Series::class("vm1", "storage");
        assert_eq!([0, 1].map(|way| history.rate(&storage, way)), [Some(2000.0), Some(4000.0)]);
    }
}
