//! `messages`: document 3's explanation, measured. Register reads and writes, interrupts, copied bytes and instructions per frame, for each
//! adapter and workload, and the processor time that each of them costs the daemon.
//!
//! The prices are measured in the same run: registers that have no effect are read and written many times while nothing else happens; an
//! interrupt is an eventfd that wakes a sleeper; a copy is one of 1500 bytes between areas as large as a TCP socket's buffers. Frames lie in
//! memory that is used again and again, so it is in the caches: copies between areas beyond them cost two to three times a whole frame.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use nicety_guests::{Error, Folder};
use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, Signal, kill_process};

use super::rig::{Measurement, Run, rig};
use super::{About, Chart, Figure, Length, Load, Method, Opening, Rig, Stack, Subject, Table, Taken};
use crate::bench::BenchError;
use crate::embedded::{self, Counts, Layout, Party, Place, Program};
use crate::method::{Guests, Server};
use crate::results::Direction;

const GUEST: Party = Party::Guest(0);
/// Names of the loads.
const TRANSMIT: &str = "transmit";
const RECEIVE: &str = "receive";
const REQUEST_RESPONSE: &str = "request-response";
/// Duration of a first exchange, which teaches addresses.
const FIRST_EXCHANGE: Duration = Duration::from_millis(20);
/// Registers read and written to learn what they cost.
const READS: u32 = 2_000;
const WRITES: u32 = 4_000;
/// Interrupts raised to learn what one costs.
const INTERRUPTS: usize = 2_000;
/// Bytes of an area of copies: the buffers of an embedded guest's socket. Bytes of a copy.
const AREA: usize = 512 << 10;
const PIECE: usize = 1_500;
/// Passes over the areas: the best counts.
const PASSES: usize = 200;
/// Mark of runs whose messages cost less than alone.
const TOGETHER: &str =
    "messages come together here: each costs less than alone, and is shown as the measured time leaves room for it";

const FIGURES: [Figure; 14] = [
    Figure::new("cpu_ns", "Daemon's CPU time per frame", "ns", Direction::Lower),
    Figure::new("guest_ns", "Guest's CPU time per frame", "ns", Direction::Lower),
    Figure::new("both_ns", "CPU time per frame, guest and Nicety together", "ns", Direction::Lower),
    Figure::new("reads", "Register reads", "per frame", Direction::Lower),
    Figure::new("writes", "Register writes", "per frame", Direction::Lower),
    Figure::new("interrupts", "Interrupts", "per frame", Direction::Lower),
    Figure::new("copied", "Bytes copied", "per frame", Direction::Lower),
    Figure::new("instructions", "Instructions", "per frame", Direction::Lower),
    Figure::new("frames", "Frames", "per second", Direction::Higher),
    Figure::new("read_ns", "Register reads", "ns per frame", Direction::Lower),
    Figure::new("write_ns", "Register writes", "ns per frame", Direction::Lower),
    Figure::new("interrupt_ns", "Interrupts", "ns per frame", Direction::Lower),
    Figure::new("copy_ns", "Copies", "ns per frame", Direction::Lower),
    Figure::new("rest_ns", "All else", "ns per frame", Direction::Lower),
];
/// The parts of a bar.
const PARTS: &[(&str, &str)] = &[
    ("register reads", "read_ns"),
    ("register writes", "write_ns"),
    ("interrupts", "interrupt_ns"),
    ("copies", "copy_ns"),
    ("all else", "rest_ns"),
];

/// The method (see the module's page).
#[derive(Debug)]
pub struct Messages;

impl Method for Messages {
    fn about(&self) -> About {
        About {
            name: "messages",
            document: Some((3, "Performance Comparison of Virtual Network Devices (ESX Server 3.5)")),
            line: "register reads, writes, interrupts, copies and instructions per frame, and what each costs",
            needs: "nothing; instructions are counted where perf and hardware counters are",
            guests: &[Guests::Embedded],
            overhead_seconds: 0.3,
            memory_mib: None,
            disk_bytes: 0,
        }
    }

    fn field(&self, _guests: Guests, length: Length) -> Vec<Subject> {
        embedded::driven(length == Length::Quick).into_iter().map(|name| Subject::new(name, Server::Nicety)).collect()
    }

