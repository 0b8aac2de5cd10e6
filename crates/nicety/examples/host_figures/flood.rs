//! Effect of a neighbour's flood on other ports: request-response between two guests, with and without a third that sends broadcast
//! frames of 60 bytes as fast as its adapter takes them. The switch replicates them to 255 ports: those of the two guests, and 253
//! background ports whose drivers consume the frames.
//!
//! The daemon runs on the first core. All guests share the others. The flooder and the background guests yield to the two
//! (SCHED_IDLE, by chrt of util-linux), so this measures the daemon's fairness, not the kernel's between guests. The two guests
//! receive the flood's frames as well, as any guest must. "Alone" begins when no frame of the last flood is waiting.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_control::api::PortList;
use nicety_control::{Ask, Reply, ask};
use nicety_daemon::report::PortReport;
use nicety_lab::embedded::{Layout, Party, Place, Rig};
use nicety_lab::number::{NONE, ratio, ratio_range, sampled};
use nicety_lab::statistics::{paired_ratio, percentile};

use crate::Error;

/// Ports of the switch: the flooder's, and those that it floods.
pub const PORTS: usize = 256;
/// Bytes of the flood's frames.
pub const BYTES: u16 = 60;
/// Longest time in which the background guests consume the rest of a flood.
const DRAINED: Duration = Duration::from_secs(60);
/// Bytes of a long frame: few of them fill a buffer.
const LONG: u16 = 1514;
/// More frames than a driver here has buffers in its receive ring.
const RING_FRAMES: u64 = 4096;
/// Longest warm-up with frames of one length. The buffers of guests that keep up never fill.
const WARM: Duration = Duration::from_secs(20);
/// Reason for the drop of a frame whose receiver's buffer is full.
const FULL: &str = "buffer-full";
/// Ports that do not belong to the background guests.
const MEASURED: [&str; 3] = ["p0", "p1", "p2"];
const A: Party = Party::Guest(0);
const B: Party = Party::Guest(1);
const FLOODER: Party = Party::Guest(2);

/// Number of exchanges, and the 99th percentile of their times in µs.
fn exchanges(rig: &mut Rig, duration: Duration, cancel: &AtomicBool) -> Result<(usize, f64), Error> {
    let (_, mut each_ns) = rig.transact(A, B, duration, cancel)?;
    let p99 = percentile(&mut each_ns, 99.0).ok_or("no exchange was answered")?;
    Ok((each_ns.len(), p99 as f64 / 1e3))
}

/// Lets a process run only when no other process wants to (SCHED_IDLE).
fn set_idle_priority(pid: u32) -> Result<(), Error> {
    let done = Command::new("chrt").args(["--idle", "--pid", "0", &pid.to_string()]).status();
    let done = done.map_err(|error| format!("chrt: {error} (it is in the package util-linux)"))?;
    if done.success() { Ok(()) } else { Err(format!("chrt --idle --pid 0 {pid}: {done}").into()) }
}

/// The daemon's reports about its ports.
pub fn ports(rig: &Rig) -> Result<Vec<PortReport>, Error> {
    let Reply::Ports(PortList { ports, .. }) = ask(&rig.control(), Ask::Ports)? else {
        return Err("an odd reply".into());
    };
    Ok(ports)
}

/// Number of background ports that are not warm: they have received fewer than [`RING_FRAMES`], or have dropped no frame for a full
/// buffer since `before`.
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

/// Floods without measuring, until everything that a flood writes to has been written once: the first touch of a page costs more
/// than many frames. Long frames fill the bytes of a port's buffer, short ones its list of frames.
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

/// Waits until no frame waits in the daemon.
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

/// `[ADAPTER] [ROUNDS] [SECONDS]`: all adapters, 7 rounds of 2 × 1 s by default.
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
        ..Layout::default()
    };
    let mut rig = Rig::start(&crate::program(&[])?, &layout, &cancel)?;
    for pid in rig.pids().iter().skip(2).take(2) {
        set_idle_priority(*pid)?;
    }
    println!("{adapter}: request-response, p99 in µs (exchanges), alternated, {duration:?} each:");
    // The switch learns addresses, and memory is touched, before the measurement.
    exchanges(&mut rig, duration / 10, &cancel)?;
    warm_up(&mut rig, duration, &cancel)?;
    let (mut quiet, mut flooded, mut frames) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=rounds {
        let (count, p99) = exchanges(&mut rig, duration, &cancel)?;
        let whole = duration + duration / 2;
        rig.flood(FLOODER, BYTES, whole)?;
        // The flood begins before the first exchange and ends after the last.
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
