//! Figures of the daemon that `nicety compare` does not give: `cargo run --release -p nicety --example host_figures -- WHAT`.
//!
//! - `signals [SECONDS] [ROUNDS]`: eventfd writes per frame in bulk, by adapter.
//! - `flood [ADAPTER] [ROUNDS] [SECONDS]`: request-response beside a neighbour that floods 255 ports.
//! - `light [SECONDS] [ROUNDS]`: the daemon's share of a core while a guest sends single frames, so many a second, by adapter.
//! - `locks [SECONDS] [ROUNDS]`: how long a port's lock is held in bulk, by pair of adapters, and in a flood to 255 ports. Wants
//!   `--features measure`.
//! - `changes [SECONDS] [ROUNDS]`: what live changes to one port do to others; with `--features measure` how long locks are held, too.
//! - `storm [SECONDS] [ROUNDS]`: request-response beside eight VMMs that change their interrupts, or map memory, without end.
//!
//! Guests are the lab's embedded ones: processes of this program, at the real sockets of a real daemon, which is another
//! process of it. The daemon runs on the first core, guests and bench on the others, if there are any.

mod changes;
mod flood;
#[path = "../help/mod.rs"]
mod help;
mod light;
mod locks;
mod serve;
mod signals;
mod storm;

use std::ffi::OsString;
use std::process::ExitCode;
use std::str::FromStr;

use nicety_lab::embedded::{Program, guest_main};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

type Error = Box<dyn std::error::Error>;

/// Adapters with a driver here.
const ADAPTERS: [&str; 3] = ["e1000", "vmxnet3", "virtio-net"];
/// Enough rounds for a 95 % interval.
const ROUNDS: usize = 7;
/// First arguments with which this program starts itself.
const HIDDEN: &str = "hidden";
const SERVE: &str = "serve";

/// This program as daemon and guests; the daemon gets `words` before its host file.
fn program(words: &[&str]) -> Result<Program, Error> {
    let serve = [SERVE].iter().chain(words).map(OsString::from).collect();
    Ok(Program { path: std::env::current_exe()?, hidden: vec![HIDDEN.into()], serve })
}

/// Pins this process and those that it starts to the first core, or to all others. A single core is shared.
fn pin(first: bool) -> Result<(), Error> {
    let allowed = sched_getaffinity(None)?;
    let cores = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core));
    let (mut wanted, mut number) = (CpuSet::new(), 0);
    for core in cores {
        if (number == 0) == first {
            wanted.set(core);
        }
        number += 1;
    }
    if number > 1 {
        sched_setaffinity(None, &wanted)?;
    }
    Ok(())
}

/// A number from the command line, or the default.
fn number<T: FromStr>(word: Option<&String>, usual: T) -> Result<T, Error> {
    word.map_or(Ok(usual), |word| word.parse().map_err(|_| format!("{word} is not a number that fits here").into()))
}

fn main() -> ExitCode {
    help::on_request(include_str!("main.rs"));
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == HIDDEN) {
        let words: Vec<OsString> = words.collect();
        return ExitCode::from(u8::try_from(guest_main(&words, &mut |line| eprintln!("{line}"))).unwrap_or(1));
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (what, rest) = words.split_first().map_or(("", &[][..]), |(what, rest)| (what.as_str(), rest));
    let done = match what {
        SERVE => serve::run(rest),
        "signals" => pin(false).and_then(|()| signals::run(rest)),
        "flood" => pin(false).and_then(|()| flood::run(rest)),
        "light" => pin(false).and_then(|()| light::run(rest)),
        "changes" => pin(false).and_then(|()| changes::run(rest)),
        "storm" => storm::run(rest),
        "locks" => pin(false).and_then(|()| locks::run(rest)),
        _ => {
            Err("what to measure? signals, flood, light, locks, changes or storm (see the first lines of this example)"
                .into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
