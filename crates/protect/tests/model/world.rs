//! Two hosts, the third party, and what is on its way between them.

use nicety_adapter::Time;
use nicety_lease::{Answer, Keeper, NodeId, Request};
use nicety_protect::{Action, Ended, Message, Owner, Pairing, Run, Stage, Terms, TwinStage};

use crate::UNIT;
use crate::host::{Host, Mode, Part};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Packet {
    /// From a host that may be a twin.
    Offer(Run),
    Peer(Message),
    /// A copy of the VM: the epoch that it closes, and all that the VM has sent.
    Copy(Pairing, u64, Vec<u8>),
    /// The daemon's number goes with it: one that is started again gets no answers to what was asked before.
    Ask(Run, u8, u32, Request),
    Answer(u8, u32, Answer),
}

/// A packet on its way. `host` sends or, for an answer, receives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Flying {
    pub host: usize,
    pub packet: Packet,
}

impl Flying {
    /// Below [`STREAMS`].
    pub fn stream(&self) -> usize {
        let kind = match self.packet {
            Packet::Peer(_) | Packet::Offer(_) => 0,
            Packet::Copy(..) => 1,
            Packet::Ask(..) => 2,
            Packet::Answer(..) => 3,
        };
        4 * self.host + kind
    }

    /// The host that gets it.
    pub fn receiver(&self) -> Option<usize> {
        match self.packet {
            Packet::Peer(_) | Packet::Offer(_) | Packet::Copy(..) => Some(1 - self.host),
            Packet::Ask(..) => None,
            Packet::Answer(..) => Some(self.host),
        }
    }
}

#[derive(Clone, Debug, Hash)]
pub struct World {
    pub now: u64,
    pub terms: Terms,
    /// `None`: it died, or has ended for this reason.
    pub hosts: [Option<Host>; 2],
    pub ended: [Option<Ended>; 2],
    pub keeper: Keeper,
    pub flying: Vec<Flying>,
    pub pairings: u64,
    pub frames: u8,
    pub deaths: u8,
    pub slips: u8,
    pub order: Order,
    /// All that the VM had sent with the frame that has left last.
    pub emitted: Vec<u8>,
}

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    Step(usize),
    /// The VM sends a frame.
    Frame(usize),
    Copy(usize),
    Deliver(usize),
    Repeat(usize),
    Lose(usize),
    /// A host with all that is on it, its QEMU alone, or its daemon, which is started again.
    Kill(usize),
    KillQemu(usize),
    KillDaemon(usize),
    /// A host is told that its link or its stream has broken.
    Break(usize),
    /// A host stands still, or goes on.
    Freeze(usize),
    Thaw(usize),
    /// A stream's packets wait, or go on.
    Hold(usize),
    Free(usize),
    Pass,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub frames: u8,
    pub deaths: u8,
    /// Packets that are lost, repeated, or overtake others of their stream, and links that break.
    pub slips: u8,
    /// Packets on their way. More are lost.
    pub flying: usize,
    pub end: u64,
    /// Departures from the [`Order`]. `None`: there is no order, any move may be next.
    pub departures: Option<u8>,
}

/// Streams: each host's messages, its copies, its requests, and the answers to it.
pub const STREAMS: usize = 8;

/// The order in which all goes on if nothing departs from it: packets arrive, hosts step, each VM sends a frame, copies are made, time passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Order {
    pub departures: u8,
    /// Since its last input, or since time has passed.
    pub has_stepped: [bool; 2],
    /// Since time has passed.
    pub has_frame: [bool; 2],
    pub has_copied: [bool; 2],
    pub is_frozen: [bool; 2],
    pub is_held: [bool; STREAMS],
}

impl World {
    pub fn new(terms: Terms) -> Self {
        let first = Host::new(NodeId(1), 0, Part::Owner(Owner::new(NodeId(1), terms)), Mode::Shut);
        Self {
            now: 0,
            terms,
            hosts: [Some(first), Some(Host::twin(NodeId(2), terms))],
            ended: [None, None],
            keeper: Keeper::new(u64::try_from(terms.lease.as_nanos()).unwrap()),
            flying: Vec::new(),
            pairings: 0,
            frames: 0,
            deaths: 0,
            slips: 0,
            order: Order::default(),
            emitted: Vec::new(),
        }
    }

