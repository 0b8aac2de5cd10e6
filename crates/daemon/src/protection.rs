//! VMs that are copied to twins on other hosts (docs/fault-tolerance.md; docs/adr/0028).
//!
//! ```text
//!                    ┌ Qemu: QMP ──────────► QEMU                      one thread for each [[vm]]
//! Owner or Twin ─────┤ Peer: Line ─────────► the other host's daemon
//! (nicety_protect)   │ Carrier: stream ────► QEMU's stream, encrypted
//!                    │ Asker ──────────────► the lease
//!                    └ Epochs ─────────────► gates of the VM's ports
//! ```
//! One more thread accepts connections, and gives each to the VM that its first message names.

mod carrier;
mod gates;
mod leases;
mod left;
mod listen;
mod note;
mod peer;
mod process;
mod qemu;
mod report;
mod vm;
mod wire;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nicety_host::{Host, LeasePlace, ListenAddress, ToleranceConfig, VmConfig};
use nicety_link::{Listener, Place, Secret};
use nicety_names::Names;
use nicety_sandbox::Kind;

pub(crate) use carrier::Still;
pub use gates::{Gates, ProtectError};
pub(crate) use left::Left;
use listen::Acceptor;
pub use nicety_protect::Terms;
pub use note::Wish;
use note::{Bell, Board, Note};
use peer::Peer;
pub use report::{VmReport, VmRole};
use vm::{STILL, Vm};

use crate::clock::Clock;

/// An administrator's wish is answered in this time.
const ANSWER: Duration = Duration::from_secs(3);

/// The reason why VMs cannot be protected.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
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
    /// The lease cannot be asked for.
    #[error("[ft]: {0}")]
    Lease(String),
    /// Its threads cannot be started.
    #[error("[ft]: starting its threads: {0}")]
    Thread(io::Error),
}

/// See the module's page.
#[derive(Debug)]
pub(crate) struct Protection {
    boards: BTreeMap<String, Arc<Board>>,
    /// Threads that wait until they may begin: of the VM with this name, or the one that accepts connections.
    waiting: Mutex<Vec<(Option<String>, Sender<Begin>)>>,
    /// Ends the thread that accepts.
    bell: Arc<Bell>,
    /// The threads of the VMs.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The parts that are ready before a port is opened: the key was read, and peers may connect.
pub(crate) struct Ready {
    secret: Secret,
    listener: Listener,
    place: LeasePlace,
    names: Names,
    vms: Vec<VmConfig>,
}

/// The secret in this file.
fn secret(path: &Path) -> Result<Secret, ProtectionError> {
    let wrong = |why: String| ProtectionError::Key { path: path.to_owned(), why };
    let make = || format!("head -c 32 /dev/urandom > {}", path.display());
    let bytes = std::fs::read(path)
        .map_err(|error| wrong(format!("{error}; copy the key of the other hosts there, or make one: {}", make())))?;
    Secret::new(&bytes).map_err(|error| wrong(error.to_string()))
}

/// Does this at the address where peers connect.
fn at<T>(address: &ListenAddress, act: impl FnOnce(&Place) -> io::Result<T>) -> Result<T, ProtectionError> {
    let done = act(&match address {
        ListenAddress::Address(address) => Place::Tcp(*address),
        ListenAddress::Unix(path) => Place::Unix(path.clone()),
    });
    done.map_err(|source| ProtectionError::Listen { address: address.clone(), source })
}

/// Checks all that [`Ready::of`] needs. Makes nothing.
pub(crate) fn check(config: &ToleranceConfig) -> Result<(), ProtectionError> {
    secret(&config.key)?;
    if let Some(place) = &config.lease {
        leases::check(place).map_err(ProtectionError::Lease)?;
    }
    config.listen.as_ref().map_or(Ok(()), |address| at(address, Listener::check))
}

/// The parts that a thread needs to begin: the ports' gates, and the state that the daemon before this one has left.
struct Begin {
    gates: Weak<dyn Gates>,
    left: Option<Left>,
}

impl std::fmt::Debug for Begin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Begin({:?})", self.left.as_ref().map(|left| &left.vm))
    }
}

impl std::fmt::Debug for Ready {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ready({:?})", self.vms)
    }
}

impl Ready {
    /// Of this host, if it has VMs. Peers connect from now on, also while a daemon that this one replaces listens there.
    pub fn of(host: &Host) -> Result<Option<Self>, ProtectionError> {
        let Some(config) = host.tolerance.as_ref().filter(|_| !host.vms.is_empty()) else { return Ok(None) };
        let secret = secret(&config.key)?;
        // The host file was checked: where there are VMs there are both.
        let lacks = |what: &str| ProtectionError::Lease(format!("{what} is missing, and there is a [[vm]]"));
        let address = config.listen.as_ref().ok_or_else(|| lacks("listen"))?;
        let place = config.lease.as_ref().ok_or_else(|| lacks("lease"))?;
        let listener = at(address, Listener::beside)?;
        let names = Names::start().map_err(ProtectionError::Thread)?;
        leases::check(place).map_err(ProtectionError::Lease)?;
        Ok(Some(Self { secret, listener, place: place.clone(), names, vms: host.vms.clone() }))
    }

