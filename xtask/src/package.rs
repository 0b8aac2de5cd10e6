//! Checks that the crates can be packaged: each with all its source files, and with versions of its dependencies.
//!
//! `publish = false` stays in the manifests. With it cargo packages no crate that depends on another one of the workspace: it does not
//! put such a crate into the temporary registry that replaces crates.io (cargo, `src/cargo/ops/cargo_package`, `do_package`). So the
//! packages are made from a clone of the commit, with that one line changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    command::{cargo, one, output, root, succeeds},
    tally::Tally,
};

/// The developer's commands, which are of no use outside this repository.
const OWN: &str = env!("CARGO_PKG_NAME");

/// The line of the workspace's manifest that prevents publishing, and its replacement in the clone.
const PUBLISH_LINE: [&str; 2] = ["\npublish = false\n", "\npublish = true\n"];

/// `cargo xtask package`: packages and builds every crate, publishes nothing, and prints in which order the crates could be published.
pub fn command() -> Tally {
    let mut tally = run(true);
    match order() {
        Ok(steps) => {
            println!(
                "Nothing was published. The crates of a line need only those of the lines above it, in their tests too:"
            );
            steps.iter().zip(1..).for_each(|(step, number)| println!("{number:3}. {}", step.join(" ")));
        }
        Err(error) => {
            println!("{error:#}");
            tally += Tally::of_one("package: an order of the crates", false);
        }
    }
    tally
}

/// The crates that other people could use or install, a step of a publication after the other.
fn order() -> Result<Vec<Vec<String>>> {
    let mut command = cargo();
    command.args(["metadata", "--no-deps", "--locked", "--format-version=1"]).current_dir(root());
    let metadata: Value = serde_json::from_str(&output(&mut command)?)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]).into_iter().filter(|package| package["name"] != OWN);
    steps(packages.map(|package| (text(&package), list(&package["dependencies"]).iter().map(text).collect())).collect())
}

/// Each step has the crates whose needs the earlier steps have. Names that are no key are of other people's crates.
fn steps(mut left: BTreeMap<String, BTreeSet<String>>) -> Result<Vec<Vec<String>>> {
    let mut steps = Vec::new();
    while !left.is_empty() {
        let waits = |needs: &BTreeSet<String>| needs.iter().any(|name| left.contains_key(name));
        let step: Vec<String> = left.iter().filter(|(_, needs)| !waits(needs)).map(|(name, _)| name.clone()).collect();
        let circle: Vec<&str> = left.keys().map(String::as_str).collect();
        ensure!(!step.is_empty(), "these crates need each other, or one of those that do: {}", circle.join(", "));
        left.retain(|name, _| !step.contains(name));
        steps.push(step);
    }
    Ok(steps)
}

/// Packages every crate, which takes seconds. `build` also builds each of them from its package alone, which takes minutes.
pub fn run(build: bool) -> Tally {
    let clone = Clone(env::temp_dir().join(format!("nicety-package-{}", std::process::id())));
    if let Err(error) = clone.make(&root()) {
        println!("{}: {error}", clone.0.display());
        return Tally::of_one("package: a clone of what is committed", false);
    }
    let mut command = cargo();
    // Only the changed line is dirty. The packages are written into the clone, and are removed with it.
    command.args(["package", "--workspace", "--quiet", "--allow-dirty"]).args((!build).then_some("--no-verify"));
    command.current_dir(&clone.0).env("CARGO_TARGET_DIR", clone.0.join("target"));
    one("package", &mut command)
}

/// A clone for this purpose alone, removed at its end.
struct Clone(PathBuf);

impl Clone {
    fn make(&self, root: &Path) -> io::Result<()> {
        let mut git = Command::new("git");
        if !succeeds(git.args(["clone", "--quiet", "--shared"]).args([root, &self.0])) {
            return Err(io::Error::other("git has not cloned it"));
        }
        let manifest = self.0.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        let [stays, turned] = PUBLISH_LINE;
        if !text.contains(stays) {
            return Err(io::Error::other("Cargo.toml does not keep the crates from being published"));
        }
        fs::write(manifest, text.replacen(stays, turned, 1))
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        // A clone that was not made cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crates(needs: &[(&str, &[&str])]) -> BTreeMap<String, BTreeSet<String>> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        needs.iter().map(|(name, needs)| ((*name).to_owned(), owned(needs))).collect()
    }

    #[test]
    fn a_crate_comes_after_those_that_it_needs_and_crates_that_need_each_other_are_named() {
        let all =
            crates(&[("top", &["left", "right"]), ("left", &["base", "serde"]), ("right", &["base"]), ("base", &[])]);
        let order = steps(all).unwrap();
        assert_eq!(order, [vec!["base"], vec!["left", "right"], vec!["top"]]);
        let circle = crates(&[("base", &[]), ("left", &["base", "right"]), ("right", &["left"])]);
        let error = steps(circle).unwrap_err().to_string();
        assert_eq!(error, "these crates need each other, or one of those that do: left, right");
    }

    #[test]
    fn the_program_is_the_last_crate_of_the_workspace_s_order() {
        let order = order().unwrap();
        assert_eq!(order.last().unwrap(), &["nicety"]);
        assert!(order.iter().flatten().all(|name| name != OWN));
    }
}
