//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), pseudo-headers (RFC 9293 section 3.1, RFC 768,
//! RFC 8200 section 8.1), and checksum offloads.

use crate::bytes::{array_at, put, u16_at};
use crate::layout::{Fragment, L3Kind, L4Kind, Layout};
pub use crate::sum::{Sum, sum};
use crate::{ipv4, ipv6};
use core::net::{Ipv4Addr, Ipv6Addr};

/// A sum over consecutive pieces of any length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    total: Sum,
    odd: bool,
}

impl Running {
    /// Continues behind `len` bytes with the sum `total`.
    pub const fn after(total: Sum, len: usize) -> Self {
        Self { total, odd: len & 1 != 0 }
    }

    /// Adds the next piece.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.push_sum(sum(bytes), bytes.len());
    }

    /// Adds the sum of the next piece, which is `len` bytes long.
    #[inline]
    pub const fn push_sum(&mut self, piece: Sum, len: usize) {
        self.total = self.total.then(piece, self.odd);
        self.odd ^= len & 1 != 0;
    }

    /// The sum of all pieces so far.
    pub const fn total(&self) -> Sum {
        self.total
    }
}

/// Sum of the IPv4 pseudo-header; `len` is the length of the L4 header and payload.
#[inline]
pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u32) -> Sum {
    let addresses = Sum::ZERO.long(source.to_bits()).long(destination.to_bits());
    addresses.word(u16::from(protocol)).long(len)
}

/// Sum of the IPv6 pseudo-header; `destination` is the final one, `len` the length of the L4 header and payload.
#[inline]
pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, len: u32) -> Sum {
    let addresses = sum(&source.octets()).then(sum(&destination.octets()), false);
    addresses.word(u16::from(protocol)).long(len)
}

/// Sum of the pseudo-header of a frame with IP and L4; `None` without either.
#[inline]
pub fn pseudo(head: &[u8], layout: &Layout, len: u32) -> Option<Sum> {
    let (l3, l4) = (layout.l3?, layout.l4?);
    let (start, destination) = (usize::from(l3.offset), usize::from(l3.destination_at));
    let addresses = match l3.kind {
        L3Kind::V4 => {
            let source = array_at::<4>(head, start + ipv4::SOURCE_OFFSET)?;
            let destination = array_at::<4>(head, destination)?;
            Sum::ZERO.long(u32::from_be_bytes(*source)).long(u32::from_be_bytes(*destination))
        }
        L3Kind::V6 => {
            let source = array_at::<16>(head, start + ipv6::SOURCE_OFFSET)?;
            sum(source).then(sum(array_at::<16>(head, destination)?), false)
        }
    };
    Some(addresses.word(u16::from(l4.kind.protocol())).long(len))
}

/// The new checksum after a covered word changed from `old` to `new` (RFC 1624 section 3, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::of(!checksum).word(!old).word(new).checksum()
}

/// Like [`update`], for a 32-bit field at an even offset.
#[inline]
pub const fn update_long(checksum: u16, old: u32, new: u32) -> u16 {
    Sum::of(!checksum).long(!old).long(new).checksum()
}

/// Finishes a partial checksum. The checksum field lies `offset` bytes behind `start` in `head` and holds the sum of
/// the pseudo-header; `payload` is the sum of the packet's bytes behind `head`, up to its end by the IP header.
/// Writes and returns the checksum. Returns `None` and writes nothing if `start` or the field is not in `head`. No protocol
/// has its field at an odd `offset`: such a request gives a checksum that does not verify.
#[inline]
pub fn complete(head: &mut [u8], start: usize, offset: usize, payload: Sum) -> Option<u16> {
    let covered = head.get(start..)?;
    u16_at(covered, offset)?;
    // The field is part of the sum: it holds the pseudo-header's sum, which must be added.
    let total = sum(covered).then(payload, covered.len() & 1 != 0);
    let checksum = total.transmit();
    put(head, start + offset, checksum.to_be_bytes())?;
    Some(checksum)
}

