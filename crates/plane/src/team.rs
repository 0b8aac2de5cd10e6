//! Teams: groups of links ([`Group`](crate::Group)). A [`Rule`] decides which members send and take frames; [`Steering`] publishes that to all
//! workers in one word, and keeps the frames of a flow in order while it changes.

mod lacp;
mod mode;
mod queues;
mod rule;
mod saved;
mod spread;
mod standby;
mod steering;

pub use lacp::Lacp;
pub use mode::{Capacity, Mode};
pub use queues::Queues;
pub use rule::{Links, Loads, Moved, Rule};
pub use saved::{SavedRule, SavedSteering};
pub use spread::Spread;
pub use standby::Standby;
pub(crate) use steering::{Choice, MemberAgent};
pub use steering::{MemberState, Steering};

/// Most members of a team.
pub const MEMBERS_MAX: usize = 16;

/// The numbers of the bits that are set.
pub(crate) fn numbers(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let number = (bits != 0).then_some(bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        number
    })
}
