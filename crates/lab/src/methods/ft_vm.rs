//! `ft-vm`: document 5's figures of a whole VM, which an unmodified QEMU runs and copies to its twin (COLO), with fault tolerance off and on:
//! throughput, latency, the traffic between the hosts, and the outage when the host where the VM runs dies.
//!
//! [`Hosts`] has the picture. A frame of the VM waits in the daemon's gate until the twin has the copy that it follows from: its delay is about
//! half of the time between two copies, and the copy itself. [`super::ft_netperf`] is the document's own way, a log that is replayed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nicety_daemon::protection::VmReport;
use nicety_guests::{Accel, Error};

use super::rig::{Measurement, Run, rig};
use super::{About, Figure, Length, Load, Method, Opening, Rig, Subject, Table, Taken};
use crate::bench::{BenchError, Percentile};
use crate::method::Guests;
use crate::real::netperf::{self, Test};
use crate::real::twins::{Carried, Hosts, Kill, MESSAGE, Pinging, Progress, VM, Vm, silence};
use crate::results::Direction;
use crate::statistics;

/// Rows: not protected, or with this time between two copies.
const ROWS: [(&str, Option<Duration>); 4] = [
    ("off", None),
    ("on-20ms", Some(Duration::from_millis(20))),
    ("on-50ms", Some(Duration::from_millis(50))),
    ("on-100ms", Some(Duration::from_millis(100))),
];
const QUICK: [&str; 2] = ["off", "on-50ms"];

/// A load: traffic, or kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Receive,
    Transmit,
    LatencyBound,
    Ping,
    Kill(Kill),
}

/// Loads: name, title, work, commands.
const LOADS: [(&str, &str, Work, &str); 7] = [
    ("receive", "The VM receives", Work::Receive, "VM: netserver; outside: netperf -H VM -t TCP_STREAM"),
    ("transmit", "The VM transmits", Work::Transmit, "VM: netserver; outside: netperf -H VM -t TCP_MAERTS"),
    (
        "latency-bound",
        "One message in flight",
        Work::LatencyBound,
        "VM: nc -l -p 9000 -e cat; outside: a message of 1024 bytes, then the next one when it has come back",
    ),
    ("ping", "An idle VM answers", Work::Ping, "outside: ping -i 0.017 VM"),
    (
        "kill-vmm",
        "The VM's QEMU is killed",
        Work::Kill(Kill::Vmm),
        "VM: nc -l -p 9000 -e cat; outside: a message of 1024 bytes each 10 ms on one TCP connection, each compared when it comes back; \
         outside: ping -i 0.005 VM; host: kill -KILL QEMU, and a new twin, again until the time is over",
    ),
    (
        "kill-daemon",
        "The daemon of the VM's host is killed",
        Work::Kill(Kill::Daemon),
        "the same; host: kill -KILL nicety",
    ),
    (
        "kill-host",
        "The VM's host dies without a word",
        Work::Kill(Kill::Host),
        "the same; host: kill -STOP QEMU and nicety",
    ),
];

const FIGURES: [Figure; 13] = [
    Figure::new("throughput", "Throughput", "MB/s", Direction::Higher),
    Figure::new("round_trip", "Round trip", "ms", Direction::Lower),
    Figure::new("stop_p50", "Stands still for a copy, median", "ms", Direction::Lower),
    Figure::new("stop_p90", "Stands still for a copy, 90th percentile", "ms", Direction::Lower),
    Figure::new("link", "Traffic between the hosts", "Mbit/s", Direction::Lower),
    Figure::new("link_beyond", "Of it beyond QEMU's stream", "%", Direction::Lower),
    Figure::new("outage", "Outage, median", "ms", Direction::Lower),
    Figure::new("outage_worst", "Outage, worst", "ms", Direction::Lower),
    Figure::new("tcp_outage", "Outage of the TCP connection, median", "ms", Direction::Lower),
    Figure::new("tcp_outage_worst", "Outage of the TCP connection, worst", "ms", Direction::Lower),
    Figure::new("wrong_bytes", "Wrong or missing bytes", "bytes", Direction::Lower),
    Figure::new("joining", "Silence while a new twin joins, median", "ms", Direction::Lower),
    Figure::new("protected_after", "Protected again after", "s", Direction::Lower),
];

