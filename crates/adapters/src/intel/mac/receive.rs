//! The receive queues: see [`Ring`].

use nicety_adapter::{Context, Delivery, ErrorPlace, Frames, Packet, Reason, Scratch, Wants};
use nicety_memory::{Map, Rights, Translator};

use super::{Chip, Interrupting, Mac, Own, stall_of};
use crate::intel::fault::Fault;
use crate::intel::receive::{Format, Miss, Offer, Receiver, Ring, Verdict};
use crate::intel::registers::*;
use crate::intel::{DESCRIPTOR, NOWHERE, RECEIVE_RING_EXPECTED};

/// Bytes of a frame check sequence.
const CHECK: u32 = 4;

/// A frame's queue and descriptor fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Route {
    /// The queue.
    pub queue: usize,
    /// Information and hash for its descriptor.
    pub verdict: Verdict,
    /// A filter marks it as IEEE 1588.
    pub timed: bool,
}

/// Receive queues whose heads moved in a delivery: a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrived {
    /// All of them.
    pub queues: u32,
    /// Queues that have had few descriptors left since this delivery.
    pub few: u32,
    /// Queues in which a small frame arrived.
    pub small: u32,
}

/// A ring during a delivery.
struct Open<'m> {
    ring: Ring<'m>,
    wants: Wants,
    /// The head at the start.
    before: u32,
}

/// The rings of a delivery, opened on demand; `Some(None)` is one that takes no frames.
struct Rings<'m, const N: usize> {
    memory: &'m Map,
    open: [Option<Option<Open<'m>>>; N],
    /// Frames are the adapter's own, in loopback.
    looped: bool,
    scratch: Scratch,
}

impl<const N: usize> Rings<'_, N> {
    /// The place of a queue's last loss, and the address there.
    #[cold]
    fn blame(&self, queue: usize) -> (ErrorPlace, u64) {
        let number = queue as u16;
        let open = self.open.get(queue).and_then(|open| open.as_ref()?.as_ref());
        open.map_or((ErrorPlace::receive(number, 0), 0), |open| open.ring.blame(number))
    }
}

