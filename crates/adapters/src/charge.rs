//! The price of a walk over descriptors, in the fairness between ports.

/// Descriptors that a packet's bytes pay for in the fairness between ports: Linux's longest virtio-net chain, plus one for an
/// indirect table.
pub(crate) const STEPS_PAID: u32 = 20;
