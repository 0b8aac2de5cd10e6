//! The acceptor (docs/adr/0027): accepts the control socket's connections, and reads the first request of each. If that is a change by a
//! user who may make it, what it opens is named at the keeper. Then the daemon gets the connection, with what was read, and answers.
//!
//! One thread waits for connections and for the heads of requests. Each change has a thread of its own, which reads the body and asks the
//! system's databases who the user is. No client makes another one wait: what does not come in time, or has no place here, the daemon
//! gets as it is. Then nothing is named, and the daemon says so if that is needed.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nicety_control::{Begun, Change, HEAD_MAX, TIMEOUT, body, change_in, opened_by};
use nicety_host::Host;
use nicety_keeper::{Accepting, Heard, Opening};
use nicety_socket::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::{may_name, named_by};

/// Most connections whose first request is being read.
const READING_MAX: usize = 64;
/// The same of one user.
const READING_OF_USER_MAX: usize = 16;
/// Most changes that have a thread.
const CHANGES_MAX: usize = 8;
/// The same of one user.
const CHANGES_OF_USER_MAX: usize = 2;
/// A change waits so long for a thread.
const THREAD_WITHIN: Duration = Duration::from_secs(10);
/// The daemon reads within this time, or the client has no answer: it may stand still for an upgrade.
const DAEMON_WITHIN: Duration = Duration::from_secs(60);
/// The interval at which a waiting change looks for a thread.
const LOOK: Duration = Duration::from_millis(5);

type Channels = Arc<(Opening, Accepting)>;

/// A connection whose first request is being read.
struct Reading {
    socket: OwnedFd,
    peer: Option<PeerCredentials>,
    read: Vec<u8>,
    /// The daemon gets it then, whatever was read.
    until: Instant,
    /// A change that waits for a thread.
    change: Option<Begun>,
}

impl Reading {
    fn user(&self) -> Option<u32> {
        self.peer.map(|peer| peer.uid)
    }
}

/// The number of changes that have a thread, by user.
#[derive(Default)]
struct Threads(Mutex<BTreeMap<Option<u32>, usize>>);

impl Threads {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<u32>, usize>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A place of [`Threads`].
struct Place(Arc<Threads>, Option<u32>);

impl Place {
    fn take(threads: &Arc<Threads>, user: Option<u32>) -> Option<Self> {
        let mut counts = threads.lock();
        let is_full = counts.values().sum::<usize>() >= CHANGES_MAX;
        if is_full || counts.get(&user).is_some_and(|count| *count >= CHANGES_OF_USER_MAX) {
            return None;
        }
        *counts.entry(user).or_default() += 1;
        Some(Self(Arc::clone(threads), user))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(&self.1) {
            *count -= 1;
        }
        counts.retain(|_, count| *count > 0);
    }
}

/// See the module's documentation.
struct Acceptor {
    channels: Channels,
    host: PathBuf,
    control: Option<OwnedFd>,
    reading: Vec<Reading>,
    /// Connections for which the daemon had no room.
    unsent: Vec<Reading>,
    threads: Arc<Threads>,
    /// One host file is read at a time: parsing it takes many times its size in memory.
    large: Arc<Mutex<()>>,
}

/// Accepts until the keeper ends.
pub fn run(channels: &Channels, host: &Path) {
    let mut acceptor = Acceptor {
        channels: Arc::clone(channels),
        // As the daemon has it: relative paths of a host file without a path begin at its folder.
        host: std::path::absolute(host).unwrap_or_else(|_| host.to_owned()),
        control: None,
        reading: Vec::new(),
        unsent: Vec::new(),
        threads: Arc::default(),
        large: Arc::default(),
    };
    while acceptor.round() {}
}

impl Acceptor {
    /// Waits, and does what there is to do. False: the keeper has ended.
    fn round(&mut self) -> bool {
        if self.wait().is_err() {
            // The system lacks memory.
            std::thread::sleep(LOOK);
        }
        loop {
            match self.channels.1.heard() {
                Heard::Listen(socket) => self.control = Some(socket),
                Heard::Rest => self.control = None,
                Heard::Nothing => break,
                Heard::End => return false,
            }
        }
        for reading in std::mem::take(&mut self.unsent) {
            self.pass(reading);
        }
        self.accept();
        let now = Instant::now();
        for reading in std::mem::take(&mut self.reading) {
            self.look_at(reading, now);
        }
        true
    }

