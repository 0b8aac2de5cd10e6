//! The transmit ring: descriptor chains become packets of a batch, and are completed.

use arrayvec::ArrayVec;
use nicety_adapter::{
    Batch, Budget, Context, DraftError, ErrorPlace, Frames, Pick, PortId, Progress, Reason, SPANS_PER_PACKET,
};
use nicety_memory::Map;

use super::interrupts::TXSTRT;
use super::registers::{self as r, csr0, csr4, mode};
use super::ring::{ADD_FCS, BUFF, Descriptor, ENP, LCAR, Ring, STP, UFLO};
use super::{Lance, TRANSMIT_RING};
use crate::charge::STEPS_PAID;

/// Maximum descriptors that one call walks before it asks to be called again.
const WALK: u32 = 1024;
/// Maximum frames of one call that end with an error.
const ERRORS: usize = 64;
/// Bytes of a frame's check sequence.
const FCS: u32 = 4;
/// Bytes of the longest frame below a babble error: an MTU of 1500 with two tags.
const LONGEST: u32 = 1514 + 8;

/// State of the transmitter.
#[derive(Clone, Debug, Default)]
pub struct Transmit {
    /// The next descriptor to fetch.
    next: u32,
    /// The first descriptor fetched and not completed; [`Transmit::next`] if there is none.
    done: u32,
    /// Number of descriptors fetched and not completed.
    in_flight: u32,
    /// Descriptors among them with errors, in order: index and second status.
    errors: ArrayVec<(u32, u32), ERRORS>,
}

impl Transmit {
    /// The position at a descriptor, with nothing fetched.
    pub fn at(done: u32) -> Self {
        Self { next: done, done, ..Self::default() }
    }

    /// The next descriptor to fetch.
    pub fn next(&self) -> u32 {
        self.next
    }

    /// The first descriptor that is not completed.
    pub fn position(&self) -> u32 {
        self.done
    }
}

/// Result of a walk over one packet, with the number of its descriptors.
enum Walk {
    /// The packet is in the batch.
    Taken(u32),
    /// The batch has no room for it now.
    Full,
    /// The packet was dropped, and counted; with its last descriptor's second status.
    Dropped(u32, u32),
    /// A descriptor that does not start a frame.
    Skipped,
}

/// The driver's duty, in the datasheet's words (TMD0 to TMD2).
fn expected(reason: Reason) -> Option<&'static str> {
    match reason {
        Reason::BadDescriptor => Some("OWN in every descriptor of a frame up to the one with ENP (TMD1)"),
        Reason::BadAddress => Some("a buffer address in guest memory (TBADR)"),
        _ => None,
    }
}

impl Lance {
    /// Whether transmitted frames return to this adapter only.
    pub(super) fn loops(&self) -> bool {
        self.has(r::MODE, mode::LOOP)
    }

    /// Allocates a private batch before the first frame of a loopback.
    pub(super) fn prepare_loopback(&mut self) {
        if self.loops() && self.looped.is_none() {
            self.looped = Some(Box::default());
        }
    }

