//! A guest with a vmxnet3 driver, after Linux drivers/net/vmxnet3/vmxnet3_drv.c and vmxnet3_defs.h (6.12). Offsets and bits are
//! written here again, so that a wrong one in the adapter cannot agree with itself.

use std::sync::Arc;

use nicety_memory::Map;

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::packets::{MAC, SEQUENCE, payload};
pub use shared::{Dice, MEMORY, batch_of, packets, packets_of, plain_batch};

pub const SHARED: u64 = 0x1000;
pub const QUEUES: u64 = 0x2000;
pub const RSS: u64 = 0x6000;
/// Each queue's rings: 256 KiB from here.
const RINGS: u64 = 0x1_0000;
const BUFFERS: u64 = 0x80_0000;
pub const RING: u64 = 128;

pub const F_RXCSUM: u64 = 1;
pub const F_RSS: u64 = 2;
pub const F_RXVLAN: u64 = 4;
pub const F_LRO: u64 = 8;

/// The driver's settings.
#[derive(Clone, Copy)]
pub struct Open {
    pub version: u32,
    pub features: u64,
    pub mtu: u32,
    pub queues: u64,
    /// Bytes of a head buffer.
    pub head: u32,
    /// Whether ring 1 exists, with pages.
    pub bodies: bool,
    /// Bytes of a data ring's entry; 0: none.
    pub data: u64,
    /// Head, body, body … in ring 0, as before version 7 with a large MTU.
    pub per_packet: u64,
}

impl Default for Open {
    fn default() -> Self {
        let (version, features) = (7, F_RXCSUM | F_RXVLAN);
        Self { version, features, mtu: 1500, queues: 1, head: 1522, bodies: true, data: 128, per_packet: 1 }
    }
}

/// A sent packet's offload request, with offsets.
#[derive(Clone, Copy, Default)]
pub struct Offload {
    pub om: u32,
    pub hlen: u32,
    pub msscof: u32,
    pub tag: Option<u16>,
    /// `ext1` and `oco`.
    pub inner: bool,
    pub outer_checksum: bool,
}

/// A received packet.
#[derive(Debug)]
pub struct Received {
    pub bytes: Vec<u8>,
    /// The completions' words.
    pub words: Vec<[u32; 4]>,
}

impl Received {
    pub fn last(&self) -> [u32; 4] {
        *self.words.last().unwrap()
    }
}

#[derive(Clone, Copy)]
struct Ring {
    base: u64,
    next: u64,
    generation: u32,
    size: u64,
}

impl Ring {
    fn at(base: u64, size: u64) -> Self {
        Self { base, next: 0, generation: 1, size }
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.size {
            (self.next, self.generation) = (0, self.generation ^ 1);
        }
    }

    fn here(&self) -> u64 {
        self.base + 16 * self.next
    }
}

pub struct Queue {
    tx: Ring,
    tx_done: Ring,
    rx: [Ring; 2],
    rx_done: Ring,
    data: u64,
}

pub struct Vmxnet3 {
    pub queues: Vec<Queue>,
    pub open: Open,
    scratch: u64,
}

pub type Guest = shared::Bench<Vmxnet3>;

impl Guest {
    pub fn new() -> Self {
        let own = Vmxnet3 { queues: Vec::new(), open: Open::default(), scratch: BUFFERS + (4 << 20) };
        let mut guest = Self::around(shared::adapter("vmxnet3"), own);
        // Memory decoding, bus mastering; MSI-X enabled.
        guest.config_write(4, &[6, 0]);
        let at = guest.msix();
        guest.config_write(at, &[0x40, 0x80]);
        guest
    }

    /// A guest that has mapped BAR 0, and the mapped page.
    pub fn mapped() -> (Self, Arc<Map>) {
        let (mut guest, page) = (Self::new(), Arc::new(Map::private(4096).unwrap()));
        guest.page = Some(Arc::clone(&page));
        (guest, page)
    }

    pub fn opened(open: Open) -> Self {
        let mut guest = Self::new();
        assert_eq!(guest.open(open), 0);
        guest
    }

    /// The offset of MSI-X's message control.
    pub fn msix(&mut self) -> u16 {
        self.pci(|face, _| face.function().capability(0x11).unwrap()) as u16 + 2
    }

