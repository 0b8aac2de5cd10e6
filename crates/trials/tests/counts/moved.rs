//! Bytes copied, and allocations, between two guests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use nicety_adapter::{Offload, PortId};
use nicety_adapters::{Settings, find};
use nicety_drivers::Received;
use nicety_frame::checksum::{self, Verdict};
use nicety_frame::{Layout as Frame, Mac};
use nicety_memory::{Map, count};
use nicety_plane::{End, Plane, Port, Turn};
use nicety_switch::Limits;
use nicety_trials::bus::PortBus;
use nicety_trials::guest::{Guest, MEMORY, Net};
use nicety_trials::rig::Memo;
use nicety_trials::scope::{families, pairs};

use crate::{HEADERS, cut, packet};

const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Time between polls: longer than every moderation timer.
const STEP_NS: u64 = 300_000;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator with its own arguments; the only addition is a counter without a destructor,
// which never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two guests on a switch.
struct Pair {
    plane: Plane,
    ports: [Arc<Port>; 2],
    guests: [Guest; 2],
    turn: Turn,
    memos: [Memo; 2],
    /// Bytes that adapters and switch copied.
    copied: u64,
    /// Whether frames waited for room in the second guest's ring; `None`: not recorded.
    waited: Option<bool>,
    /// Packets that the second guest received; `None`: not recorded.
    took: Option<Vec<(Vec<u8>, Received)>>,
}

impl Pair {
    fn new(names: [&str; 2]) -> Pair {
        let plane = Plane::new(Limits::default());
        let memos = [Memo::default(), Memo::default()];
        let ports = [0, 1].map(|index: usize| {
            let entry = find(names[index]).unwrap();
            let end = End::guest((entry.create)(&Settings::new(Mac(MACS[index]))).unwrap());
            let id = PortId(index as u16);
            let port = Arc::new(Port::new(id, end, Box::new(memos[index].clone()), 1 << 20).unwrap());
            plane.join(Arc::clone(&port)).unwrap();
            port.attach();
            port
        });
        let guests = [0, 1].map(|index: usize| {
            let memory = Arc::new(Map::private(MEMORY).unwrap());
            let bus = PortBus::new(Arc::clone(&ports[index]), memos[index].clone(), Arc::clone(&memory));
            ports[index].set_memory(memory, bus.now);
            let mut guest = Guest::new(bus, Net::named(names[index]));
            guest.open().unwrap();
            guest
        });
        let mut pair = Pair { plane, ports, guests, turn: Turn::new(), memos, copied: 0, waited: None, took: None };
        for _ in 0..4 {
            pair.step();
        }
        pair
    }

    /// A frame with this payload, and, if the first guest's device segments, a packet of 64 KB.
    fn packets(&self, payload: usize) -> Vec<(Vec<u8>, Offload)> {
        let long = packet(MACS[1], MACS[0], 44 * 1460);
        let cuts = self.guests[0].features().segment_bytes as usize >= long.len();
        let long = cuts.then(|| (long, cut()));
        [(packet(MACS[1], MACS[0], payload), Offload::default())].into_iter().chain(long).collect()
    }

    /// Runs turns of both ports, then interrupts. Returns the packets that each guest received.
    fn step(&mut self) -> [usize; 2] {
        let now = self.guests[0].bus.now.after_ns(STEP_NS);
        count::take_bytes();
        loop {
            let mut more = false;
            for (port, memo) in self.ports.iter().zip(&self.memos) {
                memo.asked().scheduled = false;
                loop {
                    let outcome = self.plane.turn(port, &mut self.turn, now);
                    more |= outcome.more;
                    if !outcome.unfinished {
                        break;
                    }
                }
            }
            if !more && self.memos.iter().all(|memo| !memo.asked().scheduled) {
                break;
            }
        }
        self.copied += count::take_bytes();
        if let Some(waited) = &mut self.waited {
            *waited |= self.ports[1].state().backlog_frames > 0;
        }
        let [first, second] = &mut self.guests;
        (first.bus.now, second.bus.now) = (now, now);
        let took = &mut self.took;
        let mut keep = |packet: &[u8], received| {
            if let Some(took) = took {
                took.push((packet.to_vec(), received));
            }
        };
        [first.attend(&mut |_, _| ()).unwrap(), second.attend(&mut keep).unwrap()]
    }

    /// Sends packets from the first guest to the second, and one small one back. Returns the number of packets that arrived.
    fn send(&mut self, data: &[u8], offload: &Offload, times: usize, back: &[u8]) -> usize {
        let mut arrived = 0;
        for _ in 0..times {
            assert!(self.guests[0].queue(data, offload).unwrap());
            self.guests[0].flush().unwrap();
            assert!(self.guests[1].queue(back, &Offload::default()).unwrap());
            self.guests[1].flush().unwrap();
            arrived += self.step()[1];
        }
        for _ in 0..4 {
            arrived += self.step()[1];
        }
        arrived
    }
}

/// The bytes copied if each payload byte is copied once, for `times` packets of `len` bytes, of which `arrived` arrived. Headers
/// are read beforehand and written for each frame; the replies count as well.
fn one_copy(times: usize, len: usize, arrived: usize, back: &[u8]) -> u64 {
    (times * len + arrived * 160 + times * (512 + 2 * back.len())) as u64
}

