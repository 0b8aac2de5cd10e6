//! Receiving from a stream: bytes are read into one buffer, and frames are pieces of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nicety_adapter::{PACKET_BYTES, Reason};
use nicety_memory::{Map, MapError, Span, copy};
use rustix::io::Errno;
use vm_memory::{ReadVolatile, VolatileMemoryError};

use super::PREFIX_BYTES;
use crate::buffers::{Buffers, SLOT_BYTES};

/// Bytes that one receiving call asks for.
const READ_BYTES: u32 = 64 << 10;
/// Longest frame that QEMU takes from a peer (`NET_BUFSIZE` of its `include/net/net.h`: 4096 + 65536).
const QEMU_MAX: u32 = 4096 + 65536;

/// The next item of the stream.
#[derive(Debug)]
pub(super) enum Next {
    Frame(Span),
    /// A frame that the switch does not carry; the next one follows it.
    Dropped(Reason),
    /// An invalid length: the bytes after it cannot be trusted.
    Foreign(u32),
    /// An incomplete item: more bytes are needed.
    More,
}

/// Bytes `[start, end)` of the buffer are received and not yet examined.
#[derive(Debug)]
pub(super) struct Arriving {
    buffers: Buffers,
    start: u32,
    end: u32,
    /// Bytes still to come of a frame that is dropped.
    skip: u32,
    /// Temporary copy of an incomplete frame while it moves to the buffer's beginning.
    half: Buffers,
}

impl Arriving {
    pub(super) fn new() -> Result<Self, MapError> {
        let (buffers, half) = (Buffers::new(READ_BYTES + SLOT_BYTES)?, Buffers::new(SLOT_BYTES)?);
        Ok(Self { buffers, start: 0, end: 0, skip: 0, half })
    }

    pub(super) fn map(&self) -> &Arc<Map> {
        self.buffers.map()
    }

    /// Whether a batch still points into the buffer.
    pub(super) fn held(&self) -> bool {
        self.buffers.held()
    }

    /// Drops the incomplete frame of a peer that has gone.
    pub(super) fn forget(&mut self) {
        (self.start, self.end, self.skip) = (0, 0, 0);
    }

    /// Bytes that were received and not examined, and how many of a dropped frame are still to come.
    pub(super) fn save(&self) -> (Vec<u8>, u32) {
        let len = self.end - self.start;
        let mut bytes = vec![0; len as usize];
        self.buffers.map().read_span(self.buffers.span(self.start, len), &mut bytes);
        (bytes, self.skip)
    }

    /// Goes on with such bytes.
    pub(super) fn restore(&mut self, bytes: &[u8], skip: u32) {
        let len = bytes.len().min(self.buffers.len() as usize);
        self.buffers.map().write_span(self.buffers.span(0, len as u32), &bytes[..len]);
        (self.start, self.end, self.skip) = (0, len as u32, skip);
    }

    pub(super) fn next(&mut self) -> Next {
        let passed = self.skip.min(self.end - self.start);
        self.start += passed;
        self.skip -= passed;
        let have = self.end - self.start;
        if self.skip > 0 || have < PREFIX_BYTES {
            return Next::More;
        }
        let mut prefix = [0; PREFIX_BYTES as usize];
        self.buffers.map().read_span(self.buffers.span(self.start, PREFIX_BYTES), &mut prefix);
        let len = u32::from_be_bytes(prefix);
        if len > QEMU_MAX {
            return Next::Foreign(len);
        }
        if len > PACKET_BYTES {
            self.start += PREFIX_BYTES;
            self.skip = len;
            return Next::Dropped(Reason::TooLong);
        }
        if have - PREFIX_BYTES < len {
            return Next::More;
        }
        let span = self.buffers.span(self.start + PREFIX_BYTES, len);
        self.start += PREFIX_BYTES + len;
        if len < 14 { Next::Dropped(Reason::TooShort) } else { Next::Frame(span) }
    }

    /// Reads the available bytes behind the incomplete frame. True if there are no further bytes now. `None`: a batch still points
    /// into the buffer (`free` is false), so the incomplete frame cannot move. An error: the peer has gone.
    pub(super) fn read(&mut self, peer: &OwnedFd, free: bool) -> Result<Option<bool>, Errno> {
        if free && self.buffers.len() - self.end < READ_BYTES {
            let left = self.end - self.start;
            copy(self.buffers.map(), self.buffers.span(self.start, left), self.half.map(), self.half.span(0, left));
            copy(self.half.map(), self.half.span(0, left), self.buffers.map(), self.buffers.span(0, left));
            (self.start, self.end) = (0, left);
        }
        let room = (self.buffers.len() - self.end).min(READ_BYTES);
        if room < READ_BYTES / 2 {
            return Ok(None);
        }
        let mut bytes = self.buffers.map().bytes(self.buffers.span(self.end, room));
        match (&*peer).read_volatile(&mut bytes) {
            Ok(0) => Err(Errno::PIPE),
            Ok(read) => {
                let read = u32::try_from(read).unwrap_or(room).min(room);
                self.end += read;
                Ok(Some(read < room))
            }
            Err(error) => match errno(&error) {
                Errno::AGAIN | Errno::INTR => Ok(Some(true)),
                error => Err(error),
            },
        }
    }
}

fn errno(error: &VolatileMemoryError) -> Errno {
    match error {
        VolatileMemoryError::IOError(error) => Errno::from_io_error(error).unwrap_or(Errno::IO),
        _ => Errno::IO,
    }
}
