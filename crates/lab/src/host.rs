//! Facts about the host without which a figure is worthless: processor, kernel, date, time stolen by neighbours, and time that other
//! processes took.
//!
//! Follows proc(5): `/proc/stat`, `/proc/PID/stat`, `/proc/cpuinfo`, `/proc/sys/kernel/osrelease`.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::param::clock_ticks_per_second;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::number;

/// Largest difference of the memory of one machine, as a fraction: a kernel keeps more or less of it for itself.
const MEMORY_VARIES: f64 = 0.02;

/// The host as it appears in the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// The processor's model name.
    pub cpu_model: String,
    /// Logical processors that this process may use.
    pub cores: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Start of the comparison: RFC 3339, in UTC.
    pub date: String,
    /// Percentage of all processors' time during the runs that the hypervisor gave to other machines. None where the kernel does not
    /// report it.
    pub steal_percent: Option<f64>,
    /// The version of Nicety, with the commit it was built from: `0.1.0 (6054bc91d2e3)`.
    pub nicety_version: String,
    /// Memory of the whole machine in bytes. None where the kernel does not report it. Version 2 of the format added this field and the
    /// next ones.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The hypervisor of the machine: `none` on bare metal. None where it is unknown.
    #[serde(default)]
    pub hypervisor: Option<String>,
    /// The first processor's frequency governor. None where the kernel has no governor, as in most virtual machines.
    #[serde(default)]
    pub governor: Option<String>,
    /// The machine's identity: a digest of `/etc/machine-id`, which is not published itself (machine-id(5)). None where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Logical processors of the whole machine. None where the kernel does not report them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processors: Option<u32>,
}

impl Host {
    /// This host, now. Steal time is not yet known.
    pub fn here() -> Host {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Host {
            cpu_model: cpu_model(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            cores: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
            kernel: if kernel.trim().is_empty() { "unknown".to_owned() } else { kernel.trim().to_owned() },
            date: rfc3339(seconds),
            steal_percent: None,
            nicety_version: nicety_version::BUILD.to_owned(),
            memory_bytes: memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            hypervisor: hypervisor(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default(), line_of),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            machine: line_of("/etc/machine-id").and_then(|id| machine(&id)),
            processors: line_of("/sys/devices/system/cpu/online").and_then(|list| processors(&list)),
        }
    }

    /// The first fact by which `other` is another machine than this one, with the fact here and there. Older results lack some facts:
    /// then the others decide.
    pub fn differs_from(&self, other: &Host) -> Option<Difference> {
        let said = |bytes: Option<u64>| bytes.map_or_else(|| "not known".to_owned(), number::memory);
        let fact = |what: &str, here: String, there: String| Difference { what: what.to_owned(), here, there };
        if let Some((ours, theirs)) = self.machine.as_ref().zip(other.machine.as_ref()).filter(|(one, two)| one != two)
        {
            return Some(fact("machine (a digest of /etc/machine-id)", ours.clone(), theirs.clone()));
        }
        if self.cpu_model != other.cpu_model {
            return Some(fact("processor", self.cpu_model.clone(), other.cpu_model.clone()));
        }
        // A process that may use fewer processors still runs on the same machine.
        let (ours, theirs) = self.processors.zip(other.processors).unwrap_or((self.cores, other.cores));
        if ours != theirs {
            return Some(fact("number of logical processors", ours.to_string(), theirs.to_string()));
        }
        let is_same = match (self.memory_bytes, other.memory_bytes) {
            (Some(one), Some(two)) => one.abs_diff(two) as f64 <= MEMORY_VARIES * one.max(two) as f64,
            (one, two) => one == two,
        };
        (!is_same).then(|| fact("memory", said(self.memory_bytes), said(other.memory_bytes)))
    }
}

/// A fact that differs between two hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The fact, in words.
    pub what: String,
    /// Its value at the first host.
    pub here: String,
    /// Its value at the other.
    pub there: String,
}

