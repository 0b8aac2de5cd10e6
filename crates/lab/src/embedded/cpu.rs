//! CPU time of a process (proc(5); the kernel's Documentation/scheduler/sched-stats.rst).

use std::fs;

/// Clock ticks a second in `/proc/PID/stat`. The value is fixed for programs on every Linux architecture that we build for.
const TICKS: f64 = 100.0;

/// CPU seconds used by all threads of a process: to the nanosecond where the scheduler reports them, else in ticks.
pub fn seconds_of(pid: u32) -> Option<f64> {
    scheduled(pid).or_else(|| ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?))
}

fn scheduled(pid: u32) -> Option<f64> {
    let mut total_ns = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten() {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        total_ns += text.split(' ').next()?.parse::<u64>().ok()?;
    }
    (total_ns > 0).then_some(total_ns as f64 / 1e9)
}

/// User and system time: fields 14 and 15. The second field, in parentheses, may hold anything.
fn ticks(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let (user, system): (f64, f64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some((user + system) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_has_parentheses_and_blanks_is_read_by_fields() {
        let stat = "77 (a) b) R 1 77 77 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 9 1 1";
        assert_eq!(ticks(stat), Some(3.0));
    }

    #[test]
    fn the_time_of_this_process_grows_as_it_works() {
        // The kernel counts in hundredths of a second. Work until one is over, at most half a minute.
        let own = || seconds_of(std::process::id()).expect("this process");
        let (before, began) = (own(), std::time::Instant::now());
        while own() <= before {
            assert!(began.elapsed().as_secs() < 30, "no time has been counted");
        }
        assert_eq!(seconds_of(u32::MAX), None);
    }
}
