//! The tests with real guests: each one a process of its own, as many at a time as there are processors.
//!
//! Side by side, because most of a test is waiting for a guest; in processes of their own, because some of them prove that nothing
//! is left in theirs. Those whose driver gives the chip some milliseconds run [`ALONE`], at the end. What a test measured is shown with its result, and is worth less for its neighbour.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Output, Stdio},
    sync::{Mutex, OnceLock},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};

use crate::{cargo, lock, tally::Tally, told_how_much};

/// The programs with such tests. The one whose tests take longest is the first, so that no long one is left for the end.
const PROGRAMS: [&str; 5] = ["real_adapters", "real_guests", "real_pair", "try", "uml_guests"];
/// A test has two guests of 256 MiB, and the host has other uses for its memory.
const AT_MOST: usize = 4;

/// Tests that nothing runs beside. An NE2000's driver gives a frame 200 ms (lib8390.c, TX_TIMEOUT), in which some fifty accesses are messages
/// between QEMU and the daemon: beside guests that keep every processor busy each may take ten milliseconds.
const ALONE: [&str; 1] = ["drivers::both_kernels_ping_and_send_a_little_both_ways_over_an_ne2k_pci"];

/// Words of which each test that runs has one in its name; none: all run.
static WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Has [`run`] run only tests with one of these words in their names.
pub fn choose(words: &[&str]) {
    _ = WORDS.set(words.iter().map(|&word| word.to_owned()).collect());
}

/// Those of the names that are chosen.
///
/// # Errors
/// A word is in none of them.
fn chosen(tests: VecDeque<Test>, words: &[String]) -> Result<VecDeque<Test>> {
    let has = |(_, name): &Test, word: &String| name.contains(word.as_str());
    for word in words {
        ensure!(tests.iter().any(|test| has(test, word)), "`{word}` is neither a step nor in the name of a test");
    }
    Ok(tests.into_iter().filter(|test| words.is_empty() || words.iter().any(|word| has(test, word))).collect())
}

/// The tests, of which those that run alone must be some.
fn known_alone(tests: VecDeque<Test>) -> Result<VecDeque<Test>> {
    for alone in ALONE {
        ensure!(tests.iter().any(|(_, name)| name == alone), "`{alone}`, which is to run alone, is no test");
    }
    Ok(tests)
}

/// Builds and runs them.
pub fn run() -> Tally {
    let words = WORDS.get().map_or(&[][..], Vec::as_slice);
    match build().and_then(|programs| tests(&programs)).and_then(known_alone).and_then(|tests| chosen(tests, words)) {
        Ok(tests) => all(tests),
        Err(error) => {
            println!("guests: {error:#}");
            Tally::of_one("guests: the tests do not build", false)
        }
    }
}

/// A program of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Program {
    name: String,
    path: PathBuf,
    /// Where cargo runs a package's tests.
    folder: PathBuf,
}

/// With the packages, and so the features, of the step `tests`, so that nothing is built twice.
fn build() -> Result<Vec<Program>> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    PROGRAMS.iter().for_each(|name| {
        command.args(["--test", name]);
    });
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut built = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        built.extend(program(&line?));
    }
    ensure!(child.wait()?.success(), "cargo test --no-run failed");
    let find = |name: &&str| built.iter().find(|program: &&Program| program.name == *name).cloned();
    PROGRAMS.iter().map(|name| find(name).with_context(|| format!("cargo has not built {name}"))).collect()
}

/// The test program that a line of cargo's tells of (the Cargo book, External tools, JSON messages).
fn program(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_test = target["kind"].as_array()?.iter().any(|kind| kind == "test");
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    is_test.then_some(Program {
        name: target["name"].as_str()?.to_owned(),
        path: message["executable"].as_str()?.into(),
        folder: manifest.parent()?.to_owned(),
    })
}

/// A test and its program.
type Test = (Program, String);

fn tests(programs: &[Program]) -> Result<VecDeque<Test>> {
    let mut tests = VecDeque::new();
    for program in programs {
        let listed = Command::new(&program.path).args(["--list", "--format", "terse"]).output()?;
        ensure!(listed.status.success(), "{} lists no tests", program.name);
        let names = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = names.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| (program.clone(), name.to_owned())));
    }
    Ok(tests)
}

fn all(tests: VecDeque<Test>) -> Tally {
    let lanes = thread::available_parallelism().map_or(1, usize::from).min(AT_MOST);
    println!("guests: {} tests, {lanes} at a time", tests.len());
    tests.iter().for_each(|(program, name)| println!("    {} {name}", program.name));
    let (alone, rest) = tests.into_iter().partition(|(_, name)| ALONE.contains(&name.as_str()));
    let mut sum = in_lanes(rest, lanes);
    sum += in_lanes(alone, 1);
    sum
}

