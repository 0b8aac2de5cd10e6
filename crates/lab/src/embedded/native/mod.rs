//! The embedded guests' loads without a virtual machine: one process whose two halves have a network namespace each, joined by a veth
//! pair, and the kernel's TCP. It takes the orders of a guest, and stands for sender, receiver and peer at once.
//!
//! ```text
//! near: clients, a thread for each stream ── veth ── far: echo and discard, a thread for each connection
//! ```

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use rustix::thread::gettid;

use super::cpu;
use super::link::GuestError;
use super::orders::{Orders, send_answer};
use super::words::{Answer, Counts, Order, Shape};
use crate::rate::Rate;
use crate::series::Sampler;
use crate::windows::{Windows, machine_time, window_at};

mod link;

const NEAR: &str = "near";
const FAR: &str = "far";
/// Addresses of the near half: one for each station that may send.
const STATIONS: u8 = 4;
/// Address of the far half.
const PEER: [u8; 4] = [10, 77, 0, 254];
const ECHO: u16 = 7;
const DISCARD: u16 = 9;
/// Bytes that an application reads at a time.
const CHUNK: usize = 64 << 10;
/// Time limit for the far half to get ready, and for the rest of a stream to arrive.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The address of a station, counted from 0: that of the guest of this number.
fn station(number: u8) -> [u8; 4] {
    [10, 77, 0, 1 + number % STATIONS]
}

/// Bytes that the discard service received.
#[derive(Debug, Default)]
struct Discarded {
    bytes: u64,
    span: Option<(Instant, Instant)>,
    sampler: Sampler,
    windows: BTreeMap<[u8; 4], Windows>,
}

impl Discarded {
    fn add(&mut self, from: [u8; 4], bytes: u64) {
        let now = Instant::now();
        let first = self.span.map_or(now, |(first, _)| first);
        self.span = Some((first, now));
        self.bytes += bytes;
        self.sampler.add(now.duration_since(first), bytes);
        self.windows.entry(from).or_default().add(window_at(machine_time()), bytes);
    }
}

type Shared = Arc<Mutex<Discarded>>;

fn lock(shared: &Shared) -> MutexGuard<'_, Discarded> {
    // A thread that panicked left counts as they were.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(doing: &str, error: impl std::fmt::Display) -> GuestError {
    GuestError::Peer(format!("without a virtual machine: {doing}: {error}"))
}

/// Both halves, ready.
struct Native {
    discarded: Shared,
    /// The discard service's socket: its buffers are those of the connections that it takes.
    listener: TcpListener,
}

/// Serves orders until their end.
pub fn native(orders: &mut Orders, mbit: Option<u32>) -> Result<(), GuestError> {
    let native = Native::open(mbit.map(|mbit| Rate { mbit }))?;
    send_answer(&Answer::Ready)?;
    while let Some(order) = orders.wait()? {
        native.execute(order)?;
    }
    Ok(())
}

impl Native {
    fn open(rate: Option<Rate>) -> Result<Native, GuestError> {
        // Root needs no user namespace, and may have none. Others must have one.
        let own = unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET);
        own.or_else(|_| unshare(CloneFlags::CLONE_NEWNET)).map_err(|error| {
            failed(
                "a network namespace (user namespaces must be allowed: sysctl kernel.unprivileged_userns_clone=1)",
                error,
            )
        })?;
        let discarded = Shared::default();
        let (thread, told) = channel();
        let (joined, wait) = channel();
        let (listens, listener) = channel();
        let of = Arc::clone(&discarded);
        thread::spawn(move || far(&thread, &wait, &listens, rate, &of));
        let doing = |what| move |error| failed(what, error);
        let thread = told.recv_timeout(TIMEOUT).map_err(|error| failed("the far half", error))??;
        link::pair(NEAR, FAR, thread).map_err(doing("a veth pair"))?;
        let addresses: Vec<[u8; 4]> = (0..STATIONS).map(station).collect();
        link::up(NEAR, &addresses).map_err(doing("the near address"))?;
        if let Some(rate) = rate {
            link::pace(NEAR, rate).map_err(doing("a token bucket (the kernel's sch_tbf)"))?;
        }
        // The far half has ended if it does not listen: its own word follows.
        let _ended = joined.send(());
        let listener = listener.recv_timeout(TIMEOUT).map_err(|error| failed("the far half", error))??;
        // A new link drops packets at first (see `Veth::wait` of `real::veth`). The first connection waits for that, so that no measured one
        // does.
        exchanges(0.0).map_err(|error| failed("the first connection", error))?;
        Ok(Native { discarded, listener })
    }

    fn execute(&self, order: Order) -> Result<(), GuestError> {
        match order {
            Order::Listen { shape } => {
                let sized = sockopt::set_socket_recv_buffer_size(&self.listener, shape.buffer_bytes as usize);
                sized.map_err(|error| failed("a buffer", error))?;
                *lock(&self.discarded) = Discarded::default();
                send_answer(&Answer::Ready)
            }
            Order::Send { seconds, shape, .. } => {
                *lock(&self.discarded) = Discarded::default();
                let to = vec![PEER; usize::from(shape.streams)];
                let bytes = bulk(station(0), to.len(), shape, seconds)?;
                send_answer(&Answer::Sent { bytes })
            }
            Order::SendEach { to, seconds, shape, from, .. } => {
                let streams = to.len() * usize::from(shape.streams);
                thread::spawn(move || {
                    let answer = bulk(station(from), streams, shape, seconds)
                        .map_or_else(|error| Answer::Failed(error.to_string()), |bytes| Answer::Sent { bytes });
                    // The bench may no longer listen.
                    let _sent = send_answer(&answer);
                });
                Ok(())
            }
            Order::Transact { seconds, .. } => {
                let (elapsed_ns, each_ns) = exchanges(seconds).map_err(|error| failed("exchanging bytes", error))?;
                send_answer(&Answer::Transacted { elapsed_ns, each_ns })
            }
            Order::Report => {
                let discarded = lock(&self.discarded);
                let span = discarded.span.map_or(Duration::ZERO, |(first, last)| last.duration_since(first));
                send_answer(&Answer::Counts(Counts {
                    cpu_seconds: cpu::seconds_of(std::process::id()).unwrap_or(0.0),
                    discarded_bytes: discarded.bytes,
                    discarded_ns: u64::try_from(span.as_nanos()).unwrap_or(u64::MAX),
                    ..Counts::default()
                }))
            }
            Order::Series => send_answer(&Answer::Series(lock(&self.discarded).sampler.clone())),
            Order::Windows => {
                let windows = std::mem::take(&mut lock(&self.discarded).windows);
                send_answer(&Answer::Windows(windows.into_iter().collect()))
            }
            other => Err(GuestError::Peer(format!("no order without a virtual machine: {other:?}"))),
        }
    }
}

