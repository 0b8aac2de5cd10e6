//! Bytes of several flows in windows of the same time, and how well each flow kept a rate in them.
//!
//! Windows are numbered by the machine's own clock (CLOCK_MONOTONIC), so that those of several processes are the same.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::host::CpuTimes;
use crate::series::Series;

/// Length of a window.
pub const WINDOW: Duration = Duration::from_millis(100);
/// Windows that are kept of a flow: an hour and a little.
const WINDOWS_MAX: usize = 40_000;
/// Most points of a drawn line.
const POINTS: usize = 120;
/// Windows at the beginning in which TCP finds its rate: it begins by sending too much, and then repairs what was lost.
const BEGIN: u64 = 15;
/// A link that carries this share of its rate is full.
const FULL: f64 = 0.95;

/// Time since the machine's start, without that in which it was suspended. By nix: rustix ends a process on a kernel without vDSO, as
/// the user-mode one.
pub fn machine_time() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}

/// The window of a time since the machine's start.
pub fn window_at(machine_time: Duration) -> u64 {
    u64::try_from(machine_time.as_nanos() / WINDOW.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes of one flow in each window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Number of the first window.
    pub first: u64,
    /// Its bytes, and those of the windows behind it.
    pub bytes: Vec<u64>,
}

impl Windows {
    /// Adds `bytes` in a window. What is before the first window, or more than an hour behind it, is not kept.
    pub fn add(&mut self, window: u64, bytes: u64) {
        if self.bytes.is_empty() {
            self.first = window;
        }
        let Some(at) = window.checked_sub(self.first).and_then(|at| usize::try_from(at).ok()) else { return };
        if at >= WINDOWS_MAX {
            return;
        }
        if self.bytes.len() <= at {
            self.bytes.resize(at + 1, 0);
        }
        if let Some(sum) = self.bytes.get_mut(at) {
            *sum = sum.saturating_add(bytes);
        }
    }

    /// The bytes of a window.
    fn at(&self, window: u64) -> u64 {
        let at = window.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.bytes.get(at)).copied().unwrap_or(0)
    }

    /// Number behind the last window.
    fn end(&self) -> u64 {
        self.first + self.bytes.len() as u64
    }
}

/// A counter that is read now and then. Between two readings it is taken to grow evenly.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    latest: Option<(Duration, u64)>,
    windows: Windows,
}

impl Meter {
    /// The counter at a time since the machine's start. A counter that is less than before began anew, and a time before is not kept.
    pub fn read(&mut self, machine_time: Duration, counter: u64) {
        let before = self.latest.replace((machine_time, counter));
        let Some((from, was)) = before.filter(|(from, _)| *from < machine_time) else { return };
        let (bytes, span) = (counter.saturating_sub(was), (machine_time - from).as_nanos());
        let (first, last) = (window_at(from), window_at(machine_time));
        let mut given = 0;
        for window in first..=last.min(first.saturating_add(WINDOWS_MAX as u64)) {
            let end = (u128::from(window + 1) * WINDOW.as_nanos()).min(machine_time.as_nanos());
            let until = (u128::from(bytes) * (end - from.as_nanos()) / span) as u64;
            self.windows.add(window, until - given);
            given = until;
        }
    }

    /// The windows from the first that grew to the last.
    pub fn windows(self) -> Windows {
        let Windows { first, mut bytes } = self.windows;
        let idle = bytes.iter().take_while(|bytes| **bytes == 0).count();
        bytes.drain(..idle);
        while bytes.pop_if(|bytes| *bytes == 0).is_some() {}
        Windows { first: first + idle as u64, bytes }
    }
}

/// Rates of flows that ran at the same time, in Mbit/s of payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Flows {
    /// Number of the first window.
    first: u64,
    /// The rate of each flow, for each window.
    rates: Vec<Vec<f64>>,
}

