//! Offsets of the headers of a frame: one bounded walk over its head. Every later decision uses its result.
//!
//! Follows IEEE 802.1Q clause 9 (tags), RFC 791 section 3.1, RFC 8200 section 4 (extension headers), RFC 9293
//! section 3.1 and RFC 768.

use crate::bytes::{array_at, u16_at};
use crate::ethernet::{self, ethertype};
use crate::ipv4::{self, protocol};
use crate::ipv6::{self, extension};
use crate::vlan::{self, TAG_LEN, Tag};
use crate::{tcp, udp};

/// Most extension headers that are walked. RFC 8200 section 4.1 allows each of the six kinds once, and one of them twice.
pub const EXTENSIONS_MAX: usize = 8;
/// Most tags that are walked: more than a private head holds.
pub const TAGS_MAX: usize = 128;

/// Internet protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L3Kind {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Whether a packet is a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fragment {
    /// Not fragmented. Includes an IPv6 fragment header that covers the whole packet (RFC 6946).
    Whole,
    /// The first part: its L4 header is there; its L4 checksum covers bytes of later parts too.
    First,
    /// A later part: no L4 header.
    Later,
}

/// The IP header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct L3 {
    /// Internet protocol.
    pub kind: L3Kind,
    /// Offset of the header in the frame.
    pub offset: u16,
    /// Length of the header, with options or whole extension headers.
    pub len: u16,
    /// Protocol of the payload; an extension header's number if the walk ended before it.
    pub protocol: u8,
    /// Whether the packet is a fragment.
    pub fragment: Fragment,
    /// Offset in the frame of the pseudo-header's destination address: the final address if an IPv6 routing header
    /// has hops left (RFC 8200 section 8.1).
    pub destination_at: u16,
}

/// Transport protocol of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum L4Kind {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl L4Kind {
    /// Number of the protocol in the IP header.
    #[inline]
    pub const fn protocol(self) -> u8 {
        match self {
            Self::Tcp => protocol::TCP,
            Self::Udp => protocol::UDP,
        }
    }

    /// Offset of the checksum in the transport header: virtio's `csum_offset`.
    #[inline]
    pub const fn checksum_offset(self) -> u16 {
        match self {
            Self::Tcp => tcp::CHECKSUM_OFFSET as u16,
            Self::Udp => udp::CHECKSUM_OFFSET as u16,
        }
    }
}

/// The transport header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct L4 {
    /// Transport protocol.
    pub kind: L4Kind,
    /// Offset of the header in the frame: virtio's `csum_start`.
    pub offset: u16,
    /// Length of the header, with options.
    pub len: u16,
}

impl L4 {
    /// Offset of the checksum in the frame.
    #[inline]
    pub const fn checksum_at(&self) -> usize {
        self.offset as usize + self.kind.checksum_offset() as usize
    }
}

/// Headers found in a frame's head. Offsets count from the destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Length of the Ethernet header with its whole tags, which is the offset of L3. 0 if the head is shorter than 14 bytes.
    pub l2_len: u16,
    /// The two outermost tags, outermost first. Hosts remove more tags (Linux: any number of VLAN 0), so the walk continues behind these.
    pub tags: [Option<Tag>; 2],
    /// The type field behind the tags; a length if below `ethernet::TYPE_MIN`; 0 if `l2_len` is 0.
    pub ethertype: u16,
    /// The IP header, if there is one and it is whole.
    pub l3: Option<L3>,
    /// The transport header, if there is one and it is whole.
    pub l4: Option<L4>,
    /// Length of all of the headers above.
    pub headers_len: u16,
}

impl Layout {
    /// No header found.
    pub const EMPTY: Self = Self { l2_len: 0, tags: [None; 2], ethertype: 0, l3: None, l4: None, headers_len: 0 };

    /// Walks `head`, the first bytes of a frame or all of it. Never fails: headers that are cut off, damaged or unknown are not
    /// in the result.
    #[inline]
    pub fn parse(head: &[u8]) -> Self {
        let Some(first_type) = u16_at(head, ethernet::HEADER_LEN - 2) else { return Self::EMPTY };
        let mut layout = Self { l2_len: 14, ethertype: first_type, headers_len: 14, ..Self::EMPTY };
        if vlan::is_tpid(first_type) {
            layout.walk_tags(head);
        }
        layout.headers_len = layout.l2_len;
        layout.l3 = match layout.ethertype {
            ethertype::IPV4 => parse_v4(head, layout.l2_len),
            ethertype::IPV6 => parse_v6(head, layout.l2_len),
            _ => None,
        };
        if let Some(l3) = layout.l3 {
            layout.headers_len = l3.offset + l3.len;
            layout.l4 = parse_l4(head, &l3);
        }
        if let Some(l4) = layout.l4 {
            layout.headers_len = l4.offset + l4.len;
        }
        layout
    }

    fn walk_tags(&mut self, head: &[u8]) {
        for index in 0..TAGS_MAX {
            let end = usize::from(self.l2_len);
            if !vlan::is_tpid(self.ethertype) {
                break;
            }
            let Some(&[tci_high, tci_low, type_high, type_low]) = array_at::<TAG_LEN>(head, end) else { break };
            if let Some(slot) = self.tags.get_mut(index) {
                let tci = vlan::Tci(u16::from_be_bytes([tci_high, tci_low]));
                *slot = Some(Tag { tpid: self.ethertype, tci });
            }
            self.ethertype = u16::from_be_bytes([type_high, type_low]);
            self.l2_len += TAG_LEN as u16;
        }
    }

