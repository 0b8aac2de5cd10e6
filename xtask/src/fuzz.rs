//! `cargo xtask fuzz`: builds the targets of `fuzz/` with coverage and address sanitizers, and runs them two at a time, with
//! the hostile guest among them. `cargo xtask test --full` does so for half a minute; without `--full` it only checks their
//! source, because their build takes minutes and half a minute finds little.
//!
//! cargo-fuzz is not used: it would be one more program to build, and it adds only the flags below.

use std::{
    collections::VecDeque,
    fmt, fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    command::{FULL, cargo, lock, one, root},
    tally::Tally,
};

/// Flags of SanitizerCoverage and AddressSanitizer (rustc's unstable book; libFuzzer's documentation). Unstable flags
/// on a stable compiler need RUSTC_BOOTSTRAP, which is set only here.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address";
/// The hostile guest of `crates/trials`, which needs no instrumentation.
const HOSTILE: &str = "hostile";
const IN_PARALLEL: usize = 2;
/// Total time of the smoke run in `cargo xtask test --full`.
const SMOKE: Duration = Duration::from_secs(30);
/// Limits of one input: time, then memory. An input that exceeds one is a find.
const INPUT_SECONDS: u64 = 20;
const MEMORY_MB: u64 = 2048;
const INPUT_BYTES: u64 = 2048;
/// Number of inputs in a new corpus. Their first byte, which most targets read first, is their number.
const FIRST_INPUTS: u8 = 16;
const FIRST_INPUT_BYTES: usize = 1024;
/// Time that a target may take beyond the requested time: starting, reading the corpus, checking for leaks.
const GRACE: Duration = Duration::from_secs(120);

/// Runs these targets (all, if none is named) for `minutes` each.
pub fn run(minutes: f64, only: &[String]) -> Result<Tally> {
    ensure!(minutes.is_finite() && minutes > 0.0, "--minutes takes a number above 0");
    let targets = chosen(only)?;
    Ok(all(&targets, Duration::from_secs_f64(minutes * 60.0)))
}

/// Checks the source of all targets; with `--full`, runs them for half a minute together.
pub fn smoke() -> Tally {
    let manifest = folder().join("Cargo.toml");
    let mut tally = one("fuzz: formatted", cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest));
    if !FULL.load(Ordering::Relaxed) {
        let mut check = cargo();
        check.args(["check", "--quiet", "--locked", "--manifest-path"]).arg(&manifest);
        check.arg("--target-dir").arg(programs().join("fuzz-check")).env("RUSTFLAGS", "--cfg fuzzing -D warnings");
        tally += one("fuzz: the targets' source", check.env_remove("CARGO_ENCODED_RUSTFLAGS"));
        return tally;
    }
    tally += match chosen(&[]) {
        Ok(targets) => all(&targets, SMOKE * IN_PARALLEL as u32 / targets.len().max(1) as u32),
        Err(error) => {
            println!("fuzz: {error:#}");
            Tally::of_one("fuzz", false)
        }
    };
    tally
}

