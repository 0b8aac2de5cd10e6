//! Runs tests, each in a process of its own, several at a time.
//!
//! A test mostly waits: for a guest, a timer, a peer. With a process of its own, tests of different programs can run side by side, each
//! has its own time, and a test that hangs can be ended without ending others.

use std::{
    collections::VecDeque,
    process::{Command, Output, Stdio},
    sync::{LazyLock, Mutex},
    thread,
    time::{Instant, SystemTime},
};

use crate::{
    command::{lock, with_amount},
    programs::Test,
    tally::Tally,
};

/// Time limit of a test; a longer one hangs. The longest takes some minutes on two busy processors.
const TEST_SECONDS_MAX: u32 = 900;
/// Runs its arguments, then prints two lines, of the shell's own times and of its children's (POSIX, `times`): a test's processor time,
/// which, unlike its duration, does not depend on its neighbours.
const MEASURED: &str = "\"$@\"; code=$?; times; exit $code";
/// Longer lines of a test's output are cut.
const LINE_CHARACTERS_MAX: usize = 2000;
/// This run's name. Its tests share what is dear to make, such as the package.
static RUN: LazyLock<String> = LazyLock::new(|| {
    let seconds = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    format!("{}-{seconds}", std::process::id())
});
/// timeout(1): exit code when it ended the command.
const TIMED_OUT: i32 = 124;

/// Settings for running tests.
#[derive(Debug, Clone, Copy)]
pub struct Lanes {
    /// Number of tests at a time.
    pub count: usize,
    /// Whether a passed test is shown with its output, which may contain measurements.
    pub shows_output: bool,
}

impl Lanes {
    /// Runs all tests, in order.
    pub fn run(self, tests: impl Into<VecDeque<Test>>) -> Tally {
        let (waiting, sum) = (Mutex::new(tests.into()), Mutex::new(Tally::default()));
        let lane = || {
            let next = || lock(&waiting).pop_front();
            while let Some(test) = next() {
                let (tally, line) = self.one(&test);
                // One call, so that two lanes' lines do not mix.
                println!("{line}");
                *lock(&sum) += tally;
            }
        };
        thread::scope(|scope| {
            (0..self.count).for_each(|_| drop(scope.spawn(lane)));
        });
        sum.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs a test; its tally, and the line that tells of it.
    fn one(self, test: &Test) -> (Tally, String) {
        let title = format!("{} {}", test.program.name, test.name);
        if test.is_left {
            return (Tally::of_skipped(&format!("{title}: only with --full")), format!("test {title} ... skipped"));
        }
        let begin = Instant::now();
        let mut output = command(test, self.shows_output).output();
        let seconds = begin.elapsed().as_secs_f64();
        let processors = output.as_mut().ok().and_then(take_times).unwrap_or(0.0);
        let mut tally = output.as_ref().map(tally_of).unwrap_or_default();
        // A program without a test of this name exits with 0 too.
        let ran = output.as_ref().is_ok_and(|output| output.status.success()) && tally.count() == 1;
        if !ran {
            let failure = tally.failures.pop().unwrap_or_else(|| match &output {
                Ok(output) if output.status.code() == Some(TIMED_OUT) => {
                    format!("{}: not ended after {TEST_SECONDS_MAX} s", test.name)
                }
                _ => test.name.clone(),
            });
            tally = Tally::of_one(&format!("{} {failure}", test.program.name), false);
        }
        let word = if !ran {
            "FAILED"
        } else if tally.skipped > 0 {
            "skipped"
        } else {
            "ok"
        };
        let text = match &output {
            Ok(output) if !ran || self.shows_output => shown(output, &test.name, ran),
            Ok(_) => String::new(),
            Err(error) => format!("\n    {error}"),
        };
        let line = format!("test {title} ... {word} in {seconds:.1} s, {processors:.1} s of processors{text}");
        tally.times.push((seconds, format!("{processors:7.1} s of processors  {title}")));
        (tally, line)
    }
}

fn command(test: &Test, shows_output: bool) -> Command {
    let mut command = with_amount(Command::new("sh"));
    command
        .args(["-c", MEASURED, "sh", "timeout", "--kill-after=5", &TEST_SECONDS_MAX.to_string()])
        .arg(&test.program.path);
    command
        .args(["--exact", &test.name, "--include-ignored", "--test-threads", "1"])
        .args(shows_output.then_some("--show-output"));
    command.env("NICETY_RUN", &*RUN);
    command.current_dir(&test.program.folder).stdin(Stdio::null());
    command
}

/// Takes the lines of [`MEASURED`] from the end of an output. Returns the children's user and system time in seconds.
fn take_times(output: &mut Output) -> Option<f64> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (rest, children) = text.trim_end().rsplit_once('\n')?;
    let seconds = children.split(' ').map(|time| {
        let (minutes, seconds) = time.strip_suffix('s')?.split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    });
    let sum = seconds.sum::<Option<f64>>()?;
    output.stdout = rest.rsplit_once('\n').map_or("", |(own, _)| own).into();
    Some(sum)
}

