//! QEMU's process. The QEMU that has lost its VM is told to `quit`, and is killed if it does not end.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nicety_qmp::{Command, Item, Monitor};
use nix::errno::Errno as Error;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

/// The time from `quit` to the kill.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The name of the descriptor that proves who QEMU is.
const PROOF: &str = "nicety-process";

/// A process. Its descriptor means this one alone, also when its number is used again.
#[derive(Debug)]
pub(super) struct Process {
    fd: OwnedFd,
    /// Its number, for a person. 0: this daemon's namespace of processes has no number for it.
    pid: i32,
}

impl Process {
    /// The one that listens where this socket is connected to.
    fn of(socket: BorrowedFd<'_>) -> Result<Self, String> {
        let pid = getsockopt(&socket, PeerCredentials).map_or(0, |found| found.pid());
        if u32::try_from(pid) == Ok(std::process::id()) {
            return Err("it is this daemon's own process".to_owned());
        }
        match getsockopt(&socket, PeerPidfd) {
            Ok(fd) => Ok(Self { fd, pid }),
            Err(Error::ENOPROTOOPT) => {
                Err("the kernel is older than Linux 6.5, and does not say which one it is".to_owned())
            }
            Err(errno) => Err(format!("the kernel does not say which one it is: {errno}")),
        }
    }

    fn has_ended(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    fn name(&self) -> String {
        if self.pid > 0 { format!("process {}", self.pid) } else { "a process of another namespace".to_owned() }
    }

    fn kill(&self) -> Result<(), String> {
        let why = match pidfd_send_signal(&self.fd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => return Ok(()),
            Err(Errno::PERM) => "it belongs to another user".to_owned(),
            Err(Errno::INVAL) => "it is outside this daemon's namespace of processes".to_owned(),
            Err(errno) => errno.to_string(),
        };
        let hint = if self.pid > 0 { format!("kill -9 {}", self.pid) } else { "kill -9".to_owned() };
        Err(format!("this daemon may not kill it ({}): {why}; {hint}, or systemctl kill -s KILL its unit", self.name()))
    }
}

/// The process at the other end of a connection to a control socket. A program in between, such as socat, is another process than QEMU,
/// and takes no descriptors: QEMU then answers `getfd` with an error. So the process that listens is QEMU's if a descriptor has arrived.
#[derive(Debug)]
pub(super) enum Identity {
    /// Why it is not known, for a person.
    Unknown(String),
    /// A descriptor was sent, by the command of this number.
    Asked(u64, Process),
    /// It is QEMU.
    Known(Process),
}

impl Default for Identity {
    fn default() -> Self {
        Self::Unknown("its control socket has not answered".to_owned())
    }
}

impl Identity {
    /// Asks who it is.
    pub fn ask(monitor: &mut Monitor, now: Instant) -> Self {
        let found = Process::of(monitor.as_fd()).and_then(|process| {
            let proof = process.fd.try_clone().map_err(|error| error.to_string())?;
            Ok((monitor.give(PROOF, proof, now), process))
        });
        found.map_or_else(Self::Unknown, |(id, process)| Self::Asked(id, process))
    }

    /// Takes an item of the control socket: it may be the answer to [`Identity::ask`].
    pub fn hear(&mut self, item: &Item, monitor: &mut Monitor, now: Instant) {
        let (Self::Asked(asked, _), Item::Answer { id, result }) = (&*self, item) else { return };
        if asked != id {
            return;
        }
        *self = match (std::mem::take(self), result) {
            (Self::Asked(_, process), Ok(_)) => {
                monitor.send(&Command::new("closefd", json!({"fdname": PROOF})), now);
                Self::Known(process)
            }
            (Self::Asked(_, process), Err(failure)) => Self::Unknown(format!(
                "its control socket is another program's ({}), which takes no descriptors: {failure}",
                process.name()
            )),
            (known, _) => known,
        };
    }
}

/// A QEMU that was told to end.
#[derive(Debug)]
pub(super) struct Ending {
    since: Instant,
    who: Result<Process, String>,
    is_late: bool,
    /// Why it is still there, for a person.
    why: Option<String>,
}

impl Ending {
    pub fn new(who: Identity, now: Instant) -> Self {
        let who = match who {
            Identity::Known(process) => Ok(process),
            Identity::Unknown(why) => Err(why),
            Identity::Asked(_, process) => Err(format!("its control socket ({}) does not answer", process.name())),
        };
        Self { since: now, who, is_late: false, why: None }
    }

    /// Why it is still there.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// When something is due.
    pub fn wake_at(&self) -> Option<Instant> {
        (!self.is_late).then(|| self.since + PATIENCE)
    }

    /// Whether it is over. A QEMU whose process is not known has ended when its control socket is closed.
    pub fn is_over(&self, is_connected: bool) -> bool {
        self.who.as_ref().map_or(!is_connected, Process::has_ended)
    }

    /// Kills it, if it has had its time. Returns what to say, once.
    pub fn turn(&mut self, now: Instant) -> Option<String> {
        if self.is_late || now < self.since + PATIENCE {
            return None;
        }
        self.is_late = true;
        let (done, why) = match &self.who {
            Ok(process) => match process.kill() {
                Ok(()) => (format!("{}, is killed", process.name()), None),
                Err(why) => (why.clone(), Some(why)),
            },
            Err(why) => {
                let why = format!("its process is not known: {why}. Kill QEMU, or systemctl kill -s KILL its unit");
                (why.clone(), Some(why))
            }
        };
        self.why = why.map(|why| format!("its QEMU has not ended within {PATIENCE:?}, and {why}"));
        Some(self.why.clone().unwrap_or_else(|| format!("QEMU has not ended within {PATIENCE:?}: {done}")))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use rustix::thread::{Uid, set_thread_res_uid};

    use super::*;

    #[test]
    fn another_user_s_process_is_not_killed_and_the_sentence_says_what_to_do() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let fd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let process = Process { fd, pid };
        let is_root = rustix::process::geteuid().is_root();
        let (refused, process) = std::thread::spawn(move || {
            // This thread alone is another user.
            let nobody = Uid::from_raw(65534);
            let is_other = set_thread_res_uid(nobody, nobody, nobody).is_ok();
            (is_other.then(|| process.kill()), process)
        })
        .join()
        .unwrap();
        if is_root {
            let why = refused.unwrap().unwrap_err();
            let hint = format!("it belongs to another user; kill -9 {pid}, or systemctl kill -s KILL its unit");
            assert_eq!(why, format!("this daemon may not kill it (process {pid}): {hint}"));
        }
        assert!(!process.has_ended());
        process.kill().unwrap();
        child.wait().unwrap();
        assert!(process.has_ended());
        assert_eq!(process.kill(), Ok(()), "its number may be another's now, and its descriptor is not");
    }
}