    pub fn read(&mut self, bar: u8, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.bar_read(bar, offset, &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write(&mut self, bar: u8, offset: u64, value: u32) {
        self.bar_write(bar, offset, &value.to_le_bytes());
    }

    pub fn command(&mut self, command: u32) -> u32 {
        self.write(1, 0x20, command);
        self.read(1, 0x20)
    }

    /// The register accesses of probe and open, in the driver's order. Returns ACTIVATE_DEV's answer.
    pub fn open(&mut self, open: Open) -> u32 {
        self.own.open = open;
        assert_ne!(self.read(1, 0) & 1 << (open.version - 1), 0);
        self.write(1, 0, 1 << (open.version - 1));
        assert_eq!(self.read(1, 8) & 1, 1);
        self.write(1, 8, 1);
        self.lay_out();
        self.write(1, 0x10, SHARED as u32);
        self.write(1, 0x18, (SHARED >> 32) as u32);
        let answer = self.command(0xcafe_0000);
        self.command(0xcafe_0003);
        self.command(0xcafe_0005);
        self.command(0xcafe_0004);
        for vector in 0..=open.queues {
            self.write(0, 8 * vector, 0);
        }
        self.out = Default::default();
        answer
    }

    fn lay_out(&mut self) {
        let open = self.own.open;
        self.put(SHARED, &[0; 0x1000]);
        self.put(QUEUES, &vec![0; 512 * open.queues as usize]);
        self.put32(SHARED, 0xbabe_fee1);
        self.put64(SHARED + 24, open.features);
        self.put64(SHARED + 40, QUEUES);
        self.put32(SHARED + 56, open.mtu);
        self.put(SHARED + 60, &18u16.to_le_bytes());
        self.put(SHARED + 62, &[open.queues as u8; 2]);
        // autoMask, numIntrs, eventIntrIdx.
        // An extension holds them for more queues than version 5 has (vmxnet3_setup_driver_shared).
        let interrupts = if open.queues > 8 { SHARED + 720 } else { SHARED + 80 };
        self.put(interrupts, &[1, open.queues as u8 + 1, open.queues as u8]);
        // UCAST | BCAST; VLAN 0.
        self.put32(SHARED + 120, 5);
        self.put32(SHARED + 136, 1);
        self.put32(SHARED + 652, 176);
        self.put64(SHARED + 656, RSS);
        self.queues = (0..open.queues).map(|index| self.lay_out_queue(index)).collect();
    }

    fn lay_out_queue(&self, index: u64) -> Queue {
        let open = self.own.open;
        // Many queues have small data rings.
        let base = RINGS + index * if open.queues > 8 { 0x1_0000 } else { 0x4_0000 };
        let mut queue = Queue {
            tx: Ring::at(base, RING),
            tx_done: Ring::at(base + 0x1000, RING),
            rx: [Ring::at(base + 0x2000, RING), Ring::at(base + 0x3000, RING)],
            rx_done: Ring::at(base + 0x4000, 2 * RING),
            data: base + 0x8000,
        };
        self.put(base, &[0; 0x6000]);
        let tx = QUEUES + 256 * index;
        self.put64(tx + 16, queue.tx.base);
        self.put64(tx + 32, queue.tx_done.base);
        self.put32(tx + 56, RING as u32);
        self.put32(tx + 64, RING as u32);
        self.put(tx + 72, &[index as u8]);
        let rx = QUEUES + 256 * (open.queues + index);
        self.put64(rx + 16, queue.rx[0].base);
        self.put64(rx + 24, queue.rx[1].base);
        self.put64(rx + 32, queue.rx_done.base);
        self.put64(rx + 48, queue.data);
        self.put32(rx + 56, RING as u32);
        self.put32(rx + 60, if open.bodies { RING as u32 } else { 0 });
        self.put32(rx + 64, 2 * RING as u32);
        self.put(rx + 72, &[index as u8]);
        self.put(rx + 74, &(open.data as u16).to_le_bytes());
        for _ in 0..RING - 1 {
            self.post(&mut queue.rx[0], index, 0);
            if open.bodies {
                self.post(&mut queue.rx[1], index, 1);
            }
        }
        queue
    }

    fn buffer(queue: u64, ring: u64, index: u64) -> u64 {
        // With many queues, four share their buffers.
        BUFFERS + ((queue % 4 * 2 + ring) * RING + index) * 4096
    }

    fn post(&self, ring: &mut Ring, queue: u64, which: u64) {
        let body = which == 1 || !ring.next.is_multiple_of(self.open.per_packet);
        let len = if body { 4096 } else { self.open.head };
        self.put64(ring.here(), Self::buffer(queue, which, ring.next));
        self.put32(ring.here() + 8, len | u32::from(body) << 14 | ring.generation << 31);
        ring.advance();
    }

    /// Writes a packet in pieces and its descriptors, and a doorbell if the device asks for it. True if it wrote one.
    pub fn send(&mut self, queue: u64, pieces: &[&[u8]], offload: Offload) -> bool {
        let mut ring = self.queues[queue as usize].tx;
        let first = ring;
        for (place, piece) in pieces.iter().enumerate() {
            let at = self.scratch;
            self.scratch += (piece.len() as u64).next_multiple_of(64);
            if self.scratch > MEMORY as u64 - (1 << 20) {
                self.scratch = BUFFERS + (4 << 20);
            }
            self.put(at, piece);
            let last = place + 1 == pieces.len();
            let generation = if place == 0 { ring.generation ^ 1 } else { ring.generation };
            let mut low = piece.len() as u32 & 0x3fff | generation << 14;
            let mut high = u32::from(last) * (3 << 12);
            if place == 0 {
                low |= offload.msscof << 18 | u32::from(offload.inner) << 17 | u32::from(offload.outer_checksum) << 15;
                high |= offload.hlen | offload.om << 10;
                high |= offload.tag.map_or(0, |tag| 1 << 15 | u32::from(tag) << 16);
            }
            self.put64(ring.here(), at);
            self.put32(ring.here() + 8, low);
            self.put32(ring.here() + 12, high);
            ring.advance();
        }
        self.put32(first.here() + 8, self.get32(first.here() + 8) ^ 1 << 14);
        self.queues[queue as usize].tx = ring;
        let control = QUEUES + 256 * queue;
        let deferred = self.get32(control) + 1;
        let rings = deferred >= self.get32(control + 4);
        self.put32(control, if rings { 0 } else { deferred });
        if rings {
            self.write(0, 0x600 + 8 * queue, ring.next as u32);
        }
        rings
    }

    /// Indices of the last descriptors of completed packets.
    pub fn sent(&mut self, queue: u64) -> Vec<u32> {
        let mut ring = self.queues[queue as usize].tx_done;
        let mut sent = Vec::new();
        while self.get32(ring.here() + 12) >> 31 == ring.generation {
            sent.push(self.get32(ring.here()) & 0xfff);
            ring.advance();
        }
        self.queues[queue as usize].tx_done = ring;
        sent
    }

    /// Takes received packets, as `vmxnet3_rq_rx_complete` does, and posts the buffers again if `refill`.
    pub fn receive(&mut self, queue: u64, refill: bool) -> Vec<Received> {
        let mut done = self.queues[queue as usize].rx_done;
        let mut packets: Vec<Received> = Vec::new();
        let count = self.open.queues;
        while self.get32(done.here() + 12) >> 31 == done.generation {
            let words = [0, 4, 8, 12].map(|at| self.get32(done.here() + at));
            let (index, id) = (u64::from(words[0] & 0xfff), u64::from(words[0] >> 16 & 0x3ff));
            let which = u64::from(id >= count && id < 2 * count);
            let len = (words[2] & 0x3fff) as usize;
            let at = if id >= 2 * count {
                assert!(len as u64 <= self.open.data);
                self.queues[queue as usize].data + index * self.open.data
            } else {
                let descriptor = self.queues[queue as usize].rx[which as usize].base + 16 * index;
                let low = self.get32(descriptor + 8);
                assert!(len as u32 <= low & 0x3fff, "no longer than the buffer");
                assert_eq!(low >> 14 & 1 == 1, words[0] & 1 << 15 == 0, "a packet begins in a head");
                self.get64(descriptor)
            };
            if words[0] & 1 << 15 != 0 {
                packets.push(Received { bytes: Vec::new(), words: Vec::new() });
            }
            let bytes = self.get(at, len);
            let packet = packets.last_mut().expect("the first completion of a packet says so");
            packet.bytes.extend(bytes);
            packet.words.push(words);
            done.advance();
            if refill {
                self.refill(queue, which, index);
            }
        }
        self.queues[queue as usize].rx_done = done;
        packets
    }

    /// Posts the descriptors before `index`, skipped ones included.
    pub fn refill(&mut self, queue: u64, which: u64, index: u64) {
        let mut ring = self.queues[queue as usize].rx[which as usize];
        while ring.next != index {
            self.post(&mut ring, queue, which);
        }
        self.queues[queue as usize].rx[which as usize] = ring;
    }
}