/// Digest of a machine's identity. None for what is none: during a first boot the file says `uninitialized`.
fn machine(id: &str) -> Option<String> {
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = || Sha256::new().chain_update("nicety lab machine ").chain_update(id).finalize();
    is_id.then(|| digest().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// Number of processors in a list such as `0-3,6` (cpuset(7), "List format").
fn processors(list: &str) -> Option<u32> {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        last.parse::<u32>().ok()?.checked_sub(first.parse().ok()?)?.checked_add(1)
    };
    list.split(',').map(count).sum()
}

/// The first model name in the text of `/proc/cpuinfo`.
fn cpu_model(cpuinfo: &str) -> String {
    let named = |line: &str| {
        let (key, value) = line.split_once(':')?;
        matches!(key.trim(), "model name" | "Model" | "cpu model" | "uarch").then(|| value.trim().to_owned())
    };
    cpuinfo.lines().find_map(named).unwrap_or_else(|| format!("unknown ({})", std::env::consts::ARCH))
}

/// Content of a file of one line, trimmed. None if it is empty or unreadable.
fn line_of(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// `MemTotal` of the text of `/proc/meminfo`, which counts in KiB.
fn memory_bytes(meminfo: &str) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The hypervisor, from three sources: the processor's flag `hypervisor` (x86 only), the machine's maker in the firmware, and
/// `/sys/hypervisor/type` (Xen).
fn hypervisor(cpuinfo: &str, line_of: impl Fn(&str) -> Option<String>) -> Option<String> {
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")?.split_once(':').map(|(_, flags)| flags));
    let is_virtual = flags?.split_whitespace().any(|flag| flag == "hypervisor");
    if !is_virtual {
        return Some("none".to_owned());
    }
    let made = ["/sys/class/dmi/id/sys_vendor", "/sys/class/dmi/id/product_name"].map(&line_of);
    let made: Vec<String> = made.into_iter().flatten().collect();
    let named = line_of("/sys/hypervisor/type").into_iter().chain((!made.is_empty()).then(|| made.join(", "))).next();
    Some(named.unwrap_or_else(|| "one that does not say its name".to_owned()))
}

/// Seconds since 1970 as RFC 3339 in UTC.
pub fn rfc3339(unix_seconds: u64) -> String {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days: years start in March, an era has 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// A figure is marked if other processes took more than this of all processors' time while it was measured, in percent.
pub const OTHERS_MAX_PERCENT: f64 = 10.0;
/// The mark of such a figure.
pub const LOADED_MARK: &str = "†";

/// The line that explains the mark.
pub fn loaded_words() -> String {
    format!(
        "{LOADED_MARK} Other processes took more than {OTHERS_MAX_PERCENT} % of the processors' time during a run of this figure: measure \
         again when the machine is quiet."
    )
}

/// Whether other processes took so much that a figure of this run is marked.
pub fn is_loaded(others_percent: Option<f64>) -> bool {
    others_percent.is_some_and(|percent| percent > OTHERS_MAX_PERCENT)
}

/// Ticks of all processors since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTimes {
    total: u64,
    steal: u64,
    /// The time of programs: user, nice and system. Interrupts are nobody's.
    programs: u64,
    /// That, and the time of interrupts: neither idle nor stolen.
    busy: u64,
}

impl CpuTimes {
    /// Reads `/proc/stat`. None if it cannot be read or parsed.
    pub fn now() -> Option<CpuTimes> {
        CpuTimes::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line of `/proc/stat`: `cpu user nice system idle iowait irq softirq steal guest guest_nice`.
    /// The last two are left out, because user and nice include them.
    pub fn parse(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let total = ticks.iter().fold(0_u64, |sum, value| sum.saturating_add(*value));
        let programs = ticks.iter().take(3).fold(0_u64, |sum, value| sum.saturating_add(*value));
        let [_, _, _, idle, waiting, _, _, steal]: [u64; 8] = ticks.try_into().ok()?;
        let busy = total.saturating_sub(idle).saturating_sub(waiting).saturating_sub(steal);
        Some(CpuTimes { total, steal, programs, busy })
    }

    /// Time that processors were busy from this mark until now, all together: with programs, the kernel's own threads and interrupts. None
    /// if the kernel does not report it.
    pub fn busy_time(mark: Option<CpuTimes>) -> Option<Duration> {
        let ticks = CpuTimes::now()?.busy.saturating_sub(mark?.busy);
        Some(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64))
    }

    /// Percentage of all time from this mark until now that was stolen. None if no tick has passed or the kernel does not report it.
    pub fn stolen_percent(mark: Option<CpuTimes>) -> Option<f64> {
        CpuTimes::now()?.steal_percent_since(&mark?)
    }

    /// Percentage of all time since `earlier` that was stolen. None if no tick has passed.
    pub fn steal_percent_since(&self, earlier: &CpuTimes) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|ticks| *ticks > 0)?;
        let steal = self.steal.saturating_sub(earlier.steal).min(total);
        Some(steal as f64 * 100.0 / total as f64)
    }
}

