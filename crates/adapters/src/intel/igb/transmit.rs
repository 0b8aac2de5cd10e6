//! The transmit queues: legacy and advanced descriptors (82576 datasheet, 7.2.2), see [`Sender`]; and loopback.
//!
//! ```text
//!  63                                   32 31          24 23  20 19            0
//! | buffer address                                                              |  advanced data
//! | PAYLEN | POPTS | CC | IDX | status    | command      | type 3 | MAC | length |
//! | sequence number seed                  | VLAN   | MACLEN | IPLEN             |  context
//! | MSS | L4LEN | IDX                     | DEXT         | type 2 | TUCMD        |
//! ```
//! A queue keeps two contexts; IDX in a packet's first data descriptor selects one.

use nicety_adapter::{Batch, Budget, Context, Frames, PACKETS, Pick, PortId, Progress};
use serde::{Deserialize, Serialize};

use super::registers::{self as r, dctl, rctl, tctl};
use super::{Igb, stall_of};
use crate::intel::flow;
use crate::intel::transmit::{self, Contexts, Descriptor, Request, Sender, Task, Transmit};

/// Bits 23:20: an advanced context.
const CONTEXT: u32 = 2;
/// Command: insert the context's tag.
const VLE: u32 = 1 << 30;
/// Command: segment.
const TSE: u32 = 1 << 31;
/// MAC: take a departure time stamp.
const STAMP: u32 = 1 << 19;
/// TDWBAL: write the head to memory.
const HEAD_WRITE_BACK: u32 = 1;

/// A context descriptor's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ContextFields {
    lengths: u32,
    command: u32,
    segments: u32,
}

/// The two contexts of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advanced([ContextFields; 2]);

impl ContextFields {
    /// Offsets of a packet: after MACLEN bytes an IP header of IPLEN bytes, then TCP, UDP or SCTP.
    fn task(self) -> Task {
        let mac = (self.lengths >> 9 & 0x7f) as u16;
        let ip = (self.lengths & 0x1ff) as u16;
        let (start, tcp) = (mac + ip, self.command >> 11 & 3 == 1);
        Task {
            ip_start: mac,
            ip_field: mac + 10,
            start,
            field: start + if tcp { 16 } else { 6 },
            end: 0,
            tcp,
            headers: start + (self.segments >> 8 & 0xff) as u16,
            mss: (self.segments >> 16) as u16,
        }
    }

    /// SCTP has another checksum (RFC 9260, appendix A).
    fn is_sctp(self) -> bool {
        self.command >> 11 & 3 == 2
    }
}

impl Contexts for Advanced {
    fn is_context(descriptor: Descriptor) -> bool {
        descriptor.lower >> 20 & 0xf == CONTEXT
    }

    fn data_len(descriptor: Descriptor) -> u32 {
        descriptor.lower & 0xffff
    }

    fn keep(&mut self, descriptor: Descriptor) {
        let fields =
            ContextFields { lengths: descriptor.address as u32, command: descriptor.lower, segments: descriptor.upper };
        self.0[(descriptor.upper >> 4 & 1) as usize] = fields;
    }

    fn request(&self, first: Descriptor) -> Request {
        let fields = self.0[(first.upper >> 4 & 1) as usize];
        let options = first.upper >> 8;
        let checksum = options & 2 != 0;
        let mut task = fields.task();
        if checksum && fields.is_sctp() {
            // Not supported: no packet has its checksum at offset 0.
            task.field = 0;
        }
        Request {
            segment: first.lower & TSE != 0,
            ip_checksum: options & 1 != 0,
            checksum,
            task,
            tag: (first.lower & VLE != 0).then_some((fields.lengths >> 16) as u16),
            stamp: first.lower & STAMP != 0,
        }
    }
}

/// A transmit queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransmitQueue {
    /// Its state.
    pub state: Transmit<Advanced>,
    /// Descriptors fetched earlier are discarded if this has changed.
    pub generation: u32,
}

impl TransmitQueue {
    /// Resets it.
    pub fn reset(&mut self) {
        *self = Self { state: Transmit::default(), generation: self.generation.wrapping_add(1) };
    }

    /// Discards descriptors that were fetched and not completed: the ring restarts at this head.
    pub fn restart(&mut self, head: u32) {
        self.generation = self.generation.wrapping_add(1);
        (self.state.next, self.state.skipping) = (head, false);
    }
}

/// Whether a queue is on, and the transmitter (8.12.15, 8.12.1).
pub fn transmits(registers: &r::Bank, queue: usize) -> bool {
    let on = registers.of(r::TXDCTL).get(queue).is_some_and(|control| control & dctl::ENABLE != 0);
    on && registers[r::TCTL] & tctl::EN != 0
}

/// Discards a queue's descriptors that were fetched and not completed: the ring restarts at TDH.
pub fn forget_fetched(queues: &mut [TransmitQueue], registers: &r::Bank, number: usize) {
    let head = registers.of(r::TDH).get(number).copied().unwrap_or(0);
    if let Some(queue) = queues.get_mut(number) {
        queue.restart(head);
    }
}

