//! The program: commands and exit codes (README.md; docs/host-file.md).
#![forbid(unsafe_code)]
// These macros panic when the terminal is gone: use `output` instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use nicety_host::List;

mod adapters;
mod answer;
mod attach;
mod attempt;
mod capture;
mod change;
mod choose;
mod cli;
mod compare;
mod complete;
mod confirm;
mod exit;
mod extcap;
mod fabric;
mod find;
mod flow_export;
mod ft;
mod hook;
mod import;
mod lab;
mod log;
mod opens;
mod output;
mod ports;
mod reach;
mod replay;
mod save;
mod serve;
mod top;
mod trace;
mod unit;
mod upgrade;
mod vf;
mod warnings;
mod words;
mod write_back;

use cli::{Cli, Command};
use exit::{Exit, Failure};

fn main() -> ExitCode {
    // With this handler a file size limit (`ulimit -f`) is an error of the write, and does not end the program with all guests.
    let _failure_keeps_default_action = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let words: Vec<OsString> = std::env::args_os().collect();
    if extcap::is_asked(&words) {
        return ended(extcap::run(&words));
    }
    if complete::is_asked() {
        return ended(complete::answer(&words).map(|()| ExitCode::SUCCESS));
    }
    let command = match Cli::try_parse_from(words) {
        Ok(Cli { command }) => command,
        Err(error) => return no_command(&error),
    };
    let done = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Attach(args) => attach::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ports(args) => ports::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Apply(args) => change::apply(&args).map(|()| ExitCode::SUCCESS),
        Command::Confirm(args) => confirm::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Upgrade(args) => upgrade::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Port(args) => change::port(&args.change).map(|()| ExitCode::SUCCESS),
        Command::Group(args) => change::list(List::Groups, &args.change).map(|()| ExitCode::SUCCESS),
        Command::Uplink(args) => change::list(List::Uplinks, &args.change).map(|()| ExitCode::SUCCESS),
        Command::Card(args) => change::card(&args.change).map(|()| ExitCode::SUCCESS),
        Command::Vf(args) => vf::run(&args.command).map(|()| ExitCode::SUCCESS),
        Command::Class(args) => change::class(&args.change).map(|()| ExitCode::SUCCESS),
        Command::Mirror(args) => change::list(List::Mirrors, &args.change).map(|()| ExitCode::SUCCESS),
        Command::FlowExport(args) => flow_export::run(&args.command).map(|()| ExitCode::SUCCESS),
        Command::Team(args) => change::list(List::Teams, &args.change).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => change::export(&args).map(|()| ExitCode::SUCCESS),
        Command::Save(args) => change::save_all(&args.which).map(|()| ExitCode::SUCCESS),
        Command::Hook(args) => hook::run(&args.of).map(|()| ExitCode::SUCCESS),
        Command::Import(args) => import::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => complete::script(shell).map(|()| ExitCode::SUCCESS),
        Command::Man { folder } => words::man(folder.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Capture(args) => capture::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Trace(args) => trace::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => replay::run(&args),
        Command::Ft(args) => ft::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Fabric(args) => fabric::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Adapters(args) => adapters::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Compare(args) => compare::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Choose(args) => choose::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Lab(args) => lab::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Try(args) => attempt::run(&args),
        Command::Guest { words } => Ok(compare::guest(&words)),
    };
    ended(done)
}

fn ended(done: Result<ExitCode, Failure>) -> ExitCode {
    done.unwrap_or_else(|failure| {
        log::tell_end(&failure);
        failure.exit.into()
    })
}

/// Answers a command line without a command: help, the version, or a mistake.
fn no_command(error: &clap::Error) -> ExitCode {
    match error.render().to_string().strip_prefix("error: ") {
        Some(mistake) => output::tell(format_args!("nicety: {}", mistake.trim_end())),
        // Coloured on a terminal. If that fails, no error can be reported.
        None => drop(error.print()),
    }
    ExitCode::from(if error.use_stderr() { Exit::Usage as u8 } else { 0 })
}
