//! A worker: one thread with one epoll loop, and the ports that it owns.
//!
//! Each round has these parts: notes, timers, some messages of each VMM that has more waiting, a turn for each ready port, then
//! epoll events. If nothing is ready, the worker busy polls while that pays (`busy_poll.rs`), then sleeps. Ports are served by
//! deficit round-robin. They are charged with their frames' bytes (replicas included) and with their VMMs' messages, so a port
//! that floods uses up its own turns.

mod connections;
#[cfg(test)]
mod fair_test;
mod farewell;
mod freezing;
mod keeping;
mod late;
#[cfg(test)]
mod late_test;
#[cfg(test)]
mod messages_test;
mod saving;
mod services;
mod unmask;
#[cfg(test)]
mod unmask_test;
mod waiting;
#[cfg(test)]
mod waiting_test;
#[cfg(test)]
mod worker_test;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;

use nicety_adapter::trace::Event;
use nicety_adapter::{PortId, Time};
use nicety_keeper::Holder;
use nicety_peer::Bell;
use nicety_plane::{Plane, Turn};
use rustix::event::epoll::{self, EventData, EventFlags};
use tracing::debug;

use crate::clock::Clock;
use crate::run::busy_poll::BusyPoll;
use crate::run::inbox::{Inbox, Note};
use crate::run::port_log::Kind;
use crate::run::service::{Link, Service, Talk};
use crate::run::shell::ready_to_ring;
use crate::spec::processors;
use connections::DisconnectReason;
use late::Looks;
pub use late::PATIENCE;
use services::Services;

/// The charge for a VMM's message, in bytes. It takes as long as copying some frames.
const MESSAGE_COST: i64 = 1 << 10;
/// The kernel's timer slack.
const TIMER_SLACK_NS: u64 = 1_000;
/// Turns kept for later floods. More simultaneous floods allocate and free theirs.
const KEPT_TURNS: usize = 4;
/// Most events per epoll call.
const EVENTS: usize = 64;

/// The data of an epoll event: the port in the upper bits, one of these in the lower bits.
const BELL: u64 = u64::MAX;
/// Messages of the keeper.
const KEEPER: u64 = u64::MAX - 1;
const SOCKET: u64 = 0;
const SESSION: u64 = 1;
const UNMASK: u64 = 2;
/// The kick of ring 0. Those of the other rings follow.
const KICK: u64 = 3;

fn token(port: PortId, what: u64) -> EventData {
    EventData::new_u64(u64::from(port.0) << 32 | what)
}

/// A worker and its ports.
#[derive(Debug)]
pub struct Worker {
    plane: Arc<Plane>,
    clock: Clock,
    inbox: Arc<Inbox>,
    newcomers: Receiver<Service>,
    epoll: OwnedFd,
    services: Services,
    ready: VecDeque<PortId>,
    /// Ports whose sessions hold buffered messages (which the kernel does not report), or lacked credit for more.
    unread_sessions: VecDeque<PortId>,
    /// The number of rounds.
    rounds: u64,
    timers: BinaryHeap<Reverse<(Time, PortId)>>,
    turn: Box<Turn>,
    #[expect(clippy::vec_box, reason = "a turn changes hands in its box, and is not moved")]
    kept_turns: Vec<Box<Turn>>,
    notes: Vec<Note>,
    stop: bool,
    busy_poll: BusyPoll,
    /// The cost of this round's turns, in bytes.
    round_cost: u64,
    /// The keeper, if it holds a port of this worker.
    keeper: Option<Arc<Holder>>,
    /// Ports for which it had none.
    owed: Vec<PortId>,
    /// The time of the next try.
    retry_at: Option<Time>,
    /// Threads that close connections whose VMMs have not noticed the end yet, and memory threads of closed ports.
    closers: Vec<JoinHandle<()>>,
    /// Connected VMMs.
    vmms: usize,
    looks: Looks,
    /// When the clock was read last, or before.
    read_at: Time,
    /// The number of times that it has slept.
    #[cfg(test)]
    slept: u64,
}

