//! The receive queue: the 82576's descriptors, see [`Ring`]. All frames go to queue 0, as they do while the physical function sorts
//! by address alone (7.1.1.2: VMDq without RSS).

use nicety_adapter::{Context, Delivery, ErrorPlace, Frames, Packet, Pick, Reason, Scratch, Unfolded, Wants};
use nicety_memory::{Map, Rights};

use super::registers::{self as r, dctl, rctl, vmolr};
use super::{IgbVf, stall_of};
use crate::intel::igb::queues::packet_type;
use crate::intel::receive::{Miss, Offer, Receiver, Ring, Verdict, shape};
use crate::intel::{DESCRIPTOR, NOWHERE, RECEIVE_RING_EXPECTED};

/// Bytes of a frame check sequence, which VMOLR.RLPML counts.
const CHECK: u32 = 4;
/// Bytes that a tag of the switch adds.
const TAG: u32 = 4;
/// Buffer size if SRRCTL names none (RCTL.BSIZE of the physical function).
const USUAL_BUFFER: u32 = 2048;

impl IgbVf {
    /// Bytes of the longest frame in the guest's memory. It must be obeyed: Linux's buffers have no more, whatever SRRCTL says
    /// (igbvf_change_mtu, igbvf_setup_srrctl).
    fn frame_max(&self) -> u32 {
        (self.registers[r::VMOLR] & vmolr::RLPML).saturating_sub(CHECK)
    }

    fn wants(&self) -> Wants {
        let strips = self.registers[r::VMOLR] & vmolr::STRVLAN != 0;
        Wants {
            frame_max: self.frame_max(),
            strip: if strips { self.registers[r::VET] as u16 } else { 0 },
            verify: true,
            ..Wants::default()
        }
    }

    /// Whether a packet has no frame that exceeds the limit. [`Wants::frame_max`] does not count tags; the chip does.
    fn fits(&self, frames: &Frames<'_>, pick: Pick, packet: &Packet) -> bool {
        let most = self.frame_max();
        if packet.offload.segment.is_none() && packet.len() + TAG <= most {
            return true;
        }
        match Unfolded::new(frames, pick, self.wants()) {
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

    /// The guest has posted buffers, or enabled the receiver.
    pub(super) fn offer_room(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.starved) {
            cx.out.room.insert(0);
        }
    }

    /// The ring. `None` if it is off, or outside guest memory.
    fn ring<'m>(&mut self, memory: &'m Map, cx: &mut Context<'_>) -> Option<Ring<'m>> {
        if !self.receives(0) || !self.function.bus_master() {
            self.saw_ring(stall_of(0, false), None, cx);
            return None;
        }
        let registers = &self.registers;
        let base = u64::from(registers[r::RDBAH]) << 32 | u64::from(registers[r::RDBAL]);
        let (bytes, head, tail) = (registers[r::RDLEN], registers[r::RDH], registers[r::RDT]);
        let (format, buffers) = shape(registers[r::SRRCTL], USUAL_BUFFER);
        let window = memory.window(base, bytes, Rights::BOTH).ok();
        if window.is_none() {
            let place = registers.table().error_place(r::RDBAL, 0);
            cx.guest_error(place, base, RECEIVE_RING_EXPECTED);
        }
        self.saw_ring(stall_of(0, false), window.is_none().then_some(NOWHERE), cx);
        let (size, check, small, lone, blamed) = (bytes / DESCRIPTOR as u32, 0, false, false, None);
        Some(Ring { window: window?, memory, size, head, tail, format, buffers, check, small, lone, blamed })
    }

    /// Receives frames.
    pub(super) fn deliver_frames(&mut self, frames: &Frames<'_>, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        let memory = std::sync::Arc::clone(cx.memory);
        let ring = if self.link_up { self.ring(&memory, cx) } else { None };
        let Some(mut ring) = ring else {
            frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            return delivery;
        };
        let (before, wants, mut scratch) = (ring.head, self.wants(), Scratch::new());
        let mut refused = frames.held.contains(0);
        for (i, pick, packet) in frames.iter() {
            if refused {
                delivery.refuse(i, 0, pick.from.into());
                continue;
            }
            let placed = if self.fits(frames, pick, packet) {
                let information = packet_type(frames.batch.layout(packet));
                let offer = Offer { frames, pick, verdict: Verdict { information, ..Verdict::default() } };
                let (registers, filter) = (&mut self.registers, &self.filter);
                let (looped, tells_udp, pause) = (false, true, None);
                Receiver { registers, filter, wants, looped, tells_udp, pause }.place(&mut ring, &offer, &mut scratch)
            } else {
                Err(Miss::Never(Reason::TooLong))
            };
            match placed {
                Ok((frames, bytes)) => cx.counters.received(0, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || blame(&ring), None),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, 0, from);
                    refused = true;
                }
            }
        }
        self.starved |= refused;
        let head = ring.head;
        if head != before {
            self.registers[r::RDH] = head;
            self.count_received();
            self.received(cx);
        }
        delivery
    }

    /// Moves what the receiver has counted to the function's counters, which wrap. Multicast counts broadcasts, too.
    fn count_received(&mut self) {
        let names = [r::GPRC, r::GORCL, r::MPRC, r::BPRC];
        let [frames, octets, multicast, broadcast] = names.map(|name| std::mem::take(&mut self.registers[name]));
        let counts = [(r::VFGPRC, frames), (r::VFGORC, octets), (r::VFMPRC, multicast.wrapping_add(broadcast))];
        for (name, count) in counts {
            self.registers[name] = self.registers[name].wrapping_add(count);
        }
        self.registers[r::GORCH] = 0;
    }
}

#[cold]
fn blame(ring: &Ring<'_>) -> (ErrorPlace, u64) {
    ring.blame(0)
}