    fn loads(&self, _guests: Guests, length: Length, seconds: Option<u32>) -> Vec<Load> {
        let seconds = seconds.unwrap_or(if length == Length::Full { 5 } else { 1 });
        let load = |name: &str, title: &str, from: &str, to: &str, what: &str| Load {
            name: name.to_owned(),
            title: title.to_owned(),
            seconds,
            commands: vec![format!("{to}: {what}"), format!("{from}: embedded, for {seconds} s")],
        };
        vec![
            load(TRANSMIT, "One TCP stream out of the guest", "guest", "outside", "Nicety's embedded peer discards"),
            load(RECEIVE, "One TCP stream into the guest", "outside", "guest", "Nicety's embedded guest discards"),
            load(
                REQUEST_RESPONSE,
                "One byte each way, one at a time",
                "guest",
                "outside",
                "Nicety's embedded peer echoes",
            ),
        ]
    }

    fn figures(&self) -> &'static [Figure] {
        &FIGURES
    }

    fn charts(&self, loads: &[Load]) -> Vec<Chart> {
        let stack = |load: &Load| {
            Chart::Stack(Stack {
                title: format!("What a frame costs: {}", load.name),
                load: load.name.clone(),
                unit: "ns per frame",
                parts: PARTS,
                whole: ("measured", "cpu_ns"),
                about: "The daemon's processor time for a frame on the wire: counts times the price of one, measured alone. Messages that \
                        come together cost less than alone: where the prices exceed what was measured, theirs are lowered until the stack is \
                        the measured time, and a remark says so.",
            })
        };
        loads.iter().map(stack).collect()
    }

    fn tables(&self, loads: &[Load]) -> Vec<Table> {
        let mut tables = Vec::new();
        for load in loads {
            for (figure, about) in [
                (
                    "cpu_ns",
                    "Processor time of the daemon alone, divided by the frames that the guest sends and receives.",
                ),
                ("guest_ns", "The guest's process: its driver, its TCP and its program."),
                ("both_ns", "The two together."),
                ("reads", "Messages that the guest's driver waits for: in the document, exits."),
                ("writes", "Messages, and doorbells by eventfd."),
                ("interrupts", "Signals that the guest got."),
                ("copied", "Bytes that cross the adapter, headers included: each is copied once."),
                ("instructions", "In the daemon's user space, by hardware counters (perf stat)."),
            ] {
                let title = FIGURES.iter().find(|known| known.name == figure).map_or(figure, |known| known.title);
                tables.push(Table {
                    title: format!("{title}: {}", load.name),
                    load: load.name.clone(),
                    figure,
                    bases: if figure == "cpu_ns" { &["e1000", "vmxnet3"] } else { &[] },
                    document: &[],
                    about,
                });
            }
        }
        tables
    }

    fn open(&self, opening: Opening<'_>) -> Result<Box<dyn Rig>, Error> {
        let Opening { program, .. } = opening;
        let folder = Folder::new()?;
        let counted = Counter::is_there();
        let common = Common { interrupt_ns: interrupt_ns(), byte_ns: byte_ns() };
        Ok(rig(Counted { program: program.clone(), common, folder, counted }))
    }
}

/// Prices that are the same for all adapters, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Common {
    interrupt_ns: f64,
    byte_ns: f64,
}

/// Prices of an adapter's messages, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Prices {
    read_ns: f64,
    write_ns: f64,
}

/// The guest and its daemon.
#[derive(Debug)]
struct Standing {
    rig: embedded::Rig,
    prices: Prices,
}

#[derive(Debug)]
struct Counted {
    program: Program,
    common: Common,
    folder: Folder,
    /// Whether instructions can be counted.
    counted: bool,
}

impl Measurement for Counted {
    type Layout = [Party; 2];
    type Guests = Standing;

    /// The sender and the receiver, or both ends of exchanges.
    fn layout(load: &str) -> Option<[Party; 2]> {
        match load {
            TRANSMIT | REQUEST_RESPONSE => Some([GUEST, Party::Peer]),
            RECEIVE => Some([Party::Peer, GUEST]),
            _ => None,
        }
    }

