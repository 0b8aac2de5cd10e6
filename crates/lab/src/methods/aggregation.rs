//! `aggregation`: "10G: more than a big pipe", its comparison of four links of 1 Gbit/s in 802.3ad with one of 10 Gbit/s: throughput of many
//! streams and of one, CPU, and how long an answer takes. The partner bonds with Linux's driver.
//!
//! All rates are the document's divided by one number: a machine of few processors carries two guests and the partner besides.

use std::collections::BTreeMap;
use std::time::Duration;

use nicety_guests::{Error, Layer};

use super::field::Adapters;
use super::rig::{Measurement, Run, rig};
use super::{About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken, lower_first};
use crate::bench::BenchError;
use crate::method::Guests;
use crate::rate::Rate;
use crate::real::bonded::{Bonded, Joined, PARTNER};
use crate::real::iperf::{IPERF, PACKAGES, report};
use crate::real::netperf;
use crate::results::Direction;
use crate::spent::{Spent, Stopwatch};

/// The document's rates in Mbit/s, and the number by which they are divided.
const LINK: u32 = 1_000;
const BIG_LINK: u32 = 10_000;
const SCALE: u32 = 20;
const LINKS: usize = 4;
/// The number of streams. With so many a link stays without one in 4 of 100 runs.
const STREAMS: u32 = 16;
const MEMORY_MIB: u32 = 256;
/// Below this share of the links' rates a run of many streams says so: the machine, or a link without a stream, was the limit.
const FULL: f64 = 0.7;
/// Time limit of what takes no time itself.
const SLACK: Duration = Duration::from_secs(60);
const ADAPTERS: Adapters = Adapters::sharing(&["vmxnet3", "virtio-net"]);

const FIGURES: [Figure; 8] = [
    Figure::new("mbit", "Throughput", "Mbit/s", Direction::Higher),
    Figure::new("share", "Share of the links' rates", "of all", Direction::Higher),
    CPU[0],
    CPU[1],
    CPU[2],
    Figure::new("transactions", "Request-response", "per second", Direction::Higher),
    Figure::new("p50", "Response time, median", "µs", Direction::Lower),
    Figure::new("p99", "Response time, 99th percentile", "µs", Direction::Lower),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Aggregation;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    name: &'static str,
    title: &'static str,
    links: usize,
    /// Streams; none: request-response.
    streams: Option<u32>,
}

/// All loads. Those of the same links follow each other: the guests stay up between them.
const SHAPES: [Shape; 6] = [
    Shape { name: "four", title: "Four links in 802.3ad, 16 streams", links: LINKS, streams: Some(STREAMS) },
    Shape { name: "four-flow", title: "Four links in 802.3ad, one stream", links: LINKS, streams: Some(1) },
    Shape { name: "four-rr", title: "Four links in 802.3ad, request-response", links: LINKS, streams: None },
    Shape { name: "one", title: "One link of ten times the rate, 16 streams", links: 1, streams: Some(STREAMS) },
    Shape { name: "one-flow", title: "One link of ten times the rate, one stream", links: 1, streams: Some(1) },
    Shape { name: "one-rr", title: "One link of ten times the rate, request-response", links: 1, streams: None },
];

fn shape(load: &str) -> Option<Shape> {
    SHAPES.into_iter().find(|shape| shape.name == load)
}

impl Shape {
    /// Rate of each link in Mbit/s.
    const fn link_mbit(self) -> u32 {
        (if self.links == 1 { BIG_LINK } else { LINK }) / SCALE
    }

    fn rate(self) -> Rate {
        Rate { mbit: self.link_mbit() }
    }

    fn command(self, seconds: u32) -> String {
        match self.streams {
            Some(streams) => format!("iperf -c {PARTNER} -P {streams} -t {seconds} -f k"),
            None => netperf::command(PARTNER, netperf::Test::RequestResponse, seconds),
        }
    }

