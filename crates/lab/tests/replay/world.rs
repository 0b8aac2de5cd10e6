//! Two hosts, their link, a third party, a switch and an outside client, in virtual time.

use std::collections::BTreeMap;

use nicety_adapter::Time;
use nicety_lab::replay::channel::{Reader, Writer};
use nicety_lab::replay::{Action, GuestTime, Host, Input, Machine, Replica, Role, Settings, Terms};
use nicety_lease::{Answer, Keeper, NodeId, Request};

use crate::help::{Client, GUEST_MAC, Task, settings};

pub const MS: u64 = 1_000_000;
/// Times on the way: between client and hosts, on the log's link, to the third party.
const NETWORK_NS: u64 = 40_000;
const LINK_NS: u64 = 60_000;
const LOCK_NS: u64 = 300_000;
const LEASE_NS: u64 = 1000 * MS;
const KEY: &[u8] = b"a key of the lab";

/// What befalls the first host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It dies.
    Kill,
    /// It stands still for this long, and continues with what it was about to do.
    Stop(u64),
    /// Nothing passes the link between the hosts for this long.
    Cut(u64),
    /// A bit of the next message on the link is another one.
    Alter,
    /// The third party is out of reach of both for this long, and so is the link.
    CutAll(u64),
    /// For this long the first host reaches neither the other host nor the third party. The other host reaches the third party.
    CutFirst(u64),
}

/// A replica that remembers what it sent.
pub struct Watched {
    replica: Replica,
    pub sent: Vec<Vec<u8>>,
    inputs: u64,
    /// The numbers of the inputs that were frames; the first input is 0.
    pub frames: Vec<u64>,
    /// It takes this frame for another one.
    spoils: Option<usize>,
}

impl Watched {
    fn new(settings: &Settings, spoils: Option<usize>) -> Self {
        Self { replica: Replica::new(settings).unwrap(), sent: Vec::new(), inputs: 0, frames: Vec::new(), spoils }
    }
}

impl Machine for Watched {
    fn take(&mut self, at: GuestTime, input: &Input, out: &mut Vec<Vec<u8>>) {
        let first = out.len();
        let mut input = input.clone();
        if let Input::Frame(frame) = &mut input
            && self.spoils == Some(self.frames.len())
        {
            frame[20] ^= 1;
        }
        self.replica.take(at, &input, out);
        if matches!(input, Input::Frame(_)) {
            self.frames.push(self.inputs);
        }
        self.inputs += 1;
        self.sent.extend_from_slice(&out[first..]);
    }

    fn wake(&self) -> Option<GuestTime> {
        self.replica.wake()
    }

    fn history(&self) -> u64 {
        self.replica.history()
    }

    fn state(&self) -> u64 {
        self.replica.state()
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        self.replica.announcement()
    }

    fn failure(&self) -> Option<String> {
        self.replica.failure()
    }
}

enum Event {
    ToHost(usize, Vec<u8>),
    ToClient(Vec<u8>),
    Peer(usize, Vec<u8>),
    Ask(usize, u32, Request),
    Answer(usize, u32, Answer),
}

struct Place {
    id: NodeId,
    host: Host<Watched>,
    writer: Writer,
    reader: Reader,
}

impl Place {
    /// A host at an end of a link whose directions have these names.
    fn new(id: NodeId, host: Host<Watched>, [out, back]: [u8; 2]) -> Self {
        Self { id, host, writer: Writer::new(KEY, out), reader: Reader::new(KEY, back) }
    }
}

/// See the module's page.
pub struct World {
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    number: u64,
    hosts: [Option<Place>; 2],
    keeper: Keeper,
    pub client: Client,
    /// The host at which the switch has seen the guest last.
    place: usize,
    /// Events and actions of the first host so far.
    pub points: usize,
    fault: Option<(usize, Fault)>,
    stopped_until: Option<u64>,
    /// What the first host was about to do when it stopped.
    deferred: Vec<Action>,
    link_cut_until: u64,
    alters: bool,
    /// The link was given up, because a message was not authentic.
    pub given_up: bool,
    lock_gone_until: [u64; 2],
    pub lock_ns: u64,
    pub link_ns: u64,
    /// The frames that left a host, without announcements.
    pub emitted: [Vec<Vec<u8>>; 2],
    /// Bytes of the log, and of the frames that the first host's guest received.
    pub logged: usize,
    pub received: usize,
    announcement: Vec<Vec<u8>>,
    turns: usize,
    is_begun: bool,
}

