//! Words for a receiver that takes no frame, where several families share them ([`Adapter::receive_block`]).
//!
//! [`Adapter::receive_block`]: nicety_adapter::Adapter::receive_block

/// The function may not access guest memory.
pub const NO_MASTER: &str = "bus mastering is off (PCI command register)";
/// Only its own frames come in.
pub const LOOPBACK: &str = "it is in loopback";
