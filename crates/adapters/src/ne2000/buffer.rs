//! Memory that remote DMA reaches: the PROM with the address, and 16 KiB of packet memory. The memory is a [`Map`] of the daemon's
//! own, so a frame moves between it and another guest's buffers with one copy.
//!
//! ```text
//! 0x0000 ┌──────────────┐ PROM, each byte twice: address, zeros, 57 57
//! 0x0020 ├──────────────┤ nothing: reads as ones
//! 0x4000 ├──────────────┤ packet memory, pages 0x40 to 0x7f
//! 0x8000 ├──────────────┤ nothing
//! ```

use std::sync::Arc;

use nicety_adapter::snapshot::RestoreError;
use nicety_frame::Mac;
use nicety_memory::{Map, MapError, Rights, Span};

/// Bytes of a page.
pub const PAGE: u32 = 256;
/// First page of packet memory, and the end of its pages.
pub const PAGES: std::ops::Range<u32> = 0x40..0x80;
const FROM: u32 = PAGES.start * PAGE;
const END: u32 = PAGES.end * PAGE;
const RAM: usize = (END - FROM) as usize;
/// Bytes of the PROM as they are read.
const PROM: u32 = 32;
/// Addresses have 16 bits.
const ALL: u32 = 0x1_0000;

/// See the module's page.
#[derive(Debug)]
pub struct Buffer {
    mac: Mac,
    map: Arc<Map>,
    ram: Span,
}

impl Buffer {
    /// New memory, all zeros.
    pub fn new(mac: Mac) -> Result<Self, MapError> {
        let map = Arc::new(Map::private(RAM)?);
        // A single private region is a single span.
        let ram = map.whole(0, RAM as u32, Rights::BOTH).unwrap_or_default();
        Ok(Self { mac, map, ram })
    }

    /// The map for spans of packet memory.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Bytes of packet memory from a chip address on. `None` if they are not all in it.
    pub fn span(&self, at: u32, len: u32) -> Option<Span> {
        let from = at.checked_sub(FROM)?;
        (from.checked_add(len)? <= RAM as u32).then(|| self.ram.piece(from, len))
    }

    /// Reads from a chip address on.
    pub fn read(&self, at: u32, data: &mut [u8]) {
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let (end, kind) = area(at);
            let (piece, after) = rest.split_at_mut(rest.len().min((end - at) as usize));
            match kind {
                Area::Prom => piece.iter_mut().zip(at..).for_each(|(byte, at)| *byte = self.prom(at)),
                Area::Ram => {
                    self.map.read_span(self.ram.piece(at - FROM, piece.len() as u32), piece);
                }
                Area::Nothing => piece.fill(0xff),
            }
            at = (at + piece.len() as u32) % ALL;
            rest = after;
        }
    }

    /// Writes; ignored outside packet memory.
    pub fn write(&self, at: u32, data: &[u8]) {
        let mut at = at;
        let mut rest = data;
        while !rest.is_empty() {
            let (end, kind) = area(at);
            let (piece, after) = rest.split_at(rest.len().min((end - at) as usize));
            if kind == Area::Ram {
                self.map.write_span(self.ram.piece(at - FROM, piece.len() as u32), piece);
            }
            at = (at + piece.len() as u32) % ALL;
            rest = after;
        }
    }

    fn prom(&self, at: u32) -> u8 {
        match at / 2 {
            at @ 0..6 => self.mac.0[at as usize],
            14 | 15 => 0x57,
            _ => 0,
        }
    }

    /// Fills it with zeros.
    pub fn clear(&self) {
        self.write(FROM, &[0; RAM]);
    }

    /// Contents of packet memory, without the zeros at its end.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = vec![0; RAM];
        self.read(FROM, &mut bytes);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(used);
        bytes
    }

    /// Whether this can be the result of [`Buffer::save`].
    pub fn fits(saved: &[u8]) -> Result<(), RestoreError> {
        if saved.len() > RAM { Err(RestoreError::Impossible("packet memory")) } else { Ok(()) }
    }

    /// Restores saved contents.
    pub fn restore(&self, saved: &[u8]) {
        self.clear();
        self.write(FROM, saved);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    Prom,
    Ram,
    Nothing,
}

/// The area at an address, and its end.
fn area(at: u32) -> (u32, Area) {
    match at {
        0..PROM => (PROM, Area::Prom),
        PROM..FROM => (FROM, Area::Nothing),
        FROM..END => (END, Area::Ram),
        _ => (ALL, Area::Nothing),
    }
}
