//! Blocks of a pcapng file. Follows draft-ietf-opsawg-pcapng, sections 4.1 (section header), 4.2 (interface description), 4.3
//! (enhanced packet), 4.6 (interface statistics) and 3.5 (options). Little endian, as the byte-order magic states.

use std::time::Duration;

const SECTION: u32 = 0x0a0d_0d0a;
/// First bytes of every file, in either byte order.
pub(crate) const MAGIC: [u8; 4] = SECTION.to_le_bytes();
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
/// The type of a packet block.
pub const ENHANCED_PACKET: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const ETHERNET: u16 = 1;

const OPTION_END: u16 = 0;
const OPTION_COMMENT: u16 = 1;
const OPTION_PACKET_FLAGS: u16 = 2;
const OPTION_INTERFACE_NAME: u16 = 2;
const OPTION_PACKET_LOST: u16 = 4;
const OPTION_RECEIVED: u16 = 4;
const OPTION_APPLICATION: u16 = 4;
const OPTION_DROPPED: u16 = 5;
const OPTION_RESOLUTION: u16 = 9;
/// Longest comment in bytes.
const COMMENT_MAX: usize = 256;
/// Most bytes around a frame: header, padding, options, trailer.
pub(crate) const AROUND_BYTES: usize = 28 + 3 + 8 + 12 + 4 + COMMENT_MAX + 4 + 4;

/// Direction of a frame, seen from the interface of the file (`epb_flags`, section 4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the switch.
    Inbound = 1,
    /// Out of the switch.
    Outbound = 2,
}

/// Fields of a packet block beside the frame.
#[derive(Clone, Copy, Debug)]
pub struct Note<'a> {
    /// Number of the frame's interface, in the order of the interface blocks.
    pub interface: u32,
    /// Time since 1970-01-01 00:00 UTC.
    pub time: Duration,
    /// Direction of the frame.
    pub direction: Direction,
    /// The frame's length in bytes; the file may hold fewer.
    pub len: u32,
    /// Packets lost since the previous block.
    pub lost: u64,
    /// A comment for people.
    pub comment: Option<&'a str>,
}

/// Appends the blocks that begin a file of one interface.
pub(crate) fn begin(out: &mut Vec<u8>, name: &str) {
    section(out);
    interface(out, name);
}

/// Appends the section header: it begins a file.
pub fn section(out: &mut Vec<u8>) {
    block(out, SECTION, |out| {
        out.extend(BYTE_ORDER.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        out.extend(u64::MAX.to_le_bytes());
        option(out, OPTION_APPLICATION, b"Nicety");
        option(out, OPTION_END, &[]);
    });
}

/// Appends the block of an interface with this name. Its number is the count of interfaces before it.
pub fn interface(out: &mut Vec<u8>, name: &str) {
    block(out, INTERFACE, |out| {
        out.extend(ETHERNET.to_le_bytes());
        out.extend([0; 2]);
        out.extend(0u32.to_le_bytes());
        option(out, OPTION_INTERFACE_NAME, &name.as_bytes()[..name.floor_char_boundary(COMMENT_MAX)]);
        // Nanoseconds: 10^-9.
        option(out, OPTION_RESOLUTION, &[9]);
        option(out, OPTION_END, &[]);
    });
}

/// Appends an interface's statistics: frames seen so far, and frames of those that the file lost.
pub fn statistics(out: &mut Vec<u8>, interface: u32, time: Duration, received: u64, lost: u64) {
    block(out, STATISTICS, |out| {
        out.extend(interface.to_le_bytes());
        out.extend(halves(time));
        option(out, OPTION_RECEIVED, &received.to_le_bytes());
        option(out, OPTION_DROPPED, &lost.to_le_bytes());
        option(out, OPTION_END, &[]);
    });
}

/// Appends a packet block for a frame. `fill` writes `bytes` bytes of the frame.
pub fn packet(out: &mut Vec<u8>, note: Note<'_>, bytes: u32, fill: impl FnOnce(&mut [u8])) {
    block(out, ENHANCED_PACKET, |out| {
        out.extend(note.interface.to_le_bytes());
        out.extend(halves(note.time));
        out.extend(bytes.to_le_bytes());
        out.extend(note.len.to_le_bytes());
        let at = out.len();
        out.resize(at + bytes as usize, 0);
        fill(&mut out[at..]);
        pad(out, bytes as usize);
        option(out, OPTION_PACKET_FLAGS, &(note.direction as u32).to_le_bytes());
        if note.lost > 0 {
            option(out, OPTION_PACKET_LOST, &note.lost.to_le_bytes());
        }
        if let Some(comment) = note.comment {
            option(out, OPTION_COMMENT, &comment.as_bytes()[..comment.floor_char_boundary(COMMENT_MAX)]);
        }
        option(out, OPTION_END, &[]);
    });
}

/// A time in nanoseconds, upper half first.
fn halves(time: Duration) -> [u8; 8] {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&((ns >> 32) as u32).to_le_bytes());
    bytes[4..].copy_from_slice(&(ns as u32).to_le_bytes());
    bytes
}

