//! Base address registers: the space, the size, and the encoding (PCI 3.0 §6.2.5).

/// The two spaces that a base address register maps into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Memory.
    Memory,
    /// I/O ports.
    Io,
}

/// Address space that a base address register requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BarKind {
    /// Memory anywhere in the first 4 GiB.
    Memory32 {
        /// Reads have no side effects.
        prefetchable: bool,
    },
    /// Memory anywhere; takes this register and the next.
    Memory64 {
        /// Reads have no side effects.
        prefetchable: bool,
    },
    /// I/O ports.
    Io,
}

/// A base address register: its kind, and its size in bytes (a power of two; memory at least 16, I/O at least 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bar {
    /// The address space and the addresses allowed in it.
    pub kind: BarKind,
    /// Size in bytes.
    pub size: u64,
}

/// Target of an address: an offset in a base address register's region, or in the ROM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hit {
    /// Index of the register, 0 to 5, or [`ROM_BAR`].
    pub bar: usize,
    /// Bytes from the region's start.
    pub offset: u64,
}

/// The index of the expansion ROM in [`Hit`].
pub const ROM_BAR: usize = 6;

impl Bar {
    /// Memory below 4 GiB, not prefetchable.
    #[must_use]
    pub const fn memory(size: u64) -> Self {
        Self { kind: BarKind::Memory32 { prefetchable: false }, size }
    }

    /// Memory anywhere, not prefetchable.
    #[must_use]
    pub const fn memory64(size: u64) -> Self {
        Self { kind: BarKind::Memory64 { prefetchable: false }, size }
    }

    /// I/O ports.
    #[must_use]
    pub const fn io(size: u64) -> Self {
        Self { kind: BarKind::Io, size }
    }

    /// The space that it maps into.
    #[must_use]
    pub const fn space(&self) -> Space {
        match self.kind {
            BarKind::Io => Space::Io,
            BarKind::Memory32 { .. } | BarKind::Memory64 { .. } => Space::Memory,
        }
    }

    /// Whether it takes the next register too.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        matches!(self.kind, BarKind::Memory64 { .. })
    }

    /// Whether the size can be encoded: a power of two, neither too small nor too large for the kind.
    pub(crate) const fn is_valid(&self) -> bool {
        let (least, most) = match self.kind {
            BarKind::Io => (4, 1 << 16),
            BarKind::Memory32 { .. } => (16, 1 << 31),
            BarKind::Memory64 { .. } => (16, 1 << 62),
        };
        self.size.is_power_of_two() && self.size >= least && self.size <= most
    }

    /// The read-only low bits: space, width, prefetchable.
    pub(crate) const fn flags(&self) -> u64 {
        match self.kind {
            BarKind::Io => 0b0001,
            BarKind::Memory32 { prefetchable } => (prefetchable as u64) << 3,
            BarKind::Memory64 { prefetchable } => 0b0100 | (prefetchable as u64) << 3,
        }
    }

    /// The bits that software may write: all above the size. Sizing with all ones reads them back, plus the flags.
    pub(crate) const fn writable(&self) -> u64 {
        let mask = !self.size.wrapping_sub(1);
        if self.is_wide() { mask } else { mask & 0xffff_ffff }
    }
}
