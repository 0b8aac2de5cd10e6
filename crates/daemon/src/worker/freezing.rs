//! Stands still while another process takes over the ports, and goes on if it does not.

use std::cmp::Reverse;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender};

use nicety_adapter::{HandOver, PortId, Time};
use nicety_peer::{Bell, Table};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use super::connections::Watched;
use super::{KICK, Worker, token, unmask};
use crate::image::{Image, LinkImage, PortImage, RingsImage, UplinkImage};
use crate::port_log::{Kind, PortLog};
use crate::service::{Link, Service, Talk};

/// Orders to a worker that stands still. Nothing is changed by them.
#[derive(Debug)]
pub enum Order {
    /// Answer whether each of its ports can be handed over now.
    Check(Sender<Result<(), NotFrozen>>),
    /// Answer with the images of its ports, some at a time: the other process reads the first ones while the next ones are made.
    Image(Sender<Result<Part, NotFrozen>>),
}

/// The image of some ports in its envelope, and their descriptors.
pub type Part = (Vec<u8>, Table);

/// Ports of an image. Each image is a memory file and two messages; with fewer ports these would cost more than the other process gains.
const TOGETHER: usize = 8;

/// Reasons why a port cannot be handed over now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotFrozen {
    /// A change of its memory is in progress: soon it is done.
    #[error("port {0}: a change of its VM's memory is in progress")]
    Busy(String),
    /// It cannot be handed over at all.
    #[error("{port}: {why}")]
    Never {
        /// The port.
        port: String,
        /// The reason.
        why: &'static str,
    },
    /// A descriptor cannot be duplicated.
    #[error("duplicating descriptors: {0} (ulimit -n)")]
    Descriptors(Errno),
}

impl From<Errno> for NotFrozen {
    fn from(errno: Errno) -> Self {
        Self::Descriptors(errno)
    }
}

impl Worker {
    /// Stands still until whoever has asked drops its end. Unfinished floods are finished first.
    pub(super) fn freeze(&mut self, frozen: &Sender<()>, orders: &Receiver<Order>) {
        self.services.ports().into_iter().for_each(|id| self.settle_flood(id));
        let _requester_gone = frozen.send(());
        while let Ok(order) = orders.recv() {
            match order {
                Order::Check(done) => _ = done.send(self.check()),
                Order::Image(done) => self.images(&done),
            }
        }
    }

    fn check(&mut self) -> Result<(), NotFrozen> {
        for id in self.services.ports() {
            if let Some(Service { log, link: Link::Function { session: Some(talk), .. }, .. }) =
                self.services.get_mut(&id)
            {
                can_go(log.port(), talk)?;
            }
        }
        Ok(())
    }

    fn images(&mut self, done: &Sender<Result<Part, NotFrozen>>) {
        for ids in self.services.ports().chunks(TOGETHER) {
            let image = self.image(ids);
            let has_failed = image.is_err();
            let is_alone = done.send(image.map(|(image, table)| (image.to_bytes(), table))).is_err();
            if has_failed || is_alone {
                return;
            }
        }
    }

    /// Serves a VMM that was connected before the port came here.
    pub(super) fn go_on(&mut self, id: PortId, service: &mut Service) {
        if let Link::Rings { kicks } = &service.link {
            for (ring, kick) in (0..).zip(kicks).filter_map(|(ring, kick)| Some((ring, kick.as_ref()?))) {
                self.watch_again(id, ring, kick, &service.log);
            }
        }
        let Link::Function { device, session: Some(talk), .. } = &mut service.link else { return };
        let Talk { session, timeout, unmask, .. } = talk;
        self.vmms += 1;
        Watched::of(session).watch(&self.epoll, session.as_fd(), id);
        unmask::watch(&self.epoll, id, device.unmask(), unmask, &service.log);
        if !session.is_ready() || session.is_within_message() || session.wants_write() {
            self.timers.extend(timeout.begin(self.clock.now()).map(|at| Reverse((at, id))));
        }
        // Messages may wait in its own buffer, and the eventfd may have been signalled.
        self.unread_sessions.push_back(id);
    }

    fn watch_again(&self, id: PortId, ring: u16, kick: &Bell, log: &PortLog) {
        if let Err(error) = epoll::add(&self.epoll, kick, token(id, KICK + u64::from(ring)), EventFlags::IN) {
            log.say(Kind::NotServed, format_args!("the kick of ring {ring} cannot be watched: {error}"));
        }
    }

    fn image(&mut self, ids: &[PortId]) -> Result<(Image, Table), NotFrozen> {
        let (mut ports, mut table, now) = (Vec::new(), Table::default(), self.clock.now());
        for id in ids {
            if let Some(service) = self.services.get_mut(id) {
                ports.push(of(service, &mut table, now)?);
            }
        }
        Ok((Image { ports }, table))
    }
}

fn can_go(port: &str, talk: &Talk) -> Result<(), NotFrozen> {
    if talk.stopped {
        let why = "its state was saved, and it stands still: restore it first";
        return Err(NotFrozen::Never { port: port.to_owned(), why });
    }
    if talk.session.is_saveable() { Ok(()) } else { Err(NotFrozen::Busy(port.to_owned())) }
}

fn of(service: &mut Service, table: &mut Table, now: Time) -> Result<PortImage, NotFrozen> {
    let Service { log, port, schedule, link, .. } = service;
    let name = || log.port().to_owned();
    let never = |why| NotFrozen::Never { port: name(), why };
    let mut unread = None;
    let link = match link {
        Link::Function { listener, device, session } => {
            let mut function = device.image(listener.as_fd(), table)?;
            if let Some(talk) = session {
                can_go(log.port(), talk)?;
                let Talk { session, process, .. } = talk;
                unread = session.unread();
                let session = session.save(table)?.ok_or_else(|| NotFrozen::Busy(name()))?;
                let process = process.map(Pid::as_raw_pid);
                function.vmm = device.vmm_image(session, process, table)?;
            }
            LinkImage::Function(Box::new(function))
        }
        Link::Uplink(_) => {
            let handed = port.hand_over(|how| match how {
                HandOver::Again => Ok(None),
                HandOver::Parts { descriptors, state } => {
                    let put = descriptors.into_iter().map(|fd| table.put(fd)).collect::<Result<_, Errno>>();
                    Ok(Some(UplinkImage { descriptors: put?, state }))
                }
                HandOver::Never(why) => Err(never(why)),
            });
            LinkImage::Uplink(handed.transpose()?.flatten())
        }
        Link::Rings { kicks } => {
            let connected = (0..).zip(kicks.iter()).filter_map(|(ring, kick)| Some((ring, kick.as_ref()?)));
            let kicks = connected.map(|(ring, kick)| Ok((ring, table.put(kick)?))).collect::<Result<_, Errno>>()?;
            LinkImage::Rings(RingsImage { kicks, state: port.save(now).map(|saved| (saved.at.0, saved.state)) })
        }
    };
    let (id, numbers, signals, waiting) = (port.id().0, port.numbers(), schedule.written(), port.waiting_frames());
    Ok(PortImage { name: name(), id, numbers, signals, waiting, agents: port.agents(), link, unread })
}
