//! `ten-gig`: "10G: more than a big pipe". One guest with four streams, in frames of 1500 and 9000 bytes; then four guests with four streams
//! each through one uplink: their total, each guest's share, and how long a guest waits for an answer meanwhile. With one worker and with
//! two, which stand for the document's slow and fast processors. Last, its NetQueue: the same four guests through a tap that is not
//! paced, with one queue and with four.

use std::collections::BTreeMap;
use std::time::Duration;

use nicety_guests::{Error, Layer};

use super::field::Adapters;
use super::rig::{Measurement, Run, rig};
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken, lower_first};
use crate::bench::{BenchError, Percentile};
use crate::method::Guests;
use crate::real::iperf::{self, IPERF, PACKAGES, report};
use crate::real::native::{self, Native};
use crate::real::netperf;
use crate::real::outside::{self, OUTSIDE, Outside, Several};
use crate::results::Direction;
use crate::spent::{Spent, Stopwatch};

/// Guests at the uplink, and streams of each.
const GUESTS: usize = 4;
const STREAMS: u32 = 4;
const LINK: &str = "rate = \"10Gbit/s\"\n";
/// Taps with several queues are not paced, so neither is the one that stands beside them.
const ONE_QUEUE: &str = "queues = 1\n";
const FOUR_QUEUES: &str = "queues = 4\n";
const MEMORY_MIB: u32 = 256;
/// The document's duration in seconds.
const DOCUMENTS_SECONDS: u32 = 120;
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(60);
const ADAPTERS: Adapters = Adapters::with_functions(&["e1000e", "vmxnet3", "virtio-net"]);

const FIGURES: [Figure; 8] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("jain", "Fairness (Jain)", "1 is even", Direction::Higher),
    Figure::new("lowest", "The lowest guest's share", "Mbit/s", Direction::Higher),
    Figure::new("p50", "Response time, middle guest", "µs", Direction::Lower),
    Figure::new("slowest", "Response time, slowest guest", "µs", Direction::Lower),
    CPU[0],
    CPU[1],
    CPU[2],
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct TenGig;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    title: &'static str,
    guests: usize,
    mtu: u32,
    workers: u32,
    /// Lines of the uplink's section in the host file.
    link: &'static str,
}

/// Loads with so many queues, which a quick look leaves out.
const fn queued(name: &'static str, title: &'static str, workers: u32, link: &'static str) -> Shape {
    Shape { name, title, guests: GUESTS, mtu: 1500, workers, link }
}

/// All loads. Those of the same workers and uplink stand together: the guests stay up between them.
const SHAPES: [Shape; 8] = [
    Shape {
        name: "one-1500",
        title: "One guest, 4 streams, packets of 1500 bytes, one worker",
        guests: 1,
        mtu: 1500,
        workers: 1,
        link: LINK,
    },
    Shape {
        name: "one-9000",
        title: "One guest, 4 streams, packets of 9000 bytes, one worker",
        guests: 1,
        mtu: 9000,
        workers: 1,
        link: LINK,
    },
    Shape {
        name: "four",
        title: "Four guests, 4 streams each, one worker",
        guests: GUESTS,
        mtu: 1500,
        workers: 1,
        link: LINK,
    },
    Shape {
        name: "four-two-workers",
        title: "Four guests, 4 streams each, two workers",
        guests: GUESTS,
        mtu: 1500,
        workers: 2,
        link: LINK,
    },
    queued("queue", "Four guests, 4 streams each, not paced, one queue, one worker", 1, ONE_QUEUE),
    queued("queues", "Four guests, 4 streams each, not paced, four queues, one worker", 1, FOUR_QUEUES),
    queued("queue-two-workers", "Four guests, 4 streams each, not paced, one queue, two workers", 2, ONE_QUEUE),
    queued("queues-two-workers", "Four guests, 4 streams each, not paced, four queues, two workers", 2, FOUR_QUEUES),
];

fn shape(load: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| shape.name == load)
}

fn client(address: &str, seconds: u32) -> String {
    format!("iperf -c {address} -P {STREAMS} -t {seconds} -f k")
}

