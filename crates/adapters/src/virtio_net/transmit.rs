//! Guest → wire: chains of a transmit ring become packets (virtio 1.2, section 5.1.6.2).

use std::sync::Arc;

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Budget, Checksum, Context, Draft, DraftError, ErrorPlace, Offload, PACKETS, Progress, QueueCounters, Reason,
    Segment, SegmentKind,
};
use nicety_frame::{L3Kind, Layout};
use nicety_memory::{Fault, Map, Rights, Span};

use super::broken::Broken;
use super::burst::Burst;
use super::chain::{Buffer, Chain, Token};
use super::kept::Kept;
use super::registers::{Header, feature, header};
use super::ring::Ring;
use super::ring::areas::Areas;
use super::{VirtioNet, transmit_ring};
use crate::charge::STEPS_PAID;

/// Shortest Ethernet frame, without its check sequence.
const FRAME_MIN: usize = 60;

/// Shortest frame accepted: two addresses and a type.
const FRAME_SHORTEST: u32 = 14;

/// Result of taking a chain.
enum Taken {
    /// The packet was added to the batch.
    Packet,
    /// The chain was dropped.
    Dropped(Reason),
    /// The batch has no room for it. It stays in the ring.
    Later,
}

/// Buffers of a dropped chain that are searched for the wrong one.
const BLAMED_MAX: usize = 32;

/// State shared by all chains of a call.
struct Sender<'a> {
    memory: &'a Map,
    features: u128,
    header_len: usize,
}

