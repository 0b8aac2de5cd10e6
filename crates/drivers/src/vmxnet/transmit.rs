//! The transmit ring: headers in buffers of their own, which the device pins, the rest in pages. The first entry is handed over
//! last.

use nicety_adapter::{Checksum, Offload, SegmentKind};
use nicety_memory::{Map, Window};

use super::layout::*;
use super::shared::Shared;
use crate::{Arena, DriverError};

/// Bytes of a header's buffer (`TX_PKT_HEADER_SIZE`), and of a page.
const HEADER: u32 = 128;
const PAGE: u32 = 4096;
/// Pages per entry, one piece each.
const PAGES: u32 = 4;
const _: () = assert!(PAGES < tx::PIECES_MAX as u32);
/// The ring counts as low when fewer than this many entries are free.
const LOW: u32 = 5;

#[derive(Debug, Default)]
pub(super) struct Transmit {
    offset: u32,
    len: u32,
    headers: u64,
    pages: u64,
    /// Pages per entry.
    each: u32,
    next: u32,
    /// The oldest entry not yet reclaimed, and the number of entries in flight.
    oldest: u32,
    pending: u32,
    /// The device needs a doorbell.
    ring: bool,
}

impl Transmit {
    pub(super) fn new(memory: &Map, arena: &mut Arena, shared: &Shared, chain: bool) -> Result<Transmit, DriverError> {
        let (offset, len) = shared.transmit;
        let each = if chain { PAGES } else { 1 };
        let headers = arena.take(u64::from(len * HEADER), 64)?;
        let pages = arena.take(u64::from(len * each) * u64::from(PAGE), PAGE.into())?;
        let window = shared.window(memory)?;
        window.store_u32(data::TX_BUFFER, headers as u32);
        window.store_u32(data::TX_BUFFER_LENGTH, len * HEADER);
        window.store_u32(data::TX_PACKET_MAX, HEADER);
        Ok(Transmit { offset, len, headers, pages, each, ..Transmit::default() })
    }

    fn place(&self, index: u32) -> usize {
        (self.offset + index * tx::BYTES) as usize
    }

    /// Reclaims the entries of sent packets.
    pub(super) fn reclaim(&mut self, memory: &Map, shared: &Shared) -> Result<u32, DriverError> {
        let window = shared.window(memory)?;
        let before = self.pending;
        while self.pending > 0 && window.load_u16(self.place(self.oldest) + tx::OWNER) == DRIVER {
            self.oldest = (self.oldest + 1) % self.len;
            self.pending -= 1;
        }
        if self.pending < before {
            window.store_u32(data::TX_CUR, self.oldest);
            window.store_u32(data::TX_STOPPED, 0);
        }
        Ok(self.pending)
    }

    /// Queues a packet. False if there is no room: the device then knows that the driver waits.
    pub(super) fn queue(
        &mut self,
        memory: &Map,
        shared: &Shared,
        packet: &[u8],
        offload: &Offload,
    ) -> Result<bool, DriverError> {
        let (flags, mss) = request(offload)?;
        let head = packet.len().min(HEADER as usize);
        let (header, rest) = packet.split_at(head);
        let per_entry = (self.each * PAGE) as usize;
        let entries = (rest.len().div_ceil(per_entry) as u32).max(1);
        if packet.is_empty() || entries > self.len || (self.each == 1 && entries > 1) {
            return Err(DriverError::Device("has no room for a packet of that length, ever"));
        }
        let window = shared.window(memory)?;
        if self.len - self.pending < entries {
            window.store_u32(data::TX_STOPPED, 1);
            nicety_memory::full_barrier();
            self.reclaim(memory, shared)?;
            if self.len - self.pending < entries {
                return Ok(false);
            }
        }
        let first = self.next;
        let mut chunks = rest.chunks(per_entry);
        for number in 0..entries {
            let more = if number + 1 < entries { tx::MORE } else { 0 };
            let header = if number == 0 { header } else { &[] };
            let low = self.pending + entries > self.len - LOW.min(self.len);
            let own = if number == 0 { tx::CAN_KEEP | flags | if low { tx::RING_LOW } else { 0 } } else { 0 };
            self.fill(memory, &window, header, chunks.next().unwrap_or_default())?;
            let place = self.place(self.next);
            window.store_u16(place + tx::FLAGS, own | more);
            window.store_u32(place + tx::MSS, if number == 0 { mss.into() } else { 0 });
            if number > 0 {
                window.store_u16(place + tx::OWNER, NIC);
            }
            self.next = (self.next + 1) % self.len;
        }
        window.store_u32(data::TX_NEXT, self.next);
        self.pending += entries;
        let frames = if mss == 0 { 1 } else { packet.len().div_ceil(mss.into()) as u32 };
        let deferred = window.load_u32(data::TX_DEFERRED).saturating_add(frames);
        window.store_u32(data::TX_DEFERRED, deferred);
        window.store_u16(self.place(first) + tx::OWNER, NIC);
        if self.pending + LOW > self.len {
            self.ring = true;
        }
        if deferred >= window.load_u32(data::TX_CLUSTER) {
            window.store_u32(data::TX_DEFERRED, 0);
            self.ring = true;
        }
        Ok(true)
    }

    /// Copies bytes into the next entry's buffers, and writes their addresses.
    fn fill(&self, memory: &Map, window: &Window<'_>, header: &[u8], rest: &[u8]) -> Result<(), DriverError> {
        let place = self.place(self.next);
        let pages = self.pages + u64::from(self.next * self.each) * u64::from(PAGE);
        let at = (!header.is_empty()).then(|| (self.headers + u64::from(self.next * HEADER), header));
        let rest = (0..).zip(rest.chunks(PAGE as usize)).map(|(n, piece)| (pages + n * u64::from(PAGE), piece));
        let mut pieces = 0;
        for (at, bytes) in at.into_iter().chain(rest) {
            memory.write(at, bytes)?;
            window.write_u64(place + tx::SG + 8 * pieces, at | (bytes.len() as u64) << 48);
            pieces += 1;
        }
        window.store_u16(place + tx::KIND, tx::PHYSICAL);
        window.store_u16(place + tx::PIECES, pieces as u16);
        Ok(())
    }

    /// Whether the device wants a doorbell now.
    pub(super) fn doorbell(&mut self) -> bool {
        std::mem::take(&mut self.ring)
    }
}

/// Flags, and the segment size. The device finds headers and checksums itself.
fn request(offload: &Offload) -> Result<(u16, u16), DriverError> {
    match (offload.segment, offload.checksum) {
        (Some(segment), _) if segment.kind == SegmentKind::Tcp => Ok((tx::TSO | tx::CHECKSUM, segment.mss)),
        (Some(_), _) => Err(DriverError::Device("cannot segment what is not TCP")),
        (None, Checksum::Partial { .. }) => Ok((tx::CHECKSUM, 0)),
        (None, _) => Ok((0, 0)),
    }
}
