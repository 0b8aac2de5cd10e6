//! A real kernel on two hosts: the first runs it, the second replays it from the log of frames and times, and goes on when the first dies
//! (docs/lab.md). The hosts are those of the lab's `replay`, their link and the third party are virtual, and so is time; the guests are
//! processes.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
};

use crate::{
    host::{self, Event},
    outside::{MAC, Outside, Peer, Queue},
};
use nicety_adapter::Time;
use nicety_lab::replay::{Action, End, GuestTime, Host, Input, Machine, Message, Role, Terms, channel::Writer};
use nicety_lease::{Answer, Keeper, NodeId, Request};

/// Times on the way: between client and hosts, between the hosts, and to the third party.
const NETWORK_NS: u64 = 40_000;
const LINK_NS: u64 = 60_000;
const LOCK_NS: u64 = 300_000;

/// The guest's address and the adapter's.
const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0];
const GUEST: [u8; 4] = [10, 0, 0, 2];

/// Frames for the guest, with the times of these inputs.
#[derive(Clone, Default)]
struct Inputs(Rc<RefCell<Queue>>);

impl Outside for Inputs {
    fn sent(&mut self, _now: u64, _frame: &[u8]) {}

    fn next(&mut self) -> Option<u64> {
        self.0.borrow().front().map(|(time, _)| *time)
    }

    fn take(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut inputs = self.0.borrow_mut();
        let due = inputs.iter().take_while(|(time, _)| *time <= now).count();
        inputs.drain(..due).map(|(_, frame)| frame).collect()
    }
}

/// A kernel as a guest of a [`Host`]. Its digest is of everything that it did: each register access, interrupt and frame, with its time.
pub struct Kernel {
    host: host::Host,
    inputs: Inputs,
    wake: Option<GuestTime>,
    digest: DefaultHasher,
    sent: Vec<Vec<u8>>,
    failure: Option<String>,
}

impl Kernel {
    pub fn start(machine: &host::Machine<'_>) -> Kernel {
        let inputs = Inputs::default();
        let host = host::Host::start(machine, Box::new(inputs.clone())).unwrap();
        let wake = Some(GuestTime::default());
        Kernel { host, inputs, wake, digest: DefaultHasher::new(), sent: Vec::new(), failure: None }
    }
}

impl Machine for Kernel {
    fn take(&mut self, at: GuestTime, input: &Input, out: &mut Vec<Vec<u8>>) {
        let Time(now) = at.time();
        if let Input::Frame(frame) = input {
            self.inputs.0.borrow_mut().push_back((now, frame.clone()));
        }
        if let Err(error) = self.host.advance(now) {
            self.failure = Some(error.to_string());
        }
        for event in self.host.take_events() {
            event.hash(&mut self.digest);
            if let (_, Event::Sent(frame)) = event {
                self.sent.push(frame.clone());
                out.push(frame);
            }
        }
        self.wake = self.host.next().map(|next| GuestTime::not_before(Time(next)));
        if self.wake.is_none() && self.failure.is_none() {
            self.failure = Some("it has powered off".to_owned());
        }
    }

    fn wake(&self) -> Option<GuestTime> {
        self.wake
    }

    fn history(&self) -> u64 {
        self.digest.finish()
    }

    fn state(&self) -> u64 {
        self.digest.finish()
    }

    /// RFC 5227, section 3: an ARP announcement.
    fn announcement(&self) -> Vec<Vec<u8>> {
        let head = [0, 1, 8, 0, 6, 4, 0, 1];
        vec![[&[0xff; 6][..], &GUEST_MAC, &[8, 6], &head, &GUEST_MAC, &GUEST, &[0; 6], &GUEST, &[0; 18]].concat()]
    }

    fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}

/// Something on its way.
enum Arrival {
    ToHost(usize, Vec<u8>),
    ToClient(Vec<u8>),
    Peer(usize, Message),
    Ask(usize, u32, Request),
    Answer(usize, u32, Answer),
}

/// Two hosts, a third party, and a client outside.
pub struct World {
    now: u64,
    queue: BTreeMap<(u64, u64), Arrival>,
    number: u64,
    hosts: [Option<Host<Kernel>>; 2],
    keeper: Keeper,
    pub client: Peer,
    /// The host that the switch has seen the guest at last.
    place: usize,
    /// Inputs and actions of the first host since it may die, and the one before which it does.
    pub points: usize,
    dies_at: usize,
    armed_ns: u64,
    pub emitted: [Vec<Vec<u8>>; 2],
    /// Bytes of frames that the first host took for its guest.
    pub received: usize,
    /// Bytes that each host sent to the other one: of the first, the log.
    pub logged: [usize; 2],
    writers: [Writer; 2],
    /// Hosts that have ended by themselves, and why.
    pub ended: Vec<(usize, End)>,
}

