//! Having things opened by somebody who may: a daemon asks, the keeper starts an *opener*, the opener answers.
//!
//! ```text
//! daemon ──Open("tap tap0", an end of a connection)──► keeper ──starts──► opener, channel on its standard input
//!    ▲                                                                      │
//!    └────────────── Opened(descriptor), or Refused(a sentence) ────────────┘    over that connection
//! ```
//! An opener is the keeper's own program, executed anew for one request. It trusts nothing that a daemon says: it reads the host file
//! from the disk, and opens what that names, or what is *named* at the keeper: lines that an authorised user has sent (by `nicety`, to the
//! keeper's own socket), and what was opened before.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::acceptor::{Accepting, Connections};
use crate::channel::{CONTENT_MAX, Channel, ChannelError, Message};
use crate::protocol::{QUIETLY, SAYS, kind};

/// Time in which an opener answers. The keeper kills a slower one.
pub const OPENS_WITHIN: Duration = Duration::from_secs(10);
/// Time for a message of some bytes.
const WITHIN: Duration = Duration::from_secs(1);

/// A daemon's way to have things opened. Any thread may use it.
#[derive(Debug)]
pub struct Opener {
    channel: Channel,
    administers: bool,
}

impl Opener {
    /// By this channel to the keeper. `administers`: openers have CAP_NET_ADMIN. For [`KeptBy::opener`](crate::KeptBy::opener), and tests.
    pub fn new(channel: Channel, administers: bool) -> Self {
        Self { channel, administers }
    }

    /// Whether openers have CAP_NET_ADMIN: they may make taps, and attach to those of other users.
    pub fn administers(&self) -> bool {
        self.administers
    }

    /// Asks for something to be opened, by the line that names it. Waits so long at most for the keeper to take the message.
    ///
    /// # Errors
    /// The keeper does not read, or has gone, or this process has too many descriptors.
    pub fn ask(&self, line: &str, within: Duration) -> Result<Asked, ChannelError> {
        self.asks(kind::OPEN, line, within)
    }

    /// Asks whether all these lines are named, and waits for the answer.
    ///
    /// # Errors
    /// A sentence: one is not, or there is no answer.
    pub fn are_named(&self, lines: &[String]) -> Result<(), String> {
        let words = |error: ChannelError| format!("the keeper: {error}");
        for part in parts(lines) {
            let answer = self.asks(kind::IS_NAMED, &part, WITHIN).and_then(|asked| asked.0.receive(OPENS_WITHIN));
            match answer.map_err(words)? {
                Message { kind: kind::NAMED, .. } => {}
                refused if refused.kind == kind::REFUSED => return Err(refused.text()),
                _ => return Err(words(ChannelError::Foreign(None))),
            }
        }
        Ok(())
    }

    /// Has the keeper accept the connections of this control socket. `None`: this process accepts them by itself, because the keeper is of an
    /// earlier version, or has no socket beside this one.
    pub fn accepts(&self, control: BorrowedFd<'_>) -> Option<Connections> {
        let (ours, theirs) = Channel::pair().ok()?;
        self.channel.send(kind::CONTROL, b"", &[control, theirs.as_fd()], WITHIN).ok()?;
        drop(theirs);
        let mut answer = ours.receive(WITHIN).ok().filter(|answer| answer.kind == kind::CONTROL)?;
        answer.fds.pop().map(Connections::from)
    }

    fn asks(&self, kind: u8, line: &str, within: Duration) -> Result<Asked, ChannelError> {
        let (ours, theirs) = Channel::pair()?;
        self.channel.send(kind, line.as_bytes(), &[theirs.as_fd()], within)?;
        Ok(Asked(ours))
    }
}

/// A question to an opener.
#[derive(Debug)]
pub struct Asked(Channel);

/// A descriptor, and the name of the opened thing: the kernel may have chosen it.
pub type Opened = (String, OwnedFd);

impl Asked {
    /// The answer, if it comes in time; or a sentence.
    pub fn answer(&self, within: Duration) -> Option<Result<Opened, String>> {
        let mut message = match self.0.receive(within) {
            Ok(message) => message,
            Err(ChannelError::Late(_)) => return None,
            Err(ChannelError::Closed) => {
                return Some(Err("it could not open it now: its log has the reason".to_owned()));
            }
            Err(error) => return Some(Err(error.to_string())),
        };
        Some(match (message.kind, message.fds.pop()) {
            (kind::OPENED, Some(fd)) => Ok((message.text(), fd)),
            (kind::REFUSED, _) => Err(message.text()),
            _ => Err(ChannelError::Foreign(None).to_string()),
        })
    }
}

/// Lines in messages that are not too long.
fn parts(lines: &[String]) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for line in lines {
        match parts.last_mut().filter(|part| part.len() + 1 + line.len() <= CONTENT_MAX) {
            Some(part) => {
                part.push('\n');
                part.push_str(line);
            }
            None => parts.push(line.clone()),
        }
    }
    parts
}

/// The path of the keeper's socket, beside the control socket.
pub fn socket_of(control: &Path) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(".keeper");
    PathBuf::from(path)
}

