//! Wire → guest: frames into the chains of a receive ring (virtio 1.2, section 5.1.6.3 and 5.1.6.4).

mod targets;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Checked, Checksum, Context, Delivery, Frames, Offload, PACKETS, Packet, Pick, Piece, QueueCounters, Reason,
    Scratch, SegmentKind, Set, Unfolded, Wants,
};
use nicety_frame::{L3Kind, L4Kind};
use nicety_memory::{Map, Rights};
use targets::{Run, Targets};

use super::broken::Broken;
use super::buffers::{FrameBuffers, PIECES};
use super::chain::{CHAIN_MAX, Token};
use super::hashing::Hashing;
use super::kept::Kept;
use super::registers::{Header, feature, header};
use super::returns::Returns;
use super::ring::Ring;
use super::ring::areas::Areas;
use super::{VirtioNet, receive_ring, steering};
use crate::charge::STEPS_PAID;

/// Maximum searches for one frame's buffers while the driver keeps adding too few.
const SEARCHES_MAX: usize = 3;
/// TCP's congestion-window-reduced flag, in the byte behind the data offset (RFC 3168).
const CWR: u8 = 0x80;

/// Result of a search for buffers.
enum Found {
    /// Enough buffers.
    Room,
    /// The driver has posted too few so far, and will notify of more. With `again` search again: it has added some meanwhile, or
    /// this call has walked its limit.
    Short { again: bool },
    /// The ring's buffers can never hold the frame.
    Never(Reason),
}

/// Result of writing a packet.
enum Put {
    Done {
        frames: u64,
        bytes: u64,
    },
    /// There is no room for this frame of it, nor for those after it.
    Refused {
        from: u32,
    },
    Dropped(Reason),
}

/// State shared by all frames of a call into one ring.
struct Receiver<'a, const PACKED: bool> {
    areas: &'a Areas<'a, PACKED>,
    memory: &'a Map,
    features: u128,
    header_len: usize,
    queue: u16,
    /// Hashes that the headers report, if negotiated.
    hashing: &'a Hashing,
}

