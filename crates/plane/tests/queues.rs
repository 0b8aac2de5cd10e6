//! The queues of one port: none starves another, a queue whose doorbell cannot notify us is polled, and a slow receiver gets few frames
//! per hold.

mod owners;
#[macro_use]
mod workers;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use nicety_adapter::{
    Batch, Budget, Checksum, Context, Delivery, Frames, Offload, PACKETS, PortId, Progress, Set, Time,
};
use nicety_plane::doubles::{Linked, Memo, Ringed, Traffic, frame, memory};
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;
use owners::as_worker;

with_one_worker_and_with_two!(
    a_queue_that_never_runs_dry_leaves_the_others_their_turns,
    queues_that_cannot_ring_are_all_looked_at_at_times_that_are_asked_for,
    a_queue_that_can_ring_is_left_alone,
    queues_that_cannot_ring_are_looked_at_soon_after_frames_came_for_their_guest_however_silent_they_were,
    the_habits_of_a_guest_say_when_it_is_looked_at_until_it_hears_something_or_goes,
    a_receiver_that_is_slow_gets_few_frames_in_one_hold_and_one_that_is_quick_a_whole_batch,
    frames_that_waited_go_in_few_at_a_time_too,
    what_waited_costs_a_turn_no_more_bytes_than_two_batches_and_is_paid_for,
    frames_that_wait_for_a_queue_that_is_full_do_not_keep_the_others_waiting,
    what_a_guest_has_its_port_do_between_turns_adds_up_to_a_bound_and_is_paid_for_once,
    a_vm_that_is_gone_has_no_time_left_to_wait_for,
    a_checksum_that_is_made_for_a_frame_is_paid_for_though_nobody_gets_the_frame,
    a_hold_on_a_port_that_has_left_is_none_of_the_port_that_has_its_number_next,
);

/// An adapter that notes the queues of its fetches, and the number of frames per delivery. Its transmit frames lie
/// at the start of its memory.
#[derive(Default)]
struct Queues {
    fetched: Arc<Mutex<Vec<u16>>>,
    progress: Progress,
    sends: Arc<AtomicUsize>,
    bytes: u32,
    offload: Offload,
    holds: Arc<Mutex<Vec<usize>>>,
    /// The owner's clock, and the time that each delivered frame adds to it.
    clock: Arc<AtomicU64>,
    cost_ns: u64,
    /// It refuses this many frames.
    refuses: usize,
    /// Before those it refuses this many for queue 1.
    stuck: usize,
}

impl Traffic for Queues {
    const RINGS: u16 = 6;

    fn fetch(&mut self, queue: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        self.fetched.lock().unwrap().push(queue);
        while self.sends.load(Ordering::Relaxed) > 0 && budget.allows(batch) {
            let mut draft = batch.draft(0).unwrap();
            draft.push(0, self.bytes).unwrap();
            draft.finish(self.offload, 0).unwrap();
            self.sends.fetch_sub(1, Ordering::Relaxed);
        }
        self.progress
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        for (pick, _, _) in frames.iter() {
            if self.stuck > 0 {
                self.stuck -= 1;
                delivery.refuse(pick, 1, 0);
            } else if self.refuses > 0 || frames.held.contains(0) {
                self.refuses = self.refuses.saturating_sub(1);
                delivery.refuse(pick, 0, 0);
            }
        }
        if !frames.held.contains(0) {
            self.holds.lock().unwrap().push(frames.picks.len() - delivery.refusals().len());
        }
        self.clock.fetch_add(self.cost_ns * frames.picks.len() as u64, Ordering::Relaxed);
        cx.out.messages.insert(0);
        delivery
    }
}

/// A receiver's owner: its requests and its clock.
#[derive(Clone, Default)]
struct Owner {
    clock: Arc<AtomicU64>,
    interrupts: Arc<AtomicU64>,
}

impl Shell for Owner {
    fn messages(&self, _: Set) {
        self.interrupts.fetch_add(1, Ordering::Relaxed);
    }
    fn line(&self, _: bool) {}
    fn schedule(&self) {}
    fn wake_at(&self, _: Time) {}
    fn now(&self, _: Time) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }
}

/// Bytes of a frame, the minimum: the packet limit fills a batch.
const FRAME: u32 = 60;
/// Bytes of a receive buffer.
const BUFFER: u32 = 1 << 20;

fn sends_of(frames: usize) -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(frames))
}

