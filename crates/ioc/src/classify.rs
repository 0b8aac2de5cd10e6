//! The class of a frame: by the port that it comes from or goes to, its VLAN, its marks, its addresses, its transport ports.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use nicety_adapter::{Batch, Edit, Packet, Pick};
use nicety_frame::{L3Kind, Tag, Tci, vlan};

use crate::scheduler::ClassTerms;

/// Ports whose class is known without a look at the frame.
const PORTS: usize = 1024;
/// Marks a port of which single frames must be looked at.
const LOOK: u16 = u16::MAX;

/// Addresses with the same first bits: `10.0.0.0/8`, `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// The text is no prefix of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixError;

impl fmt::Display for PrefixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no IP address, and no network such as 10.0.0.0/8")
    }
}

impl std::error::Error for PrefixError {}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.trim().parse().map_err(|_| PrefixError)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| PrefixError)?;
        if bits <= most { Ok(Self { address, bits }) } else { Err(PrefixError) }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Prefix {
    /// Whether two prefixes have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.has(&other.bytes()[..], self.bits.min(other.bits)) && self.address.is_ipv4() == other.address.is_ipv4()
    }

    fn bytes(&self) -> Vec<u8> {
        match self.address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    /// Whether the first `bits` of an address are its own.
    fn has(&self, address: &[u8], bits: u8) -> bool {
        let (v4, v6);
        let own: &[u8] = match self.address {
            IpAddr::V4(address) => {
                v4 = address.octets();
                &v4
            }
            IpAddr::V6(address) => {
                v6 = address.octets();
                &v6
            }
        };
        let (whole, rest) = (usize::from(bits / 8), bits % 8);
        if address.len() != own.len() || address[..whole] != own[..whole] {
            return false;
        }
        rest == 0 || (address[whole] ^ own[whole]) >> (8 - rest) == 0
    }
}

/// A condition on frames: all its parts must be true of a frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Numbers of ports: of senders outward, of receivers inward.
    pub ports: Option<Vec<u16>>,
    /// VLAN ids on the wire, from the first to the last.
    pub vlan: Option<(u16, u16)>,
    /// Priority of the frame (IEEE 802.1Q).
    pub pcp: Option<u8>,
    /// Ports whose frames have this priority if they bring no tag: that of the port (IEEE 802.1Q-2018, 6.9.3).
    pub untagged: Vec<u16>,
    /// Differentiated services code point (RFC 2474).
    pub dscp: Option<u8>,
    /// Source or destination.
    pub address: Option<Prefix>,
    /// TCP or UDP ports, from the first to the last: source or destination. A later fragment has none.
    pub transport: Option<(u16, u16)>,
}

impl Match {
    /// Whether it depends on the port only.
    fn is_of_ports(&self) -> bool {
        let Self { ports: _, vlan, pcp, untagged: _, dscp, address, transport } = self;
        vlan.is_none() && pcp.is_none() && dscp.is_none() && address.is_none() && transport.is_none()
    }

    fn is_of(&self, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }

    fn fits(&self, port: u16, batch: &Batch, packet: &Packet, pick: Pick) -> bool {
        if !self.is_of(port) {
            return false;
        }
        if let Some((first, last)) = self.vlan {
            let is_in = |tag: Tag| (first..=last).contains(&tag.tci.id());
            if !tag(batch, packet, pick).is_some_and(is_in) {
                return false;
            }
        }
        if let Some(pcp) = self.pcp {
            let is_its = priority(batch, packet, pick).map_or_else(|| self.untagged.contains(&port), |own| own == pcp);
            if !is_its {
                return false;
            }
        }
        if self.dscp.is_none() && self.address.is_none() && self.transport.is_none() {
            return true;
        }
        let (head, layout) = (batch.head(packet), batch.layout(packet));
        let Some(l3) = layout.l3 else { return false };
        let Some(header) = head.get(usize::from(l3.offset)..) else { return false };
        let is_v4 = l3.kind == L3Kind::V4;
        if let Some(dscp) = self.dscp {
            // RFC 791, section 3.1; RFC 8200, section 3.
            let class = match header {
                [_, class, ..] if is_v4 => *class,
                [first, second, ..] => first << 4 | second >> 4,
                _ => return false,
            };
            if class >> 2 != dscp {
                return false;
            }
        }
        if let Some(prefix) = self.address {
            let (source, len) = if is_v4 { (12, 4) } else { (8, 16) };
            let at = |from: usize| header.get(from..from + len).is_some_and(|address| prefix.has(address, prefix.bits));
            if !at(source) && !at(source + len) {
                return false;
            }
        }
        if let Some((first, last)) = self.transport {
            let Some(l4) = layout.l4 else { return false };
            let at = usize::from(l4.offset);
            let Some([a, b, c, d]) = head.get(at..at + 4) else { return false };
            let ports = [u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])];
            if !ports.iter().any(|port| (first..=last).contains(port)) {
                return false;
            }
        }
        true
    }
}