impl Flows {
    /// The windows in which all flows ran, without those at the beginning, in which TCP finds its rate, and without the last.
    pub fn of(flows: &[Windows]) -> Flows {
        let first = flows.iter().map(|flow| flow.first).max().unwrap_or(0).saturating_add(BEGIN);
        let end = flows.iter().map(Windows::end).min().unwrap_or(0).saturating_sub(1);
        let rate = |bytes: u64| bytes as f64 * 8e-6 / WINDOW.as_secs_f64();
        let rates = (first..end).map(|window| flows.iter().map(|flow| rate(flow.at(window))).collect());
        Flows { first, rates: rates.collect() }
    }

    /// Number of windows.
    pub fn len(&self) -> usize {
        self.rates.len()
    }

    /// Time of all windows in seconds.
    pub fn seconds(&self) -> f64 {
        self.len() as f64 * WINDOW.as_secs_f64()
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty()
    }

    /// Mean rate of a flow in all windows.
    pub fn mean(&self, flow: usize) -> f64 {
        let sum: f64 = self.rates.iter().filter_map(|rates| rates.get(flow)).sum();
        sum / self.len().max(1) as f64
    }

    /// Mean rate of all flows together.
    pub fn total(&self) -> f64 {
        self.rates.iter().flatten().sum::<f64>() / self.len().max(1) as f64
    }

    /// The rates of a flow in the windows that say something of a promise, from the lowest: the link, of `link` Mbit/s of payload, was full,
    /// and the hypervisor took no time. In the others the machine had not the time to keep a promise, or nobody to keep it to.
    pub fn while_full(&self, flow: usize, link: f64, stolen: &Stolen) -> Vec<f64> {
        let counts = |(number, rates): &(u64, &Vec<f64>)| {
            rates.iter().sum::<f64>() >= FULL * link && !stolen.windows.contains(number)
        };
        let windows = (self.first..).zip(&self.rates).filter(counts);
        let mut rates: Vec<f64> = windows.filter_map(|(_, rates)| rates.get(flow).copied()).collect();
        rates.sort_by(f64::total_cmp);
        rates
    }

    /// A flow's rate over time, in so few points that a picture shows them.
    pub fn series(&self, flow: usize) -> Series {
        let mut series = Series::default();
        let together = self.len().div_ceil(POINTS).max(1);
        for (number, windows) in self.rates.chunks(together).enumerate() {
            let sum: f64 = windows.iter().filter_map(|rates| rates.get(flow)).sum();
            let end = (number * together + windows.len()) as f64 * WINDOW.as_secs_f64();
            series.push(end, sum / windows.len() as f64);
        }
        series
    }
}

/// The windows in which the hypervisor gave processors' time to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stolen {
    windows: BTreeSet<u64>,
}

impl Stolen {
    /// These windows.
    fn add(&mut self, from: u64, to: u64) {
        self.windows.extend(from..=to);
    }
}

/// Looks at each window's end whether time was stolen, in a thread of its own. It ends with this.
#[derive(Debug)]
pub struct StolenWatch {
    stolen: Arc<Mutex<Stolen>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StolenWatch {
    /// Begins.
    pub fn start() -> StolenWatch {
        let (stolen, ends) = (Arc::new(Mutex::new(Stolen::default())), Arc::new(AtomicBool::new(false)));
        let (noted, ending) = (Arc::clone(&stolen), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let (mut before, mut from) = (CpuTimes::now(), window_at(machine_time()));
            while !ending.load(Ordering::Relaxed) {
                let left = WINDOW.as_nanos() - machine_time().as_nanos() % WINDOW.as_nanos();
                std::thread::sleep(Duration::from_nanos(u64::try_from(left).unwrap_or(0)));
                let (now, to) = (CpuTimes::now(), window_at(machine_time()));
                let share = now.as_ref().zip(before.as_ref()).and_then(|(now, before)| now.steal_percent_since(before));
                if share.is_some_and(|percent| percent > 0.0) {
                    noted.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(from, to);
                }
                (before, from) = (now, to);
            }
        });
        StolenWatch { stolen, ends, thread: Some(thread) }
    }

