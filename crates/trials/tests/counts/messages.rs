//! Register accesses and interrupts, in virtual time: a bulk stream in each direction at 3 Gbit/s, and requests with responses. A
//! bulk stream comes in bursts of 64 KB, as the sender's segmentation makes them, and a guest takes no time. So the counts show
//! what devices and drivers need from each other, not their speed.

use nicety_adapter::Offload;
use nicety_adapter::trace::Event;
use nicety_adapters::find;
use nicety_trials::bus::{Accesses, PortBus};
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::{MAC, Rig};
use nicety_trials::scope::families;

use crate::{cut, packet};

const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];
/// Frames of 1514 bytes in a burst, and a burst's time at 3 Gbit/s.
const BURST: usize = 44;
const BURST_NS: u64 = BURST as u64 * 4_000;
const BURSTS: usize = 500;
/// Bursts for adapters with a loose bound only.
const FEW_BURSTS: usize = 40;
/// Time steps in a burst.
const STEPS: u64 = 8;
/// From the response to the next request, and from the request to its response.
const THINK_NS: u64 = 30_000;
const EXCHANGES: u64 = 1_000;

struct World {
    rig: Rig,
    guest: Guest,
    before: Accesses,
}

/// Cost of each frame, or of each exchange.
#[derive(Clone, Copy, Debug)]
struct Cost {
    reads: f64,
    writes: f64,
    interrupts: f64,
}

impl World {
    fn new(name: &str, mapped: bool) -> World {
        let rig = Rig::new(find(name).unwrap(), MEMORY, false);
        let mut guest = Guest::new(PortBus::of(&rig), Net::named(name));
        assert_eq!(mapped, mapped && guest.bus.map_doorbells());
        guest.open().unwrap();
        let mut world = World { rig, guest, before: Accesses::default() };
        (0..20).for_each(|_| assert_eq!(world.step(BURST_NS), 0));
        world.before = world.guest.bus.accesses;
        world.guest.bus.log = Some(Vec::new());
        world
    }

    /// Time passes, and the guest handles its interrupts. Returns the number of packets it received.
    fn step(&mut self, ns: u64) -> usize {
        self.guest.bus.scan();
        self.rig.pass(ns);
        self.guest.bus.now = self.rig.now;
        let packets = self.guest.attend(&mut |_, _| ()).unwrap();
        self.guest.bus.scan();
        self.rig.settle();
        packets
    }

    fn cost(&self, of: u64) -> Cost {
        let (now, then) = (self.guest.bus.accesses, self.before);
        let each = |now: u64, then: u64| (now - then) as f64 / of as f64;
        Cost {
            reads: each(now.reads, then.reads),
            writes: each(now.writes, then.writes),
            interrupts: each(now.interrupts, then.interrupts),
        }
    }

    /// Queues a packet, and waits for room if there is none.
    fn queue(&mut self, packet: &[u8], offload: &Offload) -> usize {
        let mut came = 0;
        for _ in 0..1000 {
            if self.guest.queue(packet, offload).unwrap() {
                return came;
            }
            self.guest.flush().unwrap();
            came += self.step(BURST_NS / STEPS);
        }
        panic!("there is never room");
    }

    fn arrive(&mut self, payload: usize, count: usize) {
        for _ in 0..count {
            let packet = packet(MAC.0, PEER, payload);
            self.rig.far.ends().outgoing.push_back((packet, Offload::default()));
        }
        self.rig.settle();
    }

    /// Passes a burst's time.
    fn pass(&mut self, mut then: impl FnMut(&mut World, usize)) {
        for _ in 0..STEPS {
            let packets = self.step(BURST_NS / STEPS);
            then(self, packets);
        }
        self.rig.far.ends().incoming.clear();
    }
}

/// A run: its costs and its events.
pub(crate) struct Run {
    cost: Cost,
    /// The driver's accesses and its interrupts, in order.
    pub(crate) events: Vec<Event>,
}

impl Run {
    fn new(world: World, of: u64) -> Run {
        let cost = world.cost(of);
        Run { cost, events: world.guest.bus.log.unwrap_or_default() }
    }
}

fn bursts(name: &str) -> usize {
    if COUNTED.contains(&name) { BURSTS } else { FEW_BURSTS }
}

