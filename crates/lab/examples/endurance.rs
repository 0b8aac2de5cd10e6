//! Boots guests one after another and ends each in the middle of traffic, in every way that there is; stops at the first that
//! hangs, or that leaves something behind. `cargo run --release -p nicety-lab --example endurance -- --boots 100 --kills 20`
//!
//! `--boots N`: guests that power off with the interface up; `--kills N`: half of them guests, half of them daemons;
//! `--adapters e1000,vmxnet3` (else all), `--cpus N`, `--kernel FILE`, `--nicety PROGRAM` (else it is built first). `--hold`: when
//! something is wrong, waits with the guest as it is, for a debugger, until its own input ends.

mod daemon;
mod help;

use std::{
    env, io,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use nicety_adapters::{Entry, REGISTRY};
use nicety_guests::{
    Error, Root,
    uml::{End, Endurance, Life, UmlConfig, UmlKernel},
};

struct Plan {
    boots: usize,
    kills: usize,
    adapters: Vec<&'static Entry>,
    cpus: u32,
    kernel: Option<PathBuf>,
    nicety: PathBuf,
    hold: bool,
}

fn main() -> ExitCode {
    help::on_request(include_str!("endurance.rs"));
    let plan = match plan(env::args().skip(1)) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match run(&plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn plan(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
    let adapters = REGISTRY.iter().collect();
    let mut plan = Plan { boots: 100, kills: 20, adapters, cpus: 1, kernel: None, nicety: PathBuf::new(), hold: false };
    let mut named = None;
    while let Some(word) = words.next() {
        if word == "--hold" {
            plan.hold = true;
            continue;
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{word}: `{value}` is no number"));
        match word.as_str() {
            "--boots" => plan.boots = number()? as usize,
            "--kills" => plan.kills = number()? as usize,
            "--cpus" => plan.cpus = number()?,
            "--kernel" => plan.kernel = Some(value.into()),
            "--nicety" => named = Some(value.into()),
            "--adapters" => {
                let find = |name| nicety_adapters::find(name).ok_or_else(|| format!("there is no adapter `{name}`"));
                plan.adapters = value.split(',').map(find).collect::<Result<_, _>>()?;
            }
            _ => {
                return Err(format!(
                    "`{word}` is not known: --boots, --kills, --adapters, --cpus, --kernel, --nicety, --hold"
                ));
            }
        }
    }
    plan.nicety = daemon::program(named)?;
    Ok(plan)
}

fn run(plan: &Plan) -> Result<(), Error> {
    let begin = Instant::now();
    let mut progress = |line: &str| eprintln!("{:6.1} s  {line}", begin.elapsed().as_secs_f64());
    let root = Root::lay(&mut progress)?;
    let kernel = match &plan.kernel {
        Some(file) => UmlKernel::at(file)?,
        None if plan.cpus > 1 => UmlKernel::lay_smp(&mut progress)?,
        None => UmlKernel::lay(&mut progress)?,
    };
    let mut machine = UmlConfig::new(&kernel);
    machine.cpus = plan.cpus;
    println!("kernel {}, {} processors in each guest", kernel.release(), plan.cpus);
    for entry in &plan.adapters {
        let mut endurance = Endurance::start(root.clone(), &plan.nicety, entry, machine.clone())?;
        let done = lives(plan, entry.about.name, &mut endurance, &mut progress);
        if done.is_err() && plan.hold {
            hold(&endurance);
        }
        done?;
    }
    Ok(())
}

fn lives(plan: &Plan, name: &str, endurance: &mut Endurance, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let kinds = [
        (End::PowerOff, plan.boots, "booted and powered off"),
        (End::GuestKilled, plan.kills.div_ceil(2), "guests killed"),
        (End::DaemonKilled, plan.kills / 2, "daemons killed"),
    ];
    for (end, count, what) in kinds {
        let mut all: Vec<Life> = Vec::new();
        for number in 1..=count {
            all.push(endurance.live(end)?);
            if number % 10 == 0 {
                progress(&format!("{name}: {number} of {count} {what}"));
            }
        }
        if let (Some(boot), Some(last)) = (spread(&all, |life| life.boot), spread(&all, |life| life.end)) {
            println!("{name}: {count} {what}: answered after {boot}, ended after {last}; nothing is left");
        }
    }
    Ok(())
}

/// The median and the maximum.
fn spread(lives: &[Life], of: impl Fn(&Life) -> Duration) -> Option<String> {
    let mut times: Vec<f64> = lives.iter().map(|life| of(life).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    Some(format!("{:.2} s (at most {:.2})", times.get(times.len() / 2)?, times.last()?))
}

fn hold(endurance: &Endurance) {
    let guest = endurance.guest().map_or("gone".to_owned(), |guest| guest.process().to_string());
    eprintln!("the guest is process {guest}, the daemon {}; both stay until this input ends", endurance.daemon());
    // Neither the input nor the reason for its end matters.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}
