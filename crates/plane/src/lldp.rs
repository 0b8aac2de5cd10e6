//! LLDP (IEEE 802.1AB-2016), whose frames bridges do not forward: the neighbour at the other end of a port, and our own announcements.
//!
//! A neighbour that announces its end (a time to live of 0, section 9.1.2.2) is forgotten.

use nicety_adapter::Time;
use nicety_frame::Mac;
use nicety_frame::ethernet::ethertype;

use crate::agent::{Agent, LinkState, Neighbour};

/// Characters of a neighbour's name that are kept, and most bytes of a name: section 8.5.6.
const SHOWN_MAX: usize = 64;
const NAME_MAX: usize = 255;
/// Interval between two frames, and the seconds that an announcement stays valid: table 9-1 (msgTxInterval, txTTL).
const INTERVAL_NS: u64 = 30_000_000_000;
const HOLDS_S: u16 = 121;
/// The nearest bridge: table 7-1.
const NEAREST: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0x0e];
/// TLV types: IEEE 802.1AB-2016, table 8-1.
const CHASSIS: u16 = 1;
const PORT: u16 = 2;
const HOLDS: u16 = 3;
const SYSTEM: u16 = 5;
const DESCRIPTION: u16 = 6;
/// Subtypes of names that are addresses: tables 8-2 and 8-3.
const CHASSIS_MAC: u8 = 4;
const PORT_MAC: u8 = 3;
const BY_NAME: u8 = 7;

/// Hears who the neighbour is. A port has one neighbour: that of the last frame.
#[derive(Debug, Default)]
pub(crate) struct Listener(Option<Neighbour>);

impl Agent for Listener {
    fn hear(&mut self, frame: &[u8], now: Time) -> bool {
        if let Some((header, tlvs)) = frame.split_at_checked(14)
            && header.ends_with(&ethertype::LLDP.to_be_bytes())
            && let Some(neighbour) = parse(tlvs, now)
        {
            self.0 = Some(neighbour);
            return true;
        }
        false
    }

    fn speak(&mut self, _: Time, _: &mut dyn FnMut(&[u8]) -> bool) {}

    fn wake(&self) -> Option<Time> {
        None
    }

    fn meet(&mut self, neighbour: &Neighbour) {
        self.0 = Some(neighbour.clone());
    }

    fn neighbour(&self, now: Time) -> Option<&Neighbour> {
        self.0.as_ref().filter(|neighbour| neighbour.until > now)
    }
}

/// Tells the neighbour who is here, every 30 seconds, on this uplink alone.
#[derive(Debug)]
pub struct Announcer {
    frame: Vec<u8>,
    is_up: bool,
    at: Time,
}

impl Announcer {
    /// Sends this [announcement].
    pub fn new(frame: Vec<u8>) -> Self {
        Self { frame, is_up: false, at: Time::ZERO }
    }
}

impl Agent for Announcer {
    fn link(&mut self, state: LinkState, _: Time) {
        self.is_up = state.is_up;
    }

    fn speak(&mut self, now: Time, send: &mut dyn FnMut(&[u8]) -> bool) {
        if self.at <= now {
            // A refused announcement is not retried: the next one follows in half a minute.
            let _refused = send(&self.frame);
            self.at = now.after_ns(INTERVAL_NS);
        }
    }

    fn wake(&self) -> Option<Time> {
        self.is_up.then_some(self.at)
    }
}

/// Appends a TLV: type, length, value (section 8.4).
fn say(frame: &mut Vec<u8>, kind: u16, parts: &[&[u8]]) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u16;
    frame.extend((kind << 9 | len).to_be_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
}

/// An announcement. `system` is the host's name, `port` the uplink's; `description` names the software that serves it.
pub fn announcement(mac: Mac, system: &str, port: &str, description: &str) -> Vec<u8> {
    let cut = |text: &str| text.bytes().take(NAME_MAX).collect::<Vec<_>>();
    let mut frame = [&NEAREST[..], &mac.0, &ethertype::LLDP.to_be_bytes()].concat();
    say(&mut frame, CHASSIS, &[&[CHASSIS_MAC], &mac.0]);
    say(&mut frame, PORT, &[&[BY_NAME], &cut(port)]);
    say(&mut frame, HOLDS, &[&HOLDS_S.to_be_bytes()]);
    say(&mut frame, SYSTEM, &[&cut(system)]);
    say(&mut frame, DESCRIPTION, &[&cut(description)]);
    say(&mut frame, 0, &[]);
    frame.resize(frame.len().max(60), 0);
    frame
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
    bytes.iter().take(SHOWN_MAX).map(plain).collect()
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

    #[test]
    fn it_says_who_it_is_every_30_seconds_while_the_link_is_up() {
        let frame = announcement(Mac([2, 0x4e, 1, 2, 3, 4]), "host1", "up0", "Nicety");
        let said = b"\x01\x80\xc2\x00\x00\x0e\x02\x4e\x01\x02\x03\x04\x88\xcc\x02\x07\x04\x02\x4e\x01\x02\x03\x04\x04\x04\x07up0\
                     \x06\x02\x00\x79\x0a\x05host1\x0c\x06Nicety\x00\x00";
        assert_eq!(frame, [&said[..], &[0; 60][said.len()..]].concat());
        let (mut announcer, mut times) = (Announcer::new(frame.clone()), Vec::new());
        assert_eq!(announcer.wake(), None, "its link is not up");
        announcer.link(LinkState { is_up: true, has_backlog: false, bytes: [0; 2] }, Time::ZERO);
        for second in 0..=90 {
            let now = Time(second * 1_000_000_000);
            announcer.speak(now, &mut |said| {
                assert_eq!(said, frame);
                times.push(second);
                second != 30
            });
            assert!(announcer.wake().unwrap() > now);
        }
        assert_eq!(times, [0, 30, 60, 90]);
        let mut listener = Listener::default();
        listener.hear(&frame, Time(5));
        let Neighbour { system, port, .. } = listener.neighbour(Time(6)).unwrap();
        assert_eq!((system.as_str(), port.as_str()), ("host1", "up0"));
        assert_eq!(listener.neighbour(Time(121_000_000_005)), None);
    }
}
