//! Opens ports and uplinks: each is made, joins the switch, and is given to its worker.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nicety_adapter::{Adapter, Face, PortId, Uplink};
use nicety_host::{PortConfig, Role};
use nicety_memory::{Files, MapError};
use nicety_plane::{End, Group, Port, SavedNumbers};
use nicety_switch::Policy;
use nicety_vfio_user::{Interrupts, Listener};
use tracing::info;

use super::io_control::IoControl;
use super::parts::sharing;
use super::{Daemon, PortSpec, Running, RunningUplink, StartError, UplinkAgents, UplinkMaker};
use crate::run::device::{PortDevice, irq_layout};
use crate::run::inbox::Note;
use crate::run::journal::Journal;
use crate::run::mapper::Mapper;
use crate::run::port_log::PortLog;
use crate::run::recorder::Recorder;
use crate::run::rings::{FrontendSocket, Moving, Preparing, RingsServer};
use crate::run::service::{Link, Service};
use crate::run::shell::{PortShell, Schedule, Signals};

/// A port that is being opened.
pub(super) struct Opened {
    pub name: String,
    pub schedule: Arc<Schedule>,
    pub port: Arc<Port>,
    pub log: Arc<PortLog>,
}

/// An uplink that is about to join the switch.
pub struct JoiningUplink<'a> {
    /// Its name.
    pub name: &'a str,
    /// The link.
    pub uplink: Box<dyn Uplink>,
    /// Bytes of frames that wait for it.
    pub buffer_bytes: u32,
    /// Its policy on the switch.
    pub policy: Policy,
    /// Makes it again, if it can be restarted.
    pub maker: Option<UplinkMaker>,
    /// The team that it is in.
    pub team: Option<&'a str>,
    /// Counts of another process, if it goes on from there.
    pub numbers: Option<&'a SavedNumbers>,
}

impl<'a> JoiningUplink<'a> {
    /// An uplink in no team, with the usual buffer and policy, that cannot be restarted.
    pub fn new(name: &'a str, uplink: Box<dyn Uplink>) -> Self {
        let (buffer_bytes, policy) = (nicety_plane::SENDER_BYTES, Policy::default());
        Self { name, uplink, buffer_bytes, policy, maker: None, team: None, numbers: None }
    }
}

impl Daemon {
    /// Opens a port. If it listens, its socket exists on return.
    pub fn open(&self, spec: PortSpec) -> Result<PortId, StartError> {
        let recorder = self.recorder(&spec)?;
        self.open_recorded(spec, recorder)
    }

    pub(super) fn open_recorded(&self, spec: PortSpec, recorder: Option<Arc<Recorder>>) -> Result<PortId, StartError> {
        let ids = self.free_ids(&spec, spec.config.workers.max(1).into());
        let id = ids.first().copied().unwrap_or(PortId(u16::MAX));
        let mut adapter = sharing(&spec)?;
        let layout = match adapter.face() {
            Face::Pci(pci) => Some(irq_layout(pci)),
            Face::Rings(_) => None,
        };
        // A trace has the calls of one adapter.
        let recorder = recorder.filter(|_| spec.config.workers <= 1);
        if let Some(recorder) = &recorder {
            adapter = Recorder::around(recorder, adapter);
        }
        let running = match layout {
            Some(layout) => self.open_function(id, spec, adapter, Interrupts::new(layout), recorder)?,
            None => self.open_rings(&ids, spec, adapter, recorder)?,
        };
        let (name, about, socket) =
            (&running.spec.config.name, &running.spec.config.entry.about, running.spec.config.socket.display());
        let workers = (running.spec.config.workers > 1).then_some(running.spec.config.workers);
        info!(port = name, adapter = about.name, %socket, workers, "ready");
        self.ports().insert(id, running);
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(id)
    }

    pub(super) fn log(&self, id: PortId, name: &str, adapter: &'static str) -> Arc<PortLog> {
        Arc::new(PortLog::new(id, name, adapter, self.clock, self.inbox(id)))
    }

    pub(super) fn shell(&self, id: PortId, signals: &Arc<Signals>, recorder: Option<Arc<Recorder>>) -> PortShell {
        PortShell::new(id, self.inbox(id), Arc::clone(signals), recorder, self.clock)
    }

    /// Makes the common part of every port. The port is not served yet.
    pub(super) fn opened(
        &self,
        spec: &PortSpec,
        adapter: Box<dyn Adapter>,
        shell: PortShell,
    ) -> Result<Opened, StartError> {
        let name = spec.config.name.clone();
        let (id, schedule) = (shell.id(), shell.schedule());
        let port = Port::new(id, End::guest(adapter), Box::new(shell), spec.buffer_bytes());
        let port = Arc::new(port.map_err(|source| StartError::Memory { port: name.clone(), source })?);
        self.seat(&port, spec);
        self.guard_part(&name, &port)?;
        let log = self.log(id, &name, spec.config.entry.about.name);
        Ok(Opened { name, schedule, port, log })
    }

