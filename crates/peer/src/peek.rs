//! The place where a peek at a socket begins (socket(7), SO_PEEK_OFF).
//!
//! Without an offset each peek begins at the first byte, and ends behind the first send that carried descriptors (unix(7)): what was sent
//! after them is never seen before they are read.
#![allow(unsafe_code)]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Has MSG_PEEK begin behind so many bytes of a UNIX stream socket. `None`: at its first byte, each time. It is the socket's setting: other
/// processes that hold the socket share it.
///
/// # Errors
/// It is no socket, or one of another kind.
pub fn peek_from(socket: impl AsFd, offset: Option<usize>) -> Result<(), Errno> {
    let value: libc::c_int = offset.map_or(-1, |offset| offset.try_into().unwrap_or(libc::c_int::MAX));
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel reads one number, which outlives the call.
    let set = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEEK_OFF,
            (&raw const value).cast(),
            len,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
