//! Processes and their processor time as /proc counts it, in hundredths of a second (proc_pid_stat(5)).

use std::{fs, time::Duration};

/// What is read of a process's line.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// Neither a zombie nor dead.
    runs: bool,
    group: u32,
    own_ticks: u64,
    /// Those of its children that it has waited for.
    waited_ticks: u64,
}

/// Fields 3 (state), 5 (group), 14 and 15 (own), 16 and 17 (waited for); the second one is a name in brackets that may hold anything.
fn parse(line: &str) -> Option<Stat> {
    let fields: Vec<&str> = line.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        runs: !matches!(*fields.first()?, "Z" | "X"),
        group: fields.get(2)?.parse().ok()?,
        own_ticks: ticks(11)?.saturating_add(ticks(12)?),
        waited_ticks: ticks(13)?.saturating_add(ticks(14)?),
    })
}

fn stat(process: &str) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn duration(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(10))
}

/// The processor time of a process and its threads, or zero if it has ended.
pub(super) fn process_time(process: u32) -> Duration {
    duration(stat(&process.to_string()).map_or(0, |stat| stat.own_ticks))
}

/// The numbers of all processes.
fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes of a group that run: of a guest's, by [`Guest::process`](super::Guest::process), none when it has ended.
pub fn processes_of_group(group: u32) -> Vec<u32> {
    all().filter(|process| stat(&process.to_string()).is_some_and(|stat| stat.runs && stat.group == group)).collect()
}

/// The processor time of a process group: of those of its processes that run, and of those that they have waited for. A user-mode
/// kernel runs each of its processes as one of the host's.
pub(super) fn group_time(group: u32) -> Duration {
    let stats = all().filter_map(|process| stat(&process.to_string()));
    let ticks = stats.filter(|stat| stat.group == group).map(|stat| stat.own_ticks.saturating_add(stat.waited_ticks));
    duration(ticks.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_whose_name_looks_like_fields_is_read_all_the_same() {
        let line = "77 (a) S 1 (b) S 5 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 900 1 2\n";
        assert_eq!(parse(line), Some(Stat { runs: true, group: 42, own_ticks: 120, waited_ticks: 4 }));
        assert_eq!(parse(""), None);
        assert_eq!(parse("77 (a) S 1"), None);
    }

    #[test]
    fn our_own_group_has_used_at_least_what_we_have() {
        let own = std::process::id();
        let line = stat(&own.to_string()).expect("we run");
        let before = process_time(own);
        assert!(group_time(line.group) >= before);
        assert!(processes_of_group(line.group).contains(&own));
    }
}