/// The chosen ones of all targets: each file of `fuzz/targets`, and the hostile guest.
fn chosen(only: &[String]) -> Result<Vec<String>> {
    let mut targets = vec![HOSTILE.to_owned()];
    for file in fs::read_dir(folder().join("targets")).context("reading fuzz/targets")? {
        let path = file?.path();
        targets.extend(
            path.file_stem()
                .filter(|_| path.extension() == Some("rs".as_ref()))
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    targets.sort();
    for name in only {
        ensure!(targets.contains(name), "there is no target {name}; there are {}", targets.join(", "));
    }
    targets.retain(|name| only.is_empty() || only.contains(name));
    Ok(targets)
}

fn folder() -> PathBuf {
    root().join("fuzz")
}

/// Cargo's target folder of the workspace.
pub fn programs() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn all(targets: &[String], time: Duration) -> Tally {
    let programs = match build(targets) {
        Ok(programs) => programs,
        Err(error) => {
            println!("fuzz: {error:#}");
            return Tally::of_one("fuzz: the targets do not build", false);
        }
    };
    let count = programs.len();
    println!("fuzz: {count} targets, {:.0} s each, {IN_PARALLEL} at a time", time.as_secs_f64());
    let (waiting, sum) = (Mutex::new(VecDeque::from(programs)), Mutex::new(Tally::default()));
    let worker = || {
        let next = || lock(&waiting).pop_front();
        while let Some((name, program)) = next() {
            let outcome = run_one(&name, &program, time);
            let words = match &outcome {
                Ok(ran) => format!("fuzz {name}: {ran}"),
                Err(error) => format!("fuzz {name}: FAILED: {error:#}"),
            };
            println!("{words}");
            *lock(&sum) += Tally::of_one(&words, outcome.is_ok());
        }
    };
    thread::scope(|scope| {
        (0..IN_PARALLEL).for_each(|_| drop(scope.spawn(worker)));
    });
    sum.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Builds the requested targets. Returns each with its program.
fn build(targets: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let own = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let instrumented = own.map_or_else(|| folder().join("target"), |shared| shared.join("fuzz"));
    let triple = host()?;
    if targets.iter().any(|name| name != HOSTILE) {
        let mut command = cargo();
        command.args(["build", "--quiet", "--release", "--locked", "--target", &triple, "--manifest-path"]);
        command.arg(folder().join("Cargo.toml")).arg("--target-dir").arg(&instrumented);
        targets.iter().filter(|name| *name != HOSTILE).for_each(|name| {
            command.args(["--bin", name]);
        });
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", FLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS");
        println!("fuzz: building (minutes the first time; libFuzzer itself needs a C++ compiler)");
        ensure!(command.status()?.success(), "cargo build of fuzz/ failed");
    }
    let plain = programs();
    if targets.iter().any(|name| name == HOSTILE) {
        let mut command = cargo();
        command.args(["build", "--quiet", "--release", "--package", "nicety-trials", "--example", HOSTILE]);
        ensure!(command.status()?.success(), "cargo build of the hostile guest failed");
    }
    let program = |name: &String| match name.as_str() {
        HOSTILE => plain.join("release/examples").join(HOSTILE),
        name => instrumented.join(&triple).join("release").join(name),
    };
    Ok(targets.iter().map(|name| (name.clone(), program(name))).collect())
}

/// The machine's target triple. With an explicit triple, cargo applies the flags to no build script.
pub fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output().context("asking rustc for its host")?.stdout;
    let text = String::from_utf8_lossy(&output);
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc -vV names no host")?.to_owned())
}

/// Runs one target. The error names its reproducer.
fn run_one(name: &str, program: &Path, time: Duration) -> Result<Ran> {
    let (corpus, finds) = (folder().join("corpus").join(name), folder().join("artifacts").join(name));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&finds)?;
    if name != HOSTILE {
        begin(&corpus)?;
    }
    let log = finds.join("log");
    let mut command = Command::new(program);
    if name == HOSTILE {
        command.arg("--minutes").arg(format!("{}", time.as_secs_f64() / 60.0));
    } else {
        command.arg(&corpus);
        let seeds = folder().join("seeds").join(name);
        command.args(seeds.exists().then_some(seeds));
        command.arg(format!("-max_total_time={}", time.as_secs().max(1)));
        command.arg(format!("-artifact_prefix={}/", finds.canonicalize()?.display()));
        command.args([format!("-timeout={INPUT_SECONDS}"), format!("-rss_limit_mb={MEMORY_MB}")]);
        // A long input means many choices, so libFuzzer must not grow lengths slowly from one byte.
        command.args(["-len_control=0", "-print_final_stats=1"]).arg(format!("-max_len={INPUT_BYTES}"));
    }
    let output = fs::File::create(&log)?;
    let mut child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
    let status = wait(&mut child, time + GRACE)?;
    let text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
    if status.is_some_and(|status| status.success()) {
        return Ok(Ran::of(&text));
    }
    let why =
        text.lines().find(|line| line.contains("panicked at") || line.contains("ERROR:") || line.contains("seed"));
    let reproducer = text.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path);
    anyhow::bail!(
        "{}; reproducer {}, log {}",
        if status.is_none() { "it does not end" } else { why.unwrap_or("it failed") },
        reproducer.unwrap_or("none"),
        log.display()
    )
}