/// A port with such an adapter. The doorbells of queues 1, 3 and 5 were rung.
fn rung(progress: Progress) -> (Plane, Arc<Port>, Memo, Arc<Mutex<Vec<u16>>>) {
    let (fetched, alarm) = (Arc::default(), Memo::default());
    let end = End::guest(Box::new(Ringed(Queues { fetched: Arc::clone(&fetched), progress, ..Queues::default() })));
    let port = Arc::new(Port::new(PortId(0), end, Box::new(alarm.clone()), 4096).unwrap());
    let plane = Plane::new(Limits::default());
    plane.join(Arc::clone(&port)).unwrap();
    port.attach();
    for ring in [1, 3, 5] {
        port.with_rings(Time::ZERO, |rings, cx| rings.kick(ring, cx)).unwrap();
    }
    (plane, port, alarm, fetched)
}

fn a_queue_that_never_runs_dry_leaves_the_others_their_turns(workers: usize) {
    let (plane, port, _, fetched) = rung(Progress { more: true, armed: false });
    let mut turn = Turn::new();
    for number in 0..7 {
        // Its owner changes from worker to worker.
        assert!(as_worker(number % workers, || plane.turn(&port, &mut turn, Time::ZERO).more));
    }
    assert_eq!(*fetched.lock().unwrap(), [1, 3, 5, 1, 3, 5, 1]);
}

fn queues_that_cannot_ring_are_all_looked_at_at_times_that_are_asked_for(workers: usize) {
    let (plane, port, alarm, fetched) = rung(Progress { more: false, armed: false });
    let mut turn = Turn::new();
    let mut now = Time::ZERO;
    for round in 1..=50 {
        as_worker(round % workers, || while plane.turn(&port, &mut turn, now).more {});
        assert_eq!(fetched.lock().unwrap().drain(..).collect::<Vec<_>>(), [1, 3, 5], "round {round}");
        let asked = std::mem::take(&mut alarm.asked().wakes);
        assert_eq!(asked.len(), 1, "round {round}: one wake-up, not a chain for each queue");
        assert!(asked[0] > now);
        assert!(!port.busy(now));
        now = asked[0];
        assert!(port.busy(now));
    }
}

fn a_queue_that_can_ring_is_left_alone(workers: usize) {
    let (plane, port, alarm, fetched) = rung(Progress { more: false, armed: true });
    let mut turn = Turn::new();
    as_worker(workers - 1, || while plane.turn(&port, &mut turn, Time::ZERO).more {});
    assert_eq!(*fetched.lock().unwrap(), [1, 3, 5]);
    assert!(alarm.asked().wakes.is_empty() && !port.busy(Time(u64::MAX)));
}

fn what_a_guest_has_its_port_do_between_turns_adds_up_to_a_bound_and_is_paid_for_once(workers: usize) {
    let (plane, port, ..) = rung(Progress { more: false, armed: true });
    let mut turn = Turn::new();
    as_worker(0, || while plane.turn(&port, &mut turn, Time::ZERO).more {});
    let mut cost = |calls: u32, descriptors: u32| {
        for _ in 0..calls {
            port.with(Time::ZERO, |_, cx| cx.out.charge(descriptors)).unwrap();
        }
        as_worker(workers - 1, || plane.turn(&port, &mut turn, Time::ZERO).cost)
    };
    let one = cost(1, 100);
    assert!(one >= 100 && cost(0, 0) == 0, "{one}");
    assert_eq!(cost(7, 100), 7 * one);
    let most = cost(1, u32::MAX);
    assert!(most > 7 * one && most <= 1 << 20, "{most}");
    assert_eq!(cost(1000, u32::MAX), most);
}

fn a_checksum_that_is_made_for_a_frame_is_paid_for_though_nobody_gets_the_frame(workers: usize) {
    // The field lies behind all headers of this type that are understood, so that it is written before the switch decides.
    let partial = Offload { checksum: Checksum::Partial { start: 14, field: 16 }, segment: None };
    let [plain, summed] = [Offload::default(), partial].map(|offload| {
        let (progress, sends, bytes) = (Progress { more: false, armed: true }, sends_of(2), 20_000);
        let end = End::guest(Box::new(Ringed(Queues { progress, sends, bytes, offload, ..Queues::default() })));
        let port = Arc::new(Port::new(PortId(0), end, Box::new(Memo::default()), 4096).unwrap());
        let plane = Plane::new(Limits::default());
        plane.join(Arc::clone(&port)).unwrap();
        port.attach();
        port.set_memory(memory(&frame(0xff, 1, 14)), Time::ZERO);
        port.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
        let outcome = as_worker(workers - 1, || plane.turn(&port, &mut Turn::new(), Time::ZERO));
        assert_eq!((outcome.packets, port.state().counters.transmit_drops.iter().sum::<u64>()), (2, 2), "no receiver");
        outcome.cost
    });
    assert!(plain < 20_000, "{plain}");
    assert!(summed >= plain + 2 * (20_000 - 128), "as many bytes are read as for a copy: {summed}");
}

