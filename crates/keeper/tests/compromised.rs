//! A daemon that was broken into asks its keeper for what it should not have. The test speaks for the daemon, which only sleeps.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use nicety_keeper::{Between, Channel, Seam, Start, keep_with, kind};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, Signal, getpid, getpriority_process, kill_process};

const SOON: Duration = Duration::from_secs(20);
/// A daemon runs before others so long at most.
const HURRY_MAX: Duration = Duration::from_millis(200);

/// The children of this process: proc(5), `/proc/PID/task/TID/children`.
fn children() -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + SOON;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn nice() -> Vec<i32> {
    children().into_iter().filter_map(|pid| getpriority_process(Some(pid)).ok()).collect()
}

/// Sends what the keeper answers, and waits for the answer: what was sent before was heard.
fn heard(daemon: &Channel) -> String {
    daemon.send(kind::UPGRADE, b"/no/such/program", &[], SOON).unwrap();
    let answer = daemon.receive(SOON).unwrap();
    assert_eq!(answer.kind, kind::REFUSED);
    answer.text()
}

#[test]
fn a_daemon_runs_before_vms_only_for_an_upgrade_that_the_keeper_has_begun_and_only_for_a_while() {
    let usual = getpriority_process(None).unwrap();
    let (give, ends) = channel::<OwnedFd>();
    // An opener ends at once.
    let script = "case $0 in --opens) exit;; esac; exec sleep 1000";
    let start = Start { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
    let keeper = std::thread::spawn(move || {
        let connect = |between| {
            let (ours, theirs) = Channel::pair()?;
            if between == Between::KeeperAndDaemon {
                let _test_over = give.send(fcntl_dupfd_cloexec(&theirs, 3)?);
            }
            Ok((ours, theirs))
        };
        keep_with(&start, Seam { connect: &connect, hurry_most: HURRY_MAX, ..Seam::default() }).unwrap()
    });
    let daemon = Channel::from(ends.recv_timeout(SOON).unwrap());
    assert_eq!(daemon.receive(SOON).unwrap().kind, kind::FIRST);
    daemon.send(kind::SERVES, b"", &[], SOON).unwrap();
    let why = heard(&daemon);
    assert!(why.contains("No such file"), "{why}");
    assert_eq!(nice(), [usual]);
    daemon.send(kind::STOPS, b"", &[], SOON).unwrap();
    heard(&daemon);
    assert_eq!(nice(), [usual], "no upgrade is made");
    for _ in 0..2 {
        daemon.send(kind::UPGRADE, b"/bin/sh", &[], SOON).unwrap();
        assert_eq!(daemon.receive(SOON).unwrap().kind, kind::STARTED);
        daemon.send(kind::STOPS, b"", &[], SOON).unwrap();
        let begun = Instant::now();
        let is_hurried = || nice() == [usual.min(-20); 2];
        until("it runs before others", || is_hurried() || begun.elapsed() > HURRY_MAX);
        until("it does so no more", || nice() == [usual; 2]);
        daemon.send(kind::STOPS, b"", &[], SOON).unwrap();
        assert_eq!(heard(&daemon), "another upgrade is under way");
        assert_eq!(nice(), [usual; 2], "once for each upgrade");
        daemon.send(kind::ABANDON, b"", &[], SOON).unwrap();
        until("the heir has gone", || children().len() == 1);
    }
    // Without end: not each of them is begun.
    let refusals = (0..600).map(|_| heard(&daemon)).filter(|why| why.contains("too often")).count();
    assert!(refusals > 100, "{refusals}");
    // Messages of no kind, and descriptors with each.
    let null = std::fs::File::open("/dev/null").unwrap();
    for _ in 0..2000 {
        daemon.send(99, b"", &[null.as_fd(), null.as_fd()], SOON).unwrap();
    }
    heard(&daemon);
    kill_process(getpid(), Signal::TERM).unwrap();
    assert!(!keeper.join().unwrap().success());
}
