//! Ethernet in UDP: VXLAN (RFC 7348 section 5) and Geneve (RFC 8926 section 3.4).

use crate::bytes::{array_at, put, u16_at};
use crate::checksum::{self, sum};
use crate::layout::{Fragment, L3Kind, L4Kind, Layout};
use crate::vxlan;

/// VXLAN's assigned port, and the port that Linux used before (`IANA_VXLAN_UDP_PORT`, `VXLAN_UDP_PORT`).
const VXLAN_PORTS: [u16; 2] = [vxlan::PORT, 8472];
/// Geneve's port (`GENEVE_UDP_PORT`).
const GENEVE_PORT: u16 = 6081;
/// Geneve's protocol type for Ethernet.
const ETHERNET: u16 = 0x6558;

/// Kind of tunnel, by its UDP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelKind {
    /// VXLAN.
    Vxlan,
    /// Geneve.
    Geneve,
}

/// A frame in a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Kind of tunnel.
    pub kind: TunnelKind,
    /// The inner frame's layout; offsets count from the outer frame's first byte.
    pub inner: Layout,
}

impl Tunnel {
    /// Parses an outer frame; `None` unless it is a whole UDP packet to a tunnel's port with an Ethernet frame in it.
    pub fn parse(head: &[u8], outer: &Layout) -> Option<Self> {
        outer.l4.filter(|l4| l4.kind == L4Kind::Udp)?;
        outer.l3.filter(|l3| l3.fragment == Fragment::Whole)?;
        let (at, (_, port)) = (usize::from(outer.headers_len), outer.ports(head)?);
        let header = array_at::<8>(head, at)?;
        let (kind, len) = match port {
            GENEVE_PORT if header[0] >> 6 == 0 && u16_at(header, 2)? == ETHERNET => {
                (TunnelKind::Geneve, 8 + 4 * usize::from(header[0] & 0x3f))
            }
            port if VXLAN_PORTS.contains(&port) && vxlan::decode(*header).is_some() => {
                (TunnelKind::Vxlan, vxlan::HEADER_BYTES)
            }
            _ => return None,
        };
        let mut inner = Layout::parse(head.get(at + len..)?);
        if inner.l2_len == 0 {
            return None;
        }
        // Offsets of the inner frame end within the head.
        u16::try_from(head.len()).ok()?;
        let by = (at + len) as u16;
        inner.l2_len += by;
        inner.headers_len += by;
        if let Some(l3) = &mut inner.l3 {
            l3.offset += by;
            l3.destination_at += by;
        }
        if let Some(l4) = &mut inner.l4 {
            l4.offset += by;
        }
        Some(Self { kind, inner })
    }

    /// Writes the outer headers of a frame of `len` bytes: IP's and UDP's lengths, the IP header's checksum, and UDP's checksum
    /// if `sums`, else 0. The inner transport checksum must hold the folded sum of its pseudo-header. Once that checksum is
    /// complete, the bytes that it covers add up to the complement of that sum, so the payload is not read (Linux,
    /// Documentation/networking/checksum-offloads.rst, "LCO"). `None` if a length does not fit or a header is missing.
    pub fn seal(&self, head: &mut [u8], outer: &Layout, len: u32, sums: bool) -> Option<()> {
        let (udp, inner) = (outer.l4?, self.inner.l4?);
        let at = usize::from(udp.offset);
        put(head, at + 4, u16::try_from(len.checked_sub(u32::from(udp.offset))?).ok()?.to_be_bytes())?;
        let field = usize::from(checksum::prepare(head, outer, len)?);
        let covered = sum(head.get(at..usize::from(inner.offset))?);
        let made = covered.word(!u16_at(head, inner.checksum_at())?).transmit();
        put(head, field, if sums { made } else { 0 }.to_be_bytes())
    }

    /// Adds to the outer identification: every segment is a packet of its own. IPv6 has no identification.
    pub(crate) fn count(head: &mut [u8], outer: &Layout, index: u16) -> Option<()> {
        let l3 = outer.l3?;
        if l3.kind == L3Kind::V6 {
            return Some(());
        }
        let at = usize::from(l3.offset) + 4;
        let id = u16_at(head, at)?.wrapping_add(index);
        put(head, at, id.to_be_bytes())
    }
}