    /// The figures of what the guest said. None if its program failed.
    fn taken(self, said: &str, spent: Spent) -> Option<Taken> {
        let Some(_) = self.streams else {
            return netperf::parse(said, netperf::Test::RequestResponse).map(netperf::Measured::taken);
        };
        let report = report(&summed(said))?;
        let mbit = report.taken.figures.get("mbit").copied()?;
        let all = self.links as f64 * f64::from(self.link_mbit());
        let mut figures = BTreeMap::from([("mbit".to_owned(), mbit), ("share".to_owned(), mbit / all)]);
        figures.extend(spent.per(report.gbit, ""));
        let is_low = self.streams > Some(1) && mbit < FULL * all;
        let low = is_low.then(|| format!("the links were not full: below {FULL} of their rates"));
        Some(Taken { figures, marks: low.into_iter().collect(), ..Taken::default() })
    }
}

/// iperf's output with the line of a stream that is alone as the sum of all.
fn summed(said: &str) -> String {
    let line = |line: &str| match line.split_once("] ") {
        Some((number, rest)) if number.starts_with("[ ") && rest.contains(" sec ") => format!("[SUM] {rest}\n"),
        _ => format!("{line}\n"),
    };
    said.lines().map(line).collect()
}

impl Method for Aggregation {
    fn about(&self) -> About {
        About {
            name: "aggregation",
            document: Some((4, "10G: more than a big pipe")),
            line: "four links of 1 Gbit/s in 802.3ad beside one of 10: throughput, CPU, response times",
            needs: "user-mode guests (a C compiler, once); Debian packages, 220 MB once",
            guests: &[Guests::Uml],
            overhead_seconds: 8.0,
            memory_mib: Some(MEMORY_MIB),
            disk_bytes: 6_000_000,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.ours(length).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(match length {
            Length::Quick => 3,
            Length::Usual => 10,
            Length::Full => 120,
        });
        let load = |shape: Shape| {
            let server = if shape.streams.is_some() { "iperf -s" } else { "netserver -4" };
            let commands = vec![format!("partner: {server}"), format!("guest: {}", shape.command(seconds))];
            Load { name: shape.name.to_owned(), title: shape.title.to_owned(), seconds, commands }
        };
        SHAPES.into_iter().map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for shape in loads.iter().filter_map(|load| shape(&load.name)) {
            let mut table = |title: &str, figure, about| {
                let title = format!("{title}: {}", lower_first(shape.title));
                tables.push(Table { title, load: shape.name.to_owned(), figure, bases: &[], document: &[], about });
            };
            match shape.streams {
                None => {
                    table("Response time", "p50", "One byte each way, one at a time, and nothing else on the links.")
                }
                Some(1) => table(
                    "Throughput",
                    "mbit",
                    "A stream stays on one link, or its frames would overtake each other: four links are no faster than one for it.",
                ),
                Some(_) => {
                    table(
                        "Throughput",
                        "mbit",
                        "Of payload. The document: 3.8 Gbit/s by four links of 1 Gbit/s, 9.5 Gbit/s by one of 10. Rates here are divided: see the method.",
                    );
                    table("Share of the links", "share", "Of the links' rates together. The document: 0.95 of both.");
                    table(
                        "CPU",
                        "cpu",
                        "Processor time of the guest and the daemon, divided by the payload. The document: less with one link.",
                    );
                }
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { program, say, .. } = opening;
        let layer = Layer::lay("iperf", PACKAGES, say)?;
        let bonded = Bonded::open(&program.path, (layer, &[IPERF]), MEMORY_MIB, say)?;
        Ok(rig(Links(bonded)))
    }
}

#[derive(Debug)]
struct Links(Bonded);

impl Measurement for Links {
    type Layout = Shape;
    type Guests = Joined;

    fn layout(load: &str) -> Option<Shape> {
        shape(load)
    }

    fn serves(standing: Shape, wanted: Shape) -> bool {
        standing.links == wanted.links
    }

    fn boot(&mut self, run: &Run<'_, Shape>) -> Result<Joined, BenchError> {
        let serve = "netserver -4 >/dev/null </dev/null 2>&1; iperf -s >/dev/null 2>&1 </dev/null & \
                     until netstat -ltn | grep -q ':5001 '; do rest; done";
        Ok(self.0.start(run.subject, (run.layout.links, run.layout.rate()), serve, run.stop)?)
    }

    fn measure(&mut self, joined: &mut Joined, run: &Run<'_, Shape>) -> Result<Taken, BenchError> {
        let shape = run.layout;
        // The output is held back until the end: lines would cross the console during the measurement.
        let shown = if shape.streams > Some(1) { "grep -v '^\\[ *[0-9]'" } else { "cat" };
        let command = format!("{} >/tmp/said 2>&1; {shown} /tmp/said", shape.command(run.load.seconds));
        let watch = Stopwatch::start(joined.spent());
        let said = joined.guest.succeed_unless(&command, SLACK + run.duration(), run.stop)?;
        let (spent, steal_percent) = watch.stop(joined.spent());
        let taken = shape.taken(&said, spent).ok_or(Error::Command { command, code: 0, said })?;
        Ok(Taken { steal_percent, ..taken })
    }

    fn end(&mut self, joined: Joined) -> Result<(), BenchError> {
        Ok(self.0.end(joined)?)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.0.notes();
        notes.push(format!(
            "All rates are the document's divided by {SCALE}: four links of {} Mbit/s, and one of {} Mbit/s. iperf 2 with {STREAMS} streams \
             stands for the document's NTttcp. A hash of addresses and ports chooses each stream's link, so that a link may get none.",
            LINK / SCALE,
            BIG_LINK / SCALE
        ));
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Options;

    #[test]
    fn what_many_streams_carry_is_set_beside_the_links_rates() {
        let said = "[SUM] 0.0000-2.0071 sec  557056 KBytes  190000 Kbits/sec\n";
        let spent = Duration::from_millis(190);
        let cpu = Spent { vmm: spent, daemon: Some(spent) };
        let taken = shape("four").unwrap().taken(said, cpu).unwrap();
        let of = |name: &str| taken.figures[name];
        // 190 of 4 × 50 Mbit/s, for 2.0071 s.
        assert!((of("share") - 0.95).abs() < 1e-9 && (of("cpu") - 0.38 / 0.381349).abs() < 1e-9, "{taken:?}");
        assert!((of("daemon_cpu") - 0.19 / 0.381349).abs() < 1e-9);
        let one = shape("one").unwrap().taken(said, cpu).unwrap();
        assert!((one.figures["share"] - 0.38).abs() < 1e-9);
        assert_eq!((taken.marks.len(), one.marks.len()), (0, 1), "{one:?}");
        assert_eq!(shape("one").unwrap().taken("iperf: connect failed", cpu), None);
        let alone = "[  1] local 10.9.6.1 port 41000 connected with 10.9.6.2 port 5001\n\
                     [  1] 0.0000-2.0140 sec  23424 KBytes  48000 Kbits/sec\n";
        let flow = shape("four-flow").unwrap().taken(alone, cpu).unwrap();
        assert!((flow.figures["mbit"] - 48.0).abs() < 1e-9, "{flow:?}");
    }

    #[test]
    fn loads_of_the_same_links_follow_each_other_and_a_quick_look_lasts_ten_minutes_at_most() {
        let links: Vec<usize> = SHAPES.iter().map(|shape| shape.links).collect();
        assert_eq!(links, [4, 4, 4, 1, 1, 1]);
        let quick = Options { length: Some(Length::Quick), ..Options::default() }.plan(&Aggregation).unwrap();
        assert!(quick.estimate() <= Duration::from_secs(600), "{:?}", quick.estimate());
    }
}