fn terms() -> Terms {
    Terms { state_every: 16, ..Terms::default() }
}

fn guest_now(now: u64) -> GuestTime {
    GuestTime(now / 1000)
}

impl World {
    pub fn new(adapter: &str, task: Task, fault: Option<(usize, Fault)>) -> Self {
        Self::of(&settings(adapter), None, task, fault)
    }

    /// Two hosts. The second one's guest takes this frame for another one.
    pub fn of(settings: &Settings, spoils: Option<usize>, task: Task, fault: Option<(usize, Fault)>) -> Self {
        let watched = |index: usize| Watched::new(settings, spoils.filter(|_| index == 1));
        let hosts = [
            Some(Place::new(NodeId(1), Host::owner(NodeId(1), watched(0), terms()), [1, 2])),
            Some(Place::new(NodeId(2), Host::twin(NodeId(2), watched(1), terms()), [2, 1])),
        ];
        let announcement = hosts[0].as_ref().unwrap().host.machine().announcement();
        assert!(announcement.iter().all(|frame| frame[6..12] == GUEST_MAC.0));
        let mut world = Self {
            now: 0,
            queue: BTreeMap::new(),
            number: 0,
            hosts,
            keeper: Keeper::new(LEASE_NS),
            client: Client::new(task, 0xc11e),
            place: 0,
            points: 0,
            fault: None,
            stopped_until: None,
            deferred: Vec::new(),
            link_cut_until: 0,
            alters: false,
            given_up: false,
            lock_gone_until: [0; 2],
            lock_ns: LOCK_NS,
            link_ns: LINK_NS,
            emitted: [Vec::new(), Vec::new()],
            logged: 0,
            received: 0,
            announcement,
            turns: 0,
            is_begun: false,
        };
        world.pass(5 * LEASE_NS);
        let status = world.host(0).unwrap().status();
        assert!(status.is_protected, "{status:?}");
        // From here on the client is there, and the fault may come.
        (world.points, world.fault, world.is_begun) = (0, fault, true);
        (world.logged, world.received) = (0, 0);
        world
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.number += 1;
        self.queue.insert((self.now + after_ns, self.number), event);
    }

    /// A new host, which knows nothing, joins the other one in place of this one, which is dead.
    pub fn join(&mut self, index: usize, settings: &Settings) {
        assert!(self.hosts[index].is_none());
        let is_of_dead = |event: &Event| match event {
            Event::ToHost(to, _) | Event::Ask(to, ..) | Event::Answer(to, ..) => *to == index,
            Event::Peer(..) => true,
            Event::ToClient(_) => false,
        };
        self.queue.retain(|_, event| !is_of_dead(event));
        self.number += 1;
        let id = NodeId(100 + self.number);
        let host = Host::twin(id, Watched::new(settings, None), terms());
        let names = [self.number as u8 | 1, self.number as u8 & !1];
        if let Some(other) = &mut self.hosts[1 - index] {
            (other.writer, other.reader) = (Writer::new(KEY, names[1]), Reader::new(KEY, names[0]));
        }
        self.hosts[index] = Some(Place::new(id, host, names));
    }

    /// A host dies.
    pub fn kill(&mut self, index: usize) {
        self.hosts[index] = None;
    }

    pub fn host(&self, index: usize) -> Option<&Host<Watched>> {
        self.hosts[index].as_ref().map(|place| &place.host)
    }

    fn is_stopped(&self, index: usize) -> bool {
        index == 0 && self.stopped_until.is_some()
    }

