//! A VM that is copied to its twin at another daemon: the test plays both VMMs, and the network between the daemons.

mod rings_guest;

use std::sync::{Arc, mpsc};

use nicety_adapter::Time;
use nicety_daemon::daemon::Daemon;
use nicety_daemon::protected::{ClosedEpoch, EpochEvent, Pairing, Protected};
use nicety_daemon::protection::Gates;
use nicety_daemon::serve;
use nicety_host::Host;
use nicety_plane::{Epochs, GateMode, Waiting};
use rings_guest::{Guest, two_ports, until};
use tempfile::TempDir;

const VM: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const PAIRING: Pairing = Pairing(77);

/// A daemon with the VM's port, and one for a guest that hears what comes from there.
struct Side {
    _folder: TempDir,
    daemon: Arc<Daemon>,
    guest: Guest,
    other: Guest,
    events: mpsc::Receiver<EpochEvent>,
    protected: Arc<Protected>,
}

impl Side {
    fn new(is_twin: bool) -> Self {
        let (folder, _, daemon) = two_ports();
        let other = Guest::new(folder.path().join("vm2.sock"));
        let guest = Guest::waiting(folder.path().join("vm1.sock"));
        let mode = if is_twin { GateMode::Mute } else { GateMode::Armed };
        let (tell, events) = mpsc::channel();
        let epochs = Arc::new(Epochs::new(mode, || {}));
        let protected = Protected::new(PAIRING, epochs, is_twin, move |event| tell.send(event).unwrap());
        let protected = Arc::new(protected);
        daemon.protect("vm1", &protected).unwrap();
        Self { _folder: folder, daemon, guest, other, events, protected }
    }

    fn heard(&self) -> Vec<EpochEvent> {
        self.events.try_iter().collect()
    }

    /// The epoch that was closed: nothing else has happened.
    fn closed(&self) -> ClosedEpoch {
        match self.heard()[..] {
            [EpochEvent::Closed(closed)] => closed,
            ref other => panic!("{other:?}"),
        }
    }

    /// The VM sends a frame, whose descriptor is given back whatever happens to the frame.
    fn send(&mut self, first: u8) {
        let taken = self.guest.taken();
        self.guest.send(VM, first);
        until("a frame that is taken", || self.guest.taken() > taken);
    }

    /// First bytes of the frames that the other guest has received.
    fn came(&self) -> Vec<u8> {
        (0..self.other.received()).map(|number| self.other.first_byte(number)).collect()
    }

    fn release(&self, epoch: u64) {
        self.protected.epochs().release(epoch, Time(u64::MAX));
        self.daemon.release("vm1").unwrap();
    }
}

#[test]
fn frames_leave_when_the_twin_has_loaded_the_copy_that_they_were_sent_before_and_the_twin_takes_over_with_their_address()
 {
    let (mut here, mut there) = (Side::new(false), Side::new(true));
    here.guest.start([0, 0]);
    assert_eq!(here.heard(), [EpochEvent::Runs; 2]);
    here.send(1);
    until("a frame before the first copy", || here.came() == [1]);

    let bases = here.guest.stop();
    let state = here.guest.save();
    let first = here.closed();
    assert_eq!((first.pairing, first.epoch, first.ran), (PAIRING, 1, true));
    let gate = first.gate.unwrap();
    assert_eq!((gate.taken.packets, gate.waiting()), (1, Some(Waiting::default())), "it has left");
    here.guest.start(bases);
    here.send(2);
    there.guest.load(&state);
    assert_eq!(there.heard(), [EpochEvent::Loaded(first)]);
    there.guest.start([0, 0]);
    assert_eq!(there.heard(), [EpochEvent::Runs; 2]);
    here.release(1);
    here.send(3);
    assert_eq!(here.came(), [1], "they are of the next epoch");
    let bases = here.guest.stop();
    let state = here.guest.save();
    here.guest.start(bases);
    let bases = there.guest.stop();
    there.guest.load(&state);
    there.guest.start(bases);
    here.release(2);
    until("frames of an epoch that the twin has", || here.came() == [1, 2, 3]);
    here.send(4);

    // The twin runs meanwhile: nobody hears it, it hears nobody, and QEMU's announcement of it is none.
    there.send(9);
    there.guest.front.rarp(VM).unwrap();
    there.other.send(OTHER, 8);
    until("a frame for the twin", || there.other.taken() == 1);
    assert_eq!((there.came(), there.guest.received(), there.daemon.addresses().len()), (Vec::new(), 0, 1));

    // Its host dies, and the twin takes over: the network learns its address first.
    drop(here);
    there.daemon.own("vm1").unwrap();
    let learned = || there.daemon.addresses().iter().any(|learned| learned.address.0 == VM);
    assert!(learned());
    until("an announcement", || there.other.received() == 1);
    there.send(5);
    until("a frame of the new owner", || there.came().last() == Some(&5));
    there.other.send(OTHER, 8);
    until("a frame for the new owner", || there.guest.received() == 1);
}

