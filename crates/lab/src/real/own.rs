//! A guest that the lab did not make: a person's own image, whose commands run by ssh over the very adapter that is measured.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use nicety_guests::{Error, Folder, Guest};

/// Longest wait for its ssh server after power-on: a system without KVM boots for minutes.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// Interval between two attempts to reach it.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between two looks at a running command.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Options of ssh and scp for guests of any age: algorithms that OpenSSH offers no more by itself, and that old servers need. OpenSSH 5.x
/// (RHEL 6, Debian 6) knows host and user keys by `ssh-rsa` alone, 4.x (RHEL 5) and older ones key exchanges by SHA-1 alone, and those
/// before 3.7 no counter mode. They come last: a server that knows better ones takes those.
pub const OF_ANY_AGE: [&str; 8] = [
    "-o",
    "HostKeyAlgorithms=+ssh-rsa",
    "-o",
    "PubkeyAcceptedAlgorithms=+ssh-rsa",
    "-o",
    "KexAlgorithms=+diffie-hellman-group-exchange-sha1,diffie-hellman-group14-sha1,diffie-hellman-group1-sha1",
    "-o",
    "Ciphers=+aes128-cbc,3des-cbc",
];

/// A running guest, whichever way its commands reach it.
#[derive(Debug)]
pub enum Reached {
    /// The lab's own, by its control line.
    Line(Guest),
    /// A person's own, by ssh.
    Ssh(Ssh),
}

impl Reached {
    /// Runs a command line in the guest. Its failure is an error.
    ///
    /// # Errors
    /// Those of [`Guest::succeed_unless`].
    pub fn succeed_unless(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        match self {
            Reached::Line(guest) => guest.succeed_unless(command, limit, stop),
            Reached::Ssh(guest) => guest.succeed(command, limit, stop),
        }
    }

    /// Processor time of its processes and of QEMU, if that serves its adapter.
    pub fn cpu_time(&self) -> Duration {
        self.guest().cpu_time()
    }

    /// The last lines of its console.
    pub fn console(&self) -> String {
        self.guest().console()
    }

    fn guest(&self) -> &Guest {
        match self {
            Reached::Line(guest) => guest,
            Reached::Ssh(ssh) => &ssh.guest,
        }
    }
}

/// A guest that ssh reaches.
#[derive(Debug)]
pub struct Ssh {
    guest: Guest,
    /// ssh with its options and the address, run where the guest's network is.
    words: Vec<String>,
    folder: Folder,
}

impl Ssh {
    /// Waits until a started guest lets `words` in.
    ///
    /// # Errors
    /// [`Error::Boot`] with the last lines of its console and of ssh.
    pub fn wait(guest: Guest, words: Vec<String>, image: &Path, stop: &AtomicBool) -> Result<Ssh, Error> {
        let mut ssh = Ssh { guest, words, folder: Folder::new()? };
        let end = Instant::now() + BOOT_LIMIT;
        loop {
            let said = match ssh.succeed("exit 0", Duration::from_secs(60), stop) {
                Ok(_) => return Ok(ssh),
                Err(Error::Stopped) => return Err(Error::Stopped),
                Err(error) => error.to_string(),
            };
            let why = match no_common(&said) {
                Some(line) => {
                    format!("its ssh server and this ssh have no algorithm in common, and never will: {line}")
                }
                None if Instant::now() > end => format!("ssh was not let in within {BOOT_LIMIT:?}: {said}"),
                None => {
                    thread::sleep(ATTEMPT_INTERVAL);
                    continue;
                }
            };
            return Err(Error::Boot { guest: image.display().to_string(), why, console: ssh.guest.console() });
        }
    }

    fn succeed(&mut self, command: &str, limit: Duration, stop: &AtomicBool) -> Result<String, Error> {
        let Some((program, words)) = self.words.split_first() else { return Err(Error::Stopped) };
        let log = self.folder.path().join("said");
        let failed = |source| Error::File { doing: "write", path: log.clone(), source };
        let output = fs::File::create(&log).map_err(failed)?;
        let errors = output.try_clone().map_err(failed)?;
        let spawned =
            Command::new(program).args(words).arg(command).stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let mut child =
            spawned.map_err(|error| Error::Run { doing: "starting ssh".to_owned(), said: error.to_string() })?;
        let said = || fs::read_to_string(&log).unwrap_or_default();
        let (end, mut status) = (Instant::now() + limit, None);
        while status.is_none() {
            status = child.try_wait().ok().flatten();
            let stopped = stop.load(Ordering::Relaxed);
            if status.is_none() && (stopped || Instant::now() > end) {
                // It ends with the kill, or has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                let console = || format!("{}\n{}", said(), self.guest.console());
                return Err(if stopped {
                    Error::Stopped
                } else {
                    Error::Late { command: command.to_owned(), limit, console: console() }
                });
            }
            if status.is_none() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        match status.and_then(|status| status.code()) {
            Some(0) => Ok(said()),
            code => Err(Error::Command { command: command.to_owned(), code: code.unwrap_or(-1), said: said() }),
        }
    }
}

/// The line by which ssh says that a server will never let it in: `kex_choose_conf` in OpenSSH's kex.c.
fn no_common(said: &str) -> Option<&str> {
    said.lines()
        .map(str::trim)
        .find(|line| line.starts_with("Unable to negotiate with ") && line.contains(": no matching "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_knows_no_common_algorithm_is_waited_for_no_longer_and_one_that_boots_is() {
        let line = "Unable to negotiate with 10.9.5.1 port 22: no matching host key type found. Their offer: ssh-dss";
        let said = format!("`exit 0` in the guest ended with code 255:\n{line}\r\n");
        assert_eq!(no_common(&said), Some(line));
        for waits in [
            "ssh: connect to host 10.9.5.1 port 22: Connection refused",
            "ssh: connect to host 10.9.5.1 port 22: No route to host",
            // Until a system's first boot has put the key there.
            "anna@10.9.5.1: Permission denied (publickey).",
        ] {
            assert_eq!(no_common(waits), None, "{waits}");
        }
    }
}
