//! `pairs`: every adapter with every adapter. A stream from the row's guest to the column's, and request-response between them.

use std::collections::BTreeMap;
use std::time::Duration;

use nicety_guests::Error;

use super::embedded::{Small, distribution};
use super::rig::{Measurement, Run, Stay, rig};
use super::{About, CPU, Chart, Figure, Heat, Length, Load, Method, NATIVE, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::embedded::{self, Layout, Party, Place, Program};
use crate::method::{self, Guests, Server};
use crate::results::Direction;

/// Beginnings of the loads' names; the other adapter follows.
const STREAM: &str = "stream-to-";
const REQUEST_RESPONSE: &str = "rr-to-";
/// Duration of a first exchange, which teaches addresses.
const FIRST_EXCHANGE: Duration = Duration::from_millis(20);

const FIGURES: [Figure; 7] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("transactions", "Request-response", "per second", Direction::Higher),
    Figure::new("p50", "Latency, median", "µs", Direction::Lower),
    Figure::new("p99", "Latency, 99th percentile", "µs", Direction::Lower),
    CPU[0],
    CPU[1],
    CPU[2],
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Pairs;

/// The adapter at the other end of a load.
fn other(load: &str) -> Option<&str> {
    load.strip_prefix(STREAM).or_else(|| load.strip_prefix(REQUEST_RESPONSE))
}

/// The adapter of the column that is also a table, with intervals and the native row.
fn column(loads: &[Load]) -> Option<&str> {
    let there = |name: &&str| loads.iter().any(|load| other(&load.name) == Some(name));
    let first = || loads.first().and_then(|load| other(&load.name));
    ["vmxnet3", "virtio-net"].into_iter().find(there).or_else(first)
}

impl Method for Pairs {
    fn about(&self) -> About {
        About {
            name: "pairs",
            document: None,
            line: "every adapter with every adapter: bulk and request-response",
            needs: "nothing",
            guests: &[Guests::Embedded],
            overhead_seconds: 0.08,
            memory_mib: None,
            disk_bytes: 0,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        let quick = length == Length::Quick;
        let names = embedded::driven(quick).into_iter();
        // A quick look leaves out virtual functions, which behave like their families' adapters: pairs grow by the square.
        let is_function = |name: &&str| nicety_adapters::find(name).is_some_and(|entry| entry.card.is_some());
        let all = names.filter(|name| !quick || !is_function(name)).map(|name| Subject::new(name, Server::Nicety));
        all.chain([Subject::native()]).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(if length == Length::Full { 3 } else { 1 });
        // Named adapters may be beyond a quick look's: `keeps` leaves out what is not measured.
        let pair = |name: &str| {
            let command = |what: &str| {
                vec![format!("{name}'s guest: embedded"), format!("the row's guest: embedded, {what} for {seconds} s")]
            };
            let load = |begin: &str, title: String, what: &str| Load {
                name: format!("{begin}{name}"),
                title,
                seconds,
                commands: command(what),
            };
            [
                load(STREAM, format!("One TCP stream to {name}"), "one stream in writes of 64 KB"),
                load(REQUEST_RESPONSE, format!("Request-response with {name}"), "one byte each way, one at a time"),
            ]
        };
        embedded::driven(false).into_iter().flat_map(pair).collect()
    }

    fn keeps(&self, load: &Load, adapters: &[&str]) -> bool {
        other(&load.name).is_some_and(|name| adapters.contains(&name))
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn charts(&self, loads: &[Load]) -> Vec<Chart> {
        let columns = |begin: &str| -> Vec<(String, String)> {
            let named =
                loads.iter().filter_map(|load| Some((load.name.strip_prefix(begin)?.to_owned(), load.name.clone())));
            named.collect()
        };
        let heat = |title: &str, begin: &str, figure, about| {
            Chart::Heat(Heat { title: title.to_owned(), rows: "From", loads: columns(begin), figure, about })
        };
        let stream = "One TCP stream from the row's guest to the column's.";
        let exchange = "The row's guest asks the column's, one byte each way, one at a time.";
        vec![
            heat("Throughput", STREAM, "mbit", stream),
            heat("Request-response", REQUEST_RESPONSE, "transactions", exchange),
            heat("Latency, median", REQUEST_RESPONSE, "p50", exchange),
            heat("Nicety's CPU per gigabit", STREAM, "daemon_cpu", stream),
        ]
    }

    /// The column of one adapter, with intervals: the fields have medians alone.
    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let Some(name) = column(loads) else { return Vec::new() };
        let table = |title: String, begin: &str, figure| Table {
            title,
            load: format!("{begin}{name}"),
            figure,
            bases: &["e1000", "vmxnet3"],
            document: &[],
            about: "The other columns are in the fields above, and every sample is in the file of runs.",
        };
        vec![
            table(format!("Throughput to {name}"), STREAM, "mbit"),
            table(format!("Request-response with {name}"), REQUEST_RESPONSE, "transactions"),
            table(format!("CPU per gigabit to {name}"), STREAM, CPU[0].name),
            table(format!("Nicety's CPU per gigabit to {name}"), STREAM, CPU[1].name),
            table(format!("The guests' CPU per gigabit to {name}"), STREAM, CPU[2].name),
        ]
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, .. } = opening;
        let adapters = plan.adapters().into_iter().filter(|name| *name != NATIVE).map(str::to_owned).collect();
        let column = column(&plan.loads).unwrap_or_default().to_owned();
        let native = Small::new(program, "netperf");
        Ok(rig(Field { program: program.clone(), adapters, column, native }))
    }
}

/// Two guests of each adapter at one switch. Idle ones sleep.
struct Field {
    program: Program,
    adapters: Vec<String>,
    /// See [`column`].
    column: String,
    native: Small,
}

impl Field {
    /// A guest of this adapter: the first, or the second for pairs of the same.
    fn party(&self, adapter: &str, second: bool) -> Result<Party, BenchError> {
        let at = self.adapters.iter().position(|name| name == adapter);
        let number = at.and_then(|at| u8::try_from(2 * at + usize::from(second)).ok());
        number.map(Party::Guest).ok_or_else(|| BenchError::Impossible(format!("there is no guest with {adapter}")))
    }
}

impl Measurement for Field {
    /// Whether it is request-response.
    type Layout = bool;
    type Guests = embedded::Rig;
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<bool> {
        other(load).map(|_| load.starts_with(REQUEST_RESPONSE))
    }

    fn boot(&mut self, run: &Run<'_, bool>) -> Result<embedded::Rig, BenchError> {
        let guests = self.adapters.iter().flat_map(|name| [Place::new(name), Place::new(name)]).collect();
        embedded::Rig::start(&self.program, &Layout { guests, ..Layout::default() }, run.stop)
    }

    fn measure(&mut self, rig: &mut embedded::Rig, run: &Run<'_, bool>) -> Result<Taken, BenchError> {
        let to = other(&run.load.name).unwrap_or_default();
        let (from, to) = (self.party(&run.subject.adapter, false)?, self.party(to, true)?);
        let (duration, stop) = (run.duration(), run.stop);
        rig.transact(from, to, FIRST_EXCHANGE, stop)?;
        if run.layout {
            let (elapsed_ns, each_ns) = rig.transact(from, to, duration, stop)?;
            return Ok(exchanges(elapsed_ns, each_ns));
        }
        let before = rig.spent(&[from, to], stop)?;
        let (bytes, elapsed) = rig.send(from, to, duration, stop)?;
        let spent = before.until(&rig.spent(&[from, to], stop)?);
        let gbit = bytes as f64 * 8e-9;
        let series = rig.sampled(to, stop)?.series(elapsed, 8e-6);
        let mut figures = BTreeMap::from([("mbit".to_owned(), gbit * 1000.0 / elapsed.as_secs_f64())]);
        figures.extend(spent.per(gbit, ""));
        // A guest that carried nothing gives no figure.
        figures.retain(|_, value| value.is_finite());
        Ok(Taken { figures, series: Some(series), ..Taken::default() })
    }

    fn natively(&mut self, run: &Run<'_, bool>) -> Result<Taken, BenchError> {
        if other(&run.load.name) != Some(&self.column) {
            let column = &self.column;
            return Ok(Taken::marked(format!(
                "a link without adapters: its one figure is that of the column {column}"
            )));
        }
        let kind = if run.layout { method::Load::RequestResponse } else { method::Load::GuestToGuest };
        self.native.natively(run, kind, (None, None))
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "Embedded guests: this project's own drivers, written from the datasheets with Linux's habits, and smoltcp's TCP with buffers of \
             512 KB. Two guests of each adapter stand at one switch, so that each also meets its own kind; idle ones sleep."
                .to_owned(),
            super::embedded::CPU.to_owned(),
            super::embedded::NATIVE_ROW.to_owned(),
        ]
    }
}