/// Names lines at the keeper whose socket this is: its daemon may have them opened from now on. `Ok(false)`: there is no keeper, or one of
/// an earlier version.
///
/// # Errors
/// A sentence for a person: this user may not.
pub fn name(socket: &Path, lines: &[String]) -> Result<bool, String> {
    for part in parts(lines) {
        if !name_part(socket, &part)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn name_part(socket: &Path, lines: &str) -> Result<bool, String> {
    let words = |error: ChannelError| format!("the keeper: {error}");
    let address = SocketAddrUnix::new(socket).map_err(|errno| words(errno.into()))?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let fd = fd.map_err(|errno| words(errno.into()))?;
    match connect(&fd, &address) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(false),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
            return Err(format!("this user may not connect to the keeper's socket {}: {errno}", socket.display()));
        }
        Err(errno) => return Err(words(errno.into())),
    }
    let channel = Channel::from(fd);
    channel.send(kind::NAMED, lines.as_bytes(), &[], WITHIN).map_err(words)?;
    let answer = channel.receive(OPENS_WITHIN).map_err(words)?;
    match answer.kind {
        kind::NAMED => Ok(true),
        kind::REFUSED => Err(answer.text()),
        _ => Err(words(ChannelError::Foreign(None))),
    }
}

/// The task of an opener.
#[derive(Debug)]
pub enum Task {
    /// The keeper begins: make its socket, and name what will run and the host file does not name.
    Begin,
    /// Open what this line names, and answer there.
    Open(String, Asker),
    /// Say there whether these lines are named.
    IsNamed(String, Asker),
    /// Somebody has connected to the keeper's socket.
    Client(OwnedFd),
    /// Accept the control socket's connections, until the keeper ends.
    Accept(Accepting),
}

/// The process that waits for an opener's answer.
#[derive(Debug)]
pub struct Asker(Channel);

impl Asker {
    /// Sends what was opened.
    pub fn opened(&self, name: &str, fd: &OwnedFd) {
        // It may have ended.
        let _ = self.0.send(kind::OPENED, name.as_bytes(), &[fd.as_fd()], WITHIN);
    }

    /// The lines are named.
    pub fn named(&self) {
        // It may have ended.
        let _ = self.0.send(kind::NAMED, b"", &[], WITHIN);
    }

    /// Sends a sentence for a person.
    pub fn refused(&self, why: &str) {
        // It may have ended.
        let _ = self.0.send(kind::REFUSED, why.as_bytes(), &[], WITHIN);
    }
}

/// A client of the keeper's socket, whose user may name things.
#[derive(Debug)]
pub struct Client(Channel);

impl From<OwnedFd> for Client {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl Client {
    /// The lines that it names.
    ///
    /// # Errors
    /// It says nothing in time, or something else.
    pub fn lines(&self) -> Result<Vec<String>, ChannelError> {
        let message = self.0.receive(WITHIN)?;
        if message.kind != kind::NAMED {
            return Err(ChannelError::Foreign(None));
        }
        Ok(message.text().lines().map(str::to_owned).collect())
    }

    /// Answers: they are named, or a sentence that says why not.
    pub fn answer(&self, done: &Result<(), String>) {
        // It may have gone.
        let _ = match done {
            Ok(()) => self.0.send(kind::NAMED, b"", &[], WITHIN),
            Err(why) => self.0.send(kind::REFUSED, why.as_bytes(), &[], WITHIN),
        };
    }
}

/// An opener's end of its channel to the keeper.
#[derive(Debug)]
pub struct Opening {
    channel: Channel,
    /// Lines that are named at the keeper.
    pub named: BTreeSet<String>,
}

impl Opening {
    /// Takes the channel from the standard input of this process, which the keeper has started, and learns its task.
    ///
    /// # Errors
    /// The standard input is no channel of a keeper of this version.
    pub fn begin() -> Result<(Self, Task), ChannelError> {
        let channel = Channel::from(fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
        let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&nothing)?;
        let mut named = BTreeSet::new();
        loop {
            let mut message = channel.receive(WITHIN)?;
            let task = match (message.kind, message.fds.pop()) {
                (kind::NAMED, None) => {
                    named.insert(message.text());
                    continue;
                }
                (kind::BEGIN, None) => Task::Begin,
                (kind::OPEN, Some(fd)) => Task::Open(message.text(), Asker(fd.into())),
                (kind::IS_NAMED, Some(fd)) => Task::IsNamed(message.text(), Asker(fd.into())),
                (kind::CLIENT, Some(fd)) => Task::Client(fd),
                (kind::ACCEPT, Some(fd)) => {
                    let keeper = Channel::from(fcntl_dupfd_cloexec(&channel, 3)?);
                    Task::Accept(Accepting::new(keeper, fd.into()))
                }
                _ => return Err(ChannelError::Foreign(None)),
            };
            return Ok((Self { channel, named }, task));
        }
    }

    /// Names this line at the keeper.
    pub fn name(&self, line: &str) {
        if !self.named.contains(line) {
            // Without a keeper nobody asks.
            let _ = self.channel.send(kind::NAMED, line.as_bytes(), &[], WITHIN);
        }
    }

    /// Whether to write a line that a daemon has caused. The keeper counts them: there are few a minute.
    pub fn may_say(&self) -> bool {
        let says = std::env::var_os(SAYS);
        if says.is_some() {
            // Without a keeper nobody counts.
            let _ = self.channel.send(kind::SAYS, b"", &[], WITHIN);
        }
        says.is_none_or(|says| says != QUIETLY)
    }

    /// The keeper has this listening socket at this path from now on, and removes the file when it ends.
    ///
    /// # Errors
    /// The keeper has gone.
    pub fn listens(&self, path: &Path, socket: &OwnedFd) -> Result<(), ChannelError> {
        self.channel.send(kind::LISTENS, path.as_os_str().as_bytes(), &[socket.as_fd()], WITHIN)
    }
}

/// The path in a message.
pub(crate) fn path_in(content: Vec<u8>) -> PathBuf {
    OsString::from_vec(content).into()
}
