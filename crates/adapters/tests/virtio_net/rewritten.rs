//! Frames whose memory the guest rewrites while they are sent. What is judged is a private head, and the receiver gets just that head: a
//! guest changes only what lies behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nicety_adapter::{HEAD_BYTES, Pick};
use nicety_memory::Map;
use virtio_bindings::virtio_config::VIRTIO_F_RING_PACKED;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MRG_RXBUF;

use crate::guest::{Guest, Part, bit};
use crate::traffic::plain;

/// The addresses of two stations.
const A: [u8; 6] = [0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa];
const B: [u8; 6] = [0x06, 0xbb, 0xbb, 0xbb, 0xbb, 0xbb];
/// Bytes of the header before a frame (5.1.6).
const HEADER: u64 = 12;
/// Bytes of frames: at and around the lengths that are copied in another way.
const LENS: [usize; 9] = [60, 64, 65, 127, 128, 129, 191, 700, 1514];
/// Bytes of a receive buffer.
const BUFFER: u32 = 2048;

/// Features of both kinds of rings, with one buffer for a frame and with several.
fn kinds() -> [u128; 4] {
    let packed = bit(VIRTIO_F_RING_PACKED);
    let several = plain() | bit(VIRTIO_NET_F_MRG_RXBUF);
    [plain(), plain() | packed, several, several | packed]
}

/// A frame to A: untagged IPv4. Or one to B, from another source: a VLAN tag, and ARP. No byte of the one is the other's.
fn frame(is_to_a: bool, len: usize) -> Vec<u8> {
    let (target, source, rest, fill): (_, _, &[u8], _) = match is_to_a {
        true => (A, [2, 1, 1, 1, 1, 1], &[8, 0, 0x45, 0x0a, 0x0a, 0x0a], 0xa5),
        false => (B, [6, 7, 7, 7, 7, 7], &[0x81, 0x2a, 0x20, 0x64, 8, 6], 0x5a),
    };
    let mut frame = [&target[..], &source, rest].concat();
    frame.resize(len, fill);
    frame
}

/// A guest that sends a frame of each length, always from the same memory.
struct Sender {
    guest: Guest,
    places: Vec<u64>,
}

impl Sender {
    fn new(features: u128) -> Self {
        // Two descriptors for each frame.
        let mut guest = Guest::new(features, 32);
        let places = LENS.map(|len| guest.allocate(HEADER as u32 + len as u32)).to_vec();
        Self { guest, places }
    }

    fn write(map: &Map, places: &[u64], is_to_a: bool) {
        for (place, len) in places.iter().zip(LENS) {
            map.write(place + HEADER, &frame(is_to_a, len)).unwrap();
        }
    }

    /// Makes all frames available, and fetches them. With `apart`, the header of a frame is in a buffer of its own.
    fn fetch(&mut self, apart: bool) {
        for (&address, len) in self.places.iter().zip(LENS) {
            let (header, all) = (HEADER as u32, HEADER as u32 + len as u32);
            let part = |address, len| Part { address, len, write: false };
            match apart {
                true => self.guest.add(1, &[part(address, header), part(address + HEADER, len as u32)]),
                false => self.guest.add(1, &[part(address, all)]),
            };
        }
        self.guest.fetch_of(0);
        assert_eq!(self.guest.batch.len(), LENS.len());
    }

    /// The private heads: what a switch decides by.
    fn heads(&self) -> Vec<Vec<u8>> {
        let batch = &self.guest.batch;
        batch.packets().iter().map(|packet| batch.head(packet).to_vec()).collect()
    }

    fn complete(&mut self) {
        self.guest.complete();
        assert_eq!(self.guest.used(1).len(), LENS.len());
    }
}

/// A guest that receives, and makes its buffers available again.
struct Receiver {
    guest: Guest,
    buffers: Vec<u64>,
    next: usize,
}

impl Receiver {
    fn new(features: u128) -> Self {
        let mut guest = Guest::new(features, 32);
        let buffers = guest.post(0, 32, BUFFER);
        Self { guest, buffers, next: 0 }
    }

