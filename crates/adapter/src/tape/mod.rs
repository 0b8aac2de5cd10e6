//! Tapes: all that an adapter hears, as data, and what it answered.
//!
//! ```text
//! port ──► Recorder ──► adapter            a port whose adapter is recorded: each call becomes an Entry
//!             └──► Entry { at, call, read, sum } ──► … ──► Player ──► another adapter of the same kind
//! ```
//! A [`Recorder`] is an adapter around another one. All calls of a port go through the interface of an adapter, so there is no way around
//! it, and a port that is not recorded pays nothing. A [`Player`] makes the same calls again. The same calls give the same answers: the
//! sum of each entry covers everything that the adapter answered, asked for, sent and wrote into its guest's memory.
//!
//! Inputs of an adapter are: the arguments of its calls, times among them; the frames offered to it; the bytes that it reads of guest
//! memory, and which memory there is. Counters are none. A recorded adapter has no mapped doorbells: its guest writes registers.

mod call;
mod ear;
mod player;
mod recorder;
mod sum;
mod text;

pub use call::{Call, Entry, Offer, Offered};
pub use player::{Divergence, Player};
pub use recorder::{Recorder, Sink};
pub use sum::Sum;
