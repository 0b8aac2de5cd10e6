//! The sandbox of a real daemon.

use rustix::process::Signal;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use crate::scratch::{HOST, Scratch, Served};

/// The lines of /proc/PID/task/*/status that say how each thread is confined: its name, `NoNewPrivs` and `Seccomp` (proc(5): 2 is
/// a filter).
fn threads(served: &Served) -> Vec<(String, String, String)> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", served.pid())).unwrap();
    let status = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let of = |status: &str, key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_else(|| panic!("{key} in {status}")).trim().to_owned()
    };
    status.map(|text| (of(&text, "Name:"), of(&text, "NoNewPrivs:"), of(&text, "Seccomp:"))).collect()
}

#[test]
fn every_thread_of_a_daemon_is_confined_and_with_sandbox_off_none_is() {
    let scratch = Scratch::with(HOST);
    let served = Served::start(&scratch);
    let all = threads(&served);
    for name in ["worker0", "memory vm1", "vhost vm2", "control", "log", "starter", "nicety"] {
        assert!(all.iter().any(|(thread, ..)| thread == name), "no {name} in {all:?}");
    }
    assert!(all.iter().all(|(_, privileges, filter)| privileges == "1" && filter == "2"), "{all:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\nsandbox = \"off\"\n"));
    let served = Served::start(&scratch);
    let all = threads(&served);
    assert!(all.iter().all(|(_, privileges, filter)| privileges == "0" && filter == "0"), "{all:?}");
    assert_eq!(served.end(Signal::TERM), Some(0));
}

#[test]
fn a_live_change_to_a_folder_that_was_not_granted_is_refused_with_the_key_to_set() {
    let (scratch, elsewhere) = (Scratch::with(HOST), Scratch::new());
    let served = Served::start(&scratch);
    let folder = elsewhere.path().display();
    let socket = format!("socket={folder}/vm3.sock");
    let add = ["port", "add", "vm3", "adapter=e1000", "mac=52:54:00:12:34:03", socket.as_str()];
    let refused = scratch.run(&add);
    let why = format!(
        "port vm3: the sandbox keeps this daemon out of {folder}: name it in [daemon] folders in the host file, and restart the daemon"
    );
    assert!(refused.code != Some(0) && refused.err.contains(&why), "{refused:?}");
    assert!(elsewhere.sockets().is_empty());
    assert_eq!(served.end(Signal::TERM), Some(0));
    let granted = Scratch::with(&format!("{HOST}\n[daemon]\nfolders = \"{folder}\"\n"));
    let served = Served::start(&granted);
    let added = granted.run(&add);
    assert_eq!((added.code, added.out.as_str()), (Some(0), "+ port vm3\n"), "{added:?}");
    assert_eq!(elsewhere.sockets(), ["vm3.sock"]);
    let removed = granted.run(&["port", "remove", "vm3"]);
    assert_eq!(removed.code, Some(0), "{removed:?}");
    assert!(elsewhere.sockets().is_empty(), "a worker has its socket removed");
    assert_eq!(served.end(Signal::TERM), Some(0));
    assert!(granted.sockets().is_empty() && scratch.sockets().is_empty());
}

/// Runs this on a thread, and in processes that it starts, where system calls meet this filter.
fn under<T: Send>(filter: SeccompFilter, act: impl FnOnce() -> T + Send) -> T {
    let filter = BpfProgram::try_from(filter).unwrap();
    let thread = || {
        seccompiler::apply_filter(&filter).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(thread).join().unwrap())
}

/// A filter that answers these calls so, each if one of its rules holds or it has none.
fn filter(calls: impl IntoIterator<Item = (i64, Vec<SeccompRule>)>, answer: SeccompAction) -> SeccompFilter {
    let machine = std::env::consts::ARCH.try_into().unwrap();
    SeccompFilter::new(calls.into_iter().collect(), SeccompAction::Allow, answer, machine).unwrap()
}

/// The argument has this value.
fn argument(index: u8, value: u64) -> SeccompRule {
    let is = SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value);
    SeccompRule::new(vec![is.unwrap()]).unwrap()
}

/// seccomp(2): numbers of the call, and of its operations.
#[cfg(target_arch = "x86_64")]
const SYS_SECCOMP: i64 = 317;
#[cfg(not(target_arch = "x86_64"))]
const SYS_SECCOMP: i64 = 277;
const SECCOMP_SET_MODE_FILTER: u64 = 1;
const SECCOMP_GET_ACTION_AVAIL: u64 = 2;
const EINVAL: u32 = 22;

#[test]
fn a_daemon_that_cannot_be_confined_does_not_serve_unless_it_is_told_to() {
    let off = format!("{HOST}\n[daemon]\nsandbox = \"off\"\n");
    for (operation, why) in [
        (SECCOMP_GET_ACTION_AVAIL, "this kernel cannot confine the daemon's threads (seccomp): "),
        (SECCOMP_SET_MODE_FILTER, "the thread log cannot be confined to its system calls (seccomp): "),
    ] {
        let refused = || filter([(SYS_SECCOMP, vec![argument(0, operation)])], SeccompAction::Errno(EINVAL));
        let scratch = Scratch::with(HOST);
        let ended = under(refused(), || scratch.run(&["serve"]));
        let words = format!("nicety: {why}");
        assert!(ended.code == Some(1) && ended.err.starts_with(&words), "{ended:?}");
        assert!(ended.err.ends_with("; sandbox = \"off\" in [daemon] serves without\n"), "{ended:?}");
        assert!(scratch.sockets().is_empty());
        let scratch = Scratch::with(&off);
        let served = under(refused(), || Served::start(&scratch));
        assert_eq!(served.end(Signal::TERM), Some(0));
    }
}

#[test]
fn a_folder_of_the_host_file_that_is_missing_at_the_start_is_a_warning_with_what_to_do() {
    let scratch = Scratch::with(&format!("{HOST}\n[daemon]\nfolders = \"vms\"\n"));
    let served = Served::start(&scratch);
    let folder = scratch.path().join("vms");
    let folder = folder.display();
    let warning = format!(
        "{folder} does not exist, and stays out of the daemon's reach: make that folder, and restart the daemon"
    );
    assert!(served.before.iter().any(|line| line.contains("WARN") && line.ends_with(&warning)), "{:?}", served.before);
    assert_eq!(served.end(Signal::TERM), Some(0));
    std::fs::create_dir(scratch.path().join("vms")).unwrap();
    let served = Served::start(&scratch);
    assert!(!served.before.iter().any(|line| line.contains("does not exist")), "{:?}", served.before);
    assert_eq!(served.end(Signal::TERM), Some(0));
}
