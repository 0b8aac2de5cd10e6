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

/// `[SECONDS]`, 2 for each pair.
#[cfg(feature = "measure")]
pub fn run(words: &[String]) -> Result<(), Error> {
    use nicety_lab::embedded::{Layout, Party, Place, Rig};
    use std::time::Duration;

    let _ = REBUILD;
    let duration = Duration::from_secs_f64(crate::number(words.first(), 2.0)?);
    let file = std::env::temp_dir().join(format!("nicety-holds-{}", std::process::id()));
    let name = file.to_str().ok_or("the temporary folder's name is not UTF-8")?;
    let program = crate::program(&[name])?;
    println!("bulk TCP guest to guest, {duration:?} each; holds of all ports' locks in µs:");
    println!("{:24} {:>9} {:>9} {:>8} {:>8} {:>9}", "from → to", "Mbit/s", "holds", "p50", "p99", "longest");
    for from in crate::ADAPTERS {
        for to in crate::ADAPTERS {
            let layout = Layout { guests: vec![Place::new(from), Place::new(to)], ..Layout::default() };
            let cancel = AtomicBool::new(false);
            let mut rig = Rig::start(&program, &layout, &cancel)?;
            let (bytes, elapsed) = rig.send(Party::Guest(0), Party::Guest(1), duration, &cancel)?;
            drop(rig);
            let text = std::fs::read_to_string(&file)?;
            std::fs::remove_file(&file)?;
            let figures: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
            let [count, p50, p99, longest] = figures[..] else { return Err("the daemon wrote other figures".into()) };
            let rate = bytes as f64 * 8.0 / elapsed.as_secs_f64() / 1e6;
            let us = |ns: u64| ns as f64 / 1e3;
            println!(
                "{:24} {rate:9.0} {count:9} {:8.2} {:8.2} {:9.1}",
                format!("{from} → {to}"),
                us(p50),
                us(p99),
                us(longest)
            );
        }
    }
    Ok(())
}
