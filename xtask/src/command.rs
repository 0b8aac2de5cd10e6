//! Runs programs, cargo among them, with the amount of testing that was asked for.

use std::{
    env,
    path::PathBuf,
    process::Command,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, ensure};

use crate::tally::Tally;

/// The clone in which cargo started this program. Cargo's variable decides, because clones may share a target folder.
pub fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join("..")
}

/// The cargo that runs us. It does not get the variables that describe our own package: ring's build script reads them, so a build would
/// not be that of a person's shell, and each of the two would build ring and all that needs it again.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        if ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    with_amount(command)
}

/// Whether `--full` was given.
pub static FULL: AtomicBool = AtomicBool::new(false);

/// The adapters to try. Unset or empty: the usual selection.
pub static ADAPTERS: OnceLock<Vec<String>> = OnceLock::new();

/// Passes the amount of testing to the command's tests, in variables that `crates/trials/src/scope.rs` and `crates/lab/tests/replay` read.
pub fn with_amount(mut command: Command) -> Command {
    if FULL.load(Ordering::Relaxed) {
        command.env("NICETY_FULL", "1").env("NICETY_EVERY_POINT", "1");
    }
    if let Some(names) = ADAPTERS.get().filter(|names| !names.is_empty()) {
        command.env("NICETY_ADAPTERS", names.join(","));
    }
    command
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_does_not_see_which_package_started_it() {
        let command = cargo();
        let is_removed = |name: &str| command.get_envs().any(|(key, value)| key == name && value.is_none());
        // cargo sets these for a test.
        for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_MAJOR"] {
            assert!(is_removed(name), "{name}");
        }
        assert!(!is_removed("CARGO"));
    }
}
