//! Queues of one interface under I/O control: reservations, shares and limits are the interface's, whatever queues and workers it has. Two
//! threads, as workers are, have the ports with even and with odd numbers; the clock is the test's.

mod guests;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use guests::{Guest, Received};
use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Rate, Reason, Time};
use nicety_ioc::{Class, ClassTerms, Match, Terms};
use nicety_memory::Map;
use nicety_plane::doubles::{Linked, Silent, Traffic, send, send_all};
use nicety_plane::{End, Group, Hash, InwardControl, Mode, Plane, Port, Steering, Turn};
use nicety_switch::{Limits, Policy};

const MS: u64 = 1_000_000;
const LEN: u64 = 1250;
/// Frames in a millisecond of 100 Mbit/s, the link's rate.
const FRAMES_A_MS: usize = 10;
const QUEUES: usize = 4;
const WORKERS: usize = 2;
const TEAM: PortId = PortId(20);
/// The number of the first queue. The others follow.
const FIRST: u16 = 8;
/// Port 0 is nobody's, so guest n is port n.
const GUESTS: usize = 7;

/// The interface that all queues share.
#[derive(Default)]
struct Interface {
    /// Frames that each queue still takes in this millisecond: as with a pace, a queue's tokens are its own.
    room: [usize; QUEUES],
    /// Frames that left, by the number of their sender, and by the queue that sent them.
    sent: [u64; GUESTS],
    sent_by: [u64; QUEUES],
    is_down: [bool; QUEUES],
    arrived: [VecDeque<Vec<u8>>; QUEUES],
}

struct Queue {
    interface: Arc<Mutex<Interface>>,
    place: usize,
    again: Option<Time>,
}

impl Traffic for Queue {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let _offered_again = self.again.take_if(|at| *at <= cx.now);
        send_all(&mut self.interface.lock().unwrap().arrived[self.place], budget, batch, cx)
    }

    fn deliver(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let mut interface = self.interface.lock().unwrap();
        for (index, _, packet) in frames.iter() {
            if interface.room[self.place] == 0 {
                delivery.refuse(index, 0, 0);
                self.again = Some(cx.now.after_ns(MS));
                continue;
            }
            interface.room[self.place] -= 1;
            interface.sent[usize::from(frames.batch.head(packet)[11])] += 1;
            interface.sent_by[self.place] += 1;
        }
        delivery
    }

    fn wake(&self) -> Option<Time> {
        self.again
    }

    fn carrier(&self) -> bool {
        !self.interface.lock().unwrap().is_down[self.place]
    }
}

/// A guest that always has frames for somebody outside.
struct Greedy;

impl Traffic for Greedy {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while budget.allows(batch) {
            send(batch, 0, LEN as u32);
        }
        Progress { more: true, armed: true }
    }
}

struct World {
    plane: Plane,
    interface: Arc<Mutex<Interface>>,
    steering: Arc<Steering>,
    queues: Vec<Arc<Port>>,
    guests: Vec<Arc<Port>>,
    received: Vec<Received>,
    now: Time,
}

