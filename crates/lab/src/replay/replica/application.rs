//! The applications of a replica: servers over TCP, as pure state machines.

use nicety_adapter::tape::Sum;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Buffer bytes of each connection and direction.
const BUFFER: usize = 64 << 10;

/// An application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Sends back what it receives (RFC 862).
    Echo,
    /// Drops what it receives (RFC 863).
    Discard,
    /// Sends without end (RFC 864, with bytes of its own).
    Generate,
}

/// An application with its connections.
pub struct Server {
    application: Application,
    port: u16,
    connections: Vec<SocketHandle>,
}

impl Server {
    /// An application that listens on `port`.
    pub fn new(application: Application, port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let connections = std::iter::repeat_with(|| {
            let mut socket = Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            sockets.add(socket)
        });
        Self { application, port, connections: connections.take(CONNECTIONS).collect() }
    }

    /// Serves every connection. True if anything moved.
    pub fn step(&self, sockets: &mut SocketSet<'static>) -> bool {
        let mut moved = false;
        for handle in &self.connections {
            let socket = sockets.get_mut::<Socket<'_>>(*handle);
            moved |= relisten(socket, self.port);
            moved |= match self.application {
                Application::Echo => echo(socket),
                Application::Discard => discard(socket),
                Application::Generate => generate(socket),
            };
        }
        moved
    }

    /// Adds the state of its connections to a digest.
    pub fn digest(&self, sockets: &SocketSet<'static>, digest: &mut Sum) {
        for handle in &self.connections {
            let socket = sockets.get::<Socket<'_>>(*handle);
            digest.number(socket.state() as u64);
            digest.number(socket.remote_endpoint().map_or(0, |end| end.port.into()));
            digest.number(socket.send_queue() as u64);
            digest.number(socket.recv_queue() as u64);
        }
    }
}

fn echo(socket: &mut Socket<'static>) -> bool {
    let mut moved = false;
    let mut piece = [0; 2048];
    while socket.can_recv() && socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(piece.len());
        match socket.recv_slice(piece.get_mut(..room).unwrap_or_default()) {
            Ok(n) if n > 0 && socket.send_slice(piece.get(..n).unwrap_or_default()).is_ok() => moved = true,
            _ => break,
        }
    }
    moved
}

fn discard(socket: &mut Socket<'static>) -> bool {
    let mut moved = false;
    while socket.can_recv() && socket.recv(|bytes| (bytes.len(), ())).is_ok() {
        moved = true;
    }
    moved
}

fn generate(socket: &mut Socket<'static>) -> bool {
    let mut moved = discard(socket);
    let piece = [b'.'; 4096];
    while socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(piece.len());
        let piece = piece.get(..room).unwrap_or_default();
        if piece.is_empty() || socket.send_slice(piece).is_err() {
            break;
        }
        moved = true;
    }
    moved
}

/// Closes a connection that the other side has closed, and listens again. True if it did either.
fn relisten(socket: &mut Socket<'static>, port: u16) -> bool {
    if socket.state() == State::CloseWait && !socket.can_recv() {
        socket.close();
        return true;
    }
    if socket.state() == State::TimeWait {
        socket.abort();
    }
    !socket.is_open() && socket.listen(port).is_ok()
}
