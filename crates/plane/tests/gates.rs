//! Frames of a protected VM leave only during its lease (`nicety_plane::Epochs`), however long the host stands still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{PortId, Time};
use nicety_memory::Map;
use nicety_plane::doubles::{Ringed, Silent, Wire, frame, link};
use nicety_plane::{End, Epochs, GateMode, Plane, Port, Presence, Shell, Turn};
use nicety_switch::Limits;

const MS: u64 = 1_000_000;

/// A worker whose clock goes on while it stands still in the middle of a turn.
struct Worker(Arc<AtomicU64>);

impl Shell for Worker {
    fn messages(&self, _: nicety_adapter::Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}

    fn now(&self, given: Time) -> Time {
        given.max(Time(self.0.load(Ordering::Relaxed)))
    }
}

struct Host {
    plane: Plane,
    port: Arc<Port>,
    guest: Arc<Mutex<Wire>>,
    outside: Arc<Mutex<Wire>>,
    epochs: Arc<Epochs>,
    clock: Arc<AtomicU64>,
}

impl Host {
    /// The guest has sent so many frames, and the copy that follows them has closed their epoch.
    fn sent(frames: usize) -> Self {
        let plane = Plane::new(Limits::default());
        let (wire, outside) = link();
        let uplink = Port::new(PortId(0), End::link(Box::new(wire)), Box::new(Silent), 1 << 20).unwrap();
        let guest = Arc::new(Mutex::new(Wire { room: 1 << 20, carrier: true, ..Wire::default() }));
        let clock = Arc::<AtomicU64>::default();
        let end = End::guest(Box::new(Ringed(Arc::clone(&guest))));
        let port = Arc::new(Port::new(PortId(1), end, Box::new(Worker(Arc::clone(&clock))), 1 << 20).unwrap());
        plane.join(Arc::new(uplink)).unwrap();
        plane.join(Arc::clone(&port)).unwrap();
        port.attach();
        port.set_memory(Arc::new(Map::private(1 << 20).unwrap()), Time::ZERO);
        let epochs = Arc::new(Epochs::new(GateMode::Shut, || {}));
        port.set_gate(&epochs).unwrap();
        guest.lock().unwrap().outgoing.extend((0..frames).map(|_| frame(u8::MAX, 1, 60)));
        let host = Self { plane, port, guest, outside, epochs, clock };
        host.port.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
        host.turns(0);
        assert!(host.guest.lock().unwrap().outgoing.is_empty());
        host.epochs.close();
        host
    }

    /// The port has turns that begin at this time, until it has no more work.
    fn turns(&self, at: u64) {
        let mut turn = Turn::new();
        while self.turn(&mut turn, at) {}
    }

    fn turn(&self, turn: &mut Turn, at: u64) -> bool {
        let outcome = self.plane.turn(&self.port, turn, Time(at));
        outcome.unfinished || outcome.more
    }

    fn release(&self, until: u64) {
        self.epochs.release(1, Time(until));
        self.port.release_frames();
    }

    fn left(&self) -> usize {
        self.outside.lock().unwrap().incoming.len()
    }
}

#[test]
fn frames_that_were_released_and_not_sent_when_the_lease_ended_wait_until_it_is_renewed() {
    let host = Host::sent(100);
    host.release(900 * MS);
    // Everything stands still for longer than the lease.
    host.turns(900 * MS);
    assert_eq!((host.left(), host.epochs.waiting().packets), (0, 100));
    host.release(1700 * MS);
    host.turns(901 * MS);
    assert_eq!((host.left(), host.epochs.waiting().packets), (100, 0));
}

/// SIGSTOP between two batches, or between the look at the clock that began a turn and the fetch.
#[test]
fn a_worker_that_stands_still_in_the_middle_of_a_turn_sends_nothing_after_the_lease() {
    let host = Host::sent(200);
    host.release(900 * MS);
    assert!(host.turn(&mut Turn::new(), 899 * MS));
    let left = host.left();
    assert!(left > 0 && left < 200, "{left}");
    host.clock.store(2000 * MS, Ordering::Relaxed);
    host.turns(899 * MS);
    assert_eq!((host.left(), host.epochs.waiting().packets), (left, 200 - left as u64));
}

/// It is being handed over, and the twin may go on at once.
#[test]
fn a_gate_that_is_shut_lets_nothing_out_that_was_released_before() {
    let host = Host::sent(100);
    host.release(900 * MS);
    host.epochs.set_mode(GateMode::Shut);
    host.turns(MS);
    assert_eq!((host.left(), host.epochs.waiting().packets), (0, 100));
}

#[test]
fn a_vm_without_a_twin_needs_no_lease() {
    let host = Host::sent(10);
    host.epochs.set_mode(GateMode::Open);
    host.port.release_frames();
    host.turns(MS);
    assert_eq!(host.left(), 10);
}

/// An upgrade does this: each packet keeps its epoch, and nothing leaves before the next process has heard that it may.
#[test]
fn what_waits_in_a_gate_goes_to_another_process_in_its_epochs_and_waits_there_for_a_release() {
    let host = Host::sent(100);
    // Some are of the next epoch.
    host.guest.lock().unwrap().outgoing.extend((0..10).map(|_| frame(u8::MAX, 1, 60)));
    host.port.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
    host.turns(0);
    host.epochs.release(1, Time(900 * MS));
    let before = host.epochs.position();
    assert_eq!((before.taken.packets, before.waiting().map(|waiting| waiting.packets)), (110, Some(110)));
    let saved = host.port.save_gate().unwrap();

    let next = Host::sent(0);
    let epochs = Arc::new(Epochs::again(saved.epochs));
    next.port.restore_gate(&epochs, saved).unwrap();
    let next = Host { epochs, ..next };
    next.turns(MS);
    assert_eq!((next.left(), next.epochs.position(), next.epochs.current()), (0, before, 2));
    next.release(900 * MS);
    next.turns(MS);
    assert_eq!((next.left(), next.epochs.waiting().packets), (100, 10));
    let after = next.epochs.position();
    assert!(after.follows(&before) && !before.follows(&after), "{after:?}");
    next.epochs.close();
    next.epochs.release(2, Time(900 * MS));
    next.port.release_frames();
    next.turns(MS);
    assert_eq!(next.left(), 110);
    // A twin stays mute.
    let twin = Epochs::new(GateMode::Mute, || {});
    assert_eq!(Epochs::again(twin.save()).mode(), GateMode::Mute);
}

/// A fabric tells other hosts where guests are: the twin's host would draw the frames of the VM that runs elsewhere.
#[test]
fn a_twin_waits_at_its_port_until_it_goes_on_there() {
    let host = Host::sent(1);
    assert_eq!(host.port.presence(), Presence::Running, "its gate is shut, and it runs");
    host.epochs.set_mode(GateMode::Mute);
    assert_eq!(host.port.presence(), Presence::Waiting);
    host.epochs.set_mode(GateMode::Open);
    assert_eq!(host.port.presence(), Presence::Running);
    host.port.detach(Time::ZERO);
    assert_eq!(host.port.presence(), Presence::Nobody);
}
