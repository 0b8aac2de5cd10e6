//! IPFIX (RFC 7011): flows are counted in a [`Table`], and told to a collector in the messages of a [`Session`].
//!
//! ```text
//! frame's head ──► Key ──► Table: counts ──► Record: a flow that has ended, or that was reported meanwhile
//!                                            Record ──► Session ──► message: templates, records, sequence number
//! ```
//!
//! A table grows up to a number of places. A flow that finds no free place then takes that of the one that was silent for longest, and that
//! one is reported at once. Elements are IANA's (RFC 7012; forwarding status: RFC 7270, section 4.12).
//!
//! There is no clock and no socket: time is a parameter, in nanoseconds, and messages are bytes.
#![forbid(unsafe_code)]

mod element;
mod key;
mod record;
mod session;
mod table;

pub use element::{Field, Template};
pub use key::{Key, NOT_ONE, Outcome, Seen};
pub use record::{Direction, EndReason, Port, Record, Report};
pub use session::{Due, Names, Session, Terms};
pub use table::{ENTRY_BYTES, Swept, Table};