/// Ticks of the machine, and of this process with all its descendants: guests, VMMs, daemons and what they have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    machine: CpuTimes,
    own: u64,
}

impl Shares {
    /// Both, now. None if they cannot be read.
    pub fn now() -> Option<Shares> {
        let processes = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            // A process may end meanwhile: its parent has its ticks then.
            let (parent, ticks) = parent_and_ticks(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
            Some((pid, (parent, ticks)))
        });
        let own = of_tree(std::process::id(), &processes.collect());
        Some(Shares { machine: CpuTimes::now()?, own })
    }

    /// Percentage of all processors' time from this mark until now that other processes took. None if no tick has passed.
    pub fn others_percent(mark: Option<Shares>) -> Option<f64> {
        let percent = Shares::now()?.others_percent_since(&mark?)?;
        Some((percent * 10.0).round() / 10.0)
    }

    fn others_percent_since(&self, earlier: &Shares) -> Option<f64> {
        let total = self.machine.total.checked_sub(earlier.machine.total).filter(|ticks| *ticks > 0)?;
        let programs = self.machine.programs.saturating_sub(earlier.machine.programs);
        let others = programs.saturating_sub(self.own.saturating_sub(earlier.own)).min(total);
        Some(others as f64 * 100.0 / total as f64)
    }
}

/// A process's parent, and its ticks with those of its children that it has waited for: `ppid`, `utime`, `stime`, `cutime`, `cstime` of
/// `/proc/PID/stat`. The name before them may hold blanks and parentheses.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|ticks| ticks.parse::<u64>()).sum::<Result<u64, _>>().ok()?;
    Some((fields.get(1)?.parse().ok()?, ticks))
}

