//! `esx-netperf`: "Performance Comparison of Virtual Network Devices". A guest of one processor and 512 MB and a client outside, over a
//! link of 1 and of 10 Gbit/s; netperf at six sizes of socket and message, both ways; throughput, and CPU normalised by throughput, of
//! enhanced vmxnet over e1000; request-responses of one byte.

use std::collections::HashMap;
use std::process::Command;
use std::time::Duration;

use nicety_guests::{Accel, Error};

use super::embedded::{self, Small};
use super::field::Adapters;
use super::rig::{Measurement, Run, Stay, rig};
use super::{ABOUT_CPU, About, CPU, Chart, Figure, Length, Load, Method, Opening, Ratios, Rig, Subject, Table, Taken};
use crate::bench::{BenchError, Percentile};
use crate::embedded::Shape as Streams;
use crate::method::{self, Guests};
use crate::rate::Rate;
use crate::real::native::{self, Native};
use crate::real::outside::{self, GUEST, Lone, OUTSIDE, Outside, subjects};
use crate::real::veth::Tc;
use crate::real::{netperf, quoted};
use crate::record::RunRecord;
use crate::results::Direction;
use crate::spent::{Spent, Stopwatch};

/// The document's sizes: label, socket bytes, message bytes. The small sockets first, where latency binds.
const SIZES: [(&str, u32, u32); 6] = [
    ("8K-128", 8 << 10, 128),
    ("8K-512", 8 << 10, 512),
    ("8K-4K", 8 << 10, 4 << 10),
    ("64K-8K", 64 << 10, 8 << 10),
    ("64K-16K", 64 << 10, 16 << 10),
    ("64K-64K", 64 << 10, 64 << 10),
];
const QUICK_SIZES: [&str; 2] = ["8K-512", "64K-64K"];
/// netperf processes at once.
const PROCESSES: u32 = 3;
const MEMORY_MIB: u32 = 512;
/// The pair of the document, and the adapters beside it.
const ENHANCED: &str = "vmxnet2";
const E1000: &str = "e1000-82545em";
const ADAPTERS: Adapters =
    Adapters { quick: &[E1000, ENHANCED, "vmxnet3"], all: &[E1000, ENHANCED, "vmxnet3", "vmxnet", "vlance"] };
/// A run below this share of the link's rate is bound by the guest.
const GUEST_BOUND: f64 = 0.8;
const GUEST_BOUND_MARK: &str = "guest-bound";
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(30);

const FIGURES: [Figure; 7] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    CPU[0],
    CPU[1],
    CPU[2],
    Figure::new("transactions", "Request-response", "per second", Direction::Higher),
    Figure::new("p50", "Latency, median", "µs", Direction::Lower),
    Figure::new("p99", "Latency, 99th percentile", "µs", Direction::Lower),
];
/// Keys of a latency's percentiles in netperf's output, in rising order. The last bucket's value may exceed the maximum.
const PERCENTILES: [(f64, &str); 4] =
    [(50.0, "P50_LATENCY"), (90.0, "P90_LATENCY"), (99.0, "P99_LATENCY"), (100.0, "MAX_LATENCY")];

/// The method (see the module's page).
#[derive(Debug)]
pub struct EsxNetperf;

/// Direction of a load, seen from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Way {
    Transmit,
    Receive,
    RequestResponse,
}

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    /// 1 or 10 Gbit/s.
    gbit: u32,
    way: Way,
    /// Index into [`SIZES`].
    size: usize,
}

impl Shape {
    /// Its name: `1g-transmit-8K-128`, `10g-rr`.
    fn name(self) -> String {
        let size = SIZES.get(self.size).map_or("", |(label, ..)| label);
        match self.way {
            Way::Transmit => format!("{}g-transmit-{size}", self.gbit),
            Way::Receive => format!("{}g-receive-{size}", self.gbit),
            Way::RequestResponse => format!("{}g-rr", self.gbit),
        }
    }

    fn rate(self) -> Rate {
        Rate { mbit: self.gbit.saturating_mul(1000) }
    }

