//! Reception: the receive ring of C+ mode (`buffer.rs` has the plain mode's buffer).

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Checked, Context, Delivery, ErrorPlace, Frames, Packet, Pick, Piece, Queue, Reason, Scratch, Unfolded, Wants,
};
use nicety_frame::{L3Kind, L4Kind, checksum};
use nicety_memory::{Map, Rights, Span, Window};

use super::buffer::Buffer;
use super::filter::{Match, Miss, PIECES};
use super::registers::{self as r, cause, cpcr};
use super::ring::{self, Descriptor, EOR, FS, LS};
use super::transmit::TAG_TYPE;
use super::{NOWHERE, RECEIVE_RING, Rtl8139};

/// Shortest frame without its check sequence. Shorter ones arrive padded.
pub(super) const SHORTEST: u32 = 60;
/// Bytes of a check sequence.
pub(super) const CHECK: u32 = 4;
/// Longest frame of C+ mode (8139cp.c: CP_MAX_MTU) and of the plain mode, without tag and check sequence.
const LONGEST: u32 = 4096 + 14;
const LONGEST_PLAIN: u32 = 1770 + 14;
/// Bytes for the longest frame in the plain mode's buffer, with a margin.
const ANY_FRAME: u32 = 2048;

/// Minimum and maximum delay between a refusal and a check of the ring, which has no doorbell. A working driver is noticed earlier,
/// by its writes to ISR and IMR.
pub(super) const RETRY_MIN_NS: u64 = 500_000;
const RETRY_MAX_NS: u64 = 100_000_000;

/// Bits 26:24 of the descriptor: multicast, own address, broadcast.
const MAR: u32 = 1 << 26;
const PAM: u32 = 1 << 25;
const BAR: u32 = 1 << 24;
/// Receive error.
const RES: u32 = 1 << 20;
const PID_TCP: u32 = 1 << 16;
const PID_UDP: u32 = 2 << 16;
const PID_IP: u32 = 3 << 16;
const IPF: u32 = 1 << 15;
const UDPF: u32 = 1 << 14;
const TCPF: u32 = 1 << 13;
/// The second word: a tag is present.
const TAVA: u32 = 1 << 16;
/// Length of a buffer or of a frame.
const LENGTH: u32 = 0x1fff;

/// The ring during one delivery.
struct Ring<'m> {
    window: Window<'m>,
    memory: &'m Map,
    next: u32,
    size: u32,
    /// The descriptor that lost the last frame, and its address.
    blamed: Option<(u32, u64)>,
}

/// Destination of frames.
enum Target<'m> {
    Ring(Ring<'m>),
    Buffer(Buffer<'m>),
}

impl Target<'_> {
    /// The place of the last frame's loss, and the address there.
    #[cold]
    fn blame(&self) -> (ErrorPlace, u64) {
        match self {
            Self::Ring(ring) => {
                let (at, address) = ring.blamed.unwrap_or((ring.next, 0));
                (ErrorPlace::receive(0, at), address)
            }
            Self::Buffer(buffer) => (ErrorPlace::Ring(Queue::Receive(0)), buffer.base()),
        }
    }
}

