//! A keeper in this process: all that it and its daemons send each other passes through here, and a daemon is killed at one message, or
//! a state is another one.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use nicety_keeper::{Between, Channel, ChannelError, Seam, Start, keep_with, kind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::time::Timespec;

const SOON: Duration = Duration::from_secs(30);

/// Whether an answer, or a line of the log, says that an upgrade was refused only because the machine was busy: a worker may not stop in
/// its two seconds, or the next daemon not take the images in three. Then nothing was changed, and another upgrade may be made.
pub fn is_late(said: &str) -> bool {
    let is_refused =
        ["nothing was changed, and this daemon goes on", "not upgraded: "].iter().any(|words| said.contains(words));
    let late = ["a worker did not stop in time", "has stopped in the middle of a message", "no answer within"];
    is_refused && late.iter().any(|why| said.contains(why))
}

/// The daemon that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Old,
    New,
}

/// The kill of an upgrade.
#[derive(Debug)]
pub struct Plan {
    pub victim: Victim,
    /// The upgrade has been asked for. What a daemon has sent before is no step of it: on a busy machine it still passes here, and a VMM's
    /// connection that the keeper does not hold yet ends with its daemon.
    pub begun: bool,
    /// Messages that pass before it.
    pub left: usize,
    /// The process that serves before the upgrade.
    pub old: u64,
    /// The message at which it came.
    pub came: Option<String>,
}

/// A state becomes another one.
pub type Change = fn(&mut Vec<u8>);

/// A memory file with another content.
fn changed(file: OwnedFd, change: Change) -> OwnedFd {
    let mut bytes = Vec::new();
    let mut file = File::from(file);
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    change(&mut bytes);
    file.rewind().unwrap();
    file.set_len(0).unwrap();
    file.write_all(&bytes).unwrap();
    file.into()
}

/// The messages between the keeper and the daemons.
#[derive(Debug, Default)]
pub struct Relay {
    pub plan: Mutex<Option<Plan>>,
    /// States that are changed on their way to the next daemon: the kind of their message, and how.
    #[allow(dead_code, reason = "not all tests change one")]
    pub changed: Mutex<Option<(u8, Change)>>,
    /// Messages of this kind between the two daemons arrive so much later.
    #[allow(dead_code, reason = "not all tests delay one")]
    pub delayed: Mutex<Option<(u8, Duration)>>,
    /// The list of the keeper's children: proc(5).
    children: Mutex<PathBuf>,
    /// The relay is so late when it stops a daemon, as on a busy machine.
    #[allow(dead_code, reason = "not all tests are late")]
    pub late: Mutex<Duration>,
    /// The daemon that was stopped at a message, until it is killed.
    stopped: Mutex<Option<u64>>,
    /// The relay's ends of the keeper's channels. Their messages pass one by one.
    with_keeper: Mutex<Vec<Weak<[Channel; 2]>>>,
}

/// Sends a signal to a process, and waits until each of its threads has one of these states (proc(5)), or has gone.
fn signal(pid: u64, signal: Signal, states: [char; 3]) {
    // A private root has no `kill`. And the numbers are those of whoever has mounted /proc, which in a namespace are not kill(2)'s.
    if let Ok(process) = File::open(format!("/proc/{pid}")) {
        let _ended_by_itself = pidfd_send_signal(process, signal);
    }
    let end = Instant::now() + SOON;
    let still = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let states_of = threads.filter_map(|thread| state(&std::fs::read_to_string(thread.path().join("stat")).ok()?));
        states_of.filter(|state| !states.contains(state)).count() > 0
    };
    while still() {
        assert!(Instant::now() < end, "{pid} goes on after {signal:?}");
        std::thread::yield_now();
    }
}

/// The state in a line of proc(5)'s `stat`.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a keeper's child is a daemon: it also starts openers, and an acceptor.
pub fn is_daemon(pid: u64) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("--kept"))
}