/// An uplink that takes nothing while it is full.
struct Tube(Arc<AtomicBool>);

impl Traffic for Tube {
    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        if self.0.load(Ordering::Relaxed) { Delivery::all_refused(frames) } else { Delivery::default() }
    }
}

/// A port leaves in the middle of its flood, whose last receiver is a full uplink; another joins with its number.
fn a_hold_on_a_port_that_has_left_is_none_of_the_port_that_has_its_number_next(workers: usize) {
    let full = Arc::new(AtomicBool::new(true));
    let plane = Plane::new(Limits::default());
    let port = |id, end| {
        let port = Arc::new(Port::new(PortId(id), end, Box::new(Memo::default()), BUFFER).unwrap());
        plane.join(Arc::clone(&port)).unwrap();
        port.attach();
        port
    };
    let sender = |frames| {
        let (progress, sends, bytes) = (Progress { more: true, armed: true }, sends_of(frames), 60_000);
        let queues = Queues { progress, sends, bytes, ..Queues::default() };
        let port = port(1, End::guest(Box::new(Ringed(queues))));
        port.set_memory(memory(&frame(0xff, 1, 14)), Time::ZERO);
        port.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
        port
    };
    let turn = |port: &Port, turn: &mut Turn| as_worker(workers - 1, || plane.turn(port, turn, Time::ZERO));
    let first = sender(2);
    let _receivers = [2, 3, 4].map(|id| port(id, End::guest(Box::new(Ringed(Queues::default())))));
    let uplink = port(9, End::link(Box::new(Linked::new(Tube(Arc::clone(&full))))));
    let mut flood = Turn::new();
    assert!(turn(&first, &mut flood).unfinished);
    plane.leave(PortId(1)).unwrap();
    let next = sender(4);
    while turn(&first, &mut flood).unfinished {}
    let drains = || {
        full.store(false, Ordering::Relaxed);
        uplink.ready();
        while turn(&uplink, &mut Turn::new()).more {}
        assert_eq!(uplink.state().backlog_frames, 0);
        full.store(true, Ordering::Relaxed);
    };
    for round in 0..2 {
        if round == 1 {
            drains();
        }
        let mut own = Turn::new();
        while turn(&next, &mut own).unfinished {}
        assert!(next.state().held, "{round}: the uplink is full of its frames");
        drains();
        assert!(!next.state().held, "{round}");
        next.with(Time::ZERO, |_, cx| cx.out.work.insert(0)).unwrap();
    }
}

fn a_vm_that_is_gone_has_no_time_left_to_wait_for(workers: usize) {
    let (plane, port, ..) = rung(Progress { more: false, armed: true });
    let mut turn = Turn::new();
    as_worker(workers - 1, || while plane.turn(&port, &mut turn, Time::ZERO).more {});
    let later = Time(500);
    port.with(Time::ZERO, |_, cx| cx.out.wake_by(later)).unwrap();
    assert!(port.busy(later));
    port.detach(Time::ZERO);
    port.attach();
    assert!(!port.busy(later), "the next one has asked for nothing");
}

