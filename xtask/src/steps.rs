//! What has to pass, in order: the cheap and the telling first.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::atomic::Ordering,
    time::Instant,
};

use crate::{cargo, tally::Tally};

struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Tally,
}

const GUESTS: &str = "guests";
const STEPS: &[Step] = &[
    Step { name: "fmt", what: "the source is formatted", run: fmt },
    Step { name: "locks", what: "both lock files are of these manifests", run: locks },
    Step { name: "clippy", what: "no warnings", run: clippy },
    Step { name: "tests", what: "the workspace's tests", run: tests },
    Step { name: "instructions", what: "frames cost no more instructions than is kept", run: crate::instructions::run },
    Step {
        name: "blocks",
        what: "no step of the hostile guest runs more basic blocks than is allowed",
        run: crate::blocks::run,
    },
    Step { name: "doc", what: "the documentation builds without warnings", run: doc },
    Step { name: "package", what: "the crates can be packaged", run: package },
    Step { name: "deny", what: "licences, bans and sources of what we depend on", run: deny },
    Step { name: "fuzz", what: "a minute of the fuzz targets and of the hostile guest", run: crate::fuzz::smoke },
    Step { name: GUESTS, what: "unmodified kernels, in user mode and in QEMU", run: crate::guests::run },
];

/// The names of the steps, for the command line.
pub fn names() -> Vec<&'static str> {
    STEPS.iter().map(|step| step.name).collect()
}

/// Runs the steps, however many fail, and prints the sum as the last line.
pub fn run(only: &[String], skip: &[String]) -> ExitCode {
    let (only, words): (Vec<&str>, Vec<&str>) =
        only.iter().map(String::as_str).partition(|name| names().contains(name));
    let goes = |step: &Step| {
        let asked = only.is_empty() && words.is_empty()
            || only.contains(&step.name)
            || step.name == GUESTS && !words.is_empty();
        asked && !skip.iter().any(|name| name == step.name)
    };
    let mut sum = Tally::default();
    println!("=== {}", extent());
    let plan: Vec<&str> = STEPS.iter().filter(|step| goes(step)).map(|step| step.name).collect();
    println!("=== {}", plan.join(", "));
    crate::guests::choose(&words);
    for step in STEPS {
        if !goes(step) {
            sum.skipped += 1;
            sum.skips.push(format!("{}: not asked for", step.name));
            println!("=== {}: skipped", step.name);
            continue;
        }
        println!("=== {}: {}", step.name, step.what);
        let begin = Instant::now();
        let tally = (step.run)();
        println!("=== {}: {tally} in {:.1} s\n", step.name, begin.elapsed().as_secs_f64());
        sum += tally;
    }
    for skip in &sum.skips {
        println!("skipped: {skip}");
    }
    for failure in &sum.failures {
        println!("failed: {failure}");
    }
    println!("{sum}");
    if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How much the tests try, in a sentence.
fn extent() -> &'static str {
    if crate::FULL.load(Ordering::Relaxed) {
        "everything: each adapter with each, every chip boots in every way, an hour of the simulation"
    } else {
        "the usual: each adapter with one other, one chip of each family boots, minutes of the simulation; --full is everything"
    }
}

fn fmt() -> Tally {
    one("fmt", cargo().args(["fmt", "--all", "--check"]))
}

/// Found out in a second here, in minutes by the builds with `--locked`; `fuzz` has a workspace of its own, which a change of
/// our dependencies does not touch.
fn locks() -> Tally {
    let root = crate::root();
    ["Cargo.toml", "fuzz/Cargo.toml"].into_iter().fold(Tally::default(), |mut tally, manifest| {
        tally += one(&format!("locks: {manifest}"), cargo().args(locked(&root, manifest)).stdout(Stdio::null()));
        if tally.failures.iter().any(|failure| failure.ends_with(manifest)) {
            println!("bring it up to date and commit it: cargo metadata --manifest-path {manifest} --format-version 1 >/dev/null");
        }
        tally
    })
}

/// The words for cargo that end well only if the manifest's lock file needs no change.
fn locked(root: &Path, manifest: &str) -> [std::ffi::OsString; 5] {
    let path = root.join(manifest);
    ["metadata".into(), "--locked".into(), "--format-version=1".into(), "--manifest-path".into(), path.into()]
}

/// The tests with real guests, which are not among all targets, are checked too: what does not build shows within a minute.
fn clippy() -> Tally {
    let targets: [&[&str]; 2] = [&["--all-targets"], &["--test", "*"]];
    targets.into_iter().fold(Tally::default(), |mut tally, targets| {
        let mut command = cargo();
        command.args(["clippy", "--workspace", "--quiet"]).args(targets).args(["--", "-D", "warnings"]);
        tally += one(&format!("clippy {}", targets.join(" ")), &mut command);
        tally
    })
}

fn tests() -> Tally {
    harness("tests", cargo().args(["test", "--workspace", "--no-fail-fast"]))
}

fn doc() -> Tally {
    let mut command = cargo();
    one("doc", command.args(["doc", "--workspace", "--no-deps", "--quiet"]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// That each package also builds alone is looked at by `cargo xtask package`.
fn package() -> Tally {
    crate::package::run(false)
}

/// cargo-deny, installed into the cache if the machine has none (minutes, once).
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
        // Beside the workspace's own build: cargo removes it afterwards.
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

/// A step that passes or fails as a whole.
pub fn one(name: &str, command: &mut Command) -> Tally {
    Tally::of_one(name, succeeds(command))
}

/// Whether a program ran and ended well; what keeps it from running is said.
pub fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("{} cannot be run: {error}", command.get_program().display());
            false
        }
    }
}

/// A step that runs Rust's test harness, some number of times. A failure without a failed test, such as of the build, is one more.
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
