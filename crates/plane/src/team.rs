//! Teams: groups of links ([`Group`](crate::Group)). A [`Rule`] decides which members send and take frames; [`Steering`] publishes that to all
//! workers in one word, and keeps the frames of a flow in order while it changes.

mod copies;
mod hash;
mod lacp;
mod mode;
mod moved;
mod queues;
mod saved;
mod spread;
mod standby;
mod steering;

pub use hash::Hash;
pub use lacp::Lacp;
pub use mode::Mode;
pub(crate) use moved::frame as announcement;
pub use queues::Queues;
pub use saved::{SavedRule, SavedSteering};
pub use spread::{Capacity, Spread};
pub use standby::Standby;
pub(crate) use steering::{Choice, MemberAgent};
pub use steering::{Links, Loads, MemberState, Moved, Rule, Steering};

/// Most members of a team.
pub const MEMBERS_MOST: usize = 16;