    fn boot(&mut self, run: &Run<'_, [Party; 2]>) -> Result<Standing, BenchError> {
        let layout = Layout { guests: vec![Place::new(&run.subject.adapter)], uplink: true, ..Layout::default() };
        let mut rig = embedded::Rig::start(&self.program, &layout, run.stop)?;
        rig.transact(GUEST, Party::Peer, FIRST_EXCHANGE, run.stop)?;
        let prices = prices(&mut rig, run.stop)?;
        Ok(Standing { rig, prices })
    }

    fn measure(&mut self, standing: &mut Standing, run: &Run<'_, [Party; 2]>) -> Result<Taken, BenchError> {
        let (Standing { rig, prices }, stop, [from, to]) = (standing, run.stop, run.layout);
        let file = self.folder.path().join("instructions");
        let daemon = rig.pids().last().copied().unwrap_or_default();
        let counter = self.counted.then(|| Counter::start(daemon, &file)).flatten();
        let (before, cpu_before, begun) = (rig.counts(GUEST, stop)?, rig.daemon_cpu(), Instant::now());
        match run.load.name.as_str() {
            REQUEST_RESPONSE => rig.transact(from, to, run.duration(), stop).map(drop)?,
            _ => rig.send(from, to, run.duration(), stop).map(drop)?,
        }
        let (elapsed, cpu_after, after) = (begun.elapsed(), rig.daemon_cpu(), rig.counts(GUEST, stop)?);
        let instructions = counter.and_then(|counter| counter.end(&file));
        let cpu_seconds = cpu_after.zip(cpu_before).map(|(after, before)| after - before);
        let figures = figures(&since(&after, &before), elapsed, cpu_seconds, *prices, self.common, instructions);
        let mark =
            |figures: &BTreeMap<String, f64>| (figures.get("rest_ns") == Some(&0.0)).then(|| TOGETHER.to_owned());
        figures
            .map(|figures| Taken { marks: mark(&figures).into_iter().collect(), figures, ..Taken::default() })
            .ok_or_else(|| {
                BenchError::Failed(format!("{} carried no frame in {} s", run.subject.adapter, run.load.seconds))
            })
    }

    fn notes(&self) -> Vec<String> {
        let Common { interrupt_ns, byte_ns } = self.common;
        let instructions = if self.counted {
            "Instructions are those of the daemon in user space, by perf stat."
        } else {
            "Instructions were not counted: that takes the program perf and a processor whose counters the hypervisor shows."
        };
        vec![
            "Embedded guests: this project's own drivers, written from the datasheets with Linux's habits. Counts are the guest's: messages, \
             doorbells, signals."
                .to_owned(),
            "A frame is one on the wire, after segmentation, seen by the guest. CPU time is the daemon's: adapter, switch and uplink."
                .to_owned(),
            format!(
                "Prices: a register's from {READS} reads and {WRITES} writes without effect, each adapter's own, in each round; an interrupt \
                 {interrupt_ns:.0} ns (an eventfd that wakes a sleeper); a copied byte {byte_ns:.3} ns (1500 at a time, within {} KB that are in \
                 the caches: the least that it can cost).",
                AREA >> 10
            ),
            instructions.to_owned(),
        ]
    }
}

fn since(after: &Counts, before: &Counts) -> Counts {
    Counts {
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        interrupts: after.interrupts - before.interrupts,
        frames: after.frames - before.frames,
        bytes: after.bytes - before.bytes,
        cpu_seconds: after.cpu_seconds - before.cpu_seconds,
        ..*after
    }
}

