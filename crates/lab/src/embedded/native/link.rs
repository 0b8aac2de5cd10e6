//! A veth pair between two network namespaces, by rtnetlink (rtnetlink(7), `linux/if_link.h`, `linux/veth.h`, `linux/pkt_sched.h`): no
//! program of the host is needed.

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice, recv, send, socket_with};

use crate::rate::Rate;

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_REPLACE: u16 = 0x100;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWQDISC: u16 = 36;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_NET_NS_PID: u16 = 19;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFF_UP: u32 = 1;
const AF_INET: u8 = 2;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_H_ROOT: u32 = u32::MAX;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// Longest time that a frame waits for tokens before it is dropped, as in [`crate::real::veth`].
const LATENCY_MS: u64 = 50;
/// Buffer for an answer: an acknowledgement repeats the request's header.
const ANSWER_BYTES: usize = 4096;

/// A request, built attribute by attribute.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Request {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | NLM_F_ACK | flags).to_ne_bytes());
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(body);
        Request(bytes)
    }

    /// Adds an attribute whose value `fill` writes.
    fn attribute(mut self, kind: u16, fill: impl FnOnce(Request) -> Request) -> Request {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        let mut filled = fill(self);
        let length = u16::try_from(filled.0.len() - at).unwrap_or(u16::MAX);
        if let Some(place) = filled.0.get_mut(at..at + 2) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        filled.0.resize(filled.0.len().next_multiple_of(4), 0);
        filled
    }

    fn bytes(mut self, bytes: &[u8]) -> Request {
        self.0.extend(bytes);
        self
    }

    /// Sends it, and waits for the kernel's word.
    fn ask(mut self) -> Result<(), Errno> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(..4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        send(&socket, &self.0, SendFlags::empty())?;
        let mut answer = vec![0; ANSWER_BYTES];
        let (count, _) = recv(&socket, &mut answer, RecvFlags::empty())?;
        understood(answer.get(..count).unwrap_or_default())
    }
}

/// The kernel's word: 0 is an acknowledgement.
fn understood(answer: &[u8]) -> Result<(), Errno> {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let code = answer.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
    match (kind, code.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::BADMSG),
    }
}

/// Makes the pair: `near` in this thread's namespace, `far` in that of another thread.
pub fn pair(near: &str, far: &str, thread: u32) -> Result<(), Errno> {
    let name =
        |request: Request, name: &str| request.attribute(IFLA_IFNAME, |at| at.bytes(name.as_bytes()).bytes(&[0]));
    let request = Request::new(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &[0; 16]);
    let request = name(request, near).attribute(IFLA_LINKINFO, |info| {
        let info = info.attribute(IFLA_INFO_KIND, |at| at.bytes(b"veth"));
        info.attribute(IFLA_INFO_DATA, |data| {
            data.attribute(VETH_INFO_PEER, |peer| {
                let peer = name(peer.bytes(&[0; 16]), far);
                peer.attribute(IFLA_NET_NS_PID, |at| at.bytes(&thread.to_ne_bytes()))
            })
        })
    });
    request.ask()
}

/// Gives an interface of this thread's namespace its addresses, in networks of 24 bits, and takes it up.
pub fn up(name: &str, addresses: &[[u8; 4]]) -> Result<(), Errno> {
    let index = index(name)?;
    for address in addresses {
        let mut body = vec![AF_INET, 24, 0, 0];
        body.extend(index.to_ne_bytes());
        let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body);
        request.attribute(IFA_LOCAL, |at| at.bytes(address)).attribute(IFA_ADDRESS, |at| at.bytes(address)).ask()?;
    }
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    Request::new(RTM_NEWLINK, 0, &body).ask()
}

/// Limits what an interface of this thread's namespace sends, by a token bucket (tc-tbf(8)).
pub fn pace(name: &str, rate: Rate) -> Result<(), Errno> {
    let bytes_a_second = u64::from(rate.mbit) * 125_000;
    let limit =
        u32::try_from(bytes_a_second * LATENCY_MS / 1000).unwrap_or(u32::MAX).saturating_add(rate.burst_bytes());
    // struct tcmsg.
    let mut body = vec![0; 4];
    body.extend(index(name)?.to_ne_bytes());
    body.extend([0; 4]);
    body.extend(TC_H_ROOT.to_ne_bytes());
    body.extend([0; 4]);
    // struct tc_tbf_qopt: rate and peak rate (struct tc_ratespec), limit, buffer, mtu. Where the link layer is known, no table of times is
    // needed.
    let mut options = vec![0, TC_LINKLAYER_ETHERNET];
    options.extend([0; 6]);
    options.extend(u32::try_from(bytes_a_second).unwrap_or(u32::MAX).to_ne_bytes());
    options.extend([0; 12]);
    options.extend(limit.to_ne_bytes());
    options.extend([0; 8]);
    let request = Request::new(RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &body);
    let request = request.attribute(TCA_KIND, |at| at.bytes(b"tbf\0")).attribute(TCA_OPTIONS, |at| {
        at.attribute(TCA_TBF_PARMS, |at| at.bytes(&options))
            .attribute(TCA_TBF_BURST, |at| at.bytes(&rate.burst_bytes().to_ne_bytes()))
            .attribute(TCA_TBF_RATE64, |at| at.bytes(&bytes_a_second.to_ne_bytes()))
    });
    request.ask()
}

fn index(name: &str) -> Result<u32, Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    netdevice::name_to_index(&socket, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// netlink(7): an attribute's length does not count its padding.
    #[test]
    fn attributes_are_nested_padded_and_measured_without_their_padding() {
        let request = Request::new(RTM_NEWLINK, 0, &[9; 4])
            .attribute(7, |at| at.attribute(8, |at| at.bytes(b"abc")).attribute(9, |at| at.bytes(&[1])));
        let bytes = &request.0[HEADER_BYTES..];
        let expected =
            [&[9, 9, 9, 9], &[20_u8, 0, 7, 0][..], &[7, 0, 8, 0], b"abc\0", &[5, 0, 9, 0], &[1, 0, 0, 0]].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn an_acknowledgement_is_the_error_zero() {
        let answer = |code: i32| [&[36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &code.to_ne_bytes()].concat();
        assert_eq!(understood(&answer(0)), Ok(()));
        assert_eq!(understood(&answer(-1)), Err(Errno::PERM));
        assert_eq!(understood(&[]), Err(Errno::BADMSG));
    }
}