impl VirtioNet {
    pub(super) fn fetch_ring(
        &mut self,
        queue: u16,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Progress {
        let number = transmit_ring(queue);
        let asleep = Progress { more: false, armed: true };
        if self.transmit_queue(number) != Some(queue) {
            return asleep;
        }
        let walked = match self.is_packed() {
            true => self.walk::<true>(number, queue, budget, batch, cx),
            false => self.walk::<false>(number, queue, budget, batch, cx),
        };
        match walked {
            Ok(progress) => progress,
            // The next map wakes the ring.
            Err(Broken::Waits) => {
                match self.is_packed() {
                    true => self.ask_ahead::<true>(number, cx),
                    false => self.ask_ahead::<false>(number, cx),
                }
                asleep
            }
            Err(broken) => {
                self.break_ring(number, broken, cx);
                asleep
            }
        }
    }

    /// A chain waits for translations: asks for all that it misses, else each of its pages would take a round trip. Shows the chains that
    /// were dropped before it.
    #[cold]
    #[inline(never)]
    fn ask_ahead<const PACKED: bool>(&mut self, number: u16, cx: &mut Context<'_>) {
        let features = self.taken;
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        let memory = Arc::clone(cx.memory);
        let Ok(areas) = ring.open::<PACKED>(&memory, features) else { return };
        for buffer in areas.chain(ring.next).into_iter().flatten().map_while(Result::ok).take(BLAMED_MAX) {
            let _asked = memory.translate(buffer.address, buffer.len, Rights::READ, |_| true);
        }
        if ring.unsignalled > 0 && ring.publish(&areas) {
            ring.call(number, cx);
        }
    }

    fn walk<const PACKED: bool>(
        &mut self,
        number: u16,
        queue: u16,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Result<Progress, Broken> {
        let (features, header_len) = (self.taken, self.header_len());
        let steer = self.steers();
        let link = self.config.link;
        let Some(ring) = self.rings.get_mut(usize::from(number)).filter(|ring| ring.is_fetched()) else {
            return Ok(Progress { more: false, armed: true });
        };
        // The reason why nothing is sent.
        let silent = if !ring.enabled { Some(Reason::QueueOff) } else { (!link).then_some(Reason::LinkDown) };
        let memory = cx.memory.as_ref();
        let mut areas = ring.open::<PACKED>(memory, features)?;
        areas.keep(self.kept.as_deref().and_then(|map| Kept::of(map, number)));
        let sender = Sender { memory, features, header_len };
        batch.generation = ring.generation;
        let seen = areas.seen(ring)?;
        if !areas.has(ring.next, seen) {
            return Ok(sleeps(ring, &areas, cx.polls));
        }
        let mut ahead = Burst::<PACKED>::new(memory);
        ahead.read(ring, &areas, seen, budget.packets as u16);
        let (mut dropped, mut sent, mut broken) = (0, QueueCounters::default(), None);
        // Looked at behind the loop: what the loop does not need would take its registers.
        let mut blamed = Blamed::new();
        // A dropped chain uses none of the batch's budget, so it is charged here. In a packed ring each descriptor's flags show
        // whether it is available. Those read ahead are not checked again.
        let waits = |at, ahead: &Burst<'_, PACKED>| PACKED && ahead.has_read(&areas, at) || areas.has(at, seen);
        while waits(ring.next, &ahead) && dropped < budget.packets && budget.allows(batch) && areas.has_steps() {
            if silent.is_none() {
                let run = ahead.take(ring, &areas, header_len as u32, budget, batch);
                if run.packets > 0 {
                    sent.add_all(run);
                    if steer {
                        self.steering.learn(batch, run.packets as usize, queue);
                    }
                    continue;
                }
            }
            let only = if silent.is_none() { ahead.only(&areas, ring.next) } else { None };
            let taken = match (only, silent) {
                (Some((token, span)), _) => Ok((token, sender.take_only(token, span, &areas, batch))),
                (None, None) => sender.take(ring.next, &areas, batch),
                (None, Some(reason)) => areas.token(ring.next).map(|token| (token, Taken::Dropped(reason))),
            };
            let (token, taken) = match taken {
                Ok(taken) => taken,
                Err(why) => {
                    broken = Some(why);
                    break;
                }
            };
            match taken {
                Taken::Later => break,
                // Completions are in order: a dropped chain waits for the batch before it. A server that takes over a ring resumes
                // after the last used entry.
                Taken::Dropped(_) if !batch.is_empty() => break,
                Taken::Dropped(reason) => {
                    dropped += 1;
                    let _never_full = blamed.try_push((reason, ring.next, token));
                }
                Taken::Packet => {
                    let Some(packet) = batch.packets().last() else { break };
                    sent.add(u64::from(packet.frames()), u64::from(packet.len()));
                    if steer {
                        self.steering.learn(batch, 1, queue);
                    }
                }
            }
            ring.next = areas.behind(ring.next, token);
        }
        if dropped > 0 {
            blame::<PACKED>(&blamed, queue, ring, features, cx);
            blamed.iter().for_each(|(_, _, token)| ring.give_back(&areas, *token, 0));
        }
        cx.counters.sent_all(queue, sent);
        ring.carried = ring.carried.wrapping_add(sent.bytes);
        ring.tally.packets = ring.tally.packets.wrapping_add(sent.packets);
        cx.out.charge(areas.walked().saturating_sub(STEPS_PAID * batch.len() as u32));
        broken.map_or(Ok(()), Err)?;
        if dropped > 0 && ring.publish(&areas) {
            ring.call(number, cx);
        }
        // A driver that has just sent often sends more at once. So its ring is looked at once more before it is asked to notify: until then
        // its frames come without notifications.
        if !batch.is_empty() || areas.has(ring.next, seen) {
            areas.disarm(ring);
            return Ok(Progress { more: true, armed: false });
        }
        Ok(sleeps(ring, &areas, cx.polls))
    }

    pub(super) fn complete_ring(&mut self, batch: &Batch, cx: &mut Context<'_>) {
        let number = transmit_ring(batch.queue);
        let returned = match self.is_packed() {
            true => self.return_batch::<true>(number, batch, cx),
            false => self.return_batch::<false>(number, batch, cx),
        };
        if let Err(broken) = returned {
            self.break_ring(number, broken, cx);
        }
    }

    fn return_batch<const PACKED: bool>(
        &mut self,
        number: u16,
        batch: &Batch,
        cx: &mut Context<'_>,
    ) -> Result<(), Broken> {
        let limits = self.limits(number);
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return Ok(()) };
        let is_dead = !ring.started || ring.broken.is_some_and(|broken| !broken.lacks_memory());
        if batch.is_empty() || is_dead || ring.generation != batch.generation {
            return Ok(());
        }
        let mut areas = ring.open::<PACKED>(cx.memory, self.taken)?;
        areas.keep(self.kept.as_deref().and_then(|map| Kept::of(map, number)));
        if ring.delay.due().is_some() && !areas.wants(ring) {
            // Coalesced completions were checked in the meantime.
            ring.mark_notified(&areas);
            ring.delay.join();
        }
        // A packet's cookie is its chain's token: a used entry without bytes written.
        let mut chains = [0; PACKETS];
        chains.iter_mut().zip(batch.packets()).for_each(|(chain, packet)| *chain = packet.cookie);
        let chains = &chains[..batch.len().min(PACKETS)];
        match PACKED && chains.iter().any(|chain| Token(*chain as u32).slots() != 1) {
            true => areas.give_back_packed(ring, chains),
            false => areas.give_back_run(ring, chains),
        }
        areas.show(ring);
        if areas.wants(ring)
            && let Some(limits) = limits
        {
            if ring.reaches(limits, batch.len() as u32, cx.now) {
                self.notify_completions(number, cx);
            }
            self.schedule(cx);
        } else if areas.wants(ring) {
            // A chain has at most some 18 entries, so size / 32 packets are at most about half the ring.
            ring.delay.wait(batch.len() as u32, u32::from(ring.size / 32), 0, cx.now);
            if ring.delay.over(cx.now) {
                self.notify_completions(number, cx);
            }
            self.schedule(cx);
        } else {
            // No completion is left to coalesce with.
            ring.mark_notified(&areas);
        }
        Ok(())
    }

    /// Notifies the driver of completions on a transmit ring, if it still wants a notification.
    pub(super) fn notify_completions(&mut self, number: u16, cx: &mut Context<'_>) {
        let Some(ring) = self.rings.get_mut(usize::from(number)) else { return };
        let live = ring.started && ring.broken.is_none();
        ring.delay.join();
        if live && ring.mark_notified_in(cx.memory, self.taken) {
            ring.call(number, cx);
        }
    }
}

impl Sender<'_> {
    /// Drafts the packet of the chain at this position.
    fn take<const PACKED: bool>(
        &self,
        at: u16,
        areas: &Areas<'_, PACKED>,
        batch: &mut Batch,
    ) -> Result<(Token, Taken), Broken> {
        let mut chain = areas.chain(at)?;
        let taken = self.walk(&mut chain, batch)?;
        let token = chain.token()?;
        areas.note(&chain);
        Ok((token, taken))
    }

