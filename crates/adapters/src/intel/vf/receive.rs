//! The receive queues: the 82576's and the 82599's descriptors, see [`Ring`]. An 82576's function has its frames in queue 0, as long
//! as the physical function sorts by address alone (7.1.1.2: VMDq without RSS). An 82599's driver may have two queues, between
//! which the physical function's hash decides (82599 datasheet, 7.1.2.8).

use arrayvec::ArrayVec;
use nicety_adapter::{Context, Delivery, ErrorPlace, Frames, Packet, Pick, Reason, Scratch, Set, Unfolded, Wants};
use nicety_memory::{Map, Rights};

use super::registers::{self as r, RXDCTL_VME, dctl, psrtype, rctl, vmolr};
use super::{VirtualFunction, stall_of};
use crate::intel::fault::Fault;
use crate::intel::igb::queues::packet_type;
use crate::intel::receive::{Format, Miss, Offer, Receiver, Ring, Verdict, shape};
use crate::intel::rss::Rss;
use crate::intel::{DESCRIPTOR, NOWHERE, RECEIVE_RING_EXPECTED};

/// Bytes of a frame check sequence, which VMOLR.RLPML counts.
const CHECK: u32 = 4;
/// Bytes that a tag of the switch adds.
const TAG: u32 = 4;
/// Buffer size if SRRCTL names none (RCTL.BSIZE of the physical function).
const USUAL_BUFFER: u32 = 2048;
/// Queues that get frames.
const SPREAD: usize = 2;

/// The rings of a delivery, opened on demand.
struct Rings<'m> {
    memory: &'m Map,
    open: [Option<Ring<'m>>; SPREAD],
    /// Heads at the start.
    before: [u32; SPREAD],
}

impl VirtualFunction {
    /// Bytes of the longest frame in the guest's memory. It must be obeyed: Linux's buffers have no more, whatever SRRCTL says
    /// (igbvf_change_mtu, igbvf_setup_srrctl).
    fn frame_max(&self) -> u32 {
        (self.registers[r::VMOLR] & vmolr::RLPML).saturating_sub(CHECK)
    }

    /// Whether a queue's tags are stripped.
    pub(super) fn strips(&self, queue: usize) -> bool {
        if self.model.ten_gigabit {
            self.registers.of(r::RXDCTL).get(queue).is_some_and(|control| control & RXDCTL_VME != 0)
        } else {
            self.registers[r::VMOLR] & vmolr::STRVLAN != 0
        }
    }

    /// Whether frames are spread over two queues.
    pub(super) fn spreads(&self) -> bool {
        self.model.ten_gigabit && self.registers[r::PSRTYPE] & psrtype::TWO_QUEUES != 0
    }

    fn wants(&self, queue: usize) -> Wants {
        Wants {
            frame_max: self.frame_max(),
            strip: if self.strips(queue) { self.registers[r::VET] as u16 } else { 0 },
            verify: true,
            ..Wants::default()
        }
    }

    /// Whether a packet has no frame that exceeds the limit. [`Wants::frame_max`] does not count tags; the chip does.
    fn fits(&self, frames: &Frames<'_>, pick: Pick, packet: &Packet, wants: Wants) -> bool {
        let most = self.frame_max();
        if packet.offload.segment.is_none() && packet.len() + TAG <= most {
            return true;
        }
        match Unfolded::new(frames, pick, wants) {
            Ok(unfolded) => unfolded.wanted().next().is_none_or(|first| unfolded.len(first) <= most),
            // The receiver finds the reason.
            Err(_) => true,
        }
    }

    /// Whether a queue may receive.
    pub(super) fn receives(&self, queue: usize) -> bool {
        let on = self.registers.of(r::RXDCTL).get(queue).is_some_and(|control| control & dctl::ENABLE != 0);
        on && self.registers[r::RCTL] & rctl::EN != 0
    }

    /// The guest has posted buffers in these queues, or enabled them.
    pub(super) fn offer_room(&mut self, queues: u32, cx: &mut Context<'_>) {
        let some = self.starved & queues;
        self.starved &= !queues;
        (0..SPREAD as u16).filter(|queue| some >> queue & 1 != 0).for_each(|queue| cx.out.room.insert(queue));
    }

