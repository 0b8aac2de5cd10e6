//! A UNIX socket in the file system at which one peer is served at a time: made for its owner alone or for whom [`Access`] names, guarded
//! against a second server, removed at the end. Or one that somebody else serves, and that is [joined](join()). Access is governed by the socket file, and by nothing else (vfio-user.rst,
//! "Authentication", says so; the other protocols that are spoken over such a socket say nothing).
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nicety_bell::Lent;
use rustix::fs::{
    Access as Right, AtFlags, CWD, FileType, Mode, PROC_SUPER_MAGIC, accessat, fchmod, lstat, statat, statfs, unlink,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with, sockopt,
};
use rustix::process::{Uid, geteuid};

mod access;
mod join;

pub use access::{Access, Account, change_access};
pub use join::{JoinError, join};

/// File systems that keep no sockets (`linux/magic.h`): proc, sysfs, FAT.
const NO_PLACES: [u64; 3] = [PROC_SUPER_MAGIC as u64, 0x6265_6572, 0x4d44];

/// Longest path of a socket in bytes (`sun_path` of unix(7), less its NUL).
pub const MAX_PATH: usize = 107;

/// Connections that the kernel keeps waiting; more than one only to refuse them politely.
const BACKLOG: u16 = 4;

/// Why a socket could not be made. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The path does not fit into a socket address.
    #[error("the socket path {path} has {length} bytes; the system's limit is {MAX_PATH}: choose a shorter directory")]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The path is something else than a socket; it is left alone.
    #[error("{0} exists and is not a socket: remove it or choose another path")]
    NotASocket(PathBuf),
    /// Another process serves it.
    #[error("{0} is served by another process or another port: stop it or choose another path")]
    InUse(PathBuf),
    /// A socket of another user that no process serves.
    #[error("{path} is a socket of user {uid} that nobody serves: remove it")]
    NotOurs {
        /// The path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A socket that its mode keeps us from: whether it is served is unknown.
    #[error("{path} is a socket of user {uid}, which user {user} may not try: stop who serves it, or remove it")]
    NotToTry {
        /// The path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Who tried.
        user: u32,
    },
    /// Its folder is not there.
    #[error("the socket {path} has no folder: make {} or choose another path", folder(path).display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// Its folder is not for us to write to.
    #[error(
        "the socket {path} cannot be made: user {user} may not write to {}: {errno}; change that or choose another path",
        folder(path).display()
    )]
    NotAllowed {
        /// The path.
        path: PathBuf,
        /// Who tried.
        user: u32,
        /// How the system says it.
        errno: Errno,
    },
    /// Its folder is of a file system that keeps no sockets: proc, sysfs, FAT.
    #[error(
        "the socket {path} cannot be made: {} is no place for sockets ({errno}); choose a path in /run, /tmp or your home",
        folder(path).display()
    )]
    NoPlace {
        /// The path.
        path: PathBuf,
        /// How the system says it.
        errno: Errno,
    },
    /// It may not be given to whom it is for.
    #[error(
        "the socket {path} cannot be given to {whom}: user {user} may give it only to himself and to groups that he is in (`id`); add \
         him to the group, or start the daemon as root"
    )]
    NotToGive {
        /// The path.
        path: PathBuf,
        /// `user qemu`, `group libvirt-qemu`.
        whom: String,
        /// Who tried.
        user: u32,
    },
    /// The system refused.
    #[error("cannot {action} the socket {path}: {errno}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Why not.
        errno: Errno,
    },
}

impl ListenError {
    fn of(action: &'static str, path: &Path, errno: Errno) -> ListenError {
        let path = path.to_owned();
        match errno {
            // The folder is there, or ours to write to: then it is the kind of folder.
            Errno::NOENT if folder(&path).is_dir() => ListenError::NoPlace { path, errno },
            Errno::PERM if may_write(folder(&path)).is_ok() => ListenError::NoPlace { path, errno },
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL => ListenError::NoPlace { path, errno },
            Errno::NOENT | Errno::NOTDIR => ListenError::NoFolder { path },
            Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                ListenError::NotAllowed { path, user: geteuid().as_raw(), errno }
            }
            errno => ListenError::System { action, path, errno },
        }
    }
}

/// The folder that a path's last part lies in.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether we may make files in a folder.
fn may_write(folder: &Path) -> Result<(), Errno> {
    accessat(CWD, folder, Right::WRITE_OK | Right::EXEC_OK, AtFlags::EACCESS)
}

/// What is at a path where a socket could be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing.
    Free,
    /// A stale socket of ours.
    Stale,
    /// A socket that somebody serves.
    Served,
}

/// Finds out whether a socket of bytes could be made at a path: everything that [`Listener::bind_for`] does before it makes one. That
/// somebody serves one there is no error.
pub fn check(path: impl AsRef<Path>, access: &Access) -> Result<Place, ListenError> {
    checked(path.as_ref(), access, Probe::Connect)
}

