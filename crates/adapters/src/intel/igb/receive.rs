//! Receive: offloads, descriptor formats and arrival times (82576 datasheet, 7.1 and 7.9).

use nicety_adapter::{Frames, Packet, Pick, Time, Wants};

use super::Igb;
use super::registers::{self as r, ctrl, dctl, rctl};
use crate::intel::mac::receive::Route;
use crate::intel::mac::{Chip, Facts, Known, ROUTES};
use crate::intel::ptp::Message;
use crate::intel::receive::{Format, Offer, Ring, buffer_size, shape};

/// Bytes of a frame check sequence, and of two tags.
const CHECK_AND_TAGS: u32 = 4 + 8;
/// Status: this packet has an arrival time stamp.
const STAMPED: u32 = 1 << 16;

impl Chip for Igb {
    const FACTS: Facts = Facts {
        wired: true,
        advanced: true,
        tags_by_mode: false,
        takes_lone: false,
        tells_udp: true,
        // 8.2.1: GIO Master Disable.
        master_disable: ctrl::MASTER_DISABLE,
        routes: ROUTES,
    };

    /// RLPML counts tags and check sequence too (8.10.11), and a frame that exceeds the driver's buffers must not be delivered:
    /// Linux's igb_set_rx_mode.
    fn wants(&self, _queue: usize) -> Wants {
        self.wants_by_mode(self.registers[r::RLPML].saturating_sub(CHECK_AND_TAGS))
    }

    fn shape(&self, queue: usize) -> (Format, [u32; 4]) {
        let control = self.registers.of(r::SRRCTL).get(queue).copied().unwrap_or(0);
        shape(control, buffer_size(self.registers[r::RCTL] & !rctl::BSEX))
    }

    #[inline]
    fn steer(&mut self, frames: &Frames<'_>, pick: Pick, packet: &Packet) -> Route {
        self.route_of(frames, pick, packet)
    }

    /// IEEE 1588 messages that a filter has found (7.9.3, 8.16.1).
    #[inline]
    fn stamp_status(&self, offer: &Offer<'_, '_>, timed: bool) -> u32 {
        if !timed || !self.may_stamp(r::TSYNCRXCTL) {
            return 0;
        }
        let Some(packet) = offer.frames.batch.packet(offer.pick.packet) else { return 0 };
        let message = Message::of(offer.frames.batch.head(packet), offer.frames.batch.layout(packet));
        let wanted = self.registers[r::TSYNCRXCFG];
        let is_asked = message.is_asked(self.registers[r::TSYNCRXCTL], wanted as u8, (wanted >> 8) as u8);
        if is_asked { STAMPED } else { 0 }
    }

    fn clock(&self, now: Time) -> u64 {
        self.own.clock.value(now)
    }

    /// RDMTS, in units of 16 descriptors.
    fn threshold(&self, _ring: &Ring<'_>, queue: usize) -> u32 {
        (self.registers.of(r::SRRCTL)[queue] >> 20 & 0x1f) * 16
    }

    fn known_features(&self) -> Known {
        let queues = self.registers.of(r::RXDCTL).iter().filter(|control| *control & dctl::ENABLE != 0).count();
        let own = [(self.registers[r::MRQC] & 7 == 2, "rss"), (queues > 1, "mq"), (self.loops(), "loopback")];
        self.features_by_mode(self.registers[r::RLPML] > 1600).into_iter().chain(own).collect()
    }
}
