//! Messages of IGMP, MLD and PIM, valid and damaged.

use nicety_frame::checksum;

pub const GROUP: [u8; 4] = [239, 1, 2, 3];
pub const GROUP6: [u8; 16] = [0xff, 0x15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
/// Addresses of a router and of a switch that queries.
pub const ROUTER: [u8; 4] = [10, 0, 0, 1];
pub const NOBODY: [u8; 4] = [0; 4];

/// A valid multicast frame; a test changes single fields.
#[derive(Clone)]
pub struct Frame {
    pub mac: [u8; 6],
    pub hops: u8,
    /// Options of IPv4; for IPv6, extension header bytes behind the fixed header.
    pub options: Vec<u8>,
    pub source: Vec<u8>,
    pub target: Vec<u8>,
    pub protocol: u8,
    pub message: Vec<u8>,
}

impl Frame {
    /// With a router alert: RFC 2236, section 2.
    pub fn v4(source: [u8; 4], group: [u8; 4], protocol: u8, message: &[u8]) -> Self {
        Self {
            mac: mac4(group),
            hops: 1,
            options: vec![0x94, 4, 0, 0],
            source: source.to_vec(),
            target: group.to_vec(),
            protocol,
            message: message.to_vec(),
        }
    }

    /// With a router alert: RFC 3810, section 5.
    pub fn v6(source: [u8; 16], group: [u8; 16], protocol: u8, message: &[u8]) -> Self {
        Self {
            // RFC 2464, section 7.
            mac: [0x33, 0x33, group[12], group[13], group[14], group[15]],
            hops: 1,
            options: vec![5, 2, 0, 0, 1, 0],
            source: source.to_vec(),
            target: group.to_vec(),
            protocol,
            message: message.to_vec(),
        }
    }

    pub fn is_v4(&self) -> bool {
        self.source.len() == 4
    }

    /// The message with its checksum, if it has a checksum field.
    fn summed(&self) -> Vec<u8> {
        let mut message = self.message.clone();
        if [2, 58, 103].contains(&self.protocol) {
            let address = |bytes: &[u8]| std::net::Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
            let pseudo = if self.is_v4() {
                checksum::Sum::ZERO
            } else {
                let (source, target) = (address(&self.source), address(&self.target));
                checksum::pseudo_v6(source, target, self.protocol, message.len() as u32)
            };
            let sum = pseudo.then(checksum::sum(&message), false).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        message
    }

    pub fn bytes(&self) -> Vec<u8> {
        let message = self.summed();
        if self.is_v4() {
            let header = 20 + self.options.len();
            let [high, low] = ((header + message.len()) as u16).to_be_bytes();
            let fixed = [0x40 + header as u8 / 4, 0xc0, high, low, 0, 0, 0, 0, self.hops, self.protocol, 0, 0];
            let mut header = [&fixed[..], &self.source, &self.target, &self.options].concat();
            let sum = checksum::sum(&header).checksum();
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            return ethernet(self.mac, 0x0800, &[&header, &message]);
        }
        // Hop-by-hop options, if there are any.
        let options = if self.options.is_empty() { vec![] } else { [&[self.protocol, 0][..], &self.options].concat() };
        let next = if options.is_empty() { self.protocol } else { 0 };
        let [high, low] = ((options.len() + message.len()) as u16).to_be_bytes();
        let fixed = [0x60, 0, 0, 0, high, low, next, self.hops];
        ethernet(self.mac, 0x86dd, &[&fixed, &self.source, &self.target, &options, &message])
    }

    /// All variants that a receiver does not accept, each with one change.
    pub fn spoilt(&self) -> Vec<(&'static str, Vec<u8>)> {
        let with = |change: &dyn Fn(&mut Self)| {
            let mut frame = self.clone();
            change(&mut frame);
            frame.bytes()
        };
        let flipped = |at: usize| {
            let mut bytes = self.bytes();
            bytes[at] ^= 1;
            bytes
        };
        let message_at = 14
            + match (self.is_v4(), self.options.len()) {
                (true, options) => 20 + options,
                (false, 0) => 40,
                (false, options) => 42 + options,
            };
        let mut all = vec![
            ("a checksum", flipped(message_at + 2)),
            ("two hops", with(&|frame| frame.hops = 2)),
            ("255 hops", with(&|frame| frame.hops = 255)),
            ("another group's address", with(&|frame| frame.mac[5] ^= 1)),
            ("to everybody", with(&|frame| frame.mac = [0x33, 0x33, 0xff, 0, 0, 1])),
            (
                "to another group",
                with(&|frame| {
                    frame.target[1] ^= 2;
                    *frame.target.last_mut().unwrap() ^= 0x40;
                    frame.mac[5] ^= 0x40;
                }),
            ),
        ];
        if self.protocol != 103 {
            all.push((
                "no router alert",
                with(&|frame| frame.options = if frame.is_v4() { vec![1; 4] } else { vec![] }),
            ));
            all.push(("another alert", with(&|frame| frame.options[3] = 1)));
        }
        if self.is_v4() {
            all.push(("the header's checksum", flipped(14 + 10)));
            all.push(("a group's", with(&|frame| frame.source[0] = 224)));
            all.push(("loopback", with(&|frame| frame.source = vec![127, 0, 0, 1])));
            all.push(("broadcast", with(&|frame| frame.source = vec![255; 4])));
            let mut cut = self.bytes();
            cut.truncate(message_at + self.message.len() - 1);
            all.push(("a cut", cut));
        } else {
            all.push(("a global source", with(&|frame| frame.source[..2].copy_from_slice(&[0x20, 1]))));
        }
        all
    }
}

impl From<Frame> for Vec<u8> {
    fn from(frame: Frame) -> Self {
        frame.bytes()
    }
}

pub fn ethernet(target: [u8; 6], ethertype: u16, payload: &[&[u8]]) -> Vec<u8> {
    let mut frame = [&target[..], &[2, 0, 0, 0, 0, 9], &ethertype.to_be_bytes(), &payload.concat()].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

/// RFC 1112, section 6.4.
pub fn mac4(group: [u8; 4]) -> [u8; 6] {
    [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]]
}

pub fn data(group: [u8; 4]) -> Frame {
    Frame::v4([10, 0, 0, 9], group, 17, &[0; 20])
}

pub fn query(source: [u8; 4]) -> Frame {
    Frame::v4(source, [224, 0, 0, 1], 2, &[0x11, 100, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0])
}

/// A query for a group, in the form of version 2.
pub fn query_for(group: [u8; 4]) -> Frame {
    Frame::v4(NOBODY, group, 2, &[&[0x11, 10, 0, 0][..], &group].concat())
}

/// A message of version 1 or 2: 0x12 and 0x16 join, 0x17 leaves.
pub fn old(kind: u8, group: [u8; 4]) -> Frame {
    let target = if kind == 0x17 { [224, 0, 0, 2] } else { group };
    Frame::v4([10, 0, 0, 9], target, 2, &[&[kind, 0, 0, 0][..], &group].concat())
}

/// A report of version 3: records with a type, a group, and this many sources.
pub fn report(records: &[(u8, [u8; 4], u8)]) -> Frame {
    let [high, low] = (records.len() as u16).to_be_bytes();
    let mut bytes = vec![0x22, 0, 0, 0, 0, 0, high, low];
    for (kind, group, sources) in records {
        bytes.extend([*kind, 0, 0, *sources]);
        bytes.extend(group);
        bytes.extend(vec![10; usize::from(*sources) * 4]);
    }
    Frame::v4([10, 0, 0, 9], [224, 0, 0, 22], 2, &bytes)
}

/// PIM's hello: RFC 7761, section 4.9.
pub fn hello() -> Frame {
    Frame { options: Vec::new(), ..Frame::v4(ROUTER, [224, 0, 0, 13], 103, &[0x20, 0, 0, 0]) }
}

/// A message of version 1: 131 joins, 132 leaves.
pub fn old6(kind: u8) -> Frame {
    let target = if kind == 132 { ROUTERS6 } else { GROUP6 };
    Frame::v6(LOCAL6, target, 58, &[&[kind, 0, 0, 0, 0, 0, 0, 0][..], &GROUP6].concat())
}

/// A report of version 2: a record of a type for the group.
pub fn report6(kind: u8) -> Frame {
    let bytes = [&[143, 0, 0, 0, 0, 0, 0, 1, kind, 0, 0, 0][..], &GROUP6].concat();
    Frame::v6(LOCAL6, [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 22], 58, &bytes)
}

pub fn query6(source: [u8; 16]) -> Frame {
    Frame::v6(source, ALL6, 58, &[&[130, 0, 0, 0][..], &[0; 24]].concat())
}

pub fn query_for6() -> Frame {
    Frame::v6(LOCAL6, GROUP6, 58, &[&[130, 0, 0, 0, 3, 232, 0, 0][..], &GROUP6, &[2, 125, 0, 0]].concat())
}

pub const LOCAL6: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
pub const ALL6: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
pub const ROUTERS6: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
