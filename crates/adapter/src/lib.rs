//! The interfaces of an adapter: to the switch, to a transport, and to its driver.
//!
//! Everything here is synchronous and plain: no thread, lock, clock or file descriptor, and no allocation in the data path. Time is
//! a parameter. The same calls give the same results, in a daemon, in a seeded simulation and in a replay.
//!
//! ```text
//! fetch ──────► Batch ──► (the switch decides) ──► Frames ──────► deliver        then complete, at the sender
//! own adapter   heads                              picks of       each receiver
//!               spans                              a batch
//! ```
//!
//! - [`Adapter`]: the interface of every adapter; [`Face`]: its interface to the guest, a PCI function or virtio rings.
//! - [`Batch`]: frames in flight from one queue: private heads, translated spans, offload requests.
//! - [`Frames`] and [`Unfolded`]: the same frames in the form for one receiver.
//! - [`Outbox`]: an adapter's requests to the port: work, room, a wake-up, interrupts.
//! - [`interrupts`]: a device's causes, masks, vectors and throttles, as a value.
//! - [`family`]: adapters made together, and the value that answers their asks.
//! - [`Stall`]: a queue that its driver broke, and the reason.
//! - [`Counters`] and [`Reason`]: every frame is delivered, or dropped and counted with a reason.
//! - [`GuestError`]: a driver's mistake, its place and what was expected; the last ones are kept.
//! - [`bank`]: a device's registers as data, and their values.
//! - [`trace`]: a driver's accesses to a device, as text. [`tape`]: all that an adapter hears, as data.
//! - [`Bus`]: a driver's view of an adapter. [`Uplink`]: a port without a guest.
//!
//! To put an adapter into a VMM of your own, begin with `crates/plane/examples/vmm.rs`: two guests, a switch, a frame. `messages.rs` beside
//! it delivers MSI-X messages. The book's page "Using the crates in a program of your own" explains both.
#![forbid(unsafe_code)]

mod access;
mod adapter;
pub mod bank;
mod batch;
mod bus;
mod context;
mod counters;
mod face;
pub mod family;
mod frames;
mod guest_error;
pub mod interrupts;
mod outbox;
mod progress;
mod rate;
mod registers;
mod saved_counters;
pub mod snapshot;
mod stall;
pub mod tape;
mod time;
pub mod trace;
mod unfold;
mod uplink;
mod words;

pub use adapter::{Adapter, Event, Reset};
pub use batch::{
    Admitted, Batch, Checksum, Draft, DraftError, FRAMES_PER_PACKET, HEAD_BYTES, HEAD_MAX, Offload, PACKET_BYTES,
    PACKETS, Packet, Plain, PortId, SPANS, SPANS_PER_PACKET, Segment, SegmentKind,
};
pub use bus::{Bus, BusError, InterruptKind};
pub use context::Context;
pub use counters::{Counters, QUEUES, QueueCounters, Reason};
pub use face::{Face, Mappable, PciFace, RingFace, RingPlace};
pub use frames::{Delivery, Edit, Frames, Pick, Refusal};
pub use guest_error::{ErrorPlace, GUEST_ERRORS_KEPT, GuestError, GuestErrors, NotedError};
pub use outbox::{Outbox, Set};
pub use progress::{Budget, Progress};
pub use rate::{Bucket, PEAK_NS, Rate, RateError, SavedBucket, Shape, Shaper};
pub use registers::Registers;
pub use saved_counters::SavedCounters;
pub use snapshot::{RestoreError, Snapshot};
pub use stall::{Queue, Stall};
pub use time::Time;
pub use unfold::{Checked, Piece, Scratch, Short, Unfolded, Wants, Whole};
pub use uplink::{HandOver, News, Uplink, UplinkSettings};
pub use words::count;
