//! A private part of the host: user, network and process namespaces (user_namespaces(7), network_namespaces(7)). In it a person may make
//! taps and bridges and run servers, without root rights and without a trace in the host's own network.
//!
//! Its first process is a shell of the private root, which reads its commands from a pipe. The pipe closes when we end for any reason.
//! Then the shell ends, and the kernel ends every process in the namespace and removes its interfaces. A process that must see the
//! network and be a child of ours (QEMU) enters it by [`Namespace::entrance`].

use std::{
    fmt, fs,
    io::Write,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::{Duration, Instant},
};

use super::{
    console::{Console, lines},
    error::Error,
    root::Root,
    spawn::spawn,
};

/// Start of the line that reports a command's end.
const MARK: &str = ":nicety-end ";
/// Number of output lines that wait for their reader.
const LINES_WAITING: usize = 1024;
/// Time limit to make a namespace, and for its own commands.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// A private network (see the module's page). Dropping it ends it and all processes in it.
pub struct Namespace {
    child: Child,
    control: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Console,
    busybox: String,
    commands: u64,
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Namespace").field("process", &self.child.id()).finish_non_exhaustive()
    }
}

/// Quotes a word for the shell.
pub(super) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A command as words for the shell.
pub(super) fn shell_words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A line for the shell: the script, then its mark and its exit code.
fn marked(script: &str, mark: &str) -> String {
    // The newline before the mark is a command too: the script's code is kept first.
    format!("{{ {script}\n}} </dev/null; code=$?; echo; echo {} $code\n", quoted(mark))
}