/// Between two requests of an idle VM: no fraction of the time between two copies, so that they fall anywhere in it.
const PING: Duration = Duration::from_millis(17);
/// Between two requests while a host dies.
const CLOSE_PING: Duration = Duration::from_millis(5);
/// Time of usual traffic before a kill, and of what is seen after a takeover.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_millis(300);
/// Longest wait for a TCP connection to go on after a takeover: its sender tries again after 0.2, 0.4, … s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit beyond the duration of a program.
const SLACK: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Tries of a run whose protection does not last: a twin that is silent for 0.3 s is given up, as on a machine with much else to do.
const TRIES: u32 = 3;
/// Remark on a run that was not the first try.
const LOST: &str = "a protection was lost before: the machine was busy";

/// The method (see the module's page).
#[derive(Debug)]
pub struct FtVm;

impl Method for FtVm {
    fn about(&self) -> About {
        About {
            name: "ft-vm",
            document: Some((5, "vSphere 4 Fault Tolerance")),
            line: "an unmodified QEMU VM with a twin: throughput, latency, traffic between the hosts, off and on; outage when its host dies",
            needs: "QEMU's guests: Debian packages, once; two processors",
            guests: &[Guests::Qemu],
            overhead_seconds: 8.0,
            memory_mib: Some(256),
            disk_bytes: 0,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        let rows = ROWS.iter().filter(|(name, _)| length != Length::Quick || QUICK.contains(name));
        rows.map(|(name, _)| Subject { adapter: (*name).to_owned(), server: None, driver: None }).collect()
    }

    /// A kill takes as long as it does: with `seconds` the last one begins before they are over.
    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let [of_traffic, of_kills] = match length {
            Length::Quick => [3, 12],
            Length::Usual => [10, 60],
            Length::Full => [60, 600],
        };
        let load = |(name, title, work, commands): &(&str, &str, Work, &str)| Load {
            name: (*name).to_owned(),
            title: (*title).to_owned(),
            seconds: seconds.unwrap_or(if matches!(work, Work::Kill(_)) { of_kills } else { of_traffic }),
            commands: commands.split("; ").map(str::to_owned).collect(),
        };
        let kept =
            |work: Work| length != Length::Quick || work == Work::Kill(Kill::Vmm) || !matches!(work, Work::Kill(_));
        LOADS.iter().filter(|(_, _, work, _)| kept(*work)).map(load).collect()
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let work = |load: &Load| LOADS.iter().find(|(name, ..)| *name == load.name).map(|(_, _, work, _)| *work);
        let table = |load: &Load, (figure, about): &(&'static str, &'static str)| {
            let title = FIGURES.iter().find(|known| known.name == *figure).map_or(*figure, |known| known.title);
            let is_compared = ["throughput", "round_trip"].contains(figure);
            Table {
                title: format!("{title}: {}", load.title),
                load: load.name.clone(),
                figure,
                bases: if is_compared { &["off"] } else { &[] },
                document: &[],
                about,
            }
        };
        let of = |load: &Load| work(load).map(tables_of).unwrap_or_default().iter().map(|of| table(load, of)).collect();
        loads.iter().flat_map(|load| -> Vec<Table> { of(load) }).collect()
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { program, say, .. } = opening;
        Ok(rig(Protected { hosts: Hosts::open(&program.path, say)? }))
    }
}

