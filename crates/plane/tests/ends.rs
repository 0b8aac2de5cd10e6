//! A backlog ends while its sender goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nicety_adapter::{Batch, Budget, Context, Delivery, Frames, PortId, Progress, Time};
use nicety_memory::Map;
use nicety_plane::doubles::{Ringed, Silent, Traffic, send};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;

const LEN: u32 = 1514;

/// A guest that always has frames.
struct Sender;

impl Traffic for Sender {
    fn fetch(&mut self, _: u16, budget: Budget, batch: &mut Batch, _: &mut Context<'_>) -> Progress {
        while budget.allows(batch) {
            send(batch, 0, LEN);
        }
        Progress { more: true, armed: false }
    }
}

/// A guest that has no buffers for a while, and then as many as it needs.
#[derive(Clone, Default)]
struct Receiver {
    has_buffers: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
}

impl Traffic for Receiver {
    fn deliver(&mut self, frames: &Frames<'_>, _: &mut Context<'_>) -> Delivery {
        // Like every adapter, it lets no frame pass those that wait for the same queue.
        if frames.held.contains(0) || !self.has_buffers.load(Ordering::Relaxed) {
            return Delivery::all_refused(frames);
        }
        self.received.fetch_add(frames.picks.len() as u64, Ordering::Relaxed);
        Delivery::default()
    }

    fn kick(&mut self, ring: u16, cx: &mut Context<'_>) {
        cx.out.room.insert(ring);
    }
}

/// Else each frame would wait behind those of one burst, and be copied twice, until the sender pauses.
#[test]
fn frames_do_not_wait_behind_an_old_burst_for_as_long_as_the_sender_goes_on() {
    let (plane, now, guest) = (Plane::new(Limits::default()), Time(1), Receiver::default());
    let join = |id, end, source: u8, target: u8| {
        let port = Arc::new(Port::new(PortId(id), end, Box::new(Silent), 4 << 20).unwrap());
        plane.join(Arc::clone(&port)).unwrap();
        port.attach();
        let memory = Map::private(1 << 16).unwrap();
        memory.write(0, &[2, 0, 0, 0, 0, target, 2, 0, 0, 0, 0, source, 0x88, 0xb5]).unwrap();
        port.set_memory(Arc::new(memory), Time::ZERO);
        port
    };
    let sender = join(0, End::guest(Box::new(Ringed(Sender))), 1, 2);
    let receiver = join(1, End::guest(Box::new(Ringed(guest.clone()))), 2, 1);
    let mut turn = Turn::new();
    let mut round = || {
        for port in [&sender, &receiver] {
            while plane.turn(port, &mut turn, now).unfinished {}
        }
        receiver.state().backlog_frames
    };
    sender.with_rings(now, |rings, cx| rings.kick(0, cx)).unwrap();
    let waiting = (0..20).map(|_| round()).last().unwrap();
    assert!(waiting > 500, "a burst of {waiting} frames");
    guest.has_buffers.store(true, Ordering::Relaxed);
    receiver.with_rings(now, |rings, cx| rings.kick(0, cx)).unwrap();
    let rounds = (1..100).find(|_| round() == 0);
    assert!(rounds.is_some_and(|rounds| rounds < 60), "{rounds:?}: {} frames wait", round());
    assert_eq!(receiver.state().counters.receive_drops.iter().sum::<u64>(), 0);
}
