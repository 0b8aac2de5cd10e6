//! Temporary.
mod asker;
mod file;
pub use asker::{Asker, ThirdParty};
pub use file::LeaseFile;
pub use nicety_tolerance::{Answer, Lease, NodeId, Request};
