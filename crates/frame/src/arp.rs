//! ARP for IPv4 over Ethernet (RFC 826), and RARP (RFC 903), which announces a moved adapter to switches.

use crate::{BuildError, Mac, Malformed};
use core::net::Ipv4Addr;

/// Length of the packet, without the Ethernet header.
pub const PACKET_LEN: usize = 28;

/// Values of the operation field.
pub mod operation {
    /// Request: asks who has this address.
    pub const REQUEST: u16 = 1;
    /// Reply to a request.
    pub const REPLY: u16 = 2;
    /// Reverse request: also the announcement of a moved adapter.
    pub const REVERSE_REQUEST: u16 = 3;
    /// Reply to a reverse request: gives the target an address.
    pub const REVERSE_REPLY: u16 = 4;
}

/// Hardware type 1, protocol 0x0800, lengths 6 and 4.
const FIXED: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// A packet's plain form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// One of [`operation`].
    pub operation: u16,
    /// The sender's MAC address.
    pub sender_mac: Mac,
    /// The sender's IPv4 address.
    pub sender: Ipv4Addr,
    /// The target's MAC address; zero in a request.
    pub target_mac: Mac,
    /// The target's IPv4 address.
    pub target: Ipv4Addr,
}

impl Packet {
    /// Reads the packet behind the Ethernet header; other address families are `Malformed::Version`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let head: &[u8; PACKET_LEN] = bytes.first_chunk().ok_or(Malformed::Short)?;
        let (fixed, rest) = head.split_first_chunk::<6>().ok_or(Malformed::Short)?;
        if *fixed != FIXED {
            return Err(Malformed::Version);
        }
        let (operation, rest) = rest.split_first_chunk().ok_or(Malformed::Short)?;
        let (sender_mac, rest) = rest.split_first_chunk().ok_or(Malformed::Short)?;
        let (sender, rest) = rest.split_first_chunk::<4>().ok_or(Malformed::Short)?;
        let (target_mac, rest) = rest.split_first_chunk().ok_or(Malformed::Short)?;
        let target: &[u8; 4] = rest.first_chunk().ok_or(Malformed::Short)?;
        Ok(Self {
            operation: u16::from_be_bytes(*operation),
            sender_mac: Mac(*sender_mac),
            sender: Ipv4Addr::from(*sender),
            target_mac: Mac(*target_mac),
            target: Ipv4Addr::from(*target),
        })
    }

    /// Writes the packet at the start of `out`, behind an Ethernet header, and returns its length.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, BuildError> {
        let out = out.get_mut(..PACKET_LEN).ok_or(BuildError::NoRoom)?;
        let fields: [&[u8]; 6] = [
            &FIXED,
            &self.operation.to_be_bytes(),
            &self.sender_mac.0,
            &self.sender.octets(),
            &self.target_mac.0,
            &self.target.octets(),
        ];
        for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        Ok(PACKET_LEN)
    }
}
