//! A chip whose positions in rings, slots and buffer are lost: the process that served it was killed, and its driver has gone on. No cause
//! of an interrupt makes Linux's drivers reset this chip. So the driver is brought to a place that is known.
//!
//! | | what it gets | what it does |
//! |---|---|---|
//! | 8139cp, receive | all descriptors but one as parts of a frame | drops them up to that one (cp_rx_poll), where the chip goes on |
//! | 8139cp, transmit | all descriptors completed | the next one that it fills is found by a look |
//! | 8139too, receive | a buffer of zeros | takes that for a damaged header, and restarts the receiver (rtl8139_rx, rtl8139_rx_err) |
//! | 8139too, transmit | all slots completed | the next one that it fills is found by a look |
//!
//! 8139cp drops only the descriptors between its position and that one. The others would stop the chip a round later. So the chip
//! receives nothing until the driver has polled once (its mask of ROK goes off and on): then it stands at that one, and the chip takes
//! the others back.

use std::sync::Arc;

use nicety_adapter::Context;
use nicety_memory::{Map, Rights};

use super::Rtl8139;
use super::registers::{self as r, cause, cr, tsd};
use super::ring::{self, EOR, FS, LS, OWN};
use super::slots::Slots;
use super::transmit::Transmit;

/// Time between two looks for the next descriptor or slot, in nanoseconds.
const LOOK_NS: u64 = 2_000_000;
/// Looks after which a driver that does not poll is not waited for any more: half a second.
const LOOKS_MAX: u32 = 250;
/// Bytes behind a buffer that a frame at its end may use.
const BEHIND: u32 = 16;

/// The receiver waits until the driver's poll ends at the descriptor where the chip goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meeting {
    /// The driver has masked ROK since, so it polls.
    is_polled: bool,
    looks: u32,
}

impl Rtl8139 {
    pub(super) fn lose_positions(&mut self, cx: &mut Context<'_>) {
        self.forget_fetched();
        self.starved = None;
        self.interrupts.show(&mut self.function, cx);
        let memory = Arc::clone(cx.memory);
        let (transmit_ring, receive_ring) = self.ring_mode();
        let mut causes = 0;
        if self.transmits() && self.function.bus_master() {
            match transmit_ring {
                true => {
                    give_all(&memory, self.transmit_address(), |_, first| first & !OWN);
                    self.registers[r::CR] &= !cr::TE;
                }
                false => self.registers.of_mut(r::TSD).iter_mut().for_each(|slot| *slot |= tsd::OWN | tsd::TOK),
            }
            self.seeks = true;
            causes |= cause::TOK;
        }
        if self.receives() && self.function.bus_master() {
            match receive_ring {
                true => {
                    // The driver stops at a descriptor that the chip owns. Behind frames that it has not taken yet, that is the chip's own.
                    let stop = ring::open(&memory, self.receive_address(), Rights::READ).ok();
                    let stop = stop.and_then(|window| first_owned(&window)).unwrap_or(0);
                    // Neither FS nor LS: a part of a frame. The buffer's length stays, for the chip takes some back.
                    give_all(&memory, self.receive_address(), |index, first| match index == stop {
                        true => first,
                        false => first & !(OWN | FS | LS),
                    });
                    self.next = stop;
                    self.meets = Some(Meeting { is_polled: false, looks: 0 });
                }
                false => self.fill_with_zeros(&memory),
            }
            causes |= cause::ROK;
        }
        // The driver's mask may be newer. One interrupt more is harmless.
        self.interrupts.enable(causes.into());
        self.cause(causes, cx);
        self.next_look = Some(cx.now);
        self.look(cx);
    }

    /// Until the driver restarts the receiver, the buffer is full.
    fn fill_with_zeros(&mut self, memory: &Map) {
        let (start, len) = (u64::from(self.registers[r::RBSTART]), self.buffer_bytes());
        let mut at = 0;
        while at < len + BEHIND {
            let part = (len + BEHIND - at).min(4096);
            // Memory that is not there is nobody's buffer.
            let _absent = memory.write(start + u64::from(at), &[0; 4096][..part as usize]);
            at += part;
        }
        let read_at = (self.registers[r::CAPR].wrapping_add(16) % len) & !3;
        self.registers[r::CBR] = (read_at + len - 4) % len;
    }