impl Ring<'_> {
    /// Finds buffers for frame `index` of a packet, of `total` bytes with its check sequence. Returns the number of descriptors.
    fn room(&mut self, index: u32, total: u32, spans: &mut ArrayVec<Span, PIECES>) -> Result<u32, Miss> {
        let (mut at, mut left, mut count) = (self.next, total, 0);
        while left > 0 {
            if !ring::holds(&self.window, at) || count > 0 && at == self.next {
                return Err(Miss::Never(Reason::TooLong));
            }
            let descriptor = Descriptor::read(&self.window, at);
            if !descriptor.is_owned() {
                return Err(Miss::NoRoom(index));
            }
            let here = left.min(descriptor.first & LENGTH);
            let push = |span| spans.try_push(span).is_ok();
            if here > 0 && self.memory.translate(descriptor.address, here, Rights::WRITE, push).is_err() {
                self.blamed = Some((at, descriptor.address));
                return Err(Miss::Never(Reason::BadAddress));
            }
            left -= here;
            count += 1;
            if descriptor.first & EOR != 0 {
                self.size = at + 1;
            }
            at = descriptor.after(at);
        }
        Ok(count)
    }

    /// Hands one descriptor to the guest, both words at once.
    fn give(&mut self, first: u32, second: u32) {
        let place = self.next as usize * ring::DESCRIPTOR;
        let end = self.window.load_u32(place) & EOR;
        self.window.write_u64(place, u64::from(second) << 32 | u64::from(first | end));
        self.next = ring::after(self.next, end);
    }

    /// Hands the descriptors of a frame to the guest.
    fn give_frame(&mut self, count: u32, total: u32, first: u32, second: u32) {
        for n in 0..count {
            let begin = if n == 0 { FS } else { 0 };
            if n + 1 == count {
                self.give(first | begin | LS | total, second);
            } else {
                let buffer = self.window.load_u32(self.next as usize * ring::DESCRIPTOR) & LENGTH;
                self.give(begin | buffer, 0);
            }
        }
    }

    /// Whether the driver owns at least half of the ring.
    fn is_half_used(&self) -> bool {
        let middle = (self.next + self.size / 2) % self.size.max(1);
        !ring::is_owned(&self.window, middle)
    }
}

impl Rtl8139 {
    pub(super) fn receive_address(&self) -> u64 {
        let address = self.registers.of(r::RDSAR);
        u64::from(address[1]) << 32 | u64::from(address[0])
    }

    fn wants(&self) -> Wants {
        let (ring, mode) = (self.ring_mode().1, self.registers[r::CPCR]);
        Wants {
            frame_max: if ring { LONGEST } else { LONGEST_PLAIN },
            strip: if ring && mode & cpcr::VLAN != 0 { TAG_TYPE } else { 0 },
            verify: ring && mode & cpcr::CHECKSUM != 0,
            ..Wants::default()
        }
    }

    /// After a write with which the driver may have returned buffers: checks for room if frames wait. A little room in a buffer is
    /// not worth a call.
    pub(super) fn look_for_room(&mut self, cx: &mut Context<'_>) {
        self.look_for(self.buffer_bytes() / 4, cx);
    }

    /// The driver's poll is over, or the delay has passed: room for one frame is enough.
    pub(super) fn look_for_any_room(&mut self, cx: &mut Context<'_>) {
        self.look_for(ANY_FRAME, cx);
    }

    fn look_for(&mut self, bytes: u32, cx: &mut Context<'_>) {
        if self.starved.is_some() && self.has_room(bytes, cx) {
            self.starved = None;
            cx.out.room.insert(0);
        }
    }

    /// Checks again when the delay has passed.
    pub(super) fn look_again(&mut self, cx: &mut Context<'_>) {
        self.look_for_any_room(cx);
        if self.starved.is_some() {
            self.retry_ns = (2 * self.retry_ns).min(RETRY_MAX_NS);
            self.starved = Some(cx.now.after_ns(self.retry_ns));
            self.overflow(cx);
        }
    }

    /// Whether waiting frames can be delivered now; in plain mode, whether this many bytes are free. Frames without an enabled
    /// receiver are dropped and counted.
    fn has_room(&self, bytes: u32, cx: &Context<'_>) -> bool {
        if !self.receives() || !self.function.bus_master() {
            return true;
        }
        if !self.ring_mode().1 {
            return self.free_bytes() > bytes;
        }
        if self.meets.is_some() {
            return false;
        }
        let ring = ring::open(cx.memory, self.receive_address(), Rights::READ);
        ring.is_ok_and(|ring| ring::is_owned(&ring, self.next))
    }

