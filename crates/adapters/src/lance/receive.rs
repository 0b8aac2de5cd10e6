//! The receive ring: frames into as many buffers as they need.

use std::time::Duration;

use arrayvec::ArrayVec;
use nicety_adapter::{Context, Delivery, Frames, Pick, Reason, Scratch, Time, Unfolded, Wants};
use nicety_memory::{Map, Rights, Span};
use serde::{Deserialize, Serialize};

use super::registers::{self as r, csr0, csr4};
use super::ring::{ENP, ERR, OFLO, Ring, STP};
use super::{Lance, RECEIVE_RING, filter};

/// Maximum buffers of one frame.
const BUFFERS: usize = 64;
/// Maximum pieces of them: each buffer may cross a page boundary.
const PIECES: usize = 2 * BUFFERS;
/// Shortest frame without its check sequence. Shorter ones arrive padded.
const SHORTEST: u32 = 60;
/// Bytes of a frame's check sequence, which is counted in its length.
const FCS: u32 = 4;
/// Longest untagged frame of Ethernet's standard MTU.
const LONGEST: u32 = 1514;
/// First delay between a refusal and a check of the ring; it doubles up to [`ROOM_MAX`]. No message reports buffers that the
/// driver returned.
const ROOM_FIRST: Duration = Duration::from_micros(100);
const ROOM_MAX: Duration = Duration::from_millis(100);

/// State of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// The next descriptor to fill.
    pub next: u32,
    /// Frames were refused.
    pub starved: bool,
    /// Time of the next check of the ring for room, and the delay after it.
    pub look: Option<(Time, Duration)>,
}

impl Receive {
    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.look.is_none_or(|(_, after)| (ROOM_FIRST..=ROOM_MAX).contains(&after))
    }
}

/// Buffers for one frame: descriptors with their status words, and their memory.
#[derive(Default)]
struct Room {
    descriptors: ArrayVec<(u32, u32), BUFFERS>,
    spans: ArrayVec<Span, PIECES>,
}

/// Why a frame was not written to the ring.
enum Miss {
    /// There is no room yet for this frame of the packet.
    NoRoom(u32),
    Never(Reason),
}

/// A packet to deliver.
#[derive(Clone, Copy)]
struct Offer<'f, 'b> {
    frames: &'f Frames<'b>,
    pick: Pick,
    /// It is the adapter's own packet, in loopback.
    looped: bool,
}

