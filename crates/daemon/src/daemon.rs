//! The daemon: a plane, its workers, and the ports of a host file.

mod arriving;
mod card;
mod carried;
#[cfg(test)]
mod closing_test;
mod counts;
mod error;
mod fabric;
mod flows;
mod freeze;
mod io_control;
#[cfg(test)]
mod io_control_shares_test;
#[cfg(test)]
mod io_control_test;
#[cfg(test)]
mod kept_test;
mod links;
#[cfg(test)]
mod loops_test;
mod mirror;
mod open;
mod parts;
mod placing;
mod policy;
mod probe;
mod protect;
mod restart;
#[cfg(test)]
mod restart_test;
mod save;
mod set;
mod settle;
mod team;
mod tunnels;
mod watch;

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nicety_adapter::{PortId, Time, Uplink};
use nicety_frame::Mac;
use nicety_host::MirrorConfig;
use nicety_keeper::{Holder, Opener};
use nicety_plane::{Group, Loop, Neighbour, Plane, Port, State, Trace, TraceError};
use nicety_sandbox::Kind;
use nicety_switch::{Learned, Limits, Policy, Vlan, Wanted};
use nicety_uplink::{Hops, Interface};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::fabric::Joined;
use crate::flows::Flows;
use crate::protection::{Left, Protection, Ready};
use crate::random::random;
use crate::run::device::{PortDevice, irq_layout};
use crate::run::fatal::fatal;
use crate::run::inbox::{Inbox, Note};
use crate::run::journal::{Journal, NotKept};
use crate::run::port_log::PortLog;
use crate::run::recorder::{Recorder, Recording, Target};
use crate::run::rings::RingsServer;
use crate::run::service::Service;
use crate::run::shell::Schedule;
use crate::run::worker::Worker;
pub use crate::spec::PortSpec;
pub use arriving::{Arriving, ArrivingPart, ArrivingUplink, Expected};
use card::RunningCard;
pub use carried::NoteBytes;
pub use error::StartError;
pub use freeze::{Frozen, Stopped};
use io_control::IoControl;
pub use open::JoiningUplink;
use open::Opened;
pub(crate) use parts::part_name;
use placing::Look;
pub(crate) use probe::Probe;
pub use restart::RestartError;
use team::RunningTeam;
pub use team::{MemberViews, TeamSpec};
pub use tunnels::TunnelTraffic;

/// The time that a worker may take to release a port.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Most ports that are closed in one round of the workers: other ports' frames wait that long.
const CLOSED_AT_ONCE: usize = 64;

/// An open port.
#[derive(Debug)]
struct Running {
    spec: PortSpec,
    port: Arc<Port>,
    schedule: Arc<Schedule>,
    /// Its other parts, if several workers serve it.
    others: Vec<OtherPart>,
    blank: Arc<AtomicBool>,
    log: Arc<PortLog>,
    recorder: Option<Arc<Recorder>>,
    /// The vhost-user thread. It ends when this is dropped.
    rings: Option<RingsServer>,
}

/// A part of a port, and not the first.
#[derive(Clone, Debug)]
struct OtherPart {
    port: Arc<Port>,
    schedule: Arc<Schedule>,
    log: Arc<PortLog>,
}

impl Running {
    /// Its parts.
    fn parts(&self) -> impl Iterator<Item = &Arc<Port>> {
        std::iter::once(&self.port).chain(self.others.iter().map(|part| &part.port))
    }

    fn group(&self) -> Arc<Group> {
        Arc::new(Group::parts(Arc::clone(&self.port), self.others.iter().map(|part| Arc::clone(&part.port))))
    }

    /// The failure of one of its parts.
    fn failure(&self) -> Option<String> {
        self.parts().find_map(|part| part.failure())
    }
}

/// Makes an uplink again. The error is a sentence for a person.
pub type UplinkMaker = Box<dyn Fn(&Daemon) -> Result<Box<dyn Uplink>, String> + Send + Sync>;

/// An open uplink.
struct RunningUplink {
    name: String,
    port: Arc<Port>,
    buffer_bytes: u32,
    policy: Policy,
    maker: Option<UplinkMaker>,
    /// The team that it is in.
    team: Option<String>,
    /// The name under which the keeper holds what it has opened.
    kept: Option<String>,
    /// Its I/O control.
    control: IoControl,
    /// The settings of its agents.
    agents: UplinkAgents,
}