/// TDWBAL and TDWBAH (8.12.16): writes the head to the driver's memory.
pub fn write_head_back(registers: &r::Bank, queue: usize, cx: &mut Context<'_>) {
    let of = |name| registers.of(name).get(queue).copied().unwrap_or(0);
    let low = of(r::TDWBAL);
    if low & HEAD_WRITE_BACK == 0 {
        return;
    }
    let address = u64::from(of(r::TDWBAH)) << 32 | u64::from(low & !3);
    if cx.memory.write(address, &of(r::TDH).to_le_bytes()).is_err() {
        let place = registers.table().error_place(r::TDWBAL, queue);
        cx.guest_error(place, address, "an address in guest memory for the head's write-back (TDWBAL, TDWBAH)");
    }
}

impl Igb {
    /// Size in descriptors and first address of a queue's ring.
    pub(super) fn transmit_ring(&self, queue: usize) -> (u32, u64) {
        transmit::ring(&self.registers, queue)
    }

    fn sender(&mut self, queue: usize, looped: bool) -> Option<Sender<'_, Advanced>> {
        let state = &mut self.transmit.get_mut(queue)?.state;
        let (registers, link_up) = (&mut self.registers, self.link_up);
        Some(Sender {
            queue,
            state,
            registers,
            link_up,
            looped,
            tags_by_mode: false,
            stamped: false,
            takes_lone: false,
            checks_tags: false,
        })
    }

    /// Whether transmitted frames return to this adapter only.
    pub(super) fn loops(&self) -> bool {
        self.phy.loops() || self.registers[r::RCTL] & rctl::LBM != 0
    }

    /// Allocates a private batch before the first frame of a loopback.
    pub(super) fn prepare_loopback(&mut self) {
        if self.loops() && self.looped.is_none() {
            self.looped = Some(Box::default());
        }
    }

    /// Walks a ring into a batch. In loopback the batch is private, and is received at once.
    pub(super) fn fetch_ring(
        &mut self,
        queue: usize,
        budget: Budget,
        batch: &mut Batch,
        cx: &mut Context<'_>,
    ) -> Progress {
        batch.generation = self.transmit.get(queue).map_or(0, |queue| queue.generation);
        if !transmits(&self.registers, queue) || !self.may_dma() {
            return Progress { more: false, armed: true };
        }
        let own = if self.loops() { self.looped.take() } else { None };
        let Some(mut own) = own else {
            let progress = self.walk_ring(queue, budget, batch, false, cx);
            if batch.is_empty() {
                self.give_back(queue, cx);
            }
            return progress;
        };
        own.start(cx.memory, PortId::default(), 0);
        let progress = self.walk_ring(queue, budget, &mut own, true, cx);
        let mut picks = [Pick::whole(0); PACKETS];
        for (pick, packet) in picks.iter_mut().zip(0..) {
            pick.packet = packet;
        }
        let frames = Frames::new(&own, picks.get(..own.len()).unwrap_or_default());
        self.receive_looped(&frames, cx);
        own.release();
        self.looped = Some(own);
        self.give_back(queue, cx);
        progress
    }

    fn walk_ring(
        &mut self,
        queue: usize,
        budget: Budget,
        batch: &mut Batch,
        looped: bool,
        cx: &mut Context<'_>,
    ) -> Progress {
        let idle = Progress { more: false, armed: true };
        flow::send(&mut self.registers, self.link_up, looped, batch, cx.counters);
        if self.pause.holds(cx.now) {
            return idle;
        }
        let Some(mut sender) = self.sender(queue, looped) else { return idle };
        let (progress, why) = sender.walk(budget, batch, cx);
        let stamped = sender.stamped;
        self.saw_ring(stall_of(queue, true), why, cx);
        if stamped {
            self.note_departure(cx);
        }
        progress
    }

    /// Completes fetched descriptors, and interrupts if one of them requests it.
    pub(super) fn give_back(&mut self, queue: usize, cx: &mut Context<'_>) {
        if !self.may_dma() {
            return;
        }
        let Some(done) = self.sender(queue, false).map(|mut sender| sender.give_back(cx)) else { return };
        if done.any {
            write_head_back(&self.registers, queue, cx);
        }
        if done.reported > 0 {
            self.transmitted(queue, done.reported, cx);
        }
    }

    /// TXSTMP (7.9.3.2): stores a packet's departure time, unless the driver has not read the one before.
    fn note_departure(&mut self, cx: &mut Context<'_>) {
        const ENABLED: u32 = 1 << 4;
        const VALID: u32 = 1;
        if self.registers[r::TSYNCTXCTL] & (ENABLED | VALID) != ENABLED {
            return;
        }
        let now = self.clock.value(cx.now);
        (self.registers[r::TXSTMPL], self.registers[r::TXSTMPH]) = (now as u32, (now >> 32) as u32);
        self.registers[r::TSYNCTXCTL] |= VALID;
    }
}