/// Figures of a load's tables, with what the reader should know of each.
fn tables_of(work: Work) -> &'static [(&'static str, &'static str)] {
    const STOPS: &str = "From QEMU's event STOP to its event RESUME.";
    const SLOW_STOPS: &str = "One copy in ten takes longer.";
    match work {
        Work::Receive => &[
            (
                "throughput",
                "Acknowledgements wait for a copy, so a connection carries what its window allows in that time. netperf counts what its socket takes: in a short run up to 4 MB more than has arrived. The document's guest received 890 Mbit/s with fault tolerance on.",
            ),
            ("stop_p50", STOPS),
            ("stop_p90", SLOW_STOPS),
            (
                "link",
                "Both directions, with encryption and the daemons' own messages. The document: 950 Mbit/s of log for 890 received. A copy has each page that the VM wrote since the last one, not what it received.",
            ),
            ("link_beyond", "Bytes on the wire beyond those of QEMU's own stream, divided by these."),
        ],
        Work::Transmit => &[
            ("throughput", "A frame leaves when the twin has the copy that it follows from."),
            ("stop_p50", STOPS),
            ("stop_p90", SLOW_STOPS),
            ("link", "The document: 54 Mbit/s, its acknowledgements only."),
            ("link_beyond", "Bytes on the wire beyond those of QEMU's own stream, divided by these."),
        ],
        Work::LatencyBound => &[(
            "round_trip",
            "Each message waits for a copy: the document's deliberate worst case, without a figure in its text. Published for whole VMs: SMP-FT (VMware) adds 1 to 100 ms of delay; Remus 25 ms, with 40 copies a second; HyCoR less than 1 ms, by a log between the copies.",
        )],
        Work::Ping => &[
            ("round_trip", "A request each 17 ms, so that they fall anywhere between two copies."),
            ("stop_p50", STOPS),
            ("stop_p90", SLOW_STOPS),
            ("link", "Both directions, with encryption and the daemons' own messages: what an idle VM costs."),
            ("link_beyond", "Bytes on the wire beyond those of QEMU's own stream, divided by these."),
        ],
        Work::Kill(_) => &[
            (
                "outage",
                "The longest silence of a ping each 5 ms, without its usual silence, in which it falls: of all kills of a run the median.",
            ),
            ("outage_worst", "Of all kills of a run the worst."),
            (
                "tcp_outage",
                "The same of the answers on the TCP connection. A segment that was lost waits for its sender's next try (0.2, 0.4, … s).",
            ),
            ("tcp_outage_worst", "Of all kills of a run the worst."),
            (
                "wrong_bytes",
                "On one TCP connection through all kills of a run: bytes that came back and are not what was sent, and bytes that did not come back. Any number but 0 is a fault.",
            ),
            ("joining", "The longest silence on the TCP connection while the survivor is copied to a new twin."),
            (
                "protected_after",
                "From the start of the new twin's QEMU (after a daemon's end: of the daemon) until the VM survives another kill.",
            ),
        ],
    }
}

fn checkpoint(subject: &Subject) -> Option<Duration> {
    ROWS.iter().find(|(name, _)| *name == subject.adapter).and_then(|(_, checkpoint)| *checkpoint)
}

#[derive(Debug)]
struct Protected {
    hosts: Hosts,
}

/// The cost of a kill, in seconds.
#[derive(Debug, Clone, Copy)]
struct Outage {
    /// When it was, by the two clocks that answers have.
    at: (SystemTime, Instant),
    /// When both kinds of answers were seen again.
    over: Instant,
    ping: f64,
    /// The time that the survivor's daemon reports.
    daemon: Option<f64>,
    protected_after: f64,
    protected: Instant,
}

impl Protected {
    /// Throughput of a stream.
    fn stream(&mut self, test: Test, run: &Run<'_, Work>) -> Result<Taken, Error> {
        let command = netperf::program(self.hosts.root(), VM, test, run.load.seconds);
        let said = self.hosts.run(&command, run.duration() + SLACK, run.stop)?;
        let failed = || Error::Run { doing: format!("netperf {test:?}"), said: said.clone() };
        let measured = netperf::parse(&said, test).ok_or_else(failed)?;
        let mut series = measured.series;
        series.values.iter_mut().for_each(|mbit| *mbit /= 8.0);
        let series = Some(series).filter(|series| !series.values.is_empty());
        Ok(Taken {
            figures: BTreeMap::from([("throughput".to_owned(), measured.rate / 8.0)]),
            series,
            ..Taken::default()
        })
    }

