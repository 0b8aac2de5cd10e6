//! No interrupt is lost: for any event between any two accesses of Linux's drivers, the driver handles it, or an interrupt or a
//! wake-up is due. The tests try all orders of a few events at every distance.

use crate::driver::{Driver, Event, Kind};

/// Most steps between two events: more than a driver's longest path from an interrupt to its end.
const GAPS: usize = 16;
const EVENTS: [Event; 4] = [Event::Frame, Event::Sent, Event::Link, Event::Wait];
/// Most interrupts for three events: one each, and as many whose event was already handled with another.
const MAX: u64 = 6;
/// Every kind of interrupt of each driver, with two throttles.
const KINDS: [(&str, Kind, [u32; 2]); 7] = [
    ("e1000", Kind::Line, [0, 195]),
    ("e1000e", Kind::Msix, [1, 195]),
    ("e1000e", Kind::Msi, [0, 195]),
    ("e1000e", Kind::Line, [0, 195]),
    ("igb", Kind::Msix, [0, 196]),
    ("igb", Kind::Msi, [0, 196]),
    ("igb", Kind::Line, [0, 196]),
];

/// Three events, each after a number of steps.
type Story = [(usize, Event); 3];

/// Plays all of these stories to a driver, one after the other.
fn happen(name: &str, stories: impl Iterator<Item = Story> + Clone) {
    for (name, kind, throttles) in KINDS.into_iter().filter(|kind| kind.0 == name) {
        for throttle in throttles {
            let mut driver = Driver::new(name, kind, throttle);
            driver.finish().unwrap_or_else(|why| panic!("{name}, {kind:?}: {why}"));
            for story in stories.clone() {
                let before = driver.interrupts();
                for (gap, event) in story {
                    (0..gap).for_each(|_| _ = driver.step());
                    driver.meet(event);
                }
                let what = || format!("{name}, {kind:?}, throttle {throttle}: {story:?}");
                driver.finish().unwrap_or_else(|why| panic!("{}: {why}", what()));
                let interrupts = driver.interrupts() - before;
                assert!((1..=MAX).contains(&interrupts), "{}: {interrupts} interrupts", what());
            }
        }
    }
}

/// Three events in every order, at every distance.
fn orders() -> impl Iterator<Item = Story> + Clone {
    let gaps = (0..GAPS).flat_map(|second| (0..GAPS).map(move |third| [second, third]));
    let last = EVENTS.into_iter().flat_map(|second| EVENTS.map(|third| [second, third]));
    let all =
        EVENTS[..3].iter().flat_map(move |first| last.clone().map(move |[second, third]| [*first, second, third]));
    all.flat_map(move |[first, second, third]| {
        gaps.clone().map(move |gaps| [(0, first), (gaps[0], second), (gaps[1], third)])
    })
}

/// An event, then the chip is saved and another one continues from its state, then another event.
fn moves() -> impl Iterator<Item = Story> + Clone {
    let gaps = (0..12).flat_map(|second| [0, 4].map(|third| [second, third]));
    let around = EVENTS[..3].iter().flat_map(|first| [Event::Frame, Event::Wait].map(|last| [*first, last]));
    around.flat_map(move |[first, last]| {
        gaps.clone().map(move |gaps| [(0, first), (gaps[0], Event::Restored), (gaps[1], last)])
    })
}

#[test]
fn whatever_comes_between_two_accesses_of_the_e1000_s_driver_is_seen() {
    happen("e1000", orders());
}

#[test]
fn whatever_comes_between_two_accesses_of_the_e1000e_s_driver_is_seen_with_msi_x_msi_and_the_line() {
    happen("e1000e", orders());
}

#[test]
fn whatever_comes_between_two_accesses_of_the_igb_s_driver_is_seen_with_msi_x_msi_and_the_line() {
    happen("igb", orders());
}

#[test]
fn a_chip_that_is_saved_between_two_accesses_of_its_driver_and_restored_elsewhere_loses_nothing() {
    for name in ["e1000", "e1000e", "igb"] {
        happen(name, moves());
    }
}
