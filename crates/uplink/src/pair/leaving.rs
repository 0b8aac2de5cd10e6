//! Sending to a pair's peer: packets are written one after the other into one buffer, and one call sends them.

use std::os::fd::AsFd;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Checked, Counters, Delivery, Frames, PACKET_BYTES, Packet, Piece, Reason, Scratch, Unfolded, Wants,
};
use nicety_memory::Span;
use rustix::io::Errno;

use super::{Pair, Parting};
use crate::egress::{self, Put, Sink};
use crate::message::{self, HEADER_BYTES};
use crate::offload::passes_uncut;
use crate::system::{self, MESSAGES};

/// Offers frames to the peer.
pub(super) fn deliver(pair: &mut Pair, frames: &Frames<'_>, counters: &mut Counters) -> Delivery {
    let mut leaving = Leaving { pair, frames, counters, written: ArrayVec::new(), at: 0, full: false };
    let mut delivery = Delivery::default();
    leaving.write_all(&mut delivery);
    delivery
}

/// A packet that is written but not sent yet.
#[derive(Clone, Copy, Debug)]
struct Written {
    pick: usize,
    span: Span,
    frames: u32,
    bytes: u32,
}

/// A delivery in progress.
struct Leaving<'a> {
    pair: &'a mut Pair,
    frames: &'a Frames<'a>,
    counters: &'a mut Counters,
    written: ArrayVec<Written, MESSAGES>,
    at: u32,
    full: bool,
}

impl Leaving<'_> {
    fn write_all(&mut self, delivery: &mut Delivery) {
        let frames = self.frames;
        let mut scratch = Scratch::new();
        for (index, pick, packet) in frames.iter() {
            if self.full {
                delivery.refuse(index, 0, pick.from.into());
                continue;
            }
            let unfolded = match Unfolded::new(frames, pick, self.pair.wants(packet)) {
                Ok(unfolded) => unfolded,
                Err(reason) => {
                    self.counters.receive_drop(reason);
                    continue;
                }
            };
            let len = unfolded.len(0);
            let crowded = self.written.is_full() || self.at + HEADER_BYTES + len > self.pair.leaving.len();
            let cut = unfolded.count() > 1;
            if crowded || cut {
                self.flush(delivery);
            }
            if self.full {
                delivery.refuse(index, 0, pick.from.into());
            } else if len > PACKET_BYTES {
                self.counters.receive_drop(Reason::TooLong);
            } else if cut {
                self.full = egress::offer(index, &unfolded, &mut scratch, self.counters, self.pair, delivery);
            } else if let Some(mut piece) = unfolded.piece(0, &mut scratch) {
                let span = self.pair.write(&mut piece, self.at);
                self.at = (self.at + span.len()).next_multiple_of(64);
                let (frames, bytes) = (packet.frames(), packet.len());
                self.written.push(Written { pick: index, span, frames, bytes });
            } else {
                self.counters.receive_drop(Reason::BadOffload);
            }
        }
        self.flush(delivery);
    }

    /// Sends the written packets. Those that find no room are refused.
    fn flush(&mut self, delivery: &mut Delivery) {
        let spans: ArrayVec<Span, MESSAGES> = self.written.iter().map(|written| written.span).collect();
        let mut left = &self.written[..];
        while let Some((first, rest)) = left.split_first() {
            let (sent, put) = self.pair.send(&spans[spans.len() - left.len()..]);
            for written in &left[..sent.min(left.len())] {
                self.counters.received(0, u64::from(written.frames), u64::from(written.bytes));
            }
            left = match put {
                Put::Taken => &left[sent.min(left.len())..],
                Put::Dropped(reason) => {
                    self.counters.receive_drop(reason);
                    rest
                }
                Put::Full => {
                    self.full = true;
                    // Refuse from frame 0: every written packet is whole, since a packet that is cut is sent by itself.
                    delivery.refuse(first.pick, 0, 0);
                    rest.iter().for_each(|written| delivery.refuse(written.pick, 0, 0));
                    &[]
                }
            };
        }
        self.written.clear();
        self.at = 0;
    }
}

impl Pair {
    /// Writes a piece and its header at offset `at` of the buffer.
    fn write(&self, piece: &mut Piece<'_>, at: u32) -> Span {
        let (buffers, len) = (&self.leaving, piece.len());
        let checked = piece.write(buffers.map(), &[buffers.span(at + HEADER_BYTES, len)]);
        let header = message::encode(&piece.offload, checked == Checked::Good, len);
        let span = buffers.span(at, HEADER_BYTES + len);
        buffers.map().write_span(span.piece(0, HEADER_BYTES), &header);
        span
    }

    /// Sends messages. Returns how many were sent, and the result for the next one.
    fn send(&mut self, spans: &[Span]) -> (usize, Put) {
        let Some(peer) = &self.peer else { return (0, Put::Dropped(Reason::LinkDown)) };
        let error = match system::send_many(peer.as_fd(), self.leaving.map(), spans) {
            Ok(sent) => return (sent.max(1), Put::Taken),
            Err(error) => error,
        };
        let put = match Errno::from_io_error(&error) {
            Some(Errno::AGAIN | Errno::INTR) if self.watch.room(peer, true).is_ok() => {
                self.full = true;
                Put::Full
            }
            Some(Errno::MSGSIZE) => Put::Dropped(Reason::TooLong),
            Some(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                self.part(Parting::Gone);
                Put::Dropped(Reason::LinkDown)
            }
            _ => Put::Dropped(Reason::UplinkRefused),
        };
        (0, put)
    }
}

impl Sink for Pair {
    fn wants(&self, packet: &Packet) -> Wants {
        let uncut = passes_uncut(packet);
        Wants { frame_max: PACKET_BYTES, tcp4: uncut, tcp6: uncut, udp: uncut, partial: true, strip: 0, verify: false }
    }

    fn put(&mut self, piece: &mut Piece<'_>) -> Put {
        if piece.len() > PACKET_BYTES {
            return Put::Dropped(Reason::TooLong);
        }
        let span = self.write(piece, 0);
        self.send(&[span]).1
    }
}
