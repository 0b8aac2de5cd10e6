//! Names of other hosts.

pub mod names;
