//! Receive: frames into the ring of pages, each after a header of four bytes (DP8390D, 5.0).
//!
//! ```text
//!  byte 0   1             2, 3                  4 ...
//! | status | next page   | length + 4          | frame          | next frame's header, on a page of its own
//! ```
//! The length counts the check sequence. Its four bytes have room and are not written.

use arrayvec::ArrayVec;
use nicety_adapter::{Context, Delivery, Frames, Pick, Reason, Scratch, Time, Unfolded, Wants};
use nicety_memory::Span;

use super::buffer::PAGE;
use super::dp8390::Ring;
use super::registers::{self as r, TABLE, rsr};
use super::{Ne2000, RECEIVE_RING};

/// Bytes of a frame's header in the ring.
const HEADER: u32 = 4;
/// Bytes of the check sequence.
const CHECK: u32 = 4;
/// Shortest frame without its check sequence. Shorter ones arrive padded.
const SHORTEST: u32 = 60;
/// Offloads that this receiver accepts: none.
const WANTS: Wants =
    Wants { frame_max: 1514, tcp4: false, tcp6: false, udp: false, partial: false, strip: 0, verify: false };

/// Why a frame was not written to the ring.
enum Miss {
    /// There is no room yet for this frame of the packet.
    NoRoom(u32),
    /// There will never be room.
    Never(Reason),
}

