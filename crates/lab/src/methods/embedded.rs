//! Embedded guests as a method's guests: their own program in place of the document's, with its streams, write sizes and buffers.

use super::{Run, Taken};
use crate::bench::{BenchError, Latency, Measured, Outcome, Percentile, Usage};
use crate::embedded::{Embedded, Program, Shape};
use crate::method::{Item, Load};
use crate::rate::Rate;
use crate::statistics;

/// Embedded guests with what they ran, for the row's remark.
pub struct Small {
    bench: Embedded,
    /// The program that they stand in for: `iperf`.
    instead_of: &'static str,
}

impl Small {
    pub fn new(program: &Program, instead_of: &'static str) -> Small {
        Small { bench: Embedded::new(program.clone()), instead_of }
    }

    /// A run. The remark says which program ran, with which shape.
    pub fn run<L>(
        &mut self,
        run: &Run<'_, L>,
        load: Load,
        (shape, rate): (Option<Shape>, Option<Rate>),
    ) -> Result<Taken, BenchError> {
        let missing = || BenchError::Impossible("there is no guest".to_owned());
        let item = Item { round: run.round, contestant: run.subject.contestant().ok_or_else(missing)?, load };
        let measured = self.bench.shaped(&item, shape, rate, run.duration(), run.stop)?;
        let ran = shape.map_or_else(String::new, |shape| format!(": {}", words(shape)));
        let mark = format!("embedded guests' own program, not {}{ran}", self.instead_of);
        Ok(Taken { marks: vec![mark], ..taken(measured) })
    }

    /// The same without a virtual machine.
    pub fn natively<L>(
        &mut self,
        run: &Run<'_, L>,
        load: Load,
        ran: (Option<Shape>, Option<Rate>),
    ) -> Result<Taken, BenchError> {
        Ok(taken(self.bench.natively(load, ran, run.duration(), run.stop)?))
    }

    pub fn notes(&self) -> Vec<String> {
        use crate::bench::Bench as _;
        notes(&self.bench.notes())
    }
}

/// The notes of a bench of embedded guests, for a method of the lab.
pub fn notes(of_bench: &[String]) -> Vec<String> {
    let others = of_bench.iter().filter(|note| !note.starts_with("CPU time is the daemon's alone"));
    others.cloned().chain([CPU.to_owned(), NATIVE_ROW.to_owned()]).collect()
}

/// Whose processor time embedded guests' figures have.
pub const CPU: &str = "CPU time is that of the guests that take part, drivers and TCP included, and of the daemon, together and apart; the \
                       peer's is not in it.";
/// The native row beside embedded guests.
pub const NATIVE_ROW: &str = "native: streams, writes, buffers and exchanges of the same sizes by the kernel's TCP, between two network \
                              namespaces of the host joined by a veth pair, with a thread for each stream. Embedded guests have smoltcp in its \
                              place. The link is the same both ways.";

/// Percentiles of latencies that are kept where every exchange is known.
pub const PERCENTS: [f64; 5] = [0.0, 50.0, 90.0, 99.0, 100.0];

/// The distribution of exchanges of these durations. None of none.
pub fn distribution(each_ns: &mut [u64]) -> Option<Vec<Percentile>> {
    let of = |percent| Some(Percentile { percent, us: statistics::percentile(each_ns, percent)? as f64 / 1e3 });
    let known: Vec<Percentile> = PERCENTS.into_iter().filter_map(of).collect();
    Some(known).filter(|known| !known.is_empty())
}

/// A shape in words: `16 streams, writes of 128 KB, buffers of 64 KB`.
pub fn words(shape: Shape) -> String {
    let bytes = |bytes: u32| if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} KB", bytes / 1024) };
    let streams = if shape.streams == 1 { "1 stream".to_owned() } else { format!("{} streams", shape.streams) };
    format!("{streams}, writes of {}, buffers of {}", bytes(shape.write_bytes), bytes(shape.buffer_bytes))
}

