//! Embedded guests: processes of their own that open the real vfio-user or vhost-user socket of a real daemon, share
//! memory by memfd, drive the adapter with our own guest drivers and run TCP by smoltcp (ARCHITECTURE.md, floor 5).
//!
//! Nothing is short-cut: register accesses are messages, DMA is DMA, interrupts are eventfds, and everybody sleeps when
//! there is nothing to do. [`Embedded`] is the bench; [`guest_main`] is what its processes run: the same program, by a
//! hidden command.
//!
//! - `bench`: runs items. `rig`: one adapter's daemon, guests and peer. `child`, `words`: a guest's process, and what is
//!   said to it.
//! - `guest`: that process. `station`: its TCP. `deck`: smoltcp's device. `link`: what carries frames; `vfio`, `vhost`
//!   and `pair`: what they go over.

mod bench;
mod child;
mod cpu;
mod deck;
mod guest;
mod link;
mod pair;
mod rig;
mod station;
mod vfio;
mod vhost;
mod words;

pub use bench::Embedded;
pub use guest::guest_main;
pub use rig::Program;
