//! Feature bits as masks (virtio 1.2, sections 5.1.3 and 6).

pub(super) const CHECKSUM: u64 = 1 << 0;
pub(super) const GUEST_CHECKSUM: u64 = 1 << 1;
pub(super) const MAC: u64 = 1 << 5;
pub(super) const GUEST_TSO4: u64 = 1 << 7;
pub(super) const GUEST_TSO6: u64 = 1 << 8;
pub(super) const HOST_TSO4: u64 = 1 << 11;
pub(super) const HOST_TSO6: u64 = 1 << 12;
pub(super) const MERGEABLE: u64 = 1 << 15;
pub(super) const STATUS: u64 = 1 << 16;
pub(super) const INDIRECT: u64 = 1 << 28;
pub(super) const EVENTS: u64 = 1 << 29;
pub(super) const VERSION_1: u64 = 1 << 32;
pub(super) const GUEST_USO4: u64 = 1 << 54;
pub(super) const GUEST_USO6: u64 = 1 << 55;
pub(super) const HOST_USO: u64 = 1 << 56;

/// Features that this driver knows.
pub(super) const KNOWN: u64 = CHECKSUM
    | GUEST_CHECKSUM
    | MAC
    | GUEST_TSO4
    | GUEST_TSO6
    | HOST_TSO4
    | HOST_TSO6
    | MERGEABLE
    | STATUS
    | INDIRECT
    | EVENTS
    | VERSION_1
    | GUEST_USO4
    | GUEST_USO6
    | HOST_USO;
/// Features that make received packets longer than a buffer.
pub(super) const LONG: u64 = GUEST_TSO4 | GUEST_TSO6 | GUEST_USO4 | GUEST_USO6;

pub(super) fn has(taken: u64, feature: u64) -> bool {
    taken & feature == feature
}
