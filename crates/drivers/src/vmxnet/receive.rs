//! The receive rings: buffers of 1536 bytes for frames, pages for the rest of longer packets. An entry goes back as soon as its
//! bytes are copied.

use nicety_frame::Layout;
use nicety_memory::{Map, Rights, Window};

use super::layout::*;
use super::shared::Shared;
use crate::{Arena, DriverError, Received};

/// Bytes of a buffer (`PKT_BUF_SZ`), and of a page.
const BUFFER: u32 = 1536;
const PAGE: u32 = 4096;
/// Bytes of a frame with an MTU of 1500. A longer packet was joined, or never cut, and does not report its number of frames.
const FRAME: usize = 1514;

/// One of the two rings.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    offset: u32,
    len: u32,
    next: u32,
    buffers: u64,
    buffer: u32,
}

impl Ring {
    fn place(&self) -> usize {
        (self.offset + self.next * rx::BYTES) as usize
    }

    fn at(&self) -> u64 {
        self.buffers + u64::from(self.next) * u64::from(self.buffer)
    }

    /// Gives the entry to the device, and advances.
    fn give(&mut self, window: &Window<'_>, owner: u16) {
        let place = self.place();
        window.write(place + rx::ADDRESS, &self.at().to_le_bytes());
        window.store_u32(place + rx::BUFFER_LENGTH, self.buffer);
        window.store_u32(place + rx::LENGTH, 0);
        window.store_u16(place + rx::OWNER, owner);
        self.next = (self.next + 1) % self.len;
    }
}

#[derive(Debug, Default)]
pub(super) struct Receive {
    rings: [Ring; 2],
    packet: Vec<u8>,
}

impl Receive {
    /// Attaches buffers to both rings, and gives all entries to the device. Without pages the second ring has one entry, which
    /// stays the driver's.
    pub(super) fn new(memory: &Map, arena: &mut Arena, shared: &Shared, jumbo: bool) -> Result<Receive, DriverError> {
        let window = shared.window(memory)?;
        let mut rings = [Ring::default(); 2];
        for (number, ring) in rings.iter_mut().enumerate() {
            let (offset, len) = shared.receive[number];
            let buffer = if number == 0 { BUFFER } else { PAGE };
            let buffers =
                if number == 0 || jumbo { arena.take(u64::from(len) * u64::from(buffer), PAGE.into())? } else { 0 };
            *ring = Ring { offset, len, next: 0, buffers, buffer };
            if number == 0 || jumbo {
                (0..len).for_each(|_| ring.give(&window, if number == 0 { NIC } else { NIC_FRAG }));
            }
        }
        Ok(Receive { rings, packet: Vec::with_capacity(64 << 10) })
    }

    /// Takes entries until a packet is complete in `packet`.
    pub(super) fn next(&mut self, memory: &Map, shared: &Shared) -> Result<Option<Received>, DriverError> {
        let window = shared.window(memory)?;
        for _ in 0..self.rings[0].len {
            let place = self.rings[0].place();
            if window.load_u16(place + rx::OWNER) != DRIVER {
                return Ok(None);
            }
            let (flags, len) = (window.load_u16(place + rx::FLAGS), window.load_u32(place + rx::LENGTH));
            self.packet.clear();
            // An entry of zero bytes is a lost frame.
            let mut whole = len > 0;
            if whole {
                self.copy(memory, 0, len)?;
            }
            if flags & rx::WITH_FRAG != 0 {
                whole &= self.pages(memory, &window)?;
            }
            self.rings[0].give(&window, NIC);
            self.publish_next(&window);
            if whole {
                let checksum_good = flags & rx::CHECKSUM_GOOD != 0;
                return Ok(Some(Received { checksum_good, frames: frames(&self.packet) }));
            }
        }
        Ok(None)
    }

    /// Takes the pages of a packet. True if all of them have bytes.
    fn pages(&mut self, memory: &Map, window: &Window<'_>) -> Result<bool, DriverError> {
        let mut whole = true;
        for _ in 0..self.rings[1].len {
            let place = self.rings[1].place();
            if window.load_u16(place + rx::OWNER) != DRIVER_FRAG {
                return Err(DriverError::Device("gives a packet without its last page"));
            }
            let (flags, len) = (window.load_u16(place + rx::FLAGS), window.load_u32(place + rx::LENGTH));
            whole &= len > 0;
            self.copy(memory, 1, len)?;
            self.rings[1].give(window, NIC_FRAG);
            if flags & rx::FRAG_EOP != 0 {
                return Ok(whole);
            }
        }
        Err(DriverError::Device("gives a packet of more pages than there are"))
    }

    fn copy(&mut self, memory: &Map, number: usize, len: u32) -> Result<(), DriverError> {
        let ring = self.rings[number];
        if len > ring.buffer {
            return Err(DriverError::Device("received more than a buffer holds"));
        }
        let begin = self.packet.len();
        self.packet.resize(begin + len as usize, 0);
        memory.read(ring.at(), self.packet.get_mut(begin..).unwrap_or_default())?;
        Ok(())
    }

    fn publish_next(&self, window: &Window<'_>) {
        for (ring, place) in self.rings.iter().zip(data::RX_NEXT) {
            window.store_u32(place, ring.next);
        }
    }

    /// The packet that [`Receive::next`] has assembled.
    pub(super) fn packet(&mut self) -> &mut Vec<u8> {
        &mut self.packet
    }
}

/// Frames that a packet was joined from, if each had the maximum length.
fn frames(packet: &[u8]) -> u32 {
    if packet.len() <= FRAME {
        return 1;
    }
    let headers = usize::from(Layout::parse(packet).headers_len).min(FRAME - 1);
    packet.len().saturating_sub(headers).div_ceil(FRAME - headers).max(1) as u32
}

impl Shared {
    /// The driver data, translated.
    pub(super) fn window<'m>(&self, memory: &'m Map) -> Result<Window<'m>, DriverError> {
        Ok(memory.window(self.at, self.bytes, Rights::BOTH)?)
    }
}
