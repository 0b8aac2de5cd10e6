//! Whether the crates can be packaged: each with all the files that it is built from, and with versions on what it depends on.
//!
//! `publish = false` stays in the manifests. With it cargo packages no crate that depends on another one of the workspace: it takes
//! no such crate into the registry that stands for crates.io meanwhile (cargo, `src/cargo/ops/cargo_package`, `do_package`). So what is
//! packaged is a clone of what is committed, with that one line turned.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    cargo,
    steps::{one, succeeds},
    tally::Tally,
};

/// The line of the workspace's manifest that keeps the crates from being published, and what stands there in the clone.
const STAYS: [&str; 2] = ["\npublish = false\n", "\npublish = true\n"];

/// Packages every crate, in seconds; `build` builds each of them from its package alone, in minutes.
pub fn run(build: bool) -> Tally {
    let clone = Clone(env::temp_dir().join(format!("nicety-package-{}", std::process::id())));
    if let Err(error) = clone.make(&crate::root()) {
        println!("{}: {error}", clone.0.display());
        return Tally::of_one("package: a clone of what is committed", false);
    }
    let mut command = cargo();
    // The line that was turned is all that is dirty. What is packaged lies in the clone, and goes with it.
    command.args(["package", "--workspace", "--quiet", "--allow-dirty"]).args((!build).then_some("--no-verify"));
    command.current_dir(&clone.0).env("CARGO_TARGET_DIR", clone.0.join("target"));
    one("package", &mut command)
}

/// A clone for this purpose alone, gone at its end.
struct Clone(PathBuf);

impl Clone {
    fn make(&self, root: &Path) -> io::Result<()> {
        let mut git = Command::new("git");
        if !succeeds(git.args(["clone", "--quiet", "--shared"]).args([root, &self.0])) {
            return Err(io::Error::other("git has not cloned it"));
        }
        let manifest = self.0.join("Cargo.toml");
        let text = fs::read_to_string(&manifest)?;
        let [stays, turned] = STAYS;
        if !text.contains(stays) {
            return Err(io::Error::other("Cargo.toml does not keep the crates from being published"));
        }
        fs::write(manifest, text.replacen(stays, turned, 1))
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        // What is not there cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
