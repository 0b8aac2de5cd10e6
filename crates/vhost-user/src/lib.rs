//! The vhost-user transport (QEMU, docs/interop/vhost-user.rst). It connects a VMM, DPDK's virtio-user, or User-Mode Linux to an
//! adapter that consists of virtio rings.
//!
//! ```text
//! front end ── UNIX socket ──► Session (a thread)  ── Port ──► the adapter's RingFace, under its port's lock
//!    │                          messages, few                  memory map, rings placed
//!    └── memory file, kick and call descriptors ──────────────► the port's worker: frames, no messages
//! ```
//!
//! - [`Listener`]: the socket in the file system.
//! - [`Session`]: one connection. It blocks in its own thread: a front end that sends half a message stops no other port.
//! - [`Port`]: the interface of the daemon to a session.
//! - [`Bell`]: a kick or call descriptor, eventfd or, for calls, socket. Signalling and reading it never block on the peer.
//! - [`frontend`]: the other side, for guests in this process and for tests.
//!
//! **Not implemented**, and not offered: back-end requests, in-band notifications, postcopy.
#![forbid(unsafe_code)]

mod ending;
pub mod frontend;
mod iotlb;
mod memory;
mod port;
mod protocol;
mod session;
mod wire;

pub use ending::{Ended, Refusal};
pub use nicety_peer::Bell;
pub use nicety_socket::{Accepted, ListenError, Listener, PeerCredentials};
pub use port::{Kick, Port, RECORD_RING_BYTES, STATE_BYTES_MAX};
pub use protocol::{ProtocolFeatures, Request, TIMEOUT};
pub use session::{Closer, NotSaved, SavedSession, SavedSession1, Served, Session};