impl VirtioNet {
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let active = self.receive_queues();
        if active == 1 && self.config.link && !self.took(feature::CTRL_RX) {
            // All frames go to one queue, or none does.
            if self.is_live(0) {
                self.deliver_one(0, frames, None, &mut delivery, cx);
            } else if self.is_paused(cx) {
                return Delivery::all_refused(frames);
            } else {
                frames.picks.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            }
            return delivery;
        }
        let (mut queues, mut touched) = ([u16::MAX; PACKETS], Set::default());
        for (index, (place, pick)) in queues.iter_mut().zip(frames.picks).enumerate() {
            let queue = match frames.batch.packet(pick.packet) {
                Some(packet) => self.admit(frames, *pick, packet, active),
                None => Err(Reason::BadDescriptor),
            };
            match queue {
                Err(Reason::ReceiverOff) if self.is_paused(cx) => delivery.refuse(index, 0, pick.from.into()),
                Err(reason) => cx.counters.receive_drop(reason),
                Ok(queue) => {
                    *place = queue;
                    touched.insert(queue);
                }
            }
        }
        while let Some(queue) = touched.pop() {
            self.deliver_one(queue, frames, Some(&queues), &mut delivery, cx);
        }
        delivery
    }

    pub(super) fn is_live(&self, queue: u16) -> bool {
        self.rings.get(usize::from(receive_ring(queue))).is_some_and(|ring| ring.live())
    }

    /// Delivers the frames that `queues` assigns to this queue; all of them if it is `None`.
    fn deliver_one(
        &mut self,
        queue: u16,
        frames: &Frames<'_>,
        queues: Option<&[u16; PACKETS]>,
        delivery: &mut Delivery,
        cx: &mut Context<'_>,
    ) {
        let delivered = match self.is_packed() {
            true => self.deliver_queue::<true>(queue, frames, queues, delivery, cx),
            false => self.deliver_queue::<false>(queue, frames, queues, delivery, cx),
        };
        if let Err(broken) = delivered {
            self.break_ring(receive_ring(queue), broken, cx);
        }
    }

    /// The queue for a packet, among the [active](VirtioNet::receive_queues) ones; or the reason why none takes it.
    fn admit(&self, frames: &Frames<'_>, pick: Pick, packet: &Packet, active: u16) -> Result<u16, Reason> {
        if !self.config.link {
            return Err(Reason::LinkDown);
        }
        let (batch, head) = (frames.batch, frames.batch.head(packet));
        if active == 0 {
            return Err(Reason::ReceiverOff);
        }
        if self.taken & feature::CTRL_RX != 0 && !self.control.wants(head, || frames.outer_tag(pick), self.taken) {
            return Err(Reason::Filtered);
        }
        let usable = |queue: u16| queue < active && self.is_live(queue);
        if active == 1 {
            return if usable(0) { Ok(0) } else { Err(Reason::ReceiverOff) };
        }
        if self.hashing.scales() {
            let queue = self.hashing.queue(head, batch.layout(packet));
            return if usable(queue) { Ok(queue) } else { Err(Reason::ReceiverOff) };
        }
        let flow = if self.steers() { steering::flow(head, batch.layout(packet)) } else { 0 };
        // Flows that the guest has not sent yet are spread over the queues.
        let (learnt, spread) = (self.steering.queue(flow), u16::from(flow) % active);
        let found = [learnt, spread, 0].into_iter().find(|queue| usable(*queue));
        found.or_else(|| if self.is_part { self.live_queue(flow) } else { None }).ok_or(Reason::ReceiverOff)
    }

    /// A queue for a flow where other adapters serve the first ones (`RingFace::share`).
    #[cold]
    fn live_queue(&self, flow: u8) -> Option<u16> {
        let live = || (0..self.config.pairs).filter(|queue| self.is_live(*queue));
        live().nth(usize::from(flow) % live().count().max(1))
    }

    fn deliver_queue<const PACKED: bool>(
        &mut self,
        queue: u16,
        frames: &Frames<'_>,
        queues: Option<&[u16; PACKETS]>,
        delivery: &mut Delivery,
        cx: &mut Context<'_>,
    ) -> Result<(), Broken> {
        let number = receive_ring(queue);
        let (features, header_len) = (self.effective(), self.header_len());
        let wants = self.wants();
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return Ok(()) };
        let memory = cx.memory.as_ref();
        let mut areas = ring.open::<PACKED>(memory, self.taken);
        if let Ok(areas) = &mut areas {
            areas.keep(self.kept.as_deref().and_then(|map| Kept::of(map, number)));
        }
        let (mut returns, mut scratch) = (Returns::new(), Scratch::new());
        let mut targets = Targets::<PACKED>::new();
        if let Ok(areas) = &areas {
            targets.read(memory, ring, areas, frames.picks.len() as u16);
        }
        let mut broken = areas.as_ref().err().copied();
        let mut refused = frames.held.contains(queue) || broken == Some(Broken::Waits);
        let hashing = &self.hashing;
        let of = |areas| Receiver { areas, memory, features, header_len, queue, hashing };
        let receiver = areas.as_ref().ok().map(of);
        let run = Run { frames, queues, queue, wants: &wants, features };
        let mut next = 0;
        loop {
            if header_len == header::LEN
                && !refused
                && broken.is_none()
                && ring.unfit.is_none()
                && let Some(Receiver { areas, .. }) = receiver
            {
                next = targets.fill(ring, areas, &run, next, &mut returns);
            }
            let (i, Some(pick)) = (next, frames.picks.get(next).copied().filter(|_| next < PACKETS)) else { break };
            next += 1;
            if queues.is_some_and(|queues| queues[i % PACKETS] != queue) {
                continue;
            }
            if refused {
                delivery.refuse(i, queue, pick.from.into());
                continue;
            }
            let Some(receiver) = receiver.as_ref().filter(|_| broken.is_none()) else {
                cx.counters.receive_drop(Reason::ReceiverOff);
                continue;
            };
            // Match by reference: a move would defeat store forwarding (measured).
            let put = match &unfold(frames, pick, wants, features) {
                Ok(unfolded) => receiver.put(ring, unfolded, &mut scratch, &mut returns, cx),
                Err(reason) => Ok(Put::Dropped(*reason)),
            };
            match put {
                // Counts one packet for all its pieces and calls, so a segmented packet is not counted several times.
                Ok(Put::Done { frames, bytes }) => targets.got.add(frames, bytes),
                Ok(Put::Dropped(reason)) => cx.counters.receive_drop(reason),
                Ok(Put::Refused { from }) => {
                    refused = true;
                    delivery.refuse(i, queue, from);
                }
                Err(why) => {
                    broken = Some(why);
                    cx.counters.receive_drop(Reason::BadDescriptor);
                }
            }
        }
        let (areas, got) = (areas?, targets.got);
        returns.write(ring, &areas);
        count(ring, &areas, queue, got, cx);
        areas.show(ring);
        let short = refused || areas.is_short(ring);
        let unsignalled = ring.unsignalled > 0;
        let (carried, limits) = (self.carried(number), self.limits(number));
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return Ok(()) };
        let may_interrupt = match limits {
            Some(limits) => unsignalled && ring.reaches(limits, got.packets as u32, cx.now),
            None => unsignalled && (short || ring.moderation.may_interrupt(carried, cx.now)),
        };
        if may_interrupt {
            let notifies = ring.broken.is_none() && ring.mark_notified(&areas);
            self.mark_arrivals_notified(number, notifies, cx);
        }
        self.schedule(cx);
        broken.map_or(Ok(()), Err)
    }

    /// Offloads that the driver accepts: its features without those it has switched off.
    fn wants(&self) -> Wants {
        let on = |bit: u128| self.effective() & bit != 0;
        let partial = on(feature::GUEST_CSUM);
        Wants {
            frame_max: u32::from(self.mtu.unwrap_or(u16::MAX)) + 14,
            tcp4: partial && on(feature::GUEST_TSO4),
            tcp6: partial && on(feature::GUEST_TSO6),
            udp: partial && on(feature::GUEST_USO4) && on(feature::GUEST_USO6),
            partial,
            strip: 0,
            verify: partial,
        }
    }
}

