//! `vmxnet3-iperf`: "VMXNET3 vs E1000E and E1000". Two guests on one host, iperf 2 with 16 streams; the ratio of each adapter to e1000
//! (82545EM) and to e1000e.

use std::time::Duration;

use nicety_guests::{Accel, Error, Layer};

use super::embedded::{self, Small};
use super::field::Adapters;
use super::rig::{Measurement, Run, Stay, rig};
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::embedded::Shape;
use crate::method::{self, Guests};
use crate::real::{
    Pairs, Standing,
    iperf::{self, IPERF, PACKAGES, Report, report},
    native::{self, Native},
    netperf, subjects,
};
use crate::results::Direction;
use crate::spent::Stopwatch;

/// The document's own options.
const SERVER: &str = "-s -w 64k -l 128k";
const CLIENT: &str = "-P 16 -w 64k -l 128k";
/// The same of embedded guests.
const SHAPE: Shape = Shape { streams: 16, write_bytes: 128 << 10, buffer_bytes: 64 << 10 };
/// The document's duration in seconds.
const DOCUMENTS_SECONDS: u32 = 30;
/// Names of the loads.
const STREAM: &str = "stream";
const LATENCY: &str = "latency";
/// The document's adapters, and those beside them.
const ADAPTERS: Adapters = Adapters {
    quick: &["e1000-82545em", "e1000e", "vmxnet3", "vmxnet2"],
    all: &["e1000-82545em", "e1000e", "vmxnet3", "igb", "igbvf", "ixgbevf", "vmxnet2", "vmxnet"],
};
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

/// The method (see the module's page).
#[derive(Debug)]
pub struct Vmxnet3Iperf;

/// A load, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Stream,
    Latency,
}

impl Layout {
    fn of(load: &str) -> Option<Layout> {
        [(STREAM, Layout::Stream), (LATENCY, Layout::Latency)]
            .into_iter()
            .find(|(name, _)| *name == load)
            .map(|known| known.1)
    }
}

impl Method for Vmxnet3Iperf {
    fn about(&self) -> About {
        About {
            name: "vmxnet3-iperf",
            document: Some((1, "VMXNET3 vs E1000E and E1000")),
            line: "two guests, iperf 2 with 16 streams: vmxnet3 beside e1000 and e1000e",
            needs: "user-mode guests (a C compiler, once) or QEMU's: Debian packages, 220 MB once; embedded guests need nothing",
            guests: &[Guests::Uml, Guests::Qemu, Guests::Embedded],
            overhead_seconds: 1.6,
            memory_mib: Some(256),
            disk_bytes: 6_000_000,
        }
    }

    fn field(&self, guests: Guests, length: Length) -> Vec<Subject> {
        ADAPTERS.beside_peers(guests, length, subjects).chain([Subject::native()]).collect()
    }