    fn messages(&mut self, vm: &mut Vm, run: &Run<'_, Work>) -> Result<Taken, Error> {
        let mut checked = self.hosts.connect(vm, run.stop)?;
        let each = checked.exchange(run.duration(), run.stop);
        self.hosts.close(checked)?;
        let each = each?;
        let megabytes =
            each.len() as f64 * MESSAGE as f64 / 1e6 / each.iter().sum::<Duration>().as_secs_f64().max(1e-9);
        let mut taken = round_trips(each.iter().map(|each| each.as_nanos() as f64 / 1e6).collect());
        taken.figures.insert("throughput".to_owned(), megabytes);
        Ok(taken)
    }

    fn pings(&mut self, run: &Run<'_, Work>) -> Result<Taken, Error> {
        let mut command = self.hosts.ping(PING);
        command.args(["-w", &run.load.seconds.to_string(), VM]);
        let said = self.hosts.run(&command, run.duration() + SLACK, run.stop)?;
        let answers = silence::answers(&said);
        if answers.is_empty() {
            return Err(Error::Run { doing: "pinging the VM".to_owned(), said });
        }
        Ok(round_trips(answers.iter().map(|answer| answer.round_trip_ms).collect()))
    }

    /// Traffic, and what the protection did meanwhile. If it does not last, the same again with another twin.
    fn traffic(&mut self, vm: &mut Vm, run: &Run<'_, Work>) -> Result<Taken, Error> {
        for lost in 0..TRIES {
            self.hosts.protected(vm, run.stop)?;
            let (before, begun) = (vm.report(), Instant::now());
            // Those of the boot and of the first copy.
            drop(vm.stops());
            let mut taken = match run.layout {
                Work::Receive => self.stream(Test::Stream, run),
                Work::Transmit => self.stream(Test::Maerts, run),
                Work::LatencyBound => self.messages(vm, run),
                Work::Ping | Work::Kill(_) => self.pings(run),
            }?;
            let (after, seconds) = (vm.report(), begun.elapsed().as_secs_f64());
            taken.marks.extend((lost > 0).then(|| LOST.to_owned()));
            let Some((before, after)) = before.zip(after) else { return Ok(taken) };
            let Some(link) = link(&before, &after, seconds) else { continue };
            taken.figures.extend(link);
            let mut stops: Vec<u64> =
                vm.stops().iter().map(|stop| u64::try_from(stop.as_micros()).unwrap_or(u64::MAX)).collect();
            for (name, percent) in [("stop_p50", 50.0), ("stop_p90", 90.0)] {
                let stop = statistics::percentile(&mut stops, percent).map(|us| (name.to_owned(), us as f64 / 1e3));
                taken.figures.extend(stop);
            }
            return Ok(taken);
        }
        Err(not_lasting(vm))
    }

