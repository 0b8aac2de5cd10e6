//! Ports whose queue pairs several workers serve (docs/adr/0025).

use std::sync::Arc;

use nicety_adapter::{Adapter, Face, PortId};
use nicety_plane::{End, Group, PlaneError, Port, State};

use super::{Daemon, OtherPart, PortSpec, Running, StartError};
use crate::run::inbox::Inbox;
use crate::run::service::{Link, Service};
use crate::run::shell::Signals;

/// The name of a part in the log and in images. No port has such a name.
pub(crate) fn part_name(port: &str, part: usize) -> String {
    format!("{port}/{part}")
}

/// An adapter that serves some of the queue pairs of its device.
pub(super) fn sharing(spec: &PortSpec) -> Result<Box<dyn Adapter>, StartError> {
    let adapter = (spec.config.entry.create)(&spec.settings());
    let mut adapter = adapter.map_err(|source| StartError::Adapter { port: spec.config.name.clone(), source })?;
    if spec.config.workers > 1
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
    /// A part of the port with the number `first`, which serves as many queue pairs.
    pub(super) fn other_part(
        &self,
        spec: &PortSpec,
        first: PortId,
        part: usize,
        id: PortId,
        signals: &Arc<Signals>,
    ) -> Result<OtherPart, StartError> {
        let name = part_name(&spec.config.name, part);
        let shell = self.shell(id, signals, None);
        let schedule = shell.schedule();
        let port = Port::new(id, End::guest(sharing(spec)?), Box::new(shell), spec.buffer_bytes());
        let port = port.map_err(|source| StartError::Memory { port: name.clone(), source })?;
        self.guard_part(&spec.config.name, &port)?;
        let log = self.log(id, &name, spec.config.entry.about.name);
        Ok(OtherPart { port: Arc::new(port.part_of(first)), schedule, log })
    }

    /// The parts of a port join the switch, the first one last: no frame comes from a number that nobody has.
    pub(super) fn join_parts(&self, running: &Running, group: &Arc<Group>) -> Result<(), PlaneError> {
        let policy = &running.spec.config.policy;
        for part in &running.others {
            self.plane.join_with(Arc::clone(&part.port), policy)?;
        }
        self.plane.join_parts(group, policy)
    }

    /// The inboxes of the workers of a port's parts.
    pub(super) fn inboxes(&self, group: &Group) -> Vec<Arc<Inbox>> {
        group.ports().map(|part| self.inbox(part.id())).collect()
    }
}

impl Running {
    /// Its first part, for a worker.
    pub(super) fn service(&self, link: Link) -> Service {
        let (log, port, schedule) = (Arc::clone(&self.log), Arc::clone(&self.port), Arc::clone(&self.schedule));
        Service { recorder: self.recorder.clone(), ..Service::new(log, port, schedule, link) }
    }

    /// Its parts, for workers: rings without kicks so far.
    pub(super) fn services(&self) -> Vec<Service> {
        let link = || Link::Rings { kicks: Vec::new() };
        let of = |OtherPart { port, schedule, log }: &OtherPart| {
            Service::new(Arc::clone(log), Arc::clone(port), Arc::clone(schedule), link())
        };
        std::iter::once(self.service(link())).chain(self.others.iter().map(of)).collect()
    }
}
