//! The sandbox of a real daemon.

use rustix::process::Signal;

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
