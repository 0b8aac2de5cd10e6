//! LACPDUs and markers: IEEE 802.1AX-2014, sections 6.4.2 and 6.5.3.
//!
//! ```text
//! 01 01                     subtype LACP, version
//! 01 14 actor               system priority 2, system 6, key 2, port priority 2, port 2, state 1, reserved 3
//! 02 14 partner             the same
//! 03 10 collector           maximum delay 2, reserved 12
//! 00 00, reserved 50        terminator
//! ```

use nicety_frame::Mac;

/// The group address of the slow protocols: IEEE 802.1AX-2014, table 6-2.
pub const DESTINATION: Mac = Mac([0x01, 0x80, 0xc2, 0, 0, 2]);
/// Their Ethernet type.
const SLOW: [u8; 2] = [0x88, 0x09];
/// Bytes of a PDU, and of a frame with it.
const PDU_BYTES: usize = 110;
/// Bytes of a frame with a PDU, without its check sequence.
pub const FRAME_BYTES: usize = 14 + PDU_BYTES;
const LACP: u8 = 1;
const MARKER: u8 = 2;
/// Types of a marker's TLV.
const MARKER_INFORMATION: u8 = 1;
const MARKER_RESPONSE: u8 = 2;
/// Places of the two ports' information in a PDU.
const ACTOR: usize = 4;
const PARTNER: usize = 24;

/// A port's state: section 6.4.2.3, `Actor_State`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State(pub u8);

impl State {
    /// It sends PDUs in any case; else only to a partner that does.
    pub const ACTIVITY: Self = Self(0x01);
    /// It wants a PDU each second; else each 30 seconds.
    pub const SHORT_TIMEOUT: Self = Self(0x02);
    /// It may be one of several; else it is a link by itself.
    pub const AGGREGATION: Self = Self(0x04);
    /// It is in the right aggregate.
    pub const SYNCHRONIZATION: Self = Self(0x08);
    /// It takes frames.
    pub const COLLECTING: Self = Self(0x10);
    /// It sends frames.
    pub const DISTRIBUTING: Self = Self(0x20);
    /// It has not heard its partner: what it says of it is a default.
    pub const DEFAULTED: Self = Self(0x40);
    /// It has not heard its partner lately.
    pub const EXPIRED: Self = Self(0x80);

    /// Whether it has all of these bits.
    pub fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// The state with these bits set or cleared.
    #[must_use]
    pub fn with(self, bits: Self, on: bool) -> Self {
        Self(if on { self.0 | bits.0 } else { self.0 & !bits.0 })
    }

    /// These bits of it.
    #[must_use]
    pub fn only(self, bits: Self) -> Self {
        Self(self.0 & bits.0)
    }
}

impl std::ops::BitOr for State {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A port, as a PDU describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Priority of its system; a lower number is preferred.
    pub system_priority: u16,
    /// Its system.
    pub system: Mac,
    /// Ports of one system with the same key may be aggregated.
    pub key: u16,
    /// Priority of the port.
    pub port_priority: u16,
    /// Number of the port.
    pub port: u16,
    /// Its state.
    pub state: State,
}

impl Info {
    /// A partner that is not known. It is taken to be ready, or a link without a partner would carry nothing.
    pub(crate) const DEFAULT: Self = Self {
        system_priority: 0,
        system: Mac([0; 6]),
        key: 0,
        port_priority: 0,
        port: 0,
        state: State(State::SYNCHRONIZATION.0 | State::COLLECTING.0 | State::DISTRIBUTING.0),
    };

    fn read(bytes: &[u8; 20]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let [_, _, a, b, c, d, e, f, ..] = *bytes;
        let system = Mac([a, b, c, d, e, f]);
        Self {
            system_priority: two(0),
            system,
            key: two(8),
            port_priority: two(10),
            port: two(12),
            state: State(bytes[14]),
        }
    }

    fn write(&self, bytes: &mut [u8]) {
        let Self { system_priority, system, key, port_priority, port, state } = self;
        let all = [
            &system_priority.to_be_bytes()[..],
            &system.0,
            &key.to_be_bytes(),
            &port_priority.to_be_bytes(),
            &port.to_be_bytes(),
            &[state.0],
        ];
        for (to, from) in bytes.iter_mut().zip(all.concat()) {
            *to = from;
        }
    }

    /// Whether it is the same port with the same parameters, but for its state, of which only the aggregation bit counts.
    pub(crate) fn is_same_link(&self, other: &Self) -> bool {
        let essence = |info: &Self| Self { state: info.state.only(State::AGGREGATION), ..*info };
        essence(self) == essence(other)
    }
}

/// An LACPDU's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The sender.
    pub actor: Info,
    /// The receiver, as the sender knows it.
    pub partner: Info,
}