/// The settings of an uplink's agents: LLDP and the querier.
#[derive(Clone, Debug, Default)]
pub struct UplinkAgents {
    /// Its LLDP frame to its neighbour.
    pub announcement: Option<Vec<u8>>,
    /// The address of a querier, and the VLANs that it asks in.
    pub querier: Option<(Mac, Vlan)>,
}

impl std::fmt::Debug for RunningUplink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunningUplink").field("name", &self.name).field("port", &self.port).finish_non_exhaustive()
    }
}

/// A snapshot of one port, for reports.
#[derive(Clone, Debug)]
pub struct PortView {
    /// The specification; `None` for the uplink.
    pub spec: Option<PortSpec>,
    /// Its name.
    pub name: String,
    /// Its number on the switch.
    pub id: PortId,
    /// Its policy on the switch.
    pub policy: Policy,
    /// Other keys of an uplink that differ from their defaults, and their values.
    pub link: BTreeMap<String, String>,
    /// The multicasts that it gets, if ports are snooped.
    pub wanted: Vec<Wanted>,
    /// The neighbour that LLDP announced.
    pub neighbour: Option<Neighbour>,
    /// Its state.
    pub state: State,
    /// Interrupt descriptors written.
    pub signals: u64,
    /// Whether the VM's shared memory was empty when the driver was up.
    pub blank: bool,
    /// The time for which the oldest frame has waited for receive buffers of the guest.
    pub starved: Duration,
    /// The time since the last connection ended with an error, and the error. `None` if it just closed.
    pub last_end: Option<(Duration, String)>,
    /// The reason why no VMM is there, if the port connects to one.
    pub absence: Option<String>,
    /// The start of the daemon's clock, since 1970-01-01 00:00 UTC.
    pub epoch: Duration,
    /// The numbers of the workers that serve it, part by part.
    pub workers: Vec<usize>,
    /// The members, if it is a team of uplinks.
    pub members: Option<MemberViews>,
    /// The mirror whose copies it gets.
    pub mirror: Option<MirrorConfig>,
    /// The mirrors that copy its frames.
    pub mirrored_by: Vec<MirrorConfig>,
    /// Why it would not survive a kill of this process. `None`: it would, or there is no keeper.
    pub not_kept: Option<String>,
    /// Whether it is an uplink, or a team, that carries nothing.
    pub blocked: bool,
    /// The loop of which it is a part: one of its two uplinks is blocked.
    pub in_loop: Option<Loop>,
}

impl PortView {
    /// A view of which only this is known.
    pub(crate) fn new(name: &str, id: PortId, policy: &Policy, state: State, epoch: Duration) -> Self {
        Self {
            spec: None,
            name: name.to_owned(),
            id,
            policy: policy.clone(),
            link: BTreeMap::new(),
            wanted: Vec::new(),
            neighbour: None,
            state,
            signals: 0,
            blank: false,
            starved: Duration::ZERO,
            last_end: None,
            absence: None,
            epoch,
            workers: Vec::new(),
            members: None,
            mirror: None,
            mirrored_by: Vec::new(),
            not_kept: None,
            blocked: false,
            in_loop: None,
        }
    }
}

#[derive(Debug)]
struct WorkerHandle {
    inbox: Arc<Inbox>,
    newcomers: mpsc::Sender<Service>,
}