    /// Delivers these packets. Returns the frames that came.
    fn deliver(&mut self, sender: &Sender, packets: &[u16]) -> Vec<Vec<u8>> {
        let picks: Vec<Pick> = packets.iter().copied().map(Pick::whole).collect();
        assert_eq!(self.guest.deliver_some(&sender.guest.batch, &picks).refused(), 0);
        let came = self.guest.received(0);
        for _ in &came {
            let address = self.buffers[self.next % self.buffers.len()];
            self.guest.add(0, &[Part { address, len: BUFFER, write: true }]);
            self.next += 1;
        }
        came.into_iter().map(|(_, frame)| frame).collect()
    }
}

#[test]
fn a_frame_that_is_rewritten_after_its_head_was_read_arrives_with_that_head() {
    for features in kinds() {
        let (mut sender, mut receiver) = (Sender::new(features), Receiver::new(features));
        for round in 0..12 {
            let (is_to_a, apart) = (round % 2 == 0, round % 3 == 0);
            Sender::write(&sender.guest.map, &sender.places, is_to_a);
            sender.fetch(apart);
            Sender::write(&sender.guest.map, &sender.places, !is_to_a);
            let all: Vec<u16> = (0..LENS.len() as u16).collect();
            let expected = LENS.map(|len| {
                let (head, tail) = (frame(is_to_a, len), frame(!is_to_a, len));
                let judged = len.min(HEAD_BYTES);
                [&head[..judged], &tail[judged..]].concat()
            });
            assert_eq!(receiver.deliver(&sender, &all), expected, "round {round}");
            sender.complete();
        }
    }
}

/// Ends the other thread, also when a test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits for so many passes of the other thread.
fn wait(passes: &AtomicU64, count: u64) {
    let until = passes.load(Ordering::Acquire) + count;
    while passes.load(Ordering::Acquire) < until {
        std::thread::yield_now();
    }
}

/// Rounds of frames, of each kind of rings.
const ROUNDS: u64 = 200;

#[test]
fn who_receives_a_frame_finds_the_head_that_was_judged_while_its_sender_rewrites_it_all_the_time() {
    for features in kinds() {
        let mut sender = Sender::new(features);
        let mut receivers = [A, B].map(|address| (address, Receiver::new(features)));
        let (map, places) = (Arc::clone(&sender.guest.map), sender.places.clone());
        Sender::write(&map, &places, true);
        let (passes, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut came = [0, 0];
        std::thread::scope(|scope| {
            let _ends = Ends(&is_over);
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let pass = passes.load(Ordering::Relaxed);
                    Sender::write(&map, &places, pass % 2 == 1);
                    passes.store(pass + 1, Ordering::Release);
                }
            });
            for round in 0..ROUNDS {
                // One pass or two, so that either frame is there to be read.
                wait(&passes, if round % 8 < 2 { 1 + round % 2 } else { 0 });
                sender.fetch(false);
                let heads = sender.heads();
                // In some rounds each frame is surely rewritten now. In the others it may be so while it is copied.
                wait(&passes, if round % 8 == 0 { 2 } else { 0 });
                for ((address, receiver), came) in receivers.iter_mut().zip(&mut came) {
                    let is_its = |packet: &u16| heads[usize::from(*packet)].starts_with(address);
                    let packets: Vec<u16> = (0..LENS.len() as u16).filter(is_its).collect();
                    let frames = receiver.deliver(&sender, &packets);
                    assert_eq!(frames.len(), packets.len());
                    for (frame, packet) in frames.iter().zip(&packets) {
                        let (head, len) = (&heads[usize::from(*packet)], LENS[usize::from(*packet)]);
                        assert_eq!((frame.len(), head.len()), (len, len.min(HEAD_BYTES)), "round {round}");
                        assert!(frame.starts_with(head), "round {round}: another head than was judged");
                        assert!(frame.starts_with(address), "round {round}: a frame for another station");
                    }
                    *came += frames.len();
                }
                sender.complete();
            }
        });
        assert!(came.iter().all(|&frames| frames > 0), "both stations got frames: {came:?}");
    }
}
