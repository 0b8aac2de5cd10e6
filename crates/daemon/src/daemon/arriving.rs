//! Ports that another process has served so far, and that go on here.
//!
//! First everything that can fail is made, and nothing is touched that the other process still uses: no ring, no register, no socket.
//! Then, when the other process has let go, the ports [arrive](Daemon::arrive).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapter::{Adapter, Face, PortId, Time, Uplink};
use nicety_frame::Mac;
use nicety_host::Role;
use nicety_memory::Files;
use nicety_peer::{Bell, PeerFd, Table};
use nicety_plane::{Epochs, Group, Neighbour, Port, Saved, SavedAgent, SavedFrames, SavedGate, SavedNumbers};
use nicety_socket::Listener;
use nicety_switch::{Learned, Policy, Wanted};
use nicety_vfio_user::{Interrupts, Session};
use rustix::io::Errno;
use rustix::process::Pid;
use tracing::warn;

use super::open::JoiningUplink;
use super::parts::sharing;
use super::{Daemon, Opened, OtherPart, PortSpec, Running, UplinkMaker, irq_layout};
use crate::run::device::PortDevice;
use crate::run::image::{
    FrontImage, FunctionImage, InterestImage, LearnedImage, LinkImage, NeighbourImage, PortImage, RingsImage, VmmImage,
};
use crate::run::journal::{Journal, Kept};
use crate::run::port_log::{Kind, PortLog};
use crate::run::rings::{Front, FrontendSocket, Preparing, RingsServer};
use crate::run::saved::PortState;
use crate::run::service::{Link, Service, Talk};
use crate::run::shell::Signals;
use crate::run::worker::PATIENCE;

/// A port without its state.
pub struct Expected {
    /// Another adapter of the same settings, on which a state is tried.
    trial: Box<dyn Adapter>,
    running: Running,
    signals: Arc<Signals>,
    /// The device of a PCI function, and the files that its VMMs share.
    device: Option<(PortDevice, Arc<Files>)>,
    /// Its journal, which is empty: making one takes seven system calls, too many while a VM stands still.
    journal: Option<Journal>,
}

/// A port that is ready to go on.
pub struct Arriving {
    running: Running,
    numbers: SavedNumbers,
    signals: u64,
    waiting: SavedFrames,
    agents: Vec<SavedAgent>,
    gate: Option<SavedGate>,
    link: ArrivingLink,
    journal: Option<Journal>,
    /// Its other parts, in order.
    others: Vec<ArrivingPart>,
    /// The process that served it was killed: its driver has to reset the adapter.
    is_lost: bool,
}

/// A part of a port, and not the first.
pub struct ArrivingPart {
    numbers: SavedNumbers,
    signals: u64,
    waiting: SavedFrames,
    gate: Option<SavedGate>,
    kicks: Vec<(u16, Bell)>,
    state: Option<Saved>,
}

impl ArrivingPart {
    /// Takes a part out of its worker's image. The error is a sentence for a person.
    pub(crate) fn take(image: PortImage, table: &mut Table) -> Result<Self, String> {
        let PortImage { numbers, signals, waiting, link, gate, .. } = image;
        let LinkImage::Rings(RingsImage { kicks, state }) = link else {
            return Err("its image is another kind of port's".into());
        };
        let state = state.map(|(at, state)| Saved { at: Time(at), state });
        Ok(Self { numbers, signals, waiting, gate, kicks: bells(&kicks, table, Bell::to_hear)?, state })
    }
}

enum ArrivingLink {
    Function {
        listener: Listener,
        device: Box<PortDevice>,
        vmm: Option<(Box<Session>, PortState, Option<i32>)>,
    },
    Rings {
        preparing: Box<Preparing>,
        group: Arc<Group>,
        signals: Arc<Signals>,
        kicks: Vec<(u16, Bell)>,
        calls: Vec<(u16, Bell)>,
        errors: Vec<(u16, Bell)>,
        /// The adapter's state, if a front end is connected.
        state: Option<Saved>,
    },
}

