//! vmxnet3 as Linux drivers/net/vmxnet3/vmxnet3_drv.c sets it up (structures: vmxnet3_defs.h, upt1_defs.h), with one queue pair and
//! without MSI-X.

use nicety_adapter::{Checksum, Offload};

use super::{Working, get, put};
use crate::random::Random;
use crate::rig::Rig;

/// `Vmxnet3_DriverShared`.
const SHARED: u64 = 0x1000;
/// A transmit and a receive queue descriptor of 256 bytes.
const QUEUES: u64 = 0x2000;
const RSS: u64 = 0x3000;
const TX: u64 = 0x1_0000;
const TX_DONE: u64 = 0x1_1000;
const RX: [u64; 2] = [0x1_2000, 0x1_3000];
const RX_DONE: u64 = 0x1_4000;
const DATA: u64 = 0x1_8000;
const BUFFERS: u64 = 0x10_0000;
const PACKETS: u64 = 0x20_0000;
/// Descriptors of each ring; receive completions have twice as many.
const RING: u64 = 64;
/// Most bytes of one transmit descriptor (its length has 14 bits).
const PIECE: usize = 8 << 10;
const ACTIVATE: u32 = 0xcafe_0000;

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

    fn here(&self) -> u64 {
        self.base + 16 * self.next
    }

    fn advance(&mut self) {
        self.next += 1;
        if self.next == self.size {
            (self.next, self.generation) = (0, self.generation ^ 1);
        }
    }
}

struct Guest {
    tx: Ring,
    tx_done: Ring,
    free: u64,
    rx: [Ring; 2],
    rx_done: Ring,
    slot: u64,
}

/// Writes the structures and activates the device.
pub fn begin(rig: &mut Rig, random: &mut Random) -> Option<Box<dyn Working>> {
    // Memory decoding, bus mastering.
    rig.port.config_write(4, &[6, 0], rig.now);
    let version = random.pick(&[6u32, 2, 1, 0]);
    write32(rig, 1, 0, 1 << version);
    write32(rig, 1, 8, 1);
    put(rig, SHARED, &[0; 0x5000]);
    put(rig, TX, &[0; 0x8000]);
    // Checksums, VLAN and LRO (bits 0, 2, 3), or not. The device refuses RSS (bit 1) with one queue.
    put(rig, SHARED, &0xbabe_fee1u32.to_le_bytes());
    put(rig, SHARED + 24, &random.pick(&[0xdu64, 5, 1, 0, 2, 0xf]).to_le_bytes());
    put(rig, SHARED + 40, &QUEUES.to_le_bytes());
    put(rig, SHARED + 56, &random.pick(&[1500u32, 9000, 60]).to_le_bytes());
    put(rig, SHARED + 60, &18u16.to_le_bytes());
    put(rig, SHARED + 62, &[1, 1]);
    // Automatic masks; two interrupts, the second for events; broadcast, unicast; the RSS structure.
    put(rig, SHARED + 80, &[1, 2, 1]);
    put(rig, SHARED + 120, &random.pick(&[5u32, 0x15, 7]).to_le_bytes());
    put(rig, SHARED + 136, &1u32.to_le_bytes());
    put(rig, SHARED + 652, &176u32.to_le_bytes());
    put(rig, SHARED + 656, &RSS.to_le_bytes());
    let queue = |at: u64, fields: &[(u64, u64)], sizes: &[u64]| {
        for (offset, value) in fields {
            put(rig, at + offset, &value.to_le_bytes());
        }
        for (index, size) in sizes.iter().enumerate() {
            put(rig, at + 56 + 4 * index as u64, &(*size as u32).to_le_bytes());
        }
    };
    queue(QUEUES, &[(16, TX), (32, TX_DONE)], &[RING, 0, RING]);
    let fields = [(16, RX[0]), (24, RX[1]), (32, RX_DONE), (48, DATA)];
    queue(QUEUES + 256, &fields, &[RING, RING, 2 * RING]);
    put(rig, QUEUES + 256 + 74, &random.pick(&[128u16, 0, 64]).to_le_bytes());
    let mut guest = Guest {
        tx: Ring::at(TX, RING),
        tx_done: Ring::at(TX_DONE, RING),
        free: RING - 1,
        rx: RX.map(|base| Ring::at(base, RING)),
        rx_done: Ring::at(RX_DONE, 2 * RING),
        slot: 0,
    };
    for which in 0..2 {
        (1..RING).for_each(|_| guest.post(rig, which));
    }
    write32(rig, 1, 0x10, SHARED as u32);
    write32(rig, 1, 0x18, 0);
    write32(rig, 1, 0x20, ACTIVATE);
    let mut answer = [0; 4];
    rig.port.read(1, 0x20, &mut answer, rig.now);
    // Filter, VLAN table, address list.
    [0xcafe_0003, 0xcafe_0005, 0xcafe_0004].iter().for_each(|command| write32(rig, 1, 0x20, *command));
    guest.unmask(rig);
    (u32::from_le_bytes(answer) == 0).then(|| Box::new(guest) as Box<dyn Working>)
}

