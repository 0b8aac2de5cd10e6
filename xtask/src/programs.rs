//! The workspace's test programs and their tests. One call of cargo builds the programs, so that no step builds them again.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, OnceLock, atomic::Ordering},
};

use anyhow::{Result, ensure};

use crate::command::{FULL, cargo};

/// A test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The package's folder and the target: `daemon/live`.
    pub name: String,
    /// The target's name. It identifies the programs with guests.
    pub target: String,
    pub path: PathBuf,
    /// The package's folder, in which cargo runs its tests.
    pub folder: PathBuf,
}

/// A test and its program.
#[derive(Debug, Clone)]
pub struct Test {
    pub program: Arc<Program>,
    pub name: String,
    /// Whether it waits for `--full`: `#[ignore]`, whose reason says what runs in its place.
    pub is_left: bool,
}

/// All test programs of the workspace, including those with real guests. The first call builds them.
///
/// # Errors
/// The build failed.
pub fn all() -> Result<&'static [Program]> {
    static ALL: OnceLock<Vec<Program>> = OnceLock::new();
    if let Some(programs) = ALL.get() {
        return Ok(programs);
    }
    let built = build(&["--workspace".to_owned()])?;
    // Only the examples remain to build: they share every library with the tests.
    ensure!(cargo().args(["build", "--workspace", "--examples"]).status()?.success(), "cargo build --examples failed");
    Ok(ALL.get_or_init(|| built))
}

/// Builds the test programs of the packages that cargo's arguments select.
///
/// # Errors
/// The build failed.
pub fn build(packages: &[String]) -> Result<Vec<Program>> {
    let mut command = cargo();
    // `--test '*'` includes the tests with real guests, which the manifests exclude from a plain `cargo test`.
    command.arg("test").args(packages).args(["--no-run", "--lib", "--bins", "--test", "*"]);
    let mut child = command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped()).spawn()?;
    let mut built = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|output| BufReader::new(output).lines()) {
        built.extend(program(&line?));
    }
    ensure!(child.wait()?.success(), "cargo test --no-run failed");
    Ok(built)
}

/// The test program in a line of cargo's output (the Cargo book, External tools, JSON messages).
fn program(line: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let target = message["target"]["name"].as_str()?.to_owned();
    let folder = PathBuf::from(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let path = message["executable"].as_str()?.into();
    Some(Program { name: format!("{package}/{target}"), target, path, folder })
}

/// The tests of these programs, in order.
///
/// # Errors
/// A program fails to list its tests.
pub fn tests<'a>(programs: impl IntoIterator<Item = &'a Program>) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for program in programs {
        let program = Arc::new(program.clone());
        let names = listed(&program, &[])?;
        let is_full = FULL.load(Ordering::Relaxed);
        let left = if is_full { Vec::new() } else { listed(&program, &["--ignored"])? };
        let test = |name: String| Test { program: program.clone(), is_left: left.contains(&name), name };
        tests.extend(names.into_iter().map(test));
    }
    Ok(tests)
}

fn listed(program: &Program, words: &[&str]) -> Result<Vec<String>> {
    let output = Command::new(&program.path).args(["--list", "--format", "terse"]).args(words).output()?;
    ensure!(output.status.success(), "{} lists no tests", program.name);
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_known_by_cargos_message() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/guests/Cargo.toml","target":{"kind":["test"],
            "name":"uml_guests"},"profile":{"test":true},"executable":"/w/target/debug/deps/uml_guests-1"}"#;
        let expected = Program {
            name: "guests/uml_guests".into(),
            target: "uml_guests".into(),
            path: "/w/target/debug/deps/uml_guests-1".into(),
            folder: "/w/crates/guests".into(),
        };
        assert_eq!(program(line), Some(expected));
        assert_eq!(program(&line.replace("true", "false")), None);
        assert_eq!(program(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(program("running 3 tests"), None);
    }
}
