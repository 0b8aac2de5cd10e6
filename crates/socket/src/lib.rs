//! A UNIX socket in the file system that serves one peer at a time. It is made for its owner alone or for those whom [`Access`]
//! names, guarded against a second server, and removed at the end. Or a client of such a socket: [`join()`]. The socket file alone
//! governs access (vfio-user.rst, "Authentication", says so; the other protocols over such sockets say nothing about it).
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nicety_peer::PeerFd;
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
mod wanted;

pub use access::{Access, Account, change_access};
pub use join::{JoinError, join};
pub use wanted::{Wanted, is_made_elsewhere, made_by, opener};

/// File systems that keep no sockets (`linux/magic.h`): proc, sysfs, FAT.
const NO_PLACES: [u64; 3] = [PROC_SUPER_MAGIC as u64, 0x6265_6572, 0x4d44];

/// Longest path of a socket in bytes (`sun_path` of unix(7), less its NUL).
pub const MAX_PATH: usize = 107;

/// Most connections that wait in the kernel. One is served; further ones are accepted only to be refused in order.
const BACKLOG: u16 = 4;

/// The reason why a socket could not be made. Each one names the remedy.
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
    /// The path exists and is not a socket; it is left alone.
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
    /// A socket whose mode forbids this user to connect: nobody knows whether it is served.
    #[error("{path} is a socket of user {uid}, which user {user} may not try: stop who serves it, or remove it")]
    NotToTry {
        /// The path.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// The user who tried.
        user: u32,
    },
    /// The folder does not exist.
    #[error("the socket {path} has no folder: make {} or choose another path", folder(path).display())]
    NoFolder {
        /// The path.
        path: PathBuf,
    },
    /// This user may not write to the folder.
    #[error(
        "the socket {path} cannot be made: user {user} may not write to {}: {errno}; change that or choose another path",
        folder(path).display()
    )]
    NotAllowed {
        /// The path.
        path: PathBuf,
        /// The user who tried.
        user: u32,
        /// The system's error.
        errno: Errno,
    },
    /// The folder's file system keeps no sockets: proc, sysfs, FAT.
    #[error(
        "the socket {path} cannot be made: {} is no place for sockets ({errno}); choose a path in /run, /tmp or your home",
        folder(path).display()
    )]
    NoPlace {
        /// The path.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
    /// This user may not give the socket to the user or group that it is for.
    #[error(
        "the socket {path} cannot be given to {whom}: user {user} may give it only to himself and to groups that he is in (`id`); add \
         him to the group, or start the daemon as root"
    )]
    NotToGive {
        /// The path.
        path: PathBuf,
        /// `user qemu`, `group libvirt-qemu`.
        whom: String,
        /// The user who tried.
        user: u32,
    },
    /// The keeper, which makes sockets for this process, did not.
    #[error("the keeper does not make the socket {path}: {why}")]
    Keeper {
        /// The path.
        path: PathBuf,
        /// The reason: a sentence.
        why: String,
    },
    /// An error of the system.
    #[error("cannot {action} the socket {path}: {errno}")]
    System {
        /// The action that failed.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        errno: Errno,
    },
}

impl ListenError {
    fn of(action: &'static str, path: &Path, errno: Errno) -> ListenError {
        let path = path.to_owned();
        match errno {
            // The folder exists, or this user may write to it: so its file system is the reason.
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

/// The folder of a path's last component.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether this process may make files in a folder.
fn may_write(folder: &Path) -> Result<(), Errno> {
    accessat(CWD, folder, Right::WRITE_OK | Right::EXEC_OK, AtFlags::EACCESS)
}

/// State of a path at which a socket may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// No file.
    Free,
    /// A stale socket of ours.
    Stale,
    /// A socket with a server.
    Served,
}

/// Finds out whether a byte-stream socket could be made at a path: makes every check that [`Listener::bind_for`] makes first. A
/// served socket there is not an error.
pub fn check(path: impl AsRef<Path>, access: &Access) -> Result<Place, ListenError> {
    checked(path.as_ref(), access, Probe::Connect)
}

/// Like [`check`], without a connection that the server would see. It does not see a server in another network namespace.
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

/// The method that finds out whether a socket is served.
#[derive(Clone, Copy, Debug)]
enum Probe {
    /// Connects to it.
    Connect,
    /// Reads the kernel's list of sockets.
    List,
}

/// Prepares for a socket at a path: its address, and a place that is free or can be made free.
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

/// The process at the other end of a connection.
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
    /// The process at the other end: the one that connected, or that began to listen.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        sockopt::socket_peercred(socket).ok().map(|c| PeerCredentials {
            pid: c.pid.as_raw_nonzero().get(),
            uid: c.uid.as_raw(),
            gid: c.gid.as_raw(),
        })
    }
}

/// Result of [`Listener::accept`].
#[derive(Debug)]
pub enum Accepted {
    /// No connection.
    Nobody,
    /// A client. Its socket does not block.
    Client(OwnedFd, Option<PeerCredentials>),
    /// Another peer, while a client is connected. The log reports it.
    Refused(PeerFd, Option<PeerCredentials>),
}

