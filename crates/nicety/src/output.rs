//! Text for stdout: written at once, with aligned columns and short numbers. A reader that has gone (`| head`) is no error, nor is
//! a closed terminal, on which `eprintln!` would panic.

use std::fmt::Display;
use std::io::{self, Write};

use rustix::termios::tcgetwinsize;

use crate::exit::{Exit, Failure};
pub use nicety_adapter::count;

/// Writes a text to stdout.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Failed, format!("writing to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a line to stderr. If that fails, no error can be reported.
pub fn tell(line: impl Display) {
    // One write, so other output cannot come between.
    let _ = io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

/// Rows with aligned columns, two spaces apart, without spaces at the end of a line.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Number of columns of the terminal on stdout. None if stdout is no terminal, or it does not know.
pub fn terminal_columns() -> Option<usize> {
    let size = tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// The words of `text` in lines of at most `columns`, each behind `indent`. A word that is longer has a line of its own.
pub fn wrapped(text: &str, columns: usize, indent: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => *line += &format!(" {word}"),
            _ => lines.push(format!("{indent}{word}")),
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Bytes with three digits and a decimal unit: `60 B`, `65.2 kB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["kB", "MB", "GB", "TB", "PB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let (mut amount, mut unit) = (bytes as f64 / 1e3, "kB");
    for next in &UNITS[1..] {
        if amount < 999.5 {
            break;
        }
        (amount, unit) = (amount / 1e3, next);
    }
    let decimals = if amount < 9.995 { 2 } else { usize::from(amount < 99.95) };
    format!("{amount:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (65_226, "65.2 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (12_345_678_901, "12.3 GB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn lines_are_as_long_as_asked_and_a_long_word_has_its_own() {
        assert_eq!(wrapped("a bé ccc\ndddddddd e", 8, "  "), "  a bé\n  ccc\n  dddddddd\n  e\n");
        assert_eq!(wrapped("", 8, "  "), "");
    }

    #[test]
    fn columns_are_aligned_and_lines_end_with_their_last_letter() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        assert_eq!(columns(&[row(["a", "bé"]), row(["ccc", ""])]), "a    bé\nccc\n");
        assert_eq!(columns(&[]), "");
    }
}