impl Worker {
    /// A worker without ports.
    ///
    /// Each port to take over comes through `newcomers`, before a [`Note::Serve`].
    pub fn new(
        plane: Arc<Plane>,
        clock: Clock,
        inbox: Arc<Inbox>,
        newcomers: Receiver<Service>,
    ) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inbox.bell(), EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self {
            plane,
            clock,
            inbox,
            newcomers,
            epoll,
            services: Services::default(),
            ready: VecDeque::new(),
            unread_sessions: VecDeque::new(),
            rounds: 0,
            timers: BinaryHeap::new(),
            turn: Box::default(),
            kept_turns: Vec::new(),
            notes: Vec::new(),
            stop: false,
            busy_poll: BusyPoll::new(processors()),
            round_cost: 0,
            keeper: None,
            owed: Vec::new(),
            retry_at: None,
            closers: Vec::new(),
            vmms: 0,
            looks: Looks::begin(clock.now()),
            read_at: clock.now(),
            #[cfg(test)]
            slept: 0,
        })
    }

    /// Runs until it is asked to stop.
    pub fn run(mut self, started: &Sender<()>) {
        // A pause between interrupts is some ten microseconds. The kernel's default slack is fifty.
        if let Err(error) = rustix::thread::set_current_timer_slack(NonZeroU64::new(TIMER_SLACK_NS)) {
            debug!("timers stay coarse: {error}");
        }
        ready_to_ring();
        let _whoever_starts_it_has_failed = started.send(());
        let mut events = Vec::with_capacity(EVENTS);
        while !self.stop {
            self.round(&mut events);
        }
        self.remove(&self.services.ports());
        self.plane.end_flows(&mut self.turn);
        for closer in self.closers {
            let _thread_result = closer.join();
        }
    }

    fn round(&mut self, events: &mut Vec<epoll::Event>) {
        self.rounds += 1;
        self.read_notes();
        self.ring_timers();
        // Serve messages before the ports' turns. Otherwise a port that always has frames would never have credit for its
        // messages.
        for _ in 0..self.unread_sessions.len() {
            let Some(id) = self.unread_sessions.pop_front() else { break };
            self.session(id);
        }
        self.turns();
        self.wait(events);
        for event in events.drain(..) {
            self.event(event.data.u64(), event.flags);
        }
    }

    fn read_notes(&mut self) {
        let mut notes = std::mem::take(&mut self.notes);
        self.inbox.take(&mut notes);
        for note in notes.drain(..) {
            match note {
                Note::Schedule(port) => self.ready.push_back(port),
                Note::Wake(port, time) => self.timers.push(Reverse((time, port))),
                Note::Serve => {
                    if let Ok(service) = self.newcomers.try_recv() {
                        self.serve(service);
                    }
                }
                Note::Remove(ports, done) => {
                    self.remove(&ports);
                    let _requester_gone = done.send(());
                }
                Note::Save(port, done) => {
                    let _requester_gone = done.send(self.save(port));
                }
                Note::Restore(port, state, done) => {
                    let _requester_gone = done.send(self.restore(port, &state));
                }
                Note::Freeze(frozen, orders) => self.freeze(&frozen, &orders),
                Note::Descriptor(port, fd) => self.watch_uplink(port, fd),
                Note::Hold(port, hold) => self.hold(port, hold),
                Note::Kick(port, ring, fd, _has_come) => self.watch_kick(port, ring, fd),
                Note::Mapped(port) => self.mapped(port),
                Note::Stalled(port, stall) => self.stalled(port, stall),
                Note::GuestError(port, error) => self.guest_error(port, error),
                Note::RefusedAccess(port, refusal) => self.refused_access(port, &refusal),
                Note::Refused(port, reason) => self.refused(port, reason),
                Note::News(port, news) => self.news(port, news),
                Note::Failed(port) => self.failed(port),
                Note::Probe(done) => {
                    let _requester_gone = done.send(());
                }
                Note::Flows => {
                    self.inbox.flows_are_asked_for();
                    self.plane.sweep_flows(&mut self.turn, self.clock.now());
                }
                Note::Stop => self.stop = true,
            }
        }
        self.notes = notes;
    }

    fn serve(&mut self, mut service: Service) {
        let id = service.port.id();
        if let Some(journal) = &service.journal {
            self.kept_by(Arc::clone(journal.holder()));
        }
        let owes = Self::keep(&mut service, self.clock);
        self.owe(id, owes);
        self.go_on(id, &mut service);
        if let Some(fd) = service.descriptor()
            && let Err(error) = epoll::add(&self.epoll, fd, token(id, SOCKET), EventFlags::IN)
        {
            service.log.say(Kind::NotServed, format_args!("its socket cannot be watched: {error}"));
        }
        // The port joined the switch before this worker knew it. It may already have received frames and asked for a turn.
        service.schedule.begin();
        self.services.insert(id, service);
        self.enqueue(id);
    }

    /// Releases ports. No VMM is waited for: a thread for each closes its connection.
    fn remove(&mut self, ids: &[PortId]) {
        ids.iter().for_each(|&id| self.release(id));
        self.plane.leave_all(ids);
    }

    fn release(&mut self, id: PortId) {
        self.settle_flood(id);
        self.disconnect(id, DisconnectReason::Removed);
        if let Some(mut service) = self.services.remove(&id) {
            if let Some(journal) = &service.journal {
                self.forget(id, journal);
            }
            if let Some(hold) = &service.hold {
                self.let_go(id, hold);
            }
            if let Some(fd) = service.descriptor() {
                let _not_watched = epoll::delete(&self.epoll, fd);
            }
            match &mut service.link {
                Link::Rings { kicks } => {
                    for kick in kicks.iter().flatten() {
                        let _not_watched = epoll::delete(&self.epoll, kick);
                    }
                }
                Link::Function { device, .. } => {
                    let ends = device.end();
                    self.keep_closer(ends);
                }
                Link::Uplink(_) => {}
            }
        }
    }

    /// Watches an uplink's descriptor in place of the old one. It may have been ready before.
    fn watch_uplink(&mut self, id: PortId, fd: Option<OwnedFd>) {
        let Some(Service { link: Link::Uplink(watched), log, port, .. }) = self.services.get_mut(&id) else { return };
        if let Some(old) = watched.take() {
            let _not_watched = epoll::delete(&self.epoll, &old);
        }
        if let Some(fd) = &fd
            && let Err(error) = epoll::add(&self.epoll, fd, token(id, SOCKET), EventFlags::IN)
        {
            log.say(Kind::NotServed, format_args!("it cannot be watched: {error}"));
        }
        *watched = fd;
        port.ready();
        self.enqueue(id);
    }

    fn watch_kick(&mut self, id: PortId, ring: u16, bell: Option<Bell>) {
        let Some(Service { link: Link::Rings { kicks }, log, credit, .. }) = self.services.get_mut(&id) else { return };
        *credit -= MESSAGE_COST;
        let index = usize::from(ring);
        if kicks.len() <= index {
            kicks.resize_with(index + 1, || None);
        }
        let old = kicks[index].take();
        if let Some(old) = &old {
            let _not_watched = epoll::delete(&self.epoll, old);
        }
        // The old descriptor may have been signalled a moment ago.
        let kicked = old.is_some() && bell.is_some();
        if let Some(bell) = bell {
            if let Err(error) = epoll::add(&self.epoll, &bell, token(id, KICK + u64::from(ring)), EventFlags::IN) {
                log.say(Kind::NotServed, format_args!("the kick of ring {ring} cannot be watched: {error}"));
            }
            kicks[index] = Some(bell);
        }
        if kicked {
            self.kicked(id, ring);
        }
    }

    fn ring_timers(&mut self) {
        if self.timers.is_empty() {
            return;
        }
        let now = self.clock.now();
        while let Some(Reverse((_, port))) = self.timers.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.pop();
            self.enqueue(port);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.keep_owed();
        }
    }

    fn enqueue(&mut self, port: PortId) {
        if let Some(service) = self.services.get(&port)
            && service.schedule.queue()
        {
            self.ready.push_back(port);
        }
    }

    /// One turn for each ready port.
    fn turns(&mut self) {
        for _ in 0..self.ready.len() {
            let Some(id) = self.ready.pop_front() else { return };
            let rounds = self.rounds;
            let Some(service) = self.services.get_mut(&id) else { continue };
            if !service.can_pay(rounds) {
                self.ready.push_back(id);
                continue;
            }
            service.schedule.begin();
            service.messages_were_last = false;
            self.one_turn(id);
        }
    }

    fn one_turn(&mut self, id: PortId) {
        let now = self.clock.now();
        self.read_at = now;
        if let Some(service) = self.services.get(&id) {
            service.log.settle(now);
        }
        // The port's batch refers to its memory. During a flood the port may fail, but must not be disconnected.
        let flooding = self.services.get(&id).is_some_and(|service| service.turn.is_some());
        if !flooding && let Some(why) = self.disconnect_reason(id, now) {
            self.disconnect(id, why);
            return;
        }
        if self.services.get(&id).is_some_and(|service| service.accept_paused_until.is_some_and(|at| at <= now)) {
            self.listen(id);
        }
        let Some(service) = self.services.get_mut(&id) else { return };
        if let Link::Function { device, session, .. } = &mut service.link {
            let next = session.as_mut().and_then(|talk| talk.timeout.rung(now));
            self.timers.extend(next.map(|at| Reverse((at, id))));
            if session.as_ref().is_none_or(|talk| !talk.stopped) {
                device.scan_doorbells();
            }
        }
        let outcome = match &mut service.turn {
            Some(flood) => {
                flood.take_flows(&mut self.turn);
                let outcome = self.plane.turn(&service.port, flood, now);
                self.turn.take_flows(flood);
                outcome
            }
            None => self.plane.turn(&service.port, &mut self.turn, now),
        };
        self.busy_poll.carried(id, outcome.cost);
        self.round_cost += outcome.cost;
        service.credit -= i64::try_from(outcome.cost).unwrap_or(i64::MAX);
        if outcome.unfinished && service.turn.is_none() {
            let mut fresh = self.kept_turns.pop().unwrap_or_default();
            fresh.succeed(&mut self.turn);
            service.turn = Some(std::mem::replace(&mut self.turn, fresh));
        } else if !outcome.unfinished
            && let Some(done) = service.turn.take()
            && self.kept_turns.len() < KEPT_TURNS
        {
            self.kept_turns.push(done);
        }
        // The next turn checks whether the VM must be disconnected because of the flood.
        if outcome.more || flooding {
            self.enqueue(id);
        }
    }

    /// The reason to disconnect a port's VM, if any: its idle timeout has passed, or it has taken shared memory back.
    fn disconnect_reason(&self, id: PortId, now: Time) -> Option<DisconnectReason> {
        let service = self.services.get(&id)?;
        match &service.link {
            Link::Function { session: Some(Talk { session, timeout, .. }), .. } if timeout.is_over(now) => {
                Some(match session.wants_write() {
                    true => DisconnectReason::Unread,
                    false if session.is_within_message() => DisconnectReason::Stopped,
                    false => DisconnectReason::Silent,
                })
            }
            Link::Function { session: Some(_), .. } | Link::Rings { .. } if service.port.damaged() => {
                Some(DisconnectReason::Damaged)
            }
            _ => None,
        }
    }

    /// Finishes a flood. Called before the port's memory or sockets change.
    fn settle_flood(&mut self, id: PortId) {
        while self.services.get(&id).is_some_and(|service| service.turn.is_some()) {
            self.one_turn(id);
        }
    }

    fn event(&mut self, data: u64, flags: EventFlags) {
        if data == KEEPER {
            self.hear_keeper();
        } else if data == BELL {
            self.inbox.rung();
            return;
        }
        let id = PortId((data >> 32) as u16);
        match data & 0xffff_ffff {
            SOCKET => self.socket(id),
            // Its messages are served next anyway.
            SESSION if self.unread_sessions.contains(&id) => {}
            SESSION => self.session(id),
            UNMASK => self.unmask(id, flags),
            kick => self.kick(id, (kick - KICK) as u16, flags),
        }
    }

    fn kick(&mut self, id: PortId, ring: u16, flags: EventFlags) {
        let Some(Service { link: Link::Rings { kicks }, .. }) = self.services.get_mut(&id) else { return };
        let Some(Some(bell)) = kicks.get(usize::from(ring)) else { return };
        if bell.clear() {
            self.kicked(id, ring);
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            let _not_watched = epoll::delete(&self.epoll, bell);
            kicks[usize::from(ring)] = None;
        }
    }

    fn kicked(&self, id: PortId, ring: u16) {
        let Some(Service { port, recorder, .. }) = self.services.get(&id) else { return };
        if let Some(recorder) = recorder {
            recorder.note(Event::Kick(ring));
        }
        port.with_rings(self.clock.now(), |rings, cx| rings.kick(ring, cx));
    }
}