    /// Waits for something to do.
    fn wait(&self) -> Result<(), Errno> {
        let (_, accepting) = &*self.channels;
        let mut fds = vec![PollFd::from_borrowed_fd(accepting.keeper(), PollFlags::IN)];
        if self.unsent.is_empty() {
            fds.extend(self.control.iter().map(|control| PollFd::new(control, PollFlags::IN)));
        } else {
            fds.push(PollFd::from_borrowed_fd(accepting.daemons(), PollFlags::OUT));
        }
        let heads = self.reading.iter().filter(|reading| reading.change.is_none());
        fds.extend(heads.map(|reading| PollFd::new(&reading.socket, PollFlags::IN)));
        let waits = self.reading.iter().any(|reading| reading.change.is_some());
        let look = waits.then(|| Instant::now() + LOOK);
        let next = self.reading.iter().map(|reading| reading.until).chain(look).min();
        match poll(&mut fds, next.map(time_to).as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn accept(&mut self) {
        while self.unsent.is_empty()
            && let Some(control) = &self.control
        {
            let socket = match accept_with(control, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                // The daemon that made it has died.
                Err(Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => {
                    self.control = None;
                    return;
                }
                Err(_none_now) => return,
            };
            let (peer, now) = (PeerCredentials::of(&socket), Instant::now());
            let reading = Reading { socket, peer, read: Vec::new(), until: now + TIMEOUT, change: None };
            self.make_room_for(reading.user());
            self.look_at(reading, now);
        }
    }

    /// If this user has all of its places, or all are taken, the daemon gets the oldest connection of whoever has most.
    fn make_room_for(&mut self, user: Option<u32>) {
        let of = |user| self.reading.iter().filter(|reading| reading.user() == user).count();
        let users: BTreeSet<Option<u32>> = self.reading.iter().map(Reading::user).collect();
        let gives = if of(user) >= READING_OF_USER_MAX {
            user
        } else if self.reading.len() >= READING_MAX {
            users.into_iter().max_by_key(|user| of(*user)).flatten()
        } else {
            return;
        };
        if let Some(at) = self.reading.iter().position(|reading| reading.user() == gives) {
            let reading = self.reading.remove(at);
            self.pass(reading);
        }
    }

    /// Reads what there is of a request's head, and decides who goes on with the connection.
    fn look_at(&mut self, mut reading: Reading, now: Instant) {
        if reading.change.is_none() {
            let is_open = read_some(&reading.socket, &mut reading.read, HEAD_MAX);
            match change_in(&reading.read) {
                Begun::Head if is_open && now < reading.until => return self.reading.push(reading),
                Begun::Head | Begun::Other => return self.pass(reading),
                change @ Begun::Change { .. } => {
                    reading.change = Some(change);
                    reading.until = now + THREAD_WITHIN;
                }
            }
        }
        match Place::take(&self.threads, reading.user()) {
            Some(place) => self.start(reading, place),
            None if now < reading.until => self.reading.push(reading),
            None => self.pass(reading),
        }
    }

    /// The daemon gets a connection.
    fn pass(&mut self, reading: Reading) {
        match self.channels.1.pass(reading.socket.as_fd(), &reading.read, Duration::ZERO) {
            Err(error) if error.is_passing() => self.unsent.push(reading),
            // On an error the client sees that its connection is closed.
            Ok(()) | Err(_) => {}
        }
    }

    /// A change goes on in a thread.
    fn start(&self, mut reading: Reading, place: Place) {
        let (channels, host, large) = (Arc::clone(&self.channels), self.host.clone(), Arc::clone(&self.large));
        let change = move || {
            name(&channels.0, &host, &mut reading, &large);
            // On an error the client sees that its connection is closed.
            let _ = channels.1.pass(reading.socket.as_fd(), &reading.read, DAEMON_WITHIN);
            drop(place);
        };
        // Without a thread the client sees that its connection is closed.
        let _ = std::thread::Builder::new().name("change".into()).spawn(change);
    }
}

/// The time until then, for poll(2).
fn time_to(end: Instant) -> Timespec {
    let left = end.saturating_duration_since(Instant::now());
    Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
}

/// Reads what there is, up to so many bytes in all. False: nothing more will come.
fn read_some(socket: &OwnedFd, read: &mut Vec<u8>, most: usize) -> bool {
    let mut piece = [0; 16 << 10];
    loop {
        let room = most.saturating_sub(read.len()).min(piece.len());
        if room == 0 {
            return true;
        }
        match recv(socket, &mut piece[..room], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return false,
            Ok((count, _)) => read.extend_from_slice(&piece[..count]),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
}

/// Names what a change opens, if its user may. What is wrong with a change, the daemon says.
fn name(opening: &Opening, host: &Path, reading: &mut Reading, large: &Mutex<()>) {
    let Some(Begun::Change { change, head, length, waits }) = reading.change.take() else { return };
    let may = |peer| Host::read(host).is_ok_and(|host| may_name(&host, peer).is_ok());
    if !reading.peer.is_some_and(may) {
        return;
    }
    let turn = (change == Change::Host).then(|| large.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
    let Some(body) = read_body(reading, (head, length, waits), change.body_most()) else { return };
    let lines = opened_by(&change, &body, host);
    drop((body, turn));
    if !lines.is_empty() {
        // The daemon asks the keeper, and says what is not named.
        let _ = named_by(opening, host, lines, reading.peer);
    }
}

/// Reads the body of a request, in the time and up to the length that the daemon grants it.
fn read_body(
    reading: &mut Reading,
    (head, length, waits): (usize, Option<usize>, bool),
    most: usize,
) -> Option<Vec<u8>> {
    if length.is_some_and(|length| length > most) {
        return None;
    }
    let end = Instant::now() + TIMEOUT;
    let mut is_told = !waits;
    let most = head + most;
    loop {
        let is_open = read_some(&reading.socket, &mut reading.read, most);
        let behind = reading.read.get(head..)?;
        let may_be_whole = length.map_or(behind.ends_with(b"\r\n\r\n"), |length| behind.len() >= length);
        if may_be_whole && let Some(body) = body(behind, length) {
            return Some(body);
        }
        if !is_open || reading.read.len() >= most || Instant::now() >= end {
            return None;
        }
        if !is_told {
            is_told = true;
            send(&reading.socket, b"HTTP/1.1 100 Continue\r\n\r\n", SendFlags::NOSIGNAL | SendFlags::DONTWAIT).ok()?;
        }
        match poll(&mut [PollFd::new(&reading.socket, PollFlags::IN)], Some(&time_to(end))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
