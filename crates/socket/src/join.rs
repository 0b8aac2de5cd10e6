//! The client's side: connects to a socket at a path.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketType, connect};
use rustix::process::geteuid;

use crate::socket;

/// The reason why no connection was made to a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There is no socket, or a stale one.
    #[error("nobody listens there")]
    Nobody,
    /// The file is not a socket.
    #[error("that is no socket: remove it, or name another")]
    NotASocket,
    /// The socket carries bytes, not messages, or the reverse.
    #[error("that is a socket of another kind: name another")]
    OtherKind,
    /// This user may not use the socket, or enter its folder.
    #[error(
        "user {user} may not connect to it: who listens there must let him write to the socket, and enter its folder"
    )]
    NotAllowed {
        /// The user who tried.
        user: u32,
    },
    /// The server's backlog is full.
    #[error("who listens there takes no more connections: somebody else is connected, or it hangs")]
    Full,
    /// An error of the system.
    #[error(transparent)]
    System(Errno),
}

/// Connects to the server at a path, without waiting. The returned socket does not block either.
pub fn join(path: &Path, kind: SocketType) -> Result<OwnedFd, JoinError> {
    let socket = socket(kind).map_err(JoinError::System)?;
    let address = SocketAddrUnix::new(path).map_err(JoinError::System)?;
    match connect(&socket, &address) {
        Ok(()) => Ok(socket),
        Err(Errno::NOENT) => Err(JoinError::Nobody),
        // connect(2) answers ECONNREFUSED for any file.
        Err(Errno::CONNREFUSED) => Err(match std::fs::metadata(path) {
            Ok(file) if !file.file_type().is_socket() => JoinError::NotASocket,
            _ => JoinError::Nobody,
        }),
        Err(Errno::PROTOTYPE) => Err(JoinError::OtherKind),
        Err(Errno::ACCESS | Errno::PERM) => Err(JoinError::NotAllowed { user: geteuid().as_raw() }),
        Err(Errno::AGAIN) => Err(JoinError::Full),
        Err(errno) => Err(JoinError::System(errno)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::Listener;
    use crate::tests::as_another_user;

    fn joined(path: &Path) -> Result<(), JoinError> {
        join(path, SocketType::STREAM).map(drop)
    }

    #[test]
    fn who_listens_is_joined_and_who_does_not_is_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vm.sock");
        assert_eq!(joined(&path), Err(JoinError::Nobody), "there is nothing");
        assert_eq!(joined(&place.path().join("absent/vm.sock")), Err(JoinError::Nobody), "nor a folder");
        std::fs::write(&path, "").unwrap();
        assert_eq!(joined(&path), Err(JoinError::NotASocket));
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(joined(&path), Ok(()));
        assert_eq!(join(&path, SocketType::SEQPACKET).map(drop), Err(JoinError::OtherKind));
        drop(listener);
        assert_eq!(joined(&path), Err(JoinError::Nobody), "one that was left behind");
        assert!(path.exists());
        assert!(matches!(joined(Path::new(&"x".repeat(200))), Err(JoinError::System(Errno::NAMETOOLONG))));
    }

    #[test]
    fn one_that_takes_no_more_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vm.sock");
        let _listens = Listener::bind(&path).unwrap();
        let waiting: Vec<_> = std::iter::repeat_with(|| join(&path, SocketType::STREAM)).take(100).collect();
        assert_eq!(waiting.into_iter().find_map(Result::err), Some(JoinError::Full));
    }

    #[test]
    fn one_that_is_not_for_us_is_named_with_who_we_are() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("vm.sock");
        let _listens = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        let user = geteuid().as_raw();
        assert_eq!(as_another_user(|| joined(&path)), Err(JoinError::NotAllowed { user }));
    }
}
