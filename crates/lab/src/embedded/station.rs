//! TCP of a station: the services echo (RFC 862) and discard (RFC 863), and a client for one order at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::{IpAddress, IpEndpoint, Ipv4Address};

use super::client::{Client, Exchanges, Sending, Work};
use super::compare::Compare;
use super::words::{Answer, Shape};
use crate::series::Sampler;
use crate::windows::{Windows, machine_time, window_at};

const ECHO: u16 = 7;
const DISCARD: u16 = 9;
/// Bytes that an application reads at a time.
const CHUNK: usize = 64 << 10;
/// Time limit to reach the other side. smoltcp sends one ARP request a second.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Sockets of each service beside those in use: one listens while the other still closes.
const LISTENERS: usize = 2;
/// Senders whose windows are kept.
const SENDERS_MAX: usize = 256;
const PORTS: std::ops::Range<u16> = 49_152..65_000;

/// TCP of a station (see the module's page).
pub struct Station {
    sockets: SocketSet<'static>,
    echo: [SocketHandle; LISTENERS],
    discard: Vec<SocketHandle>,
    discarded: Discarded,
    windows: BTreeMap<[u8; 4], Windows>,
    /// An instant, and the machine's time then.
    clock: (Instant, Duration),
    client: Option<Client>,
    port: u16,
    chunk: Vec<u8>,
}

#[derive(Debug, Default)]
struct Discarded {
    /// Whether several connections count together, until the next order to listen.
    is_sum: bool,
    /// The sender's endpoint: a client uses a new port for each connection.
    latest: Option<IpEndpoint>,
    bytes: u64,
    span: Option<(Instant, Instant)>,
    sampler: Sampler,
}

/// The kind of a client's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// A bulk transfer to the discard service.
    Send(Shape),
    /// A bulk transfer of at most so many bytes a second.
    SendPaced(Shape, u64),
    /// Exchanges of single bytes with the echo service.
    Transact,
    /// A stream through the echo service that is compared, of at most so many bytes a second.
    Compare(Option<u64>),
}

fn socket(shape: Shape) -> Socket<'static> {
    let buffer = || SocketBuffer::new(vec![0; shape.buffer_bytes as usize]);
    let mut socket = Socket::new(buffer(), buffer());
    socket.set_nagle_enabled(false);
    socket
}

impl Station {
    /// A station with listening services.
    pub fn new() -> Station {
        let mut sockets = SocketSet::new(Vec::new());
        let [echo, discard]: [[SocketHandle; LISTENERS]; 2] =
            std::array::from_fn(|_| std::array::from_fn(|_| sockets.add(socket(Shape::default()))));
        let (discarded, port, discard) = (Discarded::default(), PORTS.start, discard.into());
        let (windows, clock) = (BTreeMap::new(), (Instant::now(), machine_time()));
        Station { sockets, echo, discard, discarded, windows, clock, client: None, port, chunk: vec![0x5a; CHUNK] }
    }

    /// Lets the discard service take streams of this shape. Connections that it has end, and it counts anew.
    pub fn listen(&mut self, shape: Shape) {
        for handle in std::mem::take(&mut self.discard) {
            self.sockets.remove(handle);
        }
        let count = usize::from(shape.streams) + LISTENERS;
        for _ in 0..count {
            let mut socket = socket(shape);
            // The port is not 0 and the socket is new: it can listen.
            let _listens = socket.listen(DISCARD);
            self.discard.push(self.sockets.add(socket));
        }
        self.discarded = Discarded { is_sum: true, ..Discarded::default() };
    }

