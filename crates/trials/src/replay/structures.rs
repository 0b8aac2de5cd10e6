//! Structures in memory, which a trace does not have. When the recorded driver makes its device read one, a structure like Linux's is
//! written to the recorded address. Its rings are empty.

use nicety_adapters::Entry;

use super::window::{Window, Word};
use crate::rig::{MAC, Rig};

/// Rings of zeros, at addresses that no kernel uses for its own.
const RINGS: u64 = 0x20_0000;

/// To be called before this value is written to this register.
pub(super) fn before_write(rig: &Rig, entry: &Entry, window: &Window, word: Word, value: u64) {
    match word {
        Word::Named("CMD") if entry.about.name == "vmxnet3" && value == vmxnet3::ACTIVATE => vmxnet3::shared(rig),
        Word::Csr(0) if value & pcnet::INIT != 0 => pcnet::initialization_block(rig, window.initialization_block()),
        _ => {}
    }
}

fn put(rig: &Rig, at: u64, bytes: &[u8]) {
    rig.memory.write(at, bytes).expect("the recorded guest's memory");
}

/// The structures of vmxnet3_defs.h and upt1_defs.h.
mod vmxnet3 {
    use super::{RINGS, Rig, put};

    const DSAL: u64 = 0x10;
    pub(super) const ACTIVATE: u64 = 0xcafe_0000;
    /// Queue descriptors.
    const QUEUES: u64 = 0x10_0000;
    const QUEUE_BYTES: u64 = 256;
    /// Descriptors of each ring.
    const SIZE: u32 = 512;

    pub(super) fn shared(rig: &Rig) {
        let mut address = [0; 8];
        let (low, high) = address.split_at_mut(4);
        rig.port.read(1, DSAL, low, rig.now);
        rig.port.read(1, DSAL + 8, high, rig.now);
        let shared = u64::from_le_bytes(address);
        let put = |at: u64, bytes: &[u8]| put(rig, at, bytes);
        put(shared, &0xbabe_fee1u32.to_le_bytes());
        // Checksums, VLAN, LRO; the queue descriptors; MTU; pieces; one queue in each direction.
        put(shared + 24, &0xdu64.to_le_bytes());
        put(shared + 40, &QUEUES.to_le_bytes());
        put(shared + 56, &1500u32.to_le_bytes());
        put(shared + 60, &[18, 0, 1, 1]);
        // Vectors that mask themselves; two vectors, the second for events.
        put(shared + 80, &[1, 2, 1]);
        let queue = |at: u64, places: &[(u64, u64)], sizes: &[u32]| {
            places.iter().for_each(|(offset, place)| put(at + offset, &place.to_le_bytes()));
            (0..).zip(sizes).for_each(|(index, size)| put(at + 56 + 4 * index, &size.to_le_bytes()));
        };
        let ring = |number: u64| RINGS + number * 0x1_0000;
        queue(QUEUES, &[(16, ring(0)), (32, ring(1))], &[SIZE, 0, SIZE]);
        queue(QUEUES + QUEUE_BYTES, &[(16, ring(2)), (24, ring(3)), (32, ring(4))], &[SIZE, SIZE, 2 * SIZE]);
    }
}

/// The initialization block of the Am79C970A in structures of 32 bits ("Initialization Block"), as pcnet32_open in Linux's pcnet32.c
/// fills it.
mod pcnet {
    use super::{MAC, RINGS, Rig, put};

    /// CSR0's command to read it.
    pub(super) const INIT: u64 = 1;
    /// 10BASE-T (PORTSEL, bits 8 and 7): the recorded driver turns automatic selection off in BCR2, and reads this mode in CSR15.
    const MODE: u16 = 1 << 7;
    /// Lengths of the rings as powers of two: 16 for transmit, in bits 15 to 12, and 32 for receive, in bits 7 to 4.
    const LENGTHS: u16 = 4 << 12 | 5 << 4;

    pub(super) fn initialization_block(rig: &Rig, at: u64) {
        // The hash filter is empty.
        put(rig, at, &[0; 28]);
        put(rig, at, &MODE.to_le_bytes());
        put(rig, at + 2, &LENGTHS.to_le_bytes());
        put(rig, at + 4, &MAC.0);
        put(rig, at + 20, &(RINGS as u32).to_le_bytes());
        put(rig, at + 24, &(RINGS as u32 + 0x1_0000).to_le_bytes());
    }
}