/// Counts what a call has written to a ring, and charges it for descriptors beyond the usual.
fn count<const PACKED: bool>(
    ring: &mut Ring,
    areas: &Areas<'_, PACKED>,
    queue: u16,
    got: QueueCounters,
    cx: &mut Context<'_>,
) {
    cx.counters.received_all(queue, got);
    ring.carried = ring.carried.wrapping_add(got.bytes);
    ring.tally.packets = ring.tally.packets.wrapping_add(got.packets);
    cx.out.charge(areas.walked().saturating_sub(STEPS_PAID.saturating_mul(got.frames as u32)));
}

/// Prepares a packet. Uncut TCP that signals congestion is segmented for a driver without GUEST_ECN (5.1.3.1).
fn unfold<'a>(frames: &Frames<'a>, pick: Pick, mut wants: Wants, features: u128) -> Result<Unfolded<'a>, Reason> {
    if features & feature::GUEST_ECN == 0
        && let Some(packet) = frames.batch.packet(pick.packet)
        && packet.offload.segment.is_some()
        && congested(frames.batch, packet)
    {
        (wants.tcp4, wants.tcp6) = (false, false);
    }
    Unfolded::new(frames, pick, wants)
}

fn congested(batch: &Batch, packet: &Packet) -> bool {
    let flags = batch.layout(packet).l4.filter(|l4| l4.kind == L4Kind::Tcp).map(|l4| usize::from(l4.offset) + 13);
    flags.and_then(|at| batch.head(packet).get(at)).is_some_and(|flags| flags & CWR != 0)
}

