//! virtio-net's split rings according to virtio 1.2, sections 2.7 and 5.1: the first queue pair and the control queue.

use nicety_adapter::{Checksum, Offload, RingPlace, SegmentKind};

use super::{Working, get, put};
use crate::random::Random;
use crate::rig::Rig;

const SIZE: u16 = 64;
const RINGS: u64 = 0x1_0000;
const STRIDE: u64 = 0x1000;
/// Available and used ring, after the descriptors of 16 bytes each.
const AVAILABLE: u64 = 0x400;
const USED: u64 = 0x600;
const INDIRECT: u64 = 0x8_0000;
const BUFFERS: u64 = 0x10_0000;
const PACKETS: u64 = 0x20_0000;
const SLOT: u64 = 16 << 10;
const COMMANDS: u64 = 0x9_0000;
/// Flags of a descriptor (2.7.5).
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const TABLE: u16 = 4;
/// Feature bits (5.1.3 and 6).
const MERGEABLE: u32 = 15;
const INDIRECT_DESC: u32 = 28;
const VERSION_1: u32 = 32;

struct Ring {
    number: u16,
    base: u64,
    added: u16,
    seen: u16,
    slot: u16,
    free: u16,
}

struct Guest {
    features: u128,
    header: usize,
    rings: Vec<Ring>,
    shared: Vec<(u64, u64)>,
    commands: u8,
}

/// Negotiates features, and starts the rings.
pub fn begin(rig: &mut Rig, random: &mut Random) -> Option<Box<dyn Working>> {
    let full = 1u128 << VERSION_1 | 1 << MERGEABLE | 1 << INDIRECT_DESC;
    let choice = random.below(4);
    let extra = random.bits();
    put(rig, RINGS, &[0; 3 * STRIDE as usize]);
    let features = rig.port.with_rings(rig.now, |face, cx| {
        let count = face.rings();
        (0..count).for_each(|ring| {
            face.stop(ring, cx);
        });
        let offer = face.features();
        let wanted = match choice {
            0 => offer,
            1 => offer & (full | 0xffff),
            2 => offer & (u128::from(extra) | 1 << VERSION_1),
            _ => offer & u128::from(extra),
        };
        face.take_features(wanted).then_some((wanted, count))
    });
    let (features, count) = features??;
    let modern = features & (1 << VERSION_1 | 1 << MERGEABLE) != 0;
    let mut guest =
        Guest { features, header: if modern { 12 } else { 10 }, rings: Vec::new(), shared: Vec::new(), commands: 0 };
    for (index, number) in [0, 1, count - 1].into_iter().enumerate() {
        let base = RINGS + index as u64 * STRIDE;
        guest.rings.push(Ring { number, base, added: 0, seen: 0, slot: 0, free: SIZE });
        guest.shared.push((base, USED + 8 * u64::from(SIZE)));
        let place = RingPlace { size: SIZE, descriptors: base, driver: base + AVAILABLE, device: base + USED };
        let started = rig.port.with_rings(rig.now, |face, cx| {
            let started = face.place(number, place) && face.start(number, 0, cx);
            face.enable(number, true, cx);
            started
        });
        if started != Some(true) {
            return None;
        }
    }
    guest.shared.push((INDIRECT, u64::from(SIZE) * 128));
    for index in 0..SIZE {
        guest.add(rig, 0, &[(BUFFERS + u64::from(index) * SLOT, SLOT as u32, true)]);
    }
    guest.kick(rig, 0);
    Some(Box::new(guest))
}

fn half(rig: &Rig, at: u64) -> u16 {
    u16::from_le_bytes(get(rig, at))
}

fn descriptor(rig: &Rig, at: u64, address: u64, len: u32, flags: u16, next: u16) {
    put(rig, at, &address.to_le_bytes());
    put(rig, at + 8, &len.to_le_bytes());
    put(rig, at + 12, &flags.to_le_bytes());
    put(rig, at + 14, &next.to_le_bytes());
}

impl Guest {
    fn took(&self, bit: u32) -> bool {
        self.features >> bit & 1 != 0
    }

