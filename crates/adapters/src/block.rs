//! Words for a receiver that takes no frame, where several families share them ([`Adapter::receive_block`]).
//!
//! [`Adapter::receive_block`]: nicety_adapter::Adapter::receive_block

/// The function may not access guest memory.
pub const NO_MASTER: &str = "bus mastering is off (PCI command register)";
/// The host took the link down (of a function of a card), or the driver did (Intel's, CTRL.SLU and PHY).
pub const LINK_DOWN: &str = "its link is down";
/// Only its own frames come in.
pub const LOOPBACK: &str = "it is in loopback";
