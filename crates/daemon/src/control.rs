//! The control socket: how `nicety ports` asks a running daemon.
//!
//! A UNIX stream socket for its owner only. One request for each connection: a line of JSON in, a line of JSON out,
//!
//! ```text
//! → {"version":1,"request":"port","name":"vm1"}
//! ← {"version":1,"reply":"port","port":{"name":"vm1",…}}
//! ← {"version":1,"reply":"error","error":"there is no port \"vm9\"; did you mean \"vm1\"? (there are: uplink, vm1)"}
//! ```
//!
//! served by a thread of its own that never touches a worker's loop. Whoever connects has a second in all and 64 KiB;
//! then the next one has its turn.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nicety_socket::{Accepted, ListenError, Listener};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::host::did_you_mean;
use crate::port_log::{Share, counted};
use crate::report::{AddressReport, PortReport};

mod client;

pub use client::{AskError, ask};

/// The version of requests and replies.
pub const VERSION: u32 = 1;
/// Longest request in bytes, its newline included.
pub const REQUEST_MOST: usize = 64 << 10;
/// How long one connection may last.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after the system refused a connection (no descriptors left, say).
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// Ports that are named to who asks for one that is not there.
const NAMES_MOST: usize = 16;
/// What is said to who comes early.
const STARTING: &str = "the daemon is still starting: ask again in a moment";

/// What a daemon tells of itself. Called from the control thread.
pub trait Inspect: Send + Sync {
    /// Whether it has begun to serve: before, it tells of nothing but itself.
    fn is_ready(&self) -> bool;

    /// All ports, the uplink first.
    fn ports(&self) -> Vec<PortReport>;

    /// The addresses that the switch has learned.
    fn addresses(&self) -> Vec<AddressReport>;
}

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
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
    /// Who is there.
    Version,
}

/// One line of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Request {
    version: u32,
    #[serde(flatten)]
    ask: Ask,
}

/// What may be answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case")]
pub enum Reply {
    /// All ports.
    Ports {
        /// The host file that the daemon serves.
        host: PathBuf,
        /// The ports, the uplink first.
        ports: Vec<PortReport>,
    },
    /// One port.
    Port {
        /// The port.
        port: Box<PortReport>,
    },
    /// Addresses.
    Addresses {
        /// The addresses, in no order.
        addresses: Vec<AddressReport>,
    },
    /// The daemon itself.
    Version {
        /// The program's version.
        program: String,
        /// Its process.
        pid: u32,
        /// The host file that it serves.
        host: PathBuf,
    },
    /// It cannot be answered.
    Error {
        /// Why not.
        error: String,
        /// It can be soon: the daemon is still starting.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        starting: bool,
    },
}

impl Reply {
    /// It cannot be answered, now or later.
    fn error(error: String) -> Self {
        Self::Error { error, starting: false }
    }
}

/// One line of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    version: u32,
    #[serde(flatten)]
    reply: Reply,
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket.
    #[error("the control socket: {0}")]
    Listen(#[from] ListenError),
    /// Its folder, which may be that of a person who is somebody else now, as with sudo.
    #[error(
        "the folder {path} for the control socket cannot be made: {error}; is XDG_RUNTIME_DIR this user's? [daemon] control in the host file names another path"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The thread, its bell.
    #[error("the control socket {path}: {error}")]
    System {
        /// The socket.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

impl ControlError {
    /// Somebody has it, who may say who that is.
    pub fn is_taken(&self) -> bool {
        matches!(self, Self::Listen(ListenError::InUse(_)))
    }
}

/// A control socket that is served. Dropping it ends the thread and removes the socket.
#[derive(Debug)]
pub struct Control {
    path: PathBuf,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// Makes the socket (and its folder, for the owner only, if it is missing) and serves it. `host` is the host file.
    pub fn start(path: &Path, host: &Path, inspect: Arc<dyn Inspect>) -> Result<Self, ControlError> {
        let system = |error| ControlError::System { path: path.to_owned(), error };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty() && !dir.exists()) {
            let made = DirBuilder::new().mode(0o700).create(dir);
            made.map_err(|error| ControlError::Folder { path: dir.to_owned(), error })?;
        }
        let listener = Listener::bind(path)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| system(error.into()))?;
        let bell = Arc::new(bell);
        let server = Server { listener, bell: Arc::clone(&bell), host: host.to_owned(), inspect };
        let thread = std::thread::Builder::new().name("control".to_owned());
        let thread = Some(thread.spawn(move || server.run()).map_err(system)?);
        Ok(Self { path: path.to_owned(), bell, thread })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A counter that is full has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            warn!("the control thread had panicked");
        }
    }
}

struct Server {
    listener: Listener,
    bell: Arc<OwnedFd>,
    host: PathBuf,
    inspect: Arc<dyn Inspect>,
}