impl World {
    /// Guests 1 and on, greedy or not.
    fn new(guests: u16, greedy: bool, one_sends: bool) -> Self {
        let plane = Plane::new(Limits::default());
        let interface = Arc::<Mutex<Interface>>::default();
        let mode = Mode::Queues { one_sends };
        let steering = Arc::new(Steering::in_mode(&mode, Hash::Sender));
        let queues: Vec<Arc<Port>> = (0..QUEUES)
            .map(|place| {
                let queue = Linked::new(Queue { interface: Arc::clone(&interface), place, again: None });
                let id = PortId(FIRST + place as u16);
                let port = Port::new(id, End::link(Box::new(queue)), Box::new(Silent), 256 << 10).unwrap();
                Arc::new(port.in_team(TEAM, &steering, place))
            })
            .collect();
        let members = queues.iter().cloned().map(Some);
        plane.join_team(Arc::new(Group::team(TEAM, Arc::clone(&steering), members)), &Policy::default()).unwrap();
        let received: Vec<Received> = (0..=guests).map(|_| Received::default()).collect();
        let guests: Vec<Arc<Port>> = (1..=guests)
            .map(|id| match greedy {
                true => guests::port(id, Greedy),
                false => guests::port(id, Guest::new(&received[usize::from(id)])),
            })
            .collect();
        if greedy {
            // For one station beyond the link, not for each other.
            for (id, guest) in (1..).zip(&guests) {
                let map = Map::private(1 << 16).unwrap();
                map.write(0, &[2, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, id, 0x88, 0xb5]).unwrap();
                guest.set_memory(Arc::new(map), Time::ZERO);
            }
        }
        queues.iter().chain(&guests).for_each(|port| plane.join(Arc::clone(port)).unwrap());
        let mut this = Self { plane, interface, steering, queues, guests, received, now: Time(1) };
        // The links are up before anybody sends, and the switch knows where the station is.
        let mut frame = vec![0; 60];
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 99, 2, 0, 0, 0, 1, 1, 0x88, 0xb5]);
        this.run(2);
        this.interface.lock().unwrap().arrived[0].push_back(frame);
        this.run(1);
        for guest in &this.guests {
            guest.with_rings(this.now, |rings, cx| rings.kick(0, cx)).unwrap();
        }
        this
    }

    fn ms(&mut self) {
        self.now = self.now.after_ns(MS);
        self.interface.lock().unwrap().room = [FRAMES_A_MS; QUEUES];
        self.queues.iter().for_each(|queue| queue.ready());
        let (this, now) = (&*self, self.now);
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                scope.spawn(move || {
                    let all = this.queues.iter().chain(&this.guests);
                    let own: Vec<_> = all.filter(|port| usize::from(port.id().0) % WORKERS == worker).collect();
                    let mut turn = Turn::new();
                    for round in 0.. {
                        assert!(round < 10_000, "worker {worker} never rests");
                        let busy: Vec<_> = own.iter().filter(|port| port.busy(now)).collect();
                        if busy.is_empty() {
                            break;
                        }
                        busy.iter().for_each(|port| while this.plane.turn(port, &mut turn, now).unfinished {});
                    }
                });
            }
        });
    }

    fn run(&mut self, ms: u64) {
        (0..ms).for_each(|_| self.ms());
    }

    fn control(&self, classes: &[Class]) {
        self.queues.iter().for_each(|queue| queue.set_io_control(classes, self.now));
    }

    /// Frames that leave in so many milliseconds, by sender.
    fn sent_in(&mut self, ms: u64) -> [u64; GUESTS] {
        let before = self.interface.lock().unwrap().sent;
        self.run(ms);
        let after = self.interface.lock().unwrap().sent;
        std::array::from_fn(|guest| after[guest] - before[guest])
    }

    fn dropped(&self) -> u64 {
        self.queues.iter().map(|queue| queue.state().counters.receive_drops.iter().sum::<u64>()).sum()
    }
}

/// A class of two ports.
fn class(name: &str, first: u16, terms: Terms) -> Class {
    Class {
        name: name.to_owned(),
        terms: ClassTerms { class: terms, ..ClassTerms::default() },
        matches: vec![Match { ports: Some(vec![first, first + 1]), ..Match::default() }],
        ..Class::default()
    }
}

fn shares(shares: u16) -> Terms {
    Terms { shares, ..Terms::default() }
}

fn of_rates(shares: u16, reservation: Option<u64>, limit: Option<u64>) -> Terms {
    let rate = |mbit: Option<u64>| mbit.and_then(|mbit| Rate::new(mbit * 1_000_000));
    Terms { shares, reservation: rate(reservation), limit: rate(limit), ..Terms::default() }
}

fn classes(terms: [Terms; 3]) -> Vec<Class> {
    let named = ["a", "b", "c"].into_iter().zip([1, 3, 5]).zip(terms);
    let rest = Class { name: "rest".to_owned(), ..Class::default() };
    std::iter::once(rest).chain(named.map(|((name, first), terms)| class(name, first, terms))).collect()
}

