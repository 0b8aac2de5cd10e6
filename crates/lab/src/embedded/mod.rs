//! Embedded guests: processes of their own that open the real vfio-user or vhost-user socket of a real daemon, share
//! memory by memfd, drive the adapter with our own guest drivers and run TCP by smoltcp (ARCHITECTURE.md, floor 6).
//!
//! Nothing is short-cut: register accesses are messages, DMA is DMA, interrupts are eventfds, and everybody sleeps when
//! there is nothing to do. [`Embedded`] is the bench; [`guest_main`] is what its processes run: the same program, by a
//! hidden command.
//!
//! - `bench`: runs items. `rig`: a daemon, its guests and peer; [`Rig`] is public for figures that `bench` does not give. `child`, `words`: a guest's process, and what is
//!   said to it.
//! - `guest`: that process; `crowd`: one that sits at many ports. `station`: its TCP. `flood`: broadcasts instead, as many as go or so many a second. `deck`: smoltcp's device. `link`: what carries frames; `vfio`, `vhost`
//!   and `pair`: what they go over.

mod attach;
mod bench;
mod child;
pub mod cpu;
mod crowd;
mod deck;
mod flood;
mod guest;
mod link;
mod orders;
mod pair;
mod rig;
mod station;
mod vfio;
mod vhost;
mod words;

pub use bench::Embedded;
pub use guest::guest_main;
pub use rig::{Layout, Party, Place, Program, Rig};
pub use words::Counts;