    /// Whether the driver has seen every frame: the chip owns the last one's buffer again, or the buffer is empty.
    pub(super) fn driver_has_taken_all(&self, cx: &Context<'_>) -> bool {
        if !self.ring_mode().1 {
            return self.buffer_is_empty();
        }
        if !self.function.bus_master() {
            return false;
        }
        let last = if self.next == 0 { self.size } else { self.next } - 1;
        let ring = ring::open(cx.memory, self.receive_address(), Rights::READ);
        ring.is_ok_and(|ring| ring::is_owned(&ring, last))
    }

    /// Receives frames from outside.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if !self.link() || self.loops() {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.receive(frames, false, cx)
    }

    /// Receives the adapter's own frames in loopback. Those without room are lost, as in the chip.
    pub(super) fn receive_looped(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) {
        self.receive(frames, true, cx);
    }

    fn target<'m>(&mut self, memory: &'m Map, cx: &mut Context<'_>) -> Option<Target<'m>> {
        let on = self.receives() && self.function.bus_master();
        if !on {
            self.saw_ring(RECEIVE_RING, None, cx);
            return None;
        }
        if !self.ring_mode().1 {
            self.saw_ring(RECEIVE_RING, None, cx);
            return Some(Target::Buffer(self.buffer(memory)));
        }
        let window = ring::open(memory, self.receive_address(), Rights::BOTH).ok();
        let window = window.filter(|window| ring::holds(window, self.next));
        if window.is_none() {
            self.blame_ring(RECEIVE_RING, cx);
        }
        self.saw_ring(RECEIVE_RING, window.is_none().then_some(NOWHERE), cx);
        Some(Target::Ring(Ring { window: window?, memory, next: self.next, size: self.size, blamed: None }))
    }

    fn receive(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let Some(mut target) = self.target(&memory, cx) else {
            if !looped {
                frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            }
            return delivery;
        };
        let (wants, before) = (self.wants(), self.tally.received);
        let mut scratch = Scratch::new();
        let mut full = frames.held.contains(0) || self.meets.is_some() && matches!(target, Target::Ring(_));
        for (i, pick, _) in frames.iter() {
            let ended = if full {
                Err(Miss::NoRoom(pick.from.into()))
            } else {
                self.place(&mut target, frames, pick, wants, &mut scratch)
            };
            match ended {
                Ok(_) | Err(Miss::Never(_)) if looped => {}
                Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || target.blame(), None),
                Err(Miss::NoRoom(_)) if looped => self.lose(cx),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, 0, from);
                    full = true;
                }
            }
        }
        let half = match target {
            Target::Ring(ring) => {
                (self.next, self.size) = (ring.next, ring.size);
                ring.is_half_used()
            }
            Target::Buffer(buffer) => {
                self.registers[r::CBR] = buffer.at;
                self.free_bytes() < self.buffer_bytes() / 2
            }
        };
        if full {
            self.retry_ns = if self.tally.received > before { RETRY_MIN_NS } else { self.retry_ns };
            self.starved = Some(cx.now.after_ns(self.retry_ns));
        }
        if self.tally.received > before {
            self.received(half || full, cx);
        } else if full {
            self.rearm(cx);
        }
        delivery
    }

    /// Counts a looped frame that has no room.
    fn lose(&mut self, cx: &mut Context<'_>) {
        self.registers[r::MPC] = (self.registers[r::MPC] + 1) & 0x00ff_ffff;
        self.tally.missed = self.tally.missed.wrapping_add(1);
        self.cause(cause::RXOVW, cx);
    }

    /// Writes all frames of a packet; returns their number and bytes.
    fn place(
        &mut self,
        target: &mut Target<'_>,
        frames: &Frames<'_>,
        pick: Pick,
        wants: Wants,
        scratch: &mut Scratch,
    ) -> Result<(u64, u64), Miss> {
        let unfolded = Unfolded::new(frames, pick, wants).map_err(Miss::Never)?;
        let packet = unfolded.packet();
        let how = self.wants_frame(frames.batch.head(packet)).ok_or(Miss::Never(Reason::Filtered))?;
        for index in unfolded.wanted() {
            let mut spans = ArrayVec::new();
            let len = unfolded.len(index);
            let total = len.max(SHORTEST) + CHECK;
            match target {
                Target::Ring(ring) => {
                    let count = ring.room(index, total, &mut spans).inspect_err(|miss| {
                        if let Miss::Never(Reason::BadAddress | Reason::NotShared) = miss {
                            self.tally.receive_errors = self.tally.receive_errors.wrapping_add(1);
                            ring.give(FS | LS | RES | CHECK, 0);
                        }
                    })?;
                    let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
                    let checked = write(&mut piece, ring.memory, &spans, len);
                    let (first, second) = self.verdict(frames.batch, packet, &piece, checked, how);
                    ring.give_frame(count, total, first, second);
                }
                Target::Buffer(buffer) => {
                    buffer.room(index, total, &mut spans)?;
                    let mut piece = unfolded.piece(index, scratch).ok_or(Miss::Never(Reason::BadOffload))?;
                    write(&mut piece, buffer.memory, &spans, len);
                    buffer.give(total, how);
                }
            }
            self.count(how, len);
        }
        Ok((u64::from(unfolded.count()), u64::from(packet.len())))
    }

    fn count(&mut self, how: Match, len: u32) {
        self.carried += u64::from(len);
        self.tally.received += 1;
        match how {
            Match::Own => self.tally.unicast += 1,
            Match::Broadcast => self.tally.broadcast += 1,
            Match::Multicast => self.tally.multicast = self.tally.multicast.wrapping_add(1),
            Match::Any => {}
        }
    }

    /// Both words of a frame's last descriptor, without lengths.
    fn verdict(&self, batch: &Batch, packet: &Packet, piece: &Piece<'_>, checked: Checked, how: Match) -> (u32, u32) {
        let mut first = match how {
            Match::Own => PAM,
            Match::Broadcast => BAR,
            Match::Multicast => MAR,
            Match::Any => 0,
        };
        let second = piece.tag.map_or(0, |control| TAVA | u32::from(control.0.swap_bytes()));
        if self.registers[r::CPCR] & cpcr::CHECKSUM == 0 {
            return (first, second);
        }
        let layout = batch.layout(packet);
        let Some(l3) = layout.l3.filter(|l3| l3.kind == L3Kind::V4) else { return (first, second) };
        let start = usize::from(l3.offset);
        let header = batch.head(packet).get(start..start + usize::from(l3.len)).unwrap_or_default();
        // A segmented packet's headers are new and correct.
        if packet.offload.segment.is_none() && checksum::sum(header).fold() != 0xffff {
            first |= IPF;
        }
        first |= match (layout.l4.map(|l4| l4.kind), checked) {
            (Some(L4Kind::Tcp), Checked::Good) => PID_TCP,
            (Some(L4Kind::Tcp), Checked::Bad) => PID_TCP | TCPF,
            (Some(L4Kind::Udp), Checked::Good) => PID_UDP,
            (Some(L4Kind::Udp), Checked::Bad) => PID_UDP | UDPF,
            (_, _) => PID_IP,
        };
        (first, second)
    }
}

/// Writes a frame, padded with zeros to Ethernet's minimum.
fn write(piece: &mut Piece<'_>, memory: &Map, spans: &[Span], len: u32) -> Checked {
    let checked = piece.write(memory, spans);
    let (mut skip, mut left) = (len, SHORTEST.saturating_sub(len));
    for span in spans {
        if left == 0 {
            break;
        }
        let place = span.piece(skip, left);
        skip = skip.saturating_sub(span.len());
        memory.write_span(place, &[0; SHORTEST as usize][..place.len() as usize]);
        left -= place.len();
    }
    checked
}
