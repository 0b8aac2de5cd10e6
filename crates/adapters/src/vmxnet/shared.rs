//! Memory shared by driver and device: `Vmxnet2_DriverData`, and the rings after it (vmxnet2_def.h). Every number in it is the
//! guest's, and is checked when INIT_LENGTH gives it.

use nicety_memory::{Fault, Map, Rights, Window};
use serde::{Deserialize, Serialize};

use super::registers::MAGIC;

/// Bytes of `Vmxnet2_DriverData`.
const LEN: u32 = 176;
/// Maximum bytes of it and its rings: twice what the longest rings take.
const LEN_MAX: u32 = 256 << 10;
/// Offsets of its fields.
const RX_LENGTH: usize = 0x04;
const RX_LENGTH_2: usize = 0x0c;
const IFFLAGS: usize = 0x18;
const LADRF: usize = 0x1c;
const TX_LENGTH: usize = 0x28;
const TX_DRIVER_CUR: usize = 0x2c;
const TX_STOPPED: usize = 0x34;
const TX_CLUSTER: usize = 0x38;
const MAX_FRAGS: usize = 0x58;
const FEATURE_CTL: usize = 0x5a;
const SAVED: [usize; 3] = [0x5c, 0x60, 0x64];
const RX_OFFSET: usize = 0x6c;
const RX_OFFSET_2: usize = 0x70;
const TX_OFFSET: usize = 0x74;
const TX_BUFFER: usize = 0x7c;
const TX_BUFFER_LEN: usize = 0x80;
const TX_PACKET_MAX: usize = 0x84;

/// Bytes of a `Vmxnet2_RxRingEntry` and of a `Vmxnet2_TxRingEntry`.
const RX_ENTRY: u32 = 24;
const TX_ENTRY: u32 = 64;
/// Maximum entries: ENHANCED_VMXNET2_MAX_NUM_RX_BUFFERS, VMXNET2_MAX_NUM_RX_BUFFERS2, VMXNET2_MAX_NUM_TX_BUFFERS_TSO.
const RX_MAX: u32 = 512;
const RX_MAX_2: u32 = 2048;
const TX_MAX: u32 = 512;
/// Maximum entries of the second receive ring for one packet.
pub const FRAGS: usize = 32;

/// Owner of an entry (VMXNET2_OWNERSHIP_*).
pub mod owner {
    pub const DRIVER: u16 = 0;
    pub const NIC: u16 = 2;
    pub const NIC_FRAG: u16 = 4;
    pub const DRIVER_FRAG: u16 = 5;
}

/// A ring: its offset in the driver's data, and its number of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    offset: u32,
    /// Entries.
    pub len: u32,
    entry: u32,
}

impl Ring {
    /// Whether it has at most `most` entries of this size, all within `length` bytes and after the fields.
    fn valid(&self, length: u32, entry: u32, most: u32) -> bool {
        let Self { offset, len, entry: own } = *self;
        let end = u64::from(offset) + u64::from(len) * u64::from(entry);
        own == entry && len <= most && offset >= LEN && offset.is_multiple_of(4) && end <= u64::from(length)
    }

    /// Offset of an entry. An index beyond the end is the first's.
    pub fn place(&self, index: u32) -> usize {
        (self.offset + if index < self.len { index } else { 0 } * self.entry) as usize
    }

    /// The next entry's index.
    pub fn after(&self, index: u32) -> u32 {
        if index.saturating_add(1) >= self.len { 0 } else { index + 1 }
    }

    /// The index before.
    pub fn before(&self, index: u32) -> u32 {
        if index == 0 || index >= self.len { self.len.saturating_sub(1) } else { index - 1 }
    }
}

/// Why the driver's data was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// The data or a ring is not in memory.
    Fault(Fault),
    /// A value is out of range.
    Invalid,
}

impl From<Fault> for SetupError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The driver's data at the time of INIT_LENGTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Bus address.
    pub at: u64,
    /// Bytes, rings included.
    length: u32,
    /// Receive: buffers in which frames start, and pages in which they continue.
    pub receive: [Ring; 2],
    /// Transmit.
    pub transmit: Ring,
    /// Maximum pages of one frame; 0: none.
    pub frags: u16,
    /// Packets may come uncut (LPD).
    pub large: bool,
}

/// Ring positions: receive, receive pages, transmit.
pub type Positions = [u32; 3];