/// Frames of the three classes.
fn by_class(sent: &[u64; GUESTS]) -> [u64; 3] {
    [sent[1] + sent[2], sent[3] + sent[4], sent[5] + sent[6]]
}

#[test]
fn shares_of_1_10_and_100_hold_within_2_percent_over_four_queues_and_two_workers() {
    let mut world = World::new(6, true, true);
    world.control(&classes([1, 10, 100].map(shares)));
    world.run(100);
    let sent = world.sent_in(3000);
    let all: u64 = sent.iter().sum();
    println!("{sent:?} of {all}");
    assert_eq!(all, 3000 * FRAMES_A_MS as u64, "the link is full");
    for (frames, shares) in by_class(&sent).into_iter().zip([1.0, 10.0, 100.0]) {
        let due = all as f64 * shares / 111.0;
        assert!((frames as f64 - due).abs() <= 0.02 * due, "{frames} frames with {shares} shares, not {due:.0}");
    }
    assert_eq!(world.dropped(), 0);
    let by = world.interface.lock().unwrap().sent_by;
    assert_eq!(by.iter().filter(|frames| **frames > 0).count(), 1, "{by:?}");
}

#[test]
fn a_reservation_and_a_limit_are_the_interfaces() {
    let mut world = World::new(6, true, true);
    world.control(&classes([of_rates(1, Some(40), None), of_rates(100, None, Some(20)), shares(100)]));
    world.run(100);
    let [mut least, mut most] = [u64::MAX, 0];
    for _ in 0..20 {
        let [reserved, limited, rest] = by_class(&world.sent_in(100));
        assert_eq!(reserved + limited + rest, 100 * FRAMES_A_MS as u64);
        (least, most) = (least.min(reserved), most.max(limited));
    }
    println!("in the worst 100 ms: {least} frames of 400 reserved, {most} of 200 as a limit");
    assert!(least >= 392, "{least}");
    assert!(most <= 204, "{most}");
}

#[test]
fn classes_come_and_go_while_frames_wait_and_none_is_lost() {
    let mut world = World::new(6, true, false);
    world.run(200);
    let waiting =
        |world: &World| -> usize { world.queues.iter().filter(|queue| queue.state().backlog_frames > 0).count() };
    assert_eq!(waiting(&world), QUEUES, "each queue has frames to send");
    for _ in 0..2 {
        let change = |world: &World, one_sends| {
            world.plane.change_team(TEAM, &Mode::Queues { one_sends }, Hash::Sender, world.now);
        };
        change(&world, true);
        world.control(&classes([1, 10, 100].map(shares)));
        // Frames that wait at the other queues leave in their order.
        world.run(1500);
        let sent = by_class(&world.sent_in(1000));
        let all: u64 = sent.iter().sum();
        assert!(sent[2] as f64 >= 0.98 * all as f64 * 100.0 / 111.0, "{sent:?}");
        assert_eq!(world.dropped(), 0);
        assert_eq!(waiting(&world), 1);
        change(&world, false);
        world.control(&[]);
        world.run(500);
        assert_eq!(world.dropped(), 0);
        assert_eq!(waiting(&world), QUEUES, "each queue has frames to send");
    }
}

#[test]
fn another_queue_sends_while_one_is_down_and_goes_on_in_another_process() {
    let mut world = World::new(6, true, true);
    world.control(&classes([1, 10, 100].map(shares)));
    world.run(50);
    world.interface.lock().unwrap().is_down[0] = true;
    world.run(5);
    world.interface.lock().unwrap().is_down[0] = false;
    let before = world.interface.lock().unwrap().sent_by;
    let [a, b, c] = by_class(&world.sent_in(1000));
    let after = world.interface.lock().unwrap().sent_by;
    let sent: Vec<u64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
    assert_eq!(sent, [0, 10_000, 0, 0], "a queue that comes back does not take over");
    assert!(c as f64 >= 0.98 * 10_000.0 * 100.0 / 111.0, "{a} {b} {c}");
    let saved = world.steering.save();
    let other = Steering::in_mode(&Mode::Queues { one_sends: true }, Hash::Sender);
    other.restore(&saved, world.now);
    let distributes = |steering: &Steering| -> Vec<bool> {
        steering.states(QUEUES, world.now).iter().map(|state| state.distributes).collect()
    };
    assert_eq!((distributes(&other), other.save()), (vec![false, true, false, false], saved));
}