    /// One more thing that the first host does. True if the fault comes before it.
    fn point(&mut self, index: usize) -> bool {
        if index != 0 {
            return false;
        }
        self.points += 1;
        let Some((at, fault)) = self.fault.filter(|(at, _)| *at == self.points) else { return false };
        let _ = at;
        match fault {
            Fault::Kill => self.hosts[0] = None,
            Fault::Stop(ns) => self.stopped_until = Some(self.now + ns),
            Fault::Alter => self.alters = true,
            Fault::Cut(ns) => self.link_cut_until = self.now + ns,
            Fault::CutAll(ns) => {
                self.link_cut_until = self.now + ns;
                self.lock_gone_until = [self.now + ns; 2];
            }
            Fault::CutFirst(ns) => {
                self.link_cut_until = self.now + ns;
                self.lock_gone_until[0] = self.now + ns;
            }
        }
        matches!(fault, Fault::Kill | Fault::Stop(_))
    }

    /// Gives a host something to do, and does what it asks for.
    fn run(&mut self, index: usize, input: impl FnOnce(&mut Place, Time)) {
        let Some(place) = &mut self.hosts[index] else { return };
        let now = Time(self.now);
        let mut actions = Vec::new();
        input(place, now);
        place.host.step(now, &mut actions);
        self.act(index, actions);
    }

    fn act(&mut self, index: usize, actions: Vec<Action>) {
        let mut actions = actions.into_iter();
        while let Some(action) = actions.next() {
            if self.point(index) {
                if self.is_stopped(index) {
                    self.deferred = std::iter::once(action).chain(actions).collect();
                }
                return;
            }
            self.carry_out(index, action, true);
        }
    }

    fn carry_out(&mut self, index: usize, action: Action, is_fresh: bool) {
        match action {
            Action::Send(message) => {
                let Some(host) = &mut self.hosts[index] else { return };
                let mut bytes = Vec::new();
                host.writer.write(&message, &mut bytes);
                if std::mem::take(&mut self.alters) {
                    let at = self.points % bytes.len();
                    bytes[at] ^= 1 << (self.points % 8);
                }
                if index == 0 {
                    self.logged += bytes.len();
                }
                // A cut stream delivers nothing, and what was sent comes when it is whole again.
                let wait = self.link_cut_until.saturating_sub(self.now);
                self.at(wait + self.link_ns, Event::Peer(1 - index, bytes));
            }
            Action::Ask(number, request) => {
                let lost = self.now < self.lock_gone_until[index];
                if !lost {
                    self.at(self.lock_ns, Event::Ask(index, number, request));
                }
            }
            Action::Emit(frame) => {
                // A host that stopped between looking at the clock and sending may send what the other knows.
                if is_fresh {
                    let owner = self.host(1 - index).is_some_and(|other| other.owns(Time(self.now)));
                    assert!(!owner, "host {index} emits while the other owns");
                }
                self.place = index;
                if !self.announcement.contains(&frame) {
                    self.emitted[index].push(frame.clone());
                }
                self.at(NETWORK_NS, Event::ToClient(frame));
            }
        }
    }

    fn deliver(&mut self, event: Event) {
        let to = match &event {
            Event::ToHost(index, _) | Event::Peer(index, _) | Event::Answer(index, ..) => Some(*index),
            Event::ToClient(_) | Event::Ask(..) => None,
        };
        if let (Some(0), Some(until)) = (to, self.stopped_until) {
            return self.at(until - self.now, event);
        }
        if let Some(index) = to
            && self.point(index)
        {
            if self.is_stopped(index) {
                self.deliver(event);
            }
            return;
        }
        match event {
            Event::ToHost(index, frame) => {
                if index == 0 {
                    self.received += frame.len();
                }
                self.run(index, |place, now| {
                    // Without room it is lost, as in a full ring.
                    let _taken = place.host.offer(frame, now);
                });
            }
            Event::Peer(index, bytes) => {
                let mut is_forged = false;
                self.run(index, |place, now| {
                    place.reader.push(&bytes);
                    loop {
                        match place.reader.read() {
                            Ok(Some(message)) => place.host.receive(message, now),
                            Ok(None) => break,
                            Err(_) => {
                                is_forged = true;
                                break;
                            }
                        }
                    }
                });
                if is_forged {
                    // The link is given up, at both ends.
                    self.given_up = true;
                    self.queue.retain(|_, event| !matches!(event, Event::Peer(..)));
                    (0..2).for_each(|index| self.run(index, |place, now| place.host.lost(now)));
                }
            }
            Event::Answer(index, number, answer) => {
                self.run(index, |place, now| place.host.answered(number, Some(answer), now));
            }
            Event::Ask(index, number, request) => {
                let Some(who) = self.hosts[index].as_ref().map(|place| place.id) else { return };
                let answer = self.keeper.ask(who, request, self.now);
                if self.now >= self.lock_gone_until[index] {
                    self.at(self.lock_ns, Event::Answer(index, number, answer));
                }
            }
            Event::ToClient(frame) => self.client.frame(frame),
        }
    }