/// The same as [`check`], without a connection that the server would see. A server in another network namespace is not seen.
pub fn check_quietly(path: impl AsRef<Path>, access: &Access) -> Result<Place, ListenError> {
    checked(path.as_ref(), access, Probe::List)
}

fn checked(path: &Path, access: &Access, probe: Probe) -> Result<Place, ListenError> {
    match prepare(path, SocketType::STREAM, geteuid(), access, probe) {
        Ok((_, place)) => Ok(place),
        Err(ListenError::InUse(_)) => Ok(Place::Served),
        Err(error) => Err(error),
    }
}

/// How it is found out whether a socket is served.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// By connecting to it.
    Connect,
    /// By the kernel's list of sockets.
    List,
}

/// What a socket needs that is to be made at a path: its address, and a place that is free or can be made so.
fn prepare(
    path: &Path,
    kind: SocketType,
    us: Uid,
    access: &Access,
    probe: Probe,
) -> Result<(SocketAddrUnix, Place), ListenError> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(ListenError::PathTooLong { path: path.to_owned(), length });
    }
    let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
    let address = SocketAddrUnix::new(path).map_err(failed("name"))?;
    let folder = folder(path);
    let of = |errno| ListenError::of("look at", path, errno);
    if !folder.is_dir() {
        return Err(of(Errno::NOENT));
    }
    if statfs(folder).is_ok_and(|system| NO_PLACES.contains(&(system.f_type as u64))) {
        return Err(ListenError::NoPlace { path: path.to_owned(), errno: Errno::OPNOTSUPP });
    }
    may_write(folder).map_err(of)?;
    access.may_give(path, us)?;
    let place = look(path, &address, kind, us, access, probe)?;
    Ok((address, place))
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl PeerCredentials {
    /// Who is at the other end: who connected, or who began to listen.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        sockopt::socket_peercred(socket).ok().map(|c| PeerCredentials {
            pid: c.pid.as_raw_nonzero().get(),
            uid: c.uid.as_raw(),
            gid: c.gid.as_raw(),
        })
    }
}

/// What [`Listener::accept`] found.
#[derive(Debug)]
pub enum Accepted {
    /// No connection.
    Nobody,
    /// A client, on a socket that does not block.
    Client(OwnedFd, Option<PeerCredentials>),
    /// Someone else while a client is there. Worth a line in the log.
    Refused(Lent, Option<PeerCredentials>),
}

/// A listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that only our own is removed.
    identity: (u64, u64),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Makes the socket, of bytes, for its owner only. A stale socket of ours is replaced; nothing else is removed.
    pub fn bind(path: impl AsRef<Path>) -> Result<Listener, ListenError> {
        Self::bind_for(path, &Access::default())
    }

    /// As [`Listener::bind`], for those that `access` names. No one else can connect at any time.
    pub fn bind_for(path: impl AsRef<Path>, access: &Access) -> Result<Listener, ListenError> {
        Self::bind_queue(path, access, BACKLOG)
    }

    /// Makes the socket with a queue: so many connections wait to be accepted, and the next client waits itself.
    pub fn bind_queue(path: impl AsRef<Path>, access: &Access, backlog: u16) -> Result<Listener, ListenError> {
        Self::bind_kind(path.as_ref(), SocketType::STREAM, geteuid(), access, backlog)
    }

    /// As [`Listener::bind`], a socket of whole messages.
    pub fn bind_messages(path: impl AsRef<Path>) -> Result<Listener, ListenError> {
        Self::bind_kind(path.as_ref(), SocketType::SEQPACKET, geteuid(), &Access::default(), BACKLOG)
    }

    fn bind_kind(
        path: &Path,
        kind: SocketType,
        us: Uid,
        access: &Access,
        backlog: u16,
    ) -> Result<Listener, ListenError> {
        let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
        let (address, place) = prepare(path, kind, us, access, Probe::Connect)?;
        if place == Place::Stale {
            match unlink(path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("remove the stale")(errno)),
            }
        }
        let socket = socket(kind).map_err(failed("create"))?;
        // The file takes the socket's own mode, so that it is never open to others, not even before a chmod.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("protect"))?;
        bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse(path.to_owned()),
            errno => ListenError::of("bind", path, errno),
        })?;
        let stat = lstat(path).map_err(failed("find"))?;
        let listener = Listener { socket, path: path.to_owned(), identity: (stat.st_dev, stat.st_ino) };
        // Before anybody is listened to: who connects until then is refused, whatever the mode.
        access.give(path, us)?;
        listen(&listener.socket, i32::from(backlog)).map_err(failed("listen on"))?;
        Ok(listener)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes one waiting connection without blocking. While a device is `occupied` by a client, others are refused.
    pub fn accept(&self, occupied: bool) -> Result<Accepted, Errno> {
        let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(Accepted::Nobody),
            Err(errno) => return Err(errno),
        };
        let peer = PeerCredentials::of(&socket);
        if occupied {
            // It may have sent something already that takes long to be closed, and goes with it.
            return Ok(Accepted::Refused(Lent::from(socket), peer));
        }
        Ok(Accepted::Client(socket, peer))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = statat(CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == self.identity);
        if ours {
            // Nothing can be done about a failure here, and the next start replaces the file.
            let _ = unlink(&self.path);
        }
    }
}