fn in_lanes(tests: VecDeque<Test>, lanes: usize) -> Tally {
    let (waiting, sum) = (Mutex::new(tests), Mutex::new(Tally::default()));
    let lane = || {
        let next = || lock(&waiting).pop_front();
        while let Some((program, name)) = next() {
            let begin = Instant::now();
            let mut command = told_how_much(Command::new(&program.path));
            command.args(["--exact", &name, "--test-threads", "1", "--show-output"]).current_dir(&program.folder);
            let output = command.stdin(Stdio::null()).output();
            let title = format!("{} {name}", program.name);
            let verdict = output.as_ref().is_ok_and(passed);
            let word = if verdict { "ok" } else { "FAILED" };
            // One call, so that two lanes' lines do not mix.
            println!(
                "test {title} ... {word} in {:.1} s{}",
                begin.elapsed().as_secs_f64(),
                match &output {
                    Ok(output) => told(output, &name, verdict),
                    Err(error) => format!("\n{error}"),
                }
            );
            // Named by the harness, which says why.
            let reason = output.as_ref().ok().filter(|_| !verdict).and_then(|output| taken(output).failures.pop());
            *lock(&sum) += Tally::of_one(&reason.map_or(title, |reason| format!("{} {reason}", program.name)), verdict);
        }
    };
    thread::scope(|scope| {
        (0..lanes).for_each(|_| drop(scope.spawn(lane)));
    });
    sum.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A program that knows no test of this name ends well too.
fn passed(output: &Output) -> bool {
    let tally = taken(output);
    output.status.success() && (tally.passed, tally.failed, tally.skipped) == (1, 0, 0)
}

fn taken(output: &Output) -> Tally {
    Tally::of_text(&String::from_utf8_lossy(&output.stdout))
}

/// What a test said, indented: of one that failed everything, of one that passed what stands under its name.
fn told(output: &Output, name: &str, passed: bool) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = if passed { shown(&said, name).to_owned() } else { said + &errors };
    text.trim_end().lines().map(|line| format!("\n    {line}")).collect()
}

/// The part of the harness's output that is a test's own.
fn shown<'a>(said: &'a str, name: &str) -> &'a str {
    let own = said.split_once(&format!("---- {name} stdout ----\n")).map_or("", |(_, rest)| rest);
    own.rsplit_once("\n\nsuccesses:\n").map_or(own, |(own, _)| own)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn output(stdout: &str, code: i32) -> Output {
        let status = std::process::ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.into(), stderr: b"why\n".to_vec() }
    }

    #[test]
    fn a_program_of_tests_is_known_by_cargos_message() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/guests/Cargo.toml","target":{"kind":["test"],
            "name":"uml_guests"},"executable":"/w/target/debug/deps/uml_guests-1"}"#;
        let expected = Program {
            name: "uml_guests".into(),
            path: "/w/target/debug/deps/uml_guests-1".into(),
            folder: "/w/crates/guests".into(),
        };
        assert_eq!(program(line), Some(expected));
        assert_eq!(program(&line.replace("[\"test\"]", "[\"bin\"]")), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("running 3 tests"), None);
    }

    #[test]
    fn what_a_test_measured_is_shown_and_all_that_one_said_that_failed() {
        let said = "\nrunning 1 test\ntest a::b ... ok\n\nsuccesses:\n\n---- a::b stdout ----\nboots in 2 s\nrate 5\n\n\n\
                    successes:\n    a::b\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 21 filtered out; finished in 0.1s\n\n";
        assert!(passed(&output(said, 0)));
        assert_eq!(told(&output(said, 0), "a::b", true), "\n    boots in 2 s\n    rate 5");
        assert!(told(&output(said, 101), "a::b", false).ends_with("\n    why"));
        assert_eq!(shown("running 1 test\ntest a::b ... ok\n", "a::b"), "");
    }

    #[test]
    fn tests_are_chosen_by_words_in_their_names_and_a_word_of_none_is_an_error() {
        let program = Program { name: "p".into(), path: "p".into(), folder: "f".into() };
        let tests = || ["scp::carries", "boot::uefi"].map(|name| (program.clone(), name.to_owned())).into();
        let names = |words: &[&str]| -> Result<Vec<String>> {
            let words: Vec<String> = words.iter().map(|&word| word.into()).collect();
            Ok(chosen(tests(), &words)?.into_iter().map(|(_, name)| name).collect())
        };
        assert_eq!(names(&[]).unwrap(), ["scp::carries", "boot::uefi"]);
        assert_eq!(names(&["uefi"]).unwrap(), ["boot::uefi"]);
        let error = names(&["scp", "typo"]).unwrap_err().to_string();
        assert_eq!(error, "`typo` is neither a step nor in the name of a test");
    }

    #[test]
    fn a_test_that_did_not_run_has_not_passed() {
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 22 filtered out; finished in 0.00s\n";
        let one = none.replace("0 passed", "1 passed");
        assert!(!passed(&output(none, 0)) && !passed(&output(&one, 101)) && passed(&output(&one, 0)));
    }
}