    /// The windows so far.
    pub fn stolen(&self) -> Stolen {
        self.stolen.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

impl Drop for StolenWatch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // A thread that panicked has nothing to give back.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(first: u64, mbit: &[u64]) -> Windows {
        // 12,500 bytes in 100 ms are 1 Mbit/s.
        Windows { first, bytes: mbit.iter().map(|mbit| mbit * 12_500).collect() }
    }

    #[test]
    fn bytes_are_kept_by_the_machine_s_time_and_none_before_the_first_or_after_an_hour() {
        let mut windows = Windows::default();
        for (window, bytes) in [(70, 1), (72, 2), (72, 3), (69, 9), (70 + WINDOWS_MAX as u64, 9), (u64::MAX, 9)] {
            windows.add(window, bytes);
        }
        assert_eq!(windows, Windows { first: 70, bytes: vec![1, 0, 5] });
        assert_eq!(window_at(Duration::from_millis(7_099)), 70);
        assert!(window_at(machine_time()) > 0);
    }

    #[test]
    fn a_counter_s_growth_is_divided_among_the_windows_between_two_readings() {
        let mut meter = Meter::default();
        for (ms, counter) in
            [(950, 70), (1_000, 70), (1_050, 170), (1_350, 470), (1_340, 470), (1_390, 475), (1_500, 475)]
        {
            meter.read(Duration::from_millis(ms), counter);
        }
        // 100 from 1.00 to 1.05 s, 300 from 1.05 to 1.35 s, 5 from 1.34 s on.
        assert_eq!(meter.windows(), Windows { first: 10, bytes: vec![150, 100, 100, 55] });
        assert_eq!(Meter::default().windows(), Windows::default());
    }

    #[test]
    fn flows_are_compared_where_all_of_them_ran_and_the_beginning_and_the_end_are_left_out() {
        let flows = Flows::of(&[flow(10, &[10; 30]), flow(12, &[30; 40])]);
        // From 12 + 15 to before 39, the last window of the first flow.
        assert_eq!((flows.first, flows.len()), (27, 12));
        assert_eq!((flows.mean(0), flows.mean(1), flows.total()), (10.0, 30.0, 40.0));
        let series = flows.series(1);
        assert_eq!((series.values.len(), series.values[3], series.until_seconds[11]), (12, 30.0, 1.2));
        assert!(Flows::of(&[flow(10, &[10; 4]), flow(90, &[30; 30])]).is_empty(), "no window in common");
        assert!(Flows::of(&[]).is_empty());
    }

    #[test]
    fn a_window_counts_for_a_promise_if_the_link_is_full_and_no_time_was_stolen() {
        let mut flows = [flow(0, &[20; 30]), flow(0, &[80; 30])];
        flows[0].bytes[18] = 12_500;
        (flows[0].bytes[19], flows[1].bytes[19]) = (10 * 12_500, 20 * 12_500);
        flows[0].bytes[21] = 15 * 12_500;
        let flows = Flows::of(&flows);
        let mut stolen = Stolen::default();
        stolen.add(22, 22);
        // Windows 15 to 28: the one of 81 and the one of 30 Mbit/s are not full, one is stolen, and that of 95 is full.
        let rates = flows.while_full(0, 100.0, &stolen);
        assert_eq!((rates.len(), rates[0], rates[1]), (14 - 3, 15.0, 20.0));
        assert_eq!(flows.while_full(0, 100.0, &Stolen::default()).len(), 14 - 2);
    }

    #[test]
    fn a_long_run_is_drawn_with_few_points_whose_mean_is_the_flow_s() {
        let rates: Vec<u64> = (0..1_216).map(|number| number % 7).collect();
        let flows = Flows::of(&[flow(0, &rates)]);
        let series = flows.series(0);
        assert!(series.values.len() <= POINTS && series.is_sound());
        let mean = series.values.iter().sum::<f64>() / series.values.len() as f64;
        assert!((mean - flows.mean(0)).abs() < 0.1, "{mean} and {}", flows.mean(0));
    }

    #[test]
    fn a_watch_sees_windows_pass_and_ends() {
        let watch = StolenWatch::start();
        let stolen = watch.stolen();
        drop(watch);
        assert!(stolen.windows.len() < WINDOWS_MAX);
    }
}
