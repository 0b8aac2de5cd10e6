//! CPU time of the daemon's threads, as the scheduler counts it (/proc/PID/task/TID/schedstat, in nanoseconds).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// CPU time by thread name, summed per name. Empty if this kernel does not count it.
pub fn threads() -> BTreeMap<String, Duration> {
    let mut all = BTreeMap::new();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for (name, time) in tasks.filter_map(|task| thread(&task.path())) {
        *all.entry(name).or_default() += time;
    }
    all
}

/// The name and CPU time of one thread. `None` if it has ended.
fn thread(task: &Path) -> Option<(String, Duration)> {
    let name = std::fs::read_to_string(task.join("comm")).ok()?;
    let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
    let ran_ns = times.split_whitespace().next()?.parse().ok()?;
    Some((name.trim_end().to_owned(), Duration::from_nanos(ran_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_works_has_worked_longer_afterwards() {
        let worked = std::thread::Builder::new().name("works".to_owned()).spawn(|| {
            let before = threads()["works"];
            let mut after = before;
            while after < before + Duration::from_millis(5) {
                after = threads()["works"];
            }
        });
        worked.unwrap().join().unwrap();
    }
}
