//! The last lines of a guest's console and of QEMU's error output, kept for error messages.

use std::{
    collections::VecDeque,
    io::Read,
    sync::{Arc, Mutex, PoisonError},
};

const LINES_KEPT: usize = 400;
const LINES_SHOWN: usize = 40;
const BYTES_PER_LINE: usize = 1024;

/// A bounded log, filled by a reader thread.
#[derive(Clone, Default)]
pub(super) struct Console(Arc<Mutex<VecDeque<String>>>);

impl Console {
    /// Reads until the other end closes.
    pub fn fill(&self, from: impl Read) {
        lines(from, |line| {
            self.note(line);
            true
        });
    }

    /// Adds a line.
    pub fn note(&self, line: &str) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if log.len() == LINES_KEPT {
            log.pop_front();
        }
        log.push_back(line.to_owned());
    }

    /// The last lines.
    pub fn tail(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = log.len().saturating_sub(LINES_SHOWN);
        log.iter().skip(start).map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// Calls `each` with every line until it returns false. A line may be of any length and content; its end and its control characters are
/// removed.
pub(super) fn lines(mut from: impl Read, mut each: impl FnMut(&str) -> bool) {
    let (mut chunk, mut line) = ([0; 4096], Vec::with_capacity(BYTES_PER_LINE));
    let mut finish = |line: &mut Vec<u8>| {
        let text: String = String::from_utf8_lossy(line).chars().filter(|c| !c.is_control() || *c == '\t').collect();
        line.clear();
        each(&text)
    };
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        for byte in chunk.get(..count).unwrap_or_default() {
            if *byte == b'\n' {
                if !finish(&mut line) {
                    return;
                }
            } else if line.len() < 64 * BYTES_PER_LINE {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        finish(&mut line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_and_shows_its_end() {
        let console = Console::default();
        let text: String = (0..1000).map(|n| format!("\x1b[2Jline {n}\r\n")).collect();
        console.fill(text.as_bytes());
        let tail = console.tail();
        assert_eq!(tail.lines().count(), LINES_SHOWN);
        assert_eq!(tail.lines().last(), Some("[2Jline 999"));
    }

    #[test]
    fn a_line_without_an_end_does_not_grow_without_bound() {
        let mut longest = 0;
        lines(vec![b'x'; 1 << 20].as_slice(), |line| {
            longest = longest.max(line.len());
            true
        });
        assert_eq!(longest, 64 * BYTES_PER_LINE);
    }
}
