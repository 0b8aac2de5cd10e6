//! Everything that has to pass, in order: cheap and informative steps first.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::atomic::Ordering,
    time::Instant,
};

use crate::{
    command::{FULL, cargo, one, root, succeeds},
    lanes::Lanes,
    programs::Test,
    tally::{FAILED, SKIP, Tally},
};

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Tally,
    /// Whether the step may run beside the tests.
    beside: bool,
}

const fn step(name: &'static str, about: &'static str, run: fn() -> Tally) -> Step {
    Step { name, about, run, beside: false }
}

const fn beside(name: &'static str, about: &'static str, run: fn() -> Tally) -> Step {
    Step { name, about, run, beside: true }
}

/// Builds the workspace again, with a counter in it. Without it `trials/registry` still bounds what a hostile guest reads and writes.
const BLOCKS: &str = "blocks";
const TESTS: &str = "tests";
const GUESTS: &str = "guests";
/// Cheap steps first. Those that may run beside the tests start together with them.
const STEPS: &[Step] = &[
    step("fmt", "the source is formatted", fmt),
    step("shape", "no file is too long, and no files import each other in a circle", crate::shape::run),
    step("locks", "both lock files are of these manifests", locks),
    step("clippy", "no warnings", clippy),
    step("build", "the tests build", build),
    beside("instructions", "frames cost no more instructions than is kept", crate::instructions::run),
    beside("fuzz", "the fuzz targets' source is sound; with --full, half a minute of them", crate::fuzz::smoke),
    beside(
        BLOCKS,
        "with --full, no step of the hostile guest runs more basic blocks than is allowed",
        crate::blocks::run,
    ),
    beside("doc", "the documentation builds without warnings", doc),
    beside("package", "the crates can be packaged; with --full, each builds from its package alone", package),
    beside("deny", "licences, bans and sources of what we depend on", deny),
    step(TESTS, "the workspace's tests", tests),
    step("examples", "the examples in the documentation", examples),
    step(GUESTS, "unmodified kernels, in user mode and in QEMU", crate::guests::run),
];

/// Names of the steps, for the command line.
pub fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Number of slowest tests named at the end.
const SLOWEST: usize = 20;

