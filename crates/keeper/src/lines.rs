//! The keeper's lines in the daemon's log. A daemon, or a VMM through it, can cause some of them: of these there are few a minute, and
//! the next one says how many were left out.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Most lines of a kind in [`WINDOW`].
const LINES_MAX: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// The subject of a line. Each subject has a limit of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum About {
    /// Descriptors that are held for this owner.
    Owner(String),
    /// Descriptors that were lost.
    Lost,
    /// Openers.
    Openers,
    /// An opener's line.
    Opened,
}

/// Most owners with a count of their own. Those of a daemon that invents names share one.
const OWNERS_MAX: usize = 64;

#[derive(Debug)]
struct Count {
    since: Instant,
    lines: u32,
    left_out: u32,
}

#[derive(Debug, Default)]
struct Lines(BTreeMap<About, Count>);

static LINES: Mutex<Lines> = Mutex::new(Lines(BTreeMap::new()));

fn lines() -> MutexGuard<'static, Lines> {
    LINES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Lines {
    /// The line, if it may be written, with the number of those before it that were not.
    fn admit(&mut self, about: About, what: &str, now: Instant) -> Option<String> {
        let is_over = |count: &Count| now.saturating_duration_since(count.since) >= WINDOW;
        self.0.retain(|_, count| count.left_out > 0 || !is_over(count));
        let is_known = self.0.contains_key(&about) || self.0.len() < OWNERS_MAX;
        let about = if is_known { about } else { About::Owner(String::new()) };
        let count = self.0.entry(about).or_insert(Count { since: now, lines: 0, left_out: 0 });
        if is_over(count) {
            (count.since, count.lines) = (now, 0);
        }
        if count.lines == LINES_MAX {
            count.left_out = count.left_out.saturating_add(1);
            return None;
        }
        count.lines += 1;
        Some(counted(what, std::mem::take(&mut count.left_out)))
    }

    /// A line for each count whose time is over.
    fn left_out(&mut self, now: Instant) -> Vec<String> {
        let is_over = |count: &Count| count.left_out > 0 && now.saturating_duration_since(count.since) >= WINDOW;
        let over = self.0.extract_if(.., |_, count| is_over(count));
        over.map(|(about, count)| counted(&format!("lines about {about}"), count.left_out)).collect()
    }

    /// The time at which a number of lines that were left out may be written.
    fn next(&self) -> Option<Instant> {
        self.0.values().filter(|count| count.left_out > 0).map(|count| count.since + WINDOW).min()
    }
}

impl std::fmt::Display for About {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Owner(name) if name.is_empty() => f.write_str("what is held"),
            Self::Owner(name) => write!(f, "port {name}"),
            Self::Lost => f.write_str("descriptors that were lost"),
            Self::Openers => f.write_str("openers"),
            Self::Opened => f.write_str("what the daemon wants opened"),
        }
    }
}

fn counted(what: &str, left_out: u32) -> String {
    match left_out {
        0 => what.to_owned(),
        1 => format!("{what} (1 line more was left out)"),
        left_out => format!("{what} ({left_out} lines more were left out)"),
    }
}

/// A line in the daemon's log.
pub(crate) fn say(what: &str) {
    // Nobody may read it.
    let _ = writeln!(io::stderr(), "WARN keeper: {what}");
}

/// A line that a daemon can cause, if there were not too many of its kind lately.
pub(crate) fn say_about(about: About, what: &str) {
    let admitted = lines().admit(about, what, Instant::now());
    admitted.iter().for_each(|line| say(line));
}

/// Another process has written a line, or left it out if its kind [is used up](is_used_up).
pub(crate) fn count(about: About) {
    let _written = lines().admit(about, "", Instant::now());
}

/// Whether there were too many lines of a kind lately.
pub(crate) fn is_used_up(about: &About) -> bool {
    lines().0.get(about).is_some_and(|count| count.lines == LINES_MAX && count.since.elapsed() < WINDOW)
}

/// Says how many lines were left out, once their minute is over.
pub(crate) fn say_left_out(now: Instant) {
    let left_out = lines().left_out(now);
    left_out.iter().for_each(|line| say(line));
}

/// The time of the next [`say_left_out`].
pub(crate) fn next() -> Option<Instant> {
    lines().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_lines_a_minute_are_written_of_each_kind_and_the_others_are_counted() {
        let begun = Instant::now();
        let mut lines = Lines::default();
        let written = |lines: &mut Lines, about: &About, at| {
            (0..8_901).filter_map(|_| lines.admit(about.clone(), "lost", at)).collect::<Vec<_>>()
        };
        assert_eq!(written(&mut lines, &About::Lost, begun), vec!["lost"; 10]);
        assert_eq!(written(&mut lines, &About::Owner("vm1".into()), begun), vec!["lost"; 10], "another kind");
        assert_eq!(lines.next(), Some(begun + WINDOW));
        assert!(lines.left_out(begun + WINDOW / 2).is_empty());
        assert_eq!(lines.admit(About::Lost, "lost", begun + WINDOW).unwrap(), "lost (8891 lines more were left out)");
        assert_eq!(lines.left_out(begun + WINDOW), ["lines about port vm1 (8891 lines more were left out)"]);
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn a_daemon_that_invents_names_has_no_more_lines() {
        let now = Instant::now();
        let mut lines = Lines::default();
        let names = (0..10_000).map(|number: u32| About::Owner(number.to_string()));
        let written = names.filter_map(|about| lines.admit(about, "port", now)).count();
        assert!(written <= OWNERS_MAX + LINES_MAX as usize, "{written}");
    }
}
