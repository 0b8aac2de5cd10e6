//! What a neighbour's flood does to others: request-response between two guests, with and without a third that sends
//! broadcast frames of 60 bytes as fast as its adapter takes them, which the switch replicates to 255 ports: the two
//! guests', and 253 of a crowd whose drivers take what comes.
//!
//! The daemon has the first core. All guests share the others; flooder and crowd give way to the two (SCHED_IDLE, by
//! chrt of util-linux), so that what is measured is the daemon's fairness, not the kernel's between guests. The two take
//! the flood's frames as well, as any guest must. "Alone" begins when nothing of the last flood waits any more.

use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_daemon::control::{Ask, Reply, ask};
use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::number::sampled;
use nicety_lab::statistics::{paired_ratio, percentile};

use crate::Error;

const PORTS: usize = 256;
const BYTES: u16 = 60;
/// How long the crowd may take for what the flood left.
const DRAINED: Duration = Duration::from_secs(60);
const A: Party = Party::Guest(0);
const B: Party = Party::Guest(1);
const FLOODER: Party = Party::Guest(2);

/// Exchanges, and the 99th percentile of what they took in µs.
fn exchanges(rig: &mut Rig, duration: Duration, cancel: &AtomicBool) -> Result<(usize, f64), Error> {
    let (_, mut each_ns) = rig.transact(A, B, duration, cancel)?;
    let p99 = percentile(&mut each_ns, 99.0).ok_or("no exchange was answered")?;
    Ok((each_ns.len(), p99 as f64 / 1e3))
}

/// Lets a process run only when no other wants to.
fn give_way(pid: u32) -> Result<(), Error> {
    let done = Command::new("chrt").args(["--idle", "--pid", "0", &pid.to_string()]).status();
    let done = done.map_err(|error| format!("chrt: {error} (it is in the package util-linux)"))?;
    if done.success() { Ok(()) } else { Err(format!("chrt --idle --pid 0 {pid}: {done}").into()) }
}

/// Waits until no frame waits for its receiver.
fn drain(rig: &Rig) -> Result<(), Error> {
    let give_up = Instant::now() + DRAINED;
    loop {
        let Reply::Ports { ports, .. } = ask(&rig.control(), Ask::Ports)? else { return Err("an odd reply".into()) };
        let waiting: u64 = ports.iter().map(|port| port.backlog_frames).sum();
        if waiting == 0 {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(format!("{waiting} frames still wait {DRAINED:?} after the flood").into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `[ADAPTER] [ROUNDS] [SECONDS]`: all adapters, 7 rounds of 2 × 1 s.
pub fn run(words: &[String]) -> Result<(), Error> {
    let adapters = words.first().filter(|word| *word != "all").map_or(crate::ADAPTERS.to_vec(), |name| vec![name]);
    let rounds: usize = crate::number(words.get(1), 7)?;
    let duration = Duration::from_secs_f64(crate::number(words.get(2), 1.0)?);
    for adapter in adapters {
        one(adapter, rounds, duration)?;
    }
    Ok(())
}

fn one(adapter: &str, rounds: usize, duration: Duration) -> Result<(), Error> {
    let cancel = AtomicBool::new(false);
    let place = Place::new(adapter);
    let layout = Layout { guests: vec![place.clone(); 3], crowd: vec![place; PORTS - 3], uplink: false };
    let mut rig = Rig::start(&crate::program(&[])?, &layout, &cancel)?;
    for pid in rig.pids().iter().skip(2).take(2) {
        give_way(*pid)?;
    }
    // Addresses are learned, and memory is touched, before anything counts.
    exchanges(&mut rig, duration / 10, &cancel)?;
    rig.flood(FLOODER, BYTES, duration)?;
    rig.flooded(FLOODER, duration, &cancel)?;
    drain(&rig)?;
    let (mut quiet, mut flooded, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    println!("{adapter}: request-response, p99 in µs (exchanges), alternated, {duration:?} each:");
    for round in 1..=rounds {
        let (count, p99) = exchanges(&mut rig, duration, &cancel)?;
        let whole = duration + duration / 2;
        rig.flood(FLOODER, BYTES, whole)?;
        // The flood is there before the first exchange and after the last.
        std::thread::sleep(duration / 4);
        let (beside, beside_p99) = exchanges(&mut rig, duration, &cancel)?;
        let sent = rig.flooded(FLOODER, whole, &cancel)? as f64 / whole.as_secs_f64();
        println!("  round {round}: alone {p99:.1} ({count}), beside {sent:.0} frames/s {beside_p99:.1} ({beside})");
        quiet.push(p99);
        flooded.push(beside_p99);
        frames.push(sent);
        drain(&rig)?;
    }
    let ratio = paired_ratio(&flooded, &quiet);
    let ratio = ratio.map_or_else(
        || "none".to_owned(),
        |ratio| {
            let range = ratio.interval.map(|interval| format!(" [{:.2}–{:.2}]", interval.low, interval.high));
            format!("{:.2}{}", ratio.median, range.unwrap_or_default())
        },
    );
    println!("  alone {}, beside the flood {}, ratio {ratio}", sampled(&quiet), sampled(&flooded));
    println!("  frames sent per second, each to {} ports: {}", PORTS - 1, sampled(&frames));
    Ok(())
}
