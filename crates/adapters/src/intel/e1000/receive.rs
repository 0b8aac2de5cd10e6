//! The receive ring: see [`Ring`].

use nicety_adapter::{Context, Delivery, Frames, Reason, Scratch, Time, Wants};
use nicety_memory::Rights;

use super::registers::{self as r, cause, ctrl, rctl, rxcsum};
use super::{E1000, RECEIVE_RING};
use crate::intel::RECEIVE_RING_EXPECTED;
use crate::intel::fault::Fault;
use crate::intel::receive::{Format, Miss, Offer, Receiver, Ring, Verdict, buffer_size};
use crate::intel::{DESCRIPTOR, NOWHERE};

/// Time after a read of ICR in which a driver copies the frame in its lone descriptor, in nanoseconds.
const READS_NS: u64 = 200_000;

impl E1000 {
    /// Whether the receive ring is a lone descriptor: RDLEN reads as 0, RDT is 1.
    fn has_lone(&self) -> bool {
        [r::RDLEN, r::RDH, r::RDT].map(|name| self.registers[name]) == [0, 0, 1]
    }

    /// Whether the frame in the lone descriptor may be unread.
    fn is_lone_unread(&self, now: Time) -> bool {
        let pending = self.interrupts.pending() & u128::from(cause::RXO) != 0;
        pending || self.lone_read_by.is_some_and(|time| now < time)
    }

    /// A read of ICR, or a write to it, has cleared these causes. RXO reports a frame in the lone descriptor.
    pub(super) fn read_lone(&mut self, causes: u32, cx: &mut Context<'_>) {
        if causes & cause::RXO != 0 && self.has_lone() {
            self.lone_read_by = Some(cx.now.after_ns(READS_NS));
            self.rearm(cx);
        }
    }

    /// Frees the lone descriptor after that time.
    pub(super) fn free_lone(&mut self, cx: &mut Context<'_>) {
        if self.lone_read_by.is_some_and(|time| time <= cx.now) {
            self.lone_read_by = None;
            self.offer_room(cx);
        }
    }

    fn wants(&self) -> Wants {
        let long = self.registers[r::RCTL] & rctl::LPE != 0;
        Wants {
            // 16384 bytes with tag and check sequence, or Ethernet's standard.
            frame_max: if long { 16_376 } else { 1514 },
            strip: if self.registers[r::CTRL] & ctrl::VME != 0 { self.registers[r::VET] as u16 } else { 0 },
            verify: self.registers[r::RXCSUM] & rxcsum::TUOFL != 0,
            ..Wants::default()
        }
    }

    /// The guest has posted buffers, or enabled the receiver.
    pub(super) fn offer_room(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.starved) {
            cx.out.room.insert(0);
        }
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
        let base = u64::from(self.registers[r::RDBAH]) << 32 | u64::from(self.registers[r::RDBAL]);
        let on = self.registers[r::RCTL] & rctl::EN != 0 && self.function.bus_master();
        let lone = self.has_lone();
        let bytes = if lone { DESCRIPTOR as u32 } else { self.registers[r::RDLEN] };
        let open = || memory.window(base, bytes, Rights::BOTH).ok();
        let Some(window) = on.then(open).flatten() else {
            if on {
                let place = self.registers.table().error_place(r::RDBAL, 0);
                cx.guest_error(place, base, RECEIVE_RING_EXPECTED);
            }
            self.saw_ring(RECEIVE_RING, on.then_some(NOWHERE), cx);
            if !looped {
                frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            }
            return delivery;
        };
        let (size, head) = (bytes / DESCRIPTOR as u32, self.registers[r::RDH]);
        let mut ring = Ring {
            window,
            memory: &memory,
            size,
            head,
            tail: if lone { u32::from(!self.is_lone_unread(cx.now)) } else { self.registers[r::RDT] },
            format: Format::Legacy,
            buffers: [buffer_size(self.registers[r::RCTL]), 0, 0, 0],
            check: if self.registers[r::RCTL] & rctl::SECRC != 0 { 0 } else { 4 },
            small: false,
            lone,
            open_ended: !lone && head < size && self.registers[r::RDT] >= size,
            blamed: None,
        };
        let fault = if lone { None } else { Fault::seen(&self.registers, &ring, 0, cx) };
        self.saw_ring(RECEIVE_RING, fault, cx);
        let free = ring.free();
        let wants = self.wants();
        let mut scratch = Scratch::new();
        let mut full = frames.held.contains(0);
        let mut pause = None;
        for (i, pick, _) in frames.iter() {
            let offer = Offer { frames, pick, verdict: Verdict::default() };
            let (registers, filter) = (&mut self.registers, &self.filter);
            let mut receiver = Receiver { registers, filter, wants, looped, tells_udp: false, pause };
            let placed = if full {
                Err(Miss::NoRoom(pick.from.into()))
            } else {
                receiver.place(&mut ring, &offer, &mut scratch)
            };
            pause = receiver.pause;
            match placed {
                _ if looped => {}
                Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || ring.blame(0), None),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, 0, from);
                    full = true;
                }
            }
        }
        self.starved |= full;
        if let Some(quanta) = pause {
            self.pause.begin(quanta, self.phy.mode().0, cx.now);
            self.rearm(cx);
        }
        if lone && ring.free() < free {
            self.cause(cause::RXO, cx);
        }
        self.conclude(&ring, cx);
        delivery
    }

    /// Writes the head back and interrupts once.
    fn conclude(&mut self, ring: &Ring<'_>, cx: &mut Context<'_>) {
        let before = std::mem::replace(&mut self.registers[r::RDH], ring.head);
        if before == ring.head {
            return;
        }
        let few = if ring.crossed(before, self.registers[r::RCTL]) { cause::RXDMT0 } else { 0 };
        self.received(ring.small, few, cx);
    }
}
