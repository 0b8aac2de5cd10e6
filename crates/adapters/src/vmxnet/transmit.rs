//! Transmit: entries become packets, and are completed (`Vmxnet2_TxRingEntry`).
//!
//! ```text
//! entry, 64 bytes:  00 flags  02 ownership  04 extra  08 tsoMss  0c addrType  0e length  10 six pieces: address 48 bits, length 16
//! ```
//! A packet has one entry, or several of which all but the last have MORE; its first entry is handed to the device last.
//!
//! The doorbell is a read, and the guest waits for it. The driver rings when `txNumDeferred` reaches `txClusterLength`, which the
//! device writes: [`NEVER_SOON`] while the ring is served. Before the device leaves the ring it writes 0 and checks the ring once
//! more. x86 may let the driver read the old number before its entry is visible, so a timer checks again [`RECHECK_NS`] later.

use std::collections::VecDeque;

use nicety_adapter::interrupts::CompletionDelay;
use nicety_adapter::{
    Batch, Budget, Checksum, Context, Draft, DraftError, ErrorPlace, Offload, PACKETS, Progress, Reason, Segment,
    SegmentKind, Time,
};
use nicety_frame::{Fragment, L4Kind, Layout, checksum, ethernet};
use nicety_memory::{Rights, Window, full_barrier};

use super::shared::{Ring, Shared, owner};
use super::{Vmxnet, broken};

/// `txClusterLength` while the ring is served: frames until the driver rings anyway.
const NEVER_SOON: u32 = 1024;
/// Delay from arming to the second check of the ring.
const RECHECK_NS: u64 = 50_000;
/// Maximum bytes of headers of a packet to be segmented.
const TSO_HEAD: usize = 256;
/// Pieces of an entry (VMXNET2_SG_DEFAULT_LENGTH).
const PIECES: usize = 6;
/// NET_SG_PHYS_ADDR.
const PHYSICAL: u16 = 1;

/// VMXNET2_TX_*. CAN_KEEP, RING_LOW and PINNED_BUFFER are ignored: see the page of [`super`].
const HW_XSUM: u16 = 1 << 2;
const TSO: u16 = 1 << 3;
const MORE: u16 = 1 << 5;

/// A fetched packet that is not completed yet.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    entries: u16,
    /// It is in a batch. Otherwise it was dropped, and is completed with its predecessor.
    in_batch: bool,
}

/// State of the transmitter.
#[derive(Clone, Debug, Default)]
pub struct Transmit {
    /// The next entry to fetch.
    pub next: u32,
    /// The first entry fetched and not completed; `next` if there is none.
    done: u32,
    /// Number of entries fetched and not completed.
    in_flight: u32,
    /// `txClusterLength` is [`NEVER_SOON`].
    pub quiet: bool,
    /// Time of the next check of the ring.
    pub recheck: Option<Time>,
    /// Completions that wait for an interrupt.
    pub completions: CompletionDelay,
    fetched: VecDeque<Fetched>,
    /// Number of the first of `fetched`; a packet's number is its cookie.
    first: u64,
}

impl Transmit {
    /// The state at this entry, with nothing fetched, and with room for a ring of `len`.
    pub fn at(done: u32, len: u32) -> Self {
        Self { next: done, done, fetched: VecDeque::with_capacity(len as usize), ..Self::default() }
    }

    /// The first entry that is not completed.
    pub fn position(&self) -> u32 {
        self.done
    }
}

/// An entry.
struct Entry {
    flags: u16,
    mss: u32,
    kind: u16,
    pieces: u16,
    bytes: [u8; 64],
}

impl Entry {
    fn read(shared: &Window<'_>, at: usize) -> Self {
        let bytes: [u8; 64] = shared.read(at);
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let mss = u32::from(half(10)) << 16 | u32::from(half(8));
        Self { flags: half(0), mss, kind: half(12), pieces: half(14), bytes }
    }

    /// Its pieces: address and bytes.
    fn pieces(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let (pieces, _) = self.bytes[16..].as_chunks::<8>();
        pieces.iter().take(usize::from(self.pieces)).map(|piece| {
            let all = u64::from_le_bytes(*piece);
            (all & 0xffff_ffff_ffff, (all >> 48) as u32)
        })
    }
}