/// A run's figures. None without frames.
fn figures(
    counts: &Counts,
    elapsed: Duration,
    cpu_seconds: Option<f64>,
    prices: Prices,
    common: Common,
    instructions: Option<f64>,
) -> Option<BTreeMap<String, f64>> {
    let frames = Some(counts.frames as f64).filter(|frames| *frames > 0.0)?;
    let each = |count: u64| count as f64 / frames;
    let [reads, writes, interrupts, copied] = [counts.reads, counts.writes, counts.interrupts, counts.bytes].map(each);
    let copy = copied * common.byte_ns;
    let messages = [
        ("read_ns", reads * prices.read_ns),
        ("write_ns", writes * prices.write_ns),
        ("interrupt_ns", interrupts * common.interrupt_ns),
    ];
    let counted = [("reads", reads), ("writes", writes), ("interrupts", interrupts), ("copied", copied)];
    let mut figures: BTreeMap<String, f64> = BTreeMap::new();
    figures.extend(counted.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    figures.insert("frames".to_owned(), frames / elapsed.as_secs_f64());
    figures.extend(instructions.map(|count| ("instructions".to_owned(), count / frames)));
    if let Some(seconds) = cpu_seconds {
        let whole = seconds * 1e9 / frames;
        let guest = counts.cpu_seconds * 1e9 / frames;
        let parts = stack(whole, messages, copy);
        figures.extend(parts.into_iter().map(|(name, value)| (name.to_owned(), value)));
        figures.extend(
            [("cpu_ns", whole), ("guest_ns", guest), ("both_ns", whole + guest)]
                .map(|(name, ns)| (name.to_owned(), ns)),
        );
    }
    Some(figures)
}

/// The parts of `whole`, which they fill: copies, whose price is the least possible; then messages, whose prices are the most possible, lowered
/// in proportion if there is no room for them; then the rest.
fn stack(whole: f64, messages: [(&'static str, f64); 3], copy: f64) -> [(&'static str, f64); 5] {
    let copy = copy.min(whole);
    let sum: f64 = messages.iter().map(|(_, part)| part).sum();
    let room = whole - copy;
    let share = if sum > room { room / sum } else { 1.0 };
    let rest = if sum >= room { 0.0 } else { room - sum };
    let [reads, writes, interrupts] = messages.map(|(name, part)| (name, part * share));
    [reads, writes, interrupts, ("copy_ns", copy), ("rest_ns", rest)]
}

/// The prices of a message to this adapter, for the daemon.
fn prices(rig: &mut embedded::Rig, stop: &AtomicBool) -> Result<Prices, BenchError> {
    let mut each = |reads: u32, writes: u32| {
        let before = rig.daemon_cpu();
        rig.touch(GUEST, reads, writes, stop)?;
        let seconds = rig.daemon_cpu().zip(before).map_or(0.0, |(after, before)| after - before);
        Ok::<f64, BenchError>(seconds * 1e9 / f64::from(reads.max(writes)))
    };
    Ok(Prices { read_ns: each(READS, 0)?, write_ns: each(0, WRITES)? })
}

/// Time of a write to an eventfd whose reader sleeps: the median. 0 if there is none.
fn interrupt_ns() -> f64 {
    let make = || eventfd(0, EventfdFlags::CLOEXEC);
    let Ok([call, answer]) = make().and_then(|call| Ok([call, make()?])) else { return 0.0 };
    let mut each: Vec<u64> = Vec::with_capacity(INTERRUPTS);
    thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut count = [0; 8];
            for _ in 0..INTERRUPTS {
                let answered =
                    rustix::io::read(&call, &mut count).and_then(|_| rustix::io::write(&answer, &1_u64.to_ne_bytes()));
                if answered.is_err() {
                    return;
                }
            }
        });
        let mut count = [0; 8];
        for _ in 0..INTERRUPTS {
            let begun = Instant::now();
            let written = rustix::io::write(&call, &1_u64.to_ne_bytes());
            each.push(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if written.and_then(|_| rustix::io::read(&answer, &mut count)).is_err() {
                break;
            }
        }
        // The sleeper has answered as often as it was called.
        let _ended = sleeper.join();
    });
    crate::statistics::percentile(&mut each, 50.0).map_or(0.0, |ns| ns as f64)
}

/// Time to copy a byte, in pieces of a frame's size between areas that stay in the caches: the best of many passes.
fn byte_ns() -> f64 {
    let (from, mut to) = (vec![1_u8; AREA], vec![0_u8; AREA]);
    let mut best = f64::MAX;
    for _ in 0..PASSES {
        let begun = Instant::now();
        for (from, to) in from.chunks(PIECE).zip(to.chunks_mut(PIECE)) {
            to.copy_from_slice(from);
        }
        std::hint::black_box(&mut to);
        best = best.min(begun.elapsed().as_nanos() as f64 / AREA as f64);
    }
    best
}

