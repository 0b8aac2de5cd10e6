//! Embedded guests: processes of their own that open the real vfio-user or vhost-user socket of a real daemon, share
//! memory by memfd, drive the adapter with our own guest drivers and run TCP by smoltcp (ARCHITECTURE.md, floor 6).
//!
//! There are no shortcuts: register accesses are messages, DMA is DMA, interrupts are eventfds, and an idle process sleeps.
//! [`Embedded`] is the bench. Its processes run [`guest_main`]: the same program, by a hidden command.
//!
//! - `bench`: runs items. `rig`: a daemon, its guests and peer; [`Rig`] is public for figures that `bench` does not give.
//!   `program`: its hidden commands. `child`: a guest's process; `generator`: one that sends at a fixed rate. `words`: the messages between
//!   bench and guest.
//! - `guest`: that process; `crowd`: one process at many ports (`members`), which may send at a fixed rate (`offer`). `station`: its TCP;
//!   `client`: its connections to other stations; `compare`: a stream that is compared. `flood`: broadcasts instead, as fast as possible
//!   or at a fixed rate. `native`: the same orders without a virtual machine. `device`: smoltcp's device. `link`: carries frames, over
//!   `vfio`, `vhost`, `pair` or `tap`.

mod attach;
mod bench;
mod child;
mod client;
mod compare;
pub mod cpu;
mod crowd;
mod device;
mod flood;
mod generator;
mod guest;
mod link;
mod members;
mod native;
mod offer;
mod orders;
mod pair;
mod program;
mod rig;
mod station;
mod tap;
mod vfio;
mod vhost;
mod words;

pub use bench::{Embedded, driven};
pub(crate) use compare::Compare;
pub use generator::Generator;
pub use guest::guest_main;
pub use program::Program;
pub use rig::{Flow, Layout, Party, Place, Rig};
pub use words::{Attach, Compared, Counts, Offered, Shape};