/// Why a connection ended without an answer.
#[derive(Debug, thiserror::Error)]
enum Lost {
    /// The daemon ends.
    #[error("the daemon ends")]
    Stopped,
    /// The second is over.
    #[error("the client took longer than a second")]
    Slow,
    /// The client is gone, or the system failed.
    #[error(transparent)]
    System(#[from] Errno),
}

impl Server {
    fn run(self) {
        // Who holds all descriptors makes no more lines than any other.
        let (clock, mut share) = (Clock::start(), Share::default());
        loop {
            match self.wait(self.listener.as_fd(), PollFlags::IN, None) {
                Ok(()) => {}
                Err(Lost::Stopped) => return,
                Err(lost) => {
                    warn!("waiting for control connections: {lost}");
                    return;
                }
            }
            match self.listener.accept(false) {
                Ok(Accepted::Client(socket, _)) => match self.serve(&socket) {
                    Ok(()) => {}
                    Err(Lost::Stopped) => return,
                    Err(lost) => debug!("a control connection ended without an answer: {lost}"),
                },
                Ok(_) => {}
                Err(errno) => {
                    if let Some(unsaid) = share.may_say(clock.now()) {
                        warn!("{}", counted(format_args!("a control connection was not accepted: {errno}"), unsaid));
                    }
                    if let Err(Lost::Stopped) = self.wait_for_bell(REFUSED_PAUSE) {
                        return;
                    }
                }
            }
        }
    }

    /// Waits until a descriptor is ready, the bell rings, or the time is over.
    fn wait(&self, fd: BorrowedFd<'_>, flags: PollFlags, deadline: Option<Instant>) -> Result<(), Lost> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let timeout = left.map(timespec);
            let mut fds = [PollFd::from_borrowed_fd(fd, flags), PollFd::new(&*self.bell, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return Err(Lost::Slow),
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let [its, bell] = &fds;
            if !bell.revents().is_empty() {
                return Err(Lost::Stopped);
            }
            if !its.revents().is_empty() {
                return Ok(());
            }
        }
    }

    fn wait_for_bell(&self, at_most: Duration) -> Result<(), Lost> {
        self.wait(self.bell.as_fd(), PollFlags::IN, Some(Instant::now() + at_most))
    }

    fn serve(&self, socket: &OwnedFd) -> Result<(), Lost> {
        let deadline = Instant::now() + PATIENCE;
        let reply = match self.read_line(socket, deadline)? {
            Some(line) => self.answer(&line),
            None => Reply::error(format!("a request is one line of at most {REQUEST_MOST} bytes")),
        };
        let mut line = serde_json::to_vec(&Answer { version: VERSION, reply }).unwrap_or_default();
        line.push(b'\n');
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            match rustix::net::send(socket, rest, rustix::net::SendFlags::NOSIGNAL) {
                Ok(count) => rest = rest.get(count..).unwrap_or(&[]),
                Err(Errno::AGAIN) => self.wait(socket.as_fd(), PollFlags::OUT, Some(deadline))?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// The first line, without its newline; nothing if it is too long, or the client ends before.
    fn read_line(&self, socket: &OwnedFd, deadline: Instant) -> Result<Option<Vec<u8>>, Lost> {
        let (mut line, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            self.wait(socket.as_fd(), PollFlags::IN, Some(deadline))?;
            let count = match rustix::io::read(socket, &mut piece) {
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let new = piece.get(..count).unwrap_or(&[]);
            let end = new.iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(new.get(..end.unwrap_or(count)).unwrap_or(&[]));
            if line.len() >= REQUEST_MOST || (count == 0 && end.is_none()) {
                return Ok(None);
            }
            if end.is_some() {
                return Ok(Some(line));
            }
        }
    }

    fn answer(&self, line: &[u8]) -> Reply {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let error = Reply::error;
        match serde_json::from_slice::<Version>(line) {
            Ok(Version { version: VERSION }) => {}
            Ok(Version { version }) => {
                return error(format!("this daemon speaks version {VERSION} of the control protocol, not {version}"));
            }
            Err(why) => return error(format!("this is no request: {why}")),
        }
        let ask = match serde_json::from_slice::<Request>(line) {
            Ok(request) => request.ask,
            Err(why) => return error(format!("this is no request: {why}")),
        };
        match ask {
            Ask::Version => {
                let (program, pid) = (env!("CARGO_PKG_VERSION").to_owned(), std::process::id());
                Reply::Version { program, pid, host: self.host.clone() }
            }
            _ if !self.inspect.is_ready() => Reply::Error { error: STARTING.to_owned(), starting: true },
            Ask::Ports => Reply::Ports { host: self.host.clone(), ports: self.inspect.ports() },
            Ask::Port { name } => {
                let mut ports = self.inspect.ports();
                match ports.iter().position(|port| port.name == name) {
                    Some(index) => Reply::Port { port: Box::new(ports.swap_remove(index)) },
                    None => error(no_port(&name, &ports)),
                }
            }
            Ask::Addresses => Reply::Addresses { addresses: self.inspect.addresses() },
        }
    }
}

/// What to answer who asks for a port that is not there: the name that was probably meant, and those that there are.
fn no_port(asked: &str, ports: &[PortReport]) -> String {
    let names = || ports.iter().map(|port| port.name.as_str());
    let listed: Vec<&str> = names().take(NAMES_MOST).collect();
    let more = if ports.len() > listed.len() { ", …" } else { "" };
    format!("there is no port {asked:?}{} (there are: {}{more})", did_you_mean(asked, names()), listed.join(", "))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
#[path = "control_test.rs"]
mod tests;
