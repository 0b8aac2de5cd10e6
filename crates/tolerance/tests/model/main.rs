//! The protocol in all interleavings, up to a bound: two hosts, a third party, messages that are delayed, reordered, repeated and lost,
//! hosts that stop for as long as they like, continue, or die. The hosts are the real state machines, with a guest of a few bytes.
//!
//! What must always hold:
//! 1. Never two owners: a host may emit only while no other may.
//! 2. Nothing has left that the owner does not know: its calls begin with those from which frames have left.
//! 3. Both replicas made the same calls.

use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use nicety_adapter::Time;
use nicety_tolerance::{Action, Answer, Call, GuestTime, Keeper, Machine, Message, Node, NodeId, Request, Role, Terms};

/// Answers each frame with its own number and a digest of all calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Toy {
    calls: Vec<u8>,
}

impl Machine for Toy {
    fn call(&mut self, _: GuestTime, call: &Call, out: &mut Vec<Vec<u8>>) {
        if let Call::Frame(frame) = call {
            self.calls.push(frame[0]);
            // What has left says which calls it follows from.
            out.push(self.calls.clone());
        }
    }

    fn renew(&mut self, _: GuestTime, _: &mut Vec<Vec<u8>>) -> Option<Vec<u8>> {
        Some([&[1], self.calls.as_slice()].concat())
    }

    fn restore(&mut self, _: GuestTime, image: &[u8], _: &mut Vec<Vec<u8>>) -> Result<(), String> {
        self.calls = image[1..].to_vec();
        Ok(())
    }

    fn wake(&self) -> Option<GuestTime> {
        None
    }

    fn history(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.calls.hash(&mut hasher);
        hasher.finish()
    }

    fn state(&self) -> u64 {
        self.history()
    }

    fn announcement(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}

/// A microsecond is the unit: a lease lasts four of them.
const UNIT: u64 = 1000;
const TERMS: Terms = Terms {
    lease_ns: 4 * UNIT,
    margin_ns: UNIT,
    heartbeat_ns: UNIT,
    silence_ns: 2 * UNIT,
    gate_bytes: 64,
    window_calls: 4,
    history_bytes: 1 << 20,
    state_every: 2,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Packet {
    Peer(Message),
    Ask(u32, Request),
    Answer(u32, Answer),
}

/// A packet on its way. `host` sends or, for an answer, receives it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flying {
    host: usize,
    packet: Packet,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    now: u64,
    hosts: [Option<Node<Toy>>; 2],
    ids: [NodeId; 2],
    keeper: Keeper,
    flying: Vec<Flying>,
    frames: u8,
    deaths: u8,
    /// The calls from which the frame that follows from most calls has left.
    emitted: Vec<u8>,
}

/// One thing that may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Step(usize),
    Frame(usize),
    Deliver(usize),
    Repeat(usize),
    Lose(usize),
    Kill(usize),
    HandOver(usize),
    Stop(usize),
    Pass,
}

/// Bounds of a search.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    frames: u8,
    deaths: u8,
    flying: usize,
    end: u64,
    /// Whether packets overtake each other, are repeated and lost.
    unreliable: bool,
}

impl World {
    fn new() -> Self {
        let now = Time(0);
        let hosts = [
            Some(Node::primary(NodeId(1), Toy::default(), TERMS, now)),
            Some(Node::secondary(NodeId(2), Toy::default(), TERMS, now)),
        ];
        let keeper = Keeper::new(TERMS.lease_ns);
        let ids = [NodeId(1), NodeId(2)];
        Self { now: 0, hosts, ids, keeper, flying: Vec::new(), frames: 0, deaths: 0, emitted: Vec::new() }
    }

    /// A host that died begins again as another one, which knows nothing.
    fn restart(&mut self, index: usize) {
        assert!(self.hosts[index].is_none());
        self.ids[index] = NodeId(self.ids[index].0 + 2);
        self.hosts[index] = Some(Node::secondary(self.ids[index], Toy::default(), TERMS, Time(self.now * UNIT)));
    }

