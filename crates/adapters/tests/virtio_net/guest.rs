//! A guest with a virtio-net driver, written from virtio 1.2, sections 2.7 and 5.1, with the kernel's own constants. Rings are laid
//! out and walked here as a driver does, not as the device does.

use std::collections::HashMap;
use std::sync::Arc;

use nicety_adapter::{Adapter, Batch, Face, Outbox, Progress, RingPlace, Time};
use nicety_adapters::Settings;
use nicety_frame::Mac;
use nicety_memory::Map;
use virtio_bindings::virtio_ring::{VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT, VRING_DESC_F_WRITE};

#[allow(dead_code, reason = "each family uses a part")]
#[path = "../bench/mod.rs"]
mod shared;

pub use shared::{Bench, Dice, adapter_with, packets};

/// Bytes of the guest's memory.
pub const MEMORY: u64 = 4 << 20;
/// Address of the first buffer; rings are below.
const BUFFERS: u64 = 1 << 20;

pub fn bit(number: u32) -> u128 {
    1 << number
}

/// A ring as its driver sees it.
#[derive(Clone, Copy)]
pub struct Queue {
    pub place: RingPlace,
    pub added: u16,
    pub seen: u16,
    pub slot: u16,
    /// A packed ring's wrap counters: for the next chain to add, and for the next to come back.
    pub laps: [bool; 2],
}

/// A buffer of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub address: u64,
    pub len: u32,
    pub write: bool,
}

pub struct Rings {
    pub queues: Vec<Queue>,
    pub header_len: u32,
    /// For packed rings, by ring and identifier: number of descriptors, and address of the first buffer.
    pub chains: HashMap<(u16, u16), (u16, u64)>,
    features: u128,
    free: u64,
}

pub type Guest = Bench<Rings>;

macro_rules! cx {
    ($guest:expr) => {
        &mut nicety_adapter::Context {
            memory: &$guest.map,
            page: None,
            polls: $guest.polls,
            out: &mut $guest.out,
            counters: &mut $guest.counters,
            now: $guest.now,
        }
    };
}
pub(crate) use cx;

pub fn rings(adapter: &mut dyn Adapter) -> &mut dyn nicety_adapter::RingFace {
    match adapter.face() {
        Face::Rings(face) => face,
        Face::Pci(_) => panic!("virtio-net has rings"),
    }
}

/// A station with two queues.
pub fn settings() -> Settings {
    Settings { queues: Some(2), ..Settings::new(Mac([2, 0, 0, 0, 0, 1])) }
}

impl Guest {
    /// A guest with these features, and rings of `size` entries, all started and enabled.
    pub fn new(features: u128, size: u16) -> Self {
        Self::with(features, size, settings())
    }

    pub fn with(features: u128, size: u16, settings: Settings) -> Self {
        let mut adapter = adapter_with("virtio-net", &settings);
        assert!(rings(&mut *adapter).take_features(features), "features on offer");
        let full = features & (bit(32) | bit(15)) != 0;
        let own = Rings {
            queues: Vec::new(),
            header_len: if full { 12 } else { 10 },
            chains: HashMap::new(),
            features,
            free: BUFFERS,
        };
        let mut guest = Self::around(adapter, own);
        (guest.map, guest.now) = (Arc::new(Map::private(MEMORY as usize).unwrap()), Time::ZERO);
        let count = rings(&mut *guest.nic).rings();
        for number in 0..count {
            let base = u64::from(number) * 0x8000;
            let place = RingPlace { size, descriptors: base, driver: base + 0x4000, device: base + 0x5000 };
            guest.queues.push(Queue { place, added: 0, seen: 0, slot: 0, laps: [true; 2] });
            let base = if guest.is_packed() { crate::packed::BASE } else { 0 };
            let face = rings(&mut *guest.nic);
            assert!(face.place(number, place));
            assert!(face.start(number, base, cx!(guest)));
            face.enable(number, true, cx!(guest));
        }
        guest.out = Outbox::default();
        guest
    }

    /// Another server takes over: the front end gives it the rings' original bases, and the memory that it has kept.
    pub fn taken_over(&mut self, kept: &Arc<Map>) {
        self.taken_over_at(kept, crate::packed::BASE);
    }

