//! Two hosts, their link, a third party, a switch and an outside client, in virtual time.

use std::collections::BTreeMap;

use nicety_adapter::Time;
use nicety_lease::{Answer, Keeper, NodeId, Request};
use nicety_tolerance::channel::{self, PROTOCOL, Reader, Writer};
use nicety_tolerance::{Action, Application, Call, GuestTime, Key, Machine, Node, Replica, Role, Settings, Terms};

use crate::help::{Client, GUEST_MAC, Task, settings};

pub const MS: u64 = 1_000_000;
/// Times on the way: between client and hosts, on the log's link, to the third party.
const NETWORK_NS: u64 = 40_000;
const LINK_NS: u64 = 60_000;
const LOCK_NS: u64 = 300_000;

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
    calls: u64,
    /// The numbers of the calls that were frames; the first call is 0.
    pub frames: Vec<u64>,
    /// It takes this frame for another one.
    spoils: Option<usize>,
}

impl Watched {
    fn new(settings: &Settings, spoils: Option<usize>) -> Self {
        Self { replica: Replica::new(settings).unwrap(), sent: Vec::new(), calls: 0, frames: Vec::new(), spoils }
    }
}

impl Machine for Watched {
    fn call(&mut self, at: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>) {
        let first = out.len();
        let mut call = call.clone();
        if let Call::Frame(frame) = &mut call
            && self.spoils == Some(self.frames.len())
        {
            frame[20] ^= 1;
        }
        self.replica.call(at, &call, out);
        if matches!(call, Call::Frame(_)) {
            self.frames.push(self.calls);
        }
        self.calls += 1;
        self.sent.extend_from_slice(&out[first..]);
    }

    fn renew(&mut self, at: GuestTime, out: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        let first = out.len();
        let image = self.replica.renew(at, out)?;
        self.calls += 1;
        self.sent.extend_from_slice(&out[first..]);
        Some(postcard::to_allocvec(&(image, &self.sent, self.calls, &self.frames)).unwrap())
    }