fn function_again(expected: Expected, image: PortImage, table: &mut Table) -> Result<Arriving, String> {
    let Expected { mut trial, mut running, signals: _, device, journal } = expected;
    let PortImage { numbers, signals: written, waiting, agents, link, unread, .. } = image;
    let (LinkImage::Function(function), Some((mut device, files))) = (link, device) else {
        return Err("its image is another kind of port's".into());
    };
    let FunctionImage { listener, page, vmm, .. } = &*function;
    if let Some(vmm) = vmm {
        trial.restore(&vmm.state.adapter).map_err(|error| error.to_string())?;
    }
    let socket = table.take(*listener).ok_or("its socket is missing")?;
    let listener =
        Listener::go_on(OwnedFd::from(socket), &running.spec.config.socket).map_err(|error| error.to_string())?;
    device.take_pages(&function, table).map_err(|error| error.to_string())?;
    if page.is_none() && vmm.is_none() && running.spec.is_mapped() {
        device.map_doorbells().map_err(|error| error.to_string())?;
    }
    let mut vmm = vmm.as_ref().map(|vmm| take_vmm(&mut device, vmm, &files, table)).transpose()?;
    if let (Some((session, ..)), Some(unread)) = (&mut vmm, unread) {
        session.leave_unread(unread);
    }
    running.blank = device.blank();
    let link = ArrivingLink::Function { listener, device: Box::new(device), vmm };
    let others = Vec::new();
    let gate = None;
    Ok(Arriving { running, numbers, signals: written, waiting, agents, gate, link, journal, others, is_lost: false })
}

/// Takes descriptors of rings out of a table.
fn bells(
    saved: &[(u16, u32)],
    table: &mut Table,
    bell: fn(PeerFd) -> Result<Bell, Errno>,
) -> Result<Vec<(u16, Bell)>, String> {
    let mut take = |index: u32| bell(table.take(index).ok_or(Errno::BADF)?);
    let taken = saved.iter().map(|(ring, index)| Ok((*ring, take(*index)?))).collect::<Result<_, Errno>>();
    taken.map_err(|errno| format!("connecting its eventfds: {errno}"))
}

/// The gate of a part of a port goes on, with the epochs that the port's parts share.
fn restore_gate(part: &Port, epochs: Option<&Arc<Epochs>>, gate: Option<SavedGate>) {
    if let (Some(epochs), Some(gate)) = (epochs, gate)
        && let Err(why) = part.restore_gate(epochs, gate)
    {
        // The gate that it has is shut: nothing leaves too early.
        warn!("what waited in the gate of port number {} is lost: {why}", part.id().0);
    }
}

/// Kick descriptors by their rings.
fn by_ring(kicks: Vec<(u16, Bell)>) -> Vec<Option<Bell>> {
    let mut watched = Vec::new();
    for (ring, bell) in kicks {
        watched.resize_with((usize::from(ring) + 1).max(watched.len()), || None);
        watched[usize::from(ring)] = Some(bell);
    }
    watched
}

/// An uplink that is ready to go on.
pub struct ArrivingUplink {
    /// Its number on the switch.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// The link.
    pub uplink: Box<dyn Uplink>,
    /// Its policy on the switch.
    pub policy: Policy,
    /// Makes it again.
    pub maker: Option<UplinkMaker>,
    /// The team that it is in.
    pub team: Option<String>,
    /// Its counters.
    pub numbers: SavedNumbers,
    /// Frames that wait for it.
    pub waiting: SavedFrames,
    /// The state of its agents.
    pub agents: Vec<SavedAgent>,
}

impl Daemon {
    /// Makes what a port needs that does not depend on its state, while another process still serves it. The error is a sentence for a
    /// person.
    ///
    /// `others` are the numbers of its other parts.
    pub(crate) fn prepare(&self, spec: PortSpec, id: u16, others: &[u16]) -> Result<Expected, String> {
        let name = spec.config.name.clone();
        self.prepared(spec, PortId(id), others).map_err(|why| format!("port {name}: {why}"))
    }