impl Namespace {
    /// Makes a namespace, with its loopback interface up.
    ///
    /// # Errors
    /// [`Error::Namespace`] where the host does not allow this person to make namespaces.
    pub fn open(root: &Root) -> Result<Namespace, Error> {
        let busybox = root.busybox().display().to_string();
        let mut command = Command::new(&busybox);
        command.args(["unshare", "-U", "-r", "-n", "-p", "-f", &busybox, "sh"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: the terminal's Ctrl-C reaches it only through us.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = spawn(command).map_err(|error| Error::Namespace { said: error.to_string() })?;
        let (Some(control), Some(output), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            let _ = child.kill();
            return Err(Error::Namespace { said: "its pipes are missing".into() });
        };
        let complaints = Console::default();
        let log = complaints.clone();
        thread::spawn(move || log.fill(errors));
        let (sender, incoming): (SyncSender<String>, _) = sync_channel(LINES_WAITING);
        thread::spawn(move || lines(output, |line| sender.send(line.to_owned()).is_ok()));
        let mut namespace =
            Namespace { child, control: Some(control), lines: incoming, complaints, busybox, commands: 0 };
        // Without this the shell would run programs of its own directory. All programs are the private root's.
        let begin = "cd / && unset PATH && ip() { \"$busybox\" ip \"$@\"; } && ip link set lo up";
        let begin = format!("busybox={} && {begin}", quoted(&namespace.busybox));
        match namespace.run(&begin, OPEN_LIMIT) {
            Ok(_) => Ok(namespace),
            Err(error) => Err(Error::Namespace { said: format!("{error}\n{}", namespace.complaints.tail()) }),
        }
    }

    /// Runs a line of shell as the namespace's root, and returns its output. `$busybox` is the private root's busybox, `ip` its
    /// applet. There is no `PATH`.
    ///
    /// # Errors
    /// [`Error::Run`] if it fails or does not end within `limit`.
    pub fn run(&mut self, script: &str, limit: Duration) -> Result<String, Error> {
        self.commands += 1;
        let mark = format!("{MARK}{} ", self.commands);
        let failed = |said: String| Error::Run { doing: format!("`{script}` in a private network"), said };
        let gone = || failed("the private network is gone".into());
        let line = marked(script, mark.trim_end());
        let control = self.control.as_mut().ok_or_else(gone)?;
        control.write_all(line.as_bytes()).and_then(|()| control.flush()).map_err(|_| gone())?;
        let (end, mut text) = (Instant::now() + limit, String::new());
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => match line.strip_prefix(&mark).map(str::trim) {
                    Some("0") => {
                        text.pop(); // the newline that begins the mark's line
                        return Ok(text);
                    }
                    Some(code) => return Err(failed(format!("code {code}\n{text}{}", self.complaints.tail()))),
                    None => {
                        text.push_str(&line);
                        text.push('\n');
                    }
                },
                Err(RecvTimeoutError::Timeout) => return Err(failed(format!("no end within {limit:?}\n{text}"))),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        }
    }

    /// Starts a program in it. The program runs until it ends by itself, [`Namespace::signal`] ends it, or the namespace ends. Its
    /// output goes to `log`.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn start(&mut self, command: &Command, log: &Path) -> Result<Process, Error> {
        let settings: Vec<String> = command
            .get_envs()
            .map(|(name, value)| match value {
                Some(value) => format!("export {}={};", name.to_string_lossy(), quoted(&value.to_string_lossy())),
                None => format!("unset {};", name.to_string_lossy()),
            })
            .collect();
        let script = format!(
            // /proc is the host's, so `host` is the process ID that the host uses.
            "( read -r host _ </proc/self/stat; echo host $host; {} exec {} >{} 2>&1 ) & echo inside $!",
            settings.concat(),
            shell_words(command),
            quoted(&log.display().to_string())
        );
        let mut text = self.run(&script, OPEN_LIMIT)?;
        let end = Instant::now() + OPEN_LIMIT;
        // The two lines come in either order, and the process may report its ID after the shell has gone on.
        let number =
            |text: &str, name| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u32>().ok());
        loop {
            if let (Some(host), Some(inside)) = (number(&text, "host "), number(&text, "inside ")) {
                return Ok(Process { host, inside });
            }
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => text.extend([line.as_str(), "\n"]),
                Err(_) => {
                    let doing = format!("starting {}", command.get_program().display());
                    return Err(Error::Run { doing, said: text });
                }
            }
        }
    }

    /// Sends a signal (`TERM`, `KILL`) to a process and waits until it has ended. It may have ended before.
    ///
    /// # Errors
    /// [`Error::Run`] if it does not end within `limit`.
    pub fn signal(&mut self, process: Process, signal: &str, limit: Duration) -> Result<(), Error> {
        self.run(&format!("kill -{signal} {0}; wait {0}; true", process.inside), limit).map(drop)
    }

    /// Sends a signal that does not end the process (`STOP`, `CONT`).
    ///
    /// # Errors
    /// [`Error::Run`] if it has ended.
    pub fn tell(&mut self, process: Process, signal: &str) -> Result<(), Error> {
        self.run(&format!("kill -{signal} {}", process.inside), OPEN_LIMIT).map(drop)
    }

    /// Makes a tap and brings it up, with this address (`10.9.1.254/24`) or without one.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn tap(&mut self, name: &str, address: Option<&str>) -> Result<(), Error> {
        let address = address.map(|address| format!(" && ip addr add {address} dev {name}")).unwrap_or_default();
        self.run(&format!("\"$busybox\" tunctl -t {name}{address} && ip link set {name} up"), OPEN_LIMIT).map(drop)
    }

    /// Makes a bridge of taps and brings all up. The bridge has an address of the host's own.
    ///
    /// # Errors
    /// [`Error::Run`].
    pub fn bridge(&mut self, name: &str, address: &str, taps: &[&str]) -> Result<(), Error> {
        self.run(&format!("ip link add {name} type bridge && ip addr add {address} dev {name}"), OPEN_LIMIT)?;
        for tap in taps {
            self.tap(tap, None)?;
            self.run(&format!("ip link set {tap} master {name}"), OPEN_LIMIT)?;
        }
        self.run(&format!("ip link set {name} up"), OPEN_LIMIT).map(drop)
    }

    /// The command prefix that makes a program start in this network. The process stays the same: the program replaces the one that
    /// entered.
    pub fn entrance(&self) -> Vec<String> {
        let process = self.child.id().to_string();
        let words = [&self.busybox, "nsenter", "-t", &process, "-U", "-n", "--preserve-credentials", "-F"];
        words.map(str::to_owned).into()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Its first process ends at the end of its input, and all others with it.
        self.control = None;
        let _ = self.child.wait();
    }
}

/// A process in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its process ID on the host.
    pub host: u32,
    /// Its process ID in the namespace.
    inside: u32,
}

impl Process {
    /// Whether it still runs. A zombie does not.
    pub fn runs(self) -> bool {
        runs(self.host)
    }
}

/// Whether a process with this ID runs. A zombie does not.
pub(super) fn runs(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // proc_pid_stat(5): the state follows the name, which may contain anything but ends with the last bracket.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell_whatever_they_hold() {
        let mut command = Command::new("printf");
        command.args(["%s|", "a b", "it's", "$HOME", "\"", "`x`", "\\"]);
        let shell = Command::new("sh").arg("-c").arg(shell_words(&command)).output().expect("sh runs");
        assert_eq!(String::from_utf8_lossy(&shell.stdout), "a b|it's|$HOME|\"|`x`|\\|");
    }

    #[test]
    fn a_script_s_mark_has_its_last_command_s_code() {
        for (script, code) in
            [("true", 0), ("false", 1), ("true; (exit 7)", 7), ("false; true", 0), ("echo -n x; false", 1)]
        {
            let shell = Command::new("sh").arg("-c").arg(marked(script, ":end 1")).output().expect("sh runs");
            let text = String::from_utf8_lossy(&shell.stdout).into_owned();
            assert_eq!(text.lines().last(), Some(&*format!(":end 1 {code}")), "{script}: {text}");
        }
    }
}