    /// Whether the type field announces a tag or an IP header that is not whole here.
    #[inline]
    pub fn is_cut(&self) -> bool {
        let announced = matches!(self.ethertype, ethertype::IPV4 | ethertype::IPV6) || vlan::is_tpid(self.ethertype);
        self.l3.is_none() && announced
    }

    /// Number of tags of the frame: 0, 1, or 2 for more.
    #[inline]
    pub fn tag_count(&self) -> usize {
        self.tags.iter().flatten().count()
    }

    /// Length of the L4 header and payload, without a frame's padding: by the IP header, or by UDP's own length field if that is
    /// less (RFC 768: the checksum covers it). `None` without L4, or if the length is less than the headers (0 in a head
    /// prepared for segmentation, or in a jumbogram), or if UDP's length is more than IP's.
    #[inline]
    pub fn l4_total_len(&self, head: &[u8]) -> Option<usize> {
        let (l3, l4) = (self.l3?, self.l4?);
        let ip = head.get(usize::from(l3.offset)..)?;
        let total = match l3.kind {
            L3Kind::V4 => usize::from(ipv4::View::parse(ip).ok()?.total_len()),
            L3Kind::V6 => usize::from(ipv6::View::parse(ip).ok()?.payload_len()) + ipv6::HEADER_LEN,
        };
        let room = total.checked_sub(usize::from(l3.len))?;
        let len = match l4.kind {
            L4Kind::Tcp => room,
            L4Kind::Udp => usize::from(udp::View::parse(head.get(usize::from(l4.offset)..)?).ok()?.len()),
        };
        (usize::from(l4.len)..=room).contains(&len).then_some(len)
    }

    /// Source and destination port; `None` without L4.
    #[inline]
    pub fn ports(&self, head: &[u8]) -> Option<(u16, u16)> {
        let &[a, b, c, d] = array_at::<4>(head, usize::from(self.l4?.offset))?;
        Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }
}

// Offsets stay far below u16's range: 128 tags, eight extension headers of at most 2048 bytes, 60 bytes of TCP.

#[inline]
fn parse_v4(head: &[u8], offset: u16) -> Option<L3> {
    let view = ipv4::View::parse(head.get(usize::from(offset)..)?).ok()?;
    let fragment = match (view.fragment_offset(), view.more_fragments()) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First,
        _ => Fragment::Later,
    };
    Some(L3 {
        kind: L3Kind::V4,
        offset,
        len: view.header_len() as u16,
        protocol: view.protocol(),
        fragment,
        destination_at: offset + ipv4::DESTINATION_OFFSET as u16,
    })
}

fn parse_v6(head: &[u8], offset: u16) -> Option<L3> {
    let view = ipv6::View::parse(head.get(usize::from(offset)..)?).ok()?;
    let mut l3 = L3 {
        kind: L3Kind::V6,
        offset,
        len: ipv6::HEADER_LEN as u16,
        protocol: view.next_header(),
        fragment: Fragment::Whole,
        destination_at: offset + ipv6::DESTINATION_OFFSET as u16,
    };
    let mut has_fragment = false;
    for _ in 0..EXTENSIONS_MAX {
        let at = offset + l3.len;
        let Some(&[next, words, a, b, ..]) = array_at::<8>(head, usize::from(at)) else { break };
        match l3.protocol {
            extension::HOP_BY_HOP | extension::DESTINATION | extension::ROUTING => {
                let len = (u16::from(words) + 1) * 8;
                if head.len() < usize::from(at + len) {
                    break;
                }
                if l3.protocol == extension::ROUTING
                    && let Some(address) = final_destination(at, len, a, b)
                {
                    l3.destination_at = address;
                }
                l3.len += len;
            }
            // No valid packet has a second one: RFC 8200, section 4.1; Linux's net/ipv6/reassembly.c, ipv6_frag_rcv.
            extension::FRAGMENT if !has_fragment => {
                has_fragment = true;
                let field = u16::from_be_bytes([a, b]);
                l3.len += 8;
                l3.protocol = next;
                if field & 0xfff8 != 0 {
                    l3.fragment = Fragment::Later;
                    break;
                }
                if field & 1 != 0 {
                    l3.fragment = Fragment::First;
                }
                continue;
            }
            _ => break,
        }
        l3.protocol = next;
    }
    Some(l3)
}

/// Offset of the final destination in a routing header of `len` bytes at `at`, if hops are left: its last address
/// (type 0, RFC 5095), its only one (type 2, RFC 6275) or its first (type 4, RFC 8754).
fn final_destination(at: u16, len: u16, routing_type: u8, segments_left: u8) -> Option<u16> {
    if segments_left == 0 || len < 24 {
        return None;
    }
    match routing_type {
        0 => Some(at + 8 + (len - 24) / 16 * 16),
        2 | 4 => Some(at + 8),
        _ => None,
    }
}

#[inline]
fn parse_l4(head: &[u8], l3: &L3) -> Option<L4> {
    if l3.fragment == Fragment::Later {
        return None;
    }
    let offset = l3.offset + l3.len;
    let bytes = head.get(usize::from(offset)..)?;
    let (kind, len) = match l3.protocol {
        protocol::TCP => (L4Kind::Tcp, tcp::View::parse(bytes).ok()?.header_len()),
        protocol::UDP => {
            udp::View::parse(bytes).ok()?;
            (L4Kind::Udp, udp::HEADER_LEN)
        }
        _ => return None,
    };
    Some(L4 { kind, offset, len: len as u16 })
}