    fn walk(&self, chain: &mut Chain<'_>, batch: &mut Batch) -> Result<Taken, Broken> {
        let mut bytes = [0; header::HASH_LEN];
        let (mut have, mut rest) = (0, None);
        while have < self.header_len {
            let Some(buffer) = chain.next().transpose()? else { return Ok(Taken::Dropped(Reason::BadDescriptor)) };
            if buffer.write {
                return Ok(Taken::Dropped(Reason::BadDescriptor));
            }
            let n = (self.header_len - have).min(buffer.len as usize);
            if let Err(fault) = self.memory.read(buffer.address, &mut bytes[have..have + n]) {
                return faulted(fault, self.memory);
            }
            have += n;
            rest = (buffer.len as usize > n).then(|| Buffer {
                address: buffer.address.wrapping_add(n as u64),
                len: buffer.len - n as u32,
                write: false,
            });
        }
        let header = Header::parse(bytes.first_chunk().unwrap_or(&[0; header::LEN]));
        let Some(mut draft) = batch.draft(head_wanted(&header)) else { return Ok(Taken::Later) };
        let mut next = rest.map(Ok).or_else(|| chain.next());
        while let Some(buffer) = next.transpose()? {
            if buffer.write {
                return Ok(Taken::Dropped(Reason::BadDescriptor));
            }
            match draft.push(buffer.address, buffer.len) {
                Ok(()) => {}
                Err(DraftError::BatchFull) => return Ok(Taken::Later),
                Err(DraftError::Fault(fault)) => return faulted(fault, self.memory),
                Err(error) => return Ok(Taken::Dropped(error.into())),
            }
            next = chain.next();
        }
        Ok(self.finish(chain.token()?, &header, draft))
    }

    /// Drafts the packet of a chain of one descriptor.
    #[inline(always)]
    fn take_only<const PACKED: bool>(
        &self,
        token: Token,
        span: Span,
        areas: &Areas<'_, PACKED>,
        batch: &mut Batch,
    ) -> Taken {
        areas.note_one();
        let len = self.header_len as u32;
        if span.len() < len {
            return Taken::Dropped(Reason::BadDescriptor);
        }
        // A legacy driver's header is two bytes shorter; those two bytes are ignored. A frame that ends inside the header is not
        // used.
        let header = Header::of_words(self.memory.read_words(span));
        let frame = span.piece(len, span.len());
        let drafted = if header.asks_nothing() && frame.len() >= FRAME_SHORTEST {
            batch.push_plain(frame, FRAME_MIN, u64::from(token.0)).map(|_| Taken::Packet)
        } else {
            let Some(mut draft) = batch.draft(head_wanted(&header)) else { return Taken::Later };
            draft.push_span(frame).map(|()| self.finish(token, &header, draft))
        };
        match drafted {
            Ok(taken) => taken,
            Err(DraftError::BatchFull) => Taken::Later,
            Err(error) => Taken::Dropped(error.into()),
        }
    }

    /// The draft holds the complete packet.
    fn finish(&self, token: Token, header: &Header, mut draft: Draft<'_>) -> Taken {
        let len = draft.len();
        if len < FRAME_SHORTEST {
            return Taken::Dropped(Reason::TooShort);
        }
        let Some(offload) = offload(header, self.features, draft.head_mut(), len) else {
            return Taken::Dropped(Reason::BadOffload);
        };
        draft.pad_to(FRAME_MIN);
        match draft.finish(offload, u64::from(token.0)) {
            Ok(()) => Taken::Packet,
            Err(reason) => Taken::Dropped(reason),
        }
    }
}

