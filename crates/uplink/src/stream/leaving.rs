//! Sending to a stream's peer: frames are written one after the other into one buffer, and one call sends them. Bytes that the
//! socket does not take stay in the buffer, and no frame is taken until they are sent: a frame that was begun must be completed.

use std::os::fd::{AsFd, OwnedFd};

use nicety_adapter::{Counters, Delivery, Frames, PACKET_BYTES, Packet, Piece, Reason, Scratch, Unfolded, Wants};
use nicety_memory::MapError;
use rustix::io::Errno;

use super::{PREFIX_BYTES, Severed, Stream};
use crate::buffers::Buffers;
use crate::egress::{self, Put, Sink};
use crate::system;

/// Most bytes that are written before one call sends them.
const LEAVING_BYTES: u32 = 256 << 10;
/// The shortest Ethernet frame, without its check sequence (IEEE 802.3 section 4.4.2).
const FRAME_MIN: u32 = 60;

/// Bytes `[sent, end)` of the buffer are not sent yet.
#[derive(Debug)]
pub(super) struct Leaving {
    buffers: Buffers,
    sent: u32,
    end: u32,
}

impl Leaving {
    pub(super) fn new() -> Result<Self, MapError> {
        Ok(Self { buffers: Buffers::new(LEAVING_BYTES)?, sent: 0, end: 0 })
    }

    /// Drops the bytes that a disconnected peer did not read, as its socket did.
    pub(super) fn forget(&mut self) {
        (self.sent, self.end) = (0, 0);
    }

    /// Bytes that are not sent yet.
    pub(super) fn save(&self) -> Vec<u8> {
        let len = self.end - self.sent;
        let mut bytes = vec![0; len as usize];
        self.buffers.map().read_span(self.buffers.span(self.sent, len), &mut bytes);
        bytes
    }

    /// Goes on with such bytes.
    pub(super) fn restore(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(LEAVING_BYTES as usize);
        self.buffers.map().write_span(self.buffers.span(0, len as u32), &bytes[..len]);
        (self.sent, self.end) = (0, len as u32);
    }

    /// Sends the written bytes. True if all of them were sent, false if the socket is full.
    pub(super) fn send(&mut self, peer: &OwnedFd) -> Result<bool, Errno> {
        while self.sent < self.end {
            let span = self.buffers.span(self.sent, self.end - self.sent);
            match system::send_bytes(peer.as_fd(), self.buffers.map(), span) {
                Ok(sent) => self.sent += sent,
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN | Errno::INTR) => return Ok(false),
                    error => return Err(error.unwrap_or(Errno::IO)),
                },
            }
        }
        self.forget();
        Ok(true)
    }

    fn room(&self) -> u32 {
        self.buffers.len() - self.end
    }

    /// Writes a piece's length, and the piece.
    fn write(&mut self, piece: &mut Piece<'_>) {
        let (at, len) = (self.end, piece.len());
        let padded = len.max(FRAME_MIN);
        piece.write(self.buffers.map(), &[self.buffers.span(at + PREFIX_BYTES, len)]);
        self.buffers.map().write_span(self.buffers.span(at, PREFIX_BYTES), &padded.to_be_bytes());
        if padded > len {
            let pad = self.buffers.span(at + PREFIX_BYTES + len, padded - len);
            self.buffers.map().write_span(pad, &[0; FRAME_MIN as usize][..(padded - len) as usize]);
        }
        self.end = at + PREFIX_BYTES + padded;
    }
}

/// Offers frames to the peer.
pub(super) fn deliver(stream: &mut Stream, frames: &Frames<'_>, counters: &mut Counters) -> Delivery {
    let mut delivery = Delivery::default();
    let mut scratch = Scratch::new();
    for (index, pick, packet) in frames.iter() {
        if stream.full {
            delivery.refuse(index, 0, pick.from.into());
            continue;
        }
        if stream.peer.is_none() {
            counters.receive_drop(Reason::LinkDown);
            continue;
        }
        let unfolded = match Unfolded::new(frames, pick, stream.wants(packet)) {
            Ok(unfolded) => unfolded,
            Err(reason) => {
                counters.receive_drop(reason);
                continue;
            }
        };
        // The first piece is the longest.
        let most = taken_by(unfolded.len(0)).saturating_mul(unfolded.count());
        if most > LEAVING_BYTES {
            // Its frames take more than the buffer holds: offer them piece by piece.
            let _full = egress::offer(index, &unfolded, &mut scratch, counters, stream, &mut delivery);
            continue;
        }
        if most > stream.leaving.room() {
            stream.flush();
        }
        if stream.full {
            delivery.refuse(index, 0, pick.from.into());
        } else if stream.peer.is_none() {
            counters.receive_drop(Reason::LinkDown);
        } else if unfolded.len(0) > PACKET_BYTES {
            counters.receive_drop(Reason::TooLong);
        } else {
            for piece in unfolded.wanted() {
                if let Some(mut piece) = unfolded.piece(piece, &mut scratch) {
                    stream.leaving.write(&mut piece);
                }
            }
            counters.received(0, u64::from(packet.frames()), u64::from(packet.len()));
        }
    }
    stream.flush();
    delivery
}

/// Bytes of the buffer that a frame takes.
fn taken_by(len: u32) -> u32 {
    PREFIX_BYTES + len.max(FRAME_MIN)
}

impl Stream {
    /// Sends the written bytes. If the socket does not take all of them, the watch reports when it has room.
    fn flush(&mut self) {
        let Some(peer) = &self.peer else { return };
        match self.leaving.send(peer) {
            Ok(true) => {}
            Ok(false) if self.watch.room(peer, true).is_ok() => self.full = true,
            _ => self.part(Severed::Gone),
        }
    }
}

impl Sink for Stream {
    fn wants(&self, _: &Packet) -> Wants {
        Wants { frame_max: PACKET_BYTES, ..Wants::default() }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        if piece.len() > PACKET_BYTES {
            return Put::Dropped(Reason::TooLong);
        }
        if taken_by(piece.len()) > self.leaving.room() {
            self.flush();
        }
        if self.full {
            Put::Full
        } else if self.peer.is_none() {
            Put::Dropped(Reason::LinkDown)
        } else {
            self.leaving.write(piece);
            Put::Taken
        }
    }
}
