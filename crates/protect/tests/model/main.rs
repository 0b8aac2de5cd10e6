//! The protocol in all interleavings, up to a bound: two hosts, a third party, messages that are delayed, reordered, repeated and lost,
//! hosts that stand still for as long as they like, continue, or die, QEMUs that die, and daemons that are started again. The machines are
//! the real ones, with a VM of a few bytes.
//!
//! What must always hold:
//! 1. Never two owners: a host lets frames leave only while no other does.
//! 2. Nothing has left that the owner's VM does not know: what it has sent begins with what has left.

mod host;
mod world;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use nicety_lease::{Keeper, NodeId};
use nicety_protect::{Ended, Terms};

use host::{Host, Mode};
use world::{Bounds, Move, Packet, World};

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

fn digest(world: &World) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// A search with more states fails: it would not be complete.
const STATES_MAX: usize = 20_000_000;

/// The events that a search came across: a search that never sees a takeover proves nothing.
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
const THREE: Scope = Scope(1, 1, 0, 16, 4, Some(3));

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