    fn title(self) -> String {
        let size = SIZES.get(self.size).map_or("", |(label, ..)| label);
        let way = match self.way {
            Way::Transmit => format!("transmit, {size}"),
            Way::Receive => format!("receive, {size}"),
            Way::RequestResponse => "TCP_RR of one byte".to_owned(),
        };
        format!("{way}, {} Gbit/s", self.gbit)
    }

    /// All loads, in the order in which a guest takes them: one link after the other.
    fn all(quick: bool) -> Vec<Shape> {
        let mut all = Vec::new();
        for gbit in if quick { &[1][..] } else { &[1, 10] } {
            for way in [Way::Transmit, Way::Receive] {
                let sizes = SIZES.iter().enumerate().filter(|(_, (label, ..))| !quick || QUICK_SIZES.contains(label));
                all.extend(sizes.map(|(size, _)| Shape { gbit: *gbit, way, size }));
            }
            all.push(Shape { gbit: *gbit, way: Way::RequestResponse, size: 0 });
        }
        all
    }

    fn of(load: &str) -> Option<Shape> {
        Shape::all(false).into_iter().find(|shape| shape.name() == load)
    }

    /// The words of netperf's command line after its name.
    fn words(self, address: &str, seconds: u32) -> String {
        let Some((_, socket, message)) = SIZES.get(self.size) else { return String::new() };
        let keys = "-k THROUGHPUT,THROUGHPUT_UNITS,ELAPSED_TIME";
        match self.way {
            Way::RequestResponse => {
                let more = PERCENTILES.map(|(_, key)| key).join(",");
                format!("-4 -H {address} -t TCP_RR -l {seconds} -P 0 -- -r 1,1 {keys},{more}")
            }
            _ => format!(
                "-4 -H {address} -t TCP_STREAM -l {seconds} -P 0 -- -s {socket} -S {socket} -m {message} {keys}"
            ),
        }
    }

    /// The same of embedded guests: a stream for each process, with the socket's size as its buffers.
    fn embedded(self) -> Option<Streams> {
        let (_, socket, message) = SIZES.get(self.size).filter(|_| self.way != Way::RequestResponse)?;
        Some(Streams { streams: PROCESSES as u16, write_bytes: *message, buffer_bytes: *socket })
    }

    /// The same of embedded guests' bench.
    fn kind(self) -> method::Load {
        match self.way {
            Way::Transmit => method::Load::BulkTransmit,
            Way::Receive => method::Load::BulkReceive,
            Way::RequestResponse => method::Load::RequestResponse,
        }
    }

    fn processes(self) -> u32 {
        if self.way == Way::RequestResponse { 1 } else { PROCESSES }
    }

    /// A line of shell that runs all processes at once, `program` with these words, and then prints what they said. `begin` is put before
    /// programs of busybox.
    fn script(self, program: &str, address: &str, seconds: u32, folder: &str, begin: &str) -> String {
        let numbers: Vec<String> = (1..=self.processes()).map(|number| number.to_string()).collect();
        let (all, words) = (numbers.join(" "), self.words(address, seconds));
        format!(
            "for n in {all}; do {program} {words} >{folder}/n$n 2>&1 & done; wait; for n in {all}; do {begin}cat {folder}/n$n; done"
        )
    }
}

impl Method for EsxNetperf {
    fn about(&self) -> About {
        About {
            name: "esx-netperf",
            document: Some((3, "Performance Comparison of Virtual Network Devices (ESX Server 3.5)")),
            line: "netperf at six socket and message sizes with a client outside: enhanced vmxnet over e1000, throughput and CPU",
            needs: "user-mode guests (a C compiler, once) or QEMU's: Debian packages, 230 MB once, tc for QEMU's and native rows; embedded guests need nothing",
            guests: &[Guests::Uml, Guests::Qemu, Guests::Embedded],
            overhead_seconds: 0.8,
            memory_mib: Some(MEMORY_MIB),
            disk_bytes: 0,
        }
    }

    fn field(&self, guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.beside_peers(guests, length, subjects).chain([Subject::native()]).collect()
    }