/// Longest packet block: a frame, and what is around it.
pub(crate) const BLOCK_MAX: usize = nicety_adapter::PACKET_BYTES as usize + AROUND_BYTES;

/// The end of the last whole packet block in the last bytes of a file that was written up to somewhere. They begin within a block, unless
/// `from_start`. `None`: these are no blocks.
///
/// A frame may hold a pcapng file of its own. Its blocks end with the frame, so the blocks that reach farthest are the file's.
pub(crate) fn end_of_blocks(tail: &[u8], from_start: bool) -> Option<usize> {
    let starts = if from_start { 0..1 } else { 0..BLOCK_MAX.min(tail.len()) };
    let ends = starts.step_by(4).map(|start| {
        let mut end = start;
        while let Some(len) = tail.get(end..).and_then(whole_block) {
            end += len;
        }
        (start, end)
    });
    ends.filter(|(start, end)| end > start).map(|(_, end)| end).max()
}

/// The length of the block at the begin of these bytes, if it is whole.
fn whole_block(bytes: &[u8]) -> Option<usize> {
    let kind = u32::from_le_bytes(*bytes.first_chunk()?);
    let len = bytes.get(4..8)?;
    let size = u32::from_le_bytes(*len.first_chunk()?) as usize;
    let is_known = matches!(kind, SECTION | INTERFACE | ENHANCED_PACKET) && size.is_multiple_of(4);
    let is_whole = (12..=BLOCK_MAX).contains(&size) && bytes.get(size - 4..size)? == len;
    (is_known && is_whole).then_some(size)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn packet_of(out: &mut Vec<u8>, frame: &[u8]) {
        let note = Note {
            interface: 0,
            time: Duration::from_secs(1),
            direction: Direction::Outbound,
            len: frame.len() as u32,
            lost: 0,
            comment: None,
        };
        packet(out, note, frame.len() as u32, |to| to.copy_from_slice(frame));
    }

    #[test]
    fn a_file_that_ends_within_a_block_is_whole_up_to_that_one() {
        let mut inner = Vec::new();
        begin(&mut inner, "inner");
        (0..20).for_each(|_| packet_of(&mut inner, &[7; 60]));
        let (mut file, mut ends) = (Vec::new(), Vec::new());
        begin(&mut file, "nicety");
        for frame in [&[1; 60][..], &inner, &[2; 1514], &inner] {
            ends.push(file.len());
            packet_of(&mut file, frame);
        }
        ends.push(file.len());
        for len in ends[0]..=file.len() {
            let wanted = ends.iter().copied().filter(|end| *end <= len).max();
            assert_eq!(end_of_blocks(&file[..len], true), wanted, "{len}");
        }
        // The last bytes of a long file.
        let mut long = Vec::new();
        while long.len() < 4 * BLOCK_MAX {
            packet_of(&mut long, &inner);
        }
        let whole = long.len();
        packet_of(&mut long, &inner);
        for (from, len) in
            [(4, whole), (1000, whole + 4), (2000, long.len() - 4), ((2 * BLOCK_MAX) & !3, long.len() - 1)]
        {
            assert_eq!(end_of_blocks(&long[from..len], false), Some(whole - from), "{from}..{len}");
        }
        assert_eq!(end_of_blocks(&[0; 4096], false), None);
    }
}
