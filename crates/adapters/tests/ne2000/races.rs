//! Nothing is lost: for any event between any two accesses of Linux's driver, every sent frame goes out and is reported, and every
//! received frame is taken. The tests try all orders of a few events at every distance.

use crate::driver::{Driver, Event};

const EVENTS: [Event; 6] =
    [Event::Frames(1), Event::Frames(12), Event::Send, Event::Turn, Event::Wait, Event::Restored];
/// Accesses of the longest path from an interrupt to its end, with one frame.
const GAPS: usize = 50;
/// Distances from the second event to the third. Two are enough, as each event occurs at every distance from the driver's work.
const THIRD: [usize; 2] = [0, 10];
/// Most interrupts for a story's events: one each, and as many whose event was already handled with another.
const MAX: u32 = 8;

fn happen(stories: impl Iterator<Item = [(usize, Event); 4]> + Clone) {
    for acknowledges in [false, true] {
        let mut driver = Driver::new(acknowledges);
        for story in stories.clone() {
            let interrupts = driver.play(&story).unwrap_or_else(|why| panic!("{acknowledges}, {story:?}: {why}"));
            assert!(interrupts <= MAX, "{acknowledges}, {story:?}: {interrupts} interrupts");
        }
    }
}

#[test]
fn whatever_comes_between_two_accesses_of_linux_s_driver_is_sent_and_seen() {
    let gaps = (0..GAPS).flat_map(|second| THIRD.map(move |third| [second, third]));
    let orders = EVENTS.into_iter().flat_map(|second| EVENTS.map(|third| [second, third]));
    happen(orders.flat_map(|[second, third]| {
        gaps.clone().map(move |gaps| [(0, Event::Send), (0, Event::Send), (gaps[0], second), (gaps[1], third)])
    }));
}

#[test]
fn a_slow_driver_in_a_flood_of_short_frames_hears_of_its_own_before_its_watchdog_does() {
    // Under a translating VMM, or on a busy host: a frame takes some twenty accesses.
    for step_ns in [1_000, 100_000, 1_000_000] {
        let mut driver = Driver::new(false);
        (driver.step_ns, driver.prompt) = (step_ns, true);
        // The adapter learns the driver's speed from a frame or two.
        driver.play(&[(0, Event::Frames(2))]).unwrap();
        for _ in 0..20 {
            let story = [(0, Event::Send), (10, Event::Frames(40)), (0, Event::Send), (100, Event::Send)];
            driver.play(&story).unwrap_or_else(|why| panic!("{step_ns} ns: {why}"));
        }
        let late_ms = driver.late_ns / 1_000_000;
        println!("{step_ns} ns an access: {late_ms} ms at most");
        assert!(late_ms < 150, "{step_ns} ns an access: after {late_ms} ms, of 200");
    }
}
