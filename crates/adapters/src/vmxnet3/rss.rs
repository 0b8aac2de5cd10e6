//! Receive-side scaling: the Toeplitz hash and its indirection table (`struct UPT1_RSSConf` in Linux upt1_defs.h).

use nicety_frame::Layout;
use nicety_frame::toeplitz::{HashKind, HashKinds, Input, Table};
use nicety_memory::{Map, Rights};
use serde::{Deserialize, Serialize};

use super::registers::{CAP_ESP_RSS_IPV4, CAP_ESP_RSS_IPV6, CAP_UDP_RSS};
use super::shared::{SetupError, read32, read64};

/// Offset of `rssConfDesc` in DriverShared.
const DESCRIPTOR: u64 = 648;
/// Bytes of `struct UPT1_RSSConf`.
const LEN: u32 = 176;
/// UPT1_RSS_HASH_FUNC_TOEPLITZ.
const TOEPLITZ: u16 = 1;

/// VMXNET3_RSS_FIELDS_*: TCP, UDP and ESP over IPv4 and IPv6.
pub const FIELDS_ALL: u32 = 0x3f;
/// Linux's default: TCP only.
pub const FIELDS_DEFAULT: u32 = 0x03;
/// Fields that a driver may request: TCP and UDP, ESP over IPv4 from version 4 on and over IPv6 from version 5 on (the order of
/// VMXNET3_CAP_*); from version 7 on, those whose capability it enabled.
pub fn fields_on_offer(version: u8, capabilities: u32) -> u32 {
    let asks = version >= 7;
    let on = |capability| !asks || capabilities & capability != 0;
    [(on(CAP_UDP_RSS), 0x0c), (on(CAP_ESP_RSS_IPV4), 0x10), (on(CAP_ESP_RSS_IPV6) && version >= 5, 0x20)]
        .into_iter()
        .filter(|&(on, _)| on)
        .fold(FIELDS_DEFAULT, |fields, (_, more)| fields | more)
}

/// The configuration from the last command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conf {
    /// UPT1_RSS_HASH_TYPE_*.
    kinds: u16,
    key: Vec<u8>,
    table: Vec<u8>,
}

/// A packet's hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hash {
    /// VMXNET3_RCD_RSS_TYPE_*; 0: none.
    pub kind: u32,
    /// The hash.
    pub value: u32,
    /// The receive queue.
    pub queue: u16,
}

/// The active configuration.
#[derive(Debug, Default)]
pub struct Rss {
    conf: Conf,
    kinds: HashKinds,
    prepared: Option<Box<Table>>,
}

impl Conf {
    /// Whether the values are in range.
    pub fn valid(&self) -> bool {
        self.key.len() <= 40 && self.table.len() <= 128
    }

    /// Reads it.
    pub fn read(memory: &Map, shared: u64) -> Result<Self, SetupError> {
        if read32(memory, shared + DESCRIPTOR + 4)? < LEN {
            return Err(SetupError::Invalid);
        }
        let window = memory.window(read64(memory, shared + DESCRIPTOR + 8)?, LEN, Rights::READ)?;
        let word = |at| u16::from_le_bytes(window.read(at));
        let (kinds, function, key_len, table_len) = (word(0), word(2), word(4), word(6));
        if function != TOEPLITZ || key_len > 40 || table_len > 128 {
            return Err(SetupError::Invalid);
        }
        let key: [u8; 40] = window.read(8);
        let table: [u8; 128] = window.read(48);
        let (key_len, table_len) = (usize::from(key_len), usize::from(table_len));
        Ok(Self { kinds, key: key[..key_len].to_vec(), table: table[..table_len].to_vec() })
    }
}

impl Rss {
    /// RSS with this configuration; `fields` are VMXNET3_RSS_FIELDS_*.
    pub fn new(conf: Conf, fields: u32) -> Self {
        let on = !conf.table.is_empty() && conf.kinds != 0;
        let prepared = on.then(|| Box::new(Table::new(&conf.key)));
        let mut this = Self { conf, kinds: HashKinds::NONE, prepared };
        this.set_fields(fields);
        this
    }

    /// The configuration.
    pub fn conf(&self) -> &Conf {
        &self.conf
    }

    /// Whether packets are hashed.
    pub fn is_on(&self) -> bool {
        self.prepared.is_some()
    }

    /// VMXNET3_RSS_FIELDS_*: protocols for which ports, or ESP's index, are hashed.
    pub fn set_fields(&mut self, fields: u32) {
        let kinds = u32::from(self.conf.kinds);
        self.kinds = [
            (kinds & 1 != 0, HashKind::V4),
            (kinds & 2 != 0 && fields & 1 != 0, HashKind::V4Tcp),
            (kinds & 1 != 0 && fields & 4 != 0, HashKind::V4Udp),
            (kinds & 1 != 0 && fields & 0x10 != 0, HashKind::V4Esp),
            (kinds & 4 != 0, HashKind::V6),
            (kinds & 8 != 0 && fields & 2 != 0, HashKind::V6Tcp),
            (kinds & 4 != 0 && fields & 8 != 0, HashKind::V6Udp),
            (kinds & 4 != 0 && fields & 0x20 != 0, HashKind::V6Esp),
        ]
        .into_iter()
        .filter(|&(on, _)| on)
        .fold(HashKinds::NONE, |kinds, (_, kind)| kinds.with(kind));
    }

    /// Hash and queue of a packet; queue 0 without a hash.
    pub fn hash(&self, head: &[u8], layout: &Layout, queues: u16) -> Hash {
        let Some(table) = &self.prepared else { return Hash::default() };
        let Some(input) = Input::of(head, layout, self.kinds) else { return Hash::default() };
        let value = table.hash(input.bytes());
        let entry = value as usize % self.conf.table.len().max(1);
        let queue = self.conf.table.get(entry).map_or(0, |&queue| u16::from(queue)) % queues.max(1);
        let kind = match input.kind {
            HashKind::V4 => 1,
            HashKind::V4Tcp => 2,
            HashKind::V6 => 3,
            HashKind::V6Tcp => 4,
            HashKind::V4Udp => 5,
            HashKind::V6Udp => 6,
            HashKind::V4Esp => 7,
            HashKind::V6Esp => 8,
        };
        Hash { kind, value, queue }
    }
}