    fn prepared(&self, spec: PortSpec, id: PortId, others: &[u16]) -> Result<Expected, String> {
        let words = |error: &dyn std::fmt::Display| error.to_string();
        let create = || sharing(&spec).map_err(|error| words(&error));
        let (trial, mut adapter) = (create()?, create()?);
        let interrupts = match adapter.face() {
            Face::Pci(pci) => Some(Arc::new(Interrupts::new(irq_layout(pci)))),
            Face::Rings(_) => None,
        };
        let signals = Arc::new(match &interrupts {
            Some(interrupts) => Signals::function(Arc::clone(interrupts)),
            None => Signals::rings(),
        });
        let opened = self.opened(&spec, adapter, self.shell(id, &signals, None));
        let opened = opened.map_err(|error| words(&error))?;
        let device = interrupts.map(|interrupts| {
            let files = Arc::new(Files::default());
            let device = self.device(&spec, &opened, interrupts, Arc::clone(&signals), Arc::clone(&files));
            device.map(|device| (device, files)).map_err(|error| words(&error))
        });
        let device = device.transpose()?;
        let Opened { schedule, port, log, .. } = opened;
        let others = (1..).zip(others).map(|(part, own)| self.other_part(&spec, id, part, PortId(*own), &signals));
        let others = others.collect::<Result<_, _>>().map_err(|error| words(&error))?;
        let blank = Arc::default();
        let running = Running { spec, port, schedule, others, blank, log, recorder: None, rings: None };
        let journal = device.as_ref().and_then(|(device, _)| self.journal(&running.log, device));
        Ok(Expected { trial, running, signals, device, journal })
    }

    /// A port that goes on where its image was taken. The error is a sentence for a person.
    pub(crate) fn expect(
        &self,
        expected: Expected,
        image: PortImage,
        table: &mut Table,
        front: Option<Front>,
    ) -> Result<Arriving, String> {
        let name = expected.running.spec.config.name.clone();
        if PortId(image.id) != expected.running.port.id() {
            return Err(format!("port {name}: it has another number"));
        }
        let arriving = match front {
            Some(front) => self.rings_again(expected, image, table, front),
            None => function_again(expected, image, table),
        };
        arriving.map_err(|why| format!("port {name}: {why}"))
    }

    /// Its other parts are there. The error is a sentence for a person.
    pub(crate) fn expect_parts(&self, arriving: &mut Arriving, others: Vec<ArrivingPart>) -> Result<(), String> {
        let spec = &arriving.running.spec;
        let wrong = |why: &dyn std::fmt::Display| format!("port {}: {why}", spec.config.name);
        if others.len() != arriving.running.others.len() {
            return Err(wrong(&"a part of it is missing"));
        }
        let ArrivingLink::Rings { state, .. } = &arriving.link else { return Ok(()) };
        for saved in others.iter().filter_map(|part| part.state.as_ref()).filter(|_| state.is_some()) {
            let mut trial = sharing(spec).map_err(|error| wrong(&error))?;
            trial.restore(&saved.state).map_err(|error| wrong(&error))?;
        }
        arriving.others = others;
        Ok(())
    }

    fn rings_again(
        &self,
        expected: Expected,
        image: PortImage,
        table: &mut Table,
        front: Front,
    ) -> Result<Arriving, String> {
        let Expected { mut trial, running, signals, device: _, journal: _ } = expected;
        let PortImage { numbers, signals: written, waiting, agents, link, gate, .. } = image;
        let LinkImage::Rings(RingsImage { kicks, state }) = link else {
            return Err("its image is another kind of port's".into());
        };
        let (FrontImage { name: _, listener, session, calls, errors }, mut own) = front;
        let state = state.filter(|_| session.is_some()).map(|(at, state)| Saved { at: Time(at), state });
        if let Some(saved) = &state {
            trial.restore(&saved.state).map_err(|error| error.to_string())?;
        }
        let Running { spec, log, .. } = &running;
        let socket = match (spec.config.role, listener) {
            (Role::Listen, Some(index)) => {
                let socket = own.take(index).ok_or("its socket is missing")?;
                let listener = Listener::go_on(OwnedFd::from(socket), &spec.config.socket);
                FrontendSocket::Listen(listener.map_err(|error| error.to_string())?)
            }
            (Role::Connect, None) => FrontendSocket::Connect(spec.config.socket.clone()),
            _ => return Err("the image has another role".into()),
        };
        let kicks = bells(&kicks, table, Bell::to_hear)?;
        let (calls, errors) = (bells(&calls, &mut own, Bell::from_fd)?, bells(&errors, &mut own, Bell::from_fd)?);
        let (noted, given, group) = (Arc::clone(log), Arc::clone(&signals), running.group());
        let inboxes = self.inboxes(&group);
        let preparing = Preparing::new(noted, socket, Arc::clone(&group), given, inboxes, None);
        let preparing = preparing.map(|port| port.moving(self.moving(spec)));
        let mut preparing = preparing.map(Box::new).map_err(|error| error.to_string())?;
        if let Some(session) = session
            && state.is_some()
        {
            preparing.resume(session, &mut own)?;
        }
        let link = ArrivingLink::Rings { preparing, group, signals, kicks, calls, errors, state };
        let others = Vec::new();
        Ok(Arriving {
            running,
            numbers,
            signals: written,
            waiting,
            agents,
            gate,
            link,
            journal: None,
            others,
            is_lost: false,
        })
    }

