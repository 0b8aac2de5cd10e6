//! `nicety compare`, killed in the middle of a run: all its processes end, and the next run removes its leftover folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(20);

/// A folder for temporary files, for one test.
struct Place(TempDir);

impl Place {
    fn new() -> Place {
        Place(TempDir::new().unwrap())
    }

    /// A comparison that makes its temporary folders in this folder.
    fn compare(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.arg("compare").args(words).arg("--report").arg(self.0.path().join("report"));
        command.env("NICETY_LAB_LOCK", self.0.path().join("lab.lock"));
        command.env("TMPDIR", self.0.path()).env_remove("XDG_RUNTIME_DIR").stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(Stdio::null());
        command
    }

    /// The folders of comparisons.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "run")).collect()
    }
}

/// A process that is killed if its test fails.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Waits with a bound.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {SOON:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The child processes of a process: proc(5), `/proc/PID/task/TID/children`.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>()).collect()
}

/// Whether a process runs: a zombie does not.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

fn sockets(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "sock")).count()
}

#[test]
fn what_a_killed_comparison_has_started_ends_and_the_next_one_leaves_none_of_its_folders() {
    let place = Place::new();
    let mut killed = Killed(place.compare(&["--adapters", "e1000,vmxnet3", "--seconds", "5"]).spawn().unwrap());
    // A daemon, two guests and a peer for each adapter.
    let mut started = Vec::new();
    until("two daemons with their guests", || {
        started = children(killed.0.id());
        started.len() == 8
    });
    until("their sockets", || place.folders().iter().filter(|folder| sockets(folder) == 4).count() == 2);
    killed.0.kill().unwrap();
    killed.0.wait().unwrap();
    until("the end of its processes", || !started.iter().any(|&pid| runs(pid)));
    let left = place.folders();
    assert_eq!(left.len(), 2, "nobody could remove them");
    assert!(left.iter().all(|folder| sockets(folder) == 0), "daemons end in order");
    // A later comparison leaves a running one alone.
    let other = Killed(place.compare(&["--adapters", "e1000", "--seconds", "5"]).spawn().unwrap());
    until("the other one's folder", || {
        place.folders().iter().any(|folder| !left.contains(folder) && sockets(folder) == 4)
    });
    let others = place.folders();
    let mut next = place.compare(&["--adapters", "e1000", "--seconds", "0.1", "--repeat", "1"]);
    // With a lock of its own: else it would not begin.
    let next = next.env("NICETY_LAB_LOCK", place.0.path().join("next.lock")).status().unwrap();
    assert!(next.success());
    assert_eq!((others.len(), place.folders()), (1, others));
    drop(other);
}