/// Ticks of a process and of all its descendants.
fn of_tree(root: u32, processes: &HashMap<u32, (u32, u64)>) -> u64 {
    let is_below = |mut pid: u32| {
        // No chain of parents is longer than there are processes.
        for _ in 0..processes.len() {
            if pid == root {
                return true;
            }
            match processes.get(&pid) {
                Some((parent, _)) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    processes.iter().filter(|(pid, _)| is_below(**pid)).map(|(_, (_, ticks))| ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_of_other_processes_are_those_of_programs_less_our_own_with_all_descendants() {
        // A process's name may have blanks and parentheses: proc_pid_stat(5).
        let stat = "42 (a (b) c) S 7 42 42 0 -1 4194560 1 2 3 4 10 20 300 4000 20 0 1 0 99 0 0";
        assert_eq!(parent_and_ticks(stat), Some((7, 4330)));
        assert_eq!([parent_and_ticks("42 (sh) S 7"), parent_and_ticks("")], [None, None]);
        let processes = [(1, (0, 1000)), (7, (1, 1)), (42, (7, 10)), (43, (42, 100)), (9, (1, 5000))];
        assert_eq!(of_tree(7, &HashMap::from(processes)), 111);
        let shares = |stat: &str, own| Shares { machine: CpuTimes::parse(stat).unwrap(), own };
        // 70 of 200 ticks are of programs, and 30 of these ours.
        let before = shares("cpu  100 0 50 800 10 0 0 40 0 0", 500);
        let after = shares("cpu  150 5 65 930 10 0 0 40 0 0", 530);
        assert_eq!(after.others_percent_since(&before), Some(20.0));
        assert_eq!(after.others_percent_since(&after), None);
        assert_eq!((is_loaded(Some(20.0)), is_loaded(Some(10.0)), is_loaded(None)), (true, false, false));
        assert!(Shares::now().unwrap().own > 0 || CpuTimes::now().unwrap().programs > 0);
    }

    #[test]
    fn dates_are_those_that_date_1_prints() {
        // date -u -d @N +%FT%TZ, GNU coreutils 9.1.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (68_169_600, "1972-02-29T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_763_715_247, "2025-11-21T08:54:07Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }

    #[test]
    fn steal_is_the_eighth_number_and_guest_time_is_not_counted_twice() {
        let before = CpuTimes::parse("cpu  100 0 50 800 10 0 0 40 70 0\ncpu0 1 2 3").unwrap();
        let after = CpuTimes::parse("cpu  150 0 50 830 10 0 0 60 99 0\n").unwrap();
        assert_eq!(after.steal_percent_since(&before), Some(20.0));
        assert_eq!(after.steal_percent_since(&after), None);
        assert_eq!(before.steal_percent_since(&after), None);
        // Neither idle time nor stolen time is work.
        assert_eq!((before.busy, after.busy), (150, 200));
        assert!(CpuTimes::busy_time(Some(CpuTimes { busy: 0, ..before })) > Some(Duration::ZERO));
    }

    #[test]
    fn a_stat_file_without_steal_time_or_with_garbage_is_not_understood() {
        for text in ["", "cpu", "cpu 1 2 3", "cpu a b c d e f g h", "intr 5", "cpu0 1 2 3 4 5 6 7 8"] {
            assert_eq!(CpuTimes::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_processor_is_named_on_each_architecture() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: other"), "AMD EPYC");
        assert_eq!(cpu_model("processor: 0\n\nModel\t\t: Raspberry Pi 4"), "Raspberry Pi 4");
        assert!(cpu_model("").starts_with("unknown"));
        assert!(!Host::here().kernel.is_empty());
    }

    #[test]
    fn memory_is_the_total_and_a_text_without_it_tells_nothing() {
        assert_eq!(memory_bytes("MemTotal:       24612340 kB\nMemFree: 1 kB\n"), Some(24_612_340 * 1024));
        for text in ["", "MemFree: 1 kB", "MemTotal: many kB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(memory_bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_machine_is_told_by_its_identity_and_hardware_whatever_processors_a_process_may_use() {
        let here = Host {
            machine: machine("0123456789abcdef0123456789abcdef"),
            processors: Some(2),
            cores: 2,
            memory_bytes: Some(8 << 30),
            ..Host::here()
        };
        let of = |other: Host| here.differs_from(&other).map(|difference| difference.what);
        let some = |what: &str| Some(what.to_owned());
        // taskset(1) and another kernel.
        assert_eq!(of(Host { cores: 1, memory_bytes: Some((8 << 30) - (64 << 20)), ..here.clone() }), None);
        let twin = machine("fedcba9876543210fedcba9876543210");
        assert_eq!(of(Host { machine: twin, ..here.clone() }), some("machine (a digest of /etc/machine-id)"));
        assert_eq!(of(Host { cpu_model: "other".to_owned(), ..here.clone() }), some("processor"));
        assert_eq!(of(Host { processors: Some(4), ..here.clone() }), some("number of logical processors"));
        assert_eq!(of(Host { memory_bytes: Some(4 << 30), ..here.clone() }), some("memory"));
        // Results of an earlier Nicety.
        let old = Host { machine: None, processors: None, ..here.clone() };
        assert_eq!(of(old.clone()), None);
        assert_eq!(of(Host { cores: 1, ..old }), some("number of logical processors"));
    }

    #[test]
    fn an_identity_leaves_the_machine_as_a_digest_and_a_machine_without_one_has_none() {
        let id = "0123456789abcdef0123456789abcdef";
        // printf 'nicety lab machine 0123456789abcdef0123456789abcdef' | sha256sum
        assert_eq!(machine(id).as_deref(), Some("94a638576abe9dd8"));
        assert_eq!([machine("uninitialized"), machine("")], [None, None]);
        assert_eq!(
            [processors("0-3,6"), processors("0"), processors("0-"), processors("")],
            [Some(5), Some(1), None, None]
        );
    }

    #[test]
    fn a_hypervisor_is_told_by_the_processors_flag_and_named_by_the_firmware() {
        let (vm, metal) = ("flags\t\t: fpu vme hypervisor lahf_lm\n", "flags\t\t: fpu vme lahf_lm\n");
        let dmi = |path: &str| match path {
            "/sys/class/dmi/id/sys_vendor" => Some("QEMU".to_owned()),
            "/sys/class/dmi/id/product_name" => Some("Standard PC (Q35 + ICH9, 2009)".to_owned()),
            _ => None,
        };
        assert_eq!(hypervisor(vm, dmi).as_deref(), Some("QEMU, Standard PC (Q35 + ICH9, 2009)"));
        assert_eq!(hypervisor(metal, dmi).as_deref(), Some("none"));
        assert_eq!(hypervisor(vm, |_| None).as_deref(), Some("one that does not say its name"));
        let xen = |path: &str| (path == "/sys/hypervisor/type").then(|| "xen".to_owned());
        assert_eq!(hypervisor(vm, xen).as_deref(), Some("xen"));
        assert_eq!(hypervisor("Features: fp asimd", dmi), None, "no flag of this architecture tells");
    }
}