/// Runs the steps, even if some fail, and prints the sum as the last line. A `part` is a part of another run, which has the sum.
pub fn run(only: &[String], skip: &[String], part: bool) -> ExitCode {
    let (only, words): (Vec<&str>, Vec<&str>) =
        only.iter().map(String::as_str).partition(|name| names().contains(name));
    let all = only.is_empty() && words.is_empty();
    let waits_for_full = |step: &Step| all && step.name == BLOCKS && !FULL.load(Ordering::Relaxed);
    let is_chosen = |step: &Step| {
        let asked =
            all && !waits_for_full(step) || only.contains(&step.name) || step.name == GUESTS && !words.is_empty();
        asked && !skip.iter().any(|name| name == step.name)
    };
    let (chosen, left): (Vec<&Step>, Vec<&Step>) = STEPS.iter().partition(|step| is_chosen(step));
    // Without tests, no step runs beside them.
    let has_tests = chosen.iter().any(|step| [TESTS, GUESTS].contains(&step.name));
    let (mut aside, mut rest): (Vec<&Step>, Vec<&Step>) = chosen.iter().partition(|step| step.beside && has_tests);
    let mut sum = Tally::default();
    if !part {
        println!("=== {}", amount());
        println!("=== {}", chosen.iter().map(|step| step.name).collect::<Vec<_>>().join(", "));
        for step in left {
            let reason = if waits_for_full(step) { "only with --full" } else { "not asked for" };
            sum += Tally::of_skipped(&format!("{}: {reason}", step.name));
        }
    }
    crate::guests::choose(&words);
    let mut costs = Vec::new();
    for step in std::mem::take(&mut rest) {
        if [TESTS, GUESTS].contains(&step.name) && !aside.is_empty() {
            let names: Vec<&str> = std::mem::take(&mut aside).iter().map(|step| step.name).collect();
            println!("=== beside the next steps, shown at the end: {}", names.join(", "));
            if let Err(error) = crate::beside::start(&names) {
                sum += Tally::of_one(&format!("{}: {error}", names.join(", ")), false);
            }
        }
        println!("=== {}: {}", step.name, step.about);
        let (begin, before) = (Instant::now(), processor_seconds());
        let tally = (step.run)();
        let cost = [begin.elapsed().as_secs_f64(), processor_seconds() - before];
        println!("=== {}: {tally} in {:.1} s\n", step.name, cost[0]);
        costs.push((step.name, cost));
        sum += tally;
    }
    sum += crate::beside::finish();
    report(&sum, &costs);
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the cost of each step, the slowest tests, the skipped ones, the failures, and the sum.
fn report(sum: &Tally, costs: &[(&str, [f64; 2])]) {
    for (name, [seconds, processors]) in costs {
        println!("step {name:12} {seconds:7.1} s, {processors:7.1} s of processors");
    }
    let mut times: Vec<&(f64, String)> = sum.times.iter().collect();
    times.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (seconds, name) in times.into_iter().take(SLOWEST) {
        println!("slow {seconds:7.1} s  {name}");
    }
    for skip in &sum.skips {
        println!("{SKIP}{skip}");
    }
    for failure in &sum.failures {
        println!("{FAILED}{failure}");
    }
    println!("{sum}");
}

/// Processor time of the children that have ended, from /proc (proc_pid_stat(5): `cutime` and `cstime`, fields 16 and 17, in hundredths
/// of a second). 0 without /proc.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field, the program's name in brackets, may have spaces.
    let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The amount of testing, as a sentence.
fn amount() -> &'static str {
    if FULL.load(Ordering::Relaxed) {
        "everything: each adapter with each, every chip boots in every way, an hour of the simulation"
    } else {
        "the usual: each adapter with one other, one chip of each family boots, minutes of the simulation; --full is everything"
    }
}

fn fmt() -> Tally {
    one("fmt", cargo().args(["fmt", "--all", "--check"]))
}

/// This check takes a second; the builds with `--locked` would take minutes to find the same. `fuzz` has a workspace of its own, so a
/// change of our dependencies does not update its lock file.
fn locks() -> Tally {
    let root = root();
    ["Cargo.toml", "fuzz/Cargo.toml"].into_iter().fold(Tally::default(), |mut tally, manifest| {
        tally += one(&format!("locks: {manifest}"), cargo().args(locked(&root, manifest)).stdout(Stdio::null()));
        if tally.failures.iter().any(|failure| failure.ends_with(manifest)) {
            println!("bring it up to date and commit it: cargo metadata --manifest-path {manifest} --format-version 1 >/dev/null");
        }
        tally
    })
}

/// Arguments with which cargo succeeds only if the manifest's lock file needs no change.
fn locked(root: &Path, manifest: &str) -> [std::ffi::OsString; 5] {
    let path = root.join(manifest);
    ["metadata".into(), "--locked".into(), "--format-version=1".into(), "--manifest-path".into(), path.into()]
}

/// Also checks the tests with real guests, which `--all-targets` does not include: a build error shows within a minute.
fn clippy() -> Tally {
    let targets: [&[&str]; 2] = [&["--all-targets"], &["--test", "*"]];
    targets.into_iter().fold(Tally::default(), |mut tally, targets| {
        let mut command = cargo();
        command.args(["clippy", "--workspace", "--quiet"]).args(targets).args(["--", "-D", "warnings"]);
        tally += one(&format!("clippy {}", targets.join(" ")), &mut command);
        tally
    })
}

fn build() -> Tally {
    let built = crate::programs::all();
    if let Err(error) = &built {
        println!("{error:#}");
    }
    let mut tally = Tally::of_one("build", built.is_ok());
    if FULL.load(Ordering::Relaxed) {
        // The tests of the package then take these. They may not take so long for a build of their own.
        let release = crate::deb::release_programs();
        if let Err(error) = &release {
            println!("{error:#}");
        }
        tally += Tally::of_one("build of a release", release.is_ok());
    }
    tally
}