impl<O: Own, const N: usize> Mac<O, N>
where
    Self: Chip,
{
    /// Offloads of a chip whose CTRL.VME strips tags. `long`: bytes of the longest frame while RCTL.LPE is set.
    pub fn wants_by_mode(&self, long: u32) -> Wants {
        Wants {
            frame_max: if self.registers[RCTL] & rctl::LPE != 0 { long } else { 1514 },
            strip: if self.registers[CTRL] & ctrl::VME != 0 { self.registers[VET] as u16 } else { 0 },
            verify: self.registers[RXCSUM] & rxcsum::TUOFL != 0,
            ..Wants::default()
        }
    }

    /// Features in the modes of RXCSUM, CTRL and RCTL.
    pub fn features_by_mode(&self, jumbo: bool) -> [(bool, &'static str); 5] {
        let control = self.registers[RCTL];
        [
            (self.registers[RXCSUM] & rxcsum::TUOFL != 0, "rx-checksum"),
            (self.registers[CTRL] & ctrl::VME != 0, "vlan-strip"),
            (control & rctl::VFE != 0, "vlan-filter"),
            (control & rctl::LPE != 0 && jumbo, "jumbo"),
            (control & rctl::UPE != 0, "promiscuous"),
        ]
    }

    /// Whether a queue may receive.
    pub fn receives(&self, queue: usize) -> bool {
        let is_on = || self.registers.of(RXDCTL).get(queue).is_some_and(|control| control & dctl::ENABLE != 0);
        queue < N && self.registers[RCTL] & rctl::EN != 0 && (!Self::FACTS.advanced || is_on())
    }

    /// The guest has posted buffers in these queues, or enabled receivers.
    pub fn offer_room(&mut self, queues: u32, cx: &mut Context<'_>) {
        let mut some = self.starved & queues;
        self.starved &= !queues;
        while some != 0 {
            cx.out.room.insert(some.trailing_zeros() as u16);
            some &= some - 1;
        }
    }

    /// Whether a receive ring is a lone descriptor: RDLEN reads as 0, RDT is 1.
    pub fn has_lone(&self) -> bool {
        Self::FACTS.takes_lone && [RDLEN, RDH, RDT].map(|name| self.registers[name]) == [0, 0, 1]
    }

    /// A queue's ring in its present state. `None` if it is off, or outside guest memory.
    fn open<'m>(&mut self, queue: usize, memory: &'m Map, cx: &mut Context<'_>) -> Option<Open<'m>> {
        if !self.receives(queue) || !self.may_dma() {
            self.saw_ring(stall_of(queue, false), None, cx);
            return None;
        }
        let of = |name| self.registers.of(name).get(queue).copied().unwrap_or(0);
        let base = u64::from(of(RDBAH)) << 32 | u64::from(of(RDBAL));
        let lone = self.has_lone();
        let bytes = if lone { DESCRIPTOR as u32 } else { of(RDLEN) };
        let Ok(window) = memory.window(base, bytes, Rights::BOTH) else {
            cx.guest_error(self.registers.table().error_place(RDBAL, queue), base, RECEIVE_RING_EXPECTED);
            self.saw_ring(stall_of(queue, false), Some(NOWHERE), cx);
            return None;
        };
        let (format, buffers) = self.shape(queue);
        // Descriptors of 32 bytes start at even positions.
        let units = if format == Format::Split { !1 } else { !0 };
        let mut ring = Ring {
            window,
            memory,
            targets: Translator::new(memory),
            size: bytes / DESCRIPTOR as u32,
            head: of(RDH) & units,
            tail: of(RDT) & units,
            format,
            buffers,
            check: if self.registers[RCTL] & rctl::SECRC != 0 { 0 } else { CHECK },
            small: false,
            lone,
            open_ended: false,
            blamed: None,
        };
        self.adjust(&mut ring, cx.now);
        let fault = Fault::seen(&self.registers, &ring, queue, cx);
        self.saw_ring(stall_of(queue, false), fault, cx);
        Some(Open { before: ring.head, wants: self.wants(queue), ring })
    }

    /// Receives frames from outside.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        if !self.link_up || self.loops() {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return Delivery::default();
        }
        self.receive(frames, false, cx)
    }

    pub(super) fn receive(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let mut rings: Rings<'_, N> =
            Rings { memory: &memory, open: [const { None }; N], looped, scratch: Scratch::new() };
        let mut refused = frames.held;
        for (i, pick, packet) in frames.iter() {
            let route = self.steer(frames, pick, packet);
            let number = route.queue as u16;
            let placed = if refused.contains(number) {
                Err(Miss::NoRoom(pick.from.into()))
            } else {
                let offer = Offer { frames, pick, verdict: route.verdict };
                self.place(&mut rings, route, offer, packet, cx)
            };
            match placed {
                _ if looped => {}
                Ok((frames, bytes)) => cx.counters.received(number, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || rings.blame(route.queue), None),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, number, from);
                    refused.insert(number);
                    self.starved |= 1 << route.queue;
                }
            }
        }
        self.conclude(&rings, cx);
        delivery
    }

    #[inline]
    fn place(
        &mut self,
        rings: &mut Rings<'_, N>,
        route: Route,
        mut offer: Offer<'_, '_>,
        packet: &Packet,
        cx: &mut Context<'_>,
    ) -> Result<(u64, u64), Miss> {
        let off = Miss::Never(Reason::ReceiverOff);
        let open = rings.open.get_mut(route.queue).ok_or(off)?;
        if open.is_none() {
            *open = Some(self.open(route.queue, rings.memory, cx));
        }
        let Open { ring, wants, .. } = open.as_mut().and_then(Option::as_mut).ok_or(off)?;
        if !self.fits(&offer, packet, *wants) {
            return Err(Miss::Never(Reason::TooLong));
        }
        let stamp = self.stamp_status(&offer, route.timed);
        offer.verdict.status |= stamp;
        let (registers, filter) = (&mut self.registers, &self.filter);
        let (looped, tells_udp) = (rings.looped, Self::FACTS.tells_udp);
        let mut receiver = Receiver { registers, filter, wants: *wants, looped, tells_udp, pause: None };
        let placed = receiver.place(ring, &offer, &mut rings.scratch);
        if let Some(quanta) = receiver.pause {
            self.pause.begin(quanta, self.phy.mode().0, cx.now);
            self.rearm(cx);
        }
        if stamp != 0 && placed.is_ok() {
            self.note_arrival(&offer, cx);
        }
        placed
    }

    /// Writes the heads back and interrupts once.
    fn conclude(&mut self, rings: &Rings<'_, N>, cx: &mut Context<'_>) {
        let mut arrived = Arrived::default();
        for (queue, open) in rings.open.iter().enumerate() {
            let Some(Some(Open { ring, before, .. })) = open else { continue };
            self.used(ring, cx);
            if *before == ring.head {
                continue;
            }
            self.registers.of_mut(RDH)[queue] = ring.head;
            let is_few = ring.crossed(*before, self.threshold(ring, queue));
            arrived.queues |= 1 << queue;
            arrived.few |= u32::from(is_few) << queue;
            arrived.small |= u32::from(ring.small) << queue;
        }
        if arrived.queues != 0 {
            self.received(arrived, cx);
        }
    }
}
