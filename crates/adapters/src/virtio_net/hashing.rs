//! Hashes of received frames (virtio 1.2, sections 5.1.6.4.3 and 5.1.6.4.4): the hash in a frame's header (HASH_REPORT), and the
//! frame's queue (receive-side scaling). The commands that configure them: 5.1.6.5.6.4 and 5.1.6.5.7.

use arrayvec::ArrayVec;
use nicety_frame::Layout;
use nicety_frame::toeplitz::{HashKind, HashKinds, Input, Table};
use serde::{Deserialize, Serialize};

/// Maximum bytes of a key (`rss_max_key_size`).
pub(super) const KEY_MAX: usize = 40;
/// Maximum entries of an indirection table (`rss_max_indirection_table_length`).
pub(super) const TABLE_MAX: usize = 128;
/// Offered `hash_types`: IPv4, IPv6, and TCP and UDP over either.
pub(super) const TYPES: u32 = 0x3f;
/// Each kind of hash: its type bits, and its value in a header (5.1.6.4.4).
const KINDS: [(HashKind, u32, u16); 6] = [
    (HashKind::V4, 1, 1),
    (HashKind::V4Tcp, 1 << 1, 2),
    (HashKind::V4Udp, 1 << 2, 3),
    (HashKind::V6, 1 << 3, 4),
    (HashKind::V6Tcp, 1 << 4, 5),
    (HashKind::V6Udp, 1 << 5, 6),
];

/// The configuration from the last command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Conf {
    types: u32,
    key: ArrayVec<u8, KEY_MAX>,
    /// Queue of frames without a hash.
    unclassified: u16,
    /// Queues by the hash's low bits; empty: no scaling.
    table: ArrayVec<u16, TABLE_MAX>,
}

/// The active configuration.
#[derive(Debug, Default)]
pub(super) struct Hashing {
    conf: Conf,
    kinds: HashKinds,
    prepared: Option<Box<Table>>,
}

/// A frame's hash in the header's form; zeros if it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hash {
    pub value: u32,
    pub report: u16,
}

/// Cursor over the fields of a command.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn types(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes).filter(|types| types & !TYPES == 0)
    }

    fn key(&mut self) -> Option<ArrayVec<u8, KEY_MAX>> {
        let [len] = self.take()?;
        self.0.get(..usize::from(len))?.try_into().ok()
    }
}

impl Conf {
    /// Whether saved state is valid.
    pub fn possible(&self, pairs: u16) -> bool {
        let sized = self.table.is_empty() || self.table.len().is_power_of_two();
        sized && self.types & !TYPES == 0 && self.table.iter().chain([&self.unclassified]).all(|queue| *queue < pairs)
    }

    /// RSS_CONFIG, and the transmit queues in use. Every queue number is checked to exist: CVE-2024-6505.
    fn scaling(data: &[u8], pairs: u16) -> Option<(Self, u16)> {
        let mut fields = Fields(data);
        let types = fields.types()?;
        let entries = usize::from(fields.u16()?) + 1;
        if !entries.is_power_of_two() || entries > TABLE_MAX {
            return None;
        }
        let unclassified = fields.u16()?;
        let table: Option<ArrayVec<u16, TABLE_MAX>> = (0..entries).map(|_| fields.u16()).collect();
        let table = table?;
        let transmit = fields.u16().filter(|queues| (1..=pairs).contains(queues))?;
        let conf = Self { types, key: fields.key()?, unclassified, table };
        conf.possible(pairs).then_some((conf, transmit))
    }

    /// HASH_CONFIG.
    fn report(data: &[u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let types = fields.types()?;
        let _reserved: [u8; 8] = fields.take()?;
        Some(Self { types, key: fields.key()?, ..Self::default() })
    }
}

impl Hashing {
    /// Hashing with this configuration.
    pub fn new(conf: Conf) -> Self {
        let on = |kinds: HashKinds, (kind, bit, _): &(HashKind, u32, u16)| {
            if conf.types & bit == 0 { kinds } else { kinds.with(*kind) }
        };
        let kinds = KINDS.iter().fold(HashKinds::NONE, on);
        let prepared = (conf.types != 0).then(|| Box::new(Table::new(&conf.key)));
        Self { conf, kinds, prepared }
    }

    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// RSS_CONFIG: returns the new number of transmit queues in use. `None`: refused.
    pub fn set_scaling(&mut self, data: &[u8], pairs: u16) -> Option<u16> {
        let (conf, transmit) = Conf::scaling(data, pairs)?;
        *self = Self::new(conf);
        Some(transmit)
    }

    /// HASH_CONFIG. `None`: refused.
    pub fn set_report(&mut self, data: &[u8]) -> Option<()> {
        *self = Self::new(Conf::report(data)?);
        Some(())
    }

    /// Returns to automatic steering (5.1.6.5.6.2); hash reports stay.
    pub fn end_scaling(&mut self) {
        self.conf.table.clear();
    }

    /// Whether the hash selects the queue.
    pub fn scales(&self) -> bool {
        !self.conf.table.is_empty()
    }

    /// A frame's hash.
    pub fn hash(&self, head: &[u8], layout: &Layout) -> Option<Hash> {
        let table = self.prepared.as_ref()?;
        let input = Input::of(head, layout, self.kinds)?;
        let report = KINDS.iter().find(|(kind, ..)| *kind == input.kind).map_or(0, |(.., report)| *report);
        Some(Hash { value: table.hash(input.bytes()), report })
    }

    /// The queue of a frame, while [`scales`](Hashing::scales) is true.
    pub fn queue(&self, head: &[u8], layout: &Layout) -> u16 {
        let Conf { table, unclassified, .. } = &self.conf;
        let entry = self.hash(head, layout).and_then(|hash| table.get(hash.value as usize & (table.len().max(1) - 1)));
        entry.copied().unwrap_or(*unclassified)
    }
}
