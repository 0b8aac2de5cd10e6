//! `cargo xtask release-check`: what the next release still lacks. It changes nothing.

use std::{fs, process::Command};

use anyhow::{Result, ensure};

use crate::{
    command::{cargo, output, root},
    deb, linked,
};

/// Folders of files that programs of ours have written, and that later versions read: docs/operating.md, "Formats that stay readable".
const GOLDEN: [&str; 4] = [
    "crates/trials/tests/golden",
    "crates/daemon/tests/golden",
    "crates/uplink/tests/golden",
    "crates/lab/tests/golden",
];

/// Prints what lacks, a line each.
///
/// # Errors
/// Something lacks, or cannot be looked at.
pub fn run() -> Result<()> {
    let version = deb::version()?;
    let lacking = [versions(&version)?, changelog(&version)?, licences()?, documents()?, golden_files()?].concat();
    for line in &lacking {
        println!("lacks: {line}");
    }
    ensure!(lacking.is_empty(), "{version} is not ready: {} of its conditions lack", lacking.len());
    println!("{version} is ready: now `cargo xtask test --full`, `cargo xtask package`, `cargo xtask deb`");
    Ok(())
}

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(root().join(path))?)
}

/// Crates of ours with another version than the workspace's, and lock files that are not their manifests'.
fn versions(version: &str) -> Result<Vec<String>> {
    let manifest = read("Cargo.toml")?;
    let rooms = manifest.lines().filter(|line| line.starts_with("nicety-") && line.contains("path = "));
    let other = rooms.filter(|line| !line.contains(&format!("version = \"{version}\"")));
    let mut lacking: Vec<String> = other.map(|line| format!("Cargo.toml: the version {version} in: {line}")).collect();
    let lock = read("fuzz/Cargo.lock")?;
    if !lock.contains(&format!("name = \"nicety-frame\"\nversion = \"{version}\"")) {
        lacking.push(format!("fuzz/Cargo.lock: the version {version}"));
    }
    for manifest in ["Cargo.toml", "fuzz/Cargo.toml"] {
        let mut resolve = cargo();
        resolve.args(["metadata", "--locked", "--format-version", "1", "--manifest-path"]);
        if let Err(why) = output(resolve.arg(root().join(manifest))) {
            let why = format!("{why:#}");
            lacking.push(format!("the lock file of {manifest}: {}", why.lines().next().unwrap_or_default()));
        }
    }
    Ok(lacking)
}

/// A section of this version with a date, and nothing unreleased.
fn changelog(version: &str) -> Result<Vec<String>> {
    Ok(changelog_of(&read("CHANGELOG.md")?, version))
}

fn changelog_of(text: &str, version: &str) -> Vec<String> {
    let mut lacking = Vec::new();
    let heading = text.lines().find_map(|line| line.strip_prefix(&format!("## {version} - ")));
    let is_date = |date: &str| date.len() == 10 && date.bytes().filter(u8::is_ascii_digit).count() == 8;
    if !heading.is_some_and(is_date) {
        lacking.push(format!("CHANGELOG.md: a section `## {version} - YYYY-MM-DD`"));
    }
    let unreleased = text.split("\n## ").find_map(|section| section.strip_prefix("Unreleased"));
    if unreleased.is_some_and(|section| section.lines().any(|line| line.starts_with("- "))) {
        lacking.push(format!("CHANGELOG.md: what is `Unreleased` belongs to {version}"));
    }
    lacking
}

/// Licence texts of what is linked.
fn licences() -> Result<Vec<String>> {
    let crates = linked::crates()?;
    let mut lacking = Vec::new();
    if let Err(error) = linked::copyright(&crates) {
        lacking.push(format!("licences: {error:#}"));
    }
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if read(name).is_err() {
            lacking.push(name.to_owned());
        }
    }
    for name in linked::without_text(&crates)? {
        println!("note: {name} comes without a licence file; the package has its licence's usual text");
    }
    Ok(lacking)
}

/// Sentences of the book that a release makes wrong.
fn documents() -> Result<Vec<String>> {
    let mut lacking = Vec::new();
    if read("SECURITY.md")?.contains("There is no release yet") {
        lacking.push("SECURITY.md: which versions are mended".to_owned());
    }
    Ok(lacking)
}

/// Golden files that an earlier release has, and that are gone or were changed. A release's tag is `v` and its version.
fn golden_files() -> Result<Vec<String>> {
    let git = |words: &[&str]| output(Command::new("git").arg("-C").arg(root()).args(words));
    let states = |revision: &str| git(&[&["ls-tree", "-r", revision], &GOLDEN[..]].concat()).map(|list| states(&list));
    let now = states("HEAD")?;
    let is_empty = |folder: &&&str| !now.iter().any(|(path, _)| path.starts_with(**folder));
    let mut lacking: Vec<String> =
        GOLDEN.iter().filter(is_empty).map(|folder| format!("{folder}: golden files, committed")).collect();
    for tag in git(&["tag", "--list", "v[0-9]*"])?.lines() {
        lacking.extend(lost(&states(tag)?, &now).map(|path| format!("{path}: as {tag} has it")));
    }
    Ok(lacking)
}

/// The golden files of a listing by `git ls-tree`: `100644 blob HASH<tab>PATH`. A test beside them is none.
fn states(list: &str) -> Vec<(String, String)> {
    let files = list.lines().filter_map(|line| line.split_once('\t'));
    let states = files.filter(|(_, path)| !path.ends_with(".rs"));
    states.map(|(hash, path)| (path.to_owned(), hash.to_owned())).collect()
}

fn lost<'a>(before: &'a [(String, String)], now: &'a [(String, String)]) -> impl Iterator<Item = &'a str> {
    before.iter().filter(|state| !now.contains(state)).map(|(path, _)| path.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_needs_a_dated_section_and_leaves_nothing_unreleased() {
        let ready = "# Changelog\n\n## Unreleased\n\n## 0.1.0 - 2026-12-01\n\n### Added\n- all\n";
        assert_eq!(changelog_of(ready, "0.1.0"), Vec::<String>::new());
        let begun = "# Changelog\n\n## Unreleased\n\n### Added\n- all\n";
        let lacking = changelog_of(begun, "0.1.0");
        assert_eq!(
            lacking,
            ["CHANGELOG.md: a section `## 0.1.0 - YYYY-MM-DD`", "CHANGELOG.md: what is `Unreleased` belongs to 0.1.0"]
        );
    }

    #[test]
    fn a_golden_file_of_a_release_stays_as_it_is() {
        let before = states(
            "100644 blob 11\tgolden/igb-v2.state\n100644 blob 22\tgolden/e1000-v3.state\n100644 blob 33\tgolden/main.rs\n",
        );
        let now = states(
            "100644 blob 11\tgolden/igb-v2.state\n100644 blob 44\tgolden/igb-v3.state\n100644 blob 55\tgolden/main.rs\n",
        );
        assert_eq!(lost(&before, &before).count(), 0);
        assert_eq!(lost(&before, &now).collect::<Vec<_>>(), ["golden/e1000-v3.state"]);
        let changed = states("100644 blob 12\tgolden/igb-v2.state\n");
        assert_eq!(lost(&before[..1], &changed).collect::<Vec<_>>(), ["golden/igb-v2.state"]);
    }
}
