//! Asks git for the commit. Without git, or outside the project's own repository, the build has no commit.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let variable = |name| env::var(name).unwrap_or_default();
    let version = variable("CARGO_PKG_VERSION");
    let own = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let root = own.ancestors().nth(2).filter(|root| root.join(".git").exists());
    match root.and_then(commit) {
        Some(commit) => {
            println!("cargo::rustc-env=NICETY_COMMIT={commit}");
            println!("cargo::rustc-env=NICETY_BUILD={version} ({commit})");
        }
        None => println!("cargo::rustc-env=NICETY_BUILD={version}"),
    }
}

/// The first twelve digits. git's own short form has as many digits as the clone needs.
fn commit(root: &Path) -> Option<String> {
    // git appends to the log whenever HEAD moves, on any branch. A clone may keep no log.
    for file in ["HEAD", "logs/HEAD"] {
        let file = git(root, &["rev-parse", "--git-path", file]).map(|file| root.join(file));
        if let Some(file) = file.filter(|file| file.exists()) {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    Some(git(root, &["rev-parse", "HEAD"])?.get(..12)?.to_owned())
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(words).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}
