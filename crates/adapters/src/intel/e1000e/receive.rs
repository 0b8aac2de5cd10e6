//! The two receive rings (datasheet, 7.1): selection of a frame's ring, and descriptor formats. See [`Ring`].

use nicety_adapter::{Context, Delivery, Frames, Pick, Reason, Scratch, Set, Wants};
use nicety_memory::{Map, Rights};

use super::E1000e;
use super::registers::{self as r, ctrl, rctl, rfctl, rxcsum};
use crate::intel::RECEIVE_RING_EXPECTED;
use crate::intel::fault::Fault;
use crate::intel::receive::{Format, Miss, Offer, Receiver, Ring, Verdict, buffer_size};
use crate::intel::rss::Rss;
use crate::intel::{DESCRIPTOR, NOWHERE};

impl E1000e {
    fn wants(&self) -> Wants {
        let long = self.registers[r::RCTL] & rctl::LPE != 0;
        Wants {
            // 16 KiB with tag and check sequence, or Ethernet's standard.
            frame_max: if long { 16_376 } else { 1514 },
            strip: if self.registers[r::CTRL] & ctrl::VME != 0 { self.registers[r::VET] as u16 } else { 0 },
            verify: self.registers[r::RXCSUM] & rxcsum::TUOFL != 0,
            ..Wants::default()
        }
    }

    /// Format of descriptors, and bytes of their buffers (10.2.5: RCTL.DTYP, BSIZE, FLXBUF; RFCTL.EXTEN; PSRCTL).
    fn format(&self) -> (Format, [u32; 4]) {
        let control = self.registers[r::RCTL];
        if self.registers[r::RFCTL] & rfctl::EXTEN != 0 && control & rctl::SPLIT != 0 {
            let sizes = self.registers[r::PSRCTL];
            let kib = |shift: u32| (sizes >> shift & 0x3f) << 10;
            return (Format::Split, [(sizes & 0x7f) << 7, kib(8), kib(16), kib(24)]);
        }
        let extended = self.registers[r::RFCTL] & rfctl::EXTEN != 0;
        let flexible = control >> rctl::FLXBUF & 0xf;
        let size = if flexible == 0 { buffer_size(control) } else { flexible << 10 };
        (if extended { Format::Extended } else { Format::Legacy }, [size, 0, 0, 0])
    }