impl Ne2000 {
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        if self.link_up && self.chip.monitors() {
            self.monitor(frames, cx);
            return delivery;
        }
        let on = self.link_up && self.chip.runs() && !self.chip.loops();
        let ring = self.chip.ring();
        self.saw_ring(on && ring.is_none(), cx);
        let (true, Some(mut ring)) = (on, ring) else {
            if on {
                self.blame_ring(cx);
            }
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return delivery;
        };
        if !ring.has_boundary() {
            let expected = "a page of the ring (PSTART to PSTOP - 1), or the one before";
            cx.guest_error(TABLE.error_place(r::BNRY, 0), ring.boundary.into(), expected);
        }
        let mut scratch = Scratch::new();
        // ei_interrupt in lib8390.c gives up, and discards pending causes, when it finds more frames a dozen times: no wire is that
        // fast.
        let busy = self.chip.busy_until.is_some_and(|until| cx.now < until);
        let mut full = frames.held.contains(0) || busy;
        for (i, pick, _) in frames.iter() {
            let placed = if full {
                Err(Miss::NoRoom(pick.from.into()))
            } else {
                self.place(&mut ring, frames, pick, &mut scratch)
            };
            let placed = placed.map_err(|miss| self.wait(miss, frames, pick, cx.now));
            match placed {
                Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
                Err(Miss::Never(reason)) => cx.counters.receive_drop(reason),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, 0, from);
                    full = true;
                }
            }
        }
        self.starved |= full;
        self.waiting |= full && (busy || !self.chip.has_time());
        if let Some(until) = self.chip.busy_until.filter(|_| busy) {
            cx.out.wake_by(until);
        }
        self.settle_line(cx);
        delivery
    }

    /// A frame finds no room: it waits, unless the filter rejects it, or it is a group frame and another has started to wait just
    /// now.
    fn wait(&mut self, miss: Miss, frames: &Frames<'_>, pick: Pick, now: Time) -> Miss {
        // The rest of a partly delivered packet must follow.
        if !matches!(miss, Miss::NoRoom(0)) {
            return miss;
        }
        let destination = destination(frames, pick);
        if !self.chip.wants(destination) {
            return Miss::Never(Reason::Filtered);
        }
        if destination[0] & 1 == 0 || self.chip.pace.lets_group_wait(now) {
            return miss;
        }
        self.chip.missed();
        Miss::Never(Reason::BufferFull)
    }

    /// Monitor mode: frames are counted and not stored.
    #[cold]
    fn monitor(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) {
        for (_, pick, _) in frames.iter() {
            if self.chip.wants(destination(frames, pick)) {
                self.chip.missed();
                self.chip.registers[r::RSR] = rsr::DIS;
                cx.counters.receive_drop(Reason::ReceiverOff);
            } else {
                cx.counters.receive_drop(Reason::Filtered);
            }
        }
        self.saw_ring(false, cx);
        self.settle_line(cx);
    }

    /// Writes all frames of a packet; returns their number and bytes.
    fn place(
        &mut self,
        ring: &mut Ring,
        frames: &Frames<'_>,
        pick: Pick,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let unfolded = Unfolded::new(frames, pick, WANTS).map_err(Miss::Never)?;
        let destination = destination(frames, pick);
        if !self.chip.wants(destination) {
            return Err(Miss::Never(Reason::Filtered));
        }
        let status = if destination[0] & 1 == 0 { rsr::PRX } else { rsr::PRX | rsr::PHY };
        for index in unfolded.wanted() {
            let len = unfolded.len(index).max(SHORTEST);
            let pages = (HEADER + len + CHECK).div_ceil(PAGE);
            if pages >= ring.len() {
                return Err(Miss::Never(Reason::TooLong));
            }
            if pages > ring.free() || !self.chip.has_time() {
                return Err(Miss::NoRoom(index));
            }
            let spans = self.spans(ring, len).ok_or(Miss::Never(Reason::BadAddress))?;
            let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
            let map = self.chip.buffer.map();
            pad(map, &spans, piece.len());
            piece.write(map, &spans);
            let next = ring.after(ring.current, pages);
            let [low, high, ..] = (len + CHECK).to_le_bytes();
            self.chip.buffer.write(ring.current * PAGE, &[status as u8, next as u8, low, high]);
            ring.current = next;
            self.chip.registers[r::CURR] = next;
            self.chip.registers[r::RSR] = status;
            self.chip.received();
            self.chip.pace.gives();
        }
        Ok((u64::from(unfolded.count()), u64::from(unfolded.packet().len())))
    }

    /// Place of a frame: after its header, continued on the ring's first page if it reaches the ring's end.
    fn spans(&self, ring: &Ring, len: u32) -> Option<ArrayVec<Span, 2>> {
        let at = ring.current * PAGE + HEADER;
        let here = (ring.to_end(ring.current) * PAGE - HEADER).min(len);
        let mut spans = ArrayVec::new();
        spans.push(self.chip.buffer.span(at, here)?);
        if here < len {
            spans.push(self.chip.buffer.span(ring.after(ring.current, ring.to_end(ring.current)) * PAGE, len - here)?);
        }
        Some(spans)
    }

    /// Notes that the ring is none.
    #[cold]
    fn blame_ring(&self, cx: &mut Context<'_>) {
        let [start, stop, current] = [r::PSTART, r::PSTOP, r::CURR].map(|name| u64::from(self.chip.registers[name]));
        let expected = "pages of packet memory (0x40 to 0x80) with PSTART below PSTOP and CURR between; the value: PSTART, PSTOP, CURR";
        cx.guest_error(TABLE.error_place(r::PSTART, 0), start << 16 | stop << 8 | current, expected);
    }

    /// Records whether the ring lies outside packet memory.
    fn saw_ring(&mut self, broken: bool, cx: &mut Context<'_>) {
        if broken && !std::mem::replace(&mut self.broken, broken) {
            cx.out.stalled.insert(RECEIVE_RING);
        }
        self.broken = broken;
    }
}

/// A frame's destination.
fn destination(frames: &Frames<'_>, pick: Pick) -> [u8; 6] {
    let head = frames.batch.packet(pick.packet).map(|packet| frames.batch.head(packet));
    head.and_then(|head| head.first_chunk()).copied().unwrap_or_default()
}

/// Pads a frame with zeros to Ethernet's minimum, as far as the spans reach.
fn pad(map: &nicety_memory::Map, spans: &[Span], len: u32) {
    let mut skip = len;
    for span in spans {
        let place = span.piece(skip, SHORTEST);
        skip = skip.saturating_sub(span.len());
        map.write_span(place, &[0; SHORTEST as usize][..place.len().min(SHORTEST) as usize]);
    }
}