/// The outer tag of a frame on the wire.
fn tag(batch: &Batch, packet: &Packet, pick: Pick) -> Option<Tag> {
    match pick.edit {
        Edit::Keep => vlan::outer(batch.head(packet)),
        Edit::Untag => vlan::outer(batch.head(packet)).and(vlan::second(batch.head(packet))),
        Edit::Tag(tag) | Edit::Retag(tag) => Some(tag),
    }
}

/// The priority of a frame: of its tag on the wire, or of the one that it came with and leaves without (IEEE 802.1Q-2018, 6.9.1 and 8.6.6).
fn priority(batch: &Batch, packet: &Packet, pick: Pick) -> Option<u8> {
    let tag = match pick.edit {
        Edit::Untag => vlan::outer(batch.head(packet)),
        _ => tag(batch, packet, pick),
    };
    tag.map(|tag| tag.tci.priority())
}

/// A class of frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// The terms of the class.
    pub terms: ClassTerms,
    /// Its frames: those that fit any of these, and no class before.
    pub matches: Vec<Match>,
    /// The priority that its frames get in their VLAN tag, if they leave with one.
    pub mark_pcp: Option<u8>,
    /// The differentiated services code point that they get, if they are IP.
    pub mark_dscp: Option<u8>,
}

/// Finds the class of a frame.
#[derive(Clone, Debug)]
pub struct Classifier {
    rules: Vec<(u16, Match)>,
    /// The priority of each class's frames.
    marks: Vec<Option<u8>>,
    /// The code point of each class's frames.
    dscps: Vec<Option<u8>>,
    /// The class of each port's frames, or [`LOOK`].
    of_ports: Box<[u16]>,
}

impl Classifier {
    /// Frames that fit no class are of the first.
    pub fn new(classes: &[Class]) -> Self {
        let of = |(number, class): (u16, &Class)| -> Vec<(u16, Match)> {
            class.matches.iter().map(|rule| (number, rule.clone())).collect()
        };
        let rules: Vec<(u16, Match)> = (0..).zip(classes).flat_map(of).collect();
        let of_port = |port: u16| match rules.iter().find(|(_, rule)| rule.is_of(port)) {
            None => 0,
            Some((class, rule)) if rule.is_of_ports() => *class,
            Some(_) => LOOK,
        };
        let of_ports = (0..PORTS as u16).map(of_port).collect();
        let marks = classes.iter().map(|class| class.mark_pcp).collect();
        Self { rules, marks, dscps: classes.iter().map(|class| class.mark_dscp).collect(), of_ports }
    }

    /// The class of all frames of a port, if it is known without a look at each.
    #[inline]
    pub fn of_port(&self, port: u16) -> Option<u16> {
        self.of_ports.get(usize::from(port)).copied().filter(|class| *class != LOOK)
    }

    /// The class of a frame of this port.
    pub fn of(&self, port: u16, batch: &Batch, packet: &Packet, pick: Pick) -> u16 {
        let fits = |(_, rule): &&(u16, Match)| rule.fits(port, batch, packet, pick);
        self.rules.iter().find(fits).map_or(0, |(class, _)| *class)
    }

    /// Whether frames of a class get another priority.
    #[inline]
    pub fn marks(&self, class: u16) -> bool {
        self.marks.get(usize::from(class)).is_some_and(Option::is_some)
    }

