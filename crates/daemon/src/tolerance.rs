//! Output commit of ports: what a port with `ft_peer` sends waits until another daemon has all calls of its adapter that precede it
//! (docs/fault-tolerance.md, "Ports"; docs/adr/0023).
//!
//! ```text
//! worker: port ──► tape::Gate ──► adapter          peer's `ft` thread: Replica ──► tape::Player ──► adapter
//!                     │  PortTape ──► thread `ft`: Sender ══ Link ══► Calls
//!                     ◄── Commit ◄──────────────────────────── Known ◄┘
//! ```
//! One thread has all connections, of both kinds. It never waits for a peer.
//!
//! **By rule.** A peer that has not answered for a second (`SILENCE`), or whose connection ends, has another (`GRACE`) to be there again, also as another
//! process; meanwhile the port's frames wait. Then the port goes on unprotected and says so. It is protected again when a peer has its
//! state.

mod log;
mod message;
mod replica;
mod report;
mod sender;
#[cfg(test)]
mod session_test;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use nicety_adapter::tape::{Gate, Log};
use nicety_adapter::{Adapter, PortId};
use nicety_host::{ListenAddress, PeerAddress, ToleranceConfig};
use nicety_memory::MapError;
use nicety_names::Names;
use nicety_plane::Port;
use nicety_sandbox::Kind;
use nicety_sealed::{Key, Listener, Place};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use crate::spec::PortSpec;
use log::{Bell, PortTape};
use message::{Link, hello};
use replica::{Complaints, Replica};
pub use report::ToleranceReport;
use sender::Sender;

/// A peer that says nothing for this long is gone.
const SILENCE: Duration = Duration::from_secs(1);
/// The time for a peer to come back, while frames wait.
const GRACE: Duration = Duration::from_secs(1);
/// The time between two looks at what is due.
const LOOK: Duration = Duration::from_millis(50);
/// Most connections of peers.
const PEERS_MAX: usize = 256;

/// The reason why there is no fault tolerance of ports.
#[derive(Debug, thiserror::Error)]
pub enum ToleranceError {
    /// The key cannot be used.
    #[error("[ft] key {path}: {why}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// Peers cannot connect.
    #[error("[ft] listen {address}: {source}; end who listens there, or name another place")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// The cause.
        source: io::Error,
    },
    /// Its threads cannot be started.
    #[error("[ft]: starting its threads: {0}")]
    Thread(io::Error),
}

/// A port's log that has no port yet.
#[derive(Debug)]
pub(crate) struct Tolerated(Arc<PortTape>);

/// A port whose log the thread is to send.
struct Newcomer {
    tape: Arc<PortTape>,
    port: Arc<Port>,
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Tolerance {
    bell: Arc<Bell>,
    newcomers: Arc<Mutex<Vec<Newcomer>>>,
    tapes: Mutex<BTreeMap<PortId, Arc<PortTape>>>,
}

impl std::fmt::Debug for Newcomer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Newcomer")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The key in this file.
fn key(path: &std::path::Path) -> Result<Key, ToleranceError> {
    let wrong = |why: String| ToleranceError::Key { path: path.to_owned(), why };
    let make = || format!("head -c 32 /dev/urandom > {}", path.display());
    let bytes = std::fs::read(path)
        .map_err(|error| wrong(format!("{error}; copy the key of the other hosts there, or make one: {}", make())))?;
    if bytes.len() < Key::BYTES_MIN {
        let least = Key::BYTES_MIN;
        return Err(wrong(format!("a key has at least {least} bytes: {}", make())));
    }
    Ok(Key::new(&bytes))
}

/// Does this at the address where peers connect.
fn at<T>(address: &ListenAddress, act: impl FnOnce(&Place) -> io::Result<T>) -> Result<T, ToleranceError> {
    let done = act(&match address {
        ListenAddress::Address(address) => Place::Tcp(*address),
        ListenAddress::Unix(path) => Place::Unix(path.clone()),
    });
    done.map_err(|source| ToleranceError::Listen { address: address.clone(), source })
}

/// Checks all that [`Tolerance::start`] needs. Makes nothing.
pub(crate) fn check(ToleranceConfig { listen, key: path, lease: _ }: &ToleranceConfig) -> Result<(), ToleranceError> {
    key(path)?;
    listen.as_ref().map_or(Ok(()), |address| at(address, Listener::check))
}

impl Tolerance {
    /// Starts the thread. Peers connect at `listen`, also while a daemon that this one replaces listens there.
    pub fn start(ToleranceConfig { listen, key: path, lease: _ }: &ToleranceConfig) -> Result<Self, ToleranceError> {
        let key = key(path)?;
        if let Some(warning) = nicety_host::open_key(path) {
            warn!("[ft] {warning}");
        }
        let listener = listen.as_ref().map(|address| at(address, Listener::beside)).transpose()?;
        let bell = Arc::new(Bell::new().map_err(ToleranceError::Thread)?);
        let newcomers: Arc<Mutex<Vec<Newcomer>>> = Arc::default();
        let names = Names::start().map_err(ToleranceError::Thread)?;
        let thread = Thread {
            key,
            names,
            listener,
            bell: Arc::clone(&bell),
            newcomers: Arc::clone(&newcomers),
            senders: Vec::new(),
            replicas: Vec::new(),
            complaints: Complaints::default(),
        };
        // It ends soon after this value.
        let _detached =
            nicety_sandbox::spawn(Kind::Tolerance, "ft", 0, || thread.run()).map_err(ToleranceError::Thread)?;
        Ok(Self { bell, newcomers, tapes: Mutex::default() })
    }

