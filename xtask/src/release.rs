//! `cargo xtask release-check`: what the next release still lacks. It changes nothing.

use std::fs;

use anyhow::{Result, ensure};

use crate::{deb, linked};

/// Prints what lacks, a line each.
///
/// # Errors
/// Something lacks, or cannot be looked at.
pub fn run() -> Result<()> {
    let version = deb::version()?;
    let lacking = [versions(&version)?, changelog(&version)?, licences()?, documents()?].concat();
    for line in &lacking {
        println!("lacks: {line}");
    }
    ensure!(lacking.is_empty(), "{version} is not ready: {} of its conditions lack", lacking.len());
    println!("{version} is ready: now `cargo xtask test --full`, `cargo xtask package`, `cargo xtask deb`");
    Ok(())
}

fn read(path: &str) -> Result<String> {
    Ok(fs::read_to_string(crate::root().join(path))?)
}

/// Crates of ours with another version than the workspace's.
fn versions(version: &str) -> Result<Vec<String>> {
    let manifest = read("Cargo.toml")?;
    let rooms = manifest.lines().filter(|line| line.starts_with("nicety-") && line.contains("path = "));
    let other = rooms.filter(|line| !line.contains(&format!("version = \"{version}\"")));
    let mut lacking: Vec<String> = other.map(|line| format!("Cargo.toml: the version {version} in: {line}")).collect();
    let lock = read("fuzz/Cargo.lock")?;
    if !lock.contains(&format!("name = \"nicety-frame\"\nversion = \"{version}\"")) {
        lacking.push(format!("fuzz/Cargo.lock: the version {version}"));
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
}