impl World {
    /// The first host dies before its point of this number, from this time on.
    pub fn new(machines: [&host::Machine<'_>; 2], client: Peer, armed_ns: u64, dies_at: usize) -> World {
        let terms = Terms { state_every: 16, ..Terms::default() };
        let hosts = [
            Some(Host::owner(NodeId(1), Kernel::start(machines[0]), terms)),
            Some(Host::twin(NodeId(2), Kernel::start(machines[1]), terms)),
        ];
        let writers = [1, 2].map(|direction| Writer::new(b"a key of the lab", direction));
        let lease_ns = u64::try_from(terms.protect.lease.as_nanos()).unwrap();
        World {
            now: 0,
            queue: BTreeMap::new(),
            number: 0,
            hosts,
            keeper: Keeper::new(lease_ns),
            client,
            place: 0,
            points: 0,
            dies_at,
            armed_ns,
            emitted: [Vec::new(), Vec::new()],
            received: 0,
            logged: [0; 2],
            writers,
            ended: Vec::new(),
        }
    }

    pub fn host(&self, index: usize) -> Option<&Host<Kernel>> {
        self.hosts[index].as_ref()
    }

    pub fn console(&self, index: usize) -> String {
        self.hosts[index].as_ref().map(|host| host.machine().host.console()).unwrap_or_default()
    }

    /// Whether the survivor has sent each frame that left the first host, in that order.
    pub fn is_known(&self) -> bool {
        let Some(survivor) = &self.hosts[1] else { return false };
        let announcement = survivor.machine().announcement();
        let mut sent = survivor.machine().sent.iter();
        self.emitted[0].iter().filter(|frame| !announcement.contains(frame)).all(|frame| sent.any(|own| own == frame))
    }

    fn at(&mut self, after_ns: u64, arrival: Arrival) {
        self.number += 1;
        self.queue.insert((self.now + after_ns, self.number), arrival);
    }

    /// One more point of a host. True if it dies before it.
    fn point(&mut self, index: usize) -> bool {
        if index == 0 && self.now >= self.armed_ns {
            self.points += 1;
            if self.points == self.dies_at {
                self.hosts[0] = None;
            }
        }
        self.hosts[index].is_none()
    }

    fn give(&mut self, index: usize, input: impl FnOnce(&mut Host<Kernel>, Time)) {
        if self.point(index) {
            return;
        }
        let Some(host) = &mut self.hosts[index] else { return };
        let mut actions = Vec::new();
        input(host, Time(self.now));
        host.step(Time(self.now), &mut actions);
        for action in actions {
            if self.point(index) {
                return;
            }
            match action {
                Action::Send(message) => {
                    let mut bytes = Vec::new();
                    self.writers[index].write(&message, &mut bytes);
                    self.logged[index] += bytes.len();
                    self.at(LINK_NS, Arrival::Peer(1 - index, message));
                }
                Action::Ask(number, request) => self.at(LOCK_NS, Arrival::Ask(index, number, request)),
                Action::Emit(frame) => {
                    let other = self.hosts[1 - index].as_ref();
                    assert!(!other.is_some_and(|other| other.owns(Time(self.now))), "two owners");
                    self.place = index;
                    self.emitted[index].push(frame.clone());
                    self.at(NETWORK_NS, Arrival::ToClient(frame));
                }
            }
        }
    }

    /// Until this time.
    pub fn pass(&mut self, until_ns: u64) {
        loop {
            let due = self.hosts.iter().flatten().filter_map(Host::due).map(|Time(ns)| ns);
            let next = due.chain(self.client.next()).chain(self.queue.keys().next().map(|(ns, _)| *ns)).min();
            let Some(next) = next.filter(|next| *next <= until_ns) else { break };
            self.now = self.now.max(next);
            for frame in self.client.take(self.now) {
                self.at(NETWORK_NS, Arrival::ToHost(self.place, frame));
            }
            while self.queue.keys().next().is_some_and(|(ns, _)| *ns <= self.now) {
                let Some((_, input)) = self.queue.pop_first() else { break };
                match input {
                    Arrival::ToHost(index, frame) => {
                        let (len, mut is_taken) = (frame.len(), false);
                        self.give(index, |host, now| is_taken = host.offer(frame, now));
                        self.received += if is_taken && index == 0 { len } else { 0 };
                    }
                    Arrival::Peer(index, message) => {
                        self.give(index, |host, now| host.receive(message, now));
                    }
                    Arrival::Answer(index, number, answer) => {
                        self.give(index, |host, now| host.answered(number, Some(answer), now));
                    }
                    Arrival::Ask(index, number, request) => {
                        let answer = self.keeper.ask(NodeId(index as u64 + 1), request, self.now);
                        self.at(LOCK_NS, Arrival::Answer(index, number, answer));
                    }
                    // The client knows the guest by its own address.
                    Arrival::ToClient(frame) if frame.get(..6).is_some_and(|to| to == MAC || to[0] & 1 == 1) => {
                        self.client.sent(self.now, &frame);
                    }
                    Arrival::ToClient(_) => {}
                }
            }
            for index in 0..2 {
                let is_due = |host: &Host<Kernel>| host.due().is_some_and(|at| at <= Time(self.now));
                if self.hosts[index].as_ref().is_some_and(is_due) {
                    self.give(index, |_, _| ());
                }
            }
            for index in 0..2 {
                if let Some(Role::Out(end)) = self.hosts[index].as_ref().map(Host::role) {
                    self.hosts[index] = None;
                    self.ended.push((index, end));
                }
            }
        }
        self.now = until_ns;
    }
}
