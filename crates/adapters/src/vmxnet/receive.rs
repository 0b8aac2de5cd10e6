//! Receive: frames into posted buffers (`Vmxnet2_RxRingEntry`).
//!
//! ```text
//! entry, 24 bytes:  00 paddr  08 bufferLength  0c actualLength  10 ownership  12 flags  14 index
//! ```
//! A frame starts in an entry of the first ring. The rest goes into entries of the second, a page each, if the driver of an
//! enhanced vmxnet says how many a frame may take (`maxFrags`). The first entry is handed to the driver last. With LPD a packet
//! that a neighbour's guest left uncut arrives whole.

use std::time::Duration;

use arrayvec::ArrayVec;
use nicety_adapter::{Checked, Context, Delivery, ErrorPlace, Frames, Pick, Reason, Scratch, Time, Unfolded, Wants};
use nicety_frame::ethernet;
use nicety_memory::{Map, Rights, Span, Window};
use serde::{Deserialize, Serialize};

use super::shared::{FRAGS, Ring, Setup, owner};
use super::{RECEIVE_RING, Vmxnet, broken};

/// Maximum spans of one frame: its buffers, and a margin for buffers across memory regions.
const SPANS: usize = 2 * (FRAGS + 1);
/// Bytes of the shortest frame: shorter ones arrive padded. OpenBSD's vic drops shorter frames (vic_rx_proc).
const SHORTEST: u32 = ethernet::FRAME_LEN_MIN as u32;
/// Bytes of the longest frame without tags: with an MTU of 1500; with VMXNET_MAX_MTU.
const LONGEST: u32 = 1514;
const LONGEST_JUMBO: u32 = 16 * 1024 - 18 + 14;
/// First delay between a refusal and a check of the ring; it doubles up to [`ROOM_MAX`]. No message reports buffers that the
/// driver returned.
const ROOM_FIRST: Duration = Duration::from_micros(100);
const ROOM_MAX: Duration = Duration::from_millis(4);

/// VMXNET2_RX_*.
const HW_XSUM_OK: u16 = 1;
const WITH_FRAG: u16 = 1 << 1;
const FRAG_EOP: u16 = 1 << 2;

/// State of the receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receive {
    /// The next entry of each ring.
    pub next: [u32; 2],
    /// Frames were refused, and room has not been reported since.
    pub starved: bool,
    /// The last refusal was for lack of entries in the second ring.
    lacks_pages: bool,
    /// Time of the next check of the rings for room, and the delay after it.
    look: Option<(Time, Duration)>,
}

impl Receive {
    /// The state at the positions where the driver left its rings.
    pub fn at(next: [u32; 2]) -> Self {
        Self { next, ..Self::default() }
    }

    /// Whether saved state is valid.
    pub fn fits(&self) -> bool {
        self.look.is_none_or(|(_, after)| (ROOM_FIRST..=ROOM_MAX).contains(&after))
    }
}

/// Buffers for one frame.
#[derive(Default)]
struct Room {
    spans: ArrayVec<Span, SPANS>,
    /// Bytes in the first entry's buffer.
    head: u32,
    /// Entries of the second ring: index and bytes.
    pages: ArrayVec<(u32, u32), FRAGS>,
}

/// Why a frame was not written to the rings.
enum Miss {
    /// There is no entry yet for this frame of the packet.
    NoRoom { from: u32, pages: bool },
    /// Its entries are too few or too small.
    TooLarge(Reason),
    /// The frame is lost.
    Never(Reason),
}

fn is_owned(window: &Window<'_>, place: usize, owner: u16) -> bool {
    window.load_u16(place + 16) == owner
}

/// Hands an entry to the driver.
fn give(window: &Window<'_>, place: usize, len: u32, flags: u16, owner: u16) {
    window.store_u32(place + 12, len);
    window.store_u16(place + 18, flags);
    window.store_u16(place + 16, owner);
}

impl Vmxnet {
    /// Reports possible room.
    pub(super) fn offer_room(&mut self, cx: &mut Context<'_>) {
        self.receive.look = None;
        if std::mem::take(&mut self.receive.starved) {
            cx.out.room.insert(0);
        }
    }

    /// Time of the next check of the rings for room.
    pub(super) fn next_look(&self) -> Option<Time> {
        self.receive.look.filter(|_| self.running().is_some()).map(|(due, _)| due)
    }

