//! Missed-notification races: every interleaving of the driver's steps and the device's (virtio 1.2, sections 2.7.7 and 2.7.10).
//! The driver's rules are implemented again here, from its side.

use std::cell::Cell;

use nicety_memory::{Map, Rights, Window};

use super::*;
use crate::virtio_net::ring::areas::QUIET;

const SIZE: u16 = 16;
const DRIVER: u64 = 0x1000;
const DEVICE: u64 = 0x2000;
/// Start values of an index; some wrap during the test.
const BEGINS: [u16; 4] = [0, 5, 65534, 65535];

/// The driver's side of a ring.
struct Driver<'m> {
    available: Window<'m>,
    used: Window<'m>,
    event_index: bool,
}

impl Driver<'_> {
    fn new(memory: &Map, event_index: bool) -> Driver<'_> {
        let area = |at, len| memory.window(at, len, Rights::BOTH).unwrap();
        let size = u32::from(SIZE);
        Driver { available: area(DRIVER, 6 + 2 * size), used: area(DEVICE, 6 + 8 * size), event_index }
    }

    /// Address of the index at which the driver wants a notification (`used_event`).
    fn used_event(&self) -> usize {
        4 + 2 * usize::from(SIZE)
    }

    /// Address of the device's own (`avail_event`).
    fn avail_event(&self) -> usize {
        4 + 8 * usize::from(SIZE)
    }

    fn add(&self, index: u16) {
        self.available.store_u16(2, index);
    }

    /// Section 2.7.10: whether the driver must kick for the entries from `old` to `new`.
    fn must_kick(&self, old: u16, new: u16) -> bool {
        if self.event_index {
            let event = self.used.load_u16(self.avail_event());
            return (1..=new.wrapping_sub(old)).any(|count| old.wrapping_add(count) == event.wrapping_add(1));
        }
        self.used.load_u16(0) & QUIET == 0
    }

    /// Disables notifications for entries after `seen`: an index already passed, or the flag.
    fn disable(&self, seen: u16) {
        self.available.store_u16(0, if self.event_index { 0 } else { QUIET });
        self.available.store_u16(self.used_event(), seen.wrapping_sub(1));
    }

    /// Enables notifications.
    fn enable(&self, seen: u16) {
        if self.event_index {
            self.available.store_u16(self.used_event(), seen);
        } else {
            self.available.store_u16(0, 0);
        }
    }
}

fn ring(at: u16) -> Ring {
    Ring {
        size: SIZE,
        driver: DRIVER,
        device: DEVICE,
        started: true,
        enabled: true,
        settled: true,
        next: at,
        used: at,
        ..Ring::default()
    }
}

fn open<'m>(ring: &Ring, memory: &'m Map, event_index: bool) -> Areas<'m, false> {
    ring.translate(memory, if event_index { feature::EVENT_IDX } else { 0 }).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Device(usize),
    Driver(usize),
}

/// All interleavings of this many device steps and driver steps, each side in its own order.
fn orders(device: usize, driver: usize) -> Vec<Vec<Step>> {
    let all = 0u32..1 << (device + driver);
    all.filter(|bits| bits.count_ones() as usize == driver)
        .map(|bits| {
            let mut at = [0, 0];
            let step = |place| {
                let by = (bits >> place & 1) as usize;
                at[by] += 1;
                if by == 0 { Step::Device(at[0] - 1) } else { Step::Driver(at[1] - 1) }
            };
            (0..device + driver).map(step).collect()
        })
        .collect()
}

/// Outcome for buffers that a driver adds while the device goes to sleep.
#[derive(Debug, PartialEq, Eq)]
struct Added {
    /// The device sees them without a kick.
    found: bool,
    kicked: bool,
}

/// The device checks and arms: in one step, or (`split`) in its two. `left`: entries that it has seen and leaves in the ring.
fn add_while_arming(event_index: bool, begin: u16, left: u16, count: u16, order: &[Step], split: bool) -> Added {
    let memory = Map::private(1 << 16).unwrap();
    let driver = Driver::new(&memory, event_index);
    let mut ring = ring(begin);
    let before = begin.wrapping_add(left);
    driver.add(before);
    let areas = open(&ring, &memory, event_index);
    // The ring was polled until now, and the last `avail_event` is passed.
    areas.disarm(&mut ring);
    if event_index {
        driver.used.store_u16(driver.avail_event(), before.wrapping_sub(1));
    }
    assert!(!driver.must_kick(before, before.wrapping_add(count)));
    let after = before.wrapping_add(count);
    let kicked = Cell::new(false);
    let drive = |steps: &[Step]| {
        for step in steps {
            match step {
                Step::Driver(0) => driver.add(after),
                _ => kicked.set(driver.must_kick(before, after)),
            }
        }
    };
    let (mut found, mut seen, mut rest) = (false, 0, order);
    while let Some((step, others)) = rest.split_first() {
        rest = others;
        match step {
            Step::Device(0) => {
                seen = areas.seen(&ring).unwrap();
                found = seen.wrapping_sub(ring.next) > left;
            }
            // A device that has found something does not go to sleep.
            Step::Device(_) if found => {}
            Step::Device(_) => {
                let end = rest.iter().position(|step| *step == Step::Device(2)).filter(|_| split);
                let (within, others) = rest.split_at(end.unwrap_or(0));
                found = areas.arm_around(&mut ring, seen, || drive(within));
                rest = if split { &others[1..] } else { others };
            }
            Step::Driver(_) => drive(&[*step]),
        }
    }
    Added { found, kicked: kicked.get() }
}

