//! The last lines of the daemon's log, and apart from them the last changes: many lines may have come since.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Most lines that are kept of each.
const LINES_MAX: usize = 40;
const CHANGES_MAX: usize = 12;
/// Longest text of a line, in bytes.
const TEXT_MAX: usize = 400;

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub unix_ms: u64,
    /// `error`, `warn`, `info` or `debug`.
    pub level: &'static str,
    /// Whether it tells of a change that somebody has made.
    pub is_change: bool,
    /// The line without its time and level. Cut if it is long.
    pub text: String,
}

#[derive(Debug, Default)]
struct Rings {
    lines: VecDeque<Line>,
    changes: VecDeque<Line>,
}

/// See the module's page.
#[derive(Debug, Default)]
pub struct Recent(Mutex<Rings>);

fn push(ring: &mut VecDeque<Line>, most: usize, line: Line) {
    if ring.len() == most {
        ring.pop_front();
    }
    ring.push_back(line);
}

impl Recent {
    /// Adds a line. Called from any thread.
    pub fn push(&self, mut line: Line) {
        if line.text.len() > TEXT_MAX {
            let end = (0..=TEXT_MAX).rev().find(|end| line.text.is_char_boundary(*end)).unwrap_or(0);
            line.text.truncate(end);
            line.text.push('…');
        }
        let mut rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if line.is_change {
            push(&mut rings.changes, CHANGES_MAX, line.clone());
        }
        push(&mut rings.lines, LINES_MAX, line);
    }

    /// The last lines, the newest first.
    pub fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lines.iter().rev().cloned().collect()
    }

    /// The last changes, the newest first.
    pub fn changes(&self) -> Vec<Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).changes.iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_stays_when_many_lines_have_come_since_and_all_have_a_bound() {
        let recent = Recent::default();
        let line =
            |number: usize| Line { unix_ms: 0, level: "info", is_change: number == 0, text: "é".repeat(number) };
        (0..300).for_each(|number| recent.push(line(number)));
        assert_eq!(recent.changes(), [line(0)]);
        let lines = recent.lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert!(lines.iter().all(|line| line.text.len() <= TEXT_MAX + "…".len() && line.text.ends_with('…')));
        (0..300).for_each(|_| recent.push(line(0)));
        assert_eq!(recent.changes().len(), CHANGES_MAX);
    }
}