    /// Checks whether there is room again, if frames wait for it.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        let Some(setup) = self.running().filter(|_| self.receive.starved) else { return };
        let pages = usize::from(self.receive.lacks_pages);
        let place = setup.receive[pages].place(self.receive.next[pages]);
        let wanted = if pages == 0 { owner::NIC } else { owner::NIC_FRAG };
        let waits = setup.open(cx.memory).is_ok_and(|shared| !is_owned(shared.window(), place, wanted));
        if !waits {
            return self.offer_room(cx);
        }
        if let Some((due, after)) = self.receive.look
            && due <= cx.now
        {
            self.receive.look = Some((cx.now.after(after), (after * 2).min(ROOM_MAX)));
        }
    }

    /// The driver is about to take frames: if frames wait for room, the rings are checked soon.
    pub(super) fn expect_room(&mut self, cx: &mut Context<'_>) {
        self.look_for_room(cx);
        if self.receive.starved {
            self.receive.look = Some((cx.now.after(ROOM_FIRST), ROOM_FIRST));
        }
    }

    /// Whether the driver has not taken the frame before an entry of the first ring; also true if the ring cannot be read. It takes
    /// frames in order.
    pub(super) fn has_frames(&self, next: u32, cx: &Context<'_>) -> bool {
        let Some(setup) = self.running() else { return true };
        let ring = setup.receive[0];
        let last = ring.place(ring.before(next));
        setup.open(cx.memory).map_or(true, |shared| is_owned(shared.window(), last, owner::DRIVER))
    }

    /// Delivers frames to the guest.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let setup = self.running().filter(|_| self.link_up && self.stalls[RECEIVE_RING].is_none());
        let Some(setup) = setup else {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return delivery;
        };
        let memory = cx.memory;
        let Ok(shared) = setup.open(memory) else {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::BadAddress));
            self.stall(RECEIVE_RING, broken::NOWHERE, cx);
            return delivery;
        };
        let own = self.address();
        let target = Target { memory, window: *shared.window(), setup: &setup };
        let mut refused = frames.held.contains(0);
        // Positions do not show it: a ring may have gone all the way round.
        let before = self.tidings.unsignalled();
        for (place, pick, packet) in frames.iter() {
            if !self.filter.wants(own, frames.batch.head(packet)) {
                cx.counters.receive_drop(Reason::Filtered);
                continue;
            }
            if refused {
                delivery.refuse(place, 0, pick.from.into());
                continue;
            }
            if let Err((from, pages)) = self.take(frames, pick, &target, cx) {
                delivery.refuse(place, 0, from);
                self.receive.lacks_pages = pages;
                refused = true;
            }
        }
        if refused {
            self.receive.starved = true;
            self.receive.look.get_or_insert((cx.now.after(ROOM_FIRST), ROOM_FIRST));
        }
        if self.tidings.unsignalled() != before {
            self.received(refused, cx);
        } else {
            self.schedule(cx);
        }
        delivery
    }

    /// One packet: accepted, or dropped and counted. Without room: the first frame that has none, and whether it lacks pages.
    fn take(
        &mut self,
        frames: &Frames<'_>,
        pick: Pick,
        target: &Target<'_, '_>,
        cx: &mut Context<'_>,
    ) -> Result<(), (u32, bool)> {
        let Setup { frags, large, .. } = *target.setup;
        let frame_max = if frags > 0 { LONGEST_JUMBO } else { LONGEST };
        let mut wants = Wants { frame_max, tcp4: large, tcp6: large, verify: true, ..Wants::default() };
        loop {
            let taken = self.put(frames, pick, wants, target);
            let reason = match taken {
                Ok((count, bytes)) => {
                    cx.counters.received(0, count, bytes);
                    return Ok(());
                }
                Err(Miss::NoRoom { from, pages }) => return Err((from, pages)),
                // The buffers cannot hold it uncut. They may hold its frames.
                Err(Miss::TooLarge(_)) if wants.tcp4 => {
                    (wants.tcp4, wants.tcp6) = (false, false);
                    continue;
                }
                Err(Miss::TooLarge(reason)) => reason,
                Err(Miss::Never(reason)) => {
                    cx.drop_receive(reason, || target.blame(self.receive.next), None);
                    return Ok(());
                }
            };
            cx.counters.receive_drop(reason);
            return Ok(());
        }
    }

    /// Writes all frames of a packet; returns their number and bytes.
    fn put(
        &mut self,
        frames: &Frames<'_>,
        pick: Pick,
        wants: Wants,
        target: &Target<'_, '_>,
    ) -> Result<(u64, u64), Miss> {
        let unfolded = Unfolded::new(frames, pick, wants).map_err(Miss::TooLarge)?;
        let mut scratch = Scratch::new();
        for index in unfolded.wanted() {
            let Some(mut piece) = unfolded.piece(index, &mut scratch) else { break };
            let len = piece.len();
            let room = match target.room(self.receive.next, index, len.max(SHORTEST)) {
                Ok(room) => room,
                Err(miss) => {
                    if let Miss::Never(_) = miss {
                        // The frame is lost. Its entry is empty, which reports the loss (vmxnet.c, vmxnet_rx).
                        self.complete(target, &Room::default(), 0);
                    }
                    return Err(miss);
                }
            };
            let checked = piece.write(target.memory, &room.spans);
            pad(target.memory, &room.spans, len);
            self.complete(target, &room, if checked == Checked::Good { HW_XSUM_OK } else { 0 });
            self.tidings.carried(len.into());
        }
        let packet = unfolded.packet();
        Ok((packet.frames().into(), packet.len().into()))
    }

    /// Hands a frame's entries to the driver.
    fn complete(&mut self, target: &Target<'_, '_>, room: &Room, flags: u16) {
        let Target { window, setup, .. } = target;
        let [first, second] = &setup.receive;
        let [head, page] = &mut self.receive.next;
        let mut left = room.pages.len();
        for &(index, len) in &room.pages {
            left -= 1;
            give(window, second.place(index), len, if left == 0 { FRAG_EOP } else { 0 }, owner::DRIVER_FRAG);
            *page = second.after(index);
        }
        let more = if room.pages.is_empty() { 0 } else { WITH_FRAG };
        give(window, first.place(*head), room.head, flags | more, owner::DRIVER);
        *head = first.after(*head);
        self.tidings.filled([1, room.pages.len() as u32]);
    }
}