/// The far half. Its namespace is its first thread's, and that of all threads that this one starts.
fn far(
    thread: &Sender<Result<u32, GuestError>>,
    joined: &Receiver<()>,
    listens: &Sender<Result<TcpListener, GuestError>>,
    rate: Option<Rate>,
    discarded: &Shared,
) {
    let number = unshare(CloneFlags::CLONE_NEWNET).map(|()| gettid().as_raw_nonzero().get().cast_unsigned());
    // A receiver that is gone has its own error.
    let _gone = thread.send(number.map_err(|error| failed("a second network namespace", error)));
    if joined.recv().is_err() {
        return;
    }
    let services = || {
        link::up(FAR, &[PEER]).map_err(|error| failed("the far address", error))?;
        if let Some(rate) = rate {
            link::pace(FAR, rate).map_err(|error| failed("a token bucket (the kernel's sch_tbf)", error))?;
        }
        let bound = |port| TcpListener::bind(SocketAddrV4::new(Ipv4Addr::from(PEER), port));
        let both = bound(ECHO).and_then(|echo| Ok((echo, bound(DISCARD)?)));
        let (echo, discard) = both.map_err(|error| failed("its services", error))?;
        let shown = discard.try_clone().map_err(|error| failed("its services", error))?;
        Ok((echo, discard, shown))
    };
    let (echo, discard, shown) = match services() {
        Ok(services) => services,
        Err(error) => return drop(listens.send(Err(error))),
    };
    let _gone = listens.send(Ok(shown));
    thread::spawn(move || echo.incoming().flatten().for_each(|stream| drop(thread::spawn(|| echoes(stream)))));
    for stream in discard.incoming().flatten() {
        let discarded = Arc::clone(discarded);
        thread::spawn(move || discards(stream, &discarded));
    }
}

/// RFC 862. It ends with the connection.
fn echoes(mut stream: TcpStream) {
    let mut bytes = [0; 1024];
    let _slow = stream.set_nodelay(true);
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        if stream.write_all(bytes.get(..count).unwrap_or_default()).is_err() {
            break;
        }
    }
}

/// RFC 863. It ends with the connection.
fn discards(mut stream: TcpStream, discarded: &Shared) {
    let Ok(SocketAddr::V4(from)) = stream.peer_addr() else { return };
    let mut bytes = vec![0; CHUNK];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        lock(discarded).add(from.ip().octets(), count as u64);
    }
}

/// Streams from this address, a thread each. Returns the bytes that TCP took.
fn bulk(from: [u8; 4], streams: usize, shape: Shape, seconds: f64) -> Result<u64, GuestError> {
    let until = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
    let threads: Vec<_> = (0..streams).map(|_| thread::spawn(move || send(from, shape, until))).collect();
    let ended = threads.into_iter().map(|thread| match thread.join() {
        Ok(sent) => sent.map_err(|error| failed("sending", error)),
        Err(_panic) => Err(failed("sending", "a thread has ended")),
    });
    ended.sum()
}

/// A stream, until the other side has all of it.
fn send(from: [u8; 4], shape: Shape, until: Instant) -> std::io::Result<u64> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The default is the size to which Linux's own buffers grow.
    if shape.buffer_bytes != Shape::default().buffer_bytes {
        sockopt::set_socket_send_buffer_size(&socket, shape.buffer_bytes as usize)?;
    }
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::from(from), 0))?;
    connect(&socket, &SocketAddrV4::new(Ipv4Addr::from(PEER), DISCARD))?;
    let mut stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let piece = vec![0x5a; shape.write_bytes as usize];
    let mut bytes = 0;
    while Instant::now() < until {
        stream.write_all(&piece)?;
        bytes += piece.len() as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    // The far half closes when it has read the last byte.
    let _end = stream.read(&mut [0])?;
    Ok(bytes)
}

/// Single bytes to the echo service and back, one at a time: the whole time, and that of each, in nanoseconds.
fn exchanges(seconds: f64) -> std::io::Result<(u64, Vec<u64>)> {
    let mut stream = TcpStream::connect(SocketAddrV4::new(Ipv4Addr::from(PEER), ECHO))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let nanoseconds = |since: Instant| u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let (begun, span) = (Instant::now(), Duration::from_secs_f64(seconds.clamp(0.0, 3600.0)));
    let mut each_ns = Vec::new();
    while begun.elapsed() < span {
        let sent = Instant::now();
        stream.write_all(&[1])?;
        stream.read_exact(&mut [0])?;
        each_ns.push(nanoseconds(sent));
    }
    Ok((nanoseconds(begun), each_ns))
}