    /// The same, with another base of packed transmit rings.
    pub fn taken_over_at(&mut self, kept: &Arc<Map>, sent: u32) {
        self.nic = adapter_with("virtio-net", &settings());
        let face = rings(&mut *self.nic);
        assert!(face.take_features(self.own.features));
        face.keep(Some(kept.clone()));
        for (number, queue) in (0..).zip(self.queues.clone()) {
            let packed = if number % 2 == 1 { sent } else { crate::packed::BASE };
            let base = if self.is_packed() { packed } else { 0 };
            let face = rings(&mut *self.nic);
            assert!(face.place(number, queue.place) && face.start(number, base, cx!(self)), "ring {number}");
            face.enable(number, true, cx!(self));
        }
    }

    pub fn took(&self, number: u32) -> bool {
        self.features & bit(number) != 0
    }

    /// Allocates new memory.
    pub fn allocate(&mut self, len: u32) -> u64 {
        let at = self.free;
        self.free = (at + u64::from(len) + 63) & !63;
        assert!(self.free <= MEMORY, "the guest is out of memory");
        at
    }

    fn descriptor(&self, table: u64, index: u16, part: Part, flags: u32, next: u16) {
        let flags = flags | if part.write { VRING_DESC_F_WRITE } else { 0 };
        let at = table + 16 * u64::from(index);
        self.put64(at, part.address);
        self.put32(at + 8, part.len);
        self.put32(at + 12, flags | u32::from(next) << 16);
    }

    /// Adds a chain; returns its head.
    pub fn add(&mut self, ring: u16, parts: &[Part]) -> u16 {
        if self.is_packed() {
            return self.add_packed(ring, parts, None);
        }
        let place = self.queues[usize::from(ring)].place;
        let head = self.queues[usize::from(ring)].slot % place.size;
        for (i, part) in parts.iter().enumerate() {
            let index = (head + i as u16) % place.size;
            let more = i + 1 < parts.len();
            let flags = if more { VRING_DESC_F_NEXT } else { 0 };
            self.descriptor(place.descriptors, index, *part, flags, if more { (index + 1) % place.size } else { 0 });
        }
        self.queues[usize::from(ring)].slot = (head + parts.len() as u16) % place.size;
        self.offer(ring, head);
        head
    }

    /// Adds a chain in an indirect table of its own.
    pub fn add_indirect(&mut self, ring: u16, parts: &[Part]) -> u16 {
        let table = self.allocate(16 * parts.len() as u32);
        if self.is_packed() {
            return self.add_packed(ring, parts, Some(table));
        }
        for (i, part) in parts.iter().enumerate() {
            let more = i + 1 < parts.len();
            let flags = if more { VRING_DESC_F_NEXT } else { 0 };
            self.descriptor(table, i as u16, *part, flags, i as u16 + u16::from(more));
        }
        let place = self.queues[usize::from(ring)].place;
        let head = self.queues[usize::from(ring)].slot % place.size;
        let part = Part { address: table, len: 16 * parts.len() as u32, write: false };
        self.descriptor(place.descriptors, head, part, VRING_DESC_F_INDIRECT, 0);
        self.queues[usize::from(ring)].slot = (head + 1) % place.size;
        self.offer(ring, head);
        head
    }

    /// Makes a head available.
    pub fn offer(&mut self, ring: u16, head: u16) {
        let Queue { place, added, .. } = self.queues[usize::from(ring)];
        self.put(place.driver + 4 + 2 * u64::from(added % place.size), &head.to_le_bytes());
        let added = added.wrapping_add(1);
        self.put(place.driver + 2, &added.to_le_bytes());
        self.queues[usize::from(ring)].added = added;
    }

    /// Chains returned since the last call: heads and lengths.
    pub fn used(&mut self, ring: u16) -> Vec<(u32, u32)> {
        if self.is_packed() {
            return self.used_packed(ring);
        }
        let Queue { place, mut seen, .. } = self.queues[usize::from(ring)];
        let index = self.get16(place.device + 2);
        let mut out = Vec::new();
        while seen != index {
            let at = place.device + 4 + 8 * u64::from(seen % place.size);
            out.push((self.get32(at), self.get32(at + 4)));
            seen = seen.wrapping_add(1);
        }
        self.queues[usize::from(ring)].seen = seen;
        out
    }