/// The guest's memory and rings, for one delivery.
struct Target<'a, 'm> {
    memory: &'m Map,
    window: Window<'m>,
    setup: &'a Setup,
}

impl Target<'_, '_> {
    /// Finds buffers for frame `from` of a packet, of `len` bytes.
    fn room(&self, [head, page]: [u32; 2], from: u32, len: u32) -> Result<Room, Miss> {
        let [first, second] = &self.setup.receive;
        let mut room = Room::default();
        let place = self.entry(first, head, owner::NIC).ok_or(Miss::NoRoom { from, pages: false })?;
        room.head = self.append(place, len, &mut room.spans)?;
        let (mut left, mut at) = (len - room.head, page);
        while left > 0 {
            if room.pages.len() >= usize::from(self.setup.frags) {
                let reason = if self.setup.frags == 0 { Reason::TooLong } else { Reason::TooManyPieces };
                return Err(Miss::TooLarge(reason));
            }
            let place = self.entry(second, at, owner::NIC_FRAG).ok_or(Miss::NoRoom { from, pages: true })?;
            let here = self.append(place, left, &mut room.spans)?;
            room.pages.push((at, here));
            left -= here;
            at = second.after(at);
        }
        Ok(room)
    }

    /// The entry that lost a frame, and its address: the head before these positions, or else the page there.
    #[cold]
    fn blame(&self, [head, page]: [u32; 2]) -> (ErrorPlace, u64) {
        let [first, second] = &self.setup.receive;
        let address = |place| u64::from_le_bytes(self.window.read(place));
        let (head, of_page) = (first.before(head), address(second.place(page)));
        let of_head = address(first.place(head));
        let is_bad = |address| self.memory.translate(address, 1, Rights::WRITE, |_| true).is_err();
        match is_bad(of_head) || !is_bad(of_page) {
            true => (ErrorPlace::receive(0, head), of_head),
            false => (ErrorPlace::receive(1, page), of_page),
        }
    }

    /// Offset of an entry, if the device owns it.
    fn entry(&self, ring: &Ring, index: u32, owner: u16) -> Option<usize> {
        let place = ring.place(index);
        is_owned(&self.window, place, owner).then_some(place)
    }

    /// Translates an entry's buffer, as far as `left` bytes need it. Returns the bytes that it holds.
    fn append(&self, place: usize, left: u32, spans: &mut ArrayVec<Span, SPANS>) -> Result<u32, Miss> {
        let address = u64::from_le_bytes(self.window.read(place));
        let here = left.min(self.window.load_u32(place + 8));
        if here > 0 {
            let translated = self.memory.translate(address, here, Rights::WRITE, |span| spans.try_push(span).is_ok());
            translated.map_err(|fault| Miss::Never(fault.into()))?;
        }
        Ok(here)
    }
}

/// Pads a frame with zeros to Ethernet's minimum.
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
