//! The daemon: a plane, its workers, and the ports that a host file names.

mod error;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nicety_adapter::{Adapter, Face, PortId, Uplink};
use nicety_adapters::{Entry, Settings};
use nicety_plane::{End, Plane, Port, State};
use nicety_switch::{Learned, Limits};
use nicety_vfio_user::{Interrupts, Listener};
use tracing::{info, warn};

use crate::clock::Clock;
use crate::device::{PortDevice, irq_layout};
use crate::inbox::{Inbox, Note};
use crate::port_log::PortLog;
use crate::recorder::{Recorder, Recording};
use crate::rings::RingsServer;
use crate::service::{Link, Service};
use crate::shell::{PortShell, Schedule, Signals};
use crate::worker::Worker;
pub use error::StartError;

/// How long a worker may take to give a port up.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// A port to be.
#[derive(Clone, Debug)]
pub struct PortSpec {
    /// Its name.
    pub name: String,
    /// Its adapter.
    pub entry: &'static Entry,
    /// What its adapter is told.
    pub settings: Settings,
    /// Where its VM connects.
    pub socket: PathBuf,
    /// Whether its doorbells are mapped.
    pub mapped: bool,
    /// Receive buffer in bytes.
    pub buffer_bytes: u32,
}

/// A port that is.
#[derive(Debug)]
struct Running {
    spec: PortSpec,
    port: Arc<Port>,
    schedule: Arc<Schedule>,
    blank: Arc<AtomicBool>,
    log: Arc<PortLog>,
    /// Ends the vhost-user listener when dropped.
    rings: Option<RingsServer>,
}

/// A port on its way.
struct Opened {
    name: String,
    listener: Listener,
    schedule: Arc<Schedule>,
    recorder: Option<Arc<Recorder>>,
    port: Arc<Port>,
    log: Arc<PortLog>,
}

/// One port, for a person.
#[derive(Clone, Debug)]
pub struct PortView {
    /// What it was made from; `None` for the uplink.
    pub spec: Option<PortSpec>,
    /// Its name.
    pub name: String,
    /// Its number on the switch.
    pub id: PortId,
    /// What it does.
    pub state: State,
    /// Interrupt descriptors written.
    pub signals: u64,
    /// Whether the memory that its VM shares had nothing in it when the driver was up.
    pub blank: bool,
    /// How long ago the last connection to its socket ended for a reason, and which. None if it just went.
    pub last_end: Option<(Duration, String)>,
}

#[derive(Debug)]
struct WorkerHandle {
    inbox: Arc<Inbox>,
}

/// See the module's page.
#[derive(Debug)]
pub struct Daemon {
    plane: Arc<Plane>,
    clock: Clock,
    workers: Vec<WorkerHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    ports: Mutex<BTreeMap<PortId, Running>>,
    uplink: Mutex<Option<(String, Arc<Port>)>>,
    recording: Mutex<Option<Recording>>,
}

impl Daemon {
    /// A switch without ports, and its workers.
    pub fn start(limits: Limits, workers: usize) -> Result<Self, StartError> {
        let clock = Clock::start();
        let plane = Arc::new(Plane::new(limits));
        let system = |what| move |source| StartError::System { what, source };
        let (mut handles, mut threads) = (Vec::new(), Vec::new());
        for index in 0..workers.max(1) {
            let inbox = Arc::new(Inbox::new().map_err(system("making a worker's eventfd"))?);
            let worker =
                Worker::new(Arc::clone(&plane), clock, Arc::clone(&inbox)).map_err(system("making an epoll set"))?;
            let thread = std::thread::Builder::new().name(format!("worker{index}"));
            let thread = thread.spawn(|| worker.run()).map_err(system("starting a worker"))?;
            handles.push(WorkerHandle { inbox });
            threads.push(thread);
        }
        Ok(Self {
            plane,
            clock,
            workers: handles,
            threads: Mutex::new(threads),
            ports: Mutex::default(),
            uplink: Mutex::default(),
            recording: Mutex::default(),
        })
    }

    /// Notes what guests do to the ports that are opened from now on. [`Daemon::begin_traces`] writes it, a trace for each port, into
    /// this folder; until then older traces stay there.
    pub fn record(&self, folder: &Path) -> Result<(), StartError> {
        let recording = Recording::start(folder, self.clock)?;
        *self.recording() = Some(recording);
        Ok(())
    }

    /// Takes the place of older traces, if there is to be a recording.
    pub fn begin_traces(&self) -> Result<(), StartError> {
        Ok(self.recording().as_mut().map_or(Ok(()), Recording::begin)?)
    }

