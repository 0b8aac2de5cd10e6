//! Processor time of guests and of what serves them during a measurement.

use std::time::Duration;

use crate::host::CpuTimes;

/// Processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// By the VMMs with their guests, QEMU's model of the adapter included, or by embedded guests.
    pub vmm: Duration,
    /// The time of our daemons. `None`: they serve nothing.
    pub daemon: Option<Duration>,
}

impl Spent {
    /// The time between this and a later one.
    #[must_use]
    pub fn until(self, later: &Spent) -> Spent {
        let daemon = later.daemon.zip(self.daemon).map(|(later, before)| later.saturating_sub(before));
        Spent { vmm: later.vmm.saturating_sub(self.vmm), daemon }
    }

    /// Together and apart, per `amount` of something: the figures `cpu`, `daemon_cpu` and `vmm_cpu`, with `ending` behind these names.
    pub fn per(self, amount: f64, ending: &str) -> impl Iterator<Item = (String, f64)> {
        let both = Some(self.vmm + self.daemon.unwrap_or_default());
        let all = [("cpu", both), ("daemon_cpu", self.daemon), ("vmm_cpu", Some(self.vmm))];
        let figure = move |(name, time): (&str, Option<Duration>)| {
            let figure = time?.as_secs_f64() / amount;
            // What carried nothing gives no figure.
            figure.is_finite().then(|| (format!("{name}{ending}"), figure))
        };
        all.into_iter().filter_map(figure)
    }
}

/// Measures processor time, and what the hypervisor takes meanwhile.
#[derive(Debug)]
pub struct Stopwatch {
    begun: Spent,
    machine: Option<CpuTimes>,
}

impl Stopwatch {
    /// Starts it. `spent`: processor time so far.
    pub fn start(spent: Spent) -> Stopwatch {
        Stopwatch { begun: spent, machine: CpuTimes::now() }
    }

    /// The time since the start, and the percentage of the processors' time that the hypervisor gave to others.
    pub fn stop(self, spent: Spent) -> (Spent, Option<f64>) {
        (self.begun.until(&spent), CpuTimes::stolen_percent(self.machine))
    }
}
