//! Runs programs.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::tally::Tally;

/// A step that passes or fails as a whole.
pub fn one(name: &str, command: &mut Command) -> Tally {
    Tally::of_one(name, succeeds(command))
}

/// Whether a program ran and exited with 0. Prints the error if it could not run.
pub fn succeeds(command: &mut Command) -> bool {
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            println!("{} cannot be run: {error}", command.get_program().display());
            false
        }
    }
}

/// The output of a program that succeeds.
pub fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{program} cannot be run"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "{program} failed: {said}");
    Ok(String::from_utf8(output.stdout)?)
}