    fn recording(&self) -> MutexGuard<'_, Option<Recording>> {
        self.recording.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn recorder(&self, spec: &PortSpec) -> Result<Option<Arc<Recorder>>, StartError> {
        Ok(self.recording().as_mut().map(|recording| recording.port(&spec.name, spec.entry)).transpose()?)
    }

    fn ports(&self) -> MutexGuard<'_, BTreeMap<PortId, Running>> {
        self.ports.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The lowest number that no port has. Number 0 is the uplink's.
    fn free_id(&self) -> PortId {
        let ports = self.ports();
        let free = (1..u16::MAX).map(PortId).find(|id| !ports.contains_key(id));
        free.unwrap_or(PortId(u16::MAX))
    }

    /// The worker that owns a port: ports are dealt out by number.
    fn inbox(&self, id: PortId) -> Arc<Inbox> {
        Arc::clone(&self.workers[usize::from(id.0) % self.workers.len()].inbox)
    }

    /// Opens a port: its socket is there when this returns.
    pub fn open(&self, spec: PortSpec) -> Result<PortId, StartError> {
        let id = self.free_id();
        let adapter = (spec.entry.create)(&spec.settings);
        let mut adapter = adapter.map_err(|source| StartError::Adapter { port: spec.name.clone(), source })?;
        let layout = match adapter.face() {
            Face::Pci(pci) => Some(irq_layout(pci)),
            Face::Rings(_) => None,
        };
        let running = match layout {
            Some(layout) => self.open_function(id, spec, adapter, Interrupts::new(layout))?,
            None => self.open_rings(id, spec, adapter)?,
        };
        info!(port = running.spec.name, adapter = running.spec.entry.about.name, socket = %running.spec.socket.display(), "ready");
        self.ports().insert(id, running);
        Ok(id)
    }

    fn log(&self, id: PortId, name: &str, adapter: &'static str) -> Arc<PortLog> {
        Arc::new(PortLog::new(id, name, adapter, self.clock, self.inbox(id)))
    }

    /// What every kind of port has: its socket, which nobody serves yet, and the port itself.
    fn opened(
        &self,
        id: PortId,
        spec: &PortSpec,
        adapter: Box<dyn Adapter>,
        signals: Arc<Signals>,
    ) -> Result<Opened, StartError> {
        let name = spec.name.clone();
        let listener = Listener::bind(&spec.socket);
        let listener = listener.map_err(|source| StartError::Socket { port: name.clone(), source })?;
        let (schedule, recorder) = (Arc::new(Schedule::default()), self.recorder(spec)?);
        let shell = PortShell::new(id, self.inbox(id), signals, Arc::clone(&schedule), recorder.clone(), self.clock);
        let port = Port::new(id, End::Adapter(adapter), Box::new(shell), spec.buffer_bytes);
        let port = port.map_err(|source| StartError::Memory { port: name.clone(), source })?;
        let log = self.log(id, &name, spec.entry.about.name);
        Ok(Opened { name, listener, schedule, recorder, port: Arc::new(port), log })
    }

    /// A port whose VM comes by vfio-user.
    fn open_function(
        &self,
        id: PortId,
        spec: PortSpec,
        adapter: Box<dyn Adapter>,
        interrupts: Interrupts,
    ) -> Result<Running, StartError> {
        let interrupts = Arc::new(interrupts);
        let signals = Arc::new(Signals::function(Arc::clone(&interrupts)));
        let Opened { name, listener, schedule, recorder, port, log } =
            self.opened(id, &spec, adapter, Arc::clone(&signals))?;
        let memory = |source| StartError::Memory { port: name.clone(), source };
        let mut device = PortDevice::new(Arc::clone(&log), Arc::clone(&port), interrupts, signals, self.clock);
        device.record(recorder.clone());
        device.map_spare().map_err(memory)?;
        if spec.mapped && !device.map_doorbells().map_err(memory)? {
            return Err(StartError::Doorbells { port: name, adapter: spec.entry.about.name });
        }
        let blank = device.blank();
        let link = Link::Function { listener, device: Box::new(device), session: None };
        let service =
            Service { recorder, ..Service::new(Arc::clone(&log), Arc::clone(&port), Arc::clone(&schedule), link) };
        self.join(&name, &port, service, &self.inbox(id))?;
        Ok(Running { spec, port, schedule, blank, log, rings: None })
    }