#[test]
fn payload_is_copied_once_between_any_two_adapters() {
    const TIMES: usize = 50;
    for [from, to] in pairs(&families()).into_iter().map(|pair| pair.map(|entry| entry.about.name)) {
        let mut pair = Pair::new([from, to]);
        for (data, offload) in pair.packets(1460) {
            let back = packet(MACS[0], MACS[1], 0);
            pair.send(&data, &offload, 1, &back);
            (pair.copied, pair.waited) = (0, Some(false));
            let arrived = pair.send(&data, &offload, TIMES, &back);
            let copied = pair.copied as f64 / (TIMES * data.len()) as f64;
            println!("{from:10} to {to:10} {:6} bytes: {copied:.3} copies of each byte", data.len());
            assert!(arrived >= TIMES, "{from} to {to}: {arrived}");
            // Frames that do not fit into the ring wait in its port's buffer, which costs one more copy.
            let copies = if pair.waited == Some(true) { 2 } else { 1 };
            assert!(copies == 1 || offload.segment.is_some(), "{from} to {to}: a single frame waited");
            let most = one_copy(TIMES, data.len(), arrived, &back) + ((copies - 1) * TIMES * data.len()) as u64;
            assert!(pair.copied <= most, "{from} to {to}: {} bytes copied, not {most}", pair.copied);
        }
    }
}

/// The e1000's driver leaves segmentation and checksums to its chip. Nothing performs them, since virtio-net's driver accepts the
/// packet as it is. In the other direction they are performed during the copy to the e1000, which cannot take a packet of several
/// frames.
#[test]
fn a_packet_of_64_kb_goes_from_an_e1000_to_virtio_net_whole_and_back_cut_and_summed_in_the_one_copy() {
    const TIMES: usize = 20;
    const FRAMES: usize = 44;
    let mut data = packet(MACS[1], MACS[0], FRAMES * 1460);
    let len = data.len();
    let layout = Frame::parse(&data);
    // The checksum field holds the pseudo-header's sum, which the checksum starts from.
    checksum::prepare(&mut data, &layout, len as u32).unwrap();
    assert_eq!(checksum::check(&data, &layout), Verdict::Bad);
    let back = packet(MACS[0], MACS[1], 0);
    for (names, frames) in [(["e1000", "virtio-net"], 1), (["virtio-net", "e1000"], FRAMES)] {
        let [from, to] = names;
        let mut pair = Pair::new(names);
        pair.send(&data, &cut(), 1, &back);
        (pair.copied, pair.waited, pair.took) = (0, Some(false), Some(Vec::new()));
        let arrived = pair.send(&data, &cut(), TIMES, &back);
        assert_eq!(arrived, TIMES * frames, "{from} to {to}");
        let [sent, taken] = [0, 1].map(|index: usize| pair.ports[index].state().counters);
        let (sent, taken) = (sent.transmitted(), taken.taken());
        assert_eq!([sent.packets, sent.frames].map(|count| count as usize), [TIMES + 1, (TIMES + 1) * FRAMES]);
        assert_eq!(sent, taken, "{from} to {to}: what was sent, and what came");
        for (came, received) in pair.took.take().unwrap() {
            assert!(received.checksum_good, "{from} to {to}");
            if frames == 1 {
                assert!(came == data, "{from} to {to}: it was touched on its way");
            } else {
                assert_eq!(came.len(), HEADERS + 1460);
                assert_eq!(checksum::check(&came, &Frame::parse(&came)), Verdict::Good, "{from} to {to}");
            }
        }
        let copied = pair.copied as f64 / (TIMES * len) as f64;
        println!("{from} to {to}: {arrived} of {TIMES} packets of {FRAMES} frames, {copied:.3} copies of each byte");
        assert_eq!(pair.waited, Some(false), "{from} to {to}: what waits is copied twice");
        let most = one_copy(TIMES, len, arrived, &back);
        assert!(pair.copied <= most, "{from} to {to}: {} bytes copied, not {most}", pair.copied);
    }
}

#[test]
fn nothing_is_allocated_for_a_frame_by_drivers_adapters_or_switch() {
    let mut most = 0;
    for [from, to] in pairs(&families()).into_iter().map(|pair| pair.map(|entry| entry.about.name)) {
        let mut pair = Pair::new([from, to]);
        let back = packet(MACS[0], MACS[1], 0);
        let packets = pair.packets(100);
        let times = [1000, 100];
        for (data, offload) in &packets {
            pair.send(data, offload, 10, &back);
        }
        let before = ALLOCATIONS.get();
        let mut arrived = 0;
        for ((data, offload), times) in packets.iter().zip(times) {
            arrived += pair.send(data, offload, times, &back);
        }
        let allocations = ALLOCATIONS.get() - before;
        println!("{from:10} to {to:10}: {allocations} allocations for {arrived} packets");
        assert!(arrived >= times.iter().take(packets.len()).sum());
        most = most.max(allocations);
    }
    assert_eq!(most, 0);
}
