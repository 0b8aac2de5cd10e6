//! This host's part of a fabric: one switch on many hosts (docs/fabric.md; docs/adr/0031).
//!
//! ```text
//!   etcd ◄── Store ── session: Fabric (nicety_fabric) ──► Tunnel: where frames go
//!                        ▲    │                     ▲
//!          Applied ──────┘    └──► change thread    └── ports: which addresses are here
//!                                  (Live, the file of the last known state)
//! ```
//! The thread `fabric` speaks with etcd and drives the machine. It opens no file. A thread for changes applies configurations as any other
//! live change is made, and writes the last known state.

pub(crate) mod around;
mod change;
mod kept;
mod ports;
mod report;
mod session;
pub mod store;
mod tunnel;

use std::net::IpAddr;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_etcd::Client;
use nicety_fabric::{Event, Fabric, Me, Name, Settings, Terms};
use nicety_frame::Mac;
use nicety_host::{FabricConfig, Host, TunnelConfig, UplinkKind};
use nicety_names::Names;
use nicety_sandbox::Kind;
use nicety_uplink::Hops;
use tokio::sync::mpsc::UnboundedSender;
use tracing::warn;

pub use kept::{LastKnown, NotKnown, last_known};
pub use report::{Connection, FabricReport, GroupReport, HostReport, NamesakeReport, PassedReport, PlaceReport};

use crate::clock::Clock;
use crate::random::random;
use around::{Around, Changes};
use session::Before;
use store::Store;

/// A question is answered in this time.
const ANSWER: Duration = Duration::from_secs(2);
/// The end of the fabric's thread takes so long at most: it tells etcd that this host leaves.
const END: Duration = Duration::from_secs(1);

/// Why this host cannot be in its fabric. A sentence for a person.
#[derive(Debug, thiserror::Error)]
#[error("[fabric]: {0}")]
pub struct FabricError(String);

/// What is asked of the machine: it answers by itself.
type Question = Box<dyn FnOnce(&Fabric, Time) + Send>;

/// Something for the thread.
pub(crate) enum Note {
    /// What the process before this one knew, as the file of the last known state has it. It is newer than that file.
    Resume(Vec<u8>),
    /// The ports are served: it begins.
    Begin(Weak<dyn Around>),
    /// etcd says something.
    Event(Event),
    /// A configuration is in force, or is refused.
    Applied(i64, Result<(), String>),
    /// A configuration cannot be in force yet. Why.
    Delayed(i64, String),
    /// The last known state was written, or could not be.
    Kept(Result<(), String>),
    /// Asks the machine.
    Ask(Question),
    /// It does nothing until it is told to go on: another process may serve the ports now. Answers when it stands still, with what it knows.
    Pause(bool, SyncSender<Option<Vec<u8>>>),
    /// This host leaves the fabric, and the thread ends. Answers then.
    End(SyncSender<()>),
}

/// Something for the thread that makes changes.
pub(crate) enum Job {
    /// Apply these groups.
    Apply(i64, String),
    /// Write the last known state.
    Keep(Box<nicety_fabric::Kept>),
}

/// The fabric of a daemon.
#[derive(Debug)]
pub struct Joined {
    config: FabricConfig,
    host: Name,
    /// Its tunnel's address, and the MTU of the network there.
    address: (IpAddr, u16),
    hops: Hops,
    notes: UnboundedSender<Note>,
    /// What the thread for changes needs, until it is started.
    waiting: Mutex<Option<change::Waiting>>,
    /// The state of the fabric, for the process that takes the ports over.
    for_next: Mutex<Option<Vec<u8>>>,
}

/// The tunnel of a host's fabric.
fn tunnel_of<'a>(host: &'a Host, fabric: &FabricConfig) -> Option<&'a TunnelConfig> {
    match &host.uplink(&fabric.tunnel)?.kind {
        UplinkKind::Vxlan(tunnel) => Some(tunnel),
        _ => None,
    }
}

fn name(text: &str) -> Result<Name, FabricError> {
    Name::new(text).map_err(FabricError)
}

/// Checks that the files can be read, and that this host has a name.
pub(crate) fn check(config: &FabricConfig) -> Result<(), FabricError> {
    config.host().map_err(FabricError)?;
    config.etcd.settings().map(drop).map_err(FabricError)
}

/// Time limits of the fabric.
fn terms() -> Terms {
    Terms::default()
}