/// Receives data, and sends an acknowledgement for every two data frames.
pub(crate) fn incoming(name: &str, mapped: bool) -> Run {
    let mut world = World::new(name, mapped);
    let ack = packet(PEER, MAC.0, 0);
    let (mut owed, mut frames) = (0, 0);
    for _ in 0..bursts(name) {
        world.arrive(1460, BURST);
        frames += BURST;
        world.pass(|world, packets| {
            owed += packets;
            while owed >= 2 {
                owed += world.queue(&ack, &Offload::default());
                owed -= 2;
                frames += 1;
            }
            world.guest.flush().unwrap();
        });
    }
    Run::new(world, frames as u64)
}

/// Sends packets of 64 KB, or their frames if the device does not segment, and receives an acknowledgement for every two frames.
pub(crate) fn outgoing(name: &str, mapped: bool) -> Run {
    let mut world = World::new(name, mapped);
    let (data, frame) = (packet(PEER, MAC.0, BURST * 1460), packet(PEER, MAC.0, 1460));
    let cuts = world.guest.features().segment_bytes as usize >= data.len();
    for _ in 0..bursts(name) {
        if cuts {
            world.queue(&data, &cut());
        } else {
            (0..BURST).for_each(|_| _ = world.queue(&frame, &Offload::default()));
        }
        world.guest.flush().unwrap();
        world.arrive(0, BURST / 2);
        world.pass(|_, _| ());
    }
    Run::new(world, (bursts(name) * (BURST + BURST / 2)) as u64)
}

/// Sends requests and receives their responses, one after the other.
pub(crate) fn exchanges(name: &str, mapped: bool) -> Run {
    let mut world = World::new(name, mapped);
    let request = packet(PEER, MAC.0, 1);
    for _ in 0..EXCHANGES {
        assert!(world.guest.queue(&request, &Offload::default()).unwrap());
        world.guest.flush().unwrap();
        // Messages arrive before any time passes.
        let mut came = world.step(1_000);
        world.step(THINK_NS);
        world.arrive(1, 1);
        for _ in 0..20 {
            came += world.step(THINK_NS / 10);
            if came > 0 {
                break;
            }
        }
        assert_eq!(came, 1);
        world.rig.far.ends().incoming.clear();
    }
    Run::new(world, EXCHANGES)
}

/// A stream between two guests, both ends together, as `nicety compare` counts. The figures of the plain models have this base.
fn stream_holds(name: &str, [reads, writes, interrupts]: [f64; 3]) {
    let (from, to) = (outgoing(name, false).cost, incoming(name, false).cost);
    let mean = |of: fn(&Cost) -> f64| (of(&from) + of(&to)) / 2.0;
    let cost = [mean(|cost| cost.reads), mean(|cost| cost.writes), mean(|cost| cost.interrupts)];
    println!("{name}, both ends: {cost:.3?}");
    assert!(cost[0] <= reads && cost[1] <= writes && cost[2] <= interrupts, "{name}, both ends: {cost:?}");
}

/// `most`: reads, writes and interrupts for each frame in bulk in each direction, and for each exchange.
fn holds(name: &str, mapped: bool, most: [[f64; 3]; 2]) {
    let label = if mapped { format!("{name}, mapped") } else { name.to_owned() };
    let [bulk, exchange] = most;
    let costs = [
        ("bulk in", incoming(name, mapped).cost, bulk),
        ("bulk out", outgoing(name, mapped).cost, bulk),
        ("exchange", exchanges(name, mapped).cost, exchange),
    ];
    for (what, Cost { reads, writes, interrupts }, _) in costs {
        println!("{label:18} {what:9} {reads:6.3} reads {writes:6.3} writes {interrupts:6.3} interrupts");
    }
    for (what, cost, [reads, writes, interrupts]) in costs {
        let within = cost.reads <= reads && cost.writes <= writes && cost.interrupts <= interrupts;
        assert!(within, "{label}, {what}: {cost:?}");
    }
}

#[test]
fn e1000_takes_at_most_half_of_what_a_plain_model_of_it_takes() {
    stream_holds("e1000", [0.117 / 2.0, 0.207 / 2.0, 0.040 / 2.0]);
}

#[test]
fn e1000_takes_one_interrupt_for_64_kb_and_what_linux_does_for_it() {
    // For 44 frames and their 22 acknowledgements. Reads: ICR, and STATUS twice. Writes: IMC, IMS, and ITR, which Linux changes
    // almost every time; TDT; RDT after 16, 32 and 44 frames. For an exchange: see `linux.rs`.
    holds("e1000", false, [[3.0 / 66.0, 7.0 / 66.0, 1.0 / 66.0], [3.0, 4.0, 1.0]]);
}

