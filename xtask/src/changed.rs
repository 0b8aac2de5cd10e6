//! `cargo xtask quick`: checks for a developer between two edits.

use std::{collections::BTreeSet, path::Path, process::Command};

use anyhow::{Context, Result, ensure};

use crate::{
    command::{cargo, one, root},
    guests, programs,
    steps::in_lanes,
    tally::Tally,
};

/// Checks the format of all crates, and lints and tests those that changed.
///
/// # Errors
/// git cannot list the changes.
pub fn run(since: Option<&str>) -> Result<Tally> {
    let root = root();
    let changed = match since {
        Some(revision) => changed(&root, revision)?,
        None => match changed(&root, "HEAD")? {
            none if none.is_empty() => changed(&root, "HEAD~1")?,
            some => some,
        },
    };
    let mut tally = one("fmt", cargo().args(["fmt", "--all", "--check"]));
    if changed.is_empty() {
        println!("no crate has changed");
        return Ok(tally);
    }
    println!("changed: {}", changed.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
    let packages: Vec<String> = changed.into_iter().flat_map(|name| ["--package".to_owned(), name]).collect();
    let mut clippy = cargo();
    clippy.args(["clippy", "--quiet"]).args(&packages).args(["--all-targets", "--", "-D", "warnings"]);
    tally += one("clippy", &mut clippy);
    let tests = programs::build(&packages)
        .and_then(|built| programs::tests(built.iter().filter(|program| !guests::is_theirs(program))));
    tally += in_lanes(tests);
    for failure in &tally.failures {
        println!("failed: {failure}");
    }
    Ok(tally)
}

/// The packages with a file that differs from a revision. Files that git does not track yet count too.
fn changed(root: &Path, revision: &str) -> Result<BTreeSet<String>> {
    let mut paths = git(root, &["diff", "--name-only", revision, "--"])?;
    paths += &git(root, &["ls-files", "--others", "--exclude-standard", "--full-name", ":/"])?;
    Ok(paths.lines().filter_map(package).collect())
}

/// The package of a file in the workspace.
fn package(path: &str) -> Option<String> {
    let mut folders = path.split('/');
    match (folders.next()?, folders.next()?) {
        ("crates", "nicety") => Some("nicety".to_owned()),
        ("crates", name) => Some(format!("nicety-{name}")),
        ("xtask", _) => Some("xtask".to_owned()),
        _ => None,
    }
}

fn git(root: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(root).args(words).output().context("git cannot be run")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", words.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_package_of_its_folder() {
        let packages = [
            "crates/frame/src/arp.rs",
            "crates/nicety/Cargo.toml",
            "xtask/src/main.rs",
            "docs/README.md",
            "Cargo.toml",
        ];
        let packages: Vec<_> = packages.into_iter().map(package).collect();
        let expected = [Some("nicety-frame"), Some("nicety"), Some("xtask"), None, None];
        assert_eq!(packages, expected.map(|name| name.map(str::to_owned)));
    }
}
