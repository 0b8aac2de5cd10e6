//! The client of the control socket: one connection, one request, one answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::{
    AddressList, CaptureRequest, DaemonView, Exported, HostText, PortList, PortValues, Problem, Restarted, Restored,
    ThreadList, TraceRequest,
};
use crate::host::List;
use crate::live::Changed;
use crate::live::plan::Plan;
use crate::report::PortReport;
use crate::trace::FrameTrace;

/// The time that a client waits for its answer: other clients may be served first.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The same for changes: they may close and open a thousand ports.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(120);
/// Most headers of an answer.
const HEADERS_MOST: usize = 32;
/// Most bytes of an answer's head.
const HEAD_MOST: u64 = 16 << 10;
/// Most bytes of an answer's body.
const REPLY_MOST: u64 = 64 << 20;

/// Reasons why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No daemon serves the socket.
    #[error(
        "no daemon answers at {0}: start one with `nicety serve`, or name the socket of one that runs: --control SOCKET"
    )]
    Nobody(PathBuf),
    /// The path is not a socket.
    #[error("{0} is no socket: a daemon says where its control socket is when it starts")]
    NoSocket(PathBuf),
    /// The server does not answer.
    #[error("{process} has the socket {path}, took the question, and sent no whole answer within {timeout:?}")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// The server: `process 4711`.
        process: String,
        /// The time that the client waited.
        timeout: Duration,
    },
    /// The server does not accept connections.
    #[error("somebody has the socket {path}, and takes no connection: its queue was full for {timeout:?}")]
    Full {
        /// The socket.
        path: PathBuf,
        /// The time that the client waited.
        timeout: Duration,
    },
    /// The socket belongs to another user.
    #[error(
        "{0} is another user's, and not for this one: its owner may ask, and whom [daemon] control_group in the host file names"
    )]
    NotAllowed(PathBuf),
    /// The server does not speak this protocol.
    #[error("what answers at {path} is no nicety daemon of this version: {why}")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// The error in the answer.
        why: String,
    },
    /// The daemon is still starting.
    #[error("{0}")]
    Starting(Box<Problem>),
    /// The daemon refused.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// A system call failed.
    #[error("asking the daemon at {path}: {error}")]
    System {
        /// The socket.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// All ports.
    Ports,
    /// One port.
    Port {
        /// Its name.
        name: String,
    },
    /// The addresses that the switch has learned.
    Addresses,
    /// Restart a failed port.
    Restart {
        /// Its name.
        name: String,
    },
    /// Save and stop a port.
    Save {
        /// Its name.
        name: String,
    },
    /// Restore a port from a saved state.
    Restore {
        /// Its name.
        name: String,
        /// The result of [`Ask::Save`].
        state: Vec<u8>,
    },
    /// The daemon's version and process.
    Version,
    /// The running state as a host file.
    Export,
    /// The daemon's threads.
    Threads,
    /// The path of a frame.
    Trace(TraceRequest),
    /// The changes that applying a host file would make.
    Plan(HostText),
    /// Apply a host file.
    Apply(HostText),
    /// Report that the host file was written.
    Saved(HostText),
    /// Add a port, a group or an uplink.
    Add(List, PortValues),
    /// Change values of an entry.
    Set {
        /// Its list.
        list: List,
        /// Its name.
        name: String,
        /// The values.
        values: PortValues,
        /// Whether an attached VM may lose its adapter.
        cut_off: bool,
    },
    /// Remove an entry.
    Remove {
        /// Its list.
        list: List,
        /// Its name.
        name: String,
        /// Whether an attached VM may lose its adapter.
        cut_off: bool,
    },
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// All ports.
    Ports(PortList),
    /// One port.
    Port(Box<PortReport>),
    /// Addresses.
    Addresses(AddressList),
    /// The port was restarted.
    Restarted(Restarted),
    /// A port's state.
    Saved(Vec<u8>),
    /// The port continues.
    Restored(Restored),
    /// The daemon itself.
    Version(DaemonView),
    /// The running state.
    Exported(Exported),
    /// The daemon's threads.
    Threads(ThreadList),
    /// The path of the frame.
    Traced(FrameTrace),
    /// The changes that would be made.
    Plan(Plan),
    /// The changes that were made.
    Changed(Box<Changed>),
}

