//! What remote DMA reaches: the PROM with the address, and 16 KiB of packet memory. The memory is a [`Map`] of this side's own, so that a
//! frame goes from it into another guest's buffers, and from there into it, with one copy.
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
/// First page of packet memory, and the first behind it.
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
    /// A new one, of zeros.
    pub fn new(mac: Mac) -> Result<Self, MapError> {
        let map = Arc::new(Map::private(RAM)?);
        // One private region is one span.
        let ram = map.whole(0, RAM as u32, Rights::BOTH).unwrap_or_default();
        Ok(Self { mac, map, ram })
    }

    /// The map that spans of packet memory are of.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// Bytes of packet memory from an address of the chip's on. `None` if they do not all lie in it.
    pub fn span(&self, at: u32, len: u32) -> Option<Span> {
        let from = at.checked_sub(FROM)?;
        (from.checked_add(len)? <= RAM as u32).then(|| self.ram.piece(from, len))
    }

    /// Reads from an address of the chip's on.
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

    /// Writes; outside of packet memory nothing comes of it.
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

    /// Zeros everywhere.
    pub fn clear(&self) {
        self.write(FROM, &[0; RAM]);
    }

    /// What is in packet memory, without the zeros at its end.
    pub fn save(&self) -> Vec<u8> {
        let mut bytes = vec![0; RAM];
        self.read(FROM, &mut bytes);
        let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(used);
        bytes
    }

    /// Whether [`Buffer::save`] can have given this.
    pub fn fits(saved: &[u8]) -> Result<(), RestoreError> {
        if saved.len() > RAM { Err(RestoreError::Impossible("packet memory")) } else { Ok(()) }
    }

    /// Takes what was saved.
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

/// What lies at an address, and where that ends.
fn area(at: u32) -> (u32, Area) {
    match at {
        0..PROM => (PROM, Area::Prom),
        PROM..FROM => (FROM, Area::Nothing),
        FROM..END => (END, Area::Ram),
        _ => (ALL, Area::Nothing),
    }
}