/// Result of one fetch step.
enum Step {
    /// No complete packet is available; this many entries were read in vain.
    Empty(u32),
    /// A packet was taken, or dropped and counted.
    Taken,
    /// The batch has no room for it.
    Full,
    /// A packet without a last entry.
    Broken,
}

fn is_owned(shared: &Window<'_>, place: usize) -> bool {
    shared.load_u16(place + 2) == owner::NIC
}

/// Entries of a dropped packet that are searched for the wrong one.
const BLAMED_MAX: u32 = 64;
/// The expectation of an entry.
const ENTRY: &str = "a physical address list (NET_SG_PHYS_ADDR) of at most 4 pieces; the value: length, address type";

impl Vmxnet {
    /// Walks the ring into a batch.
    pub(super) fn fetch_ring(&mut self, budget: Budget, batch: &mut Batch, cx: &mut Context<'_>) -> Progress {
        let idle = Progress { more: false, armed: true };
        batch.generation = self.generation;
        let Some(setup) = self.running().filter(|_| self.stalls[super::TRANSMIT_RING].is_none()) else { return idle };
        self.transmit.recheck = None;
        let Ok(shared) = setup.open(cx.memory) else {
            self.stall(super::TRANSMIT_RING, broken::NOWHERE, cx);
            return idle;
        };
        let mut taken = 0;
        let progress = loop {
            if !budget.allows(batch) || taken >= 2 * PACKETS {
                break Progress { more: true, armed: false };
            }
            match self.step(&shared, setup.transmit, batch, cx) {
                Step::Taken => {
                    taken += 1;
                    self.set_quiet(true, &shared);
                }
                Step::Full => break Progress { more: true, armed: false },
                Step::Empty(walked) if taken == 0 => {
                    cx.out.charge(walked);
                    break self.arm(&shared, setup.transmit, cx);
                }
                Step::Empty(_) => break Progress { more: true, armed: false },
                Step::Broken => {
                    self.stall(super::TRANSMIT_RING, broken::NO_END, cx);
                    break idle;
                }
            }
        };
        if batch.is_empty() {
            // No completion call will return dropped packets.
            self.give_back(None, cx);
        }
        progress
    }

    /// The ring is empty: makes sure that the driver rings the doorbell.
    fn arm(&mut self, shared: &Shared<'_>, ring: Ring, cx: &mut Context<'_>) -> Progress {
        if self.transmit.quiet {
            self.set_quiet(false, shared);
            full_barrier();
            if is_owned(shared.window(), ring.place(self.transmit.next)) {
                return Progress { more: true, armed: false };
            }
            self.transmit.recheck = Some(cx.now.after_ns(RECHECK_NS));
            self.schedule(cx);
        }
        Progress { more: false, armed: true }
    }

    fn set_quiet(&mut self, quiet: bool, shared: &Shared<'_>) {
        if self.transmit.quiet != quiet {
            self.transmit.quiet = quiet;
            shared.set_cluster(if quiet { NEVER_SOON } else { 0 });
        }
    }

    /// Takes one packet.
    fn step(&mut self, shared: &Shared<'_>, ring: Ring, batch: &mut Batch, cx: &mut Context<'_>) -> Step {
        let window = shared.window();
        let (mut at, left) = (self.transmit.next, ring.len - self.transmit.in_flight.min(ring.len));
        if left == 0 || !is_owned(window, ring.place(at)) {
            return Step::Empty(0);
        }
        let was_empty = batch.is_empty();
        let first = Entry::read(window, ring.place(at));
        let Some(mut draft) = batch.draft(if first.flags & TSO != 0 { TSO_HEAD } else { 0 }) else { return Step::Full };
        let mut fault = append(&mut draft, &first);
        let (mut more, mut entries) = (first.flags & MORE != 0, 1);
        while more {
            if entries >= left {
                return Step::Broken;
            }
            at = ring.after(at);
            if !is_owned(window, ring.place(at)) {
                return Step::Empty(entries);
            }
            let entry = Entry::read(window, ring.place(at));
            fault = fault.and_then(|()| append(&mut draft, &entry));
            (more, entries) = (entry.flags & MORE != 0, entries + 1);
        }
        let sent = match fault {
            Err(Fault::Draft(DraftError::BatchFull)) if !was_empty => return Step::Full,
            Err(fault) => Err(fault.into()),
            Ok(()) => self.finish(draft, &first, cx),
        };
        if let Err(reason) = sent {
            self.dropped(reason, window, ring, entries, cx);
            cx.out.charge(entries);
        }
        self.transmit.fetched.push_back(Fetched { entries: entries as u16, in_batch: sent.is_ok() });
        (self.transmit.next, self.transmit.in_flight) = (ring.after(at), self.transmit.in_flight + entries);
        Step::Taken
    }

