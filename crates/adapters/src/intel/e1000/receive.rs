//! Receive: offloads, buffers, and the lone descriptor.

use nicety_adapter::{Context, Frames, Packet, Pick, Time, Wants};
use nicety_pci::Changes;

use super::E1000;
use super::registers::{self as r, cause};
use crate::intel::mac::receive::Route;
use crate::intel::mac::{Chip, Facts, Interrupting, Known};
use crate::intel::receive::{Format, Ring, buffer_size};

/// Time after a read of ICR in which a driver copies the frame in its lone descriptor, in nanoseconds.
const READS_NS: u64 = 200_000;

impl Chip for E1000 {
    const FACTS: Facts = Facts {
        wired: true,
        advanced: false,
        tags_by_mode: true,
        takes_lone: true,
        tells_udp: false,
        master_disable: 0,
        routes: Changes::INTX.union(Changes::POWER),
    };

    fn wants(&self, _queue: usize) -> Wants {
        // 16384 bytes with tag and check sequence.
        self.wants_by_mode(16_376)
    }

    fn shape(&self, _queue: usize) -> (Format, [u32; 4]) {
        (Format::Legacy, [buffer_size(self.registers[r::RCTL]), 0, 0, 0])
    }

    #[inline]
    fn steer(&mut self, _frames: &Frames<'_>, _pick: Pick, _packet: &Packet) -> Route {
        Route::default()
    }

    fn adjust(&self, ring: &mut Ring<'_>, now: Time) {
        if ring.lone {
            ring.tail = u32::from(!self.is_lone_unread(now));
        } else {
            ring.open_ended = ring.head < ring.size && ring.tail >= ring.size;
        }
    }

    fn threshold(&self, ring: &Ring<'_>, _queue: usize) -> u32 {
        ring.share(self.registers[r::RCTL])
    }

    /// RXO reports a frame in the lone descriptor.
    fn used(&mut self, ring: &Ring<'_>, cx: &mut Context<'_>) {
        if ring.lone && ring.free() == 0 && !self.is_lone_unread(cx.now) {
            self.cause(cause::RXO, cx);
        }
    }

    fn known_features(&self) -> Known {
        let own = [(self.loops(), "loopback")];
        self.features_by_mode(true).into_iter().chain(own).collect()
    }
}

impl E1000 {
    /// Whether the frame in the lone descriptor may be unread.
    fn is_lone_unread(&self, now: Time) -> bool {
        let pending = self.interrupts.pending() & u128::from(cause::RXO) != 0;
        pending || self.own.lone_read_by.is_some_and(|time| now < time)
    }

    /// A read of ICR, or a write to it, has cleared these causes. RXO reports a frame in the lone descriptor.
    pub(super) fn read_lone(&mut self, causes: u32, cx: &mut Context<'_>) {
        if causes & cause::RXO != 0 && self.has_lone() {
            self.own.lone_read_by = Some(cx.now.after_ns(READS_NS));
            self.rearm(cx);
        }
    }

    /// Frees the lone descriptor after that time.
    pub(super) fn free_lone(&mut self, cx: &mut Context<'_>) {
        if self.own.lone_read_by.is_some_and(|time| time <= cx.now) {
            self.own.lone_read_by = None;
            self.offer_room(1, cx);
        }
    }
}