/// A listening socket. Dropping it removes the file.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file. Only our own file is removed.
    identity: (u64, u64),
    /// The file is another process's until [`Listener::own`].
    is_lent: bool,
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Listener {
    /// Makes a byte-stream socket for its owner only. A stale socket of ours is replaced; nothing else is removed.
    pub fn bind(path: impl AsRef<Path>) -> Result<Listener, ListenError> {
        Self::bind_for(path, &Access::default())
    }

    /// Like [`Listener::bind`], for those that `access` names. No one else can connect at any time.
    pub fn bind_for(path: impl AsRef<Path>, access: &Access) -> Result<Listener, ListenError> {
        Self::bind_queue(path, access, BACKLOG)
    }

    /// Makes the socket with a backlog: so many connections wait to be accepted; the next client blocks in connect(2).
    pub fn bind_queue(path: impl AsRef<Path>, access: &Access, backlog: u16) -> Result<Listener, ListenError> {
        Self::bind_kind(path.as_ref(), SocketType::STREAM, geteuid(), access, backlog)
    }

    /// Like [`Listener::bind`], for whole messages (SOCK_SEQPACKET).
    pub fn bind_messages(path: impl AsRef<Path>) -> Result<Listener, ListenError> {
        Self::bind_messages_for(path, &Access::default())
    }

    /// Like [`Listener::bind_for`], for whole messages (SOCK_SEQPACKET).
    pub fn bind_messages_for(path: impl AsRef<Path>, access: &Access) -> Result<Listener, ListenError> {
        Self::bind_kind(path.as_ref(), SocketType::SEQPACKET, geteuid(), access, BACKLOG)
    }

    /// The socket, for another process, which removes the file.
    ///
    /// # Errors
    /// This process has too many descriptors: the file is removed.
    pub fn give(mut self) -> io::Result<OwnedFd> {
        let socket = self.socket.try_clone()?;
        self.is_lent = true;
        Ok(socket)
    }

    fn bind_kind(
        path: &Path,
        kind: SocketType,
        us: Uid,
        access: &Access,
        backlog: u16,
    ) -> Result<Listener, ListenError> {
        if let Some(opener) = wanted::opener() {
            return wanted::listener(opener, path, kind, access);
        }
        let failed = |action| move |errno| ListenError::System { action, path: path.to_owned(), errno };
        let (address, place) = prepare(path, kind, us, access, Probe::Connect)?;
        if place == Place::Stale {
            match unlink(path) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("remove the stale")(errno)),
            }
        }
        let socket = socket(kind).map_err(failed("create"))?;
        // The file inherits the socket's mode. So it is never open to others, not even before a chmod.
        fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("protect"))?;
        bind(&socket, &address).map_err(|errno| match errno {
            Errno::ADDRINUSE => ListenError::InUse(path.to_owned()),
            errno => ListenError::of("bind", path, errno),
        })?;
        let stat = lstat(path).map_err(failed("find"))?;
        let identity = (stat.st_dev, stat.st_ino);
        let listener = Listener { socket, path: path.to_owned(), identity, is_lent: false };
        // Before listen(2): until then the kernel refuses every connection, whatever the mode.
        access.give(path, us)?;
        listen(&listener.socket, i32::from(backlog)).map_err(failed("listen on"))?;
        Ok(listener)
    }

    /// Goes on with a listening socket that another process has made at this path. Dropping it leaves the file alone until it is
    /// [ours](Listener::own): the other process may go on with it after all.
    ///
    /// # Errors
    /// There is no file at the path.
    pub fn go_on(socket: OwnedFd, path: impl AsRef<Path>) -> Result<Listener, ListenError> {
        let path = path.as_ref().to_owned();
        match lstat(&path) {
            Ok(stat) => Ok(Listener { socket, path, identity: (stat.st_dev, stat.st_ino), is_lent: true }),
            Err(errno) => Err(ListenError::System { action: "find", path, errno }),
        }
    }

    /// The other process has let go of the socket: it is ours, and dropping this removes the file.
    pub fn own(&mut self) {
        self.is_lent = false;
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts one waiting connection without blocking. While a client has the device (`occupied`), others are refused.
    pub fn accept(&self, occupied: bool) -> Result<Accepted, Errno> {
        let socket = match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(Accepted::Nobody),
            Err(errno) => return Err(errno),
        };
        let peer = PeerCredentials::of(&socket);
        if occupied {
            // The peer may have sent descriptors that take long to close. They close with this socket, on another thread.
            return Ok(Accepted::Refused(PeerFd::from(socket), peer));
        }
        Ok(Accepted::Client(socket, peer))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_lent {
            return;
        }
        let (path, identity) = (self.path.clone(), self.identity);
        // A worker may not remove files.
        nicety_sandbox::aside(move || {
            let ours =
                statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == identity);
            if ours {
                // Nobody can act on a failure here. The next start replaces the file.
                let _ = unlink(&path);
            }
        });
    }
}

fn socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Finds a stale socket of ours; an error if anything else is there. A socket that an earlier daemon of ours gave to another user
/// counts as ours.
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
        // AGAIN: a server has it and its queue is full. PROTOTYPE: a server has it as a socket of another kind.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => return Err(ListenError::InUse(path.to_owned())),
        Err(Errno::NOENT) => return Ok(Place::Free),
        // connect(2) checks the right to write before it checks for a server.
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

/// Whether a listening socket is bound at a path (proc(5), /proc/net/unix), under any name of its folder.
fn is_listed(path: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;

    /// `__SO_ACCEPTCON` of linux/net.h: the socket listens.
    const LISTENS: u32 = 1 << 16;
    let real = |path: &Path| Some((folder(path).canonicalize().ok()?, path.file_name()?.to_owned()));
    let ours = real(path);
    let list = std::fs::read("/proc/net/unix").unwrap_or_default();
    list.split(|byte| *byte == b'\n').skip(1).any(|line| {
        // Fields: number, references, protocol, flags, type, state, inode, path. The path may have spaces.
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

    /// Root may do everything by these capabilities alone. A thread without them is like any other user.
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
        // The code compares the file's owner with `us`. So the test passes another `us`; it needs no second user, not even as root.
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