/// Fills an empty corpus with a few long inputs, the same on every machine: xorshift64 (Marsaglia 2003).
fn begin(corpus: &Path) -> Result<()> {
    if fs::read_dir(corpus)?.next().is_some() {
        return Ok(());
    }
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..FIRST_INPUTS {
        let mut bytes = vec![number];
        while bytes.len() < FIRST_INPUT_BYTES {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend(state.to_le_bytes());
        }
        fs::write(corpus.join(format!("beginning-{number}")), bytes)?;
    }
    Ok(())
}

/// Waits at most `most`. `None` if the child had to be killed.
fn wait(child: &mut Child, most: Duration) -> Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if begin.elapsed() > most {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Result of a run without finds.
#[derive(Debug, PartialEq, Eq)]
enum Ran {
    /// Statistics from libFuzzer's last lines.
    Fuzzed { runs: u64, per_second: u64, edges: u64, corpus: String },
    /// Output of the hostile guest.
    Said(String),
}

impl Ran {
    fn of(log: &str) -> Ran {
        let last = |before: &str| {
            let line = log.lines().rfind(|line| line.contains(before))?;
            line.split_once(before)?.1.split_whitespace().next().map(str::to_owned)
        };
        let number = |before: &str| last(before).and_then(|text| text.parse::<u64>().ok());
        match number("stat::number_of_executed_units:") {
            Some(runs) => Ran::Fuzzed {
                runs,
                per_second: number("stat::average_exec_per_sec:").unwrap_or(0),
                edges: number(" cov: ").unwrap_or(0),
                corpus: last(" corp: ").unwrap_or_default(),
            },
            None => {
                let lines: Vec<&str> = log.lines().filter_map(|line| line.strip_prefix("hostile")).collect();
                Ran::Said(lines.iter().map(|line| line.trim_start_matches(':').trim()).collect::<Vec<_>>().join("\n  "))
            }
        }
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ran::Fuzzed { runs, per_second, edges, corpus } => {
                write!(f, "{runs} runs, {per_second}/s, {edges} edges, corpus {corpus}, no finds")
            }
            Ran::Said(words) => f.write_str(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libfuzzers_last_lines_say_what_a_run_did() {
        let log = "#2\tINITED cov: 60 ft: 61 corp: 1/1b exec/s: 0 rss: 41Mb\n\
                   #4096\tpulse  cov: 71 ft: 72 corp: 2/9b lim: 43 exec/s: 2048 rss: 55Mb\n\
                   #8192\tDONE   cov: 75 ft: 80 corp: 3/12b lim: 80 exec/s: 2730 rss: 60Mb\n\
                   Done 8192 runs in 3 second(s)\n\
                   stat::number_of_executed_units: 8192\nstat::average_exec_per_sec:     2730\n";
        let ran = Ran::of(log);
        assert_eq!(ran, Ran::Fuzzed { runs: 8192, per_second: 2730, edges: 75, corpus: "3/12b".into() });
        assert_eq!(ran.to_string(), "8192 runs, 2730/s, 75 edges, corpus 3/12b, no finds");
    }

    #[test]
    fn a_target_that_is_not_there_is_told_with_those_that_are() {
        let error = chosen(&["nothing".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no target nothing") && error.contains("vfio_session"), "{error}");
        assert!(chosen(&[]).unwrap().contains(&HOSTILE.to_owned()));
    }
}