    /// The device of a port that speaks vfio-user, and maps `files`.
    pub(super) fn device(
        &self,
        spec: &PortSpec,
        opened: &Opened,
        interrupts: Arc<Interrupts>,
        signals: Arc<Signals>,
        files: Arc<Files>,
    ) -> Result<PortDevice, MapError> {
        let Opened { name, port, log, .. } = opened;
        let (id, worker) = (port.id(), self.inbox(port.id()));
        let mapper = Mapper::new(name, files, move || worker.push(Note::Mapped(id)));
        let (log, port, dma) = (Arc::clone(log), Arc::clone(port), spec.config.entry.about.dma);
        let mut device = PortDevice::new(log, port, interrupts, signals, mapper, dma);
        device.map_empty_page()?;
        Ok(device)
    }

    /// Opens a port that speaks vfio-user.
    fn open_function(
        &self,
        id: PortId,
        spec: PortSpec,
        adapter: Box<dyn Adapter>,
        interrupts: Interrupts,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Running, StartError> {
        if spec.config.role == Role::Connect {
            return Err(StartError::Connects { port: spec.config.name, adapter: spec.config.entry.about.name });
        }
        let listener = listener(&spec)?;
        let interrupts = Arc::new(interrupts);
        let signals = Arc::new(Signals::function(Arc::clone(&interrupts)));
        let shell = self.shell(id, &signals, recorder.clone());
        let opened = self.opened(&spec, adapter, shell)?;
        let memory = |source| StartError::Memory { port: spec.config.name.clone(), source };
        let mut device = self.device(&spec, &opened, interrupts, signals, Arc::default()).map_err(memory)?;
        device.record(recorder.clone());
        if spec.is_mapped() && !device.map_doorbells().map_err(memory)? {
            return Err(StartError::Doorbells { port: spec.config.name, adapter: spec.config.entry.about.name });
        }
        let blank = device.blank();
        let link = Link::Function { listener, device: Box::new(device), session: None };
        let Opened { schedule, port, log, .. } = opened;
        let running = Running { spec, port, schedule, others: Vec::new(), blank, log, recorder, rings: None };
        self.join(&running, &running.group())?;
        self.hand_to_worker(running.service(link));
        Ok(running)
    }

    /// Opens a port that speaks vhost-user, with a part for each number.
    fn open_rings(
        &self,
        ids: &[PortId],
        spec: PortSpec,
        adapter: Box<dyn Adapter>,
        recorder: Option<Arc<Recorder>>,
    ) -> Result<Running, StartError> {
        let (id, others) = ids.split_first().map_or((PortId(u16::MAX), &[][..]), |(id, others)| (*id, others));
        let socket = match spec.config.role {
            Role::Listen => FrontendSocket::Listen(listener(&spec)?),
            Role::Connect => FrontendSocket::Connect(spec.config.socket.clone()),
        };
        let signals = Arc::new(Signals::rings());
        let shell = self.shell(id, &signals, recorder.clone());
        let opened = self.opened(&spec, adapter, shell)?;
        let others = (1..).zip(others).map(|(part, own)| self.other_part(&spec, id, part, *own, &signals));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let Opened { schedule, port, log, .. } = opened;
        let blank = Arc::default();
        let running = Running { spec, port, schedule, others, blank, log, recorder, rings: None };
        let group = running.group();
        self.join(&running, &group)?;
        running.services().into_iter().for_each(|service| self.hand_to_worker(service));
        // Start this last: a front end may be waiting for the socket.
        let (noted, noting) = (Arc::clone(&running.log), running.recorder.clone());
        let inboxes = self.inboxes(&group);
        let moving = self.moving(&running.spec);
        let preparing = Preparing::new(noted, socket, group, signals, inboxes, noting);
        let rings = preparing.map(|port| port.moving(moving)).and_then(RingsServer::start);
        let rings = rings.map_err(|source| {
            self.give_up(ids);
            StartError::System { what: "starting a port's thread", source }
        })?;
        Ok(Running { rings: Some(rings), ..running })
    }

    /// The part of this port's state that goes with its guest. `None`: nothing does.
    pub(crate) fn moving(&self, spec: &PortSpec) -> Option<Moving> {
        let PortConfig { name, group, device_state, .. } = &spec.config;
        device_state.then(|| Moving::new(Arc::clone(&self.plane), name, group.clone()))
    }

    /// A port joins the switch, with all its parts.
    fn join(&self, running: &Running, group: &Arc<Group>) -> Result<(), StartError> {
        let Running { spec, port, others, .. } = running;
        // First: a front end may be waiting.
        self.link_port(running);
        let joined = if others.is_empty() {
            self.plane.join_with(Arc::clone(port), &spec.config.policy)
        } else {
            let joined = self.join_parts(running, group);
            joined.inspect_err(|_| self.give_up(&running.parts().map(|part| part.id()).collect::<Vec<_>>()))
        };
        joined.map_err(|source| {
            running.parts().for_each(|part| self.plane.unfollow(part));
            StartError::Switch { port: spec.config.name.clone(), source }
        })
    }

    pub(super) fn hand_to_worker(&self, service: Service) {
        let id = service.port.id();
        self.queue(service);
        self.wake_for(id);
    }

    /// Leaves a port to its worker, which takes it when it is [woken](Daemon::wake_for). Many ports go on sooner if all wait here first: a
    /// guest that goes on takes a processor from the others.
    pub(crate) fn queue(&self, mut service: Service) {
        if let Link::Function { device, .. } = &service.link
            && service.journal.is_none()
        {
            service.journal = self.journal(&service.log, device);
            if let Some(rings) = service.journal.as_ref().and_then(Journal::rings) {
                device.keep_rings(rings);
            }
        }
        let newcomers = &self.worker(service.port.id()).newcomers;
        // A worker that has ended takes no ports; then no port is opened any more.
        let _worker_ended = newcomers.send(service);
    }

    /// The worker of this port takes one that was left to it.
    pub(crate) fn wake_for(&self, id: PortId) {
        self.worker(id).inbox.push(Note::Serve);
    }

    /// Adds an uplink to the switch, the first as port 0, or to its team.
    pub fn open_uplink(&self, joining: JoiningUplink<'_>) -> Result<(), StartError> {
        let id = self.known_uplink(joining.name).unwrap_or_else(|| self.free_id(0));
        self.hand_to_worker(self.join_uplink(id, joining)?);
        Ok(())
    }

    /// Adds a queue of an interface to its team, at this place. The places are dealt to the workers in turn, as port numbers are: so a
    /// port's queue is its own worker's, if their number is a multiple of the workers'.
    pub fn open_queue(&self, joining: JoiningUplink<'_>, place: usize) -> Result<(), StartError> {
        let id = self.known_uplink(joining.name).unwrap_or_else(|| self.free_id_on(place, 0));
        self.hand_to_worker(self.join_uplink(id, joining)?);
        Ok(())
    }

    /// The number of an uplink that is restarted: it keeps it.
    pub(super) fn known_uplink(&self, name: &str) -> Option<PortId> {
        self.uplinks().iter().find(|uplink| uplink.name == name).map(|uplink| uplink.port.id())
    }

    /// Adds an uplink as the port with this number. It is served once a worker has what is returned, and controlled once the daemon has
    /// [settled](Daemon::settle).
    pub(super) fn join_uplink(&self, id: PortId, joining: JoiningUplink<'_>) -> Result<Service, StartError> {
        let JoiningUplink { name, uplink, buffer_bytes, policy, maker, team, numbers } = joining;
        let fd = uplink.descriptor().map(|fd| fd.try_clone_to_owned()).transpose();
        let fd = fd.map_err(|source| StartError::System { what: "watching the uplink", source })?;
        let shell = self.shell(id, &Arc::new(Signals::None), None);
        let schedule = shell.schedule();
        let port = Port::new(id, End::link(uplink), Box::new(shell), buffer_bytes);
        let port = port.map_err(|source| StartError::Memory { port: name.to_owned(), source })?;
        let port = match team {
            Some(team) => self.as_member(port, name, team)?,
            None => port,
        };
        let port = Arc::new(port);
        numbers.into_iter().for_each(|numbers| port.count_on(numbers));
        if let Some(team) = team {
            self.fill_place(name, team, Some(Arc::clone(&port)));
        }
        // Nothing comes in by an uplink without a descriptor.
        let leads_out = fd.is_some() && team.is_none();
        let service = Service::new(self.log(id, name, "(uplink)"), Arc::clone(&port), schedule, Link::Uplink(fd));
        let joined = self.plane.join_with(Arc::clone(&port), &policy);
        joined.map_err(|source| StartError::Switch { port: name.to_owned(), source })?;
        if leads_out {
            self.plane.guard_uplink(id, name);
        }
        info!(uplink = name, "opened");
        let team = team.map(str::to_owned);
        let (name, control) = (name.to_owned(), IoControl::default());
        let agents = UplinkAgents::default();
        let running = RunningUplink { name, port, buffer_bytes, policy, maker, team, kept: None, control, agents };
        let mut uplinks = self.uplinks();
        uplinks.retain(|other| other.name != running.name);
        uplinks.push(running);
        uplinks.sort_by_key(|uplink| uplink.port.id());
        drop(uplinks);
        self.link_functions();
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(service)
    }
}

/// Makes a port's own socket.
fn listener(spec: &PortSpec) -> Result<Listener, StartError> {
    let listener = Listener::bind_for(&spec.config.socket, &spec.access);
    listener.map_err(|source| StartError::Socket { port: spec.config.name.clone(), source })
}
