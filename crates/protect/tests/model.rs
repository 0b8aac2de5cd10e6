//! The protocol in all interleavings, up to a bound: two hosts, a third party, messages that are delayed, reordered, repeated and lost,
//! hosts that stand still for as long as they like, continue, or die, QEMUs that die, and daemons that are started again. The machines are
//! the real ones, with a VM of a few bytes.
//!
//! What must always hold:
//! 1. Never two owners: a host lets frames leave only while no other does.
//! 2. Nothing has left that the owner's VM does not know: what it has sent begins with what has left.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use nicety_adapter::Time;
use nicety_lease::{Answer, Keeper, NodeId, Request};
use nicety_protect::{Action, Death, Ended, Message, Owner, Pairing, Run, Stage, Terms, Twin, TwinStage};

/// A microsecond is the unit: a lease lasts four of them.
const UNIT: u64 = 1000;
const TERMS: Terms = Terms {
    lease: Duration::from_nanos(4 * UNIT),
    margin: Duration::from_nanos(UNIT),
    heartbeat: Duration::from_nanos(UNIT),
    silence: Duration::from_nanos(2 * UNIT),
    patience: Duration::from_nanos(2 * UNIT),
    again: Duration::from_nanos(UNIT),
    copy: Duration::from_nanos(8 * UNIT),
};
/// The shortest in the same order (the margin, then a silence, then the lease): all that may follow from them happens within few units.
const SHORT: Terms = Terms { lease: Duration::from_nanos(3 * UNIT), ..TERMS };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Packet {
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
struct Flying {
    host: usize,
    packet: Packet,
}

impl Flying {
    /// Below [`STREAMS`].
    fn stream(&self) -> usize {
        let kind = match self.packet {
            Packet::Peer(_) | Packet::Offer(_) => 0,
            Packet::Copy(..) => 1,
            Packet::Ask(..) => 2,
            Packet::Answer(..) => 3,
        };
        4 * self.host + kind
    }

    /// The host that gets it.
    fn receiver(&self) -> Option<usize> {
        match self.packet {
            Packet::Peer(_) | Packet::Offer(_) | Packet::Copy(..) => Some(1 - self.host),
            Packet::Ask(..) => None,
            Packet::Answer(..) => Some(self.host),
        }
    }
}

#[derive(Clone, Debug, Hash)]
enum Part {
    Owner(Owner),
    Twin(Twin),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mode {
    Open,
    Armed,
    Shut,
    Mute,
}

/// A daemon with its gate, and a QEMU.
#[derive(Clone, Debug, Hash)]
struct Host {
    run: Run,
    /// Grows with each start of the daemon.
    start: u8,
    part: Part,
    mode: Mode,
    epoch: u64,
    /// Frames that wait: each with its epoch, and with all that the VM had sent with it.
    held: VecDeque<(u64, Vec<u8>)>,
    released: (u64, Time),
    /// All that the VM has sent.
    vm: Vec<u8>,
    /// QEMU copies its VM.
    copies: Option<Pairing>,
    is_alive: bool,
}

impl Host {
    fn new(run: Run, start: u8, part: Part, mode: Mode) -> Self {
        let (held, released) = (VecDeque::new(), (0, Time(0)));
        Self { run, start, part, mode, epoch: 1, held, released, vm: Vec::new(), copies: None, is_alive: true }
    }

    fn twin(run: Run, terms: Terms) -> Self {
        Self::new(run, 0, Part::Twin(Twin::new(run, terms)), Mode::Mute)
    }

    /// The daemon is killed and started again. The VM goes on.
    fn restarted(&self, terms: Terms) -> Self {
        let part = match self.part {
            Part::Owner(_) => Owner::new(self.run, terms),
            Part::Twin(_) => Owner::maybe(self.run, terms),
        };
        let new = Self::new(self.run, self.start + 1, Part::Owner(part), Mode::Shut);
        Self { vm: self.vm.clone(), is_alive: self.is_alive, ..new }
    }

    fn stage(&self) -> Option<Stage> {
        if let Part::Owner(owner) = &self.part { Some(owner.stage()) } else { None }
    }

    fn is_protected(&self) -> bool {
        matches!(self.stage(), Some(Stage::Protected { .. }))
    }

    /// Whether frames may leave.
    fn owns(&self, now: Time) -> bool {
        match self.mode {
            Mode::Open | Mode::Armed => true,
            Mode::Shut => now < self.released.1,
            Mode::Mute => false,
        }
    }

    /// Whether its VM sends something that anybody may see.
    fn sends(&self) -> bool {
        self.is_alive && matches!(self.part, Part::Owner(_))
    }

    /// Whether QEMU makes a copy now: it has new work, and the twin has what was copied before.
    fn may_copy(&self) -> bool {
        let Part::Owner(owner) = &self.part else { return false };
        let (closed, loaded) = owner.copies();
        self.is_alive && self.copies.is_some() && owner.pairing() == self.copies && closed == loaded
    }

    /// Frames that have not been copied.
    fn is_ahead(&self) -> bool {
        self.epoch == 1 || self.held.back().is_some_and(|(epoch, _)| *epoch == self.epoch)
    }

    fn action(&mut self) -> Option<Action> {
        match &mut self.part {
            Part::Owner(owner) => owner.action(),
            Part::Twin(twin) => twin.action(),
        }
    }

    fn tick(&mut self, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.tick(now),
            Part::Twin(twin) => twin.tick(now),
        }
    }

    fn heard(&mut self, message: Message, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.heard(message, now),
            Part::Twin(twin) => twin.heard(message, now),
        }
    }

    fn lost(&mut self, now: Time) {
        self.copies = None;
        match &mut self.part {
            Part::Owner(owner) => owner.lost("the link is lost", now),
            Part::Twin(twin) => twin.lost(now),
        }
    }

    fn answered(&mut self, number: u32, answer: Answer, now: Time) {
        match &mut self.part {
            Part::Owner(owner) => owner.answered(number, Some(answer), now),
            Part::Twin(twin) => {
                if let Some(owner) = twin.answered(number, Some(answer), now) {
                    self.part = Part::Owner(owner);
                }
            }
        }
    }

    fn loaded(&mut self, pairing: Pairing, epoch: u64, vm: Vec<u8>, now: Time) {
        if let Part::Twin(twin) = &mut self.part
            && twin.pairing() == Some(pairing)
            && self.is_alive
        {
            self.vm = vm;
            twin.loaded(pairing, epoch, now);
        }
    }

    fn died(&mut self, now: Time) {
        (self.is_alive, self.copies) = (false, None);
        match &mut self.part {
            Part::Owner(owner) => owner.died(Death::Sudden, now),
            Part::Twin(twin) => twin.died(),
        }
    }

    fn set_mode(&mut self, mode: Mode) {
        match mode {
            Mode::Armed => (self.epoch, self.released) = (1, (0, Time(0))),
            Mode::Shut => self.released.1 = Time(0),
            Mode::Open | Mode::Mute => {}
        }
        self.mode = mode;
    }

    /// The next frame that leaves: all that the VM had sent with it.
    fn leaves(&mut self, now: Time) -> Option<Vec<u8>> {
        let limit = match self.mode {
            Mode::Open | Mode::Armed => u64::MAX,
            Mode::Shut if now < self.released.1 => self.released.0,
            Mode::Shut | Mode::Mute => 0,
        };
        self.held.pop_front_if(|(epoch, _)| *epoch <= limit).map(|(_, vm)| vm)
    }
}

