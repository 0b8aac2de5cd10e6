//! Network I/O control: the order in which waiting frames leave by a link, and when.
//!
//! The scheduler is hClock's (Billaud and Gulati, *hClock: Hierarchical QoS for Packet Scheduling in a Hypervisor*, EuroSys 2013). A
//! link is divided among classes, and a class among its ports. Each class and each port has three tags: the time at which its
//! reservation is due, the time until which its limit holds it, and its place by shares.
//!
//! ```text
//! 1. Reservations that are due, earliest deadline first.
//! 2. Else by shares: of those that have not had their share yet, the earliest virtual deadline.
//! 3. Nobody above its limit.
//! ```
//!
//! Two things differ from the paper (docs/adr/0018):
//! - Each of the two orders has an eligible time and a deadline, as in WF²Q+ (Bennett and Zhang 1997). So a class waits for its own rate plus
//!   a largest packet or two, however many others there are.
//! - A frame that went by shares postpones the reservation by at most one frame. So what was lent is given back at once.
//!
//! All operations take O(log n) for n waiting ports or classes. There is no clock, no frame and no memory allocation after
//! [`Scheduler::new`]: time and lengths are parameters.
#![forbid(unsafe_code)]

mod classify;
mod codel;
mod curve;
mod heap;
mod level;
mod marks;
mod scheduler;
mod timeline;

pub use classify::{Class, Classifier, Match, Prefix, PrefixError};
pub use codel::Codel;
pub use level::Terms;
pub use marks::{mark_congestion, mark_dscp};
pub use scheduler::{ClassTerms, Grant, Lane, Scheduler};

/// Most classes of a link.
pub const CLASSES_MAX: usize = 16;
/// A lane that is served may send frames until it has sent this many bytes: one frame of Ethernet, or several shorter ones.
pub const QUANTUM_BYTES: u32 = 1514;
