//! The Debian package: what lintian and systemd say of it, and a Debian with systemd in which it is installed, serves guests, is changed,
//! upgraded, removed and purged. Needs the network once, for two Debians and lintian, and a user-mode kernel.

mod cell;
mod hook;
mod keys;
mod libvirt;
mod lint;
mod memory;
mod scripts;
mod survives;
mod system;

use std::fmt::Display;
use std::fs::{self, File};
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

/// Packages of this build, whose revisions are 1 and 2. With `NICETY_FULL=1` (`cargo xtask test --full`) they are what a release has: of
/// the release profile. A package takes many seconds of a processor: the tests of a run of `cargo xtask test` (NICETY_RUN), each a process
/// of its own, share them.
struct Packages {
    folder: PathBuf,
    /// Without such a run: this process's own folder.
    _own: Option<tempfile::TempDir>,
}

impl Packages {
    fn made() -> &'static Packages {
        static MADE: OnceLock<Packages> = OnceLock::new();
        MADE.get_or_init(|| match std::env::var("NICETY_RUN") {
            Ok(run) => Packages { folder: shared(&run), _own: None },
            Err(_) => {
                let folder = tempfile::tempdir().unwrap();
                make(folder.path());
                Packages { folder: folder.path().to_owned(), _own: Some(folder) }
            }
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
        self.folder.join(format!("{name}_{}-{revision}_amd64.deb", env!("CARGO_PKG_VERSION")))
    }
}

/// The folder of a run's packages. The first test makes them, and others wait. Those of earlier runs go.
fn shared(run: &str) -> PathBuf {
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    fs::create_dir_all(&all).unwrap();
    let one_maker = File::create(all.join("lock")).unwrap();
    one_maker.lock().unwrap();
    let folder = all.join(run);
    if !folder.exists() {
        for old in fs::read_dir(&all).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            fs::remove_dir_all(old.path()).unwrap();
        }
        let unfinished = all.join("unfinished");
        fs::create_dir(&unfinished).unwrap();
        make(&unfinished);
        fs::rename(unfinished, &folder).unwrap();
    }
    folder
}

fn make(folder: &Path) {
    let programs = Path::new(env!("CARGO_BIN_EXE_nicety")).parent().unwrap();
    for revision in ["1", "2"] {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut made = Command::new(cargo);
        made.args(["run", "--quiet", "--package", "xtask", "--", "deb", "--revision", revision]);
        if !nicety_trials::scope::is_full() {
            made.arg("--programs").arg(programs);
        }
        made.arg("--into").arg(folder).current_dir(env!("CARGO_MANIFEST_DIR"));
        made.args((revision == "1").then_some("--dbgsym")).args(["--level", "0"]);
        let made = made.output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
}