    /// A port whose VM comes by vhost-user.
    fn open_rings(&self, id: PortId, spec: PortSpec, adapter: Box<dyn Adapter>) -> Result<Running, StartError> {
        let (signals, inbox) = (Arc::new(Signals::rings()), self.inbox(id));
        let Opened { name, listener, schedule, recorder, port, log } =
            self.opened(id, &spec, adapter, Arc::clone(&signals))?;
        let link = Link::Rings { kicks: Vec::new() };
        let fresh = Service::new(Arc::clone(&log), Arc::clone(&port), Arc::clone(&schedule), link);
        self.join(&name, &port, Service { recorder: recorder.clone(), ..fresh }, &inbox)?;
        // Not before: a front end may have been waiting for the socket.
        let rings =
            RingsServer::start(Arc::clone(&log), listener, Arc::clone(&port), signals, inbox, self.clock, recorder);
        let rings = rings.map_err(|source| {
            self.give_up(id);
            StartError::System { what: "starting a port's thread", source }
        })?;
        Ok(Running { spec, port, schedule, blank: Arc::default(), log, rings: Some(rings) })
    }

    fn join(&self, name: &str, port: &Arc<Port>, service: Service, inbox: &Inbox) -> Result<(), StartError> {
        let joined = self.plane.join(Arc::clone(port));
        joined.map_err(|source| StartError::Switch { port: name.to_owned(), source })?;
        inbox.push(Note::Serve(Box::new(service)));
        Ok(())
    }

    /// Puts an uplink on the switch, as port 0.
    pub fn open_uplink(&self, name: &str, uplink: Box<dyn Uplink>, buffer_bytes: u32) -> Result<(), StartError> {
        let id = PortId(0);
        let inbox = self.inbox(id);
        let schedule = Arc::new(Schedule::default());
        let fd = uplink.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let fd = fd.map_err(|source| StartError::System { what: "watching the uplink", source })?;
        let shell =
            PortShell::new(id, Arc::clone(&inbox), Arc::new(Signals::None), Arc::clone(&schedule), None, self.clock);
        let port = Port::new(id, End::Uplink(uplink), Box::new(shell), buffer_bytes);
        let port = Arc::new(port.map_err(|source| StartError::Memory { port: name.to_owned(), source })?);
        let service = Service::new(self.log(id, name, "(uplink)"), Arc::clone(&port), schedule, Link::Uplink(fd));
        self.join(name, &port, service, &inbox)?;
        info!(uplink = name, "opened");
        *self.uplink.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some((name.to_owned(), port));
        Ok(())
    }

    /// Closes a port: its VM loses its adapter, its socket is removed. False if there is no such port.
    pub fn close(&self, name: &str) -> bool {
        let running = {
            let mut ports = self.ports();
            let id = ports.iter().find(|(_, running)| running.spec.name == name).map(|(id, _)| *id);
            id.and_then(|id| ports.remove(&id))
        };
        let Some(Running { port, rings, .. }) = running else { return false };
        drop(rings);
        self.give_up(port.id());
        true
    }

    fn give_up(&self, id: PortId) {
        let (done, finished) = mpsc::channel();
        self.inbox(id).push(Note::Remove(id, done));
        if finished.recv_timeout(REMOVE_TIMEOUT).is_err() {
            warn!(port = id.0, "its worker did not give it up in time");
        }
    }

    /// All ports, the uplink first.
    pub fn views(&self) -> Vec<PortView> {
        let uplink = self.uplink.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let uplink = uplink.iter().map(|(name, port)| PortView {
            spec: None,
            name: name.clone(),
            id: port.id(),
            state: port.state(),
            signals: 0,
            blank: false,
            last_end: None,
        });
        let mut views: Vec<PortView> = uplink.collect();
        views.extend(self.ports().values().map(|running| PortView {
            spec: Some(running.spec.clone()),
            name: running.spec.name.clone(),
            id: running.port.id(),
            state: running.port.state(),
            signals: running.schedule.written(),
            blank: running.blank.load(Ordering::Relaxed),
            last_end: running.log.last_end(),
        }));
        views
    }

    /// How long after 1970-01-01 00:00 UTC its clock began.
    pub fn epoch(&self) -> Duration {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since.saturating_sub(Duration::from_nanos(self.clock.now().0))
    }

    /// What the switch has learned.
    pub fn addresses(&self) -> Vec<Learned> {
        self.plane.switch().addresses().iter(self.clock.now()).collect()
    }

    /// Ends: VMs lose their adapters, sockets are removed, workers are joined.
    pub fn stop(&self) {
        let names: Vec<String> = self.ports().values().map(|running| running.spec.name.clone()).collect();
        for name in names {
            self.close(&name);
        }
        for worker in &self.workers {
            worker.inbox.push(Note::Stop);
        }
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        for thread in threads {
            if thread.join().is_err() {
                warn!("a worker had panicked");
            }
        }
        // What was recorded is in its files when this returns.
        drop(self.recording().take());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop();
    }
}
