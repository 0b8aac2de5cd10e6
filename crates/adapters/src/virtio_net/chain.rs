//! A chain of descriptors (virtio 1.2, sections 2.7.5 and 2.8.5): the buffers that hang together, walked once and bounded.
//!
//! ```text
//! split     the descriptor table of the ring, linked by `next`; or a table of its own, linked too
//! packed    neighbours in the ring, the last one without the flag NEXT; or a table of its own, all of it
//! ```

use nicety_memory::{Map, Rights, Window};

use super::broken::Broken;

/// Buffers of a chain at most, in whatever table, and descriptors in an indirect table: QEMU's limit (VIRTQUEUE_MAX_SIZE).
/// Linux's driver needs 19 (MAX_SKB_FRAGS + 2).
pub(super) const CHAIN_MOST: u32 = 1024;
/// Bytes of a buffer that count, more than any packet and header have: a guest may name 4 GiB, in thousands of regions.
pub(super) const BUFFER_MOST: u32 = 128 << 10;
/// Descriptor flags (2.7.5): the chain goes on; the device writes; a table of descriptors.
pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// A piece of guest memory that a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buffer {
    /// Bus address.
    pub address: u64,
    /// Bytes, never 0, at most [`BUFFER_MOST`].
    pub len: u32,
    /// For the device to write.
    pub write: bool,
}

/// What a chain is given back by: its head (split), or its buffer identifier and how many of the ring's descriptors it has (packed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(pub u32);

impl Token {
    /// Of a packed ring's chain.
    #[inline]
    pub fn packed(id: u16, slots: u16) -> Self {
        Self(u32::from(id) | u32::from(slots) << 16)
    }

    /// The entry by which a chain is given back, of which so many bytes were written.
    #[inline]
    pub fn with_bytes(self, bytes: u32) -> u64 {
        u64::from(self.0) | u64::from(bytes) << 32
    }

    /// The buffer identifier of a packed ring's chain.
    #[inline]
    pub fn id(self) -> u16 {
        self.0 as u16
    }

    /// How many of the ring's descriptors it has, in a packed ring.
    #[inline]
    pub fn slots(self) -> u16 {
        (self.0 >> 16) as u16
    }
}

/// A walk along a chain: at most as many steps as the table has entries, and at most [`CHAIN_MOST`] buffers.
pub(super) struct Chain<'m> {
    memory: &'m Map,
    table: Window<'m>,
    entries: u32,
    at: u32,
    left: u32,
    /// Steps that were left before the first one.
    whole: u32,
    /// A table may still come: allowed, and not in one already.
    tables: bool,
    /// The ring is a packed one.
    packed: bool,
    /// It is in a table of its own.
    inside: bool,
    token: Token,
    done: bool,
}

impl<'m> Chain<'m> {
    /// From a head of a ring's descriptors on.
    pub fn new(memory: &'m Map, table: Window<'m>, size: u16, head: u16, indirect: bool, packed: bool) -> Self {
        let entries = u32::from(size);
        let left = entries.min(CHAIN_MOST);
        let token = if packed { Token::packed(0, 0) } else { Token(head.into()) };
        Self {
            memory,
            table,
            entries,
            at: u32::from(head),
            left,
            whole: left,
            tables: indirect,
            packed,
            inside: false,
            token,
            done: false,
        }
    }

    /// Descriptors that were read.
    pub fn walked(&self) -> u32 {
        self.whole - self.left
    }

    /// What it is given back by. A packed ring's chain is walked to its end for that: its last descriptor names it.
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
                return Ok(Buffer { address, len: len.min(BUFFER_MOST), write: flags & WRITE != 0 });
            }
            let entries = len / 16;
            if !self.tables || flags & NEXT != 0 || len % 16 != 0 || entries > CHAIN_MOST {
                return Err(Broken::Table);
            }
            self.table = self.memory.window(address, len, Rights::READ).map_err(|_| Broken::Table)?;
            // The descriptor that names the table is no buffer.
            let walked = self.walked();
            self.left = entries.min(CHAIN_MOST + 1 - walked);
            self.whole = self.left + walked;
            (self.entries, self.at, self.tables) = (entries, 0, false);
            (self.inside, self.done) = (true, false);
        }
    }

    /// On to the next of a split ring's; the flags of this one.
    #[inline]
    fn link(&mut self, descriptor: u128) -> u16 {
        let (flags, next) = ((descriptor >> 96) as u16, (descriptor >> 112) as u16);
        self.at = u32::from(next);
        self.done = flags & NEXT == 0;
        flags
    }

    /// On to the next of a packed ring's; the flags of this one. In a table only WRITE has a meaning (section 2.8.7).
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
