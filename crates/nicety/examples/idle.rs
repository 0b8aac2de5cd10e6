//! The cost of an idle daemon: ports with a VMM connected and no driver at work, trapped and mapped; then ports whose
//! guests' drivers are up and exchange nothing, by adapter.
//!
//! `cargo run --release -p nicety --example idle [PORTS] [SECONDS] [ROUNDS]` prints the share of a core that the daemon uses and
//! the memory that each port adds to it, from /proc. The daemon is the program itself, built by `cargo build --release`.

mod help;

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use nicety_lab::embedded::{Layout, Place, Program, Rig, cpu};
use nicety_lab::method::Doorbells;
use nicety_lab::number::sampled;
use nicety_vfio_user::{Client, DmaProtection, DmaRange};

/// Time between the drivers' start and the measurement of a daemon.
const SETTLE: Duration = Duration::from_secs(1);

type Error = Box<dyn std::error::Error>;

/// A daemon; dropping this ends it.
struct Daemon {
    child: Child,
    folder: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended by itself; the figures show that.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn program() -> Result<PathBuf, Error> {
    let examples = std::env::current_exe()?;
    let program = examples.parent().and_then(Path::parent).map(|folder| folder.join("nicety"));
    let program = program.filter(|path| path.exists());
    program.ok_or_else(|| "build the program first: cargo build --release".into())
}

fn start(ports: usize, doorbells: Doorbells) -> Result<Daemon, Error> {
    let folder = std::env::temp_dir().join(format!("nicety-idle-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mut file = std::fs::File::create(folder.join("host.toml"))?;
    writeln!(file, "[daemon]\ncontrol = \"control.sock\"")?;
    for port in 0..ports {
        writeln!(file, "[[port]]\nname = \"vm{port}\"\nadapter = \"vmxnet3\"\nmac = \"52:54:00:00:00:{port:02x}\"")?;
        writeln!(file, "socket = \"vm{port}.sock\"\ndoorbells = \"{doorbells}\"")?;
    }
    let mut child = Command::new(program()?)
        .args(["serve", "host.toml"])
        .current_dir(&folder)
        .stderr(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()?;
    let log = child.stderr.take().ok_or("no log")?;
    let daemon = Daemon { child, folder };
    let mut lines = BufReader::new(log).lines();
    if !lines.by_ref().any(|line| line.is_ok_and(|line| line.contains("all sockets are ready"))) {
        return Err("the daemon did not start".into());
    }
    std::thread::spawn(move || lines.for_each(drop));
    Ok(daemon)
}

/// CPU seconds used so far.
fn used(daemon: &Daemon) -> Result<f64, Error> {
    cpu::seconds_of(daemon.child.id()).ok_or_else(|| "the daemon has gone".into())
}

/// Resident memory in KiB.
fn resident_kib(daemon: &Daemon) -> Result<u64, Error> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id()))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("the daemon has gone")?;
    Ok(resident.trim().trim_end_matches(" kB").parse()?)
}

/// The daemon's share of a core with embedded guests at all ports. Their links are up, and they do not send.
fn at_work(adapter: &str, doorbells: Option<Doorbells>, ports: usize, seconds: u64) -> Result<f64, Error> {
    let words = |word: &str| vec![word.into()];
    let program = Program { path: program()?, hidden: words("guest"), serve: words("serve") };
    let place = Place { doorbells, ..Place::new(adapter) };
    let layout = Layout { guests: vec![place; ports], ..Layout::default() };
    let rig = Rig::start(&program, &layout, &AtomicBool::new(false))?;
    // The longer the silence, the rarer are polls of mapped doorbells: wait.
    std::thread::sleep(SETTLE);
    let used = || rig.daemon_cpu().ok_or("the daemon has gone");
    let (before, began) = (used()?, Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    Ok(100.0 * (used()? - before) / began.elapsed().as_secs_f64())
}

/// Connects a VMM to each port, with memory, bus mastering on and nothing else.
fn connect(daemon: &Daemon, ports: usize) -> Result<Vec<Client>, Error> {
    let memory = nicety_memory::shared_file("idle", 16 << 20)?;
    (0..ports)
        .map(|port| {
            let mut client = Client::connect(daemon.folder.join(format!("vm{port}.sock")))?;
            let range = DmaRange { address: 0, size: 16 << 20 };
            client.dma_map(range, DmaProtection { read: true, write: true }, Some((memory.as_fd(), 0)))?;
            client.region_write(7, 4, &[7, 0])?;
            Ok(client)
        })
        .collect()
}

/// For a daemon whose ports have a VMM but no driver: its share of a core, its resident memory in KiB, and that of each port except
/// the first in KiB.
fn connected(doorbells: Doorbells, ports: usize, seconds: u64) -> Result<(f64, u64, u64), Error> {
    let empty = resident_kib(&start(1, doorbells)?)?;
    let daemon = start(ports, doorbells)?;
    let clients = connect(&daemon, ports)?;
    // The same wait as with drivers.
    std::thread::sleep(SETTLE);
    let (before, began) = (used(&daemon)?, Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    let share = 100.0 * (used(&daemon)? - before) / began.elapsed().as_secs_f64();
    let resident = resident_kib(&daemon)?;
    drop(clients);
    Ok((share, resident, resident.saturating_sub(empty) / (ports as u64 - 1).max(1)))
}

fn main() -> Result<(), Error> {
    help::on_request(include_str!("idle.rs"));
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| arguments.next().map_or(Ok(usual), |word| word.parse());
    let (ports, seconds, rounds) = (number(10)? as usize, number(10)?, number(7)?);
    let idle = [Doorbells::Trapped, Doorbells::Mapped];
    let silent =
        [("e1000", Some(idle[0])), ("vmxnet3", Some(idle[0])), ("vmxnet3", Some(idle[1])), ("virtio-net", None)];
    let mut shares: [Vec<f64>; 6] = Default::default();
    let (mut resident, mut each) = ([0; 2], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        let (first, second) = shares.split_at_mut(idle.len());
        for (index, (doorbells, shares)) in idle.iter().zip(first).enumerate() {
            let (share, kib, more) = connected(*doorbells, ports, seconds)?;
            shares.push(share);
            resident[index] = resident[index].max(kib);
            each[index].push(more as f64);
        }
        for ((adapter, doorbells), shares) in silent.iter().zip(second) {
            shares.push(at_work(adapter, *doorbells, ports, seconds)?);
        }
    }
    println!(
        "{rounds} alternated rounds of {seconds} s; {ports} ports, each with a VMM connected, no driver, no traffic:"
    );
    for ((doorbells, shares), (resident, each)) in idle.iter().zip(&shares).zip(resident.iter().zip(&each)) {
        let (share, each) = (sampled(shares), sampled(each));
        println!("  {doorbells:20} {share} % of a core, {resident} KiB resident, {each} KiB for each further port");
    }
    println!("{ports} ports, each with a guest whose driver is up, no traffic:");
    for ((adapter, doorbells), shares) in silent.iter().zip(&shares[idle.len()..]) {
        println!(
            "  {:20} {} % of a core",
            format!("{adapter} {}", doorbells.map(|doorbells| doorbells.to_string()).unwrap_or_default()),
            sampled(shares)
        );
    }
    Ok(())
}