/// A request: method, path, body and its type.
struct Request {
    method: &'static str,
    path: String,
    body: Vec<u8>,
    kind: &'static str,
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

impl Ask {
    fn request(&self) -> serde_json::Result<Request> {
        let plain = |method, path: String| Ok(Request { method, path, body: Vec::new(), kind: JSON });
        fn with(method: &'static str, path: String, body: &impl Serialize) -> serde_json::Result<Request> {
            Ok(Request { method, path, body: serde_json::to_vec(body)?, kind: JSON })
        }
        let port = |name: &str| format!("/v1/ports/{}", escaped(name));
        match self {
            Self::Ports => plain("GET", "/v1/ports".to_owned()),
            Self::Port { name } => plain("GET", port(name)),
            Self::Addresses => plain("GET", "/v1/addresses".to_owned()),
            Self::Restart { name } => plain("POST", port(name) + "/restart"),
            Self::Save { name } => plain("POST", port(name) + "/save"),
            Self::Restore { name, state } => {
                Ok(Request { method: "POST", path: port(name) + "/restore", body: state.clone(), kind: BYTES })
            }
            Self::Version => plain("GET", "/v1/daemon".to_owned()),
            Self::Export => plain("GET", "/v1/host".to_owned()),
            Self::Threads => plain("GET", "/v1/threads".to_owned()),
            Self::Trace(request) => with("POST", "/v1/trace".to_owned(), request),
            Self::Plan(text) => with("POST", "/v1/host/plan".to_owned(), text),
            Self::Saved(text) => with("POST", "/v1/host/saved".to_owned(), text),
            Self::Apply(text) => with("PUT", "/v1/host".to_owned(), text),
            Self::Add(list, values) => with("POST", place(*list).to_owned(), values),
            Self::Set { list, name, values, cut_off } => {
                with("PATCH", format!("{}/{}?cut_off={cut_off}", place(*list), escaped(name)), values)
            }
            Self::Remove { list, name, cut_off } => {
                plain("DELETE", format!("{}/{}?cut_off={cut_off}", place(*list), escaped(name)))
            }
        }
    }

    fn reply(&self, body: &[u8]) -> serde_json::Result<Reply> {
        fn read<T: DeserializeOwned>(body: &[u8]) -> serde_json::Result<T> {
            serde_json::from_slice(body)
        }
        Ok(match self {
            Self::Ports => Reply::Ports(read(body)?),
            Self::Port { .. } => Reply::Port(read(body)?),
            Self::Addresses => Reply::Addresses(read(body)?),
            Self::Restart { .. } => Reply::Restarted(read(body)?),
            Self::Save { .. } => Reply::Saved(body.to_vec()),
            Self::Restore { .. } => Reply::Restored(read(body)?),
            Self::Version => Reply::Version(read(body)?),
            Self::Export => Reply::Exported(read(body)?),
            Self::Threads => Reply::Threads(read(body)?),
            Self::Trace(_) => Reply::Traced(read(body)?),
            Self::Plan(_) | Self::Saved(_) => Reply::Plan(read(body)?),
            Self::Apply(_) | Self::Add(..) | Self::Set { .. } | Self::Remove { .. } => Reply::Changed(read(body)?),
        })
    }

    fn changes(&self) -> bool {
        !matches!(
            self,
            Self::Ports
                | Self::Port { .. }
                | Self::Addresses
                | Self::Version
                | Self::Export
                | Self::Threads
                | Self::Trace(_)
                | Self::Plan(_)
        )
    }
}

/// The path of a list.
fn place(list: List) -> &'static str {
    match list {
        List::Ports => "/v1/ports",
        List::Groups => "/v1/groups",
        List::Uplinks => "/v1/uplinks",
    }
}

/// A name as a part of a path (RFC 3986, section 2.1).
fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let part = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    // A part that consists of dots would be a path step.
    if name.chars().all(|c| c == '.') { name.replace('.', "%2E") } else { name.bytes().map(part).collect() }
}

/// Sends a request to the daemon with this control socket.
pub fn ask(path: &Path, ask: Ask) -> Result<Reply, AskError> {
    let timeout = if ask.changes() { CHANGE_TIMEOUT } else { CLIENT_TIMEOUT };
    ask_within(path, ask, timeout)
}

/// Like [`ask`], with this timeout for each step.
pub fn ask_within(path: &Path, ask: Ask, timeout: Duration) -> Result<Reply, AskError> {
    let request = ask.request().map_err(|error| foreign(path, error.to_string()))?;
    let sent = SentRequest::send(path, &request, "HTTP/1.1", timeout)?;
    let mut answer = Vec::new();
    let received = (&sent.stream).take(REPLY_MOST).read_to_end(&mut answer);
    if answer.is_empty() {
        sent.written.and(received).map_err(|error| sent.server.silent(error))?;
    }
    let (status, body) = parts(&answer).map_err(|why| foreign(path, why))?;
    if (200..300).contains(&status) {
        return ask.reply(body).map_err(|error| foreign(path, error.to_string()));
    }
    Err(refused(path, status, body))
}

