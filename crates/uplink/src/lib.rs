//! How the switch reaches the world: implementations of [`Uplink`](nicety_adapter::Uplink), and decorators of them.
//!
//! - [`Tap`]: the host's own network stack, through a tap interface; TSO packets pass whole both ways.
//! - [`Pair`]: another daemon, or a program, over a socket; TSO packets pass whole both ways.
//! - [`Stream`]: a QEMU whose network back end is `-netdev stream`, or another daemon, frame by frame.
//! - [`Capture`]: a pcapng file of what leaves the switch, as the wire would see it.
//! - [`Null`]: swallows everything, and counts.
//! - [`Querier`]: asks hosts for the groups that they are members of; leads nowhere.
//! - [`Paced`]: any of them with a token bucket each way; [`Rate`] is how a person writes its speed.
//! - [`Announced`]: any of them that tells its neighbour who it is, by LLDP.
//! - [`Faulty`]: any of them behind a line that loses, doubles, reorders and damages packets by a seed, for tests.
//!
//! Each owns its buffers, made once: nothing is allocated per frame. Nothing blocks, and each call is bounded by its
//! budget. An uplink is counted like a guest at its port: what comes in from the world is `sent`, what goes out to it
//! is `received`.
//!
//! `unsafe` lives in `system.rs`: ioctls of the tap driver, and the three calls that move
//! messages.
#![deny(unsafe_code)]

mod announced;
mod buffers;
mod capture;
mod egress;
mod faulty;
mod message;
mod null;
mod offload;
mod paced;
mod pair;
pub mod pcapng;
mod querier;
mod socket;
mod stream;
mod system;
mod tap;
mod virtio_header;
mod watch;
mod way;

pub use announced::Announced;
pub use capture::{Capture, CaptureError, CaptureOptions};
pub use faulty::{Faults, Faulty};
pub use nicety_adapter::{Rate, RateError};
pub use null::Null;
pub use paced::Paced;
pub use pair::{Pair, Parting};
pub use pcapng::Direction;
pub use querier::Querier;
pub use socket::SocketError;
pub use stream::{Severed, Stream};
pub use tap::{Kind, Tap, TapError};
