//! Packets from outside, in tunnels too, and as vmxnet3_drv.c prepares them.

use etherparse::PacketBuilder;

use crate::guest::packets::with_pseudo;
pub use crate::guest::packets::{KEY, partial, sequence, tcp4, tcp6, udp4, verified};

/// A TCP packet after `vmxnet3_prepare_tso`: no IP checksum, the pseudo-header's sum without the length.
pub fn prepared_for_tso(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes[12..14] == [8, 0] {
        bytes[24..26].fill(0);
    }
    with_pseudo(bytes, 0)
}

/// The packet in a tunnel between 10.1.0.1 and 10.1.0.2, as UDP with a checksum over the present bytes.
pub fn tunneled(inner: &[u8], geneve: bool) -> Vec<u8> {
    let header =
        if geneve { [1, 0, 0x65, 0x58, 0, 0, 7, 0, 0, 1, 2, 0].to_vec() } else { vec![8, 0, 0, 0, 0, 0, 7, 0] };
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], crate::guest::MAC)
        .ipv4([10, 1, 0, 1], [10, 1, 0, 2], 64)
        .udp(40_000, if geneve { 6081 } else { 4789 });
    let mut bytes = Vec::new();
    builder.write(&mut bytes, &[&header, inner].concat()).unwrap();
    bytes
}