#[derive(Clone, Debug, Hash)]
struct World {
    now: u64,
    terms: Terms,
    /// `None`: it died, or has ended for this reason.
    hosts: [Option<Host>; 2],
    ended: [Option<Ended>; 2],
    keeper: Keeper,
    flying: Vec<Flying>,
    pairings: u64,
    frames: u8,
    deaths: u8,
    slips: u8,
    order: Order,
    /// All that the VM had sent with the frame that has left last.
    emitted: Vec<u8>,
}

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
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
struct Bounds {
    frames: u8,
    deaths: u8,
    /// Packets that are lost, repeated, or overtake others of their stream, and links that break.
    slips: u8,
    /// Packets on their way. More are lost.
    flying: usize,
    end: u64,
    /// Departures from the [`Order`]. `None`: there is no order, any move may be next.
    departures: Option<u8>,
}

/// Streams: each host's messages, its copies, its requests, and the answers to it.
const STREAMS: usize = 8;

/// The order in which all goes on if nothing departs from it: packets arrive, hosts step, each VM sends a frame, copies are made, time passes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Order {
    departures: u8,
    /// Since its last input, or since time has passed.
    has_stepped: [bool; 2],
    /// Since time has passed.
    has_frame: [bool; 2],
    has_copied: [bool; 2],
    is_frozen: [bool; 2],
    is_held: [bool; STREAMS],
}

