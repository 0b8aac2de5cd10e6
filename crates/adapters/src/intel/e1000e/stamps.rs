//! Time stamps of frames (datasheet, 7.9 and 10.2.9): one at a time in each direction, until its registers have been read.

use nicety_adapter::{Context, Frames, Pick};
use nicety_frame::L4Kind;

use super::E1000e;
use super::registers::{self as r, Reg};
use crate::intel::ptp::Message;

/// TSYNCTXCTL, TSYNCRXCTL: a stamp is valid.
const VALID: u32 = 1;
/// The same registers: stamps are enabled.
const ENABLED: u32 = 1 << 4;
/// TSYNCRXCTL: every frame is stamped (type 4 in bits 3:1).
const ALL: u32 = 4 << 1;
/// A received frame's status: it has a stamp.
const TST: u32 = 1 << 8;

impl E1000e {
    /// Stamps a sent packet that requests it.
    pub(super) fn stamp_sent(&mut self, cx: &Context<'_>) {
        if self.registers[r::TSYNCTXCTL] & (ENABLED | VALID) == ENABLED {
            self.stamp(r::TSYNCTXCTL, [r::TXSTMPL, r::TXSTMPH], cx);
        }
    }

    /// Stamps a received frame if it is selected.
    pub(super) fn stamp_received(&mut self, frames: &Frames<'_>, pick: Pick, cx: &Context<'_>) {
        self.stamp(r::TSYNCRXCTL, [r::RXSTMPL, r::RXSTMPH], cx);
        if let Some(packet) = frames.batch.packet(pick.packet) {
            let message = Message::of(frames.batch.head(packet), frames.batch.layout(packet));
            [self.registers[r::RXSATRL], self.registers[r::RXSATRH]] = message.source();
        }
    }

    fn stamp(&mut self, control: Reg, [low, high]: [Reg; 2], cx: &Context<'_>) {
        let value = self.clock.value(cx.now);
        (self.registers[low], self.registers[high]) = (value as u32, (value >> 32) as u32);
        self.registers[control] |= VALID;
    }

    /// The status bit of a frame that gets a stamp if it is accepted; 0 for others. RXMTRL selects PTP over Ethernet, RXUDP, whose
    /// bytes are in network order, PTP over UDP.
    pub(super) fn is_stamped(&self, frames: &Frames<'_>, pick: Pick) -> u32 {
        let control = self.registers[r::TSYNCRXCTL];
        if control & (ENABLED | VALID) != ENABLED {
            return 0;
        }
        let Some(packet) = frames.batch.packet(pick.packet) else { return 0 };
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
}
