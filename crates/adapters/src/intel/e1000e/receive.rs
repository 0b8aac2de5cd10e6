//! Selection of a frame's receive ring, descriptor formats, and arrival times (datasheet, 7.1 and 7.9).

use nicety_adapter::{Frames, Packet, Pick, Time, Wants};
use nicety_frame::L4Kind;

use super::E1000e;
use super::registers::{self as r, ctrl, rctl, rfctl, rxcsum};
use crate::intel::mac::receive::Route;
use crate::intel::mac::{Chip, Facts, Known, ROUTES};
use crate::intel::ptp::Message;
use crate::intel::receive::{Format, Offer, Ring, Verdict, buffer_size};
use crate::intel::rss::Rss;

/// TSYNCRXCTL: every frame is stamped (type 4 in bits 3:1).
const ALL: u32 = 4 << 1;
/// A received frame's status: it has a stamp.
const TST: u32 = 1 << 8;

impl Chip for E1000e {
    const FACTS: Facts = Facts {
        wired: true,
        advanced: false,
        tags_by_mode: true,
        takes_lone: false,
        tells_udp: true,
        master_disable: ctrl::MASTER_DISABLE,
        routes: ROUTES,
    };

    fn wants(&self, _queue: usize) -> Wants {
        // 16 KiB with tag and check sequence.
        self.wants_by_mode(16_376)
    }

    /// 10.2.5: RCTL.DTYP, BSIZE, FLXBUF; RFCTL.EXTEN; PSRCTL.
    fn shape(&self, _queue: usize) -> (Format, [u32; 4]) {
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

    /// The hash selects the queue (7.1.11).
    #[inline]
    fn steer(&mut self, frames: &Frames<'_>, _pick: Pick, packet: &Packet) -> Route {
        if self.registers[r::MRQC] & 3 != 1 {
            return Route::default();
        }
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let hash = self.rss.hash(&self.registers, head, layout);
        if hash.kind == 0 {
            return Route::default();
        }
        let queue = usize::from(Rss::entry(&self.registers, hash.value) >> 7);
        let mut verdict = Verdict::default();
        if self.registers[r::RXCSUM] & rxcsum::PCSD != 0 {
            verdict.information = hash.kind | (queue as u32) << 8;
            verdict.hash = hash.value;
        }
        Route { queue, verdict, timed: false }
    }

    /// RXMTRL selects PTP over Ethernet, RXUDP, whose bytes are in network order, PTP over UDP.
    #[inline]
    fn stamp_status(&self, offer: &Offer<'_, '_>, _timed: bool) -> u32 {
        if !self.may_stamp(r::TSYNCRXCTL) {
            return 0;
        }
        let (frames, control) = (offer.frames, self.registers[r::TSYNCRXCTL]);
        let Some(packet) = frames.batch.packet(offer.pick.packet) else { return 0 };
        let (head, layout) = (frames.batch.head(packet), frames.batch.layout(packet));
        let message = Message::of(head, layout);
        let [ethertype, port] = [self.registers[r::RXMTRL] as u16, self.registers[r::RXUDP] as u16];
        let word = |at: usize| head.get(at..at + 2).map(|two| [two[0], two[1]]);
        let found = match layout.l4.filter(|l4| l4.kind == L4Kind::Udp) {
            Some(udp) => word(usize::from(udp.offset) + 2).map(u16::from_le_bytes) == Some(port),
            None => word(12 + 4 * layout.tag_count()).map(u16::from_be_bytes) == Some(ethertype),
        };
        let [.., named, kind] = self.registers[r::RXMTRL].to_le_bytes();
        // Path delay requests and responses are stamped whatever message is selected (Linux's e1000e/netdev.c,
        // e1000e_config_hwtstamp).
        let delay =
            matches!(message.kind(), Some(2 | 3)) && message.is_asked(control, named, message.kind().unwrap_or(0));
        let asked = message.is_asked(control, named, kind) || delay;
        if asked && (found || control & 0xe == ALL) { TST } else { 0 }
    }

    fn clock(&self, now: Time) -> u64 {
        self.own.clock.value(now)
    }

    fn threshold(&self, ring: &Ring<'_>, _queue: usize) -> u32 {
        ring.share(self.registers[r::RCTL])
    }

    fn known_features(&self) -> Known {
        let own =
            [(self.registers[r::MRQC] & 3 == 1, "rss"), (self.has_vectors(), "msi-x"), (self.loops(), "loopback")];
        self.features_by_mode(true).into_iter().chain(own).collect()
    }
}
