//! Embedded guests as a method's guests: their own program in place of the document's, with its streams, write sizes and buffers.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{Subject, Taken};
use crate::bench::{BenchError, Latency, Measured, Outcome};
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
    pub fn run(
        &mut self,
        (round, subject, load): (u32, &Subject, Load),
        (shape, rate): (Option<Shape>, Option<Rate>),
        seconds: u32,
        stop: &AtomicBool,
    ) -> Result<Taken, BenchError> {
        let contestant = subject.contestant().ok_or_else(|| BenchError::Impossible("there is no guest".to_owned()))?;
        let item = Item { round, contestant, load };
        let measured = self.bench.shaped(&item, shape, rate, Duration::from_secs(seconds.into()), stop)?;
        let ran = shape.map_or_else(String::new, |shape| format!(": {}", words(shape)));
        let mark = format!("embedded guests' own program, not {}{ran}", self.instead_of);
        Ok(Taken { marks: vec![mark], ..taken(measured) })
    }

    pub fn notes(&self) -> Vec<String> {
        use crate::bench::Bench as _;
        self.bench.notes()
    }
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
    let mut taken = Taken { series, ..Taken::default() };
    let mut put = |name: &str, value: f64| taken.figures.extend([(name.to_owned(), value)]);
    match outcome {
        Outcome::Bulk { payload_bytes, elapsed } => {
            let gbit = payload_bytes as f64 * 8e-9;
            put("mbit", gbit * 1000.0 / elapsed.as_secs_f64());
            usage.cpu_seconds.into_iter().for_each(|seconds| put("cpu", seconds / gbit));
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
                Latency::EveryNs(mut each) => {
                    for percent in [50.0, 99.0] {
                        let ns = statistics::percentile(&mut each, percent);
                        ns.into_iter().for_each(|ns| put(&format!("p{percent}"), ns as f64 / 1e3));
                    }
                }
                Latency::Reported(known) => {
                    for known in known.iter().filter(|known| [50.0, 99.0].contains(&known.percent)) {
                        put(&format!("p{}", known.percent), known.us);
                    }
                    taken.latency = Some(known);
                }
            }
        }
    }
    // A guest that carried nothing gives no figure.
    taken.figures.retain(|_, value| value.is_finite());
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Usage;

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
            guest_cpu_seconds: None,
        };
        let bulk = |payload_bytes| Measured {
            outcome: Outcome::Bulk { payload_bytes, elapsed: Duration::from_secs(2) },
            usage,
            series: None,
        };
        let of = taken(bulk(250_000_000)).figures;
        let figures = [("mbit", 1000.0), ("cpu", 0.25), ("reads", 0.5), ("writes", 2.0), ("interrupts", 0.25)];
        assert_eq!(of, figures.map(|(name, value)| (name.to_owned(), value)).into());
        assert_eq!(taken(bulk(0)).figures.get("cpu"), None);
    }
}