    /// The sockets, for smoltcp.
    pub fn sockets(&mut self) -> &mut SocketSet<'static> {
        &mut self.sockets
    }

    /// Bytes that the discard service received on its latest connection, and the time over which it did.
    pub fn discarded(&self) -> (u64, Duration) {
        let span = self.discarded.span.map_or(Duration::ZERO, |(first, last)| last.duration_since(first));
        (self.discarded.bytes, span)
    }

    /// The same bytes over time.
    pub fn sampled(&self) -> &Sampler {
        &self.discarded.sampler
    }

    /// Bytes that the discard service received in windows of time, by the sender's address. They are forgotten.
    pub fn take_windows(&mut self) -> Vec<([u8; 4], Windows)> {
        std::mem::take(&mut self.windows).into_iter().collect()
    }

    /// The latest end of the client's work, or its next write.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        self.client.as_ref().map(|client| client.deadline(now))
    }

    /// Starts a client's work.
    pub fn begin(
        &mut self,
        iface: &mut Interface,
        task: Task,
        to: &[[u8; 4]],
        seconds: f64,
        now: Instant,
    ) -> Result<(), String> {
        if self.client.is_some() {
            return Err("the guest has an order already".to_owned());
        }
        let (service, shape, work) = match task {
            Task::Send(shape) => (DISCARD, shape, Work::Send(Sending::new(None))),
            Task::SendPaced(shape, most) => (DISCARD, shape, Work::Send(Sending::new(Some(most)))),
            Task::Transact => (ECHO, Shape::default(), Work::Transact(Exchanges::default())),
            Task::Compare(a_second) => (ECHO, Shape::default(), Work::Compare(Compare::new(a_second))),
        };
        let mut handles = Vec::new();
        for to in to.iter().flat_map(|to| std::iter::repeat_n(*to, shape.streams.into())) {
            let remote = (IpAddress::from(Ipv4Address::from(to)), service);
            self.port = if self.port + 1 >= PORTS.end { PORTS.start } else { self.port + 1 };
            let mut socket = socket(shape);
            socket.connect(iface.context(), remote, self.port).map_err(|error| error.to_string())?;
            handles.push(self.sockets.add(socket));
        }
        let write_bytes = shape.write_bytes as usize;
        self.chunk.resize(self.chunk.len().max(write_bytes), 0x5a);
        let span = Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        self.client = Some(Client { handles, write_bytes, span, connected: false, until: now + CONNECT_TIMEOUT, work });
        Ok(())
    }

    /// Moves bytes between sockets and services. Returns whether any moved (then smoltcp has more to do), and the client's answer,
    /// if it has one.
    pub fn step(&mut self, now: Instant) -> (bool, Option<Answer>) {
        let mut moved = false;
        for handle in self.echo {
            moved |= self.echo(handle);
        }
        for at in 0..self.discard.len() {
            let Some(handle) = self.discard.get(at).copied() else { break };
            moved |= self.discard(handle, now);
        }
        let (worked, answer) = self.work(now);
        (moved || worked, answer)
    }

    fn echo(&mut self, handle: SocketHandle) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        let mut moved = relisten(socket, ECHO);
        while socket.can_recv() && socket.can_send() {
            let room = socket.send_capacity() - socket.send_queue();
            let most = room.min(self.chunk.len());
            let Some(piece) = self.chunk.get_mut(..most) else { break };
            match socket.recv_slice(piece) {
                Ok(n) if n > 0 && socket.send_slice(piece.get(..n).unwrap_or_default()).is_ok() => moved = true,
                _ => break,
            }
        }
        moved
    }

    fn discard(&mut self, handle: SocketHandle, now: Instant) -> bool {
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        let mut moved = relisten(socket, DISCARD);
        let is_new = !self.discarded.is_sum && self.discarded.latest != socket.remote_endpoint();
        if is_new && socket.can_recv() {
            self.discarded = Discarded { latest: socket.remote_endpoint(), ..Discarded::default() };
        }
        let mut received = 0;
        while socket.can_recv() {
            let Ok(n) = socket.recv_slice(&mut self.chunk) else { break };
            if n == 0 {
                break;
            }
            let first = self.discarded.span.map_or(now, |(first, _)| first);
            self.discarded.bytes += n as u64;
            self.discarded.span = Some((first, now));
            self.discarded.sampler.add(now.duration_since(first), n as u64);
            received += n as u64;
            moved = true;
        }
        if let (1.., Some(IpEndpoint { addr: IpAddress::Ipv4(from), .. })) = (received, socket.remote_endpoint()) {
            let (begun, then) = self.clock;
            let is_known = self.windows.contains_key(&from.octets());
            if is_known || self.windows.len() < SENDERS_MAX {
                let window = window_at(then + now.duration_since(begun));
                self.windows.entry(from.octets()).or_default().add(window, received);
            }
        }
        moved
    }

    fn work(&mut self, now: Instant) -> (bool, Option<Answer>) {
        let Some(client) = &mut self.client else { return (false, None) };
        let Work::Parting { answer } = &mut client.work else {
            return (client.step(&mut self.sockets, &mut self.chunk, now), None);
        };
        let answer = answer.take();
        for handle in std::mem::take(&mut client.handles) {
            self.sockets.remove(handle);
        }
        self.client = None;
        (true, answer)
    }
}

/// Closes a connection that the other side has closed, and listens again. Returns true if it did either.
fn relisten(socket: &mut Socket<'_>, port: u16) -> bool {
    if socket.state() == State::CloseWait && !socket.can_recv() {
        socket.close();
        return true;
    }
    if socket.state() == State::TimeWait {
        socket.abort();
    }
    !socket.is_open() && socket.listen(port).is_ok()
}

#[cfg(test)]
#[path = "station_test.rs"]
mod tests;