fn socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Whether there is a stale socket of ours; an error if anything else is there. Ours is also one that an earlier daemon of ours gave
/// to another user.
fn look(
    path: &Path,
    address: &SocketAddrUnix,
    kind: SocketType,
    us: Uid,
    access: &Access,
    probe: Probe,
) -> Result<Place, ListenError> {
    let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
    let stat = match lstat(path) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(Place::Free),
        Err(errno) => return Err(ListenError::of("look at", path, errno)),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket(path.to_owned()));
    }
    let answer = match probe {
        Probe::Connect => connect(socket(kind).map_err(failed("create"))?, address),
        Probe::List if is_listed(path) => Ok(()),
        Probe::List => Err(Errno::CONNREFUSED),
    };
    match answer {
        Err(Errno::CONNREFUSED) => {}
        // AGAIN: its queue is full, so somebody has it. PROTOTYPE: somebody has it as a socket of another kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => return Err(ListenError::InUse(path.to_owned())),
        Err(Errno::NOENT) => return Ok(Place::Free),
        // connect(2) asks for the right to write before it looks whether anybody listens.
        Err(Errno::ACCESS) => {
            return Err(ListenError::NotToTry { path: path.to_owned(), uid: stat.st_uid, user: us.as_raw() });
        }
        Err(errno) => return Err(failed("try")(errno)),
    }
    let given = access.owner.as_ref().is_some_and(|owner| owner.id == stat.st_uid);
    if stat.st_uid != us.as_raw() && !given {
        return Err(ListenError::NotOurs { path: path.to_owned(), uid: stat.st_uid });
    }
    Ok(Place::Stale)
}

/// Whether a socket that listens was bound at a path (proc(5), /proc/net/unix), by whatever name of its folder.
fn is_listed(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;

    /// `__SO_ACCEPTCON` of linux/net.h: it listens.
    const LISTENS: u32 = 1 << 16;
    let real = |path: &Path| Some((folder(path).canonicalize().ok()?, path.file_name()?.to_owned()));
    let ours = real(path);
    let list = std::fs::read("/proc/net/unix").unwrap_or_default();
    list.split(|byte| *byte == b'\n').skip(1).any(|line| {
        // Number, references, protocol, flags, type, state, inode, path. The path may have spaces.
        let Some(at) = line.iter().position(|byte| *byte == b'/') else { return false };
        let (head, bound) = line.split_at(at);
        let flags = head.split(|byte| *byte == b' ').nth(3).and_then(|flags| str::from_utf8(flags).ok());
        let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
        if flags.is_none_or(|flags| flags & LISTENS == 0) {
            return false;
        }
        let bound = Path::new(std::ffi::OsStr::from_bytes(bound));
        bound == path || (bound.file_name() == path.file_name() && ours.is_some() && real(bound) == ours)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    /// Root may do everything by these capabilities alone; a thread that gives them up is as any other user.
    pub(crate) fn as_another_user<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            let mut ours = capabilities(None).unwrap();
            ours.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
            set_capabilities(None, ours).unwrap();
            act()
        };
        std::thread::scope(|scope| scope.spawn(act).join().unwrap())
    }

    #[test]
    fn a_socket_that_another_user_left_behind_is_named_and_left_to_him() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vm.sock");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        // Who it belongs to is told from who we are: not even root would have to be another user for this.
        let us = geteuid().as_raw();
        let error = Listener::bind_kind(&path, SocketType::STREAM, Uid::from_raw(us + 1), &Access::default(), BACKLOG)
            .unwrap_err();
        assert!(matches!(error, ListenError::NotOurs { uid, .. } if uid == us), "{error}");
        assert!(error.to_string().ends_with(&format!("is a socket of user {us} that nobody serves: remove it")));
        assert!(path.exists());
    }

    #[test]
    fn a_socket_that_we_may_not_try_is_left_alone_served_or_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vm.sock");
        let served = std::os::unix::net::UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        let us = geteuid().as_raw();
        let refused = || as_another_user(|| Listener::bind(&path).unwrap_err()).to_string();
        let said = format!("is a socket of user {us}, which user {us} may not try: stop who serves it, or remove it");
        let error = refused();
        assert!(error.ends_with(&said), "{error}");
        drop(served);
        let error = refused();
        assert!(error.ends_with(&said), "{error}");
        assert!(path.exists());
    }
}
