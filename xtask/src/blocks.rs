//! Basic blocks that a step of the hostile guest runs, each counted by the compiler's instrumentation: accesses of guest memory are
//! not all work whose amount a guest chooses. The bound is `nicety_trials::hostile::BLOCKS`.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{cargo, fuzz, steps, tally::Tally};

/// Each basic block calls `__sanitizer_cov_trace_pc` (clang's documentation, SanitizerCoverage), which `nicety-memory` defines.
const FLAGS: &str =
    "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-trace-pc";
/// Seeds of the hostile guest, each with every adapter.
const SEEDS: &str = "8";

/// Builds the hostile guest with its counter, and runs it.
pub fn run() -> Tally {
    match build() {
        Ok(mut hostile) => steps::one("blocks: the hostile guest", &mut hostile),
        Err(error) => {
            println!("blocks: {error:#}");
            Tally::of_one("blocks: the hostile guest does not build", false)
        }
    }
}

/// The instrumented program, and its words. It has a folder of its own: other flags build all anew.
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
