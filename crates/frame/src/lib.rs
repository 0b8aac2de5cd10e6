//! Views, builders, checksums, segmentation and hashes of Ethernet to TCP (floor 1 of ARCHITECTURE.md).
//!
//! Every protocol module has the same three types: `View` reads a header in place, `Edit` changes one in place, and
//! `Header` is the plain form that writes itself into a buffer. Views take the fixed part of their header as an array,
//! so that no access after `parse` can be out of range. [`Layout`] holds the offsets of a frame's headers. Functions
//! that work on a whole frame (checksums, segmentation, hashes) take the head and its layout.
//!
//! Nothing here allocates: the crate has neither `std` nor `alloc` outside its tests.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod arp;
mod bytes;
pub mod checksum;
pub mod crc;
mod error;
pub mod ethernet;
pub mod group;
pub mod icmp;
pub mod ipv4;
pub mod ipv6;
pub mod layout;
pub mod segment;
mod sum;
pub mod tcp;
pub mod toeplitz;
pub mod tunnel;
pub mod udp;
pub mod vlan;
pub mod vxlan;

pub use error::{BuildError, Malformed};
pub use ethernet::Mac;
pub use layout::{Fragment, L3, L3Kind, L4, L4Kind, Layout};
pub use segment::{Segment, SegmentError, SegmentKind, Segmenter};
pub use sum::Sum;
pub use tunnel::{Tunnel, TunnelKind};
pub use vlan::{Tag, Tci};
pub use vxlan::Vni;
