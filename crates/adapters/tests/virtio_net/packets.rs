//! Packets to another station.

use crate::guest::packets;

pub use packets::{KEY, partial, payload, verified};

/// Ethernet and IPv4 and TCP headers.
pub const HEADERS4: usize = 14 + 20 + 20;
/// Ethernet and IPv6 and TCP headers.
pub const HEADERS6: usize = 14 + 40 + 20;

pub fn tcp4(payload: &[u8]) -> Vec<u8> {
    packets::tcp4(packets::PEER, payload)
}

pub fn tcp6(payload: &[u8]) -> Vec<u8> {
    packets::tcp6(packets::PEER, payload)
}
