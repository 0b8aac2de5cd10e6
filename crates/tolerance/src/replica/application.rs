//! The applications of a replica: servers over TCP, as pure state machines.

use std::collections::BTreeMap;
use std::hash::Hasher;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};

use crate::fnv::Fnv;

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Buffer bytes of each connection and direction.
const BUFFER: usize = 64 << 10;
/// Bytes of the longest line of the store.
const LINE: usize = 4096;
/// Bytes of keys and values that the store keeps.
const STORE: usize = 1 << 20;

/// An application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Sends back what it receives (RFC 862).
    Echo,
    /// A key-value store. A request is a line, and so is its answer:
    ///
    /// | request | answer |
    /// |---|---|
    /// | `SET key value` | `OK n`: the n-th change, acknowledged |
    /// | `GET key` | `VALUE value`, or `NONE` |
    /// | `DELETE key` | `OK n` |
    /// | another | `ERROR reason` |
    Store,
}

/// An application's servers and its state.
pub struct Server {
    application: Application,
    port: u16,
    connections: Vec<Connection>,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of keys and values.
    bytes: usize,
    /// Changes so far.
    changes: u64,
}

struct Connection {
    handle: SocketHandle,
    /// The beginning of a line.
    line: Vec<u8>,
}

impl Server {
    /// An application that listens on `port`.
    pub fn new(application: Application, port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let connections = (0..CONNECTIONS).map(|_| {
            let mut socket = Socket::new(SocketBuffer::new(vec![0; BUFFER]), SocketBuffer::new(vec![0; BUFFER]));
            socket.set_nagle_enabled(false);
            Connection { handle: sockets.add(socket), line: Vec::new() }
        });
        Self { application, port, connections: connections.collect(), values: BTreeMap::new(), bytes: 0, changes: 0 }
    }

    /// Serves every connection. True if anything moved.
    pub fn step(&mut self, sockets: &mut SocketSet<'static>) -> bool {
        let mut moved = false;
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index) else { break };
            let socket = sockets.get_mut::<Socket<'_>>(connection.handle);
            if relisten(socket, self.port) {
                connection.line.clear();
                moved = true;
            }
            moved |= match self.application {
                Application::Echo => echo(socket),
                Application::Store => self.store(index, socket),
            };
        }
        moved
    }

    fn store(&mut self, index: usize, socket: &mut Socket<'static>) -> bool {
        let mut moved = false;
        // An answer is not longer than its request's line with a few letters.
        while socket.can_recv() && socket.send_capacity() - socket.send_queue() > LINE + 32 {
            let Some(connection) = self.connections.get_mut(index) else { break };
            let taken = socket.recv(|bytes| {
                let end = bytes.iter().position(|&byte| byte == b'\n');
                let taken = end.map_or(bytes.len(), |end| end + 1);
                let piece = bytes.get(..taken).unwrap_or_default();
                // Of a line that is too long only the length grows.
                let room = (LINE + 1).saturating_sub(connection.line.len());
                connection.line.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or_default());
                (taken, end.is_some())
            });
            let Ok(ended) = taken else { break };
            moved = true;
            if ended {
                let line = std::mem::take(&mut connection.line);
                let answer = self.answer(&line);
                if socket.send_slice(&answer).is_err() {
                    break;
                }
            }
        }
        moved
    }

    fn answer(&mut self, line: &[u8]) -> Vec<u8> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if line.len() >= LINE {
            return b"ERROR the line is too long\n".to_vec();
        }
        let mut words = line.splitn(3, |&byte| byte == b' ');
        match (words.next(), words.next(), words.next()) {
            (Some(b"SET"), Some(key), Some(value)) => {
                let old = self.values.get(key).map_or(0, |old| key.len() + old.len());
                let bytes = self.bytes - old + key.len() + value.len();
                if bytes > STORE {
                    return b"ERROR the store is full\n".to_vec();
                }
                self.bytes = bytes;
                self.values.insert(key.to_vec(), value.to_vec());
                self.changed()
            }
            (Some(b"GET"), Some(key), None) => match self.values.get(key) {
                Some(value) => [b"VALUE ", value.as_slice(), b"\n"].concat(),
                None => b"NONE\n".to_vec(),
            },
            (Some(b"DELETE"), Some(key), None) => {
                if let Some(old) = self.values.remove(key) {
                    self.bytes -= key.len() + old.len();
                }
                self.changed()
            }
            _ => b"ERROR requests are SET key value, GET key, DELETE key\n".to_vec(),
        }
    }

    fn changed(&mut self) -> Vec<u8> {
        self.changes += 1;
        format!("OK {}\n", self.changes).into_bytes()
    }

    /// Adds the application's state and its connections' to a digest.
    pub fn digest(&self, sockets: &SocketSet<'static>, digest: &mut Fnv) {
        for connection in &self.connections {
            let socket = sockets.get::<Socket<'_>>(connection.handle);
            digest.write_u64(socket.state() as u64);
            digest.write_u64(socket.remote_endpoint().map_or(0, |end| end.port.into()));
            digest.write_u64(socket.send_queue() as u64);
            digest.write_u64(socket.recv_queue() as u64);
            digest.write(&connection.line);
        }
        for (key, value) in &self.values {
            digest.write(key);
            digest.write(value);
        }
        digest.write_u64(self.changes);
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
