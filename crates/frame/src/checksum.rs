//! The Internet checksum (RFC 1071), its incremental update (RFC 1624), pseudo-headers (RFC 9293 section 3.1, RFC 768,
//! RFC 8200 section 8.1), and what offloads make of them.
//!
//! A [`Sum`] is kept in the machine's own byte order and not folded (RFC 1071 section 2, (B) and (C)); numbers that go
//! in and out are ordinary integers, as read from the wire with `from_be_bytes`.

use crate::bytes::{array_at, put, u16_at};
use crate::layout::{Fragment, L3Kind, L4Kind, Layout};
use crate::{ipv4, ipv6};
use core::net::{Ipv4Addr, Ipv6Addr};

/// A one's complement sum of 16-bit words that is not folded yet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Of nothing.
    pub const ZERO: Self = Self(0);

    /// Of one word: for example a checksum field that holds the sum of a pseudo-header.
    #[inline]
    pub const fn of(word: u16) -> Self {
        Self(word.to_be() as u64)
    }

    /// One's complement addition: 2^16 - 1 divides 2^64 - 1, so a carry out of the top comes in at the bottom.
    #[inline]
    const fn plus(self, other: u64) -> Self {
        let (total, carry) = self.0.overflowing_add(other);
        // After a carry the total is at most 2^64 - 2.
        Self(total.wrapping_add(carry as u64))
    }

    /// Adds one word.
    #[inline]
    pub const fn word(self, word: u16) -> Self {
        self.plus(word.to_be() as u64)
    }

    /// Adds a 32-bit number.
    #[inline]
    pub const fn long(self, long: u32) -> Self {
        self.plus(long.to_be() as u64)
    }

    /// Adds the sum of the bytes that follow. `at_odd_offset`: an odd number of bytes went before them, so that their
    /// words lie across ours (RFC 1071 section 2, (B): byte swapping the sum is swapping every word).
    #[inline]
    pub const fn then(self, other: Self, at_odd_offset: bool) -> Self {
        if at_odd_offset { self.plus(other.fold_native().swap_bytes() as u64) } else { self.plus(other.0) }
    }

    #[inline]
    const fn fold_native(self) -> u16 {
        let sum = (self.0 >> 32) + (self.0 & 0xffff_ffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        let sum = (sum >> 16) + (sum & 0xffff);
        sum as u16
    }

    /// The 16-bit sum, not complemented.
    #[inline]
    pub const fn fold(self) -> u16 {
        u16::from_be(self.fold_native())
    }

    /// The complement: what goes into a checksum field that was 0 while summing.
    #[inline]
    pub const fn checksum(self) -> u16 {
        !self.fold()
    }

    /// As [`Sum::checksum`], but 0 is sent as 0xffff: UDP's rule (RFC 768), harmless for TCP.
    #[inline]
    pub const fn transmit(self) -> u16 {
        match self.checksum() {
            0 => 0xffff,
            checksum => checksum,
        }
    }

    /// Whether bytes that include their own checksum field, and a pseudo-header if there is one, add up.
    #[inline]
    pub const fn verify(self) -> bool {
        self.fold() == 0xffff
    }
}

/// Below this many bytes the set-up of the vector loop costs more than it saves. Measured on one x86-64 core, plain loop
/// against vector loop: 18 against 8 GB/s at 128 bytes, 16 against 24 at 576.
const VECTOR_LEN_MIN: usize = 256;

/// Sums `bytes`; an odd last byte counts as if a zero followed it. Lengths up to 2^36 bytes are exact.
#[inline]
pub fn sum(bytes: &[u8]) -> Sum {
    if bytes.len() < VECTOR_LEN_MIN {
        return sum_short(Sum::ZERO, bytes);
    }
    sum_long(bytes)
}

