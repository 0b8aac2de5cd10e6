//! Whether an address answers ICMP echo requests (RFC 792; RFC 4443 section 4.1), from where this command runs.
//!
//! The kernel's ping sockets take them from users of the groups in net.ipv4.ping_group_range (icmp(7)). Who has CAP_NET_RAW uses a raw
//! socket where that range is empty.

use std::ffi::OsString;
use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

use nicety_frame::checksum::sum;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::BindToDevice;
use rustix::net::netdevice::name_to_index;
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

/// An address, and the interface by which it is asked: `192.0.2.1`, `192.0.2.1%eth0`, `fe80::1%eth0`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    ip: IpAddr,
    /// `None`: by the host's routes.
    interface: Option<String>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.ip)?;
        self.interface.iter().try_for_each(|interface| write!(f, "%{interface}"))
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (ip, interface) = match text.split_once('%') {
            Some((_, "")) => return Err("write the interface behind the %, such as 192.0.2.1%eth0".to_owned()),
            Some((ip, interface)) => (ip, Some(interface.to_owned())),
            None => (text, None),
        };
        let ip = ip.parse::<IpAddr>().map_err(|error| error.to_string())?;
        let is_link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        if is_link_local && interface.is_none() {
            return Err(format!("each link has such an address: write its interface too, such as {ip}%eth0"));
        }
        Ok(Self { ip, interface })
    }
}

/// Asks one address.
#[derive(Debug)]
pub struct Reach {
    socket: UdpSocket,
    address: Address,
    /// The index of the interface, for IPv6. 0: none is chosen.
    scope: u32,
    /// A raw socket has no identifier of its own, and receives IPv4's header.
    is_raw: bool,
    identifier: u16,
    sequence: u16,
}

impl Reach {
    /// Opens the socket.
    pub fn open(address: Address) -> Result<Self, Failure> {
        let (family, protocol) = match address.ip {
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
        let scope = address.interface.as_ref().map_or(Ok(0), |interface| {
            // Since Linux 5.7 everybody may bind a new socket so (socket(7), SO_BINDTODEVICE).
            let bound = name_to_index(&socket, interface).map_err(std::io::Error::from).and_then(|index| {
                setsockopt(&socket, BindToDevice, &OsString::from(interface))?;
                Ok(index)
            });
            bound.map_err(|error| {
                let what = "`ip link` lists the interfaces: nothing was done";
                Failure::new(
                    Exit::Usage,
                    format!("{address} cannot be asked by interface {interface}: {error}; {what}"),
                )
            })
        })?;
        let socket = UdpSocket::from(socket);
        let identifier = (std::process::id() & 0xffff) as u16;
        Ok(Self { socket, address, scope, is_raw, identifier, sequence: 0 })
    }

    /// The address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Whether it answers within a time, and each further request for so long after that, which is within that time, too.
    pub fn answers(&mut self, lasting: Duration, within: Duration) -> bool {
        let end = Instant::now() + within;
        let mut since = None;
        loop {
            let is_answered = self.is_answered(end.min(Instant::now() + ANSWERS_WITHIN));
            let now = Instant::now();
            since = is_answered.then(|| since.unwrap_or(now));
            if since.is_some_and(|since| now.duration_since(since) >= lasting) {
                return true;
            }
            if now >= end {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Sends one request. Whether it is answered before then.
    fn is_answered(&mut self, end: Instant) -> bool {
        self.sequence = self.sequence.wrapping_add(1);
        // No route, or a neighbour that does not answer, is no answer.
        if self.socket.send_to(&self.request(), self.target()).is_err() {
            return false;
        }
        let mut packet = [0; 256];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || self.socket.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            match self.socket.recv_from(&mut packet) {
                Ok((length, from)) if from.ip() == self.address.ip && self.is_reply(&packet[..length]) => return true,
                // Another's answer, or an error about an earlier request.
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn target(&self) -> SocketAddr {
        match self.address.ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, self.scope).into(),
        }
    }

    fn kind(&self, kinds: [u8; 2]) -> u8 {
        kinds[usize::from(self.address.ip.is_ipv6())]
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
            Some(first) if self.is_raw && self.address.ip.is_ipv4() => usize::from(first & 0xf) * 4,
            _ => 0,
        };
        let Some(&[kind, 0, _, _, id0, id1, seq0, seq1]) = packet.get(header..header + HEADER) else { return false };
        let is_ours = !self.is_raw || u16::from_be_bytes([id0, id1]) == self.identifier;
        kind == self.kind(REPLY) && is_ours && u16::from_be_bytes([seq0, seq1]) == self.sequence
    }
}

#[cfg(test)]
impl Reach {
    /// One whose requests go nowhere.
    pub(crate) fn deaf(address: &str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self { socket, address: address.parse().unwrap(), scope: 0, is_raw: false, identifier: 0, sequence: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(address: &str, is_raw: bool) -> Reach {
        Reach { is_raw, identifier: 0x1234, sequence: 1, ..Reach::deaf(address) }
    }

    #[test]
    fn an_address_may_name_its_interface_and_one_of_a_link_must() {
        for text in ["192.0.2.1", "192.0.2.1%eth0", "2001:db8::1", "fe80::1%eth0.7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for (text, why) in [
            ("gateway", "invalid IP address syntax"),
            ("gateway%eth0", "invalid IP address syntax"),
            ("%eth0", "invalid IP address syntax"),
            ("192.0.2.1%", "write the interface behind the %"),
            ("fe80::1", "write its interface too, such as fe80::1%eth0"),
        ] {
            let said = text.parse::<Address>().unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
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
