//! A fault ends at its port: an adapter or uplink panics in any method of its interface, while its neighbours have traffic.

#[macro_use]
mod workers;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use nicety_adapter::snapshot::RestoreError;
use nicety_adapter::{
    Adapter, Batch, Budget, Context, Counters, Delivery, Event, Face, Frames, News, PciFace, PortId, Progress, Reason,
    Reset, RingFace, RingPlace, Set, Snapshot, Stall, Time, Uplink,
};
use nicety_memory::Map;
use nicety_pci::{Function, Identity};
use nicety_plane::{End, Plane, Port, Saved, Shell, Turn};
use nicety_switch::Limits;

with_one_worker_and_with_two!(
    an_adapter_that_panics_in_any_method_fails_alone_and_its_neighbours_lose_no_frame,
    an_uplink_that_panics_in_any_method_fails_alone_and_its_neighbours_lose_no_frame,
    senders_that_an_uplink_holds_are_let_go_when_it_fails,
    frames_for_a_port_that_has_failed_are_dropped_with_that_reason_and_all_are_counted,
    an_end_that_panics_again_when_it_goes_ends_no_more_than_its_port,
);

/// Frames that each port broadcasts before the fault, and again after it.
const HALF: u64 = 500;
const FRAMES: u64 = 2 * HALF;
const FRAME: u32 = 60;
const NOW: Time = Time(1);
/// Identity of a port's function; no test checks it.
const IDENTITY: Identity =
    Identity { vendor: 0x1234, device: 1, revision: 0, class: 0x02_0000, subsystem_vendor: 0, subsystem: 0 };

/// Place of a panic.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    Face,
    Fetch,
    /// An overflow in the middle of a batch.
    Overflow,
    Complete,
    Deliver,
    Waited,
    Notice,
    Tick,
    Reset,
    Driven,
    Features,
    Stall,
    Save,
    Restore,
    Function,
    ConfigWrite,
    Read,
    Write,
    Mappable,
    Kick,
    Start,
    Stop,
    Enable,
    Wake,
    Vacant,
    News,
}

const ADAPTER: &[At] = &[
    At::Face,
    At::Fetch,
    At::Overflow,
    At::Complete,
    At::Deliver,
    At::Waited,
    At::Notice,
    At::Tick,
    At::Reset,
    At::Driven,
    At::Features,
    At::Stall,
    At::Save,
    At::Restore,
];
const FUNCTION: &[At] = &[At::Function, At::ConfigWrite, At::Read, At::Write, At::Mappable];
const RINGS: &[At] = &[At::Kick, At::Start, At::Stop, At::Enable];
const UPLINK: &[At] = &[At::Fetch, At::Overflow, At::Complete, At::Deliver, At::Waited, At::Wake, At::Vacant, At::News];

/// An end that broadcasts frames, and counts received frames by sender.
#[derive(Default)]
struct Test {
    at: Option<At>,
    /// Its faults begin once this is set.
    armed: Arc<AtomicBool>,
    left: Arc<AtomicU64>,
    from: Arc<Mutex<[u64; 4]>>,
    /// It has no room for frames until this is clear.
    full: Arc<AtomicBool>,
    again: Again,
    memory: Option<Arc<Map>>,
    function: Option<Function>,
}

/// Panics on drop if set.
#[derive(Default)]
struct Again(bool);

impl Drop for Again {
    fn drop(&mut self) {
        assert!(!self.0 || thread::panicking(), "again");
    }
}

impl Test {
    fn pass(&self, at: At) {
        if self.at == Some(at) && self.armed.load(Ordering::Relaxed) {
            panic!("fault in {at:?}");
        }
    }

