//! virtio-net under its driver (virtio 1.2, sections 2.7 and 5.1).

mod bursts;
mod control;
mod guest;
mod hashing;
mod hostile;
mod killed;
mod long;
mod moderation;
mod packed;
mod packets;
mod pci;
mod rewritten;
mod rings;
mod traffic;