    /// Counts a dropped packet, and notes its driver's mistake: the first of its entries that is wrong by itself, or its first.
    #[cold]
    fn dropped(&self, reason: Reason, window: &Window<'_>, ring: Ring, entries: u32, cx: &mut Context<'_>) {
        let first = self.transmit.next;
        let mut at = first;
        let mut found = (first, u64::from(Entry::read(window, ring.place(first)).flags), None);
        for _ in 0..entries.min(BLAMED_MAX) {
            let entry = Entry::read(window, ring.place(at));
            if reason == Reason::BadDescriptor && (entry.kind != PHYSICAL || usize::from(entry.pieces) > PIECES) {
                found = (at, u64::from(entry.pieces) << 16 | u64::from(entry.kind), Some(ENTRY));
                break;
            }
            let readable = |(address, len)| cx.memory.translate(address, len, Rights::READ, |_| true).is_ok();
            if reason == Reason::BadAddress
                && let Some((address, _)) = entry.pieces().find(|&piece| !readable(piece))
            {
                found = (at, address, None);
                break;
            }
            at = ring.after(at);
        }
        let (at, value, expected) = found;
        cx.drop_transmit(reason, ErrorPlace::transmit(0, at), value, expected);
    }

    /// Adds a complete packet to the batch.
    fn finish(&mut self, mut draft: Draft<'_>, first: &Entry, cx: &mut Context<'_>) -> Result<(), Reason> {
        if draft.len() < ethernet::HEADER_LEN as u32 {
            return Err(Reason::TooShort);
        }
        if !self.link_up {
            return Err(Reason::LinkDown);
        }
        let offload = offload(&mut draft, first)?;
        draft.pad_to(ethernet::FRAME_LEN_MIN);
        let len = draft.len();
        let frames = offload.segment.map_or(1, |segment| segment.frames(len));
        draft.finish(offload, self.transmit.first + self.transmit.fetched.len() as u64)?;
        cx.counters.sent(0, frames.into(), len.into());
        self.tidings.carried(len.into());
        Ok(())
    }

    /// Completes entries up to packet `last`, and dropped packets right after it. Their interrupt is coalesced, unless the driver
    /// waits for them.
    pub(super) fn give_back(&mut self, last: Option<u64>, cx: &mut Context<'_>) {
        let Some(setup) = self.running().filter(|_| !self.transmit.fetched.is_empty()) else { return };
        let Ok(shared) = setup.open(cx.memory) else {
            return self.stall(super::TRANSMIT_RING, broken::NOWHERE, cx);
        };
        let (ring, transmit) = (setup.transmit, &mut self.transmit);
        let mut packets = 0;
        while let Some(&Fetched { entries, in_batch }) = transmit.fetched.front() {
            if in_batch && last.is_none_or(|last| transmit.first > last) {
                break;
            }
            transmit.fetched.pop_front();
            transmit.first += 1;
            transmit.in_flight -= u32::from(entries);
            packets += 1;
            for _ in 0..entries {
                shared.window().store_u16(ring.place(transmit.done) + 2, owner::DRIVER);
                transmit.done = ring.after(transmit.done);
            }
        }
        if packets == 0 {
            return;
        }
        let most = ring.len / 4;
        transmit.completions.wait(packets, 3 * most, 0, cx.now);
        full_barrier();
        // A driver that waits for room gets it by the quarter, and at the end.
        if shared.is_stopped() {
            let drained = !is_owned(shared.window(), ring.place(transmit.next));
            transmit.completions.wait(0, if drained { 0 } else { most }, 0, cx.now);
        }
        self.time_passed(cx);
    }

