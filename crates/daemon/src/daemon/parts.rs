//! Ports whose queue pairs several workers serve (docs/adr/0025).

use std::sync::Arc;

use nicety_adapter::{Adapter, Face, PortId};
use nicety_host::Role;
use nicety_plane::{End, Port, Split, State};
use tracing::info;

use super::{Daemon, OtherPart, PortSpec, Running, StartError, listener};
use crate::inbox::Inbox;
use crate::rings::{FrontendSocket, RingsServer};
use crate::service::{Link, Service};
use crate::shell::{PortShell, Schedule, Signals};

/// The name of a part in the log and in images. No port has such a name.
pub(crate) fn part_name(port: &str, part: usize) -> String {
    format!("{port}/{part}")
}

/// An adapter that serves some of the queue pairs of its device.
pub(super) fn sharing(spec: &PortSpec) -> Result<Box<dyn Adapter>, StartError> {
    let adapter = (spec.entry.create)(&spec.settings);
    let mut adapter = adapter.map_err(|source| StartError::Adapter { port: spec.name.clone(), source })?;
    if spec.workers > 1
        && let Face::Rings(rings) = adapter.face()
    {
        rings.share();
    }
    Ok(adapter)
}

impl Running {
    /// The state of all its parts.
    pub(super) fn state(&self) -> State {
        let mut state = self.port.state();
        self.others.iter().for_each(|part| state.add_part(part.port.state()));
        state
    }

    /// Interrupt descriptors written, of all its parts.
    pub(super) fn signals(&self) -> u64 {
        self.schedule.written() + self.others.iter().map(|part| part.schedule.written()).sum::<u64>()
    }
}

impl Daemon {
    /// Opens a port that speaks vhost-user and has several workers.
    pub(super) fn open_parts(&self, spec: PortSpec) -> Result<PortId, StartError> {
        let ids = self.free_ids(&spec, spec.workers.into());
        let id = ids.first().copied().unwrap_or(PortId(u16::MAX));
        let others = ids.get(1..).unwrap_or_default();
        let socket = match spec.role {
            Role::Listen => FrontendSocket::Listen(listener(&spec)?),
            Role::Connect => FrontendSocket::Connect(spec.socket.clone()),
        };
        let signals = Arc::new(Signals::rings());
        let opened = self.opened(id, &spec, sharing(&spec)?, Arc::clone(&signals), None, false)?;
        let parts = (1..).zip(others);
        let others = parts.map(|(part, own)| self.other_part(&spec, id, part, *own, &signals));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        let (port, schedule, log) = (opened.port, opened.schedule, opened.log);
        let running = Running { spec, port, schedule, others, blank: Arc::default(), log, recorder: None, rings: None };
        let split = running.split();
        let joined = self.join_parts(&running, &split).inspect_err(|_| self.give_up(&ids));
        joined?;
        running.services().into_iter().for_each(|service| self.hand_to_worker(service));
        // Start this last: a front end may be waiting for the socket.
        let (log, inboxes) = (Arc::clone(&running.log), self.inboxes(&split));
        let rings = RingsServer::start(log, socket, split, signals, inboxes, self.clock, None);
        let rings = rings.map_err(|source| {
            self.give_up(&ids);
            StartError::System { what: "starting a port's thread", source }
        })?;
        let running = Running { rings: Some(rings), ..running };
        info!(port = running.spec.name, adapter = running.spec.entry.about.name, socket = %running.spec.socket.display(), workers = running.spec.workers, "ready");
        self.ports().insert(id, running);
        self.note_opened();
        Ok(id)
    }

    /// A part of the port with the number `first`, which serves as many queue pairs.
    pub(super) fn other_part(
        &self,
        spec: &PortSpec,
        first: PortId,
        part: usize,
        id: PortId,
        signals: &Arc<Signals>,
    ) -> Result<OtherPart, StartError> {
        let name = part_name(&spec.name, part);
        let schedule = Arc::new(Schedule::default());
        let shell = PortShell::new(id, self.inbox(id), Arc::clone(signals), Arc::clone(&schedule), None, self.clock);
        let port = Port::new(id, End::guest(sharing(spec)?), Box::new(shell), spec.buffer_bytes);
        let port = port.map_err(|source| StartError::Memory { port: name.clone(), source })?;
        let log = self.log(id, &name, spec.entry.about.name);
        Ok(OtherPart { port: Arc::new(port.part_of(first)), schedule, log })
    }

    /// The parts of a port join the switch, the first one last: no frame comes from a number that nobody has.
    pub(super) fn join_parts(&self, running: &Running, split: &Arc<Split>) -> Result<(), StartError> {
        let policy = &running.spec.policy;
        let mut joined = Ok(());
        for part in &running.others {
            joined = joined.and_then(|()| self.plane.join_with(Arc::clone(&part.port), policy));
        }
        joined = joined.and_then(|()| self.plane.join_split(split, policy));
        joined.map_err(|source| StartError::Switch { port: running.spec.name.clone(), source })
    }

    /// The inboxes of the workers of a port's parts.
    pub(super) fn inboxes(&self, split: &Split) -> Vec<Arc<Inbox>> {
        split.parts().map(|part| self.inbox(part.id())).collect()
    }
}

impl Running {
    fn services(&self) -> Vec<Service> {
        let of = |log: &Arc<_>, port: &Arc<Port>, schedule: &Arc<Schedule>| {
            let link = Link::Rings { kicks: Vec::new() };
            Service::new(Arc::clone(log), Arc::clone(port), Arc::clone(schedule), link)
        };
        let mut services = vec![of(&self.log, &self.port, &self.schedule)];
        services.extend(self.others.iter().map(|part| of(&part.log, &part.port, &part.schedule)));
        services
    }
}
