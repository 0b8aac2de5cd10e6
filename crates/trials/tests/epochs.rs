//! Output commit of a port (`nicety_plane::Epochs`), with an adapter of each family and its driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nicety_adapter::{Offload, Reason, Time};
use nicety_memory::Map;
use nicety_plane::{Epochs, GateMode};
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::scope::families;

/// Longer than every moderation timer.
const A_WHILE_NS: u64 = 2_000_000;
/// Bytes of a frame: the longest of an Ethernet without tags.
const FRAME: usize = 1514;
/// Packets that wait in a gate at most, beside those of one more batch, and their bytes.
const WAITING_MAX: (u64, u64) = (4096 + 64, (1 << 20) + (64 << 10) + FRAME as u64);

struct Host {
    rig: Rig,
    guest: Guest,
    epochs: Arc<Epochs>,
    hurried: Arc<AtomicUsize>,
    received: usize,
    /// Numbers in the frames that have left.
    left: Vec<u32>,
    sent: u32,
}

impl Host {
    /// A guest that has sent one frame before its port had a gate.
    fn new(kind: &'static nicety_adapters::Entry) -> Self {
        let memory = Arc::new(Map::private(MEMORY).unwrap());
        let rig = Rig::around(kind, memory, true);
        let mut guest = Guest::new(PortBus::of(&rig), Net::named(kind.about.name));
        guest.open().unwrap();
        let hurried = Arc::<AtomicUsize>::default();
        let hurry = Arc::clone(&hurried);
        let hurry = move || _ = hurry.fetch_add(1, Ordering::Relaxed);
        let epochs = Arc::new(Epochs::new(GateMode::Armed, hurry));
        let mut host = Self { rig, guest, epochs, hurried, received: 0, left: Vec::new(), sent: 0 };
        assert!(host.send());
        host.pass();
        host.rig.port.set_gate(&host.epochs).unwrap();
        host
    }

    fn pass(&mut self) {
        self.rig.settle();
        self.rig.pass(A_WHILE_NS);
        self.guest.bus.now = self.rig.now;
        let Self { guest, received, .. } = self;
        guest.attend(&mut |_, _| *received += 1).unwrap();
        self.rig.settle();
        let frames = self.rig.far.ends().incoming.drain(..).collect::<Vec<_>>();
        self.left.extend(frames.iter().map(|(frame, _)| u32::from_be_bytes(frame[14..18].try_into().unwrap())));
    }

    /// Sends a frame. False if the guest's ring stays full.
    fn send(&mut self) -> bool {
        let mut frame = vec![0; FRAME];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame[6..12].copy_from_slice(&MAC.0);
        frame[12..14].copy_from_slice(&[0x88, 0xb5]);
        frame[14..18].copy_from_slice(&self.sent.to_be_bytes());
        for _ in 0..4 {
            if self.guest.queue(&frame, &Offload::default()).unwrap() {
                self.guest.flush().unwrap();
                self.sent += 1;
                return true;
            }
            self.guest.flush().unwrap();
            self.pass();
        }
        false
    }

    fn hear(&mut self, count: usize) {
        let mut frame = vec![7; 600];
        frame[..6].copy_from_slice(&MAC.0);
        for _ in 0..count {
            self.rig.far.ends().outgoing.push_back((frame.clone(), Offload::default()));
        }
        self.pass();
    }

    fn release(&mut self, epoch: u64) {
        self.epochs.release(epoch, Time(u64::MAX));
        self.rig.port.release_frames();
        self.pass();
    }

    fn become_(&mut self, mode: GateMode) {
        self.epochs.set_mode(mode);
        self.rig.port.release_frames();
        self.pass();
    }

    /// So many frames have left, in order.
    fn has_left(&self, count: u32) -> bool {
        self.left.iter().copied().eq(0..count)
    }

    fn drops(&self, reason: Reason) -> [u64; 2] {
        let counters = self.rig.port.state().counters;
        [counters.transmit_drops[reason as usize], counters.receive_drops[reason as usize]]
    }
}

