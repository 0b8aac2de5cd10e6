//! Blocks of a pcapng file. Follows draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface
//! description), 4.3 (enhanced packet) and 3.5 (options). Little endian, as the byte-order magic says.

use std::time::Duration;

const SECTION: u32 = 0x0a0d_0d0a;
/// How every file begins, in either byte order.
pub(crate) const MAGIC: [u8; 4] = SECTION.to_le_bytes();
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_PACKET_FLAGS: u16 = 2;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_PACKET_LOST: u16 = 4;
const OPTION_APPLICATION: u16 = 4;
const OPTION_RESOLUTION: u16 = 9;
/// Bytes of a comment at most.
const COMMENT_MOST: usize = 256;
/// Bytes around a frame's own at most: header, padding, options, trailer.
pub(crate) const AROUND_BYTES: usize = 28 + 3 + 8 + 12 + 4 + COMMENT_MOST + 4 + 4;

/// Which way a frame went, seen from the interface that the file is of (`epb_flags`, section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    Inbound = 1,
    /// Out of the switch.
    Outbound = 2,
}

/// What a packet block says beside the frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Note<'a> {
    /// Since 1970-01-01 00:00 UTC.
    pub(crate) time: Duration,
    pub(crate) direction: Direction,
    /// Packets that were lost since the block before.
    pub(crate) lost: u64,
    pub(crate) comment: Option<&'a str>,
}

/// Appends the blocks that begin a file.
pub(crate) fn begin(out: &mut Vec<u8>, interface: &str) {
    block(out, SECTION, |out| {
        out.extend(BYTE_ORDER.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        out.extend(u64::MAX.to_le_bytes());
        option(out, OPTION_APPLICATION, b"Nicety");
        option(out, OPTION_END, &[]);
    });
    block(out, INTERFACE, |out| {
        out.extend(ETHERNET.to_le_bytes());
        out.extend([0; 2]);
        out.extend(0u32.to_le_bytes());
        option(out, OPTION_INTERFACE_NAME, &interface.as_bytes()[..interface.floor_char_boundary(COMMENT_MOST)]);
        // Nanoseconds: 10^-9.
        option(out, OPTION_RESOLUTION, &[9]);
        option(out, OPTION_END, &[]);
    });
}

/// Appends a packet block for a frame of `len` bytes, which `fill` writes.
pub(crate) fn packet(out: &mut Vec<u8>, note: Note<'_>, len: u32, fill: impl FnOnce(&mut [u8])) {
    block(out, ENHANCED_PACKET, |out| {
        let ns = u64::try_from(note.time.as_nanos()).unwrap_or(u64::MAX);
        out.extend(0u32.to_le_bytes());
        out.extend(((ns >> 32) as u32).to_le_bytes());
        out.extend((ns as u32).to_le_bytes());
        out.extend(len.to_le_bytes());
        out.extend(len.to_le_bytes());
        let at = out.len();
        out.resize(at + len as usize, 0);
        fill(&mut out[at..]);
        pad(out, len as usize);
        option(out, OPTION_PACKET_FLAGS, &(note.direction as u32).to_le_bytes());
        if note.lost > 0 {
            option(out, OPTION_PACKET_LOST, &note.lost.to_le_bytes());
        }
        if let Some(comment) = note.comment {
            option(out, OPTION_COMMENT, &comment.as_bytes()[..comment.floor_char_boundary(COMMENT_MOST)]);
        }
        option(out, OPTION_END, &[]);
    });
}

/// A block: its type and length, its body, its length again.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    let len = ((out.len() - at + 4) as u32).to_le_bytes();
    out[at + 4..at + 8].copy_from_slice(&len);
    out.extend(len);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(value);
    pad(out, value.len());
}

fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend(&[0; 3][..len.next_multiple_of(4) - len]);
}