    /// The port joins the switch with its adapter's state. It is not served before [`Daemon::serve_again`]: all ports join first, so
    /// that none misses a frame.
    /// The first service is that of the port's first part.
    /// `since`: its VMM may have waited for answers since this time.
    pub(crate) fn arrive(&self, arriving: Arriving, since: Option<Time>) -> (Vec<Service>, Option<Preparing>) {
        let Arriving { running, numbers, signals: written, waiting, agents, gate, link, journal, others, is_lost } =
            arriving;
        let epochs = gate.as_ref().map(|gate| Arc::new(Epochs::again(gate.epochs)));
        let Running { spec, port, schedule, log, .. } = &running;
        port.count_on(&numbers);
        schedule.count_on(written);
        // A function of a card that went on first would be reset by a policy that allows it less.
        self.plane.set_policy(port, &spec.config.policy);
        // Before its state, which may be of another link.
        self.link_port(&running);
        let mut services = Vec::new();
        let (link, front) = match link {
            ArrivingLink::Function { mut listener, mut device, vmm } => {
                listener.own();
                let session = vmm.and_then(|(session, state, process)| {
                    port.attach_again(&numbers);
                    let restored = if is_lost { device.restore_lost(&state) } else { device.restore(&state) };
                    restored.map_err(|why| self.does_not_go_on(&running, &why)).ok()?;
                    let process = process.and_then(Pid::from_raw);
                    let since = Some(since.unwrap_or(self.clock.now()));
                    Some(Talk { session, timeout: Default::default(), unmask: None, stopped: false, since, process })
                });
                // Behind the state, whose positions it writes. The adapter of a killed process began from those that are there.
                if !is_lost && let Some(rings) = journal.as_ref().and_then(Journal::rings) {
                    device.keep_rings(rings);
                }
                (Link::Function { listener, device, session }, None)
            }
            ArrivingLink::Rings { mut preparing, group, signals, kicks, calls, errors, state } => {
                preparing.own();
                restore_gate(port, epochs.as_ref(), gate);
                let mut states = Vec::new();
                for (own, part) in running.others.iter().zip(others) {
                    own.port.count_on(&part.numbers);
                    own.schedule.count_on(part.signals);
                    if state.is_some() {
                        own.port.attach_again(&part.numbers);
                    }
                    restore_gate(&own.port, epochs.as_ref(), part.gate);
                    states.push((&own.port, part.state, part.waiting));
                    let link = Link::Rings { kicks: by_ring(part.kicks) };
                    let (log, port, schedule) = (&own.log, &own.port, &own.schedule);
                    services.push(Service::new(Arc::clone(log), Arc::clone(port), Arc::clone(schedule), link));
                }
                if let Some(state) = state {
                    port.attach_again(&numbers);
                    preparing.go_on();
                    calls.into_iter().for_each(|(ring, bell)| signals.set_call(ring, Some(bell)));
                    errors.into_iter().for_each(|(ring, bell)| signals.set_error(ring, Some(bell)));
                    self.restore_parts(&running, &state, states.iter().map(|(_, state, _)| state.as_ref()));
                    preparing.pause_again();
                    group.look(self.clock.now());
                }
                if !running.others.is_empty()
                    && let Err(error) = self.join_parts(&running, &group)
                {
                    warn!(port = spec.config.name, "it does not join the switch: {error}");
                }
                states.iter().for_each(|(part, _, waiting)| part.wait_on(waiting, self.clock.now()));
                (Link::Rings { kicks: by_ring(kicks) }, Some(*preparing))
            }
        };
        let mut service = Service::new(Arc::clone(log), Arc::clone(port), Arc::clone(schedule), link);
        service.journal = journal;
        // There were as many ports before.
        if running.others.is_empty()
            && let Err(error) = self.plane.join_with(Arc::clone(port), &spec.config.policy)
        {
            warn!(port = spec.config.name, "it does not join the switch: {error}");
        }
        port.shape_on(&numbers);
        port.wait_on(&waiting, self.clock.now());
        port.go_on_with_agents(&agents);
        services.insert(0, service);
        self.ports().insert(port.id(), running);
        (services, front)
    }