    pub(super) fn transmit_ring<'m>(&self, memory: &'m Map) -> Result<Ring<'m>, &'static str> {
        let base = self.registers.of(r::BADX).iter().rev().fold(0, |base, word| base << 16 | word);
        Ring::new(memory, self.style(), base, self.registers[r::XMTRL])
    }

    /// Discards descriptors that were fetched and not completed.
    pub(super) fn forget_fetched(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.transmit = Transmit::at(self.transmit.done);
    }

    /// Walks the ring into a batch. In loopback the batch is private, and is received at once.
    pub(super) fn fetch_ring(&mut self, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        if !self.has(r::CSR0, csr0::TXON) || self.suspended() || !self.function.bus_master() {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(budget, batch, false, cx);
            batch.generation = self.generation;
            if batch.is_empty() {
                self.give_back(cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); nicety_adapter::PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(cx);
        progress
    }

    fn walk_ring(&mut self, budget: Budget, batch: &mut Batch, looped: bool, cx: &mut Context<'_>) -> Progress {
        let mut walked = 0;
        let progress = self.walk_owned(budget, batch, looped, cx, &mut walked);
        cx.out.charge(walked.saturating_sub(STEPS_PAID * batch.len() as u32));
        progress
    }

    fn walk_owned(
        &mut self,
        budget: Budget,
        batch: &mut Batch,
        looped: bool,
        cx: &mut Context<'_>,
        walked: &mut u32,
    ) -> Progress {
        let (idle, again) = (Progress { more: false, armed: true }, Progress { more: true, armed: false });
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = match self.transmit_ring(&memory) {
            Ok(ring) => ring,
            Err(why) => {
                self.saw_ring(TRANSMIT_RING, Some(why), cx);
                return idle;
            }
        };
        self.saw_ring(TRANSMIT_RING, None, cx);
        loop {
            if *walked >= WALK || self.transmit.errors.is_full() || !budget.allows(batch) {
                return again;
            }
            let first = ring.owned(self.transmit.next).filter(|_| self.transmit.in_flight < ring.len);
            let Some(first) = first else { return idle };
            let (count, errors) = match self.take_packet(&ring, first, looped, batch, cx) {
                Walk::Full => return again,
                Walk::Taken(count) => (count, 0),
                Walk::Skipped => (1, 0),
                Walk::Dropped(count, errors) => (count, errors),
            };
            *walked += count;
            for left in (0..count).rev() {
                if left == 0 && errors != 0 {
                    self.transmit.errors.push((self.transmit.next, errors));
                }
                self.transmit.next = ring.after(self.transmit.next);
            }
            self.transmit.in_flight += count;
            if errors & UFLO != 0 && !self.has(r::CSR3, csr4::DXSUFLO) {
                self.registers[r::CSR0] &= !csr0::TXON;
                return idle;
            }
        }
    }

    /// Takes one packet, from its first descriptor to the one with ENP.
    fn take_packet(
        &mut self,
        ring: &Ring<'_>,
        first: Descriptor,
        looped: bool,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Walk {
        if first.status & STP == 0 {
            return Walk::Skipped;
        }
        let dropped = |reason, at, value, cx: &mut Context<'_>| {
            cx.drop_transmit(reason, ErrorPlace::transmit(0, at), value, expected(reason));
        };
        let mut pieces = ArrayVec::<(u64, u32), SPANS_PER_PACKET>::new();
        let (mut at, mut descriptor, mut count) = (self.transmit.next, first, 0);
        loop {
            count += 1;
            let fits = pieces.try_push((descriptor.address, descriptor.len)).is_ok();
            if fits && descriptor.status & ENP != 0 {
                break;
            }
            at = ring.after(at);
            // An incomplete or circular chain: the transmitter underflows (TMD2: BUFF, UFLO).
            let next = ring.owned(at).filter(|_| fits && self.transmit.in_flight + count < ring.len);
            let Some(next) = next else {
                let reason = if fits { Reason::BadDescriptor } else { Reason::TooManyPieces };
                dropped(reason, at, ring.status(at).into(), cx);
                return Walk::Dropped(count, BUFF | UFLO);
            };
            descriptor = next;
        }
        if !looped && !self.link_up {
            dropped(Reason::LinkDown, at, 0, cx);
            return Walk::Dropped(count, LCAR);
        }
        let was_empty = batch.is_empty();
        let Some(mut draft) = batch.draft(0) else { return Walk::Full };
        let mut left = pieces.iter().map(|(_, len)| len).sum::<u32>().saturating_sub(self.own_check(first));
        for (address, len) in pieces {
            let len = len.min(left);
            left -= len;
            match draft.push(address, len) {
                Ok(()) => {}
                Err(DraftError::BatchFull) if !was_empty => return Walk::Full,
                Err(error @ DraftError::Fault(_)) => {
                    dropped(error.into(), ring.find(self.transmit.next, address), address, cx);
                    return Walk::Dropped(count, UFLO);
                }
                Err(error) => {
                    dropped(error.into(), ring.find(self.transmit.next, address), len.into(), cx);
                    self.interrupts.raise(csr0::BABL.into());
                    return Walk::Dropped(count, 0);
                }
            }
        }
        if draft.len() < 14 {
            dropped(Reason::TooShort, self.transmit.next, draft.len().into(), cx);
            return Walk::Dropped(count, 0);
        }
        if self.has(r::CSR4, csr4::APAD_XMT) {
            draft.pad_to(60);
        }
        let len = draft.len();
        self.interrupts.raise(TXSTRT | if len > LONGEST { csr0::BABL.into() } else { 0 });
        if !looped {
            cx.counters.sent(0, 1, len.into());
        }
        self.tidings.carried(len.into());
        draft.finish_plain(0);
        Walk::Taken(count)
    }

    /// Bytes of a check sequence that the driver has appended itself (MODE.DXMTFCS; TMD1: ADD_FCS).
    fn own_check(&self, first: Descriptor) -> u32 {
        let added = first.status & ADD_FCS != 0 || self.has(r::CSR4, csr4::APAD_XMT);
        if self.has(r::MODE, mode::DXMTFCS) && !added { FCS } else { 0 }
    }

    /// Completes fetched descriptors, and interrupts if requested.
    pub(super) fn give_back(&mut self, cx: &mut Context<'_>) {
        if self.transmit.in_flight == 0 || !self.function.bus_master() {
            return;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let Ok(ring) = self.transmit_ring(&memory) else {
            self.blame_ring(TRANSMIT_RING, cx);
            self.transmit = Transmit::at(self.transmit.next);
            return;
        };
        let Transmit { next, done, in_flight, errors } = std::mem::take(&mut self.transmit);
        let (mut at, mut frames, mut last) = (done, 0, done);
        let mut errors = errors.into_iter().peekable();
        for _ in 0..in_flight {
            let status = ring.status(at);
            let bits = errors.next_if(|(index, _)| *index == at).map_or(0, |(_, bits)| bits);
            let ends = bits != 0 || status & ENP != 0;
            frames += u32::from(ends && self.interrupts_for(status, bits));
            ring.sent(at, status, bits);
            (last, at) = (at, ring.after(at));
        }
        self.transmit = Transmit::at(next);
        self.transmitted(frames, (last, ring.buffer(last)), ring.len, cx);
        self.poll_soon(cx);
    }
}