    /// Kills until the time is over, while one connection goes on.
    fn kills(&mut self, vm: &mut Vm, kill: Kill, run: &Run<'_, Work>) -> Result<Taken, Error> {
        self.hosts.protected(vm, run.stop)?;
        let mut checked = self.hosts.connect(vm, run.stop)?;
        let progress = Progress::default();
        let (outages, carried) = thread::scope(|scope| {
            let carrying = scope.spawn(|| checked.carry(&progress, run.stop));
            let outages = self.outages(vm, kill, run, &progress);
            let how = if outages.is_ok() { &progress.is_over } else { &progress.is_broken };
            how.store(true, Ordering::Relaxed);
            let panicked = |_| Err(Error::Run { doing: "checking bytes".to_owned(), said: "it panicked".to_owned() });
            (outages, carrying.join().unwrap_or_else(panicked))
        });
        self.hosts.close(checked)?;
        match (outages, carried) {
            (Ok(outages), Ok(carried)) => {
                let mut taken = taken(&outages, &carried);
                let complaints = self.hosts.complaints(vm, run.stop)?;
                if !complaints.trim().is_empty() {
                    taken.marks.push("the VM's kernel complained".to_owned());
                    taken.texts.insert("dmesg".to_owned(), complaints);
                }
                Ok(taken)
            }
            // Each ends when the other has failed, with no reason of its own.
            (Err(Error::Stopped), Err(error)) | (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }

    fn outages(
        &mut self,
        vm: &mut Vm,
        kill: Kill,
        run: &Run<'_, Work>,
        progress: &Progress,
    ) -> Result<Vec<Outage>, Error> {
        let (end, mut outages) = (Instant::now() + run.duration(), Vec::new());
        while outages.is_empty() || Instant::now() < end {
            outages.push(self.outage(vm, kill, run.stop, progress)?);
        }
        Ok(outages)
    }

    /// Begins to ping a VM that has been protected since.
    fn lasting(&mut self, vm: &mut Vm, stop: &AtomicBool, progress: &Progress) -> Result<Pinging, Error> {
        for _ in 0..TRIES {
            self.hosts.protected(vm, stop)?;
            let ping = self.hosts.begin_ping(CLOSE_PING)?;
            pause(BEFORE, stop, progress)?;
            if vm.report().is_some_and(|report| report.protected) {
                return Ok(ping);
            }
            self.hosts.end_ping(ping)?;
        }
        Err(not_lasting(vm))
    }

    /// One kill, and a new twin.
    fn outage(&mut self, vm: &mut Vm, kill: Kill, stop: &AtomicBool, progress: &Progress) -> Result<Outage, Error> {
        let ping = self.lasting(vm, stop, progress)?;
        let at = (SystemTime::now(), Instant::now());
        self.hosts.kill(vm, kill)?;
        self.hosts.taken_over(vm, stop)?;
        let (came, limit) = (progress.came.load(Ordering::Relaxed), Instant::now() + PATIENCE);
        while progress.came.load(Ordering::Relaxed) == came {
            pause(POLL_INTERVAL, stop, progress)?;
            if Instant::now() > limit {
                let said = format!("nothing came on the TCP connection within {PATIENCE:?} after the takeover");
                return Err(Error::Run { doing: "going on at the twin".to_owned(), said });
            }
        }
        pause(AFTER, stop, progress)?;
        let (over, report) = (Instant::now(), vm.report());
        let said = self.hosts.end_ping(ping)?;
        let times: Vec<f64> = silence::answers(&said).iter().map(|answer| answer.at).collect();
        let killed = at.0.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let failed = || Error::Run { doing: "pinging the VM at its twin".to_owned(), said: last_lines(&said) };
        let ping = silence::around(&times, killed).ok_or_else(failed)?.outage();
        let begun = Instant::now();
        self.hosts.replace(vm, stop)?;
        let protected = Instant::now();
        let daemon = report.and_then(|report| report.takeover_microseconds).map(|us| us as f64 / 1e6);
        Ok(Outage { at, over, ping, daemon, protected_after: (protected - begun).as_secs_f64(), protected })
    }
}

fn last_lines(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines.get(lines.len().saturating_sub(5)..).unwrap_or_default().join("\n")
}

/// Waits, unless somebody stops or the connection has ended.
fn pause(time: Duration, stop: &AtomicBool, progress: &Progress) -> Result<(), Error> {
    let end = Instant::now() + time;
    loop {
        if stop.load(Ordering::Relaxed) || progress.is_broken.load(Ordering::Relaxed) {
            return Err(Error::Stopped);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Figures of round trips in milliseconds.
fn round_trips(each_ms: Vec<f64>) -> Taken {
    let median = statistics::median(&each_ms).map(|median| ("round_trip".to_owned(), median));
    let mut each_ns: Vec<u64> = each_ms.iter().map(|ms| (ms * 1e6) as u64).collect();
    let percent =
        |percent| Some(Percentile { percent, us: statistics::percentile(&mut each_ns, percent)? as f64 / 1e3 });
    let latency = [1.0, 50.0, 90.0, 99.0, 100.0].into_iter().filter_map(percent).collect();
    Taken { figures: median.into_iter().collect(), latency: Some(latency), ..Taken::default() }
}

fn not_lasting(vm: &Vm) -> Error {
    let why = format!("a protection did not last, {TRIES} times: this machine is too busy for a VM and its twin");
    Error::Daemon { why, said: vm.last_words() }
}

/// Figures of the traffic between the hosts. None: it is not that of one protection.
fn link(before: &VmReport, after: &VmReport, seconds: f64) -> Option<BTreeMap<String, f64>> {
    let grown = |of: fn(&VmReport) -> u64| of(after).checked_sub(of(before)).filter(|grown| *grown > 0);
    let (stream, wire) = (grown(|report| report.stream_bytes)?, grown(|report| report.wire_bytes)?);
    let beyond = (wire as f64 / stream as f64 - 1.0) * 100.0;
    let figures = [("link", wire as f64 * 8e-6 / seconds), ("link_beyond", beyond)];
    after.protected.then(|| figures.map(|(name, value)| (name.to_owned(), value)).into())
}

/// Figures of kills.
fn taken(outages: &[Outage], carried: &Carried) -> Taken {
    // Times since the first of them, in seconds.
    let origin = carried.times.first().copied();
    let since = |time: Instant| origin.map_or(0.0, |origin| time.saturating_duration_since(origin).as_secs_f64());
    let times: Vec<f64> = carried.times.iter().map(|time| since(*time)).collect();
    let around = |outage: &Outage| {
        let (from, until) = (since(outage.at.1.checked_sub(BEFORE).unwrap_or(outage.at.1)), since(outage.over));
        let near: Vec<f64> = times.iter().copied().filter(|time| (from..=until).contains(time)).collect();
        silence::around(&near, since(outage.at.1)).map(silence::Silence::outage)
    };
    let joining = |outage: &Outage| silence::longest(&times, since(outage.over), since(outage.protected));
    let pings: Vec<f64> = outages.iter().map(|outage| outage.ping).collect();
    let tcp: Vec<f64> = outages.iter().filter_map(around).collect();
    let joined: Vec<f64> = outages.iter().filter_map(joining).collect();
    let again: Vec<f64> = outages.iter().map(|outage| outage.protected_after).collect();
    let worst = |values: &[f64]| values.iter().copied().max_by(f64::total_cmp);
    let figures = [
        ("outage", statistics::median(&pings), 1e3),
        ("outage_worst", worst(&pings), 1e3),
        ("tcp_outage", statistics::median(&tcp), 1e3),
        ("tcp_outage_worst", worst(&tcp), 1e3),
        ("joining", statistics::median(&joined), 1e3),
        ("protected_after", statistics::median(&again), 1.0),
        ("wrong_bytes", Some(carried.wrong as f64), 1.0),
    ];
    let figures = figures.into_iter().filter_map(|(name, value, times)| Some((name.to_owned(), value? * times)));
    let line = |(number, outage): (usize, &Outage)| {
        let ms =
            |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), |seconds| format!("{:.0}", seconds * 1e3));
        format!(
            "kill {}: ping silent for {} ms more than usual, TCP for {} ms, the twin went on {} ms after its first sign; protected again \
             after {:.1} s",
            number + 1,
            ms(Some(outage.ping)),
            ms(around(outage)),
            ms(outage.daemon),
            outage.protected_after
        )
    };
    let said = outages.iter().enumerate().map(line).collect::<Vec<_>>().join("\n");
    let said = format!(
        "{said}\n{} bytes came back on the connection, {} of them wrong or missing",
        carried.bytes, carried.wrong
    );
    Taken { figures: figures.collect(), texts: BTreeMap::from([("kills".to_owned(), said)]), ..Taken::default() }
}

impl Measurement for Protected {
    type Layout = Work;
    type Guests = Vm;

    fn layout(load: &str) -> Option<Work> {
        LOADS.iter().find(|(name, ..)| *name == load).map(|(_, _, work, _)| *work)
    }

    fn skips(&self, run: &Run<'_, Work>) -> Option<Taken> {
        let is_alone = checkpoint(run.subject).is_none() && matches!(run.layout, Work::Kill(_));
        is_alone.then(|| Taken::marked("not killed: without a twin it would be gone"))
    }

    fn boot(&mut self, run: &Run<'_, Work>) -> Result<Vm, BenchError> {
        Ok(self.hosts.boot(checkpoint(run.subject), run.stop)?)
    }

    fn measure(&mut self, vm: &mut Vm, run: &Run<'_, Work>) -> Result<Taken, BenchError> {
        Ok(match run.layout {
            Work::Kill(kill) => self.kills(vm, kill, run),
            _ => self.traffic(vm, run),
        }?)
    }

    fn end(&mut self, vm: Vm) -> Result<(), BenchError> {
        Ok(self.hosts.end(vm)?)
    }

    fn accelerator(&self) -> Option<Accel> {
        Some(self.hosts.accelerator())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.hosts.notes();
        notes.push(
            "Off: one host, whose host file has no [[vm]]. QEMU's COLO without Nicety's gate is not measured: its own network filters refuse \
             vhost-user."
                .to_owned(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_load_has_its_work_and_a_quick_look_kills_qemu_alone() {
        for (name, _, work, _) in LOADS {
            assert_eq!(Protected::layout(name), Some(work));
        }
        let names =
            |length| FtVm.loads(Guests::Qemu, length, None).into_iter().map(|load| load.name).collect::<Vec<_>>();
        assert_eq!(names(Length::Quick), ["receive", "transmit", "latency-bound", "ping", "kill-vmm"]);
        assert_eq!(names(Length::Usual).len(), LOADS.len());
        let loads = FtVm.loads(Guests::Qemu, Length::Full, Some(2));
        assert!(loads.iter().all(|load| load.seconds == 2));
        let known = |table: &Table| FIGURES.iter().any(|figure| figure.name == table.figure);
        assert!(FtVm.tables(&loads).iter().all(known));
    }

    #[test]
    fn bytes_beyond_qemu_s_stream_are_a_share_of_it_and_a_protection_that_did_not_last_is_none() {
        let report = |stream_bytes, wire_bytes, protected| VmReport {
            stream_bytes,
            wire_bytes,
            protected,
            ..VmReport::default()
        };
        let figures = link(&report(1_000, 2_000, true), &report(1_001_000, 1_022_000, true), 2.0).unwrap();
        assert!((figures["link_beyond"] - 2.0).abs() < 1e-9, "{figures:?}");
        assert!((figures["link"] - 4.08).abs() < 1e-9, "{figures:?}");
        for after in [report(500, 9_000, true), report(2_000, 3_000, false), report(1_000, 2_000, true)] {
            assert_eq!(link(&report(1_000, 2_000, true), &after, 1.0), None);
        }
    }

    #[test]
    fn an_outage_of_a_connection_is_looked_for_around_its_kill_alone() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        // Answers each 50 ms, none for 300 ms after the kill, and none for 900 ms while the new twin joins.
        let mut times: Vec<Instant> = (0..=20).map(|n| at(n * 50)).collect();
        times.extend([1_320, 1_370, 1_420, 2_320, 2_370].map(at));
        let outage = Outage {
            at: (UNIX_EPOCH, at(1_020)),
            over: at(1_430),
            ping: 0.2,
            daemon: None,
            protected_after: 0.94,
            protected: at(2_370),
        };
        let taken = taken(&[outage], &Carried { times, bytes: 9, wrong: 0 });
        let figure = |name: &str| taken.figures[name].round();
        assert_eq!((figure("outage"), figure("tcp_outage"), figure("tcp_outage_worst")), (200.0, 270.0, 270.0));
        assert_eq!((figure("joining"), figure("wrong_bytes")), (900.0, 0.0));
        assert!(taken.texts["kills"].contains("TCP for 270 ms, the twin went on ? ms"), "{:?}", taken.texts);
    }
}
