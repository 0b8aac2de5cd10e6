//! A daemon's end of its channel to the keeper.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::channel::{Channel, ChannelError};
use crate::held::{self, Group};
use crate::kind;

/// The keeper answers at once: it only starts a process.
const WITHIN: Duration = Duration::from_secs(10);

/// How a daemon begins.
#[derive(Debug)]
pub enum Begins {
    /// It is the first, or replaces one that was killed: then the keeper has held descriptors.
    First(Vec<Group>),
    /// It replaces the daemon at the other end.
    Heir(Channel),
}

/// The channel to the keeper.
#[derive(Debug)]
pub struct KeptBy(Channel);

impl AsFd for KeptBy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl KeptBy {
    /// Takes the channel from the standard input of this process, which the keeper has started, and learns how to begin. If the
    /// keeper ends, this process gets SIGTERM.
    ///
    /// # Errors
    /// The standard input is no channel of a keeper of this version.
    pub fn begin() -> Result<(Self, Begins), ChannelError> {
        let stdin = rustix::stdio::stdin();
        let channel = Channel::from(fcntl_dupfd_cloexec(stdin, 3)?);
        let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&nothing)?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let mut groups = Vec::new();
        let role = loop {
            let mut message = channel.receive(WITHIN)?;
            if message.kind == kind::HOLD {
                let named = held::named(&message.content);
                groups.extend(named.map(|(number, name)| Group { name, number, fds: message.fds }));
                continue;
            }
            break match (message.kind, message.fds.pop()) {
                (kind::FIRST, None) => Begins::First(groups),
                (kind::HEIR, Some(fd)) => Begins::Heir(fd.into()),
                _ => return Err(ChannelError::Foreign(None)),
            };
        };
        Ok((Self(channel), role))
    }

    /// Another handle, for descriptors that the keeper holds.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn holder(&self) -> Result<Holder, Errno> {
        Ok(Holder(fcntl_dupfd_cloexec(&self.0, 3)?.into()))
    }

    /// Has the keeper start this program. Returns a channel to it, or a sentence that says why it was not started.
    ///
    /// # Errors
    /// A sentence for a person.
    pub fn upgrade(&self, program: &Path) -> Result<Channel, String> {
        let words = |error: ChannelError| format!("the keeper: {error}");
        self.0.send(kind::UPGRADE, program.as_os_str().as_bytes(), &[], WITHIN).map_err(words)?;
        loop {
            let mut message = self.0.receive(WITHIN).map_err(words)?;
            match message.kind {
                kind::STARTED => {
                    return message.fds.pop().map(Channel::from).ok_or_else(|| "the keeper: no socket".into());
                }
                kind::REFUSED => return Err(message.text()),
                // The end of an earlier heir.
                _ => {}
            }
        }
    }

    /// The end of the heir, if the keeper reports it in time: a sentence.
    pub fn ended(&self, within: Duration) -> Option<String> {
        let message = self.0.receive(within).ok()?;
        (message.kind == kind::ENDED).then(|| message.text())
    }

    /// Ends the heir.
    pub fn abandon(&self) {
        // Without a keeper there is no heir.
        let _ = self.0.send(kind::ABANDON, b"", &[], WITHIN);
    }

    /// This daemon stands still for ever: when it ends, another one is to be started.
    pub fn is_stuck(&self) {
        // Without a keeper nobody starts one.
        let _ = self.0.send(kind::STUCK, b"", &[], WITHIN);
    }

    /// This daemon serves from now on.
    ///
    /// # Errors
    /// The keeper has gone.
    pub fn serves(&self) -> Result<(), ChannelError> {
        self.0.send(kind::SERVES, b"", &[], WITHIN)
    }
}

impl From<Channel> for KeptBy {
    fn from(channel: Channel) -> Self {
        Self(channel)
    }
}

impl From<KeptBy> for OwnedFd {
    fn from(kept: KeptBy) -> Self {
        kept.0.into()
    }
}

/// Has the keeper hold descriptors. Any thread may use it: it waits for nobody.
#[derive(Debug)]
pub struct Holder(Channel);

impl Holder {
    /// The keeper holds these descriptors from now on, under this name and number.
    ///
    /// # Errors
    /// There are too many, or the keeper has gone or does not read.
    pub fn hold(&self, name: &str, number: u64, fds: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.0.send(kind::HOLD, &held::content(number, name), fds, Duration::ZERO)
    }

    /// The keeper closes what it holds under this name with a lower number.
    ///
    /// # Errors
    /// The keeper has gone or does not read.
    pub fn forget(&self, name: &str, below: u64) -> Result<(), ChannelError> {
        self.0.send(kind::FORGET, &held::content(below, name), &[], Duration::ZERO)
    }
}

impl From<Channel> for Holder {
    fn from(channel: Channel) -> Self {
        Self(channel)
    }
}