impl Method for TenGig {
    fn about(&self) -> About {
        About {
            name: "ten-gig",
            document: Some((4, "10G: more than a big pipe")),
            line: "four guests through one uplink: total, shares, response times; frames of 1500 and 9000 bytes",
            needs: "user-mode guests (a C compiler, once); Debian packages, 220 MB once",
            guests: &[Guests::Uml],
            overhead_seconds: 3.0,
            memory_mib: Some(MEMORY_MIB),
            disk_bytes: 6_000_000,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.ours(length).chain([Subject::native()]).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 3,
            Length::Usual => 10,
            Length::Full => DOCUMENTS_SECONDS,
        });
        let load = |shape: Shape| {
            let mut commands = vec!["outside: iperf -s".to_owned(), "outside: netserver -4".to_owned()];
            let at_once = if shape.guests == 1 { "guest" } else { "each guest, all at once" };
            commands.push(format!("{at_once}: {}", client("OUTSIDE", seconds)));
            if shape.guests > 1 {
                let ask = netperf::command("OUTSIDE", netperf::Test::RequestResponse, seconds);
                commands.push(format!("each guest, meanwhile: {ask}"));
            }
            Load { name: shape.name.to_owned(), title: shape.title.to_owned(), seconds, commands }
        };
        let taken = |shape: &Shape| length != Length::Quick || shape.link == LINK;
        SHAPES.into_iter().filter(taken).map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for shape in loads.iter().filter_map(|load| shape(&load.name)) {
            let mut table = |title: &str, figure, about| {
                let title = format!("{title}: {}", lower_first(shape.title));
                let bases = if figure == "jain" { &[][..] } else { &["e1000-82545em", "e1000e"] };
                tables.push(Table { title, load: shape.name.to_owned(), figure, bases, document: &[], about });
            };
            if shape.guests == 1 {
                let about = "The document, without virtual machines: 5 to 5.6 Gbit/s with jumbo frames, whose CPU falls from 13–14 % to 10 %.";
                table("Throughput", "mbit", about);
                CPU.iter().zip(ABOUT_CPU).for_each(|(cpu, about)| table(cpu.title, cpu.name, about));
                continue;
            }
            table("Total", "mbit", "The document: 9.1 to 9.6 Gbit/s with three adapters, 3.4 with the fourth.");
            table(
                "Fairness",
                "jain",
                "Jain's index of the guests' rates: 1 if all have the same, 0.25 if one of four has all. The document: 2.2 to 2.3 Gbit/s \
                 each with one adapter; with two others the lowest guest had 1.8.",
            );
            table("Lowest guest", "lowest", "The rate of the guest that had least.");
            table(
                "Response time",
                "slowest",
                "Median of the guest whose median is the longest, one byte each way. The document: with one adapter one guest waited twice as long.",
            );
            CPU.iter().zip(ABOUT_CPU).for_each(|(cpu, about)| table(cpu.title, cpu.name, about));
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, say, .. } = opening;
        let layer = Layer::lay("iperf", PACKAGES, say)?;
        let programs = Some((layer.clone(), &[IPERF][..]));
        let opening = outside::Opening { programs, ..outside::Opening::of(plan, program, MEMORY_MIB) };
        let mut outside = Outside::open(opening, say)?;
        outside.serve(&iperf::program(&layer, "iperf -s"))?;
        outside.serve(&netperf::server(outside.root()))?;
        let iproute = Layer::lay("iproute2", &["iproute2"], say)?;
        Ok(rig(Shared { outside, layer, iproute, has_queues: false, native: native::Kept::default() }))
    }
}

#[derive(Debug)]
struct Shared {
    outside: Outside,
    layer: Layer,
    iproute: Layer,
    /// The tap outside is one of several queues.
    has_queues: bool,
    native: native::Kept<Native>,
}

/// The guests, and the largest packet of their network in bytes.
#[derive(Debug)]
struct Sharing {
    several: Several,
    mtu: u32,
}

impl Measurement for Shared {
    type Layout = Shape;
    type Guests = Sharing;