/// `perf stat` on a process.
#[derive(Debug)]
struct Counter(Child);

/// The counter: instructions in user space.
const EVENT: &str = "instructions:u";

impl Counter {
    /// Whether perf counts instructions here.
    fn is_there() -> bool {
        let output = Command::new("perf").args(["stat", "-x", ",", "-e", EVENT, "true"]).output();
        output.is_ok_and(|output| counted(&String::from_utf8_lossy(&output.stderr)).is_some())
    }

    fn start(process: u32, file: &std::path::Path) -> Option<Counter> {
        let mut command = Command::new("perf");
        command.args(["stat", "-x", ",", "-e", EVENT, "-p", &process.to_string(), "-o"]).arg(file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok().map(Counter)
    }

    /// Ends it. Returns its count.
    fn end(mut self, file: &std::path::Path) -> Option<f64> {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw)?;
        kill_process(pid, Signal::INT).ok()?;
        self.0.wait().ok()?;
        counted(&fs::read_to_string(file).ok()?)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The count of `perf stat -x ,` (perf-stat(1), "CSV FORMAT"): value, unit, event and more.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains(EVENT))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_times_prices_are_the_parts_and_what_is_left_of_the_measured_time_is_all_else() {
        let counts = Counts {
            frames: 100,
            reads: 50,
            writes: 200,
            interrupts: 25,
            bytes: 150_000,
            cpu_seconds: 400e-6,
            ..Counts::default()
        };
        let (prices, common) =
            (Prices { read_ns: 4_000.0, write_ns: 1_000.0 }, Common { interrupt_ns: 800.0, byte_ns: 0.1 });
        let figures =
            figures(&counts, Duration::from_millis(500), Some(600e-6), prices, common, Some(250_000.0)).unwrap();
        let of = |name: &str| figures[name];
        assert_eq!((of("reads"), of("writes"), of("interrupts"), of("copied")), (0.5, 2.0, 0.25, 1_500.0));
        assert_eq!((of("read_ns"), of("write_ns"), of("interrupt_ns")), (2_000.0, 2_000.0, 200.0));
        assert!((of("copy_ns") - 150.0).abs() < 1e-9 && (of("cpu_ns") - 6_000.0).abs() < 1e-6, "{figures:?}");
        assert!((of("rest_ns") - 1_650.0).abs() < 1e-6 && of("frames") == 200.0, "{figures:?}");
        assert_eq!(of("instructions"), 2_500.0);
        // The guest's 0.4 ms of 100 frames.
        assert!((of("guest_ns") - 4_000.0).abs() < 1e-6 && (of("both_ns") - 10_000.0).abs() < 1e-6, "{figures:?}");
        let nothing = Counts::default();
        assert_eq!(super::figures(&nothing, Duration::from_secs(1), None, prices, common, None), None);
    }

    /// The stack is as high as the measured time, even if a price is too high.
    #[test]
    fn the_parts_are_never_more_than_the_measured_time() {
        let messages = [("read_ns", 600.0), ("write_ns", 300.0), ("interrupt_ns", 100.0)];
        for (whole, copy) in [(2_000.0, 150.0), (650.0, 150.0), (100.0, 150.0), (0.0, 0.0)] {
            let parts = stack(whole, messages, copy);
            let sum: f64 = parts.iter().map(|(_, part)| part).sum();
            assert!((sum - whole).abs() < 1e-9 && parts.iter().all(|(_, part)| *part >= 0.0), "{whole}: {parts:?}");
        }
        // Half of the messages' prices alone: each costs half.
        assert_eq!(stack(650.0, messages, 150.0)[0], ("read_ns", 300.0));
    }

    #[test]
    fn perf_s_count_is_read_and_a_processor_without_counters_has_none() {
        assert_eq!(counted("# started\n\n123456,,instructions:u,1000000,100.00,,\n"), Some(123_456.0));
        assert_eq!(counted("<not supported>,,instructions:u,0,100.00,,\n"), None);
        assert_eq!(counted(""), None);
    }

    #[test]
    fn an_interrupt_and_a_copy_have_a_price_here() {
        assert!((10.0..1e7).contains(&interrupt_ns()));
        assert!((0.001..100.0).contains(&byte_ns()));
    }
}