/// Computes and writes the whole L4 checksum of a frame. Returns `None` and writes nothing without L4, in a
/// fragment, or if the frame is shorter than its IP header claims.
pub fn fill(frame: &mut [u8], layout: &Layout) -> Option<u16> {
    let l4 = whole_l4(layout)?;
    let len = layout.l4_total_len(frame)?;
    let partial = pseudo(frame, layout, u32::try_from(len).ok()?)?.fold();
    let end = usize::from(l4.offset).checked_add(len)?;
    let covered = frame.get_mut(..end)?;
    put(covered, l4.checksum_at(), partial.to_be_bytes())?;
    complete(covered, usize::from(l4.offset), usize::from(l4.kind.checksum_offset()), Sum::ZERO)
}

fn whole_l4(layout: &Layout) -> Option<crate::L4> {
    layout.l4.filter(|_| layout.l3.is_some_and(|l3| l3.fragment == Fragment::Whole))
}

/// Result of a receiver's check of an L4 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Computed and right.
    Good,
    /// Computed and wrong.
    Bad,
    /// UDP with a checksum field of 0: the sender computed none (over IPv6 only tunnels may, RFC 6936).
    Absent,
    /// Not TCP or UDP, a fragment, or cut off: the checksum cannot be checked.
    Unknown,
}

/// Turns headers into those of one packet of `len` bytes that is not segmented yet: IP's length and header checksum, and the
/// pseudo-header's sum with that length in the transport checksum's field. Returns that sum; `None` if `len` does not fit IP.
pub fn prepare(head: &mut [u8], layout: &Layout, len: u32) -> Option<u16> {
    let (l3, l4) = (layout.l3?, layout.l4?);
    let at = usize::from(l3.offset);
    let packet = len.checked_sub(u32::from(l3.offset))?;
    match l3.kind {
        L3Kind::V4 => {
            let total = u16::try_from(packet).ok()?;
            head.get_mut(at + 2..at + 4)?.copy_from_slice(&total.to_be_bytes());
            head.get_mut(at + 10..at + 12)?.fill(0);
            let made = sum(head.get(at..at + usize::from(l3.len))?).checksum();
            head.get_mut(at + 10..at + 12)?.copy_from_slice(&made.to_be_bytes());
        }
        L3Kind::V6 => {
            let payload = u16::try_from(packet.checked_sub(40)?).ok()?;
            head.get_mut(at + 4..at + 6)?.copy_from_slice(&payload.to_be_bytes());
        }
    }
    let partial = pseudo(head, layout, len.checked_sub(u32::from(l4.offset))?)?.fold();
    let field = l4.checksum_at();
    head.get_mut(field..field + 2)?.copy_from_slice(&partial.to_be_bytes());
    u16::try_from(field).ok()
}

/// Verifies the L4 checksum of a whole frame.
pub fn check(frame: &[u8], layout: &Layout) -> Verdict {
    let payload = |len: usize| {
        let start = usize::from(layout.headers_len);
        frame.get(start..start.checked_add(len)?).map(sum)
    };
    check_with(frame, layout, payload)
}

/// Verifies an L4 checksum. `head` holds at least the headers; `payload(len)` gives the sum of the `len` bytes that
/// follow the headers, or `None` if the frame has fewer.
pub fn check_with(head: &[u8], layout: &Layout, payload: impl FnOnce(usize) -> Option<Sum>) -> Verdict {
    let verdict = || {
        let l4 = whole_l4(layout)?;
        let len = layout.l4_total_len(head)?;
        if l4.kind == L4Kind::Udp && u16_at(head, l4.checksum_at())? == 0 {
            return Some(Verdict::Absent);
        }
        let header = head.get(usize::from(l4.offset)..usize::from(layout.headers_len))?;
        let payload = payload(len - usize::from(l4.len))?;
        let total = pseudo(head, layout, u32::try_from(len).ok()?)?.then(sum(header), false);
        // Both headers have an even number of bytes.
        Some(if total.then(payload, false).verify() { Verdict::Good } else { Verdict::Bad })
    };
    verdict().unwrap_or(Verdict::Unknown)
}
