//! How long a port's lock is held, in bulk TCP between guests of each pair of adapters. All holds of the daemon are
//! counted, from the guests' attaching to their end; a thread that the system stops in mid-hold is in the longest.

use std::path::Path;
#[cfg(feature = "measure")]
use std::sync::atomic::AtomicBool;

use crate::Error;

const REBUILD: &str = "the locks of this build have no clock: cargo run --release -p nicety --features measure \
     --example host_figures -- locks";

/// Writes the holds so far.
#[cfg(feature = "measure")]
pub fn write(file: &Path) -> Result<(), Error> {
    let nicety_plane::measure::Holds { count, p50_ns, p99_ns, longest_ns } = nicety_plane::measure::holds();
    Ok(std::fs::write(file, format!("{count} {p50_ns} {p99_ns} {longest_ns}"))?)
}

/// Nothing was timed.
#[cfg(not(feature = "measure"))]
pub fn write(_file: &Path) -> Result<(), Error> {
    Err(REBUILD.into())
}

/// Nothing was timed.
#[cfg(not(feature = "measure"))]
pub fn run(_words: &[String]) -> Result<(), Error> {
    Err(REBUILD.into())
}

/// What the daemon of one run wrote.
#[cfg(feature = "measure")]
#[derive(Default)]
struct Runs {
    mbps: Vec<f64>,
    holds: u64,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
    longest_us: f64,
}

#[cfg(feature = "measure")]
impl Runs {
    fn add(&mut self, mbps: f64, written: &str) -> Result<(), Error> {
        let figures: Vec<u64> = written.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [count, p50, p99, longest] = figures[..] else { return Err("the daemon wrote other figures".into()) };
        let us = |ns: u64| ns as f64 / 1e3;
        self.mbps.push(mbps);
        self.holds += count;
        self.p50_us.push(us(p50));
        self.p99_us.push(us(p99));
        self.longest_us = self.longest_us.max(us(longest));
        Ok(())
    }
}

/// `[SECONDS] [ROUNDS]`, 2 for each pair and 7.
#[cfg(feature = "measure")]
pub fn run(words: &[String]) -> Result<(), Error> {
    use nicety_lab::embedded::{Layout, Party, Place, Rig};
    use nicety_lab::number::sampled;
    use std::time::Duration;

    let _ = REBUILD;
    let duration = Duration::from_secs_f64(crate::number(words.first(), 2.0)?);
    let rounds: usize = crate::number(words.get(1), crate::ROUNDS)?;
    let file = std::env::temp_dir().join(format!("nicety-holds-{}", std::process::id()));
    let name = file.to_str().ok_or("the temporary folder's name is not UTF-8")?;
    let program = crate::program(&[name])?;
    let pairs = || crate::ADAPTERS.into_iter().flat_map(|from| crate::ADAPTERS.map(|to| (from, to)));
    let mut runs: Vec<Runs> = pairs().map(|_| Runs::default()).collect();
    for _ in 0..rounds {
        for ((from, to), runs) in pairs().zip(&mut runs) {
            let layout = Layout { guests: vec![Place::new(from), Place::new(to)], ..Layout::default() };
            let cancel = AtomicBool::new(false);
            let mut rig = Rig::start(&program, &layout, &cancel)?;
            let (bytes, elapsed) = rig.send(Party::Guest(0), Party::Guest(1), duration, &cancel)?;
            drop(rig);
            let text = std::fs::read_to_string(&file)?;
            std::fs::remove_file(&file)?;
            runs.add(bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e6, &text)?;
        }
    }
    println!("bulk TCP guest to guest, {rounds} alternated rounds of {duration:?}; holds of all ports' locks in µs:");
    println!("| from → to | Mbit/s | holds in all | p50 | p99 | longest of all |\n|---|---|---|---|---|---|");
    for ((from, to), Runs { mbps, holds, p50_us, p99_us, longest_us }) in pairs().zip(runs) {
        let (mbps, p50, p99) = (sampled(&mbps), sampled(&p50_us), sampled(&p99_us));
        println!("| {from} → {to} | {mbps} | {holds} | {p50} | {p99} | {longest_us:.1} |");
    }
    Ok(())
}
