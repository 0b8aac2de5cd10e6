//! Register accesses and interrupts per frame under Linux's own drivers, with segmentation offload on and off: a user-mode guest
//! sends to the host behind a tap, and receives from it. `cargo run --release -p nicety-lab --example offloads [ROUNDS]`
//!
//! Doorbells are trapped, also those of adapters where the usual thing is to map them: what is mapped costs no message, and is not
//! seen. A round is a second each of TCP_STREAM with TSO, TCP_STREAM without it and without the kernel's own segmentation (GSO), and
//! TCP_MAERTS; 7 rounds unless another number is given, medians with 95 % intervals. A kick of virtio-net's is no register write.

mod daemon;
mod help;

use std::{env, path::Path, process::ExitCode, sync::atomic::AtomicBool, time::Duration};

use nicety_adapters::{Entry, REGISTRY};
use nicety_guests::{
    Counts, Error, Guest, Machine, Namespace, Port, Root, Served,
    uml::{UmlConfig, UmlKernel},
};
use nicety_lab::{
    number::sampled,
    real::netperf::{self, Test},
};

const TAP: &str = "n0";
const HOST: &str = "10.9.4.254";
const GUEST: &str = "10.9.4.1";
const PORT: &str = "vm1";
const MAC: &str = "52:54:00:12:34:56";
/// Time limit of a command that returns at once.
const SOON: Duration = Duration::from_secs(30);
const SECONDS: u32 = 1;
const ROUNDS: usize = 7;
/// The loads of a round: name, ethtool settings, netperf test.
const LOADS: [(&str, &str, Test); 3] = [
    ("transmit, TSO on", "gso on tso on", Test::Stream),
    ("transmit, TSO off", "tso off gso off", Test::Stream),
    ("receive", "gso on tso on", Test::Maerts),
];

fn main() -> ExitCode {
    help::on_request(include_str!("offloads.rs"));
    let rounds = match env::args().nth(1).map(|word| word.parse::<usize>()) {
        None => ROUNDS,
        Some(Ok(rounds)) if rounds > 0 => rounds,
        Some(_) => {
            eprintln!("the argument is a number of rounds");
            return ExitCode::from(2);
        }
    };
    match run(rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    let program = daemon::program(None)?;
    let mut progress = |line: &str| eprintln!("{line}");
    let root = Root::lay(&mut progress)?;
    let kernel = UmlKernel::lay(&mut progress)?;
    println!("Linux {} in user mode, {rounds} rounds of {SECONDS} s", kernel.release());
    println!("| adapter | load | register reads | register writes | interrupts |\n|---|---|---|---|---|");
    for entry in REGISTRY {
        let samples = counted(&root, &kernel, &program, entry, rounds)?;
        for ((name, ..), samples) in LOADS.iter().zip(&samples) {
            let of = |count: fn(&Counts) -> u64| {
                sampled(&samples.iter().map(|counts| count(counts) as f64 / counts.frames as f64).collect::<Vec<_>>())
            };
            let (reads, writes) = (of(|counts| counts.reads), of(|counts| counts.writes));
            println!("| {} | {name} | {reads} | {writes} | {} |", entry.about.name, of(|counts| counts.interrupts));
        }
    }
    Ok(())
}

/// The daemon's counts for each load, one entry per round.
fn counted(
    root: &Root,
    kernel: &UmlKernel,
    program: &Path,
    entry: &'static Entry,
    rounds: usize,
) -> Result<[Vec<Counts>; LOADS.len()], Error> {
    let mut namespace = Namespace::open(root)?;
    namespace.tap(TAP, Some(&format!("{HOST}/24")))?;
    let mut netserver = root.program("usr/bin/netserver");
    netserver.args(["-4", "-D", "-N"]);
    namespace.start(&netserver, Path::new("/dev/null"))?;
    let trapped = Port { more: "doorbells = \"trapped\"\n".into(), ..Port::new(PORT, entry, MAC) };
    let served = Served::start(program, &mut namespace, vec![trapped], Some(TAP))?;
    let machine = UmlConfig::new(kernel).address("eth0", &format!("{GUEST}/24"));
    let mut guest = Guest::boot(root, served.attach(machine, PORT))?;
    guest.succeed(&format!("/usr/bin/ping -n -q -c 1 -W 10 {HOST} >/dev/null"), SOON)?;
    let mut samples = LOADS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((_, offloads, test), samples) in LOADS.iter().zip(&mut samples) {
            guest.succeed(&format!("ethtool -K eth0 {offloads} 2>&1 || true"), SOON)?;
            let before = served.counts().unwrap_or_default();
            netperf::run(&mut guest, HOST, *test, SECONDS, &AtomicBool::new(false))?;
            samples.push(served.counts().unwrap_or_default().since(before));
        }
    }
    drop(guest);
    served.stop(&mut namespace)?;
    Ok(samples)
}
