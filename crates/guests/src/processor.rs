//! Processes and their processor time as /proc counts it, in hundredths of a second (proc_pid_stat(5)).

use std::{fs, time::Duration};

/// The used fields of a process's or thread's `stat` line.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    /// The first fifteen bytes of its name (proc_pid_comm(5)).
    name: String,
    /// Neither a zombie nor dead.
    runs: bool,
    group: u32,
    own_ticks: u64,
    /// Ticks of the children for which it has waited.
    waited_ticks: u64,
}

/// Parses fields 3 (state), 5 (group), 14 and 15 (own ticks), 16 and 17 (waited-for ticks). The second field is a name in brackets that
/// may contain anything.
fn parse(line: &str) -> Option<Stat> {
    let (before, after) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = after.split(' ').collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        name: before.split_once('(')?.1.to_owned(),
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

/// The processor time of a process and its threads. Zero if it has ended.
pub(super) fn process_time(process: u32) -> Duration {
    duration(stat(&process.to_string()).map_or(0, |stat| stat.own_ticks))
}

/// IDs of all processes.
fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The running processes of a group. A guest's group is [`Guest::process`](super::Guest::process); it has none when the guest has ended.
pub fn processes_of_group(group: u32) -> Vec<u32> {
    all().filter(|process| stat(&process.to_string()).is_some_and(|stat| stat.runs && stat.group == group)).collect()
}

/// The processor time of a process group: that of its running processes, and of the children for which they have waited. A user-mode
/// kernel runs each of its processes as a process of the host.
pub(super) fn group_time(group: u32) -> Duration {
    let stats = all().filter_map(|process| stat(&process.to_string()));
    let ticks = stats.filter(|stat| stat.group == group).map(|stat| stat.own_ticks.saturating_add(stat.waited_ticks));
    duration(ticks.fold(0, u64::saturating_add))
}

/// The processor time of the virtual processors of a process group's QEMUs. QEMU names their threads `CPU 0/TCG` or `CPU 0/KVM`. None if
/// there is no such thread.
pub(super) fn virtual_processors_time(group: u32) -> Option<Duration> {
    let threads = processes_of_group(group).into_iter().flat_map(|process| {
        let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        entries.filter_map(move |entry| stat(&format!("{process}/task/{}", entry.file_name().to_str()?)))
    });
    let ticks = threads.filter(|stat| stat.name.starts_with("CPU ")).map(|stat| stat.own_ticks);
    ticks.reduce(u64::saturating_add).map(duration)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_process_whose_name_looks_like_fields_is_read_all_the_same() {
        let line = "77 (a) S 1 (b) S 5 42 42 0 -1 4194560 1 2 3 4 100 20 3 1 20 0 1 0 900 1 2\n";
        assert_eq!(
            parse(line),
            Some(Stat { name: "a) S 1 (b".into(), runs: true, group: 42, own_ticks: 120, waited_ticks: 4 })
        );
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

    #[test]
    fn threads_named_as_virtual_processors_are_told_from_others() {
        let group = stat(&std::process::id().to_string()).expect("we run").group;
        let seen_by = |name: &str| {
            let burn = move || {
                let begin = Instant::now();
                // The name is visible from the thread's first instruction. Its time is visible once it has used a hundredth of a second.
                while virtual_processors_time(group).is_some_and(|time| time.is_zero())
                    && begin.elapsed().as_secs() < 20
                {}
                virtual_processors_time(group)
            };
            std::thread::Builder::new().name(name.into()).spawn(burn).expect("a thread").join().expect("it ends")
        };
        assert!(seen_by("CPU 0/TCG").is_some_and(|time| !time.is_zero()));
        assert_eq!(seen_by("worker0"), None);
    }
}
