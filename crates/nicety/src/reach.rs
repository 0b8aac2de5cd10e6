//! Whether an address answers ICMP echo requests (RFC 792; RFC 4443 section 4.1), from where this command runs.
//!
//! The kernel's ping sockets take them from users of the groups in net.ipv4.ping_group_range (icmp(7)). Who has CAP_NET_RAW uses a raw
//! socket where that range is empty.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nicety_frame::checksum::sum;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use crate::exit::{Exit, Failure};

/// The time for one answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The time between two requests.
const PAUSE: Duration = Duration::from_millis(200);
/// Types of messages: echo and its reply, of IPv4 and IPv6.
const ECHO: [u8; 2] = [8, 128];
const REPLY: [u8; 2] = [0, 129];
/// Bytes of an echo's header.
const HEADER: usize = 8;

/// Asks one address.
#[derive(Debug)]
pub struct Reach {
    socket: UdpSocket,
    address: IpAddr,
    /// A raw socket has no identifier of its own, and receives IPv4's header.
    is_raw: bool,
    identifier: u16,
    sequence: u16,
}

impl Reach {
    /// Opens the socket.
    pub fn open(address: IpAddr) -> Result<Self, Failure> {
        let (family, protocol) = match address {
            IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
            IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
        };
        let open = |kind| socket_with(family, kind, SocketFlags::CLOEXEC, Some(protocol));
        let opened = open(SocketType::DGRAM).map(|socket| (socket, false));
        let opened = opened.or_else(|_| open(SocketType::RAW).map(|socket| (socket, true)));
        let (socket, is_raw) = opened.map_err(|errno| {
            let what = "be root, or of a group in the sysctl net.ipv4.ping_group_range: nothing was done";
            Failure::new(Exit::Missing, format!("this user may send no echo requests to {address}: {errno}; {what}"))
        })?;
        let socket = UdpSocket::from(socket);
        let identifier = (std::process::id() & 0xffff) as u16;
        Ok(Self { socket, address, is_raw, identifier, sequence: 0 })
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether it answers so many requests in a row, within a time.
    pub fn answers(&mut self, times: u32, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut in_a_row = 0;
        while in_a_row < times {
            let is_answered = self.is_answered(end.min(Instant::now() + ANSWERS_WITHIN));
            in_a_row = if is_answered { in_a_row + 1 } else { 0 };
            if in_a_row < times {
                if Instant::now() >= end {
                    return false;
                }
                std::thread::sleep(PAUSE);
            }
        }
        true
    }

    /// Sends one request. Whether it is answered before then.
    fn is_answered(&mut self, end: Instant) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        // No route, or a neighbour that does not answer, is no answer.
        if self.socket.send_to(&self.request(), SocketAddr::new(self.address, 0)).is_err() {
            return false;
        }
        let mut packet = [0; 256];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            match self.socket.recv_from(&mut packet) {
                Ok((length, from)) if from.ip() == self.address && self.is_reply(&packet[..length]) => return true,
                // Another's answer, or an error about an earlier request.
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn kind(&self, kinds: [u8; 2]) -> u8 {
        kinds[usize::from(self.address.is_ipv6())]
    }

    fn request(&self) -> Vec<u8> {
        let mut packet = vec![self.kind(ECHO), 0, 0, 0];
        packet.extend_from_slice(&self.identifier.to_be_bytes());
        packet.extend_from_slice(&self.sequence.to_be_bytes());
        packet.extend_from_slice(b"nicety confirm");
        // The kernel computes those of ping sockets, and of all of IPv6.
        let checksum = sum(&packet).checksum();
        packet[2..4].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    fn is_reply(&self, packet: &[u8]) -> bool {
        let header = match packet.first() {
            // The length of IPv4's header is in words of 4 bytes (RFC 791 section 3.1).
            Some(first) if self.is_raw && self.address.is_ipv4() => usize::from(first & 0xf) * 4,
            _ => 0,
        };
        let Some(&[kind, 0, _, _, id0, id1, seq0, seq1]) = packet.get(header..header + HEADER) else { return false };
        let is_ours = !self.is_raw || u16::from_be_bytes([id0, id1]) == self.identifier;
        kind == self.kind(REPLY) && is_ours && u16::from_be_bytes([seq0, seq1]) == self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(address: &str, is_raw: bool) -> Reach {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Reach { socket, address: address.parse().unwrap(), is_raw, identifier: 0x1234, sequence: 1 }
    }

    #[test]
    fn a_request_has_the_checksum_of_rfc_792_and_only_its_own_reply_is_one() {
        let asked = reach("192.0.2.1", true);
        let request = asked.request();
        assert_eq!(request[..2], [8, 0]);
        assert_eq!(request[4..8], [0x12, 0x34, 0, 1]);
        // RFC 1071 section 1: the sum over the whole message, its checksum included, is all ones.
        let words = request.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);

        let header = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 1, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2];
        let reply = |message: [u8; 8]| [&header[..], &message].concat();
        assert!(asked.is_reply(&reply([0, 0, 9, 9, 0x12, 0x34, 0, 1])));
        for (message, what) in [
            ([8, 0, 9, 9, 0x12, 0x34, 0, 1], "our own request"),
            ([3, 0, 9, 9, 0x12, 0x34, 0, 1], "destination unreachable"),
            ([0, 0, 9, 9, 0x12, 0x35, 0, 1], "another process's"),
            ([0, 0, 9, 9, 0x12, 0x34, 0, 2], "another request's"),
        ] {
            assert!(!asked.is_reply(&reply(message)), "{what}");
        }
        assert!(!asked.is_reply(&header) && !asked.is_reply(&[]), "cut short");
        // A ping socket has no header before it, and the kernel's identifier.
        assert!(reach("192.0.2.1", false).is_reply(&[0, 0, 9, 9, 7, 7, 0, 1]));
        assert!(reach("2001:db8::1", false).is_reply(&[129, 0, 9, 9, 7, 7, 0, 1]));
        assert!(!reach("2001:db8::1", true).is_reply(&[129, 0, 9, 9, 7, 7, 0, 1]));
    }
}