    /// The driver has written its mask. A poll that began after the descriptors were given back ends at the chip's own.
    pub(super) fn meet(&mut self, is_enabled: bool, cx: &mut Context<'_>) {
        match &mut self.meets {
            Some(meeting) if !is_enabled => meeting.is_polled = true,
            Some(Meeting { is_polled: true, .. }) => {
                self.meets = None;
                if let Ok(window) = ring::open(cx.memory, self.receive_address(), Rights::BOTH) {
                    for index in (0..=last(&window).unwrap_or(0)).filter(|index| ring::holds(&window, *index)) {
                        let at = index as usize * ring::DESCRIPTOR;
                        window.store_u32(at, window.load_u32(at) | OWN);
                    }
                }
                self.look_for_any_room(cx);
            }
            _ => {}
        }
    }

    /// Provokes the driver's poll. After too many looks without one, stops waiting for it.
    fn look_for_poll(&mut self, cx: &mut Context<'_>) {
        let Some(Meeting { looks, is_polled }) = &mut self.meets else { return };
        *looks += 1;
        if *looks > LOOKS_MAX {
            self.meets = None;
            self.look_for_any_room(cx);
        } else if !*is_polled {
            self.cause(cause::ROK, cx);
        }
    }

    /// Looks for positions that are lost, if it is time.
    pub(super) fn look(&mut self, cx: &mut Context<'_>) {
        if self.next_look.is_none_or(|at| at > cx.now) {
            return;
        }
        self.look_for_poll(cx);
        self.seek(cx);
        self.next_look = (self.seeks || self.meets.is_some()).then(|| cx.now.after_ns(LOOK_NS));
        self.rearm(cx);
    }

    /// Looks for the first descriptor or slot that the driver has filled since.
    fn seek(&mut self, cx: &mut Context<'_>) {
        if !self.seeks {
            return;
        }
        if self.ring_mode().0 {
            let memory = Arc::clone(cx.memory);
            let Ok(window) = ring::open(&memory, self.transmit_address(), Rights::READ) else { return };
            if let Some(index) = first_owned(&window) {
                self.transmit = Transmit::at(index, false);
                self.registers[r::CR] |= cr::TE;
                self.seeks = false;
                cx.out.work.insert(0);
            }
            return;
        }
        let slots = self.registers.of(r::TSD);
        let waits = |slot: usize| slots[slot % 4] & tsd::OWN == 0;
        if let Some(slot) = (0..4).find(|slot| waits(*slot) && !waits(slot + 3)).or((0..4).find(|slot| waits(*slot))) {
            self.slots = Slots::at(slot as u32);
            self.seeks = false;
            cx.out.work.insert(0);
        }
    }
}

/// The descriptor of the chip behind one of the driver's. `None` if all are owned by one of them.
fn first_owned(window: &nicety_memory::Window<'_>) -> Option<u32> {
    let end = last(window)?;
    let mut before = ring::is_owned(window, end);
    (0..=end).find(|index| {
        let is_owned = ring::is_owned(window, *index);
        let was_owned = std::mem::replace(&mut before, is_owned);
        is_owned && !was_owned
    })
}

/// The last descriptor of a ring.
fn last(window: &nicety_memory::Window<'_>) -> Option<u32> {
    let is_last =
        |index: &u32| !ring::holds(window, index + 1) || window.load_u32(*index as usize * ring::DESCRIPTOR) & EOR != 0;
    (0..ring::MAX).filter(|index| ring::holds(window, *index)).find(is_last)
}

/// Gives descriptors of a ring that the chip owns back to the driver.
fn give_all(memory: &Map, address: u64, word: impl Fn(u32, u32) -> u32) {
    let Ok(window) = ring::open(memory, address, Rights::BOTH) else { return };
    for index in 0..=last(&window).unwrap_or(0) {
        let at = index as usize * ring::DESCRIPTOR;
        if ring::is_owned(&window, index) {
            window.store_u32(at, word(index, window.load_u32(at)));
        }
    }
}