    fn send(&mut self, budget: Budget, batch: &mut Batch, counters: &mut Counters) -> Progress {
        self.pass(At::Fetch);
        while budget.allows(batch) && batch.len() < 10 {
            if self.left.load(Ordering::Relaxed) == 0 {
                return Progress { more: false, armed: true };
            }
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, FRAME).unwrap();
            draft.finish_plain(0);
            counters.sent(0, 1, FRAME.into());
            let left = self.left.fetch_sub(1, Ordering::Relaxed);
            if self.at == Some(At::Overflow) && self.armed.load(Ordering::Relaxed) {
                // Overflows like a number from a guest.
                let _overflows = std::hint::black_box(u64::MAX) + left;
            }
        }
        Progress { more: true, armed: true }
    }

    fn take(&self, frames: &Frames<'_>, counters: &mut Counters) -> Delivery {
        let mut delivery = Delivery::default();
        for (index, pick, packet) in frames.iter() {
            if self.full.load(Ordering::Relaxed) || frames.held.contains(0) {
                delivery.refuse(index, 0, pick.from.into());
                continue;
            }
            let sender = usize::from(frames.batch.head(packet)[11]);
            self.from.lock().unwrap()[sender] += 1;
            counters.received(0, 1, packet.len().into());
            // Not the first frame: that one was taken.
            self.pass(At::Deliver);
        }
        delivery
    }
}

impl Snapshot for Test {
    fn save(&self) -> Vec<u8> {
        self.pass(At::Save);
        Vec::new()
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), RestoreError> {
        self.pass(At::Restore);
        Ok(())
    }
}

impl RingFace for Test {
    fn features(&self) -> u128 {
        0
    }

    fn take_features(&mut self, _: u128) -> bool {
        true
    }

    fn rings(&self) -> u16 {
        2
    }

    fn place(&mut self, _: u16, _: RingPlace) -> bool {
        true
    }

    fn start(&mut self, _: u16, _: u32, _: &mut Context<'_>) -> bool {
        self.pass(At::Start);
        true
    }

    fn stop(&mut self, _: u16, _: &mut Context<'_>) -> u32 {
        self.pass(At::Stop);
        0
    }

    fn enable(&mut self, _: u16, _: bool, _: &mut Context<'_>) {
        self.pass(At::Enable);
    }

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        self.pass(At::Kick);
        cx.out.work.insert(ring);
    }

    fn config(&self, _: u32, _: &mut [u8]) -> bool {
        false
    }
}

impl PciFace for Test {
    fn function(&self) -> &Function {
        self.pass(At::Function);
        self.function.as_ref().unwrap()
    }

    fn config_write(&mut self, _: u16, _: &[u8], _: &mut Context<'_>) {
        self.pass(At::ConfigWrite);
    }

    fn read(&mut self, _: u8, _: u64, data: &mut [u8], _: &mut Context<'_>) {
        data.fill(0);
        self.pass(At::Read);
    }

    fn write(&mut self, _: u8, _: u64, _: &[u8], cx: &mut Context<'_>) {
        self.pass(At::Write);
        cx.out.work.insert(0);
    }

    fn mappable(&self) -> Option<nicety_adapter::Mappable> {
        self.pass(At::Mappable);
        None
    }
}

impl Adapter for Test {
    fn face(&mut self) -> Face<'_> {
        self.pass(At::Face);
        if self.function.is_some() { Face::Pci(self) } else { Face::Rings(self) }
    }

    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        self.send(budget, batch, cx.counters)
    }

    fn complete(&mut self, _: &Batch, _: &mut Context<'_>) {
        self.pass(At::Complete);
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        // A waiting frame has no sender: it has a port number that no sender has.
        if !self.full.load(Ordering::Relaxed) && !frames.held.contains(0) && frames.batch.origin == PortId(0) {
            self.pass(At::Waited);
        }
        cx.out.messages.insert(0);
        cx.out.stalled.insert(0);
        self.take(frames, cx.counters)
    }

    fn notice(&mut self, _: Event, _: &mut Context<'_>) {
        self.pass(At::Notice);
    }

    fn tick(&mut self, _: &mut Context<'_>) {
        self.pass(At::Tick);
    }

    fn reset(&mut self, _: Reset, _: &mut Context<'_>) {
        self.pass(At::Reset);
    }

    fn transmit_queues(&self) -> u16 {
        1
    }

    fn is_driven(&self) -> bool {
        self.pass(At::Driven);
        true
    }

    fn features(&self) -> Vec<&'static str> {
        self.pass(At::Features);
        Vec::new()
    }

    fn stall(&self, _: u16) -> Option<Stall> {
        self.pass(At::Stall);
        None
    }
}