    /// The guest has posted buffers in a queue, or enabled the receiver.
    pub(super) fn offer_room(&mut self, queue: usize, cx: &mut Context<'_>) {
        if self.starved.get_mut(queue).is_some_and(std::mem::take) {
            cx.out.room.insert(queue as u16);
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

    /// A ring in its present state, if it can be walked.
    fn open<'m>(&mut self, queue: usize, memory: &'m Map, cx: &mut Context<'_>) -> Option<Ring<'m>> {
        let of = |name| self.registers.of(name).get(queue).copied().unwrap_or(0);
        let base = u64::from(of(r::RDBAH)) << 32 | u64::from(of(r::RDBAL));
        let Ok(window) = memory.window(base, of(r::RDLEN), Rights::BOTH) else {
            let place = self.registers.table().error_place(r::RDBAL, queue);
            cx.guest_error(place, base, RECEIVE_RING_EXPECTED);
            self.saw_ring(2 * queue, Some(NOWHERE), cx);
            return None;
        };
        let (format, buffers) = self.format();
        let ring = Ring {
            window,
            memory,
            size: of(r::RDLEN) / DESCRIPTOR as u32,
            head: of(r::RDH) & units(format),
            tail: of(r::RDT) & units(format),
            format,
            buffers,
            check: if self.registers[r::RCTL] & rctl::SECRC != 0 { 0 } else { 4 },
            small: false,
            lone: false,
            open_ended: false,
            blamed: None,
        };
        let fault = Fault::seen(&self.registers, &ring, queue, cx);
        self.saw_ring(2 * queue, fault, cx);
        Some(ring)
    }

    /// A frame's queue, and the hash fields of its descriptor (7.1.11).
    fn steer(&mut self, frames: &Frames<'_>, pick: Pick) -> (usize, Verdict) {
        let on = self.registers[r::MRQC] & 3 == 1;
        let Some(packet) = frames.batch.packet(pick.packet).filter(|_| on) else { return (0, Verdict::default()) };
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let hash = self.rss.hash(&self.registers, head, layout);
        if hash.kind == 0 {
            return (0, Verdict::default());
        }
        let queue = usize::from(Rss::entry(&self.registers, hash.value) >> 7);
        if self.registers[r::RXCSUM] & rxcsum::PCSD == 0 {
            return (queue, Verdict::default());
        }
        let information = hash.kind | (queue as u32) << 8;
        (queue, Verdict { information, hash: hash.value, ..Verdict::default() })
    }

    fn receive(&mut self, frames: &Frames<'_>, looped: bool, cx: &mut Context<'_>) -> Delivery {
        let mut delivery = Delivery::default();
        if self.registers[r::RCTL] & rctl::EN == 0 || !self.masters() {
            if !looped {
                frames.iter().for_each(|_| cx.counters.receive_drop(Reason::ReceiverOff));
            }
            return delivery;
        }
        let memory = std::sync::Arc::clone(cx.memory);
        let wants = self.wants();
        let mut scratch = Scratch::new();
        let mut rings: [Option<Ring<'_>>; r::QUEUES] = [None, None];
        let (mut looked, mut full, mut pause) = (Set::default(), frames.held, None);
        for (i, pick, _) in frames.iter() {
            let (queue, verdict) = self.steer(frames, pick);
            let number = queue as u16;
            let Some(slot) = rings.get_mut(queue) else { continue };
            if !looked.contains(number) {
                looked.insert(number);
                *slot = self.open(queue, &memory, cx);
            }
            let Some(ring) = slot else {
                if !looped {
                    cx.counters.receive_drop(Reason::ReceiverOff);
                }
                continue;
            };
            let stamp = self.is_stamped(frames, pick);
            let verdict = Verdict { status: stamp, ..verdict };
            let registers = &mut self.registers;
            let mut receiver = Receiver { registers, filter: &self.filter, wants, looped, tells_udp: true, pause };
            let placed = if full.contains(number) {
                Err(Miss::NoRoom(pick.from.into()))
            } else {
                receiver.place(ring, &Offer { frames, pick, verdict }, &mut scratch)
            };
            pause = receiver.pause;
            if placed.is_ok() && stamp != 0 {
                self.stamp_received(frames, pick, cx);
            }
            match placed {
                _ if looped => {}
                Ok((frames, bytes)) => cx.counters.received(number, frames, bytes),
                Err(Miss::Never(reason)) => cx.drop_receive(reason, || ring.blame(number), None),
                Err(Miss::NoRoom(from)) => {
                    delivery.refuse(i, number, from);
                    full.insert(number);
                    self.starved[queue] = true;
                }
            }
        }
        for (queue, ring) in rings.iter().enumerate() {
            if let Some(ring) = ring {
                self.conclude(queue, ring, cx);
            }
        }
        if let Some(quanta) = pause {
            self.pause.begin(quanta, self.phy.mode().0, cx.now);
            self.rearm(cx);
        }
        delivery
    }

    /// Writes the head back and interrupts once.
    fn conclude(&mut self, queue: usize, ring: &Ring<'_>, cx: &mut Context<'_>) {
        let Some(head) = self.registers.of_mut(r::RDH).get_mut(queue) else { return };
        let before = *head & units(ring.format);
        if before == ring.head {
            return;
        }
        *head = ring.head;
        let few = ring.crossed(before, self.registers[r::RCTL]);
        self.received(queue, ring.small, few, cx);
    }
}

/// The bits that count in a ring position: descriptors of 32 bytes start at even units.
fn units(format: Format) -> u32 {
    if format == Format::Split { !1 } else { !0 }
}