impl<const PACKED: bool> Receiver<'_, PACKED> {
    /// Writes the wanted pieces of a packet.
    #[inline(always)]
    fn put(
        &self,
        ring: &mut Ring,
        unfolded: &Unfolded<'_>,
        scratch: &mut Scratch,
        returns: &mut Returns,
        cx: &mut Context<'_>,
    ) -> Result<Put, Broken> {
        for index in unfolded.wanted() {
            let len = unfolded.len(index);
            let mut buffers = FrameBuffers::new();
            let found = match self.find_buffers(ring, &mut buffers, len) {
                // The next map wakes the ring.
                Err(Broken::Waits) => return Ok(Put::Refused { from: index }),
                found => found?,
            };
            match found {
                Found::Room => {}
                Found::Never(reason) => {
                    let need = self.need(len);
                    // If a frame did not fit, a longer one does not fit either: no walk is needed.
                    if ring.unfit.is_none_or(|(bytes, _)| need < bytes) {
                        ring.unfit = Some((need, reason));
                    }
                    return Ok(Put::Dropped(reason));
                }
                Found::Short { again } => {
                    if again {
                        cx.out.room.insert(self.queue);
                    }
                    ring.starved = !again;
                    return Ok(Put::Refused { from: index });
                }
            }
            let Some(piece) = &mut unfolded.piece(index, scratch) else { return Ok(Put::Dropped(Reason::BadOffload)) };
            let checked = piece.write(self.memory, &buffers.spans);
            self.write_header(&buffers, piece, checked);
            self.give_back(ring, returns, &buffers, len);
        }
        let packet = unfolded.packet();
        Ok(Put::Done { frames: packet.frames().into(), bytes: packet.len().into() })
    }

    /// Bytes of buffers that a frame of `len` bytes needs.
    fn need(&self, len: u32) -> u32 {
        len + self.header_len as u32
    }

    /// Finds buffers for a frame of `len` bytes; requests a notification if there are too few.
    #[inline(always)]
    fn find_buffers(&self, ring: &mut Ring, buffers: &mut FrameBuffers, len: u32) -> Result<Found, Broken> {
        let need = self.need(len);
        if let Some((bytes, reason)) = ring.unfit
            && need >= bytes
        {
            return Ok(Found::Never(reason));
        }
        let before = self.areas.walked();
        if !self.areas.has_steps() {
            return Ok(Found::Short { again: true });
        }
        let mergeable = self.features & feature::MRG_RXBUF != 0;
        let mut seen = self.areas.seen(ring)?;
        let (mut at, size) = (ring.next, u32::from(ring.size));
        for search in 0..SEARCHES_MAX {
            while buffers.room < need && buffers.slots < size && self.areas.has(at, seen) {
                match self.add(buffers, at)? {
                    Ok(token) => at = self.areas.behind(at, token),
                    Err(reason) => return Ok(Found::Never(reason)),
                }
                if buffers.room < need {
                    if !mergeable {
                        return Ok(Found::Never(Reason::TooLong));
                    }
                    if self.areas.walked() - before >= CHAIN_MAX {
                        return Ok(Found::Never(Reason::TooManyPieces));
                    }
                }
            }
            if buffers.room >= need {
                ring.next = at;
                self.areas.disarm(ring);
                ring.unfit = None;
                return Ok(Found::Room);
            }
            if buffers.slots >= size {
                // All buffers of the ring together are too small.
                return Ok(Found::Never(Reason::TooLong));
            }
            if search + 1 < SEARCHES_MAX && !self.areas.arm(ring, at) {
                return Ok(Found::Short { again: false });
            }
            seen = self.areas.seen(ring)?;
        }
        Ok(Found::Short { again: true })
    }

    /// Adds the buffers of the chain at this position; or returns why they cannot be added.
    fn add(&self, buffers: &mut FrameBuffers, at: u16) -> Result<Result<Token, Reason>, Broken> {
        let before = buffers.room;
        let mut chain = self.areas.chain(at)?;
        let mut fits = true;
        while fits && let Some(buffer) = chain.next() {
            let buffer = buffer?;
            if !buffer.write {
                return Err(Broken::ReadOnly);
            }
            let mut full = false;
            let header_len = self.header_len as u32;
            let translated = self.memory.translate(buffer.address, buffer.len, Rights::WRITE, |span| {
                full |= buffers.push(span, header_len).is_none();
                !full
            });
            fits = !full;
            if fits && let Err(fault) = translated {
                return Err(Broken::of(fault, self.memory, Broken::Buffer));
            }
        }
        if !fits {
            self.areas.note(&chain);
            return Ok(Err(Reason::TooManyPieces));
        }
        let token = chain.token()?;
        self.areas.note(&chain);
        let room = buffers.room - before;
        buffers.slots += u32::from(Areas::<PACKED>::slots(token));
        let noted = buffers.chains.try_push((token, room));
        Ok(noted.map(|()| token).map_err(|_| Reason::TooManyPieces))
    }

    fn write_header(&self, buffers: &FrameBuffers, piece: &Piece<'_>, checked: Checked) {
        let mut header = header_of(&piece.offload, piece, checked, self.features);
        header.num_buffers = buffers.chains.len() as u16;
        let mut bytes = [0; header::HASH_LEN];
        bytes[..header::LEN].copy_from_slice(&header.bytes());
        if self.header_len == header::HASH_LEN
            && let Some(hash) = self.hashing.hash(piece.private_head(), piece.layout())
        {
            bytes[12..16].copy_from_slice(&hash.value.to_le_bytes());
            bytes[16..18].copy_from_slice(&hash.report.to_le_bytes());
        }
        let mut left = &bytes[..self.header_len];
        for span in &buffers.header {
            let (now, rest) = left.split_at(left.len().min(span.len() as usize));
            self.memory.write_span(*span, now);
            left = rest;
        }
    }

    fn give_back(&self, ring: &mut Ring, returns: &mut Returns, buffers: &FrameBuffers, len: u32) {
        let mut left = self.need(len);
        let mut bytes = |room: u32| {
            let here = left.min(room);
            left -= here;
            here
        };
        if PACKED && buffers.chains.len() > 1 {
            returns.write(ring, self.areas);
            let chains: ArrayVec<u64, PIECES> =
                buffers.chains.iter().map(|(token, room)| token.with_bytes(bytes(*room))).collect();
            return self.areas.give_back_packed(ring, &chains);
        }
        for (token, room) in &buffers.chains {
            returns.push(ring, self.areas, *token, bytes(*room));
        }
    }
}

