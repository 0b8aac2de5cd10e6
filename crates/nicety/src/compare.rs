//! `nicety compare`: wires the lab to the command line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nicety_adapters::REGISTRY;
use nicety_guests::end_children;
use nicety_lab::bench::Bench;
use nicety_lab::embedded::{Embedded, Program, guest_main};
use nicety_lab::method::{Doorbells, Options, Plan, PlanError};
use nicety_lab::progress::Progress;
use nicety_lab::real::RealBench;
use nicety_lab::results::Results;
use nicety_lab::run::RunError;
use nicety_lab::study::Lock;
use nicety_lab::{report, run, table};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cli::{self, Compare, Guests, HIDDEN};
use crate::exit::{Exit, Failure};
use crate::output;

/// Interval at which preparing guests checks for a request to stop.
const STOPS_EVERY: Duration = Duration::from_millis(50);

/// The reason why guests of this kind are not available: the missing part and the remedy.
struct Missing(String);

/// The words that make this program a daemon or an embedded guest.
pub fn program(path: PathBuf) -> Program {
    let words = |word: &str| vec![OsString::from(word)];
    Program { path, hidden: words(HIDDEN), serve: words("serve") }
}

/// The bench for guests of this kind. Daemons and embedded guests are processes of this same program.
fn bench(guests: Guests) -> Result<Box<dyn Bench>, Missing> {
    let path = std::env::current_exe().map_err(|error| Missing(format!("this program cannot find itself: {error}")))?;
    Ok(match guests {
        Guests::Embedded => Box::new(Embedded::new(program(path))),
        Guests::Qemu => {
            let bench = RealBench::qemu(&path, &mut |line| output::tell(line));
            Box::new(bench.map_err(|error| Missing(format!("--guests qemu: {error}")))?)
        }
        Guests::Uml => {
            let bench = RealBench::user_mode(&path, &mut |line| output::tell(line));
            Box::new(bench.map_err(|error| Missing(format!("--guests uml: {error}")))?)
        }
    })
}

/// The hidden command of an embedded guest's process.
pub fn guest(args: &[OsString]) -> ExitCode {
    // A code out of range counts as a failure.
    ExitCode::from(u8::try_from(guest_main(args, &mut |line| output::tell(line))).unwrap_or(Exit::Failed as u8))
}

/// Runs it.
pub fn run(args: &Compare) -> Result<(), Failure> {
    if let Some(file) = &args.from {
        return show(&stored(file)?, &args.report);
    }
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&cancel)).map_err(Failure::with(Exit::Failed))?;
    }
    let adapters: Vec<&str> = REGISTRY.iter().map(|entry| entry.about.name).collect();
    options(args).check(&adapters).map_err(unplanned)?;
    report::check(&args.report).map_err(Failure::with(Exit::Failed))?;
    // A lab that runs would be disturbed, and would disturb.
    let _lock = Lock::take("nicety compare").map_err(Failure::with(Exit::Failed))?;
    let mut bench = while_stoppable(&cancel, || bench(args.guests)).map_err(|Missing(what)| {
        // After Ctrl-C an incomplete guest is an interruption, not a missing program.
        let stopped = cancel.load(Ordering::Relaxed);
        if stopped { self::stopped(RunError::Cancelled) } else { Failure::new(Exit::Missing, what) }
    })?;
    let plan = Plan::new(&options(args), bench.as_ref()).map_err(unplanned)?;
    for warning in plan.warnings() {
        output::tell(format_args!("note: {warning}"));
    }
    output::tell(format_args!("{}", plan.announcement()));
    let mut progress = Progress::stderr();
    let results = run::run(&plan, bench.as_mut(), &again(args, &plan), &mut progress, &cancel);
    progress.finish();
    // Guests end before any further message, after success and failure.
    drop(bench);
    show(&results.map_err(stopped)?, &args.report)
}

/// Results of an earlier comparison.
fn stored(file: &Path) -> Result<Results, Failure> {
    let failed = |why: String| Failure::new(Exit::Failed, format!("--from {}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    Results::from_json(&text).map_err(|error| failed(error.to_string()))
}

/// Writes the report and prints the table.
fn show(results: &Results, dir: &Path) -> Result<(), Failure> {
    // The report first: the table's reader may have gone. Then the table, even if the report failed: a full disk must not lose
    // minutes of measuring.
    let written = report::write(results, dir).map_err(Failure::with(Exit::Failed));
    let printed = output::print(&table::render(results));
    written.and(printed)?;
    output::print(&format!("\nReport: {}\n", absolute(&dir.join("index.html"))))
}

/// Prepares guests. A terminal's Ctrl-C reaches the programs that do so; a signal to this process alone does not, so they are ended
/// here.
pub fn while_stoppable<T>(cancel: &AtomicBool, prepare: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if cancel.load(Ordering::Relaxed) {
                    end_children();
                }
                thread::sleep(STOPS_EVERY);
            }
        });
        let prepared = prepare();
        done.store(true, Ordering::Relaxed);
        prepared
    })
}

fn options(args: &Compare) -> Options {
    Options {
        adapters: args.adapters.clone(),
        seconds: args.seconds,
        repeat: args.repeat,
        quick: args.quick,
        doorbells: args.doorbells.map(|doorbells| match doorbells {
            cli::Doorbells::Trapped => Doorbells::Trapped,
            cli::Doorbells::Mapped => Doorbells::Mapped,
        }),
        report: args.report.clone(),
        seed: args.seed,
    }
}

fn unplanned(error: PlanError) -> Failure {
    let exit = match error {
        PlanError::UnknownAdapter { .. } | PlanError::Seconds | PlanError::Repeat => Exit::Usage,
        PlanError::LeftOut(_) | PlanError::Nothing => Exit::Missing,
    };
    Failure::new(exit, error)
}

fn stopped(error: RunError) -> Failure {
    let exit = match error {
        RunError::Cancelled => Exit::Interrupted,
        RunError::Fatal(_) | RunError::Nothing(_) => Exit::Failed,
    };
    Failure::new(exit, error)
}

/// The command that repeats the measurement, with explicit duration and rounds.
fn again(args: &Compare, plan: &Plan) -> String {
    let (guests, adapters) = (plan.guests, args.adapters.join(","));
    let (seconds, repeat, seed) = (plan.duration.as_secs_f64(), plan.repeat, plan.seed);
    let doorbells = plan.doorbells.map(|doorbells| format!(" --doorbells {doorbells}")).unwrap_or_default();
    format!(
        "nicety compare --guests {guests} --adapters {adapters} --seconds {seconds} --repeat {repeat}{doorbells} --seed {seed}"
    )
}

pub fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