    /// Whether the driver has not reclaimed all entries before one that precedes the uncompleted ones, or waits for some; also true
    /// if the ring cannot be read.
    pub(super) fn has_completions(&self, before: u32, cx: &Context<'_>) -> bool {
        let Some(setup) = self.running() else { return true };
        let Ok(shared) = setup.open(cx.memory) else { return true };
        let (len, done) = (setup.transmit.len, self.transmit.done);
        let behind = |index: u32| (done + len - index.min(len)) % len;
        behind(shared.driver_cur()) > behind(before) || shared.is_stopped()
    }

    /// Whether an entry is available.
    pub(super) fn has_work(&self, cx: &Context<'_>) -> bool {
        let Some(setup) = self.running() else { return false };
        let place = setup.transmit.place(self.transmit.next);
        setup.open(cx.memory).is_ok_and(|shared| is_owned(shared.window(), place))
    }
}

/// Why an entry's pieces cannot be part of a packet.
enum Fault {
    Draft(DraftError),
    /// An unknown address type, or more pieces than an entry has.
    Entry,
}

impl From<Fault> for Reason {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Draft(error) => error.into(),
            Fault::Entry => Self::BadDescriptor,
        }
    }
}

/// Appends an entry's pieces.
fn append(draft: &mut Draft<'_>, entry: &Entry) -> Result<(), Fault> {
    if entry.kind != PHYSICAL || usize::from(entry.pieces) > PIECES {
        return Err(Fault::Entry);
    }
    entry.pieces().try_for_each(|(address, len)| draft.push(address, len)).map_err(Fault::Draft)
}

/// The first entry's request as a neutral offload. It has no offsets: the device parses the packet itself.
fn offload(draft: &mut Draft<'_>, first: &Entry) -> Result<Offload, Reason> {
    if first.flags & (HW_XSUM | TSO) == 0 {
        return Ok(Offload::default());
    }
    let (len, head) = (draft.len(), draft.head_mut());
    let layout = Layout::parse(head);
    if first.flags & TSO != 0 {
        let mss = u16::try_from(first.mss).map_err(|_| Reason::BadOffload)?;
        let (start, field) = prepare(head, &layout, len).ok_or(Reason::BadOffload)?;
        let segment = Segment::of(SegmentKind::Tcp, mss, layout.headers_len, len).ok_or(Reason::BadOffload)?;
        return Ok(Offload { checksum: Checksum::Partial { start, field }, segment: Some(segment) });
    }
    let (start, field) = begin_checksum(head, &layout).ok_or(Reason::BadOffload)?;
    Ok(Offload { checksum: Checksum::Partial { start, field }, segment: None })
}

/// Completes the headers of a packet to be segmented into those of one big packet. Returns the start of its checksummed range, and
/// the checksum's place.
fn prepare(head: &mut [u8], layout: &Layout, len: u32) -> Option<(u16, u16)> {
    let l4 = layout.l4.filter(|l4| l4.kind == L4Kind::Tcp && len >= u32::from(layout.headers_len))?;
    Some((l4.offset, checksum::prepare(head, layout, len)?))
}

/// Overwrites the checksum field with the sum of the pseudo-header: no document says what a driver leaves there.
fn begin_checksum(head: &mut [u8], layout: &Layout) -> Option<(u16, u16)> {
    let l4 = layout.l4.filter(|_| layout.l3.is_some_and(|l3| l3.fragment == Fragment::Whole))?;
    let covered = u32::try_from(layout.l4_total_len(head)?).ok()?;
    let partial = checksum::pseudo(head, layout, covered)?.fold();
    let field = l4.checksum_at();
    head.get_mut(field..field + 2)?.copy_from_slice(&partial.to_be_bytes());
    Some((l4.offset, u16::try_from(field).ok()?))
}