    fn loads(&self, guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 1,
            Length::Usual => 2,
            Length::Full => 30,
        });
        let quick = length == Length::Quick;
        let load = |shape: Shape| {
            let (server, client) = match shape.way {
                Way::Receive => ("guest", "outside"),
                _ => ("outside", "guest"),
            };
            if guests == Guests::Embedded {
                let work = shape.embedded().map_or_else(|| "one byte each way".to_owned(), embedded::words);
                let commands = vec![
                    format!("{server}: Nicety's embedded guest, TCP by smoltcp"),
                    format!("{client}: the same: {work}, {seconds} s"),
                ];
                return Load { name: shape.name(), title: shape.title(), seconds, commands };
            }
            let command = format!("netperf {}", shape.words(&server.to_uppercase(), seconds));
            let at_once =
                if shape.processes() == 1 { String::new() } else { format!(", {PROCESSES} processes at once") };
            let commands = vec![format!("{server}: netserver -4"), format!("{client}{at_once}: {command}")];
            Load { name: shape.name(), title: shape.title(), seconds, commands }
        };
        Shape::all(quick).into_iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn charts(&self, loads: &[Load]) -> Vec<Chart> {
        let mut charts = Vec::new();
        for of in [ENHANCED, "vmxnet3", "vmxnet", "vlance"] {
            for gbit in [1, 10] {
                for (way, word) in [(Way::Transmit, "transmit"), (Way::Receive, "receive")] {
                    let here =
                        |load: &Load| Shape::of(&load.name).filter(|shape| shape.gbit == gbit && shape.way == way);
                    let labelled = loads.iter().filter_map(|load| {
                        let label = SIZES.get(here(load)?.size).map(|(label, ..)| (*label).to_owned())?;
                        Some((label, load.name.clone()))
                    });
                    charts.push(Ratios {
                        title: format!("{of} over e1000: {word}, {gbit} Gbit/s"),
                        of,
                        base: E1000,
                        loads: labelled.collect(),
                        figures: &[("throughput", "mbit"), ("CPU", "cpu")],
                        is_documents: of == ENHANCED,
                        about: if of == ENHANCED {
                            "The document's figures 2 to 5: ratio of throughput, and of CPU normalised by throughput (below 1 is better). Its bars have no \
                             numbers. Rows under a user-space driver pay system calls for each packet that the vendor's kernel driver does not."
                        } else {
                            "Not in the document: an adapter beside its pair."
                        },
                    });
                }
            }
        }
        charts.retain(|chart| !chart.loads.is_empty());
        charts.into_iter().map(Chart::Ratios).collect()
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let shown = loads.iter().filter_map(|load| Some((load, Shape::of(&load.name)?)));
        let tables = |(load, shape): (&Load, Shape)| {
            let figures: &[(&str, &str)] = match shape.way {
                Way::RequestResponse => &[
                    (
                        "transactions",
                        "The document's figure 6, whose bars have no numbers: vmxnet's rate is higher than e1000's in every configuration.",
                    ),
                    ("p99", "One exchange in a hundred takes longer."),
                ],
                _ => &[
                    (
                        "mbit",
                        "Three netperf processes together. A run below 80 % of the link's rate is guest-bound, and not repeated at the other rate.",
                    ),
                    (CPU[0].name, ABOUT_CPU[0]),
                    (CPU[1].name, ABOUT_CPU[1]),
                    (CPU[2].name, ABOUT_CPU[2]),
                ],
            };
            let title = |figure| match FIGURES.iter().find(|known| known.name == figure) {
                Some(known) if !["mbit", "transactions"].contains(&figure) => {
                    format!("{}: {}", known.title, shape.title())
                }
                _ => shape.title(),
            };
            let of = |(figure, about): &(&'static str, &'static str)| Table {
                title: title(figure),
                load: load.name.clone(),
                figure,
                bases: &[E1000],
                document: &[],
                about,
            };
            figures.iter().map(of).collect::<Vec<_>>()
        };
        shown.flat_map(tables).collect()
    }

    fn open(&self, mut opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let bound = Bound::of(opening.before);
        if opening.plan.guests == Guests::Embedded {
            return Ok(rig(Own { small: Small::new(opening.program, "netperf"), bound }));
        }
        let tc = opening.tc()?;
        let Opening { plan, program, say, .. } = opening;
        // Every guest has netperf.
        let mut outside = Outside::open(outside::Opening::of(plan, program, MEMORY_MIB), say)?;
        outside.serve(&netperf::server(outside.root()))?;
        Ok(rig(Netperf { outside, native: native::Kept::default(), tc, bound }))
    }
}