    /// The differentiated services code point that a class's frames get.
    #[inline]
    pub fn dscp(&self, class: u16) -> Option<u8> {
        self.dscps.get(usize::from(class)).copied().flatten()
    }

    /// A frame of a class with its mark, if it leaves with a tag.
    pub fn marked(&self, class: u16, batch: &Batch, packet: &Packet, pick: Pick) -> Pick {
        let Some(Some(priority)) = self.marks.get(usize::from(class)).copied() else { return pick };
        let with = |tag: Tag| Tag { tci: Tci::new(priority, tag.tci.drop_eligible(), tag.tci.id()), ..tag };
        let edit = match pick.edit {
            Edit::Keep => vlan::outer(batch.head(packet)).map_or(Edit::Keep, |tag| Edit::Retag(with(tag))),
            Edit::Untag => Edit::Untag,
            Edit::Tag(tag) => Edit::Tag(with(tag)),
            Edit::Retag(tag) => Edit::Retag(with(tag)),
        };
        Pick { edit, ..pick }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nicety_memory::Map;

    use super::*;

    /// IPv4 TCP 10.1.2.3:1000 to 10.9.8.7:3260 with DSCP 46, behind a tag of VLAN 7 with priority 5.
    fn frame() -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0xa0, 7, 8, 0];
        frame.extend([0x45, 46 << 2, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 1, 2, 3, 10, 9, 8, 7]);
        frame.extend([0x03, 0xe8, 0x0c, 0xbc, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, 0]);
        frame
    }

    fn with_frame<R>(frame: &[u8], test: impl FnOnce(&Batch, &Packet) -> R) -> R {
        let map = Arc::new(Map::private(4096).unwrap());
        map.write(0, frame).unwrap();
        let mut batch = Batch::new();
        batch.start(&map, nicety_adapter::PortId(3), 0);
        let mut draft = batch.draft(0).unwrap();
        draft.push(0, frame.len() as u32).unwrap();
        draft.finish_plain(0);
        test(&batch, &batch.packets()[0])
    }

    #[test]
    fn a_frame_is_of_the_first_class_that_it_fits() {
        let any = Match::default;
        let cases = [
            (Match { vlan: Some((7, 7)), ..any() }, true),
            (Match { vlan: Some((8, 4094)), ..any() }, false),
            (Match { pcp: Some(5), ..any() }, true),
            (Match { pcp: Some(0), ..any() }, false),
            (Match { dscp: Some(46), ..any() }, true),
            (Match { dscp: Some(0), ..any() }, false),
            (Match { address: Some("10.1.2.3".parse().unwrap()), ..any() }, true),
            (Match { address: Some("10.9.8.0/21".parse().unwrap()), ..any() }, true),
            (Match { address: Some("10.9.16.0/21".parse().unwrap()), ..any() }, false),
            (Match { address: Some("::/0".parse().unwrap()), ..any() }, false),
            (Match { transport: Some((3260, 3260)), ..any() }, true),
            (Match { transport: Some((990, 1000)), ..any() }, true),
            (Match { transport: Some((2049, 2049)), ..any() }, false),
            (Match { ports: Some(vec![3]), transport: Some((3260, 3260)), ..any() }, true),
            (Match { ports: Some(vec![4]), transport: Some((3260, 3260)), ..any() }, false),
        ];
        with_frame(&frame(), |batch, packet| {
            for (rule, fits) in cases {
                let classes =
                    [Class::default(), Class { matches: vec![rule.clone()], ..Class::default() }, Class::default()];
                let found = Classifier::new(&classes).of(3, batch, packet, Pick::whole(0));
                assert_eq!(found, u16::from(fits), "{rule:?}");
            }
        });
        // A frame that is cut off fits no rule that asks for more.
        for len in 14..frame().len() {
            let rule = Match { transport: Some((3260, 3260)), dscp: Some(46), ..any() };
            let classes = [Class::default(), Class { matches: vec![rule], ..Class::default() }];
            let found = with_frame(&frame()[..len], |batch, packet| {
                Classifier::new(&classes).of(3, batch, packet, Pick::whole(0))
            });
            assert!(found == 0 || len == frame().len(), "{len} bytes");
        }
    }

    /// IEEE 802.1Q-2018, 8.6.6: a frame's priority says in which queue it waits, whether it leaves with a tag or not.
    #[test]
    fn a_priority_counts_where_a_frame_leaves_without_its_tag() {
        let class = |pcp| Class { matches: vec![Match { pcp: Some(pcp), ..Match::default() }], ..Class::default() };
        let classifier = Classifier::new(&[Class::default(), class(5), class(2)]);
        let two = Edit::Retag(Tag::customer(Tci::new(2, false, 7)));
        with_frame(&frame(), |batch, packet| {
            for (edit, found) in [(Edit::Keep, 1), (Edit::Untag, 1), (two, 2)] {
                let pick = Pick { edit, ..Pick::whole(0) };
                assert_eq!(classifier.of(3, batch, packet, pick), found, "{edit:?}");
            }
        });
    }

    /// IEEE 802.1Q-2018, 6.9.3: a frame without a tag has its port's priority, which counts by 8.6.6 where it leaves without one, too.
    #[test]
    fn a_frame_without_a_tag_has_its_port_s_priority() {
        let rule = Match { pcp: Some(5), untagged: vec![3], ..Match::default() };
        let classifier = Classifier::new(&[Class::default(), Class { matches: vec![rule], ..Class::default() }]);
        let of = |port, frame: &[u8], edit| {
            with_frame(frame, |batch, packet| classifier.of(port, batch, packet, Pick { edit, ..Pick::whole(0) }))
        };
        let plain = [&frame()[..12], &frame()[16..]].concat();
        let tag = |priority| Edit::Tag(Tag::customer(Tci::new(priority, false, 7)));
        assert_eq!([3, 4].map(|port| of(port, &plain, Edit::Keep)), [1, 0]);
        assert_eq!([2, 5].map(|priority| of(3, &plain, tag(priority))), [0, 1]);
        let mut other = frame();
        other[14] = 0x20;
        assert_eq!([Edit::Keep, Edit::Untag].map(|edit| of(3, &other, edit)), [0; 2], "its tag says 1");
    }

    #[test]
    fn ports_need_no_look_at_frames_unless_an_earlier_class_does() {
        let of_port = |port| Match { ports: Some(vec![port]), ..Match::default() };
        let dscp = Match { dscp: Some(46), ports: Some(vec![5]), ..Match::default() };
        let class = |rule| Class { matches: vec![rule], ..Class::default() };
        let classifier = Classifier::new(&[Class::default(), class(dscp), class(of_port(5)), class(of_port(6))]);
        assert_eq!([4, 5, 6].map(|port| classifier.of_port(port)), [Some(0), None, Some(3)]);
    }

    #[test]
    fn a_mark_changes_the_priority_of_a_frame_that_leaves_with_a_tag() {
        let classifier = Classifier::new(&[Class { mark_pcp: Some(2), ..Class::default() }]);
        let tag = |priority| Tag::customer(Tci::new(priority, false, 7));
        with_frame(&frame(), |batch, packet| {
            for (edit, marked) in [
                (Edit::Keep, Edit::Retag(tag(2))),
                (Edit::Untag, Edit::Untag),
                (Edit::Tag(tag(0)), Edit::Tag(tag(2))),
                (Edit::Retag(tag(7)), Edit::Retag(tag(2))),
            ] {
                let pick = Pick { edit, ..Pick::whole(0) };
                assert_eq!(classifier.marked(0, batch, packet, pick).edit, marked);
            }
        });
    }

    #[test]
    fn prefixes_overlap_if_they_have_an_address_in_common() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        assert!(prefix("10.0.0.0/8").overlaps(&prefix("10.9.0.0/16")));
        assert!(!prefix("10.0.0.0/8").overlaps(&prefix("11.0.0.0/8")));
        assert!(!prefix("0.0.0.0/0").overlaps(&prefix("::/0")));
        assert_eq!(prefix("10.0.0.1").to_string(), "10.0.0.1/32");
        for wrong in ["10.0.0/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "x"] {
            assert_eq!(wrong.parse::<Prefix>(), Err(PrefixError));
        }
    }
}