    pub fn kick(&mut self, ring: u16) {
        rings(&mut *self.nic).kick(ring, cx!(self));
    }

    /// Sends a frame with this header from buffers of `step` bytes, the header in a buffer of its own.
    /// Looks at a transmit queue that is empty. Packets that were fetched before stay.
    pub fn look_at(&mut self, queue: u16) -> Progress {
        self.fetch_into(queue, &mut Batch::new())
    }

    pub fn send(&mut self, queue: u16, header: &[u8], frame: &[u8], step: usize) -> u16 {
        let parts: Vec<Part> =
            std::iter::once(header).chain(frame.chunks(step)).map(|piece| self.part(piece)).collect();
        let ring = 2 * queue + 1;
        if self.took(28) && parts.len() > 2 { self.add_indirect(ring, &parts) } else { self.add(ring, &parts) }
    }

    /// These bytes in a buffer of their own, which the device reads.
    fn part(&mut self, bytes: &[u8]) -> Part {
        let address = self.allocate(bytes.len() as u32);
        self.put(address, bytes);
        Part { address, len: bytes.len() as u32, write: false }
    }

    /// Posts receive buffers of `len` bytes, header included.
    pub fn post(&mut self, queue: u16, count: usize, len: u32) -> Vec<u64> {
        let mut addresses = Vec::new();
        for _ in 0..count {
            let address = self.allocate(len);
            self.add(2 * queue, &[Part { address, len, write: true }]);
            addresses.push(address);
        }
        addresses
    }

    /// Advances to the adapter's next tick, if it has requested one.
    pub fn later(&mut self) {
        if let Some(wake) = self.out.wake.take() {
            self.now = self.now.max(wake);
            self.tick();
        }
    }

    /// Packets received in buffers posted one to a chain: header and frame of each. `at` gives the address of a head's buffer.
    pub fn received(&mut self, queue: u16) -> Vec<(Vec<u8>, Vec<u8>)> {
        let place = self.queues[usize::from(2 * queue)].place;
        let mut out: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let mut more = 0;
        for (head, len) in self.used(2 * queue) {
            let address = match self.chains.get(&(2 * queue, head as u16)) {
                Some((_, first)) => *first,
                None => self.get64(place.descriptors + 16 * u64::from(head)),
            };
            let mut bytes = self.get(address, len as usize);
            if more > 0 {
                more -= 1;
                out.last_mut().expect("a first buffer").1.extend(bytes);
                continue;
            }
            let frame = bytes.split_off(self.header_len as usize);
            more = if self.header_len == 12 { u16::from_le_bytes([bytes[10], bytes[11]]) - 1 } else { 0 };
            out.push((bytes, frame));
        }
        assert_eq!(more, 0, "all the buffers that the header names");
        out
    }

    /// Sends a command on the control queue. Returns its acknowledgement.
    pub fn command(&mut self, class: u32, command: u32, data: &[u8]) -> u8 {
        let code = [class as u8, command as u8];
        self.command_of(&[&code, data])
    }

    /// Sends a command in buffers of `step` bytes, in an indirect table.
    pub fn command_in_pieces(&mut self, bytes: &[u8], step: usize) -> u8 {
        let pieces: Vec<&[u8]> = bytes.chunks(step).collect();
        self.command_of(&pieces)
    }

    fn command_of(&mut self, pieces: &[&[u8]]) -> u8 {
        let ring = self.queues.len() as u16 - 1;
        let answer = Part { write: true, ..self.part(&[0xff]) };
        let mut parts: Vec<Part> = pieces.iter().map(|piece| self.part(piece)).collect();
        parts.push(answer);
        if parts.len() > 3 {
            self.add_indirect(ring, &parts)
        } else {
            self.add(ring, &parts)
        };
        self.kick(ring);
        self.later();
        assert_eq!(self.used(ring).len(), 1, "the command came back");
        self.get(answer.address, 1)[0]
    }
}