impl Setup {
    /// Reads it. `enhanced`: the second ring is used.
    pub fn read(memory: &Map, at: u32, length: u32, enhanced: bool) -> Result<(Self, Positions), SetupError> {
        if !(LEN..=LEN_MAX).contains(&length) {
            return Err(SetupError::Invalid);
        }
        let data = memory.window(at.into(), length, Rights::BOTH)?;
        let word = |at: usize| u32::from_le_bytes(data.read(at));
        let half = |at: usize| u16::from_le_bytes(data.read(at));
        if word(0) != MAGIC {
            return Err(SetupError::Invalid);
        }
        let ring = |offset, len, entry| Ring { offset: word(offset), len: word(len), entry };
        let receive = [ring(RX_OFFSET, RX_LENGTH, RX_ENTRY), ring(RX_OFFSET_2, RX_LENGTH_2, RX_ENTRY)];
        let frags = if enhanced { half(MAX_FRAGS).min(FRAGS as u16).min(receive[1].len as u16) } else { 0 };
        let large = frags > 0 && half(FEATURE_CTL) & super::registers::feature::LPD as u16 != 0;
        let setup =
            Self { at: at.into(), length, receive, transmit: ring(TX_OFFSET, TX_LENGTH, TX_ENTRY), frags, large };
        let positions = SAVED.map(word);
        if setup.valid() && setup.has(positions) { Ok((setup, positions)) } else { Err(SetupError::Invalid) }
    }

    /// Whether every number is in range.
    pub fn valid(&self) -> bool {
        let Self { at, length, receive: [first, second], transmit, frags, large } = self;
        *at <= u32::MAX.into()
            && (LEN..=LEN_MAX).contains(length)
            && first.valid(*length, RX_ENTRY, RX_MAX)
            && first.len > 0
            // A ring that does not exist has no offset either.
            && (second.len == 0 || second.valid(*length, RX_ENTRY, RX_MAX_2))
            && transmit.valid(*length, TX_ENTRY, TX_MAX)
            && transmit.len > 0
            && usize::from(*frags) <= FRAGS
            && u32::from(*frags) <= second.len
            && (!large || *frags > 0)
    }

    /// Whether the positions are within the rings.
    pub fn has(&self, [receive, pages, transmit]: Positions) -> bool {
        let [first, second] = &self.receive;
        receive < first.len && (pages < second.len || pages == 0) && transmit < self.transmit.len
    }

    /// The data and its rings, translated.
    pub fn open<'m>(&self, memory: &'m Map) -> Result<Shared<'m>, Fault> {
        Ok(Shared(memory.window(self.at, self.length, Rights::BOTH)?))
    }
}

/// The driver's data, translated for one call.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'m>(Window<'m>);

/// Buffers that a driver keeps for headers (`txBufferPhysStart` and so on).
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// Bus address.
    pub at: u32,
    /// Bytes of all buffers.
    pub len: u32,
    /// Bytes of one buffer.
    pub each: u32,
}

impl<'m> Shared<'m> {
    /// The window.
    pub fn window(&self) -> &Window<'m> {
        &self.0
    }

    fn word(&self, at: usize) -> u32 {
        self.0.load_u32(at)
    }

    /// VMXNET_IFF_*.
    pub fn ifflags(&self) -> u32 {
        self.word(IFFLAGS)
    }

    /// The multicast filter.
    pub fn ladrf(&self) -> [u32; 2] {
        [self.word(LADRF), self.word(LADRF + 4)]
    }

    /// The entry that the driver reclaims next.
    pub fn driver_cur(&self) -> u32 {
        self.word(TX_DRIVER_CUR)
    }

    /// Whether the driver waits for room in its transmit ring.
    pub fn is_stopped(&self) -> bool {
        self.word(TX_STOPPED) != 0
    }

    /// Sets the number of packets that may wait before the driver rings.
    pub fn set_cluster(&self, packets: u32) {
        self.0.store_u32(TX_CLUSTER, packets);
    }

    /// Stores the ring positions, in case the driver starts the device again.
    pub fn keep(&self, positions: Positions) {
        for (at, position) in SAVED.into_iter().zip(positions) {
            self.0.store_u32(at, position);
        }
    }

    /// The buffers that PIN_TX_BUFFERS names.
    pub fn pinned(&self) -> Pinned {
        Pinned { at: self.word(TX_BUFFER), len: self.word(TX_BUFFER_LEN), each: self.word(TX_PACKET_MAX) }
    }
}
