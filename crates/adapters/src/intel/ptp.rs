//! IEEE 1588 messages in frames, as selected for time stamps (82574 datasheet, 7.9 and 10.2.9; 82576 datasheet, 7.9.3 and 8.16).

use nicety_frame::{L4Kind, Layout};

/// Selected messages: TSYNCRXCTL 3:1.
mod asked {
    /// Version 2 over Ethernet, of one type.
    pub const ETHERNET_V2: u32 = 0;
    /// Version 1 over UDP, of one control field.
    pub const UDP_V1: u32 = 1;
    /// Version 2 over either, of one type.
    pub const V2: u32 = 2;
    /// Every frame.
    pub const ALL: u32 = 4;
    /// Version 2 over either, every event message.
    pub const EVENTS_V2: u32 = 5;
}

/// The message of a frame, if it has one.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    head: &'a [u8],
    at: usize,
    udp: bool,
}

impl<'a> Message<'a> {
    /// Its offset in the frame, and whether UDP carries it.
    pub fn of(head: &'a [u8], layout: &Layout) -> Self {
        match layout.l4.filter(|l4| l4.kind == L4Kind::Udp) {
            Some(udp) => Self { head, at: usize::from(udp.offset + udp.len), udp: true },
            None => Self { head, at: usize::from(layout.l2_len).min(head.len()), udp: false },
        }
    }

    fn byte(&self, offset: usize) -> Option<u8> {
        self.head.get(self.at + offset).copied()
    }

    /// Its type, in version 2.
    pub fn kind(&self) -> Option<u8> {
        self.byte(0).map(|byte| byte & 0xf)
    }

    /// Whether TSYNCRXCTL selects this message. `control` and `kind`: the control field and the type that another register names.
    pub fn is_asked(&self, tsyncrxctl: u32, control: u8, kind: u8) -> bool {
        let same = self.kind() == Some(kind & 0xf);
        match tsyncrxctl >> 1 & 7 {
            asked::ETHERNET_V2 => !self.udp && same,
            asked::UDP_V1 => self.udp && self.byte(32) == Some(control),
            asked::V2 => same,
            asked::ALL => true,
            asked::EVENTS_V2 => self.kind().is_some_and(|kind| kind < 8),
            _ => false,
        }
    }

    /// RXSATRL and RXSATRH: its source, and its sequence number.
    pub fn source(&self) -> [u32; 2] {
        let byte = |offset| self.byte(offset).unwrap_or(0);
        [u32::from_le_bytes([22, 23, 24, 25].map(byte)), u32::from_le_bytes([26, 27, 30, 31].map(byte))]
    }
}
