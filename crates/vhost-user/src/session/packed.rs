//! A packed ring's positions and flags (virtio 1.2, section 2.8), as far as a session looks at them.

/// Flags in the last two bytes of a packed ring's descriptor (virtio 1.2, section 2.8.1).
pub(super) const AVAILABLE: u16 = 1 << 7;
pub(super) const USED: u16 = 1 << 15;
/// The base of a new packed ring: both places at descriptor 0, both wrap counters 1.
pub(super) const FIRST_LAP: u32 = 0x8000_8000;

/// Whether a new packed ring has this base. DPDK's virtio-user gives one position for both (virtio_user_dev.c).
pub(super) fn is_first(base: u32) -> bool {
    [FIRST_LAP, FIRST_LAP & 0xffff].contains(&base)
}