    pub fn time(&self) -> Time {
        Time(self.now * UNIT)
    }

    /// In place of a host that died or has ended another one begins, which knows nothing.
    pub fn restart(&mut self, index: usize) {
        assert!(self.hosts[index].is_none());
        self.ended[index] = None;
        self.hosts[index] = Some(Host::twin(NodeId(index as u64 + 3), self.terms));
    }

    /// The events that may happen next.
    pub fn moves(&self, bounds: Bounds) -> Vec<Move> {
        let next = bounds.departures.map(|_| self.next(bounds));
        if bounds.departures.is_some_and(|most| self.order.departures >= most) {
            return next.flatten().into_iter().collect();
        }
        let mut moves = Vec::new();
        let may_slip = self.slips < bounds.slips;
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            if self.deaths < bounds.deaths {
                moves.push(Move::Kill(index));
                if host.is_alive {
                    moves.extend([Move::KillQemu(index), Move::KillDaemon(index)]);
                }
            }
            if bounds.departures.is_some() {
                moves.push(if self.order.is_frozen[index] { Move::Thaw(index) } else { Move::Freeze(index) });
            }
            // Standing still is not being chosen for a while.
            if !self.order.is_frozen[index] {
                moves.push(Move::Step(index));
                if self.frames < bounds.frames && host.sends() {
                    moves.push(Move::Frame(index));
                }
                if host.may_copy() {
                    moves.push(Move::Copy(index));
                }
                if may_slip {
                    moves.push(Move::Break(index));
                }
            }
        }
        for index in 0..self.flying.len() {
            if may_slip {
                moves.push(Move::Lose(index));
                // QEMU loads a copy once.
                if self.flying.len() < bounds.flying && !matches!(self.flying[index].packet, Packet::Copy(..)) {
                    moves.push(Move::Repeat(index));
                }
            }
            // A stream's bytes come in order.
            if self.arrives(index) && (may_slip || self.is_first(index)) {
                moves.push(Move::Deliver(index));
            }
        }
        if bounds.departures.is_some() {
            let other =
                |(stream, is_held): (usize, &bool)| if *is_held { Move::Free(stream) } else { Move::Hold(stream) };
            moves.extend(self.order.is_held.iter().enumerate().map(other));
        }
        if self.now < bounds.end {
            moves.push(Move::Pass);
        }
        moves
    }

    /// The next move in order. `None`: time is over.
    pub fn next(&self, bounds: Bounds) -> Option<Move> {
        if let Some(index) = (0..self.flying.len()).find(|index| self.arrives(*index)) {
            return Some(Move::Deliver(index));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host.as_ref().filter(|_| !self.order.is_frozen[index]) else { continue };
            if !self.order.has_stepped[index] {
                return Some(Move::Step(index));
            }
            if !self.order.has_frame[index] && self.frames < bounds.frames && host.sends() {
                return Some(Move::Frame(index));
            }
            if !self.order.has_copied[index] && host.may_copy() {
                return Some(Move::Copy(index));
            }
        }
        (self.now < bounds.end).then_some(Move::Pass)
    }

    /// Whether neither a packet's stream is held nor its receiver stands still.
    pub fn arrives(&self, index: usize) -> bool {
        let flying = &self.flying[index];
        !self.order.is_held[flying.stream()] && !flying.receiver().is_some_and(|host| self.order.is_frozen[host])
    }

    /// Notes a move, if there is an order.
    pub fn note(&mut self, choice: Move, bounds: Bounds) {
        if bounds.departures.is_none() {
            return;
        }
        self.order.departures += u8::from(self.next(bounds) != Some(choice));
        let order = &mut self.order;
        match choice {
            Move::Pass => (order.has_stepped, order.has_frame, order.has_copied) = Default::default(),
            Move::Step(index) => order.has_stepped[index] = true,
            Move::Frame(index) => (order.has_stepped[index], order.has_frame[index]) = (false, true),
            Move::Copy(index) => (order.has_stepped[index], order.has_copied[index]) = (false, true),
            Move::Deliver(index) => {
                if let Some(host) = self.flying[index].receiver() {
                    order.has_stepped[host] = false;
                }
            }
            _ => {}
        }
    }

    /// Whether nothing of the same stream is before it.
    pub fn is_first(&self, index: usize) -> bool {
        let stream = self.flying[index].stream();
        !self.flying[..index].iter().any(|other| other.stream() == stream)
    }

    /// States that differ in nothing that may still matter become one: streams have no order between each other, nobody hears what is sent to
    /// a host that has ended, and a host that has ended does nothing.
    pub fn reduce(&mut self) {
        for (host, ended) in self.hosts.iter_mut().zip(&mut self.ended) {
            match host.as_ref().map(|host| &host.part) {
                Some(Part::Owner(owner)) => {
                    if let Stage::Ended(end) = owner.stage() {
                        (*host, *ended) = (None, Some(end));
                    }
                }
                Some(Part::Twin(twin)) if twin.stage() == TwinStage::Stale => *host = None,
                _ => {}
            }
        }
        let hosts = &self.hosts;
        self.flying.retain(|flying| match flying.packet {
            Packet::Peer(_) | Packet::Copy(..) | Packet::Offer(_) => hosts[1 - flying.host].is_some(),
            Packet::Answer(start, ..) => hosts[flying.host].as_ref().is_some_and(|host| host.start == start),
            Packet::Ask(..) => true,
        });
        self.flying.sort_by_key(Flying::stream);
    }

    pub fn make(&mut self, choice: Move, bounds: Bounds) -> Result<(), String> {
        let (now, terms) = (self.time(), self.terms);
        self.note(choice, bounds);
        match choice {
            Move::Pass => self.now += 1,
            Move::Freeze(index) => self.order.is_frozen[index] = true,
            Move::Thaw(index) => self.order.is_frozen[index] = false,
            Move::Hold(stream) => self.order.is_held[stream] = true,
            Move::Free(stream) => self.order.is_held[stream] = false,
            Move::Kill(index) => {
                self.hosts[index] = None;
                self.deaths += 1;
            }
            Move::KillQemu(index) => {
                self.deaths += 1;
                self.act(index, bounds, |host| host.died(now))?;
            }
            Move::KillDaemon(index) => {
                self.deaths += 1;
                self.act(index, bounds, |host| *host = host.restarted(terms))?;
            }
            Move::Break(index) => {
                self.slips += 1;
                self.act(index, bounds, |host| host.lost(now))?;
            }
            Move::Lose(index) => {
                self.slips += 1;
                self.flying.remove(index);
            }
            Move::Repeat(index) => {
                self.slips += 1;
                self.flying.push(self.flying[index].clone());
            }
            Move::Frame(index) => {
                self.frames += 1;
                let frame = self.frames;
                self.act(index, bounds, |host| {
                    host.vm.push(frame);
                    host.held.push_back((host.epoch, host.vm.clone()));
                })?;
            }
            Move::Copy(index) => self.copy(index, bounds)?,
            Move::Step(index) => {
                self.offer(index, bounds);
                self.act(index, bounds, |host| host.tick(now))?;
            }
            Move::Deliver(index) => {
                self.slips += u8::from(!self.is_first(index));
                let flying = self.flying.remove(index);
                self.deliver(flying, bounds)?;
            }
        }
        self.reduce();
        self.check()
    }

    /// A host without a VM says that it is there.
    pub fn offer(&mut self, index: usize, bounds: Bounds) {
        let Some(Host { run, part: Part::Twin(twin), .. }) = &self.hosts[index] else { return };
        let offer = Flying { host: index, packet: Packet::Offer(*run) };
        if twin.stage() == TwinStage::Offers && !self.flying.contains(&offer) && self.flying.len() < bounds.flying {
            self.flying.push(offer);
        }
    }

    pub fn copy(&mut self, index: usize, bounds: Bounds) -> Result<(), String> {
        let now = self.time();
        let mut copy = None;
        self.act(index, bounds, |host| {
            if let (Part::Owner(owner), Some(pairing)) = (&mut host.part, host.copies) {
                copy = Some(Packet::Copy(pairing, host.epoch, host.vm.clone()));
                owner.closed(pairing, host.epoch, now);
                host.epoch += 1;
                host.mode = if host.mode == Mode::Armed { Mode::Shut } else { host.mode };
            }
        })?;
        let copy = copy.filter(|_| self.flying.len() < bounds.flying);
        self.flying.extend(copy.map(|packet| Flying { host: index, packet }));
        Ok(())
    }

    pub fn deliver(&mut self, Flying { host, packet }: Flying, bounds: Bounds) -> Result<(), String> {
        let now = self.time();
        match packet {
            Packet::Peer(message) => self.act(1 - host, bounds, |host| host.heard(message, now)),
            Packet::Copy(pairing, epoch, vm) => self.act(1 - host, bounds, |host| host.loaded(pairing, epoch, vm, now)),
            Packet::Offer(run) => {
                let pairing = Pairing(self.pairings + 1);
                let mut is_taken = false;
                self.act(1 - host, bounds, |host| {
                    if let Part::Owner(owner) = &mut host.part {
                        is_taken = owner.wants_twin(now);
                        owner.offered(run, pairing, now);
                    }
                })?;
                self.pairings += u64::from(is_taken);
                Ok(())
            }
            Packet::Answer(start, number, answer) => self.act(host, bounds, |host| {
                if host.start == start {
                    host.answered(number, answer, now);
                }
            }),
            Packet::Ask(run, start, number, request) => {
                let answer = self.keeper.ask(run, request, now.0);
                self.flying.push(Flying { host, packet: Packet::Answer(start, number, answer) });
                Ok(())
            }
        }
    }

    /// Gives a host something to do, and does what follows.
    pub fn act(&mut self, index: usize, bounds: Bounds, act: impl FnOnce(&mut Host)) -> Result<(), String> {
        let now = self.time();
        let Some(host) = &mut self.hosts[index] else { return Ok(()) };
        act(host);
        let mut sent = Vec::new();
        while let Some(action) = host.action() {
            match action {
                Action::Ask(number, request) => sent.push(Packet::Ask(host.run, host.start, number, request)),
                Action::Send(message) => sent.push(Packet::Peer(message)),
                Action::Arm(_) => host.set_mode(Mode::Armed),
                Action::Shut => host.set_mode(Mode::Shut),
                Action::Open => host.set_mode(Mode::Open),
                Action::Mute(_) => host.set_mode(Mode::Mute),
                Action::Release(epoch, until) => host.released = (epoch, until),
                Action::Copy(pairing) => host.copies = Some(pairing),
                Action::Listen(pairing) => {
                    if let Part::Twin(twin) = &mut host.part {
                        twin.listens(pairing, now);
                    }
                }
                Action::GoAlone => {
                    host.copies = None;
                    if let Part::Owner(owner) = &mut host.part {
                        owner.went_alone();
                    }
                }
                Action::Hang(_) => host.copies = None,
                Action::End => host.is_alive = false,
            }
        }
        let left: Vec<Vec<u8>> = std::iter::from_fn(|| host.leaves(now)).collect();
        // More than fit are lost.
        let room = bounds.flying.saturating_sub(self.flying.len());
        self.flying.extend(sent.into_iter().take(room).map(|packet| Flying { host: index, packet }));
        for vm in left {
            if let Some(owner) = self.owners().into_iter().find(|owner| *owner != index) {
                return Err(format!("host {index} emits while host {owner} owns"));
            }
            if vm.len() > self.emitted.len() {
                self.emitted = vm;
            } else if !self.emitted.starts_with(&vm) {
                return Err(format!("{vm:?} left after {:?}", self.emitted));
            }
        }
        Ok(())
    }

    pub fn owners(&self) -> Vec<usize> {
        let owns = |index: &usize| self.hosts[*index].as_ref().is_some_and(|host| host.owns(self.time()));
        (0..2).filter(owns).collect()
    }

    pub fn check(&self) -> Result<(), String> {
        let owners = self.owners();
        if owners.len() > 1 {
            return Err("both own".to_owned());
        }
        for index in owners {
            let known = self.hosts[index].as_ref().map(|host| &host.vm);
            if known.is_some_and(|known| !known.starts_with(&self.emitted)) {
                return Err(format!("{:?} has left, and the owner, host {index}, knows {known:?}", self.emitted));
            }
        }
        Ok(())
    }
}
