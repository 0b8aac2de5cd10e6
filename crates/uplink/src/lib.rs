//! The switch's links to the world: implementations of [`Uplink`](nicety_adapter::Uplink), and decorators of them.
//!
//! - [`Tap`]: the host's own network stack, through a tap interface; TSO packets pass whole in both directions.
//! - [`Xdp`]: a queue of an interface of the host, past the host's network stack (AF_XDP).
//! - [`Pair`]: another daemon, or a program, over a socket; TSO packets pass whole in both directions.
//! - [`Stream`]: a QEMU whose network back end is `-netdev stream`, or another daemon, frame by frame.
//! - [`Vxlan`]: other hosts, through a tunnel that Linux's `vxlan` device understands.
//! - [`Capture`]: a pcapng file of the frames that leave the switch, as the wire would see them.
//! - [`Null`]: drops everything, and counts.
//! - [`Paced`]: decorates an uplink with a token bucket per direction; [`Rate`] is its speed as a person writes it.
//! - [`Faulty`]: decorates an uplink with a line that loses, duplicates, reorders and damages packets by a seed, for tests.
//!
//! Each owns its buffers, made once: nothing is allocated per frame. Nothing blocks, and its budget bounds each call. An uplink is
//! counted like a guest at its port: frames from the world count as `sent`, frames to the world as `received`.
//!
//! `unsafe` lives in `system.rs`: ioctls of the tap driver, and the three calls that move messages; and for AF_XDP in
//! `xdp/program.rs`, bpf(2), and `xdp/ring.rs`, rings that are shared with the kernel.
#![deny(unsafe_code)]

mod buffers;
mod capture;
mod egress;
mod events;
mod faulty;
mod handover;
mod interface;
mod joining;
mod message;
mod null;
mod offload;
mod paced;
mod pair;
pub mod pcapng;
mod peer_source;
mod socket;
mod stream;
mod system;
mod tap;
mod virtio_header;
mod vxlan;
mod watch;
mod xdp;

pub use capture::{Capture, CaptureError, CaptureOptions};
pub use faulty::{Faults, Faulty};
pub use handover::Tokens;
pub use interface::Interface;
pub use nicety_adapter::{Rate, RateError};
pub use null::Null;
pub use paced::Paced;
pub use pair::{Pair, Parting};
pub use pcapng::Direction;
pub use socket::SocketError;
pub use stream::{Severed, Stream};
pub use tap::{Kind, Tap, TapError};
pub use vxlan::{
    HOPS_MAX, Hop, Hops, Network, Passed, Place, TOLD_MAX, TellError, Traffic, VXLAN_PORT, Vxlan, VxlanError,
    VxlanSettings, Way, inner_mtu, is_tunnel_end,
};
pub use xdp::{Xdp, XdpError};
