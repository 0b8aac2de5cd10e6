//! The applications of a replica: servers over TCP, as pure state machines.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher;

use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::wire::IpAddress;

use super::flow::Watch;
use super::image::{self, Open, Stage, socket};
use crate::fnv::Fnv;

/// Connections at a time.
const CONNECTIONS: usize = 8;
/// Bytes of the longest line of the store.
const LINE: usize = 4096;
/// Bytes of keys and values that the store keeps.
const STORE: usize = 1 << 20;

/// An application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Sends back what it receives (RFC 862).
    Echo,
    /// Drops what it receives (RFC 863).
    Discard,
    /// Sends without end (RFC 864, with bytes of its own).
    Generate,
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
    /// Bytes that the application has read and written, modulo 2^32.
    read: u32,
    written: u32,
    /// The written bytes that the other end has not acknowledged, and maybe some before them.
    unacknowledged: VecDeque<u8>,
}

impl Connection {
    fn new(handle: SocketHandle) -> Self {
        Self { handle, line: Vec::new(), read: 0, written: 0, unacknowledged: VecDeque::new() }
    }

    /// Notes what was sent.
    fn sent(&mut self, bytes: &[u8], socket: &Socket<'static>) {
        self.written = self.written.wrapping_add(bytes.len() as u32);
        self.unacknowledged.extend(bytes);
        self.trim(socket);
    }

    fn trim(&mut self, socket: &Socket<'static>) {
        let acknowledged = self.unacknowledged.len().saturating_sub(socket.send_queue());
        self.unacknowledged.drain(..acknowledged);
    }
}

impl Server {
    /// An application that listens on `port`.
    pub fn new(application: Application, port: u16, sockets: &mut SocketSet<'static>) -> Self {
        let connections = (0..CONNECTIONS).map(|_| Connection::new(sockets.add(socket()))).collect();
        Self { application, port, connections, values: BTreeMap::new(), bytes: 0, changes: 0 }
    }

    /// An application that goes on with these connections, each with its socket or with a new one.
    pub fn restored(
        application: Application,
        port: u16,
        connections: Vec<(image::Connection, Option<Socket<'static>>)>,
        (values, changes): (BTreeMap<Vec<u8>, Vec<u8>>, u64),
        sockets: &mut SocketSet<'static>,
    ) -> Self {
        let connections = connections.into_iter().map(|(image, restored)| {
            let mut connection = Connection::new(sockets.add(restored.unwrap_or_else(socket)));
            connection.line = image.line;
            if let Some(open) = image.open {
                connection.read = open.read;
                connection.written = open.acknowledged.wrapping_add(open.unacknowledged.len() as u32);
                connection.unacknowledged = open.unacknowledged.into();
            }
            connection
        });
        let connections = connections.collect();
        let bytes = values.iter().map(|(key, value)| key.len() + value.len()).sum();
        Self { application, port, connections, values, bytes, changes }
    }

    /// Its connections for an image.
    pub fn images(&mut self, sockets: &mut SocketSet<'static>, watch: &Watch) -> Vec<image::Connection> {
        let images = self.connections.iter_mut().map(|connection| {
            let socket = sockets.get_mut::<Socket<'_>>(connection.handle);
            connection.trim(socket);
            let mut received = vec![0; socket.recv_queue()];
            let peeked = socket.peek_slice(&mut received).unwrap_or_default();
            received.truncate(peeked);
            let (stage, flow) = (Stage::of(socket.state()), remote(socket).and_then(|remote| watch.flow(remote)));
            let unacknowledged: Vec<u8> = connection.unacknowledged.iter().copied().collect();
            let acknowledged = connection.written.wrapping_sub(unacknowledged.len() as u32);
            let (read, line) = (connection.read, connection.line.clone());
            let open = stage.zip(flow.cloned());
            let open = open.map(|(stage, flow)| Open { flow, stage, read, received, acknowledged, unacknowledged });
            image::Connection { line, open }
        });
        images.collect()
    }

    /// The store's values, and the number of its changes.
    pub fn values(&self) -> (&BTreeMap<Vec<u8>, Vec<u8>>, u64) {
        (&self.values, self.changes)
    }

    /// Whether one of its connections has this other end.
    pub fn has(&self, sockets: &SocketSet<'static>, end: ([u8; 4], u16)) -> bool {
        self.connections.iter().any(|connection| remote(sockets.get(connection.handle)) == Some(end))
    }

    /// Serves every connection. True if anything moved.
    pub fn step(&mut self, sockets: &mut SocketSet<'static>) -> bool {
        let mut moved = false;
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index) else { break };
            let socket = sockets.get_mut::<Socket<'_>>(connection.handle);
            if relisten(socket, self.port) {
                if socket.is_listening() {
                    *connection = Connection::new(connection.handle);
                }
                connection.line.clear();
                moved = true;
            }
            moved |= match self.application {
                Application::Echo => echo(connection, socket),
                Application::Discard => discard(connection, socket),
                Application::Generate => generate(connection, socket),
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
                (taken, (taken, end.is_some()))
            });
            let Ok((len, ended)) = taken else { break };
            connection.read = connection.read.wrapping_add(len as u32);
            moved = true;
            if ended {
                let line = std::mem::take(&mut connection.line);
                let answer = self.answer(&line);
                if socket.send_slice(&answer).is_err() {
                    break;
                }
                let Some(connection) = self.connections.get_mut(index) else { break };
                connection.sent(&answer, socket);
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

/// The other end of a connection.
fn remote(socket: &Socket<'static>) -> Option<([u8; 4], u16)> {
    let end = socket.remote_endpoint()?;
    match end.addr {
        IpAddress::Ipv4(address) => Some((address.octets(), end.port)),
        IpAddress::Ipv6(_) => None,
    }
}

fn echo(connection: &mut Connection, socket: &mut Socket<'static>) -> bool {
    let mut moved = false;
    let mut piece = [0; 2048];
    while socket.can_recv() && socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(piece.len());
        match socket.recv_slice(piece.get_mut(..room).unwrap_or_default()) {
            Ok(n) if n > 0 && socket.send_slice(piece.get(..n).unwrap_or_default()).is_ok() => {
                connection.read = connection.read.wrapping_add(n as u32);
                connection.sent(piece.get(..n).unwrap_or_default(), socket);
                moved = true;
            }
            _ => break,
        }
    }
    moved
}

fn discard(connection: &mut Connection, socket: &mut Socket<'static>) -> bool {
    let mut moved = false;
    while socket.can_recv()
        && let Ok(len) = socket.recv(|bytes| (bytes.len(), bytes.len()))
    {
        connection.read = connection.read.wrapping_add(len as u32);
        moved = true;
    }
    moved
}

fn generate(connection: &mut Connection, socket: &mut Socket<'static>) -> bool {
    let mut moved = discard(connection, socket);
    let piece = [b'.'; 4096];
    while socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(piece.len());
        let piece = piece.get(..room).unwrap_or_default();
        if piece.is_empty() || socket.send_slice(piece).is_err() {
            break;
        }
        connection.sent(piece, socket);
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
