//! The bench of embedded guests.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nicety_adapters::REGISTRY;

use super::program::Program;
use super::rig::{Layout, Party, Place, Rig};
use super::words::{Counts, Shape};
use crate::bench::{Bench, BenchError, Latency, Measured, Outcome, Usage};
use crate::method::{Contestant, Doorbells, Guests, Item, Load, Plan, Server};
use crate::progress::Progress;
use crate::rate::Rate;
use crate::series::Sampler;

const A: Party = Party::Guest(0);
const B: Party = Party::Guest(1);
/// Megabits in a byte.
const MEGABITS: f64 = 8e-6;
/// Time to connect, send orders and report.
const OVERHEAD: Duration = Duration::from_millis(60);
/// Duration of a first exchange, which teaches addresses to both sides and to the switch.
const FIRST_EXCHANGE: Duration = Duration::from_millis(20);

/// The adapters that have a driver, in table order.
fn adapters() -> impl Iterator<Item = &'static str> {
    let driven = REGISTRY.iter().filter(|entry| nicety_drivers::find(entry.about.pci).is_some());
    driven.map(|entry| entry.about.name)
}

/// The adapters that have a driver, in table order: all, or one of each family, the first, without an adapter that costs hundreds of messages
/// a frame.
pub fn driven(families: bool) -> Vec<&'static str> {
    let mut seen = Vec::new();
    let wanted = |name: &&'static str| {
        let Some(entry) = nicety_adapters::find(name) else { return false };
        let driver = nicety_drivers::find(entry.about.pci).map(|driver| driver.name);
        let is_new = !seen.contains(&driver);
        seen.push(driver);
        !families || (is_new && entry.about.dma)
    };
    adapters().filter(wanted).collect()
}

/// The bench: a daemon, two guests and a peer per adapter. They start at first use and stay; idle ones sleep.
pub struct Embedded {
    program: Program,
    /// Rigs by adapter and the uplink's rate. Without an adapter: the native row's.
    rigs: BTreeMap<(Option<String>, Option<Rate>), Rig>,
    doorbells: Option<Doorbells>,
}

impl Embedded {
    /// A bench that runs `program` as its daemons and guests.
    pub fn new(program: Program) -> Embedded {
        Embedded { program, rigs: BTreeMap::new(), doorbells: None }
    }

    /// Processes that run now. Tests check that they are gone after the bench was dropped.
    pub fn pids(&self) -> Vec<u32> {
        self.rigs.values().flat_map(Rig::pids).collect()
    }

    /// Logs of the daemons that run now.
    pub fn logs(&self) -> String {
        self.rigs.values().map(Rig::log).collect()
    }

    fn rig(&mut self, adapter: &str, rate: Option<Rate>, cancel: &AtomicBool) -> Result<&mut Rig, BenchError> {
        let key = (Some(adapter.to_owned()), rate);
        if !self.rigs.contains_key(&key) {
            let place = Place { doorbells: self.doorbells, ..Place::new(adapter) };
            let layout = Layout { guests: vec![place; 2], uplink: true, rate, ..Layout::default() };
            let mut rig = Rig::start(&self.program, &layout, cancel)?;
            for other in [Party::Peer, B] {
                rig.transact(A, other, FIRST_EXCHANGE, cancel)?;
            }
            self.rigs.insert(key.clone(), rig);
        }
        self.rigs.get_mut(&key).ok_or_else(|| BenchError::Failed("the guests have gone".to_owned()))
    }
}

impl Embedded {
    /// A run of this shape, over an uplink of this rate. None: one stream of `nicety compare`, and no limit.
    ///
    /// # Errors
    /// Those of [`Bench::run`].
    pub fn shaped(
        &mut self,
        item: &Item,
        shape: Option<Shape>,
        rate: Option<Rate>,
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Measured, BenchError> {
        let adapter = &item.contestant.adapter;
        let rig = self.rig(adapter, rate, cancel)?;
        let measured = measure(rig, item.load, shape, duration, cancel);
        if measured.is_err() {
            // A half-failed rig would disturb the next try.
            self.rigs.remove(&(Some(adapter.clone()), rate));
        }
        measured
    }

    /// The same run without a virtual machine ([`Rig::natively`]). The link is the same both ways.
    ///
    /// # Errors
    /// Those of [`Bench::run`].
    pub fn natively(
        &mut self,
        load: Load,
        (shape, rate): (Option<Shape>, Option<Rate>),
        duration: Duration,
        cancel: &AtomicBool,
    ) -> Result<Measured, BenchError> {
        let mut rig = match self.rigs.remove(&(None, rate)) {
            Some(rig) => rig,
            None => Rig::natively(&self.program, rate, cancel)?,
        };
        let measured = measure(&mut rig, load, shape, duration, cancel)?;
        self.rigs.insert((None, rate), rig);
        Ok(measured)
    }
}

impl Bench for Embedded {
    fn guests(&self) -> Guests {
        Guests::Embedded
    }

