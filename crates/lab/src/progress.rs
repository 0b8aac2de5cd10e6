//! Progress of a comparison on stderr: a bar with the time left on a terminal, otherwise a line at intervals.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::number;

/// Minimum time between two lines where there is no terminal.
pub const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Weight of the initial estimate, in runs, against the runs already done.
const PRIOR_RUNS: u32 = 3;

/// The progress of a comparison. Dropping it clears the bar.
pub struct Progress {
    sink: Sink,
    pace: Arc<Mutex<Pace>>,
}

enum Sink {
    Bar(ProgressBar),
    Lines { out: Box<dyn Write + Send>, last: Option<Instant> },
    Silent,
}

impl Progress {
    /// Progress on stderr: a bar if it is a terminal, lines if not.
    pub fn stderr() -> Progress {
        if io::stderr().is_terminal() {
            Progress::new(Sink::Bar(bar()))
        } else {
            Progress::lines(Box::new(io::stderr()))
        }
    }

    /// Progress as lines to `out`, at most one every [`LINE_INTERVAL`].
    pub fn lines(out: Box<dyn Write + Send>) -> Progress {
        Progress::new(Sink::Lines { out, last: None })
    }

    /// No progress output.
    pub fn silent() -> Progress {
        Progress::new(Sink::Silent)
    }

    fn new(sink: Sink) -> Progress {
        Progress { sink, pace: Arc::new(Mutex::new(Pace::default())) }
    }

    /// Starts the runs: their number, and their expected time together.
    pub fn begin(&mut self, runs: u32, expected: Duration) {
        *self.pace.lock().unwrap_or_else(PoisonError::into_inner) = Pace::new(runs, expected, Instant::now());
        if let Sink::Bar(bar) = &self.sink {
            let pace = Arc::clone(&self.pace);
            let left = move |_: &ProgressState, text: &mut dyn std::fmt::Write| {
                let pace = pace.lock().unwrap_or_else(PoisonError::into_inner);
                // If the formatter refuses text, nobody can be told.
                let _ = text.write_str(&number::span(pace.left(Instant::now())));
            };
            bar.set_length(u64::from(runs));
            bar.set_style(style("{bar:16.cyan/dim} {pos}/{len}  {left} left  {wide_msg:.dim}").with_key("left", left));
        }
    }

    /// Shows the current activity.
    pub fn step(&mut self, text: &str) {
        match &mut self.sink {
            Sink::Bar(bar) => bar.set_message(text.to_owned()),
            Sink::Lines { out, last } => {
                let now = Instant::now();
                if due(*last, now) {
                    *last = Some(now);
                    let pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
                    // Measuring continues although progress cannot be shown.
                    let _ = writeln!(out, "{}", pace.line(text, now));
                }
            }
            Sink::Silent => {}
        }
    }

    /// Counts one run as done.
    pub fn advance(&mut self) {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).advance(Instant::now());
        if let Sink::Bar(bar) = &self.sink {
            bar.inc(1);
        }
    }

    /// Shows a message at once, whatever the interval of lines: a failed run, for example.
    pub fn note(&mut self, text: &str) {
        match &mut self.sink {
            // indicatif does not print above a bar that is not drawn; stderr is a terminal here.
            Sink::Bar(bar) => bar.println(text),
            Sink::Lines { out, .. } => {
                let _ = writeln!(out, "{text}");
            }
            Sink::Silent => {}
        }
    }

    /// Removes the bar when all is done or stopped.
    pub fn finish(&mut self) {
        if let Sink::Bar(bar) = &self.sink {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(style("{spinner} {wide_msg}"));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸━")
}

/// Whether the next line may be written.
fn due(last: Option<Instant>, now: Instant) -> bool {
    last.is_none_or(|last| now.saturating_duration_since(last) >= LINE_INTERVAL)
}

/// Speed of the runs, from which the time left follows.
#[derive(Debug, Clone, Default)]
struct Pace {
    runs: u32,
    done: u32,
    expected: Duration,
    begun: Option<Instant>,
    /// End of the last run.
    last_done: Option<Instant>,
}

impl Pace {
    fn new(runs: u32, expected: Duration, now: Instant) -> Pace {
        Pace { runs, done: 0, expected, begun: Some(now), last_done: Some(now) }
    }

    fn advance(&mut self, now: Instant) {
        self.done = self.done.saturating_add(1);
        self.last_done = Some(now);
    }

    /// The time left: the remaining runs times the mean duration of a run, less the time of the present run. The plan counts as
    /// [`PRIOR_RUNS`] runs in the mean.
    fn left(&self, now: Instant) -> Duration {
        let (Some(begun), Some(last)) = (self.begun, self.last_done) else { return self.expected };
        if self.runs == 0 {
            return Duration::ZERO;
        }
        let planned = self.expected / self.runs;
        let had = last.saturating_duration_since(begun).saturating_add(planned.saturating_mul(PRIOR_RUNS));
        let each = had / self.done.saturating_add(PRIOR_RUNS);
        let present = now.saturating_duration_since(last).min(each);
        each.saturating_mul(self.runs.saturating_sub(self.done)).saturating_sub(present)
    }

    fn line(&self, text: &str, now: Instant) -> String {
        let mut line = String::new();
        if self.runs > 0 {
            // Writing to a `String` cannot fail.
            let _ = write!(line, "{}/{}, {} left: ", self.done, self.runs, number::span(self.left(now)));
        }
        line + text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_time_left_begins_with_the_plan_and_follows_the_runs() {
        let start = Instant::now();
        let mut pace = Pace::new(10, SECOND * 100, start);
        assert_eq!(pace.left(start), SECOND * 100);
        assert_eq!(pace.left(start + SECOND * 4), SECOND * 96, "it counts down within a run");
        // Runs take 5 s, not the planned 10. After seven of them, (35 + 30) / 10 = 6.5 s each, and three are left.
        for run in 1..=7 {
            pace.advance(start + SECOND * 5 * run);
        }
        assert_eq!(pace.left(start + SECOND * 35), Duration::from_millis(19_500));
        for run in 8..=10 {
            pace.advance(start + SECOND * 5 * run);
        }
        assert_eq!(pace.left(start + SECOND * 50), Duration::ZERO);
    }

    #[test]
    fn a_run_that_hangs_leaves_the_time_of_the_runs_after_it() {
        let start = Instant::now();
        let pace = Pace::new(2, SECOND * 20, start);
        assert_eq!(pace.left(start + SECOND * 1_000), SECOND * 10);
        assert_eq!(Pace::new(0, SECOND, start).left(start), Duration::ZERO);
    }

    #[test]
    fn without_a_terminal_a_line_comes_at_most_every_ten_seconds() {
        let start = Instant::now();
        assert!(due(None, start));
        assert!(!due(Some(start), start + Duration::from_millis(9_999)));
        assert!(due(Some(start), start + LINE_INTERVAL));

        let written = Written::default();
        let mut progress = Progress::lines(Box::new(written.clone()));
        progress.begin(12, SECOND * 24);
        for round in 0..12 {
            progress.step(&format!("run {round}"));
            progress.advance();
        }
        progress.note("run 3 failed");
        drop(progress);
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text, "0/12, 24 s left: run 0\nrun 3 failed\n");
    }
}