/// Figures of exchanges.
fn exchanges(elapsed_ns: u64, mut each_ns: Vec<u64>) -> Taken {
    let mut figures = BTreeMap::new();
    if elapsed_ns > 0 {
        figures.insert("transactions".to_owned(), each_ns.len() as f64 * 1e9 / elapsed_ns as f64);
    }
    Taken { figures, ..Taken::default() }.with_latency(distribution(&mut each_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Options;

    #[test]
    fn named_adapters_meet_each_other_and_none_else() {
        let adapters = vec!["e1000e".to_owned(), "vmxnet3".to_owned()];
        let options = Options { adapters, length: Some(Length::Quick), ..Options::default() };
        let plan = options.plan(&Pairs).unwrap();
        let loads: Vec<&str> = plan.loads.iter().map(|load| load.name.as_str()).collect();
        assert_eq!(loads, ["stream-to-e1000e", "rr-to-e1000e", "stream-to-vmxnet3", "rr-to-vmxnet3"]);
        let Chart::Heat(heat) = &Pairs.charts(&plan.loads)[0] else { panic!("no heat map") };
        let columns: Vec<&str> = heat.loads.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(columns, ["e1000e", "vmxnet3"]);
    }

    #[test]
    fn a_quick_look_is_one_adapter_of_each_family_and_lasts_ten_minutes_at_most() {
        let quick = Options { length: Some(Length::Quick), ..Options::default() }.plan(&Pairs).unwrap();
        let full = Options { length: Some(Length::Full), ..Options::default() }.plan(&Pairs).unwrap();
        assert!(quick.subjects.len() < full.subjects.len());
        assert_eq!(quick.loads.len(), 2 * (quick.subjects.len() - 1), "the native row has no column");
        assert!(quick.estimate() <= Duration::from_secs(600), "{:?}", quick.estimate());
    }
}
