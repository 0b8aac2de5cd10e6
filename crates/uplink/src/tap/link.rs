//! Kind of an interface, from rtnetlink (rtnetlink(7), `linux/rtnetlink.h`, `linux/if_link.h`). sysfs shows the network namespace
//! in which it was mounted, which may be another one.

use std::fmt;
use std::io;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// `struct nlmsghdr`, then `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;
const LINK_BYTES: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_TUN_OWNER: u16 = 1;
const IFLA_TUN_GROUP: u16 = 2;
const IFLA_TUN_TYPE: u16 = 3;
const IFLA_TUN_MULTI_QUEUE: u16 = 7;
const IFLA_TUN_NUM_QUEUES: u16 = 8;
const IFLA_TUN_NUM_DISABLED_QUEUES: u16 = 9;
/// Flags of an attribute's type (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;
/// Buffer for an answer. A link without virtual functions (not requested here) has two to four thousand bytes.
const ANSWER_BYTES: usize = 32 << 10;

/// Kind of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// A tap.
    Tap(TapLink),
    /// Another kind of interface.
    Other(Kind),
}

/// Properties of a tap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TapLink {
    /// User who may attach; `None`: any user.
    pub(super) owner: Option<u32>,
    /// Group that may attach; `None`: any group.
    pub(super) group: Option<u32>,
    /// The tap may have several queues.
    pub(super) several: bool,
    /// Queues that processes hold now. 0 on kernels that do not tell (before 4.20).
    pub(super) held: u32,
}

/// Kind of an interface that is not a tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A network card or equivalent: no driver of virtual links has made it.
    Physical,
    /// The loopback interface.
    Loopback,
    /// A tun device: IP packets without Ethernet.
    Tun,
    /// A virtual link, by its kind's name in `ip -d link`.
    Virtual(String),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Physical => f.write_str("a physical device"),
            Self::Loopback => f.write_str("the loopback device"),
            Self::Tun => f.write_str("a tun device, of IP packets"),
            Self::Virtual(kind) => {
                // "an" before a vowel letter.
                let article = if kind.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" };
                write!(f, "{article} {kind}")
            }
        }
    }
}

/// The interface of this name; `None` if there is none.
pub(super) fn of(name: &str) -> io::Result<Option<Link>> {
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    rustix::net::send(&socket, &question(name), SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    let (count, _) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    understood(answer.get(..count).unwrap_or(&[]))
}

fn question(name: &str) -> Vec<u8> {
    let attribute = (4 + name.len() + 1) as u16;
    let whole = HEADER_BYTES + LINK_BYTES + usize::from(attribute).next_multiple_of(4);
    let mut bytes = Vec::with_capacity(whole);
    bytes.extend((whole as u32).to_ne_bytes());
    bytes.extend(RTM_GETLINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.resize(HEADER_BYTES + LINK_BYTES, 0);
    bytes.extend(attribute.to_ne_bytes());
    bytes.extend(IFLA_IFNAME.to_ne_bytes());
    bytes.extend(name.as_bytes());
    bytes.resize(whole, 0);
    bytes
}

fn understood(answer: &[u8]) -> io::Result<Option<Link>> {
    match u16_at(answer, 4) {
        Some(RTM_NEWLINK) => {}
        Some(NLMSG_ERROR) => {
            let errno = u32_at(answer, HEADER_BYTES).map_or(0, u32::cast_signed);
            return match Errno::from_raw_os_error(-errno) {
                Errno::NODEV => Ok(None),
                errno => Err(errno.into()),
            };
        }
        _ => return Err(io::ErrorKind::InvalidData.into()),
    }
    let hardware = u16_at(answer, HEADER_BYTES + 2);
    let attributes = answer.get(HEADER_BYTES + LINK_BYTES..).unwrap_or(&[]);
    let info = attribute(attributes, IFLA_LINKINFO).unwrap_or(&[]);
    let kind = attribute(info, IFLA_INFO_KIND).map(|kind| {
        let text = kind.split(|&byte| byte == 0).next().unwrap_or(&[]);
        String::from_utf8_lossy(text).escape_debug().to_string()
    });
    let tun = attribute(info, IFLA_INFO_DATA).unwrap_or(&[]);
    Ok(Some(match kind.as_deref() {
        None if hardware == Some(libc::ARPHRD_LOOPBACK) => Link::Other(Kind::Loopback),
        None => Link::Other(Kind::Physical),
        // Kernels before 4.20 do not report tun or tap; the hardware type does.
        Some("tun") if attribute(tun, IFLA_TUN_TYPE).and_then(<[u8]>::first) == Some(&(libc::IFF_TUN as u8)) => {
            Link::Other(Kind::Tun)
        }
        Some("tun") if hardware != Some(libc::ARPHRD_ETHER) => Link::Other(Kind::Tun),
        Some("tun") => Link::Tap(TapLink {
            owner: attribute(tun, IFLA_TUN_OWNER).and_then(|id| u32_at(id, 0)),
            group: attribute(tun, IFLA_TUN_GROUP).and_then(|id| u32_at(id, 0)),
            several: attribute(tun, IFLA_TUN_MULTI_QUEUE).and_then(<[u8]>::first).is_some_and(|&yes| yes != 0),
            held: [IFLA_TUN_NUM_QUEUES, IFLA_TUN_NUM_DISABLED_QUEUES]
                .iter()
                .filter_map(|kind| attribute(tun, *kind).and_then(|count| u32_at(count, 0)))
                .fold(0, u32::saturating_add),
        }),
        Some(kind) => Link::Other(Kind::Virtual(kind.to_owned())),
    }))
}

/// The attribute of this type. An attribute is a length (with its own four bytes), a type, and a value.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let kind = u16_at(attributes, 2)? & TYPE_MASK;
        let held = attributes.get(4..length)?;
        if kind == wanted {
            return Some(held);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_is_there_and_is_no_tap() {
        assert_eq!(of("lo").unwrap(), Some(Link::Other(Kind::Loopback)));
        assert_eq!(of("no-such-link").unwrap(), None);
    }

    #[test]
    fn an_answer_that_is_cut_anywhere_is_no_panic() {
        let mut answer = question("lo");
        answer[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
        for length in 0..answer.len() {
            let _result = understood(&answer[..length]);
        }
        // An attribute of length zero must not loop.
        answer[HEADER_BYTES + LINK_BYTES..][..2].fill(0);
        assert_eq!(understood(&answer).unwrap(), Some(Link::Other(Kind::Physical)));
    }
}
