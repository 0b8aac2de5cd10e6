//! What the ports have carried lately: kept while somebody reads, and for as long as a chart shows.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nicety_daemon::report::{PortReport, QueueReport};

use crate::Inspect;

/// Reports are made at most this often.
const FRESH: Duration = Duration::from_millis(500);
/// The time that charts show.
pub(super) const SHOWN: Duration = Duration::from_secs(120);
/// Most moments of a port: one for each half second.
const MOMENTS_MOST: usize = 240;

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

/// A chart's value: the rate in bit/s between two moments, in seconds before now.
pub(super) type Step = (f64, f64, f64);

/// See the module's page.
#[derive(Debug, Default)]
pub(super) struct History {
    latest: Option<(Instant, Arc<Vec<PortReport>>)>,
    ports: BTreeMap<String, VecDeque<(Instant, Total)>>,
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

    fn note(&mut self, ports: &[PortReport], now: Instant) {
        for port in ports {
            let moments = self.ports.entry(port.name.clone()).or_default();
            let total = Total::of(port);
            // Counters of a port that was opened as new begin again.
            if moments
                .back()
                .is_some_and(|(_, before)| total.bytes.iter().zip(before.bytes).any(|(now, then)| *now < then))
            {
                moments.clear();
            }
            moments.push_back((now, total));
            while moments.len() > MOMENTS_MOST || moments.front().is_some_and(|(at, _)| now.duration_since(*at) > SHOWN)
            {
                moments.pop_front();
            }
        }
        self.ports.retain(|_, moments| moments.back().is_some_and(|(at, _)| *at == now));
    }

    /// The rates of a port, in bit/s: of what it sends, or gets. Times are seconds from the chart's begin.
    pub fn steps(&self, name: &str, way: usize, now: Instant) -> Vec<Step> {
        let moments = self.ports.get(name).into_iter().flatten();
        let place = |at: Instant| (SHOWN.as_secs_f64() - now.saturating_duration_since(at).as_secs_f64()).max(0.0);
        let pairs = moments.clone().zip(moments.skip(1));
        pairs
            .map(|((from, before), (to, after))| {
                let bits = after.bytes[way].saturating_sub(before.bytes[way]) as f64 * 8.0;
                (place(*from), place(*to), bits / to.duration_since(*from).as_secs_f64().max(1e-3))
            })
            .collect()
    }

    /// The present rate of a port, in bit/s, if it has been looked at twice.
    pub fn rate(&self, name: &str, way: usize, now: Instant) -> Option<f64> {
        self.steps(name, way, now).last().map(|(_, _, rate)| *rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(moments: &[(u64, u64)]) -> (History, Instant) {
        let begin = Instant::now();
        let mut history = History::default();
        let mut last = begin;
        for (seconds, bytes) in moments {
            last = begin + Duration::from_secs(*seconds);
            let mut port = crate::tests::port("vm1");
            let queue = QueueReport { queue: 0, packets: 0, frames: 0, bytes: *bytes };
            (port.transmit, port.receive) = (vec![queue], Vec::new());
            history.note(&[port], last);
        }
        (history, last)
    }

    #[test]
    fn a_rate_is_what_came_between_two_moments() {
        let (history, now) = after(&[(0, 0), (1, 1000), (3, 1500)]);
        assert_eq!(history.steps("vm1", 0, now), [(117.0, 118.0, 8000.0), (118.0, 120.0, 2000.0)]);
        assert_eq!(history.rate("vm1", 0, now), Some(2000.0));
        assert_eq!(history.rate("vm1", 1, now), Some(0.0));
        assert_eq!(history.rate("vm2", 0, now), None);
    }

    #[test]
    fn a_port_that_was_opened_as_new_begins_again_and_what_is_old_goes() {
        assert_eq!(after(&[(0, 5000), (1, 0)]).0.rate("vm1", 0, Instant::now()), None);
        let (history, now) = after(&[(0, 0), (100, 10), (201, 20)]);
        assert_eq!(history.steps("vm1", 0, now).len(), 1, "two minutes");
        let many: Vec<(u64, u64)> = (0..500).map(|number| (number / 5, number)).collect();
        assert!(after(&many).0.ports["vm1"].len() <= MOMENTS_MOST);
    }
}