    /// The adapter of a vhost-user port gets its state, and those of its other parts get theirs.
    fn restore_parts<'a>(&self, running: &Running, state: &Saved, others: impl Iterator<Item = Option<&'a Saved>>) {
        let now = || self.clock.now();
        match running.port.restore(state, now()) {
            Some(Ok(())) => {}
            Some(Err(why)) => self.does_not_go_on(running, &why),
            None => self.does_not_go_on(running, &"it has failed"),
        }
        for (OtherPart { port, .. }, state) in running.others.iter().zip(others) {
            if !matches!(state.and_then(|state| port.restore(state, now())), Some(Ok(()))) {
                self.does_not_go_on(running, &"a part of it has failed");
                port.detach(now());
            }
        }
    }

    /// An adapter does not go on.
    fn does_not_go_on(&self, running: &Running, why: &dyn std::fmt::Display) {
        running.log.say(Kind::Failed, format_args!("its adapter does not go on: {why}"));
        running.port.detach(self.clock.now());
    }

    /// A port goes on whose process was killed. The error is a sentence for a person; then nothing of it goes on.
    pub(crate) fn revive(&self, spec: PortSpec, kept: Kept) -> Result<(), String> {
        let Kept { function, mut table, batches, rings, tally, looked_ms } = kept;
        let id = match spec.config.worker {
            Some(worker) => self.free_id_on(worker.into(), 1),
            None => self.free_id_of_fewest(),
        };
        let name = spec.config.name.clone();
        let expected = self.prepare(spec, id.0, &[])?;
        let had_vmm = function.vmm.is_some();
        let link = LinkImage::Function(Box::new(function));
        let image = PortImage {
            name: name.clone(),
            id: id.0,
            numbers: SavedNumbers::default(),
            signals: 0,
            waiting: SavedFrames::default(),
            agents: Vec::new(),
            link,
            unread: None,
            gate: None,
        };
        let mut arriving = self.expect(expected, image, &mut table, None)?;
        arriving.is_lost = true;
        let mut answers = 0;
        if let ArrivingLink::Function { vmm: Some((session, ..)), .. } = &mut arriving.link {
            session.keep(tally);
            if looked_ms.is_some_and(|ms| self.clock.is_ago(ms, PATIENCE / 2)) {
                session.give_up();
            }
            for batch in batches {
                answers += session.pass_over(batch).map_err(|error| error.to_string())?;
            }
        }
        let log = Arc::clone(&arriving.running.log);
        if let (ArrivingLink::Function { device, .. }, Some(map)) =
            (&arriving.link, arriving.journal.as_ref().and_then(Journal::rings))
        {
            // The positions of another number of rings are of no use, and are not valid.
            let _too_many = map.write(0, &rings);
            device.keep_rings(map);
        }
        let (services, _no_front) = self.arrive(arriving, None);
        if had_vmm {
            let what = "the daemon was killed: its VM goes on, and its driver is made to reset the adapter";
            match answers {
                0 => log.say(Kind::Restored, what),
                _ => log.say(Kind::Restored, format_args!("{what}; {answers} answers may have come twice")),
            }
        }
        services.into_iter().for_each(|service| self.serve_again(service));
        Ok(())
    }

    /// The port goes on: its interrupts, its timers and its VMM's messages.
    pub(crate) fn serve_again(&self, service: Service) {
        self.hand_to_worker(service);
    }

    /// The front end of a vhost-user port is heard again.
    pub(crate) fn hear_again(&self, id: PortId, log: &PortLog, front: Preparing) {
        match RingsServer::start(front) {
            Ok(rings) => _ = self.ports().get_mut(&id).map(|running| running.rings = Some(rings)),
            Err(why) => log.say(Kind::NotServed, format_args!("its thread could not be started: {why}")),
        }
    }

    /// An uplink joins the switch, or its team. It is not served before [`Daemon::serve_again`]: all ports join first. Its frames wait once
    /// it has its I/O control, and its agents go on once it has them.
    pub(crate) fn uplink_arrives(&self, arriving: ArrivingUplink) -> Option<(Service, SavedFrames, Vec<SavedAgent>)> {
        let ArrivingUplink { id, name, mut uplink, policy, maker, team, numbers, waiting, agents } = arriving;
        uplink.own();
        let (team, numbers) = (team.as_deref(), Some(&numbers));
        let joined = JoiningUplink { policy, maker, team, numbers, ..JoiningUplink::new(&name, uplink) };
        let joined = self.join_uplink(id, joined);
        let joined = joined.map_err(|error| warn!("uplink {name} does not go on: {error}"));
        Some((joined.ok()?, waiting, agents))
    }

    /// Frames of an uplink wait here, and its agents go on. Then it is served, like [`Daemon::serve_again`].
    pub(crate) fn serve_uplink_again(&self, service: Service, waiting: &SavedFrames, agents: &[SavedAgent]) {
        service.port.wait_on(waiting, self.clock.now());
        service.port.go_on_with_agents(agents);
        self.hand_to_worker(service);
    }

    /// The switch knows these addresses again.
    pub(crate) fn learn_again(&self, learned: &[LearnedImage]) {
        for &LearnedImage { fid, address, port, at_ns } in learned {
            self.plane.switch().addresses().learn(Mac(address), fid, PortId(port), Time(at_ns));
        }
    }

    /// Ports get the multicast frames that they wanted, or, where that is not known, all that are snooped; and know their neighbours.
    pub(crate) fn know_again(&self, interests: Option<&[InterestImage]>, neighbours: &[NeighbourImage]) {
        let switch = self.plane.switch();
        match interests {
            Some(interests) => {
                let wanted: Vec<Wanted> = interests.iter().map(InterestImage::wanted).collect();
                switch.want_again(&wanted, self.clock.now());
            }
            None => self.ports().keys().for_each(|id| switch.arrived(*id)),
        }
        for NeighbourImage { port, system, name, until_ns } in neighbours {
            let neighbour = Neighbour { system: system.clone(), port: name.clone(), until: Time(*until_ns) };
            self.plane.port(PortId(*port)).inspect(|port| port.meet(&neighbour));
        }
    }

    /// Ports' interests, for [`Daemon::know_again`].
    pub(crate) fn interests(&self) -> Vec<InterestImage> {
        self.plane.switch().wanted(self.clock.now()).iter().map(InterestImage::of).collect()
    }

    /// Ports' neighbours, for [`Daemon::know_again`].
    pub(crate) fn neighbours(&self) -> Vec<NeighbourImage> {
        let now = self.clock.now();
        let of = |id: &PortId| {
            let Neighbour { system, port, until } = self.plane.neighbour(*id, now)?;
            Some(NeighbourImage { port: id.0, system, name: port, until_ns: until.0 })
        };
        self.names().keys().filter_map(of).collect()
    }

    /// Its addresses, for [`Daemon::learn_again`].
    pub(crate) fn learned(&self) -> Vec<LearnedImage> {
        let now = self.clock.now();
        let one = |Learned { address, fid, port, silent }: Learned| {
            let at_ns = now.0.saturating_sub(u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX));
            LearnedImage { fid, address: address.0, port: port.0, at_ns }
        };
        self.plane.switch().addresses().iter(now).map(one).collect()
    }
}

fn take_vmm(
    device: &mut PortDevice,
    vmm: &VmmImage,
    files: &Files,
    table: &mut Table,
) -> Result<(Box<Session>, PortState, Option<i32>), String> {
    device.take_vmm(vmm, files, table).map_err(|error| error.to_string())?;
    let mut session = Session::restore(vmm.session.clone(), table).ok_or("its session is impossible")?;
    session.charge_to(device.account());
    Ok((Box::new(session), vmm.state.clone(), vmm.process))
}
