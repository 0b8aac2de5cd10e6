//! `vmxnet3-iperf`: "VMXNET3 vs E1000E and E1000". Two guests on one host, iperf 2 with 16 streams; the ratio of each adapter to e1000
//! (82545EM) and to e1000e.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_guests::{Accel, Error, Layer};

use super::embedded::{self, Small};
use super::field::Adapters;
use super::{ABOUT_CPU, About, CPU, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::embedded::Shape;
use crate::method::{self, Guests};
use crate::real::{
    Pairs, Standing,
    native::{self, Native},
    netperf, subjects,
};
use crate::results::Direction;
use crate::series::Series;

/// iperf 2, which no guest's image has.
pub(super) const PACKAGES: &[&str] = &["iperf"];
pub(super) const IPERF: &str = "usr/bin/iperf";
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
            return Ok(Box::new(Streams(Small::new(program, "iperf"))));
        }
        let layer = Layer::lay("iperf", PACKAGES, say)?;
        let pairs = Pairs::open(plan.guests, &program.path, layer, &[IPERF], say)?;
        let version = iperf_version(pairs.layer());
        Ok(Box::new(Iperf { pairs, running: None, native: None, version }))
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

/// The running guests of a subject.
#[derive(Debug)]
struct Running {
    round: u32,
    subject: Subject,
    standing: Standing,
}

#[derive(Debug)]
struct Iperf {
    pairs: Pairs,
    running: Option<Running>,
    native: Option<Native>,
    version: String,
}

impl Iperf {
    fn end_guests(&mut self) -> Result<(), Error> {
        self.running.take().map_or(Ok(()), |running| self.pairs.end(running.standing))
    }

    /// The guests of this subject in this round. Boots them if they do not run.
    fn standing(&mut self, round: u32, subject: &Subject, stop: &AtomicBool) -> Result<&mut Standing, Error> {
        let fits = |running: &Running| running.round == round && running.subject == *subject;
        if !self.running.as_ref().is_some_and(fits) {
            self.end_guests()?;
            let contestant = subject.contestant().ok_or(Error::Stopped)?;
            let standing = self.pairs.boot(&contestant, stop)?;
            let running = self.running.insert(Running { round, subject: subject.clone(), standing });
            running.standing.warm(stop)?;
            running.standing.pair.serve()?;
            let serve = format!(
                "iperf {SERVER} >/dev/null 2>&1 </dev/null & until netstat -ltn | grep -q ':5001 '; do rest; done"
            );
            running.standing.pair.right.succeed_unless(&serve, SLACK, stop)?;
        }
        self.running.as_mut().map(|running| &mut running.standing).ok_or(Error::Stopped)
    }

    fn measure(&mut self, round: u32, subject: &Subject, load: &Load, stop: &AtomicBool) -> Result<Taken, Error> {
        let standing = self.standing(round, subject, stop)?;
        let before = standing.costs();
        if load.name == LATENCY {
            let taken = standing.request_response(load.seconds, stop).map(netperf::Measured::taken)?;
            return Ok(Taken { steal_percent: standing.usage(&before).steal_percent, ..taken });
        }
        let client = client(&standing.address(), load.seconds);
        // The output is held back until the end: lines would cross the console during the measurement. A stream's own lines stay there.
        let command = format!("said=$({client} 2>&1); code=$?; echo \"$said\" | grep -v '^\\[ *[0-9]'; (exit $code)");
        let limit = SLACK + Duration::from_secs(load.seconds.into());
        let text = standing.pair.left.succeed_unless(&command, limit, stop)?;
        let usage = standing.usage(&before);
        let Some(Report { mut taken, gbit }) = report(&text) else {
            return Err(Error::Command { command: client, code: 0, said: text });
        };
        taken.steal_percent = usage.steal_percent;
        let spent = [usage.cpu_seconds, usage.daemon_cpu_seconds, usage.vmm_cpu_seconds];
        for (figure, seconds) in CPU.iter().zip(spent) {
            let cpu = seconds.map(|seconds| seconds / gbit).filter(|cpu| cpu.is_finite());
            taken.figures.extend(cpu.map(|cpu| (figure.name.to_owned(), cpu)));
        }
        Ok(taken)
    }

    fn without_guests(&mut self, load: &Load, stop: &AtomicBool) -> Result<Taken, Error> {
        let mut native = match self.native.take() {
            Some(native) => native,
            None => {
                let mut native = Native::open(self.pairs.root())?;
                let mut iperf = self.pairs.layer().program(IPERF);
                iperf.args(SERVER.split(' '));
                native.listen(&iperf, native::IPERF_PORT)?;
                let mut netserver = self.pairs.root().program("usr/bin/netserver");
                netserver.args(["-4", "-D", "-N"]);
                native.listen(&netserver, native::NETPERF_PORT)?;
                native
            }
        };
        let limit = SLACK + Duration::from_secs(load.seconds.into());
        if load.name == LATENCY {
            let mut command = self.pairs.root().program("usr/bin/netperf");
            command.args(netperf::words(native::FAR, netperf::Test::RequestResponse, load.seconds));
            let (text, _) = native.run(&command, limit, stop, &mut |_| Ok(()))?;
            self.native = Some(native);
            let measured = netperf::parse(&text, netperf::Test::RequestResponse);
            return measured.map(netperf::Measured::taken).ok_or(unparsed("netperf", text));
        }
        let mut command = self.pairs.layer().program(IPERF);
        command.args(client(native::FAR, load.seconds).split(' ').skip(1));
        let (text, _) = native.run(&command, limit, stop, &mut |_| Ok(()))?;
        self.native = Some(native);
        parse(&text).ok_or(unparsed("iperf", text))
    }
}

