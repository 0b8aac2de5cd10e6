//! Receive-side scaling: the Toeplitz hash over the fields that MRQC selects, with the key of RSSRK (82574 datasheet, 7.1.11;
//! 82576, 7.1.1.7).

use nicety_frame::Layout;
use nicety_frame::toeplitz::{HashKind, HashKinds, Input, KEY_LEN, Table};

use super::registers::*;

/// MRQC's bits for fields, their kinds of hash, and the types in a descriptor. Only the 82576 has the last two.
const FIELDS: [(u32, HashKind, u32); 6] = [
    (1 << 16, HashKind::V4Tcp, 1),
    (1 << 17, HashKind::V4, 2),
    (1 << 18 | 1 << 21, HashKind::V6Tcp, 3),
    (1 << 19 | 1 << 20, HashKind::V6, 5),
    (1 << 22, HashKind::V4Udp, 7),
    (1 << 23 | 1 << 24, HashKind::V6Udp, 8),
];

/// A packet's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// Type in the descriptor; 0: none.
    pub kind: u32,
    /// The hash.
    pub value: u32,
}

/// The active hash. The key is prepared when a frame needs it, because a driver writes it word by word.
#[derive(Debug, Default)]
pub struct Rss {
    kinds: HashKinds,
    prepared: Option<Box<Table>>,
}

impl Rss {
    /// Discards the prepared key: the registers have changed.
    pub fn forget(&mut self) {
        self.prepared = None;
    }

    /// Hash of a packet, with registers unchanged since [`Rss::forget`].
    pub fn hash(&mut self, registers: &Bank, head: &[u8], layout: &Layout) -> Hash {
        let Self { kinds, prepared } = self;
        let table = prepared.get_or_insert_with(|| {
            let named = FIELDS.iter().filter(|(bits, ..)| registers[MRQC] & bits != 0);
            *kinds = named.fold(HashKinds::NONE, |kinds, &(_, kind, _)| kinds.with(kind));
            let mut key = [0; KEY_LEN];
            for (bytes, word) in key.chunks_exact_mut(4).zip(registers.of(RSSRK)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            Box::new(Table::new(&key))
        });
        let Some(input) = Input::of(head, layout, *kinds) else { return Hash::default() };
        let kind = FIELDS.iter().find(|(_, kind, _)| *kind == input.kind).map_or(0, |(.., reported)| *reported);
        Hash { kind, value: table.hash(input.bytes()) }
    }

    /// The redirection table's byte for a hash.
    pub fn entry(registers: &Bank, hash: u32) -> u8 {
        let [a, b, c, d] = registers.of(RETA).get((hash >> 2 & 31) as usize).copied().unwrap_or(0).to_le_bytes();
        match hash & 3 {
            0 => a,
            1 => b,
            2 => c,
            _ => d,
        }
    }
}
