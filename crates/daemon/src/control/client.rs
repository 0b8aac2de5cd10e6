//! Who asks: one connection, one question, one answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with, sockopt};

use super::{Answer, Ask, Reply, Request, VERSION};

/// How long a client waits for its answer: other clients may be before it.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Longest reply that a client takes.
const REPLY_MOST: u64 = 64 << 20;

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody serves the socket.
    #[error(
        "no daemon answers at {0}: start one with `nicety serve`, or name the socket of one that runs: --control SOCKET"
    )]
    Nobody(PathBuf),
    /// It is something else.
    #[error("{0} is no socket: a daemon says where its control socket is when it starts")]
    NoSocket(PathBuf),
    /// Whoever serves it says nothing.
    #[error("the daemon at {path} does not answer within {patience:?}: is it stopped, or this machine overloaded?")]
    Silent {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The socket is another user's.
    #[error("{0} is another user's: only who started the daemon may ask it")]
    NotAllowed(PathBuf),
    /// It does not speak our language.
    #[error("what answers at {path} is no nicety daemon of this version: {why}")]
    Foreign {
        /// The socket.
        path: PathBuf,
        /// What was odd.
        why: String,
    },
    /// The daemon has not begun to serve.
    #[error("{0}")]
    Starting(String),
    /// The daemon says no.
    #[error("{0}")]
    Refused(String),
    /// The system.
    #[error("asking the daemon at {path}: {error}")]
    System {
        /// The socket.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

/// Asks the daemon whose control socket this is. [`Reply::Error`] becomes an error.
pub fn ask(path: &Path, ask: Ask) -> Result<Reply, AskError> {
    ask_within(path, ask, CLIENT_PATIENCE)
}

/// As [`ask`], with so much patience for each step.
pub(super) fn ask_within(path: &Path, ask: Ask, patience: Duration) -> Result<Reply, AskError> {
    let path_buf = || path.to_owned();
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused if !is_socket(path) => AskError::NoSocket(path_buf()),
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Nobody(path_buf()),
        io::ErrorKind::PermissionDenied => AskError::NotAllowed(path_buf()),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Silent { path: path_buf(), patience },
        _ => AskError::System { path: path_buf(), error },
    };
    let mut stream = connect(path, patience).map_err(lost)?;
    let foreign = |why: String| AskError::Foreign { path: path_buf(), why };
    let mut line =
        serde_json::to_vec(&Request { version: VERSION, ask }).map_err(|error| foreign(error.to_string()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(lost)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(REPLY_MOST)).read_until(b'\n', &mut answer).map_err(lost)?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| foreign(error.to_string()))?;
    match answer.reply {
        Reply::Error { error, starting: true } => Err(AskError::Starting(error)),
        Reply::Error { error, starting: false } => Err(AskError::Refused(error)),
        reply => Ok(reply),
    }
}

/// Connects. A daemon that takes no connections any more has its queue full at some time: that must not keep us for ever.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for direction in [sockopt::Timeout::Send, sockopt::Timeout::Recv] {
        sockopt::set_socket_timeout(&socket, direction, Some(patience))?;
    }
    rustix::net::connect(&socket, &address)?;
    Ok(UnixStream::from(socket))
}

fn is_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}