#[test]
fn a_driver_that_resets_its_adapter_closes_no_epoch_and_a_state_of_another_protection_says_nothing() {
    let (mut here, mut there) = (Side::new(false), Side::new(true));
    here.guest.start([0, 0]);
    here.guest.stop();
    here.guest.start([0, 0]);
    assert!(here.heard().iter().all(|event| *event == EpochEvent::Runs));
    assert_eq!(here.protected.epochs().current(), 1);
    // A state without an epoch, and one of another pairing.
    here.guest.stop();
    here.daemon.unprotect("vm1").unwrap();
    let state = here.guest.save();
    there.guest.load(&state);
    let epochs = Arc::new(Epochs::new(GateMode::Armed, || {}));
    here.daemon.protect("vm1", &Arc::new(Protected::new(Pairing(78), epochs, false, |_| {}))).unwrap();
    let state = here.guest.save();
    there.guest.load(&state);
    assert_eq!(there.heard(), []);
}

/// A VMM that mixes states up cannot acknowledge what is not there.
#[test]
fn a_twin_acknowledges_no_copy_that_is_behind_the_last_one() {
    let (mut here, mut there) = (Side::new(false), Side::new(true));
    here.guest.start([0, 0]);
    let mut copies = Vec::new();
    for first in 1..=3 {
        here.send(first);
        let bases = here.guest.stop();
        let _runs = here.heard();
        copies.push((here.guest.save(), here.closed()));
        here.guest.start(bases);
    }
    for (number, waits) in [(1, 1), (2, 2)] {
        there.guest.load(&copies[number].0);
        assert_eq!(there.heard(), [EpochEvent::Loaded(copies[number].1)]);
        assert_eq!(there.protected.unseen().map(|unseen| unseen.packets), Some(waits), "the first one had left");
        there.guest.load(&copies[0].0);
        assert_eq!(there.heard(), []);
    }
}

#[test]
fn a_port_that_no_vmm_can_copy_is_not_protected_and_the_reason_is_said() {
    let folder = TempDir::new().unwrap();
    let text = "[[port]]\nname = \"vm1\"\nadapter = \"e1000e\"\nmac = \"52:54:00:00:00:01\"\nsocket = \"vm1.sock\"\n\
                [[port]]\nname = \"vm2\"\nadapter = \"virtio-net\"\nmac = \"52:54:00:00:00:02\"\nsocket = \"vm2.sock\"\n\
                device_state = false\n";
    let host = Host::parse(text, &folder.path().join("host.toml")).unwrap();
    let daemon = serve::start(serve::prepare(&host, None).unwrap()).unwrap();
    let protect = |name| {
        let epochs = Arc::new(Epochs::new(GateMode::Armed, || {}));
        daemon.protect(name, &Arc::new(Protected::new(PAIRING, epochs, false, |_| {}))).unwrap_err().to_string()
    };
    assert!(protect("vm1").contains("QEMU copies no VM whose adapter it does not emulate itself"));
    assert!(protect("vm2").contains("device_state = false"));
    assert!(protect("vm3").contains("there is no port \"vm3\""));
}