    fn layout(load: &str) -> Option<Shape> {
        shape(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        (standing.workers, standing.link) == (wanted.workers, wanted.link)
    }

    fn skips(&self, run: &Run<'_, Shape>) -> Option<Taken> {
        let most = nicety_adapters::find(&run.subject.adapter).map_or(1500, |entry| entry.about.mtu_max);
        let mark = || Taken::marked(format!("this chip carries packets of at most {most} bytes"));
        (run.layout.mtu > most).then(mark)
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Sharing, BenchError> {
        let Shape { workers, link, .. } = run.layout;
        let several = link == FOUR_QUEUES;
        if std::mem::replace(&mut self.has_queues, several) != several {
            self.outside.renew_tap(several, &self.iproute)?;
        }
        self.outside.set_mtu(1500)?;
        let several = self.outside.boot_several(run.subject, GUESTS, link, workers, run.stop)?;
        Ok(Sharing { several, mtu: 1500 })
    }

    fn measure(&mut self, Sharing { several, mtu }: &mut Sharing, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let (shape, stop) = (run.layout, run.stop);
        if *mtu != shape.mtu {
            self.outside.set_mtu(shape.mtu)?;
            // Some drivers take the link down to change it.
            let set = format!("ip link set eth0 mtu {}; until has_carrier eth0; do rest; done", shape.mtu);
            let ping = format!("/usr/bin/ping -n -q -c 1 -W 5 -M do -s {} {OUTSIDE}", shape.mtu - 28);
            several.at_once(GUESTS, &format!("{set}; {ping} || {ping}"), SLACK, stop)?;
            *mtu = shape.mtu;
        }
        let (command, watch) = (script(shape, run.load.seconds), Stopwatch::start(several.spent()));
        let said = several.at_once(shape.guests, &command, SLACK + run.duration(), stop)?;
        let (spent, steal_percent) = watch.stop(several.spent());
        let unparsed = || Error::Command { command, code: 0, said: said.join("\n") };
        let taken = taken(&said, shape.guests > 1, Some(spent)).ok_or_else(unparsed)?;
        Ok(Taken { steal_percent, ..taken })
    }

    /// So many clients as there are guests, between two namespaces.
    fn natively(&mut self, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let shape = run.layout;
        if shape.mtu != 1500 || shape.workers != 1 || shape.link != LINK {
            return Ok(Taken::marked("the veth pair has no workers and no queues, and packets of 1500 bytes"));
        }
        let (root, layer) = (self.outside.root(), &self.layer);
        let open = || Native::serving(root, &[(iperf::program(layer, "iperf -s"), native::IPERF_PORT)]);
        let iperf = iperf::program(layer, &client(native::FAR, run.load.seconds));
        let limit = SLACK + run.duration();
        let each = self.native.with(open, |native| native.at_once(root, &iperf, shape.guests, limit, run.stop))?;
        let unparsed = || Error::Run { doing: "iperf without a virtual machine".to_owned(), said: each.join("\n") };
        Ok(taken(&each, false, None).ok_or_else(unparsed)?)
    }

    fn end(&mut self, Sharing { several, .. }: Sharing) -> Result<(), BenchError> {
        Ok(self.outside.end_several(several)?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.outside.notes();
        notes.push(format!(
            "iperf 2 with {STREAMS} streams stands for the document's NTttcp. A guest has one processor, so one queue: what RSS gains is not in \
             these figures. Percentiles of latencies are the slowest guest's."
        ));
        notes.push(
            "native: as many clients as there are guests, between two network namespaces joined by a veth pair that is not paced."
                .to_owned(),
        );
        notes
    }
}

/// The work of a guest: a line of shell. The output is held back until the end: lines would cross the console during the measurement.
fn script(shape: Shape, seconds: u32) -> String {
    let iperf = format!("{} >/tmp/iperf 2>&1", client(OUTSIDE, seconds));
    let shown = "grep -v '^\\[ *[0-9]' /tmp/iperf";
    if shape.guests == 1 {
        return format!("{iperf}; {shown}");
    }
    let ask = netperf::command(OUTSIDE, netperf::Test::RequestResponse, seconds);
    format!("{iperf} & {ask} >/tmp/netperf 2>&1; wait; {shown}; cat /tmp/netperf")
}

/// Jain's fairness index (R. Jain, D. Chiu, W. Hawe, *A Quantitative Measure of Fairness*, 1984).
fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), share| (sum + share, squares + share * share));
    sum * sum / (shares.len() as f64 * squares)
}

