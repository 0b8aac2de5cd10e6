//! No interrupt is lost: frames arrive at every distinguishable moment of a driver's work.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use nicety_adapter::Offload;
use nicety_adapters::find;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};

use crate::packets::whole;
use crate::{PEER, all};

const A_WHILE_NS: u64 = 2_000_000;

struct World {
    rig: Rc<RefCell<Rig>>,
    guest: Guest,
    received: usize,
}

fn arrive(rig: &mut Rig) {
    rig.far.ends().outgoing.push_back((whole(MAC.0, PEER, 100, 0), Offload::default()));
    rig.settle();
}

impl World {
    fn new(name: &str) -> World {
        let rig = Rig::new(find(name).unwrap(), MEMORY, false);
        let mut guest = Guest::new(PortBus::of(&rig), Net::named(name));
        guest.open().unwrap();
        let mut world = World { rig: Rc::new(RefCell::new(rig)), guest, received: 0 };
        world.finish();
        world
    }

    /// Time passes and the driver takes interrupts; nothing else happens.
    fn finish(&mut self) {
        for _ in 0..4 {
            let mut rig = self.rig.borrow_mut();
            rig.settle();
            rig.pass(A_WHILE_NS);
            self.guest.bus.now = rig.now;
            drop(rig);
            let received = &mut self.received;
            self.guest.attend(&mut |_, _| *received += 1).unwrap();
        }
    }

    fn poll(&mut self) {
        let received = &mut self.received;
        self.guest.poll(&mut |_, _| *received += 1).unwrap();
    }

    /// One of a driver's steps.
    fn step(&mut self, number: usize) {
        match number {
            0 => drop(self.guest.interrupt().unwrap()),
            1 => self.poll(),
            _ => {
                // The driver polls again for packets that `rest` reports.
                while !self.guest.rest().unwrap() {
                    self.poll();
                }
            }
        }
    }
}

#[test]
fn frames_that_arrive_between_any_two_steps_of_a_driver_are_received() {
    const STEPS: usize = 7;
    for name in all() {
        let mut world = World::new(name);
        // Three arrivals, each before one of these steps (two rounds of interrupt, poll, rest), or after all.
        for choice in 0..STEPS.pow(3) {
            let times = [choice % STEPS, choice / STEPS % STEPS, choice / STEPS / STEPS];
            world.received = 0;
            for step in 0..STEPS {
                for _ in times.iter().filter(|time| **time == step) {
                    arrive(&mut world.rig.borrow_mut());
                }
                // A driver polls and rests only after an interrupt.
                if step + 1 < STEPS && (step % 3 == 0 || world.guest.is_polling()) {
                    world.step(step % 3);
                }
            }
            world.finish();
            assert_eq!(world.received, 3, "{name}: arrivals before steps {times:?}");
        }
    }
}

#[test]
fn frames_that_arrive_just_before_or_after_any_access_to_the_device_are_received() {
    for name in all() {
        let mut world = World::new(name);
        for place in 0..40u64 {
            world.received = 0;
            let begin = world.guest.bus.accesses.reads + world.guest.bus.accesses.writes;
            let (rig, fired) = (Rc::clone(&world.rig), Rc::new(Cell::new(0)));
            let count = Rc::clone(&fired);
            world.guest.bus.hook = Some(Box::new(move |number, over| {
                let now = 2 * (number - begin - u64::from(over)) + u64::from(over);
                if now == place {
                    count.set(count.get() + 1);
                    arrive(&mut rig.borrow_mut());
                }
            }));
            arrive(&mut world.rig.borrow_mut());
            let packet = whole(PEER, MAC.0, 100, 0);
            for round in 0..3 {
                world.rig.borrow_mut().pass(A_WHILE_NS);
                world.guest.bus.now = world.rig.borrow().now;
                let received = &mut world.received;
                world.guest.attend(&mut |_, _| *received += 1).unwrap();
                assert!(world.guest.queue(&packet, &Offload::default()).unwrap(), "{round}");
                world.guest.flush().unwrap();
            }
            world.guest.bus.hook = None;
            world.finish();
            assert_eq!(world.received, 1 + fired.get(), "{name}: an arrival at half access {place}");
        }
    }
}
