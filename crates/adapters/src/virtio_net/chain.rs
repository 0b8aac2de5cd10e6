//! A chain of descriptors (virtio 1.2, sections 2.7.5 and 2.8.5): buffers that belong together, walked once and with a bound.
//!
//! ```text
//! split     the descriptor table of the ring, linked by `next`; or a table of its own, linked too
//! packed    neighbours in the ring, the last one without the flag NEXT; or a table of its own, all of it
//! ```

use nicety_memory::{Map, Rights, Window};

use super::broken::Broken;

/// Maximum buffers of a chain in any table, and maximum descriptors of an indirect table: QEMU's limit (VIRTQUEUE_MAX_SIZE).
/// Linux's driver needs 19 (MAX_SKB_FRAGS + 2).
pub(super) const CHAIN_MAX: u32 = 1024;
/// Maximum bytes used of a buffer, more than any packet and header: a guest may name 4 GiB, in thousands of regions.
pub(super) const BUFFER_MAX: u32 = 128 << 10;
/// Descriptor flags (2.7.5): chain continues (NEXT); device-writable (WRITE); indirect table (INDIRECT).
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// A range of guest memory that a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Bus address.
    pub address: u64,
    /// Bytes, never 0, at most [`BUFFER_MAX`], or as many as the guest names: see [`Chain::with_whole_buffers`].
    pub len: u32,
    /// The device writes it.
    pub write: bool,
}

/// Identifies a chain for its completion: its head (split), or its buffer identifier and number of ring descriptors (packed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(pub u32);

impl Token {
    /// Token of a packed ring's chain.
    #[inline]
    pub fn packed(id: u16, slots: u16) -> Self {
        Self(u32::from(id) | u32::from(slots) << 16)
    }

    /// Used entry of the chain, with this many bytes written.
    #[inline]
    pub fn with_bytes(self, bytes: u32) -> u64 {
        u64::from(self.0) | u64::from(bytes) << 32
    }

    /// Buffer identifier of a packed ring's chain.
    #[inline]
    pub fn id(self) -> u16 {
        self.0 as u16
    }

    /// Number of ring descriptors of a packed ring's chain.
    #[inline]
    pub fn slots(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// A walk along a chain: at most as many steps as the table has entries, and at most [`CHAIN_MAX`] buffers.
pub(super) struct Chain<'m> {
    memory: &'m Map,
    table: Window<'m>,
    entries: u32,
    at: u32,
    left: u32,
    /// Steps available at the start.
    whole: u32,
    /// Maximum bytes used of a buffer.
    most: u32,
    /// An indirect table may follow: the feature was negotiated, and the walk is not in a table already.
    tables: bool,
    /// The ring is packed.
    packed: bool,
    /// The walk is in an indirect table.
    inside: bool,
    token: Token,
    done: bool,
}

impl<'m> Chain<'m> {
    /// A walk from the head at this position of a ring's descriptors.
    pub fn new(memory: &'m Map, table: Window<'m>, size: u16, head: u16, indirect: bool, packed: bool) -> Self {
        let entries = u32::from(size);
        let left = entries.min(CHAIN_MAX);
        let token = if packed { Token::packed(0, 0) } else { Token(head.into()) };
        Self {
            memory,
            table,
            entries,
            at: u32::from(head),
            left,
            whole: left,
            most: BUFFER_MAX,
            tables: indirect,
            packed,
            inside: false,
            token,
            done: false,
        }
    }

    /// The same walk, with buffers of any length: for a walker that skips bytes without touching them.
    pub fn with_whole_buffers(self) -> Self {
        Self { most: u32::MAX, ..self }
    }

    /// Number of descriptors read.
    pub fn walked(&self) -> u32 {
        self.whole - self.left
    }

    /// The chain's token. A packed ring's chain is walked to its end, because its last descriptor has the identifier.
    pub fn token(&mut self) -> Result<Token, Broken> {
        if self.packed {
            for buffer in self.by_ref() {
                buffer?;
            }
        }
        Ok(self.token)
    }

    fn step(&mut self) -> Result<Buffer, Broken> {
        loop {
            if self.left == 0 {
                return Err(Broken::Loop);
            }
            if self.at >= self.entries {
                return Err(Broken::Next);
            }
            self.left -= 1;
            let descriptor = u128::from_le_bytes(self.table.read(16 * self.at as usize));
            let (address, len) = (descriptor as u64, (descriptor >> 64) as u32);
            let flags = if self.packed { self.pass(descriptor) } else { self.link(descriptor) };
            if len == 0 {
                return Err(Broken::Empty);
            }
            if flags & INDIRECT == 0 {
                return Ok(Buffer { address, len: len.min(self.most), write: flags & WRITE != 0 });
            }
            let entries = len / 16;
            if !self.tables || flags & NEXT != 0 || len % 16 != 0 || entries > CHAIN_MAX {
                return Err(Broken::Table);
            }
            let table = self.memory.window(address, len, Rights::READ);
            self.table = table.map_err(|fault| Broken::of(fault, self.memory, Broken::Table))?;
            // The descriptor that names the table is not a buffer.
            let walked = self.walked();
            self.left = entries.min(CHAIN_MAX + 1 - walked);
            self.whole = self.left + walked;
            (self.entries, self.at, self.tables) = (entries, 0, false);
            (self.inside, self.done) = (true, false);
        }
    }

    /// Advances to the next descriptor of a split ring; returns the flags of this one.
    #[inline]
    fn link(&mut self, descriptor: u128) -> u16 {
        let (flags, next) = ((descriptor >> 96) as u16, (descriptor >> 112) as u16);
        self.at = u32::from(next);
        self.done = flags & NEXT == 0;
        flags
    }

    /// Advances to the next descriptor of a packed ring; returns the flags of this one. In a table only WRITE is meaningful
    /// (section 2.8.7).
    fn pass(&mut self, descriptor: u128) -> u16 {
        let (id, flags) = ((descriptor >> 96) as u16, (descriptor >> 112) as u16);
        self.at += 1;
        if self.inside {
            self.done = self.at == self.entries;
            return flags & WRITE;
        }
        self.token = Token::packed(id, self.token.slots() + 1);
        if self.at == self.entries {
            self.at = 0;
        }
        self.done = flags & NEXT == 0;
        flags
    }
}

impl Iterator for Chain<'_> {
    type Item = Result<Buffer, Broken>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step();
        self.done |= step.is_err();
        Some(step)
    }
}