#[test]
fn vmxnet3_never_reads_and_seldom_writes() {
    // An exchange: the doorbell; one interrupt and one unmasking for the sent and the received packet.
    holds("vmxnet3", false, [[0.0, 0.040, 0.016], [0.0, 2.0, 1.0]]);
}

#[test]
fn vmxnet3_with_mapped_doorbells_sends_no_message_at_all() {
    holds("vmxnet3", true, [[0.0, 0.0, 0.016], [0.0, 0.0, 1.0]]);
}

/// The doorbell is a read, an interrupt's acknowledgement a write: together at most 0.026 in bulk. An exchange takes one of each.
#[test]
fn a_vmxnet_of_either_kind_takes_few_messages_in_bulk_and_two_for_an_exchange() {
    holds("vmxnet2", false, [[0.016, 0.010, 0.010], [1.0, 1.0, 1.0]]);
    holds("vmxnet", false, [[0.016, 0.010, 0.010], [1.0, 1.0, 1.0]]);
}

#[test]
fn virtio_net_kicks_once_a_burst_and_reads_nothing() {
    holds("virtio-net", false, [[0.0, 0.020, 0.020], [0.0, 1.0, 1.0]]);
}

/// With MSI-X: tails, IMS after each interrupt, and EITR when the driver changes it.
#[test]
fn e1000e_reads_nothing_and_writes_tails_and_one_mask_an_interrupt() {
    holds("e1000e", false, [[0.0, 0.155, 0.031], [0.0, 3.4, 1.5]]);
}

#[test]
fn igb_reads_nothing_and_writes_tails_and_one_mask_an_interrupt() {
    holds("igb", false, [[0.0, 0.077, 0.017], [0.0, 2.1, 1.01]]);
}

/// Their drivers here give each direction a vector of its own, as Linux's igbvf does: twice the igb's interrupts and masks.
#[test]
fn virtual_functions_read_nothing_and_write_tails_and_one_mask_an_interrupt() {
    holds("igbvf", false, [[0.0, 0.090, 0.031], [0.0, 2.5, 1.4]]);
    holds("ixgbevf", false, [[0.0, 0.090, 0.031], [0.0, 2.5, 1.4]]);
}

/// The adapters with figures above.
const COUNTED: [&str; 9] = ["e1000", "e1000e", "igb", "igbvf", "ixgbevf", "vmxnet2", "vmxnet", "vmxnet3", "virtio-net"];

/// A bound for adapters without figures of their own: a register that moves two bytes at a time, and an interrupt for each frame.
#[test]
fn an_adapter_takes_no_more_than_a_message_for_each_word_and_an_interrupt_for_each_frame() {
    for entry in families().into_iter().filter(|entry| !COUNTED.contains(&entry.about.name)) {
        println!("{} has no figures in {}", entry.about.name, file!());
        holds(entry.about.name, false, [[800.0, 800.0, 1.0], [100.0, 100.0, 2.0]]);
    }
}

/// Tails are words of a page. The remaining writes are IMS or EIMS after each interrupt, and EITR.
#[test]
fn e1000e_and_igb_with_mapped_ring_pages_write_one_mask_an_interrupt() {
    holds("e1000e", true, [[0.0, 0.080, 0.031], [0.0, 1.4, 1.5]]);
    holds("igb", true, [[0.0, 0.017, 0.017], [0.0, 1.1, 1.01]]);
}

/// Nobody is told of a tail in a page: an adapter that took its queue for armed would see it at its driver's next message.
#[test]
fn a_port_asks_to_be_looked_at_while_its_tails_are_words_of_a_page() {
    for name in ["vmxnet3", "e1000e", "igb", "igbvf", "ixgbevf"] {
        let asks = [false, true].map(|mapped| {
            let mut world = World::new(name, mapped);
            world.queue(&packet(PEER, MAC.0, 1), &Offload::default());
            world.guest.flush().unwrap();
            // Throttles are over by then.
            (0..5).for_each(|_| _ = world.step(10_000_000));
            world.rig.memo.asked().wake.map(|at| at.since(world.rig.now).as_millis())
        });
        // A page is looked at every 5 ms at least.
        assert!(asks[0].is_none() && asks[1].is_some_and(|soon| soon <= 5), "{name}, trapped and mapped: {asks:?}");
    }
}

#[test]
fn virtual_functions_with_mapped_ring_pages_write_one_mask_an_interrupt() {
    holds("igbvf", true, [[0.0, 0.031, 0.031], [0.0, 1.4, 1.4]]);
    holds("ixgbevf", true, [[0.0, 0.031, 0.031], [0.0, 1.4, 1.4]]);
}
