//! The daemon's use of the machine: CPU time of its threads, as the scheduler counts it (/proc/PID/task/TID/schedstat, in
//! nanoseconds), and that of the whole process (proc(5)).

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

/// The use of the machine by the whole process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Process {
    /// CPU time of all its threads, ended ones included.
    pub cpu: Duration,
    /// Resident memory in bytes, shared memory of VMs included.
    pub resident_bytes: u64,
    /// Address space in bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// The limit of open file descriptors. `None`: there is none.
    pub open_files_most: Option<u64>,
    /// The start of the process in seconds since 1970-01-01 00:00 UTC.
    pub start_seconds: f64,
}

/// The use of the machine by this process. `None` without /proc.
pub fn process() -> Option<Process> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let pages = read("/proc/self/statm")?;
    let mut pages = pages.split_whitespace().map(|pages| pages.parse::<u64>().ok());
    let bytes = |pages: u64| pages.saturating_mul(page_size() as u64);
    let (virtual_bytes, resident_bytes) = (bytes(pages.next()??), bytes(pages.next()??));
    // By nix: rustix panics where the vDSO has no getcpu, as in user-mode Linux.
    let cpu = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?.into();
    // Reading the folder takes a descriptor of its own.
    let open_files = std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
    // Field 22 is the start; the second field, a name in brackets, may have blanks.
    let stat = read("/proc/self/stat")?;
    let after_boot: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let system = read("/proc/stat")?;
    let boot: f64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(Process {
        cpu,
        resident_bytes,
        virtual_bytes,
        open_files,
        open_files_most: getrlimit(Resource::Nofile).current,
        start_seconds: boot + after_boot as f64 / clock_ticks_per_second() as f64,
    })
}

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
    fn the_process_is_as_the_system_knows_it() {
        let before = process().unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        // The unit of /proc/stat's btime is a second, and tests begin soon after their process.
        assert!((now - 600.0..now + 1.0).contains(&before.start_seconds), "{before:?}, now {now}");
        assert!(before.resident_bytes > 1 << 20 && before.virtual_bytes > before.resident_bytes, "{before:?}");
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let after = process().unwrap();
        // Other tests open and close files meanwhile.
        assert!(after.open_files > before.open_files.min(50) && after.open_files >= files.len() as u64, "{after:?}");
        assert!(after.open_files_most.is_none_or(|most| most >= after.open_files), "{after:?}");
        assert!(after.cpu >= before.cpu && after.cpu > Duration::ZERO, "{after:?}");
    }

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