    fn loads(&self, guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let (stream, latency) = match length {
            Length::Quick => (2, 1),
            Length::Usual => (10, 3),
            Length::Full => (DOCUMENTS_SECONDS, 10),
        };
        let stream = seconds.unwrap_or(stream);
        let embedded = guests == Guests::Embedded;
        let load = |name: &str, title: &str, seconds, commands: [String; 2]| Load {
            name: name.to_owned(),
            title: title.to_owned(),
            seconds,
            commands: commands.into(),
        };
        if embedded {
            return vec![
                load(
                    STREAM,
                    "16 streams from guest to guest, of embedded guests",
                    stream,
                    [
                        "right guest: Nicety's embedded guest, TCP by smoltcp".to_owned(),
                        format!("left guest: the same: {}, {stream} s", embedded::words(SHAPE)),
                    ],
                ),
                load(
                    LATENCY,
                    "Request-response of one byte, of embedded guests, with a peer outside",
                    latency,
                    [
                        "outside: Nicety's embedded peer".to_owned(),
                        format!("left guest: embedded, one byte each way, one at a time, for {latency} s"),
                    ],
                ),
            ];
        }
        vec![
            load(
                STREAM,
                "16 streams from guest to guest",
                stream,
                [format!("right guest: iperf {SERVER}"), format!("left guest: {}", client("RIGHT", stream))],
            ),
            load(
                LATENCY,
                "Request-response of one byte, from guest to guest",
                latency,
                [
                    "right guest: netserver -4".to_owned(),
                    format!("left guest: {}", netperf::command("RIGHT", netperf::Test::RequestResponse, latency)),
                ],
            ),
        ]
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, _loads: &[Load]) -> Vec<Table> {
        const BASES: &[&str] = &["e1000-82545em", "e1000e", "vmxnet3"];
        let table = |title: &str, load: &str, figure, document, about| Table {
            title: title.to_owned(),
            load: load.to_owned(),
            figure,
            bases: BASES,
            document,
            about,
        };
        vec![
            table(
                "Throughput",
                STREAM,
                "mbit",
                &[
                    ("vmxnet3", "e1000-82545em", 1.69),
                    ("vmxnet3", "e1000e", 2.48),
                    ("e1000-82545em", "vmxnet3", 0.59),
                    ("e1000e", "vmxnet3", 0.40),
                ],
                "The document: Windows 2008 R2, E1000 2.65 and VMXNET3 4.47 Gbit/s; Windows 2012 R2, E1000E 1.88 and VMXNET3 4.66 Gbit/s.",
            ),
            table(
                "CPU per gigabit",
                STREAM,
                "cpu",
                &[],
                "Processor time of both guests and of all that serves them, divided by the payload. The document does not give it.",
            ),
            table(CPU[1].title, STREAM, CPU[1].name, &[], ABOUT_CPU[1]),
            table(CPU[2].title, STREAM, CPU[2].name, &[], ABOUT_CPU[2]),
            table("Request-response", LATENCY, "transactions", &[], "The document does not give it."),
        ]
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { plan, program, say, .. } = opening;
        if plan.guests == Guests::Embedded {
            return Ok(rig(Streams(Small::new(program, "iperf"))));
        }
        let layer = Layer::lay("iperf", PACKAGES, say)?;
        let pairs = Pairs::open(plan.guests, &program.path, layer, &[IPERF], say)?;
        let version = iperf_version(pairs.layer());
        Ok(rig(Iperf { pairs, native: native::Kept::default(), version }))
    }
}

fn client(address: &str, seconds: u32) -> String {
    // -f k: whole kbit/s. -i 1: the rate over time.
    format!("iperf -c {address} {CLIENT} -t {seconds} -i 1 -f k")
}

/// First line of `iperf --version`, which goes to standard error.
fn iperf_version(layer: &Layer) -> String {
    let output = layer.program(IPERF).arg("--version").output();
    let text = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().next().unwrap_or("iperf of unknown version").trim().to_owned()
}

#[derive(Debug)]
struct Iperf {
    pairs: Pairs,
    native: native::Kept<Native>,
    version: String,
}

/// Embedded guests, which have no iperf.
struct Streams(Small);

impl Streams {
    fn load(layout: Layout) -> (method::Load, Option<Shape>) {
        match layout {
            Layout::Latency => (method::Load::RequestResponse, None),
            Layout::Stream => (method::Load::GuestToGuest, Some(SHAPE)),
        }
    }
}

impl Measurement for Streams {
    type Layout = Layout;
    type Guests = ();
    const STAY: Stay = Stay::Study;

    fn layout(load: &str) -> Option<Layout> {
        Layout::of(load)
    }

    fn boot(&mut self, _: &Run<'_, Layout>) -> Result<(), BenchError> {
        Ok(())
    }

    fn measure(&mut self, _: &mut (), run: &Run<'_, Layout>) -> Result<Taken, BenchError> {
        let (kind, shape) = Streams::load(run.layout);
        self.0.run(run, kind, (shape, None))
    }

    fn natively(&mut self, run: &Run<'_, Layout>) -> Result<Taken, BenchError> {
        let (kind, shape) = Streams::load(run.layout);
        self.0.natively(run, kind, (shape, None))
    }

    fn notes(&self) -> Vec<String> {
        let ours = "Embedded guests have no iperf: their own program has as many streams, writes of the same length, and buffers of the size \
                    that the document asks for.";
        self.0.notes().into_iter().chain([ours.to_owned()]).collect()
    }
}

