//! Bytes that were sent and that the other end has not got: by TCP (tcp(7), SIOCOUTQ), or by a UNIX socket (unix(7), SIOCOUTQ).
//!
//! Bytes that send(2) has taken are in the kernel's buffer: a host that is gone has got none of them, and a process that stands still has
//! read none of them.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

/// Bytes that were written to this socket, and that its other end has not acknowledged (TCP) or not read (UNIX). For a UNIX socket the
/// kernel counts its own bytes for each message too: only 0 means something exact.
///
/// # Errors
/// It is no socket of these, or a TCP socket that listens.
pub fn unacknowledged(socket: impl AsFd) -> Result<usize, Errno> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the kernel writes one number, which outlives the call. SIOCOUTQ is TIOCOUTQ's number.
    let asked = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match asked {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn bytes_that_the_other_end_has_no_room_for_are_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged(&near), Ok(0));
        near.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while let Ok(count) = near.write(&[7; 1 << 16]) {
            sent += count;
        }
        let waiting = unacknowledged(&near).unwrap();
        assert!(waiting > 0 && waiting < sent, "{waiting} of {sent}");
        far.read_exact(&mut vec![0; sent]).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while unacknowledged(&near) != Ok(0) {
            assert!(Instant::now() < end, "{:?}", unacknowledged(&near));
        }
    }

    #[test]
    fn a_message_that_the_other_end_of_a_unix_socket_has_not_read_counts() {
        let (near, far) = UnixDatagram::pair().unwrap();
        assert_eq!(unacknowledged(&near), Ok(0));
        near.send(b"one").unwrap();
        near.send(b"two").unwrap();
        far.recv(&mut [0; 3]).unwrap();
        assert!(unacknowledged(&near).unwrap() > 0, "the second one waits");
        far.recv(&mut [0; 3]).unwrap();
        assert_eq!(unacknowledged(&near), Ok(0));
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.write_all(b"a line\n").unwrap();
        assert!(unacknowledged(&near).unwrap() > 0);
        far.read_exact(&mut [0; 7]).unwrap();
        assert_eq!(unacknowledged(&near), Ok(0));
    }

    #[test]
    fn another_file_has_none() {
        assert_eq!(unacknowledged(std::fs::File::open("/dev/null").unwrap()), Err(Errno::NOTTY));
    }
}
