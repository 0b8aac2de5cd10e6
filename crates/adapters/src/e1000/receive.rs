//! The receive ring (manual, 3.2): frames into as many buffers as they need, with what was found out about them.
//!
//! ```text
//!  63            48 47    40 39    32 31           16 15             0
//! | buffer address                                                    |
//! | special (VLAN) | errors | status | packet checksum | length       |
//! ```

use arrayvec::ArrayVec;
use nicety_adapter::{Batch, Checked, Context, Delivery, Edit, Frames, Packet, Pick, Reason, Scratch, Unfolded, Wants};
use nicety_frame::{L3Kind, checksum};
use nicety_memory::{Map, Rights, Span, Window};

use super::filter::Match;
use super::registers::{self as r, cause, ctrl, rctl, rxcsum};
use super::{DESCRIPTOR, E1000, NOWHERE, RECEIVE_RING};

/// Pieces of guest memory for one frame at most: 16 KiB in buffers of 256 bytes, and a few region borders.
const PIECES: usize = 80;
/// Shortest frame without its check sequence: what is shorter arrives padded.
const SHORTEST: u32 = 60;

const DD: u32 = 1;
const EOP: u32 = 1 << 1;
const IXSM: u32 = 1 << 2;
const VP: u32 = 1 << 3;
const TCPCS: u32 = 1 << 5;
const IPCS: u32 = 1 << 6;
const PIF: u32 = 1 << 7;
const TCPE: u32 = 1 << 13;
const IPE: u32 = 1 << 14;
const RXE: u32 = 1 << 15;

/// The ring during one delivery.
struct Ring<'m> {
    window: Window<'m>,
    memory: &'m Map,
    size: u32,
    head: u32,
    tail: u32,
    buffer: u32,
    /// Bytes of check sequence that the guest is told of.
    check: u32,
    small: bool,
}

/// A packet on offer.
#[derive(Clone, Copy)]
struct Offer<'f, 'b> {
    frames: &'f Frames<'b>,
    pick: Pick,
    wants: Wants,
    /// It is the adapter's own, come back.
    looped: bool,
}

/// Why a frame was not put into the ring.
enum Miss {
    NoRoom,
    Never(Reason),
}

impl Ring<'_> {
    fn free(&self) -> u32 {
        if self.head < self.size && self.tail < self.size { (self.tail + self.size - self.head) % self.size } else { 0 }
    }

    /// Finds buffers for `len` bytes: their pieces and how many descriptors.
    fn room(&self, len: u32, spans: &mut ArrayVec<Span, PIECES>) -> Result<u32, Miss> {
        let total = len.max(SHORTEST) + self.check;
        let count = total.div_ceil(self.buffer);
        if count >= self.size.max(1) {
            return Err(Miss::Never(Reason::TooLong));
        }
        if count > self.free() {
            return Err(Miss::NoRoom);
        }
        let (mut at, mut left) = (self.head, total);
        for _ in 0..count {
            let address = u64::from_le_bytes(self.window.read(at as usize * DESCRIPTOR));
            let here = left.min(self.buffer);
            let push = |span| spans.try_push(span).is_ok();
            if self.memory.translate(address, here, Rights::WRITE, push).is_err() {
                return Err(Miss::Never(Reason::BadAddress));
            }
            left -= here;
            at = self.after(at);
        }
        Ok(count)
    }

    fn after(&self, at: u32) -> u32 {
        if at + 1 == self.size { 0 } else { at + 1 }
    }

    /// Gives one descriptor to the guest: its status last.
    fn give(&mut self, len: u32, upper: u32) {
        let place = self.head as usize * DESCRIPTOR;
        self.window.store_u32(place + 8, len);
        self.window.store_u32(place + 12, upper);
        self.head = self.after(self.head);
    }

    /// Gives the descriptors of a frame.
    fn give_frame(&mut self, count: u32, len: u32, upper: u32) {
        let total = len.max(SHORTEST) + self.check;
        for _ in 1..count {
            self.give(self.buffer, DD);
        }
        self.give(total - (count - 1) * self.buffer, upper);
    }
}

