//! The neighbour at the other end of a port, from its own LLDP frames (IEEE 802.1AB-2016), which bridges do not forward.
//!
//! A neighbour that announces its end (a time to live of 0, section 9.1.2.2) is forgotten. A port has one neighbour: that of the last frame.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nicety_adapter::{Batch, Packet, PortId, Reason, Time};
use nicety_frame::ethernet::ethertype;

use crate::port::is_unforwarded;

/// Bytes of a frame that are read, and characters of a name that are kept.
const FRAME_MOST: usize = 1514;
const NAME_MOST: usize = 64;
/// TLV types: IEEE 802.1AB-2016, table 8-1.
const CHASSIS: u16 = 1;
const PORT: u16 = 2;
const HOLDS: u16 = 3;
const SYSTEM: u16 = 5;
/// Subtypes of names that are addresses: tables 8-2 and 8-3.
const CHASSIS_MAC: u8 = 4;
const PORT_MAC: u8 = 3;

/// A port's neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The system's name; without one, its chassis's name.
    pub system: String,
    /// Name of the neighbour's port.
    pub port: String,
    /// End of its time to live.
    pub until: Time,
}

/// The last neighbour of each listening port.
#[derive(Debug, Default)]
pub(crate) struct Neighbours(Mutex<BTreeMap<PortId, Option<Neighbour>>>);

impl Neighbours {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PortId, Option<Neighbour>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The present neighbour of a port.
    pub fn of(&self, port: PortId, now: Time) -> Option<Neighbour> {
        self.lock().get(&port)?.clone().filter(|neighbour| neighbour.until > now)
    }

    /// Switches listening on or off for a port.
    pub fn listen(&self, port: PortId, listens: bool) {
        let mut neighbours = self.lock();
        if listens {
            neighbours.entry(port).or_default();
        } else {
            neighbours.remove(&port);
        }
    }

    /// Reads the LLDP frames among the frames that the switch did not forward.
    #[cold]
    pub fn learn(&self, from: PortId, batch: &Batch, drops: &[(u16, Reason)], now: Time) {
        for packet in drops.iter().filter(|(_, reason)| is_unforwarded(*reason)).map(|(packet, _)| *packet) {
            let Some(packet) = batch.packet(packet) else { continue };
            if batch.head(packet).get(12..14) != Some(&ethertype::LLDP.to_be_bytes()) {
                continue;
            }
            if let Some(last) = self.lock().get_mut(&from)
                && let Some(neighbour) = read(batch, packet, now)
            {
                *last = Some(neighbour);
            }
        }
    }
}

fn read(batch: &Batch, packet: &Packet, now: Time) -> Option<Neighbour> {
    let mut frame = [0; FRAME_MOST];
    let head = batch.head(packet);
    let mut at = head.len().min(FRAME_MOST);
    frame[..at].copy_from_slice(&head[..at]);
    for span in batch.spans(packet) {
        let end = (at + span.len() as usize).min(FRAME_MOST);
        batch.source().read_span(*span, &mut frame[at..end]);
        at = end;
    }
    parse(frame.get(14..at)?, now)
}

fn parse(mut tlvs: &[u8], now: Time) -> Option<Neighbour> {
    let (mut chassis, mut port, mut holds_s, mut system) = (None, None, None, None);
    while let Some(head) = tlvs.first_chunk().map(|head| u16::from_be_bytes(*head)) {
        let (kind, len) = (head >> 9, usize::from(head & 0x1ff));
        let value = tlvs.get(2..2 + len)?;
        match kind {
            0 => break,
            CHASSIS => chassis = Some(name(value, CHASSIS_MAC)?),
            PORT => port = Some(name(value, PORT_MAC)?),
            HOLDS => holds_s = Some(u16::from_be_bytes(*value.first_chunk()?)),
            SYSTEM => system = Some(text(value)),
            _ => {}
        }
        tlvs = &tlvs[2 + len..];
    }
    let until = now.after_ns(u64::from(holds_s?) * 1_000_000_000);
    let system = system.filter(|name| !name.is_empty()).or(chassis)?;
    Some(Neighbour { system, port: port?, until })
}

/// The name behind its subtype. `mac` is the subtype of a MAC address.
fn name(value: &[u8], mac: u8) -> Option<String> {
    let (kind, name) = value.split_first()?;
    Some(match name.first_chunk() {
        Some([a, b, c, d, e, f]) if *kind == mac => format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}"),
        _ => text(name),
    })
}

/// A neighbour's text may contain anything: bytes other than printable ASCII become question marks.
fn text(bytes: &[u8]) -> String {
    let plain = |byte: &u8| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' };
    bytes.iter().take(NAME_MOST).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chassis by address, port by interface name, a time to live of two minutes, a system name.
    const TLVS: &[u8] =
        b"\x02\x07\x04\x00\x01\x30\xf9\xad\xa0\x04\x04\x051/1\x06\x02\x00\x78\x0a\x0cSummit300-48\x00\x00";

    fn neighbour(tlvs: &[u8]) -> Option<(String, String, u64)> {
        parse(tlvs, Time(5)).map(|Neighbour { system, port, until }| (system, port, until.0))
    }

    #[test]
    fn a_neighbour_is_known_by_its_names() {
        let until = 120_000_000_005;
        assert_eq!(neighbour(TLVS), Some(("Summit300-48".into(), "1/1".into(), until)));
        let nameless = [&TLVS[..19], &[0, 0]].concat();
        assert_eq!(neighbour(&nameless), Some(("00:01:30:f9:ad:a0".into(), "1/1".into(), until)));
        let odd = TLVS.iter().map(|byte| if *byte == b'S' { 0x1b } else { *byte }).collect::<Vec<_>>();
        assert_eq!(neighbour(&odd).unwrap().0, "?ummit300-48");
    }

    #[test]
    fn what_is_cut_or_lacks_a_part_says_nothing() {
        assert!((0..19).all(|len| neighbour(&TLVS[..len]).is_none()), "before its time");
        // A length beyond the end of the frame.
        assert!((20..TLVS.len() - 2).all(|len| neighbour(&TLVS[..len]).is_none() || len == 20), "in its name");
        assert_eq!(neighbour(&[0; 46]), None);
    }
}