/// Whether a daemon has sent the relay something that has not passed.
fn has_more(ends: &[Channel; 2]) -> bool {
    let mut fds = [PollFd::new(&ends[1], PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl Relay {
    /// Is the keeper. Returns when no daemon is left.
    pub fn keep(self: &Arc<Self>, start: &Start) -> std::io::Result<ExitStatus> {
        let task = std::fs::read_link("/proc/thread-self").unwrap();
        *self.children.lock().unwrap() = Path::new("/proc").join(task).join("children");
        let connect = |between| self.connect(between);
        keep_with(start, Seam { connect: &connect, restarts_most: usize::MAX, ..Seam::default() })
    }

    /// Process numbers of the daemons. The serving daemon is the last.
    pub fn pids(&self) -> Vec<u64> {
        let list = std::fs::read_to_string(&*self.children.lock().unwrap()).unwrap_or_default();
        list.split_whitespace().map(|pid| pid.parse().unwrap()).filter(|pid| is_daemon(*pid)).collect()
    }

    /// A channel whose messages pass here. The thread ends with either end.
    fn connect(self: &Arc<Self>, between: Between) -> Result<(Channel, Channel), rustix::io::Errno> {
        let ((first, here), (there, second)) = (Channel::pair()?, Channel::pair()?);
        let relay = Arc::clone(self);
        let ends = Arc::new([here, there]);
        if between == Between::KeeperAndDaemon {
            self.with_keeper.lock().unwrap().push(Arc::downgrade(&ends));
        }
        std::thread::spawn(move || while relay.pass_next(between, &ends) {});
        Ok((first, second))
    }

    /// Waits until one of these ends has a message, and passes on what has come. False if an end is closed.
    ///
    /// A daemon tells the keeper before it tells another daemon: the keeper's messages pass first.
    fn pass_next(&self, between: Between, ends: &[Channel; 2]) -> bool {
        let mut fds = ends.each_ref().map(|end| PollFd::new(end, PollFlags::IN));
        if poll(&mut fds, None).is_err() {
            return true;
        }
        let mut with_keeper = self.with_keeper.lock().unwrap();
        self.pass_keepers(&mut with_keeper);
        let goes_on = match between {
            Between::KeeperAndDaemon => with_keeper.iter().any(|one| std::ptr::eq(one.as_ptr(), ends)),
            Between::HeirAndDaemon => {
                drop(with_keeper);
                let goes_on = self.pass(between, ends);
                with_keeper = self.with_keeper.lock().unwrap();
                goes_on
            }
        };
        self.kill_stopped(&mut with_keeper);
        goes_on
    }

    fn pass_keepers(&self, with_keeper: &mut Vec<Weak<[Channel; 2]>>) {
        with_keeper.retain(|one| one.upgrade().is_some_and(|ends| self.pass(Between::KeeperAndDaemon, &ends)));
    }

    /// Kills the daemon that was stopped. A daemon may be some messages ahead of the relay, and what it has sent arrives before its end
    /// is seen. Else a daemon that has said that it serves might be taken for one that has not.
    fn kill_stopped(&self, with_keeper: &mut Vec<Weak<[Channel; 2]>>) {
        let Some(pid) = self.stopped.lock().unwrap().take() else { return };
        while with_keeper.iter().filter_map(Weak::upgrade).any(|ends| has_more(&ends)) {
            self.pass_keepers(with_keeper);
        }
        signal(pid, Signal::KILL, ['Z', 'X', 'x']);
    }

    /// Passes on what is there. False if an end is closed.
    fn pass(&self, between: Between, ends: &[Channel; 2]) -> bool {
        // Both, even if one end is closed: what it has sent before arrives.
        let passed = [(0, 1), (1, 0)].map(|(from, to)| match ends[from].receive(Duration::ZERO) {
            Ok(mut message) => {
                let change = *self.changed.lock().unwrap();
                if let Some((_, change)) = change.filter(|(kind, _)| *kind == message.kind)
                    && between == Between::HeirAndDaemon
                {
                    // The state is the first of them.
                    let file = message.fds.remove(0);
                    message.fds.insert(0, self::changed(file, change));
                }
                let delay = *self.delayed.lock().unwrap();
                if let Some((_, time)) = delay.filter(|(kind, _)| *kind == message.kind)
                    && between == Between::HeirAndDaemon
                {
                    std::thread::sleep(time);
                }
                if (between, message.kind) == (Between::KeeperAndDaemon, kind::UPGRADE) {
                    self.plan.lock().unwrap().iter_mut().for_each(|plan| plan.begun = true);
                }
                self.step(format_args!("{between:?}, end {from}: {}", message.kind));
                let fds: Vec<_> = message.fds.iter().map(AsFd::as_fd).collect();
                ends[to].send(message.kind, &message.content, &fds, SOON).is_ok()
            }
            Err(ChannelError::Late(_)) => true,
            Err(_closed) => false,
        });
        passed == [true; 2]
    }

    /// A message is about to arrive.
    fn step(&self, what: std::fmt::Arguments<'_>) {
        let mut plan = self.plan.lock().unwrap();
        let Some(plan) = plan.as_mut().filter(|plan| plan.begun && plan.came.is_none()) else { return };
        if plan.left > 0 {
            plan.left -= 1;
            return;
        }
        let is_victim = |pid: &&u64| (**pid == plan.old) == (plan.victim == Victim::Old);
        if let Some(pid) = self.pids().iter().find(is_victim) {
            std::thread::sleep(*self.late.lock().unwrap());
            signal(*pid, Signal::STOP, ['T', 'Z', 'X']);
            *self.stopped.lock().unwrap() = Some(*pid);
            plan.came = Some(what.to_string());
        }
    }
}