/// The plane, its workers and the open ports.
#[derive(Debug)]
pub struct Daemon {
    plane: Arc<Plane>,
    clock: Clock,
    workers: Vec<WorkerHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ports: Mutex<BTreeMap<PortId, Running>>,
    uplinks: Mutex<Vec<RunningUplink>>,
    teams: Mutex<Vec<RunningTeam>>,
    /// The common parts of the queues of interfaces, by their names.
    interfaces: Mutex<BTreeMap<String, Arc<Interface>>>,
    /// The forwarding tables of tunnels, by the tunnels' names.
    hops: Mutex<BTreeMap<String, Hops>>,
    cards: Mutex<Vec<RunningCard>>,
    /// The mirrors of the host file.
    mirrors: Mutex<Vec<MirrorConfig>>,
    /// The exports of flows.
    flows: Flows,
    /// The settings of uplinks, for reports.
    link_words: Mutex<links::LinkWords>,
    /// Ports that were closed for a reopen that failed.
    lost: Mutex<Vec<(PortSpec, Option<Arc<Recorder>>)>>,
    recording: Mutex<Option<Recording>>,
    /// The number of times that ports were opened or closed.
    generation: AtomicU64,
    /// The keeper, which holds the ports in case this process is killed.
    holder: OnceLock<Arc<Holder>>,
    /// Opens what this process may not.
    opener: OnceLock<Arc<Opener>>,
    /// VMs that are copied to twins: what is ready for them, and then what runs.
    protection_ready: Mutex<Option<Ready>>,
    /// Of the daemon before this one.
    protection_left: Mutex<Vec<Left>>,
    protection: OnceLock<Protection>,
    /// The fabric that this host is in.
    fabric: OnceLock<Joined>,
    /// Ports that open with a shut gate.
    guarded: Mutex<HashSet<String>>,
    /// The last look at the workers' loads.
    look: Mutex<Option<Look>>,
    /// VMMs of another process go on here, and this one has not begun to serve.
    takes_over: AtomicBool,
    /// For how long ports of another process stood still until they went on here, in nanoseconds.
    pauses: OnceLock<Vec<(String, u64)>>,
    /// A signal has told this process to end.
    is_ending: AtomicBool,
}

impl Daemon {
    /// Starts a switch without ports, and its workers. The seed of its tables is the daemon's own, whatever `limits` say: no
    /// guest knows it.
    pub fn start(limits: Limits, workers: usize) -> Result<Self, StartError> {
        Self::start_by(Clock::start(), limits, workers)
    }

    /// The clock's start on CLOCK_MONOTONIC, in nanoseconds, for [`Daemon::start_again`].
    pub fn clock_origin_ns(&self) -> u64 {
        self.clock.origin_ns()
    }

    /// Like [`Daemon::start`], with the clock of another daemon, whose ports go on here.
    pub fn start_again(origin_ns: u64, limits: Limits, workers: usize) -> Result<Self, StartError> {
        Self::start_by(Clock::go_on(origin_ns), limits, workers)
    }

    fn start_by(clock: Clock, limits: Limits, workers: usize) -> Result<Self, StartError> {
        let plane = Arc::new(Plane::new(Limits { seed: random(), ..limits }));
        let system = |what| move |source| StartError::System { what, source };
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        let (started, is_ready) = mpsc::channel();
        for index in 0..workers.max(1) {
            let (newcomers, received) = mpsc::channel();
            let inbox = Arc::new(Inbox::new().map_err(system("making a worker's eventfd"))?);
            let worker = Worker::new(Arc::clone(&plane), clock, Arc::clone(&inbox), received);
            let worker = worker.map_err(system("making an epoll set"))?;
            let started = started.clone();
            let run = move || fatal(|| worker.run(&started));
            let thread = nicety_sandbox::spawn(Kind::Worker, format!("worker{index}"), 0, run);
            let thread = thread.map_err(system("starting a worker"))?;
            handles.push(WorkerHandle { inbox, newcomers });
            threads.push(thread);
        }
        drop(started);
        // Each worker has set up what it serves with. The channel ends early if one has failed.
        is_ready.iter().take(threads.len()).for_each(drop);
        let inboxes = handles.iter().map(|worker| Arc::clone(&worker.inbox)).collect();
        Ok(Self {
            plane,
            clock,
            flows: Flows::new(clock, inboxes),
            workers: handles,
            threads: Mutex::new(threads),
            ports: Mutex::default(),
            uplinks: Mutex::default(),
            teams: Mutex::default(),
            interfaces: Mutex::default(),
            hops: Mutex::default(),
            cards: Mutex::default(),
            mirrors: Mutex::default(),
            link_words: Mutex::default(),
            lost: Mutex::default(),
            recording: Mutex::default(),
            generation: AtomicU64::new(0),
            holder: OnceLock::new(),
            opener: OnceLock::new(),
            protection_ready: Mutex::default(),
            protection_left: Mutex::default(),
            protection: OnceLock::new(),
            fabric: OnceLock::new(),
            guarded: Mutex::default(),
            look: Mutex::default(),
            takes_over: AtomicBool::new(false),
            pauses: OnceLock::new(),
            is_ending: AtomicBool::new(false),
        })
    }