impl Joined {
    /// Starts the thread, which waits until [`Joined::begin`]. To be called before the process confines itself: etcd is reached by TCP.
    ///
    /// # Errors
    /// A file cannot be read, or a thread cannot be started.
    pub(crate) fn start(config: &FabricConfig, host: &Host, hops: Hops, clock: Clock) -> Result<Self, FabricError> {
        let failed = |error: std::io::Error| FabricError(format!("starting its threads: {error}"));
        let own = name(&config.host().map_err(FabricError)?)?;
        let tunnel =
            tunnel_of(host, config).ok_or_else(|| FabricError(format!("there is no tunnel {}", config.tunnel)))?;
        let (address, mtu) = (tunnel.settings.address, tunnel.settings.mtu);
        let version = nicety_version::VERSION.to_owned();
        let me = Me { host: own.clone(), address, mtu, version };
        let settings = Settings { fabric: name(&config.name)?, me, run: random(), seed: random(), terms: terms() };
        let names = Names::start().map_err(failed)?;
        let resolver = move |host: &str, port: u16, answer: nicety_etcd::Answer| names.look_up(host, port, answer);
        let etcd = store::with_limits(config.etcd.settings().map_err(FabricError)?, &settings.terms);
        let client = Client::new(etcd, resolver).map_err(|error| FabricError(error.to_string()))?;
        let kept = match last_known(host) {
            Ok(kept) => kept,
            Err(why) => {
                warn!("[fabric] {why}");
                None
            }
        };
        // Before the tunnel knows other hosts.
        hops.leave(&kept.as_ref().map(LastKnown::left).unwrap_or_default());
        let (notes, heard) = tokio::sync::mpsc::unbounded_channel();
        let (jobs, work): (Sender<Job>, _) = channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
        let tunnel = tunnel::Tunnel::new(config.tunnel.clone(), hops.clone());
        let groups = host.fabric_groups.clone();
        let before = Before { settings, kept: kept.map(LastKnown::into_state), groups, clock, tunnel, jobs };
        let tell = notes.clone();
        let run = move || {
            runtime.block_on(before.run(heard, |keys| Store::new(client, keys, tell)));
        };
        let _detached = nicety_sandbox::spawn(Kind::Fabric, "fabric", 0, run).map_err(failed)?;
        let waiting = change::Waiting { work, notes: notes.clone(), path: crate::paths::fabric_state(host) };
        let address = (address, mtu);
        let (waiting, for_next) = (Mutex::new(Some(waiting)), Mutex::default());
        Ok(Self { config: config.clone(), host: own, address, hops, notes, waiting, for_next })
    }

    /// The ports are served, and this is how they are changed. Called once.
    ///
    /// # Errors
    /// The thread for changes cannot be started.
    pub(crate) fn begin(&self, daemon: Weak<dyn Around>, live: Weak<dyn Changes>) -> std::io::Result<()> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(waiting) = waiting else { return Ok(()) };
        let _detached = nicety_sandbox::spawn(Kind::ControlChange, "fabric-change", 0, move || waiting.run(&live))?;
        self.tell(Note::Begin(daemon));
        Ok(())
    }

    fn tell(&self, note: Note) {
        // The thread ends with the daemon only.
        let _gone = self.notes.send(note);
    }

    fn ask<T: Send + 'static>(&self, question: impl FnOnce(&Fabric, Time) -> T + Send + 'static) -> Option<T> {
        let (answer, answered) = sync_channel(1);
        self.tell(Note::Ask(Box::new(move |fabric, now| {
            // Whoever has asked may have gone.
            let _late = answer.send(question(fabric, now));
        })));
        answered.recv_timeout(ANSWER).ok()
    }

    /// The state, for a person.
    pub fn report(&self) -> FabricReport {
        let report = self.ask(|fabric, now| (fabric.report(now), fabric.ports_of_hosts(), fabric.namesakes()));
        FabricReport::new((&self.config, self.host.as_str()), self.address, report, &self.hops.traffic())
    }

    /// Where an address is, of all groups that this host has ports in.
    pub fn places(&self, mac: Mac) -> Vec<PlaceReport> {
        let places = self.ask(move |fabric, _| fabric.places(mac)).unwrap_or_default();
        places.into_iter().map(PlaceReport::from).collect()
    }

    /// Another process takes the ports over, or does not after all. When this returns, this one asks etcd for nothing.
    pub(crate) fn pause(&self, is_paused: bool) {
        let (answer, answered) = sync_channel(1);
        self.tell(Note::Pause(is_paused, answer));
        // Without an answer the next process reads the file of the last known state.
        let known = answered.recv_timeout(ANSWER).ok().flatten();
        *self.for_next() = known.filter(|_| is_paused);
    }

    fn for_next(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.for_next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state of the fabric, once it is paused. `None` the second time.
    pub(crate) fn take_known(&self) -> Option<Vec<u8>> {
        self.for_next().take()
    }

    /// Goes on with what another process knew. To be called before [`Joined::begin`].
    pub(crate) fn resume(&self, known: Vec<u8>) {
        self.tell(Note::Resume(known));
    }

    /// The daemon stops. Its addresses leave with it, if etcd answers in time.
    pub(crate) fn end(&self) {
        let (answer, answered) = sync_channel(1);
        self.tell(Note::End(answer));
        let _late = answered.recv_timeout(END);
    }
}