/// A word and its carry at a time.
#[inline]
fn sum_short(mut total: Sum, bytes: &[u8]) -> Sum {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        total = total.plus(u64::from_ne_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<4>();
    if let [word] = words {
        total = total.plus(u64::from(u32::from_ne_bytes(*word)));
    }
    match *rest {
        [a] => total.plus(u64::from(u16::from_ne_bytes([a, 0]))),
        [a, b] => total.plus(u64::from(u16::from_ne_bytes([a, b]))),
        [a, b, c] => total.plus(u64::from(u32::from_ne_bytes([a, b, c, 0]))),
        _ => total,
    }
}

/// 32-bit words in 64-bit lanes, which need no carry, so that the loop becomes vector instructions on any machine.
fn sum_long(bytes: &[u8]) -> Sum {
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut low = [0_u64; 8];
    let mut high = [0_u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for ((low, high), word) in low.iter_mut().zip(&mut high).zip(words) {
            let word = u64::from_ne_bytes(*word);
            *low = low.wrapping_add(word & 0xffff_ffff);
            *high = high.wrapping_add(word >> 32);
        }
    }
    let total = low.into_iter().chain(high).fold(Sum::ZERO, Sum::plus);
    sum_short(total, rest)
}

/// A sum over pieces of any length that come one after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Running {
    total: Sum,
    odd: bool,
}

impl Running {
    /// Goes on behind `len` bytes whose sum is `total`.
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

/// Sum of the IPv4 pseudo-header; `len` is that of the L4 header and payload.
#[inline]
pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, len: u32) -> Sum {
    let addresses = Sum::ZERO.long(source.to_bits()).long(destination.to_bits());
    addresses.word(u16::from(protocol)).long(len)
}

/// Sum of the IPv6 pseudo-header; `destination` is the final one, `len` that of the L4 header and payload.
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

/// The new checksum after a word that it covers changed from `old` to `new` (RFC 1624 section 3, equation 3).
#[inline]
pub const fn update(checksum: u16, old: u16, new: u16) -> u16 {
    Sum::of(!checksum).word(!old).word(new).checksum()
}

/// As [`update`], for a 32-bit field at an even offset.
#[inline]
pub const fn update_long(checksum: u16, old: u32, new: u32) -> u16 {
    Sum::of(!checksum).long(!old).long(new).checksum()
}

/// Finishes a partial checksum. The checksum field lies `offset` bytes behind `start` in `head` and holds the sum of
/// the pseudo-header; `payload` is the sum of the packet's bytes behind `head`, up to its end as the IP header says.
/// Writes and returns the checksum; `None`, and nothing written, if `start` or the field is not in `head`. No protocol
/// has its field at an odd `offset`: such a request is carried out and gives a checksum that does not verify.
#[inline]
pub fn complete(head: &mut [u8], start: usize, offset: usize, payload: Sum) -> Option<u16> {
    let covered = head.get(start..)?;
    u16_at(covered, offset)?;
    // The field is part of the sum and holds what must be added.
    let total = sum(covered).then(payload, covered.len() & 1 != 0);
    let checksum = total.transmit();
    put(head, start + offset, checksum.to_be_bytes())?;
    Some(checksum)
}

/// Computes and writes the L4 checksum of a whole frame from nothing. `None`, and nothing written, without L4, in a
/// fragment, or if the frame is shorter than its IP header says.
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

/// What a receiver finds of an L4 checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Computed and right.
    Good,
    /// Computed and wrong.
    Bad,
    /// UDP with a checksum field of 0: the sender computed none (over IPv6 only tunnels may, RFC 6936).
    Absent,
    /// Not TCP or UDP, a fragment, or cut off: nothing can be said.
    Unknown,
}

/// Makes headers those of one packet of `len` bytes that is still to be cut: IP's length and header checksum, and the sum of the
/// pseudo-header with that length in the transport checksum's place, which is returned. `None` if IP cannot say that length.
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
        // Both headers are an even number of bytes.
        Some(if total.then(payload, false).verify() { Verdict::Good } else { Verdict::Bad })
    };
    verdict().unwrap_or(Verdict::Unknown)
}