/// Counts the last sum: a test may run a harness of its own and show its output.
fn tally_of(output: &Output) -> Tally {
    let text = String::from_utf8_lossy(&output.stdout);
    let is_sum = |line: &&str| line.trim_start().starts_with("test result: ");
    let mut tally = Tally::default();
    text.lines().filter(|line| !is_sum(line)).for_each(|line| tally.take(line));
    if let Some(sum) = text.lines().rfind(is_sum) {
        tally.take(sum);
    }
    tally
}

/// A test's output, indented: everything if the test failed, else the part under its name.
fn shown(output: &Output, name: &str, passed: bool) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let text = if passed { own_part(&printed, name).to_owned() } else { printed + &errors };
    text.trim_end().lines().map(|line| format!("\n    {}", cut(line))).collect()
}

/// A line, or its beginning: a failed comparison of long lists is a line of megabytes.
fn cut(line: &str) -> String {
    match line.char_indices().nth(LINE_CHARACTERS_MAX) {
        Some((at, _)) => format!("{}… ({} bytes)", &line[..at], line.len()),
        None => line.to_owned(),
    }
}

/// A test's own part of the harness's output.
fn own_part<'a>(printed: &'a str, name: &str) -> &'a str {
    let own = printed.split_once(&format!("---- {name} stdout ----\n")).map_or("", |(_, rest)| rest);
    own.rsplit_once("\n\nsuccesses:\n").map_or(own, |(own, _)| own)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, path::Path, sync::Arc};

    use super::*;
    use crate::programs::Program;

    fn output(stdout: &str, code: i32) -> Output {
        let status = std::process::ExitStatus::from_raw(code << 8);
        Output { status, stdout: stdout.into(), stderr: b"why\n".to_vec() }
    }

    #[test]
    fn a_measurement_is_shown_and_everything_that_a_failed_test_said() {
        let printed = "\nrunning 1 test\ntest a::b ... ok\n\nsuccesses:\n\n---- a::b stdout ----\nboots in 2 s\nrate 5\n\n\n\
                    successes:\n    a::b\n\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 21 filtered out; finished in 0.1s\n\n";
        assert_eq!(shown(&output(printed, 0), "a::b", true), "\n    boots in 2 s\n    rate 5");
        assert!(shown(&output(printed, 101), "a::b", false).ends_with("\n    why"));
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"é".repeat(2001)), format!("{}… (4002 bytes)", "é".repeat(2000)));
        assert_eq!(own_part("running 1 test\ntest a::b ... ok\n", "a::b"), "");
    }

    #[test]
    fn a_test_s_processor_time_is_its_shell_s_last_word_and_no_part_of_its_output() {
        for (own, children) in
            [("0m0.00s 0m0.01s", "1m2.30s 0m4.50s"), ("0m0.000000s 0m0.000000s", "1m2.300000s 0m4.500000s")]
        {
            let mut output = output(&format!("test a ... ok\n\n{own}\n{children}\n"), 0);
            assert_eq!(take_times(&mut output), Some(66.8));
            assert_eq!(String::from_utf8_lossy(&output.stdout), "test a ... ok\n");
        }
        assert_eq!(take_times(&mut output("test a ... ok\n", 0)), None);
    }

    fn test(folder: &Path) -> Test {
        let path = folder.join("program");
        let program = Program { name: "p/t".into(), target: "t".into(), path, folder: folder.into() };
        Test { program: Arc::new(program), name: "a".into(), is_left: false }
    }

    /// A script that answers as a test program would.
    fn scripted(folder: &Path, script: &str) -> Tally {
        let path = folder.join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Lanes { count: 1, shows_output: false }.one(&test(folder)).0
    }

    #[test]
    fn a_test_has_passed_only_if_it_ran_and_its_process_ended_well() {
        let folder = std::env::temp_dir().join(format!("nicety-xtask-lanes-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let one = "echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out'";
        let none = one.replace("1 passed", "0 passed");
        let counts = |script: &str| {
            let tally = scripted(&folder, script);
            (tally.passed, tally.failed, tally.skipped)
        };
        assert_eq!(counts(one), (1, 0, 0));
        assert_eq!(counts(&none), (0, 1, 0));
        assert_eq!(counts(&format!("{one}; exit 1")), (0, 1, 0));
        assert_eq!(counts(&one.replace("1 passed; 0 failed; 0 ignored", "0 passed; 0 failed; 1 ignored")), (0, 0, 1));
        assert_eq!(counts(&format!("echo 'SKIPPED a: no tun'; {one}")), (0, 0, 1));
        let nested = format!("echo 'test result: FAILED. 0 passed; 1 failed; 0 ignored'; {one}");
        assert_eq!(counts(&nested), (1, 0, 0));
        assert_eq!(scripted(&folder, "exit 3").failures, ["p/t a"]);
        let left = Test { is_left: true, ..test(&folder) };
        let tally = Lanes { count: 1, shows_output: false }.run(vec![left]);
        assert_eq!((tally.count(), &tally.skips[..]), (1, &["p/t a: only with --full".to_owned()][..]));
        std::fs::remove_dir_all(folder).unwrap();
    }
}
