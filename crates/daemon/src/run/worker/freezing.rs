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
use super::farewell::{self, close_gently};
use super::{KICK, Worker, token, unmask};
use crate::run::image::{Image, LinkImage, PortImage, RingsImage, UplinkImage};
use crate::run::order::{NotFrozen, Order, Part, Without};
use crate::run::port_log::{Kind, PortLog};
use crate::run::service::{Link, Service, Talk};

/// Ports of an image. Each image is a memory file and two messages; with fewer ports these would cost more than the other process gains.
const TOGETHER: usize = 8;

impl Worker {
    /// Stands still until whoever has asked drops its end. Unfinished floods are finished first.
    pub(super) fn freeze(&mut self, frozen: &Sender<()>, orders: &Receiver<Order>) {
        self.services.ports().into_iter().for_each(|id| self.settle_flood(id));
        let _requester_gone = frozen.send(());
        while let Ok(order) = orders.recv() {
            match order {
                Order::Check(without, done) => _ = done.send(self.check(&without)),
                Order::Image(without, done) => self.images(&without, &done),
                Order::Leave(without, done) => {
                    self.leave(&without);
                    let _requester_gone = done.send(());
                }
                Order::EndFlows(done) => {
                    self.plane.end_flows(&mut self.turn);
                    let _requester_gone = done.send(());
                }
            }
        }
    }

    /// QEMU may not survive a connection that ends while it sends: see [`close_gently`].
    fn leave(&mut self, without: &Without) {
        let mut closers = Vec::new();
        for id in self.services.ports() {
            if let Some(Service { log, link: Link::Function { session, .. }, .. }) = self.services.get_mut(&id)
                && is_without(without, log)
                && let Some(talk) = session.take()
            {
                closers.extend(close_gently(talk.session, farewell::TIMEOUT));
            }
        }
        closers.into_iter().for_each(|closer| _ = closer.join());
    }

    pub(super) fn check(&mut self, without: &Without) -> Result<(), NotFrozen> {
        for id in self.services.ports() {
            if let Some(Service { log, link: Link::Function { session: Some(talk), .. }, .. }) =
                self.services.get_mut(&id)
                && !is_without(without, log)
            {
                can_go(log.port(), talk)?;
            }
        }
        Ok(())
    }

    pub(super) fn images(&mut self, without: &Without, done: &Sender<Result<Part, NotFrozen>>) {
        for ids in self.services.ports().chunks(TOGETHER) {
            let image = self.image(ids, without);
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

    fn image(&mut self, ids: &[PortId], without: &Without) -> Result<(Image, Table), NotFrozen> {
        let (mut ports, mut table, now) = (Vec::new(), Table::default(), self.clock.now());
        for id in ids {
            if let Some(service) = self.services.get_mut(id) {
                let is_without = is_without(without, &service.log);
                ports.push(of(service, &mut table, now, is_without)?);
            }
        }
        Ok((Image { ports }, table))
    }
}

/// Parts of a port are named PORT/NUMBER.
fn is_without(without: &Without, log: &PortLog) -> bool {
    log.port().split('/').next().is_some_and(|port| without.contains(port))
}

fn can_go(port: &str, talk: &Talk) -> Result<(), NotFrozen> {
    if talk.stopped {
        let why = "its state was saved, and it stands still: restore it first";
        return Err(NotFrozen::Never { name: format!("port {port}"), why });
    }
    if talk.session.is_saveable() { Ok(()) } else { Err(NotFrozen::Busy(port.to_owned())) }
}

/// `is_without`: as if no VMM were connected.
fn of(service: &mut Service, table: &mut Table, now: Time, is_without: bool) -> Result<PortImage, NotFrozen> {
    let Service { log, port, schedule, link, .. } = service;
    let name = || log.port().to_owned();
    let never = |why| NotFrozen::Never { name: format!("uplink {}", name()), why };
    let mut unread = None;
    let link = match link {
        Link::Function { listener, device, session } => {
            let mut function = device.image(listener.as_fd(), table)?;
            if let Some(talk) = session
                && !is_without
            {
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
        Link::Rings { .. } if is_without => LinkImage::Rings(RingsImage { kicks: Vec::new(), state: None }),
        Link::Rings { kicks } => {
            let connected = (0..).zip(kicks.iter()).filter_map(|(ring, kick)| Some((ring, kick.as_ref()?)));
            let kicks = connected.map(|(ring, kick)| Ok((ring, table.put(kick)?))).collect::<Result<_, Errno>>()?;
            LinkImage::Rings(RingsImage { kicks, state: port.save(now).map(|saved| (saved.at.0, saved.state)) })
        }
    };
    let (id, numbers, signals, waiting) = (port.id().0, port.numbers(), schedule.written(), port.waiting_frames());
    // Frames of a VM that does not go along are dropped, as when it is detached.
    let gate = port.save_gate().filter(|_| !is_without);
    Ok(PortImage { name: name(), id, numbers, signals, waiting, agents: port.agents(), link, unread, gate })
}