    /// A queue's ring. `None` if it is off, or outside guest memory.
    fn ring<'m>(&mut self, queue: usize, memory: &'m Map, cx: &mut Context<'_>) -> Option<Ring<'m>> {
        if !self.receives(queue) || !self.function.bus_master() {
            self.saw_ring(stall_of(queue, false), None, cx);
            return None;
        }
        let of = |name| self.registers.of(name).get(queue).copied().unwrap_or(0);
        let base = u64::from(of(r::RDBAH)) << 32 | u64::from(of(r::RDBAL));
        let (bytes, head, tail) = (of(r::RDLEN), of(r::RDH), of(r::RDT));
        let (mut format, buffers) = shape(of(r::SRRCTL), USUAL_BUFFER);
        if self.model.ten_gigabit {
            format = Format::Extended10G;
        }
        let window = memory.window(base, bytes, Rights::BOTH).ok();
        if window.is_none() {
            let place = self.registers.table().error_place(r::RDBAL, queue);
            cx.guest_error(place, base, RECEIVE_RING_EXPECTED);
        }
        let (size, check, small, lone, open_ended, blamed) = (bytes / DESCRIPTOR as u32, 0, false, false, false, None);
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

    /// A packet's queue, and the fields of its descriptor that are known before.
    fn steer(&mut self, frames: &Frames<'_>, packet: &Packet) -> (usize, Verdict) {
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let mut verdict = Verdict { information: packet_type(layout), ..Verdict::default() };
        if !self.model.ten_gigabit {
            return (0, verdict);
        }
        let hash = self.rss.hash(&self.registers, head, layout);
        verdict.information |= hash.kind;
        verdict.hash = hash.value;
        let spread = hash.kind != 0 && self.spreads();
        let queue = if spread { usize::from(Rss::entry(&self.registers, hash.value) & 1) } else { 0 };
        (queue, verdict)
    }

    /// Receives frames.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        if !self.link_up {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return delivery;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let mut rings = Rings { memory: &memory, open: Default::default(), before: [0; SPREAD] };
        let (mut refused, mut scratch): (Set, _) = (frames.held, Scratch::new());
        for (i, pick, packet) in frames.iter() {
            let (queue, verdict) = self.steer(frames, packet);
            if refused.contains(queue as u16) {
                delivery.refuse(i, queue as u16, pick.from.into());
                self.starved |= 1 << queue;
                continue;
            }
            let offer = Offer { frames, pick, verdict };
            match self.place(&mut rings, queue, packet, &offer, &mut scratch, cx) {
                Ok((frames, bytes)) => cx.counters.received(queue as u16, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || blame(&rings, queue), None),
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
        queue: usize,
        packet: &Packet,
        offer: &Offer<'_, '_>,
        scratch: &mut Scratch,
        cx: &mut Context<'_>,
    ) -> Result<(u64, u64), Miss> {
        if rings.open.get(queue).is_some_and(Option::is_none)
            && let Some(ring) = self.ring(queue, rings.memory, cx)
        {
            rings.before[queue] = ring.head;
            rings.open[queue] = Some(ring);
        }
        let ring = rings.open.get_mut(queue).and_then(Option::as_mut).ok_or(Miss::Never(Reason::ReceiverOff))?;
        let wants = self.wants(queue);
        if !self.fits(offer.frames, offer.pick, packet, wants) {
            return Err(Miss::Never(Reason::TooLong));
        }
        let (registers, filter) = (&mut self.registers, &self.filter);
        Receiver { registers, filter, wants, looped: false, tells_udp: true, pause: None }.place(ring, offer, scratch)
    }

    /// Writes the heads back, counts, and interrupts once.
    fn conclude(&mut self, rings: &Rings<'_>, cx: &mut Context<'_>) {
        let heads: ArrayVec<u32, SPREAD> = (rings.open.iter().zip(rings.before))
            .map(|(ring, before)| ring.as_ref().map_or(before, |ring| ring.head))
            .collect();
        let mut arrived = 0;
        for (queue, (head, before)) in heads.into_iter().zip(rings.before).enumerate() {
            if head != before {
                self.registers.of_mut(r::RDH)[queue] = head;
                arrived |= 1 << queue;
            }
        }
        if arrived != 0 {
            self.count_received();
            self.received(arrived, cx);
        }
    }

    /// Moves what the receiver has counted to the function's counters, which wrap. Multicast counts broadcasts, too.
    fn count_received(&mut self) {
        let names = [r::GPRC, r::GORCL, r::MPRC, r::BPRC];
        let [frames, octets, multicast, broadcast] = names.map(|name| std::mem::take(&mut self.registers[name]));
        self.registers[r::GORCH] = 0;
        self.count(r::VFGPRC, frames);
        self.count_octets(r::VFGORC, r::VFGORCH, octets);
        self.count(r::VFMPRC, multicast.wrapping_add(broadcast));
    }
}

/// The place of a queue's last loss, and the address there.
#[cold]
fn blame(rings: &Rings<'_>, queue: usize) -> (ErrorPlace, u64) {
    let ring = rings.open.get(queue).and_then(Option::as_ref);
    ring.map_or((ErrorPlace::receive(queue as u16, 0), 0), |ring| ring.blame(queue as u16))
}
