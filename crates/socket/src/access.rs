//! Ownership and access rights of a socket: owner, group and mode of its file. The file is made for its owner alone. The rights are
//! set afterwards, before the socket listens; until then connecting fails.

use std::fmt;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, chmod, chownat, fstat, open};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, capabilities};

use crate::ListenError;

/// A user or a group: its number, and a name for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// The number.
    pub id: u32,
    /// The name, or the number again.
    pub name: String,
}

/// Users who may connect: those who may read and write the socket's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The file's owner, if it is not the user who makes it.
    pub owner: Option<Account>,
    /// The file's group, if it is not the group of the user who makes it.
    pub group: Option<Account>,
    /// The file's mode, such as 0o660.
    pub mode: u32,
}

impl Access {
    /// The mode for the owner alone.
    pub const OWNER_ONLY: u32 = 0o600;
}

/// Only the user who makes the socket.
impl Default for Access {
    fn default() -> Self {
        Self { owner: None, group: None, mode: Self::OWNER_ONLY }
    }
}

/// `owner qemu, group libvirt-qemu, mode 0660`.
impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, account) in [("owner", &self.owner), ("group", &self.group)] {
            if let Some(account) = account {
                write!(f, "{what} {}, ", account.name)?;
            }
        }
        write!(f, "mode {:04o}", self.mode)
    }
}

impl Access {
    /// Whether `us` may give a file away so. Only a holder of CAP_CHOWN may give it to other users, and to groups that he is not
    /// in.
    pub(crate) fn may_give(&self, path: &Path, us: Uid) -> Result<(), ListenError> {
        if capabilities(None).is_ok_and(|ours| ours.effective.contains(CapabilitySet::CHOWN)) {
            return Ok(());
        }
        let other = self.owner.as_ref().filter(|owner| owner.id != us.as_raw());
        let groups = getgroups().unwrap_or_default();
        let is_in = |group: u32| getegid().as_raw() == group || groups.iter().any(|ours| ours.as_raw() == group);
        let foreign = self.group.as_ref().filter(|group| !is_in(group.id));
        match (other, foreign) {
            (None, None) => Ok(()),
            (Some(owner), _) => Err(self.refused(path, us, format!("user {}", owner.name))),
            (None, Some(group)) => Err(self.refused(path, us, format!("group {}", group.name))),
        }
    }

    fn refused(&self, path: &Path, us: Uid, whom: String) -> ListenError {
        ListenError::NotToGive { path: path.to_owned(), whom, user: us.as_raw() }
    }

    /// Sets owner, group and mode of a socket's file. `us` has just bound it at `path`, and it does not listen yet.
    pub(crate) fn give(&self, path: &Path, us: Uid) -> Result<(), ListenError> {
        if *self == Self::default() {
            return Ok(());
        }
        let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
        // Another user of the folder may put another file there meanwhile: that one must not be given away.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).map_err(failed("find"))?;
        let stat = fstat(&file).map_err(failed("find"))?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if !is_socket || stat.st_uid != us.as_raw() || stat.st_nlink != 1 {
            return Err(ListenError::InUse(path.to_owned()));
        }
        // The mode of an O_PATH descriptor's file can only be changed by name.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        chmod(&name, Mode::from_raw_mode(self.mode)).map_err(failed("set the mode of"))?;
        let id = |account: &Option<Account>| account.as_ref().map(|account| account.id);
        let (owner, group) = (id(&self.owner).map(Uid::from_raw), id(&self.group).map(Gid::from_raw));
        if owner.is_none() && group.is_none() {
            return Ok(());
        }
        chownat(&file, "", owner, group, AtFlags::EMPTY_PATH).map_err(|errno| match errno {
            // INVAL: the user namespace has no such number.
            Errno::PERM | Errno::INVAL => {
                let whom = [("user", &self.owner), ("group", &self.group)];
                let whom = whom.map(|(what, whom)| whom.as_ref().map(|whom| format!("{what} {}", whom.name)));
                self.refused(path, us, whom.into_iter().flatten().collect::<Vec<_>>().join(" and "))
            }
            errno => failed("give")(errno),
        })
    }
}

/// Changes owner, group and mode of a socket that this process serves at `path`. Connections stay. While it changes, only its owner
/// may connect.
pub fn change_access(path: &Path, access: &Access) -> Result<(), ListenError> {
    let us = geteuid();
    access.may_give(path, us)?;
    let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::empty()).map_err(failed("find"))?;
    let stat = fstat(&file).map_err(failed("find"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    chmod(&name, Mode::RUSR | Mode::WUSR).map_err(failed("set the mode of"))?;
    let id = |account: &Option<Account>| account.as_ref().map(|account| account.id);
    let owner = id(&access.owner).map_or(us, Uid::from_raw);
    let group = id(&access.group).map_or(getegid(), Gid::from_raw);
    if (owner.as_raw(), group.as_raw()) != (stat.st_uid, stat.st_gid) {
        chownat(&file, "", Some(owner), Some(group), AtFlags::EMPTY_PATH).map_err(failed("give"))?;
    }
    chmod(&name, Mode::from_raw_mode(access.mode)).map_err(failed("set the mode of"))
}