/// Frames for a guest, in this flow.
fn frame(target: u8, flow: u8) -> Vec<u8> {
    let mut frame = vec![0; LEN as usize];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 1, flow, 8, 0]);
    // UDP; its sender knows ECN, and pays no heed to it.
    frame[14..24].copy_from_slice(&[0x45, 1, 4, 0xd4, 0, 0, 0, 0, 64, 17]);
    frame[26..34].copy_from_slice(&[10, 0, 0, flow, 10, 0, 1, target]);
    frame
}

#[test]
fn what_comes_in_by_all_queues_has_one_rate_one_buffer_and_the_reservations_of_the_interface() {
    let mut world = World::new(2, false, false);
    world.run(1);
    let reserved = Class {
        matches: vec![Match { ports: Some(vec![2]), ..Match::default() }],
        ..class("reserved", 2, of_rates(1, Some(60), None))
    };
    let rest = Class { name: "rest".to_owned(), ..Class::default() };
    let rate = Rate::new(100_000_000).unwrap();
    let control = InwardControl { rate, buffer_bytes: 512 << 10, classes: vec![rest, reserved] };
    world.queues.iter().for_each(|queue| queue.set_inward(Some(&control), world.now).unwrap());
    let count = |world: &World, guest: usize| world.received[guest][1].load(Ordering::Relaxed);
    let mut last = [0; 2];
    for window in 0..20 {
        for ms in 0..100 {
            // 65 Mbit/s for the guest with a reservation on one queue, 60 Mbit/s for the other on each of all.
            {
                let arrived = &mut world.interface.lock().unwrap().arrived;
                arrived[3].extend(std::iter::repeat_n(frame(2, 1), 6 + ms % 2));
                arrived.iter_mut().for_each(|queue| queue.extend(std::iter::repeat_n(frame(1, 1), 6)));
            }
            world.run(1);
        }
        let now = [count(&world, 1), count(&world, 2)];
        let [greedy, kept] = [now[0] - last[0], now[1] - last[1]];
        last = now;
        if window > 0 {
            assert!((990..=1010).contains(&(greedy + kept)), "{greedy} and {kept} frames in 100 ms of 1000");
            assert!(kept >= 588, "{kept} of 600 reserved");
        }
    }
    let states: Vec<_> = world.queues.iter().map(|queue| queue.state().inward_classes).collect();
    assert!(states[0][0].dropped > 0 && states[1..].iter().all(Vec::is_empty), "told once: {states:?}");
    let waits = world.queues[0].waiting_frames().inward.len();
    assert!(waits > 0 && world.queues[1..].iter().all(|queue| queue.waiting_frames().inward.is_empty()));
    let lost: u64 = world.queues.iter().map(|queue| queue.state().counters.transmit_drops.iter().sum::<u64>()).sum();
    let removed = |world: &World| -> u64 {
        world.queues.iter().map(|queue| queue.state().counters.transmit_drops[Reason::Removed as usize]).sum()
    };
    assert!(lost > 0 && removed(&world) == 0);
    // One queue leaves, and the others pass on what waits.
    world.plane.leave(world.queues[0].id()).unwrap();
    world.queues.remove(0);
    world.plane.leave_team(TEAM, 0, world.now);
    world.interface.lock().unwrap().arrived.iter_mut().for_each(VecDeque::clear);
    world.run(200);
    let after = count(&world, 1) + count(&world, 2);
    assert!(after - last.iter().sum::<u64>() >= waits as u64, "{waits} waited, {after} after {last:?}");
}