/// One adapter of each family, by name.
fn each(act: impl Fn(&'static nicety_adapters::Entry)) {
    for entry in families() {
        println!("{}", entry.about.name);
        act(entry);
    }
}

#[test]
fn an_epoch_leaves_in_order_when_it_is_released_and_no_later_one_with_it() {
    each(|entry| {
        let mut host = Host::new(entry);
        // Nothing was copied yet: what the guest sends may leave.
        assert!(host.send());
        host.pass();
        assert!(host.has_left(2));
        assert_eq!((host.epochs.close(), host.epochs.mode()), (1, GateMode::Shut));
        for _ in 0..3 {
            assert!(host.send());
        }
        host.pass();
        assert_eq!(host.epochs.close(), 2);
        assert!(host.send());
        host.pass();
        assert!(host.has_left(2));
        assert_eq!(host.epochs.waiting().packets, 4);
        host.release(1);
        assert!(host.has_left(2), "what was sent before the first copy had left");
        // One that goes on is not released: the twin cannot have it.
        host.release(3);
        host.release(99);
        assert!(host.has_left(2));
        host.release(2);
        assert!(host.has_left(5));
        assert_eq!(host.epochs.close(), 3);
        host.release(2);
        assert!(host.has_left(5), "an old acknowledgement releases nothing");
        host.release(3);
        assert!(host.has_left(6));
        assert_eq!(host.epochs.waiting(), Default::default());
        // Its guest receives all the while, and its frames were completed at once.
        host.hear(5);
        assert_eq!(host.received, 5);
    });
}

#[test]
fn a_full_gate_asks_for_a_copy_has_the_guest_wait_and_loses_nothing() {
    each(|entry| {
        let mut host = Host::new(entry);
        host.epochs.close();
        while host.send() && host.sent < 5000 {}
        let waiting = host.epochs.waiting();
        assert!(waiting.packets <= WAITING_MAX.0 && waiting.bytes <= WAITING_MAX.1, "{waiting:?}");
        assert!(waiting.bytes >= 1 << 20 && host.has_left(1), "{waiting:?}");
        assert_eq!(host.hurried.load(Ordering::Relaxed), 1);
        let epoch = host.epochs.close();
        host.release(epoch);
        // What waited in the guest's rings is of the next epoch.
        let left = host.left.len() as u32;
        assert!(host.has_left(left) && left > 500 && left < host.sent, "{left} of {}", host.sent);
        host.become_(GateMode::Open);
        let sent = host.sent;
        assert!(host.has_left(sent));
        host.rig.port.remove_gate();
        assert!(host.send());
        host.pass();
        assert!(host.has_left(sent + 1) && host.rig.port.epochs().is_none());
    });
}

#[test]
fn a_gate_that_is_removed_while_it_is_full_has_the_guest_s_rings_looked_at_again() {
    each(|entry| {
        let mut host = Host::new(entry);
        host.epochs.close();
        while host.send() && host.sent < 5000 {}
        let waiting = host.epochs.waiting().packets;
        host.rig.port.remove_gate();
        host.pass();
        assert_eq!(host.drops(Reason::Removed), [waiting, 0]);
        assert!(host.send(), "nothing is stuck");
        host.pass();
        assert_eq!(host.left.last(), Some(&(host.sent - 1)));
    });
}

#[test]
fn a_twin_is_mute_and_deaf_until_it_takes_over() {
    each(|entry| {
        let mut host = Host::new(entry);
        host.epochs.set_mode(GateMode::Mute);
        for _ in 0..3 {
            assert!(host.send());
        }
        host.hear(2);
        assert!(host.has_left(1) && host.received == 0);
        assert_eq!(host.drops(Reason::Twin), [3, 2]);
        assert_eq!(host.epochs.waiting(), Default::default());
        host.become_(GateMode::Open);
        assert!(host.send());
        host.hear(2);
        assert_eq!((host.left.last(), host.received), (Some(&4), 2));
    });
}

#[test]
fn what_waits_is_dropped_when_the_vm_has_gone() {
    each(|entry| {
        let mut host = Host::new(entry);
        host.epochs.close();
        assert!(host.send());
        host.pass();
        host.rig.port.detach(host.rig.now);
        host.become_(GateMode::Open);
        assert!(host.has_left(1));
        assert_eq!((host.drops(Reason::Removed), host.epochs.waiting().packets), ([1, 0], 0));
    });
}
