//! Each adapter under its driver. Adapter and driver were written from different sources.

mod dropped;
mod edits;
mod interleaved;
mod judged;
mod lengths;
mod mapped;
mod morphed;
mod packets;
mod restored;
mod resumed;
mod traffic;

use nicety_adapter::{Offload, Reason};
use nicety_adapters::find;
use nicety_drivers::{Features, Received};
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::hostile::ledger;
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::scope::families;

/// An adapter for each driver.
pub(crate) fn all() -> impl Iterator<Item = &'static str> {
    families().into_iter().map(|entry| entry.about.name)
}

/// Adapters whose driver and adapter have a capability. At least one exists.
#[track_caller]
pub(crate) fn all_that(can: impl Fn(Features) -> bool) -> Vec<&'static str> {
    let able: Vec<_> = all().filter(|name| can(World::new(name, true).guest.features())).collect();
    assert!(!able.is_empty());
    able
}

/// Whether the device can segment a packet with this payload.
pub(crate) fn cuts(features: Features, payload: usize) -> bool {
    features.segment_bytes as usize >= packets::HEADERS + payload
}

#[test]
fn every_driver_has_an_adapter_here() {
    assert_eq!(all().count(), nicety_drivers::DRIVERS.len());
}
/// Longer than every moderation timer.
const A_WHILE_NS: u64 = 2_000_000;
pub(crate) const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// An adapter, its guest, and a wire.
pub(crate) struct World {
    pub(crate) rig: Rig,
    pub(crate) guest: Guest,
    pub(crate) received: Vec<(Vec<u8>, Received)>,
    /// Frames that the driver has received. A joined packet counts as its frames.
    pub(crate) frames: u64,
    /// Packets that the driver has received.
    pub(crate) packets: u64,
    /// Packets that reached the adapter from elsewhere than the wire.
    pub(crate) beside: u64,
    /// A test sends packets that no stack sends: the device may report protocol errors.
    pub(crate) rude: bool,
}

impl World {
    /// A world with an opened driver. `whole`: the wire takes packets uncut.
    pub(crate) fn new(name: &str, whole: bool) -> World {
        World::with(name, whole, Net::named(name))
    }

    pub(crate) fn with(name: &str, whole: bool, net: Net) -> World {
        World::on(Rig::new(find(name).unwrap(), MEMORY, whole), net)
    }

    pub(crate) fn on(rig: Rig, net: Net) -> World {
        let guest = Guest::new(PortBus::of(&rig), net);
        let mut world = World { rig, guest, received: Vec::new(), frames: 0, packets: 0, beside: 0, rude: false };
        world.open();
        world
    }

    pub(crate) fn open(&mut self) {
        self.guest.open().unwrap();
        self.run();
        assert!(self.guest.link());
        assert_eq!(self.guest.mac(), MAC);
    }

    /// Runs until all are idle and timers have expired.
    pub(crate) fn run(&mut self) {
        loop {
            self.step(A_WHILE_NS);
            let before = self.received.len();
            self.step(A_WHILE_NS);
            if self.received.len() == before {
                return;
            }
        }
    }

    pub(crate) fn step(&mut self, ns: u64) {
        self.guest.bus.scan();
        self.rig.settle();
        self.rig.pass(ns);
        self.guest.bus.now = self.rig.now;
        let Self { received, frames, packets, .. } = self;
        let mut sink = |packet: &[u8], about: Received| {
            *frames += u64::from(about.frames);
            *packets += 1;
            received.push((packet.to_vec(), about));
        };
        self.guest.attend(&mut sink).unwrap();
        self.guest.bus.scan();
        self.rig.settle();
    }

    /// Sends a packet, and waits for room if there is none.
    pub(crate) fn send(&mut self, packet: &[u8], offload: &Offload) {
        for _ in 0..1000 {
            if self.guest.queue(packet, offload).unwrap() {
                return self.guest.flush().unwrap();
            }
            self.guest.flush().unwrap();
            self.step(A_WHILE_NS);
        }
        panic!("there is never room");
    }

    pub(crate) fn arrive(&mut self, packet: Vec<u8>, offload: Offload) {
        self.rig.far.ends().outgoing.push_back((packet, offload));
    }

    /// Sends this many complete frames with this payload from the wire.
    pub(crate) fn arrive_whole(&mut self, frames: usize, payload: usize) {
        (0..frames).for_each(|_| self.arrive(packets::whole(MAC.0, PEER, payload, 1), Offload::default()));
        self.rig.settle();
    }

    /// Frames that wait for room in the driver's ring.
    pub(crate) fn waiting(&self) -> usize {
        self.rig.port.state().backlog_frames
    }

    /// The number of frames that the driver's ring takes: fills it until one waits, and then lets the driver receive all.
    #[track_caller]
    pub(crate) fn measure_ring(&mut self, payload: usize) -> usize {
        let mut ring = 0;
        while self.waiting() == 0 {
            self.arrive_whole(1, payload);
            ring += 1;
        }
        self.run();
        assert_eq!(self.took().len(), ring);
        ring - 1
    }

    /// Frames that arrived at the wire's far end since the last call.
    pub(crate) fn out(&mut self) -> Vec<(Vec<u8>, Offload)> {
        self.rig.far.ends().incoming.drain(..).collect()
    }

    /// Packets that the guest received since the last call.
    pub(crate) fn took(&mut self) -> Vec<(Vec<u8>, Received)> {
        std::mem::take(&mut self.received)
    }
}

impl Drop for World {
    /// After every test: frames in equal frames out and drops in each direction, and no drop has a protocol reason.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.run();
        let adapter = self.rig.port.state().counters;
        let wire = self.rig.uplink.state().counters;
        let sum = |drops: &[u64; Reason::ALL.len()]| drops.iter().sum::<u64>();
        // The ledger includes only the wire.
        assert!(self.beside > 0 || ledger::imbalance(&self.rig).is_none(), "{:?}", ledger::imbalance(&self.rig));
        let to_wire = wire.taken().packets + sum(&wire.receive_drops);
        // Frames that the adapter itself drops were not sent.
        assert!(adapter.transmitted().packets <= to_wire + sum(&adapter.transmit_drops));
        let to_guest = adapter.taken().packets + sum(&adapter.receive_drops);
        assert_eq!(wire.transmitted().packets + self.beside, to_guest + sum(&wire.transmit_drops));
        // The adapter may count more: frames of a packet whose rest was dropped, and frames of an adapter before a move.
        let frames = adapter.taken().frames;
        // An entry of a vmxnet (15ad:0720) does not report how many frames a packet would have been.
        let mut device = [0; 4];
        self.rig.port.config_read(0, &mut device, self.rig.now);
        let plausible = device == [0xad, 0x15, 0x20, 0x07] || frames <= self.frames;
        assert!(plausible, "{frames} frames are said to be received, the driver has {}", self.frames);
        assert!(adapter.taken().packets <= self.packets, "packets are said to be received that the driver has not");
        let complaints = if self.rude { 0 } else { adapter.guest_errors() };
        assert_eq!((complaints, adapter.bad_accesses()), (0, 0), "the driver keeps to the protocol");
    }
}
