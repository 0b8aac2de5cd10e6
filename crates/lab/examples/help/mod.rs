//! `--help` of the examples prints the `//!` page at the top of the example's source. One file for all crates; elsewhere it is a link.

use std::io::Write;

/// If the command line asks for help, prints the `//!` page of `source` and ends the program.
pub fn on_request(source: &str) {
    if std::env::args_os().skip(1).any(|word| word == "--help" || word == "-h") {
        let mut out = std::io::stdout().lock();
        for line in source.lines().map_while(|line| line.strip_prefix("//!")) {
            // The reader may have gone.
            let _written = writeln!(out, "{}", line.strip_prefix(' ').unwrap_or(line));
        }
        std::process::exit(0);
    }
}