#[test]
fn whatever_a_driver_adds_while_the_device_goes_to_sleep_is_found_or_kicked_for() {
    // A transmit ring is empty then. A receive ring may hold some buffers, too few for the frame.
    for (event_index, left) in [(false, 0), (false, 3), (true, 0), (true, 3)] {
        for (begin, count) in BEGINS.iter().flat_map(|begin| [1, 2, 5].map(|count| (*begin, count))) {
            for (steps, split) in [(2, false), (3, true)] {
                for order in orders(steps, 2) {
                    let added = add_while_arming(event_index, begin, left, count, &order, split);
                    let case = format!("events {event_index}, {left} left, {count} from {begin}: {order:?}");
                    assert!(added.found || added.kicked, "lost: {case}");
                    if order[..2] == [Step::Driver(0), Step::Driver(1)] {
                        assert_eq!(added, Added { found: true, kicked: false }, "before the look: {case}");
                    }
                    if order[steps..] == [Step::Driver(0), Step::Driver(1)] {
                        assert_eq!(added, Added { found: false, kicked: true }, "after arming: {case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_driver_that_adds_nothing_lets_the_device_sleep_and_kicks_once_for_the_next() {
    for (event_index, begin) in BEGINS.iter().flat_map(|begin| [(false, *begin), (true, *begin)]) {
        let memory = Map::private(1 << 16).unwrap();
        let driver = Driver::new(&memory, event_index);
        let mut ring = ring(begin);
        let areas = open(&ring, &memory, event_index);
        driver.add(begin);
        areas.disarm(&mut ring);
        assert!(!areas.arm(&mut ring, begin) && !areas.arm(&mut ring, begin));
        let next = |count| begin.wrapping_add(count);
        assert!(driver.must_kick(begin, next(1)), "events {event_index}, from {begin}");
        // With an index it is already passed; without one the device must set the quiet flag.
        areas.disarm(&mut ring);
        assert!(!driver.must_kick(next(1), next(2)), "events {event_index}, from {begin}");
    }
}

/// Outcome for buffers that the device completes while the driver goes to sleep.
#[derive(Debug, PartialEq, Eq)]
struct Returned {
    found: bool,
    told: bool,
}

/// The device shows them and notifies, at once or (`late`) after it has seen that the driver wants it. The driver enables
/// notifications and checks a last time.
fn give_back_while_enabling(event_index: bool, begin: u16, count: u16, order: &[Step], late: bool) -> Returned {
    let memory = Map::private(1 << 16).unwrap();
    let driver = Driver::new(&memory, event_index);
    let mut ring = ring(begin);
    let areas = open(&ring, &memory, event_index);
    driver.used.store_u16(2, begin);
    driver.disable(begin);
    let (mut returned, mut waits) = (Returned { found: false, told: false }, true);
    for step in order {
        match step {
            Step::Device(0) => {
                (0..u32::from(count)).for_each(|head| ring.give_back(&areas, Token(head), 0));
                areas.show(&ring);
            }
            Step::Device(1) if late => {
                waits = areas.wants(&ring);
                if !waits {
                    assert!(!ring.mark_notified(&areas), "nobody waits for it");
                }
            }
            Step::Device(_) if waits => returned.told = ring.mark_notified(&areas),
            Step::Device(_) => {}
            Step::Driver(0) => driver.enable(begin),
            Step::Driver(_) => returned.found = driver.used.load_u16(2) != begin,
        }
    }
    assert_eq!(ring.unsignalled, 0);
    returned
}

#[test]
fn whatever_the_device_gives_back_while_the_driver_goes_to_sleep_is_found_or_told() {
    for (event_index, begin) in BEGINS.iter().flat_map(|begin| [(false, *begin), (true, *begin)]) {
        for (count, steps, late) in [(1, 2, false), (2, 2, false), (5, 2, false), (1, 3, true), (3, 3, true)] {
            for order in orders(steps, 2) {
                let returned = give_back_while_enabling(event_index, begin, count, &order, late);
                let case = format!("events {event_index}, {count} from {begin}: {order:?}");
                assert!(returned.found || returned.told, "lost: {case}");
                if order[..2] == [Step::Driver(0), Step::Driver(1)] {
                    assert_eq!(returned, Returned { found: false, told: true }, "after the last look: {case}");
                }
                if order[steps..] == [Step::Driver(0), Step::Driver(1)] {
                    assert_eq!(returned, Returned { found: true, told: false }, "before the driver asked: {case}");
                }
            }
        }
    }
}

#[test]
fn places_of_a_packed_ring_of_any_size_lie_as_far_apart_as_there_are_steps_between_them() {
    let memory = Map::private(0x10_0000).unwrap();
    for size in [1, 3, SIZE, 0x8000] {
        let placed = Ring { size, descriptors: 0x1_0000, driver: 0, device: 0x1000, ..Ring::default() };
        let areas = placed.translate::<true>(&memory, 0).unwrap();
        for from in [0, size / 2, size - 1, 0x8000, 0x8000 | (size - 1)] {
            let mut at = from;
            for steps in 0..2 * u32::from(size) {
                assert_eq!(u32::from(areas.distance(from, at)), steps, "of {size}, from {from:#x} to {at:#x}");
                at = areas.after(at, 1);
            }
            assert_eq!(at, from, "after two laps");
        }
    }
}