impl World {
    fn new(terms: Terms) -> Self {
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

    fn time(&self) -> Time {
        Time(self.now * UNIT)
    }

    /// In place of a host that died or has ended another one begins, which knows nothing.
    fn restart(&mut self, index: usize) {
        assert!(self.hosts[index].is_none());
        self.ended[index] = None;
        self.hosts[index] = Some(Host::twin(NodeId(index as u64 + 3), self.terms));
    }

    /// What may happen next.
    fn moves(&self, bounds: Bounds) -> Vec<Move> {
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
    fn next(&self, bounds: Bounds) -> Option<Move> {
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
            if !self.order.has_copied[index] && host.may_copy() && host.is_ahead() {
                return Some(Move::Copy(index));
            }
        }
        (self.now < bounds.end).then_some(Move::Pass)
    }

    /// Whether neither a packet's stream is held nor its receiver stands still.
    fn arrives(&self, index: usize) -> bool {
        let flying = &self.flying[index];
        !self.order.is_held[flying.stream()] && !flying.receiver().is_some_and(|host| self.order.is_frozen[host])
    }

    /// Notes a move, if there is an order.
    fn note(&mut self, choice: Move, bounds: Bounds) {
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
    fn is_first(&self, index: usize) -> bool {
        let stream = self.flying[index].stream();
        !self.flying[..index].iter().any(|other| other.stream() == stream)
    }

    /// States that differ in nothing that may still matter become one: streams have no order between each other, nobody hears what is sent to
    /// a host that has ended, and a host that has ended does nothing.
    fn reduce(&mut self) {
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

    fn make(&mut self, choice: Move, bounds: Bounds) -> Result<(), String> {
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
    fn offer(&mut self, index: usize, bounds: Bounds) {
        let Some(Host { run, part: Part::Twin(twin), .. }) = &self.hosts[index] else { return };
        let offer = Flying { host: index, packet: Packet::Offer(*run) };
        if twin.stage() == TwinStage::Offers && !self.flying.contains(&offer) && self.flying.len() < bounds.flying {
            self.flying.push(offer);
        }
    }

    fn copy(&mut self, index: usize, bounds: Bounds) -> Result<(), String> {
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

    fn deliver(&mut self, Flying { host, packet }: Flying, bounds: Bounds) -> Result<(), String> {
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
    fn act(&mut self, index: usize, bounds: Bounds, act: impl FnOnce(&mut Host)) -> Result<(), String> {
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

    fn owners(&self) -> Vec<usize> {
        let owns = |index: &usize| self.hosts[*index].as_ref().is_some_and(|host| host.owns(self.time()));
        (0..2).filter(owns).collect()
    }

    fn check(&self) -> Result<(), String> {
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

fn digest(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// A search with more states fails: it would not be complete.
const STATES_MAX: usize = 20_000_000;

/// What a search came across: a search that never sees a takeover proves nothing.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    /// Moves of the longest path.
    depth: usize,
    protected: usize,
    takeovers: usize,
    takeovers_with_output: usize,
    alone_again: usize,
    stopped: usize,
    handed_over: usize,
    taken_back: usize,
}

impl Seen {
    fn add(&mut self, other: &Self) {
        let Self {
            states,
            depth,
            protected,
            takeovers,
            takeovers_with_output,
            alone_again,
            stopped,
            handed_over,
            taken_back,
        } = other;
        self.states += states;
        self.depth = self.depth.max(*depth);
        self.protected += protected;
        self.takeovers += takeovers;
        self.takeovers_with_output += takeovers_with_output;
        self.alone_again += alone_again;
        self.stopped += stopped;
        self.handed_over += handed_over;
        self.taken_back += taken_back;
    }

    fn note(&mut self, world: &World) {
        self.states += 1;
        let [one, other] = world.hosts.each_ref().map(Option::as_ref);
        self.protected += usize::from(one.is_some_and(Host::is_protected));
        let took = other.is_some_and(|other| other.mode == Mode::Open);
        self.takeovers += usize::from(took);
        self.takeovers_with_output += usize::from(took && !world.emitted.is_empty());
        let is_alone = |one: &Host| one.run == NodeId(1) && one.mode == Mode::Open;
        self.alone_again += usize::from(world.pairings > 0 && one.is_some_and(is_alone));
        // A host that was started again, after the other one took over.
        self.taken_back += usize::from(one.is_some_and(|one| one.run != NodeId(1) && one.mode == Mode::Open));
        self.stopped += usize::from(world.ended[0] == Some(Ended::Taken));
        self.handed_over += usize::from(world.ended[0] == Some(Ended::HandedOver));
    }
}

/// Every state that can be reached, depth first: only the states of one path are kept whole.
fn search(name: &str, start: World, bounds: Bounds) -> Result<Seen, String> {
    let mut seen = Seen::default();
    let mut known = HashSet::from([digest(&start)]);
    seen.note(&start);
    let moves = start.moves(bounds);
    let mut path = vec![(start, moves, None)];
    while let Some((world, moves, _)) = path.last_mut() {
        let Some(choice) = moves.pop() else {
            path.pop();
            continue;
        };
        let mut next = world.clone();
        if let Err(why) = next.make(choice, bounds) {
            let taken: Vec<Move> = path.iter().filter_map(|(.., choice)| *choice).chain([choice]).collect();
            return Err(format!("{why}, after {taken:?}"));
        }
        if known.insert(digest(&next)) {
            seen.note(&next);
            let moves = next.moves(bounds);
            path.push((next, moves, Some(choice)));
            seen.depth = seen.depth.max(path.len() - 1);
            if seen.states >= STATES_MAX {
                return Err(format!("not complete after {seen:?}"));
            }
        }
    }
    println!("{name}: complete, {seen:?}");
    Ok(seen)
}

/// Lets all go on in order for so many units of time, with a frame of the owner in each if `frames`.
fn lead(world: &mut World, units: u64, frames: bool) {
    for _ in 0..units {
        for _ in 0..4 {
            while !world.flying.is_empty() {
                world.make(Move::Deliver(0), WIDE).unwrap();
            }
            for index in 0..2 {
                world.make(Move::Step(index), WIDE).unwrap();
            }
        }
        for index in 0..2 {
            if frames && world.hosts[index].as_ref().is_some_and(Host::sends) {
                world.make(Move::Frame(index), WIDE).unwrap();
            }
            if world.hosts[index].as_ref().is_some_and(Host::may_copy) {
                world.make(Move::Copy(index), WIDE).unwrap();
            }
        }
        world.make(Move::Pass, WIDE).unwrap();
    }
}

const WIDE: Bounds = Bounds { frames: u8::MAX, deaths: 0, slips: 0, flying: 32, end: u64::MAX, departures: None };

/// Two hosts whose pair is confirmed, and from which frames have left.
fn paired(terms: Terms) -> World {
    let mut world = World::new(terms);
    lead(&mut world, 6, true);
    assert!(world.hosts[0].as_ref().is_some_and(Host::is_protected), "{:?}", world.hosts[0]);
    assert!(!world.emitted.is_empty());
    while !world.flying.is_empty() {
        world.make(Move::Deliver(0), WIDE).unwrap();
    }
    world
}

/// Bounds from a state on: frames, deaths, slips, packets on their way, units of time, departures from the order.
#[derive(Clone, Copy)]
struct Scope(u8, u8, u8, usize, u64, Option<u8>);

impl Scope {
    fn from(self, world: &World) -> Bounds {
        let Self(frames, deaths, slips, flying, units, departures) = self;
        let (frames, deaths, slips) = (world.frames + frames, world.deaths + deaths, world.slips + slips);
        Bounds { frames, deaths, slips, flying, end: world.now + units, departures }
    }
}

/// Whether `cargo xtask test --full` asks for all.
fn is_full() -> bool {
    std::env::var_os("NICETY_FULL").is_some_and(|value| value == "1")
}

/// Searches these scopes to the end, in a full run also the larger ones. Returns what all of them came across.
fn search_all(name: &str, start: &World, scopes: &[Scope], larger: &[Scope]) -> Seen {
    let mut all = Seen::default();
    let larger = larger.iter().filter(|_| is_full());
    for scope in scopes.iter().chain(larger) {
        all.add(&search(name, start.clone(), scope.from(start)).unwrap_or_else(|why| panic!("{name}: {why}")));
    }
    all
}

/// Any move at any time, within a unit or two of time.
const ANY: [Scope; 2] = [Scope(1, 1, 0, 2, 1, None), Scope(1, 0, 1, 2, 1, None)];
/// Two departures from the order at any time, in several leases of time.
const TWO: Scope = Scope(1, 1, 1, 16, 8, Some(2));
const TWO_LONGER: Scope = Scope(2, 1, 1, 16, 12, Some(2));
const THREE: Scope = Scope(1, 1, 1, 16, 8, Some(3));

#[test]
fn a_pair_never_has_two_owners() {
    let any = [ANY.as_slice(), &[Scope(0, 0, 0, 2, 2, None)]].concat();
    let seen = search_all("any move", &paired(SHORT), &any, &[Scope(1, 0, 0, 3, 2, None), Scope(0, 1, 0, 2, 2, None)]);
    assert!(
        seen.protected > 0 && seen.alone_again > 0 && seen.takeovers_with_output > 0 && seen.stopped > 0,
        "{seen:?}"
    );
    let seen = search_all("departures", &paired(SHORT), &[TWO], &[TWO_LONGER, THREE]);
    assert!(seen.alone_again > 0 && seen.takeovers_with_output > 0 && seen.stopped > 0, "{seen:?}");
    search_all("longer silence and lease", &paired(TERMS), &[], &[Scope(1, 1, 1, 16, 14, Some(2))]);
}

#[test]
fn two_hosts_that_find_each_other_never_both_own() {
    let world = World::new(SHORT);
    search_all("founding, any move", &world, &ANY, &[]);
    let seen = search_all("founding, departures", &world, &[TWO], &[TWO_LONGER]);
    assert!(seen.protected > 0 && seen.takeovers_with_output > 0, "{seen:?}");
}

/// The first host has died, the second has taken over, and another one joins it, which may take over as soon as it has what has left, and no
/// earlier.
#[test]
fn a_host_that_joins_a_survivor_is_its_heir_only_with_all_that_has_left() {
    let mut world = paired(SHORT);
    world.make(Move::Kill(0), WIDE).unwrap();
    world.flying.clear();
    lead(&mut world, 8, false);
    assert_eq!(world.owners(), [1], "{:?}", world.hosts[1]);
    world.flying.clear();
    world.restart(0);
    search_all("joining a survivor, any move", &world, &ANY, &[]);
    let seen = search_all("joining a survivor, departures", &world, &[TWO], &[TWO_LONGER]);
    assert!(seen.taken_back > 0, "{seen:?}");
}

/// The search is worth what it finds.
#[test]
fn the_search_finds_a_third_party_that_gives_a_guest_away_too_early() {
    for terms in [SHORT, TERMS] {
        let mut world = paired(terms);
        // It counts a lease as a third as long as the hosts do.
        let lease = world.keeper.lease;
        world.keeper = Keeper::new(u64::try_from(terms.lease.as_nanos()).unwrap() / 3);
        world.keeper.lease = lease;
        let bounds = TWO.from(&world);
        let why = search("a third party in a hurry", world, bounds).unwrap_err();
        assert!(why.starts_with("both own"), "{why}");
    }
}

/// Long walks by chance reach what a search by breadth does not.
#[test]
fn walks_by_chance_never_find_two_owners_or_lost_output() {
    let walks: u64 = std::env::var("NICETY_MODEL_WALKS").ok().and_then(|walks| walks.parse().ok()).unwrap_or(2_000);
    let mut seen = Seen::default();
    for seed in 0..walks {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |end: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % end as u64) as usize
        };
        let mut world = if seed % 2 == 0 { paired(TERMS) } else { World::new(TERMS) };
        let slips = if draw(2) == 0 { u8::MAX - world.slips } else { 0 };
        let bounds = Scope(20, (seed % 8 == 0).into(), slips, 12, 400, None).from(&world);
        // Some hosts and links are slow in this walk: what is chosen seldom.
        let slow = draw(8);
        let mut path = Vec::new();
        for _ in 0..400 {
            let moves = world.moves(bounds);
            if moves.is_empty() {
                break;
            }
            let mut choice = moves[draw(moves.len())];
            let is_slow = match choice {
                Move::Step(index) => slow == index,
                Move::Deliver(index) => match &world.flying[index].packet {
                    Packet::Ask(..) | Packet::Answer(..) => slow == 4,
                    _ => slow == 2 + world.flying[index].host,
                },
                Move::Lose(_) | Move::Break(_) | Move::Kill(_) | Move::KillQemu(_) | Move::KillDaemon(_) => true,
                _ => false,
            };
            if is_slow && draw(8) != 0 {
                choice = moves[draw(moves.len())];
            }
            path.push(choice);
            if let Err(why) = world.make(choice, bounds) {
                panic!("seed {seed}: {why}, after {path:?}");
            }
        }
        seen.note(&world);
    }
    println!("walks: {seen:?}");
    assert!(seen.takeovers > 0 && seen.alone_again > 0 && seen.stopped > 0, "{seen:?}");
}
