//! Who asks: one connection, one question, one answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Answer, Ask, Reply, Request, VERSION};

/// How long a client waits for its answer: other clients may be before it.
const CLIENT_PATIENCE: Duration = Duration::from_secs(10);
/// Longest reply that a client takes.
const REPLY_MOST: u64 = 64 << 20;

/// Why a daemon did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody serves the socket.
    #[error("no daemon answers at {0}: start one with `nicety serve`")]
    Nobody(PathBuf),
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
    let path_buf = || path.to_owned();
    let system = |error: io::Error| AskError::System { path: path_buf(), error };
    let mut stream = UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => AskError::Nobody(path_buf()),
        io::ErrorKind::PermissionDenied => AskError::NotAllowed(path_buf()),
        _ => system(error),
    })?;
    stream.set_read_timeout(Some(CLIENT_PATIENCE)).map_err(system)?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE)).map_err(system)?;
    let foreign = |why: String| AskError::Foreign { path: path_buf(), why };
    let mut line =
        serde_json::to_vec(&Request { version: VERSION, ask }).map_err(|error| foreign(error.to_string()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(system)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(REPLY_MOST)).read_until(b'\n', &mut answer).map_err(system)?;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|error| foreign(error.to_string()))?;
    match answer.reply {
        Reply::Error { error } => Err(AskError::Refused(error)),
        reply => Ok(reply),
    }
}
