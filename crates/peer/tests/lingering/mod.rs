//! A descriptor that blocks the process that closes its last handle. A peer may send one.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// A TCP socket with more unsent data than its peer takes: closing it takes a minute (socket(7), SO_LINGER). Also returns the peer.
/// Keep it open as long as the socket: without the peer, close(2) does not linger.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    (socket.into(), peer)
}