fn queues_that_cannot_ring_are_looked_at_soon_after_frames_came_for_their_guest_however_silent_they_were(
    workers: usize,
) {
    let (plane, port, alarm, fetched) = rung(Progress { more: false, armed: false });
    let progress = Progress { more: true, armed: true };
    let sender = Queues { progress, sends: sends_of(2 * PACKETS), bytes: FRAME, ..Queues::default() };
    let sender = Arc::new(
        Port::new(PortId(1), End::guest(Box::new(Ringed(sender))), Box::new(Owner::default()), BUFFER).unwrap(),
    );
    plane.join(Arc::clone(&sender)).unwrap();
    sender.attach();
    sender.set_memory(memory(&frame(0xff, 1, 14)), Time::ZERO);
    sender.with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
    let turn = |port: &Arc<Port>, now| as_worker(workers - 1, || _ = plane.turn(port, &mut Turn::new(), now));
    let poll = |now| {
        (0..3).for_each(|_| turn(&port, now));
        assert_eq!(fetched.lock().unwrap().drain(..).collect::<Vec<_>>(), [1, 3, 5]);
    };
    let asked = || std::mem::take(&mut alarm.asked().wakes);
    // Without work the polls become rare.
    let (mut now, mut next) = (Time::ZERO, Time::ZERO);
    while next <= now.after_ns(1_000_000) {
        now = next;
        poll(now);
        let [at] = asked()[..] else { panic!("one wake-up") };
        next = at;
    }
    // An answer may arrive at once.
    turn(&sender, now);
    let [soon] = asked()[..] else { panic!("one more wake-up, not one for each frame") };
    assert!(soon > now && soon <= now.after_ns(100_000), "{soon:?} after {now:?}");
    turn(&sender, now);
    assert!(asked().is_empty(), "more frames at that time ask for nothing more");
    assert!(!port.busy(now) && port.busy(soon));
    poll(soon);
}

fn the_habits_of_a_guest_say_when_it_is_looked_at_until_it_hears_something_or_goes(workers: usize) {
    const PACE_NS: u64 = 4_000_000;
    let (sends, alarm, plane) = (sends_of(0), Memo::default(), Plane::new(Limits::default()));
    let progress = Progress { more: false, armed: false };
    let guest = Queues { progress, sends: Arc::clone(&sends), bytes: FRAME, ..Queues::default() };
    let other = Queues { progress, sends: sends_of(1), bytes: FRAME, ..Queues::default() };
    let shells: [Box<dyn Shell>; 2] = [Box::new(alarm.clone()), Box::new(Owner::default())];
    let ports = [guest, other].into_iter().zip(shells).zip(0..).map(|((queues, shell), id)| {
        let port = Arc::new(Port::new(PortId(id), End::guest(Box::new(Ringed(queues))), shell, BUFFER).unwrap());
        plane.join(Arc::clone(&port)).unwrap();
        port
    });
    let ports: Vec<_> = ports.collect();
    let start = |port: &Arc<Port>, now| {
        port.attach();
        port.set_memory(memory(&frame(0xff, 1, 14)), now);
        port.with_rings(now, |rings, cx| rings.kick(0, cx)).unwrap();
    };
    let turn = |port: &Arc<Port>, now| as_worker(workers - 1, || _ = plane.turn(port, &mut Turn::new(), now));
    // A poll; returns the time of the next one.
    let poll = |now| {
        turn(&ports[0], now);
        std::mem::take(&mut alarm.asked().wakes).last().copied().unwrap()
    };
    // Work arrives at this time. Returns the time of the poll that finds it, and the time of the next poll.
    let send = |at: Time, mut next: Time| {
        while next < at {
            next = poll(next);
        }
        sends.store(1, Ordering::Relaxed);
        let after = poll(next);
        assert_eq!(sends.load(Ordering::Relaxed), 0);
        (next, after)
    };
    ports.iter().for_each(|port| start(port, Time::ZERO));
    let (mut found, mut next) = (Time::ZERO, poll(Time::ZERO));
    for _ in 0..100 {
        (found, next) = send(found.after_ns(PACE_NS), next);
    }
    assert!(next.since(found).as_nanos() >= u128::from(PACE_NS / 16), "{next:?} after {found:?}");
    // Frames were received: the polls are as frequent as at first, although one found nothing.
    let mut now = found.after_ns(1_000);
    turn(&ports[1], now);
    next = std::mem::take(&mut alarm.asked().wakes).last().copied().unwrap();
    for _ in 0..4 {
        assert!(next.since(now).as_micros() <= 40, "{next:?} after {now:?}");
        (now, next) = (next, poll(next));
    }
    (_, next) = send(now.after_ns(PACE_NS), next);
    // The next guest has its own idle time.
    ports[0].detach(next);
    start(&ports[0], next);
    (found, next) = send(next, poll(next));
    assert!(next.since(found).as_micros() <= 40, "{next:?} after {found:?}");
}

/// Two ports. The first sends frames to the second, which takes some time for each.
struct Slow {
    plane: Plane,
    ports: [Arc<Port>; 2],
    owner: Owner,
    holds: Arc<Mutex<Vec<usize>>>,
}