/// A load of embedded guests.
fn embedded_load(load: &Load) -> (method::Load, Option<Shape>) {
    match load.name.as_str() {
        LATENCY => (method::Load::RequestResponse, None),
        _ => (method::Load::GuestToGuest, Some(SHAPE)),
    }
}

/// Embedded guests, which have no iperf.
struct Streams(Small);

impl Rig for Streams {
    fn in_guests(
        &mut self,
        round: u32,
        subject: &Subject,
        load: &Load,
        stop: &AtomicBool,
    ) -> Result<Taken, BenchError> {
        let (kind, shape) = embedded_load(load);
        self.0.run((round, subject, kind), (shape, None), load.seconds, stop)
    }

    fn natively(&mut self, load: &Load, stop: &AtomicBool) -> Result<Taken, BenchError> {
        let (kind, shape) = embedded_load(load);
        self.0.natively(kind, (shape, None), load.seconds, stop)
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

impl Rig for Iperf {
    fn in_guests(
        &mut self,
        round: u32,
        subject: &Subject,
        load: &Load,
        stop: &AtomicBool,
    ) -> Result<Taken, BenchError> {
        Ok(self.measure(round, subject, load, stop)?)
    }

    fn natively(&mut self, load: &Load, stop: &AtomicBool) -> Result<Taken, BenchError> {
        Ok(self.without_guests(load, stop)?)
    }

    fn end(&mut self) -> Result<(), BenchError> {
        Ok(self.end_guests()?)
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

/// What iperf reports.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    /// The rate, and the rate over time.
    pub taken: Taken,
    /// The payload in gigabits: streams that end late carry more than the rate makes of the time that was asked for.
    pub gbit: f64,
}

/// The rates of [`report`].
pub(super) fn parse(text: &str) -> Option<Taken> {
    report(text).map(|report| report.taken)
}

/// iperf 2's report of all streams together: `[SUM] 0.0000-30.0080 sec  1638400 KBytes  447000 Kbits/sec`, a line for each second and one
/// for the whole.
pub(super) fn report(text: &str) -> Option<Report> {
    let (mut series, mut whole) = (Series::default(), None::<(f64, f64)>);
    for line in text.lines().filter(|line| line.starts_with("[SUM")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let before =
            |unit: &str| words.iter().position(|word| *word == unit).and_then(|at| words.get(at.checked_sub(1)?));
        let (begin, end) = before("sec")?.split_once('-')?;
        let (begin, end): (f64, f64) = (begin.trim_start_matches(']').parse().ok()?, end.parse().ok()?);
        let mbit = before("Kbits/sec")?.parse::<f64>().ok().filter(|rate| rate.is_finite())? / 1000.0;
        // The sum of the whole comes last, and begins at 0 too.
        if begin == 0.0 && whole.is_none_or(|(until, _)| end >= until) {
            whole = Some((end, mbit));
        }
        let rises = series.until_seconds.last().is_none_or(|last| end > *last);
        if end - begin < 1.5 && rises {
            series.push(end, mbit);
        }
    }
    let (seconds, mbit) = whole.filter(|(_, mbit)| *mbit > 0.0)?;
    let series = Some(series).filter(|series| series.values.len() > 1);
    let taken = Taken { figures: BTreeMap::from([("mbit".to_owned(), mbit)]), series, ..Taken::default() };
    Some(Report { taken, gbit: mbit * seconds / 1000.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iperf_s_sum_over_all_streams_is_the_rate_and_its_seconds_are_the_series() {
        let text = "------------------------------------------------------------\n\
                    Client connecting to 10.9.2.2, TCP port 5001 with pid 90 (16 flows)\n\
                    [SUM] 0.0000-1.0000 sec  262144 KBytes  2147484 Kbits/sec\n\
                    [SUM] 1.0000-2.0000 sec  294912 KBytes  2415919 Kbits/sec\n\
                    [SUM] 0.0000-2.0071 sec  557056 KBytes  2273619 Kbits/sec\n\
                    [ CT] final connect times (min/avg/max/stdev) = 0.406/0.604/0.778/0.109 ms (tot/err) = 16/0\n";
        let Report { taken, gbit } = report(text).unwrap();
        assert_eq!(taken.figures.get("mbit"), Some(&2273.619));
        // 557056 KBytes of 1024 bytes.
        assert!((gbit - 4.5634).abs() < 1e-3, "the payload, not the rate times two seconds: {gbit}");
        let series = taken.series.unwrap();
        assert_eq!((series.until_seconds, series.values), (vec![1.0, 2.0], vec![2147.5, 2415.9]));
        for nothing in ["", "connect failed: Connection refused\n", "[SUM] 0.0000-2.0071 sec  0 KBytes  0 Kbits/sec\n"]
        {
            assert_eq!(parse(nothing), None, "{nothing}");
        }
    }

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
