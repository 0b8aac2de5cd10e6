//! Listening sockets that another process makes for confined threads, which may not: an opener of the keeper's (docs/adr/0024).

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nicety_keeper::{OPENS_WITHIN, Opener};
use rustix::net::SocketType;
use rustix::process::geteuid;

use crate::{Access, Account, BACKLOG, ListenError, Listener};

static OPENER: OnceLock<Arc<Opener>> = OnceLock::new();

/// Confined threads have their sockets, and the files of captures, made by this opener from now on.
pub fn made_by(opener: Arc<Opener>) {
    let _set_once = OPENER.set(opener);
}

/// Whether confined threads have an opener.
pub fn is_made_elsewhere() -> bool {
    OPENER.get().is_some()
}

/// The opener for this thread, if it may make none itself.
pub fn opener() -> Option<&'static Opener> {
    OPENER.get().filter(|_| nicety_sandbox::is_confined_here()).map(AsRef::as_ref)
}

/// A listening socket that an opener is to make. Its text is a line: `socket KIND MODE OWNER GROUP PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its path.
    pub path: PathBuf,
    /// Whether it carries whole messages.
    is_messages: bool,
    access: Access,
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_messages { "messages" } else { "stream" };
        write!(f, "socket {kind} {:o}", self.access.mode)?;
        for account in [&self.access.owner, &self.access.group] {
            match account {
                Some(account) => write!(f, " {}", account.id)?,
                None => f.write_str(" -")?,
            }
        }
        write!(f, " {}", self.path.display())
    }
}

impl Wanted {
    /// Reads it from its line.
    pub fn of(line: &str) -> Option<Self> {
        let [kind, mode, owner, group, path] = line.strip_prefix("socket ")?.splitn(5, ' ').collect::<Vec<_>>()[..]
        else {
            return None;
        };
        let is_messages = match kind {
            "messages" => true,
            "stream" => false,
            _ => return None,
        };
        let account = |id: &str| match id {
            "-" => Some(None),
            id => id.parse().ok().map(|number| Some(Account { id: number, name: id.to_owned() })),
        };
        let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| mode & !0o777 == 0)?;
        let access = Access { owner: account(owner)?, group: account(group)?, mode };
        let path = Some(PathBuf::from(path)).filter(|path| path.is_absolute())?;
        Some(Self { path, is_messages, access })
    }

    /// The line that names a socket at a path, whatever its kind is and whoever may connect.
    pub fn line(path: &Path) -> String {
        format!("socket {}", path.display())
    }

    /// Makes it. Whoever gets it removes its file.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn make(&self) -> Result<OwnedFd, ListenError> {
        let kind = if self.is_messages { SocketType::SEQPACKET } else { SocketType::STREAM };
        let listener = Listener::bind_kind(&self.path, kind, geteuid(), &self.access, BACKLOG)?;
        let keeper = |error: std::io::Error| ListenError::Keeper { path: self.path.clone(), why: error.to_string() };
        listener.give().map_err(keeper)
    }
}

/// A listening socket by an opener.
pub(crate) fn listener(
    opener: &Opener,
    path: &Path,
    kind: SocketType,
    access: &Access,
) -> Result<Listener, ListenError> {
    let keeper = |why: String| ListenError::Keeper { path: path.to_owned(), why };
    let is_messages = kind == SocketType::SEQPACKET;
    let wanted = Wanted { path: path.to_owned(), is_messages, access: access.clone() };
    let asked = opener.ask(&wanted.to_string(), OPENS_WITHIN).map_err(|error| keeper(error.to_string()))?;
    let late = || Err(format!("it has not answered within {OPENS_WITHIN:?}"));
    let (_path, socket) = asked.answer(OPENS_WITHIN).unwrap_or_else(late).map_err(keeper)?;
    let mut listener = Listener::go_on(socket, path)?;
    listener.own();
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_all_of_a_socket_and_another_one_is_none() {
        let group = Some(Account { id: 112, name: "112".to_owned() });
        let path = PathBuf::from("/run/my vms/vm1.sock");
        let wanted = Wanted { path, is_messages: false, access: Access { owner: None, group, mode: 0o660 } };
        assert_eq!(wanted.to_string(), "socket stream 660 - 112 /run/my vms/vm1.sock");
        assert_eq!(Wanted::of(&wanted.to_string()), Some(wanted));
        for line in
            ["socket stream 660 - 112 vm1.sock", "socket pipe 660 - - /a", "socket stream 4660 - - /a", "socket /a", ""]
        {
            assert_eq!(Wanted::of(line), None, "{line}");
        }
    }
}