    /// Puts a gate around a port's adapter. `is_again`: the port goes on from another process, and its frames wait at first.
    pub fn around(
        &self,
        spec: &PortSpec,
        peer: &PeerAddress,
        adapter: Box<dyn Adapter>,
        is_again: bool,
    ) -> Result<(Box<dyn Adapter>, Tolerated), MapError> {
        let tape = Arc::new(PortTape::new(spec, peer, is_again, Arc::clone(&self.bell)));
        let gate = Gate::new(adapter, Arc::clone(&tape.commit), Arc::clone(&tape) as Arc<dyn Log>)?;
        Ok((Box::new(gate), Tolerated(tape)))
    }

    /// The log's port is there. Its log ends with it.
    pub fn serve(&self, Tolerated(tape): Tolerated, port: &Arc<Port>) {
        lock(&self.tapes).insert(port.id(), Arc::clone(&tape));
        lock(&self.newcomers).push(Newcomer { tape, port: Arc::clone(port) });
        self.bell.ring();
    }

    /// The state of a port's log. `None`: it has none.
    pub fn report(&self, port: &str, id: PortId) -> Option<ToleranceReport> {
        lock(&self.tapes).get(&id).filter(|tape| tape.port == port).map(|tape| tape.report())
    }
}

impl Drop for Tolerance {
    fn drop(&mut self) {
        self.bell.end();
    }
}

/// The thread's own.
struct Thread {
    key: Key,
    names: Names,
    listener: Option<Listener>,
    bell: Arc<Bell>,
    newcomers: Arc<Mutex<Vec<Newcomer>>>,
    senders: Vec<Sender>,
    replicas: Vec<Replica>,
    complaints: Complaints,
}

impl Thread {
    fn run(mut self) {
        loop {
            self.wait();
            self.bell.answer();
            if self.bell.has_ended() {
                return;
            }
            let now = Instant::now();
            let newcomers = std::mem::take(&mut *lock(&self.newcomers));
            self.senders.extend(newcomers.into_iter().map(|Newcomer { tape, port }| Sender::new(tape, &port, now)));
            self.accept(now);
            let Self { senders, replicas, key, names, complaints, .. } = &mut self;
            senders.retain_mut(|sender| sender.step(key, names, now));
            replicas.retain_mut(|replica| replica.step(key, now, complaints));
        }
    }

    fn wait(&self) {
        let listener = self.listener.iter().map(|listener| PollFd::new(listener, PollFlags::IN));
        let links = self.senders.iter().filter_map(Sender::link);
        let links = links.map(|link| PollFd::from_borrowed_fd(link.as_fd(), link.events()));
        let replicas = self.replicas.iter().map(|replica| PollFd::from_borrowed_fd(replica.as_fd(), replica.events()));
        let bell = [PollFd::new(&*self.bell, PollFlags::IN)];
        let mut fds: Vec<PollFd<'_>> = bell.into_iter().chain(listener).chain(links).chain(replicas).collect();
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        let is_idle = self.senders.is_empty() && self.replicas.is_empty();
        // An error is one of arguments, which are right: look again.
        let _ready = poll(&mut fds, (!is_idle).then_some(&look));
    }

    fn accept(&mut self, now: Instant) {
        let Some(listener) = &self.listener else { return };
        while let Ok((stream, from)) = listener.accept() {
            if self.replicas.len() >= PEERS_MAX {
                self.complaints.tell(&from, &format_args!("it is refused: there are {PEERS_MAX}"), now);
                continue;
            }
            match Link::new(stream, hello(&self.key)) {
                Ok(link) => self.replicas.push(Replica::new(link, from, now)),
                Err(why) => self.complaints.tell(&from, &why, now),
            }
        }
    }
}
