//! The receive queues: legacy and advanced descriptors (82576 datasheet, 7.1.4 and 7.1.5), see [`Ring`].

use arrayvec::ArrayVec;
use nicety_adapter::{Context, Delivery, ErrorPlace, Frames, Reason, Scratch, Wants};
use nicety_memory::{Map, Rights};

use super::queues::Route;
use super::registers::{self as r, cause, ctrl, dctl, rctl, rxcsum};
use super::{Igb, stall_of};
use crate::intel::RECEIVE_RING_EXPECTED;
use crate::intel::fault::Fault;
use crate::intel::receive::{Miss, Offer, Receiver, Ring, buffer_size, shape};
use crate::intel::{DESCRIPTOR, NOWHERE};

/// Bytes of a frame check sequence.
const CHECK: u32 = 4;
/// Bytes of two tags.
const TAGS: u32 = 8;
/// Status: this packet has an arrival time stamp.
const STAMPED: u32 = 1 << 16;

/// The rings of a delivery, opened on demand.
struct Rings<'m> {
    memory: &'m Map,
    open: [Option<Ring<'m>>; r::QUEUES],
    /// Heads at the start, by queue.
    before: [u32; r::QUEUES],
}

impl Rings<'_> {
    /// The place of a queue's last loss, and the address there.
    #[cold]
    fn blame(&self, queue: usize) -> (ErrorPlace, u64) {
        let number = queue as u16;
        let ring = self.open.get(queue).and_then(Option::as_ref);
        ring.map_or((ErrorPlace::receive(number, 0), 0), |ring| ring.blame(number))
    }
}

impl Igb {
    fn wants(&self) -> Wants {
        let long = self.registers[r::RCTL] & rctl::LPE != 0;
        // RLPML counts tags and check sequence too (8.10.11), and a frame that exceeds the driver's buffers must not be delivered:
        // Linux's igb_set_rx_mode.
        let most = self.registers[r::RLPML].saturating_sub(CHECK + TAGS);
        Wants {
            frame_max: if long { most } else { 1514 },
            strip: if self.registers[r::CTRL] & ctrl::VME != 0 { self.registers[r::VET] as u16 } else { 0 },
            verify: self.registers[r::RXCSUM] & rxcsum::TUOFL != 0,
            ..Wants::default()
        }
    }

    /// Whether a queue may receive.
    pub(super) fn receives(&self, queue: usize) -> bool {
        let on = self.registers.of(r::RXDCTL).get(queue).is_some_and(|control| control & dctl::ENABLE != 0);
        on && self.registers[r::RCTL] & rctl::EN != 0
    }

    /// The guest has posted buffers, or enabled receivers.
    pub(super) fn offer_room(&mut self, queues: u32, cx: &mut Context<'_>) {
        let some = self.starved & queues;
        self.starved &= !queues;
        (0..r::QUEUES as u16).filter(|queue| some >> queue & 1 != 0).for_each(|queue| cx.out.room.insert(queue));
    }

    /// A queue's ring. `None` if it is off, or outside guest memory.
    fn ring<'m>(&mut self, queue: usize, memory: &'m Map, cx: &mut Context<'_>) -> Option<Ring<'m>> {
        if !self.receives(queue) || !self.may_dma() {
            self.saw_ring(stall_of(queue, false), None, cx);
            return None;
        }
        let of = |name| self.registers.of(name).get(queue).copied().unwrap_or(0);
        let (base, bytes) = (u64::from(of(r::RDBAH)) << 32 | u64::from(of(r::RDBAL)), of(r::RDLEN));
        let (format, buffers) = shape(of(r::SRRCTL), buffer_size(self.registers[r::RCTL] & !rctl::BSEX));
        let (head, tail) = (of(r::RDH), of(r::RDT));
        let check = if self.registers[r::RCTL] & rctl::SECRC != 0 { 0 } else { CHECK };
        let window = memory.window(base, bytes, Rights::BOTH).ok();
        if window.is_none() {
            let place = self.registers.table().error_place(r::RDBAL, queue);
            cx.guest_error(place, base, RECEIVE_RING_EXPECTED);
        }
        let size = bytes / DESCRIPTOR as u32;
        let (small, lone, open_ended, blamed) = (false, false, false, None);
        let ring = window.map(|window| Ring {
            window,
            memory,
            size,
            head,
            tail,
            format,
            buffers,
            check,
            small,
            lone,
            open_ended,
            blamed,
        });
        let why = ring.as_ref().map_or(Some(NOWHERE), |ring| Fault::seen(&self.registers, ring, queue, cx));
        self.saw_ring(stall_of(queue, false), why, cx);
        ring
    }

