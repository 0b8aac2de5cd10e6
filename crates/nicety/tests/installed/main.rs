//! The Debian package: what lintian and systemd say of it, and a Debian with systemd in which it is installed, serves guests, is changed,
//! upgraded, removed and purged. Needs the network once, for two Debians and lintian, and a user-mode kernel.

mod cell;
mod libvirt;
mod lint;
mod memory;
mod system;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The value. An error fails the test.
#[track_caller]
fn well<T, E: Display>(result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

fn say(line: &str) {
    eprintln!("{line}");
}

/// Packages of this build, whose revisions are 1 and 2.
struct Packages {
    folder: tempfile::TempDir,
}

impl Packages {
    fn made() -> &'static Packages {
        static MADE: OnceLock<Packages> = OnceLock::new();
        MADE.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let programs = Path::new(env!("CARGO_BIN_EXE_nicety")).parent().unwrap();
            for revision in ["1", "2"] {
                let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
                let mut made = Command::new(cargo);
                made.args(["run", "--quiet", "--package", "xtask", "--", "deb", "--revision", revision, "--programs"]);
                made.arg(programs).arg("--into").arg(folder.path()).current_dir(env!("CARGO_MANIFEST_DIR"));
                made.args((revision == "1").then_some("--dbgsym"));
                let made = made.output().unwrap();
                assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            }
            Packages { folder }
        })
    }

    fn path(&self, revision: u32) -> PathBuf {
        self.file("nicety", revision)
    }

    /// The symbols of the package of revision 1.
    fn symbols(&self) -> PathBuf {
        self.file("nicety-dbgsym", 1)
    }

    fn file(&self, name: &str, revision: u32) -> PathBuf {
        self.folder.path().join(format!("{name}_{}-{revision}_amd64.deb", env!("CARGO_PKG_VERSION")))
    }
}
