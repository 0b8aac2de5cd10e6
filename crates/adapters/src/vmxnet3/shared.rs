//! Structures that the driver keeps in its own memory: DriverShared and the queue descriptors, read once per command (`struct
//! Vmxnet3_DriverShared`, `Vmxnet3_TxQueueDesc`, `Vmxnet3_RxQueueDesc` in Linux vmxnet3_defs.h).

use nicety_memory::{Fault, Map, Rights, Window};
use serde::{Deserialize, Serialize};

use super::registers::{QUEUES, VECTORS};

/// VMXNET3_REV1_MAGIC.
const MAGIC: u32 = 0xbabe_fee1;
/// Bytes of DriverShared including `cu`; `devReadExt` (version 6 on) follows.
const LEN: u32 = 720;
/// Bytes with `devReadExt`.
const EXTENDED_LEN: u32 = 800;
/// Offset of `intrConf.modLevels`, and number of levels (VMXNET3_MAX_INTRS).
const MODERATION: u64 = 83;
const MODERATION_LEVELS: u8 = 25;
/// Offset of `ecr`.
pub const ECR: u64 = 696;
/// Offset of `cu`: a command's own data.
pub const COMMAND_DATA: u64 = 704;
/// Bytes of a queue descriptor.
pub const QUEUE_LEN: u64 = 256;
/// Offset of a queue descriptor's status.
pub const STATUS: u64 = 80;
/// Offset of its statistics, ten 64-bit numbers.
pub const STATISTICS: u64 = 88;
/// Offset of a transmit queue descriptor's `txThreshold`.
pub const THRESHOLD: u64 = 4;
/// Alignment of rings.
const RING_ALIGN: u64 = 512;
/// Ring sizes are multiples of this.
const RING_STEP: u32 = 32;

/// Why a device was not activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// A structure lies outside guest memory.
    Memory,
    /// A number is out of range.
    Invalid,
}

impl From<Fault> for SetupError {
    fn from(_: Fault) -> Self {
        Self::Memory
    }
}

/// A ring of 16-byte descriptors, and the device's position in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Bus address.
    pub base: u64,
    /// Descriptors; 0 if there is no such ring.
    pub size: u32,
    /// The next descriptor.
    pub next: u32,
    /// Generation bit of the next descriptor when the device owns it (or writes it).
    pub generation: bool,
}

impl Ring {
    fn new(base: u64, size: u32, most: u32) -> Result<Self, SetupError> {
        let ring = Self { base, size, next: 0, generation: true };
        if ring.valid(most) { Ok(ring) } else { Err(SetupError::Invalid) }
    }

    /// Whether base, size and position are valid for a ring.
    pub fn valid(&self, most: u32) -> bool {
        let aligned = self.base.is_multiple_of(RING_ALIGN) && self.size.is_multiple_of(RING_STEP);
        aligned && (RING_STEP..=most).contains(&self.size) && self.next < self.size
    }

    /// Bytes.
    pub fn len(&self) -> u32 {
        self.size * 16
    }

    /// The whole ring, translated.
    pub fn window<'m>(&self, memory: &'m Map, rights: Rights) -> Result<Window<'m>, Fault> {
        memory.window(self.base, self.len(), rights)
    }

    /// Advances by one descriptor.
    pub fn advance(&mut self) {
        self.next += 1;
        if self.next >= self.size {
            self.next = 0;
            self.generation = !self.generation;
        }
    }
}

/// DevRead.misc, intrConf and addresses of structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// Bus address of DriverShared.
    pub shared: u64,
    /// UPT1_F_*.
    pub features: u64,
    /// MTU in bytes, clamped to 60..=9190.
    pub mtu: u32,
    /// Maximum descriptors of one received packet.
    pub most_pieces: u16,
    /// Address of the queue descriptors: transmit first.
    pub queues: u64,
    /// Transmit queues.
    pub transmit: u16,
    /// Receive queues.
    pub receive: u16,
    /// Vectors mask themselves when they fire.
    pub auto_mask: bool,
    /// The vector for events.
    pub event_vector: u8,
}

