//! Counts passed, failed and skipped checks from a step's output.

use std::{fmt, ops::AddAssign};

/// Start of the line that a test prints if it cannot run on this machine. Its name and the reason follow. The harness has no such
/// result, and reports that the test passed.
const SKIPPED: &str = "SKIPPED ";
/// Prefix of a failure's name in a report.
pub const FAILED: &str = "failed: ";
/// Prefix of a skipped check's name in a report.
pub const SKIP: &str = "skipped: ";
/// Number of lines of a panic's message that are kept.
const REASON_LINES: usize = 6;

/// Numbers of a step's checks that passed, failed, or were skipped.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Checks that passed.
    pub passed: u64,
    /// Checks that failed.
    pub failed: u64,
    /// Checks that did not run.
    pub skipped: u64,
    /// Names of the failed checks that have one, each with the message of its first panic.
    pub failures: Vec<String>,
    /// Names of the checks that could not run, with the reason.
    pub skips: Vec<String>,
    /// Duration of each test in seconds, and its name.
    pub times: Vec<(f64, String)>,
    /// Number of skipped tests that the harness has yet to count as passed.
    unable: u64,
    /// Index of the failure to which the current lines belong.
    about: Option<usize>,
    /// Number of further lines that belong to its panic's message.
    reason: usize,
}

impl Tally {
    /// A step that is one check.
    pub fn of_one(name: &str, passed: bool) -> Tally {
        if passed {
            Tally { passed: 1, ..Tally::default() }
        } else {
            Tally { failed: 1, failures: vec![name.to_owned()], ..Tally::default() }
        }
    }

    /// A step that is one check and cannot run here. The reason follows its name.
    pub fn of_skipped(name: &str) -> Tally {
        Tally { skipped: 1, skips: vec![name.to_owned()], ..Tally::default() }
    }

    /// Number of all checks.
    pub fn count(&self) -> u64 {
        self.passed + self.failed + self.skipped
    }

    /// Parses the sum at the end of [`crate::steps::run`]'s output, with the failures and skips named in it. `None` without a sum.
    pub fn of_report(text: &str) -> Option<Tally> {
        let last = text.lines().last()?;
        let mut tally = Tally::default();
        for part in last.split(", ") {
            let (number, word) = part.split_once(' ')?;
            let number = number.parse().ok()?;
            match word {
                "passed" => tally.passed = number,
                "failed" => tally.failed = number,
                "skipped" => tally.skipped = number,
                _ => return None,
            }
        }
        let named = |prefix| text.lines().filter_map(move |line| line.strip_prefix(prefix)).map(str::to_owned);
        tally.failures = named(FAILED).collect();
        tally.skips = named(SKIP).collect();
        Some(tally)
    }

    /// Takes a line of the test harness's output.
    pub fn take(&mut self, line: &str) {
        if let Some(counts) = line.trim_start().strip_prefix("test result: ") {
            for part in counts.split([';', '.']) {
                let Some((number, what)) = part.trim().split_once(' ') else { continue };
                let Ok(number) = number.parse::<u64>() else { continue };
                match what {
                    "passed" => self.passed += number - std::mem::take(&mut self.unable).min(number),
                    "failed" => self.failed += number,
                    "ignored" => self.skipped += number,
                    _ => {}
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.about = self.failures.iter().position(|failure| failure == name);
        } else if let Some(name) = line.strip_prefix(SKIPPED) {
            self.skips.push(name.to_owned());
            (self.skipped, self.unable) = (self.skipped + 1, self.unable + 1);
        } else if let Some(about) = self.about {
            self.explain(about, line.trim());
        }
    }

    /// Takes a line of a failed test's output.
    fn explain(&mut self, about: usize, line: &str) {
        let begins = line.starts_with("thread ").then(|| line.split_once(" panicked at ")).flatten();
        let words = match begins {
            Some((_, place)) => {
                self.reason = REASON_LINES;
                place
            }
            None if self.reason == 0 => return,
            None if line.is_empty() || line == "stack backtrace:" || line.starts_with("note: ") => {
                (self.about, self.reason) = (None, 0);
                return;
            }
            None => {
                self.reason -= 1;
                line
            }
        };
        self.failures[about].push_str(": ");
        self.failures[about].push_str(words.trim_end_matches(':'));
        if self.reason == 0 {
            self.about = None;
        }
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failures.extend(other.failures);
        self.skips.extend(other.skips);
        self.times.extend(other.times);
        self.unable += other.unable;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)?;
        if self.skipped > 0 {
            write!(f, ", {} skipped", self.skipped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> Tally {
        let mut tally = Tally::default();
        text.lines().for_each(|line| tally.take(line));
        tally
    }

    #[test]
    fn the_harnesss_result_lines_add_up() {
        let tally = of_text(
            &[
                "running 3 tests",
                "test a::b ... ok",
                "test a::c ... FAILED",
                "test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.25s",
            ]
            .join("\n"),
        );
        let failures = vec!["a::c".into()];
        assert_eq!(tally, Tally { passed: 41, failed: 1, skipped: 1, failures, ..Tally::default() });
        assert_eq!(tally.to_string(), "41 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn a_failure_has_what_its_first_panic_said() {
        let tally = of_text(
            &[
                "test a::b ... FAILED",
                "test a::c ... FAILED",
                "---- a::b stdout ----",
                "frames: 3",
                "",
                "thread 'a::b' (56) panicked at src/a.rs:67:5:",
                "assertion `left == right` failed: two",
                "  left: 3",
                " right: 2",
                "stack backtrace:",
                "   0: rust_begin_unwind",
                "thread 'a::b' (56) panicked at src/a.rs:70:5:",
                "---- a::c stdout ----",
                "Error: no such file",
                "",
            ]
            .join("\n"),
        );
        let why = "a::b: src/a.rs:67:5: assertion `left == right` failed: two: left: 3: right: 2";
        assert_eq!(tally.failures, [why, "a::c"]);
    }

    #[test]
    fn a_test_that_says_that_it_cannot_run_has_not_passed_and_is_named() {
        let tally = of_text(
            &[
                "running 2 tests",
                "",
                "SKIPPED tap::a: /dev/net/tun: No such file or directory",
                "test tap::a ... ok",
                "test tap::b ... ok",
                "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
                "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
            ]
            .join("\n"),
        );
        assert_eq!(tally.to_string(), "4 passed, 0 failed, 1 skipped");
        assert_eq!(tally.skips, ["tap::a: /dev/net/tun: No such file or directory"]);
    }

    #[test]
    fn the_sum_of_a_report_is_its_last_line_with_the_names_before_it() {
        let report = "=== doc: 1 passed\nskipped: tshark\nfailed: fuzz pair\n12 passed, 1 failed, 1 skipped\n";
        let tally = Tally::of_report(report).unwrap();
        assert_eq!(tally.to_string(), "12 passed, 1 failed, 1 skipped");
        assert_eq!((tally.failures, tally.skips), (vec!["fuzz pair".to_owned()], vec!["tshark".to_owned()]));
        assert_eq!(Tally::of_report("=== doc: documentation\nerror: killed\n"), None);
        assert_eq!(Tally::of_report(""), None);
    }

    #[test]
    fn the_last_line_names_skipped_ones_only_when_there_are_some() {
        assert_eq!(Tally::of_one("fmt", true).to_string(), "1 passed, 0 failed");
    }
}
