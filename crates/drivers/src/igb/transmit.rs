//! A transmit ring (7.2.2.2: advanced context, 7.2.2.3: advanced data).

use nicety_adapter::{Checksum, Offload, SegmentKind};
use nicety_frame::{L3Kind, L4Kind, Layout, checksum};
use nicety_memory::{Map, Rights};

use super::registers::*;
use super::{RING, RING_BYTES};
use crate::{Arena, DriverError};

/// Bytes per descriptor.
const BUFFER: u32 = 4096;
/// Longest headers of a packet to segment.
const HEADERS_MAX: usize = 255;

#[derive(Debug)]
pub(crate) struct Transmit {
    pub ring: u64,
    buffers: u64,
    /// The next descriptor to fill.
    next: u16,
    /// The oldest descriptor that is not yet reclaimed.
    oldest: u16,
    /// Tail that the device was last notified of.
    notified_tail: u16,
    /// The last descriptor of each packet, at the packet's first one.
    ends: Vec<u16>,
}

impl Transmit {
    pub(crate) fn new(memory: &Map, arena: &mut Arena) -> Result<Transmit, DriverError> {
        let ring = arena.take(RING_BYTES.into(), 4096)?;
        let buffers = arena.take(u64::from(RING) * u64::from(BUFFER), 4096)?;
        memory.window(ring, RING_BYTES, Rights::BOTH)?.write(0, &[0; RING_BYTES as usize]);
        Ok(Transmit { ring, buffers, next: 0, oldest: 0, notified_tail: 0, ends: vec![0; usize::from(RING)] })
    }

    fn room(&self) -> u16 {
        (self.oldest + RING - self.next - 1) % RING
    }

    /// Reclaims the descriptors of sent packets.
    pub(crate) fn reclaim(&mut self, memory: &Map) -> Result<(), DriverError> {
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        while self.oldest != self.next {
            let Some(&last) = self.ends.get(usize::from(self.oldest)) else { break };
            if window.load_u32(usize::from(last) * DESCRIPTOR + 12) & TX_DD == 0 {
                break;
            }
            self.oldest = (last + 1) % RING;
        }
        Ok(())
    }

    /// Queues a packet. False if there is no room.
    pub(crate) fn queue(&mut self, memory: &Map, packet: &[u8], offload: &Offload) -> Result<bool, DriverError> {
        let pieces = packet.len().div_ceil(BUFFER as usize);
        let needed = u16::try_from(pieces + 1).unwrap_or(u16::MAX);
        if self.room() < needed {
            self.reclaim(memory)?;
            if self.room() < needed {
                return Ok(false);
            }
        }
        let first = self.next;
        let request = Request::of(packet, offload)?;
        let window = memory.window(self.ring, RING_BYTES, Rights::BOTH)?;
        let put = |index: u16, words: [u32; 4]| {
            let mut descriptor = [0; DESCRIPTOR];
            for (bytes, word) in descriptor.chunks_exact_mut(4).zip(words) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
            window.write(usize::from(index) * DESCRIPTOR, &descriptor);
        };
        if let Some(context) = request.context {
            put(self.next, context);
            self.next = (self.next + 1) % RING;
        }
        let mut last = self.next;
        for (number, piece) in packet.chunks(BUFFER as usize).enumerate() {
            let buffer = self.buffers + u64::from(self.next) * u64::from(BUFFER);
            memory.write(buffer, piece)?;
            let mut options = 0;
            if number == 0 {
                options = request.options;
                if let Some((head, len)) = &request.head {
                    memory.write(buffer, head.get(..*len).unwrap_or_default())?;
                }
            }
            let end = if number + 1 == pieces { TX_EOP | TX_RS } else { 0 };
            let command = piece.len() as u32 | request.command | end;
            put(self.next, [buffer as u32, (buffer >> 32) as u32, command, options]);
            last = self.next;
            self.next = (self.next + 1) % RING;
        }
        if let Some(end) = self.ends.get_mut(usize::from(first)) {
            *end = last;
        }
        Ok(true)
    }

    /// The tail, if the device was not yet notified of it.
    pub(crate) fn doorbell(&mut self) -> Option<u16> {
        let changed = self.notified_tail != self.next;
        self.notified_tail = self.next;
        changed.then_some(self.next)
    }
}

/// A packet's offloads, as descriptors encode them.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    context: Option<[u32; 4]>,
    /// Command bits of the data descriptors.
    command: u32,
    /// Option bits of the first data descriptor.
    options: u32,
    /// Headers rewritten for segmentation, and their length.
    head: Option<([u8; HEADERS_MAX], usize)>,
}

impl Request {
    fn of(packet: &[u8], offload: &Offload) -> Result<Request, DriverError> {
        let data = TX_DATA | TX_DEXT | TX_IFCS;
        let whole = (packet.len() as u32) << TX_PAYLEN_SHIFT;
        let Checksum::Partial { start, .. } = offload.checksum else {
            return Ok(Request { context: None, command: data, options: whole, head: None });
        };
        let layout = Layout::parse(packet);
        let (Some(l3), Some(l4)) = (layout.l3, layout.l4.filter(|l4| l4.offset == start)) else {
            return Err(DriverError::Device("makes checksums of TCP and UDP alone"));
        };
        let lengths = u32::from(start - l3.offset) | u32::from(l3.offset) << 9;
        let tcp = if l4.kind == L4Kind::Tcp { TX_TCP } else { 0 };
        let v4 = if l3.kind == L3Kind::V4 { TX_IPV4 } else { 0 };
        let kind = TX_CONTEXT | TX_DEXT | tcp | v4;
        let Some(segment) = offload.segment else {
            let context = Some([lengths, 0, kind, 0]);
            return Ok(Request { context, command: data, options: whole | TX_TXSM, head: None });
        };
        let (headers, possible) = (usize::from(segment.headers), usize::from(start)..=HEADERS_MAX);
        let (Some(given), true) =
            (packet.get(..headers).filter(|_| possible.contains(&headers)), segment.kind == SegmentKind::Tcp)
        else {
            return Err(DriverError::Device("cannot segment what is not TCP over IP"));
        };
        // 7.2.4: lengths and the IP checksum are zero. The TCP checksum is the pseudo-header's, without the length.
        let mut head = [0; HEADERS_MAX];
        head[..headers].copy_from_slice(given);
        let at = usize::from(l3.offset);
        let zeros: &[usize] = if v4 != 0 { &[2, 3, 10, 11] } else { &[4, 5] };
        for offset in zeros {
            if let Some(byte) = head.get_mut(at + offset) {
                *byte = 0;
            }
        }
        let pseudo = checksum::pseudo(packet, &layout, 0).map_or(0, |sum| sum.fold());
        let field = l4.checksum_at();
        if let Some(place) = head.get_mut(field..field + 2) {
            place.copy_from_slice(&pseudo.to_be_bytes());
        }
        let sizes = u32::from(segment.headers - start) << 8 | u32::from(segment.mss) << 16;
        let payload = ((packet.len() - headers) as u32) << TX_PAYLEN_SHIFT;
        let ip = if v4 != 0 { TX_IXSM } else { 0 };
        Ok(Request {
            context: Some([lengths, 0, kind, sizes]),
            command: data | TX_TSE,
            options: payload | TX_TXSM | ip,
            head: Some((head, headers)),
        })
    }
}