    /// Ports that are opened from now on survive this process: the keeper holds them.
    pub fn keep_by(&self, holder: Arc<Holder>) {
        let _set_once = self.holder.set(holder);
    }

    /// VMMs of another process go on here. If this one fails before it [serves](Self::serves), it closes nothing: the keeper holds their
    /// connections for the next one.
    pub(crate) fn takes_over(&self) {
        self.takes_over.store(true, Ordering::Relaxed);
    }

    /// Ports of another process have gone on here, each after so many nanoseconds in which it stood still.
    pub(crate) fn note_pauses(&self, pauses: Vec<(String, u64)>) {
        let _set_once = self.pauses.set(pauses);
    }

    /// For how long each port stood still when this daemon took over from another one, in nanoseconds. Empty after any other start.
    pub fn pauses(&self) -> &[(String, u64)] {
        self.pauses.get().map_or(&[], Vec::as_slice)
    }

    /// Everything has started.
    pub(crate) fn serves(&self) {
        self.takes_over.store(false, Ordering::Relaxed);
    }

    /// A signal has told this process to end.
    pub(crate) fn ends(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
    }

    /// Whether a signal has told this process to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed)
    }

    /// Sets the opener, which opens for this process what it may not open itself. The first call counts.
    pub fn open_by(&self, opener: Arc<Opener>) {
        let _set_once = self.opener.set(opener);
    }

    /// The opener for this process, if it may not open everything itself.
    pub(crate) fn opener(&self) -> Option<&Arc<Opener>> {
        self.opener.get()
    }

    /// The keeper, if there is one.
    pub(crate) fn holder(&self) -> Option<&Arc<Holder>> {
        self.holder.get()
    }

    /// A port's journal. `None` without a keeper.
    pub(crate) fn journal(&self, log: &PortLog, device: &PortDevice) -> Option<Journal> {
        let holder = self.holder.get()?;
        let journal = Journal::new(log.port(), Arc::clone(holder), device.kept_bytes());
        let journal = journal.inspect_err(|error| {
            let why = format!("making its journal: {error}");
            log.keeps(Some(&NotKept::lasting(why)));
        });
        journal.ok()
    }

    /// The keeper closes what it holds of a port.
    pub(crate) fn forget_kept(&self, name: &str) {
        if let Some(holder) = self.holder.get() {
            let _no_keeper = holder.forget(name, u64::MAX);
        }
    }

    /// Records the guests' register accesses of ports opened from now on. [`Daemon::begin_traces`] writes a trace per port into
    /// this folder, or one port's into one file. Until then older traces stay there.
    pub fn record(&self, target: Target) -> Result<(), StartError> {
        let recording = Recording::start(target, self.clock)?;
        *self.recording() = Some(recording);
        Ok(())
    }

    /// Replaces older traces, if recording is on.
    pub fn begin_traces(&self) -> Result<(), StartError> {
        Ok(self.recording().as_mut().map_or(Ok(()), Recording::begin)?)
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn recorder(&self, spec: &PortSpec) -> Result<Option<Arc<Recorder>>, StartError> {
        Ok(self
            .recording()
            .as_mut()
            .map(|recording| recording.port(&spec.config.name, spec.config.entry, &spec.settings()))
            .transpose()?
            .flatten())
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<PortId, Running>> {
        self.ports.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The lowest free port number from `from` on.
    fn free_id(&self, from: u16) -> PortId {
        self.free_id_of(from, |_| true)
    }

    /// The lowest free port number from `from` on that a worker [owns](Daemon::worker).
    fn free_id_on(&self, worker: usize, from: u16) -> PortId {
        self.free_id_of(from, |id| usize::from(id.0) % self.workers.len() == worker % self.workers.len())
    }

    fn free_id_of(&self, from: u16, is_wanted: impl Fn(PortId) -> bool) -> PortId {
        let used = self.used_ids();
        let is_free = |id: &PortId| is_wanted(*id) && !used.contains(id);
        let free = (from..u16::MAX).map(PortId).find(is_free);
        free.unwrap_or(PortId(u16::MAX))
    }

    fn used_ids(&self) -> HashSet<PortId> {
        let mut used: HashSet<PortId> = self.uplinks().iter().map(|uplink| uplink.port.id()).collect();
        used.extend(self.teams().iter().map(|team| team.id));
        used.extend(self.ports().values().flat_map(Running::parts).map(|part| part.id()));
        used
    }

    /// The number of the worker that owns a port. Ports are distributed by number.
    fn worker_of(&self, id: PortId) -> usize {
        usize::from(id.0) % self.workers.len()
    }

    /// The worker that owns a port.
    fn worker(&self, id: PortId) -> &WorkerHandle {
        &self.workers[usize::from(id.0) % self.workers.len()]
    }

    fn inbox(&self, id: PortId) -> Arc<Inbox> {
        Arc::clone(&self.worker(id).inbox)
    }

    fn uplinks(&self) -> MutexGuard<'_, Vec<RunningUplink>> {
        self.uplinks.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn cards(&self) -> MutexGuard<'_, Vec<RunningCard>> {
        self.cards.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn teams(&self) -> MutexGuard<'_, Vec<RunningTeam>> {
        self.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn mirrors(&self) -> MutexGuard<'_, Vec<MirrorConfig>> {
        self.mirrors.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Closes a port: its VM loses its adapter, its own socket is removed, and its backlog is dropped as `removed`. Returns its
    /// last state, or `None` if there is no such port.
    pub fn close(&self, name: &str) -> Option<PortView> {
        self.close_all(&[name]).pop()
    }

    /// Closes ports, like [`Daemon::close`]: side by side, so that many take hardly longer than one. Returns the last states of
    /// those that were open.
    pub fn close_all(&self, names: &[impl AsRef<str>]) -> Vec<PortView> {
        let names: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
        let is_named = |spec: &PortSpec| names.contains(spec.config.name.as_str());
        let mut closed: Vec<Running> =
            self.ports().extract_if(.., |_, running| is_named(&running.spec)).map(|(_, running)| running).collect();
        // A port that failed to reopen is forgotten.
        self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).retain(|(spec, _)| !is_named(spec));
        // First ask all threads to end, then wait for them.
        closed.iter().filter_map(|running| running.rings.as_ref()).for_each(RingsServer::ask_to_end);
        closed.iter_mut().for_each(|running| drop(running.rings.take()));
        let ids: Vec<PortId> = closed.iter().flat_map(Running::parts).map(|part| part.id()).collect();
        ids.chunks(CLOSED_AT_ONCE).for_each(|ids| self.give_up(ids));
        if !closed.is_empty() {
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
        closed.iter().map(|running| view(running, self.epoch(), self.workers.len(), self.holder())).collect()
    }

    /// Closes the uplink of this name, if there is one, and releases the senders that wait for it.
    pub fn close_uplink(&self, name: &str) {
        let closed = {
            let mut uplinks = self.uplinks();
            let index = uplinks.iter().position(|uplink| uplink.name == name);
            index.map(|index| uplinks.remove(index))
        };
        if let Some(uplink) = closed {
            self.give_up(&[uplink.port.id()]);
            if let Some(team) = &uplink.team {
                self.fill_place(name, team, None);
            }
            self.link_functions();
            self.generation.fetch_add(1, Ordering::Relaxed);
            info!(uplink = uplink.name, "closed");
        }
    }

    /// Has the workers release these ports, all workers at once, and waits for them.
    fn give_up(&self, ids: &[PortId]) {
        let (done, finished) = mpsc::channel();
        let mut asked = 0;
        for (index, worker) in self.workers.iter().enumerate() {
            let own = |id: &&PortId| usize::from(id.0) % self.workers.len() == index;
            let own: Vec<PortId> = ids.iter().filter(own).copied().collect();
            if !own.is_empty() {
                worker.inbox.push(Note::Remove(own, done.clone()));
                asked += 1;
            }
        }
        let end = Instant::now() + REMOVE_TIMEOUT;
        let is_done = |_| finished.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok();
        if !(0..asked).all(is_done) {
            let ports: Vec<u16> = ids.iter().map(|id| id.0).collect();
            warn!(?ports, "a worker did not give them up in time");
        }
    }

    /// All ports, uplinks first.
    pub fn views(&self) -> Vec<PortView> {
        let epoch = self.epoch();
        let uplinks = self.uplinks();
        let of_uplink = |RunningUplink { name, port, policy, .. }: &RunningUplink| PortView {
            workers: vec![self.worker_of(port.id())],
            ..PortView::new(name, port.id(), policy, port.state(), epoch)
        };
        let mut views: Vec<PortView> = uplinks.iter().map(of_uplink).collect();
        let name_of = |id| uplinks.iter().find(|uplink| uplink.port.id() == id).map(|uplink| uplink.name.clone());
        views.extend(self.team_views(name_of));
        drop(uplinks);
        views.extend(self.ports().values().map(|running| view(running, epoch, self.workers.len(), self.holder())));
        self.note_links(&mut views);
        self.note_mirrors(&mut views);
        let now = self.clock.now();
        for view in &mut views {
            view.neighbour = self.plane.neighbour(view.id, now);
            view.starved = view.state.starved_since.map_or(Duration::ZERO, |since| now.since(since));
        }
        self.note_blocked(&mut views);
        let mut at: BTreeMap<PortId, &mut PortView> = views.iter_mut().map(|view| (view.id, view)).collect();
        for wanted in self.plane.switch().wanted(now) {
            if let Some(view) = at.get_mut(&wanted.port) {
                view.wanted.push(wanted);
            }
        }
        views
    }

    /// The start of its clock, since 1970-01-01 00:00 UTC.
    pub fn epoch(&self) -> Duration {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.saturating_sub(Duration::from_nanos(self.clock.now().0))
    }

    /// The path of a frame that comes in from a port or an uplink now, and the time. Changes nothing.
    pub(crate) fn trace(&self, from: PortId, frame: &[u8]) -> Result<(Trace, Time), TraceError> {
        let now = self.clock.now();
        Ok((self.plane.trace(from, frame, now)?, now))
    }

    /// The addresses that the switch has learned.
    pub fn addresses(&self) -> Vec<Learned> {
        self.plane.switch().addresses().iter(self.clock.now()).collect()
    }

    /// The number of times that each worker has slept and woken.
    pub fn wakes(&self) -> Vec<u64> {
        self.workers.iter().map(|worker| worker.inbox.wakes()).collect()
    }

    /// Stops the daemon: VMs lose their adapters, sockets are removed, workers are joined. One that takes over and has failed closes
    /// nothing.
    pub fn stop(&self) {
        if self.takes_over.load(Ordering::Relaxed) {
            return;
        }
        self.end_protection();
        if let Some(fabric) = self.fabric.get() {
            fabric.end();
        }
        let names: Vec<String> = self.ports().values().map(|running| running.spec.config.name.clone()).collect();
        self.close_all(&names);
        for worker in &self.workers {
            worker.inbox.push(Note::Stop);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        for thread in threads {
            if thread.join().is_err() {
                warn!("a worker had panicked");
            }
        }
        // The workers have reported their last flows.
        self.flows.end();
        // On return the recording is in its files.
        drop(self.recording().take());
    }
}

/// A view of a port of a daemon with so many workers.
fn view(running: &Running, epoch: Duration, workers: usize, holder: Option<&Arc<Holder>>) -> PortView {
    // The worker hears it when the port changes next.
    let lost = || Some(NotKept::from(holder?.lost(&running.spec.config.name)?).why);
    let spec = &running.spec;
    PortView {
        spec: Some(spec.clone()),
        signals: running.signals(),
        blank: running.blank.load(Ordering::Relaxed),
        last_end: running.log.last_end(),
        absence: running.rings.as_ref().and_then(RingsServer::absence),
        workers: running.parts().map(|part| usize::from(part.id().0) % workers).collect(),
        not_kept: running.log.why_not_kept().or_else(lost),
        ..PortView::new(&spec.config.name, running.port.id(), &spec.config.policy, running.state(), epoch)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}