impl Uplink for Test {
    fn fetch(&mut self, port: PortId, budget: Budget, batch: &mut Batch, counters: &mut Counters, _: Time) -> Progress {
        batch.start(self.memory.as_ref().unwrap(), port, 0);
        self.send(budget, batch, counters)
    }

    fn complete(&mut self, _: &Batch) {
        self.pass(At::Complete);
    }

    fn deliver(&mut self, frames: &Frames<'_>, counters: &mut Counters, _: Time) -> Delivery {
        if !self.full.load(Ordering::Relaxed) {
            self.pass(At::Waited);
        }
        self.take(frames, counters)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn wake(&self) -> Option<Time> {
        self.pass(At::Wake);
        None
    }

    fn vacant(&self) -> Option<String> {
        self.pass(At::Vacant);
        None
    }

    fn news(&mut self) -> Option<News> {
        self.pass(At::News);
        None
    }
}

/// Notes the cause of its port's failure.
#[derive(Clone, Default)]
struct Owner(Arc<Mutex<Vec<String>>>);

impl Shell for Owner {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
    fn failed(&self, cause: &str) {
        self.0.lock().unwrap().push(cause.to_owned());
    }
}

/// The test's view of a port.
#[derive(Clone, Default)]
struct Seen {
    armed: Arc<AtomicBool>,
    left: Arc<AtomicU64>,
    from: Arc<Mutex<[u64; 4]>>,
    full: Arc<AtomicBool>,
}

/// Ports 1 and 2 broadcast; port 0 is the one that fails, and it broadcasts too. Port numbers are also the senders' addresses.
struct World {
    plane: Plane,
    ports: Vec<Arc<Port>>,
    seen: Vec<Seen>,
    owner: Owner,
    workers: usize,
}

/// End of port 0.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Function,
    Rings,
    Uplink,
}

fn frame_of(sender: u8) -> Arc<Map> {
    let map = Map::private(1 << 16).unwrap();
    map.write(0, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, sender, 0x88, 0xb5]).unwrap();
    Arc::new(map)
}

impl World {
    fn new(workers: usize, kind: Kind, at: At) -> Self {
        Self::with(workers, kind, |test| test.at = Some(at))
    }

    fn with(workers: usize, kind: Kind, change: impl FnOnce(&mut Test)) -> Self {
        let plane = Plane::new(Limits::default());
        let mut world = Self { plane, ports: Vec::new(), seen: Vec::new(), owner: Owner::default(), workers };
        let (test, seen) = world.test();
        let memory = Some(frame_of(0));
        let function = matches!(kind, Kind::Function).then(function);
        let mut test = Test { memory, function, ..test };
        change(&mut test);
        world.join(test, seen, kind);
        for _ in 1..3 {
            let (test, seen) = world.test();
            world.join(test, seen, Kind::Rings);
        }
        world
    }

    fn test(&self) -> (Test, Seen) {
        let seen = Seen::default();
        let Seen { armed, left, from, full } = seen.clone();
        (Test { armed, left, from, full, ..Test::default() }, seen)
    }

