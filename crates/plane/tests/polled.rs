//! A port whose worker never sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Context, PortId, Progress, Set, Time};
use nicety_memory::Map;
use nicety_plane::doubles::{Ringed, Traffic, send};
use nicety_plane::{End, Plane, Port, Shell, Turn};
use nicety_switch::Limits;

/// An owner that polls all the time, or not. Counts the times at which it is to wake up.
#[derive(Clone, Default)]
struct Owner {
    always: Arc<AtomicBool>,
    wakes: Arc<AtomicU64>,
}

impl Shell for Owner {
    fn messages(&self, _: Set) {}
    fn line(&self, _: bool) {}
    fn schedule(&self) {}

    fn wake_at(&self, _: Time) {
        self.wakes.fetch_add(1, Ordering::Relaxed);
    }

    fn always_polls(&self) -> bool {
        self.always.load(Ordering::Relaxed)
    }
}

/// A guest that puts frames into its queue, and is asked to notify of the next one or not.
#[derive(Clone, Default)]
struct Guest {
    has_frame: Arc<AtomicBool>,
    is_asked: Arc<AtomicBool>,
}

impl Traffic for Guest {
    fn fetch(&mut self, _: u16, _: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if self.has_frame.swap(false, Ordering::Relaxed) {
            send(batch, 0, 60);
            return Progress { more: true, armed: false };
        }
        self.is_asked.store(!cx.polls, Ordering::Relaxed);
        Progress { more: false, armed: !cx.polls }
    }
}

#[test]
fn frames_are_found_without_a_notification_until_the_owner_sleeps_again() {
    let (plane, owner, guest) = (Plane::new(Limits::default()), Owner::default(), Guest::default());
    owner.always.store(true, Ordering::Relaxed);
    let end = End::guest(Box::new(Ringed(guest.clone())));
    let port = Arc::new(Port::new(PortId(0), end, Box::new(owner.clone()), 4 << 20).unwrap());
    plane.join(Arc::clone(&port)).unwrap();
    port.attach();
    port.set_memory(Arc::new(Map::private(1 << 16).unwrap()), Time::ZERO);
    let (mut turn, mut now) = (Turn::new(), 1);
    let mut turn = || {
        now += 1;
        plane.turn(&port, &mut turn, Time(now))
    };
    port.with_rings(Time(1), |rings, cx| rings.kick(0, cx)).unwrap();
    for _ in 0..3 {
        let empty = turn();
        assert_eq!((empty.more, empty.packets, empty.cost), (true, 0, 0), "it is polled in the next round too");
        assert!(!guest.is_asked.load(Ordering::Relaxed));
        guest.has_frame.store(true, Ordering::Relaxed);
        assert_eq!(turn().packets, 1);
    }
    assert_eq!(owner.wakes.load(Ordering::Relaxed), 0, "a round needs no timer");
    owner.always.store(false, Ordering::Relaxed);
    assert_eq!((turn().more, turn().more), (false, false));
    assert!(guest.is_asked.load(Ordering::Relaxed));
    guest.has_frame.store(true, Ordering::Relaxed);
    assert_eq!(turn().packets, 0, "the guest has not notified");
    port.with_rings(Time(1), |rings, cx| rings.kick(0, cx)).unwrap();
    assert_eq!(turn().packets, 1);
}

#[test]
fn a_port_that_is_silent_for_a_tenth_of_a_second_is_not_polled_until_its_guest_notifies() {
    let (plane, owner, guest) = (Plane::new(Limits::default()), Owner::default(), Guest::default());
    owner.always.store(true, Ordering::Relaxed);
    let end = End::guest(Box::new(Ringed(guest.clone())));
    let port = Arc::new(Port::new(PortId(0), end, Box::new(owner), 4 << 20).unwrap());
    plane.join(Arc::clone(&port)).unwrap();
    port.attach();
    port.set_memory(Arc::new(Map::private(1 << 16).unwrap()), Time::ZERO);
    let mut turn = Turn::new();
    let mut turn_at = |ms: u64| plane.turn(&port, &mut turn, Time(ms * 1_000_000));
    for second in 1..4 {
        // After a silence the first frame comes with a notification, and then without.
        for after in [0, 90, 180] {
            guest.has_frame.store(true, Ordering::Relaxed);
            if after == 0 {
                port.with_rings(Time(second * 1_000_000_000), |rings, cx| rings.kick(0, cx)).unwrap();
            }
            assert_eq!(turn_at(second * 1000 + after).packets, 1, "{second} s, {after} ms");
            assert!(turn_at(second * 1000 + after).more, "it is polled in the next round too");
        }
        assert!(turn_at(second * 1000 + 279).more);
        assert!(!turn_at(second * 1000 + 281).more && guest.is_asked.load(Ordering::Relaxed));
    }
}