/// A transmit queue's configuration by its driver.
#[derive(Clone, Copy, Debug)]
pub struct TransmitConf {
    /// Descriptors.
    pub ring: Ring,
    /// Completions.
    pub completions: Ring,
    /// Interrupt vector.
    pub vector: u8,
}

/// A receive queue's configuration by its driver.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveConf {
    /// Ring 0 (heads) and ring 1 (bodies; may be absent).
    pub rings: [Ring; 2],
    /// Completions.
    pub completions: Ring,
    /// The data ring for small packets: address and bytes per entry (0: none).
    pub data: u64,
    /// See `data`.
    pub data_len: u16,
    /// Interrupt vector.
    pub vector: u8,
    /// The driver requests moderation of that vector.
    pub moderated: bool,
}

/// Longest MTU (VMXNET3_V6_MAX_MTU).
pub const MTU_MAX: u32 = 9190;
/// Longest before version 6 (VMXNET3_MAX_MTU).
const MTU_MAX_BEFORE_6: u32 = 9000;
/// Shortest (VMXNET3_MIN_MTU).
pub const MTU_MIN: u32 = 60;
/// Maximum descriptors of one received packet.
pub const PIECES: usize = 32;

fn le16(window: &Window<'_>, at: usize) -> u16 {
    u16::from_le_bytes(window.read(at))
}

fn le32(window: &Window<'_>, at: usize) -> u32 {
    u32::from_le_bytes(window.read(at))
}

fn le64(window: &Window<'_>, at: usize) -> u64 {
    u64::from_le_bytes(window.read(at))
}

/// UPT1_F_* at this moment.
pub fn features(memory: &Map, shared: u64) -> Result<u64, Fault> {
    read64(memory, shared.wrapping_add(24))
}

