//! Access to a socket, as a host file sets it: owner, group and mode (docs/host-file.md, "Who may connect").

use std::fmt;

use nicety_socket::{Access, Account};
use nix::errno::Errno;
use nix::unistd::{Group, User};

use super::form::{Form, words};
use super::walk::{Found, Key, Section, Walk};

/// The mode for all users of the machine.
const EVERYBODY: u32 = 0o666;
const MODES: [(&str, u32); 3] = [("0600", 0o600), ("0660", 0o660), ("0666", EVERYBODY)];
const MODE_WORDS: [&str; 3] = words(&MODES);

const MODE: &str = "\"0600\" (owner), \"0660\" (and group) or \"0666\" (everybody: with open_to_everybody = true): who connects has to read and write";

/// The names of a table's keys: owner, group, mode, and consent to an open socket.
pub(super) struct Names {
    owner: &'static str,
    group: &'static str,
    mode: &'static str,
    open: &'static str,
}

/// The names for ports' sockets.
pub(super) const PORTS: Names = Names { owner: "owner", group: "group", mode: "mode", open: "open_to_everybody" };
/// The names for the control socket.
pub(super) const CONTROL: Names =
    Names { owner: "control_owner", group: "control_group", mode: "control_mode", open: "control_open_to_everybody" };

/// The keys of ports' sockets.
pub(super) const KEYS: [Key; 4] = keys(&PORTS);
pub(super) const CONTROL_KEYS: [Key; 4] = keys(&CONTROL);

const fn keys(names: &Names) -> [Key; 4] {
    [
        Key::new(names.owner, Form::Account, "a user's name or number"),
        Key::new(names.group, Form::Account, "a group's name or number, such as \"libvirt-qemu\""),
        Key::new(names.mode, Form::Words(&MODE_WORDS), MODE),
        Key::new(names.open, Form::Flag, "true with mode \"0666\" in the same table, else false"),
    ]
}

/// The accounts that may connect to a socket, before the names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessConfig {
    /// The socket's owner; by default the daemon's user.
    pub owner: Option<String>,
    /// The socket's group; by default the daemon's.
    pub group: Option<String>,
    /// The mode, if the file says.
    pub mode: Option<u32>,
}

/// Reasons why a user or group cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The account does not exist.
    #[error("there is no {kind} {name:?} on this machine (`getent {database}` lists those that there are)")]
    Unknown {
        /// `user` or `group`.
        kind: &'static str,
        /// `passwd` or `group`.
        database: &'static str,
        /// The name.
        name: String,
    },
    /// The lookup failed.
    #[error("the {kind} {name:?} cannot be looked up: {errno}")]
    System {
        /// `user` or `group`.
        kind: &'static str,
        /// The name.
        name: String,
        /// The cause.
        errno: Errno,
    },
}

impl AccessConfig {
    /// Fills in missing values from `usual`.
    pub fn or(self, usual: &Self) -> Self {
        Self {
            owner: self.owner.or_else(|| usual.owner.clone()),
            group: self.group.or_else(|| usual.group.clone()),
            mode: self.mode.or(usual.mode),
        }
    }

    /// The mode. By default the members of a named group may connect.
    pub fn mode(&self) -> u32 {
        self.mode.unwrap_or(if self.group.is_some() { 0o660 } else { Access::OWNER_ONLY })
    }

    /// Looks up the names. A number is used as it is.
    pub fn resolve(&self) -> Result<Access, AccountError> {
        let user = |name: &str| User::from_name(name).map(|user| user.map(|user| user.uid.as_raw()));
        let owner = self.owner.as_deref().map(|name| account(name, "user", "passwd", user)).transpose()?;
        let group = self.group.as_deref().map(|name| account(name, "group", "group", group_of_name)).transpose()?;
        Ok(Access { owner, group, mode: self.mode() })
    }
}

/// Prints the same text as [`Access`].
impl fmt::Display for AccessConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = |name: &Option<String>| name.clone().map(|name| Account { id: 0, name });
        Access { owner: account(&self.owner), group: account(&self.group), mode: self.mode() }.fmt(f)
    }
}

/// The number of a group, by its name or number.
pub fn group_number(name: &str) -> Result<u32, AccountError> {
    account(name, "group", "group", group_of_name).map(|account| account.id)
}

fn group_of_name(name: &str) -> nix::Result<Option<u32>> {
    Group::from_name(name).map(|group| group.map(|group| group.gid.as_raw()))
}

fn account(
    name: &str,
    kind: &'static str,
    database: &'static str,
    look_up: impl FnOnce(&str) -> nix::Result<Option<u32>> + Send + 'static,
) -> Result<Account, AccountError> {
    let name = name.to_owned();
    match name.parse() {
        // The highest number means "no change" to chown(2).
        Ok(id) if id != u32::MAX => return Ok(Account { id, name }),
        _ => {}
    }
    let asked = name.clone();
    match nicety_sandbox::look_up(move || look_up(&asked)).unwrap_or(Err(Errno::EAGAIN)) {
        Ok(Some(id)) => Ok(Account { id, name }),
        // getpwnam(3) lists these errors: some databases report an unknown name by them.
        Ok(None) | Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => {
            Err(AccountError::Unknown { kind, database, name })
        }
        Err(errno) => Err(AccountError::System { kind, name, errno }),
    }
}

/// Reads the keys of a table.
pub(super) fn access(walk: &mut Walk, section: Section<'_>, names: &Names) -> AccessConfig {
    let owner = name(walk, section, names.owner);
    let group = name(walk, section, names.group);
    let mode = walk.word(section, names.mode, &MODES);
    let open = walk.boolean(section, names.open);
    let is_open = open.as_ref().is_some_and(|found| found.value);
    match (&mode, &open) {
        (Some(Found { value: EVERYBODY, line }), _) if !is_open => {
            let open = names.open;
            let what = format!(
                "with \"0666\" every user of this machine may connect, as this VM's VMM; if that is meant, say it twice: {open} = true"
            );
            walk.wrong(section, names.mode, *line, what);
        }
        (mode, Some(open)) if is_open && mode.as_ref().is_none_or(|mode| mode.value != EVERYBODY) => {
            let what = format!("there is no {} = \"0666\" beside it", names.mode);
            walk.wrong(section, names.open, open.line, what);
        }
        _ => {}
    }
    AccessConfig { owner, group, mode: mode.map(|found| found.value) }
}

/// The name or number of a user or group.
pub(super) fn name(walk: &mut Walk, section: Section<'_>, key: &str) -> Option<String> {
    let Found { value: name, line } = walk.string(section, key)?;
    let bad = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | ',' | '/');
    if name.is_empty() || name.contains(bad) {
        walk.wrong(section, key, line, format!("{name:?} cannot be a name"));
        return None;
    }
    Some(name.to_owned())
}

#[cfg(test)]
#[path = "access_test.rs"]
mod tests;