/// The figures of a bench's run: `mbit` and `cpu`, or `transactions`, `p50` and `p99`; `reads`, `writes` and `interrupts` per frame.
pub fn taken(measured: Measured) -> Taken {
    let Measured { outcome, usage, series } = measured;
    let mut taken = Taken { series, steal_percent: usage.steal_percent, ..Taken::default() };
    let mut put = |name: &str, value: f64| taken.figures.extend([(name.to_owned(), value)]);
    match outcome {
        Outcome::Bulk { payload_bytes, elapsed } => {
            let gbit = payload_bytes as f64 * 8e-9;
            put("mbit", gbit * 1000.0 / elapsed.as_secs_f64());
            let Usage { cpu_seconds, vmm_cpu_seconds: vmm, daemon_cpu_seconds: daemon, .. } = usage;
            // Where QEMU serves, there is no daemon, and where both are unknown, one figure.
            let both = vmm.map(|vmm| vmm + daemon.unwrap_or(0.0)).or(cpu_seconds);
            for (name, seconds) in [("cpu", both), ("daemon_cpu", daemon), ("vmm_cpu", vmm)] {
                seconds.into_iter().for_each(|seconds| put(name, seconds / gbit));
            }
            let counts =
                [("reads", usage.register_reads), ("writes", usage.register_writes), ("interrupts", usage.interrupts)];
            for (name, count) in counts {
                let each = count.zip(usage.frames).map(|(count, frames)| count as f64 / frames as f64);
                each.into_iter().for_each(|each| put(name, each));
            }
        }
        Outcome::Transactions { count, elapsed, latency } => {
            put("transactions", count as f64 / elapsed.as_secs_f64());
            match latency {
                Latency::EveryNs(mut each) => taken = taken.with_latency(distribution(&mut each)),
                Latency::Reported(known) => taken = taken.with_latency(Some(known)),
            }
        }
    }
    // A guest that carried nothing gives no figure.
    taken.figures.retain(|_, value| value.is_finite());
    taken
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_shape_is_said_as_the_document_writes_it() {
        let shape = Shape { streams: 16, write_bytes: 128 << 10, buffer_bytes: 64 << 10 };
        assert_eq!(words(shape), "16 streams, writes of 128 KB, buffers of 64 KB");
        let shape = Shape { streams: 1, write_bytes: 128, buffer_bytes: 8 << 10 };
        assert_eq!(words(shape), "1 stream, writes of 128 bytes, buffers of 8 KB");
    }

    #[test]
    fn a_run_s_figures_are_rates_costs_and_messages_per_frame_and_nothing_gives_none() {
        let usage = Usage {
            frames: Some(1_000),
            register_reads: Some(500),
            register_writes: Some(2_000),
            interrupts: Some(250),
            cpu_seconds: Some(0.5),
            vmm_cpu_seconds: Some(1.5),
            daemon_cpu_seconds: Some(0.5),
            ..Usage::default()
        };
        let bulk = |payload_bytes| Measured {
            outcome: Outcome::Bulk { payload_bytes, elapsed: Duration::from_secs(2) },
            usage,
            series: None,
        };
        let of = taken(bulk(250_000_000)).figures;
        let figures = [("mbit", 1000.0), ("cpu", 1.0), ("daemon_cpu", 0.25), ("vmm_cpu", 0.75), ("reads", 0.5)];
        let figures: Vec<(&str, f64)> = figures.into_iter().chain([("writes", 2.0), ("interrupts", 0.25)]).collect();
        assert_eq!(of, figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect());
        assert_eq!(taken(bulk(0)).figures.get("cpu"), None);
    }

    #[test]
    fn exchanges_have_a_distribution_and_native_ones_no_costs() {
        let outcome = Outcome::Transactions {
            count: 4,
            elapsed: Duration::from_secs(2),
            latency: Latency::EveryNs(vec![4_000, 1_000, 3_000, 2_000]),
        };
        let usage = Usage { frames: Some(0), register_reads: Some(0), ..Usage::default() };
        let taken = taken(Measured { outcome, usage, series: None });
        let known: Vec<(f64, f64)> = taken.latency.unwrap().iter().map(|known| (known.percent, known.us)).collect();
        assert_eq!((known.len(), known[0], known[4]), (5, (0.0, 1.0), (100.0, 4.0)));
        assert_eq!(taken.figures.keys().collect::<Vec<_>>(), ["p50", "p99", "transactions"]);
    }
}
