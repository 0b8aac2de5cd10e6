//! Runs the hostile guest for any number of minutes:
//! `cargo run --release --package nicety-trials --example hostile -- --minutes 10`.
//!
//! Takes every adapter in turn, with a new seed each time. A failure names its seed; `--seed N` starts there. `--seeds N` runs that
//! many seeds instead.
#![forbid(unsafe_code)]

mod help;

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nicety_adapters::REGISTRY;
use nicety_trials::hostile::{self, Outcome};

/// Steps of one seed.
const STEPS: u64 = 10_000;
/// Growth of the process that is allowed after its first rounds. Every seed needs the same memory.
const GROWTH_BYTES: u64 = 64 << 20;

fn main() -> ExitCode {
    help::on_request(include_str!("hostile.rs"));
    let mut arguments = std::env::args().skip(1);
    let (mut minutes, mut seed, mut seeds) = (1.0, None, u64::MAX);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match (name.as_str(), value.parse::<f64>(), value.parse::<u64>()) {
            ("--minutes", Ok(value), _) => minutes = value,
            ("--seed", _, Ok(value)) => seed = Some(value),
            ("--seeds", _, Ok(value)) => seeds = value,
            _ => {
                eprintln!("{name} {value}: only --minutes N, --seed N and --seeds N are known");
                return ExitCode::from(2);
            }
        }
    }
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = if seeds < u64::MAX { Duration::MAX } else { Duration::from_secs_f64(minutes * 60.0) };
    run(time, seeds, seed.unwrap_or(clock << 20))
}

fn run(time: Duration, seeds: u64, first: u64) -> ExitCode {
    let begin = Instant::now();
    let mut sums = vec![Outcome::default(); REGISTRY.len()];
    let (mut seed, mut small) = (first, 0);
    while begin.elapsed() < time && seed - first < seeds {
        for (entry, sum) in REGISTRY.iter().zip(&mut sums) {
            match catch_unwind(|| hostile::run(entry, seed, STEPS)) {
                Ok(outcome) => add(sum, outcome),
                Err(_) => {
                    eprintln!("{}: seed {seed} ends in a panic; --seed {seed} begins there", entry.about.name);
                    return ExitCode::FAILURE;
                }
            }
        }
        seed += 1;
        if seed == first + 4 {
            small = resident_bytes();
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    for (entry, sum) in REGISTRY.iter().zip(&sums) {
        let Outcome { steps, worst, blocks, sent, received, begun } = sum;
        let rate = *steps as f64 * REGISTRY.len() as f64 / seconds;
        println!(
            "hostile {}: {steps} steps ({rate:.0}/s), {begun} drivers, {sent} packets sent, {received} received, at most \
             {worst} accesses a step{}",
            entry.about.name,
            if *blocks > 0 { format!(", {blocks} basic blocks") } else { String::new() }
        );
    }
    let large = resident_bytes();
    println!(
        "hostile: {} seeds from {first}, {} MB at the beginning, {} MB at the end",
        seed - first,
        small >> 20,
        large >> 20
    );
    if small > 0 && large > small + GROWTH_BYTES {
        eprintln!("the process grew: something is not given back");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn add(sum: &mut Outcome, one: Outcome) {
    sum.steps += one.steps;
    sum.worst = sum.worst.max(one.worst);
    sum.blocks = sum.blocks.max(one.blocks);
    sum.sent += one.sent;
    sum.received += one.received;
    sum.begun += one.begun;
}

/// proc(5): the second number of `statm`, in pages of 4 KiB.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