    fn join(&mut self, test: Test, seen: Seen, kind: Kind) {
        let id = self.ports.len() as u8;
        let end = match kind {
            Kind::Uplink => End::link(Box::new(test)),
            Kind::Function | Kind::Rings => End::guest(Box::new(test)),
        };
        let port = Port::new(PortId(id.into()), end, Box::new(self.owner.clone()), 1 << 20).unwrap();
        let port = Arc::new(port);
        port.attach();
        port.set_memory(frame_of(id), Time::ZERO);
        self.plane.join(Arc::clone(&port)).unwrap();
        self.ports.push(port);
        self.seen.push(seen);
    }

    /// Gives each port half of its frames to send.
    fn send(&self) {
        for (port, seen) in self.ports.iter().zip(&self.seen) {
            seen.left.fetch_add(HALF, Ordering::Relaxed);
            port.ready();
        }
    }

    /// Each worker gives its ports turns during an action on port 0, and until no work is left.
    fn run(&self, meanwhile: impl FnOnce(&Port)) {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for worker in 0..self.workers {
                let mine: Vec<&Arc<Port>> = self.ports.iter().skip(worker).step_by(self.workers).collect();
                let done = &done;
                scope.spawn(move || {
                    let mut turn = Turn::new();
                    while !done.load(Ordering::Acquire) {
                        mine.iter().for_each(|port| self.turn(port, &mut turn));
                    }
                });
            }
            meanwhile(&self.ports[0]);
            done.store(true, Ordering::Release);
        });
        self.rest();
    }

    fn turn(&self, port: &Port, turn: &mut Turn) {
        while self.plane.turn(port, turn, NOW).unfinished {}
    }

    /// Gives turns to all until no work is left.
    fn rest(&self) {
        let (mut turn, mut quiet) = (Turn::new(), 0);
        // A port that has just failed is not busy, but has one more turn, which releases other ports.
        while quiet < 2 {
            self.ports.iter().for_each(|port| self.turn(port, &mut turn));
            quiet = if self.ports.iter().any(|port| port.busy(NOW)) { 0 } else { quiet + 1 };
        }
    }

    /// All calls that a guest, a VMM and a person make to a port.
    fn exercise(port: &Port) {
        let now = NOW;
        let mut data = [0; 4];
        port.config_read(0, &mut data, now);
        port.config_write(4, &data, now);
        port.write(0, 0, &data, now);
        data = [0; 4];
        port.read(0, 0, &mut data, now);
        assert!(port.failure().is_none() || data == [0xff; 4] || data == [0; 4]);
        port.with_pci(now, |pci, _| pci.mappable());
        port.with_rings(now, |rings, cx| {
            rings.start(0, 0, cx);
            rings.enable(0, true, cx);
            rings.kick(0, cx);
        });
        port.with_quiet_rings(now, |rings, cx| rings.stop(0, cx));
        port.set_link(false, now);
        port.set_quiet_memory(frame_of(0), now);
        port.with(now, |_, cx| cx.out.wake_by(NOW));
        port.save(now);
        port.restore(&Saved { at: now, state: Vec::new() }, now);
        port.with(now, |_, cx| cx.out.wake_by(NOW));
        port.ready();
        port.state();
        port.reset(Reset::Function, now);
        port.with(now, |_, cx| cx.out.wake_by(NOW));
        port.ready();
    }

    /// Each neighbour received all frames of the other, before the fault and after it, and port 0 has failed with these words.
    fn check(&self, what: &str, words: &str) {
        for (port, other) in [(1, 2), (2, 1)] {
            let from = *self.seen[port].from.lock().unwrap();
            assert_eq!(from[other], FRAMES, "{what}: frames from port {other} to port {port}");
            assert_eq!(self.ports[port].failure(), None, "{what}");
            let state = self.ports[port].state();
            assert_eq!((state.sent, state.held), (FRAMES, false), "{what}");
            assert_eq!(state.counters.receive_drops, [0; Reason::ALL.len()], "{what}");
        }
        let failure = self.ports[0].failure().unwrap_or_else(|| panic!("{what}: it did not fail"));
        assert!(failure.contains(words), "{what}: {failure}");
        assert_eq!(self.ports[0].state().failed, Some(failure.clone()), "{what}");
        assert_eq!(*self.owner.0.lock().unwrap(), [failure], "{what}: told once");
        assert!(!self.ports[0].busy(Time(1 << 60)), "{what}: nothing is left to do for it");
    }
}