impl Slow {
    fn new(sends: usize, bytes: u32, to: Queues) -> Self {
        let (owner, holds) = (Owner::default(), Arc::default());
        let clock = Arc::clone(&owner.clock);
        let progress = Progress { more: true, armed: true };
        let from = Queues { progress, sends: sends_of(sends), bytes, ..Queues::default() };
        let to = Queues { holds: Arc::clone(&holds), clock, ..to };
        let plane = Plane::new(Limits::default());
        let ports = [(0, from), (1, to)].map(|(id, queues)| {
            let end = End::guest(Box::new(Ringed(queues)));
            let port = Arc::new(Port::new(PortId(id), end, Box::new(owner.clone()), BUFFER).unwrap());
            port.attach();
            plane.join(Arc::clone(&port)).unwrap();
            port
        });
        ports[0].set_memory(memory(&frame(0xff, 1, 14)), Time::ZERO);
        ports[0].with_rings(Time::ZERO, |rings, cx| rings.kick(0, cx)).unwrap();
        Self { plane, ports, owner, holds }
    }

    /// A turn of a port: its cost, and the number of frames in each of the receiver's holds.
    fn turn(&self, port: usize, workers: usize) -> (u64, Vec<usize>) {
        let outcome = as_worker(workers - 1, || self.plane.turn(&self.ports[port], &mut Turn::new(), Time::ZERO));
        (outcome.cost, std::mem::take(&mut self.holds.lock().unwrap()))
    }

    /// The receiver reports room.
    fn room(&self) {
        self.ports[1].with(Time::ZERO, |_, cx| cx.out.room.insert(0)).unwrap();
    }

    fn waiting(&self) -> usize {
        self.ports[1].state().backlog_frames
    }
}

fn a_receiver_that_is_slow_gets_few_frames_in_one_hold_and_one_that_is_quick_a_whole_batch(workers: usize) {
    let slow = Slow::new(3 * PACKETS, FRAME, Queues { cost_ns: 4_000, ..Queues::default() });
    for batch in 1..=3 {
        assert_eq!(slow.turn(0, workers).1, [8; 8], "batch {batch}: each frame cost 4 µs");
        assert_eq!(slow.owner.interrupts.load(Ordering::Relaxed), batch, "once a batch, not once a hold");
    }
    let quick = Slow::new(3 * PACKETS, FRAME, Queues { cost_ns: 100, ..Queues::default() });
    assert_eq!(quick.turn(0, workers).1, [8, 16, 32, 8]);
    assert_eq!(quick.turn(0, workers).1, [64]);
    assert_eq!(quick.turn(0, workers).1, [64]);
}

fn frames_that_waited_go_in_few_at_a_time_too(workers: usize) {
    let slow = Slow::new(PACKETS, FRAME, Queues { cost_ns: 4_000, refuses: 8, ..Queues::default() });
    assert_eq!(slow.turn(0, workers).1, [0], "the first are refused, so that the others wait behind them");
    assert_eq!(slow.waiting(), PACKETS);
    slow.room();
    assert_eq!(slow.turn(1, workers).1, [8; 8]);
    assert_eq!(slow.waiting(), 0);
}

fn what_waited_costs_a_turn_no_more_bytes_than_two_batches_and_is_paid_for(workers: usize) {
    const LONG: u32 = 60_000;
    let slow = Slow::new(20, LONG, Queues { refuses: 1, ..Queues::default() });
    while slow.waiting() < 17 {
        slow.turn(0, workers);
    }
    slow.room();
    for left in [14, 11, 8] {
        let (cost, holds) = slow.turn(1, workers);
        assert_eq!((slow.waiting(), holds.iter().sum()), (left, 3), "128 KiB, and what the last packet has more");
        assert!(cost > u64::from(3 * LONG), "{cost}");
    }
}

fn frames_that_wait_for_a_queue_that_is_full_do_not_keep_the_others_waiting(workers: usize) {
    let slow = Slow::new(2 * PACKETS, FRAME, Queues { stuck: 20, ..Queues::default() });
    slow.turn(0, workers);
    assert_eq!(slow.waiting(), 20, "the others went at once");
    slow.turn(0, workers);
    assert_eq!(slow.waiting(), 20);
    // Room in the other queue is no room for these frames.
    slow.room();
    slow.turn(1, workers);
    assert_eq!(slow.waiting(), 20);
}