    fn due(&self) -> Option<u64> {
        let hosts = (0..2).filter(|index| !self.is_stopped(*index)).filter_map(|index| self.host(index)?.due());
        let client = self.client.wake().filter(|_| self.is_begun).map(|wake| wake.0 * 1000);
        let event = self.queue.keys().next().map(|(at, _)| *at);
        hosts.map(|time| time.0).chain(client).chain(event).chain(self.stopped_until).min()
    }

    /// Runs until the client is done, it gives up, or `end`.
    pub fn play(&mut self, end: u64) {
        self.play_until(end, |_| false);
    }

    /// Runs until something is the case, too.
    pub fn play_until(&mut self, end: u64, stop: impl Fn(&Self) -> bool) {
        while !self.client.done() && self.client.broken.is_none() && !stop(self) {
            let Some(next) = self.due().filter(|next| *next <= end) else { return };
            self.turn(next);
        }
    }

    fn turn(&mut self, next: u64) {
        self.turns += 1;
        assert!(
            self.turns < 100_000,
            "time stands still at {} ns: {:?} {:?}",
            self.now,
            self.host(0).map(Host::status),
            self.host(1).map(Host::status)
        );
        self.now = self.now.max(next);
        if self.stopped_until.is_some_and(|until| until <= self.now) {
            self.stopped_until = None;
            for action in std::mem::take(&mut self.deferred) {
                self.carry_out(0, action, false);
            }
        }
        while let Some(entry) = self.queue.first_entry()
            && entry.key().0 <= self.now
        {
            let event = entry.remove();
            self.deliver(event);
        }
        for index in 0..2 {
            let due = self.host(index).and_then(Host::due).is_some_and(|due| due.0 <= self.now);
            if due && !self.is_stopped(index) && !self.point(index) {
                self.run(index, |_, _| {});
            }
        }
        let frames = if self.is_begun { self.client.run(guest_now(self.now)) } else { Vec::new() };
        for frame in frames {
            let is_broadcast = frame[0] & 1 == 1;
            for index in 0..2 {
                if is_broadcast || index == self.place {
                    self.at(NETWORK_NS, Event::ToHost(index, frame.clone()));
                }
            }
        }
        let owners = (0..2).filter(|index| self.host(*index).is_some_and(|host| host.owns(Time(self.now)))).count();
        assert!(owners <= 1, "both own at {} ns", self.now);
    }

    /// Lets time pass without an end of the client's.
    pub fn pass(&mut self, end: u64) {
        while let Some(next) = self.due().filter(|next| *next <= end) {
            self.turn(next);
        }
    }

    /// The host that runs the guest knows all that has left.
    pub fn check(&self, told: &str) {
        for index in 0..2 {
            let Some(host) = self.host(index).filter(|host| host.role() == Role::Owner) else { continue };
            if !host.owns(Time(self.now)) {
                continue;
            }
            let other = &self.emitted[1 - index];
            let sent = &host.machine().sent;
            assert!(sent.starts_with(other), "{told}: host {index} does not know what the other sent");
        }
    }
}
