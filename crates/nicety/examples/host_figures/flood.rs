//! What a neighbour's flood does to others: request-response between two guests, with and without a third that sends
//! broadcast frames of 60 bytes as fast as its adapter takes them, which the switch replicates to 255 ports: the two
//! guests', and 253 of a crowd whose drivers take what comes.
//!
//! The daemon has the first core. All guests share the others; flooder and crowd give way to the two (SCHED_IDLE, by
//! chrt of util-linux), so that what is measured is the daemon's fairness, not the kernel's between guests. The two take
//! the flood's frames as well, as any guest must. "Alone" begins when nothing of the last flood waits any more.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_daemon::control::api::PortList;
use nicety_daemon::control::{Ask, Reply, ask};
use nicety_daemon::report::PortReport;
use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::number::{NONE, ratio, ratio_range, sampled};
use nicety_lab::statistics::{paired_ratio, percentile};

use crate::Error;

/// The flooder's port, and those that it floods.
pub const PORTS: usize = 256;
/// The flood's frames.
pub const BYTES: u16 = 60;
/// How long the crowd may take for what the flood left.
const DRAINED: Duration = Duration::from_secs(60);
/// A frame that few of fill a buffer.
const LONG: u16 = 1514;
/// More than a driver here has buffers in its receive ring.
const RING_FRAMES: u64 = 4096;
/// How long warming up with frames of one length may take: a crowd that keeps up has no full buffers.
const WARM: Duration = Duration::from_secs(20);
/// Why a frame is dropped that finds its receiver's buffer full.
const FULL: &str = "buffer-full";
/// The ports that are not the crowd's.
const MEASURED: [&str; 3] = ["p0", "p1", "p2"];
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

/// What the daemon reports of its ports.
pub fn ports(rig: &Rig) -> Result<Vec<PortReport>, Error> {
    let Reply::Ports(PortList { ports, .. }) = ask(&rig.control(), Ask::Ports)? else {
        return Err("an odd reply".into());
    };
    Ok(ports)
}

/// The crowd's ports that have not had this many frames, or no more than `before` that found the port's buffer full.
fn cold(ports: &[PortReport], before: &BTreeMap<String, u64>) -> usize {
    let is_warm = |port: &PortReport| {
        let taken: u64 = port.receive.iter().map(|queue| queue.frames).sum();
        taken >= RING_FRAMES && full(port) > before.get(&port.name).copied().unwrap_or(0)
    };
    ports.iter().filter(|port| !MEASURED.contains(&port.name.as_str()) && !is_warm(port)).count()
}

fn full(port: &PortReport) -> u64 {
    port.receive_drops.get(FULL).copied().unwrap_or(0)
}

/// Floods that nothing is measured beside, until all that a flood writes to has been written once: a page's first touch
/// costs more than many frames. Long frames fill the bytes of a port's buffer, short ones its list of frames.
fn warm_up(rig: &mut Rig, duration: Duration, cancel: &AtomicBool) -> Result<(), Error> {
    for bytes in [LONG, BYTES] {
        let before = ports(rig)?.iter().map(|port| (port.name.clone(), full(port))).collect();
        let give_up = Instant::now() + WARM;
        let mut floods = 0;
        let cold = loop {
            rig.flood(FLOODER, bytes, duration)?;
            rig.flooded(FLOODER, duration, cancel)?;
            drain(rig)?;
            floods += 1;
            let cold = cold(&ports(rig)?, &before);
            if cold == 0 || Instant::now() >= give_up {
                break cold;
            }
        };
        println!("  warmed up by {floods} floods of {bytes} bytes; buffers that never were full: {cold}");
    }
    Ok(())
}

/// Waits until no frame waits for its receiver.
fn drain(rig: &Rig) -> Result<(), Error> {
    let give_up = Instant::now() + DRAINED;
    loop {
        let waiting: u64 = ports(rig)?.iter().map(|port| port.backlog_frames).sum();
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
    let layout = Layout {
        guests: vec![place.clone(); MEASURED.len()],
        crowd: vec![place; PORTS - MEASURED.len()],
        uplink: false,
    };
    let mut rig = Rig::start(&crate::program(&[])?, &layout, &cancel)?;
    for pid in rig.pids().iter().skip(2).take(2) {
        give_way(*pid)?;
    }
    println!("{adapter}: request-response, p99 in µs (exchanges), alternated, {duration:?} each:");
    // Addresses are learned, and memory is touched, before anything counts.
    exchanges(&mut rig, duration / 10, &cancel)?;
    warm_up(&mut rig, duration, &cancel)?;
    let (mut quiet, mut flooded, mut frames) = (Vec::new(), Vec::new(), Vec::new());
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
    let times = paired_ratio(&flooded, &quiet).map_or_else(
        || NONE.to_owned(),
        |times| ratio_range(&times).map_or(ratio(&times), |range| format!("{} [{range}]", ratio(&times))),
    );
    println!("  medians [95 % interval] of {rounds} rounds:");
    println!("  alone {}, beside the flood {}, ratio {times}", sampled(&quiet), sampled(&flooded));
    println!("  frames sent per second, each to {} ports: {}", PORTS - 1, sampled(&frames));
    Ok(())
}