    /// Receives frames from outside.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if !self.link_up || self.loops() {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.receive(frames, false, cx)
    }

    /// Receives the adapter's own frames in loopback. Those without room are lost, as in the chip.
    pub(super) fn receive_looped(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) {
        self.receive(frames, true, cx);
    }

    fn receive(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let mut rings = Rings { memory: &memory, open: Default::default(), before: [0; r::QUEUES] };
        let (mut refused, mut scratch) = (frames.held, Scratch::new());
        for (i, pick, packet) in frames.iter() {
            let route = self.steer(frames, pick, packet);
            let queue = route.queue;
            if refused.contains(queue as u16) {
                delivery.refuse(i, queue as u16, pick.from.into());
                self.starved |= 1 << queue;
                continue;
            }
            let offer = Offer { frames, pick, verdict: route.verdict };
            match self.place(&mut rings, route, offer, looped, &mut scratch, cx) {
                _ if looped => {}
                Ok((frames, bytes)) => cx.counters.received(queue as u16, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || rings.blame(queue), None),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, queue as u16, from);
                    refused.insert(queue as u16);
                    self.starved |= 1 << queue;
                }
            }
        }
        self.conclude(&rings, cx);
        delivery
    }

    fn place(
        &mut self,
        rings: &mut Rings<'_>,
        route: Route,
        mut offer: Offer<'_, '_>,
        looped: bool,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
    ) -> Result<(u64, u64), Miss> {
        let off = Miss::Never(Reason::ReceiverOff);
        let queue = route.queue;
        if rings.open.get(queue).is_some_and(Option::is_none)
            && let Some(ring) = self.ring(queue, rings.memory, cx)
        {
            rings.before[queue] = ring.head;
            rings.open[queue] = Some(ring);
        }
        let ring = rings.open.get_mut(queue).and_then(Option::as_mut).ok_or(off)?;
        let stamp = self.is_timed(&offer, route.timed);
        if stamp {
            offer.verdict.status |= STAMPED;
        }
        let wants = self.wants();
        let (registers, filter) = (&mut self.registers, &self.filter);
        let mut receiver = Receiver { registers, filter, wants, looped, tells_udp: true, pause: None };
        let placed = receiver.place(ring, &offer, scratch);
        if let Some(quanta) = receiver.pause {
            self.pause.begin(quanta, self.phy.mode().0, cx.now);
            self.rearm(cx);
        }
        let placed = placed?;
        if stamp {
            self.note_arrival(&offer, cx);
        }
        Ok(placed)
    }

    /// Writes the heads back and interrupts once.
    fn conclude(&mut self, rings: &Rings<'_>, cx: &mut Context<'_>) {
        let (mut arrived, mut few) = (0, 0);
        let open: ArrayVec<_, { r::QUEUES }> =
            rings.open.iter().enumerate().filter_map(|(queue, ring)| Some((queue, ring.as_ref()?))).collect();
        for (queue, ring) in open {
            let before = rings.before[queue];
            if before == ring.head {
                continue;
            }
            self.registers.of_mut(r::RDH)[queue] = ring.head;
            arrived |= 1 << queue;
            // RDMTS, in units of 16 descriptors.
            let threshold = (self.registers.of(r::SRRCTL)[queue] >> 20 & 0x1f) * 16;
            let had = (ring.tail + ring.size - before) % ring.size.max(1);
            if had > threshold && ring.free() <= threshold {
                few = cause::RXDMT0;
            }
        }
        if arrived != 0 {
            self.received(arrived, few, cx);
        }
    }
}