    /// The ports of its VMs.
    pub fn ports(&self) -> impl Iterator<Item = &String> {
        self.vms.iter().flat_map(|vm| &vm.ports)
    }
}

impl Protection {
    /// Starts the threads, which wait until [`Protection::begin`]. To be called before the process confines itself: later threads reach
    /// neither peers nor etcd by TCP.
    pub fn start(ready: Ready, clock: Clock, terms: Terms) -> Result<Self, ProtectionError> {
        let Ready { secret, listener, place, names, vms } = ready;
        let bell = Arc::new(Bell::new().map_err(ProtectionError::Thread)?);
        let mut boards = BTreeMap::new();
        let (mut waiting, mut threads) = (Vec::new(), Vec::new());
        for config in vms {
            let (tell, notes) = channel();
            let shown = VmReport { name: config.name.clone(), peer: config.peer.to_string(), ..VmReport::default() };
            let bell = Arc::new(Bell::new().map_err(ProtectionError::Thread)?);
            let board = Arc::new(Board { bell, notes: tell, shown: Mutex::new(shown) });
            boards.insert(config.name.clone(), Arc::clone(&board));
            let lease = leases::start(&place, &config, &names, terms.lease).map_err(ProtectionError::Lease)?;
            let (begin, begins) = channel();
            let (name, secret, names) = (config.name.clone(), secret.clone(), names.clone());
            let run = move || {
                // Without gates the daemon ends before it has begun.
                let Ok(Begin { gates, left }) = begins.recv() else { return };
                let peer = Peer::new(&config.name, &config.peer, &secret, &names, std::time::Instant::now());
                let mut vm = Vm::new((config, terms, clock.began()), gates, peer, lease, (board, notes));
                left.into_iter().for_each(|left| vm.resume(left, std::time::Instant::now()));
                vm.run();
            };
            waiting.push((Some(name), begin));
            threads.push(nicety_sandbox::spawn(Kind::Tolerance, "vm", 0, run).map_err(ProtectionError::Thread)?);
        }
        let acceptor = Acceptor::new(listener, secret, boards.clone(), Arc::clone(&bell));
        let (begin, begins) = channel();
        let run = move || {
            if begins.recv().is_ok() {
                acceptor.run();
            }
        };
        waiting.push((None, begin));
        let _detached = nicety_sandbox::spawn(Kind::Tolerance, "ft", 0, run).map_err(ProtectionError::Thread)?;
        Ok(Self { boards, waiting: Mutex::new(waiting), bell, threads: Mutex::new(threads) })
    }

    /// The ports are there: it begins. The second time nothing happens. `left`: what the daemon before this one has left of its VMs'
    /// protections.
    pub fn begin(&self, gates: &Weak<dyn Gates>, mut left: Vec<Left>) {
        for (vm, waiting) in self.take_waiting() {
            let of_it = left.iter().position(|left| vm.as_ref() == Some(&left.vm)).map(|at| left.swap_remove(at));
            // It waits until here.
            let _begun = waiting.send(Begin { gates: Weak::clone(gates), left: of_it });
        }
    }

    fn take_waiting(&self) -> Vec<(Option<String>, Sender<Begin>)> {
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends its threads, before the ports are closed. A VM whose ports close in front of it would be said to go on alone, and its twin
    /// could not take over: QEMU ends the copies when it loses a port.
    pub fn end(&self) {
        drop(self.take_waiting());
        self.bell.end();
        self.boards.values().for_each(|board| board.bell.end());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // One that has panicked has said so.
            let _panicked = thread.join();
        }
    }

    /// This daemon is about to be replaced: the protections that can go on in the next one stand still. Their VMs' threads do nothing more
    /// before [`Protection::go_on`]. Takes some milliseconds, half a second at most.
    pub fn leave(&self) -> Vec<Left> {
        let (answer, answers) = channel();
        self.boards.values().for_each(|board| board.tell(Note::Leave(answer.clone())));
        // A thread that has nothing to hand over drops its end.
        drop(answer);
        let end = std::time::Instant::now() + 2 * STILL;
        let mut left = Vec::new();
        loop {
            match answers.recv_timeout(end.saturating_duration_since(std::time::Instant::now())) {
                Ok(one) => left.push(one),
                Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout) => return left,
            }
        }
    }

    /// This daemon is not replaced after all.
    pub fn go_on(&self) {
        self.boards.values().for_each(|board| board.tell(Note::GoOn));
    }

    /// The states of all VMs.
    pub fn reports(&self) -> Vec<VmReport> {
        self.boards.values().map(|board| board.shown()).collect()
    }

    /// An administrator's wish. Waits for what comes of it.
    ///
    /// # Errors
    /// A sentence.
    pub fn wish(&self, vm: &str, wish: Wish) -> Result<(), String> {
        let names = || self.boards.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let board = self.boards.get(vm).ok_or_else(|| format!("there is no [[vm]] {vm:?}, but: {}", names()))?;
        let (answer, answered) = channel();
        board.tell(Note::Wish(wish, answer));
        answered
            .recv_timeout(ANSWER)
            .unwrap_or_else(|_| Err(format!("the VM's thread has not answered within {ANSWER:?}")))
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.bell.end();
        self.boards.values().for_each(|board| board.bell.end());
    }
}
