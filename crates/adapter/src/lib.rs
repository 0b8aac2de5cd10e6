//! The seam: what an adapter is to the switch, to a transport, and to its driver.
//!
//! Everything here is synchronous and plain: no thread, lock, clock, file descriptor, and no allocation on the way
//! of a frame. Time is a parameter. The same calls give the same results, in a daemon, in a seeded simulation and
//! in a replay.
//!
//! ```text
//! fetch ──────► Batch ──► (the switch decides) ──► Frames ──────► deliver        then complete, at the sender
//! own adapter   heads                              picks of       each receiver
//!               spans                              a batch
//! ```
//!
//! - [`Adapter`]: what every adapter does; [`Face`]: how its guest sees it, a PCI function or virtio rings.
//! - [`Batch`]: frames on their way out of one queue: private heads, translated spans, offload requests.
//! - [`Frames`] and [`Unfolded`]: the same frames as one receiver shall get them.
//! - [`Outbox`]: what an adapter wants of the world: work, room, a wake-up, interrupts.
//! - [`interrupts`]: causes, masks, vectors and throttles of a device, as a value.
//! - [`Stall`]: a queue that its driver broke, and why.
//! - [`Counters`] and [`Reason`]: every frame is delivered or counted with the reason why not.
//! - [`bank`]: a device's registers as data, and what they hold.
//! - [`trace`]: what a driver did to a device, as text.
//! - [`Bus`]: the other side, a driver's view of an adapter. [`Uplink`]: a port without a guest.
#![forbid(unsafe_code)]

mod adapter;
pub mod bank;
mod batch;
mod bus;
mod context;
mod counters;
mod face;
mod frames;
pub mod interrupts;
mod outbox;
mod rate;
pub mod snapshot;
mod stall;
mod time;
pub mod trace;
mod unfold;
mod uplink;

pub use adapter::{Adapter, Budget, Event, Progress, Reset};
pub use batch::{
    Batch, Checksum, Draft, DraftError, FRAMES_PER_PACKET, HEAD_BYTES, HEAD_MOST, Offload, PACKET_BYTES, PACKETS,
    Packet, PortId, SPANS, SPANS_PER_PACKET, Segment, SegmentKind,
};
pub use bus::{Bus, BusError, InterruptKind};
pub use context::Context;
pub use counters::{Counters, QUEUES, QueueCounters, Reason};
pub use face::{Face, Mappable, PciFace, RingFace, RingPlace};
pub use frames::{Delivery, Edit, Frames, Pick, Refusal};
pub use outbox::{Outbox, Set};
pub use rate::{Bucket, PEAK_NS, Rate, RateError, Shape, Shaper};
pub use snapshot::{RestoreError, Snapshot};
pub use stall::{Queue, Stall};
pub use time::Time;
pub use unfold::{Checked, Piece, Scratch, Unfolded, Wants, Whole};
pub use uplink::{News, Uplink};
