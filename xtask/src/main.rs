//! The developer's commands: `cargo xtask test` runs everything that has to pass, `cargo xtask guests` installs the files of real guests.
//!
//! This program builds without any of the project's crates, so that it can report that one of them does not build.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode, sync::atomic::Ordering};

use clap::{Parser, Subcommand};
use command::{ADAPTERS, FULL, cargo};

mod beside;
mod blocks;
mod changed;
mod command;
mod deb;
mod fuzz;
mod guests;
mod instructions;
mod lanes;
mod linked;
mod package;
mod programs;
mod release;
mod sbom;
mod shape;
mod steps;
mod tally;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The developer's commands")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Runs everything that has to pass, and ends with `N passed, N failed`
    Test {
        /// Only these steps; another word names tests of the step `guests`, those that have it in their names
        #[arg(long, value_name = "STEP|TEST", num_args = 1..)]
        only: Vec<String>,
        /// Real guests at these adapters only
        #[arg(long, value_name = "ADAPTER", num_args = 1.., value_delimiter = ',')]
        adapters: Vec<String>,
        /// Not these steps; they count as skipped
        #[arg(long, value_name = "STEP", num_args = 1.., value_parser = steps::names())]
        skip: Vec<String>,
        /// Everything: each adapter with each, each booting in each way, a simulated hour and not some minutes of it
        #[arg(long)]
        full: bool,
        /// A part of another run, which has the sum
        #[arg(long, hide = true)]
        part: bool,
    },
    /// Formatting, lints and tests of the crates that changed, without real guests: minutes, while you work
    Quick {
        /// Revision to compare with; by default the last commit, or its parent if nothing is changed
        #[arg(long, value_name = "REVISION")]
        since: Option<String>,
    },
    /// Feeds arbitrary bytes to whatever a guest, a VMM, a peer or a person can reach; two targets at a time
    Fuzz {
        /// Minutes for each target
        #[arg(long, value_name = "N", default_value_t = 1.0)]
        minutes: f64,
        /// Only these targets (see fuzz/README.md)
        targets: Vec<String>,
    },
    /// Packages every crate of what is committed, builds each of them from its package alone (minutes), and prints in which order they
    /// could be published; publishes nothing
    Package,
    /// Makes a package for Debian 12 and 13 of what is checked out; builds the programs on the machine as it is
    Deb {
        /// Folder of finished programs, such as target/debug [default: a release build]
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// Folder for the package [default: the target folder's `debian`]
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
        /// Debian revision, the part of the version behind the hyphen
        #[arg(long, value_name = "N", default_value = "1")]
        revision: String,
        /// Also make nicety-dbgsym, with which gdb names functions and lines
        #[arg(long)]
        dbgsym: bool,
        /// How hard to compress, 0 to 9, as of xz(1): tests compress little
        #[arg(long, value_name = "LEVEL", default_value = "6", value_parser = clap::value_parser!(u8).range(0..=9))]
        level: u8,
    },
    /// Says what the version of Cargo.toml still lacks to be released
    ReleaseCheck,
    /// Lays QEMU, kernels and measuring programs from the machine's own Debian mirror into the cache (1 minute, 220 MB), and builds
    /// the user-mode kernel (some minutes, 166 MB)
    Guests {
        /// Remove all of it first, so that today's packages are brought
        #[arg(long)]
        again: bool,
        /// Boot a guest with each kernel
        #[arg(long)]
        boot: bool,
    },
}

fn main() -> anyhow::Result<ExitCode> {
    match Arguments::parse().command {
        Task::Fuzz { minutes, targets } => Ok(finish(&fuzz::run(minutes, &targets)?)),
        Task::Deb { programs, into, revision, dbgsym, level } => {
            let into = into.map_or_else(|| linked::target().map(|target| target.join("debian")), Ok)?;
            for package in deb::run(&deb::Order { programs, into, revision, dbgsym, level })? {
                println!("{}", package.display());
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::ReleaseCheck => release::run().map(|()| ExitCode::SUCCESS),
        Task::Package => Ok(finish(&package::command())),
        Task::Quick { since } => Ok(finish(&changed::run(since.as_deref())?)),
        Task::Test { only, adapters, skip, full, part } => {
            FULL.store(full, Ordering::Relaxed);
            _ = ADAPTERS.set(adapters);
            Ok(steps::run(&only, &skip, part))
        }
        Task::Guests { again, boot } => {
            let mut command = cargo();
            command.args(["run", "--quiet", "--package", "nicety-guests", "--example", "guests", "--"]);
            command.args(again.then_some("--again")).args(boot.then_some("--boot"));
            Ok(if command.status()?.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// Prints the sum of a command that is not a test run.
fn finish(tally: &tally::Tally) -> ExitCode {
    println!("{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_described_without_contradiction() {
        <Arguments as clap::CommandFactory>::command().debug_assert();
    }
}
