//! Structure of a function.

use crate::bar::Bar;
use crate::capability::MsixCapability;
use crate::cells::Byte;

/// Offset of the MSI capability, and its properties.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MsiPlace {
    pub(crate) at: usize,
    pub(crate) vectors: u8,
    pub(crate) maskable: bool,
}

/// Structure of a function: fixed once built.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) bytes: Box<[Byte]>,
    pub(crate) bars: [Option<Bar>; 6],
    pub(crate) rom_size: Option<u32>,
    pub(crate) has_pin: bool,
    /// ID and offset of each capability, in the list's order.
    pub(crate) capabilities: Vec<(u8, u8)>,
    /// Offset and length of vendor-specific and raw capabilities' bodies.
    pub(crate) bodies: Vec<(usize, usize)>,
    pub(crate) power: Option<usize>,
    pub(crate) msi: Option<MsiPlace>,
    pub(crate) msix: Option<(usize, MsixCapability)>,
    /// Offset of the PCI Express capability that offers function level reset.
    pub(crate) flr: Option<usize>,
}
