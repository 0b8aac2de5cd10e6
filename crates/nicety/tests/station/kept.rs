//! A daemon with a keeper, asked by commands as a user asks it.

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::station::{self, Process};

const SOON: Duration = Duration::from_secs(30);

/// A keeper and its folder. The host file there names `control.sock`.
pub struct Kept {
    pub dir: TempDir,
    pub keeper: Process,
}

impl Kept {
    /// Serves the host file of a folder, and waits until commands are answered.
    pub fn serve(dir: TempDir) -> Kept {
        let keeper = station::keep(dir.path());
        let kept = Kept { dir, keeper };
        kept.until("it serves", || kept.asked(&["ports"]).status.success());
        kept
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap()
    }

    pub fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + SOON;
        while !is_so() {
            assert!(Instant::now() < end, "{what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn asked(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(words).arg("--control").arg(self.path("control.sock")).output().unwrap()
    }

    pub fn done(&self, words: &[&str]) {
        let output = self.asked(words);
        assert!(output.status.success(), "{words:?}: {}\n{}", String::from_utf8_lossy(&output.stderr), self.log());
    }
}
