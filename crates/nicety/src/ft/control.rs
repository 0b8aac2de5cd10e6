//! A host's control socket: a line with a word comes in, a line of JSON goes out.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nicety_control::api::PortList;
use nicety_control::{self as control, Ask, Reply};
use nicety_daemon::tolerance::ToleranceReport;
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::{Value, json};

use crate::answer::{failure, odd};
use crate::exit::{Exit, Failure};
use crate::output;

/// Clients at a time; more are sent away.
const CLIENTS: usize = 4;
/// Bytes of the longest word.
const WORD: usize = 64;
/// Time limit of `nicety ft status` and its kin.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Status,
    Failover,
    Stop,
}

impl Word {
    const ALL: [(&str, Word); 3] = [("status", Word::Status), ("failover", Word::Failover), ("stop", Word::Stop)];
}

/// The socket, and who is there.
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
    clients: Vec<(UnixStream, Vec<u8>)>,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.path);
    }
}

impl Control {
    /// Listens at `path`. The socket of a host that has died is replaced.
    pub fn listen(path: &Path) -> io::Result<Self> {
        let is_socket = path.symlink_metadata().is_ok_and(|there| there.file_type().is_socket());
        if is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            std::fs::remove_file(path)?;
        }
        // This process has one thread.
        let before = umask(Mode::from_raw_mode(0o177));
        let listener = UnixListener::bind(path);
        umask(before);
        let listener = listener?;
        listener.set_nonblocking(true)?;
        Ok(Self { path: path.to_owned(), listener, clients: Vec::new() })
    }

    /// The descriptors to wait for.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.listener.as_fd()).chain(self.clients.iter().map(|(stream, _)| stream.as_fd()))
    }

    /// The next word, and who waits for its answer.
    pub fn take(&mut self) -> Option<(UnixStream, Result<Word, String>)> {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.clients.len() < CLIENTS && stream.set_nonblocking(true).is_ok() {
                self.clients.push((stream, Vec::new()));
            }
        }
        let mut index = 0;
        while let Some((stream, line)) = self.clients.get_mut(index) {
            let mut bytes = [0; WORD];
            let read = match stream.read(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    index += 1;
                    continue;
                }
                Ok(read) => read,
                Err(_) => 0,
            };
            line.extend_from_slice(bytes.get(..read).unwrap_or_default());
            if read == 0 || line.len() > WORD {
                self.clients.remove(index);
            } else if line.ends_with(b"\n") {
                let (stream, line) = self.clients.remove(index);
                let text = String::from_utf8_lossy(&line).trim().to_owned();
                let known = Word::ALL.iter().find(|(name, _)| *name == text).map(|(_, word)| *word);
                return Some((stream, known.ok_or_else(|| format!("`{text}` is none of status, failover, stop"))));
            }
        }
        None
    }
}

/// Answers, and hangs up. A client that does not read loses the answer.
pub fn answer(mut stream: UnixStream, answer: Result<Value, String>) {
    let line = answer.unwrap_or_else(|error| json!({ "error": error }));
    let _written = stream.write_all(format!("{line}\n").as_bytes());
}

/// Asks a host.
pub fn ask(path: &Path, word: &str) -> Result<Value, Failure> {
    let failed = |error: String| Failure::new(Exit::Failed, format!("{}: {error}", path.display()));
    let asked = (|| {
        let mut stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{word}\n").as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok::<String, io::Error>(text)
    })();
    let text = asked.map_err(|error| {
        failed(match error.kind() {
            io::ErrorKind::WouldBlock => format!(
                "no answer within {PATIENCE:?}: is it the control socket of a daemon or of `nicety ft start`, and does that run?"
            ),
            _ => error.to_string(),
        })
    })?;
    let answer: Value = serde_json::from_str(&text).map_err(|_| failed("it hung up without an answer".to_owned()))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(error) => Err(failed(error.to_owned())),
        None => Ok(answer),
    }
}

/// `nicety ft status`, of a host of `nicety ft start`, or of a daemon.
pub fn status(path: &Path, is_json: bool) -> Result<(), Failure> {
    if is_daemon(path) {
        return ports(path, is_json);
    }
    let status = ask(path, "status")?;
    output::print(&if is_json { format!("{status:#}\n") } else { words(&status) })
}

/// Whether a daemon listens there: it speaks HTTP.
fn is_daemon(path: &Path) -> bool {
    matches!(control::ask(path, Ask::Version), Ok(Reply::Version(_)))
}

/// The logs of a daemon's ports.
fn ports(path: &Path, is_json: bool) -> Result<(), Failure> {
    let ports = match control::ask(path, Ask::Ports).map_err(failure)? {
        Reply::Ports(PortList { ports, .. }) => ports,
        other => return Err(odd(&other)),
    };
    let logged = ports.into_iter().filter_map(|port| Some((port.name, port.tolerance?)));
    let logged: Vec<(String, ToleranceReport)> = logged.collect();
    if is_json {
        let all: serde_json::Map<String, Value> =
            logged.into_iter().map(|(port, report)| (port, json!(report))).collect();
        return output::print(&format!("{:#}\n", Value::Object(all)));
    }
    if logged.is_empty() {
        let text =
            "no port of this daemon has ft_peer; a port whose replica it keeps is shown by that port's own daemon\n";
        return output::print(text);
    }
    output::print(&logged.iter().map(|(port, report)| format!("{port}: {report}\n")).collect::<String>())
}

/// A status for a person.
fn words(status: &Value) -> String {
    let number = |name: &str| status.pointer(name).and_then(Value::as_u64).unwrap_or_default();
    let is_protected = status["protected"] == true;
    let part = status["role"].as_str().unwrap_or_default();
    let protected = match (part, is_protected) {
        ("primary", true) => ", protected",
        ("primary", false) => ", not protected",
        _ => "",
    };
    let mut text = format!("{part}{protected}, epoch {}\n", number("/epoch"));
    let lag = status["lag_calls"].as_u64().map(|lag| format!(", the secondary lacks {lag}"));
    text += &format!("calls   {}{}\n", number("/calls"), lag.unwrap_or_default());
    let megabits = |name: &str| number(name) as f64 / 1e6;
    text += &format!(
        "log     {:.3} Mbit/s out, {:.3} Mbit/s in; {} and {} bytes so far\n",
        megabits("/log/sent_bits_per_second"),
        megabits("/log/received_bits_per_second"),
        number("/log/sent_bytes"),
        number("/log/received_bytes"),
    );
    if number("/commit_microseconds/count") > 0 {
        let (median, most) = (number("/commit_microseconds/median"), number("/commit_microseconds/most"));
        text += &format!(
            "commit  {median} µs in the median, {most} µs at most, of the last {}\n",
            number("/commit_microseconds/count")
        );
    }
    if !status["joining"].is_null() {
        let (taken, all) = (number("/joining/taken_bytes"), number("/joining/image_bytes"));
        text += &format!("joining a secondary has {taken} of {all} bytes of an image\n");
    }
    let held = if status["gate"]["holds_guest"] == true { "; the guest waits for the secondary" } else { "" };
    text += &format!("gate    {} frames, {} bytes{held}\n", number("/gate/frames"), number("/gate/bytes"));
    if let Some(lease) = status["lease_milliseconds"].as_u64() {
        text += &format!("lease   for another {lease} ms\n");
    }
    text
}
