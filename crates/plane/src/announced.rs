//! Frames that announce where an address is reached from now on: a reverse ARP request tells switches; gratuitous ARP and unsolicited
//! neighbour advertisements also tell hosts and routers, some of which do not believe a reverse request.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nicety_frame::vlan::Tag;
use nicety_frame::{Mac, arp, checksum, ethernet};

/// A reverse ARP request whose target is the sender itself (RFC 903): it needs no answer.
pub(crate) fn of_station(address: Mac, tag: Option<Tag>) -> Option<Vec<u8>> {
    let (operation, unset) = (arp::operation::REVERSE_REQUEST, Ipv4Addr::UNSPECIFIED);
    let packet = arp::Packet { operation, sender_mac: address, sender: unset, target_mac: address, target: unset };
    arp_frame(address, ethernet::ethertype::RARP, &packet, tag)
}

fn arp_frame(source: Mac, ethertype: u16, packet: &arp::Packet, tag: Option<Tag>) -> Option<Vec<u8>> {
    let mut frame = vec![0; ethernet::FRAME_LEN_MIN];
    let header = ethernet::Header { destination: Mac::BROADCAST, source, ethertype };
    let len = header.write(&mut frame).ok()?;
    packet.write(frame.get_mut(len..)?).ok()?;
    Some(tagged(frame, tag))
}

fn tagged(mut frame: Vec<u8>, tag: Option<Tag>) -> Vec<u8> {
    if let Some(tag) = tag {
        frame.splice(12..12, tag.to_bytes());
    }
    frame
}

/// Says that a station has an IP address: an ARP announcement (RFC 5227, section 2.3) or an unsolicited neighbour advertisement (RFC 4861,
/// section 7.2.6).
pub(crate) fn of_ip(address: Mac, ip: IpAddr, tag: Option<Tag>) -> Option<Vec<u8>> {
    match ip {
        IpAddr::V4(ip) => {
            let (operation, target_mac) = (arp::operation::REQUEST, Mac([0; 6]));
            let packet = arp::Packet { operation, sender_mac: address, sender: ip, target_mac, target: ip };
            arp_frame(address, ethernet::ethertype::ARP, &packet, tag)
        }
        IpAddr::V6(ip) => Some(tagged(advertisement(address, ip), tag)),
    }
}

/// To all nodes: type 136, override, its target and the target's link-layer address.
fn advertisement(address: Mac, ip: Ipv6Addr) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const ICMPV6: u8 = 58;
    let mut message = [&[136, 0, 0, 0, 0x20, 0, 0, 0][..], &ip.octets(), &[2, 1], &address.0].concat();
    let pseudo = checksum::pseudo_v6(ip, ALL_NODES, ICMPV6, message.len() as u32);
    let sum = pseudo.then(checksum::sum(&message), false).checksum();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = [0x60, 0, 0, 0, 0, message.len() as u8, ICMPV6, 255];
    let ethernet = [&[0x33, 0x33, 0, 0, 0, 1][..], &address.0, &ethernet::ethertype::IPV6.to_be_bytes()].concat();
    [&ethernet[..], &header, &ip.octets(), &ALL_NODES.octets(), &message].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_told_of_an_address_as_the_standards_have_it() {
        let (address, hex) = (Mac([2, 0, 0, 0, 0, 1]), |text: &str| -> Vec<u8> {
            let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
            digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
        });
        // RFC 5227: a request whose sender and target are the address announced; RFC 826's fields.
        let wanted = "ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 0a000005 000000000000 0a000005";
        let arp = of_ip(address, "10.0.0.5".parse().unwrap(), None).unwrap();
        assert_eq!((&arp[..42], arp.len()), (&hex(wanted)[..], 60));
        // RFC 4861, section 4.4: hop limit 255, override without solicited, the target's address as an option.
        let wanted = "333300000001 020000000001 86dd 60000000 0020 3a ff fe800000000000000000000000000005 \
                      ff020000000000000000000000000001 88 00 5793 20000000 fe800000000000000000000000000005 0201 020000000001";
        assert_eq!(of_ip(address, "fe80::5".parse().unwrap(), None).unwrap(), hex(&wanted.replace('\\', "")));
    }
}