#[derive(Debug)]
struct Netperf {
    outside: Outside,
    native: native::Kept<Native>,
    tc: Option<Tc>,
    bound: Bound,
}

/// Whether a run at 1 Gbit/s was guest-bound, by round, row and shape.
#[derive(Debug, Default)]
struct Bound(HashMap<(u32, Subject, Shape), bool>);

impl Bound {
    /// Reads it from the runs of a study that goes on: it may go on within a round.
    fn of(before: &[RunRecord]) -> Bound {
        let counted = before.iter().filter(|run| !run.discarded && run.figures.contains_key("mbit"));
        let at_one = counted.filter_map(|run| Some((run, Shape::of(&run.load).filter(|shape| shape.gbit == 1)?)));
        let bound = |run: &RunRecord| run.marks.iter().any(|mark| mark == GUEST_BOUND_MARK);
        Bound(at_one.map(|(run, shape)| ((run.round, run.subject.clone(), shape), bound(run))).collect())
    }

    /// The result of a run that is not worth making.
    fn skips(&self, round: u32, subject: &Subject, shape: Shape) -> Option<Taken> {
        let at_one = (round, subject.clone(), Shape { gbit: 1, ..shape });
        let bound = shape.gbit != 1 && self.0.get(&at_one).copied().unwrap_or(false);
        bound.then(|| Taken::marked("guest-bound at 1 Gbit/s: not repeated"))
    }

    /// Marks a run that the guest bounds.
    fn mark(&mut self, round: u32, subject: &Subject, shape: Shape, taken: &mut Taken) {
        let Some(mbit) = taken.figures.get("mbit") else { return };
        let bound = *mbit < GUEST_BOUND * f64::from(shape.rate().mbit);
        if bound {
            taken.marks.push(GUEST_BOUND_MARK.to_owned());
        }
        if shape.gbit == 1 {
            self.0.insert((round, subject.clone(), shape), bound);
        }
    }
}

/// Embedded guests, which have no netperf.
struct Own {
    small: Small,
    bound: Bound,
}

impl Measurement for Own {
    type Layout = Shape;
    type Guests = ();
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<Shape> {
        Shape::of(load)
    }

    fn skips(&self, run: &Run<'_, Shape>) -> Option<Taken> {
        self.bound.skips(run.round, run.subject, run.layout)
    }

    fn boot(&mut self, _: &Run<'_, Shape>) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, _: &mut (), run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let shape = run.layout;
        let mut taken = self.small.run(run, shape.kind(), (shape.embedded(), Some(shape.rate())))?;
        self.bound.mark(run.round, run.subject, shape, &mut taken);
        Ok(taken)
    }

    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let shape = run.layout;
        self.small.natively(run, shape.kind(), (shape.embedded(), Some(shape.rate())))
    }

    fn notes(&self) -> Vec<String> {
        let ours = "Embedded guests have no netperf: their own program has a stream for each of the document's three processes, buffers of the \
                    socket's size and writes of the message's. The peer outside is such a guest too, behind an uplink of the link's rate.";
        self.small.notes().into_iter().chain([ours.to_owned()]).collect()
    }
}

impl Measurement for Netperf {
    type Layout = Shape;
    type Guests = Lone;

