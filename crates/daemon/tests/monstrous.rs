//! Invalid host files that try to use up memory and time. The test has its own process, because the process's memory is measured.

use std::path::Path;
use std::time::Duration;

use nicety_host::Host;
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread. Other processes take none of it, however busy the machine is.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// The process's peak memory since the last reset, in MiB (proc(5): VmHWM).
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

/// Resets the peak: writing "5" does that (proc(5), clear_refs).
fn forget_peak() {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// A text of this many bytes, made of copies of a piece.
fn filled(begin: &str, piece: &str, end: &str, bytes: usize) -> String {
    [begin, &piece.repeat(bytes / piece.len()), end].concat()
}

#[test]
fn no_text_takes_more_than_a_hundred_mebibytes_or_a_few_seconds_of_a_processor_to_be_refused() {
    let mib = 1 << 20;
    for (name, text) in [
        ("empty lists", filled("a=[", "[],", "]", 12 * mib)),
        ("empty lists of a host file's length", filled("a=[", "[],", "]", 4 * mib - 10)),
        ("mistakes", filled("", "=\n", "", 10 * mib)),
        ("mistakes of a host file's length", filled("", "=\n", "", 4 * mib)),
        ("as many mistakes as it may have tokens", filled("", "=\n", "", 390_000)),
        ("as many lists as it may have tokens", filled("a=[", "[],", "]", 390_000)),
        ("lists in lists", filled("a=", "[", "", 390_000)),
        ("tables in tables", filled("a=", "{a=", "", 1_000_000)),
        ("a long line of mistakes", filled("", "= ", "", 390_000)),
        ("ports", filled("", "[[port]]\n", "", 500_000)),
        ("groups", (0..40_000).map(|number| format!("[[port_group]]\nname=\"g{number}\"\n")).collect()),
        ("unknown tables", (0..90_000).map(|number| format!("[t{number}]\n")).collect()),
        ("unknown keys", (0..90_000).map(|number| format!("k{number}=1\n")).collect()),
        ("a long name", filled("[[port]]\nname = \"", "x", "\"", 4 * mib - 100)),
        ("a long key", filled("[[port]]\n", "x", "=1", 4 * mib - 100)),
        ("a long word", filled("[[port]]\nadapter = \"", "e1000", "\"", 4 * mib - 100)),
        ("a long list", filled("[[port]]\nbound_macs = \"", ",", "\"", 4 * mib - 100)),
        ("a long trunk", filled("[[port]]\ntrunk = \"", "1,", "\"", 4 * mib - 100)),
        ("many addresses", filled("[[port]]\nbound_ips = \"", "::,", "\"", 4 * mib - 100)),
    ] {
        forget_peak();
        let (before, begun) = (peak_mib(), processor_time());
        let errors = Host::parse(&text, Path::new("/etc/host.toml")).unwrap_err();
        // VmHWM is inexact (proc(5)): it may be lower than before.
        let (more, took) = (peak_mib().saturating_sub(before), processor_time() - begun);
        println!("{name}: {more} MiB, {took:?}, {} mistakes, the first: {:.200}", errors.list.len(), errors.list[0]);
        assert!(more <= 100, "{name}: {more} MiB");
        assert!(took < Duration::from_secs(10), "{name}: {took:?}");
        assert!(errors.list.len() <= 101, "{name}: {}", errors.list.len());
    }
}

#[test]
fn mistakes_beyond_a_hundred_are_counted() {
    let lines: String = (0..250).map(|number| format!("k{number} = 1\n")).collect();
    let errors = Host::parse(&lines, Path::new("/etc/host.toml")).unwrap_err().to_string();
    let last = errors.lines().last().unwrap();
    assert!(errors.lines().count() == 100 && last.contains("; and 150 more mistakes"), "{last}");
    let lines = Host::parse(&"=\n".repeat(250), Path::new("/etc/host.toml")).unwrap_err().to_string();
    let last = lines.lines().last().unwrap();
    assert!(lines.lines().count() == 100 && last.contains("; and 150 more lines with mistakes"), "{last}");
}