    fn restore(&mut self, at: GuestTime, image: &[u8], out: &mut Vec<Vec<u8>>) -> Result<(), String> {
        let image: (Vec<u8>, Vec<Vec<u8>>, u64, Vec<u64>) = postcard::from_bytes(image).unwrap();
        (self.sent, self.calls, self.frames) = (image.1, image.2, image.3);
        self.replica.restore(at, &image.0, out)
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

struct Host {
    id: NodeId,
    node: Node<Watched>,
    writer: Writer,
    reader: Reader,
}

/// See the module's page.
pub struct World {
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    number: u64,
    hosts: [Option<Host>; 2],
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
    /// Connections that were given up, because a message was not authentic.
    pub given_up: usize,
    lock_gone_until: [u64; 2],
    pub lock_ns: u64,
    pub link_ns: u64,
    /// Bytes that the link takes in a second. `None`: as many as there are.
    pub link_rate: Option<u64>,
    /// When the last byte of each host has gone over the link, and most bytes that waited for it.
    link_free_at: [u64; 2],
    pub link_waiting_most: u64,
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
    pub fn new(adapter: &str, application: Application, task: Task, fault: Option<(usize, Fault)>) -> Self {
        Self::of(&settings(adapter, application), None, task, fault)
    }

    /// Two hosts. The second one's guest takes this frame for another one.
    pub fn of(settings: &Settings, spoils: Option<usize>, task: Task, fault: Option<(usize, Fault)>) -> Self {
        let watched = |index: usize| Watched::new(settings, spoils.filter(|_| index == 1));
        let key = Key::new(b"a key of sixteen bytes or more");
        let hellos = [key.hello(PROTOCOL, 1, 1, [1; 16]), key.hello(PROTOCOL, 1, 1, [2; 16])];
        let start = Time(0);
        let host = |node: Node<Watched>, ours: usize| {
            let (writer, reader) = channel::joined(&key, &hellos[ours], &hellos[1 - ours]).unwrap();
            Some(Host { id: NodeId(ours as u64 + 1), node, writer, reader })
        };
        let hosts = [
            host(Node::primary(NodeId(1), watched(0), terms(), start), 0),
            host(Node::secondary(NodeId(2), watched(1), terms(), start), 1),
        ];
        let announcement = hosts[0].as_ref().unwrap().node.machine().announcement();
        assert!(announcement.iter().all(|frame| frame[6..12] == GUEST_MAC.0));
        let mut world = Self {
            now: 0,
            queue: BTreeMap::new(),
            number: 0,
            hosts,
            keeper: Keeper::new(terms().lease_ns),
            client: Client::new(task, 0xc11e),
            place: 0,
            points: 0,
            fault: None,
            stopped_until: None,
            deferred: Vec::new(),
            link_cut_until: 0,
            alters: false,
            given_up: 0,
            lock_gone_until: [0; 2],
            lock_ns: LOCK_NS,
            link_ns: LINK_NS,
            link_rate: None,
            link_free_at: [0; 2],
            link_waiting_most: 0,
            emitted: [Vec::new(), Vec::new()],
            logged: 0,
            received: 0,
            announcement,
            turns: 0,
            is_begun: false,
        };
        world.pass(5 * terms().lease_ns);
        let status = world.node(0).unwrap().status();
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
        let node = Node::secondary(id, Watched::new(settings, None), terms(), Time(self.now));
        let key = Key::new(b"a key of sixteen bytes or more");
        let (writer, reader) =
            channel::joined(&key, &key.hello(PROTOCOL, 1, 1, [1; 16]), &key.hello(PROTOCOL, 1, 1, [2; 16])).unwrap();
        self.hosts[index] = Some(Host { id, node, writer, reader });
        self.connect();
    }

    /// A new connection between the hosts. What is on its way on the old one is lost.
    fn connect(&mut self) {
        self.queue.retain(|_, event| !matches!(event, Event::Peer(..)));
        self.number += 1;
        let key = Key::new(b"a key of sixteen bytes or more");
        let nonce = |side: u8| std::array::from_fn(|at| if at == 0 { side } else { self.number.to_le_bytes()[at % 8] });
        let hellos = [1, 2].map(|side| key.hello(PROTOCOL, 1, 1, nonce(side)));
        for (side, host) in self.hosts.iter_mut().enumerate() {
            if let Some(host) = host {
                (host.writer, host.reader) = channel::joined(&key, &hellos[side], &hellos[1 - side]).unwrap();
            }
        }
    }

    /// A host dies.
    pub fn kill(&mut self, index: usize) {
        self.hosts[index] = None;
    }

    pub fn node(&self, index: usize) -> Option<&Node<Watched>> {
        self.hosts[index].as_ref().map(|host| &host.node)
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
    fn run(&mut self, index: usize, input: impl FnOnce(&mut Host, Time, &mut Vec<Action>)) {
        let Some(host) = &mut self.hosts[index] else { return };
        let now = Time(self.now);
        let mut actions = Vec::new();
        input(host, now, &mut actions);
        host.node.step(now, &mut actions);
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
                let wait = wait.max(self.queue_on_link(index, bytes.len() as u64));
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
                    let owner = self.node(1 - index).is_some_and(|other| other.owns(Time(self.now)));
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

    /// How long bytes take until the last of them has gone over a slow link.
    fn queue_on_link(&mut self, index: usize, bytes: u64) -> u64 {
        let Some(rate) = self.link_rate else { return 0 };
        let free_at = self.link_free_at[index].max(self.now) + bytes * 1000 * MS / rate;
        self.link_free_at[index] = free_at;
        let wait = free_at - self.now;
        self.link_waiting_most = self.link_waiting_most.max(wait * rate / (1000 * MS));
        wait
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
                self.run(index, |host, now, _| {
                    // Without room it is lost, as in a full ring.
                    let _taken = host.node.offer(frame, now);
                });
            }
            Event::Peer(index, bytes) => {
                let mut is_forged = false;
                self.run(index, |host, now, actions| {
                    host.reader.push(&bytes);
                    loop {
                        match host.reader.read() {
                            Ok(Some(message)) => host.node.receive(message, now, actions),
                            Ok(None) => break,
                            Err(_) => {
                                is_forged = true;
                                break;
                            }
                        }
                    }
                });
                if is_forged {
                    self.given_up += 1;
                    self.connect();
                }
            }
            Event::Answer(index, number, answer) => {
                self.run(index, |host, now, _| host.node.answered(number, answer, now));
            }
            Event::Ask(index, number, request) => {
                let Some(who) = self.hosts[index].as_ref().map(|host| host.id) else { return };
                let answer = self.keeper.ask(who, request, self.now);
                if self.now >= self.lock_gone_until[index] {
                    self.at(self.lock_ns, Event::Answer(index, number, answer));
                }
            }
            Event::ToClient(frame) => self.client.frame(frame),
        }
    }

    fn due(&self) -> Option<u64> {
        let hosts = (0..2).filter(|index| !self.is_stopped(*index)).filter_map(|index| self.node(index)?.due());
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
            self.node(0).map(Node::status),
            self.node(1).map(Node::status)
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
            let due = self.node(index).and_then(Node::due).is_some_and(|due| due.0 <= self.now);
            if due && !self.is_stopped(index) && !self.point(index) {
                self.run(index, |_, _, _| {});
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
        let owners = (0..2).filter(|index| self.node(*index).is_some_and(|node| node.owns(Time(self.now)))).count();
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
            let Some(node) = self.node(index).filter(|node| *node.role() == Role::Primary) else { continue };
            if !node.owns(Time(self.now)) {
                continue;
            }
            let other = &self.emitted[1 - index];
            let sent = &node.machine().sent;
            assert!(sent.starts_with(other), "{told}: host {index} does not know what the other sent");
        }
    }
}