impl E1000 {
    /// Buffer size (13.4.22: BSIZE, BSEX).
    fn buffer_size(&self) -> u32 {
        let control = self.registers[r::RCTL];
        let code = control >> 16 & 3;
        if control & rctl::BSEX != 0 && code != 0 { 32768 >> code } else { 2048 >> code }
    }

    fn wants(&self) -> Wants {
        let long = self.registers[r::RCTL] & rctl::LPE != 0;
        Wants {
            // 16384 bytes with tag and check sequence, or the standard's.
            frame_max: if long { 16_376 } else { 1514 },
            untag: self.registers[r::CTRL] & ctrl::VME != 0,
            verify: self.registers[r::RXCSUM] & rxcsum::TUOFL != 0,
            ..Wants::default()
        }
    }

    /// The guest has posted buffers, or turned the receiver on.
    pub(super) fn offer_room(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.starved) {
            cx.out.room.insert(0);
        }
    }

    /// Frames from outside.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        self.show_line(cx);
        if !self.link_up || self.loops() {
            self.resume = 0;
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.receive(frames, false, cx)
    }

    /// Frames of its own, in loopback. What finds no room is lost, as it is in the chip.
    pub(super) fn receive_looped(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) {
        let resume = std::mem::take(&mut self.resume);
        self.receive(frames, true, cx);
        self.resume = resume;
    }

    fn receive(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let base = u64::from(self.registers[r::RDBAH]) << 32 | u64::from(self.registers[r::RDBAL]);
        let on = self.registers[r::RCTL] & rctl::EN != 0 && self.function.bus_master();
        let window = memory.window(base, self.registers[r::RDLEN], Rights::BOTH).ok().filter(|_| on);
        let Some(window) = window else {
            cx.counters.guest_errors += u64::from(on);
            self.saw_ring(RECEIVE_RING, on.then_some(NOWHERE), cx);
            if !looped {
                self.resume = 0;
                frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            }
            return delivery;
        };
        self.saw_ring(RECEIVE_RING, None, cx);
        let mut ring = Ring {
            window,
            memory: &memory,
            size: self.registers[r::RDLEN] / DESCRIPTOR as u32,
            head: self.registers[r::RDH],
            tail: self.registers[r::RDT],
            buffer: self.buffer_size(),
            check: if self.registers[r::RCTL] & rctl::SECRC != 0 { 0 } else { 4 },
            small: false,
        };
        let wants = self.wants();
        let mut scratch = Scratch::new();
        let mut full = false;
        for (i, pick, _) in frames.iter() {
            let fits = !full && self.take(&mut ring, Offer { frames, pick, wants, looped }, &mut scratch, cx);
            if !fits && !looped {
                delivery.refuse_rest(i, 0, if full { 0 } else { self.resume });
                full = true;
            }
        }
        self.starved |= full;
        self.conclude(&ring, cx);
        delivery
    }

    /// One packet: taken, dropped and counted, or, if there is no room (yet), false.
    fn take(&mut self, ring: &mut Ring<'_>, offer: Offer<'_, '_>, scratch: &mut Scratch, cx: &mut Context<'_>) -> bool {
        let taken = self.place(ring, &offer, scratch);
        match taken {
            Ok(_) | Err(Miss::Never(_)) if offer.looped => {}
            Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
            Err(Miss::Never(reason)) => cx.counters.receive_drop(reason),
            Err(Miss::NoRoom) => return false,
        }
        true
    }

    /// All frames of a packet: how many, and its bytes.
    fn place(&mut self, ring: &mut Ring<'_>, offer: &Offer<'_, '_>, scratch: &mut Scratch) -> Result<(u64, u64), Miss> {
        let Offer { frames, pick, wants, looped } = *offer;
        let resume = std::mem::take(&mut self.resume);
        let unfolded = Unfolded::new(frames, pick, wants).map_err(|reason| {
            self.count(r::ROC, u32::from(reason == Reason::TooLong));
            Miss::Never(reason)
        })?;
        let packet = unfolded.packet();
        let (head, tags) = (frames.batch.head(packet), &frames.batch.layout(packet).tags);
        let tag = match pick.edit {
            Edit::Tag(control) => Some(control),
            Edit::Untag => tags[1].map(|tag| tag.tci.0),
            Edit::Keep => tags[0].map(|tag| tag.tci.0),
        };
        let how = self.filter.wants(&self.registers[..], head, tag).ok_or(Miss::Never(Reason::Filtered))?;
        for index in resume..unfolded.count() {
            let mut spans = ArrayVec::new();
            let len = unfolded.len(index);
            let descriptors = ring.room(len, &mut spans).inspect_err(|miss| match miss {
                Miss::NoRoom => {
                    self.count(r::RNBC, 1);
                    self.count(r::MPC, u32::from(looped));
                    self.resume = if looped { 0 } else { index };
                }
                Miss::Never(Reason::BadAddress) => {
                    self.count(r::RXERRC, 1);
                    ring.give(0, DD | EOP | IXSM | RXE);
                }
                Miss::Never(_) => {}
            })?;
            let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
            let checked = piece.write(ring.memory, &spans);
            pad(ring.memory, &spans, len);
            let upper = self.verdict(frames.batch, packet, piece.tag, checked, how);
            ring.give_frame(descriptors, len, upper);
            ring.small |= len + 4 <= self.registers[r::RSRPD];
            self.count_received(head, len.max(SHORTEST));
        }
        Ok((u64::from(unfolded.count()), u64::from(packet.len())))
    }

    /// Status, errors and special of a frame's last descriptor (3.2.3).
    fn verdict(&self, batch: &Batch, packet: &Packet, tag: Option<u16>, checked: Checked, how: Match) -> u32 {
        let (offloads, layout) = (self.registers[r::RXCSUM], batch.layout(packet));
        let mut upper = DD | EOP;
        if how == Match::Inexact {
            upper |= PIF;
        }
        if let Some(control) = tag {
            upper |= VP | u32::from(control) << 16;
        }
        let before = upper;
        if offloads & rxcsum::IPOFL != 0
            && let Some(l3) = layout.l3.filter(|l3| l3.kind == L3Kind::V4)
        {
            let start = usize::from(l3.offset);
            let header = batch.head(packet).get(start..start + usize::from(l3.len)).unwrap_or_default();
            // Where a packet was cut, the header is new and right.
            let good = packet.offload.segment.is_some() || checksum::sum(header).fold() == 0xffff;
            upper |= if good { IPCS } else { IPCS | IPE };
        }
        if offloads & rxcsum::TUOFL != 0 && layout.l4.is_some() {
            upper |= match checked {
                Checked::Good => TCPCS,
                Checked::Bad => TCPCS | TCPE,
                Checked::Unknown => 0,
            };
        }
        if upper == before { upper | IXSM } else { upper }
    }

    /// Writes the head back and interrupts once.
    fn conclude(&mut self, ring: &Ring<'_>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.registers[r::RDH], ring.head);
        if before == ring.head {
            return;
        }
        let threshold = ring.size >> ((self.registers[r::RCTL] >> 8 & 3) + 1).min(3);
        let had = (ring.tail + ring.size - before) % ring.size;
        // Once, when the threshold is crossed (13.4.22: RDMTS).
        let few = if had > threshold && ring.free() <= threshold { cause::RXDMT0 } else { 0 };
        self.received(ring.small, few, cx);
    }
}

/// Zeros behind a frame that is shorter than the shortest on a wire.
fn pad(memory: &Map, spans: &[Span], len: u32) {
    let (mut skip, mut left) = (len, SHORTEST.saturating_sub(len));
    for span in spans {
        if left == 0 {
            return;
        }
        let place = span.piece(skip, left);
        skip = skip.saturating_sub(span.len());
        memory.write_span(place, &[0; SHORTEST as usize][..place.len() as usize]);
        left -= place.len();
    }
}