    fn moves(&self, bounds: Bounds) -> Vec<Move> {
        let mut moves = Vec::new();
        for (index, host) in self.hosts.iter().enumerate() {
            let Some(host) = host else { continue };
            // Stopping is not being chosen for a while.
            moves.push(Move::Step(index));
            if self.frames < bounds.frames && host.has_room() {
                moves.push(Move::Frame(index));
            }
            if self.deaths < bounds.deaths {
                moves.extend([Move::Kill(index), Move::HandOver(index), Move::Stop(index)]);
            }
        }
        for index in 0..self.flying.len() {
            if bounds.unreliable {
                moves.push(Move::Lose(index));
                if self.flying.len() < bounds.flying {
                    moves.push(Move::Repeat(index));
                }
            }
            // A stream's bytes come in order.
            let flying = &self.flying[index];
            let kind = |packet: &Packet| std::mem::discriminant(packet);
            let is_first = !self.flying[..index]
                .iter()
                .any(|other| other.host == flying.host && kind(&other.packet) == kind(&flying.packet));
            if bounds.unreliable || is_first {
                moves.push(Move::Deliver(index));
            }
        }
        if self.now < bounds.end {
            moves.push(Move::Pass);
        }
        moves
    }

    fn make(&mut self, choice: Move, bounds: Bounds) -> Result<(), String> {
        let now = Time(self.now * UNIT);
        match choice {
            Move::Pass => self.now += 1,
            Move::Kill(index) => {
                self.hosts[index] = None;
                self.deaths += 1;
            }
            Move::HandOver(index) => {
                self.deaths += 1;
                self.act(index, bounds, |host, actions| {
                    let _handed_over = host.hand_over(now, actions);
                })?;
            }
            Move::Stop(index) => {
                self.deaths += 1;
                self.act(index, bounds, |host, _| host.stop())?;
            }
            Move::Lose(index) => drop(self.flying.remove(index)),
            Move::Repeat(index) => self.flying.push(self.flying[index].clone()),
            Move::Frame(index) => {
                self.frames += 1;
                let frame = vec![self.frames];
                self.act(index, bounds, |host, _| {
                    let _taken = host.offer(frame, now);
                })?;
            }
            Move::Step(index) => self.act(index, bounds, |host, actions| host.step(now, actions))?,
            Move::Deliver(index) => {
                let Flying { host, packet } = self.flying.remove(index);
                match packet {
                    Packet::Peer(message) => {
                        self.act(1 - host, bounds, |host, actions| host.receive(message, now, actions))?;
                    }
                    Packet::Answer(number, answer) => {
                        self.act(host, bounds, |host, _| host.answered(number, answer, now))?;
                    }
                    Packet::Ask(number, request) => {
                        let answer = self.keeper.ask(self.ids[host], request, now);
                        self.flying.push(Flying { host, packet: Packet::Answer(number, answer) });
                    }
                }
            }
        }
        self.check()
    }

    fn act(
        &mut self,
        index: usize,
        bounds: Bounds,
        act: impl FnOnce(&mut Node<Toy>, &mut Vec<Action>),
    ) -> Result<(), String> {
        let Some(host) = &mut self.hosts[index] else { return Ok(()) };
        let mut actions = Vec::new();
        act(host, &mut actions);
        for action in actions {
            let packet = match action {
                Action::Send(message) => Packet::Peer(message),
                Action::Ask(number, request) => Packet::Ask(number, request),
                Action::Emit(calls) => {
                    if let Some(owner) = self.owners().into_iter().find(|owner| *owner != index) {
                        return Err(format!("host {index} emits while host {owner} owns"));
                    }
                    if calls.len() > self.emitted.len() {
                        self.emitted = calls;
                    } else if !self.emitted.starts_with(&calls) {
                        return Err(format!("{calls:?} left after {:?}", self.emitted));
                    }
                    continue;
                }
            };
            // More than fit are lost.
            if self.flying.len() < bounds.flying {
                self.flying.push(Flying { host: index, packet });
            }
        }
        Ok(())
    }