impl Pdu {
    /// The frame that carries it.
    pub fn frame(&self, source: Mac) -> [u8; FRAME_BYTES] {
        let mut frame = header(source);
        let pdu = &mut frame[14..];
        pdu[..2].copy_from_slice(&[LACP, 1]);
        pdu[2..4].copy_from_slice(&[1, 20]);
        self.actor.write(&mut pdu[ACTOR..]);
        pdu[22..24].copy_from_slice(&[2, 20]);
        self.partner.write(&mut pdu[PARTNER..]);
        pdu[42..44].copy_from_slice(&[3, 16]);
        frame
    }
}

fn header(source: Mac) -> [u8; FRAME_BYTES] {
    let mut frame = [0; FRAME_BYTES];
    frame[..6].copy_from_slice(&DESTINATION.0);
    frame[6..12].copy_from_slice(&source.0);
    frame[12..14].copy_from_slice(&SLOW);
    frame
}

/// A frame of the slow protocols that concerns aggregation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An LACPDU.
    Lacp(Pdu),
    /// A marker, which asks for this answer: the same with another type (section 6.5.4). The source is to be filled in.
    Marker(Box<[u8; FRAME_BYTES]>),
}

/// Reads a frame. `None` if it is another one, or cut off. Version, reserved bytes, and types and lengths of TLVs are not checked:
/// section 6.4.2.3, note, and Linux's bonding driver, which only asks for 110 bytes.
pub fn read(frame: &[u8]) -> Option<Heard> {
    let pdu: &[u8; PDU_BYTES] = frame.get(14..)?.first_chunk()?;
    if frame[..6] != DESTINATION.0 || frame[12..14] != SLOW {
        return None;
    }
    let info = |at: usize| Some(Info::read(pdu.get(at..)?.first_chunk()?));
    match (pdu[0], pdu[2]) {
        (LACP, _) => Some(Heard::Lacp(Pdu { actor: info(ACTOR)?, partner: info(PARTNER)? })),
        (MARKER, MARKER_INFORMATION) => {
            let mut answer = Box::new(header(Mac([0; 6])));
            answer[14..].copy_from_slice(pdu);
            answer[16] = MARKER_RESPONSE;
            Some(Heard::Marker(answer))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PDU of Linux's bonding driver, active and slow, to a partner that it does not know.
    const LINUX: [u8; FRAME_BYTES] = {
        let mut frame = [0; FRAME_BYTES];
        let bytes = *b"\x01\x80\xc2\0\0\x02\x52\x54\0\0\0\x01\x88\x09\x01\x01\x01\x14\xff\xff\x52\x54\0\0\0\x01\0\x0f\0\xff\0\x01\x45\0\0\0\
                       \x02\x14\xff\xff\0\0\0\0\0\0\0\x01\0\xff\0\x01\x01\0\0\0\x03\x10";
        let mut at = 0;
        while at < bytes.len() {
            frame[at] = bytes[at];
            at += 1;
        }
        frame
    };

    #[test]
    fn a_pdu_is_read_as_its_sender_wrote_it_and_written_the_same() {
        let Some(Heard::Lacp(pdu)) = read(&LINUX) else { panic!("it is a PDU") };
        let system = Mac([0x52, 0x54, 0, 0, 0, 1]);
        let actor = Info { system_priority: 65535, system, key: 15, port_priority: 255, port: 1, state: State(0x45) };
        assert_eq!(pdu.actor, actor);
        assert_eq!((pdu.partner.system, pdu.partner.key, pdu.partner.state), (Mac([0; 6]), 1, State(1)));
        assert_eq!(pdu.frame(system), LINUX);
    }

    #[test]
    fn what_is_cut_off_or_of_another_protocol_is_no_pdu() {
        assert!((0..FRAME_BYTES).all(|len| read(&LINUX[..len]).is_none()));
        for (at, byte) in [(5, 0x0e), (13, 0xcc), (14, 3)] {
            let mut other = LINUX;
            other[at] = byte;
            assert_eq!(read(&other), None, "{at}");
        }
        let mut newer = LINUX;
        (newer[15], newer[17]) = (2, 21);
        assert_eq!(read(&newer), read(&LINUX), "versions and lengths are not checked");
    }

    #[test]
    fn a_marker_asks_for_itself_as_a_response() {
        let mut marker = LINUX;
        marker[14..].fill(0x5a);
        marker[14..18].copy_from_slice(&[2, 1, 1, 22]);
        let Some(Heard::Marker(answer)) = read(&marker) else { panic!("it is a marker") };
        let mut wanted = marker;
        wanted[16] = 2;
        wanted[6..12].fill(0);
        assert_eq!(*answer, wanted);
        assert_eq!(read(&wanted), None, "a response asks for nothing");
    }
}
