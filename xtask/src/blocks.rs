//! Counts the basic blocks that each step of the hostile guest runs, by the compiler's instrumentation: a guest determines the amount of
//! other work too, not only of accesses to its memory. The bound is `nicety_trials::hostile::BLOCKS`.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{
    command::{self, cargo},
    fuzz,
    tally::Tally,
};

/// Each basic block calls `__sanitizer_cov_trace_pc` (clang's documentation, SanitizerCoverage), which `nicety-memory` defines.
const FLAGS: &str =
    "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc";
/// Number of seeds of the hostile guest, each with every adapter.
const SEEDS: &str = "8";

/// Builds the hostile guest with its counter, and runs it.
pub fn run() -> Tally {
    match build() {
        Ok(mut hostile) => command::one("blocks: the hostile guest", &mut hostile),
        Err(error) => {
            println!("blocks: {error:#}");
            Tally::of_one("blocks: the hostile guest does not build", false)
        }
    }
}

/// Builds the instrumented program. Returns its command. It has a target folder of its own, because other flags rebuild everything.
fn build() -> Result<Command> {
    let (triple, folder) = (fuzz::host()?, fuzz::programs().join("blocks"));
    let mut command = cargo();
    command.args(["build", "--quiet", "--release", "--package", "nicety-trials", "--features", "blocks"]);
    command.args(["--example", "hostile", "--target", &triple, "--target-dir"]).arg(&folder);
    command.env("RUSTFLAGS", FLAGS).env_remove("CARGO_ENCODED_RUSTFLAGS");
    command.env("CARGO_PROFILE_RELEASE_LTO", "false").env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    println!("blocks: building (minutes the first time)");
    ensure!(command.status()?.success(), "cargo build failed");
    let mut hostile = Command::new(folder.join(triple).join("release/examples/hostile"));
    hostile.args(["--seed", "0", "--seeds", SEEDS]);
    Ok(hostile)
}
