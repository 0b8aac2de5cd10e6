//! The daemon that an example starts.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// The named program, or the one beside the examples. The latter is built first when Cargo started this example.
pub fn program(named: Option<PathBuf>) -> Result<PathBuf, String> {
    let nicety = named.map_or_else(beside, Ok)?;
    if !nicety.exists() {
        return Err(format!("{} is missing: cargo build --release -p nicety", nicety.display()));
    }
    Ok(nicety)
}

fn beside() -> Result<PathBuf, String> {
    // Cargo puts examples beside the programs.
    let own = env::current_exe().map_err(|error| error.to_string())?;
    if let Some(cargo) = env::var_os("CARGO") {
        let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
        let built =
            Command::new(cargo).args(["build", "--quiet", "--package", "nicety", "--profile", profile]).status();
        if !built.is_ok_and(|status| status.success()) {
            return Err("the daemon does not build: see above".to_owned());
        }
    }
    Ok(own.parent().and_then(Path::parent).unwrap_or(Path::new(".")).join("nicety"))
}