    fn layout(load: &str) -> Option<Shape> {
        Shape::of(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing.gbit == wanted.gbit
    }

    fn skips(&self, run: &Run<'_, Shape>) -> Option<Taken> {
        self.bound.skips(run.round, run.subject, run.layout)
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Lone, BenchError> {
        Ok(self.outside.boot(run.subject, run.layout.rate(), run.stop)?)
    }

    fn warm(&mut self, lone: &mut Lone, run: &Run<'_, Shape>) -> Result<(), BenchError> {
        Ok(lone.guest.succeed_unless("netserver -4 >/dev/null </dev/null 2>&1", SLACK, run.stop).map(drop)?)
    }

    fn measure(&mut self, lone: &mut Lone, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, seconds, limit) = (run.layout, run.load.seconds, SLACK + run.duration());
        let watch = Stopwatch::start(lone.spent());
        let said = if shape.way == Way::Receive {
            let command = script_outside(&self.outside, shape, GUEST, seconds);
            self.outside.run(&command, limit, run.stop, &mut |_| Ok(()))?.0
        } else {
            lone.guest.succeed_unless(&shape.script("netperf", OUTSIDE, seconds, "/tmp", ""), limit, run.stop)?
        };
        let (spent, steal_percent) = watch.stop(lone.spent());
        let mut taken = parse(&said, shape, Some(spent)).ok_or_else(|| unparsed(&said))?;
        taken.steal_percent = steal_percent;
        self.bound.mark(run.round, run.subject, shape, &mut taken);
        Ok(taken)
    }

    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, root, tc) = (run.layout, self.outside.root(), self.tc.as_ref().ok_or(Error::Stopped)?);
        let open = || Native::serving(root, &[(netperf::server(root), native::NETPERF_PORT)]);
        let command = script_outside(&self.outside, shape, native::FAR, run.load.seconds);
        let (said, _) = self.native.with(open, |native| {
            native.pace(tc, shape.rate())?;
            native.run(&command, SLACK + run.duration(), run.stop, &mut |_| Ok(()))
        })?;
        Ok(parse(&said, shape, None).ok_or_else(|| unparsed(&said))?)
    }

    fn end(&mut self, lone: Lone) -> Result<(), BenchError> {
        Ok(self.outside.end(lone)?)
    }

    fn accelerator(&self) -> Option<Accel> {
        self.outside.accelerator()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.outside.notes();
        let version = self.outside.root().version("netperf").unwrap_or("of unknown version");
        notes.push(format!("netperf {version}. \"8K-128\": sockets of 8 KB on both sides, messages of 128 bytes."));
        notes.push("native: the same programs between two network namespaces of the host, joined by a veth pair that tc paces to the link's rate. Transmit and receive are the same there.".to_owned());
        notes
    }
}

/// The processes outside, as one shell.
fn script_outside(outside: &Outside, shape: Shape, address: &str, seconds: u32) -> Command {
    let (root, folder) = (outside.root(), outside.folder().path().display().to_string());
    let (netperf, busybox) = (quoted(&root.program("usr/bin/netperf")), root.busybox());
    let mut shell = Command::new(&busybox);
    let begin = format!("'{}' ", busybox.display());
    shell.args(["sh", "-c", &shape.script(&netperf, address, seconds, &folder, &begin)]);
    shell
}

fn unparsed(said: &str) -> Error {
    Error::Run { doing: "netperf".to_owned(), said: said.to_owned() }
}

