//! Hold times of a port's lock, in bulk TCP between guests of each pair of adapters, and while a guest floods 255 ports whose
//! drivers cannot keep up, so most frames wait in the daemon. All holds of the daemon are counted, from the guests' attachment to
//! their end. The longest includes a thread that the system preempts while it holds a lock.

use std::path::Path;
#[cfg(feature = "measure")]
use std::sync::atomic::AtomicBool;
#[cfg(feature = "measure")]
use std::time::Duration;

#[cfg(feature = "measure")]
use nicety_lab::embedded::{Layout, Party, Place, Program, Rig};
#[cfg(feature = "measure")]
use nicety_lab::number::sampled;

use crate::Error;
#[cfg(feature = "measure")]
use crate::flood::{BYTES, PORTS};

const REBUILD: &str = "the locks of this build have no clock: cargo run --release -p nicety --features measure \
     --example host_figures -- locks";

/// Writes the statistics of lock holds so far.
#[cfg(feature = "measure")]
pub fn write(file: &Path) -> Result<(), Error> {
    let nicety_plane::measure::Holds { count, p50_ns, p99_ns, longest_ns } = nicety_plane::measure::holds();
    Ok(std::fs::write(file, format!("{count} {p50_ns} {p99_ns} {longest_ns}"))?)
}

/// A build without `measure` has no times.
#[cfg(not(feature = "measure"))]
pub fn write(_file: &Path) -> Result<(), Error> {
    Err(REBUILD.into())
}

/// A build without `measure` has no times.
#[cfg(not(feature = "measure"))]
pub fn run(_words: &[String]) -> Result<(), Error> {
    Err(REBUILD.into())
}

/// Results that the daemons of all runs wrote.
#[cfg(feature = "measure")]
#[derive(Default)]
struct Runs {
    rate: Vec<f64>,
    holds: u64,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    longest_us: f64,
}

#[cfg(feature = "measure")]
impl Runs {
    fn add(&mut self, rate: f64, written: &str) -> Result<(), Error> {
        let figures: Vec<u64> = written.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [count, p50, p99, longest] = figures[..] else { return Err("the daemon wrote other figures".into()) };
        let us = |ns: u64| ns as f64 / 1e3;
        self.rate.push(rate);
        self.holds += count;
        self.p50_us.push(us(p50));
        self.p99_us.push(us(p99));
        self.longest_us = self.longest_us.max(us(longest));
        Ok(())
    }

    fn print(&self, name: &str) {
        let (rate, p50, p99) = (sampled(&self.rate), sampled(&self.p50_us), sampled(&self.p99_us));
        println!("| {name} | {rate} | {} | {p50} | {p99} | {:.1} |", self.holds, self.longest_us);
    }
}

/// Runs one load with its own daemon. Adds the load's rate and the daemon's results.
#[cfg(feature = "measure")]
fn once(
    program: &Program,
    file: &Path,
    layout: &Layout,
    runs: &mut Runs,
    load: impl FnOnce(&mut Rig, &AtomicBool) -> Result<f64, Error>,
) -> Result<(), Error> {
    let cancel = AtomicBool::new(false);
    let mut rig = Rig::start(program, layout, &cancel)?;
    let rate = load(&mut rig, &cancel)?;
    drop(rig);
    let text = std::fs::read_to_string(file)?;
    std::fs::remove_file(file)?;
    runs.add(rate, &text)
}

/// `[SECONDS] [ROUNDS]`: 2 seconds for each load, and 7 rounds by default.
#[cfg(feature = "measure")]
pub fn run(words: &[String]) -> Result<(), Error> {
    let _ = REBUILD;
    let duration = Duration::from_secs_f64(crate::number(words.first(), 2.0)?);
    let rounds: usize = crate::number(words.get(1), crate::ROUNDS)?;
    let file = std::env::temp_dir().join(format!("nicety-holds-{}", std::process::id()));
    let name = file.to_str().ok_or("the temporary folder's name is not UTF-8")?;
    let program = crate::program(&[name])?;
    let pairs = || crate::ADAPTERS.into_iter().flat_map(|from| crate::ADAPTERS.map(|to| (from, to)));
    let mut bulk: Vec<Runs> = pairs().map(|_| Runs::default()).collect();
    let mut floods = crate::ADAPTERS.map(|_| Runs::default());
    let (a, b) = (Party::Guest(0), Party::Guest(1));
    for _ in 0..rounds {
        for ((from, to), runs) in pairs().zip(&mut bulk) {
            let layout = Layout { guests: vec![Place::new(from), Place::new(to)], ..Layout::default() };
            once(&program, &file, &layout, runs, |rig, cancel| {
                let (bytes, elapsed) = rig.send(a, b, duration, cancel)?;
                Ok(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e6)
            })?;
        }
        for (adapter, runs) in crate::ADAPTERS.into_iter().zip(&mut floods) {
            let place = Place::new(adapter);
            let layout = Layout { guests: vec![place.clone()], crowd: vec![place; PORTS - 1], ..Layout::default() };
            once(&program, &file, &layout, runs, |rig, cancel| {
                rig.flood(a, BYTES, duration)?;
                Ok(rig.flooded(a, duration, cancel)? as f64 / duration.as_secs_f64())
            })?;
        }
    }
    println!("{rounds} alternated rounds of {duration:?}, medians [95 % interval]; holds of all ports' locks in µs");
    println!("bulk TCP guest to guest:");
    println!("| from → to | Mbit/s | holds in all | p50 | p99 | longest of all |\n|---|---|---|---|---|---|");
    pairs().zip(bulk).for_each(|((from, to), runs)| runs.print(&format!("{from} → {to}")));
    println!("a flood to {} ports, frames of {BYTES} bytes:", PORTS - 1);
    println!("| adapter | frames/s sent | holds in all | p50 | p99 | longest of all |\n|---|---|---|---|---|---|");
    crate::ADAPTERS.into_iter().zip(floods).for_each(|(adapter, runs)| runs.print(adapter));
    Ok(())
}