fn write32(rig: &Rig, bar: u8, offset: u64, value: u32) {
    rig.port.write(bar, offset, &value.to_le_bytes(), rig.now);
}

fn word(rig: &Rig, at: u64) -> u32 {
    u32::from_le_bytes(get(rig, at))
}

impl Guest {
    /// Ring 0 has heads of 1522 bytes, ring 1 bodies of a page.
    fn post(&mut self, rig: &Rig, which: usize) {
        let ring = &mut self.rx[which];
        let buffer = BUFFERS + (which as u64 * RING + ring.next) * 4096;
        let len = if which == 0 { 1522 } else { 4096 | 1 << 14 };
        put(rig, ring.here(), &buffer.to_le_bytes());
        put(rig, ring.here() + 8, &(len | ring.generation << 31).to_le_bytes());
        ring.advance();
    }

    fn unmask(&self, rig: &Rig) {
        write32(rig, 0, 0, 0);
        write32(rig, 0, 8, 0);
    }
}

impl Working for Guest {
    fn send(&mut self, rig: &mut Rig, packet: &[u8], offload: &Offload) -> bool {
        let pieces = packet.len().div_ceil(PIECE) as u64;
        if pieces == 0 || self.free < pieces {
            return false;
        }
        self.free -= pieces;
        let (first, owner) = (self.tx.here(), self.tx.generation);
        for (number, piece) in packet.chunks(PIECE).enumerate() {
            let at = PACKETS + self.slot % RING * PIECE as u64;
            self.slot += 1;
            put(rig, at, piece);
            let generation = if number == 0 { owner ^ 1 } else { self.tx.generation };
            let mut low = piece.len() as u32 & 0x3fff | generation << 14;
            // EOP and CQ in the last descriptor.
            let mut high = if number as u64 + 1 == pieces { 3 << 12 } else { 0 };
            if number == 0
                && let Checksum::Partial { start, field } = offload.checksum
            {
                let (mode, headers, third) = match offload.segment {
                    Some(segment) => (3, segment.headers, segment.mss),
                    None => (2, start, field),
                };
                low |= u32::from(third) << 18;
                high |= u32::from(headers) & 0x3ff | mode << 10;
            }
            put(rig, self.tx.here(), &at.to_le_bytes());
            put(rig, self.tx.here() + 8, &low.to_le_bytes());
            put(rig, self.tx.here() + 12, &high.to_le_bytes());
            self.tx.advance();
        }
        let low = word(rig, first + 8) ^ 1 << 14;
        put(rig, first + 8, &low.to_le_bytes());
        write32(rig, 0, 0x600, self.tx.next as u32);
        true
    }

    fn attend(&mut self, rig: &mut Rig) {
        for _ in 0..RING {
            if word(rig, self.tx_done.here() + 12) >> 31 != self.tx_done.generation {
                break;
            }
            // All descriptors up to this one have returned; at most as many as were given.
            let last = u64::from(word(rig, self.tx_done.here()) & 0xfff) % RING;
            let waiting = (self.tx.next + RING - last - 1) % RING;
            self.free = RING - 1 - waiting;
            self.tx_done.advance();
        }
        for _ in 0..2 * RING {
            if word(rig, self.rx_done.here() + 12) >> 31 != self.rx_done.generation {
                break;
            }
            let words = word(rig, self.rx_done.here());
            let (index, id) = (u64::from(words & 0xfff) % RING, words >> 16 & 0x3ff);
            let which = usize::from(id == 1);
            // Earlier descriptors return too: the device has skipped them.
            while self.rx[which].next != index {
                self.post(rig, which);
            }
            self.rx_done.advance();
        }
        self.unmask(rig);
    }

    fn shared(&self) -> &[(u64, u64)] {
        &[
            (SHARED, 0x400),
            (QUEUES, 0x200),
            (TX, RING * 16),
            (RX[0], RING * 16),
            (RX[1], RING * 16),
            (RX_DONE, RING * 32),
        ]
    }
}