/// Checksum fields in the header of a delivered frame (section 5.1.6.4.1).
#[inline]
pub(super) fn checksum_of(checksum: Checksum, checked: Checked, features: u128) -> Header {
    let mut out = Header::default();
    match checksum {
        Checksum::Partial { start, field } => {
            out.flags = header::NEEDS_CSUM;
            (out.csum_start, out.csum_offset) = (start, field.saturating_sub(start));
        }
        _ if checked == Checked::Good && features & feature::GUEST_CSUM != 0 => out.flags = header::DATA_VALID,
        _ => {}
    }
    out
}

/// The header of a delivered frame.
fn header_of(offload: &Offload, piece: &Piece<'_>, checked: Checked, features: u128) -> Header {
    let mut out = checksum_of(offload.checksum, checked, features);
    if let Some(segment) = offload.segment {
        let congested = piece.layout().l4.and_then(|l4| piece.private_head().get(usize::from(l4.offset) + 13));
        let v4 = piece.layout().l3.is_some_and(|l3| l3.kind == L3Kind::V4);
        out.gso_type = match segment.kind {
            SegmentKind::Udp => header::GSO_UDP_L4,
            // Tunnel packets arrive segmented: `Wants` cannot express them.
            SegmentKind::Tcp | SegmentKind::Tunnel => {
                let ecn = if congested.is_some_and(|flags| flags & CWR != 0) { header::GSO_ECN } else { 0 };
                ecn | if v4 { header::GSO_TCPV4 } else { header::GSO_TCPV6 }
            }
        };
        (out.gso_size, out.hdr_len) = (segment.mss, segment.headers);
    }
    out
}