/// Runs as many tests at a time as keep the processors busy: a test waits for three quarters of its time.
fn tests() -> Tally {
    let tests = crate::programs::all()
        .and_then(|all| crate::programs::tests(all.iter().filter(|program| !crate::guests::is_theirs(program))));
    in_lanes(tests)
}

pub fn in_lanes(tests: anyhow::Result<Vec<Test>>) -> Tally {
    match tests {
        Ok(tests) => {
            let count = 3 * std::thread::available_parallelism().map_or(1, usize::from);
            println!("{} tests, {count} at a time", tests.len());
            Lanes { count, shows_output: false }.run(tests)
        }
        Err(error) => {
            println!("{error:#}");
            Tally::of_one("the tests do not build", false)
        }
    }
}

fn examples() -> Tally {
    harness("examples", cargo().args(["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"]))
}

fn doc() -> Tally {
    let mut command = cargo();
    one("doc", command.args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// With `--full` each crate is also built from its package alone, which takes minutes. Only this finds a file that a package lacks.
fn package() -> Tally {
    crate::package::run(FULL.load(Ordering::Relaxed))
}

/// cargo-deny. It is installed into the cache if the machine has none (minutes, once).
fn deny() -> Tally {
    let check = ["--log-level", "error", "check", "licenses", "bans", "sources"];
    let installed = Command::new("cargo-deny").arg("--version").output().is_ok_and(|output| output.status.success());
    if installed {
        return one("deny", Command::new("cargo-deny").args(check));
    }
    let Some(tools) = tools() else {
        println!("neither XDG_CACHE_HOME nor HOME says where cargo-deny could be installed");
        return Tally::of_one("deny", false);
    };
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        println!("installing cargo-deny into {} (minutes, once)", tools.display());
        let mut install = cargo();
        install.args(["install", "--quiet", "--locked", "cargo-deny", "--root"]).arg(&tools);
        // Not into the workspace's own target folder: cargo removes this build afterwards.
        install.env_remove("CARGO_TARGET_DIR");
        if !succeeds(&mut install) {
            return Tally::of_one("deny: cargo-deny could not be installed", false);
        }
    }
    one("deny", Command::new(program).args(check))
}

fn tools() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("nicety/tools"))
}

/// A step that runs Rust's test harness one or more times. A failure without a failed test, such as of the build, counts as one.
fn harness(name: &str, command: &mut Command) -> Tally {
    let mut tally = Tally::default();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("{} cannot be run: {error}", command.get_program().display());
            return Tally::of_one(name, false);
        }
    };
    for line in
        child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).split(b'\n')).map_while(Result::ok)
    {
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        tally.take(&line);
    }
    let succeeded = child.wait().is_ok_and(|status| status.success());
    if !succeeded && tally.failed == 0 {
        tally += Tally::of_one(&format!("{name}: ended before its tests did"), false);
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_lock_file_that_is_not_of_its_manifest_is_found_and_left_as_it_is() {
        let root = env::temp_dir().join(format!("nicety-xtask-{}", std::process::id()));
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let manifest = "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
        write("a/Cargo.toml", manifest);
        write("a/src/lib.rs", "");
        write("b/Cargo.toml", &manifest.replace("\"a\"", "\"b\""));
        write("b/src/lib.rs", "");
        let holds = || {
            let mut command = cargo();
            succeeds(command.args(locked(&root, "a/Cargo.toml")).stdout(Stdio::null()).stderr(Stdio::null()))
        };
        assert!(!holds(), "there is no lock file yet");
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.1.0\"\n";
        write("a/Cargo.lock", lock);
        assert!(holds());
        write("a/Cargo.toml", &format!("{manifest}[dependencies]\nb = {{ path = \"../b\" }}\n"));
        assert!(!holds(), "what it depends on has changed");
        assert_eq!(fs::read_to_string(root.join("a/Cargo.lock")).unwrap(), lock);
        fs::remove_dir_all(root).unwrap();
    }
}