    fn owners(&self) -> Vec<usize> {
        let now = Time(self.now * UNIT);
        let owns = |index: &usize| self.hosts[*index].as_ref().is_some_and(|host| host.owns(now));
        (0..2).filter(owns).collect()
    }

    fn check(&self) -> Result<(), String> {
        let owners = self.owners();
        if owners.len() > 1 {
            return Err("both own".to_owned());
        }
        for index in owners {
            let known = self.hosts[index].as_ref().map(|host| &host.machine().calls);
            if known.is_some_and(|known| !known.starts_with(&self.emitted)) {
                return Err(format!("{:?} has left, and the owner, host {index}, knows {known:?}", self.emitted));
            }
        }
        for host in self.hosts.iter().flatten() {
            if let Role::Out(nicety_tolerance::node::End::Diverged(_)) = host.role() {
                return Err("equal replicas were taken for different ones".to_owned());
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

/// What a search came across: a search that never sees a takeover proves nothing.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    images: usize,
    protected: usize,
    takeovers: usize,
    takeovers_with_output: usize,
    alone_again: usize,
    stopped: usize,
}

impl Seen {
    fn note(&mut self, world: &World) {
        self.states += 1;
        let is_joining = |host: &Node<Toy>| host.status().image.is_some();
        self.images += usize::from(world.hosts.iter().flatten().any(is_joining));
        let [one, other] = world.hosts.each_ref().map(|host| host.as_ref().map(Node::status));
        self.protected += usize::from(one.as_ref().is_some_and(|one| one.is_protected));
        let took = other.is_some_and(|other| other.role == Role::Primary);
        self.takeovers += usize::from(took);
        self.takeovers_with_output += usize::from(took && !world.emitted.is_empty());
        self.alone_again += usize::from(one.as_ref().is_some_and(|one| one.epoch >= 3 && one.role == Role::Primary));
        self.stopped += usize::from(one.is_some_and(|one| one.role == Role::Out(nicety_tolerance::node::End::Owned)));
    }
}

/// Every state that can be reached, nearest first, up to so many.
fn search(start: World, bounds: Bounds, most: usize) -> Result<(Seen, bool), String> {
    let mut seen = Seen::default();
    let mut known = HashSet::from([digest(&start)]);
    let mut open = VecDeque::from([(start, Vec::new())]);
    while let Some((world, path)) = open.pop_front() {
        seen.note(&world);
        for choice in world.moves(bounds) {
            let mut next = world.clone();
            let mut path: Vec<Move> = path.clone();
            path.push(choice);
            if let Err(why) = next.make(choice, bounds) {
                return Err(format!("{why}, after {path:?}"));
            }
            if known.len() < most && known.insert(digest(&next)) {
                open.push_back((next, path));
            }
        }
    }
    Ok((seen, known.len() < most))
}

/// Makes these moves, and delivers everything in between, in order.
fn lead(world: &mut World, bounds: Bounds, units: u64, frames: bool) {
    for _ in 0..units {
        for _ in 0..4 {
            while !world.flying.is_empty() {
                world.make(Move::Deliver(0), bounds).unwrap();
            }
            for index in 0..2 {
                world.make(Move::Step(index), bounds).unwrap();
            }
        }
        let owner = world.owners().first().copied().unwrap_or(0);
        let takes = world.hosts[owner].as_ref().is_some_and(Node::has_room);
        if frames && takes {
            world.make(Move::Frame(owner), bounds).unwrap();
        }
        world.make(Move::Pass, bounds).unwrap();
    }
}

const WIDE: Bounds = Bounds { frames: u8::MAX, deaths: 0, flying: 32, end: u64::MAX, unreliable: false };

/// Two hosts whose pair is confirmed, and from which frames have left.
fn paired() -> World {
    let mut world = World::new();
    lead(&mut world, WIDE, 6, true);
    let status = world.hosts[0].as_ref().unwrap().status();
    assert!(status.is_protected, "{status:?}");
    assert!(!world.emitted.is_empty());
    while !world.flying.is_empty() {
        world.make(Move::Deliver(0), WIDE).unwrap();
    }
    world
}

/// Bounds from this state on.
fn from(world: &World, frames: u8, deaths: u8, flying: usize, units: u64, unreliable: bool) -> Bounds {
    Bounds { frames: world.frames + frames, deaths: world.deaths + deaths, flying, end: world.now + units, unreliable }
}

fn most() -> usize {
    std::env::var("NICETY_MODEL_STATES").ok().and_then(|most| most.parse().ok()).unwrap_or(60_000)
}

#[test]
fn a_pair_never_has_two_owners_over_streams() {
    let world = paired();
    let bounds = from(&world, 1, 1, 4, 6, false);
    let (seen, complete) = search(world, bounds, most()).unwrap();
    println!("streams: {seen:?}, complete: {complete}");
}

#[test]
fn a_pair_never_has_two_owners_over_links_that_lose_and_repeat() {
    let world = paired();
    let bounds = from(&world, 1, 0, 3, 5, true);
    let (seen, complete) = search(world, bounds, most()).unwrap();
    println!("unreliable links: {seen:?}, complete: {complete}");
}

#[test]
fn two_hosts_that_find_each_other_never_both_own() {
    let world = World::new();
    let bounds = from(&world, 1, 0, 4, 5, false);
    let (seen, complete) = search(world, bounds, most()).unwrap();
    println!("founding: {seen:?}, complete: {complete}");
}

/// The first host has run the guest for a while before the second one says anything.
#[test]
fn a_host_that_joins_by_an_image_never_makes_two_owners() {
    let mut world = World::new();
    for _ in 0..2 {
        world.make(Move::Step(0), WIDE).unwrap();
        while !world.flying.is_empty() {
            world.make(Move::Deliver(0), WIDE).unwrap();
        }
        world.make(Move::Frame(0), WIDE).unwrap();
    }
    let bounds = from(&world, 1, 0, 4, 6, true);
    let (seen, complete) = search(world.clone(), bounds, most() / 2).unwrap();
    println!("while it joins: {seen:?}, complete: {complete}");
    assert!(seen.images > 0, "{seen:?}");
    lead(&mut world, WIDE, 6, true);
    let status = world.hosts[0].as_ref().unwrap().status();
    assert!(status.is_protected, "{status:?}");
    let bounds = from(&world, 1, 1, 4, 6, false);
    let (seen, complete) = search(world, bounds, most() / 2).unwrap();
    println!("once it has joined: {seen:?}, complete: {complete}");
}

/// The first host has died, the second has taken over, and another one joins it, which may take over as soon as it has what has left, and no
/// earlier.
#[test]
fn a_host_that_joins_a_survivor_is_its_heir_only_with_all_that_has_left() {
    let mut world = paired();
    world.make(Move::Kill(0), WIDE).unwrap();
    world.flying.retain(|flying| flying.host == 1 && matches!(flying.packet, Packet::Peer(_)));
    lead(&mut world, WIDE, 8, false);
    assert_eq!(world.owners(), [1], "{:?}", world.hosts[1].as_ref().map(Node::status));
    world.flying.clear();
    world.restart(0);
    let bounds = from(&world, 0, 1, 4, 9, false);
    let (seen, complete) = search(world.clone(), bounds, most()).unwrap();
    println!("while it joins a survivor: {seen:?}, complete: {complete}");
    assert!(seen.images > 0, "{seen:?}");
    lead(&mut world, WIDE, 8, true);
    let status = world.hosts[1].as_ref().unwrap().status();
    assert!(status.is_protected, "{status:?}");
    let bounds = from(&world, 1, 1, 4, 6, false);
    let (seen, complete) = search(world, bounds, most() / 2).unwrap();
    println!("once it has joined a survivor: {seen:?}, complete: {complete}");
}

/// The search is worth what it finds.
#[test]
fn the_search_finds_a_third_party_that_gives_a_guest_away_too_early() {
    let mut world = paired();
    // It counts a lease as half as long as the hosts do.
    let lease = world.keeper.lease;
    world.keeper = Keeper::new(TERMS.lease_ns / 2);
    world.keeper.lease = lease;
    let bounds = from(&world, 1, 0, 4, 6, false);
    let why = search(world, bounds, most()).unwrap_err();
    assert!(why.starts_with("both own"), "{why}");
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
        let mut world = if seed % 2 == 0 { paired() } else { World::new() };
        let unreliable = draw(2) == 0;
        let bounds = from(&world, 20, (seed % 8 == 0).into(), 12, 400, unreliable);
        // Some hosts and links are slow in this walk: what is chosen seldom.
        let slow = draw(8);
        let mut path = Vec::new();
        for _ in 0..400 {
            let moves = world.moves(bounds);
            let mut choice = moves[draw(moves.len())];
            let is_slow = match choice {
                Move::Step(index) => slow == index,
                Move::Deliver(index) => match &world.flying[index].packet {
                    Packet::Peer(_) => slow == 2 + world.flying[index].host,
                    _ => slow == 4,
                },
                Move::Lose(_) | Move::Kill(_) => true,
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

/// What a host asks for at this time.
fn asked(host: &mut Node<Toy>, units: u64) -> Option<(u32, Request)> {
    let mut actions = Vec::new();
    host.step(Time(units * UNIT), &mut actions);
    actions.into_iter().find_map(|action| match action {
        Action::Ask(number, request) => Some((number, request)),
        _ => None,
    })
}

/// It was granted before the pair of now was made: whoever takes it for news goes on alone while the other host may take over.
#[test]
fn an_old_answer_does_not_let_a_host_go_on_alone() {
    let (id, peer) = (NodeId(1), NodeId(2));
    let mut host = Node::primary(id, Toy::default(), TERMS, Time(0));
    let mut keeper = Keeper::new(TERMS.lease_ns);
    let known = |host: &mut Node<Toy>, units| {
        host.receive(Message::Known { from: peer, calls: 0 }, Time(units * UNIT), &mut Vec::new());
    };
    let mut ask = |host: &mut Node<Toy>, wanted: Request, units: u64| {
        let (number, request) = asked(host, units).expect("it asks");
        assert_eq!(request, wanted);
        (number, keeper.ask(id, request, Time(units * UNIT)))
    };
    let answered =
        |host: &mut Node<Toy>, (number, answer), units: u64| host.answered(number, answer, Time(units * UNIT));
    let answer = ask(&mut host, Request::Found, 0);
    answered(&mut host, answer, 0);
    known(&mut host, 0);
    let answer = ask(&mut host, Request::Pair { epoch: 1, peer }, 0);
    answered(&mut host, answer, 0);
    // The peer is silent. The first answer is late, the second says that the epoch is another one, the third is in time.
    let late = ask(&mut host, Request::Alone { epoch: 2 }, 2);
    let answer = ask(&mut host, Request::Alone { epoch: 2 }, 4);
    assert!(late.1.granted && !answer.1.granted);
    answered(&mut host, answer, 4);
    let answer = ask(&mut host, Request::Alone { epoch: 3 }, 6);
    answered(&mut host, answer, 6);
    known(&mut host, 6);
    let answer = ask(&mut host, Request::Pair { epoch: 4, peer }, 6);
    answered(&mut host, answer, 6);
    assert!(host.status().is_protected);
    // Silent again, and now the late answer comes.
    assert_eq!(asked(&mut host, 8).map(|(_, request)| request), Some(Request::Alone { epoch: 5 }));
    answered(&mut host, late, 8);
    assert!(host.offer(vec![1], Time(8 * UNIT)));
    let mut actions = Vec::new();
    host.step(Time(8 * UNIT), &mut actions);
    assert!(!actions.iter().any(|action| matches!(action, Action::Emit(_))), "{actions:?}");
}