/// Starts a capture. The reader yields pcapng block by block until the daemon ends. A read that waits for longer than `tick`
/// fails with [`io::ErrorKind::WouldBlock`].
pub fn capture(path: &Path, request: &CaptureRequest, tick: Duration) -> Result<impl Read + use<>, AskError> {
    let body = serde_json::to_vec(request).map_err(|error| foreign(path, error.to_string()))?;
    let request = Request { method: "POST", path: "/v1/captures".to_owned(), body, kind: JSON };
    // Answers of HTTP/1.0 are not chunked and end with the connection.
    let sent = SentRequest::send(path, &request, "HTTP/1.0", CLIENT_TIMEOUT)?;
    let mut answer = BufReader::new(sent.stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let most = HEAD_MOST.saturating_sub(head.len() as u64);
        let received =
            (&mut answer).take(most).read_until(b'\n', &mut head).map_err(|error| sent.server.silent(error))?;
        if received == 0 {
            return Err(foreign(path, "its answer is cut".to_owned()));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MOST];
    let mut response = httparse::Response::new(&mut headers);
    response.parse(&head).map_err(|error| foreign(path, error.to_string()))?;
    let status = response.code.unwrap_or_default();
    if status != 200 {
        let mut body = Vec::new();
        answer.take(REPLY_MOST).read_to_end(&mut body).map_err(|error| sent.server.silent(error))?;
        return Err(refused(path, status, &body));
    }
    let failed = |error: Errno| AskError::System { path: path.to_owned(), error: error.into() };
    sockopt::set_socket_timeout(answer.get_ref(), sockopt::Timeout::Recv, Some(tick)).map_err(failed)?;
    Ok(answer)
}

fn foreign(path: &Path, why: String) -> AskError {
    AskError::Foreign { path: path.to_owned(), why }
}

/// The error for an answer without success.
fn refused(path: &Path, status: u16, body: &[u8]) -> AskError {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if problem.is_starting() => AskError::Starting(Box::new(problem)),
        Ok(problem) => AskError::Refused(Box::new(problem)),
        Err(error) => foreign(path, format!("status {status}: {error}")),
    }
}

/// The server's socket and process, for error messages.
struct Server<'a> {
    path: &'a Path,
    timeout: Duration,
    process: String,
}

impl Server<'_> {
    /// The error if the request was not sent.
    fn lost(&self, error: io::Error) -> AskError {
        let path = self.path.to_owned();
        match error.kind() {
            io::ErrorKind::ConnectionRefused if !is_socket(&path) => AskError::NoSocket(path),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Nobody(path),
            io::ErrorKind::PermissionDenied => AskError::NotAllowed(path),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Full { path, timeout: self.timeout },
            _ => AskError::System { path, error },
        }
    }

    /// The error if no answer came.
    fn silent(&self, error: io::Error) -> AskError {
        match self.lost(error) {
            AskError::Full { path, timeout } => AskError::Silent { path, process: self.process.clone(), timeout },
            error => error,
        }
    }
}

/// A request in flight.
struct SentRequest<'a> {
    server: Server<'a>,
    stream: UnixStream,
    /// The result of writing. A server that answers early closes its end before all is written; its answer has the reason.
    written: io::Result<()>,
}

impl<'a> SentRequest<'a> {
    fn send(path: &'a Path, request: &Request, version: &str, timeout: Duration) -> Result<Self, AskError> {
        let mut server = Server { path, timeout, process: "a process".to_owned() };
        let mut stream = connect(path, timeout).map_err(|error| server.lost(error))?;
        if let Ok(peer) = sockopt::socket_peercred(&stream) {
            server.process = format!("process {}", peer.pid.as_raw_nonzero());
        }
        let Request { method, path: place, body, kind } = request;
        let length = body.len();
        let kind = if length > 0 { format!("content-type: {kind}\r\n") } else { String::new() };
        let head = format!(
            "{method} {place} {version}\r\nhost: nicety\r\nconnection: close\r\n{kind}content-length: {length}\r\n\r\n"
        );
        let written = stream.write_all(&[head.as_bytes(), body.as_slice()].concat());
        Ok(Self { server, stream, written })
    }
}

/// The status and the body of a complete answer.
fn parts(answer: &[u8]) -> Result<(u16, &[u8]), String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MOST];
    let mut response = httparse::Response::new(&mut headers);
    let parsed = response.parse(answer).map_err(|error| error.to_string())?;
    let httparse::Status::Complete(begin) = parsed else { return Err("its answer is cut".to_owned()) };
    let status = response.code.ok_or("its answer has no status")?;
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    let body = answer.get(begin..).unwrap_or(&[]);
    match length {
        Some(length) if body.len() == length => Ok((status, body)),
        Some(_) => Err("its answer is cut".to_owned()),
        None => Err("its answer has no length".to_owned()),
    }
}

/// Connects. If the daemon accepts no connections its queue fills up; the timeout prevents blocking for ever.
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(timeout))?;
    }
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}
