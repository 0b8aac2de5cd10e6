//! Effect of VMMs that storm on other ports: request-response between two guests beside eight VMMs that change their interrupts, or map
//! memory, as fast as they are answered. Compared with the same VMMs reading a register as fast: those messages change nothing, so that
//! nothing of the keeper's, of the threads that close descriptors, or of those that map memory is in the difference.
//!
//! Daemon and keeper are the program itself, built by `cargo build --release`. The storming threads yield to the two guests (SCHED_IDLE).

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nicety_control::{Ask, ask};
use nicety_host::List;
use nicety_lab::embedded::{Layout, Party, Place, Program, Rig};
use nicety_lab::number::{NONE, ratio, ratio_range, sampled};
use nicety_lab::statistics::{paired_ratio, percentile};
use nicety_memory::shared_file;
use nicety_vfio_user::{Client, DmaProtection, DmaRange, NoMemory};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::json;

use crate::Error;

const VMMS: usize = 8;
/// Memory files of each VMM.
const FILES: u64 = 150;
/// The index of MSI-X (vfio.h).
const MSIX: u32 = 2;
const CONNECTS: Duration = Duration::from_secs(10);
const A: Party = Party::Guest(0);
const B: Party = Party::Guest(1);

/// The messages that the VMMs send without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storm {
    Reads,
    Interrupts,
    Memory,
}

/// The built program, as daemon with a keeper and as guests.
fn program() -> Result<Program, Error> {
    let examples = std::env::current_exe()?;
    let path: Option<PathBuf> = examples.parent().and_then(Path::parent).map(|folder| folder.join("nicety"));
    let path = path.filter(|path| path.exists()).ok_or("build the program first: cargo build --release")?;
    let words = |words: &[&str]| words.iter().map(Into::into).collect();
    Ok(Program { path, hidden: words(&["guest"]), serve: words(&["serve", "--keeper"]) })
}

/// Adds the VMMs' ports, and connects them.
fn connected(rig: &Rig) -> Result<Vec<Client>, Error> {
    let control = rig.control();
    let folder = control.parent().ok_or("the control socket lies in no folder")?.to_owned();
    let mut clients = Vec::new();
    for number in 0..VMMS {
        let socket = folder.join(format!("storm{number}.sock"));
        let mac = format!("52:54:00:77:09:{number:02x}");
        let added = json!({"name": format!("storm{number}"), "adapter": "e1000e", "mac": mac, "socket": socket});
        let values = added.as_object().cloned().unwrap_or_default().into_iter().collect();
        ask(&control, Ask::Add { list: List::Ports, values: nicety_control::api::PortValues(values), cut_off: false })?;
        let mut client = Client::connect_with(&socket, CONNECTS, Box::new(NoMemory))?;
        for number in 0..FILES {
            let file = shared_file("storm", 4096)?;
            client.dma_map(range(number), BOTH, Some((file.as_fd(), 0)))?;
        }
        clients.push(client);
    }
    Ok(clients)
}

const BOTH: DmaProtection = DmaProtection { read: true, write: true };

fn range(number: u64) -> DmaRange {
    DmaRange { address: number << 20, size: 4096 }
}

/// Storms until it is over. Counts what it does.
fn rage(client: &mut Client, storm: Storm, over: &AtomicBool, done: &AtomicU64) -> Result<(), String> {
    let tid = rustix::thread::gettid().as_raw_nonzero().to_string();
    let yields =
        Command::new("chrt").args(["--idle", "--pid", "0", &tid]).status().map_err(|error| error.to_string())?;
    if !yields.success() {
        return Err(format!("chrt: {yields} (it is in the package util-linux)"));
    }
    let words = |error: nicety_vfio_user::ClientError| error.to_string();
    let file = shared_file("storm", 4096).map_err(|error| error.to_string())?;
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        match storm {
            Storm::Reads => client.region_read(0, 8, &mut [0; 4]).map_err(words)?,
            Storm::Interrupts => {
                let fd = eventfd(0, EventfdFlags::empty()).map_err(|error| error.to_string())?;
                client.connect_irqs(MSIX, number % 5, &[fd.as_fd()]).map_err(words)?;
            }
            Storm::Memory => {
                client.dma_map(range(FILES), BOTH, Some((file.as_fd(), 0))).map_err(words)?;
                client.dma_unmap(range(FILES)).map_err(words)?;
            }
        }
        number += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The 99th percentile of exchanges in µs, beside this, and what the VMMs did a second.
fn beside(
    rig: &mut Rig,
    clients: &mut [Client],
    storm: Storm,
    duration: Duration,
    cancel: &AtomicBool,
) -> Result<(f64, f64), Error> {
    let (over, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (over, done) = (&over, &done);
        let storms: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(move || rage(client, storm, over, done))).collect();
        std::thread::sleep(duration / 4);
        let before = done.load(Ordering::Relaxed);
        let exchanged = rig.transact(A, B, duration, cancel);
        let rate = (done.load(Ordering::Relaxed) - before) as f64 / duration.as_secs_f64();
        over.store(true, Ordering::Relaxed);
        for storm in storms {
            storm.join().map_err(|_| "a storm panicked")??;
        }
        let (_, mut each_ns) = exchanged?;
        let p99 = percentile(&mut each_ns, 99.0).ok_or("no exchange was answered")?;
        Ok((p99 as f64 / 1e3, rate))
    })
}

/// `[SECONDS] [ROUNDS]`: 2 seconds, and 5 rounds by default.
pub fn run(words: &[String]) -> Result<(), Error> {
    let duration = Duration::from_secs_f64(crate::number(words.first(), 2.0)?);
    let rounds: usize = crate::number(words.get(1), 5)?;
    let cancel = AtomicBool::new(false);
    let layout = Layout { guests: vec![Place::new("e1000"); 2], ..Layout::default() };
    let mut rig = Rig::start(&program()?, &layout, &cancel)?;
    let mut clients = connected(&rig)?;
    rig.transact(A, B, duration / 10, &cancel)?;
    for storm in [Storm::Interrupts, Storm::Memory] {
        let (mut quiet, mut stormy) = (Vec::new(), Vec::new());
        println!("request-response, p99 in µs (messages a second), {VMMS} VMMs, {duration:?} each, {storm:?}:");
        for round in 1..=rounds {
            let (one, reads) = beside(&mut rig, &mut clients, Storm::Reads, duration, &cancel)?;
            let (other, messages) = beside(&mut rig, &mut clients, storm, duration, &cancel)?;
            println!(
                "  round {round}: beside reads {one:.1} ({reads:.0}), beside the storm {other:.1} ({messages:.0})"
            );
            quiet.push(one);
            stormy.push(other);
        }
        let times = paired_ratio(&stormy, &quiet).map_or_else(
            || NONE.to_owned(),
            |times| ratio_range(&times).map_or(ratio(&times), |range| format!("{} [{range}]", ratio(&times))),
        );
        println!("  beside reads {}, beside the storm {}, ratio {times}", sampled(&quiet), sampled(&stormy));
    }
    Ok(())
}