/// A 64-bit word.
pub fn read64(memory: &Map, address: u64) -> Result<u64, Fault> {
    let mut bytes = [0; 8];
    memory.read(address, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// A 32-bit word.
pub fn read32(memory: &Map, address: u64) -> Result<u32, Fault> {
    let mut bytes = [0; 4];
    memory.read(address, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

impl Setup {
    /// Reads DriverShared. Before version 6 a driver has at most 8 transmit and 16 receive queues (VMXNET3_MAX_TX_QUEUES,
    /// VMXNET3_MAX_RX_QUEUES).
    pub fn read(memory: &Map, shared: u64, version: u8) -> Result<Self, SetupError> {
        let window = memory.window(shared, LEN, Rights::READ)?;
        if le32(&window, 0) != MAGIC {
            return Err(SetupError::Invalid);
        }
        let [transmit, receive] = window.read(62);
        let queues = le64(&window, 40);
        let extended = version >= 6 && (receive > 16 || transmit > 8);
        let [auto_mask, _count, event_vector] =
            if extended { memory.window(shared, EXTENDED_LEN, Rights::READ)?.read(720) } else { window.read(80) };
        let asked = le16(&window, 60);
        let (most_transmit, most_receive, most_mtu) =
            if version >= 6 { (QUEUES as u8, QUEUES as u8, MTU_MAX) } else { (8, 16, MTU_MAX_BEFORE_6) };
        if transmit > most_transmit || receive > most_receive {
            return Err(SetupError::Invalid);
        }
        let setup = Self {
            shared,
            features: le64(&window, 24),
            mtu: le32(&window, 56).clamp(MTU_MIN, most_mtu),
            most_pieces: if asked == 0 { PIECES as u16 } else { asked.min(PIECES as u16) },
            queues,
            transmit: u16::from(transmit),
            receive: u16::from(receive),
            auto_mask: auto_mask != 0,
            event_vector,
        };
        if setup.valid() { Ok(setup) } else { Err(SetupError::Invalid) }
    }

    /// Whether every number is in range.
    pub fn valid(&self) -> bool {
        let counts = (1..=QUEUES).contains(&self.transmit) && (1..=QUEUES).contains(&self.receive);
        let table = QUEUE_LEN * u64::from(self.transmit.saturating_add(self.receive));
        let placed =
            self.queues.checked_add(table).is_some() && self.shared.checked_add(u64::from(EXTENDED_LEN)).is_some();
        let mtu = (MTU_MIN..=MTU_MAX).contains(&self.mtu);
        let pieces = (1..=PIECES as u16).contains(&self.most_pieces);
        counts && placed && mtu && pieces && u16::from(self.event_vector) < VECTORS
    }

    /// Address of transmit queue `index`'s descriptor.
    pub fn transmit_at(&self, index: u16) -> u64 {
        self.queues + QUEUE_LEN * u64::from(index)
    }

    /// Address of receive queue `index`'s descriptor.
    pub fn receive_at(&self, index: u16) -> u64 {
        self.queues + QUEUE_LEN * u64::from(self.transmit + index)
    }

    /// Reads the configuration of transmit queue `index`.
    pub fn transmit_conf(&self, memory: &Map, index: u16) -> Result<TransmitConf, SetupError> {
        let window = memory.window(self.transmit_at(index), QUEUE_LEN as u32, Rights::BOTH)?;
        let ring = Ring::new(le64(&window, 16), le32(&window, 56), 4096)?;
        let completions = Ring::new(le64(&window, 32), le32(&window, 64), 4096)?;
        ring.window(memory, Rights::READ)?;
        completions.window(memory, Rights::WRITE)?;
        Ok(TransmitConf { ring, completions, vector: vector(&window)? })
    }

    /// Whether the driver requests moderation of a vector: any level except UPT1_IML_NONE. Levels beyond the table are in a part
    /// that only drivers with many queues have; these request UPT1_IML_ADAPTIVE.
    fn moderates(&self, memory: &Map, vector: u8) -> Result<bool, Fault> {
        if vector >= MODERATION_LEVELS {
            return Ok(true);
        }
        let mut level = [0];
        memory.read(self.shared + MODERATION + u64::from(vector), &mut level)?;
        Ok(level != [0])
    }

    /// Reads the configuration of receive queue `index`.
    pub fn receive_conf(&self, memory: &Map, index: u16, version: u8) -> Result<ReceiveConf, SetupError> {
        let window = memory.window(self.receive_at(index), QUEUE_LEN as u32, Rights::BOTH)?;
        let heads = Ring::new(le64(&window, 16), le32(&window, 56), 4096)?;
        let bodies = match le32(&window, 60) {
            0 => Ring { generation: true, ..Ring::default() },
            size => Ring::new(le64(&window, 24), size, 4096)?,
        };
        let completions = Ring::new(le64(&window, 32), le32(&window, 64), 8192)?;
        heads.window(memory, Rights::READ)?;
        if bodies.size > 0 {
            bodies.window(memory, Rights::READ)?;
        }
        completions.window(memory, Rights::WRITE)?;
        let (data, data_len) = (le64(&window, 48), le16(&window, 74));
        let has_data = version >= 3 && data != 0 && data_len != 0;
        if has_data && (!data_len.is_multiple_of(64) || data_len > 2048) {
            return Err(SetupError::Invalid);
        }
        if has_data {
            memory.window(data, heads.size * u32::from(data_len), Rights::WRITE)?;
        }
        let data_len = if has_data { data_len } else { 0 };
        let vector = vector(&window)?;
        let moderated = self.moderates(memory, vector)?;
        Ok(ReceiveConf { rings: [heads, bodies], completions, data, data_len, vector, moderated })
    }
}

fn vector(window: &Window<'_>) -> Result<u8, SetupError> {
    let [vector] = window.read(72);
    if u16::from(vector) < VECTORS { Ok(vector) } else { Err(SetupError::Invalid) }
}