/// The figures of what each guest said. None if one of them failed.
fn taken(said: &[String], asked: bool, spent: Option<Spent>) -> Option<Taken> {
    let share = |text: &String| {
        let report = report(text)?;
        Some((report.taken.figures.get("mbit").copied()?, report.gbit))
    };
    let (shares, carried): (Vec<f64>, Vec<f64>) =
        said.iter().map(share).collect::<Option<Vec<(f64, f64)>>>()?.into_iter().unzip();
    let mut figures = BTreeMap::from([("mbit".to_owned(), shares.iter().sum::<f64>())]);
    if shares.len() > 1 {
        figures.insert("jain".to_owned(), jain(&shares));
        figures.insert("lowest".to_owned(), shares.iter().copied().fold(f64::MAX, f64::min));
    }
    let gbit: f64 = carried.iter().sum();
    figures.extend(spent.into_iter().flat_map(|spent| spent.per(gbit, "")));
    let mut latency = None;
    if asked {
        let parsed = |text: &String| netperf::parse(text, netperf::Test::RequestResponse)?.latency;
        let mut each = said.iter().map(parsed).collect::<Option<Vec<Vec<Percentile>>>>()?;
        let median = |of: &[Percentile]| of.iter().find(|known| known.percent == 50.0).map_or(0.0, |known| known.us);
        each.sort_by(|a, b| median(a).total_cmp(&median(b)));
        figures.extend(each.get(each.len() / 2).map(|middle| ("p50".to_owned(), median(middle))));
        figures.extend(each.last().map(|slowest| ("slowest".to_owned(), median(slowest))));
        latency = each.pop();
    }
    Some(Taken { figures, latency, ..Taken::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(kbit: u32, p50: u32) -> String {
        format!(
            "[SUM] 0.0000-2.0071 sec  557056 KBytes  {kbit} Kbits/sec\nTHROUGHPUT=348.56\nTHROUGHPUT_UNITS=Trans/s\nELAPSED_TIME=2.01\n\
             P50_LATENCY={p50}\nP90_LATENCY=2500\nP99_LATENCY=14000\nMAX_LATENCY=13811\n"
        )
    }

    #[test]
    fn shares_of_four_guests_give_total_fairness_and_the_slowest_s_response_time() {
        let texts = [said(300_000, 900), said(100_000, 2_100), said(300_000, 1_000), said(100_000, 1_100)];
        let spent = Spent { vmm: Duration::from_secs(3), daemon: Some(Duration::from_secs(1)) };
        let taken = taken(&texts, true, Some(spent)).unwrap();
        let of = |name: &str| taken.figures[name];
        assert_eq!((of("mbit"), of("lowest")), (800.0, 100.0));
        // (3 + 1 + 3 + 1)² ÷ (4 × (9 + 1 + 9 + 1)).
        assert!((of("jain") - 0.8).abs() < 1e-12, "{taken:?}");
        assert_eq!((of("p50"), of("slowest")), (1_100.0, 2_100.0));
        // 800 Mbit/s for 2.0071 s.
        assert!((of("cpu") - 4.0 / 1.60568).abs() < 1e-9, "{taken:?}");
        assert_eq!(taken.latency.unwrap()[0].us, 2_100.0, "the slowest guest's");
        let three = [said(1, 1), "iperf: connect failed".to_owned()];
        assert_eq!(super::taken(&three, false, None), None, "a guest that carried nothing");
    }

    #[test]
    fn one_guest_that_has_all_of_four_has_a_quarter_of_fairness() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[7.0, 0.0, 0.0, 0.0]), 0.25);
    }
}
