//! Python packages that tests use, each installed once into an environment of its own in the cache.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The folder of a package's programs, installed if it is missing. `None`, and a line that says so, if it cannot be installed: without
/// Python, pip or the network.
pub fn programs(package: &str, version: &str) -> Option<PathBuf> {
    match lay(package, version) {
        Ok(folder) => Some(folder.join("bin")),
        Err(why) => {
            skipped(package, &why);
            None
        }
    }
}

/// Says past the harness, which captures the output of tests that pass, that a test was not run.
pub fn skipped(what: &str, why: &str) {
    let _stdout_closed = writeln!(io::stdout(), "\nSKIPPED {what}: it cannot be laid: {why}");
}

fn lay(package: &str, version: &str) -> Result<PathBuf, String> {
    let tools = nicety_guests::cache().map_err(|error| error.to_string())?.join("tools");
    let folder = tools.join(format!("{package}-{version}"));
    let done = folder.join("laid");
    if !done.exists() {
        let run = |command: &mut Command| {
            let name = command.get_program().to_string_lossy().into_owned();
            let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name}: {error}"))?;
            // A Python without ensurepip prints its error on stdout.
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            if output.status.success() { Ok(()) } else { Err(format!("{name}: {last}")) }
        };
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let package = format!("{package}=={version}");
        run(Command::new(folder.join("bin/python")).args(["-m", "pip", "install", "--quiet", &package]))?;
        std::fs::write(&done, "").map_err(|error| error.to_string())?;
    }
    Ok(folder)
}