    fn contestants(&self) -> Vec<Contestant> {
        adapters().map(|adapter| Contestant::new(adapter, Server::Nicety)).collect()
    }

    fn overhead(&self) -> Duration {
        OVERHEAD
    }

    fn prepare(&mut self, plan: &Plan, progress: &mut Progress, cancel: &AtomicBool) -> Result<(), BenchError> {
        self.doorbells = plan.doorbells;
        for contestant in &plan.contestants {
            progress.step(&format!("starting {}", contestant.adapter));
            match self.rig(&contestant.adapter, None, cancel) {
                // A run reports the reason as a failure of this adapter.
                Ok(_) | Err(BenchError::Failed(_) | BenchError::Impossible(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn run(&mut self, item: &Item, duration: Duration, cancel: &AtomicBool) -> Result<Measured, BenchError> {
        self.shaped(item, None, None, duration, cancel)
    }

    fn notes(&self) -> Vec<String> {
        [
            "Embedded guests judge adapters under this project's own drivers, written from the datasheets with Linux's \
             habits, and smoltcp's TCP with an MTU of 1500; every register access is a message of the real protocol.",
            "Packets of up to 64 KB leave a guest for an adapter that segments them, as TSO packets do; between switch and \
             outside peer they stay whole.",
            "CPU time is the daemon's alone: adapters, switch and uplink; guests and peer are not in it.",
            "Reads, writes and interrupts are counted at the guests, as messages and signals; both guests' together in guest \
             to guest. A frame is one on the wire, after segmentation, seen by a guest.",
        ]
        .map(str::to_owned)
        .to_vec()
    }
}

fn measure(
    rig: &mut Rig,
    load: Load,
    shape: Option<Shape>,
    duration: Duration,
    cancel: &AtomicBool,
) -> Result<Measured, BenchError> {
    let (from, to) = match load {
        Load::BulkTransmit | Load::RequestResponse => (A, Party::Peer),
        Load::BulkReceive => (Party::Peer, A),
        Load::GuestToGuest => (A, B),
    };
    if let Some(shape) = shape {
        rig.listen(to, shape, cancel)?;
    }
    let before = counts(rig, from, to, cancel)?;
    let cpu_before = rig.daemon_cpu();
    let (outcome, elapsed) = if load == Load::RequestResponse {
        let (elapsed_ns, each_ns) = rig.transact(from, to, duration, cancel)?;
        let elapsed = Duration::from_nanos(elapsed_ns);
        let outcome =
            Outcome::Transactions { count: each_ns.len() as u64, elapsed, latency: Latency::EveryNs(each_ns) };
        (outcome, elapsed)
    } else {
        let (payload_bytes, elapsed) = rig.send_shaped(from, to, shape.unwrap_or_default(), duration, cancel)?;
        (Outcome::Bulk { payload_bytes, elapsed }, elapsed)
    };
    let cpu_after = rig.daemon_cpu();
    let after = counts(rig, from, to, cancel)?;
    let series = match &outcome {
        Outcome::Transactions { latency: Latency::EveryNs(each_ns), .. } => answered(each_ns).series(elapsed, 1.0),
        _ => rig.sampled(to, cancel)?.series(elapsed, MEGABITS),
    };
    let daemon = cpu_after.zip(cpu_before).map(|(after, before)| after - before);
    let usage = Usage {
        frames: Some(after.frames - before.frames),
        register_reads: Some(after.reads - before.reads),
        register_writes: Some(after.writes - before.writes),
        interrupts: Some(after.interrupts - before.interrupts),
        cpu_seconds: daemon,
        guest_cpu_seconds: None,
        vmm_cpu_seconds: daemon.map(|_| after.cpu_seconds - before.cpu_seconds),
        daemon_cpu_seconds: daemon,
        steal_percent: None,
    };
    Ok(Measured { outcome, usage, series: Some(series) })
}

/// Answers over time: each request follows the answer before it at once, so their durations add up.
fn answered(each_ns: &[u64]) -> Sampler {
    let mut sampler = Sampler::default();
    let mut at = Duration::ZERO;
    for each in each_ns {
        at = at.saturating_add(Duration::from_nanos(*each));
        sampler.add(at, 1);
    }
    sampler
}

/// Sum of the counts of the guests that take part.
fn counts(rig: &mut Rig, from: Party, to: Party, cancel: &AtomicBool) -> Result<Counts, BenchError> {
    let mut sum = Counts::default();
    for party in [from, to] {
        if party != Party::Peer {
            let counts = rig.counts(party, cancel)?;
            sum.reads += counts.reads;
            sum.writes += counts.writes;
            sum.interrupts += counts.interrupts;
            sum.frames += counts.frames;
            sum.cpu_seconds += counts.cpu_seconds;
        }
    }
    Ok(sum)
}