fn function() -> Function {
    Function::builder(IDENTITY).build().unwrap()
}

/// Starts its traffic, then its faults.
fn run(world: &World, at: At) {
    let waits = at == At::Waited;
    world.seen[0].full.store(waits, Ordering::Relaxed);
    world.send();
    if waits {
        world.rest();
    }
    world.run(|port| {
        // A reset would drop the frames that wait for it.
        let exercise = || if waits { port.ready() } else { World::exercise(port) };
        exercise();
        world.seen[0].armed.store(true, Ordering::Relaxed);
        world.seen[0].full.store(false, Ordering::Relaxed);
        world.send();
        exercise();
        exercise();
    });
}

fn fails_alone(workers: usize, kind: Kind, at: At) -> World {
    let world = World::new(workers, kind, at);
    run(&world, at);
    let words = if at == At::Overflow { "overflow".to_owned() } else { format!("fault in {at:?}") };
    world.check(&format!("{kind:?}, {at:?}"), &words);
    world
}

fn an_adapter_that_panics_in_any_method_fails_alone_and_its_neighbours_lose_no_frame(workers: usize) {
    for at in ADAPTER.iter().chain(FUNCTION) {
        fails_alone(workers, Kind::Function, *at);
    }
    for at in ADAPTER.iter().chain(RINGS) {
        fails_alone(workers, Kind::Rings, *at);
    }
}

fn an_uplink_that_panics_in_any_method_fails_alone_and_its_neighbours_lose_no_frame(workers: usize) {
    for at in UPLINK {
        fails_alone(workers, Kind::Uplink, *at);
    }
}

fn senders_that_an_uplink_holds_are_let_go_when_it_fails(workers: usize) {
    let world = World::new(workers, Kind::Uplink, At::Waited);
    let full = &world.seen[0].full;
    full.store(true, Ordering::Relaxed);
    world.send();
    world.rest();
    assert!([1, 2].iter().all(|&port| world.ports[port].state().held));
    world.seen[0].armed.store(true, Ordering::Relaxed);
    full.store(false, Ordering::Relaxed);
    world.send();
    world.rest();
    world.check("held", "fault in Waited");
}

fn frames_for_a_port_that_has_failed_are_dropped_with_that_reason_and_all_are_counted(workers: usize) {
    for kind in [Kind::Rings, Kind::Uplink] {
        for at in [At::Deliver, At::Waited, At::Fetch, At::Overflow, At::Complete] {
            let world = fails_alone(workers, kind, at);
            let what = format!("{kind:?}, {at:?}");
            let counters = world.ports[0].state().counters;
            let taken = world.seen[0].from.lock().unwrap().iter().sum::<u64>();
            let dropped = counters.receive_drops.iter().sum::<u64>();
            assert_eq!(counters.taken().packets, taken, "{what}");
            assert_eq!(taken + dropped, 2 * FRAMES, "{what}: each neighbour's");
            assert!(counters.receive_drops[Reason::Failed as usize] > 0, "{what}");
            // Its frames reached both neighbours, or neither.
            let reached = world.seen[1].from.lock().unwrap()[0];
            let lost = counters.transmit_drops[Reason::Failed as usize];
            assert_eq!(counters.transmitted().packets, reached + lost, "{what}");
        }
    }
}

fn an_end_that_panics_again_when_it_goes_ends_no_more_than_its_port(workers: usize) {
    for kind in [Kind::Function, Kind::Uplink] {
        let world = World::with(workers, kind, |test| (test.at, test.again.0) = (Some(At::Deliver), true));
        run(&world, At::Deliver);
        world.check("again", "fault in Deliver");
    }
}
