//! A descriptor that whoever closes its last handle has to wait for: what a peer may send.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

/// A TCP socket with more on its way than its peer takes: closing it takes a minute (socket(7), SO_LINGER). And the peer, which is to
/// live as long: without it nothing lingers.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (peer, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
    (socket.into(), peer)
}
