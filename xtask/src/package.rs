//! Checks that the crates can be packaged: each with all its source files, and with versions of its dependencies.
//!
//! `publish = false` stays in the manifests. With it cargo packages no crate that depends on another one of the workspace: it does not
//! put such a crate into the temporary registry that replaces crates.io (cargo, `src/cargo/ops/cargo_package`, `do_package`). So the
//! packages are made from a clone of the commit, with that one line changed.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{
    command::{cargo, one, root, succeeds},
    tally::Tally,
};

/// The line of the workspace's manifest that prevents publishing, and its replacement in the clone.
const PUBLISH_LINE: [&str; 2] = ["\npublish = false\n", "\npublish = true\n"];

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
