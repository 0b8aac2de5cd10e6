//! The crate against independent implementations: etherparse and smoltcp's wire formats, and vectors from the documents
//! that each module follows.

mod builders;
mod checksums;
mod hashes;
mod layouts;
mod packets;
mod robustness;
mod segments;
mod tags;