/// The sum of all processes' rates. None if one of them failed.
fn parse(said: &str, shape: Shape, cpu: Option<Spent>) -> Option<Taken> {
    let values = |key: &str| {
        said.lines().filter_map(move |line| line.trim().strip_prefix(key)?.strip_prefix('=')).collect::<Vec<_>>()
    };
    let (unit, figure) = match shape.way {
        Way::RequestResponse => ("Trans/s", "transactions"),
        _ => ("10^6bits/s", "mbit"),
    };
    let numbers = |key: &str| {
        values(key)
            .into_iter()
            .map(|text| text.parse::<f64>().ok().filter(|n| n.is_finite()))
            .collect::<Option<Vec<_>>>()
    };
    let (rates, times) = (numbers("THROUGHPUT")?, numbers("ELAPSED_TIME")?);
    let whole =
        rates.len() == shape.processes() as usize && values("THROUGHPUT_UNITS").iter().all(|have| *have == unit);
    let rate: f64 = rates.iter().sum();
    if !whole || rate <= 0.0 {
        return None;
    }
    let mut taken = Taken::default();
    taken.figures.insert(figure.to_owned(), rate);
    let gbit: f64 = rates.iter().zip(&times).map(|(rate, seconds)| rate * seconds / 1000.0).sum();
    if let Some(cpu) = cpu.filter(|_| figure == "mbit" && gbit > 0.0) {
        taken.figures.extend(cpu.per(gbit, ""));
    }
    if shape.way == Way::RequestResponse {
        let (mut known, mut before): (_, f64) = (Vec::new(), 0.0);
        for (percent, key) in PERCENTILES {
            before = before.max(*numbers(key)?.first()?);
            known.push(Percentile { percent, us: before });
        }
        taken = taken.with_latency(Some(known));
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::method::Server;

    #[test]
    fn the_document_s_six_sizes_run_both_ways_over_both_links_and_each_load_is_found_by_its_name() {
        let loads = EsxNetperf.loads(Guests::Uml, Length::Full, None);
        assert_eq!(loads.len(), 2 * (2 * 6 + 1));
        assert_eq!(loads[0].name, "1g-transmit-8K-128");
        let command =
            "guest, 3 processes at once: netperf -4 -H OUTSIDE -t TCP_STREAM -l 30 -P 0 -- -s 8192 -S 8192 -m 128 -k ";
        assert!(loads[0].commands[1].starts_with(command), "{:?}", loads[0].commands);
        assert!(
            loads[6].commands[1].starts_with("outside, 3 processes at once: netperf -4 -H GUEST "),
            "{:?}",
            loads[6].commands
        );
        let found = loads.iter().filter(|load| Shape::of(&load.name).is_some_and(|shape| shape.title() == load.title));
        assert_eq!(found.count(), loads.len());
        // Throughput ratio and CPU ratio per size: figures 2 to 5.
        let charts = EsxNetperf.charts(&loads);
        let Chart::Ratios(first) = &charts[0] else { panic!("{charts:?}") };
        assert_eq!((first.of, first.base, first.loads.len()), ("vmxnet2", "e1000-82545em", 6));
    }

    #[test]
    fn a_run_that_the_guest_bounds_is_not_made_at_the_other_rate_also_when_a_lab_goes_on_within_the_round() {
        let (subject, at) = (Subject::new("e1000", Server::Nicety), |gbit| Shape { gbit, way: Way::Transmit, size: 5 });
        let run = |round, mbit: f64| {
            let mut taken = Taken { figures: [("mbit".to_owned(), mbit)].into(), ..Taken::default() };
            Bound::default().mark(round, &subject, at(1), &mut taken);
            RunRecord::new(&crate::plan::Item { round, subject: subject.clone(), load: at(1).name() }, Ok(taken))
        };
        let bound = Bound::of(&[run(0, 950.0), run(1, 400.0)]);
        assert_eq!([0, 1].map(|round| bound.skips(round, &subject, at(10)).is_some()), [false, true]);
        assert_eq!(bound.skips(1, &subject, at(1)), None);
    }

    #[test]
    fn three_processes_are_summed_and_two_of_three_are_a_failure() {
        let one = "THROUGHPUT=200.5\nTHROUGHPUT_UNITS=10^6bits/s\nELAPSED_TIME=2.00\n";
        let shape = Shape { gbit: 1, way: Way::Transmit, size: 0 };
        let cpu = Spent { vmm: Duration::from_secs(5), daemon: Some(Duration::from_secs(1)) };
        let taken = parse(&one.repeat(3), shape, Some(cpu)).unwrap();
        assert_eq!(taken.figures.get("mbit"), Some(&601.5));
        for (figure, seconds) in [("cpu", 6.0), ("daemon_cpu", 1.0), ("vmm_cpu", 5.0)] {
            assert!((taken.figures[figure] - seconds / 1.203).abs() < 1e-9, "{figure} for 1.203 Gbit: {taken:?}");
        }
        assert_eq!(parse(&one.repeat(2), shape, None), None);
        let exchanges = Shape { gbit: 1, way: Way::RequestResponse, size: 0 };
        let text = "THROUGHPUT=348.56\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=2.01\nP50_LATENCY=2011\nP90_LATENCY=2500\n\
                    P99_LATENCY=14000\nMAX_LATENCY=13811\n";
        let taken = parse(text, exchanges, None).unwrap();
        let known: Vec<(f64, f64)> = taken.latency.unwrap().iter().map(|known| (known.percent, known.us)).collect();
        assert_eq!(known, [(50.0, 2011.0), (90.0, 2500.0), (99.0, 14000.0), (100.0, 14000.0)]);
        assert_eq!((taken.figures["p50"], taken.figures["p99"]), (2011.0, 14000.0));
        assert_eq!(parse("establish control: are you sure there is a netserver listening?", shape, None), None);
    }
}
