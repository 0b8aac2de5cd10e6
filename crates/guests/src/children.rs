//! Programs that this process has started, and their children.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

/// Asks all of them to end (SIGTERM): for example apt-get and its methods, or a compiler and its parent.
pub fn end_children() {
    // Youngest first: otherwise a parent would start replacements.
    for pid in descendants("self").into_iter().rev() {
        // The process may have ended meanwhile.
        let _ended = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
    }
}

/// The descendants of a process, each before its own children (proc(5), /proc/PID/task/TID/children).
fn descendants(process: &str) -> Vec<i32> {
    let mut found = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace() {
            found.extend(child.parse::<i32>());
            found.extend(descendants(child));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn children_and_their_children_are_found() {
        let mut shell = Command::new("sh").args(["-c", "sleep 60 & wait"]).stdin(Stdio::null()).spawn().unwrap();
        let pid = shell.id() as i32;
        let end = Instant::now() + Duration::from_secs(20);
        let mut sleeper = Vec::new();
        while sleeper.is_empty() {
            assert!(Instant::now() < end, "its child");
            sleeper = descendants(&pid.to_string());
        }
        let all = descendants("self");
        assert!(all.contains(&pid) && all.contains(&sleeper[0]));
        for pid in [pid, sleeper[0]] {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
        }
        shell.wait().unwrap();
    }
}
