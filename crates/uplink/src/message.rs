//! Protocol of a pair: one message per packet over a `SOCK_SEQPACKET` socket.
//!
//! The kernel keeps message boundaries: so half a frame cannot arrive, and short frames need not be copied out of a stream. A
//! packet of 64 KB is one message; the socket's send buffer is asked to hold many.
//!
//! Each message begins with 16 bytes; numbers are little endian. The first message in each direction is a hello:
//!
//! ```text
//!  0      1..8        8        10       12
//!  0      "nicety\0"  version  16       longest packet
//! ```
//!
//! `version` is 1; an end that reads another version, or another header length, closes the socket. Every later message is a packet.
//! Its bytes follow the header, from the destination address on, without a frame check sequence:
//!
//! ```text
//!  0      1         2        3      4       6       8       10        12
//!  1      checksum  segment  0      start   field   mss     headers   bytes of the packet
//! ```
//!
//! - `checksum`: 0 the frame is complete; 1 its transport checksum was verified; 2 it is still to be computed: `field` holds the
//!   folded sum of the pseudo-header, and receives the complement of the sum of all bytes from `start` to the end (offsets in the
//!   packet).
//! - `segment`: 0 one frame; 1 TCP, 2 UDP to be cut into frames of `mss` payload bytes, whose headers have `headers` bytes; needs
//!   `checksum` 2. A receiver finds the headers itself.
//!
//! A message that breaks these rules is dropped and counted; it does not affect the next one.

use nicety_adapter::{Checksum, Offload, PACKET_BYTES, SegmentKind};

use crate::offload::{Asked, Cut};

pub(crate) const HEADER_BYTES: u32 = 16;
pub(crate) const VERSION: u16 = 1;

const HELLO: &[u8; 8] = b"\0nicety\0";
const PACKET: u8 = 1;
const AS_IS: u8 = 0;
const VERIFIED: u8 = 1;
const PARTIAL: u8 = 2;
const WHOLE: u8 = 0;
const TCP: u8 = 1;
const UDP: u8 = 2;

pub(crate) type Header = [u8; HEADER_BYTES as usize];

/// The reason why a first message is not a valid hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotHello {
    Foreign,
    Version(u16),
}

pub(crate) fn hello() -> Header {
    let mut out = [0; HEADER_BYTES as usize];
    out[..8].copy_from_slice(HELLO);
    out[8..10].copy_from_slice(&VERSION.to_le_bytes());
    out[10..12].copy_from_slice(&(HEADER_BYTES as u16).to_le_bytes());
    out[12..].copy_from_slice(&PACKET_BYTES.to_le_bytes());
    out
}

/// Checks a peer's first message.
pub(crate) fn check_hello(message: Header, len: u32) -> Result<(), NotHello> {
    if len != HEADER_BYTES || !message.starts_with(HELLO) || message[10..12] != (HEADER_BYTES as u16).to_le_bytes() {
        return Err(NotHello::Foreign);
    }
    match u16::from_le_bytes([message[8], message[9]]) {
        VERSION => Ok(()),
        other => Err(NotHello::Version(other)),
    }
}

pub(crate) fn encode(offload: &Offload, verified: bool, len: u32) -> Header {
    let mut out = [0; HEADER_BYTES as usize];
    out[0] = PACKET;
    match offload.checksum {
        Checksum::Partial { start, field } => {
            out[1] = PARTIAL;
            out[4..6].copy_from_slice(&start.to_le_bytes());
            out[6..8].copy_from_slice(&field.to_le_bytes());
        }
        _ => out[1] = if verified { VERIFIED } else { AS_IS },
    }
    if let Some(segment) = offload.segment {
        out[2] = match segment.kind {
            // Packets in a tunnel arrive cut: `Wants` has no flag for them.
            SegmentKind::Tcp | SegmentKind::Tunnel => TCP,
            SegmentKind::Udp => UDP,
        };
        out[8..10].copy_from_slice(&segment.mss.to_le_bytes());
        out[10..12].copy_from_slice(&segment.headers.to_le_bytes());
    }
    out[12..].copy_from_slice(&len.to_le_bytes());
    out
}

/// Offload request of a packet's header; `None` unless it is a header for a packet of `len` bytes.
pub(crate) fn decode(header: Header, len: u32) -> Option<Asked> {
    let word = |at: usize| Some(u16::from_le_bytes([*header.get(at)?, *header.get(at + 1)?]));
    let [PACKET, checksum, segment, 0, ..] = header else { return None };
    if header[12..] != len.to_le_bytes() {
        return None;
    }
    let (partial, verified) = match checksum {
        AS_IS => (None, false),
        VERIFIED => (None, true),
        PARTIAL => (Some((word(4)?, word(6)?)), false),
        _ => return None,
    };
    let kind = match segment {
        WHOLE => return Some(Asked { partial, verified, segment: None }),
        TCP => SegmentKind::Tcp,
        UDP => SegmentKind::Udp,
        _ => return None,
    };
    Some(Asked { partial, verified, segment: Some(Cut { kind, version: None, mss: word(8)? }) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicety_adapter::Segment;

    #[test]
    fn a_packet_of_the_page_above_is_read_as_it_says() {
        let header = [1, 2, 1, 0, 34, 0, 50, 0, 0xa8, 5, 54, 0, 0x50, 0xc3, 0, 0];
        let offload = Offload {
            checksum: Checksum::Partial { start: 34, field: 50 },
            segment: Some(Segment { kind: SegmentKind::Tcp, mss: 1448, headers: 54 }),
        };
        assert_eq!(encode(&offload, false, 50_000), header);
        let cut = Some(Cut { kind: SegmentKind::Tcp, version: None, mss: 1448 });
        assert_eq!(decode(header, 50_000), Some(Asked { partial: Some((34, 50)), verified: false, segment: cut }));
        assert_eq!(decode(header, 49_999), None, "a length that is not the message's");
    }

    #[test]
    fn a_hello_of_another_version_is_told_apart_from_garbage() {
        let mut other = *b"\0nicety\0\x02\0\x10\0\0\0\0\0";
        assert_eq!(check_hello(other, 16), Err(NotHello::Version(2)));
        other[3] = b'x';
        assert_eq!(check_hello(other, 16), Err(NotHello::Foreign));
        assert_eq!(check_hello(hello(), 17), Err(NotHello::Foreign));
        assert_eq!(check_hello(hello(), 16), Ok(()));
    }
}
