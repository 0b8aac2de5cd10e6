//! A folder with a host file, commands that run in it, and a daemon.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longest time for anything that a daemon or a command does here.
pub const TIMEOUT: Duration = Duration::from_secs(60);

pub const HOST: &str = "\
[switch]
name = \"lan\"

[[port]]
name = \"vm1\"
adapter = \"e1000\"
mac = \"52:54:00:12:34:01\"
socket = \"vm1.sock\"

[[port]]
name = \"vm2\"
adapter = \"virtio-net\"
mac = \"52:54:00:12:34:02\"
socket = \"vm2.sock\"
queues = 2
";

/// A folder for one test, removed at its end.
pub struct Scratch(TempDir);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch(TempDir::new().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn with(host: &str) -> Scratch {
        let scratch = Scratch::new();
        std::fs::write(scratch.path().join("host.toml"), host).unwrap();
        scratch
    }

    /// A named pipe that no process has open.
    pub fn pipe(&self, name: &str) {
        mknodat(CWD, self.path().join(name), FileType::Fifo, 0o600.into(), 0).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nicety"));
        command.args(args).current_dir(self.path()).env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
        command.env("NICETY_LAB_LOCK", self.lab_lock());
        command
    }

    /// The lock of this folder's labs: tests run side by side.
    pub fn lab_lock(&self) -> PathBuf {
        self.path().join("lab.lock")
    }

    /// Runs a command that must end by itself, and soon.
    pub fn run(&self, args: &[&str]) -> Ended {
        Ended::soon(self.command(args))
    }

    /// The head and the body of the answer to a GET, by the daemon of [`HOST`].
    pub fn get(&self, path: &str) -> (String, String) {
        let mut stream = UnixStream::connect(self.path().join("nicety-lan.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nhost: nicety\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    pub fn sockets(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name.ends_with(".sock")).collect();
        names.sort();
        names
    }
}

/// Exit code and output of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ended {
    /// Waits for a command that ends by itself.
    pub fn soon(mut command: Command) -> Ended {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (process, (send, ended)) = (Pid::from_child(&child), mpsc::channel());
        std::thread::spawn(move || send.send(child.wait_with_output()));
        match ended.recv_timeout(TIMEOUT) {
            Ok(output) => Ended::of(&output.unwrap()),
            Err(_) => {
                let _ = kill_process(process, Signal::KILL);
                panic!("{command:?} does not end");
            }
        }
    }

    pub fn of(output: &Output) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// A daemon that is ready. It is killed if a test fails before its end.
pub struct Served {
    child: Child,
    log: Receiver<String>,
    /// The log's lines before that one.
    pub before: Vec<String>,
    /// The log line that reported it ready.
    pub ready: String,
}

impl Served {
    pub fn start(scratch: &Scratch) -> Served {
        Self::ready(scratch.command(&["serve"]))
    }

    /// Starts the daemon with this shell script, whose `$0` is the program.
    pub fn by(scratch: &Scratch, words: &str) -> Served {
        let mut shell = Command::new("sh");
        shell.args(["-c", words, env!("CARGO_BIN_EXE_nicety")]).current_dir(scratch.path());
        shell.env_remove("XDG_RUNTIME_DIR").env_remove("NICETY_LOG");
        Self::ready(shell)
    }

    fn ready(mut command: Command) -> Served {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, log) = mpsc::channel();
        std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let mut served = Served { child, log, before: Vec::new(), ready: String::new() };
        served.before = served.lines_until("all sockets are ready");
        served.ready = served.before.pop().unwrap();
        served
    }

    /// The daemon's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for a line of the log.
    pub fn line(&self, words: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.log.recv_timeout(TIMEOUT) {
                Ok(line) if line.contains(words) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("{words:?} did not come ({error}): {seen:#?}"),
            }
        }
    }

    /// The lines of the log up to one with this text.
    pub fn lines_until(&self, words: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            lines.push(self.log.recv_timeout(TIMEOUT).unwrap_or_else(|error| panic!("{words:?}: {error}: {lines:#?}")));
            if lines.last().is_some_and(|line| line.contains(words)) {
                return lines;
            }
        }
    }

    pub fn end(mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.line("ending");
        self.child.wait().unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