/// An empty ring: asks its driver to notify of the next chain, unless the ring is polled.
#[inline]
fn sleeps<const PACKED: bool>(ring: &mut Ring, areas: &Areas<'_, PACKED>, is_polled: bool) -> Progress {
    if !ring.enabled {
        return rests(ring, areas);
    }
    if is_polled {
        areas.disarm(ring);
        return Progress { more: false, armed: false };
    }
    let more = areas.arm(ring, ring.next);
    Progress { more, armed: !more }
}

/// An empty ring that is disabled, polled or not: it is not looked at again before its driver's next kick.
#[cold]
#[inline(never)]
fn rests<const PACKED: bool>(ring: &mut Ring, areas: &Areas<'_, PACKED>) -> Progress {
    let more = areas.arm_around(ring, ring.next, || ());
    ring.discards &= more;
    Progress { more, armed: !more }
}

/// A buffer is not accessible: the packet is dropped, or waits for a translation.
#[cold]
#[inline(never)]
fn faulted(fault: Fault, memory: &Map) -> Result<Taken, Broken> {
    match Broken::of(fault, memory, Broken::Buffer) {
        Broken::Waits => Err(Broken::Waits),
        _ => Ok(Taken::Dropped(fault.into())),
    }
}

/// Bytes of private head that the offload's own offsets need.
fn head_wanted(header: &Header) -> usize {
    let field = usize::from(header.csum_start) + usize::from(header.csum_offset) + 2;
    let field = if header.flags & header::NEEDS_CSUM != 0 { field } else { 0 };
    let headers = if header.gso_type == header::GSO_NONE { 0 } else { usize::from(header.hdr_len) };
    field.max(headers)
}

/// The header's request as a neutral offload, if it was negotiated. The batch checks its offsets against the frame.
fn offload(header: &Header, features: u128, head: &[u8], len: u32) -> Option<Offload> {
    let checksum = if header.flags & header::NEEDS_CSUM != 0 {
        if features & feature::CSUM == 0 {
            return None;
        }
        Checksum::Partial { start: header.csum_start, field: header.csum_start.checked_add(header.csum_offset)? }
    } else {
        Checksum::AsIs
    };
    let segment = match header.gso_type & !header::GSO_ECN {
        header::GSO_NONE => None,
        kind => Some(segment(header, kind, features, head, len)?),
    };
    Some(Offload { checksum, segment })
}

/// A segmentation request. The device finds the headers itself.
fn segment(header: &Header, kind: u8, features: u128, head: &[u8], len: u32) -> Option<Segment> {
    let layout = Layout::parse(head);
    let (offered, kind) = match (kind, layout.l3?.kind) {
        (header::GSO_TCPV4, L3Kind::V4) => (feature::HOST_TSO4, SegmentKind::Tcp),
        (header::GSO_TCPV6, L3Kind::V6) => (feature::HOST_TSO6, SegmentKind::Tcp),
        (header::GSO_UDP_L4, _) => (feature::HOST_USO, SegmentKind::Udp),
        _ => return None,
    };
    let fits = features & offered != 0 && u32::from(layout.headers_len) < len;
    if fits { Segment::of(kind, header.gso_size, layout.headers_len, len) } else { None }
}

/// Dropped chains of a call: why, position in the ring, token.
type Blamed = ArrayVec<(Reason, u16, Token), PACKETS>;

/// Counts dropped chains that were not given back yet, and notes their driver's mistakes: the head of each, and the buffer that is wrong
/// by itself, or the header's offload request.
#[cold]
#[inline(never)]
fn blame<const PACKED: bool>(blamed: &Blamed, queue: u16, ring: &Ring, features: u128, cx: &mut Context<'_>) {
    let memory = Arc::clone(cx.memory);
    let areas = ring.translate::<PACKED>(&memory, features).ok();
    for (reason, at, token) in blamed {
        let mut value = 0;
        let areas = areas.as_ref().filter(|_| reason.sender_expected().is_some());
        let chain = areas.and_then(|areas| areas.chain(*at).ok());
        for buffer in chain.into_iter().flatten().flatten().take(BLAMED_MAX) {
            let readable = memory.translate(buffer.address, buffer.len, Rights::READ, |_| true).is_ok();
            if value == 0 || buffer.write || !readable {
                value = buffer.address;
            }
            if buffer.write || !readable {
                break;
            }
        }
        let expected = match reason {
            Reason::BadDescriptor => Some("device-readable buffers with the whole virtio_net_hdr first (5.1.6.2)"),
            Reason::BadOffload => {
                Some("csum_start, csum_offset, gso_type and hdr_len as negotiated, within the frame (5.1.6.2)")
            }
            _ => None,
        };
        cx.drop_transmit(*reason, ErrorPlace::transmit(queue, token.0 & 0xffff), value, expected);
    }
    cx.out.charge(areas.map_or(0, |areas| areas.walked()));
}
