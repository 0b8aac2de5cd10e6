//! The places at which hosts listen, by TCP or at a UNIX socket, and the streams between them.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// Waiting connections.
const BACKLOG: i32 = 64;

/// A host listens here: `10.0.0.2:7001`, or `unix:/run/ft.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A UNIX socket: on this machine, or at the end of a tunnel.
    Unix(PathBuf),
}

impl From<SocketAddr> for Place {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        Self::Unix(path)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

fn unix(path: &Path) -> io::Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).map_err(|errno| match errno {
        Errno::NAMETOOLONG => io::Error::new(io::ErrorKind::InvalidInput, "a socket's path has at most 107 bytes"),
        errno => errno.into(),
    })
}

fn socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?)
}

/// A connection, which never blocks.
#[derive(Debug)]
pub enum Stream {
    /// By TCP.
    Tcp(TcpStream),
    /// At a UNIX socket.
    Unix(UnixStream),
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl From<UnixStream> for Stream {
    fn from(stream: UnixStream) -> Self {
        Self::Unix(stream)
    }
}

impl Stream {
    /// Connects. The second value: whether it still connects.
    ///
    /// # Errors
    /// There is no way, as far as is known at once.
    pub fn connect(to: &Place) -> io::Result<(Self, bool)> {
        match to {
            Place::Tcp(to) => {
                let socket = socket(family(*to))?;
                let is_connecting = match connect(&socket, to) {
                    Ok(()) => false,
                    Err(Errno::INPROGRESS) => true,
                    Err(errno) => return Err(errno.into()),
                };
                Ok((Self::Tcp(socket.into()), is_connecting))
            }
            Place::Unix(path) => {
                let (address, socket) = (unix(path)?, socket(AddressFamily::UNIX)?);
                connect(&socket, &address).map_err(|errno| match errno {
                    Errno::NOENT | Errno::CONNREFUSED => {
                        io::Error::new(io::Error::from(errno).kind(), "nobody listens there")
                    }
                    errno => errno.into(),
                })?;
                Ok((Self::Unix(socket.into()), false))
            }
        }
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// A TCP socket with this address, which another one of this user may have too.
fn bound_beside(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = socket(family(address))?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    bind(&socket, &address)?;
    Ok(socket)
}

/// Whether a socket's name fits this path, and nothing else is there.
fn is_for_sockets(path: &Path) -> io::Result<()> {
    unix(path)?;
    match path.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => {
            let why = "something is there that is no socket: remove it, or give another path";
            Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Takes connections, and never waits for one.
#[derive(Debug)]
pub enum Listener {
    /// By TCP.
    Tcp(TcpListener),
    /// At a UNIX socket of this path.
    Unix(UnixListener, PathBuf),
}

impl Listener {
    /// Listens at this place beside a process that this one replaces.
    ///
    /// # Errors
    /// Another user listens there, or something else is at the path.
    pub fn beside(at: &Place) -> io::Result<Self> {
        match at {
            Place::Tcp(address) => {
                let socket = bound_beside(*address)?;
                listen(&socket, BACKLOG)?;
                Ok(Self::Tcp(socket.into()))
            }
            Place::Unix(path) => Self::in_place(path),
        }
    }

    /// Whether [`Listener::beside`] could listen at this place. Makes nothing, and takes no connection.
    ///
    /// # Errors
    /// Those of [`Listener::beside`].
    pub fn check(at: &Place) -> io::Result<()> {
        match at {
            Place::Tcp(address) => bound_beside(*address).map(drop),
            Place::Unix(path) => {
                is_for_sockets(path)?;
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
                Ok(accessat(CWD, folder, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
            }
        }
    }

    /// Puts a socket at the path, for its owner only, in place of one that may be there. Nobody finds the path empty meanwhile.
    fn in_place(path: &Path) -> io::Result<Self> {
        is_for_sockets(path)?;
        // Beside it, so that it can take its place.
        let new = path.with_file_name(format!(".ft{}", std::process::id()));
        let _old = std::fs::remove_file(&new);
        let listening = socket(AddressFamily::UNIX)?;
        bind(&listening, &unix(&new)?)?;
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
        listen(&listening, BACKLOG)?;
        std::fs::rename(&new, path)?;
        Ok(Self::Unix(listening.into(), path.to_owned()))
    }

    /// The next connection, and its place: of a UNIX socket that of the socket.
    ///
    /// # Errors
    /// There is none now.
    pub fn accept(&self) -> io::Result<(Stream, Place)> {
        match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, from)| (stream.into(), Place::Tcp(from))),
            Self::Unix(listener, path) => {
                listener.accept().map(|(stream, _)| (stream.into(), Place::Unix(path.clone())))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_and_replaces_only_another_socket() {
        let folder = std::env::temp_dir().join(format!("nicety-place-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let at = |name: &str| Place::Unix(folder.join(name));
        let why = |result: io::Result<Listener>| result.unwrap_err().to_string();
        let one = Listener::beside(&at("one")).unwrap();
        assert_eq!(folder.join("one").metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let (_ours, is_connecting) = Stream::connect(&at("one")).unwrap();
        let (_theirs, from) = one.accept().unwrap();
        assert_eq!((from.to_string(), is_connecting), (format!("unix:{}/one", folder.display()), false));
        // A process that replaces it gets the next connections.
        let other = Listener::beside(&at("one")).unwrap();
        let _next = Stream::connect(&at("one")).unwrap();
        assert!(other.accept().is_ok() && one.accept().is_err());
        // A killed process leaves its file.
        drop((one, other));
        assert_eq!(Stream::connect(&at("one")).unwrap_err().to_string(), "nobody listens there");
        drop(Listener::beside(&at("one")).unwrap());
        std::fs::write(folder.join("text"), "").unwrap();
        assert!(why(Listener::beside(&at("text"))).contains("something is there that is no socket"));
        // What listening would say, and nothing is made.
        let check = |name: &str| Listener::check(&at(name)).map_err(|error| error.to_string());
        assert!(check("one").is_ok() && check("new").is_ok() && !folder.join("new").exists());
        assert!(check("text").unwrap_err().contains("something is there that is no socket"));
        assert!(check("none/one").unwrap_err().contains("No such file"));
        assert!(why(Listener::beside(&at("none/one"))).contains("No such file"));
        assert!(why(Listener::beside(&at(&"a".repeat(108)))).contains("at most 107 bytes"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
