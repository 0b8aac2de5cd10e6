//! The program: commands and exit codes (README.md; docs/host-file.md).
#![forbid(unsafe_code)]
// They panic when the terminal is gone: `output` has what is used instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

mod adapters;
mod attach;
mod attempt;
mod cli;
mod compare;
mod exit;
mod log;
mod output;
mod ports;
mod serve;

use cli::{Cli, Command};
use exit::Failure;

fn main() -> ExitCode {
    // Then a limit of files' sizes (`ulimit -f`) is an error of whatever is written, and not the end of all guests.
    let _the_limit_ends_the_program_then = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let done = match Cli::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Attach(args) => attach::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ports(args) => ports::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Adapters(args) => adapters::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Compare(args) => compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Try(args) => attempt::run(&args),
        Command::Guest { words } => Ok(compare::guest(&words)),
    };
    done.unwrap_or_else(|Failure { exit, message }| {
        output::tell(message);
        exit.into()
    })
}