impl Lance {
    pub(super) fn receive_ring<'m>(&self, memory: &'m Map) -> Result<Ring<'m>, &'static str> {
        let base = self.registers.of(r::BADR).iter().rev().fold(0, |base, word| base << 16 | word);
        Ring::new(memory, self.style(), base, self.registers[r::RCVRL])
    }

    /// Reports possible room.
    pub(super) fn offer_room(&mut self, cx: &mut Context<'_>) {
        self.receive.look = None;
        if std::mem::take(&mut self.receive.starved) {
            cx.out.room.insert(0);
        }
    }

    /// Whether frames wait for room and a check is useful. The end of a suspension reports room itself.
    fn waits_for_room(&self) -> bool {
        self.receive.starved && !self.suspended() && self.function.bus_master()
    }

    /// Time of the next check of the ring for room.
    pub(super) fn next_look(&self) -> Option<Time> {
        self.receive.look.filter(|_| self.waits_for_room()).map(|(due, _)| due)
    }

    /// Checks whether there is room again, if frames wait for it.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        if !self.waits_for_room() {
            return;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let waits = self.has(r::CSR0, csr0::RXON)
            && self.receive_ring(&memory).is_ok_and(|ring| ring.owned(self.receive.next).is_none());
        if !waits {
            return self.offer_room(cx);
        }
        if let Some((due, after)) = self.receive.look
            && due <= cx.now
        {
            self.receive.look = Some((cx.now.after(after), (after * 2).min(ROOM_MAX)));
        }
    }

    /// Receives frames from outside.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if !self.link_up || self.loops() {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.take_frames(frames, false, cx)
    }

    /// Receives the adapter's own frames in loopback. Those without room are lost, as in the chip.
    pub(super) fn receive_looped(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) {
        self.take_frames(frames, true, cx);
    }

    fn take_frames(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let on = self.has(r::CSR0, csr0::RXON) && self.function.bus_master();
        let ring = if on { self.receive_ring(&memory).map_err(Some) } else { Err(None) };
        let ring = match ring {
            Ok(ring) => ring,
            Err(why) => {
                self.saw_ring(RECEIVE_RING, why, cx);
                if !looped {
                    frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
                }
                return delivery;
            }
        };
        self.saw_ring(RECEIVE_RING, None, cx);
        let mut scratch = Scratch::new();
        let mut full = frames.held.contains(0) || self.suspended();
        for (i, pick, _) in frames.iter() {
            let offer = Offer { frames, pick, looped };
            let ended = if full { Err(pick.from.into()) } else { self.take(&memory, &ring, offer, &mut scratch, cx) };
            match ended {
                Ok(()) => {}
                Err(from) if !looped => {
                    delivery.refuse(i, 0, from);
                    full = true;
                }
                Err(_) => {
                    self.interrupts.raise(csr0::MISS.into());
                    self.registers[r::MFC] = self.registers[r::MFC].wrapping_add(1) & 0xffff;
                }
            }
        }
        if full && !looped {
            self.receive.starved = true;
            self.receive.look.get_or_insert((cx.now.after(ROOM_FIRST), ROOM_FIRST));
        }
        self.tidings.answered(cx);
        self.settle(cx);
        delivery
    }

    /// One packet: accepted, or dropped and counted. Without room: the first frame that has none.
    fn take(
        &mut self,
        memory: &Map,
        ring: &Ring<'_>,
        offer: Offer<'_, '_>,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
    ) -> Result<(), u32> {
        match self.put(memory, ring, &offer, scratch) {
            Ok(_) | Err(Miss::Never(_)) if offer.looped => {}
            Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
            Err(Miss::Never(reason)) => cx.drop_receive(reason, || ring.blame(self.receive.next, memory), None),
            Err(Miss::NoRoom(from)) => return Err(from),
        }
        Ok(())
    }

    /// Writes all frames of a packet; returns their number and bytes.
    fn put(
        &mut self,
        memory: &Map,
        ring: &Ring<'_>,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let Offer { frames, pick, looped: _ } = *offer;
        let wants = Wants { frame_max: LONGEST, ..Wants::default() };
        let unfolded = Unfolded::new(frames, pick, wants).map_err(Miss::Never)?;
        let packet = unfolded.packet();
        let head = frames.batch.head(packet);
        let how = filter::wants(&self.registers, head).ok_or(Miss::Never(Reason::Filtered))?;
        for index in unfolded.wanted() {
            let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
            let len = piece.len();
            let reported = self.reported_length(piece.head(), len);
            let mut room = Room::default();
            self.find_room(memory, ring, index, len.max(reported), &mut room)?;
            piece.write(memory, &room.spans);
            clear_behind(memory, &room.spans, len, reported);
            let last = room.descriptors.len() - 1;
            for (n, (at, word)) in room.descriptors.iter().enumerate() {
                let first = if n == 0 { STP } else { 0 };
                ring.filled(*at, *word, first | if n == last { ENP | how } else { 0 }, reported);
                self.receive.next = ring.after(*at);
            }
            self.tidings.received(ring.before(self.receive.next), len.into());
        }
        Ok((u64::from(unfolded.count()), u64::from(packet.len())))
    }

    /// The length in the descriptor (RMD2: MCNT): with padding and check sequence, unless the chip strips them from a frame that
    /// has a length field (CSR4.ASTRP_RCV).
    fn reported_length(&self, head: &[u8], len: u32) -> u32 {
        if self.has(r::CSR4, csr4::ASTRP_RCV)
            && let Some([high, low]) = head.get(12..14)
            && let own @ ..46 = u32::from(*high) << 8 | u32::from(*low)
        {
            return 14 + own;
        }
        len.max(SHORTEST) + FCS
    }

    /// Finds buffers for frame `index` of a packet, of `len` bytes.
    fn find_room(&mut self, memory: &Map, ring: &Ring<'_>, index: u32, len: u32, room: &mut Room) -> Result<(), Miss> {
        let (mut at, mut left) = (self.receive.next, len);
        while left > 0 {
            if room.descriptors.len() >= (ring.len as usize).min(BUFFERS) {
                return Err(Miss::Never(Reason::TooManyPieces));
            }
            let descriptor = ring.owned(at).ok_or(Miss::NoRoom(index))?;
            let here = left.min(descriptor.len);
            let push = |span| room.spans.try_push(span).is_ok();
            if memory.translate(descriptor.address, here, Rights::WRITE, push).is_err() {
                // The frame is lost. The descriptor where it would have started reports it.
                let first = ring.status(self.receive.next);
                ring.filled(self.receive.next, first, ERR | OFLO | STP | ENP, 0);
                self.tidings.received(self.receive.next, 0);
                self.receive.next = ring.after(self.receive.next);
                return Err(Miss::Never(Reason::BadAddress));
            }
            room.descriptors.push((at, descriptor.status));
            left -= here;
            at = ring.after(at);
        }
        Ok(())
    }
}

/// Zeros after a frame: its padding, and its check sequence.
fn clear_behind(memory: &Map, spans: &[Span], len: u32, end: u32) {
    let (mut skip, mut left) = (len, end.saturating_sub(len));
    for span in spans {
        if left == 0 {
            return;
        }
        let place = span.piece(skip, left);
        skip = skip.saturating_sub(span.len());
        memory.write_span(place, &[0; (SHORTEST + FCS) as usize][..place.len() as usize]);
        left -= place.len();
    }
}