fn unparsed(program: &str, said: String) -> Error {
    Error::Run { doing: format!("{program} without a virtual machine"), said }
}

impl Measurement for Iperf {
    type Layout = Layout;
    type Guests = Standing;

    fn layout(load: &str) -> Option<Layout> {
        Layout::of(load)
    }

    fn boot(&mut self, run: &Run<'_, Layout>) -> Result<Standing, BenchError> {
        Ok(self.pairs.boot(&run.subject.contestant().ok_or(Error::Stopped)?, run.stop)?)
    }

    fn warm(&mut self, standing: &mut Standing, run: &Run<'_, Layout>) -> Result<(), BenchError> {
        standing.warm(run.stop)?;
        standing.pair.serve()?;
        let serve =
            format!("iperf {SERVER} >/dev/null 2>&1 </dev/null & until netstat -ltn | grep -q ':5001 '; do rest; done");
        Ok(standing.pair.right.succeed_unless(&serve, SLACK, run.stop).map(drop)?)
    }

    fn measure(&mut self, standing: &mut Standing, run: &Run<'_, Layout>) -> Result<Taken, BenchError> {
        let (seconds, watch) = (run.load.seconds, Stopwatch::start(standing.spent()));
        if run.layout == Layout::Latency {
            let taken = standing.request_response(seconds, run.stop).map(netperf::Measured::taken)?;
            return Ok(Taken { steal_percent: watch.stop(standing.spent()).1, ..taken });
        }
        let client = client(&standing.address(), seconds);
        // The output is held back until the end: lines would cross the console during the measurement. A stream's own lines stay there.
        let command = format!("said=$({client} 2>&1); code=$?; echo \"$said\" | grep -v '^\\[ *[0-9]'; (exit $code)");
        let text = standing.pair.left.succeed_unless(&command, SLACK + run.duration(), run.stop)?;
        let (spent, steal_percent) = watch.stop(standing.spent());
        let Some(Report { mut taken, gbit }) = report(&text) else {
            return Err(Error::Command { command: client, code: 0, said: text }.into());
        };
        taken.figures.extend(spent.per(gbit, ""));
        Ok(Taken { steal_percent, ..taken })
    }

    fn natively(&mut self, run: &Run<'_, Layout>) -> Result<Taken, BenchError> {
        let (root, layer, seconds) = (self.pairs.root(), self.pairs.layer(), run.load.seconds);
        let open = || {
            let iperf = iperf::program(layer, &format!("iperf {SERVER}"));
            Native::serving(root, &[(iperf, native::IPERF_PORT), (netperf::server(root), native::NETPERF_PORT)])
        };
        let command = match run.layout {
            Layout::Latency => netperf::program(root, native::FAR, netperf::Test::RequestResponse, seconds),
            Layout::Stream => iperf::program(layer, &client(native::FAR, seconds)),
        };
        let limit = SLACK + run.duration();
        let (text, _) = self.native.with(open, |native| native.run(&command, limit, run.stop, &mut |_| Ok(())))?;
        Ok(match run.layout {
            Layout::Latency => netperf::parse(&text, netperf::Test::RequestResponse)
                .map(netperf::Measured::taken)
                .ok_or(unparsed("netperf", text))?,
            Layout::Stream => report(&text).map(|report| report.taken).ok_or(unparsed("iperf", text))?,
        })
    }

    fn end(&mut self, standing: Standing) -> Result<(), BenchError> {
        Ok(self.pairs.end(standing)?)
    }

    fn accelerator(&self) -> Option<Accel> {
        self.pairs.accelerator()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.pairs.notes();
        notes.push(format!(
            "{}. A guest's TCP sends and receives with the 64 KB windows that the document asks for.",
            self.version
        ));
        notes.push(native::NOTE.to_owned());
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_s_commands_are_run_to_the_letter() {
        let loads = Vmxnet3Iperf.loads(Guests::Uml, Length::Full, None);
        assert_eq!(loads[0].commands[0], "right guest: iperf -s -w 64k -l 128k");
        assert!(
            loads[0].commands[1].starts_with("left guest: iperf -c RIGHT -P 16 -w 64k -l 128k -t 30 "),
            "{loads:?}"
        );
    }
}
