//! The headers that a tunnel adds to a frame.

use std::net::IpAddr;

use nicety_frame::vxlan;

/// Bytes of the header.
pub(crate) const HEADER_BYTES: u32 = vxlan::HEADER_BYTES as u32;

const UDP_BYTES: u32 = 8;
const IPV4_BYTES: u32 = 20;
const IPV6_BYTES: u32 = 40;
/// The addresses and the type of a frame.
pub(crate) const ETHERNET_BYTES: u32 = 14;

/// The longest frame that a tunnel carries between these addresses, without a tag: the network below carries IP packets of `mtu` bytes.
pub(crate) fn frame_max(mtu: u16, own: IpAddr) -> u32 {
    let ip = if own.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
    u32::from(mtu).saturating_sub(ip + UDP_BYTES + HEADER_BYTES)
}

/// The largest MTU that guests behind such a tunnel may have.
pub fn inner_mtu(mtu: u16, own: IpAddr) -> u32 {
    frame_max(mtu, own).saturating_sub(ETHERNET_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_of_1500_bytes_leaves_guests_1450_over_ipv4_and_1430_over_ipv6() {
        assert_eq!(inner_mtu(1500, "192.0.2.1".parse().unwrap()), 1450);
        assert_eq!(inner_mtu(1500, "2001:db8::1".parse().unwrap()), 1430);
        assert_eq!(inner_mtu(9000, "192.0.2.1".parse().unwrap()), 8950);
        assert_eq!(inner_mtu(0, "192.0.2.1".parse().unwrap()), 0);
    }
}
