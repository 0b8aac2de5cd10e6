//! The program that the keeper starts.

use std::ffi::OsString;
use std::path::PathBuf;

/// The program that the keeper starts, and its arguments.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program of the first daemon, and of openers. No other program gets CAP_NET_ADMIN.
    pub program: PathBuf,
    /// The arguments of every daemon and opener. [`KEPT`](crate::KEPT) or [`OPENS`](crate::OPENS) is added.
    pub arguments: Vec<OsString>,
}