    /// Adds a chain of buffers (address, bytes, whether the device writes), in an indirect table if that was negotiated.
    fn add(&mut self, rig: &Rig, ring: usize, parts: &[(u64, u32, bool)]) {
        let indirect = self.took(INDIRECT_DESC) && parts.len() > 1;
        let ring = &mut self.rings[ring];
        let head = ring.slot % SIZE;
        let table = INDIRECT + u64::from(head) * 128;
        for (index, (address, len, write)) in parts.iter().enumerate() {
            let more = if index + 1 < parts.len() { NEXT } else { 0 };
            let flags = more | if *write { WRITE } else { 0 };
            let index = index as u16;
            if indirect {
                descriptor(rig, table + 16 * u64::from(index), *address, *len, flags, index + 1);
            } else {
                let slot = (head + index) % SIZE;
                descriptor(rig, ring.base + 16 * u64::from(slot), *address, *len, flags, (slot + 1) % SIZE);
            }
        }
        if indirect {
            descriptor(rig, ring.base + 16 * u64::from(head), table, 16 * parts.len() as u32, TABLE, 0);
        }
        let used = if indirect { 1 } else { parts.len() as u16 };
        ring.slot = (head + used) % SIZE;
        ring.free = ring.free.saturating_sub(used);
        put(rig, ring.base + AVAILABLE + 4 + 2 * u64::from(ring.added % SIZE), &head.to_le_bytes());
        ring.added = ring.added.wrapping_add(1);
        put(rig, ring.base + AVAILABLE + 2, &ring.added.to_le_bytes());
    }

    fn kick(&self, rig: &Rig, ring: usize) {
        let number = self.rings[ring].number;
        rig.port.with_rings(rig.now, |face, cx| face.kick(number, cx));
    }

    /// Number of chains that returned since the last call, at most the ring's size.
    fn returned(&mut self, rig: &Rig, ring: usize) -> u16 {
        let ring = &mut self.rings[ring];
        let index = half(rig, ring.base + USED + 2);
        let count = index.wrapping_sub(ring.seen).min(SIZE);
        ring.seen = ring.seen.wrapping_add(count);
        count
    }

    /// A command of any class (5.1.6.5). The device refuses most, which is a valid answer.
    fn command(&mut self, rig: &Rig) {
        self.commands = self.commands.wrapping_add(1);
        let number = self.commands;
        let body = [number % 6, number / 6 % 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        put(rig, COMMANDS, &body);
        self.rings[2].free = SIZE;
        self.add(rig, 2, &[(COMMANDS, 2, false), (COMMANDS + 2, 10, false), (COMMANDS + 64, 1, true)]);
        self.kick(rig, 2);
    }
}

impl Working for Guest {
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool {
        let pieces = packet.chunks(SLOT as usize - 64).count();
        if packet.is_empty() || pieces + 1 > usize::from(self.rings[1].free) {
            return false;
        }
        let mut header = [0; 12];
        if let Checksum::Partial { start, field } = offload.checksum {
            header[0] = 1;
            header[6..8].copy_from_slice(&start.to_le_bytes());
            header[8..10].copy_from_slice(&field.saturating_sub(start).to_le_bytes());
            if let Some(segment) = offload.segment {
                let v6 = packet.get(12) == Some(&0x86);
                header[1] = match segment.kind {
                    SegmentKind::Tcp => 1 + 3 * u8::from(v6),
                    SegmentKind::Udp => 5,
                    SegmentKind::Tunnel => return false,
                };
                header[2..4].copy_from_slice(&segment.headers.to_le_bytes());
                header[4..6].copy_from_slice(&segment.mss.to_le_bytes());
            }
        }
        let base = PACKETS + u64::from(self.rings[1].slot) * SLOT / 2;
        put(rig, base, &header);
        let mut parts = vec![(base, self.header as u32, false)];
        for (index, piece) in packet.chunks(SLOT as usize - 64).enumerate() {
            let at = base + 64 + index as u64 * SLOT;
            put(rig, at, piece);
            parts.push((at, piece.len() as u32, false));
        }
        self.add(rig, 1, &parts);
        self.kick(rig, 1);
        true
    }

    fn attend(&mut self, rig: &mut Rig) {
        if self.returned(rig, 1) > 0 && self.rings[1].seen == self.rings[1].added {
            self.rings[1].free = SIZE;
        }
        for _ in 0..self.returned(rig, 0) {
            let slot = u64::from(self.rings[0].slot);
            self.rings[0].free = SIZE;
            self.add(rig, 0, &[(BUFFERS + slot * SLOT, SLOT as u32, true)]);
        }
        self.kick(rig, 0);
        self.command(rig);
    }

    fn shared(&self) -> &[(u64, u64)] {
        &self.shared
    }
}
